//! Connections break and servers restart; applications notice nothing.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;

use client::{ClientConfig, NodeSpec, Place};
use types::{Duration, Fault, FileKind, Ino, PagId};

use crate::harness::{
    Cluster, LEASE, Mount, Notice, RDONLY, RDWR, ROOT, WRONLY, check, logged, name,
};

/// SEMANTICS 3.2.
#[test]
fn changes_that_were_not_durable_are_replayed_after_a_restart() {
    check(1, |cluster| async move {
        let a = cluster.mount("a").await;
        let dir = a.mkdir(Ino::ROOT, "d").await.unwrap().attr.ino;
        let mut made = Vec::new();
        for index in 0..40 {
            let (entry, opened) = a.create(dir, &format!("f{index}"), WRONLY).await;
            a.write(opened.handle, 0, &[index as u8; 6000]).await;
            a.close(opened.handle).await;
            made.push(entry.attr.ino);
        }
        a.unlink(dir, "f7").await.unwrap();
        assert!(a.client.status().replay > 0, "the server has not made everything durable yet");
        cluster.restart_server().await;
        for index in (0..40).filter(|index| *index != 7) {
            let entry = a.find(dir, &format!("f{index}")).await.expect("replayed");
            assert_eq!(entry.attr.ino, made[index], "under its old number");
        }
        a.client.unmount().await;
        let b = cluster.mount("b").await;
        let dir = b.ino("d").await;
        assert_eq!(b.list(dir, true).await.len(), 39);
        for index in (0..40).filter(|index| *index != 7) {
            let entry = b.find(dir, &format!("f{index}")).await.unwrap();
            assert_eq!(entry.attr.ino, made[index]);
            let handle = b.open(entry.attr.ino, RDWR).await;
            assert_eq!(b.read(handle, 0, 10_000).await, [index as u8; 6000]);
        }
    });
}

#[test]
fn whiteout_that_was_not_durable_is_replayed_under_its_number() {
    const WHITEOUT: u32 = 4;
    for seed in [8, 9] {
        check(seed, |cluster| async move {
            let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
            let (from, to) = (
                a.mkdir(Ino::ROOT, "from").await.unwrap().attr.ino,
                a.mkdir(Ino::ROOT, "to").await.unwrap().attr.ino,
            );
            let mut left = Vec::new();
            let requests = a.requests();
            for index in 0..20 {
                let text = name(&format!("f{index}"));
                a.create(from, &format!("f{index}"), WRONLY).await;
                let (old, new) = (Place { dir: from, name: &text }, Place { dir: to, name: &text });
                a.client.rename(&ROOT, old, new, WHITEOUT).await.unwrap();
                // The client knows the whiteout under the old name without asking.
                left.push(a.find(from, &format!("f{index}")).await.unwrap().attr);
            }
            assert_eq!(a.requests() - requests, 40, "one request for each change");
            assert!(a.client.status().replay > 0, "the server has not made everything durable yet");
            cluster.restart_server().await;
            for mount in [&a, &b] {
                for (index, left) in left.iter().enumerate() {
                    let found = mount.find(from, &format!("f{index}")).await.unwrap().attr;
                    assert_eq!((found.ino, found.kind), (left.ino, FileKind::CharDevice));
                    assert_eq!((found.rdev, found.mode), (0, 0));
                    assert!(mount.find(to, &format!("f{index}")).await.is_some());
                }
            }
            assert_eq!(b.list(from, true).await.len(), 20);
        });
    }
}

