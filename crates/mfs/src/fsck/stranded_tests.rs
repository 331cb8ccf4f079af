//! Content whose chunks are lost from the directory table is found; it is freed only where no inode
//! is missing.

use types::{Attr, DirNo, FileKind, Ino, MetaBlock, Name};

use super::jobs_tests::checked;
use super::repair::repair_open;
use super::tests::name;
use super::{FsckOptions, ProblemKind, Repaired, Subject};
use crate::format::chunk::{ContentRun, chunk_key, decode_key};
use crate::format::number::{SlotPlace, ino_of};
use crate::format::slot::{RETIRED, Slot};
use crate::handle::Mfs;
use crate::mkfs::first_attr;
use crate::testing::{begin_replays, formatted_for_images, links, new_inode, now, run};
use crate::trees::{CHUNKS, INODES};
use engine::format::block::BlockType;
use engine::format::features::Features;

/// A directory of three chunks with ten files in each, and its chunks.
fn long_directory(mfs: &Mfs, text: &str) -> (Ino, Vec<DirNo>) {
    let dir = run(mfs, |txn| {
        links(txn, Ino::ROOT, 1)?;
        txn.names().create(Ino::ROOT, &name(text), &new_inode(FileKind::Directory), None)
    });
    for round in 0..3 {
        for n in 0..10 {
            let file = name(&format!("f{round}-{n}"));
            run(mfs, |txn| txn.names().create(dir, &file, &new_inode(FileKind::Regular), None));
        }
        if round < 2 {
            run(mfs, |txn| txn.names().begin_chunk(dir));
        }
    }
    let chunks = run(mfs, |txn| Ok(txn.names().read_chunks(dir)?.to_vec()));
    assert_eq!(chunks.len(), 3);
    (dir, chunks)
}

/// What a lost leaf of the directory table held: every item of these chunks.
fn lose(mfs: &Mfs, chunks: &[DirNo]) {
    mfs.forget_indexes();
    assert_eq!(checked(mfs).problems, []);
    run(mfs, |txn| {
        for &chunk in chunks {
            let mut keys = Vec::new();
            CHUNKS.for_each(txn, &chunk_key(chunk, 0), |key, _| {
                let mine = decode_key(key).is_some_and(|(of, _)| of == chunk);
                keys.extend(mine.then_some(*key));
                mine
            })?;
            for key in &keys {
                CHUNKS.remove(txn, key)?;
            }
        }
        Ok(())
    });
    mfs.forget_indexes();
}

fn repaired(mfs: &Mfs) -> Repaired {
    checked(mfs);
    let out = now(repair_open(mfs, FsckOptions::default())).unwrap();
    mfs.forget_indexes();
    assert_eq!(checked(mfs).problems, out.left.problems);
    out
}

/// What is in a directory, sorted: a chunk that is found again may come behind later ones.
fn names(mfs: &Mfs, dir: Ino) -> Vec<(Name, Ino)> {
    let entries = run(mfs, |txn| txn.names().readdir(dir, 0, 1000));
    let mut out: Vec<_> = entries.into_iter().map(|entry| (entry.name, entry.ino)).collect();
    out.sort_unstable_by_key(|(_, ino)| *ino);
    out
}

#[test]
fn directory_keeps_its_files_after_several_chunks_were_lost() {
    for lost in [1..3, 0..2, 0..3, 2..3] {
        let mfs = formatted_for_images(20_000, Features::NONE);
        let (dir, chunks) = long_directory(&mfs, "dir");
        let before = names(&mfs, dir);
        assert_eq!(before.len(), 30);
        lose(&mfs, &chunks[lost.clone()]);
        let out = repaired(&mfs);
        assert_eq!(out.left.problems, [], "{lost:?}: {:#?}", out.done);
        assert_eq!(names(&mfs, dir), before, "{lost:?}: {:#?}", out.done);
    }
}

