//! The namespace.

use proto::mds::*;
use proto::wire::Bytes;
use types::*;

use crate::bed::*;

const ROOT: Ino = Ino::ROOT;

#[test]
fn created_names_are_found_and_listed_until_removed() {
    run(|bed| async move {
        let c = bed.client("c").await;
        let dir = c.dir(ROOT, "d").await;
        for text in ["a", "b", "c", "e"] {
            c.file(dir, text).await;
        }
        assert_eq!(c.names(dir).await, ["a", "b", "c", "e"]);
        let attr = c.lookup(dir, "b").await.unwrap();
        assert_eq!(
            (attr.kind, attr.mode, attr.uid, attr.nlink),
            (FileKind::Regular, 0o644, 1000, 1)
        );
        assert_eq!(
            c.create(dir, "b", FileKind::Regular, Rights::empty()).await,
            Err(Fault::Exists)
        );
        assert_eq!(c.call(Op::Rmdir { dir: ROOT, name: name("d") }).await, Err(Fault::NotEmpty));
        assert_eq!(c.unlink(dir, "b").await.unwrap().nlink, 0);
        assert_eq!(c.lookup(dir, "b").await, None);
        assert_eq!(c.unlink(dir, "b").await, Err(Fault::NotFound));
        assert_eq!(c.unlink(ROOT, "d").await, Err(Fault::IsDirectory));
        assert_eq!(c.call(Op::Rmdir { dir, name: name("a") }).await, Err(Fault::NotDirectory));
        assert_eq!(c.lookup(dir, "zz").await, None);
        let file = c.lookup(dir, "a").await.unwrap().ino;
        let op = Op::Lookup {
            dir: file,
            name: name("x"),
            want: Rights::empty(),
            want_dir: Rights::empty(),
        };
        assert_eq!(c.call(op).await, Err(Fault::NotDirectory));
        assert_eq!(c.attr(Ino(0x1234_5678)).await, Err(Fault::Stale));
    });
}

#[test]
fn directory_link_count_and_times_follow_changes() {
    run(|bed| async move {
        let c = bed.client("c").await;
        let before = c.attr(ROOT).await.unwrap().attr;
        bed.sleep(Duration::from_secs(1)).await;
        let dir = c.dir(ROOT, "d").await;
        let after = c.attr(ROOT).await.unwrap().attr;
        assert_eq!(after.nlink, before.nlink + 1);
        assert!(after.mtime > before.mtime && after.ctime == after.mtime);
        assert!(after.version > before.version);
        assert_eq!(c.attr(dir).await.unwrap().attr.nlink, 2);
        c.call(Op::Rmdir { dir: ROOT, name: name("d") }).await.unwrap();
        assert_eq!(c.attr(ROOT).await.unwrap().attr.nlink, before.nlink);
    });
}

#[test]
fn hard_links_share_an_inode_until_the_last_name_goes() {
    run(|bed| async move {
        let c = bed.client("c").await;
        let ino = c.file(ROOT, "a").await;
        let link = |text: &str| Op::Link { ino, dir: ROOT, name: name(text), tmpfile: false };
        let Ok(OpReply::Linked { leased, .. }) = c.call(link("b")).await else { panic!() };
        assert_eq!((leased.attr.ino, leased.attr.nlink), (ino, 2));
        assert_eq!(c.call(link("b")).await, Err(Fault::Exists));
        let dir = c.dir(ROOT, "d").await;
        let op = Op::Link { ino: dir, dir: ROOT, name: name("e"), tmpfile: false };
        assert_eq!(c.call(op).await, Err(Fault::NotPermitted));
        assert_eq!(c.unlink(ROOT, "a").await.unwrap().nlink, 1);
        assert_eq!(c.lookup(ROOT, "b").await.unwrap().ino, ino);
        let Ok(OpReply::Renamed { replaced, .. }) = c.rename((ROOT, "b"), (dir, "x"), 0).await
        else {
            panic!()
        };
        assert_eq!(replaced, None);
        assert_eq!(c.lookup(dir, "x").await.unwrap().ino, ino);
        assert_eq!(c.unlink(dir, "x").await.unwrap().nlink, 0);
        bed.sleep(Duration::from_millis(100)).await;
        assert_eq!(c.attr(ino).await, Err(Fault::Stale));
    });
}

