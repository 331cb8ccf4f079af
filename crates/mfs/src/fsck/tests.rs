//! Every kind of finding is planted once; sound file systems are clean.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use types::limits::CONTENT_MAX;
use types::{
    Attr, ClientId, DirNo, FileBlock, FileKind, Ino, MetaBlock, Name, PagBlock, PagId, Segment,
    SegmentState, Timestamp,
};

use super::jobs_tests::checked;
use super::repair::repair_open;
use super::{FsckOptions, Problem, ProblemKind, Report, Severity, Subject};
use crate::format::chunk::{ContentRun, DESCRIPTOR, Descriptor, chunk_key};
use crate::format::namespace::{NamespaceEntry, Stream};
use crate::format::number::{ORPHAN_DIR, SlotPlace, home_of, ino_of};
use crate::format::segment::{segment_key, segment_value};
use crate::format::slot::{self, FRAGMENT, SLOTS_PER_BLOCK, Slot, SlotSize};
use crate::format::space::{PagRecord, PagUse, frozen_keys, pag_key, pool_key, run_key};
use crate::handle::Mfs;
use crate::names::{MapLimits, NewInode};
use crate::space::ALL_FILES;
use crate::testing::{begin_replays, formatted_for_images, links, new_dir, new_inode, now, run};
use crate::trees::{
    CHUNKS, FREE, FROZEN, INODES, MOVED, NAMESPACE, NEXT_CHUNK, NEXT_CLIENT, ORPHANS, PAGS, POOLS,
    QUARANTINES, REPLIES, SEGMENTS, SETTINGS,
};
use crate::txn::Txn;
use engine::error::Stop;
use engine::format::blob::{BlobKind, BlobOwner, DATA};
use engine::format::block::{BlockType, put_u64};
use engine::format::features::Feature;

pub(super) fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

/// A small file system with one of everything.
pub(super) struct World {
    pub(super) mfs: Mfs,
    pub(super) client: ClientId,
    pub(super) dir: Ino,
    pub(super) file: Ino,
    pub(super) symlink: Ino,
    moved: Ino,
    orphan: Ino,
    /// What no plant touches: a directory with a name map, and files with content.
    mapped: Ino,
    small: Ino,
    inline: Ino,
}

const XATTR: &[u8] = b"user.long";

/// Metadata blocks of the worlds: so few that one block of the bitmap tells of all, and more.
const WORLDS: [u64; 2] = [20_000, 70_000];
/// Names of the directory that has a map.
const MAPPED: u64 = 20;

std::thread_local! {
    /// How large the slots of the worlds of this test are.
    static SLOTS: Cell<SlotSize> = const { Cell::new(SlotSize::Bytes512) };
    /// How many metadata blocks they have.
    static BLOCKS: Cell<u64> = const { Cell::new(WORLDS[0]) };
}

/// Segments of the file, which fill its slot and part of a layout block.
fn segments() -> u64 {
    match SLOTS.get() {
        SlotSize::Bytes512 => 30,
        size => size.segments_max() as u64 + 18,
    }
}

pub(super) fn world() -> World {
    let mfs = formatted_for_images(BLOCKS.get(), crate::golden::lasting(SLOTS.get()));
    let (client, dir, file, symlink, moved, orphan) = run(&mfs, |txn| {
        let client = txn.new_client(b"a client")?;
        let dir = new_dir(txn, Ino::ROOT, "dir")?;
        links(txn, Ino::ROOT, 1)?;
        let file = txn.names().create(dir, &name("file"), &new_inode(FileKind::Regular), None)?;
        txn.names().link(Ino::ROOT, &name("hard"), file)?;
        links(txn, file, 1)?;
        let target = vec![b't'; 1000];
        let symlink = NewInode { symlink: Some(&target), ..new_inode(FileKind::Symlink) };
        let symlink = txn.names().create(dir, &name("symlink"), &symlink, None)?;
        let moved = txn.names().create(dir, &name("moved"), &new_inode(FileKind::Fifo), None)?;
        txn.names().rename(dir, &name("moved"), Ino::ROOT, &name("away"))?;
        let orphan = txn.names().create_orphan(&new_inode(FileKind::Regular), None)?;
        txn.names().set_xattr(file, XATTR, &[1; 6000])?;
        txn.set_reply(client, 7, 8, b"reply")?;
        txn.set_setting(3, b"setting")?;
        txn.space().freeze(client, file)?;
        txn.space().quarantine(client)?;
        Ok((client, dir, file, symlink, moved, orphan))
    });
    let (pag, addr, _) =
        run(&mfs, |txn| txn.space().grant(client, Some(PagId(0)), segments() + 70))[0];
    for n in 0..segments() {
        let addr = PagBlock(addr.0 + n);
        let state = SegmentState::Written;
        let segment = Segment { file: FileBlock(2 * n), len: 1, pag, addr, state };
        run(&mfs, |txn| txn.layouts().map(file, client, segment));
    }
    run(&mfs, |txn| txn.layouts().unmap(file, FileBlock(4), FileBlock(5)));
    let (mapped, small, inline) = untouched(&mfs);
    World { mfs, client, dir, file, symlink, moved, orphan, mapped, small, inline }
}

/// A directory with a name map, and files with content in their slots or, if that is full, a blob.
fn untouched(mfs: &Mfs) -> (Ino, Ino, Ino) {
    let mapped = run(mfs, |txn| {
        links(txn, Ino::ROOT, 1)?;
        new_dir(txn, Ino::ROOT, "mapped")
    });
    let usual = std::mem::replace(&mut mfs.volatile_state_mut().limits, MapLimits::TINY);
    for n in 0..MAPPED {
        let kind = new_inode(FileKind::Fifo);
        run(mfs, |txn| txn.names().create(mapped, &name(&format!("n{n}")), &kind, None));
    }
    mfs.volatile_state_mut().limits = usual;
    assert!(run(mfs, |txn| Ok(txn.names().map_of(mapped).is_some())));
    run(mfs, |txn| {
        let file = |txn: &mut Txn<'_>, text, len| {
            let new = NewInode { size: len as u64, ..new_inode(FileKind::Regular) };
            let ino = txn.names().create(Ino::ROOT, &name(text), &new, None)?;
            txn.layouts().set_content(ino, &numbers(len))?;
            Ok::<_, Stop>(ino)
        };
        Ok((mapped, file(txn, "small", 100)?, file(txn, "inline", 3000)?))
    })
}

pub(super) fn report(world: &World) -> Report {
    // What is planted goes past the memory of the store.
    world.mfs.forget_indexes();
    checked(&world.mfs)
}

