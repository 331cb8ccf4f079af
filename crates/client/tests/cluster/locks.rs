//! Locks between processes of several clients.

use std::cell::Cell;
use std::rc::Rc;

use client::{LockOwner, LockRequest, SetAttrRequest};
use types::{Duration, Fault};

use crate::harness::{LEASE, RDWR, ROOT, check, logged};

fn lock(owner: u64, exclusive: Option<bool>, start: u64, end: u64) -> LockRequest {
    LockRequest { flock: false, owner: LockOwner(owner), pid: owner as u32, exclusive, start, end }
}

fn flock(owner: u64, exclusive: Option<bool>) -> LockRequest {
    LockRequest { flock: true, ..lock(owner, exclusive, 0, u64::MAX) }
}

/// SEMANTICS 1.6.
#[test]
fn lock_of_one_client_excludes_another_until_it_is_freed() {
    check(1, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let ino = a.put("f", b"").await;
        let (mine, theirs) = (a.open(ino, RDWR).await, b.open(ino, RDWR).await);
        a.client.setlk(mine, lock(1, Some(true), 0, 99), false).await.unwrap();
        let refused = b.client.setlk(theirs, lock(1, Some(false), 50, 60), false).await;
        assert_eq!(refused, Err(Fault::WouldBlock), "owners of two clients are two owners");
        b.client.setlk(theirs, lock(1, Some(true), 100, 200), false).await.unwrap();
        let found = b.client.getlk(theirs, lock(1, Some(true), 0, 10)).await.unwrap().unwrap();
        assert_eq!((found.pid, found.start, found.end), (1, 0, 99));
        let got = Rc::new(Cell::new(false));
        let (b2, done) = (b.clone(), got.clone());
        let waiter = cluster.env.spawn_join(async move {
            b2.client.setlk(theirs, lock(2, Some(true), 0, 0), true).await.unwrap();
            done.set(true);
        });
        cluster.env.sleep(Duration::from_secs(1)).await;
        assert!(!got.get());
        // Closing a descriptor frees the process's locks.
        a.client.flush(mine, LockOwner(1)).await.unwrap();
        waiter.await;
        assert!(got.get());
    });
}

#[test]
fn lock_wait_can_be_abandoned_and_release_frees_flocks() {
    check(2, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let ino = a.put("f", b"").await;
        let (mine, theirs) = (a.open(ino, RDWR).await, b.open(ino, RDWR).await);
        a.client.setlk(mine, flock(5, Some(true)), false).await.unwrap();
        let wait = b.client.setlk(theirs, flock(6, Some(true)), true);
        assert!(cluster.env.timeout(Duration::from_millis(300), wait).await.is_none());
        cluster.env.sleep(Duration::from_millis(100)).await;
        a.client.release(mine, Some(LockOwner(5))).await;
        // The abandoned wait does not hold the lock now.
        let again = a.open(ino, RDWR).await;
        a.client.setlk(again, flock(7, Some(true)), false).await.unwrap();
        a.client.setlk(again, flock(7, None), false).await.unwrap();
        b.client.setlk(theirs, flock(6, Some(true)), true).await.unwrap();
    });
}

/// SEMANTICS 1.6.
#[test]
fn locks_survive_a_restart_of_the_server() {
    check(3, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let ino = a.put("f", b"").await;
        let (mine, theirs) = (a.open(ino, RDWR).await, b.open(ino, RDWR).await);
        a.client.setlk(mine, lock(1, Some(true), 0, 9), false).await.unwrap();
        a.client.setlk(mine, lock(1, None, 3, 5), false).await.unwrap();
        cluster.restart_server().await;
        let refused = b.client.setlk(theirs, lock(1, Some(true), 0, 0), false).await;
        assert_eq!(refused, Err(Fault::WouldBlock));
        b.client.setlk(theirs, lock(1, Some(true), 3, 5), false).await.unwrap();
    });
}

