//! The operations of one client, and how many requests they take.

use client::{NodeSpec, OpenFlags, Place, SetAttrRequest, TimeSpec};
use types::{Duration, Fault, FileKind, Ino, Timestamp};

use crate::harness::{RDONLY, RDWR, ROOT, WRONLY, check, name};

#[test]
fn created_names_are_found_listed_renamed_and_removed() {
    check(2, |cluster| async move {
        let a = cluster.mount("a").await;
        let dir = a.mkdir(Ino::ROOT, "dir").await.unwrap().attr;
        assert_eq!((dir.kind, dir.nlink), (FileKind::Directory, 2));
        let (file, opened) = a.create(dir.ino, "file", RDWR).await;
        a.write(opened.handle, 0, b"hello").await;
        assert_eq!(a.client.getattr(file.attr.ino).await.unwrap().0.size, 5);
        a.close(opened.handle).await;
        let link = name("link");
        let place = Place { dir: Ino::ROOT, name: &link };
        let entry = a.client.link(&ROOT, file.attr.ino, place).await.unwrap();
        assert_eq!(entry.attr.nlink, 2);
        assert_eq!(a.get("link").await, b"hello");
        let soft = name("soft");
        let place = Place { dir: dir.ino, name: &soft };
        let soft = a.client.symlink(&ROOT, place, b"../link").await.unwrap();
        assert_eq!(a.client.readlink(soft.attr.ino).await.unwrap(), b"../link");
        assert_eq!(a.list(dir.ino, true).await, ["file", "soft"]);
        assert_eq!(a.list(Ino::ROOT, false).await, ["dir", "link"]);
        let from = name("file");
        let to = name("moved");
        a.client
            .rename(
                &ROOT,
                Place { dir: dir.ino, name: &from },
                Place { dir: Ino::ROOT, name: &to },
                0,
            )
            .await
            .unwrap();
        assert_eq!(a.ino("moved").await, file.attr.ino);
        assert!(a.find(dir.ino, "file").await.is_none());
        let dir_name = name("dir");
        let place = Place { dir: Ino::ROOT, name: &dir_name };
        assert_eq!(a.client.rmdir(&ROOT, place).await, Err(Fault::NotEmpty));
        a.unlink(dir.ino, "soft").await.unwrap();
        a.client.rmdir(&ROOT, place).await.unwrap();
        a.unlink(Ino::ROOT, "moved").await.unwrap();
        assert_eq!(a.unlink(Ino::ROOT, "moved").await, Err(Fault::NotFound));
        assert_eq!(a.get("link").await, b"hello");
        a.client.unmount().await;
    });
}

#[test]
fn changed_attributes_last() {
    check(3, |cluster| async move {
        let a = cluster.mount("a").await;
        let ino = a.put("f", b"0123456789").await;
        let at = Timestamp { seconds: 1_000_000, nanos: 5 };
        let set = SetAttrRequest {
            mode: Some(0o600),
            uid: Some(7),
            gid: Some(8),
            mtime: Some(TimeSpec::At(at)),
            ..SetAttrRequest::default()
        };
        a.client.setattr(&ROOT, ino, set).await.unwrap();
        let set = SetAttrRequest { size: Some(4), ..SetAttrRequest::default() };
        let attr = a.client.setattr(&ROOT, ino, set).await.unwrap().0;
        assert_eq!((attr.mode, attr.uid, attr.gid, attr.size), (0o600, 7, 8, 4));
        assert!(attr.mtime > at, "a truncation is a change of the content");
        let set = SetAttrRequest { mtime: Some(TimeSpec::At(at)), ..SetAttrRequest::default() };
        assert_eq!(a.client.setattr(&ROOT, ino, set).await.unwrap().0.mtime, at);
        a.client.unmount().await;
        let b = cluster.mount("b").await;
        let attr = b.find(Ino::ROOT, "f").await.unwrap().attr;
        assert_eq!((attr.mode, attr.size, attr.mtime), (0o600, 4, at));
        assert_eq!(b.get("f").await, b"0123");
    });
}

#[test]
fn extended_attributes_are_set_and_removed_and_absence_is_cached() {
    check(4, |cluster| async move {
        let a = cluster.mount("a").await;
        let ino = a.put("f", b"").await;
        let before = a.requests();
        let missing = a.client.getxattr(ino, b"security.capability").await;
        assert_eq!(missing, Err(Fault::NoAttribute));
        assert_eq!(a.requests(), before, "the client knows that a new file has none");
        a.client.setxattr(&ROOT, ino, b"user.a", b"1", 0, false).await.unwrap();
        a.client.setxattr(&ROOT, ino, b"user.b", b"22", 1, false).await.unwrap();
        let again = a.client.setxattr(&ROOT, ino, b"user.b", b"3", 1, false).await;
        assert_eq!(again, Err(Fault::Exists));
        assert_eq!(a.client.getxattr(ino, b"user.b").await.unwrap(), b"22");
        a.client.removexattr(&ROOT, ino, b"user.a").await.unwrap();
        assert_eq!(a.client.listxattr(ino).await.unwrap(), b"user.b\0");
        let before = a.requests();
        assert_eq!(a.client.getxattr(ino, b"user.a").await, Err(Fault::NoAttribute));
        assert_eq!(a.requests(), before, "the list is known");
        let layout = a.client.getxattr(ino, b"user.redbud.layout").await.unwrap();
        assert_eq!(layout, b"[]");
    });
}

