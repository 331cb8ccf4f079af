//! A client that is silent for too long loses its session, and reports the loss.

use client::{LockRequest, OpenFlags, SetAttrRequest};
use env::DiskOptions;
use env::sim::{DiskAction, DiskFault};
use types::limits::EVICTION_FLUSH;
use types::{Duration, Fault, Ino, LockOwner};

use crate::harness::{LEASE, Notice, RDONLY, RDWR, ROOT, WRONLY, check, logged};

/// SEMANTICS 3.4.
#[test]
fn evicted_client_reports_its_lost_data_once_and_works_on() {
    check(1, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let (entry, opened) = a.create(Ino::ROOT, "f", RDWR).await;
        a.write(opened.handle, 0, b"kept").await;
        a.client.fsync(opened.handle, false).await.unwrap();
        cluster.world.isolate("a");
        a.write(opened.handle, 8192, b"lost").await;
        let handle = b.open(b.ino("f").await, RDWR).await;
        assert_eq!(b.read(handle, 0, 10).await, b"kept");
        b.write(handle, 0, b"next").await;
        cluster.env.sleep(LEASE).await;
        cluster.world.heal();
        cluster.env.sleep(LEASE).await;
        assert_eq!(a.client.status().evictions, 1);
        let lost = "{\"durable\":false,\"lost\":true";
        let said = a.client.durable_json(entry.attr.ino);
        assert!(said.starts_with(lost), "until a program hears of it: {said}");
        let reports = [
            a.client.fsync(opened.handle, false).await,
            a.client.fsync(opened.handle, false).await,
        ];
        assert_eq!(reports, [Err(Fault::Io), Ok(())], "once");
        let said = a.client.durable_json(entry.attr.ino);
        assert!(said.starts_with("{\"durable\":true"), "{said}");
        let named = format!("inode {} ", entry.attr.ino);
        let lines = logged().iter().filter(|line| line.contains(&named)).count();
        assert_eq!(lines, 1, "the file is named, once: {:?}", logged());
        assert_eq!(a.read(opened.handle, 0, 10).await, b"next");
        a.write(opened.handle, 4, b"!").await;
        assert_eq!(b.read(handle, 0, 10).await, b"next!");
    });
}

/// SEMANTICS 3.3.
#[test]
fn suspended_client_that_nobody_waited_for_loses_nothing() {
    check(2, |cluster| async move {
        let a = cluster.mount("a").await;
        let (_, opened) = a.create(Ino::ROOT, "f", RDWR).await;
        a.write(opened.handle, 0, b"kept").await;
        cluster.world.isolate("a");
        cluster.env.sleep(LEASE * 4).await;
        cluster.world.heal();
        a.client.fsync(opened.handle, false).await.unwrap();
        assert_eq!(a.client.status().evictions, 0);
        assert_eq!(a.read(opened.handle, 0, 10).await, b"kept");
    });
}

#[test]
fn cached_attributes_are_not_served_after_the_lease_has_run_out() {
    check(3, |cluster| async move {
        let a = cluster.mount("a").await;
        let ino = a.put("f", b"x").await;
        a.client.syncfs().await.unwrap();
        let (_, ttl) = a.client.getattr(ino).await.unwrap();
        assert!(ttl > Duration::ZERO && ttl <= LEASE);
        cluster.world.isolate("a");
        cluster.env.sleep(LEASE * 2).await;
        let silent = cluster.env.timeout(LEASE, a.client.getattr(ino)).await;
        assert!(silent.is_none(), "it waits");
        cluster.world.heal();
        assert_eq!(a.client.getattr(ino).await.unwrap().0.size, 1);
    });
}