/// What can be read of the inodes of a world, by their names in it.
fn contents(world: &World) -> BTreeMap<&'static str, String> {
    let all = [
        ("dir", world.dir),
        ("file", world.file),
        ("symlink", world.symlink),
        ("moved", world.moved),
        ("orphan", world.orphan),
        ("mapped", world.mapped),
        ("small", world.small),
        ("inline", world.inline),
    ];
    let mut out = BTreeMap::new();
    for (what, ino) in all {
        let text = run(&world.mfs, |txn| {
            let Some(attr) = txn.names().attr(ino)? else { return Ok("gone".into()) };
            let mut text = format!("{:?} {}", attr.kind, attr.mode);
            if let Some((dir, name)) = txn.names().entry_of(ino)? {
                text += &format!(" {name:?} in {dir}");
                if dir != crate::format::number::ORPHAN_DIR {
                    assert_eq!(txn.names().lookup(dir, &name)?, Some(ino));
                }
            }
            match attr.kind {
                FileKind::Regular => {
                    let layout = txn.layouts().layout(ino, FileBlock(0), 999)?;
                    let data = (layout.clone(), txn.layouts().content(ino)?);
                    let sum = types::crc32c(format!("{data:?}").as_bytes());
                    text += &format!(" {} segments {sum:x}", layout.len());
                    text +=
                        &format!(" {:?}", txn.names().xattr(ino, XATTR)?.map(|value| value.len()));
                }
                FileKind::Symlink => text += &format!(" {:?}", txn.names().symlink(ino)?.len()),
                _ if ino == world.mapped => {
                    for n in 0..MAPPED {
                        text +=
                            &format!(" {:?}", txn.names().lookup(ino, &name(&format!("n{n}")))?);
                    }
                    text += &format!(" by map: {}", txn.names().map_of(ino).is_some());
                }
                _ => {}
            }
            Ok(text)
        });
        out.insert(what, text);
    }
    out
}

/// Plants something, expects a finding of this kind about what the plant gives, among at most
/// `most`, and repairs it: nothing is found then, and every inode but the `victims` is as it was.
fn planted_on(
    victims: &[&str],
    kind: ProblemKind,
    most: usize,
    plant: impl Fn(&World, &mut Txn<'_>) -> Result<Subject, Stop>,
) {
    let world = world();
    let before = contents(&world);
    let subject = run(&world.mfs, |txn| plant(&world, txn));
    let found = report(&world).problems;
    let all = || found.iter().map(Problem::to_string).collect::<Vec<_>>();
    let reported = |problem: &Problem| (problem.kind, problem.subject) == (kind, subject);
    assert!(found.iter().any(reported), "{kind:?} of {subject} in {:?}", all());
    assert!(found.len() <= most, "{:?}", all());
    let costs = kind.severity() == Severity::Error;
    assert!(costs || victims.is_empty(), "{kind:?} is a warning, and costs {victims:?}");
    let repaired = now(repair_open(&world.mfs, FsckOptions::default())).unwrap();
    assert_eq!(repaired.left.problems, [], "{kind:?}: {:#?}", repaired.done);
    assert!(!repaired.done.is_empty() && repaired.found.iter().any(reported));
    assert_eq!(report(&world).problems, [], "a second time");
    assert!(
        now(repair_open(&world.mfs, FsckOptions::default())).unwrap().done.is_empty(),
        "{kind:?}, repaired twice"
    );
    for (what, text) in contents(&world) {
        if !victims.contains(&what) {
            assert_eq!(text, before[what], "{kind:?}: {:#?}", repaired.done);
        }
    }
    settled(kind, Outcome::Repaired);
}

/// The same without victims.
pub(super) fn planted(
    kind: ProblemKind,
    most: usize,
    plant: impl Fn(&World, &mut Txn<'_>) -> Result<Subject, Stop>,
) {
    planted_on(&[], kind, most, plant);
}

/// What repair made of a kind that was planted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// A second check is clean.
    Repaired,
    /// It is told, and left as it is.
    Left,
}

std::thread_local! {
    /// Kinds that were planted by this test, and what repair made of them.
    static SETTLED: RefCell<BTreeMap<ProblemKind, Outcome>> = const { RefCell::new(BTreeMap::new()) };
}

/// Notes that a kind was planted and found, and what repair made of it.
pub(crate) fn settled(kind: ProblemKind, outcome: Outcome) {
    let before = SETTLED.with(|all| all.borrow_mut().insert(kind, outcome));
    assert!(before.is_none_or(|before| before == outcome), "{kind:?}");
}

/// The block of the slot of an inode.
fn home(txn: &mut Txn<'_>, ino: Ino) -> Result<Subject, Stop> {
    Ok(Subject::Block(txn.names().locate_live(ino)?.0.block))
}

/// Changes the slot of an inode.
fn slot(txn: &mut Txn<'_>, ino: Ino, change: impl FnOnce(&mut Slot)) -> Result<(), Stop> {
    let (spot, mut slot) = txn.names().locate_live(ino)?;
    change(&mut slot);
    txn.names().store(&spot, &slot)
}

/// Changes the raw bytes of the slot of an inode.
pub(super) fn bytes(txn: &mut Txn<'_>, ino: Ino, at: usize, value: &[u8]) -> Result<(), Stop> {
    let (spot, _) = txn.names().locate_live(ino)?;
    let data = txn.write(spot.block)?;
    let from = slot::slot_range(data, spot.place.index()).unwrap().start + at;
    data[from..from + value.len()].copy_from_slice(value);
    Ok(())
}

/// The same with the bits of one flag byte set.
pub(super) fn set_flags(txn: &mut Txn<'_>, ino: Ino, flags: u8) -> Result<(), Stop> {
    let (spot, _) = txn.names().locate_live(ino)?;
    let data = txn.write(spot.block)?;
    data[slot::slot_range(data, spot.place.index()).unwrap().start + 5] |= flags;
    Ok(())
}

#[test]
fn sound_file_system_is_clean_and_counted() {
    let world = world();
    let report = report(&world);
    assert_eq!(report.problems, []);
    let counts = report.counts;
    assert_eq!((counts.inodes, counts.directories, counts.names, counts.orphans), (30, 3, 28, 1));
    assert_eq!((counts.segments, counts.mapped, counts.freed, counts.pooled), (29, 29, 1, 70));
    assert_eq!(counts.free, 2 * 9_999 - 100);
    assert_eq!(counts.clients, 1);
}

#[test]
fn directory_freed_in_part_is_clean() {
    let world = world();
    // Sisters lie together, so that their runs take turns.
    let [other, sister] = ["other", "sister"].map(|text| {
        run(&world.mfs, |txn| {
            links(txn, world.dir, 1)?;
            txn.names().create(world.dir, &name(text), &new_inode(FileKind::Directory), None)
        })
    });
    for n in 0..1000 {
        for dir in [sister, other] {
            run(&world.mfs, |txn| {
                txn.names().create(dir, &name(&format!("{n}")), &new_inode(FileKind::Fifo), None)
            });
        }
    }
    // While clients replay, an emptied directory keeps its blocks.
    begin_replays(&world.mfs);
    for n in 0..1000 {
        run(&world.mfs, |txn| {
            let ino = txn.names().remove_name(other, &name(&format!("{n}")))?;
            links(txn, ino, -1)?;
            txn.names().free_inode_step(ino, 1)
        });
    }
    run(&world.mfs, |txn| {
        txn.names().remove_name(world.dir, &name("other"))?;
        links(txn, world.dir, -1)?;
        links(txn, other, -2)
    });
    for step in 0.. {
        assert_eq!(report(&world).problems, []);
        if run(&world.mfs, |txn| txn.names().free_inode_step(other, 2)) {
            assert!(step > 0, "freed at once");
            break;
        }
    }
    assert_eq!(report(&world).problems, []);
}

#[test]
fn freed_run_that_was_unused_or_would_reissue_numbers_is_found() {
    let chunk_of = |txn: &mut Txn<'_>, ino: Ino| {
        let (spot, _) = txn.names().locate_live(ino)?;
        let chunk = txn.names().chunk(spot.place.chunk)?.clone();
        Ok::<_, Stop>((spot.place.chunk, chunk))
    };
    // What such a chunk has ahead counts as nobody's.
    planted(ProblemKind::BadChunk, 2, |world, txn| {
        let (number, chunk) = chunk_of(txn, world.file)?;
        let gone = ContentRun::hole(chunk.allocated(), 3, 7);
        CHUNKS.insert(txn, &chunk_key(number, gone.first), &gone.encode())?;
        Ok(Subject::Chunk(number))
    });
    planted(ProblemKind::BadChunk, 1, |world, txn| {
        // A directory's block is given back; the files that were born there moved away.
        let other = new_dir(txn, Ino::ROOT, "other")?;
        links(txn, Ino::ROOT, 1)?;
        let first = txn.names().create(other, &name("a"), &new_inode(FileKind::Fifo), None)?;
        let chunk = home_of(first).chunk;
        // The next slot there is.
        let slot = if SLOTS.get().per_block() > 1 { 1 } else { SLOTS_PER_BLOCK };
        let fifth = ino_of(SlotPlace { chunk, slot }, 5);
        txn.names().create(other, &name("b"), &new_inode(FileKind::Fifo), Some(fifth))?;
        for text in ["a", "b"] {
            txn.names().rename(other, &name(text), world.dir, &name(text))?;
        }
        txn.names().trim_chunk(chunk)?;
        let runs = txn.names().chunk(chunk)?.runs.clone();
        let blocks = runs.iter().map(|run| run.len).sum();
        for run in runs {
            if run.is_present() {
                txn.free_meta(run.start, run.len)?;
            }
            CHUNKS.remove(txn, &chunk_key(chunk, run.first))?;
        }
        self::slot(txn, other, |slot| {
            slot.set_blocks(0);
            slot.set_size(0);
        })?;
        CHUNKS.insert(txn, &chunk_key(chunk, 0), &ContentRun::hole(0, blocks, 5).encode())?;
        Ok(Subject::Inode(fifth))
    });
}

