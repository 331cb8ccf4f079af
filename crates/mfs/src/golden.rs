//! Golden images: small file systems of each version of the format, as releases made them.
//!
//! Invariants:
//! - an image never changes after it was added; a new version or feature adds an image (`cargo
//!   xtask golden`, docs/FORMAT-CHANGES.md);
//! - each image is the state after a power cut, has a log that must be redone, and has every kind
//!   of structure;
//! - this release and all later ones find each image clean, read the tree that its text file
//!   describes, change the image, and leave it clean.
//!
//! An image `NAME.img` in `crates/mfs/golden` is `"REDBUDGOLD1\n"`, then, compressed
//! ([`compression`]), bytes of the device u64 and its blocks, each ⟨number u64, 4096 bytes⟩. A
//! block that is not in the image is zero. Images omit free blocks and what the log does not redo.
//! `NAME.txt` describes the tree.

mod compression;
mod tree;

use std::fmt::Write as _;
use std::path::PathBuf;

use env::sim::{SimDisk, SimWorld};
use env::{DiskOptions, Env};
use types::limits::BLOCK;
use types::{FileKind, Ino, MetaBlock, Name};

use compression::{compress, expand};

use crate::dump::dump;
use crate::dump::stream::{Inode, Reader, Record};
use crate::format::slot::SlotSize;
use crate::format::slot_size::SlotFeatures;
use crate::fsck::tests::{Outcome, settled};
use crate::fsck::{FsckOptions, ProblemKind, Repaired, Report, Subject, fsck, repair};
use crate::handle::Mfs;
use crate::names::MapLimits;
use crate::open::OpenOptions;
use engine::cost::Cost;
use engine::format::block::get_u64;
use engine::format::features::{Feature, Features};
use engine::format::superblock::Superblock;

/// Every image and its features.
const GOLDENS: &[(&str, Features)] = &[
    ("v1", Features::NONE),
    ("v1-inline-data", Features::NONE.with(Feature::INLINE_DATA)),
    ("v1-layout-blocks", Features::NONE.with(Feature::LAYOUT_BLOCKS)),
    ("v1-slots-1024", Features::NONE.with(Feature::SLOTS_1024)),
    ("v1-slots-2048", Features::NONE.with(Feature::SLOTS_2048)),
    ("v1-slots-4096", Features::NONE.with(Feature::SLOTS_4096)),
];
/// Features that no image can have.
const TRANSIENT: &[Feature] = &[Feature::UNFINISHED_LOAD];
/// Features of which no image of one device exists: the tests of the second reader make the pairs.
const PAIRED: &[Feature] = &[Feature::EXTERNAL_LOG];
const WRITE: DiskOptions = DiskOptions { write: true, exclusive: false };
const MAGIC: &[u8] = b"REDBUDGOLD1\n";
/// Most bytes of an image: it is in the repository for ever.
const IMAGE_MAX: usize = 100 << 10;

/// All features that an image can have, with slots of this size.
pub(crate) fn lasting(size: SlotSize) -> Features {
    let known = Feature::KNOWN.iter().map(|(feature, _)| *feature);
    let lasting = known.filter(|feature| !TRANSIENT.contains(feature) && !PAIRED.contains(feature));
    lasting.fold(Features::NONE, Features::with).with_slots(size)
}

fn path(name: &str, ending: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden").join(format!("{name}.{ending}"))
}

#[expect(clippy::disallowed_methods, reason = "golden images are files of the repository")]
fn read(name: &str, ending: &str) -> Vec<u8> {
    let path = path(name, ending);
    let missing = |error| panic!("{}: {error}; make it with `cargo xtask golden`", path.display());
    std::fs::read(&path).unwrap_or_else(missing)
}

/// Encodes the blocks of a device for which `keep` is true and that are not zero.
fn encode(disk: &SimDisk, keep: impl Fn(u64) -> bool) -> Vec<u8> {
    let mut raw = disk.size().to_le_bytes().to_vec();
    for block in (0..disk.size() / BLOCK as u64).filter(|&block| keep(block)) {
        let data = disk.peek(block * BLOCK as u64, BLOCK);
        if data.iter().any(|&byte| byte != 0) {
            raw.extend_from_slice(&block.to_le_bytes());
            raw.extend_from_slice(&data);
        }
    }
    [MAGIC, &compress(&raw)].concat()
}

fn decode(image: &[u8]) -> SimDisk {
    let raw = expand(image.strip_prefix(MAGIC).expect("a golden image"));
    let disk = SimDisk::new(get_u64(&raw, 0));
    for piece in raw[8..].chunks_exact(8 + BLOCK) {
        disk.poke(get_u64(piece, 0) * BLOCK as u64, &piece[8..]);
    }
    disk
}

