//! Findings about object files and their targets.

use types::{FileKind, Ino, ObjectId, PagBlock, PagId, ShardId, Uuid};

use super::repair::repair_open;
use super::tests::{
    Outcome, World, bytes, name, planted, report, segment, set_flags, settled, world,
};
use super::{FsckOptions, ProblemKind, Report, Subject};
use crate::format::object::ObjectRecord;
use crate::format::segment::{segment_key, segment_value};
use crate::format::slot;
use crate::format::space::{PagRecord, object_key, pag_key, run_key};
use crate::testing::{new_inode, now, run};
use crate::trees::{DOOMED, FREE, NEXT_OBJECT, OWED_FENCES, PAGS, SEGMENTS};
use crate::txn::Txn;
use engine::error::Stop;
use engine::format::block::BlockType;
use engine::format::features::Feature;

/// A file that lies in an object at a target, and its record.
fn object_file(world: &World, txn: &mut Txn<'_>) -> Result<(Ino, ObjectRecord), Stop> {
    txn.space().add_target(TARGET, Uuid([5; 16]), 1000)?;
    let object = ObjectId(txn.space().take_objects()?.start);
    let file = new_inode(FileKind::Regular);
    let ino = txn.names().create(world.dir, &name("object"), &file, None)?;
    let record = ObjectRecord { object, part: 256, targets: vec![TARGET] };
    txn.layouts().set_object(ino, &record)?;
    Ok((ino, record))
}

const TARGET: PagId = PagId(5);

#[test]
pub(super) fn senseless_object_records_are_found() {
    planted(ProblemKind::BadObject, 1, |world, txn| {
        let (ino, _) = object_file(world, txn)?;
        set_flags(txn, ino, 4).map(|()| Subject::Inode(ino))
    });
    planted(ProblemKind::BadObject, 1, |world, txn| {
        let (ino, _) = object_file(world, txn)?;
        bytes(txn, ino, 120, &[1]).map(|()| Subject::Inode(ino))
    });
    // The number of targets: the file loses its record.
    planted(ProblemKind::BadObject, 1, |world, txn| {
        let (ino, _) = object_file(world, txn)?;
        bytes(txn, ino, slot::FIXED + 6 + 16, &[7]).map(|()| Subject::Inode(ino))
    });
    // The flag on files of other kinds costs them nothing.
    planted(ProblemKind::BadObject, 1, |world, txn| {
        set_flags(txn, world.file, 32).map(|()| Subject::Inode(world.file))
    });
    planted(ProblemKind::BadObject, 1, |world, txn| {
        set_flags(txn, world.symlink, 32).map(|()| Subject::Inode(world.symlink))
    });
    // Segments of an object file in the tree.
    planted(ProblemKind::BadLayout, 3, |world, txn| {
        let (ino, _) = object_file(world, txn)?;
        let lost = segment(0, 10);
        SEGMENTS.insert(txn, &segment_key(ino, 0), &segment_value(&lost))?;
        Ok(Subject::Inode(ino))
    });
    planted(ProblemKind::BadCounter, 1, |world, txn| {
        object_file(world, txn)?;
        txn.set_root(NEXT_OBJECT, 1).map(|()| Subject::Whole)
    });
}

#[test]
pub(super) fn senseless_lists_of_targets_are_found() {
    const ZONE: Subject = Subject::Data(TARGET, PagBlock(0));
    planted(ProblemKind::DoomedObject, 1, |world, txn| {
        let (_, record) = object_file(world, txn)?;
        DOOMED.insert(txn, &object_key(TARGET, record.object), &[0; 2]).map(|_| ZONE)
    });
    planted(ProblemKind::DoomedObject, 1, |world, txn| {
        object_file(world, txn)?;
        DOOMED.insert(txn, &object_key(PagId(1), ObjectId(77)), &[0; 2])?;
        Ok(Subject::Data(PagId(1), PagBlock(0)))
    });
    planted(ProblemKind::OutsideDataBlock, 1, |world, txn| {
        object_file(world, txn)?;
        FREE.insert(txn, &run_key(TARGET, 3), &9u64.to_le_bytes())?;
        Ok(Subject::Data(TARGET, PagBlock(3)))
    });
    planted(ProblemKind::WrongCount, 1, |world, txn| {
        object_file(world, txn)?;
        let wrong = PagRecord { freed: 1, ..txn.space().pag(TARGET)?.unwrap() };
        PAGS.insert(txn, &pag_key(TARGET), &wrong.encode()).map(|_| ZONE)
    });
    for tree in [DOOMED.location(), OWED_FENCES.location()] {
        planted(ProblemKind::DamagedBlock, 3, |world, txn| {
            object_file(world, txn)?;
            txn.space().owe_fences(world.client, &[TARGET])?;
            let node = match tree == DOOMED.location() {
                true => DOOMED.root_node(txn)?.unwrap(),
                false => OWED_FENCES.root_node(txn)?.unwrap(),
            };
            txn.init(node.block, BlockType::Blob)?;
            Ok(Subject::Block(node.block))
        });
    }
}

