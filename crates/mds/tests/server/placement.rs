//! Layouts of directories, and grants of the zone that a client asks for.

use proto::mds::*;
use proto::placement::ATTRIBUTE;
use proto::wire::{Appended, Bytes};
use types::*;

use crate::bed::*;
use crate::recovery::replay;

const ROOT: Ino = Ino::ROOT;

fn set(ino: Ino, layout: &str) -> Op {
    let (name, value) = (Bytes(ATTRIBUTE.to_vec()), Bytes(layout.as_bytes().to_vec()));
    Op::SetXattr { ino, name, value, flags: 0, kill_setgid: false }
}

/// The number and the layout of a new inode.
async fn create(c: &Client, dir: Ino, text: &str, kind: FileKind) -> (Ino, String) {
    let op = Op::Create { dir, name: name(text), node: node(kind, 0o777), want: Rights::empty() };
    match c.call(op).await {
        Ok(OpReply::Created { leased, placement, .. }) => {
            (leased.attr.ino, String::from_utf8(placement.0).unwrap())
        }
        other => panic!("{other:?}"),
    }
}

async fn acquired(c: &Client, ino: Ino) -> String {
    let (_, layout) = c.acquire(ino, Rights::DATA_S | Rights::DATA_X).await.unwrap();
    String::from_utf8(layout.unwrap().placement.0).unwrap()
}

#[test]
fn layout_is_inherited_at_creation_and_stays() {
    const STRIPED: &str = "policy=striping part=1048576";
    with_zones(3, |bed| async move {
        let c = bed.client("c").await;
        let dir = c.dir(ROOT, "dir").await;
        let (before, none) = create(&c, dir, "before", FileKind::Regular).await;
        assert_eq!(none, "");
        c.call(set(dir, STRIPED)).await.unwrap();
        let (below, inherited) = create(&c, dir, "below", FileKind::Directory).await;
        assert_eq!(inherited, STRIPED);
        let (file, inherited) = create(&c, below, "file", FileKind::Regular).await;
        assert_eq!(inherited, STRIPED);
        let (_, none) = create(&c, below, "fifo", FileKind::Fifo).await;
        assert_eq!(none, "");
        let orphan = Op::CreateTmpfile {
            dir: below,
            node: node(FileKind::Regular, 0o666),
            want: Rights::DATA_X,
            placement: Appended(None),
        };
        match c.call(orphan).await {
            Ok(OpReply::Created { placement, .. }) => assert_eq!(placement.0, STRIPED.as_bytes()),
            other => panic!("{other:?}"),
        }
        c.call(set(below, "zones=2")).await.unwrap();
        c.call(Op::Sync {}).await.unwrap();
        bed.restart().await;
        let d = bed.client("d").await;
        assert_eq!(acquired(&d, file).await, STRIPED, "it is the file's own");
        assert_eq!(acquired(&d, before).await, "");
        let (_, changed) = create(&d, below, "later", FileKind::Regular).await;
        assert_eq!(changed, "zones=2");
    });
}

/// The change of the directory came later, and its replay comes first.
#[test]
fn replayed_creation_gets_the_layout_that_was_answered() {
    with_zones(3, |bed| async move {
        let c = bed.client("c").await;
        let dir = c.dir(ROOT, "dir").await;
        c.sync().await;
        let (node, want) = (node(FileKind::Regular, 0o666), Rights::empty());
        let make = c.request(1, vec![Op::Create { dir, name: name("file"), node, want }]);
        let made = c.exchange(make.clone()).await.unwrap();
        let change = c.request(2, vec![set(dir, "zones=2")]);
        let changed = c.exchange(change.clone()).await.unwrap();
        bed.restart().await;
        assert_eq!(c.connect(c.id()).await.unwrap().state, RECOVERED);
        for (request, reply) in [(&change, &changed), (&make, &made)] {
            let again = c.exchange(replay(request, reply)).await.unwrap();
            assert!(again.results[0].is_ok(), "{again:?}");
        }
        c.call(Op::ReclaimDone {}).await.unwrap();
        let Ok(OpReply::Created { leased, .. }) = &made.results[0] else { panic!("{made:?}") };
        assert_eq!(acquired(&c, leased.attr.ino).await, "");
        let (_, later) = create(&c, dir, "later", FileKind::Regular).await;
        assert_eq!(later, "zones=2");
    });
}

#[test]
fn layout_that_is_none_or_names_a_missing_zone_is_refused() {
    with_zones(3, |bed| async move {
        let c = bed.client("c").await;
        let dir = c.dir(ROOT, "dir").await;
        for wrong in ["policy=round", "zones=3", "zones=0,9", "width=2", "\u{ff}"] {
            assert_eq!(c.call(set(dir, wrong)).await, Err(Fault::Invalid), "{wrong}");
        }
        c.call(set(dir, "zones=0-2")).await.unwrap();
        let (link, _) = create(&c, dir, "fifo", FileKind::Fifo).await;
        assert_eq!(c.call(set(link, "zones=0")).await, Err(Fault::Invalid));
    });
}

#[test]
fn grant_comes_from_the_zone_that_is_asked_for_while_it_has_room() {
    with_zones(3, |bed| async move {
        let c = bed.client("c").await;
        let ask = |zone| Op::Space { hint: Some(PagId(zone)), blocks: 64, unreachable: Vec::new() };
        let free = |zone| {
            let statfs = c.call(Op::Statfs {});
            async move {
                let Ok(OpReply::Statfs { statfs }) = statfs.await else { panic!() };
                statfs.pags.iter().find(|(id, _)| *id == PagId(zone)).map(|(_, (_, free))| *free)
            }
        };
        for zone in [2, 0, 1, 2] {
            let Ok(OpReply::Space { runs, left }) = c.call(ask(zone)).await else { panic!() };
            assert!(runs.iter().all(|run| run.pag == PagId(zone)), "{runs:?}");
            assert_eq!(free(zone).await, Some(left));
        }
        // A zone that is used up is no reason to grant nothing.
        loop {
            let Ok(OpReply::Space { runs, left }) = c.call(ask(1)).await else { panic!() };
            if runs[0].pag != PagId(1) {
                assert!(left > 0);
                break;
            }
        }
        assert_eq!(free(1).await, Some(0));
    });
}
