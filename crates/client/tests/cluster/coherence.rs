//! Several clients see each other's changes at once, and their kernels are notified.

use std::cell::Cell;
use std::rc::Rc;

use client::{Caller, NodeSpec, OpenFlags, Place, SetAttrRequest, TimeSpec};
use types::{Duration, Fault, FileKind, Ino, Timestamp};

use crate::harness::{Cluster, Mount, Notice, RDONLY, RDWR, ROOT, WRONLY, check, logged, name};

/// SEMANTICS 1.1.
#[test]
fn names_made_and_removed_by_one_client_are_seen_by_another() {
    check(1, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        assert!(b.find(Ino::ROOT, "f").await.is_none());
        let ino = a.put("f", b"x").await;
        let entry = b.find(Ino::ROOT, "f").await.expect("the other client made it");
        assert_eq!(entry.attr.ino, ino);
        assert!(
            b.kernel.notices.borrow().contains(&Notice::Epoch),
            "the kernel cached that it was missing"
        );
        b.unlink(Ino::ROOT, "f").await.unwrap();
        assert!(a.find(Ino::ROOT, "f").await.is_none());
        assert_eq!(a.list(Ino::ROOT, true).await, Vec::<String>::new());
        b.mkdir(Ino::ROOT, "d").await.unwrap();
        assert_eq!(a.mkdir(Ino::ROOT, "d").await.err(), Some(Fault::Exists));
        assert_eq!(a.list(Ino::ROOT, false).await, ["d"]);
        let (from, to) = (name("d"), name("e"));
        let from = Place { dir: Ino::ROOT, name: &from };
        a.client.rename(&ROOT, from, Place { dir: Ino::ROOT, name: &to }, 0).await.unwrap();
        assert_eq!(b.list(Ino::ROOT, true).await, ["e"]);
        assert!(b.find(Ino::ROOT, "d").await.is_none());
    });
}

#[test]
fn change_that_others_have_seen_is_visible_before_its_reply_arrives() {
    check(2, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let ino = a.mkdir(Ino::ROOT, "d").await.unwrap().attr.ino;
        a.mkdir(Ino::ROOT, "e").await.unwrap();
        a.list(Ino::ROOT, true).await;
        cluster.world.block("mds", "a");
        let removal = a.env.spawn_join({
            let client = a.client.clone();
            async move { client.rmdir(&ROOT, Place { dir: Ino::ROOT, name: &name("e") }).await }
        });
        let chmod = a.env.spawn_join({
            let client = a.client.clone();
            let set = SetAttrRequest { mode: Some(0o600), ..SetAttrRequest::default() };
            async move { client.setattr(&ROOT, ino, set).await }
        });
        while b.find(Ino::ROOT, "e").await.is_some()
            || b.client.getattr(ino).await.unwrap().0.mode != 0o600
        {
            cluster.env.sleep(Duration::from_millis(1)).await;
        }
        let seen = a.env.spawn_join({
            let client = a.client.clone();
            async move {
                let found = client.lookup(&ROOT, Ino::ROOT, &name("e")).await;
                (found.expect("a lookup works").is_ok(), client.getattr(ino).await)
            }
        });
        cluster.env.sleep(Duration::from_millis(50)).await;
        cluster.world.heal();
        let (found, attr) = seen.await;
        assert!(!found, "another client saw that it is gone");
        assert_eq!(attr.expect("it is there").0.mode, 0o600, "another client saw it");
        assert!(removal.await.is_ok() && chmod.await.is_ok());
        let requests = a.requests();
        assert!(a.find(Ino::ROOT, "e").await.is_none() && a.find(Ino::ROOT, "d").await.is_some());
        assert_eq!(a.requests(), requests, "the reply is cached");
    });
}

/// The kernel decrements `nlink` of the file that it had found under the name. SEMANTICS 1.1.
#[test]
fn nlink_is_right_after_unlink_of_a_name_that_another_client_replaced() {
    check(20, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let (old, new) = (b.put("f", b"old").await, b.put("g", b"new").await);
        assert_eq!(a.ino("f").await, old);
        let opened = a.open(new, RDONLY).await;
        let (from, to) = (name("g"), name("f"));
        let place = |name| Place { dir: Ino::ROOT, name };
        b.client.rename(&ROOT, place(&from), place(&to), 0).await.unwrap();
        assert_eq!(a.client.getattr(new).await.unwrap().0.nlink, 1);
        a.kernel.notices.borrow_mut().clear();
        a.unlink(Ino::ROOT, "f").await.unwrap();
        assert!(a.kernel.notices.borrow().contains(&Notice::Attr(new)));
        assert_eq!(a.client.getattr(new).await.unwrap().0.nlink, 0);
        a.close(opened).await;

        let own = a.put("h", b"x").await;
        assert_eq!(a.ino("h").await, own);
        a.kernel.notices.borrow_mut().clear();
        a.unlink(Ino::ROOT, "h").await.unwrap();
        assert!(a.kernel.notices.borrow().is_empty(), "the kernel already knows");
    });
}

#[test]
fn just_looked_up_file_can_be_opened_after_another_client_removes_it() {
    check(21, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let free = a.client.statfs().await.unwrap().blocks_free;
        let ino = b.put("f", &[7; 100_000]).await;
        assert_eq!(a.ino("f").await, ino);
        b.unlink(Ino::ROOT, "f").await.unwrap();
        assert_eq!(a.client.getattr(ino).await.unwrap().0.nlink, 0);
        let opened = a.open(ino, RDONLY).await;
        assert_eq!(a.read(opened, 99_000, 4096).await, [7; 1000]);
        cluster.env.sleep(Duration::from_secs(3)).await;
        assert_eq!(a.read(opened, 99_000, 4096).await, [7; 1000]);
        a.close(opened).await;

        let ino = b.put("g", b"y").await;
        assert_eq!(a.ino("g").await, ino);
        b.unlink(Ino::ROOT, "g").await.unwrap();
        cluster.env.sleep(Duration::from_secs(3)).await;
        assert_eq!(a.client.open(&ROOT, ino, RDONLY).await.err(), Some(Fault::Stale));
        assert_eq!(a.client.getattr(ino).await.unwrap().0.nlink, 0);
        b.client.unmount().await;
        for _ in 0..100 {
            if a.client.statfs().await.unwrap().blocks_free == free {
                return;
            }
            cluster.env.sleep(Duration::from_secs(1)).await;
        }
        panic!("{} blocks free, {free} before", a.client.statfs().await.unwrap().blocks_free);
    });
}

/// A thread of the same mount as [`ROOT`]'s.
const OTHER: Caller = Caller { uid: 0, gid: 0, pid: 2 };

async fn find_as(mount: &Mount, caller: &Caller, text: &str) -> Ino {
    mount.client.lookup(caller, Ino::ROOT, &name(text)).await.unwrap().unwrap().attr.ino
}

/// Waits until no client uses the inode any more.
async fn freed(cluster: &Cluster, ino: Ino) {
    let mount = cluster.mount("fresh").await;
    for _ in 0..100 {
        if mount.client.getattr(ino).await == Err(Fault::Stale) {
            return;
        }
        mount.env.sleep(Duration::from_millis(100)).await;
    }
    panic!("inode {ino} is not freed");
}