#[test]
fn reply_to_a_request_sent_before_a_pause_does_not_renew_the_lease() {
    check(6, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        for mount in [&a, &b] {
            assert!(mount.find(Ino::ROOT, "new").await.is_none());
        }
        // The server resumes, reads the request, and first recalls b's right. Meanwhile a has
        // opened another connection, which carries the reply, and is paused before it learns of the
        // eviction.
        cluster.world.pause("mds");
        let client = a.client.clone();
        cluster.env.spawn(async move {
            let _ = client.setxattr(&ROOT, Ino::ROOT, b"user.k", b"1", 0, false).await;
        });
        cluster.env.sleep(LEASE * 3 / 2).await;
        cluster.world.pause("a");
        cluster.world.resume("mds");
        cluster.env.sleep(LEASE / 2).await;
        cluster.world.block("mds", "a");
        b.mkdir(Ino::ROOT, "new").await.unwrap();
        cluster.world.resume("a");
        for _ in 0..1_000 {
            assert_eq!(a.client.lease_left(), Duration::ZERO);
            cluster.env.sleep(Duration::from_micros(10)).await;
        }
        assert_eq!(a.client.status().evictions, 0, "it does not know of the eviction yet");
        cluster.world.heal();
        assert!(a.find(Ino::ROOT, "new").await.is_some());
    });
}

/// SEMANTICS 3.3.
#[test]
fn dead_client_blocks_others_for_its_lease_at_most() {
    check(4, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let (_, opened) = a.create(Ino::ROOT, "f", RDWR).await;
        a.write(opened.handle, 0, &[1; 5000]).await;
        a.client.fsync(opened.handle, false).await.unwrap();
        cluster.world.kill("a");
        let handle = b.open(b.ino("f").await, RDWR).await;
        b.write(handle, 0, &[2; 100]).await;
        b.client.fsync(handle, false).await.unwrap();
        let read = b.read(handle, 0, 10_000).await;
        assert_eq!((read.len(), read[99], read[100]), (5000, 2, 1));
    });
}

#[test]
fn fsync_fails_if_an_eviction_lost_acknowledged_changes() {
    let mut lost = 0;
    for step in 0..24u64 {
        check(5, |cluster| {
            let lost = &mut lost;
            async move {
                let a = cluster.mount("a").await;
                let (_, opened) = a.create(Ino::ROOT, "f", RDWR).await;
                a.write(opened.handle, 0, b"old").await;
                a.client.fsync(opened.handle, false).await.unwrap();
                let root = a.client.opendir(Ino::ROOT).await.unwrap();
                a.write(opened.handle, 0, b"new and more").await;
                a.mkdir(Ino::ROOT, "d").await.unwrap();
                // The commit may be in flight, answered, or durable.
                cluster.env.sleep(Duration::from_millis(step * 125)).await;
                cluster.world.kill("mds");
                cluster.world.isolate("a");
                cluster.env.sleep(Duration::from_millis(20)).await;
                cluster.start_server().await;
                cluster.env.sleep(LEASE * 3).await;
                cluster.world.heal();
                let (file, dir) =
                    (a.client.fsync(opened.handle, false).await, a.client.fsyncdir(root).await);
                assert_eq!(a.client.status().evictions, 1);
                let b = cluster.mount("b").await;
                let (content, made) = (b.get("f").await, b.find(Ino::ROOT, "d").await);
                *lost += usize::from(content == b"old") + usize::from(made.is_none());
                assert!(file.is_err() || content == b"new and more", "{step}: {content:?}");
                assert!(dir.is_err() || made.is_some(), "{step}");
                // No loss may be reported of what became durable without an acknowledgement.
                let whole = content == b"new and more" && made.is_some();
                assert!(dir.is_ok() || !whole, "{step}: {dir:?}");
                a.client.fsync(opened.handle, false).await.unwrap();
                a.client.fsyncdir(root).await.unwrap();
            }
        });
    }
    assert!(lost > 4, "{lost}");
}

#[test]
fn descriptor_of_a_lost_file_cannot_change_a_directory_with_its_number() {
    check(8, |cluster| async move {
        let a = cluster.mount("a").await;
        a.put("kept", b"x").await;
        a.client.syncfs().await.unwrap();
        let (lost, opened) = a.create(Ino::ROOT, "f", RDWR).await;
        cluster.world.kill("mds");
        cluster.world.isolate("a");
        cluster.env.sleep(Duration::from_millis(20)).await;
        cluster.start_server().await;
        let b = cluster.mount("b").await;
        let made = b.mkdir(Ino::ROOT, "d").await.unwrap().attr.ino;
        assert_eq!(made, lost.attr.ino, "the number is reused");
        cluster.world.heal();
        cluster.env.sleep(LEASE).await;
        assert_eq!(a.find(Ino::ROOT, "d").await.map(|found| found.attr.ino), Some(made));
        let by = SetAttrRequest { handle: Some(opened.handle), ..SetAttrRequest::default() };
        let changes =
            [SetAttrRequest { size: Some(0), ..by }, SetAttrRequest { mode: Some(0o700), ..by }];
        for change in changes {
            assert_eq!(a.client.setattr(&ROOT, made, change).await.err(), Some(Fault::Stale));
        }
        a.client.release(opened.handle, None).await;
    });
}