#[test]
fn create_and_unlink_in_a_cached_directory_take_one_request_each() {
    check(6, |cluster| async move {
        let a = cluster.mount("a").await;
        let dir = a.mkdir(Ino::ROOT, "dir").await.unwrap().attr.ino;
        let before = a.requests();
        for index in 0..50 {
            let text = format!("f{index}");
            assert!(a.find(dir, &text).await.is_none(), "the kernel looks up before it creates");
            let (_, opened) = a.create(dir, &text, WRONLY).await;
            a.close(opened.handle).await;
        }
        assert_eq!(a.requests() - before, 50);
        let before = a.requests();
        for index in 0..50 {
            let text = format!("f{index}");
            assert!(a.find(dir, &text).await.is_some());
            a.unlink(dir, &text).await.unwrap();
        }
        assert_eq!(a.requests() - before, 50);
    });
}

#[test]
fn fresh_mount_prefetches_a_directory_after_single_lookups() {
    check(8, |cluster| async move {
        let a = cluster.mount("a").await;
        let dir = a.mkdir(Ino::ROOT, "dir").await.unwrap().attr.ino;
        for index in 0..3000 {
            let text = format!("f{index:05}");
            let place_name = name(&text);
            let node = NodeSpec { kind: FileKind::Regular, mode: 0o644, umask: 0, rdev: 0 };
            a.client.mknod(&ROOT, Place { dir, name: &place_name }, node).await.unwrap();
        }
        a.client.unmount().await;
        let b = cluster.mount("b").await;
        let dir = b.ino("dir").await;
        for index in 0..8 {
            assert!(b.find(dir, &format!("f{index:05}")).await.is_some());
        }
        cluster.env.sleep(Duration::from_secs(1)).await;
        let before = b.requests();
        for index in 0..3000 {
            let entry = b.find(dir, &format!("f{index:05}")).await.unwrap();
            assert!(entry.entry_ttl > Duration::ZERO && entry.attr_ttl > Duration::ZERO);
            b.client.getattr(entry.attr.ino).await.unwrap();
        }
        assert!(b.find(dir, "g").await.is_none());
        assert!(b.requests() - before <= 1, "{}", b.requests() - before);
        let c = cluster.mount("c").await;
        let dir = c.ino("dir").await;
        assert_eq!(c.list(dir, true).await.len(), 3000);
        let before = c.requests();
        for index in 0..3000 {
            assert!(c.find(dir, &format!("f{index:05}")).await.is_some());
        }
        assert!(c.requests() - before <= 1, "{}", c.requests() - before);
    });
}

#[test]
fn orphan_lives_until_its_last_close() {
    check(10, |cluster| async move {
        let a = cluster.mount("a").await;
        let free = a.client.statfs().await.unwrap().blocks_free;
        let (_, opened) = a.create(Ino::ROOT, "f", RDWR).await;
        a.write(opened.handle, 0, &[5; 100_000]).await;
        a.unlink(Ino::ROOT, "f").await.unwrap();
        assert_eq!(a.read(opened.handle, 99_000, 4096).await, [5; 1000]);
        a.write(opened.handle, 0, &[6; 10]).await;
        a.client.fsync(opened.handle, false).await.unwrap();
        assert_eq!(a.read(opened.handle, 0, 20).await[..10], [6; 10]);
        a.close(opened.handle).await;
        a.client.unmount().await;
        let b = cluster.mount("b").await;
        assert!(b.find(Ino::ROOT, "f").await.is_none());
        for _ in 0..100 {
            if b.client.statfs().await.unwrap().blocks_free == free {
                return;
            }
            cluster.env.sleep(Duration::from_secs(1)).await;
        }
        panic!("{} blocks free, {free} before", b.client.statfs().await.unwrap().blocks_free);
    });
}