#[test]
fn unused_small_file_is_freed_with_its_name_and_an_open_one_is_not() {
    run(|bed| async move {
        let (c, o) = (bed.client("c").await, bed.client("o").await);
        for (text, over) in [("removed", false), ("replaced", true)] {
            let held = Rights::OPEN | Rights::DATA_X;
            let ino = c.create(ROOT, text, FileKind::Regular, held).await.unwrap().attr.ino;
            let op = if over {
                c.file(ROOT, "new").await;
                Op::Rename {
                    from: ROOT,
                    name: name("new"),
                    to: ROOT,
                    new_name: name(text),
                    flags: 0,
                    unused: Some(ino),
                }
            } else {
                Op::Unlink { dir: ROOT, name: name(text), unused: Some(ino) }
            };
            // The reaper has no time to run: the next operation of the same request finds nothing.
            let answers = c.compound(vec![op, Op::GetAttr { ino, want: Rights::empty() }]);
            let answers = answers.await;
            assert!(answers[0].is_ok(), "{answers:?}");
            assert_eq!(answers[1], Err(Fault::Stale), "{text}");
        }
        for (text, unused) in [("here", false), ("there", true)] {
            let ino = c.create(ROOT, text, FileKind::Regular, Rights::OPEN).await.unwrap().attr.ino;
            if unused {
                o.acquire(ino, Rights::OPEN).await.unwrap();
                o.keep_open();
            }
            let unused = unused.then_some(ino);
            c.call(Op::Unlink { dir: ROOT, name: name(text), unused }).await.unwrap();
            bed.sleep(Duration::from_millis(100)).await;
            assert_eq!(c.attr(ino).await.unwrap().attr.nlink, 0, "{text}");
        }
        bed.check().await;
    });
}

#[test]
fn rename_keeps_the_tree_and_the_order_of_errors_of_the_kernel() {
    run(|bed| async move {
        let c = bed.client("c").await;
        let (a, b) = (c.dir(ROOT, "a").await, c.dir(ROOT, "b").await);
        let sub = c.dir(a, "sub").await;
        let f = c.file(a, "f").await;
        c.file(b, "g").await;
        assert_eq!(c.rename((ROOT, "a"), (sub, "x"), 0).await, Err(Fault::Invalid));
        assert_eq!(c.rename((ROOT, "a"), (a, "x"), 0).await, Err(Fault::Invalid));
        assert_eq!(c.rename((a, "sub"), (ROOT, "a"), 0).await, Err(Fault::NotEmpty));
        assert_eq!(c.rename((a, "sub"), (ROOT, "a"), 2).await, Err(Fault::Invalid));
        assert_eq!(c.rename((a, "none"), (b, "x"), 0).await, Err(Fault::NotFound));
        assert_eq!(c.rename((a, "f"), (b, "g"), 1).await, Err(Fault::Exists));
        assert_eq!(c.rename((a, "f"), (b, "x"), 2).await, Err(Fault::NotFound));
        assert_eq!(c.rename((a, "f"), (b, "x"), 3).await, Err(Fault::Invalid));
        assert_eq!(c.rename((a, "f"), (a, "sub"), 0).await, Err(Fault::IsDirectory));
        assert_eq!(c.rename((a, "sub"), (a, "f"), 0).await, Err(Fault::NotDirectory));
        assert_eq!(c.rename((ROOT, "a"), (ROOT, "b"), 0).await, Err(Fault::NotEmpty));
        c.rename((a, "f"), (b, "g"), 0).await.unwrap();
        assert_eq!(c.lookup(b, "g").await.unwrap().ino, f);
        assert_eq!(c.lookup(a, "f").await, None);
        c.rename((a, "sub"), (b, "sub"), 0).await.unwrap();
        assert_eq!(c.attr(a).await.unwrap().attr.nlink, 2);
        assert_eq!(c.attr(b).await.unwrap().attr.nlink, 3);
        c.rename((b, "sub"), (b, "g"), 2).await.unwrap();
        assert_eq!(c.lookup(b, "g").await.unwrap().ino, sub);
        assert_eq!(c.lookup(b, "sub").await.unwrap().ino, f);
        c.rename((b, "g"), (ROOT, "a"), 0).await.unwrap();
        assert_eq!(c.lookup(ROOT, "a").await.unwrap().ino, sub);
        assert_eq!(c.names(ROOT).await, ["a", "b"]);
        assert_eq!(c.attr(b).await.unwrap().attr.nlink, 2);
    });
}