/// SEMANTICS 3.4.
#[test]
fn descriptor_of_a_lost_file_never_reaches_the_file_with_its_number() {
    check(7, |cluster| async move {
        let a = cluster.mount("a").await;
        a.put("kept", b"x").await;
        a.client.syncfs().await.unwrap();
        let (lost, opened) = a.create(Ino::ROOT, "f", RDWR).await;
        let direct = a.open(lost.attr.ino, WRONLY).await;
        let lock = LockRequest {
            flock: false,
            owner: LockOwner(1),
            pid: 1,
            exclusive: Some(true),
            start: 0,
            end: u64::MAX,
        };
        assert_eq!(a.client.setlk(opened.handle, lock, false).await, Ok(()));
        cluster.world.kill("mds");
        cluster.world.isolate("a");
        cluster.env.sleep(Duration::from_millis(20)).await;
        cluster.start_server().await;
        let b = cluster.mount("b").await;
        let (made, other) = b.create(Ino::ROOT, "g", RDWR).await;
        assert_eq!(made.attr.ino, lost.attr.ino, "the number is reused");
        b.write(other.handle, 0, b"other").await;
        b.client.fsync(other.handle, false).await.unwrap();
        cluster.world.heal();
        cluster.env.sleep(LEASE).await;
        assert_eq!(a.client.status().evictions, 1);

        let (ino, stale) = (lost.attr.ino, Some(Fault::Stale));
        let size = SetAttrRequest { size: Some(0), ..SetAttrRequest::default() };
        let refused = async |what: &str| {
            for handle in [opened.handle, direct] {
                assert_eq!(a.try_write(handle, 0, b"lost").await.err(), stale, "{what}");
                assert_eq!(a.client.fsync(handle, false).await.err(), stale, "{what}");
                assert_eq!(a.client.fallocate(&ROOT, handle, 0, 0, 9).await.err(), stale, "{what}");
                assert_eq!(a.client.setlk(handle, lock, false).await.err(), stale, "{what}");
                let free = LockRequest { exclusive: None, ..lock };
                assert_eq!(a.client.setlk(handle, free, false).await, Ok(()), "{what}");
                let cut = SetAttrRequest { handle: Some(handle), ..size };
                assert_eq!(a.client.setattr(&ROOT, ino, cut).await.err(), stale, "{what}");
            }
            let read = a.client.read(opened.handle, 0, 9, true).await;
            assert_eq!(read.err(), stale, "{what}");
        };
        // Requests of the kernel with this number mean the lost file …
        refused("before a lookup returns the number").await;
        assert_eq!(a.client.getattr(ino).await.err(), stale);
        assert_eq!(a.client.open(&ROOT, ino, RDWR).await.err(), stale);
        assert_eq!(a.client.setattr(&ROOT, ino, size).await.err(), stale);
        // … until a lookup returns it with another generation.
        let found = a.find(Ino::ROOT, "g").await.expect("the other client made it");
        assert_eq!((found.attr.ino, found.attr.size), (ino, 5));
        assert_ne!(found.generation, lost.generation);
        assert!(a.find(Ino::ROOT, "f").await.is_none());
        refused("after that").await;
        assert_eq!(a.get("g").await, b"other");
        // The locks of the lost file do not count for the other one.
        let mine = a.open(ino, RDWR).await;
        assert_eq!(a.client.setlk(mine, lock, false).await, Ok(()));
        assert_eq!(a.try_write(mine, 5, b"!").await, Ok(1));
        assert_eq!(a.client.fsync(mine, false).await, Ok(()));
        for handle in [opened.handle, direct] {
            assert_eq!(a.client.flush(handle, LockOwner(1)).await, Ok(()));
            a.client.release(handle, None).await;
        }
        a.client.forget(ino, 1);
        let taken = b.client.setlk(other.handle, lock, false).await;
        assert_eq!(taken, Err(Fault::WouldBlock), "the other one's lock stays");
        assert_eq!(b.read(other.handle, 0, 9).await, b"other!");
    });
}