#[test]
fn block_of_the_wrong_type_is_found() {
    planted_on(&["file", "symlink"], ProblemKind::DamagedBlock, 9, |world, txn| {
        let (spot, _) = txn.names().locate_live(world.file)?;
        txn.init(spot.block, BlockType::Blob)?;
        Ok(Subject::Block(spot.block))
    });
}

#[test]
fn metadata_block_with_two_owners_is_found() {
    planted(ProblemKind::SharedMetaBlock, 3, |world, txn| {
        let (spot, _) = txn.names().locate_live(world.file)?;
        let run = ContentRun::present(0, spot.block, 1);
        txn.set_root(NEXT_CHUNK, 1000)?;
        let descriptor = Descriptor { owner: world.dir, next: DirNo(0), index: 1, used: 0 };
        CHUNKS.insert(txn, &chunk_key(DirNo(999), 0), &run.encode())?;
        CHUNKS.insert(txn, &chunk_key(DirNo(999), DESCRIPTOR), &descriptor.encode())?;
        Ok(Subject::Block(spot.block))
    });
}

#[test]
fn address_outside_the_device_is_found() {
    planted(ProblemKind::OutsideMetaBlock, 2, |world, txn| {
        let key = engine::format::reply::long_key(world.client, 300);
        REPLIES.insert(txn, &key, &u64::MAX.to_le_bytes())?;
        Ok(Subject::Block(MetaBlock(u64::MAX)))
    });
}

#[test]
fn bitmap_that_disagrees_with_the_blocks_in_use_is_found() {
    planted(ProblemKind::FreeMetaBlock, 1, |world, txn| {
        let (spot, _) = txn.names().locate_live(world.file)?;
        txn.free_meta(spot.block, 1)?;
        Ok(Subject::Block(spot.block))
    });
    planted(ProblemKind::LostMetaBlock, 1, |_, txn| txn.alloc_meta(1, None).map(Subject::Block));
}

#[test]
fn chunks_that_do_not_fit_are_found() {
    let descriptor =
        |world: &World| Descriptor { owner: world.dir, next: DirNo(0), index: 1, used: 0 };
    planted(ProblemKind::LostChunk, 1, |world, txn| {
        txn.set_root(NEXT_CHUNK, 1000)?;
        let value = descriptor(world).encode();
        CHUNKS.insert(txn, &chunk_key(DirNo(999), DESCRIPTOR), &value)?;
        Ok(Subject::Chunk(DirNo(999)))
    });
    planted(ProblemKind::BadCounter, 2, |world, txn| {
        let value = descriptor(world).encode();
        CHUNKS.insert(txn, &chunk_key(DirNo(999), DESCRIPTOR), &value)?;
        Ok(Subject::Chunk(DirNo(999)))
    });
    planted(ProblemKind::BadChunk, 10, |world, txn| {
        slot(txn, world.dir, |slot| slot.set_body(77))?;
        Ok(Subject::Chunk(DirNo(77)))
    });
    planted(ProblemKind::BadChunk, 3, |world, txn| {
        txn.set_root(NEXT_CHUNK, 1000)?;
        let value = descriptor(world).encode();
        CHUNKS.insert(txn, &chunk_key(DirNo(999), DESCRIPTOR), &value)?;
        CHUNKS.insert(txn, &chunk_key(DirNo(999), 4), &[0xff; 24])?;
        Ok(Subject::Chunk(DirNo(999)))
    });
    planted(ProblemKind::WrongSize, 1, |world, txn| {
        slot(txn, world.dir, |slot| slot.set_size(1))?;
        Ok(Subject::Inode(world.dir))
    });
}

#[test]
fn senseless_slots_and_names_are_found() {
    planted_on(&["symlink"], ProblemKind::BadSlot, 6, |world, txn| {
        let at = home(txn, world.symlink)?;
        bytes(txn, world.symlink, 1, &[99])?;
        Ok(at)
    });
    planted(ProblemKind::BadSlot, 1, |world, txn| {
        slot(txn, world.file, |slot| slot.set_next_reuse(0))?;
        Ok(Subject::Inode(world.file))
    });
    planted_on(&["symlink"], ProblemKind::BadName, 1, |world, txn| {
        slot(txn, world.symlink, |slot| slot.set_name(b"a/b"))?;
        home(txn, world.symlink)
    });
    planted_on(&["orphan"], ProblemKind::BadName, 2, |world, txn| {
        slot(txn, world.orphan, |slot| slot.set_name(b"named"))?;
        home(txn, world.orphan)
    });
    planted_on(&["symlink"], ProblemKind::DuplicateName, 1, |world, txn| {
        slot(txn, world.symlink, |slot| slot.set_name(b"file"))?;
        Ok(Subject::Chunk(home_of(world.symlink).chunk))
    });
}

#[test]
fn names_that_lead_wrong_are_found() {
    planted(ProblemKind::DanglingName, 1, |world, txn| {
        txn.names().put_link(world.dir, b"dangling", Ino(12345 << 24), FileKind::Fifo)?;
        Ok(Subject::Inode(Ino(12345 << 24)))
    });
    planted(ProblemKind::WrongKind, 2, |world, txn| {
        txn.names().put_link(world.dir, b"wrong", world.file, FileKind::Fifo)?;
        Ok(Subject::Inode(world.file))
    });
    planted(ProblemKind::WrongLinkCount, 1, |_, txn| {
        slot(txn, ORPHAN_DIR, |slot| {
            let attr = slot.attr();
            slot.set_attr(&Attr { nlink: 7, ..attr });
        })?;
        Ok(Subject::Inode(ORPHAN_DIR))
    });
    planted(ProblemKind::WrongLinkCount, 1, |world, txn| {
        txn.names().put_link(world.dir, b"more", world.file, FileKind::Regular)?;
        Ok(Subject::Inode(world.file))
    });
    planted(ProblemKind::WrongLinkCount, 1, |world, txn| {
        links(txn, world.dir, 1)?;
        Ok(Subject::Inode(world.dir))
    });
}

