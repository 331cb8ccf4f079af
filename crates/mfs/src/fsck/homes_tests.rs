//! Where inodes are that have moved: entries that cannot be are found, and repaired.

use types::{DirNo, FileKind, Ino, ShardId};

use super::jobs_tests::checked;
use super::repair::repair_open;
use super::tests::{Outcome, name, settled};
use super::{FsckOptions, ProblemKind, Subject};
use crate::format::home::encode;
use crate::format::number::{SlotPlace, ino_of};
use crate::handle::Mfs;
use crate::testing::{formatted_for_images, links, new_dir, new_inode, now, run};
use crate::trees::HOMES;
use engine::format::features::{Feature, Features};

const OTHER: ShardId = ShardId(4);

/// The `n`-th inode of the other shard.
fn far(n: u32) -> Ino {
    ino_of(SlotPlace { chunk: DirNo::of(OTHER, 1), slot: n }, 0)
}

/// A file system from which one directory went, and to which another one came. Yields both.
fn world() -> (Mfs, Ino, Ino) {
    let mfs = formatted_for_images(20_000, Features::NONE.with(Feature::SHARDS));
    now(mfs.add_moved_directories()).unwrap();
    let (gone, came) = run(&mfs, |txn| {
        let gone = new_dir(txn, Ino::ROOT, "gone")?;
        let other = new_dir(txn, Ino::ROOT, "other")?;
        links(txn, Ino::ROOT, 2)?;
        txn.names().create(gone, &name("file"), &new_inode(FileKind::Fifo), None)?;
        let names = txn.names().departure(gone, 9)?.names;
        let mut it = txn.names().departure(other, 9)?;
        it.attr.ino = far(1);
        it.parent = far(2);
        txn.names().leave(gone, OTHER, &names)?;
        txn.names().arrive(&it)?;
        new_dir(txn, far(1), "below")?;
        links(txn, far(1), 1)?;
        Ok((gone, far(1)))
    });
    (mfs, gone, came)
}

fn kinds(mfs: &Mfs) -> Vec<(ProblemKind, Subject)> {
    mfs.forget_indexes();
    checked(mfs).problems.iter().map(|problem| (problem.kind, problem.subject)).collect()
}

fn put(mfs: &Mfs, ino: Ino, value: [u8; 8]) {
    run(mfs, |txn| HOMES.insert(txn, &ino.0.to_be_bytes(), &value).map(drop));
}

#[test]
fn directories_that_went_and_came_are_no_findings() {
    let (mfs, gone, came) = world();
    assert_eq!(kinds(&mfs), [], "what is left of it is an orphan still");
    while !run(&mfs, |txn| txn.names().free_inode_step(gone, 9)) {}
    assert_eq!(kinds(&mfs), []);
    let homes = checked(&mfs).shard.homes;
    assert_eq!(homes.into_iter().collect::<Vec<_>>(), [(gone, OTHER), (came, ShardId(0))]);
}

#[test]
pub(super) fn senseless_homes_are_found_and_repaired() {
    let kind = ProblemKind::BadHome;
    let (here, shard) = (encode(ShardId(0)), encode(OTHER));
    let place = |plant: &dyn Fn(&Mfs) -> (Ino, [u8; 8]), wanted: Option<[u8; 8]>| {
        let (mfs, ..) = world();
        let (ino, value) = plant(&mfs);
        put(&mfs, ino, value);
        let found = kinds(&mfs);
        assert!(found.contains(&(kind, Subject::Inode(ino))), "{found:?}");
        let repaired = now(repair_open(&mfs, FsckOptions::default())).unwrap();
        assert_eq!(repaired.left.problems, [], "{:#?}", repaired.done);
        let key = ino.0.to_be_bytes();
        assert_eq!(run(&mfs, |txn| HOMES.get(txn, &key)), wanted);
        settled(kind, Outcome::Repaired);
    };
    place(&|_| (far(9), [1; 8]), None);
    place(&|_| (far(9), shard), None);
    place(&|_| (Ino::ROOT, shard), None);
    // They are here.
    place(&|mfs| (run(mfs, |txn| new_dir(txn, far(1), "new")), shard), None);
    place(&|_| (far(1), encode(ShardId(7))), Some(here));
    place(
        &|mfs| {
            let file = new_inode(FileKind::Regular);
            (run(mfs, |txn| txn.names().create(far(1), &name("file"), &file, None)), shard)
        },
        None,
    );
}

#[test]
fn feature_that_is_missing_is_named() {
    let (mfs, ..) = world();
    mfs.set_features(Features::NONE.with(Feature::SHARDS));
    assert_eq!(kinds(&mfs), [(ProblemKind::MissingFeature, Subject::Whole)]);
    let repaired = now(repair_open(&mfs, FsckOptions::default())).unwrap();
    assert_eq!(repaired.left.problems, []);
    assert!(mfs.superblock().features.has(Feature::MOVED_DIRECTORIES));
}