#[test]
fn abandoned_lock_request_restores_the_previous_lock() {
    check(4, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let ino = a.put("f", b"").await;
        let (mine, theirs) = (a.open(ino, RDWR).await, b.open(ino, RDWR).await);
        let request = |flock, exclusive| match flock {
            true => self::flock(1, exclusive),
            false => lock(1, exclusive, 0, 99),
        };
        for flock in [false, true] {
            let held = match flock {
                true => request(flock, Some(false)),
                false => lock(1, Some(false), 10, 19),
            };
            a.client.setlk(mine, held, false).await.unwrap();
            // The request was sent before its caller got a signal, and is granted.
            let upgrade = a.client.setlk(mine, request(flock, Some(true)), true);
            let abandoned = cluster.env.timeout(Duration::from_micros(1), upgrade).await;
            assert!(abandoned.is_none());
            cluster.env.sleep(Duration::from_secs(1)).await;
            let refused = b.client.setlk(theirs, request(flock, Some(true)), false).await;
            assert_eq!(refused, Err(Fault::WouldBlock), "flock {flock}: the shared lock is held");
            b.client.setlk(theirs, request(flock, Some(false)), false).await.unwrap();
            b.client.setlk(theirs, request(flock, None), false).await.unwrap();
            if !flock {
                b.client.setlk(theirs, lock(1, Some(true), 0, 9), false).await.unwrap();
                b.client.setlk(theirs, lock(1, Some(true), 20, 99), false).await.unwrap();
                b.client.setlk(theirs, request(flock, None), false).await.unwrap();
            }
            // The next request of the process comes after that, even if it follows at once.
            let upgrade = a.client.setlk(mine, request(flock, Some(true)), true);
            assert!(cluster.env.timeout(Duration::from_micros(1), upgrade).await.is_none());
            a.client.setlk(mine, request(flock, None), false).await.unwrap();
            cluster.env.sleep(Duration::from_secs(1)).await;
            b.client.setlk(theirs, request(flock, Some(true)), false).await.unwrap();
            b.client.setlk(theirs, request(flock, None), false).await.unwrap();
        }
    });
}

#[test]
fn abandoned_lock_request_counts_as_no_lost_lock_after_an_eviction() {
    check(7, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let ino = a.put("f", b"").await;
        let (mine, theirs) = (a.open(ino, RDWR).await, b.open(ino, RDWR).await);
        for micros in (0..1200).step_by(20) {
            let wanted = a.client.setlk(mine, lock(1, Some(true), 0, 99), true);
            let abandoned = cluster.env.timeout(Duration::from_micros(1), wanted).await;
            assert!(abandoned.is_none());
            // At some of these moments the grant has arrived, and the unlock cannot be sent.
            cluster.env.sleep(Duration::from_micros(micros)).await;
            cluster.world.isolate("a");
            b.client.setlk(theirs, lock(2, Some(true), 0, 99), true).await.unwrap();
            cluster.env.sleep(LEASE * 2).await;
            cluster.world.heal();
            a.client.getattr(ino).await.unwrap();
            assert_eq!(a.try_write(mine, 0, b"free").await, Ok(4), "after {micros} us");
            a.client.fsync(mine, false).await.unwrap();
            b.client.setlk(theirs, lock(2, None, 0, 99), false).await.unwrap();
        }
        let lines = logged();
        assert!(!lines.iter().any(|line| line.contains("locks of processes")), "{lines:?}");
    });
}

