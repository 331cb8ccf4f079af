//! A file and a spare exchange their layouts: what is asked for, what it does, and exactly once.

use proto::capability::{READ, WRITE};
use proto::mds::*;
use proto::wire::{Appended, Bytes};
use types::*;

use crate::bed::*;
use crate::objects::{soon, with_targets};
use crate::recovery::replay;

const ROOT: Ino = Ino::ROOT;
const X: Rights = Rights::DATA_X;
const SIZE: u64 = 20 * 4096;
const OBJECTS: &str = "policy=objects width=2";

/// A file with 20 mapped blocks, durable, and its blocks.
async fn block_file(c: &Client) -> (Ino, Segment) {
    let want = X | Rights::OPEN;
    let ino = c.create(ROOT, "file", FileKind::Regular, want).await.unwrap().attr.ino;
    let run = c.space(20).await.unwrap().remove(0);
    let state = SegmentState::Written;
    let segment = Segment { file: FileBlock(0), len: 20, pag: run.pag, addr: run.addr, state };
    c.commit(ino, vec![Edit::Map { segment }], Some(SIZE)).await.unwrap();
    c.sync().await;
    (ino, segment)
}

fn make_spare(placement: &str) -> Op {
    Op::CreateTmpfile {
        dir: ROOT,
        node: node(FileKind::Regular, 0o600),
        want: X | Rights::OPEN,
        placement: Appended(Some(Bytes(placement.as_bytes().to_vec()))),
    }
}

fn made(answer: &Result<OpReply, Fault>) -> (Ino, ObjectId) {
    match answer {
        Ok(OpReply::Created { leased, object: Some(object), .. }) => {
            assert_eq!(leased.attr.nlink, 0);
            (leased.attr.ino, object.object)
        }
        other => panic!("{other:?}"),
    }
}

fn grow(ino: Ino) -> Op {
    let (mtime, ctime, merge, tail_zero) = (None, None, false, true);
    Op::Commit { ino, edits: Vec::new(), size: Some(SIZE), mtime, ctime, merge, tail_zero }
}

async fn spare(c: &Client) -> (Ino, ObjectId) {
    let spare = made(&c.call(make_spare(OBJECTS)).await);
    c.call(grow(spare.0)).await.unwrap();
    spare
}

/// Where another client finds the file.
async fn lies(c: &Client, ino: Ino) -> LayoutSlice {
    c.acquire(ino, X).await.unwrap().1.unwrap()
}

async fn close(c: &Client, ino: Ino) {
    let seq = c.attr(ino).await.unwrap().seq;
    let give = Rights::all();
    c.call(Op::Return { ino, seq, give, still_open: false, range: None }).await.unwrap();
}

#[test]
fn file_gets_the_spares_object_and_the_spare_frees_the_files_blocks() {
    with_targets(2, OBJECTS, |bed, targets, c, _| async move {
        let free = async |c: &Client| match c.call(Op::Statfs {}).await {
            Ok(OpReply::Statfs { statfs }) => statfs.pags[0].1.1,
            other => panic!("{other:?}"),
        };
        let before = free(&c).await;
        let (ino, _) = block_file(&c).await;
        let attr = c.attr(ino).await.unwrap().attr;
        let (spare, object) = spare(&c).await;
        let swapped = c.call(Op::SwapLayouts { ino, spare }).await;
        let Ok(OpReply::Attr { leased }) = swapped else { panic!("{swapped:?}") };
        assert_eq!(leased.attr, Attr { version: leased.attr.version, ..attr }, "all else stays");
        assert!(leased.attr.version > attr.version);
        close(&c, spare).await;
        close(&c, ino).await;
        let d = bed.client("d").await;
        let slice = lies(&d, ino).await;
        assert_eq!(slice.placement.0, OBJECTS.as_bytes());
        let layout = slice.object.unwrap();
        assert!(layout.object == object && slice.segments.is_empty());
        assert_eq!((layout.may.rights, layout.may.client), (READ | WRITE, d.id()));
        while free(&d).await < before - 80 {
            bed.sleep(Duration::from_secs(1)).await;
        }
        bed.sleep(Duration::from_secs(3)).await;
        let gone = |nth: usize| targets[nth].destroyed.borrow().contains(&object);
        assert!(!gone(0) && !gone(1), "it is the file's");
        close(&d, ino).await;
        d.unlink(ROOT, "file").await.unwrap();
        soon(&bed, "the file is gone", || gone(0) && gone(1)).await;
        bed.check().await;
    });
}