#[test]
fn content_of_unknown_directories_goes_to_lost_and_found() {
    let mfs = formatted_for_images(20_000, Features::NONE);
    let (dir, chunks) = long_directory(&mfs, "dir");
    let (other, more) = long_directory(&mfs, "other");
    let before = [names(&mfs, dir), names(&mfs, other)].concat();
    lose(&mfs, &[&chunks[1..], &more[1..]].concat());
    let out = repaired(&mfs);
    assert_eq!(out.left.problems, [], "{:#?}", out.done);
    for (file, ino) in before {
        let entry = run(&mfs, |txn| txn.names().entry_of(ino));
        let (parent, now) = entry.expect("every inode is there");
        assert_eq!(now, file);
        assert_eq!(
            run(&mfs, |txn| txn.names().lookup(parent, &file)),
            Some(ino),
            "{:#?}",
            out.done
        );
    }
    assert_eq!((names(&mfs, dir).len(), names(&mfs, other).len()), (20, 20));
}

/// Adds a chunk to a directory that holds further names alone, of files elsewhere.
fn with_names(mfs: &Mfs, dir: Ino, text: &str) -> DirNo {
    let files: Vec<Ino> = (0..6)
        .map(|n| {
            let file = name(&format!("{text}{n}"));
            run(mfs, |txn| {
                txn.names().create(Ino::ROOT, &file, &new_inode(FileKind::Regular), None)
            })
        })
        .collect();
    begin_replays(mfs);
    for (n, &ino) in files.iter().enumerate() {
        run(mfs, |txn| {
            txn.names().link(dir, &name(&format!("n{n}")), ino)?;
            links(txn, ino, 1)
        });
    }
    run(mfs, |txn| txn.names().end_replays());
    let chunks = run(mfs, |txn| Ok(txn.names().read_chunks(dir)?.to_vec()));
    assert_eq!(chunks.len(), 4);
    chunks[3]
}

#[test]
fn block_of_further_names_returns_to_its_directory_or_lost_and_found() {
    let mfs = formatted_for_images(20_000, Features::NONE);
    let (dir, _) = long_directory(&mfs, "dir");
    let chunk = with_names(&mfs, dir, "f");
    let before = names(&mfs, dir);
    assert_eq!(before.len(), 36);
    lose(&mfs, &[chunk]);
    let out = repaired(&mfs);
    assert_eq!((&out.left.problems, &out.lost), (&vec![], &vec![]), "{:#?}", out.done);
    assert_eq!(names(&mfs, dir), before, "{:#?}", out.done);

    let chunks = run(&mfs, |txn| Ok(txn.names().read_chunks(dir)?.to_vec()));
    let (other, _) = long_directory(&mfs, "other");
    lose(&mfs, &[chunks[3], with_names(&mfs, other, "g")]);
    let out = repaired(&mfs);
    assert_eq!(out.left.problems, [], "{:#?}", out.done);
    // That the directories lack content is told, and no name is gone.
    let lost: Vec<_> = out.lost.iter().map(|lost| (lost.kind(), lost.inode().unwrap())).collect();
    assert_eq!(lost[..2], [("Slots", dir), ("Slots", other)], "{:#?}", out.done);
    assert!(lost[2..].iter().all(|(kind, _)| *kind == "Directory"), "{:#?}", out.lost);
    let found = run(&mfs, |txn| txn.names().lookup(Ino::ROOT, &name("lost+found"))).unwrap();
    let made = names(&mfs, found);
    assert_eq!(made.len(), 2, "{:#?}", out.done);
    assert!(made.iter().all(|(_, dir)| names(&mfs, *dir).len() == 6), "{:#?}", out.done);
}

#[test]
fn block_missing_in_its_chunk_returns_to_its_place() {
    let mfs = formatted_for_images(20_000, Features::NONE);
    let (dir, chunks) = long_directory(&mfs, "dir");
    let before = names(&mfs, dir);
    run(&mfs, |txn| {
        txn.names().ensure_chunk(chunks[0])?;
        let mut chunk = txn.names().chunk(chunks[0])?.clone();
        let old = chunk.runs.clone();
        chunk.put(ContentRun::hole(0, 1, RETIRED));
        txn.names().set_runs(chunks[0], &old, chunk)
    });
    mfs.forget_indexes();
    let out = repaired(&mfs);
    assert_eq!(out.left.problems, [], "{:#?}", out.done);
    assert_eq!(names(&mfs, dir), before, "{:#?}", out.done);
    assert_eq!(
        run(&mfs, |txn| Ok(txn.names().read_chunks(dir)?.to_vec())),
        chunks,
        "{:#?}",
        out.done
    );
}

