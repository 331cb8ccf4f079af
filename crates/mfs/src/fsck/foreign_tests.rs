//! Numbers of another shard are reported as what they are, and what has them is left.

use types::{ClientId, DirNo, FileKind, Ino, ShardId};

use super::jobs_tests::checked;
use super::repair::repair_open;
use super::tests::{Outcome, name, settled};
use super::{FsckOptions, Problem, ProblemKind, Subject};
use crate::format::chunk::{DESCRIPTOR, Descriptor, chunk_key};
use crate::format::number::{SlotPlace, ino_of};
use crate::handle::Mfs;
use crate::testing::{formatted_for_images, links, new_inode, now, run};
use crate::trees::{CHUNKS, CLIENTS, MOVED, ORPHANS};
use engine::format::features::Features;

const OTHER: ShardId = ShardId(9);

fn foreign() -> Ino {
    ino_of(SlotPlace { chunk: DirNo::of(OTHER, 5), slot: 3 }, 0)
}

/// A directory with a further name of a file, which leads to another shard.
fn directory_with_foreign_name(mfs: &Mfs) -> Ino {
    run(mfs, |txn| {
        links(txn, Ino::ROOT, 1)?;
        let dir =
            txn.names().create(Ino::ROOT, &name("dir"), &new_inode(FileKind::Directory), None)?;
        let spot = txn.names().take_slot(dir)?;
        let mut slot = txn.names().load(&spot)?;
        slot.set_link(b"far", foreign(), FileKind::Regular);
        txn.names().store(&spot, &slot)?;
        Ok(dir)
    })
}

fn found(mfs: &Mfs) -> Vec<Problem> {
    mfs.forget_indexes();
    checked(mfs).problems
}

#[test]
pub(super) fn numbers_of_another_shard_are_reported_as_such_and_left() {
    let mfs = formatted_for_images(20_000, Features::NONE);
    let dir = directory_with_foreign_name(&mfs);
    let (chunk, client) = (DirNo::of(OTHER, 5), ClientId::of(OTHER, 5));
    run(&mfs, |txn| {
        let descriptor = Descriptor { owner: foreign(), next: DirNo(0), index: 0, used: 0 };
        CHUNKS.insert(txn, &chunk_key(chunk, DESCRIPTOR), &descriptor.encode())?;
        CLIENTS.insert(txn, &client.0.to_be_bytes(), &[0; 8]).map(drop)
    });
    let problems = found(&mfs);
    let subjects: Vec<Subject> = problems.iter().map(|problem| problem.subject).collect();
    assert_eq!(
        subjects,
        [Subject::Client(client), Subject::Chunk(chunk), Subject::Inode(foreign())],
        "{problems:#?}"
    );
    for problem in &problems {
        assert_eq!(problem.kind, ProblemKind::ForeignNumber);
        assert!(problem.detail.starts_with("of shard 9, "), "{problem}");
        assert!(problem.detail.ends_with("; this is shard 0"), "{problem}");
    }
    let repaired = now(repair_open(&mfs, FsckOptions::default())).unwrap();
    assert_eq!(repaired.left.problems, problems, "{:#?}", repaired.done);
    settled(ProblemKind::ForeignNumber, Outcome::Left);
    assert_eq!(run(&mfs, |txn| txn.names().lookup(dir, &name("far"))), Some(foreign()));
}

#[test]
fn lists_lose_a_number_of_another_shard_that_has_no_inode() {
    let mfs = formatted_for_images(20_000, Features::NONE);
    run(&mfs, |txn| {
        let key = foreign().0.to_be_bytes();
        ORPHANS.insert(txn, &key, &[0; 8])?;
        MOVED
            .insert(txn, &key, &SlotPlace { chunk: DirNo(1), slot: 2 }.pack().to_le_bytes())
            .map(drop)
    });
    let problems = found(&mfs);
    let reported = |place: &str| {
        let fits = |problem: &&Problem| problem.detail.contains(place);
        problems.iter().filter(fits).any(|problem| problem.kind == ProblemKind::ForeignNumber)
    };
    assert!(reported("in the list of moved inodes") && reported("in the list of orphans"));
    let repaired = now(repair_open(&mfs, FsckOptions::default())).unwrap();
    assert_eq!(repaired.left.problems, [], "{:#?}", repaired.done);
}