/// SEMANTICS 3.5.
#[test]
fn eviction_waits_for_a_stalled_data_device_in_bounds_and_logs_it() {
    check(6, |cluster| async move {
        let count = |text: &str| logged().iter().filter(|line| line.contains(text)).count();
        let b = cluster.mount("b").await;
        let mut writers = Vec::new();
        for name in ["a", "c"] {
            let writer = cluster.mount(name).await;
            let (entry, opened) = writer.create(Ino::ROOT, name, RDWR).await;
            writer.write(opened.handle, 0, b"kept").await;
            writer.client.fsync(opened.handle, false).await.unwrap();
            writers.push((name, writer, entry.attr.ino));
        }
        cluster.data.stall(true);
        let mut took = Vec::new();
        for (index, (name, _, ino)) in writers.iter().enumerate() {
            cluster.world.partition(name, "mds");
            let begin = cluster.env.now();
            let set = SetAttrRequest { mode: Some(0o600), ..SetAttrRequest::default() };
            let change = b.client.setattr(&ROOT, *ino, set);
            let changed = cluster.env.timeout(LEASE * 4, change).await;
            assert!(changed.is_some_and(|changed| changed.is_ok()), "{name} blocks it");
            took.push(cluster.env.now().since(begin));
            assert_eq!(count("may be lost in a power cut"), index + 1);
        }
        assert!(took[0] > LEASE / 2 + EVICTION_FLUSH && took[0] < LEASE * 2 + EVICTION_FLUSH);
        assert!(
            took[1] < LEASE * 3 / 2,
            "it does not wait for a device that owes a flush: {took:?}"
        );
        cluster.data.stall(false);
        cluster.world.heal();
        cluster.env.sleep(Duration::from_secs(1)).await;
        assert_eq!(count("answers again"), 1);
        assert_eq!(b.get("a").await, b"kept");
    });
}

#[test]
fn late_write_of_an_evicted_client_is_stable_after_its_quarantine() {
    check(6, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let ino = a.put("f", b"kept").await;
        cluster.world.isolate("a");
        let set = SetAttrRequest { mode: Some(0o600), ..SetAttrRequest::default() };
        b.client.setattr(&ROOT, ino, set).await.unwrap();
        let out = |line: &String| line.contains("has been evicted: its leases and locks are free");
        assert!(logged().iter().any(out));
        let options = DiskOptions { write: true, exclusive: false };
        let device = cluster.env.open_disk("data0", options).await.unwrap();
        let (at, mut late) = (device.size() - 4096, cluster.env.buffer(4096));
        late.fill(7);
        device.write(at, late).await.0.unwrap();
        let stable = || cluster.data.stable_only().peek(at, 4096) == [7; 4096];
        assert!(!stable());
        cluster.env.sleep(LEASE * 2).await;
        assert!(stable());
    });
}