#[test]
fn inodes_in_the_wrong_place_are_found() {
    planted(ProblemKind::DuplicateInode, 2, |world, txn| {
        let (_, body) = txn.names().locate_live(world.file)?;
        let spot = txn.names().take_slot(Ino::ROOT)?;
        let mut slot = txn.names().load(&spot)?;
        slot.adopt(&body);
        slot.set_name(b"again");
        txn.names().store(&spot, &slot)?;
        Ok(Subject::Inode(world.file))
    });
    planted(ProblemKind::MisplacedInode, 1, |world, txn| {
        MOVED.remove(txn, &world.moved.0.to_be_bytes())?;
        Ok(Subject::Inode(world.moved))
    });
    planted(ProblemKind::StaleMove, 1, |world, txn| {
        MOVED.insert(txn, &world.file.0.to_be_bytes(), &7u64.to_le_bytes())?;
        Ok(Subject::Inode(world.file))
    });
    planted(ProblemKind::StaleMove, 1, |_, txn| {
        let ino = ino_of(SlotPlace { chunk: DirNo(500), slot: 3 }, 0);
        MOVED.insert(txn, &ino.0.to_be_bytes(), &7u64.to_le_bytes())?;
        Ok(Subject::Inode(ino))
    });
    planted(ProblemKind::WrongOrphan, 1, |world, txn| {
        ORPHANS.remove(txn, &world.orphan.0.to_be_bytes())?;
        Ok(Subject::Inode(world.orphan))
    });
    planted(ProblemKind::WrongOrphan, 1, |world, txn| {
        ORPHANS.insert(txn, &world.file.0.to_be_bytes(), &[0; 8])?;
        Ok(Subject::Inode(world.file))
    });
    planted(ProblemKind::WrongCount, 1, |_, txn| {
        txn.set_root(INODES, 99)?;
        Ok(Subject::Whole)
    });
}

#[test]
fn senseless_inline_data_is_found() {
    use ProblemKind::{BadContent, BadLayout, LostDataBlock, SharedMetaBlock};
    use ProblemKind::{WrongBlob, WrongBlockCount};
    let of_orphan = |world: &World| Subject::Inode(world.orphan);
    let of_file = |world: &World| Subject::Inode(world.file);
    let blob_of_orphan = |world: &World| {
        let blob =
            run(&world.mfs, |txn| Ok(txn.names().locate_live(world.orphan)?.1.content_blob()));
        Subject::Block(MetaBlock(blob.unwrap()))
    };
    let content = |txn: &mut Txn<'_>, ino: Ino, len: usize, size: u64| {
        slot(txn, ino, |slot| {
            slot.set_content(&numbers(len));
            slot.set_size(size);
        })
    };
    let blob = |txn: &mut Txn<'_>, ino: Ino, len: usize, size: u64| {
        let (spot, _) = txn.names().locate_live(ino)?;
        let whose = BlobOwner::inode(ino, BlobKind::Content);
        let blob = txn.write_blob(None, &numbers(len), whose, spot.block)?;
        slot(txn, ino, |slot| {
            slot.set_content_blob(blob.0);
            slot.set_size(size);
        })
    };
    let orphan = |len: usize, plant: &dyn Fn(&World, &mut Txn<'_>) -> Result<(), Stop>| {
        let (before, after) = planted_with(&[BadContent], of_orphan, plant);
        assert_eq!((&after.orphan, after.file), (&numbers(len), before.file));
    };
    orphan(99, &|world, txn| content(txn, world.orphan, 100, 99));
    orphan(0, &|world, txn| content(txn, world.orphan, 100, 0));
    orphan(0, &|world, txn| content(txn, world.orphan, 0, 9));
    orphan(2999, &|world, txn| blob(txn, world.orphan, 3000, 2999));
    orphan(0, &|world, txn| blob(txn, world.orphan, 3000, 0));
    // Longer than content may be, in one block and in two.
    orphan(CONTENT_MAX, &|world, txn| blob(txn, world.orphan, 4000, 1 << 20));
    orphan(CONTENT_MAX, &|world, txn| blob(txn, world.orphan, 6000, 1 << 20));
    orphan(3000, &|world, txn| blob(txn, world.orphan, 6000, 3000));
    // Two flags: the tail has segments, or none.
    orphan(0, &|world, txn| bytes(txn, world.orphan, 5, &[12]));
    orphan(7, &|world, txn| {
        content(txn, world.orphan, 7, 100)?;
        bytes(txn, world.orphan, 5, &[12])
    });
    // Block 0 is mapped, too: the content stays, the other segments do.
    let (before, after) = planted_with(&[BadContent, LostDataBlock], of_file, |world, txn| {
        blob(txn, world.file, 3000, 1 << 20)
    });
    assert_eq!((after.orphan, &after.file.0), (before.orphan, &numbers(3000)));
    assert_eq!(after.file.1, before.file.1[1..]);
    // The same where another file has the data block: that keeps it.
    let (before, after) = planted_with(&[BadContent], of_file, |world, txn| {
        let first = txn.layouts().layout(world.file, FileBlock(0), 1)?[0];
        slot(txn, world.orphan, |slot| {
            slot.set_segments(&[first]);
            slot.set_blocks(1);
        })?;
        blob(txn, world.file, 3000, 1 << 20)
    });
    assert_eq!((&after.file.0, &after.file.1[..]), (&numbers(3000), &before.file.1[1..]));
    assert_eq!(after.mapped, before.file.1[..1]);
    // A segment of the tree that the slot does not count.
    let stray = |txn: &mut Txn<'_>, world: &World, len: u64| {
        let first = txn.layouts().layout(world.file, FileBlock(0), 1)?[0];
        let segment = Segment { addr: PagBlock(first.addr.0 + 40), len, ..first };
        SEGMENTS.insert(txn, &segment_key(world.orphan, 0), &segment_value(&segment))?;
        content(txn, world.orphan, 100, 1 << 20)
    };
    let kinds = [BadContent, BadLayout, WrongBlockCount];
    let (before, after) = planted_with(&kinds, of_orphan, |world, txn| stray(txn, world, 1));
    assert_eq!((after.orphan, after.file), (numbers(100), before.file));
    assert_eq!(after.mapped, []);
    // Two files in one blob: it belongs to the one that it names.
    let (_, after) = planted_with(&[WrongBlob], of_orphan, |world, txn| {
        txn.layouts().unmap(world.file, FileBlock(0), FileBlock(1))?;
        blob(txn, world.file, 3000, 1 << 20)?;
        let (_, file) = txn.names().locate_live(world.file)?;
        slot(txn, world.orphan, |slot| {
            slot.set_content_blob(file.content_blob().unwrap_or_default());
            slot.set_size(1 << 20);
        })
    });
    assert_eq!((after.orphan, after.file.0), (vec![], numbers(3000)));
    // A blob in the unused layout block of a file that the check meets first: it gets a copy.
    let (_, after) = planted_with(&[SharedMetaBlock], blob_of_orphan, |world, txn| {
        blob(txn, world.orphan, 3000, 1 << 20)?;
        let (_, orphan) = txn.names().locate_live(world.orphan)?;
        let block = MetaBlock(orphan.content_blob().unwrap_or_default());
        slot(txn, world.small, |slot| slot.set_layout_blocks(&[block]))
    });
    assert_eq!(after.orphan, numbers(3000));
}