#[test]
fn requests_in_flight_are_executed_once_through_cuts_and_restarts() {
    for seed in [2, 3, 4, 5] {
        check(seed, |cluster| async move {
            let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
            let dir = a.mkdir(Ino::ROOT, "d").await.unwrap().attr.ino;
            assert_eq!(b.ino("d").await, dir);
            let mut tasks = Vec::new();
            for (worker, mount) in
                [a.clone(), b.clone(), a.clone(), b.clone()].into_iter().enumerate()
            {
                tasks.push(cluster.env.spawn_join(async move {
                    for index in 0..60 {
                        let text = name(&format!("w{worker}-{index}"));
                        let place = Place { dir, name: &text };
                        let node =
                            NodeSpec { kind: FileKind::Regular, mode: 0o644, umask: 0, rdev: 0 };
                        // Executed twice, it would fail with `Exists`.
                        mount.client.mknod(&ROOT, place, node).await.unwrap();
                        if index % 3 == 0 {
                            mount.client.unlink(&ROOT, place).await.unwrap();
                        }
                    }
                }));
            }
            for round in 0..6 {
                cluster.env.sleep(Duration::from_millis(7 + round)).await;
                match round % 3 {
                    0 => cluster.world.cut("a", "mds"),
                    1 => cluster.world.cut("b", "mds"),
                    _ => cluster.restart_server().await,
                }
            }
            for task in tasks {
                let ended = cluster.env.timeout(Duration::from_secs(120), task).await;
                assert!(ended.is_some(), "a worker is stuck");
            }
            assert_eq!(a.list(dir, true).await.len(), 4 * 40);
            assert_eq!(b.list(dir, false).await.len(), 4 * 40);
            for status in [a.client.status(), b.client.status()] {
                assert_eq!((status.evictions, status.connected), (0, true));
            }
        });
    }
}

#[test]
fn cached_rights_survive_a_restart_and_are_still_recalled() {
    check(6, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let (entry, opened) = a.create(Ino::ROOT, "f", RDWR).await;
        a.write(opened.handle, 0, b"before").await;
        assert!(b.find(Ino::ROOT, "g").await.is_none());
        cluster.restart_server().await;
        a.write(opened.handle, 0, b"behind").await;
        let handle = b.open(entry.attr.ino, RDWR).await;
        assert_eq!(b.read(handle, 0, 100).await, b"behind");
        a.put("g", b"").await;
        assert!(b.find(Ino::ROOT, "g").await.is_some(), "b's cached names were recalled");
    });
}

/// SEMANTICS 2.1.
#[test]
fn fsynced_files_survive_the_death_of_client_and_server() {
    check(7, |cluster| async move {
        let a = cluster.mount("a").await;
        for index in 0..10u8 {
            let (_, opened) = a.create(Ino::ROOT, &format!("f{index}"), WRONLY).await;
            a.write(opened.handle, 0, &[index; 32 << 10]).await;
            a.client.fsync(opened.handle, false).await.unwrap();
            a.close(opened.handle).await;
        }
        cluster.world.kill("a");
        cluster.restart_server().await;
        let b = cluster.mount("b").await;
        for index in 0..10u8 {
            assert_eq!(b.get(&format!("f{index}")).await, [index; 32 << 10]);
        }
    });
}

#[test]
fn fsync_with_nothing_to_commit_still_waits_for_the_log() {
    check(14, |cluster| async move {
        let a = cluster.mount("a").await;
        let (_, empty) = a.create(Ino::ROOT, "empty", WRONLY).await;
        a.client.fsync(empty.handle, false).await.unwrap();
        cluster.world.kill("a");
        cluster.restart_server().await;
        let b = cluster.mount("b").await;
        assert!(b.get("empty").await.is_empty());
        let (_, full) = b.create(Ino::ROOT, "full", WRONLY).await;
        b.write(full.handle, 0, &[1; 9000]).await;
        // The commit is answered, but not yet in the flushed log.
        cluster.env.sleep(Duration::from_millis(1200)).await;
        assert_eq!(b.client.status().dirty_bytes, 0);
        b.client.fsync(full.handle, false).await.unwrap();
        cluster.world.kill("b");
        cluster.restart_server().await;
        let c = cluster.mount("c").await;
        assert_eq!(c.get("full").await, [1; 9000]);
    });
}

#[test]
fn open_orphan_survives_a_server_restart() {
    check(8, |cluster| async move {
        let a = cluster.mount("a").await;
        let (_, opened) = a.create(Ino::ROOT, "f", RDWR).await;
        a.write(opened.handle, 0, &[4; 9000]).await;
        a.unlink(Ino::ROOT, "f").await.unwrap();
        cluster.restart_server().await;
        cluster.env.sleep(Duration::from_secs(20)).await;
        assert_eq!(a.read(opened.handle, 8000, 2000).await, [4; 1000]);
        a.write(opened.handle, 0, &[5; 100]).await;
        a.client.fsync(opened.handle, false).await.unwrap();
        a.close(opened.handle).await;
    });
}