#[test]
fn client_evicted_during_recovery_reports_changes_not_replayed() {
    let (mut bad, mut lost) = (Vec::new(), 0);
    for step in 0..30u64 {
        check(500 + step, |cluster| {
            let (bad, lost) = (&mut bad, &mut lost);
            async move {
                let a = cluster.mount("a").await;
                let (_, opened) = a.create(Ino::ROOT, "f", RDWR).await;
                a.write(opened.handle, 0, b"old").await;
                a.client.fsync(opened.handle, false).await.unwrap();
                let root = a.client.opendir(Ino::ROOT).await.unwrap();
                a.write(opened.handle, 0, b"new and more").await;
                a.mkdir(Ino::ROOT, "d").await.unwrap();
                cluster.env.sleep(Duration::from_millis(950 + (step % 6) * 150)).await;
                cluster.world.kill("mds");
                cluster.env.sleep(Duration::from_millis(20)).await;
                let (world, env) = (cluster.world.clone(), cluster.env.clone());
                let cut = cluster.env.spawn_join(async move {
                    let back = "connected to the metadata server again";
                    while !logged().iter().any(|line| line.contains(back)) {
                        env.sleep(Duration::from_micros(10)).await;
                    }
                    env.sleep(Duration::from_micros((step / 6) * 30)).await;
                    world.isolate("a");
                });
                cluster.start_server().await;
                cut.await;
                cluster.env.sleep(LEASE * 3).await;
                cluster.world.heal();
                cluster.env.sleep(LEASE).await;
                let (file, dir) =
                    (a.client.fsync(opened.handle, false).await, a.client.fsyncdir(root).await);
                let b = cluster.mount("b").await;
                let (content, made) = (b.get("f").await, b.find(Ino::ROOT, "d").await);
                *lost += usize::from(content == b"old") + usize::from(made.is_none());
                if file.is_ok() && content != b"new and more" || dir.is_ok() && made.is_none() {
                    bad.push((step, file, content, dir, made.is_some()));
                }
            }
        });
    }
    assert!(bad.is_empty(), "{bad:?}");
    assert!(lost > 2, "{lost}");
}

/// SEMANTICS 2.6.
#[test]
fn kernel_drops_the_pages_of_data_that_a_device_lost() {
    check(10, |cluster| async move {
        let a = cluster.mount("a").await;
        let (entry, opened) = a.create(Ino::ROOT, "f", RDWR).await;
        let (ino, handle) = (entry.attr.ino, opened.handle);
        a.write(handle, 0, &[1; 8192]).await;
        a.client.fsync(handle, false).await.unwrap();
        a.read_page(ino, handle, 4096).await;
        cluster.data.fail(DiskAction::Write, 1, DiskFault::Io);
        a.write(handle, 4096, &[2; 4096]).await;
        a.kernel.notices.borrow_mut().clear();
        assert_eq!(a.client.fsync(handle, false).await, Err(Fault::Io));
        cluster.env.sleep(Duration::from_millis(1)).await;
        assert_eq!(*a.kernel.notices.borrow(), [Notice::Pages(ino, 4096, 4096)]);
        assert_eq!(a.read_page(ino, handle, 4096).await, [1; 4096]);
    });
}

/// The recall waits for the kernel, which waits for a READ's folio. The READ waits for the right,
/// which can be requested only when the recall has ended.
#[test]
fn recall_that_waits_for_a_read_ends_when_the_session_is_lost() {
    check(12, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        a.put("f", &[1; 8192]).await;
        let ino = b.ino("f").await;
        let handle = b.open(ino, RDONLY).await;
        b.read_page(ino, handle, 0).await;
        b.kernel.stuck.set(true);
        let writer = a.clone();
        let write = cluster.env.spawn_join(async move {
            let handle = writer.open(ino, WRONLY).await;
            writer.write(handle, 0, &[2; 4096]).await;
        });
        cluster.env.sleep(Duration::from_millis(100)).await;
        cluster.world.isolate("b");
        write.await;
        let reader = b.clone();
        let mut read =
            cluster.env.spawn_join(async move { reader.read_page(ino, handle, 0).await });
        cluster.env.sleep(Duration::from_millis(100)).await;
        b.kernel.stuck.set(false);
        cluster.world.heal();
        assert!(cluster.env.timeout(LEASE * 4, &mut read).await.is_some(), "a deadlock");
        assert_eq!(b.client.status().evictions, 1);
    });
}

#[test]
fn open_file_that_was_freed_with_its_session_is_stale() {
    check(13, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let ino = b.put("f", &[1; 100]).await;
        let handle = a.open(ino, RDONLY).await;
        // Another client will wait for what it holds.
        let other = a.put("g", b"x").await;
        b.unlink(Ino::ROOT, "f").await.unwrap();
        assert_eq!(a.client.getattr(ino).await.unwrap().0.nlink, 0);
        cluster.world.isolate("a");
        let theirs = b.open(other, RDWR).await;
        b.write(theirs, 0, b"y").await;
        cluster.world.heal();
        cluster.env.sleep(LEASE).await;
        assert_eq!(a.client.status().evictions, 1);
        assert_eq!(a.client.getattr(ino).await.err(), Some(Fault::Stale));
        a.close(handle).await;
    });
}