/// A block with two inodes that say they are of different chunks, and so many more inodes in the
/// count.
fn contradiction(mfs: &Mfs, missing: u64) -> (MetaBlock, [Ino; 2]) {
    let places = [0, 1].map(|at| SlotPlace { chunk: DirNo(900 + u64::from(at)), slot: at });
    let inodes = places.map(|place| ino_of(place, 0));
    let home = run(mfs, |txn| {
        let home: MetaBlock = txn.alloc_meta(1, None)?;
        let data = txn.init(home, BlockType::Directory)?;
        for (at, ino) in (0..).zip(inodes) {
            let mut slot = Slot::default();
            slot.set_next_reuse(1);
            slot.set_inode(b"file", &Attr { kind: FileKind::Fifo, nlink: 1, ..first_attr(ino) });
            slot.store(data, at);
        }
        let count = txn.root(INODES)?;
        txn.set_root(INODES, count + missing)?;
        Ok(home)
    });
    mfs.forget_indexes();
    (home, inodes)
}

#[test]
fn content_with_contradicting_inodes_goes_to_lost_and_found() {
    let mfs = formatted_for_images(20_000, Features::NONE);
    let (home, inodes) = contradiction(&mfs, 2);
    let out = repaired(&mfs);
    let said = |it: &super::Problem| it.subject == Subject::Block(home);
    assert!(out.found.iter().any(|it| it.kind == ProblemKind::BadChunk && said(it)));
    assert_eq!(out.left.problems, [], "{:#?}", out.done);
    let found = run(&mfs, |txn| txn.names().lookup(Ino::ROOT, &name("lost+found"))).unwrap();
    for ino in inodes {
        let (dir, _) = run(&mfs, |txn| txn.names().entry_of(ino)).expect("it is there");
        let (parent, _) = run(&mfs, |txn| txn.names().entry_of(dir)).unwrap();
        assert_eq!(parent, found, "{:#?}", out.done);
    }
}

#[test]
fn content_of_a_removed_directory_is_freed_if_no_inode_is_missing() {
    let mfs = formatted_for_images(20_000, Features::NONE);
    let (home, inodes) = contradiction(&mfs, 0);
    let out = repaired(&mfs);
    assert_eq!(out.left.problems, [], "{:#?}", out.done);
    assert!(!run(&mfs, |txn| txn.meta_allocated(home)));
    for ino in inodes {
        assert_eq!(run(&mfs, |txn| txn.names().attr(ino)), None);
    }
}

#[test]
fn block_whose_place_is_taken_goes_to_lost_and_found() {
    let mfs = formatted_for_images(20_000, Features::NONE);
    let (dir, chunks) = long_directory(&mfs, "dir");
    let before = names(&mfs, dir);
    // Its inodes say that they are in the first block of the directory, which is there.
    let ino = run(&mfs, |txn| {
        let home = txn.alloc_meta(1, None)?;
        let data = txn.init(home, BlockType::Directory)?;
        let ino = ino_of(SlotPlace { chunk: chunks[0], slot: 3 }, 77);
        let mut slot = Slot::default();
        slot.set_next_reuse(78);
        slot.set_inode(b"file", &Attr { kind: FileKind::Fifo, nlink: 1, ..first_attr(ino) });
        slot.store(data, 3);
        let count = txn.root(INODES)?;
        txn.set_root(INODES, count + 1)?;
        Ok(ino)
    });
    mfs.forget_indexes();
    let out = repaired(&mfs);
    assert_eq!(out.left.problems, [], "{:#?}", out.done);
    assert_eq!(names(&mfs, dir), before);
    assert!(run(&mfs, |txn| txn.names().entry_of(ino)).is_some(), "{:#?}", out.done);
}