#[test]
fn removed_file_can_be_opened_until_the_kernel_forgets_it() {
    for remover in 0..2 {
        check(23 + remover, |cluster| async move {
            let mounts = [cluster.mount("a").await, cluster.mount("b").await];
            let (a, other) = (&mounts[0], cluster.mount("c").await);
            a.kernel.prunes.set(true);
            let ino = other.put("f", &[7; 100_000]).await;
            // A descriptor without an OPEN; another thread of the same mount removes the file.
            assert_eq!(find_as(a, &OTHER, "f").await, ino);
            if remover == 1 {
                cluster.env.sleep(Duration::from_secs(3)).await;
            }
            mounts[remover as usize].unlink(Ino::ROOT, "f").await.unwrap();
            for _ in 0..3 {
                cluster.env.sleep(Duration::from_secs(2)).await;
                let opened = a.open(ino, RDONLY).await;
                assert_eq!(a.read(opened, 99_000, 4096).await, [7; 1000]);
                a.close(opened).await;
            }
            assert!(a.kernel.pruned.borrow().contains(&ino), "its names were not pruned");
            a.client.forget(ino, 1);
            freed(&cluster, ino).await;
        });
    }
}

#[test]
fn unlink_of_a_file_that_a_kernel_prunes_takes_few_messages() {
    check(25, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        a.kernel.prunes.set(true);
        let ino = b.put("f", b"x").await;
        assert_eq!(a.ino("f").await, ino);
        cluster.env.sleep(Duration::from_secs(3)).await;
        let before = a.requests();
        let forgetful = a.clone();
        cluster.env.spawn(async move {
            while !forgetful.kernel.pruned.borrow().contains(&ino) {
                forgetful.env.sleep(Duration::from_micros(50)).await;
            }
            forgetful.client.forget(ino, 1);
        });
        b.unlink(Ino::ROOT, "f").await.unwrap();
        cluster.env.sleep(Duration::from_millis(100)).await;
        // One request for the directory, and two recalls of the file.
        assert!(a.requests() - before <= 3, "{} messages", a.requests() - before);
        let c = cluster.mount("c").await;
        assert_eq!(c.client.getattr(ino).await, Err(Fault::Stale), "it is freed with its name");
    });
}

/// SEMANTICS 1.8.
#[test]
fn constantly_replaced_name_can_always_be_opened_by_both_clients() {
    for seed in 0..6 {
        check(26 + seed, |cluster| async move {
            let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
            a.put("x", b"").await;
            let over = Rc::new(Cell::new(false));
            let readers: Vec<_> = [a.clone(), b.clone()]
                .into_iter()
                .map(|mount| {
                    let over = over.clone();
                    cluster.env.spawn_join(async move {
                        mount.kernel.prunes.set(true);
                        let mut count = 0;
                        while !over.get() {
                            let found = mount.client.lookup(&OTHER, Ino::ROOT, &name("x")).await;
                            let ino = found.unwrap().expect("there is always one").attr.ino;
                            let pause = mount.env.random_u64() % 3000;
                            mount.env.sleep(Duration::from_micros(pause)).await;
                            let opened = mount.client.open(&OTHER, ino, RDONLY).await;
                            let handle = opened.expect("it can be opened").handle;
                            mount.close(handle).await;
                            mount.client.forget(ino, 1);
                            count += 1;
                        }
                        count
                    })
                })
                .collect();
            for _ in 0..300 {
                let (entry, opened) = a.create(Ino::ROOT, "new", WRONLY).await;
                a.close(opened.handle).await;
                let (new, x) = (name("new"), name("x"));
                let place = |name| Place { dir: Ino::ROOT, name };
                a.client.rename(&ROOT, place(&new), place(&x), 0).await.unwrap();
                a.client.forget(entry.attr.ino, 1);
                let pause = cluster.env.random_u64() % 1000;
                cluster.env.sleep(Duration::from_micros(pause)).await;
            }
            over.set(true);
            for reader in readers {
                assert!(reader.await > 20);
            }
        });
    }
}

/// SEMANTICS 4.9.
#[test]
fn removed_directory_has_no_names_and_takes_none() {
    check(34, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let dir = a.mkdir(Ino::ROOT, "d").await.unwrap().attr.ino;
        let file = a.put("f", b"x").await;
        assert_eq!(b.ino("d").await, dir);
        assert_eq!(b.ino("f").await, file);
        let handle = b.client.opendir(dir).await.unwrap();
        let place = |dir, name| Place { dir, name };
        let (d, x, f) = (name("d"), name("x"), name("f"));
        a.client.rmdir(&ROOT, place(Ino::ROOT, &d)).await.unwrap();
        cluster.env.sleep(Duration::from_secs(5)).await;
        let gone = Err(Fault::NotFound);
        assert_eq!(b.client.rmdir(&ROOT, place(dir, &x)).await, gone);
        assert_eq!(b.unlink(dir, "x").await, gone);
        assert_eq!(b.mkdir(dir, "x").await.err(), Some(Fault::NotFound));
        let created = b.client.create(&ROOT, place(dir, &x), 0o644, 0, WRONLY).await;
        assert_eq!(created.err(), Some(Fault::NotFound));
        let made = b.client.tmpfile(&ROOT, dir, 0o644, 0, WRONLY).await;
        assert_eq!(made.err(), Some(Fault::NotFound));
        let linked = b.client.link(&ROOT, file, place(dir, &x)).await;
        assert_eq!(linked.err(), Some(Fault::NotFound));
        for (from, to) in
            [(place(dir, &x), place(Ino::ROOT, &f)), (place(Ino::ROOT, &f), place(dir, &x))]
        {
            assert_eq!(b.client.rename(&ROOT, from, to, 0).await, gone);
        }
        assert!(b.find(dir, "x").await.is_none());
        assert_eq!(b.client.getattr(dir).await.unwrap().0.nlink, 0);
        assert_eq!(b.client.listxattr(dir).await, Ok(Vec::new()));
        let absent = b.client.getxattr(dir, b"system.posix_acl_access").await;
        assert_eq!(absent, Err(Fault::NoAttribute));
        assert!(b.client.readdir(handle, 0, 4096, true).await.unwrap().is_empty());
        b.client.releasedir(handle);
        assert_eq!(b.get("f").await, b"x");
    });
}

#[test]
fn file_opened_during_its_removal_is_read_whole() {
    check(22, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let (a, b) = (Rc::new(a), Rc::new(b));
        let mut opened = 0;
        for round in 0..200u64 {
            let ino = a.put("f", &[7; 10_000]).await;
            let (remover, env) = (a.clone(), cluster.env.clone());
            let removal = cluster.env.spawn_join(async move {
                env.sleep(Duration::from_micros(round * 5)).await;
                remover.unlink(Ino::ROOT, "f").await.unwrap();
            });
            if let Some(entry) = b.find(Ino::ROOT, "f").await {
                assert_eq!(entry.attr.ino, ino);
                if let Ok(file) = b.client.open(&ROOT, ino, RDONLY).await {
                    opened += 1;
                    let read = b.read(file.handle, 0, 20_000).await;
                    assert!(read == [7; 10_000], "round {round}: {} bytes", read.len());
                    b.close(file.handle).await;
                }
            }
            removal.await;
        }
        assert!(opened > 10, "{opened}");
    });
}

