//! Names on other shards: sound ones are no findings, and entries that cannot be are removed.

use std::collections::BTreeMap;

use types::{Attr, DirNo, FileKind, Ino, ShardId};

use super::jobs_tests::checked;
use super::repair::repair_open;
use super::tests::{Outcome, name, settled};
use super::{FsckOptions, ProblemKind, Report, ShardNames, Subject, across};
use crate::format::number::{ORPHAN_DIR, SlotPlace, ino_of};
use crate::format::outside::Outside;
use crate::handle::Mfs;
use crate::testing::{formatted_for_images, links, new_dir, new_inode, now, run};
use crate::trees::OUTSIDE;
use engine::format::block::BlockType;
use engine::format::features::{Feature, Features};

const OTHER: ShardId = ShardId(4);

/// The `n`-th inode of the other shard.
fn far(n: u32) -> Ino {
    ino_of(SlotPlace { chunk: DirNo::of(OTHER, 1), slot: n }, 0)
}

/// A file system with one of everything that has to do with another shard.
struct World {
    mfs: Mfs,
    /// A directory whose name is on the other shard.
    guest: Ino,
    /// A fifo with all its names there.
    away: Ino,
    /// A file with one name here and two there.
    both: Ino,
    /// A directory with a name here only.
    dir: Ino,
}

fn world() -> World {
    let mfs = formatted_for_images(20_000, Features::NONE.with(Feature::SHARDS));
    let (guest, away, both, dir) = run(&mfs, |txn| {
        let dir = new_dir(txn, Ino::ROOT, "dir")?;
        txn.names().link_outside(Ino::ROOT, &name("there"), far(1), FileKind::Directory)?;
        links(txn, Ino::ROOT, 2)?;
        txn.names().link_outside(dir, &name("file"), far(2), FileKind::Regular)?;
        let guest = txn.names().create_guest(far(1), &new_inode(FileKind::Directory), None)?;
        new_dir(txn, guest, "below")?;
        links(txn, guest, 1)?;
        let away = txn.names().create_guest(Ino::NONE, &new_inode(FileKind::Fifo), None)?;
        let file = new_inode(FileKind::Regular);
        let both = txn.names().create(guest, &name("both"), &file, None)?;
        links(txn, both, 2)?;
        txn.names().set_outside(both, Some(Outside::Names(2)))?;
        Ok((guest, away, both, dir))
    });
    World { mfs, guest, away, both, dir }
}

fn report(world: &World) -> Report {
    world.mfs.forget_indexes();
    checked(&world.mfs)
}

fn kinds(world: &World) -> Vec<(ProblemKind, Subject)> {
    report(world).problems.iter().map(|problem| (problem.kind, problem.subject)).collect()
}

/// Repairs; nothing is found then. Returns the losses in words.
fn repaired(world: &World) -> Vec<String> {
    let repaired = now(repair_open(&world.mfs, FsckOptions::default())).unwrap();
    assert_eq!(repaired.left.problems, [], "{:#?}", repaired.done);
    assert_eq!(report(world).problems, [], "a second time");
    repaired.lost.iter().map(ToString::to_string).collect()
}

fn set(world: &World, ino: Ino, outside: Option<Outside>) {
    let key = ino.0.to_be_bytes();
    run(&world.mfs, |txn| match outside {
        Some(outside) => OUTSIDE.insert(txn, &key, &outside.encode()).map(drop),
        None => OUTSIDE.remove(txn, &key).map(drop),
    });
}

#[test]
fn sound_names_on_both_sides_are_clean_and_reported() {
    let world = world();
    let report = report(&world);
    assert_eq!(report.problems, []);
    let ShardNames { shard, names, guests, operations, .. } = report.shard;
    assert_eq!((shard, operations.len()), (ShardId(0), 0));
    let mut names: Vec<_> = names.iter().map(|it| (it.dir, &it.name[..], it.ino)).collect();
    names.sort_unstable();
    assert_eq!(names, [(Ino::ROOT, &b"there"[..], far(1)), (world.dir, &b"file"[..], far(2))]);
    let guests: BTreeMap<Ino, _> =
        guests.iter().map(|it| (it.ino, (it.kind, it.outside))).collect();
    let wanted = [
        (world.guest, (FileKind::Directory, Outside::Parent(far(1)))),
        (world.away, (FileKind::Fifo, Outside::Names(1))),
        (world.both, (FileKind::Regular, Outside::Names(2))),
    ];
    assert_eq!(guests, BTreeMap::from(wanted));
}

#[test]
fn report_is_what_shards_are_compared_by() {
    let world = world();
    let shard = report(&world).shard;
    // The other shard is not there: every name that leads to it is reported, and every name that
    // inodes of this one should have there.
    let all = across(&[shard], &BTreeMap::new());
    assert_eq!(all.len(), 5, "{all:#?}");
}

#[test]
pub(super) fn senseless_entries_are_found_and_removed() {
    let kind = ProblemKind::WrongOutside;
    let place = |plant: &dyn Fn(&World) -> (Ino, Option<Outside>)| {
        let world = world();
        let (ino, outside) = plant(&world);
        set(&world, ino, outside);
        assert_eq!(kinds(&world), [(kind, Subject::Inode(ino))]);
        let lost = repaired(&world);
        assert!(lost.iter().any(|it| it.contains("has elsewhere")), "{lost:?}");
        assert_eq!(run(&world.mfs, |txn| OUTSIDE.get(txn, &ino.0.to_be_bytes())), None);
        settled(kind, Outcome::Repaired);
    };
    let parent = Some(Outside::Parent(far(1)));
    place(&|_| (Ino(99 << 24), parent));
    place(&|_| (far(7), Some(Outside::Names(1))));
    place(&|world| (world.dir, parent));
    place(&|world| (world.dir, Some(Outside::Names(3))));
    place(&|_| (Ino::ROOT, parent));
    place(&|_| (ORPHAN_DIR, parent));
}