/// SEMANTICS 3.4.
#[test]
fn pages_mapped_under_a_lost_session_do_not_overwrite_others_writes() {
    check(11, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let (entry, opened) = a.create(Ino::ROOT, "f", RDWR).await;
        let (ino, handle) = (entry.attr.ino, opened.handle);
        a.write(handle, 0, &[1; 4096]).await;
        a.client.fsync(handle, false).await.unwrap();
        a.read_page(ino, handle, 0).await;
        let other = a.open(ino, RDWR).await;
        // A mapping stores into the page, and the client falls silent.
        cluster.world.isolate("a");
        let theirs = b.open(ino, RDWR).await;
        b.write(theirs, 0, &[2; 4096]).await;
        b.client.fsync(theirs, false).await.unwrap();
        cluster.env.sleep(LEASE).await;
        // Its kernel drops the page because of the eviction, and writes it back first.
        a.kernel.stuck.set(true);
        cluster.world.heal();
        cluster.env.sleep(LEASE).await;
        assert_eq!(a.client.status().evictions, 1);
        assert_eq!(a.write_back(handle, 0, &[3; 4096]).await, Err(Fault::Io));
        for handle in [handle, other] {
            let reports =
                [a.client.fsync(handle, false).await, a.client.fsync(handle, false).await];
            assert_eq!(reports, [Err(Fault::Io), Ok(())], "every descriptor reports it once");
        }
        assert_eq!(a.write_back(handle, 4096, &[3; 4096]).await, Err(Fault::Io));
        // A page that is filled after the eviction is a new one: stores into it are written back.
        a.read_page(ino, handle, 0).await;
        assert_eq!(a.write_back(handle, 0, &[5; 4096]).await, Ok(4096));
        assert_eq!(a.write_back(handle, 4096, &[3; 4096]).await, Err(Fault::Io));
        a.kernel.stuck.set(false);
        cluster.env.sleep(LEASE).await;
        assert_eq!(b.read(theirs, 0, 4096).await, [5; 4096]);
        for handle in [handle, other] {
            assert_eq!(a.client.fsync(handle, false).await, Ok(()), "one report for all pages");
        }
        let lines = logged().iter().filter(|line| line.contains("stored into a mapping")).count();
        assert_eq!(lines, 1);
        // From now on, stores are written back.
        a.read_page(ino, handle, 0).await;
        assert_eq!(a.write_back(handle, 0, &[4; 4096]).await, Ok(4096));
        assert_eq!(b.read(theirs, 0, 4096).await, [4; 4096]);
    });
}

#[test]
fn write_back_through_a_descriptor_does_not_consume_its_error() {
    check(12, |cluster| async move {
        let a = cluster.mount("a").await;
        let through = OpenFlags(RDWR.0 | OpenFlags::DSYNC);
        let (_, opened) = a.create(Ino::ROOT, "f", through).await;
        let handle = opened.handle;
        a.write(handle, 0, &[1; 4096]).await;
        let other = a.open(a.ino("f").await, RDWR).await;
        cluster.data.fail(DiskAction::Write, 1, DiskFault::Io);
        a.write(other, 0, &[2; 4096]).await;
        assert_eq!(a.client.fsync(other, false).await, Err(Fault::Io));
        assert_eq!(a.write_back(handle, 0, &[3; 4096]).await, Ok(4096));
        assert_eq!(a.client.fsync(handle, false).await, Err(Fault::Io));
        a.client.fsync(handle, false).await.unwrap();
        assert_eq!(a.read(handle, 0, 4096).await, [3; 4096]);
    });
}

