use super::*;
use crate::format::slot::SlotSize;
use crate::fsck::check;
use crate::testing::{formatted, formatted_near, formatted_near_in, new_inode, now, run};
use crate::volatile::layouts::{LayoutAhead, UnusedLayoutBlocks};
use types::{Attr, ClientId, FileBlock, Name, PagBlock, PagId, Segment, SegmentState};

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn create(mfs: &Mfs, dir: Ino, text: &str) -> Ino {
    run(mfs, |txn| txn.names().create(dir, &name(text), &new_inode(FileKind::Regular), None))
}

fn mkdir(mfs: &Mfs, text: &str) -> Ino {
    run(mfs, |txn| {
        let root = txn.names().attr(Ino::ROOT)?.unwrap();
        txn.names().set_attr(&Attr { nlink: root.nlink + 1, ..root })?;
        txn.names().create(Ino::ROOT, &name(text), &new_inode(FileKind::Directory), None)
    })
}

/// A client with a pool, and where its unused blocks begin.
struct Space {
    client: ClientId,
    pag: PagId,
    next: u64,
}

fn space(mfs: &Mfs) -> Space {
    let client = run(mfs, |txn| txn.new_client(b"client"));
    let (pag, next, _) = run(mfs, |txn| txn.space().grant(client, None, 9000))[0];
    Space { client, pag, next: next.0 }
}

/// Maps single blocks at every second one of `from..to`.
fn fragment(mfs: &Mfs, space: &mut Space, ino: Ino, range: std::ops::Range<u64>) {
    for at in range {
        // Never adjacent to the one before.
        let (addr, state) = (PagBlock(space.next), SegmentState::Written);
        space.next += 1;
        let segment = Segment { file: FileBlock(2 * at), len: 1, pag: space.pag, addr, state };
        run(mfs, |txn| txn.layouts().map(ino, space.client, segment));
    }
}

fn blocks_of(mfs: &Mfs, ino: Ino) -> Vec<MetaBlock> {
    run(mfs, |txn| Ok(txn.names().locate_live(ino)?.1.layout_blocks()))
}

fn fragments(mfs: &Mfs, dir: Ino) -> u64 {
    run(mfs, |txn| txn.layouts().fragmentation(dir)).0 / FRAGMENT
}

fn free(mfs: &Mfs) -> u64 {
    run(mfs, |txn| Ok(txn.meta_space().1))
}

fn assert_clean(mfs: &Mfs) {
    mfs.forget_indexes();
    assert_eq!(now(check(mfs)).unwrap().problems, []);
}

fn unlink(mfs: &Mfs, dir: Ino, text: &str) {
    let ino = run(mfs, |txn| {
        let ino = txn.names().remove_name(dir, &name(text))?;
        let attr = txn.names().attr(ino)?.unwrap();
        txn.names().set_attr(&Attr { nlink: attr.nlink - 1, ..attr })?;
        Ok(ino)
    });
    assert_clean(mfs);
    while !run(mfs, |txn| txn.names().free_inode_step(ino, 20)) {}
}

#[test]
fn fragmentation_count_follows_files_through_renames() {
    let mfs = formatted_near(SlotSize::default());
    let mut space = space(&mfs);
    let (a, b) = (mkdir(&mfs, "a"), mkdir(&mfs, "b"));
    let file = create(&mfs, a, "file");
    fragment(&mfs, &mut space, file, 0..15);
    assert_eq!((fragments(&mfs, a), blocks_of(&mfs, file)), (0, vec![]));
    fragment(&mfs, &mut space, file, 15..50);
    assert_eq!((fragments(&mfs, a), blocks_of(&mfs, file).len()), (3, 1));
    assert_clean(&mfs);
    run(&mfs, |txn| txn.names().rename(a, &name("file"), b, &name("there")));
    assert_eq!((fragments(&mfs, a), fragments(&mfs, b)), (0, 3));
    let other = create(&mfs, a, "other");
    fragment(&mfs, &mut space, other, 0..20);
    run(&mfs, |txn| txn.names().exchange((a, &name("other")), (b, &name("there"))));
    assert_eq!((fragments(&mfs, a), fragments(&mfs, b)), (3, 1));
    assert_clean(&mfs);
    run(&mfs, |txn| txn.layouts().unmap(file, FileBlock(10), FileBlock(60)));
    assert_eq!(fragments(&mfs, a), 1);
    unlink(&mfs, a, "other");
    unlink(&mfs, b, "there");
    assert_eq!((fragments(&mfs, a), fragments(&mfs, b)), (0, 0));
    assert_clean(&mfs);
}

