//! Inline data: random operations against a model, in slots of every size.

use std::slice::from_ref;

use types::limits::{BLOCK, CONTENT_MAX};
use types::{Attr, Fault, FileBlock, FileKind, Ino, Name, PagBlock, Segment, SegmentState};

use crate::dump::load::load;
use crate::dump::{Source, dump};
use crate::format::slot::SlotSize;
use crate::fsck::check;
use crate::handle::Mfs;
use crate::testing::{formatted, formatted_inline, new_inode, now, random, run};
use crate::txn::Txn;
use engine::cost::Cost;
use engine::error::{Stop, StoreError};

fn name(seed: &mut u64, n: usize) -> Name {
    let long = random(seed, 240) as usize;
    Name::new(format!("{n}{}", "n".repeat(long)).as_bytes()).unwrap()
}

fn create(txn: &mut Txn<'_>, name: &Name, kind: FileKind) -> Result<Ino, Stop> {
    txn.names().create(Ino::ROOT, name, &new_inode(kind), None)
}

struct File {
    ino: Ino,
    name: Name,
    size: u64,
    content: Vec<u8>,
    /// Mapped blocks.
    mapped: std::collections::BTreeSet<u64>,
}

fn compare(mfs: &Mfs, files: &[File]) {
    for file in files {
        let (content, size, layout) = run(mfs, |txn| {
            let size = txn.names().attr(file.ino)?.unwrap().size;
            Ok((
                txn.layouts().content(file.ino)?,
                size,
                txn.layouts().layout(file.ino, FileBlock(0), usize::MAX)?,
            ))
        });
        assert_eq!((&content, size), (&file.content, file.size));
        let blocks = layout.iter().flat_map(|segment| segment.file.0..segment.end());
        assert!(blocks.eq(file.mapped.iter().copied()));
    }
    assert_eq!(now(check(mfs)).unwrap().problems, []);
}

#[test]
fn inline_data_operations_equal_a_model() {
    for (index, size) in SlotSize::ALL.into_iter().enumerate() {
        let mfs = formatted_inline(size);
        let mut seed = 77 + index as u64;
        let client = run(&mfs, |txn| txn.new_client(b"client"));
        run(&mfs, |txn| txn.space().grant(client, None, 4000));
        let mut files: Vec<File> = Vec::new();
        let (mut slots, mut blobs) = (0, 0);
        for round in 0..400 {
            if files.len() < 5 {
                let name = name(&mut seed, round);
                let ino = run(&mfs, |txn| create(txn, &name, FileKind::Regular));
                let mapped = std::collections::BTreeSet::new();
                files.push(File { ino, name, size: 0, content: Vec::new(), mapped });
            }
            let which = random(&mut seed, files.len() as u64) as usize;
            let file = &mut files[which];
            let ino = file.ino;
            match random(&mut seed, 9) {
                0..=2 => {
                    let most = [30, 300, CONTENT_MAX as u64 + 1][random(&mut seed, 3) as usize];
                    let len = random(&mut seed, most) as usize;
                    let bytes: Vec<u8> = (0..len).map(|n| (n + round) as u8).collect();
                    run(&mfs, |txn| txn.layouts().set_content(ino, &bytes));
                    file.size = file.size.max(len as u64);
                    file.content = bytes;
                    file.mapped.remove(&0);
                }
                3 => {
                    let from = random(&mut seed, 4);
                    let (pag, start, _) = run(&mfs, |txn| txn.space().pool(client))[0];
                    let (addr, state) = (PagBlock(start.0), SegmentState::Written);
                    let segment = Segment { file: FileBlock(from), len: 2, pag, addr, state };
                    run(&mfs, |txn| txn.layouts().map(ino, client, segment));
                    file.mapped.extend([from, from + 1]);
                    if from == 0 {
                        file.content.clear();
                    }
                }
                4 => {
                    let from = random(&mut seed, 3);
                    let done =
                        run(&mfs, |txn| txn.layouts().unmap(ino, FileBlock(from), FileBlock(4)));
                    assert!(done);
                    file.mapped.retain(|&block| !(from..4).contains(&block));
                    if from == 0 {
                        file.content.clear();
                    }
                }
                5 => {
                    let new = random(&mut seed, 2 * BLOCK as u64);
                    run(&mfs, |txn| {
                        let attr = txn.names().attr(ino)?.unwrap();
                        txn.names().set_attr(&Attr { size: new, ..attr })
                    });
                    file.size = new;
                    file.content.truncate(new as usize);
                }
                6 => {
                    let new = name(&mut seed, 1000 + round);
                    run(&mfs, |txn| txn.names().rename(Ino::ROOT, &file.name, Ino::ROOT, &new));
                    file.name = new;
                }
                7 => {
                    let value = vec![9; random(&mut seed, 150) as usize];
                    run(&mfs, |txn| txn.names().set_xattr(ino, b"user.x", &value));
                }
                _ => {
                    run(&mfs, |txn| {
                        txn.names().remove_name(Ino::ROOT, &file.name)?;
                        let attr = txn.names().attr(ino)?.unwrap();
                        txn.names().set_attr(&Attr { nlink: 0, ..attr })
                    });
                    assert_eq!(run(&mfs, |txn| txn.layouts().content(ino)), file.content);
                    while !run(&mfs, |txn| txn.names().free_inode_step(ino, 10)) {}
                    files.swap_remove(which);
                }
            }
            for file in &files {
                let slot = run(&mfs, |txn| txn.names().locate_live(file.ino)).1;
                slots += u32::from(slot.content().is_some());
                blobs += u32::from(slot.content_blob().is_some());
            }
            compare(&mfs, &files);
        }
        assert!(slots > 100 && blobs > 10, "{slots} in slots, {blobs} in blobs");
        let mut bytes = Vec::new();
        now(dump(&[Source::of(&mfs)], &mut bytes)).unwrap();
        // On the other file system the blocks of this client's pool are free.
        for other in SlotSize::ALL {
            let copy = formatted_inline(other);
            now(load(from_ref(&copy), &mut &bytes[..])).unwrap();
            assert_eq!(now(check(&copy)).unwrap().problems, []);
            let mut again = Vec::new();
            now(dump(&[Source::of(&copy)], &mut again)).unwrap();
            assert!(again == bytes, "{size:?} to {other:?}");
        }
        let refused = now(load(from_ref(&formatted()), &mut &bytes[..])).unwrap_err().to_string();
        assert!(refused.contains("inline-data"), "{refused}");
    }
}

