//! What an index shows of pending and committed changes.

use super::*;

const DIR: Ino = Ino(9);

fn names() -> NameIndexes {
    let mut names = NameIndexes::default();
    let mut index = DirIndex::unread(vec![DirNo(4)]);
    index.add_name(hash_name(b"a"), Position(0));
    index.add_free(Position(1));
    index.add_free(Position(2));
    index.unread = None;
    names.put(DIR, index);
    names
}

#[test]
fn index_changes_are_visible_to_others_only_after_success() {
    let mut names = names();
    let mut pending = PendingNames::default();
    assert_eq!(names.lowest_free(&pending, DIR, Among::Chunks), Some(Position(1)));
    pending.take(DIR, Position(1));
    pending.add_name(DIR, b"b", Position(1));
    pending.remove_name(DIR, b"a", Position(0));
    pending.free(DIR, Position(0));
    assert_eq!(names.candidates(&pending, DIR, hash_name(b"b")), [Position(1)]);
    assert_eq!(names.candidates(&pending, DIR, hash_name(b"a")), []);
    assert_eq!(names.lowest_free(&pending, DIR, Among::Chunks), Some(Position(0)));
    let none = PendingNames::default();
    assert_eq!(names.candidates(&none, DIR, hash_name(b"a")), [Position(0)]);
    names.apply(pending, Transno::ZERO);
    assert_eq!(names.candidates(&none, DIR, hash_name(b"b")), [Position(1)]);
    assert_eq!(names.candidates(&none, DIR, hash_name(b"a")), []);
    assert!(names.slot_is_free(&none, DIR, Position(0)));
    assert!(!names.slot_is_free(&none, DIR, Position(1)));
}

#[test]
fn slot_taken_and_freed_in_one_transaction_is_free() {
    let names = names();
    let mut pending = PendingNames::default();
    pending.take(DIR, Position(1));
    pending.free(DIR, Position(1));
    assert_eq!(names.lowest_free(&pending, DIR, Among::Chunks), Some(Position(1)));
    pending.forget(DIR);
    assert!(names.count(&pending, DIR) == 0);
    assert_eq!(names.lowest_free(&pending, DIR, Among::Chunks), None);
}

#[test]
fn slots_come_into_use_one_after_the_other_in_one_transaction() {
    let mut names = NameIndexes::default();
    let mut index = DirIndex::unread(vec![DirNo(4)]);
    (1..7).for_each(|slot| index.add_free(Position(slot)));
    index.unread = None;
    names.put(DIR, index);
    let mut pending = PendingNames::default();
    let next = |pending: &mut PendingNames| {
        let at = names.lowest_free(pending, DIR, Among::Chunks)?;
        // One of another directory does not matter.
        pending.take(Ino(DIR.0 + 1), Position(at.0 + 1));
        pending.take(DIR, at);
        Some(at.0)
    };
    assert_eq!([(); 3].map(|()| next(&mut pending)), [1, 2, 3].map(Some));
    pending.free(DIR, Position(2));
    pending.cool_down(DIR, Position(5));
    let rest = [(); 4].map(|()| next(&mut pending));
    assert_eq!(rest, [Some(2), Some(4), Some(6), None]);
    // Blocks that are given back have no free slots, whatever became of these before.
    pending.free(DIR, Position(1));
    pending.give_back(DIR, Position(1).unit(), Hole { mask: u8::MAX, idle: 1, reusable: true });
    assert_eq!(next(&mut pending), None);
}

#[test]
fn index_counts_its_entries_through_every_change() {
    let mut names = names();
    let mut pending = PendingNames::default();
    pending.add_name(DIR, b"b", Position(5));
    pending.take(DIR, Position(2));
    pending.take(DIR, Position(2));
    names.apply(pending, Transno::ZERO);
    assert_eq!(names.entries, 2 + 1 + 1 + 8);
    names.forget(DIR);
    assert_eq!(names.entries, 0);
}