#[test]
fn layout_blocks_follow_the_segments_and_the_tree_takes_the_others() {
    for order in [1, 1171] {
        let mfs = formatted_near(SlotSize::default());
        let mut space = space(&mfs);
        let file = create(&mfs, Ino::ROOT, "file");
        // 1171 is prime to 2000: all blocks, far apart.
        for n in 0..2000 {
            let at = n * order % 2000;
            fragment(&mfs, &mut space, file, at..at + 1);
        }
        assert_eq!(blocks_of(&mfs, file).len(), 2);
        let layout = run(&mfs, |txn| txn.layouts().layout(file, FileBlock(0), usize::MAX));
        let files: Vec<u64> = layout.iter().map(|segment| segment.file.0).collect();
        assert_eq!(files, (0..2000).map(|n| 2 * n).collect::<Vec<_>>());
        let some = run(&mfs, |txn| txn.layouts().layout(file, FileBlock(501), 7));
        assert_eq!(some, layout[251..258]);
        let (_, slot) = run(&mfs, |txn| txn.names().locate_live(file));
        assert_eq!((slot.segments().len(), slot.body()), (15, 1985));
        assert_clean(&mfs);
        run(&mfs, |txn| {
            txn.names().rename(Ino::ROOT, &name("file"), Ino::ROOT, &name(&"l".repeat(255)))
        });
        assert_eq!(run(&mfs, |txn| txn.layouts().layout(file, FileBlock(0), usize::MAX)), layout);
        assert_clean(&mfs);
        while !run(&mfs, |txn| txn.layouts().unmap(file, FileBlock(24), FileBlock(u64::MAX))) {}
        assert_eq!((blocks_of(&mfs, file).len(), fragments(&mfs, Ino::ROOT)), (1, 0));
        assert_clean(&mfs);
        run(&mfs, |txn| txn.layouts().unmap(file, FileBlock(0), FileBlock(18)));
        assert_eq!(blocks_of(&mfs, file), [], "back in the slot");
        assert_clean(&mfs);
    }
}

#[test]
fn new_file_in_a_fragmented_directory_gets_a_layout_block() {
    let mfs = formatted_near(SlotSize::default());
    let mut space = space(&mfs);
    let dir = mkdir(&mfs, "dir");
    for n in 0..3 {
        let file = create(&mfs, dir, &format!("f{n}"));
        fragment(&mfs, &mut space, file, 0..32);
    }
    let before = free(&mfs);
    let file = create(&mfs, dir, "new");
    let ahead = blocks_of(&mfs, file);
    assert_eq!((ahead.len(), before - free(&mfs)), (1, 1));
    assert_clean(&mfs);
    assert_eq!(run(&mfs, |txn| txn.layouts().layout(file, FileBlock(0), 9)), []);
    fragment(&mfs, &mut space, file, 0..20);
    assert_eq!((blocks_of(&mfs, file), before - free(&mfs)), (ahead, 1));
    assert_clean(&mfs);
    // The mean of 116 segments over 5 to 8 files falls below 15.
    for n in 4..8 {
        create(&mfs, dir, &format!("f{n}"));
    }
    let file = create(&mfs, dir, "late");
    assert_eq!(blocks_of(&mfs, file), []);
    unlink(&mfs, dir, "f4");
    unlink(&mfs, dir, "new");
    assert_clean(&mfs);
    let used = run(&mfs, |txn| Ok(txn.volatile().space.unused.len()));
    let has = |n: &u32| {
        let file = run(&mfs, |txn| txn.names().lookup(dir, &name(&format!("f{n}"))));
        !blocks_of(&mfs, file.unwrap()).is_empty()
    };
    assert_eq!(used, (5..8).filter(has).count());
}