#[test]
fn refused_mount_ends_its_session_and_does_not_reconnect() {
    check(21, |cluster| async move {
        cluster.world.disk("blank", 1 << 30);
        let devices = vec![(PagId(0), "blank".to_owned())];
        let config = ClientConfig { devices, ..ClientConfig::default() };
        let refused = cluster.try_mount("a", config).await;
        assert!(refused.is_err_and(|error| error.text.contains("blank")), "it is no data zone");
        let devices = vec![(PagId(7), "data0".to_owned())];
        let config = ClientConfig { devices, ..ClientConfig::default() };
        let refused = cluster.try_mount("b", config).await;
        assert!(
            refused.is_err_and(|error| error.text.contains("data zone 7")),
            "there is no such zone"
        );
        cluster.env.sleep(Duration::from_secs(3)).await;
        let came = logged().iter().filter(|line| line.contains("has connected")).count();
        assert_eq!(came, 2, "{:?}", logged());
        assert!(!logged().iter().any(|line| line.contains("reconnecting")), "{:?}", logged());
    });
}

/// Runs `work` as operation `number` of the mount.
async fn operation<T>(mount: &Mount, number: u64, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    poll_fn(|cx| mount.client.step(number, || work.as_mut().poll(cx))).await
}

#[test]
fn abandoned_operation_is_not_sent_or_runs_once_and_notifies_the_kernel() {
    for (seed, sent) in [(22, false), (23, true), (24, false), (25, true)] {
        check(seed, |cluster| async move {
            let a = cluster.mount("a").await;
            let dir = a.mkdir(Ino::ROOT, "d").await.unwrap().attr.ino;
            a.client.syncfs().await.unwrap();
            if sent {
                // The request is sent, and its reply is lost.
                cluster.world.isolate("mds");
            } else {
                cluster.world.kill("mds");
                cluster.env.sleep(Duration::from_millis(50)).await;
            }
            let worker = a.clone();
            let made = cluster.env.spawn_join(async move {
                let text = name("f");
                let node = NodeSpec { kind: FileKind::Regular, mode: 0o644, umask: 0, rdev: 0 };
                let place = Place { dir, name: &text };
                operation(&worker, 7, worker.client.mknod(&ROOT, place, node)).await.map(|_| ())
            });
            cluster.env.sleep(Duration::from_millis(20)).await;
            a.kernel.notices.borrow_mut().clear();
            a.client.give_up(7);
            if sent {
                cluster.world.heal();
            } else {
                cluster.start_server().await;
            }
            let result = made.await;
            a.client.operation_ended(7);
            assert_eq!(result, if sent { Ok(()) } else { Err(Fault::Interrupted) });
            // The session's slot is usable, and the session continues.
            for index in 0..20 {
                a.put(&format!("g{index}"), b"x").await;
            }
            a.client.syncfs().await.unwrap();
            assert_eq!(a.find(dir, "f").await.is_some(), sent);
            let notices = a.kernel.notices.borrow().clone();
            let kernel_knows =
                notices.contains(&Notice::Epoch) && notices.contains(&Notice::Attr(dir));
            assert_eq!(kernel_knows, sent, "{notices:?}");
        });
    }
}

#[test]
fn abandoned_open_keeps_no_orphan() {
    check(26, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let ino = b.put("f", &[1; 5000]).await;
        b.client.syncfs().await.unwrap();
        let first = a.open(a.ino("f").await, RDONLY).await;
        b.unlink(Ino::ROOT, "f").await.unwrap();
        cluster.env.sleep(Duration::from_secs(2)).await;
        cluster.world.partition("a", "mds");
        cluster.world.cut("a", "mds");
        cluster.env.sleep(Duration::from_millis(50)).await;
        let worker = a.clone();
        let opened = cluster.env.spawn_join(async move {
            operation(&worker, 7, worker.client.open(&ROOT, ino, RDWR)).await.map(|_| ())
        });
        cluster.env.sleep(Duration::from_millis(20)).await;
        // The waiting open is the last use of the file; then it is abandoned.
        a.close(first).await;
        a.client.give_up(7);
        cluster.env.sleep(Duration::from_millis(20)).await;
        cluster.world.heal();
        assert_eq!(opened.await, Err(Fault::Interrupted));
        a.client.operation_ended(7);
        cluster.env.sleep(Duration::from_secs(5)).await;
        let c = cluster.mount("c").await;
        assert_eq!(c.client.getattr(ino).await, Err(Fault::Stale), "it is freed");
    });
}

