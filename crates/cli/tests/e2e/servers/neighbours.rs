//! Servers that take over from each other: one that lives serves the metadata of one that has died,
//! too, behind those that serve nothing.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use super::standbys::{Load, assert_kept};
use super::{Local, hand_over, parent_at, server_of};
use crate::broken::Fragile;
use crate::harness::{Scratch, eventually, redbud, signal, success};

impl Local {
    /// Nothing that ends is started again from now on.
    fn hold(&self) {
        signal(self.running.as_ref().expect("it runs").id() as i32, Signal::STOP);
    }

    /// What has ended is started again: so many processes.
    fn resume(&self, processes: u16) {
        signal(self.running.as_ref().expect("it runs").id() as i32, Signal::CONT);
        // Each has a control socket of its own.
        let runs = |at: u16| {
            let name = if at == 0 { "mds.sock".into() } else { format!("mds{at}.sock") };
            self.pid_with(&format!("{}\0", self.dir().join(name).display())).is_some()
        };
        eventually("all processes run", || (0..processes).all(runs));
    }

    /// Kills the process that serves as this server, and waits until another one does.
    fn kill_owner(&self, server: usize) {
        self.end_owner(server, Signal::KILL);
    }

    /// Ends the process that serves as this server, and waits until another one does.
    fn end_owner(&self, server: usize, how: Signal) {
        let (pid, count) = (self.owner(server), self.history(server).len());
        signal(pid, how);
        eventually("another process serves", || {
            let history = self.history(server);
            history.len() > count && history.last().is_some_and(|one| one["opened"] != 0)
        });
        assert_ne!(self.owner(server), pid);
    }

    /// The takeovers of a server.
    fn history(&self, server: usize) -> Vec<Value> {
        self.report().history(server)
    }

    /// Hands a server over as planned; gives its new process.
    fn hand_over(&self, server: usize) -> i32 {
        hand_over(&self.dir(), server)
    }

    /// A new directory for each server, with a file.
    fn assert_all_serve(&self, servers: u64, name: &str) {
        for server in 0..servers {
            let home = server.to_string();
            let inner = parent_at(&self.mount(), &format!("{name}{home}"), &home).join("inner");
            fs::create_dir(&inner).unwrap();
            assert_eq!(server_of(&inner), server);
            fs::write(inner.join("file"), name).unwrap();
            fs::remove_file(inner.join("file")).unwrap();
        }
    }
}

#[test]
fn living_server_serves_for_a_dead_one_too_and_gives_back() {
    let mut local = Local::start_with(&["--mds", "2", "--take-over", "on"]);
    let parent = local.parent("parent", "spread");
    local.epochs(2);
    let own = [local.owner(0), local.owner(1)];
    let load = Load::start(&parent);
    local.hold();
    local.kill_owner(1);
    assert_eq!([local.owner(0), local.owner(1)], [own[0]; 2]);
    local.assert_all_serve(2, "both");
    let table = success(redbud().arg("status").arg(local.dir()));
    assert!(table.contains("this process is server 0, too\n"), "{table}");
    // Commands reach the second one, as any other.
    success(redbud().args(["scrub", "--server", "1"]).arg(local.dir()));

    // It dies with both.
    signal(own[0], Signal::KILL);
    local.resume(2);
    eventually("each has a process again", || {
        let owners: Vec<u64> = local
            .servers()
            .iter()
            .filter_map(|one| one["membership"]["owner"]["member"]["pid"].as_u64())
            .collect();
        owners.len() == 2 && owners[0] != owners[1]
    });
    local.epochs(2);
    let rounds = load.end();
    assert!(rounds > 0);
    assert_kept(&parent, rounds);

    // To the neighbour and back, as planned, and once more at the same address.
    let own = [local.owner(0), local.owner(1)];
    for wanted in [own[0], own[1], own[0], own[1]] {
        eventually("somebody stands by", || !local.standbys(1).is_empty());
        assert_eq!(local.hand_over(1), wanted);
    }
    assert_eq!(local.owner(0), own[0]);
    assert_kept(&parent, rounds);
    local.stop();
    local.assert_clean();
}

