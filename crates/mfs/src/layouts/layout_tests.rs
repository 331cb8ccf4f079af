use engine::error::Stop;
use types::{Fault, FileBlock, FileKind, Ino, Name, PagBlock, Segment, SegmentState};

use super::UNMAP_STEP;
use super::layout::EDIT_MAX;
use crate::fsck::check;
use crate::handle::Mfs;
use crate::testing::{formatted, new_inode, now, run};

/// More than one change may touch.
const SEGMENTS: u64 = 3 * EDIT_MAX as u64;

/// A file whose even blocks are mapped, none beside the one before on the device.
fn sparse(mfs: &Mfs) -> Ino {
    let client = run(mfs, |txn| txn.new_client(b"client"));
    let name = Name::new(b"sparse").unwrap();
    let new = new_inode(FileKind::Regular);
    let ino = run(mfs, |txn| txn.names().create(Ino::ROOT, &name, &new, None));
    let (pag, first, _) = run(mfs, |txn| txn.space().grant(client, None, SEGMENTS))[0];
    for at in 0..SEGMENTS {
        let (addr, state) = (PagBlock(first.0 + at), SegmentState::Written);
        let segment = Segment { file: FileBlock(2 * at), len: 1, pag, addr, state };
        run(mfs, |txn| txn.layouts().map(ino, client, segment));
    }
    ino
}

/// A reader that gets fewer segments than it asked for takes the rest of the file for a hole.
#[test]
fn part_of_a_layout_is_full_unless_the_file_ends_there() {
    let mfs = formatted();
    let ino = sparse(&mfs);
    for from in 0..2 * SEGMENTS {
        let left = SEGMENTS - from.div_ceil(2);
        for max in [1, 7, 64] {
            let part = run(&mfs, |txn| txn.layouts().layout(ino, FileBlock(from), max));
            assert_eq!(part.len() as u64, left.min(max as u64), "{from} {max}");
            let first = part.first().map(|segment| segment.file.0);
            assert_eq!(first, (left > 0).then(|| from.next_multiple_of(2)), "{from} {max}");
        }
    }
}

#[test]
fn cut_behind_a_mapped_block_ends_in_bounded_steps() {
    let mfs = formatted();
    let ino = sparse(&mfs);
    let mut steps = 1;
    while !run(&mfs, |txn| txn.layouts().unmap(ino, FileBlock(1), FileBlock(u64::MAX))) {
        steps += 1;
    }
    assert_eq!(steps, SEGMENTS.div_ceil(UNMAP_STEP as u64));
    assert_eq!(run(&mfs, |txn| txn.layouts().layout(ino, FileBlock(0), 9)).len(), 1);
    assert_eq!(now(check(&mfs)).unwrap().problems, []);
}

/// As a client does that gives blocks their places first, and writes them later.
#[test]
fn written_segments_join_with_those_in_front_of_them() {
    let mfs = formatted();
    let client = run(&mfs, |txn| txn.new_client(b"client"));
    let name = Name::new(b"file").unwrap();
    let new = new_inode(FileKind::Regular);
    let ino = run(&mfs, |txn| txn.names().create(Ino::ROOT, &name, &new, None));
    let (pag, first, _) = run(&mfs, |txn| txn.space().grant(client, None, 400))[0];
    let segment = |file: u64, len: u64, addr: u64| {
        let state = SegmentState::Unwritten;
        Segment { file: FileBlock(file), len, pag, addr: PagBlock(first.0 + addr), state }
    };
    // So many others that what follows lies in the tree.
    for at in 0..100 {
        run(&mfs, |txn| txn.layouts().map(ino, client, segment(2 * at, 1, at)));
    }
    for at in 0..10 {
        run(&mfs, |txn| txn.layouts().map(ino, client, segment(300 + 8 * at, 8, 200 + 8 * at)));
    }
    for at in 0..10 {
        run(&mfs, |txn| txn.layouts().mark_written(ino, FileBlock(300 + 8 * at), 8));
    }
    let rest = run(&mfs, |txn| txn.layouts().layout(ino, FileBlock(250), 100));
    assert_eq!(rest, [Segment { state: SegmentState::Written, ..segment(300, 80, 200) }]);
    assert_eq!(now(check(&mfs)).unwrap().problems, []);
}

/// As a commit does: it makes room in the same transaction, and goes on in the next one.
#[test]
fn mapping_that_is_refused_as_too_much_takes_no_blocks() {
    let mfs = formatted();
    let ino = sparse(&mfs);
    let client = run(&mfs, |txn| txn.new_client(b"other"));
    let (pag, addr, len) = run(&mfs, |txn| txn.space().grant(client, None, 2 * SEGMENTS))[0];
    assert_eq!(len, 2 * SEGMENTS);
    let segment = Segment { file: FileBlock(0), len, pag, addr, state: SegmentState::Written };
    let mut refused = 0;
    while !run(&mfs, |txn| match txn.layouts().map(ino, client, segment) {
        Err(Stop::Fault(Fault::Overloaded)) => {
            txn.layouts().unmap(ino, FileBlock(0), FileBlock(len)).map(|_| false)
        }
        other => other.map(|()| true),
    }) {
        refused += 1;
    }
    assert!(refused > 0);
    assert_eq!(run(&mfs, |txn| txn.layouts().layout(ino, FileBlock(0), 9)), [segment]);
    assert_eq!(now(check(&mfs)).unwrap().problems, []);
}
