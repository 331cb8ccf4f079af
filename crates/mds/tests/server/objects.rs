//! Files that lie in objects at targets: how they are made, what clients may do with them, and what
//! becomes of their objects.

use std::rc::Rc;

use proto::capability::{READ, WRITE};
use proto::mds::*;
use proto::placement::ATTRIBUTE;
use proto::wire::{Appended, Bytes};
use types::*;

use crate::bed::*;
use crate::target::{KEY, Target};

const ROOT: Ino = Ino::ROOT;
const BLOCKS: u64 = 5_000;

fn set(ino: Ino, layout: &str) -> Op {
    let (name, value) = (Bytes(ATTRIBUTE.to_vec()), Bytes(layout.as_bytes().to_vec()));
    Op::SetXattr { ino, name, value, flags: 0, kill_setgid: false }
}

async fn admin(bed: &Bed) -> Client {
    let admin = Client::new(bed.world.node("admin"));
    admin.greet(Hello::new::<Mds>(ADMINISTRATOR, "home", "admin")).await.unwrap().unwrap();
    admin
}

async fn add(bed: &Bed, path: &str) -> String {
    let op = Op::AddZone { path: path.into(), overwrite: false, number: Appended(None) };
    match admin(bed).await.call(op).await {
        Ok(OpReply::Text { text }) => text,
        other => panic!("{other:?}"),
    }
}

/// A bed with so many targets, and a directory whose files lie in objects.
pub fn with_targets<F: Future<Output = ()>>(
    count: u8,
    layout: &'static str,
    test: impl FnOnce(Bed, Vec<Rc<Target>>, Client, Ino) -> F,
) {
    run(|bed| async move {
        bed.key_of_targets(KEY).await;
        let targets: Vec<Rc<Target>> = (1..=count).map(|n| Target::new(n, BLOCKS)).collect();
        for (n, target) in targets.iter().enumerate() {
            target.start(&bed.world);
            assert_eq!(add(&bed, &target.path()).await, format!("{{\"added\":{}}}", n + 1));
        }
        let c = bed.client("c").await;
        let dir = c.dir(ROOT, "objects").await;
        c.call(set(dir, layout)).await.unwrap();
        c.call(Op::Sync {}).await.unwrap();
        test(bed, targets, c, dir).await;
    });
}

async fn create(c: &Client, dir: Ino, text: &str) -> Result<(Attr, Option<ObjectLayout>), Fault> {
    let (want, node) = (Rights::DATA_X, node(FileKind::Regular, 0o666));
    match c.call(Op::Create { dir, name: name(text), node, want }).await? {
        OpReply::Created { leased, object, inline_max, .. } => {
            assert!(object.is_none() || inline_max == 0);
            Ok((leased.attr, object))
        }
        other => panic!("{other:?}"),
    }
}

async fn unlink(c: &Client, dir: Ino, text: &str, ino: Ino) {
    let op = Op::Unlink { dir, name: name(text), unused: Some(ino) };
    assert!(matches!(c.call(op).await, Ok(OpReply::Removed { .. })));
}

/// Waits until `done`, for at most ten seconds.
pub async fn soon(bed: &Bed, what: &str, done: impl Fn() -> bool) {
    for _ in 0..100 {
        if done() {
            return;
        }
        bed.sleep(Duration::from_millis(100)).await;
    }
    panic!("{what}: {:#?}", bed.log.borrow());
}