/// PROTOCOLS 5.5.
#[test]
fn rename_leaves_a_whiteout_on_request() {
    const WHITEOUT: u32 = LEAVE_WHITEOUT;
    run(|bed| async move {
        let c = bed.client("c").await;
        let (a, b) = (c.dir(ROOT, "a").await, c.dir(ROOT, "b").await);
        let (f, sub) = (c.file(a, "f").await, c.dir(a, "sub").await);
        c.file(b, "g").await;
        assert_eq!(c.rename((a, "f"), (b, "g"), 2 | WHITEOUT).await, Err(Fault::Invalid));
        assert_eq!(c.rename((a, "f"), (b, "g"), 1 | WHITEOUT).await, Err(Fault::Exists));
        // The flag of clients that do not support whiteouts.
        assert_eq!(c.rename((a, "f"), (b, "g"), 4).await, Err(Fault::Invalid));
        let is_whiteout = |attr: &Attr| {
            assert_eq!((attr.kind, attr.rdev), (FileKind::CharDevice, 0));
            assert_eq!((attr.mode, attr.nlink, attr.uid), (0, 1, 1000));
        };
        for (from, to, moved, flags) in [
            ((a, "f"), (b, "g"), f, WHITEOUT),
            ((b, "g"), (b, "h"), f, 1 | WHITEOUT),
            ((a, "sub"), (b, "sub"), sub, WHITEOUT),
            // Over the whiteout that the first rename left.
            ((b, "h"), (a, "f"), f, WHITEOUT),
        ] {
            let answer = c.rename(from, to, flags).await.unwrap();
            let OpReply::Renamed { whiteout, .. } = answer else { panic!() };
            let left = c.lookup(from.0, from.1).await.unwrap();
            assert_eq!(whiteout.0.unwrap().attr.ino, left.ino);
            is_whiteout(&left);
            assert_eq!(c.lookup(to.0, to.1).await.unwrap().ino, moved);
        }
        assert_eq!(c.names(a).await, ["f", "sub"]);
        assert_eq!(c.names(b).await, ["g", "h", "sub"]);
        let links = async |ino| c.attr(ino).await.unwrap().attr.nlink;
        assert_eq!((links(a).await, links(b).await), (2, 3));
        // Two names of one inode: nothing happens.
        let link = Op::Link { ino: f, dir: b, name: name("second"), tmpfile: false };
        c.call(link).await.unwrap();
        c.rename((a, "f"), (b, "second"), WHITEOUT).await.unwrap();
        assert_eq!(c.lookup(a, "f").await.unwrap().ino, f);
        bed.check().await;
    });
}

#[test]
fn setattr_changes_attributes_and_clears_set_id_bits() {
    run(|bed| async move {
        let c = bed.client("c").await;
        let ino = c.file(ROOT, "f").await;
        let none = no_change();
        let set = |set: SetAttr| Op::SetAttr { ino, set };
        c.call(set(SetAttr { mode: Some(0o6711), ..none.clone() })).await.unwrap();
        assert_eq!(c.attr(ino).await.unwrap().attr.mode, 0o6711);
        let time = Timestamp { seconds: -3, nanos: 9 };
        let change = SetAttr {
            uid: Some(5),
            gid: Some(6),
            mtime: Some(SetTime::At { time }),
            kill_setid: true,
            judged_by: 0,
            ..none
        };
        c.call(set(change)).await.unwrap();
        let attr = c.attr(ino).await.unwrap().attr;
        assert_eq!((attr.mode, attr.uid, attr.gid, attr.mtime), (0o711, 5, 6, time));
    });
}