/// A world whose file system has no content beside inodes.
fn without_content() -> World {
    let world = world();
    run(&world.mfs, |txn| {
        for ino in [world.small, world.inline] {
            txn.layouts().set_content(ino, &[])?;
        }
        Ok(())
    });
    let features = world.mfs.superblock().features.without(Feature::INLINE_DATA);
    world.mfs.set_features(features);
    world
}

/// Flags are one byte: what a wrong one says costs no data, and repair enters no feature.
#[test]
fn inline_data_flags_without_the_feature_are_cleared_and_segments_stay() {
    for flags in [4, 8, 12] {
        for victim in ["file", "dir", "symlink"] {
            let world = without_content();
            let before = contents(&world);
            let features = world.mfs.superblock().features;
            let ino = match victim {
                "file" => world.file,
                "dir" => world.dir,
                _ => world.symlink,
            };
            run(&world.mfs, |txn| set_flags(txn, ino, flags));
            let found = report(&world).problems;
            let kinds: Vec<_> = found.iter().map(|problem| problem.kind).collect();
            assert_eq!(kinds, [ProblemKind::BadContent], "{victim}, {flags}: {found:?}");
            let repaired = now(repair_open(&world.mfs, FsckOptions::default())).unwrap();
            assert_eq!(repaired.left.problems, [], "{victim}, {flags}: {:#?}", repaired.done);
            assert_eq!(contents(&world), before, "{victim}, {flags}");
            assert_eq!(world.mfs.superblock().features, features);
        }
    }
    // What is no segment goes: nothing may be with the inode here.
    let world = without_content();
    let features = world.mfs.superblock().features;
    run(&world.mfs, |txn| {
        let (spot, mut slot) = txn.names().locate_live(world.orphan)?;
        slot.set_content(b"content");
        slot.set_size(7);
        txn.names().store(&spot, &slot)
    });
    let found = report(&world).problems;
    assert_eq!(found.iter().map(|p| p.kind).collect::<Vec<_>>(), [ProblemKind::BadContent]);
    assert_eq!(now(repair_open(&world.mfs, FsckOptions::default())).unwrap().left.problems, []);
    assert_eq!(run(&world.mfs, |txn| txn.layouts().content(world.orphan)), b"");
    assert_eq!(world.mfs.superblock().features, features);
}

#[test]
fn unknown_flags_are_cleared_and_cost_nothing() {
    planted(ProblemKind::BadSlot, 1, |world, txn| {
        let at = home(txn, world.orphan)?;
        bytes(txn, world.orphan, 5, &[0x80])?;
        Ok(at)
    });
}

pub(super) fn numbers(len: usize) -> Vec<u8> {
    (0..len).map(|n| ((n * 7) >> 3) as u8).collect()
}

/// The data of the files of a world.
#[derive(Clone, PartialEq, Debug)]
struct Data {
    /// Content of the orphan.
    orphan: Vec<u8>,
    /// What of it is mapped.
    mapped: Vec<Segment>,
    /// Content of the file, and what of it is mapped.
    file: (Vec<u8>, Vec<Segment>),
}

fn data(world: &World) -> Data {
    run(&world.mfs, |txn| {
        let mut layouts = txn.layouts();
        Ok(Data {
            orphan: layouts.content(world.orphan)?,
            mapped: layouts.layout(world.orphan, FileBlock(0), 999)?,
            file: (layouts.content(world.file)?, layouts.layout(world.file, FileBlock(0), 999)?),
        })
    })
}