/// SEMANTICS 1.1.
#[test]
fn data_written_by_one_client_is_read_by_another_at_once() {
    check(2, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let (entry, opened) = a.create(Ino::ROOT, "f", RDWR).await;
        let ino = entry.attr.ino;
        let theirs = {
            assert_eq!(b.ino("f").await, ino);
            b.open(ino, RDWR).await
        };
        for round in 0..20u8 {
            let at = u64::from(round) * 3000;
            a.write(opened.handle, at, &[round; 3000]).await;
            assert_eq!(b.read(theirs, at, 5000).await, [round; 3000]);
            b.write(theirs, at, &[round | 0x80; 100]).await;
            let read = a.read(opened.handle, at, 200).await;
            assert_eq!((read[0], read[99], read[100]), (round | 0x80, round | 0x80, round));
        }
        let set = SetAttrRequest { size: Some(10), ..SetAttrRequest::default() };
        b.client.setattr(&ROOT, ino, set).await.unwrap();
        assert_eq!(a.client.getattr(ino).await.unwrap().0.size, 10);
        assert_eq!(a.read(opened.handle, 0, 100).await.len(), 10);
    });
}

#[test]
fn glimpse_returns_the_writers_size_without_recalling_its_rights() {
    check(3, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let (entry, opened) = a.create(Ino::ROOT, "f", WRONLY).await;
        a.write(opened.handle, 0, &[1; 5000]).await;
        let recalls = a.client.status().recalls;
        assert_eq!(b.find(Ino::ROOT, "f").await.unwrap().attr.size, 5000);
        a.write(opened.handle, 5000, &[1; 5000]).await;
        let (attr, ttl) = b.client.getattr(entry.attr.ino).await.unwrap();
        assert_eq!((attr.size, ttl), (10_000, Duration::ZERO));
        assert!(a.client.status().recalls <= recalls + 1, "at most NAMES was recalled");
        a.close(opened.handle).await;
        let before = a.requests();
        let (_, again) = {
            let entry = a.find(Ino::ROOT, "f").await.unwrap();
            (entry, a.open(entry.attr.ino, WRONLY).await)
        };
        a.write(again, 0, &[2; 10]).await;
        assert!(a.requests() - before <= 2, "DATA_X stayed here");
    });
}

#[test]
fn attributes_set_by_one_client_are_seen_by_another_that_cached_them() {
    check(4, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let ino = a.put("f", b"").await;
        let entry = b.find(Ino::ROOT, "f").await.unwrap();
        let _ = b.client.getattr(ino).await.unwrap();
        let set = SetAttrRequest { mode: Some(0o4711), ..SetAttrRequest::default() };
        a.client.setattr(&ROOT, ino, set).await.unwrap();
        assert_eq!(b.client.getattr(ino).await.unwrap().0.mode, 0o4711);
        if entry.attr_ttl > Duration::ZERO {
            assert!(b.kernel.notices.borrow().contains(&Notice::Attr(ino)));
        }
        a.client.setxattr(&ROOT, ino, b"user.k", b"v1", 0, false).await.unwrap();
        assert_eq!(b.client.getxattr(ino, b"user.k").await.unwrap(), b"v1");
        b.client.setxattr(&ROOT, ino, b"user.k", b"v2", 0, false).await.unwrap();
        assert_eq!(a.client.getxattr(ino, b"user.k").await.unwrap(), b"v2");
        let at = Timestamp { seconds: 77, nanos: 7 };
        let set = SetAttrRequest {
            atime: Some(TimeSpec::At(at)),
            mtime: Some(TimeSpec::At(at)),
            ..SetAttrRequest::default()
        };
        b.client.setattr(&ROOT, ino, set).await.unwrap();
        let attr = a.client.getattr(ino).await.unwrap().0;
        assert_eq!((attr.atime, attr.mtime), (at, at));
    });
}

#[test]
fn allocation_clears_set_id_bits_that_another_client_set() {
    check(4, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let ino = a.put("f", b"x").await;
        let handle = a.open(ino, RDWR).await;
        a.write(handle, 0, b"y").await;
        b.ino("f").await;
        let set = SetAttrRequest { mode: Some(0o6777), ..SetAttrRequest::default() };
        b.client.setattr(&ROOT, ino, set).await.unwrap();
        let user = Caller { uid: 1000, gid: 1000, pid: 1 };
        a.client.fallocate(&user, handle, 0, 0, 100).await.unwrap();
        assert_eq!(b.client.getattr(ino).await.unwrap().0.mode, 0o777);
        a.close(handle).await;
    });
}

#[test]
fn create_opens_an_existing_file_only_if_the_mode_plainly_permits() {
    check(4, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let ino = a.put("secret", b"x").await;
        let set = SetAttrRequest { mode: Some(0o600), uid: Some(7), ..SetAttrRequest::default() };
        a.client.setattr(&ROOT, ino, set).await.unwrap();
        a.mkdir(Ino::ROOT, "dir").await.unwrap();
        let create = |uid, text| {
            let (b, name) = (b.clone(), name(text));
            async move {
                let caller = Caller { uid, gid: uid, pid: 1 };
                let place = Place { dir: Ino::ROOT, name: &name };
                let made = b.client.create(&caller, place, 0o644, 0, RDWR).await;
                match made {
                    Ok((entry, opened)) => {
                        b.close(opened.handle).await;
                        Ok(entry.attr.ino)
                    }
                    Err(fault) => Err(fault),
                }
            }
        };
        assert_eq!(create(7, "secret").await, Ok(ino));
        // On a mount with mapped ids, user 0 may be anybody: the kernel looks up again and decides.
        assert_eq!(create(0, "secret").await, Err(Fault::Stale));
        assert_eq!(create(8, "secret").await, Err(Fault::Stale));
        assert_eq!(create(0, "dir").await, Err(Fault::Stale));
    });
}

#[test]
fn created_file_stays_open_when_another_client_removes_it_at_once() {
    check(27, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let b = Rc::new(b);
        for round in 0..100u64 {
            // The reply to the creation waits until this is durable, and the recall waits for that
            // reply.
            b.mkdir(Ino::ROOT, "f").await.unwrap();
            b.client.rmdir(&ROOT, Place { dir: Ino::ROOT, name: &name("f") }).await.unwrap();
            let (remover, env) = (b.clone(), cluster.env.clone());
            let removal = cluster.env.spawn_join(async move {
                env.sleep(Duration::from_micros(round * 10)).await;
                while remover.unlink(Ino::ROOT, "f").await == Err(Fault::NotFound) {}
            });
            let (_, opened) = a.create(Ino::ROOT, "f", WRONLY).await;
            removal.await;
            cluster.env.sleep(Duration::from_millis(50)).await;
            a.write(opened.handle, 0, &[1; 5000]).await;
            let synced = a.client.fsync(opened.handle, false).await;
            assert_eq!(synced, Ok(()), "round {round}");
            a.close(opened.handle).await;
        }
    });
}