#[test]
fn setgid_and_default_acls_are_inherited() {
    run(|bed| async move {
        let c = bed.client("c").await;
        let dir = c.dir(ROOT, "d").await;
        let none = SetAttr {
            mode: None,
            uid: None,
            gid: None,
            atime: None,
            mtime: None,
            kill_setid: false,
            judged_by: 0,
        };
        let set = SetAttr { mode: Some(0o2777), gid: Some(77), ..none };
        c.call(Op::SetAttr { ino: dir, set }).await.unwrap();
        let sub = c.create(dir, "s", FileKind::Directory, Rights::empty()).await.unwrap().attr;
        assert_eq!((sub.gid, sub.mode & 0o2000), (77, 0o2000));
        let mut acl = 2u32.to_le_bytes().to_vec();
        for (tag, perm, id) in [
            (1u16, 7u16, u32::MAX),
            (2, 6, 5),
            (4, 7, u32::MAX),
            (16, 6, u32::MAX),
            (32, 0, u32::MAX),
        ] {
            acl.extend_from_slice(&tag.to_le_bytes());
            acl.extend_from_slice(&perm.to_le_bytes());
            acl.extend_from_slice(&id.to_le_bytes());
        }
        let (acl_name, value) = (Bytes(b"system.posix_acl_default".to_vec()), Bytes(acl));
        let op =
            Op::SetXattr { ino: dir, name: acl_name.clone(), value, flags: 0, kill_setgid: false };
        c.call(op).await.unwrap();
        let file = c.create(dir, "f", FileKind::Regular, Rights::empty()).await.unwrap().attr;
        assert_eq!(file.mode, 0o660, "the umask does not count");
        let get = |ino, text: &[u8]| Op::GetXattr {
            ino,
            name: Bytes(text.to_vec()),
            want: Rights::empty(),
        };
        assert!(c.call(get(file.ino, b"system.posix_acl_access")).await.is_ok());
        let sub = c.dir(dir, "t").await;
        assert!(c.call(get(sub, b"system.posix_acl_default")).await.is_ok());
        let chmod = SetAttr {
            mode: Some(0o600),
            uid: None,
            gid: None,
            atime: None,
            mtime: None,
            kill_setid: false,
            judged_by: 0,
        };
        c.call(Op::SetAttr { ino: file.ino, set: chmod }).await.unwrap();
        let Ok(OpReply::Bytes { bytes, .. }) =
            c.call(get(file.ino, b"system.posix_acl_access")).await
        else {
            panic!()
        };
        assert_eq!(bytes.0[4 + 3 * 8 + 2], 0, "chmod sets the mask");
    });
}

#[test]
fn extended_attributes_obey_their_flags_names_and_limits() {
    run(|bed| async move {
        let c = bed.client("c").await;
        let ino = c.file(ROOT, "f").await;
        let b = |text: &str| Bytes(text.as_bytes().to_vec());
        let set = |text: &str, len: usize, flags| Op::SetXattr {
            ino,
            name: b(text),
            value: Bytes(vec![7; len]),
            flags,
            kill_setgid: false,
        };
        let get = |text: &str| Op::GetXattr { ino, name: b(text), want: Rights::empty() };
        assert_eq!(c.call(get("user.a")).await, Err(Fault::NoAttribute));
        assert_eq!(c.call(set("user.a", 3, 2)).await, Err(Fault::NoAttribute));
        c.call(set("user.a", 3, 1)).await.unwrap();
        assert_eq!(c.call(set("user.a", 3, 1)).await, Err(Fault::Exists));
        c.call(set("user.a", 40_000, 2)).await.unwrap();
        assert_eq!(c.call(set("user.b", 40_000, 0)).await, Err(Fault::NoSpace));
        assert_eq!(c.call(set("user.b", 70_000, 0)).await, Err(Fault::TooBig));
        assert_eq!(c.call(set("odd.b", 1, 0)).await, Err(Fault::NotSupported));
        c.call(set("security.selinux", 9, 0)).await.unwrap();
        let list = Op::ListXattr { ino, want: Rights::empty() };
        let Ok(OpReply::Bytes { bytes, .. }) = c.call(list).await else { panic!() };
        let mut names: Vec<&[u8]> = bytes.0.split(|&b| b == 0).filter(|n| !n.is_empty()).collect();
        names.sort_unstable();
        assert_eq!(names, [&b"security.selinux"[..], b"user.a"]);
        c.call(Op::RemoveXattr { ino, name: b("user.a") }).await.unwrap();
        assert_eq!(c.call(get("user.a")).await, Err(Fault::NoAttribute));
        let mut link = node(FileKind::Symlink, 0o777);
        link.symlink = b("/somewhere/else");
        let created =
            c.call(Op::Create { dir: ROOT, name: name("l"), node: link, want: Rights::empty() });
        let Ok(OpReply::Created { leased, .. }) = created.await else { panic!() };
        assert_eq!(leased.attr.size, 15);
        let Ok(OpReply::Bytes { bytes, .. }) = c.call(Op::ReadLink { ino: leased.attr.ino }).await
        else {
            panic!()
        };
        assert_eq!(bytes, b("/somewhere/else"));
        let user = Op::SetXattr {
            ino: leased.attr.ino,
            name: b("user.x"),
            value: b("1"),
            flags: 0,
            kill_setgid: false,
        };
        assert_eq!(c.call(user).await, Err(Fault::NotPermitted));
    });
}

