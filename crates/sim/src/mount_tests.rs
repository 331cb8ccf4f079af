//! The history has every answer of an application, early failures included.

use std::rc::Rc;

use client::{NodeSpec, Place};
use types::Name;

use super::*;
use crate::cluster::{Cluster, world};
use crate::events::Events;
use crate::fleet::Fleet;
use crate::script::Script;

/// Runs `work` with a client whose kernel caches.
fn with_a_client<F: Future<Output = ()>>(work: impl FnOnce(Mount, History) -> F) -> Events {
    let (world, disks) = world(1);
    let (inner, events) = (world.clone(), Events::default());
    let stream = events.clone();
    world.run(|env| async move {
        let cluster = Cluster::new(inner, env, disks, Rc::default(), stream.clone());
        cluster.start_server();
        let history = History::new(&stream);
        let mut seeds = (0..100).map(Script::plain);
        let mount = loop {
            let script = Rc::new(seeds.next().expect("half of the seeds have caching kernels"));
            let fleet = Fleet::new(&cluster, &history, &script, 1, 1, 0);
            let mount = fleet.auditor(0).await.expect("it mounts");
            if mount.vfs.caches() {
                break mount;
            }
            mount.client.unmount().await;
        };
        work(mount.clone(), history).await;
        mount.client.unmount().await;
        cluster.kill_server();
    });
    events
}

fn failures(history: &History) -> Vec<(Op, Fault)> {
    let failed = |call: crate::call::Call| match call.outcome {
        Some(Outcome::Failed(fault)) => Some((call.op, fault)),
        _ => None,
    };
    history.take().into_iter().filter_map(failed).collect()
}

#[test]
fn failed_open_for_a_directory_fsync_is_in_the_history() {
    with_a_client(|mount, history| async move {
        let dir = Ino(12345);
        let fault = mount.fsync_dir(dir).await.expect_err("there is none");
        assert_eq!(failures(&history), [(Op::Lookup(At { dir, name: 0 }), fault)]);
    });
}

#[test]
fn write_to_a_bad_inode_is_in_the_history() {
    with_a_client(|mount, history| async move {
        let at = At { dir: Ino::ROOT, name: 1 };
        let file = mount.create(at, true, 0).await.expect("a file");
        let bad = OpenFile { generation: file.generation + 1, ..file };
        assert_eq!(mount.write(bad, Some(0), 10).await, Err(Fault::Io));
        let failed = failures(&history);
        assert!(
            matches!(failed[..], [(Op::Write { ino, len: 10, .. }, Fault::Io)] if ino == file.ino)
        );
        mount.close(file, 0).await;
    });
}

#[test]
fn listing_of_a_name_that_nobody_created_is_a_violation() {
    for strange in ["n1", "n17", "strange"] {
        let events = with_a_client(|mount, _| async move {
            let spec = NodeSpec { kind: FileKind::Regular, mode: 0o644, umask: 0, rdev: 0 };
            let name = Name::new(strange.as_bytes()).expect("a name");
            let place = Place { dir: Ino::ROOT, name: &name };
            mount.client.mknod(&client::Caller::default(), place, spec).await.expect("room");
            mount.list(Ino::ROOT, false, 4096).await.expect("the root");
        });
        let violation = events.first_violation();
        assert_eq!(violation.is_some(), strange != "n1", "{strange}: {violation:?}");
    }
}