/// SEMANTICS 3.4.
#[test]
fn descriptor_of_a_lost_lock_fails_until_its_owner_unlocks() {
    check(5, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let ino = a.put("f", b"as it was").await;
        let (flocked, ranged, free) =
            (a.open(ino, RDWR).await, a.open(ino, RDWR).await, a.open(ino, RDWR).await);
        a.client.setlk(flocked, flock(1, Some(true)), false).await.unwrap();
        a.client.setlk(ranged, lock(2, Some(true), 0, 99), false).await.unwrap();
        a.client.fsync(free, false).await.unwrap();
        cluster.world.isolate("a");
        let theirs = b.open(ino, RDWR).await;
        b.client.setlk(theirs, flock(3, Some(true)), true).await.unwrap();
        b.client.setlk(theirs, lock(4, Some(true), 0, 99), true).await.unwrap();
        // The client reconnects while a write waits, and learns of the loss first.
        let (waiting, handle) = (a.clone(), flocked);
        let write =
            cluster.env.spawn_join(async move { waiting.try_write(handle, 0, b"unlocked!").await });
        cluster.env.sleep(LEASE * 2).await;
        cluster.world.heal();
        assert_eq!(write.await, Err(Fault::Io));
        for handle in [flocked, ranged] {
            for _ in 0..2 {
                assert_eq!(a.try_write(handle, 0, b"unlocked!").await, Err(Fault::Io));
                assert_eq!(a.client.read(handle, 0, 9, false).await.err(), Some(Fault::Io));
                assert_eq!(a.client.fsync(handle, false).await, Err(Fault::Io));
                let longer = a.client.fallocate(&ROOT, handle, 0, 0, 100).await;
                assert_eq!(longer, Err(Fault::Io));
                let cut = SetAttrRequest {
                    size: Some(1),
                    handle: Some(handle),
                    ..SetAttrRequest::default()
                };
                assert_eq!(a.client.setattr(&ROOT, ino, cut).await.err(), Some(Fault::Io));
            }
        }
        assert_eq!(b.read(theirs, 0, 100).await, b"as it was");
        let named = format!("inode {ino} (/f): the session was lost; locks of processes are lost");
        let lines: Vec<_> = logged().into_iter().filter(|line| line.contains(&named)).collect();
        assert_eq!(lines.len(), 1, "{:?}", logged());
        assert!(lines[0].ends_with(": 1, 2"), "{lines:?}");
        // A descriptor without a lock has lost nothing.
        a.write(free, 0, b"as").await;
        a.client.fsync(free, false).await.unwrap();
        // Unlocks half of the range, then all. A new lock does not hide that one was lost.
        a.client.setlk(ranged, lock(2, None, 0, 49), false).await.unwrap();
        assert_eq!(a.try_write(ranged, 0, b"x").await, Err(Fault::Io));
        b.client.setlk(theirs, lock(4, None, 0, 99), false).await.unwrap();
        a.client.setlk(ranged, lock(2, Some(true), 0, 99), false).await.unwrap();
        assert_eq!(a.try_write(ranged, 0, b"x").await, Err(Fault::Io));
        a.client.setlk(ranged, lock(2, None, 0, 99), false).await.unwrap();
        a.write(ranged, 0, b"as").await;
        a.client.fsync(ranged, false).await.unwrap();
        a.client.release(flocked, Some(LockOwner(1))).await;
        b.client.setlk(theirs, flock(3, None), false).await.unwrap();
        let again = a.open(ino, RDWR).await;
        a.client.setlk(again, flock(1, Some(true)), false).await.unwrap();
        a.write(again, 0, b"as").await;
        a.client.fsync(again, false).await.unwrap();
    });
}

#[test]
fn close_ends_the_errors_of_its_owners_lost_range_lock() {
    check(6, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let ino = a.put("f", b"").await;
        let mine = a.open(ino, RDWR).await;
        a.client.setlk(mine, lock(1, Some(false), 0, 9), false).await.unwrap();
        a.client.setlk(mine, lock(2, Some(false), 0, 9), false).await.unwrap();
        cluster.world.isolate("a");
        let theirs = b.open(ino, RDWR).await;
        b.client.setlk(theirs, lock(3, Some(true), 0, 9), true).await.unwrap();
        cluster.world.heal();
        cluster.env.sleep(LEASE).await;
        assert_eq!(a.try_write(mine, 0, b"x").await, Err(Fault::Io));
        a.client.flush(mine, LockOwner(1)).await.unwrap();
        assert_eq!(
            a.try_write(mine, 0, b"x").await,
            Err(Fault::Io),
            "the other owner has not closed it"
        );
        a.client.flush(mine, LockOwner(2)).await.unwrap();
        a.write(mine, 0, b"x").await;
    });
}