#[test]
fn first_failure_ends_a_compound() {
    run(|bed| async move {
        let c = bed.client("c").await;
        let create = |text: &str| Op::Create {
            dir: ROOT,
            name: name(text),
            node: node(FileKind::Directory, 0o755),
            want: Rights::empty(),
        };
        let get = Op::GetAttr { ino: ROOT, want: Rights::empty() };
        let ops = vec![create("d"), create("e"), get.clone(), create("d"), get, create("f")];
        let results = c.compound(ops).await;
        assert_eq!(results.len(), 4);
        assert_eq!(results[3], Err(Fault::Exists));
        assert_eq!(c.names(ROOT).await, ["d", "e"], "what was done before it stays");
    });
}

/// PROTOCOLS 3.6.
#[test]
fn request_sent_again_is_answered_and_not_executed_again() {
    run(|bed| async move {
        let c = bed.client("c").await;
        let op = Op::Create {
            dir: ROOT,
            name: name("once"),
            node: node(FileKind::Regular, 0o644),
            want: Rights::ATTR,
        };
        let request = c.request(5, vec![op]);
        let first = c.exchange(request.clone()).await.unwrap();
        let again = c.exchange(request.clone()).await.unwrap();
        assert_eq!(first.results, again.results);
        c.disconnect();
        assert_eq!(c.connect(c.id()).await.unwrap().state, RESUMED);
        assert_eq!(c.exchange(request).await.unwrap().results, first.results);
        assert_eq!(c.names(ROOT).await, ["once"]);
    });
}

#[test]
fn foreign_clients_and_forbidden_operations_are_refused() {
    run(|bed| async move {
        let c = bed.client("c").await;
        let other = Client::new(bed.world.node("o"));
        let refused = other.connect_as(c.id(), 5, 0).await.unwrap_err();
        assert_eq!(refused.fault, Fault::NotPermitted);
        let refused = other.connect_as(ClientId(999), 5, 0).await.unwrap_err();
        assert_eq!(refused.fault, Fault::Evicted);
        let admin = Client::new(bed.world.node("a"));
        admin.connect_as(ClientId(0), 1, 1).await.unwrap();
        let Ok(OpReply::Text { text }) = admin.call(Op::Status {}).await else { panic!() };
        assert!(
            text.contains("\"state\":\"serving\"") && text.contains("a scripted client"),
            "{text}"
        );
        let make = Op::Create {
            dir: ROOT,
            name: name("x"),
            node: node(FileKind::Fifo, 0o644),
            want: Rights::empty(),
        };
        assert_eq!(admin.call(make).await, Err(Fault::NotPermitted));
        assert_eq!(c.call(Op::Evict { client: c.id() }).await, Err(Fault::NotPermitted));
        assert_eq!(c.call(Op::Scrub { rate: Some(0) }).await, Err(Fault::NotPermitted));
        assert_eq!(admin.call(Op::Evict { client: c.id() }).await, Ok(OpReply::Done {}));
        c.push(|push| matches!(push, Push::Evicted { .. })).await;
    });
}

#[test]
fn ctime_of_a_client_whose_clock_is_ahead_is_not_taken_back() {
    run(|bed| async move {
        let c = bed.client("c").await;
        let ino = c.create(ROOT, "f", FileKind::Regular, Rights::DATA_X).await.unwrap().attr.ino;
        let now = c.attr(ino).await.unwrap().attr.ctime;
        let ahead = Timestamp { seconds: now.seconds + 1, ..now };
        let commit = Op::Commit {
            ino,
            edits: vec![],
            size: Some(7),
            mtime: Some(ahead),
            ctime: Some(ahead),
            merge: false,
            tail_zero: false,
        };
        c.call(commit).await.unwrap();
        let mode = SetAttr {
            mode: Some(0o600),
            uid: None,
            gid: None,
            atime: None,
            mtime: None,
            kill_setid: false,
            judged_by: 0,
        };
        for op in [
            Op::SetAttr { ino, set: mode },
            Op::Link { ino, dir: ROOT, name: name("g"), tmpfile: false },
            Op::Unlink { dir: ROOT, name: name("f"), unused: None },
        ] {
            c.call(op).await.unwrap();
            assert_eq!(c.attr(ino).await.unwrap().attr.ctime, ahead);
        }
        c.rename((ROOT, "g"), (ROOT, "h"), 0).await.unwrap();
        assert_eq!(c.attr(ino).await.unwrap().attr.ctime, ahead);
    });
}