/// Plants in content of the files and expects exactly these findings, the first of what `of` says;
/// gives the data of the files before, and when it is repaired.
fn planted_with(
    kinds: &[ProblemKind],
    of: impl Fn(&World) -> Subject,
    plant: impl Fn(&World, &mut Txn<'_>) -> Result<(), Stop>,
) -> (Data, Data) {
    let world = world();
    let (before, all) = (data(&world), contents(&world));
    run(&world.mfs, |txn| plant(&world, txn));
    let found = report(&world).problems;
    assert_eq!(found.iter().map(|p| p.kind).collect::<Vec<_>>(), kinds, "{found:?}");
    assert_eq!(found[0].subject, of(&world), "{found:?}");
    let repaired = now(repair_open(&world.mfs, FsckOptions::default())).unwrap();
    assert_eq!(repaired.left.problems, [], "{kinds:?}: {:#?}", repaired.done);
    assert_eq!(report(&world).problems, [], "a second time");
    let others = |what: &&str| !["file", "orphan"].contains(what);
    for (what, text) in contents(&world).into_iter().filter(|(what, _)| others(what)) {
        assert_eq!(text, all[what], "{kinds:?}: {:#?}", repaired.done);
    }
    kinds.iter().for_each(|&kind| settled(kind, Outcome::Repaired));
    (before, data(&world))
}

#[test]
fn damaged_xattrs_and_targets_are_found() {
    planted_on(&["file"], ProblemKind::BadXattrs, 1, |world, txn| {
        let (_, slot) = txn.names().locate_live(world.file)?;
        let block = MetaBlock(slot.xattr_blob().unwrap());
        txn.write(block)?[DATA] = 0;
        Ok(Subject::Inode(world.file))
    });
    planted(ProblemKind::BadTarget, 1, |world, txn| {
        slot(txn, world.symlink, |slot| slot.set_size(999))?;
        Ok(Subject::Inode(world.symlink))
    });
    planted_on(&["file"], ProblemKind::DamagedBlock, 4, |world, txn| {
        let (_, slot) = txn.names().locate_live(world.file)?;
        let block = MetaBlock(slot.xattr_blob().unwrap());
        put_u64(txn.write(block)?, 32, block.0);
        Ok(Subject::Block(block))
    });
}

pub(super) fn segment(file: u64, addr: u64) -> Segment {
    let state = SegmentState::Written;
    Segment { file: FileBlock(file), len: 1, pag: PagId(1), addr: PagBlock(addr), state }
}

#[test]
fn senseless_layouts_are_found() {
    planted_on(&["file"], ProblemKind::BadLayout, 3, |world, txn| {
        let segment = segment(999, 5000);
        SEGMENTS.insert(txn, &segment_key(world.file, 999), &segment_value(&segment))?;
        Ok(Subject::Inode(world.file))
    });
    planted(ProblemKind::BadLayout, 1, |_, txn| {
        let segment = segment(999, 5000);
        SEGMENTS.insert(txn, &segment_key(Ino(88 << 24), 999), &segment_value(&segment))?;
        Ok(Subject::Inode(Ino(88 << 24)))
    });
    planted(ProblemKind::BadLayout, 2, |world, txn| {
        SEGMENTS.insert(txn, &segment_key(world.file, 1 << 40), &[0; 16])?;
        Ok(Subject::Whole)
    });
    planted(ProblemKind::WrongBlockCount, 1, |world, txn| {
        slot(txn, world.file, |slot| slot.set_blocks(1))?;
        Ok(Subject::Inode(world.file))
    });
}

/// The layout block of the world's file.
fn layout_block(world: &World, txn: &mut Txn<'_>) -> Result<MetaBlock, Stop> {
    Ok(txn.names().locate_live(world.file)?.1.layout_blocks()[0])
}

#[test]
fn senseless_layout_blocks_are_found() {
    use ProblemKind::{BadLayoutBlock, DamagedBlock, OutsideMetaBlock, SharedMetaBlock};
    // Its segments are lost: too few are found, and their data blocks are nobody's.
    planted_on(&["file"], BadLayoutBlock, 40, |world, txn| {
        let block = layout_block(world, txn)?;
        put_u64(txn.write(block)?, 32, world.orphan.0);
        Ok(Subject::Inode(world.file))
    });
    planted_on(&["file"], DamagedBlock, 40, |world, txn| {
        let block = layout_block(world, txn)?;
        txn.init(block, BlockType::Blob)?;
        Ok(Subject::Block(block))
    });
    planted_on(&["file"], OutsideMetaBlock, 40, |world, txn| {
        let block = layout_block(world, txn)?;
        txn.free_meta(block, 1)?;
        slot(txn, world.file, |slot| slot.set_layout_blocks(&[MetaBlock(1 << 31)]))?;
        Ok(Subject::Block(MetaBlock(1 << 31)))
    });
    // Another file leads there, too; it counts segments there, or has it ahead.
    planted_on(&["orphan"], BadLayoutBlock, 4, |world, txn| {
        let block = layout_block(world, txn)?;
        slot(txn, world.orphan, |slot| {
            slot.set_layout_blocks(&[block]);
            slot.set_body(3);
        })?;
        Ok(Subject::Inode(world.orphan))
    });
    planted(SharedMetaBlock, 1, |world, txn| {
        let block = layout_block(world, txn)?;
        slot(txn, world.orphan, |slot| slot.set_layout_blocks(&[block]))?;
        Ok(Subject::Block(block))
    });
    planted(OutsideMetaBlock, 1, |world, txn| {
        slot(txn, world.orphan, |slot| slot.set_layout_blocks(&[MetaBlock(1 << 31)]))?;
        Ok(Subject::Block(MetaBlock(1 << 31)))
    });
    // One that is ahead, and a directory has it: the directory's content says so.
    planted(SharedMetaBlock, 1, |world, txn| {
        let (spot, _) = txn.names().locate_live(world.file)?;
        slot(txn, world.orphan, |slot| slot.set_layout_blocks(&[spot.block]))?;
        Ok(Subject::Block(spot.block))
    });
    // Flags on what is no file, and words that cannot be.
    for victim in [|world: &World| world.symlink, |world: &World| world.dir] {
        planted(BadLayoutBlock, 1, move |world, txn| {
            let (_, slot) = txn.names().locate_live(victim(world))?;
            let flags = if slot.target_blob().is_some() { 2 } else { 0 };
            bytes(txn, victim(world), 5, &[flags | 16])?;
            Ok(Subject::Inode(victim(world)))
        });
    }
    planted(BadLayoutBlock, 1, |world, txn| {
        bytes(txn, world.orphan, 5, &[16])?;
        Ok(Subject::Inode(world.orphan))
    });
    planted(BadLayoutBlock, 1, |world, txn| {
        let block = layout_block(world, txn)?;
        bytes(txn, world.file, 52, &(block.0 as u32).to_le_bytes())?;
        Ok(Subject::Inode(world.file))
    });
}

#[test]
fn wrong_fragmentation_count_is_found() {
    use ProblemKind::WrongFragmentation;
    let world = world();
    let counted = (segments() - 1) / FRAGMENT * FRAGMENT;
    assert_eq!(run(&world.mfs, |txn| txn.layouts().fragmentation(world.dir)), (counted, 2));
    for wrong in [0, 7] {
        planted(WrongFragmentation, 1, |world, txn| {
            slot(txn, world.dir, |slot| slot.set_fragments(wrong))?;
            Ok(Subject::Inode(world.dir))
        });
    }
    planted(WrongFragmentation, 1, |_, txn| {
        slot(txn, Ino::ROOT, |slot| slot.set_fragments(1))?;
        Ok(Subject::Inode(Ino::ROOT))
    });
}

#[test]
fn layout_blocks_without_their_feature_are_found() {
    let world = world();
    let (features, before) = (world.mfs.superblock().features, contents(&world));
    world.mfs.set_features(features.without(Feature::LAYOUT_BLOCKS));
    let kinds: Vec<_> = report(&world).problems.iter().map(|problem| problem.kind).collect();
    assert_eq!(kinds, [ProblemKind::MissingFeature]);
    assert_eq!(now(repair_open(&world.mfs, FsckOptions::default())).unwrap().left.problems, []);
    assert_eq!(world.mfs.superblock().features, features);
    assert_eq!(contents(&world), before);
    settled(ProblemKind::MissingFeature, Outcome::Repaired);
}

#[test]
fn data_blocks_with_two_owners_or_none_are_found() {
    planted_on(&["file", "orphan"], ProblemKind::SharedDataBlock, 2, |world, txn| {
        let first = txn.layouts().layout(world.file, FileBlock(0), 1)?[0];
        slot(txn, world.orphan, |slot| {
            slot.set_segments(&[first]);
            slot.set_blocks(1);
        })?;
        Ok(Subject::Data(first.pag, first.addr))
    });
    planted_on(&["orphan"], ProblemKind::DoubleDataBlock, 1, |world, txn| {
        slot(txn, world.orphan, |slot| {
            slot.set_segments(&[segment(0, 5000)]);
            slot.set_blocks(1);
        })?;
        Ok(Subject::Data(PagId(1), PagBlock(5000)))
    });
    planted_on(&["orphan"], ProblemKind::OutsideDataBlock, 1, |world, txn| {
        slot(txn, world.orphan, |slot| {
            slot.set_segments(&[segment(0, 10_007)]);
            slot.set_blocks(1);
        })?;
        Ok(Subject::Data(PagId(1), PagBlock(10_007)))
    });
    planted(ProblemKind::LostDataBlock, 1, |world, txn| {
        let (pag, start, len) = txn.space().pool(world.client)?[0];
        POOLS.remove(txn, &pool_key(world.client, pag, start.0))?;
        assert!(len > 0);
        Ok(Subject::Data(pag, start))
    });
}

#[test]
fn segment_longer_than_its_file_counts_takes_no_blocks_from_others() {
    let world = world();
    let taken = run(&world.mfs, |txn| txn.layouts().layout(world.file, FileBlock(0), 1))[0];
    let before = contents(&world);
    for (start, pag) in [(5000, PagId(1)), (taken.addr.0, taken.pag)] {
        run(&world.mfs, |txn| {
            // Of two files the one that was changed last would keep a block.
            let attr = txn.names().attr(world.orphan)?.unwrap();
            let ctime = Timestamp { seconds: i64::MAX / 2, nanos: 0 };
            txn.names().set_attr(&Attr { ctime, size: 10, ..attr })?;
            slot(txn, world.orphan, |slot| {
                slot.set_segments(&[Segment { pag, len: 3000, ..segment(0, start) }]);
                slot.set_blocks(2999);
            })
        });
        let repaired = now(repair_open(&world.mfs, FsckOptions::default())).unwrap();
        assert_eq!(repaired.left.problems, [], "{:#?}", repaired.done);
        let cut = repaired.done.iter().filter(|line| line.contains("that it counts")).count();
        assert_eq!(cut, 1, "{:#?}", repaired.done);
        let mapped = run(&world.mfs, |txn| txn.layouts().layout(world.orphan, FileBlock(0), 9));
        assert_eq!(mapped[0].len, 2999, "{:#?}", repaired.done);
        if pag == PagId(1) {
            assert_eq!(contents(&world)["file"], before["file"]);
        }
    }
}

#[test]
fn content_of_a_zone_without_a_record_is_left_as_it_is() {
    let gone = |_: &World, txn: &mut Txn<'_>| PAGS.remove(txn, &pag_key(PagId(0))).map(drop);
    let foreign = |world: &World, txn: &mut Txn<'_>| {
        slot(txn, world.orphan, |slot| {
            slot.set_segments(&[Segment { pag: PagId(9), ..segment(0, 10) }]);
            slot.set_blocks(1);
        })
    };
    type Plant = dyn Fn(&World, &mut Txn<'_>) -> Result<(), Stop>;
    for (plant, zone) in [(&gone as &Plant, 0), (&foreign, 9)] {
        let world = world();
        // Other damage to data waits, too; that of the namespace does not.
        run(&world.mfs, |txn| {
            plant(&world, txn)?;
            txn.set_root(INODES, 99)?;
            slot(txn, world.file, |slot| slot.set_blocks(1))
        });
        let before = contents(&world);
        let pool = run(&world.mfs, |txn| txn.space().pool(world.client));
        run(&world.mfs, |txn| bytes(txn, world.moved, 0, &[0]));
        world.mfs.forget_indexes();
        let repaired = now(repair_open(&world.mfs, FsckOptions::default())).unwrap();
        let left = |kind| repaired.left.problems.iter().any(|problem| problem.kind == kind);
        assert!(left(ProblemKind::OutsideDataBlock), "{:?}", repaired.left.problems);
        assert_eq!(repaired.wanted, [format!("data zone {zone}: its device is not named")]);
        assert!(left(ProblemKind::WrongCount) && left(ProblemKind::WrongBlockCount));
        assert!(!left(ProblemKind::StaleMove), "{:#?}", repaired.done);
        let mut after = contents(&world);
        after.insert("moved", before["moved"].clone());
        assert_eq!(after, before, "{:#?}", repaired.done);
        assert_eq!(run(&world.mfs, |txn| txn.space().pool(world.client)), pool);
        assert_eq!(report(&world).problems, repaired.left.problems);
    }
}

#[test]
fn wrong_counts_and_states_and_unjoined_runs_are_found() {
    const ZONE: Subject = Subject::Data(PagId(1), PagBlock(0));
    planted(ProblemKind::WrongCount, 1, |_, txn| {
        let wrong = PagRecord { free: 1, ..txn.space().pag(PagId(1))?.unwrap() };
        PAGS.insert(txn, &pag_key(PagId(1)), &wrong.encode()).map(|_| ZONE)
    });
    planted(ProblemKind::BadZoneState, 1, |_, txn| {
        txn.space().set_pag_use(PagId(1), PagUse::Unknown(0x300)).map(|_| ZONE)
    });
    planted(ProblemKind::UnjoinedRuns, 1, |_, txn| {
        FREE.insert(txn, &run_key(PagId(1), 1), &99u64.to_le_bytes())?;
        FREE.insert(txn, &run_key(PagId(1), 100), &(9_999u64 - 99).to_le_bytes())?;
        Ok(Subject::Data(PagId(1), PagBlock(100)))
    });
}

#[test]
fn senseless_client_records_are_found() {
    let unknown = Subject::Client(ClientId(50));
    planted(ProblemKind::UnknownClient, 1, |_, txn| {
        txn.space().quarantine(ClientId(50)).map(|_| unknown)
    });
    planted(ProblemKind::UnknownClient, 1, |_, txn| {
        txn.set_reply(ClientId(50), 1, 1, b"x").map(|_| unknown)
    });
    planted(ProblemKind::HalfFrozen, 1, |world, txn| {
        FROZEN.remove(txn, &frozen_keys(world.client, world.file)[0])?;
        Ok(Subject::Inode(world.file))
    });
    planted(ProblemKind::BadRecord, 1, |_, txn| {
        SETTINGS.insert(txn, &[0, 0, 0, 3], &[0xff; 64])?;
        Ok(Subject::Setting(3))
    });
    planted(ProblemKind::BadCounter, 1, |world, txn| {
        txn.set_root(NEXT_CLIENT, 1)?;
        Ok(Subject::Client(world.client))
    });
}

#[test]
fn evicted_client_stays_evicted_when_the_quarantine_list_is_lost() {
    let world = world();
    let other = run(&world.mfs, |txn| txn.new_client(b"another"));
    run(&world.mfs, |txn| {
        let node = QUARANTINES.root_node(txn)?.unwrap();
        txn.init(node.block, BlockType::Blob).map(drop)
    });
    let kinds: Vec<_> = report(&world).problems.iter().map(|problem| problem.kind).collect();
    assert!(kinds.contains(&ProblemKind::DamagedBlock), "{kinds:?}");
    let repaired = now(repair_open(&world.mfs, FsckOptions::default())).unwrap();
    assert_eq!(repaired.left.problems, []);
    let said = repaired
        .lost
        .iter()
        .any(|lost| lost.to_string().contains("every client counts as evicted"));
    assert!(said, "{:?}", repaired.lost);
    for client in [world.client, other] {
        assert!(run(&world.mfs, |txn| txn.space().is_quarantined(client)), "{client}");
        let frozen = run(&world.mfs, |txn| txn.space().frozen(client));
        assert!(frozen.contains(&ALL_FILES), "{client}: {frozen:?}");
    }
}

#[test]
fn client_that_repair_adds_is_evicted_with_all_files_frozen() {
    let world = world();
    let gone = ClientId(50);
    run(&world.mfs, |txn| txn.space().quarantine(gone));
    let repaired = now(repair_open(&world.mfs, FsckOptions::default())).unwrap();
    assert_eq!(repaired.left.problems, []);
    assert_eq!(run(&world.mfs, |txn| txn.space().frozen(gone)), [ALL_FILES]);
    assert_eq!(run(&world.mfs, |txn| txn.space().frozen(world.client)), [world.file]);
}

#[test]
fn all_files_are_frozen_when_the_list_of_frozen_files_is_lost() {
    for both in [false, true] {
        let world = world();
        let other = run(&world.mfs, |txn| txn.new_client(b"another"));
        run(&world.mfs, |txn| {
            let node = FROZEN.root_node(txn)?.unwrap();
            txn.init(node.block, BlockType::Blob)?;
            if both {
                let node = QUARANTINES.root_node(txn)?.unwrap();
                txn.init(node.block, BlockType::Blob)?;
            }
            Ok(())
        });
        let repaired = now(repair_open(&world.mfs, FsckOptions::default())).unwrap();
        assert_eq!(repaired.left.problems, [], "{:#?}", repaired.done);
        let said = repaired
            .lost
            .iter()
            .any(|lost| lost.to_string().contains("which files evicted clients"));
        assert!(said, "{:?}", repaired.lost);
        assert_eq!(run(&world.mfs, |txn| txn.space().frozen(world.client)), [ALL_FILES]);
        let others = if both { vec![ALL_FILES] } else { vec![] };
        assert_eq!(run(&world.mfs, |txn| txn.space().frozen(other)), others);
        assert_eq!(run(&world.mfs, |txn| txn.space().is_quarantined(other)), both);
    }
}

#[test]
fn content_found_while_the_bitmap_is_lost_is_reported_as_perhaps_stale() {
    let damage = |bitmap: bool| {
        let world = world();
        run(&world.mfs, |txn| {
            let node = CHUNKS.root_node(txn)?.unwrap();
            txn.init(node.block, BlockType::Blob)?;
            if bitmap {
                let bitmap = txn.bitmap_first();
                txn.init(bitmap, BlockType::Blob)?;
            }
            Ok(())
        });
        world.mfs.forget_indexes();
        let repaired = now(repair_open(&world.mfs, FsckOptions::default())).unwrap();
        assert_eq!(repaired.left.problems, [], "{:#?}", repaired.done);
        repaired.lost.iter().any(|lost| lost.to_string().contains("names that were removed may"))
    };
    assert!(damage(true), "both");
    assert!(!damage(false), "the table alone");
}

#[test]
fn unreachable_inodes_go_to_lost_and_found() {
    planted_on(&["orphan"], ProblemKind::UnreachableInode, 1, |world, txn| {
        links(txn, world.orphan, 1)?;
        Ok(Subject::Inode(world.orphan))
    });
    planted(ProblemKind::MissingSystem, 40, |_, txn| {
        bytes(txn, Ino::ROOT, 0, &[0])?;
        Ok(Subject::Inode(Ino::ROOT))
    });
    // The inode of a directory is gone, its content is not.
    let content = |txn: &mut Txn<'_>, world: &World| {
        Ok::<_, Stop>(Subject::Chunk(DirNo(txn.names().locate_live(world.dir)?.1.body())))
    };
    planted_on(&["dir"], ProblemKind::LostChunk, 20, |world, txn| {
        let content = content(txn, world)?;
        bytes(txn, world.dir, 0, &[0])?;
        Ok(content)
    });
    // A directory below itself.
    planted_on(&["dir"], ProblemKind::LostChunk, 20, |world, txn| {
        let below = new_dir(txn, world.dir, "below")?;
        links(txn, world.dir, 1)?;
        txn.names().rename(Ino::ROOT, &name("dir"), below, &name("circle"))?;
        links(txn, Ino::ROOT, -1)?;
        links(txn, below, 1)?;
        content(txn, world)
    });
}