/// Encodes a device without its meaningless blocks: free blocks, and the log except from its tail
/// to its end.
fn stripped(disk: &SimDisk) -> Vec<u8> {
    let (free, end): (Vec<bool>, u64) = on(&disk.fork(), |mfs| async move {
        let blocks = mfs.superblock().blocks;
        let all = |txn: &mut crate::Txn<'_>| {
            (0..blocks).map(|block| Ok(!txn.meta_allocated(MetaBlock(block))?)).collect()
        };
        let free = mfs.run(Cost::READ, all).await.unwrap().0;
        (free, mfs.last_committed().lsn.0)
    });
    let blocks = slice_blocks(disk);
    let copy = |index| {
        let place = Superblock::place(index, blocks).0 * BLOCK as u64;
        Superblock::decode(&disk.peek(place, BLOCK), index, blocks).unwrap()
    };
    // Recovery may start from either copy.
    let (tail, log) = (copy(0).tail.0.min(copy(1).tail.0), copy(0));
    let first = log.log_first.0;
    let redone = |block: u64| {
        let place = (log.log_offset(types::Lsn(tail)) / BLOCK as u64, log.log_blocks);
        (block + place.1 - place.0) % place.1 < (end - tail).div_ceil(BLOCK as u64)
    };
    encode(disk, |block| match block {
        _ if (first..first + log.log_blocks).contains(&block) => redone(block),
        // The last block is the label's second copy.
        _ => free.get(block as usize).is_none_or(|free| !free),
    })
}

/// Runs `body` with the store on `disk`, open read-only.
fn on<T: 'static, F: Future<Output = T>>(disk: &SimDisk, body: impl FnOnce(Mfs) -> F) -> T {
    in_world(disk, |env| async move {
        let device = env.open_disk("meta", WRITE).await.unwrap();
        let options = OpenOptions { read_only: true, ..options() };
        body(Mfs::open(&env, &device, options).await.unwrap()).await
    })
}

fn in_world<T: 'static, F: Future<Output = T>>(disk: &SimDisk, body: impl FnOnce(Env) -> F) -> T {
    let world = SimWorld::new(1);
    world.attach("meta", disk);
    world.run(body)
}

fn options() -> OpenOptions {
    OpenOptions { cache_bytes: 0, maps: MapLimits::TINY, ..OpenOptions::default() }
}

fn checked(disk: &SimDisk) -> Report {
    in_world(disk, |env| async move {
        let device = env.open_disk("meta", WRITE).await.unwrap();
        fsck(&env, &device, FsckOptions::default()).await.unwrap()
    })
}

/// Describes a device in lines: its tree, and the counts of a check.
fn text(disk: &SimDisk) -> String {
    let bytes = on(disk, |mfs| async move {
        let mut out = Vec::new();
        dump(&mfs, &[], &mut out).await.unwrap();
        out
    });
    let mut out = String::new();
    let mut input = &bytes[..];
    let mut reader = Reader::new(&mut input);
    loop {
        let record = reader.take().unwrap();
        line(&mut out, &record);
        if matches!(record, Record::End { .. }) {
            break;
        }
    }
    let counts = checked(disk).counts;
    let (names, segments, orphans) = (counts.names, counts.segments, counts.orphans);
    let (pooled, freed, clients) = (counts.pooled, counts.freed, counts.clients);
    writeln!(out, "{names} names, {segments} segments, {orphans} orphans").unwrap();
    writeln!(out, "{clients} clients, {pooled} blocks in pools, {freed} given up").unwrap();
    out
}