#[test]
pub(super) fn file_of_a_target_without_a_record_is_reported_and_left() {
    let world = world();
    let (ino, record) = run(&world.mfs, |txn| {
        let made = object_file(&world, txn)?;
        PAGS.remove(txn, &pag_key(TARGET))?;
        Ok(made)
    });
    let of = |report: &Report| {
        report.problems.iter().map(|it| (it.kind, it.subject)).collect::<Vec<_>>()
    };
    let expected = [(ProblemKind::MissingTarget, Subject::Inode(ino))];
    assert_eq!(of(&report(&world)), expected);
    let repaired = now(repair_open(&world.mfs, FsckOptions::default())).unwrap();
    assert_eq!(of(&repaired.left), expected);
    assert_eq!(run(&world.mfs, |txn| txn.layouts().object(ino)), Some(record));
    settled(ProblemKind::MissingTarget, Outcome::Left);
}

#[test]
pub(super) fn object_files_without_their_feature_are_found() {
    let world = world();
    let (ino, record) = run(&world.mfs, |txn| object_file(&world, txn));
    let features = world.mfs.superblock().features;
    world.mfs.set_features(features.without(Feature::OBJECT_FILES));
    let kinds: Vec<_> = report(&world).problems.iter().map(|problem| problem.kind).collect();
    assert_eq!(kinds, [ProblemKind::MissingFeature]);
    let repaired = now(repair_open(&world.mfs, FsckOptions::default())).unwrap();
    assert_eq!(repaired.left.problems, []);
    assert_eq!(run(&world.mfs, |txn| txn.layouts().object(ino)), Some(record));
}

#[test]
pub(super) fn object_of_another_shard_is_found() {
    let (world, far) = (world(), ObjectId::of(ShardId(9), 77));
    let ino = run(&world.mfs, |txn| {
        let (ino, _) = object_file(&world, txn)?;
        // The last byte of the number.
        bytes(txn, ino, slot::FIXED + 6 + 7, &[9]).map(|()| ino)
    });
    let (moved, followed) = (Feature::MOVED_DIRECTORIES, Feature::FOLLOWED_OBJECTS);
    let features = world.mfs.superblock().features;
    world.mfs.set_features(features.without(moved).without(followed));
    let [problem] = &report(&world).problems[..] else { panic!("one finding") };
    assert_eq!((problem.kind, problem.subject), (ProblemKind::ForeignNumber, Subject::Inode(ino)));
    assert!(problem.detail.contains("of shard 9, object"), "{}", problem.detail);
    run(&world.mfs, |txn| DOOMED.insert(txn, &object_key(TARGET, far), &[0; 2]).map(drop));
    let [_, problem] = &report(&world).problems[..] else { panic!("two findings") };
    assert_eq!(problem.kind, ProblemKind::DoomedObject);
    assert!(problem.detail.contains("it is of another shard"), "{}", problem.detail);
}

#[test]
pub(super) fn objects_of_another_shard_are_sound_with_their_feature() {
    let world = world();
    let far = ObjectId::of(ShardId(9), 77);
    let ino = run(&world.mfs, |txn| {
        let (ino, _) = object_file(&world, txn)?;
        bytes(txn, ino, slot::FIXED + 6 + 7, &[9])?;
        DOOMED.insert(txn, &object_key(TARGET, far), &[0; 2])?;
        Ok(ino)
    });
    let features = world.mfs.superblock().features;
    let (moved, followed) = (Feature::MOVED_DIRECTORIES, Feature::FOLLOWED_OBJECTS);
    world.mfs.set_features(features.with(moved).without(followed));
    let kinds: Vec<_> = report(&world).problems.iter().map(|problem| problem.kind).collect();
    assert_eq!(kinds, [ProblemKind::MissingFeature], "inodes move here");
    world.mfs.set_features(features.with(moved).with(followed));
    let report = report(&world);
    assert_eq!(report.problems, []);
    let shard = report.shard;
    assert_eq!(shard.objects.into_values().collect::<Vec<_>>(), [ino]);
    assert_eq!(shard.doomed.into_iter().collect::<Vec<_>>(), [far]);
    assert!(shard.next_object > 1, "the number of a shard");
}

/// Those that plant in the worlds of `tests`, or in worlds of their own that are as small.
pub(super) const HERE: &[fn()] = &[
    super::intents::tests::senseless_intents_are_found,
    super::outside_tests::senseless_entries_are_found_and_removed,
    super::lent_tests::senseless_loans_are_found_and_left,
    senseless_object_records_are_found,
    senseless_lists_of_targets_are_found,
    file_of_a_target_without_a_record_is_reported_and_left,
];