#[test]
fn exchange_needs_both_rights_one_size_and_an_inode_without_a_name() {
    with_targets(2, OBJECTS, |bed, _, c, dir| async move {
        let (ino, segment) = block_file(&c).await;
        let (spare, object) = spare(&c).await;
        let swap = |ino, spare| Op::SwapLayouts { ino, spare };
        assert_eq!(c.call(swap(ino, ino)).await, Err(Fault::Invalid));
        assert_eq!(c.call(swap(spare, ino)).await, Err(Fault::Invalid), "it has a name");
        assert_eq!(c.call(swap(dir, spare)).await, Err(Fault::Invalid));
        assert_eq!(c.call(swap(Ino(99 << 8), spare)).await, Err(Fault::Stale));
        let d = bed.client("d").await;
        assert_eq!(d.call(swap(ino, spare)).await, Err(Fault::NotHeld));
        let longer = made(&c.call(make_spare(OBJECTS)).await).0;
        assert_eq!(c.call(swap(ino, longer)).await, Err(Fault::Invalid), "the sizes differ");
        for wrong in ["policy=none", "zones=77"] {
            assert_eq!(c.call(make_spare(wrong)).await, Err(Fault::Invalid), "{wrong}");
        }
        let slice = lies(&c, ino).await;
        assert_eq!((&slice.segments[..], slice.object), (&[segment][..], None));
        assert_eq!(lies(&c, spare).await.object.unwrap().object, object);
    });
}

#[test]
fn exchange_waits_while_an_evicted_client_may_write_the_file() {
    with_targets(2, OBJECTS, |bed, _, c, _| async move {
        let (ino, _) = block_file(&c).await;
        c.disconnect();
        let d = bed.client("d").await;
        d.acquire(ino, X).await.unwrap();
        let (spare, object) = spare(&d).await;
        let swap = Op::SwapLayouts { ino, spare };
        assert_eq!(d.call(swap.clone()).await, Err(Fault::Busy));
        let until = bed.env.now() + LEASE * 4;
        let swapped = loop {
            bed.sleep(Duration::from_millis(500)).await;
            match d.call(swap.clone()).await {
                Err(Fault::Busy) if bed.env.now() < until => {}
                answer => break answer,
            }
        };
        assert!(swapped.is_ok(), "{swapped:?}");
        assert_eq!(lies(&d, ino).await.object.unwrap().object, object);
    });
}

/// The answer is lost with the server, and the client asks again: layouts that were exchanged
/// twice would be the old ones.
#[test]
fn exchange_that_is_asked_for_again_after_a_restart_is_not_made_again() {
    with_targets(2, OBJECTS, |bed, _, c, _| async move {
        let (ino, _) = block_file(&c).await;
        let (spare, object) = spare(&c).await;
        let mut request = c.request(9, vec![Op::SwapLayouts { ino, spare }]);
        request.sync = true;
        assert!(c.exchange(request.clone()).await.unwrap().results[0].is_ok());
        bed.restart().await;
        assert_eq!(c.connect(c.id()).await.unwrap().state, RECOVERED);
        c.call(Op::ReclaimDone {}).await.unwrap();
        let again = c.exchange(request).await.unwrap();
        assert!(matches!(again.results[..], [Ok(OpReply::Attr { .. })]), "{again:?}");
        let slice = lies(&c, ino).await;
        assert_eq!(slice.object.unwrap().object, object);
    });
}

/// The server dies before anything of it is durable, and the client replays all of it.
#[test]
fn exchange_that_a_restart_lost_is_replayed_with_the_object_that_was_answered() {
    with_targets(2, OBJECTS, |bed, targets, c, _| async move {
        let (ino, segment) = block_file(&c).await;
        let make = c.request(1, vec![make_spare(OBJECTS)]);
        let created = c.exchange(make.clone()).await.unwrap();
        let (spare, object) = made(&created.results[0]);
        let commit = c.request(2, vec![grow(spare)]);
        let committed = c.exchange(commit.clone()).await.unwrap();
        let swap = c.request(3, vec![Op::SwapLayouts { ino, spare }]);
        let swapped = c.exchange(swap.clone()).await.unwrap();
        assert!(swapped.results[0].is_ok(), "{swapped:?}");
        bed.restart().await;
        assert_eq!(c.connect(c.id()).await.unwrap().state, RECOVERED);
        for (request, reply) in [(&make, &created), (&commit, &committed), (&swap, &swapped)] {
            let again = c.exchange(replay(request, reply)).await.unwrap();
            assert!(again.results[0].is_ok(), "{again:?}");
        }
        c.call(Op::ReclaimDone {}).await.unwrap();
        let slice = lies(&c, ino).await;
        assert_eq!(slice.object.unwrap().object, object, "not {segment:?}");
        bed.sleep(Duration::from_secs(3)).await;
        let none = targets.iter().all(|target| target.destroyed.borrow().is_empty());
        assert!(none, "the object is the file's");
        bed.check().await;
    });
}