#[test]
fn chunk_finds_the_run_of_a_block() {
    let run =
        |first, len| ContentRun::present(first, types::MetaBlock(100 + u64::from(first)), len);
    let descriptor = Descriptor { owner: DIR, next: DirNo(0), index: 0, used: 2 };
    let chunk = Chunk { descriptor, runs: vec![run(0, 1), run(1, 1), run(2, 2)] };
    assert_eq!(chunk.run_of(0).map(|r| r.first), Some(0));
    assert_eq!(chunk.run_of(3).map(|r| r.first), Some(2));
    assert_eq!(chunk.run_of(4), None);
    assert_eq!(chunk.allocated(), 4);
}

#[test]
fn chunk_replaces_and_joins_its_runs() {
    let descriptor = Descriptor { owner: DIR, next: DirNo(0), index: 0, used: 20 };
    let start = types::MetaBlock(100);
    let mut chunk = Chunk { descriptor, runs: vec![ContentRun::present(0, start, 20)] };
    chunk.put(ContentRun::hole(8, 8, 3));
    let (head, tail) = (start, types::MetaBlock(116));
    let runs = |hole: ContentRun| {
        vec![ContentRun::present(0, head, 8), hole, ContentRun::present(16, tail, 4)]
    };
    assert_eq!(chunk.runs, runs(ContentRun::hole(8, 8, 3)));
    chunk.put(ContentRun::hole(0, 8, 3));
    assert_eq!(chunk.runs, [ContentRun::hole(0, 16, 3), ContentRun::present(16, tail, 4)]);
    chunk.put(ContentRun::present(0, head, 16));
    assert_eq!(chunk.runs, [ContentRun::present(0, head, 20)], "one run again");
    chunk.cut(18);
    chunk.put(ContentRun::present(18, types::MetaBlock(118), 2));
    assert_eq!(chunk.runs, [ContentRun::present(0, head, 20)]);
}

#[test]
fn given_back_blocks_are_reused_only_when_that_is_durable() {
    let transno = |lsn| Transno { epoch: types::Epoch(1), lsn: types::Lsn(lsn) };
    let mut names = names();
    let mut pending = PendingNames::default();
    let unit = Position(0).unit();
    assert_eq!((names.live(&pending, DIR, unit), names.idle(&pending, DIR)), (0, 2));
    pending.take(DIR, Position(1));
    assert_eq!((names.live(&pending, DIR, unit), names.idle(&pending, DIR)), (1, 1));
    pending.cool_down(DIR, Position(1));
    pending.give_back(DIR, unit, Hole { mask: 1, idle: 2, reusable: true });
    assert_eq!((names.live(&pending, DIR, unit), names.idle(&pending, DIR)), (0, 0));
    assert_eq!(names.lowest_free(&pending, DIR, Among::Chunks), None);
    assert_eq!(
        names.hole(&pending, (DIR, Among::Chunks), transno(9)),
        None,
        "not in the same transaction"
    );
    names.apply(pending, transno(5));
    let none = PendingNames::default();
    assert_eq!(names.idle(&none, DIR), 0);
    assert_eq!(names.hole(&none, (DIR, Among::Chunks), transno(4)), None);
    names.end_cool_down(DIR, transno(5));
    assert_eq!(names.lowest_free(&none, DIR, Among::Chunks), None, "its block was given back");
    assert_eq!(names.hole(&none, (DIR, Among::Chunks), transno(5)), Some((unit, 1)));
    let mut pending = PendingNames::default();
    pending.regain(DIR, unit, 1);
    pending.free(DIR, Position(0));
    assert_eq!(names.hole(&pending, (DIR, Among::Chunks), transno(5)), None);
    names.apply(pending, transno(6));
    assert_eq!(names.lowest_free(&none, DIR, Among::Chunks), Some(Position(0)));
    assert_eq!(names.hole(&none, (DIR, Among::Chunks), transno(6)), None);
}