#[test]
fn standby_goes_first_and_a_living_server_serves_when_none_is_left() {
    let mut local = Local::start_with(&["--mds", "2", "--standby", "1", "--take-over", "on"]);
    local.epochs(2);
    let (living, standby) = (local.owner(0), local.pid_of_standby());
    local.hold();
    local.kill_owner(1);
    assert_eq!((local.owner(0), local.owner(1)), (living, standby));
    local.kill_owner(1);
    assert_eq!((local.owner(0), local.owner(1)), (living, living));
    local.assert_all_serve(2, "later");
    local.resume(3);
    local.stop();
    local.assert_clean();
}

impl Local {
    /// The process that serves nothing.
    fn pid_of_standby(&self) -> i32 {
        let owners = [self.owner(0), self.owner(1)];
        let mut found = self.standbys(1);
        found.retain(|pid| !owners.contains(pid));
        assert_eq!(found.len(), 1, "{found:?}");
        found[0]
    }
}

#[test]
fn one_of_two_living_servers_takes_over_a_third() {
    let mut local = Local::start_with(&["--mds", "3", "--take-over", "on"]);
    local.epochs(3);
    let own = [local.owner(0), local.owner(1)];
    let before = local.history(2).len();
    local.hold();
    local.kill_owner(2);
    assert_eq!([local.owner(0), local.owner(1)], own);
    assert!(own.contains(&local.owner(2)));
    assert_eq!(local.history(2).len(), before + 1);
    local.assert_all_serve(3, "all");
    // Stopped in order, that one leaves to the other one what it had taken over.
    local.end_owner(2, Signal::TERM);
    assert!(own.contains(&local.owner(2)));
    // Its own server comes back, and stands by until it is given back.
    local.resume(3);
    eventually("its own server stands by", || {
        local.pid(2).is_some_and(|pid| local.standbys(2).contains(&pid))
    });
    assert_eq!(Some(local.hand_over(2)), local.pid(2));
    local.stop();
    local.assert_clean();
}

#[test]
fn metadata_that_fail_leave_what_their_process_serves_besides() {
    let mut local = Local { running: None, scratch: Scratch::new() };
    success(local.command().args(["--mds", "2", "--take-over", "on", "--exec", "true"]));
    let image = local.dir().join("metadata1.img");
    let device = Fragile::new(local.scratch.path(), 256 << 20, 96 << 20);
    let mut copy = Command::new("dd");
    copy.arg(format!("if={}", image.display())).arg(format!("of={}", device.device.display()));
    success(copy.args(["bs=1M", "conv=sparse,fsync"]));
    fs::remove_file(&image).unwrap();
    symlink(&device.device, &image).unwrap();
    local.begin(&[]);
    local.epochs(2);
    let ((_, child), living) = (local.nested(), local.owner(0));
    local.hold();
    local.kill_owner(1);
    fs::write(child.join("file"), "before").unwrap();
    success(redbud().arg("sync").arg(local.mount()));

    // Nothing is on its way while the device dies.
    signal(living, Signal::STOP);
    let dead = device.kill();
    // It takes the last page that the device has room for.
    fs::write(local.scratch.path().join("small/page"), [1; 4096]).unwrap();
    signal(living, Signal::CONT);
    let (name, synced) = (child.join("file"), |file: fs::File| file.sync_all());
    // What has to read the device may fail. What has to write it waits for a server that can.
    let waits = std::thread::spawn(move || {
        eventually("a server can", || {
            fs::write(&name, "after").and_then(|()| fs::File::open(&name)).and_then(synced).is_ok()
        });
    });
    eventually("server 1 has ended", || {
        local.servers().get(1).is_some_and(|one| one["state"] != "serving")
    });
    for round in 0..5 {
        fs::create_dir(local.mount().join(format!("calm{round}"))).unwrap();
    }
    assert_eq!(local.owner(0), living);
    let count = local.log("mds.log").matches("claimed the metadata").count();
    dead.revive();
    waits.join().unwrap();
    assert!(local.log("mds.log").matches("claimed the metadata").count() > count);
    assert_eq!([local.owner(0), local.owner(1)], [living; 2]);
    assert_eq!(fs::read(child.join("file")).unwrap(), b"after");
    local.resume(2);
    local.stop();
    local.assert_clean();
}