#[test]
fn created_files_stay_open_beyond_the_servers_lease_limit() {
    check(25, |cluster| async move {
        cluster.leases_max.set(Some(64));
        cluster.restart_server().await;
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let mut files = Vec::new();
        for index in 0..80 {
            files.push(a.create(Ino::ROOT, &format!("f{index}"), WRONLY).await.1.handle);
        }
        for index in 0..80 {
            b.unlink(Ino::ROOT, &format!("f{index}")).await.unwrap();
        }
        cluster.env.sleep(Duration::from_secs(5)).await;
        for file in files {
            a.write(file, 0, &[1; 5000]).await;
            assert_eq!(a.client.fsync(file, false).await, Ok(()));
            a.close(file).await;
        }
    });
}

#[test]
fn file_made_by_mknod_is_freed_with_its_name() {
    check(28, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let node = NodeSpec { kind: FileKind::Regular, mode: 0o644, umask: 0, rdev: 0 };
        let at = Place { dir: Ino::ROOT, name: &name("f") };
        let ino = a.client.mknod(&ROOT, at, node).await.unwrap().attr.ino;
        a.client.forget(ino, 1);
        b.unlink(Ino::ROOT, "f").await.unwrap();
        cluster.env.sleep(Duration::from_secs(5)).await;
        assert_eq!(b.client.open(&ROOT, ino, RDONLY).await.err(), Some(Fault::Stale));
    });
}

#[test]
fn file_that_another_client_has_open_outlives_its_name() {
    check(5, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        a.put("f", &[3; 20_000]).await;
        let ino = b.ino("f").await;
        let handle = b.open(ino, RDONLY).await;
        a.unlink(Ino::ROOT, "f").await.unwrap();
        assert!(b.find(Ino::ROOT, "f").await.is_none());
        assert!(b.read(handle, 10_000, 20_000).await == [3; 10_000]);
        assert_eq!(b.client.getattr(ino).await.unwrap().0.nlink, 0);
        b.close(handle).await;
        // No client uses it any more: the server frees it in the background.
        cluster.env.sleep(Duration::from_secs(5)).await;
        let gone = b.client.open(&ROOT, ino, RDONLY).await;
        assert!(gone.is_err(), "{gone:?}");
    });
}

/// SEMANTICS 1.3.
#[test]
fn appends_of_two_clients_never_overwrite_each_other() {
    check(6, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        a.put("log", b"").await;
        let flags = OpenFlags(WRONLY.0 | OpenFlags::APPEND);
        let mut tasks = Vec::new();
        for (mount, byte) in [(a.clone(), 1u8), (b.clone(), 2), (a.clone(), 3)] {
            let ino = mount.ino("log").await;
            let handle = mount.open(ino, flags).await;
            tasks.push(cluster.env.spawn_join(async move {
                for _ in 0..30 {
                    mount.write(handle, 0, &[byte; 100]).await;
                }
                mount.close(handle).await;
            }));
        }
        for task in tasks {
            task.await;
        }
        let log = b.get("log").await;
        assert_eq!(log.len(), 9000);
        for byte in 1..=3u8 {
            assert_eq!(log.chunks(100).filter(|chunk| **chunk == [byte; 100]).count(), 30);
        }
    });
}

/// Else the kernel drops the page with the write, reads the old bytes, and keeps them.
#[test]
fn open_during_a_buffered_write_keeps_the_page_cache() {
    check(23, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let ino = b.put("f", &[1; 4096]).await;
        let open = async || a.client.open(&ROOT, ino, RDWR).await.expect("the file opens");
        let first = open().await;
        assert_eq!(a.read(first.handle, 0, 4096).await, [1; 4096]);
        let other = b.open(ino, RDWR).await;
        b.try_write(other, 0, &[2; 4096]).await.unwrap();
        let (writer, handle) = (a.clone(), first.handle);
        let write =
            cluster.env.spawn_join(async move { writer.try_write(handle, 0, &[3; 4096]).await });
        let second = open().await;
        assert!(second.keep_cache);
        assert_eq!(write.await, Ok(4096));
        assert_eq!(b.read(other, 0, 4096).await, [3; 4096]);
        for handle in [first.handle, second.handle] {
            a.close(handle).await;
        }
        b.close(other).await;
    });
}

#[test]
fn recall_does_not_wait_for_invalidations_that_no_recall_needs() {
    check(12, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let (one, other) = (a.put("one", &[1; 4096]).await, a.put("other", &[1; 4096]).await);
        for ino in [one, other] {
            let handle = a.open(ino, RDONLY).await;
            a.read_page(ino, handle, 0).await;
        }
        // A READ that waits for another client's rights keeps this folio locked.
        a.kernel.locked.borrow_mut().push((one, 0, 4096));
        let writer = a.clone();
        let mut past_pages = cluster.env.spawn_join(async move {
            let handle = writer.open(one, WRONLY).await;
            writer.write(handle, 0, b"past the pages").await;
        });
        let second = Duration::from_secs(1);
        assert!(cluster.env.timeout(second, &mut past_pages).await.is_none(), "it waits");
        let writer = b.clone();
        let mut recalled = cluster.env.spawn_join(async move {
            let handle = writer.open(other, WRONLY).await;
            writer.write(handle, 0, b"of another client").await;
        });
        assert!(cluster.env.timeout(second, &mut recalled).await.is_some(), "a deadlock");
        a.kernel.locked.borrow_mut().clear();
        past_pages.await;
    });
}

#[test]
fn recall_does_not_deadlock_with_a_read_that_locks_pages() {
    check(7, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        a.put("f", &[1; 64 << 10]).await;
        let ino = b.ino("f").await;
        let handle = b.open(ino, RDONLY).await;
        // The kernel has pages, and its invalidation waits for a page that a READ keeps locked.
        b.client.read(handle, 0, 4096, true).await.unwrap();
        b.kernel.stuck.set(true);
        let writer = {
            let a = a.clone();
            cluster.env.spawn_join(async move {
                let handle = a.open(ino, WRONLY).await;
                a.write(handle, 0, &[2; 4096]).await;
                a.close(handle).await;
            })
        };
        cluster.env.sleep(Duration::from_millis(50)).await;
        // READs are served while the whole file is being invalidated.
        b.client.read(handle, 8192, 4096, true).await.unwrap();
        // The READ that held the page is answered: the invalidation continues.
        b.kernel.stuck.set(false);
        writer.await;
        let seen = b.kernel.notices.borrow().clone();
        assert!(seen.contains(&Notice::Pages(ino, 0, 0)), "{seen:?}");
        assert!(seen.contains(&Notice::Pages(ino, 8192, 4096)), "the noted range too: {seen:?}");
        assert_eq!(b.read(handle, 0, 4096).await, [2; 4096]);
    });
}

/// The kernel copies a WRITE into its pages before it sends it, perhaps after an invalidation.
#[test]
fn pages_of_a_write_served_during_a_recall_are_invalidated_too() {
    check(9, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        a.put("f", &[1; 64 << 10]).await;
        let ino = b.ino("f").await;
        let handle = b.open(ino, RDWR).await;
        b.write(handle, 0, &[2; 4096]).await;
        b.kernel.stuck.set(true);
        let reader = {
            let a = a.clone();
            cluster.env.spawn_join(async move { a.get("f").await })
        };
        cluster.env.sleep(Duration::from_millis(50)).await;
        b.write(handle, 8192, &[3; 4096]).await;
        b.kernel.stuck.set(false);
        let read = reader.await;
        assert!(read[8192..12_288] == [3; 4096], "served before the recall ended");
        let notices = b.kernel.notices.borrow().clone();
        assert!(notices.contains(&Notice::Pages(ino, 8192, 4096)), "{notices:?}");
    });
}