/// A directory in which every new file gets a block.
fn fragmented(mfs: &Mfs) -> Ino {
    let mut space = space(mfs);
    mfs.volatile_state_mut().layouts.ahead = LayoutAhead::Above(0);
    let dir = mkdir(mfs, "dir");
    let file = create(mfs, dir, "fragmented");
    fragment(mfs, &mut space, file, 0..16);
    dir
}

#[test]
fn unused_layout_blocks_are_bounded() {
    let mfs = formatted_near(SlotSize::default());
    let dir = fragmented(&mfs);
    let first = create(&mfs, dir, "first");
    let second = create(&mfs, dir, "second");
    for n in 2..UNUSED_MAX {
        create(&mfs, dir, &format!("f{n}"));
    }
    assert_eq!((blocks_of(&mfs, first).len(), blocks_of(&mfs, second).len()), (1, 1));
    create(&mfs, dir, "one more");
    create(&mfs, dir, "and one");
    assert_eq!((blocks_of(&mfs, first).len(), blocks_of(&mfs, second).len()), (0, 1));
    assert_clean(&mfs);
    // Opening the store forgets the unused blocks; reading the directory finds them again.
    run(&mfs, |txn| {
        txn.volatile_mut().space.unused = UnusedLayoutBlocks::default();
        Ok(())
    });
    mfs.forget_indexes();
    run(&mfs, |txn| txn.names().lookup(dir, &name("second")));
    let known = run(&mfs, |txn| Ok(txn.volatile().space.unused.len()));
    assert_eq!(known, UNUSED_MAX + 1);
    let before = free(&mfs);
    assert_eq!(now(trim(&mfs)).unwrap(), UNUSED_MAX as u64 + 1);
    assert_eq!(free(&mfs), before + UNUSED_MAX as u64 + 1);
    assert_clean(&mfs);
}

#[test]
fn short_space_takes_back_unused_layout_blocks() {
    let mfs = formatted_near_in(2500, SlotSize::default());
    let dir = fragmented(&mfs);
    let mut files = 0;
    while now(mfs.run(Cost::SMALL, |txn| {
        let text = name(&format!("f{files}"));
        txn.names().create(dir, &text, &new_inode(FileKind::Regular), None)
    }))
    .is_ok()
    {
        files += 1;
    }
    let last = run(&mfs, |txn| txn.names().lookup(dir, &name(&format!("f{}", files - 1))));
    assert_eq!(blocks_of(&mfs, last.unwrap()), []);
    let unused = run(&mfs, |txn| Ok(txn.volatile().space.unused.len()));
    assert_eq!(unused, 0, "all were given back before a create failed");
    // A block holds eight files, and otherwise only nodes of trees take space.
    assert!(files > 8 * 2100, "{files}");
    assert_clean(&mfs);
}

#[test]
fn layout_blocks_and_counts_are_absent_without_the_feature() {
    let mfs = formatted();
    let mut space = space(&mfs);
    let file = create(&mfs, Ino::ROOT, "file");
    fragment(&mfs, &mut space, file, 0..100);
    assert_eq!((blocks_of(&mfs, file), fragments(&mfs, Ino::ROOT)), (vec![], 0));
    assert_clean(&mfs);
    assert_eq!(run(&mfs, |txn| txn.layouts().layout(file, FileBlock(0), 999)).len(), 100);
}

#[test]
fn layout_ahead_threshold_is_what_a_slot_holds() {
    for (size, segments) in SlotSize::ALL.into_iter().zip([15, 36, 79, 163]) {
        assert_eq!(LayoutAhead::Usual.threshold(size), Some(segments));
        let mfs = formatted_near(size);
        let mut space = space(&mfs);
        let file = create(&mfs, Ino::ROOT, "f");
        let fits = run(&mfs, |txn| Ok(txn.names().locate_live(file)?.1.segment_room(1))) as u64;
        // The name has one byte.
        assert!((u64::from(segments) - 1..=u64::from(segments)).contains(&fits));
        fragment(&mfs, &mut space, file, 0..fits + 1);
        assert_eq!(blocks_of(&mfs, file).len(), 1);
        assert_clean(&mfs);
    }
    assert_eq!(LayoutAhead::Never.threshold(SlotSize::Bytes512), None);
}