/// SEMANTICS 3.8.
#[test]
fn abandoned_operations_run_once_or_not_at_all() {
    let abandoned_in_all = Cell::new(0);
    for seed in 30..38 {
        check(seed, async |cluster| {
            let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
            let dir = a.mkdir(Ino::ROOT, "d").await.unwrap().attr.ino;
            assert_eq!(b.ino("d").await, dir);
            let mut tasks = Vec::new();
            for (worker, mount) in [a.clone(), b.clone(), a.clone()].into_iter().enumerate() {
                let env = cluster.env.clone();
                tasks.push(cluster.env.spawn_join(async move {
                    let mut expected = Vec::new();
                    let mut abandoned = 0;
                    for index in 0..80u64 {
                        let text = format!("w{worker}-{index}");
                        let number = 1000 * (worker as u64 + 1) + index;
                        let (client, late) = (mount.client.clone(), env.clone());
                        let wait = Duration::from_micros(env.random_u64() % 3000);
                        let killer = env.spawn_join(async move {
                            late.sleep(wait).await;
                            client.give_up(number);
                        });
                        let made = name(&text);
                        let place = Place { dir, name: &made };
                        let node =
                            NodeSpec { kind: FileKind::Regular, mode: 0o644, umask: 0, rdev: 0 };
                        let work = mount.client.mknod(&ROOT, place, node);
                        match operation(&mount, number, work).await {
                            Ok(_) => expected.push(text),
                            Err(Fault::Interrupted) => abandoned += 1,
                            Err(fault) => panic!("{text}: {fault}"),
                        }
                        killer.await;
                        mount.client.operation_ended(number);
                    }
                    (expected, abandoned)
                }));
            }
            for round in 0..6 {
                cluster.env.sleep(Duration::from_millis(9 + round)).await;
                match round % 3 {
                    0 => cluster.world.cut("a", "mds"),
                    1 => cluster.world.cut("b", "mds"),
                    _ => cluster.restart_server().await,
                }
            }
            let (mut expected, mut abandoned) = (Vec::new(), 0);
            for task in tasks {
                let ended = cluster.env.timeout(Duration::from_secs(120), task).await;
                let (names, number) = ended.expect("no worker is stuck");
                expected.extend(names);
                abandoned += number;
            }
            abandoned_in_all.set(abandoned_in_all.get() + abandoned);
            assert!(!expected.is_empty());
            expected.sort();
            for mount in [&a, &b] {
                let mut names = mount.list(dir, true).await;
                names.retain(|name| !name.starts_with('.'));
                names.sort();
                assert_eq!(names, expected);
                mount.client.syncfs().await.unwrap();
                let status = mount.client.status();
                assert_eq!((status.evictions, status.in_flight), (0, 0));
            }
            assert!(!logged().iter().any(|line| line.contains("could not be repeated")));
        });
    }
    assert!(abandoned_in_all.get() > 0);
}

#[test]
fn clients_keep_their_sessions_while_the_metadata_device_stalls() {
    check(6, |cluster| async move {
        let a = cluster.mount("a").await;
        cluster.meta.stall(true);
        let (entry, _) = a.create(Ino::ROOT, "f", RDWR).await;
        // More waiters for the log than there are slots.
        let mut waiting = Vec::new();
        for _ in 0..100 {
            let a = a.clone();
            waiting.push(cluster.env.spawn_join(async move { a.client.syncfs().await }));
        }
        cluster.env.sleep(LEASE * 10).await;
        let (_, ttl) = a.client.getattr(entry.attr.ino).await.unwrap();
        assert!(ttl > Duration::ZERO, "the lease is renewed");
        cluster.meta.stall(false);
        for task in waiting {
            task.await.unwrap();
        }
        assert_eq!(a.client.status().evictions, 0);
        let lost = logged().into_iter().find(|line| line.contains("lost the connection"));
        assert_eq!(lost, None);
    });
}