#[test]
fn blocked_reads_are_served_when_an_invalidation_waits_for_them() {
    check(8, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        a.put("f", &[1; 64 << 10]).await;
        let ino = b.ino("f").await;
        let handle = b.open(ino, RDONLY).await;
        b.client.read(handle, 0, 4096, true).await.unwrap();
        b.kernel.stuck.set(true);
        let (a2, env) = (a.clone(), cluster.env.clone());
        let writer = env.spawn_join(async move {
            let handle = a2.open(ino, WRONLY).await;
            a2.write(handle, 0, &[2; 4096]).await;
        });
        env.sleep(Duration::from_millis(20)).await;
        b.client.read(handle, 4096, 4096, true).await.unwrap();
        // The first round ends; the second, for the noted range, waits for READs that come now.
        b.kernel.stuck.set(false);
        env.sleep(Duration::from_micros(100)).await;
        b.kernel.stuck.set(true);
        let answered = Rc::new(Cell::new(false));
        let (b2, done) = (b.clone(), answered.clone());
        env.spawn(async move {
            b2.client.read(handle, 4096, 4096, true).await.unwrap();
            done.set(true);
            b2.kernel.stuck.set(false);
        });
        assert!(env.timeout(Duration::from_secs(2), writer).await.is_some(), "a deadlock");
        assert!(answered.get());
    });
}

/// On an `O_RDWR` handle, READs of pages need `DATA_X`. Such a READ keeps its folio locked while it
/// waits, and the right's holder must not wait for that folio.
#[test]
fn recall_does_not_wait_for_a_read_that_waits_for_data_x() {
    for seed in 60..90 {
        check(seed, |cluster| async move {
            let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
            let ino = a.put("f", &[1; 64 << 10]).await;
            let handle = a.open(ino, RDWR).await;
            a.read_page(ino, handle, 0).await;
            // Another client reads: `DATA_X` is recalled, and READs are served meanwhile.
            a.kernel.stuck.set(true);
            let reader = {
                let b = b.clone();
                cluster.env.spawn_join(async move { b.get("f").await })
            };
            cluster.env.sleep(Duration::from_millis(20)).await;
            a.read_page(ino, handle, 8192).await;
            a.kernel.stuck.set(false);
            reader.await;
            let writer = {
                let b = b.clone();
                cluster.env.spawn_join(async move {
                    let handle = b.open(ino, WRONLY).await;
                    b.write(handle, 0, &[2; 4096]).await;
                    b.close(handle).await;
                })
            };
            cluster.env.sleep(Duration::from_micros(seed * 40 - 2000)).await;
            let read =
                cluster.env.timeout(Duration::from_secs(2), a.read_page(ino, handle, 0)).await;
            assert!(read.is_some(), "the READ and the recall wait for each other");
            let written = cluster.env.timeout(Duration::from_secs(2), writer).await;
            assert!(written.is_some(), "the writer waits");
            assert_eq!(a.read_page(ino, handle, 0).await, [2; 4096]);
        });
    }
}

/// Stores into a mapping make no request, so only pages under `DATA_X` may be mapped writable.
#[test]
fn pages_cached_under_data_s_are_dropped_by_an_open_that_may_map() {
    check(91, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let ino = b.put("f", &[1; 64 << 10]).await;
        let reading = a.open(ino, RDONLY).await;
        a.read_page(ino, reading, 0).await;
        let notified = |notice| a.kernel.notices.borrow().contains(&notice);
        assert!(!notified(Notice::Pages(ino, 0, 0)));
        // O_APPEND bypasses the pages and takes no `DATA_X` at open; O_RDWR may map.
        let appending = a.open(ino, OpenFlags(2 | OpenFlags::APPEND)).await;
        assert!(notified(Notice::Pages(ino, 0, 0)));
        // The server knows that `DATA_S` was returned, and can grant it again.
        let read = cluster.env.timeout(Duration::from_secs(2), a.read(appending, 0, 4096)).await;
        assert_eq!(read.as_deref(), Some(&[1; 4096][..]));
    });
}

#[test]
fn truncation_is_served_during_a_recall() {
    check(9, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let (entry, opened) = b.create(Ino::ROOT, "f", RDWR).await;
        let ino = entry.attr.ino;
        b.write(opened.handle, 0, &[1; 20_000]).await;
        b.client.read(opened.handle, 0, 4096, true).await.unwrap();
        b.kernel.stuck.set(true);
        let (a2, env) = (a.clone(), cluster.env.clone());
        let reader = env.spawn_join(async move {
            let handle = a2.open(ino, RDONLY).await;
            a2.read(handle, 0, 100_000).await.len()
        });
        env.sleep(Duration::from_millis(100)).await;
        // The kernel truncates with write-back forbidden; the invalidation waits for that.
        let set = SetAttrRequest { size: Some(7), ..SetAttrRequest::default() };
        let served = b.client.setattr(&ROOT, ino, set);
        let served = env.timeout(Duration::from_secs(1), served).await;
        assert_eq!(served.expect("never parked").unwrap().0.size, 7);
        b.kernel.stuck.set(false);
        assert_eq!(reader.await, 7);
    });
}

/// The operations of one process in directories that others change too.
async fn work(mount: Mount, worker: u8, dirs: [Ino; 2]) {
    for _ in 0..80 {
        let random = mount.env.random_u64();
        let dir = dirs[(random & 1) as usize];
        let other = dirs[(random >> 1 & 1) as usize];
        let text = format!("n{}", random >> 2 & 7);
        let target = format!("n{}", random >> 5 & 7);
        match random >> 8 & 3 {
            0 => {
                let name = name(&text);
                let place = Place { dir, name: &name };
                if let Ok((_, opened)) = mount.client.create(&ROOT, place, 0o644, 0, RDWR).await {
                    let _ = mount.try_write(opened.handle, 0, &[worker; 64]).await;
                    if random >> 10 & 3 == 0 {
                        let _ = mount.client.fsync(opened.handle, false).await;
                    }
                    mount.close(opened.handle).await;
                }
            }
            1 => {
                let _ = mount.unlink(dir, &text).await;
            }
            2 => {
                let (from, to) = (name(&text), name(&target));
                let from = Place { dir, name: &from };
                let to = Place { dir: other, name: &to };
                let _ = mount.client.rename(&ROOT, from, to, 0).await;
            }
            _ => drop(mount.find(dir, &text).await),
        }
    }
}