#[test]
fn tmpfile_can_be_linked() {
    check(12, |cluster| async move {
        let a = cluster.mount("a").await;
        let (entry, opened) = a.client.tmpfile(&ROOT, Ino::ROOT, 0o600, 0, RDWR).await.unwrap();
        assert_eq!(entry.attr.nlink, 0);
        a.write(opened.handle, 0, b"kept").await;
        let text = name("named");
        let place = Place { dir: Ino::ROOT, name: &text };
        assert_eq!(a.client.link(&ROOT, entry.attr.ino, place).await.unwrap().attr.nlink, 1);
        a.close(opened.handle).await;
        a.client.unmount().await;
        let b = cluster.mount("b").await;
        assert_eq!(b.get("named").await, b"kept");
    });
}

#[test]
fn create_of_an_existing_file_obeys_the_open_flags() {
    check(14, |cluster| async move {
        let a = cluster.mount("a").await;
        a.put("f", b"old").await;
        let f = name("f");
        let place = Place { dir: Ino::ROOT, name: &f };
        let exclusive = OpenFlags(1 | OpenFlags::EXCLUSIVE);
        let refused = a.client.create(&ROOT, place, 0o644, 0, exclusive).await;
        assert_eq!(refused.err(), Some(Fault::Exists));
        let (_, opened) = a.client.create(&ROOT, place, 0o644, 0, RDONLY).await.unwrap();
        assert_eq!(a.read(opened.handle, 0, 10).await, b"old");
        let truncating = OpenFlags(1 | OpenFlags::TRUNCATE);
        let (_, other) = a.client.create(&ROOT, place, 0o644, 0, truncating).await.unwrap();
        assert_eq!(a.read(opened.handle, 0, 10).await, b"");
        a.close(opened.handle).await;
        a.close(other.handle).await;
        let missing = a.client.open(&ROOT, Ino(1 << 30), RDONLY).await;
        assert!(missing.is_err());
    });
}

#[test]
fn copy_and_seek_see_holes_and_data() {
    check(16, |cluster| async move {
        let a = cluster.mount("a").await;
        let (_, from) = a.create(Ino::ROOT, "from", RDWR).await;
        a.write(from.handle, 1 << 20, &[9; 8192]).await;
        assert_eq!(a.client.lseek(from.handle, 0, client::Whence::Data).await, Ok(1 << 20));
        assert_eq!(a.client.lseek(from.handle, 0, client::Whence::Hole).await, Ok(0));
        let (_, to) = a.create(Ino::ROOT, "to", RDWR).await;
        let mut copied = 0;
        loop {
            let step = a
                .client
                .copy_range(&ROOT, from.handle, copied, to.handle, copied, 1 << 30)
                .await
                .unwrap();
            if step == 0 {
                break;
            }
            copied += step;
        }
        assert_eq!(copied, (1 << 20) + 8192);
        assert_eq!(a.read(to.handle, (1 << 20) - 2, 4).await, [0, 0, 9, 9]);
        a.client.fallocate(&ROOT, to.handle, 3, 1 << 20, 4096).await.unwrap();
        assert_eq!(a.read(to.handle, (1 << 20) + 4094, 4).await, [0, 0, 9, 9]);
    });
}

#[test]
fn rename_between_two_names_of_one_file_keeps_both() {
    check(3, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let ino = a.put("one", b"x").await;
        let (one, two) = (name("one"), name("two"));
        let (from, to) =
            (Place { dir: Ino::ROOT, name: &one }, Place { dir: Ino::ROOT, name: &two });
        a.client.link(&ROOT, ino, to).await.unwrap();
        for flags in [0, 2] {
            assert!(a.find(Ino::ROOT, "none").await.is_none(), "the names are cached");
            a.client.rename(&ROOT, from, to, flags).await.unwrap();
            for mount in [&a, &b] {
                assert_eq!([mount.ino("one").await, mount.ino("two").await], [ino, ino]);
                assert_eq!(mount.list(Ino::ROOT, false).await, ["one", "two"]);
            }
        }
    });
}

#[test]
fn orphan_cannot_be_linked_again() {
    check(4, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let ino = a.put("f", b"x").await;
        let handle = b.open(b.ino("f").await, RDONLY).await;
        a.unlink(Ino::ROOT, "f").await.unwrap();
        let back = name("back");
        let place = Place { dir: Ino::ROOT, name: &back };
        // Its kernel may not know yet that the file is an orphan.
        assert_eq!(b.client.link(&ROOT, ino, place).await.err(), Some(Fault::NotFound));
        b.close(handle).await;
        let flags = OpenFlags(OpenFlags::READ_WRITE);
        let (entry, opened) = a.client.tmpfile(&ROOT, Ino::ROOT, 0o600, 0, flags).await.unwrap();
        assert_eq!(a.client.link(&ROOT, entry.attr.ino, place).await.unwrap().attr.nlink, 1);
        a.unlink(Ino::ROOT, "back").await.unwrap();
        assert_eq!(a.client.link(&ROOT, entry.attr.ino, place).await.err(), Some(Fault::NotFound));
        a.close(opened.handle).await;
    });
}