/// SEMANTICS 3.9.
#[test]
fn unmount_waits_for_a_stalled_device_in_bounds_and_names_it() {
    check(27, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        a.put("kept", &[1; 5000]).await;
        a.client.syncfs().await.unwrap();
        cluster.data.stall(true);
        a.put("precious", &[1; 5000]).await;
        cluster.env.sleep(Duration::from_secs(5)).await;
        let begin = cluster.env.now();
        let said = a.client.unmount().await.expect("it cannot be written");
        let took = cluster.env.now().since(begin);
        assert!(took >= Duration::from_secs(10) && took < Duration::from_secs(11), "{took:?}");
        assert!(said.contains("data0") && said.contains("precious"), "{said}");
        assert!(!said.contains("kept") && logged().contains(&said), "{said}");
        // The write may still arrive: the client must not end its session, which would free its
        // blocks.
        cluster.env.sleep(Duration::from_secs(1)).await;
        assert!(!logged().iter().any(|line| line.contains("has left")), "{:?}", logged());
        cluster.data.stall(false);
        assert_eq!(b.get("kept").await, [1; 5000]);
        assert_eq!(b.client.unmount().await, None);
    });
}

/// The server dies twice; after its first restart the connection breaks `late` after the client
/// reconnected. True if the server had finished the recovery, but the client did not learn that.
async fn dies_again(cluster: Cluster, late: Duration) -> bool {
    let count = |text: &str| logged().iter().filter(|line| line.contains(text)).count();
    let a = cluster.mount("a").await;
    let ino = a.put("f", b"").await;
    assert!(a.client.status().replay > 0, "it is not durable yet");
    cluster.world.kill("mds");
    cluster.env.sleep(Duration::from_millis(20)).await;
    let (world, env) = (cluster.world.clone(), cluster.env.clone());
    let cut = cluster.env.spawn_join(async move {
        while !logged().iter().any(|line| line.contains("connected to the metadata server again")) {
            env.sleep(Duration::from_micros(10)).await;
        }
        env.sleep(late).await;
        world.cut("a", "mds");
    });
    cluster.start_server().await;
    cut.await;
    // Any reply says how far the log is flushed.
    assert!(a.find(Ino::ROOT, "g").await.is_none());
    let missed_end =
        count("connected to the metadata server again") == 2 && count("was replayed") == 0;
    cluster.restart_server().await;
    let b = cluster.mount("b").await;
    let found = b.find(Ino::ROOT, "f").await.map(|entry| entry.attr.ino);
    assert_eq!(found, Some(ino), "{missed_end}");
    missed_end
}

#[test]
fn replay_is_repeated_if_the_client_missed_the_end_of_recovery() {
    let missed_end = Rc::new(Cell::new(0));
    for step in 0..120 {
        let count = missed_end.clone();
        check(200 + step, |cluster| async move {
            let late = Duration::from_micros(25 * step);
            let hit = dies_again(cluster, late).await;
            count.set(count.get() + u32::from(hit));
        });
    }
    assert!(missed_end.get() > 3, "{}", missed_end.get());
}

#[test]
fn orphan_whose_creation_is_replayed_is_freed() {
    check(600, |cluster| async move {
        let a = cluster.mount("a").await;
        let (entry, opened) = a.create(Ino::ROOT, "f", RDWR).await;
        a.unlink(Ino::ROOT, "f").await.unwrap();
        a.close(opened.handle).await;
        cluster.env.sleep(Duration::from_millis(20)).await;
        assert!(a.client.status().replay > 0);
        cluster.restart_server().await;
        cluster.env.sleep(Duration::from_secs(30)).await;
        let b = cluster.mount("b").await;
        assert_eq!(b.client.getattr(entry.attr.ino).await, Err(Fault::Stale), "it is freed");
    });
}