#[test]
fn write_that_waits_for_the_dirty_budget_is_lost_with_the_session() {
    for by_kernel in [true, false] {
        check(12, |cluster| async move {
            const BIG: usize = 900 << 10;
            let dirty_max = BIG + 5 * 1024;
            let config = client::ClientConfig { dirty_max, ..client::ClientConfig::default() };
            let a = cluster.try_mount("a", config).await.unwrap();
            let b = cluster.mount("b").await;
            let (entry, opened) = a.create(Ino::ROOT, "f", RDWR).await;
            let (ino, handle) = (entry.attr.ino, opened.handle);
            a.write(handle, 0, &[1; 8192]).await;
            a.client.fsync(handle, false).await.unwrap();
            if by_kernel {
                a.read_page(ino, handle, 0).await;
                a.read_page(ino, handle, 4096).await;
            }
            let other = a.open(ino, RDWR).await;
            let (_, big) = a.create(Ino::ROOT, "big", RDWR).await;
            a.write(big.handle, 0, &vec![7; BIG]).await;
            a.client.fsync(big.handle, false).await.unwrap();
            cluster.world.isolate("a");
            while a.client.lease_left() > Duration::from_millis(5) {
                cluster.env.sleep(Duration::from_millis(1)).await;
            }
            cluster.data.stall(true);
            // The next write is submitted when this one has ended: by then the lease has run out.
            a.write(big.handle, 0, &[8; 4096]).await;
            let filler = a.client.clone();
            let mut data = a.env.buffer(BIG);
            data.fill(9);
            a.env.spawn(async move {
                let flags = client::WriteFlags::default();
                let _ = filler.write(&ROOT, big.handle, 0, data, BIG, flags).await;
            });
            cluster.env.sleep(Duration::from_micros(300)).await;
            let writer = a.client.clone();
            let mut data = a.env.buffer(8192);
            data.fill(3);
            let waits = a.env.spawn_join(async move {
                let flags =
                    client::WriteFlags { write_back_cache: by_kernel, ..Default::default() };
                writer.write(&ROOT, handle, 0, data, 8192, flags).await
            });
            cluster.env.sleep(Duration::from_millis(100)).await;
            assert!(!waits.is_ready());
            cluster.data.stall(false);
            let theirs = b.open(ino, RDWR).await;
            b.write(theirs, 0, &[2; 8192]).await;
            b.client.fsync(theirs, false).await.unwrap();
            cluster.world.heal();
            cluster.env.sleep(LEASE).await;
            assert_eq!(a.client.status().evictions, 1);
            let refused = if by_kernel { Fault::Io } else { Fault::Evicted };
            assert_eq!(waits.await, Err(refused));
            assert_eq!(b.read(theirs, 0, 8192).await, [2; 8192]);
            // A writer gets its own error; every descriptor reports the loss of mapped pages.
            let reported = if by_kernel { Err(Fault::Io) } else { Ok(()) };
            for handle in [handle, other] {
                assert_eq!(a.client.fsync(handle, false).await, reported);
                assert_eq!(a.client.fsync(handle, false).await, Ok(()));
            }
            let line = "(/f): the session was lost; pages stored into a mapping";
            assert_eq!(logged().iter().any(|logged| logged.contains(line)), by_kernel);
            assert_eq!(a.read(handle, 0, 8192).await, [2; 8192]);
        });
    }
}

#[test]
fn orphan_closed_while_reopened_after_an_eviction_is_freed() {
    let mut reopened = 0;
    for step in 0..60u64 {
        check(9, |cluster| {
            let reopened = &mut reopened;
            async move {
                let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
                let (entry, opened) = a.create(Ino::ROOT, "f", RDWR).await;
                a.client.fsync(opened.handle, false).await.unwrap();
                cluster.world.isolate("a");
                let other = b.open(b.ino("f").await, RDWR).await;
                b.write(other, 0, b"x").await;
                b.unlink(Ino::ROOT, "f").await.unwrap();
                cluster.world.heal();
                while a.client.status().evictions == 0 {
                    cluster.env.sleep(Duration::from_micros(10)).await;
                }
                let before = a.requests();
                cluster.env.sleep(Duration::from_micros(25 * step)).await;
                *reopened += usize::from(a.requests() > before);
                a.close(opened.handle).await;
                cluster.env.sleep(LEASE).await;
                b.close(other).await;
                cluster.env.sleep(Duration::from_secs(5)).await;
                let c = cluster.mount("c").await;
                let left = c.client.getattr(entry.attr.ino).await;
                assert_eq!(left, Err(Fault::Stale), "{step}");
            }
        });
    }
    assert!(reopened > 4, "it was reopened before {reopened} of the closes");
}