fn work_together(seed: u64, disturb: bool) {
    check(seed, |cluster| async move {
        let mounts = [cluster.mount("a").await, cluster.mount("b").await];
        let mut dirs = [Ino::NONE; 2];
        for (dir, text) in dirs.iter_mut().zip(["d0", "d1"]) {
            *dir = mounts[0].mkdir(Ino::ROOT, text).await.unwrap().attr.ino;
            assert_eq!(mounts[1].ino(text).await, *dir);
        }
        let mut tasks = Vec::new();
        for (worker, mount) in mounts.iter().cycle().take(6).cloned().enumerate() {
            tasks.push(cluster.env.spawn_join(work(mount, worker as u8, dirs)));
        }
        if disturb {
            let doomed = cluster.mount("doomed").await;
            assert_eq!(doomed.ino("d0").await, dirs[0]);
            doomed.env.clone().spawn(work(doomed, 9, dirs));
            for _ in 0..4 {
                cluster.env.sleep(Duration::from_millis(5 + cluster.env.random_u64() % 30)).await;
                match cluster.env.random_u64() % 4 {
                    0 => cluster.world.cut("a", "mds"),
                    1 => cluster.world.cut("b", "mds"),
                    2 => cluster.world.kill("doomed"),
                    _ => cluster.restart_server().await,
                }
            }
        }
        for task in tasks {
            let ended = cluster.env.timeout(Duration::from_secs(120), task).await;
            let states = mounts.each_ref().map(|mount| mount.client.status());
            assert!(ended.is_some(), "a worker is stuck: {states:?}");
        }
        cluster.world.kill("doomed");
        let fresh = cluster.mount("c").await;
        for (dir, text) in dirs.into_iter().zip(["d0", "d1"]) {
            assert_eq!(fresh.ino(text).await, dir);
            let truth = fresh.list(dir, false).await;
            for mount in &mounts {
                for index in 0..8 {
                    let text = format!("n{index}");
                    let here = mount.find(dir, &text).await.map(|entry| entry.attr.ino);
                    let there = fresh.find(dir, &text).await.map(|entry| entry.attr.ino);
                    assert_eq!(here, there, "{text}");
                    assert_eq!(here.is_some(), truth.contains(&text), "{text}");
                }
                assert_eq!(mount.list(dir, true).await, truth);
            }
        }
        for mount in &mounts {
            assert_eq!(mount.client.status().evictions, 0);
            mount.client.unmount().await;
        }
    });
}

#[test]
fn two_clients_working_in_the_same_directories_agree_in_the_end() {
    for seed in 10..40 {
        work_together(seed, false);
    }
}

#[test]
fn two_clients_agree_after_server_restarts_and_a_third_clients_death() {
    for seed in 20..32 {
        work_together(seed, true);
    }
}

#[test]
fn orphan_is_freed_although_a_grant_crosses_its_last_close() {
    check(5, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let (entry, opened) = a.create(Ino::ROOT, "f", RDWR).await;
        let ino = entry.attr.ino;
        a.write(opened.handle, 0, &[1; 5000]).await;
        a.client.fsync(opened.handle, false).await.unwrap();
        let other = b.open(b.ino("f").await, RDWR).await;
        a.unlink(Ino::ROOT, "f").await.unwrap();
        // Recalls ATTR from the first client: its next request acquires the right again.
        let set = SetAttrRequest { mode: Some(0o600), ..SetAttrRequest::default() };
        b.client.setattr(&ROOT, ino, set).await.unwrap();
        b.close(other).await;
        let asker = a.clone();
        let asked = cluster.env.spawn_join(async move { asker.client.getattr(ino).await });
        // The request is sent, its reply has not arrived.
        cluster.env.sleep(Duration::from_micros(1)).await;
        a.close(opened.handle).await;
        asked.await.unwrap();
        cluster.env.sleep(Duration::from_secs(5)).await;
        // It is freed: a client that never knew it finds nothing.
        let c = cluster.mount("c").await;
        assert_eq!(c.client.getattr(ino).await, Err(Fault::Stale));
    });
}

#[test]
fn directory_is_freed_when_a_client_that_looked_it_up_removes_it() {
    for (seed, by_rename) in [(7, false), (8, true)] {
        check(seed, move |cluster| async move {
            let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
            let ino = a.mkdir(Ino::ROOT, "d").await.unwrap().attr.ino;
            b.mkdir(Ino::ROOT, "e").await.unwrap();
            assert_eq!(b.ino("d").await, ino);
            let (from, to) = (name("e"), name("d"));
            let to = Place { dir: Ino::ROOT, name: &to };
            if by_rename {
                let from = Place { dir: Ino::ROOT, name: &from };
                b.client.rename(&ROOT, from, to, 0).await.unwrap();
            } else {
                b.client.rmdir(&ROOT, to).await.unwrap();
            }
            cluster.env.sleep(Duration::from_secs(5)).await;
            // A client that never knew it has to ask the server.
            let c = cluster.mount("c").await;
            assert_eq!(c.client.getattr(ino).await, Err(Fault::Stale));
        });
    }
}

#[test]
fn file_reopened_after_its_open_right_was_recalled_outlives_its_name() {
    check(6, |cluster| async move {
        cluster.leases_max.set(Some(64));
        cluster.restart_server().await;
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let (entry, opened) = a.create(Ino::ROOT, "f", WRONLY).await;
        let ino = entry.attr.ino;
        a.write(opened.handle, 0, &[1; 5000]).await;
        // So many leases make the server recall the oldest, which is in use.
        for index in 0..80 {
            a.put(&format!("g{index}"), b"x").await;
        }
        cluster.env.sleep(Duration::from_secs(4)).await;
        // `DATA_X` comes back, and stays when the file is closed; `OPEN` is gone.
        a.write(opened.handle, 0, &[2; 5000]).await;
        a.close(opened.handle).await;
        let again = a.open(ino, WRONLY).await;
        b.unlink(Ino::ROOT, "f").await.unwrap();
        cluster.env.sleep(Duration::from_secs(5)).await;
        a.write(again, 0, &[3; 5000]).await;
        a.client.fsync(again, false).await.unwrap();
        let c = cluster.mount("c").await;
        assert!(c.client.getattr(ino).await.is_ok(), "it is open");
        a.close(again).await;
        cluster.env.sleep(Duration::from_secs(5)).await;
        let d = cluster.mount("d").await;
        assert_eq!(d.client.getattr(ino).await, Err(Fault::Stale));
    });
}