#[test]
fn inline_data_too_long_or_of_no_file_is_refused() {
    let mfs = formatted_inline(SlotSize::Bytes512);
    let fault = |ino: Ino, len: usize| match now(
        mfs.run(Cost::STEP, |txn| txn.layouts().set_content(ino, &vec![1; len]))
    ) {
        Err(StoreError::Fault(fault)) => fault,
        other => panic!("{other:?}"),
    };
    let file = Name::new(b"file").unwrap();
    let ino = run(&mfs, |txn| create(txn, &file, FileKind::Regular));
    assert_eq!(fault(ino, CONTENT_MAX + 1), Fault::Invalid);
    assert_eq!(fault(Ino::ROOT, 1), Fault::Invalid);
    assert_eq!(run(&mfs, |txn| txn.layouts().content_room(ino)), 372 - 4);
    let without = formatted();
    let ino = run(&without, |txn| create(txn, &file, FileKind::Regular));
    assert_eq!(run(&without, |txn| txn.layouts().content_room(ino)), 0);
    let set = now(without.run(Cost::STEP, |txn| txn.layouts().set_content(ino, b"x")));
    assert!(matches!(set, Err(StoreError::Fault(Fault::Invalid))));
}

/// Shortening leaves the content where it is and displaces no segment from the slot: it needs no
/// room.
#[test]
fn shortening_inline_data_moves_neither_it_nor_segments() {
    let mfs = formatted_inline(SlotSize::Bytes512);
    let client = run(&mfs, |txn| txn.new_client(b"client"));
    let file = Name::new(b"file").unwrap();
    let ino = run(&mfs, |txn| create(txn, &file, FileKind::Regular));
    let (pag, start, _) = run(&mfs, |txn| txn.space().grant(client, None, 10))[0];
    let (addr, state) = (PagBlock(start.0), SegmentState::Written);
    run(&mfs, |txn| {
        txn.layouts().map(ino, client, Segment { file: FileBlock(1), len: 1, pag, addr, state })
    });
    assert_eq!(run(&mfs, |txn| txn.layouts().content_room(ino)), 372 - 4);
    let bytes: Vec<u8> = (0..300).map(|n| n as u8).collect();
    run(&mfs, |txn| txn.layouts().set_content(ino, &bytes));
    let before = run(&mfs, |txn| txn.names().locate_live(ino)).1;
    assert!(before.content_blob().is_some());
    for len in [200u64, 1] {
        run(&mfs, |txn| {
            let attr = txn.names().attr(ino)?.unwrap();
            txn.names().set_attr(&Attr { size: len, ..attr })
        });
        let slot = run(&mfs, |txn| txn.names().locate_live(ino)).1;
        assert_eq!((slot.content_blob(), slot.body()), (before.content_blob(), 0));
        assert_eq!(slot.segments(), before.segments());
        assert_eq!(run(&mfs, |txn| txn.layouts().content(ino)), bytes[..len as usize]);
    }
    assert_eq!(now(check(&mfs)).unwrap().problems, []);
}