async fn status(bed: &Bed) -> String {
    match admin(bed).await.call(Op::Status {}).await {
        Ok(OpReply::Text { text }) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn files_of_a_directory_take_turns_on_its_targets_and_get_capabilities() {
    with_targets(
        3,
        "policy=objects part=65536 width=2 zones=1,3",
        |bed, targets, c, dir| async move {
            let (one, first) = create(&c, dir, "one").await.unwrap();
            let first = first.unwrap();
            let (_, second) = create(&c, dir, "two").await.unwrap();
            let second = second.unwrap();
            assert_eq!((first.part, &first.targets[..]), (16, &[PagId(1), PagId(3)][..]));
            assert_eq!(
                second.targets,
                [PagId(3), PagId(1)],
                "the next file begins at the next one"
            );
            assert_ne!(first.object, second.object);
            assert_eq!((first.may.rights, first.may.client), (READ | WRITE, c.id()));
            assert!(targets[0].accepts(&first.may));
            // Another client reads: its capability says so.
            let d = bed.client("d").await;
            let (_, slice) = d.acquire(one.ino, Rights::DATA_S).await.unwrap();
            let slice = slice.unwrap();
            let object = slice.object.unwrap();
            assert_eq!(
                (object.object, object.may.rights, object.may.client),
                (first.object, READ, d.id())
            );
            assert!(slice.segments.is_empty() && slice.inline_max == 0 && !slice.frozen);
            // A block file beside it has none.
            let other = c.dir(ROOT, "blocks").await;
            assert_eq!(create(&c, other, "file").await.unwrap().1, None);
        },
    );
}

#[test]
fn content_of_an_object_file_is_committed_without_edits_and_granted_as_a_whole() {
    with_targets(1, "policy=objects", |bed, _, c, dir| async move {
        let ino = create(&c, dir, "file").await.unwrap().0.ino;
        let commit = |edits: Vec<Edit>, size| Op::Commit {
            ino,
            edits,
            size: Some(size),
            mtime: None,
            ctime: None,
            merge: false,
            tail_zero: true,
        };
        let content = Edit::Content { bytes: Bytes(vec![1]) };
        let unmap = Edit::Unmap { from: FileBlock(0), to: 5 };
        for edit in [content, unmap, Edit::Written { from: FileBlock(0), len: 1 }] {
            assert_eq!(c.call(commit(vec![edit], 9)).await, Err(Fault::Invalid));
        }
        match c.call(commit(Vec::new(), 10_000)).await {
            Ok(OpReply::Attr { leased }) => {
                assert_eq!((leased.attr.size, leased.attr.blocks), (10_000, 3))
            }
            other => panic!("{other:?}"),
        }
        // Others write, too: still the whole right alone.
        let d = bed.client("d").await;
        for client in [&d, &c, &d, &c] {
            let range = Some(BlockRange::new(0, 16));
            let (rights, from) = (Rights::DATA_X | Rights::OPEN, FileBlock(0));
            let op = Op::Acquire { ino, rights, from, range, ahead: Ahead::default() };
            match client.call(op).await {
                Ok(OpReply::Acquired { ranges, layout, leased, .. }) => {
                    assert!(ranges.is_empty() && leased.rights.contains(Rights::DATA_X));
                    assert_eq!(layout.unwrap().object.unwrap().may.rights, READ | WRITE);
                }
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn object_is_destroyed_when_its_file_is_gone_also_over_restarts() {
    with_targets(2, "policy=objects width=2", |bed, targets, c, dir| async move {
        let mut objects = Vec::new();
        for n in 0..5 {
            let (attr, object) = create(&c, dir, &n.to_string()).await.unwrap();
            objects.push((attr.ino, object.unwrap().object));
        }
        let gone = |n: usize| {
            let object = objects[n].1;
            targets.iter().all(|target| target.destroyed.borrow().contains(&object))
        };
        // A small unused file.
        unlink(&c, dir, "0", objects[0].0).await;
        soon(&bed, "unlinked", || gone(0)).await;
        // One that another client has open.
        let d = bed.client("d").await;
        d.keep_open();
        d.acquire(objects[1].0, Rights::OPEN | Rights::DATA_S).await.unwrap();
        unlink(&c, dir, "1", objects[1].0).await;
        bed.sleep(Duration::from_secs(3)).await;
        assert!(!gone(1), "it is open");
        let seq = d.attr(objects[1].0).await.unwrap().seq;
        let give = Rights::all();
        d.call(Op::Return { ino: objects[1].0, seq, give, still_open: false, range: None })
            .await
            .unwrap();
        soon(&bed, "closed", || gone(1)).await;
        // One that a rename replaces.
        let op = Op::Rename {
            from: dir,
            name: name("2"),
            to: dir,
            new_name: name("3"),
            flags: 0,
            unused: Some(objects[3].0),
        };
        assert!(matches!(c.call(op).await, Ok(OpReply::Renamed { .. })));
        soon(&bed, "replaced", || gone(3)).await;
        assert!(!gone(2));
        // A target is away; the server restarts before it is back.
        targets[1].kill(&bed.world);
        unlink(&c, dir, "4", objects[4].0).await;
        soon(&bed, "at the first", || targets[0].destroyed.borrow().contains(&objects[4].1)).await;
        c.call(Op::Sync {}).await.unwrap();
        bed.restart().await;
        bed.sleep(Duration::from_secs(2)).await;
        assert!(!gone(4));
        targets[1].start(&bed.world);
        soon(&bed, "when it is back", || gone(4)).await;
        assert!(!gone(2), "a file that is there keeps its object");
        assert_eq!(targets[0].refused.get() + targets[1].refused.get(), 0);
        bed.sleep(Duration::from_secs(2)).await;
        let counts: Vec<usize> = targets.iter().map(|it| it.destroyed.borrow().len()).collect();
        bed.sleep(Duration::from_secs(5)).await;
        let later: Vec<usize> = targets.iter().map(|it| it.destroyed.borrow().len()).collect();
        assert_eq!(counts, later, "nothing is left to be destroyed");
    });
}

#[test]
fn numbers_of_objects_are_never_issued_again() {
    with_targets(1, "policy=objects", |bed, _, c, dir| async move {
        let (_, before) = create(&c, dir, "before").await.unwrap();
        // Nobody waits for this one to be durable.
        let (_, lost) = create(&c, dir, "lost").await.unwrap();
        bed.restart().await;
        let d = bed.client("d").await;
        bed.sleep(LEASE * 2).await;
        let (_, after) = create(&d, dir, "after").await.unwrap();
        let number = |layout: &Option<ObjectLayout>| layout.as_ref().unwrap().object;
        assert!(number(&after) > number(&lost) && number(&lost) > number(&before));
    });
}

#[test]
fn evicted_client_is_refused_by_targets_before_its_rights_go_to_others() {
    with_targets(2, "policy=objects", |bed, targets, c, dir| async move {
        let ino = create(&c, dir, "file").await.unwrap().0.ino;
        c.call(Op::Sync {}).await.unwrap();
        targets[0].hold(true);
        c.disconnect();
        let d = bed.client("d").await;
        let asked = Rc::new(std::cell::Cell::new(false));
        let (waiting, granted) = (d.clone(), asked.clone());
        bed.env.spawn(async move {
            waiting.acquire(ino, Rights::DATA_X).await.unwrap();
            granted.set(true);
        });
        soon(&bed, "refused", || targets[1].fenced.borrow().contains(&c.id())).await;
        assert!(!asked.get(), "one target has not answered");
        targets[0].hold(false);
        soon(&bed, "granted", || asked.get()).await;
        assert_eq!(*targets[0].fenced.borrow(), [c.id()]);
        assert!(!targets[0].fenced.borrow().contains(&d.id()));
    });
}

#[test]
fn target_that_is_away_refuses_evicted_clients_first_when_it_is_back() {
    with_targets(1, "policy=objects", |bed, targets, c, dir| async move {
        let (attr, object) = create(&c, dir, "file").await.unwrap();
        c.call(Op::Sync {}).await.unwrap();
        targets[0].kill(&bed.world);
        c.disconnect();
        let d = bed.client("d").await;
        // It waits for the lease of the silent client, and for no target.
        let begun = bed.env.now();
        d.acquire(attr.ino, Rights::DATA_X).await.unwrap();
        assert!(bed.env.now().since(begun) < LEASE * 2, "{:?}", bed.env.now().since(begun));
        unlink(&d, dir, "file", attr.ino).await;
        d.call(Op::Sync {}).await.unwrap();
        bed.restart().await;
        targets[0].start(&bed.world);
        soon(&bed, "destroyed", || !targets[0].destroyed.borrow().is_empty()).await;
        assert_eq!(*targets[0].destroyed.borrow(), [object.unwrap().object]);
        assert_eq!(*targets[0].fenced.borrow(), [c.id()], "{:#?}", bed.log.borrow());
    });
}

#[test]
fn only_targets_in_service_get_files_and_only_devices_blocks() {
    with_targets(2, "policy=objects width=4", |bed, targets, c, dir| async move {
        let targets_of = |layout: Option<ObjectLayout>| layout.unwrap().targets;
        let (_, both) = create(&c, dir, "both").await.unwrap();
        assert_eq!(targets_of(both).len(), 2, "there are no more");
        let drain = |pag, state| Op::SetZoneState { pag: PagId(pag), state, only_from: Vec::new() };
        admin(&bed).await.call(drain(1, 1)).await.unwrap();
        let (_, one) = create(&c, dir, "one").await.unwrap();
        assert_eq!(targets_of(one), [PagId(2)]);
        admin(&bed).await.call(drain(2, 2)).await.unwrap();
        assert_eq!(create(&c, dir, "none").await.map(|_| ()), Err(Fault::NoSpace));
        assert!(bed.logged("none of its object targets is in service"), "{:#?}", bed.log.borrow());
        admin(&bed).await.call(drain(2, 0)).await.unwrap();
        create(&c, dir, "again").await.unwrap();
        // Blocks come from devices, whatever the client would like.
        for hint in [0, 1, 2] {
            let op = Op::Space { hint: Some(PagId(hint)), blocks: 10, unreachable: Vec::new() };
            let Ok(OpReply::Space { runs, .. }) = c.call(op).await else { panic!("no space") };
            assert!(runs.iter().all(|run| run.pag == PagId(0)), "{runs:?}");
        }
        // Space of targets counts, as they say.
        targets[1].info.borrow_mut().free = 77;
        c.call(Op::Statfs {}).await.unwrap();
        bed.sleep(Duration::from_secs(3)).await;
        let Ok(OpReply::Statfs { statfs }) = c.call(Op::Statfs {}).await else { panic!("statfs") };
        assert_eq!(statfs.pags[2], (PagId(2), (BLOCKS, 77)));
        assert_eq!(statfs.pags[1], (PagId(1), (BLOCKS, 0)), "it drains");
        let text = status(&bed).await;
        assert!(text.contains("\"kind\":\"target\",\"path\":\"ost1:1\""), "{text}");
    });
}

#[test]
fn target_is_added_once_with_the_right_key_and_found_at_a_new_address() {
    run(|bed| async move {
        let target = Target::new(1, BLOCKS);
        target.start(&bed.world);
        let refused = add(&bed, &target.path()).await;
        assert!(refused.contains("[targets] key"), "{refused}");
        bed.key_of_targets(KEY).await;
        let stranger = Target::with_key(2, BLOCKS, [4; 32]);
        stranger.start(&bed.world);
        let refused = add(&bed, &stranger.path()).await;
        assert!(refused.contains("does not accept the key"), "{refused}");
        let refused = add(&bed, "ost:nowhere:1").await;
        assert!(refused.contains("nowhere:1"), "{refused}");
        assert_eq!(add(&bed, &target.path()).await, "{\"added\":1}");
        assert_eq!(add(&bed, &target.path()).await, "{\"added\":1}", "it is there now");
        let d = bed.client("d").await;
        let Ok(OpReply::Zones { list }) = d.call(Op::Zones {}).await else { return };
        assert_eq!((list.zones[1].kind, list.zones[1].path.as_str()), (TARGET_ZONE, "ost1:1"));
        // It moves to another host.
        target.kill(&bed.world);
        target.start_at(&bed.world, "elsewhere");
        assert_eq!(add(&bed, "ost:elsewhere:1").await, "{\"added\":1}");
        bed.restart().await;
        let c = bed.client("c").await;
        let dir = c.dir(ROOT, "objects").await;
        c.call(set(dir, "policy=objects")).await.unwrap();
        let (attr, object) = create(&c, dir, "file").await.unwrap();
        unlink(&c, dir, "file", attr.ino).await;
        let object = object.unwrap().object;
        soon(&bed, "destroyed", || target.destroyed.borrow().contains(&object)).await;
    });
}

#[test]
fn another_target_at_the_address_gets_no_request() {
    with_targets(1, "policy=objects", |bed, targets, c, dir| async move {
        let (attr, _) = create(&c, dir, "file").await.unwrap();
        targets[0].kill(&bed.world);
        let other = Target::new(9, BLOCKS);
        other.start_at(&bed.world, "ost1");
        unlink(&c, dir, "file", attr.ino).await;
        bed.sleep(Duration::from_secs(5)).await;
        bed.restart().await;
        bed.sleep(Duration::from_secs(5)).await;
        assert!(other.destroyed.borrow().is_empty() && targets[0].destroyed.borrow().is_empty());
        assert!(bed.logged("is away: what answers is target"), "{:#?}", bed.log.borrow());
    });
}

#[test]
fn target_that_refuses_the_server_counts_as_away_and_gets_no_new_files() {
    with_targets(2, "policy=objects width=1", |bed, targets, c, dir| async move {
        let old = [create(&c, dir, "a").await.unwrap(), create(&c, dir, "b").await.unwrap()];
        targets[0].kill(&bed.world);
        let foreign = Target::with_key(1, BLOCKS, [4; 32]);
        foreign.start(&bed.world);
        // One of them lies there, and its object is to be destroyed.
        for (text, (attr, _)) in ["a", "b"].into_iter().zip(old) {
            unlink(&c, dir, text, attr.ino).await;
        }
        soon(&bed, "refused", || foreign.refused.get() > 0).await;
        bed.sleep(Duration::from_secs(2)).await;
        let text = status(&bed).await;
        assert!(text.contains("\"device\":\"absent\""), "{text}");
        for n in 0..4 {
            let (_, layout) = create(&c, dir, &format!("file{n}")).await.unwrap();
            assert_eq!(layout.unwrap().targets, [PagId(2)]);
        }
        foreign.kill(&bed.world);
        targets[0].start(&bed.world);
        bed.sleep(Duration::from_secs(5)).await;
        let text = status(&bed).await;
        assert!(!text.contains("\"device\":\"absent\""), "{text}");
        let mut used = Vec::new();
        for n in 4..8 {
            let (_, layout) = create(&c, dir, &format!("file{n}")).await.unwrap();
            used.extend(layout.unwrap().targets);
        }
        assert!(used.contains(&PagId(1)), "{used:?}");
    });
}