/// The reply to a's first request is sent with the log's first group, and mentions `DATA_X`. The
/// reply that grants this right waits for the second group.
async fn write_beside_an_overtaken_grant(cluster: Cluster, overtaken: Rc<Cell<u32>>) {
    let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
    let ino = a.put("f", &[1; 5000]).await;
    a.client.syncfs().await.unwrap();
    assert_eq!(b.get("f").await, [1; 5000]);
    let (first, second) = (a.open(ino, WRONLY).await, a.open(ino, WRONLY).await);
    let reader = a.open(ino, RDONLY).await;
    assert_eq!(a.read(reader, 0, 100).await, [1; 100], "the layout is known");
    b.put("g", b"").await;
    b.unlink(Ino::ROOT, "g").await.unwrap();
    cluster.meta.stall(true);
    let pause = || cluster.env.sleep(Duration::from_millis(20));
    let renamed = Rc::new(Cell::new(false));
    let (mover, done) = (a.clone(), renamed.clone());
    let rename = cluster.env.spawn_join(async move {
        let (from, to) = (name("f"), name("g"));
        let from = Place { dir: Ino::ROOT, name: &from };
        let to = Place { dir: Ino::ROOT, name: &to };
        mover.client.rename(&ROOT, from, to, 0).await.unwrap();
        done.set(true);
    });
    pause().await;
    let owner = b.clone();
    let chmod = cluster.env.spawn_join(async move {
        let set = SetAttrRequest { mode: Some(0o600), ..SetAttrRequest::default() };
        owner.client.setattr(&ROOT, ino, set).await.unwrap();
    });
    pause().await;
    let written = Rc::new(Cell::new(false));
    let (writer, done) = (a.clone(), written.clone());
    let one = cluster.env.spawn_join(async move {
        writer.write(first, 0, &[2; 100]).await;
        done.set(true);
    });
    pause().await;
    assert!(!renamed.get() && !written.get());
    cluster.meta.stall(false);
    while !renamed.get() {
        cluster.env.sleep(Duration::from_micros(5)).await;
    }
    cluster.meta.stall(true);
    overtaken.set(overtaken.get() + u32::from(!written.get()));
    let writer = a.clone();
    let two = cluster.env.spawn_join(async move { writer.write(second, 8192, &[3; 1000]).await });
    pause().await;
    cluster.meta.stall(false);
    for task in [rename, chmod, one, two] {
        task.await;
    }
    let mut expected = vec![0; 9192];
    expected[..5000].fill(1);
    expected[..100].fill(2);
    expected[8192..].fill(3);
    assert_eq!(a.client.getattr(ino).await.unwrap().0.size, 9192);
    assert!(a.read(reader, 0, 10_000).await == expected);
    assert!(b.get("g").await == expected);
}

#[test]
fn data_x_reported_by_another_reply_serves_no_write_before_its_size() {
    let overtaken = Rc::new(Cell::new(0));
    for seed in 40..60 {
        let count = overtaken.clone();
        check(seed, |cluster| write_beside_an_overtaken_grant(cluster, count));
    }
    assert!(overtaken.get() > 3, "{}", overtaken.get());
}

#[test]
fn orphan_opened_while_its_last_close_flushes_is_kept() {
    check(61, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let (entry, opened) = a.create(Ino::ROOT, "f", WRONLY).await;
        let ino = entry.attr.ino;
        assert_eq!(b.ino("f").await, ino, "another client knows it");
        b.unlink(Ino::ROOT, "f").await.unwrap();
        a.write(opened.handle, 0, &[7; 9000]).await;
        cluster.data.stall(true);
        let closer = a.clone();
        let close = cluster.env.spawn_join(async move { closer.close(opened.handle).await });
        cluster.env.sleep(Duration::from_millis(50)).await;
        let again = a.open(ino, RDONLY).await;
        cluster.data.stall(false);
        close.await;
        cluster.env.sleep(Duration::from_secs(3)).await;
        assert!(a.read(again, 0, 10_000).await == [7; 9000]);
        a.close(again).await;
        cluster.env.sleep(Duration::from_secs(3)).await;
        assert_eq!(b.client.getattr(ino).await.map(|(attr, _)| attr.nlink), Ok(0));
        let c = cluster.mount("c").await;
        assert_eq!(c.client.getattr(ino).await, Err(Fault::Stale), "it is freed");
    });
}

#[test]
fn syncfs_and_unmount_ignore_dirty_data_of_a_file_removed_elsewhere() {
    for (seed, unmounts) in [(64, false), (65, true)] {
        check(seed, |cluster| async move {
            let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
            let ino = a.put("f", &[6; 9000]).await;
            a.client.syncfs().await.unwrap();
            let opened = b.open(ino, RDONLY).await;
            // By then the OPEN that a lookup keeps for a while is returned.
            cluster.env.sleep(Duration::from_secs(2)).await;
            let own = a.open(ino, WRONLY).await;
            a.write(own, 0, &[7; 9000]).await;
            a.close(own).await;
            a.put("kept", &[1; 9000]).await;
            cluster.data.stall(true);
            let syncer = a.clone();
            let sync = cluster.env.spawn_join(async move {
                match unmounts {
                    true => assert_eq!(syncer.client.unmount().await, None, "nothing is lost"),
                    false => syncer.client.syncfs().await.expect("all is durable"),
                }
            });
            cluster.env.sleep(Duration::from_millis(50)).await;
            b.unlink(Ino::ROOT, "f").await.unwrap();
            b.close(opened).await;
            cluster.env.sleep(Duration::from_millis(50)).await;
            cluster.data.stall(false);
            sync.await;
            assert!(b.get("kept").await == [1; 9000]);
            assert!(!logged().iter().any(|line| line.contains("lost")));
        });
    }
}

#[test]
fn write_removes_the_capability_and_costs_nothing_without_one() {
    check(62, |cluster| async move {
        const CAPABILITY: &[u8] = b"security.capability";
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let (entry, own) = a.create(Ino::ROOT, "f", WRONLY).await;
        let ino = entry.attr.ino;
        let before = a.requests();
        for at in 0..20 {
            a.write(own.handle, at * 100, &[1; 100]).await;
        }
        assert!(a.requests() - before <= 1, "at most a space grant");
        let lasts = |mount: &Mount| {
            let mount = mount.clone();
            async move { mount.client.getxattr(ino, CAPABILITY).await.is_ok() }
        };
        for (setter, writer) in [(&a, &a), (&b, &a), (&b, &b), (&a, &b)] {
            for append in [0, 0o2000] {
                let flags = OpenFlags(WRONLY.0 | append);
                let handle = writer.open(ino, flags).await;
                for round in 0..3 {
                    let set = setter.client.setxattr(&ROOT, ino, CAPABILITY, b"x", 0, false);
                    set.await.unwrap();
                    assert!(lasts(&a).await && lasts(&b).await);
                    writer.write(handle, 0, &[round; 100]).await;
                    assert!(!lasts(&a).await && !lasts(&b).await, "{append} {round}");
                    let before = writer.requests();
                    writer.write(handle, 0, &[round; 50]).await;
                    assert_eq!(writer.requests(), before);
                }
                writer.close(handle).await;
            }
        }
    });
}

/// The ways in which content changes, except writes that bypass the page cache.
const CHANGES: [&str; 8] =
    ["pages", "write-back", "ftruncate", "truncate", "grow", "allocate", "punch", "copy"];

/// Changes the content of `ino` in one of [`CHANGES`], through the buffered handle `handle`.
async fn change(mount: &Mount, ino: Ino, handle: client::Handle, how: &str) {
    let resize = |size, handle| SetAttrRequest { size: Some(size), handle, ..Default::default() };
    let client = &mount.client;
    match how {
        "pages" => mount.write(handle, 100, &[2; 50]).await,
        "write-back" => assert_eq!(mount.write_back(handle, 0, &[3; 4096]).await, Ok(4096)),
        "ftruncate" => drop(client.setattr(&ROOT, ino, resize(8000, Some(handle))).await.unwrap()),
        "truncate" => drop(client.setattr(&ROOT, ino, resize(9000, None)).await.unwrap()),
        "grow" => drop(client.setattr(&ROOT, ino, resize(70_000, Some(handle))).await.unwrap()),
        "allocate" => client.fallocate(&ROOT, handle, 0, 0, 100_000).await.unwrap(),
        "punch" => client.fallocate(&ROOT, handle, 3, 0, 4096).await.unwrap(),
        "copy" => {
            assert_eq!(client.copy_range(&ROOT, handle, 0, handle, 5000, 10).await, Ok(10));
        }
        other => panic!("{other}"),
    }
}