fn line(out: &mut String, record: &Record) {
    let shown = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        match text.len() {
            0..=80 => format!("{text:?}"),
            len => format!("{len} bytes with crc {:08x}", types::crc32c(bytes)),
        }
    };
    match record {
        Record::Head { name, zones, .. } => {
            writeln!(out, "file system {}", shown(name)).unwrap();
            for zone in zones {
                writeln!(out, "zone {} {} {}", zone.id, zone.uuid, zone.blocks).unwrap();
            }
        }
        Record::Inode(inode) => {
            let Inode { parent, name, attr, target, xattrs } = &**inode;
            let time = |time: types::Timestamp| format!("{}.{:09}", time.seconds, time.nanos);
            writeln!(
                out,
                "{} {:?} {} in {parent} mode {:o} uid {} gid {} rdev {} size {} version {}",
                attr.ino,
                attr.kind,
                shown(name),
                attr.mode,
                attr.uid,
                attr.gid,
                attr.rdev,
                attr.size,
                attr.version
            )
            .unwrap();
            let [a, m, c, b] = [attr.atime, attr.mtime, attr.ctime, attr.btime].map(time);
            writeln!(out, "  times {a} {m} {c} {b}").unwrap();
            if !target.is_empty() {
                writeln!(out, "  to {}", shown(target)).unwrap();
            }
            for (name, value) in xattrs {
                writeln!(out, "  xattr {} = {}", shown(name), shown(value)).unwrap();
            }
        }
        Record::Link { parent, name, number } => {
            writeln!(out, "{number} also {} in {parent}", shown(name)).unwrap();
        }
        Record::Segments { number, list } => {
            for e in list {
                writeln!(
                    out,
                    "{number} at {} {} of {}:{} {:?}",
                    e.file.0, e.len, e.pag, e.addr.0, e.state
                )
                .unwrap();
            }
        }
        Record::Content { number, bytes } => {
            let sum = types::crc32c(bytes);
            writeln!(out, "content {number} {} bytes {sum:08x}", bytes.len()).unwrap();
        }
        Record::End { inodes, links, segments } => {
            writeln!(out, "{inodes} inodes, {links} further names, {segments} segments").unwrap();
        }
    }
}

/// The device of a file system with these features, after a power cut.
fn new_device(features: Features) -> SimDisk {
    let disk = tree::make(features);
    let image = stripped(&disk);
    assert!(image.len() <= IMAGE_MAX, "{} bytes", image.len());
    disk
}

#[test]
#[expect(clippy::disallowed_methods, reason = "golden images are files of the repository")]
fn release_makes_the_tree_of_each_image() {
    let write = std::env::var("REDBUD_GOLDEN").is_ok_and(|what| what == "write");
    for &(name, features) in GOLDENS {
        let disk = new_device(features);
        if write && !path(name, "img").exists() {
            std::fs::write(path(name, "img"), stripped(&disk)).unwrap();
            std::fs::write(path(name, "txt"), text(&disk)).unwrap();
        }
        let found = decode(&stripped(&disk));
        assert!(text(&found).as_bytes() == read(name, "txt"), "{name}");
    }
}

#[test]
fn images_are_clean_have_their_tree_and_can_be_changed() {
    for &(name, features) in GOLDENS {
        let disk = decode(&read(name, "img"));
        let report = checked(&disk);
        assert_eq!((report.problems, report.omitted), (vec![], 0), "{name}");
        assert!(text(&disk).as_bytes() == read(name, "txt"), "{name}: another tree");
        let unclean = in_world(&disk, |env| async move {
            let device = env.open_disk("meta", WRITE).await.unwrap();
            let mfs = Mfs::open(&env, &device, options()).await.unwrap();
            let superblock = mfs.superblock();
            assert_eq!(superblock.features, features);
            change(&mfs).await;
            mfs.close().await.unwrap();
            superblock.epochs.len() > 2
        });
        assert!(unclean, "{name}");
        let report = checked(&disk);
        assert_eq!((report.problems, report.omitted), (vec![], 0), "{name}, changed");
    }
}

/// Creates, moves and removes in every directory.
async fn change(mfs: &Mfs) {
    let mut dirs = vec![Ino::ROOT];
    let mut at = 0;
    while let Some(&dir) = dirs.get(at) {
        at += 1;
        let entries =
            mfs.run(Cost::READ, |txn| txn.names().readdir(dir, 0, 100_000)).await.unwrap().0;
        dirs.extend(entries.iter().filter(|e| e.kind == FileKind::Directory).map(|e| e.ino));
        for n in 0..20 {
            let (name, to) = (Name::new(format!("new{n}").as_bytes()), format!("moved{n}"));
            let (name, to) = (name.unwrap(), Name::new(to.as_bytes()).unwrap());
            let made = mfs.run(Cost::SMALL, |txn| {
                txn.names().create(dir, &name, &tree::new(FileKind::Regular, n), None)?;
                txn.names().rename(dir, &name, dirs[at / 2], &to)
            });
            // In one directory the names already exist from the second iteration on.
            if let Err(error) = made.await {
                assert_eq!(error.fault(), types::Fault::Exists);
            }
        }
    }
}

#[test]
fn features_that_last_have_an_image_each() {
    let lasts = |known: &Feature| !TRANSIENT.contains(known) && !PAIRED.contains(known);
    for (feature, name) in Feature::KNOWN.iter().filter(|(known, _)| lasts(known)) {
        let has = |golden: &&(&str, Features)| golden.1.has(*feature);
        assert!(GOLDENS.iter().any(|golden| has(&golden)), "{name}: `cargo xtask golden`");
    }
}

