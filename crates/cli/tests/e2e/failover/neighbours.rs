//! Two metadata servers, on a host each, that agree through etcd and share the directories out: the
//! one that lives takes over what the other one served.

use std::fs;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use super::Servers;
use super::etcd::Etcd;
use crate::harness::{Spec, eventually, redbud, success};
use crate::servers::standbys::{Load, assert_kept};
use crate::servers::{hand_over, parent_at, server_of};

/// A living server asks the fence behind half of it and 2 s: well before its end.
const LEASE: Duration = Duration::from_secs(12);

impl Servers {
    /// Two servers that take over from each other, with a mount.
    fn neighbours() -> Servers {
        let spec = Spec { servers: 2, ..Spec::default() };
        let mut servers = Servers::formatted_as(2, Some(Etcd::with_lease(LEASE)), spec);
        (0..2).for_each(|index| servers.start_one(index));
        servers.cluster.mount();
        servers
    }

    fn agreed(&mut self) -> &mut Etcd {
        self.etcd.as_mut().expect("they agree through etcd")
    }

    /// Asserts that server 0 has taken over server 1, which had this epoch, for this reason.
    fn assert_taken_over(&self, epoch: u64, reason: &str) {
        let (record, living) = (self.record_of(1), self.pid(0));
        let owner = &record["owner"];
        assert_eq!(
            (&owner["member"]["pid"], &owner["member"]["host"]),
            (&living.into(), &"mds0".into())
        );
        assert!(owner["epoch"].as_u64() > Some(epoch), "{record}");
        let last = record["history"].as_array().unwrap().last().unwrap();
        assert!(last["reason"].as_str().unwrap().ends_with(reason), "{record}");
        let report = self.report();
        assert_eq!([report.owner(0), report.owner(1)], [living; 2], "{}", report.0);
        assert_eq!(report.servers()[1]["membership"]["owner"], *owner);
    }

    /// Starts server 1, which stands by, and gives it back what server 0 serves for it.
    fn give_back(&mut self) {
        self.start_one(1);
        let own = self.pid(1);
        let report = self.report();
        assert!(report.standbys(0).contains(&own) && report.standbys(1).contains(&own));
        assert_eq!(hand_over(&self.cluster.config, 1), own);
        assert_eq!(self.report().owner(0), self.pid(0));
        eventually("no problem is known, as each has a standby", || {
            let table = success(redbud().arg("status").arg(&self.cluster.config));
            table.contains("no problem is known")
        });
    }
}

/// Writes a file in a directory whose server is away.
fn write_later(dir: &Path, name: &str) -> JoinHandle<()> {
    let file = dir.join(name);
    std::thread::spawn(move || {
        fs::write(&file, "waited").unwrap();
        fs::File::open(&file).unwrap().sync_all().unwrap();
    })
}

#[test]
fn living_server_takes_over_when_a_host_and_the_leader_of_etcd_die() {
    let mut servers = Servers::neighbours();
    let parent = parent_at(&servers.cluster.root(), "parent", "spread");
    let load = Load::start(&parent);
    load.work();
    let (before, other) = (servers.epoch_of(1), servers.record_of(0));
    servers.agreed().kill_leader();
    servers.kill(1);
    servers.wait_taken_over(1, before);
    servers.assert_taken_over(before, "has ended: it is cut off by agent");
    assert!(servers.agreed().is_cut_off("mds1") && !servers.agreed().is_cut_off("mds0"));
    assert_eq!(servers.record_of(0), other);
    load.work();
    servers.agreed().restore("mds1");
    servers.give_back();
    load.work();
    let rounds = load.end();
    assert_kept(&parent, rounds);
    servers.finish(1);
}

#[test]
fn server_that_nothing_proves_dead_is_left_alone_while_the_other_one_answers() {
    let mut servers = Servers::neighbours();
    let root = servers.cluster.root();
    let calm = parent_at(&root, "calm", "0");
    let away = parent_at(&root, "parent", "1").join("away");
    fs::create_dir(&away).unwrap();
    assert_eq!((server_of(&calm), server_of(&away)), (0, 1));
    servers.agreed().set_fence(false);
    let before = servers.epoch_of(1);
    servers.kill(1);
    let waits = write_later(&away, "first");
    eventually("the status says why nobody takes over", || {
        let problems = servers.status()["problems"].to_string();
        problems.contains("RB-MDS-NO-PROOF")
            && problems.contains("and no fence has cut its host off")
    });
    let claims = |servers: &Servers| servers.logs().matches("claimed the metadata").count();
    let (mut rounds, before_all) = (0, claims(&servers));
    loop {
        let waited = !waits.is_finished();
        if claims(&servers) > before_all {
            break;
        }
        assert!(waited, "nobody serves, and a file was written");
        fs::create_dir(calm.join(rounds.to_string())).unwrap();
        fs::write(calm.join(format!("{rounds}/file")), "calm").unwrap();
        rounds += 1;
    }
    println!("{rounds} directories while nobody served the other ones");
    assert!(rounds > 5, "only {rounds} directories before the lease was over");
    let failed = "agent does not cut mds1 off: exit status 1: no power switch";
    assert!(servers.logs().contains(failed), "the fence was not asked");
    servers.wait_taken_over(1, before);
    servers.assert_taken_over(before, "has ended: its lease is over");
    waits.join().unwrap();
    assert!(!servers.agreed().is_cut_off("mds1"));
    servers.give_back();

    // For the next owner the fence is asked again.
    servers.agreed().set_fence(true);
    let before = servers.epoch_of(1);
    servers.kill(1);
    let waits = write_later(&away, "second");
    servers.wait_taken_over(1, before);
    servers.assert_taken_over(before, "has ended: it is cut off by agent");
    waits.join().unwrap();
    for name in ["first", "second"] {
        assert_eq!(fs::read_to_string(away.join(name)).unwrap(), "waited");
    }
    assert_eq!(fs::read_dir(&calm).unwrap().count(), rounds);
    servers.finish(1);
}