/// SEMANTICS 4.13.
#[test]
fn capability_is_removed_by_every_change_of_content() {
    check(66, |cluster| async move {
        const CAPABILITY: &[u8] = b"security.capability";
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let ino = a.put("f", &[1; 20_000]).await;
        for (setter, writer) in [(&a, &a), (&b, &a), (&b, &b), (&a, &b)] {
            let handle = writer.open(ino, RDWR).await;
            for how in CHANGES {
                // A previous write has cached that there is no capability.
                for before in [false, true] {
                    if before {
                        writer.write(handle, 0, &[1; 100]).await;
                    }
                    let set = setter.client.setxattr(&ROOT, ino, CAPABILITY, b"x", 0, false);
                    set.await.unwrap();
                    // Reading and opening for writing change nothing.
                    let other = writer.open(ino, RDWR).await;
                    writer.client.read(other, 0, 4096, true).await.unwrap();
                    writer.close(other).await;
                    assert!(b.client.getxattr(ino, CAPABILITY).await.is_ok(), "{how}");
                    change(writer, ino, handle, how).await;
                    for mount in [&a, &b] {
                        let left = mount.client.getxattr(ino, CAPABILITY).await;
                        assert_eq!(left, Err(Fault::NoAttribute), "{how}, {before}");
                    }
                    let requests = writer.requests();
                    change(writer, ino, handle, how).await;
                    assert!(writer.requests() - requests <= 1, "at most a space grant: {how}");
                }
            }
            writer.close(handle).await;
        }
    });
}

/// The kernel has locked the folio that the write changes, and the recall waits for it.
#[test]
fn write_that_removes_a_capability_does_not_deadlock_with_a_recall() {
    for seed in 240..264 {
        check(seed, |cluster| async move {
            const CAPABILITY: &[u8] = b"security.capability";
            let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
            let ino = a.put("f", &[1; 20_000]).await;
            let (ours, theirs) = (a.open(ino, RDWR).await, b.open(ino, RDONLY).await);
            for round in 0..40u64 {
                let set = a.client.setxattr(&ROOT, ino, CAPABILITY, b"x", 0, false);
                set.await.unwrap();
                a.client.read(ours, 0, 4096, true).await.unwrap();
                let (c, env) = (b.clone(), cluster.env.clone());
                let reading = cluster.env.spawn_join(async move {
                    env.sleep(Duration::from_micros(round * 20)).await;
                    c.read(theirs, 0, 100).await
                });
                let folio = (ino, 0, 4096);
                cluster.env.sleep(Duration::from_micros(seed % 8 * 60)).await;
                a.kernel.locked.borrow_mut().push(folio);
                let bytes = [round as u8; 10];
                let written = a.write(ours, 0, &bytes);
                let written = cluster.env.timeout(Duration::from_secs(2), written).await;
                assert!(written.is_some(), "the write and the recall wait for each other");
                a.kernel.locked.borrow_mut().retain(|other| *other != folio);
                reading.await;
                let left = b.client.getxattr(ino, CAPABILITY).await;
                assert_eq!(left, Err(Fault::NoAttribute), "{round}");
                assert_eq!(b.read(theirs, 0, 10).await, [round as u8; 10]);
            }
        });
    }
}

#[test]
fn capability_is_removed_by_a_write_into_a_held_range() {
    check(63, |cluster| async move {
        const CAPABILITY: &[u8] = b"security.capability";
        let mounts = [cluster.mount("a").await, cluster.mount("b").await];
        let ino = mounts[0].put("f", &[1; 1 << 20]).await;
        let mut handles = Vec::new();
        for mount in &mounts {
            handles.push(mount.open(ino, WRONLY).await);
        }
        for round in 0..100u64 {
            let at = (round % 2) as usize;
            let offset = at as u64 * (512 << 10);
            if round % 9 == 8 {
                let setter = &mounts[1 - at].client;
                setter.setxattr(&ROOT, ino, CAPABILITY, b"x", 0, false).await.unwrap();
            }
            mounts[at].write(handles[at], offset + 4096 * (round % 64), &[2; 4096]).await;
            let value = mounts[1 - at].client.getxattr(ino, CAPABILITY).await;
            assert_eq!(value, Err(Fault::NoAttribute), "round {round}");
        }
    });
}

#[test]
fn directory_removed_during_a_lookup_is_not_shown_as_linked() {
    for seed in [65, 67, 69, 71] {
        check(seed, |cluster| async move {
            let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
            for round in 0..100u64 {
                let dirs: Vec<String> = (0..8).map(|dir| format!("d{round}-{dir}")).collect();
                for dir in &dirs {
                    b.mkdir(Ino::ROOT, dir).await.unwrap();
                }
                let (mut found, mut removed) = (Vec::new(), Vec::new());
                for dir in &dirs {
                    let (a, dir) = (a.clone(), dir.clone());
                    found
                        .push(cluster.env.spawn_join(async move { a.find(Ino::ROOT, &dir).await }));
                }
                cluster.env.sleep(Duration::from_micros(round * 4)).await;
                for dir in dirs {
                    let (a, dir) = (a.clone(), name(&dir));
                    removed.push(cluster.env.spawn_join(async move {
                        a.client.rmdir(&ROOT, Place { dir: Ino::ROOT, name: &dir }).await
                    }));
                }
                for (found, removed) in found.into_iter().zip(removed) {
                    removed.await.unwrap();
                    let found = found.await.expect("it was requested first");
                    let answer = a.client.getattr(found.attr.ino).await;
                    let gone = answer.is_err() || answer.is_ok_and(|(attr, _)| attr.nlink == 0);
                    assert!(gone, "{seed}, {round}: {answer:?}");
                }
            }
        });
    }
}

#[test]
fn name_moved_out_of_held_directories_is_dropped_by_the_kernel() {
    check(73, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let dir = a.mkdir(Ino::ROOT, "d").await.unwrap().attr.ino;
        let mut dropped = Vec::new();
        for (held, to) in [("inside", dir), ("outside", Ino::ROOT)] {
            for text in [held, "f"] {
                let (_, opened) = a.create(dir, text, WRONLY).await;
                a.close(opened.handle).await;
            }
            // The client lost NAMES of the root, and holds those of the directory.
            b.put(held, b"x").await;
            b.list(Ino::ROOT, false).await;
            a.list(dir, false).await;
            let entry = a.find(dir, "f").await.unwrap();
            assert!(!entry.entry_ttl.is_zero(), "{held}");
            let (old, new) = (name("f"), name("g"));
            a.kernel.notices.borrow_mut().clear();
            let (from, to) = (Place { dir, name: &old }, Place { dir: to, name: &new });
            a.client.rename(&ROOT, from, to, 0).await.unwrap();
            dropped.push(a.kernel.notices.borrow().contains(&Notice::Epoch));
        }
        assert_eq!(dropped, [false, true]);
    });
}