#[test]
fn guest_without_a_valid_parent_goes_to_lost_and_found_with_its_content() {
    let here = |world: &World| Some(Outside::Parent(world.dir));
    let count = |_: &World| Some(Outside::Names(1));
    let none = |_: &World| None;
    for plant in [here as fn(&World) -> Option<Outside>, count, none] {
        let world = world();
        let outside = plant(&world);
        set(&world, world.guest, outside);
        let subject = Subject::Inode(world.guest);
        let wrong = outside.map(|_| (ProblemKind::WrongOutside, subject));
        let wanted = wrong.into_iter().chain([(ProblemKind::UnreachableInode, subject)]);
        assert_eq!(kinds(&world), wanted.collect::<Vec<_>>());
        repaired(&world);
        let path = run(&world.mfs, |txn| txn.names().path(world.both)).unwrap();
        let wanted = format!("/lost+found/#{}/both", world.guest);
        assert_eq!(String::from_utf8(path).unwrap(), wanted);
    }
}

#[test]
fn file_counts_the_names_that_are_left() {
    let world = world();
    set(&world, world.both, Some(Outside::Parent(far(1))));
    let subject = Subject::Inode(world.both);
    let wanted = [ProblemKind::WrongOutside, ProblemKind::WrongLinkCount];
    assert_eq!(kinds(&world), wanted.map(|kind| (kind, subject)));
    repaired(&world);
    let attr = run(&world.mfs, |txn| txn.names().attr(world.both)).unwrap();
    assert_eq!(attr.nlink, 1);

    // Without an entry all names of the other file are lost.
    set(&world, world.away, None);
    assert_eq!(kinds(&world), [(ProblemKind::UnreachableInode, Subject::Inode(world.away))]);
    repaired(&world);
    assert!(run(&world.mfs, |txn| txn.names().path(world.away)).is_some());
}

#[test]
fn link_count_is_that_of_the_names_on_all_shards() {
    let world = world();
    for (ino, nlink) in [(world.guest, 7), (world.away, 7), (world.both, 1), (world.both, 7)] {
        let right = run(&world.mfs, |txn| txn.names().attr(ino)).unwrap();
        run(&world.mfs, |txn| txn.names().set_attr(&Attr { nlink, ..right }));
        assert_eq!(kinds(&world), [(ProblemKind::WrongLinkCount, Subject::Inode(ino))]);
        repaired(&world);
        assert_eq!(run(&world.mfs, |txn| txn.names().attr(ino)), Some(right));
    }
}

#[test]
fn parent_counts_its_subdirectories_of_other_shards() {
    let world = world();
    run(&world.mfs, |txn| links(txn, Ino::ROOT, -1));
    assert_eq!(kinds(&world), [(ProblemKind::WrongLinkCount, Subject::Inode(Ino::ROOT))]);
    repaired(&world);
    assert_eq!(run(&world.mfs, |txn| txn.names().attr(Ino::ROOT)).unwrap().nlink, 4);
}

#[test]
fn names_on_other_shards_without_their_feature_are_found() {
    let world = world();
    let features = world.mfs.superblock().features;
    world.mfs.set_features(features.without(Feature::SHARDS));
    assert_eq!(kinds(&world), [(ProblemKind::MissingFeature, Subject::Whole)]);
    assert_eq!(repaired(&world), [""; 0]);
    assert_eq!(world.mfs.superblock().features, features);
}

#[test]
fn spread_directory_needs_the_feature() {
    let mfs = formatted_for_images(20_000, Features::NONE.with(Feature::SHARDS));
    let spread = |mfs: &Mfs, spread| {
        run(mfs, |txn| {
            let attr = txn.names().attr(Ino::ROOT)?.unwrap();
            txn.names().set_attr(&Attr { spread, ..attr })?;
            Ok(txn.names().attr(Ino::ROOT)?.unwrap().spread)
        })
    };
    assert!(spread(&mfs, true));
    mfs.forget_indexes();
    assert_eq!(checked(&mfs).problems, []);
    let features = mfs.superblock().features;
    mfs.set_features(features.without(Feature::SHARDS));
    let found: Vec<_> = checked(&mfs).problems.iter().map(|problem| problem.kind).collect();
    assert_eq!(found, [ProblemKind::MissingFeature]);
    now(repair_open(&mfs, FsckOptions::default())).unwrap();
    assert_eq!(mfs.superblock().features, features);
    assert!(!spread(&mfs, false));
    let alone = formatted_for_images(20_000, Features::NONE);
    assert!(!spread(&alone, true), "there are no other shards");
}

#[test]
fn damaged_list_is_built_anew_and_guests_go_to_lost_and_found() {
    let world = world();
    run(&world.mfs, |txn| {
        let node = OUTSIDE.root_node(txn)?.unwrap();
        txn.init(node.block, BlockType::Blob).map(drop)
    });
    let found: Vec<_> = kinds(&world).into_iter().map(|(kind, _)| kind).collect();
    assert!(found.contains(&ProblemKind::DamagedBlock), "{found:?}");
    let lost = repaired(&world);
    assert!(lost.iter().any(|it| it.starts_with("which inodes have names")), "{lost:?}");
    for ino in [world.guest, world.away] {
        assert!(run(&world.mfs, |txn| txn.names().path(ino)).is_some());
    }
    assert_eq!(run(&world.mfs, |txn| txn.names().attr(world.both)).unwrap().nlink, 1);
}