#[test]
fn namespace_index_that_disagrees_with_the_directories_is_found() {
    let entry = |txn: &mut Txn<'_>, dir: Ino| -> Result<NamespaceEntry, Stop> {
        let parent = DirNo(txn.names().locate_live(Ino::ROOT)?.1.body());
        Ok(NamespaceEntry { parent, stream: txn.names().locate_live(dir)?.1.stream(), dir })
    };
    planted(ProblemKind::UnindexedDirectory, 1, |world, txn| {
        let key = entry(txn, world.dir)?.key();
        assert!(NAMESPACE.remove(txn, &key)?.is_some());
        Ok(Subject::Inode(world.dir))
    });
    planted(ProblemKind::StaleIndexEntry, 1, |world, txn| {
        let key = NamespaceEntry { dir: Ino(world.dir.0 + 1), ..entry(txn, world.dir)? }.key();
        NAMESPACE.insert(txn, &key, &[0; 8])?;
        Ok(Subject::Inode(Ino(world.dir.0 + 1)))
    });
    // Of another stream than its slot says: there is one too many, and one is missing.
    planted(ProblemKind::UnindexedDirectory, 2, |world, txn| {
        slot(txn, world.dir, |slot| slot.set_stream(Stream::from_number(77)))?;
        Ok(Subject::Inode(world.dir))
    });
    planted(ProblemKind::BadIndexEntry, 1, |world, txn| {
        let key = entry(txn, world.dir)?.key();
        NAMESPACE.insert(txn, &key, &u64::MAX.to_le_bytes())?;
        Ok(Subject::Inode(world.dir))
    });
    // A node that cannot be read.
    planted(ProblemKind::DamagedBlock, 2, |_, txn| {
        let node = NAMESPACE.root_node(txn)?.unwrap();
        txn.init(node.block, BlockType::Blob)?;
        Ok(Subject::Block(node.block))
    });
}

