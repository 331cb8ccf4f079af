//! Findings about space that shards have lent to each other.

use types::{PagBlock, PagId, ShardId, Uuid};

use super::repair::repair_open;
use super::tests::{Outcome, World, report, settled, world};
use super::{FsckOptions, ProblemKind, Report, Subject};
use crate::format::space::{LENT_VALUE, LentRun, PagFormat, run_key};
use crate::space::Loan;
use crate::testing::{now, run};
use crate::trees::{FREE, LENT, PAGS};
use crate::txn::Txn;
use engine::error::Stop;
use engine::format::features::Feature;

/// A zone of shard 3.
const THERE: PagId = PagId(9);
/// What is lent of it.
const RUNS: [(PagBlock, u64); 2] = [(PagBlock(10), 5), (PagBlock(20), 7)];

/// A world that has lent blocks to shard 2, and has some of shard 3.
fn lending() -> World {
    let world = world();
    now(world.mfs.add_lent_space()).unwrap();
    run(&world.mfs, |txn| txn.space().lend(ShardId(2), 1, 50));
    let zone = PagFormat::whole(THERE, Uuid([33; 16]), 100);
    let loan = Loan { zone, runs: RUNS.to_vec() };
    run(&world.mfs, |txn| txn.space().borrow(ShardId(3), 1, &loan));
    world
}

fn findings(report: &Report) -> Vec<(ProblemKind, Subject)> {
    report.problems.iter().map(|it| (it.kind, it.subject)).collect()
}

/// Plants damage, and expects these findings; then repair, and expects what it leaves.
fn check(
    plant: impl Fn(&mut Txn<'_>) -> Result<(), Stop>,
    wanted: &[(ProblemKind, Subject)],
    left: &[(ProblemKind, Subject)],
) {
    let world = lending();
    run(&world.mfs, &plant);
    assert_eq!(findings(&report(&world)), wanted);
    let lent = run(&world.mfs, |txn| txn.space().lent());
    let repaired = now(repair_open(&world.mfs, FsckOptions::default())).unwrap();
    assert_eq!(findings(&repaired.left), left);
    assert_eq!(run(&world.mfs, |txn| txn.space().lent()), lent, "no loan is forgotten");
}

/// The first block that the world has lent.
fn given(txn: &mut Txn<'_>) -> Result<(PagId, PagBlock), Stop> {
    let lent = txn.space().lent()?;
    Ok(lent.iter().find(|it| it.0 != THERE).map(|it| (it.0, it.1)).unwrap())
}

fn put(txn: &mut Txn<'_>, pag: PagId, start: u64, lent: LentRun) -> Result<(), Stop> {
    let value: [u8; LENT_VALUE] = lent.encode();
    LENT.insert(txn, &run_key(pag, start), &value).map(drop)
}

#[test]
pub(super) fn sound_loans_are_no_findings_and_are_said_to_other_shards() {
    let world = lending();
    let report = report(&world);
    assert_eq!(report.problems, []);
    let loans = &report.shard.loans;
    assert!(!loans.given.is_empty() && loans.given.keys().all(|(shard, ..)| shard.0 == 2));
    let had: Vec<_> = loans.had.iter().map(|(&(_, pag, start), &run)| (pag, start, run)).collect();
    assert_eq!(had, RUNS.map(|(start, len)| (THERE, start, (len, 1))));
}

#[test]
pub(super) fn senseless_loans_are_found_and_left() {
    let place = |start| (ProblemKind::BadLoan, Subject::Data(THERE, PagBlock(start)));
    let lent = |shard, sequence| LentRun { len: 5, shard: ShardId(shard), sequence };
    // It may have gone with a file.
    check(|txn| put(txn, THERE, 10, lent(3, 0)), &[], &[]);
    // The other run is of shard 3 still.
    let own = [place(10), place(20)];
    check(|txn| put(txn, THERE, 10, lent(0, 1)), &own, &own);
    settled(ProblemKind::BadLoan, Outcome::Left);
}

#[test]
pub(super) fn block_that_a_shard_was_not_lent_is_nobodys_there() {
    let world = lending();
    run(&world.mfs, |txn| {
        FREE.insert(txn, &run_key(THERE, 50), &3u64.to_le_bytes())?;
        txn.space().count(THERE, 3, 0)
    });
    let wanted = [(ProblemKind::DoubleDataBlock, Subject::Data(THERE, PagBlock(50)))];
    assert_eq!(findings(&report(&world)), wanted);
    let repaired = now(repair_open(&world.mfs, FsckOptions::default())).unwrap();
    assert_eq!(findings(&repaired.left), []);
    assert_eq!(run(&world.mfs, |txn| FREE.get(txn, &run_key(THERE, 50))), None);
}

#[test]
pub(super) fn block_that_was_lent_is_not_free_here() {
    let world = lending();
    let (pag, start) = run(&world.mfs, given);
    run(&world.mfs, |txn| {
        FREE.insert(txn, &run_key(pag, start.0), &3u64.to_le_bytes())?;
        txn.space().count(pag, 3, 0)
    });
    let found = findings(&report(&world));
    assert!(found.iter().any(|it| it.0 == ProblemKind::DoubleDataBlock), "{found:?}");
    let repaired = now(repair_open(&world.mfs, FsckOptions::default())).unwrap();
    assert_eq!(findings(&repaired.left), []);
    assert_eq!(run(&world.mfs, |txn| FREE.get(txn, &run_key(pag, start.0))), None);
}

#[test]
pub(super) fn lost_loan_makes_no_block_free() {
    let world = lending();
    let (pag, start) = run(&world.mfs, given);
    run(&world.mfs, |txn| LENT.remove(txn, &run_key(pag, start.0)).map(drop));
    let wanted = [(ProblemKind::LostDataBlock, Subject::Data(pag, start))];
    assert_eq!(findings(&report(&world)), wanted);
    let repaired = now(repair_open(&world.mfs, FsckOptions::default())).unwrap();
    assert_eq!(findings(&repaired.left), wanted, "another shard may have files there");
}

#[test]
pub(super) fn loans_without_their_feature_are_found() {
    let world = lending();
    let features = world.mfs.superblock().features;
    world.mfs.set_features(features.without(Feature::LENT_SPACE));
    assert_eq!(findings(&report(&world)), [(ProblemKind::MissingFeature, Subject::Whole)]);
    let repaired = now(repair_open(&world.mfs, FsckOptions::default())).unwrap();
    assert_eq!(repaired.left.problems, []);
    assert!(world.mfs.superblock().features.has(Feature::LENT_SPACE));
}

#[test]
pub(super) fn zone_of_another_shard_that_is_not_in_the_table_keeps_what_lies_there() {
    let world = lending();
    run(&world.mfs, |txn| PAGS.remove(txn, &crate::format::space::pag_key(THERE)).map(drop));
    let before = run(&world.mfs, |txn| FREE.range(txn, &run_key(THERE, 0), 9));
    let found = findings(&report(&world));
    assert!(found.iter().any(|it| it.0 == ProblemKind::OutsideDataBlock), "{found:?}");
    let repaired = now(repair_open(&world.mfs, FsckOptions::default())).unwrap();
    assert!(!repaired.left.problems.is_empty());
    assert_eq!(run(&world.mfs, |txn| FREE.range(txn, &run_key(THERE, 0), 9)), before);
}
