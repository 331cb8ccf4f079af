//! Standbys of several servers: whichever server dies, one takes over, and the others go on.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use rustix::process::Signal;
use serde_json::Value;

use super::{Local, links, run};
use crate::harness::{eventually, redbud, signal, success};

/// Makes and removes directories of both servers, and keeps one of each round.
pub struct Load {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Load {
    pub fn start(parent: &Path) -> Load {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, done, place) = (stop.clone(), rounds.clone(), parent.to_owned());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let round = done.load(Ordering::Relaxed);
                let kept = place.join(format!("kept{round}"));
                fs::create_dir(&kept).unwrap();
                fs::write(kept.join("file"), round.to_string()).unwrap();
                let gone = place.join("gone");
                fs::create_dir(&gone).unwrap();
                fs::remove_dir(&gone).unwrap();
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
        Load { stop, rounds, thread }
    }

    /// Waits until it has begun and ended more rounds, or has failed.
    pub fn work(&self) {
        let before = self.rounds.load(Ordering::Relaxed);
        eventually("the load goes on", || {
            self.rounds.load(Ordering::Relaxed) > before + 2 || self.thread.is_finished()
        });
    }

    /// Stops it; gives how many directories are kept.
    pub fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        self.rounds.load(Ordering::Relaxed)
    }
}

impl Local {
    /// The process that serves as this server.
    pub fn owner(&self, server: usize) -> i32 {
        self.report().owner(server)
    }

    /// Processes that stand by for this server.
    pub fn standbys(&self, server: usize) -> Vec<i32> {
        self.report().standbys(server)
    }

    /// Waits until a server with a higher epoch serves, and somebody stands by for each.
    fn wait_taken_over(&self, server: usize, before: &[u64]) -> Vec<u64> {
        eventually("another process serves", || self.epochs(2)[server] > before[server]);
        let stands = |server| !self.standbys(server).is_empty();
        eventually("somebody stands by for each", || stands(0) && stands(1));
        self.epochs(2)
    }
}

pub fn assert_kept(parent: &Path, rounds: u64) {
    for round in 0..rounds {
        let path: PathBuf = parent.join(format!("kept{round}/file"));
        assert_eq!(fs::read_to_string(&path).unwrap(), round.to_string());
    }
    assert_eq!(links(parent), 2 + rounds);
}

#[test]
fn each_server_is_taken_over_and_the_other_one_answers_meanwhile() {
    let mut local = Local::start_with(&["--mds", "2", "--standby", "1"]);
    let (parent, calm) = (local.parent("parent", "spread"), local.parent("calm", "0"));
    let mut epochs = local.epochs(2);
    let load = Load::start(&parent);

    // Nobody can take over yet: the standby is stopped, and nothing is started again.
    let supervisor = local.running.as_ref().unwrap().id() as i32;
    let (standbys, killed) = (local.standbys(1), local.owner(1));
    assert_eq!((standbys.len(), &standbys), (1, &local.standbys(0)));
    signal(supervisor, Signal::STOP);
    signal(standbys[0], Signal::STOP);
    signal(killed, Signal::KILL);
    for round in 0..5 {
        fs::create_dir(calm.join(round.to_string())).unwrap();
    }
    assert_eq!(fs::read_dir(&calm).unwrap().count(), 5);
    signal(standbys[0], Signal::CONT);
    eventually("the standby serves", || local.epochs(2)[1] > epochs[1]);
    assert_eq!(local.owner(1), standbys[0]);
    signal(supervisor, Signal::CONT);
    epochs = local.wait_taken_over(1, &epochs);

    // What was server 1 stands by now, and takes over what was server 0; and so on.
    for server in [0, 1] {
        let owner = local.owner(server);
        signal(owner, Signal::KILL);
        epochs = local.wait_taken_over(server, &epochs);
        assert_ne!(local.owner(server), owner);
    }
    let rounds = load.end();
    assert!(rounds > 0);
    assert_kept(&parent, rounds);

    // As planned: of one server, which has to be named.
    let failover =
        |options: &[&str]| run(redbud().args(["mds", "failover"]).arg(local.dir()).args(options));
    let (code, said) = failover(&[]);
    assert!(code == 2 && said.contains("name one with --server 0 to --server 1"), "{said}");
    let owner = local.owner(0);
    let (code, said) = failover(&["--server", "0"]);
    assert!(code == 0 && said.contains("stands by"), "{said}");
    assert_ne!(local.owner(0), owner);
    local.wait_taken_over(0, &epochs);
    let table = success(redbud().arg("status").arg(local.dir()));
    assert!(table.matches("  owner     127.0.0.1:").count() == 2, "{table}");
    assert!(table.contains("a planned failover") && table.contains("its lock is free"), "{table}");
    assert!(table.contains("no problem is known"), "{table}");
    assert_kept(&parent, rounds);
    local.stop();
    local.assert_clean();

    // Without standbys there is one process for each server again.
    local.begin(&["--standby", "0"]);
    assert_kept(&parent, rounds);
    assert!(local.servers().iter().all(|server| server["membership"] == Value::Null));
    local.stop();
    local.assert_clean();
}

#[test]
fn process_says_what_it_cannot_be() {
    let local = Local { running: None, scratch: crate::harness::Scratch::new() };
    success(local.command().args(["--mds", "2", "--standby", "2", "--exec", "true"]));
    let mds = |options: &[&str]| {
        run(redbud().arg("mds").arg(local.dir().join("cluster.toml")).args(options))
    };
    for (options, wanted) in [
        (&["--standby"][..], "name this server's address by --listen"),
        (&["--standby", "--listen", "127.0.0.1:9"], "look for servers only at 127.0.0.1:"),
        (&["--standby", "--server", "2"], "there is no server 2"),
        (&["--server", "0", "--take-over", "127.0.0.1:9"], "do not look for servers there"),
        (&[], "name one with --server 0 to --server 1"),
    ] {
        let (code, said) = mds(options);
        assert!(code == 2 && said.contains(wanted), "{options:?}: {said}");
    }
    local.assert_clean();
}