#[test]
fn device_with_an_unknown_feature_is_refused_by_its_name() {
    let disk = decode(&read("v1", "img"));
    let blocks = slice_blocks(&disk);
    let with = |needed: u64, to_write: u64, bit: u8| {
        let disk = disk.fork();
        for index in 0..2 {
            let place = Superblock::place(index, blocks).0 * BLOCK as u64;
            let mut data = disk.peek(place, BLOCK);
            engine::format::block::put_u64(&mut data, 48, needed);
            engine::format::block::put_u64(&mut data, 200, to_write);
            engine::format::block::put_u16(&mut data, 2272, 7);
            data[2274..2281].copy_from_slice(&[bit, 5, b'w', b'a', b'r', b'p', b's']);
            engine::format::block::seal(&mut data);
            disk.poke(place, &data);
        }
        disk
    };
    let open = |disk: &SimDisk, read_only| {
        in_world(&disk.fork(), move |env| async move {
            let device = env.open_disk("meta", WRITE).await.unwrap();
            let opened = Mfs::open(&env, &device, OpenOptions { read_only, ..options() }).await;
            opened.map(drop).map_err(|error| error.to_string())
        })
    };
    let needed = with(1 << 50, 0, 50);
    for read_only in [true, false] {
        let error = open(&needed, read_only).unwrap_err();
        assert!(error.contains("(warps)") && error.contains("a newer release"), "{error}");
    }
    let to_write = with(0, 1 << 7, 64 + 7);
    assert_eq!(open(&to_write, true), Ok(()));
    assert_eq!(text(&to_write).as_bytes(), read("v1", "txt"));
    let error = open(&to_write, false).unwrap_err();
    assert!(error.contains("read but not write (warps)") && error.contains("dump"), "{error}");
}

/// Blocks of the slice that takes a device but for the label's second copy.
fn slice_blocks(disk: &SimDisk) -> u64 {
    disk.size() / BLOCK as u64 - 1
}

/// Both copies of the superblock.
fn copies(disk: &SimDisk) -> [Superblock; 2] {
    let blocks = slice_blocks(disk);
    [0, 1].map(|index| {
        let place = Superblock::place(index, blocks).0 * BLOCK as u64;
        Superblock::decode(&disk.peek(place, BLOCK), index, blocks).unwrap()
    })
}

/// Writes these features to both superblock copies.
fn set_features(disk: &SimDisk, features: Features) {
    let blocks = slice_blocks(disk);
    for (index, copy) in (0..).zip(copies(disk)) {
        let mut data = vec![0; BLOCK];
        Superblock { features, ..copy }.encode(index, &mut data);
        disk.poke(Superblock::place(index, blocks).0 * BLOCK as u64, &data);
    }
}

fn repaired(disk: &SimDisk) -> Repaired {
    in_world(disk, |env| async move {
        let device = env.open_disk("meta", WRITE).await.unwrap();
        repair(&env, &device, FsckOptions::default()).await.unwrap()
    })
}

#[test]
fn repair_writes_a_feature_that_the_superblock_is_missing() {
    let disk = decode(&read("v1-layout-blocks", "img"));
    let [features, _] = copies(&disk).map(|copy| copy.features);
    set_features(&disk, Features::NONE);
    let kinds: Vec<_> = checked(&disk).problems.iter().map(|problem| problem.kind).collect();
    assert_eq!(kinds, [ProblemKind::MissingFeature]);
    let left = repaired(&disk).left.problems;
    assert_eq!((left, checked(&disk).problems), (vec![], vec![]));
    assert!(copies(&disk).iter().all(|copy| copy.features == features));
}

#[test]
pub(crate) fn wrong_slot_size_in_the_superblock_is_reported_and_repair_loses_nothing() {
    for &(name, features) in GOLDENS {
        for slots in SlotSize::ALL.into_iter().filter(|&slots| slots != features.slots()) {
            let disk = decode(&read(name, "img"));
            set_features(&disk, features.with_slots(slots));
            let found = checked(&disk).problems;
            let kinds: Vec<_> = found.iter().map(|problem| problem.kind).collect();
            assert_eq!(kinds, [ProblemKind::OtherSlots], "{name}, {slots:?}");
            assert_eq!(found[0].subject, Subject::Whole);
            let Repaired { left, lost, done, .. } = repaired(&disk);
            assert_eq!((left.problems, lost, done), (found, vec![], vec![]), "{name}, {slots:?}");
            assert!(text(&disk).as_bytes() == read(name, "txt"), "{name}, {slots:?}");
            set_features(&disk, features);
            assert_eq!(checked(&disk).problems, [], "{name}, {slots:?}, and back");
        }
    }
    settled(ProblemKind::OtherSlots, Outcome::Left);
}