/// Those that plant in the worlds of this module.
const HERE: &[fn()] = &[
    freed_run_that_was_unused_or_would_reissue_numbers_is_found,
    namespace_index_that_disagrees_with_the_directories_is_found,
    block_of_the_wrong_type_is_found,
    metadata_block_with_two_owners_is_found,
    address_outside_the_device_is_found,
    bitmap_that_disagrees_with_the_blocks_in_use_is_found,
    chunks_that_do_not_fit_are_found,
    senseless_slots_and_names_are_found,
    names_that_lead_wrong_are_found,
    inodes_in_the_wrong_place_are_found,
    damaged_xattrs_and_targets_are_found,
    senseless_inline_data_is_found,
    inline_data_flags_without_the_feature_are_cleared_and_segments_stay,
    unknown_flags_are_cleared_and_cost_nothing,
    senseless_layouts_are_found,
    senseless_layout_blocks_are_found,
    layout_blocks_without_their_feature_are_found,
    wrong_fragmentation_count_is_found,
    data_blocks_with_two_owners_or_none_are_found,
    wrong_counts_and_states_and_unjoined_runs_are_found,
    senseless_client_records_are_found,
    unreachable_inodes_go_to_lost_and_found,
];

/// Those that need a large directory, a device, or another release's.
const ELSEWHERE: &[fn()] = &[
    super::blobs_tests::two_that_have_each_others_blob_get_their_own_back,
    super::foreign_tests::numbers_of_another_shard_are_reported_as_such_and_left,
    super::homes_tests::senseless_homes_are_found_and_repaired,
    super::lmap::tests::what_is_wrong_in_a_name_map_is_found,
    super::journal_tests::damaged_header_or_label_of_a_journal_is_written_anew,
    super::device_tests::the_label_is_written_anew_and_a_damaged_log_is_left,
    super::label_tests::damaged_labels_of_data_devices_are_written_anew,
    super::device_tests::a_table_that_says_another_size_than_the_label_costs_nothing,
    crate::golden::wrong_slot_size_in_the_superblock_is_reported_and_repair_loses_nothing,
];

#[test]
fn every_kind_is_planted_found_and_repaired_or_left_as_documented() {
    let small = SlotSize::ALL.map(|size| (WORLDS[0], size));
    for (blocks, size) in small.into_iter().chain([(WORLDS[1], SlotSize::Bytes512)]) {
        BLOCKS.set(blocks);
        SLOTS.set(size);
        [HERE, super::objects_tests::HERE].concat().iter().for_each(|plant| plant());
    }
    BLOCKS.set(WORLDS[0]);
    SLOTS.set(SlotSize::Bytes512);
    ELSEWHERE.iter().for_each(|plant| plant());
    use ProblemKind::{BadLoan, DamagedLog, ForeignNumber, MissingTarget, OtherSlots};
    for &kind in ProblemKind::ALL {
        let left = [BadLoan, DamagedLog, ForeignNumber, MissingTarget, OtherSlots].contains(&kind);
        let outcome = SETTLED.with(|all| all.borrow().get(&kind).copied());
        assert_eq!(outcome, Some(if left { Outcome::Left } else { Outcome::Repaired }), "{kind:?}");
        assert_eq!(left, kind.repair().starts_with("nothing:"), "{kind:?}");
    }
}

#[test]
fn every_kind_has_its_texts_and_reports_are_bounded() {
    let texts: BTreeSet<&str> = ProblemKind::ALL.iter().map(|kind| kind.text()).collect();
    assert_eq!(texts.len(), ProblemKind::ALL.len());
    let mut report = Report::default();
    for _ in 0..super::PROBLEMS_MAX + 5 {
        report.add(ProblemKind::BadSlot, super::Subject::Whole, "");
    }
    assert_eq!((report.problems.len(), report.omitted), (super::PROBLEMS_MAX, 5));
}
