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
//! `NAME.journal` is the image of the device of an external log, in the same form. `NAME.txt`
//! describes the tree, and where they are not the usual ones the log and the numbers. Of a file
//! system with other shards it also describes what leads there, and what is named there.

mod compression;
mod tree;

use std::fmt::Write as _;
use std::path::PathBuf;

use commitment::Part;
use env::sim::{SimDisk, SimWorld};
use env::{DiskOptions, Env};
use label::SliceKind;
use types::limits::BLOCK;
use types::{FileKind, Ino, MetaBlock, Name, ShardId};

use compression::{compress, expand};

use crate::dump::stream::{Inode, Reader, Record, TargetZone};
use crate::dump::{Source, dump};
use crate::format::number::root_dir;
use crate::format::outside::Outside;
use crate::format::slot::SlotSize;
use crate::format::slot_size::SlotFeatures;
use crate::fsck::tests::{Outcome, settled};
use crate::fsck::{
    ForeignName, FsckOptions, Guest, ProblemKind, Repaired, Report, ShardNames, Subject, check,
    fsck, repair,
};
use crate::handle::Mfs;
use crate::journal::Disks;
use crate::names::{DirEntry, MapLimits};
use crate::open::OpenOptions;
use crate::trees::NEXT_OBJECT;
use engine::cost::Cost;
use engine::format::block::get_u64;
use engine::format::features::{Feature, Features};
use engine::format::journal::LOG_FIRST;
use engine::format::superblock::Superblock;

/// An image: its name, and the features and the shard of its file system.
struct Golden {
    name: &'static str,
    features: Features,
    shard: ShardId,
}

const fn with(name: &'static str, feature: Feature) -> Golden {
    Golden { name, features: Features::NONE.with(feature), shard: ShardId(0) }
}

/// Every image.
const GOLDENS: &[Golden] = &[
    Golden { name: "v1", features: Features::NONE, shard: ShardId(0) },
    with("v1-external-log", Feature::EXTERNAL_LOG),
    Golden {
        name: "v1-followed-objects",
        features: Features::NONE
            .with(Feature::OBJECT_FILES)
            .with(Feature::SHARDS)
            .with(Feature::MOVED_DIRECTORIES)
            .with(Feature::FOLLOWED_OBJECTS),
        shard: ShardId(2),
    },
    with("v1-inline-data", Feature::INLINE_DATA),
    with("v1-layout-blocks", Feature::LAYOUT_BLOCKS),
    Golden {
        name: "v1-lent-space",
        features: Features::NONE.with(Feature::SHARDS).with(Feature::LENT_SPACE),
        shard: ShardId(2),
    },
    Golden {
        name: "v1-moved-directories",
        features: Features::NONE.with(Feature::SHARDS).with(Feature::MOVED_DIRECTORIES),
        shard: ShardId(2),
    },
    with("v1-object-files", Feature::OBJECT_FILES),
    Golden { name: "v1-shard-200", features: Features::NONE, shard: ShardId(200) },
    Golden { name: "v1-shards", features: Features::NONE.with(Feature::SHARDS), shard: ShardId(2) },
    with("v1-slots-1024", Feature::SLOTS_1024),
    with("v1-slots-2048", Feature::SLOTS_2048),
    with("v1-slots-4096", Feature::SLOTS_4096),
];
/// Features that no image can have.
const TRANSIENT: &[Feature] = &[Feature::UNFINISHED_LOAD];
/// Features that need a second device.
const PAIRED: &[Feature] = &[Feature::EXTERNAL_LOG];
const WRITE: DiskOptions = DiskOptions { write: true, exclusive: false };
const MAGIC: &[u8] = b"REDBUDGOLD1\n";
/// Most bytes of an image: it is in the repository for ever.
const IMAGE_MAX: usize = 100 << 10;

/// The devices of a file system.
struct Devices {
    home: SimDisk,
    /// The device of an external log.
    log: Option<SimDisk>,
}

/// All features that a file system on one device can have for long, with slots of this size.
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

/// The devices of an image.
fn devices(golden: &Golden) -> Devices {
    let external = golden.features.has(Feature::EXTERNAL_LOG);
    let log = external.then(|| decode(&read(golden.name, "journal")));
    Devices { home: decode(&read(golden.name, "img")), log }
}

/// The device of an image that has only one.
fn device(name: &str) -> Devices {
    Devices { home: decode(&read(name, "img")), log: None }
}

fn decode(image: &[u8]) -> SimDisk {
    let raw = expand(image.strip_prefix(MAGIC).expect("a golden image"));
    let disk = SimDisk::new(get_u64(&raw, 0));
    for piece in raw[8..].chunks_exact(8 + BLOCK) {
        disk.poke(get_u64(piece, 0) * BLOCK as u64, &piece[8..]);
    }
    disk
}

impl Devices {
    fn fork(&self) -> Devices {
        Devices { home: self.home.fork(), log: self.log.as_ref().map(SimDisk::fork) }
    }
}

/// The images of a file system's devices.
struct Images {
    home: Vec<u8>,
    journal: Option<Vec<u8>>,
}

impl Images {
    fn decode(&self) -> Devices {
        Devices { home: decode(&self.home), log: self.journal.as_deref().map(decode) }
    }
}

/// Encodes devices without their meaningless blocks: free blocks, and the log except from its tail
/// to its end.
fn stripped(devices: &Devices) -> Images {
    let (free, end): (Vec<bool>, u64) = on(&devices.fork(), |mfs| async move {
        let blocks = mfs.superblock().blocks;
        let all = |txn: &mut crate::Txn<'_>| {
            (0..blocks).map(|block| Ok(!txn.meta_allocated(MetaBlock(block))?)).collect()
        };
        let free = mfs.run(Cost::READ, all).await.unwrap().0;
        (free, mfs.last_committed().lsn.0)
    });
    let [log, other] = copies(&devices.home);
    // Recovery may start from either copy.
    let (tail, size) = (log.tail.0.min(other.tail.0), log.log_bytes() / BLOCK as u64);
    // Of the log's blocks, counted from its first one.
    let redone = |block: u64| {
        let from_tail = (block + size - tail / BLOCK as u64 % size) % size;
        from_tail < (end - tail).div_ceil(BLOCK as u64)
    };
    let (first, internal) = (log.log_first.0, log.journal.is_none());
    let home = encode(&devices.home, |block| match block.checked_sub(first) {
        Some(at) if at < log.log_blocks => internal && redone(at),
        // The last block is the label's second copy.
        _ => free.get(block as usize).is_none_or(|free| !free),
    });
    let journal = devices.log.as_ref().map(|disk| {
        encode(disk, |block| match block.checked_sub(LOG_FIRST.0) {
            Some(at) if at < size => redone(at),
            // The label's copies and the header's.
            _ => true,
        })
    });
    Images { home, journal }
}

/// Runs `body` with the store on these devices, open read-only.
fn on<T: 'static, F: Future<Output = T>>(devices: &Devices, body: impl FnOnce(Mfs) -> F) -> T {
    in_world(devices, |env, disks| async move {
        let options = OpenOptions { read_only: true, ..options() };
        body(Mfs::open(&env, &disks, options).await.unwrap()).await
    })
}

fn in_world<T: 'static, F: Future<Output = T>>(
    devices: &Devices,
    body: impl FnOnce(Env, Disks) -> F,
) -> T {
    let world = SimWorld::new(1);
    world.attach("meta", &devices.home);
    if let Some(log) = &devices.log {
        world.attach("log", log);
    }
    let external = devices.log.is_some();
    world.run(async move |env: Env| {
        let disks = disks(&env, external).await;
        body(env, disks).await
    })
}

async fn disks(env: &Env, external: bool) -> Disks {
    let home = env.open_disk("meta", WRITE).await.unwrap();
    let log = match external {
        true => Some(env.open_disk("log", WRITE).await.unwrap()),
        false => None,
    };
    Disks { home, log }
}

fn options() -> OpenOptions {
    OpenOptions { cache_bytes: 0, maps: MapLimits::TINY, ..OpenOptions::default() }
}

fn checked(devices: &Devices) -> Report {
    in_world(devices, |env, disks| async move {
        fsck(&env, &disks, FsckOptions::default()).await.unwrap()
    })
}

/// Describes a file system in lines: its tree, the counts of a check, and where they are not the
/// usual ones the log and the numbers.
fn text(devices: &Devices) -> String {
    let (bytes, unusual) = on(devices, |mfs| async move {
        let mut out = Vec::new();
        dump(&[Source::of(&mfs)], &mut out).await.unwrap();
        (out, unusual(&mfs).await)
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
    let report = checked(devices);
    let counts = report.counts;
    let (names, segments, orphans) = (counts.names, counts.segments, counts.orphans);
    let (pooled, freed, clients) = (counts.pooled, counts.freed, counts.clients);
    writeln!(out, "{names} names, {segments} segments, {orphans} orphans").unwrap();
    writeln!(out, "{clients} clients, {pooled} blocks in pools, {freed} given up").unwrap();
    out + &unusual + &elsewhere(devices, report.shard)
}

/// Describes names that lead to other shards, and inodes with names there; of the directories
/// among these also what is in them.
fn elsewhere(devices: &Devices, mut shard: ShardNames) -> String {
    let mut out = String::new();
    shard.names.sort();
    for ForeignName { dir, name, ino, kind } in &shard.names {
        let name = shown(name);
        writeln!(out, "{name} in {:016x} leads to {:016x} {kind:?}", dir.0, ino.0).unwrap();
    }
    for Guest { ino, kind, outside } in shard.guests {
        let inode = format!("{:016x} {kind:?}", ino.0);
        match outside {
            Outside::Names(names) => writeln!(out, "{inode} has {names} names elsewhere").unwrap(),
            Outside::Parent(parent) => {
                writeln!(out, "{inode} is in {:016x}", parent.0).unwrap();
                out += &on(devices, |mfs| async move { entries(&mfs, ino).await });
            }
        }
    }
    out
}

/// Describes what is in a directory.
async fn entries(mfs: &Mfs, dir: Ino) -> String {
    let list = mfs.run(Cost::READ, |txn| txn.names().readdir(dir, 0, 1000)).await.unwrap().0;
    let line = |it: &DirEntry| {
        format!("  {} {:016x} {:?}\n", shown(it.name.as_bytes()), it.ino.0, it.kind)
    };
    list.iter().map(line).collect()
}

/// Describes a log that is external, what targets have still to do, and operations of several
/// shards. Also lent space, directories that moved, and the numbers of a shard other than 0.
async fn unusual(mfs: &Mfs) -> String {
    let (superblock, mut out) = (mfs.superblock(), String::new());
    if let Some(journal) = superblock.journal {
        writeln!(out, "{} blocks of log in a journal", journal.blocks).unwrap();
    }
    if superblock.features.has(Feature::OBJECT_FILES) {
        let numbers = mfs.run(Cost::READ, |txn| {
            let mut doomed = Vec::new();
            let mut owed = Vec::new();
            for pag in txn.space().pags()? {
                let id = pag.id;
                doomed.extend(txn.space().doomed(id, 99)?.into_iter().map(|it| (id.0, it.0)));
                owed.extend(txn.space().owed_fences(id, 99)?.into_iter().map(|it| (id.0, it.0)));
            }
            Ok((txn.root(NEXT_OBJECT)?, doomed, owed))
        });
        let (next, doomed, owed) = numbers.await.unwrap().0;
        writeln!(out, "next object {next}, doomed {doomed:?}, owed fences {owed:?}").unwrap();
    }
    if superblock.features.has(Feature::SHARDS) {
        for (id, entry) in mfs.run(Cost::READ, |txn| txn.intents().all()).await.unwrap().0 {
            let operation = mfs.run(Cost::READ, |txn| txn.intents().get(id)).await.unwrap().0;
            let bytes = operation.unwrap().1;
            let workers = match entry.part {
                Part::Coordinator(workers) => workers.into_iter().map(|shard| shard.0).collect(),
                Part::Worker => Vec::new(),
            };
            let (protocol, kept) = (entry.protocol.name(), entry.kept);
            let sum = types::crc32c(&bytes);
            writeln!(
                out,
                "operation {id} {protocol} {kept:?} workers {workers:?}, {} bytes {sum:08x}",
                bytes.len()
            )
            .unwrap();
        }
    }
    if superblock.features.has(Feature::LENT_SPACE) {
        for (pag, start, lent) in mfs.run(Cost::READ, |txn| txn.space().lent()).await.unwrap().0 {
            let (shard, sequence) = (lent.shard.0, lent.sequence);
            writeln!(out, "lent {pag}:{start} {} shard {shard} loan {sequence}", lent.len).unwrap();
        }
    }
    if superblock.features.has(Feature::MOVED_DIRECTORIES) {
        let homes = mfs.run(Cost::READ, |txn| txn.names().homes(Ino::NONE, 99));
        for (ino, home) in homes.await.unwrap().0 {
            writeln!(out, "{:016x} is on shard {}", ino.0, home.0).unwrap();
        }
    }
    if superblock.features.has(Feature::FOLLOWED_OBJECTS) {
        let objects = check(mfs).await.unwrap().shard.objects.into_iter();
        for (object, ino) in objects.filter(|(object, _)| object.shard() != superblock.shard) {
            writeln!(out, "inode {:016x} lies in object {:016x}", ino.0, object.0).unwrap();
        }
    }
    if superblock.shard == ShardId(0) {
        return out;
    }
    let numbers = mfs.run(Cost::READ, |txn| {
        let clients = txn.clients()?.into_iter().map(|(client, _)| client.0);
        let clients: Vec<_> = clients.collect();
        let orphans = txn.names().orphans(Ino(0), 1000)?;
        Ok((txn.root_dir().0, clients, orphans.into_iter().map(|ino| ino.0).collect::<Vec<_>>()))
    });
    let (root, clients, orphans) = numbers.await.unwrap().0;
    writeln!(out, "shard {}, root {root:016x}", superblock.shard.0).unwrap();
    writeln!(out, "clients {clients:012x?}").unwrap();
    writeln!(out, "orphans {orphans:016x?}").unwrap();
    out
}

fn target_line(out: &mut String, target: &TargetZone, address: &str) {
    writeln!(out, "target {} {} {} at {address}", target.id, target.uuid, target.blocks).unwrap();
}

fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    match text.len() {
        0..=80 => format!("{text:?}"),
        len => format!("{len} bytes with crc {:08x}", types::crc32c(bytes)),
    }
}

fn line(out: &mut String, record: &Record) {
    match record {
        Record::Head { name, zones, targets, .. } => {
            writeln!(out, "file system {}", shown(name)).unwrap();
            for zone in zones {
                writeln!(out, "zone {} {} {}", zone.id, zone.uuid, zone.blocks).unwrap();
            }
            targets.iter().for_each(|target| target_line(out, target, &shown(&target.address)));
        }
        Record::Inode(inode) => {
            let Inode { server: _, parent, name, attr, target, xattrs } = &**inode;
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
        Record::Object { number, record } => {
            let targets: Vec<u16> = record.targets.iter().map(|target| target.0).collect();
            let (object, part) = (record.object.0, record.part);
            writeln!(out, "object {number} is {object:016x} in {part} on {targets:?}").unwrap();
        }
        Record::End { inodes, links, segments } => {
            writeln!(out, "{inodes} inodes, {links} further names, {segments} segments").unwrap();
        }
    }
}

/// The images of a file system with this image's properties, after a power cut.
fn new_images(golden: &Golden) -> Images {
    let images = stripped(&tree::make(golden));
    for image in [Some(&images.home), images.journal.as_ref()].into_iter().flatten() {
        assert!(image.len() <= IMAGE_MAX, "{} bytes", image.len());
    }
    images
}

#[test]
#[expect(clippy::disallowed_methods, reason = "golden images are files of the repository")]
fn release_makes_the_tree_of_each_image() {
    let write = std::env::var("REDBUD_GOLDEN").is_ok_and(|what| what == "write");
    for golden in GOLDENS {
        let name = golden.name;
        let images = new_images(golden);
        let made = images.decode();
        if write && !path(name, "img").exists() {
            std::fs::create_dir_all(path(name, "img").with_file_name("")).unwrap();
            if let Some(journal) = &images.journal {
                std::fs::write(path(name, "journal"), journal).unwrap();
            }
            std::fs::write(path(name, "img"), &images.home).unwrap();
            std::fs::write(path(name, "txt"), text(&made)).unwrap();
        }
        assert!(text(&made).as_bytes() == read(name, "txt"), "{name}");
    }
}

#[test]
fn images_are_clean_have_their_tree_and_can_be_changed() {
    for golden in GOLDENS {
        let (name, features, shard) = (golden.name, golden.features, golden.shard);
        let devices = devices(golden);
        let report = checked(&devices);
        assert_eq!((report.problems, report.omitted), (vec![], 0), "{name}");
        assert!(text(&devices).as_bytes() == read(name, "txt"), "{name}: another tree");
        let unclean = in_world(&devices, |env, disks| async move {
            let mfs = Mfs::open(&env, &disks, options()).await.unwrap();
            let superblock = mfs.superblock();
            assert_eq!((superblock.features, superblock.shard), (features, shard));
            check_labels(&disks, &superblock).await;
            change(&mfs).await;
            mfs.close().await.unwrap();
            superblock.epochs.len() > 2
        });
        assert!(unclean, "{name}");
        let report = checked(&devices);
        assert_eq!((report.problems, report.omitted), (vec![], 0), "{name}, changed");
    }
}

/// The labels are whole, and name the slices and their pairing as the superblock does.
async fn check_labels(disks: &Disks, superblock: &Superblock) {
    let (shard, metadata) = (superblock.shard.0, superblock.metadata);
    let journal = superblock.journal.map(|journal| journal.uuid);
    let home = (SliceKind::Metadata { shard, journal }, metadata);
    let log = journal.map(|uuid| (SliceKind::Journal { shard, metadata }, uuid));
    let disks = [Some(&disks.home), disks.log.as_ref()];
    for (disk, expected) in disks.into_iter().flatten().zip([Some(home), log]) {
        let found = label::read(disk).await.unwrap();
        assert_eq!((found.damage, found.label.fs_uuid), (None, superblock.uuid));
        let slices: Vec<_> = found.label.slices.iter().map(|it| (it.kind, it.uuid)).collect();
        assert_eq!(slices, Vec::from_iter(expected));
    }
}

/// Creates, moves and removes in every directory.
async fn change(mfs: &Mfs) {
    let shard = mfs.superblock().shard;
    let mut dirs = vec![root_dir(shard)];
    let guests = mfs.run(Cost::READ, |txn| txn.names().guests(Ino::NONE, 99)).await.unwrap().0;
    let directory = |(_, outside): &(Ino, Outside)| matches!(outside, Outside::Parent(_));
    dirs.extend(guests.into_iter().filter(directory).map(|(ino, _)| ino));
    let mut at = 0;
    while let Some(&dir) = dirs.get(at) {
        at += 1;
        let entries =
            mfs.run(Cost::READ, |txn| txn.names().readdir(dir, 0, 100_000)).await.unwrap().0;
        let here = entries.iter().filter(|e| e.attr.is_some());
        dirs.extend(here.filter(|e| e.kind == FileKind::Directory).map(|e| e.ino));
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
    for (feature, name) in Feature::KNOWN.iter().filter(|(known, _)| !TRANSIENT.contains(known)) {
        let has = |golden: &Golden| golden.features.has(*feature);
        assert!(GOLDENS.iter().any(has), "{name}: `cargo xtask golden`");
    }
}

#[test]
fn device_with_an_unknown_feature_is_refused_by_its_name() {
    let device = device("v1");
    let blocks = slice_blocks(&device.home);
    let with = |needed: u64, to_write: u64, bit: u8| {
        let device = device.fork();
        let disk = &device.home;
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
        device
    };
    let open = |device: &Devices, read_only| {
        in_world(&device.fork(), move |env, disks| async move {
            let opened = Mfs::open(&env, &disks, OpenOptions { read_only, ..options() }).await;
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

fn repaired(devices: &Devices) -> Repaired {
    in_world(devices, |env, disks| async move {
        repair(&env, &disks, FsckOptions::default()).await.unwrap()
    })
}

#[test]
fn repair_writes_a_feature_that_the_superblock_is_missing() {
    let device = device("v1-layout-blocks");
    let [features, _] = copies(&device.home).map(|copy| copy.features);
    set_features(&device.home, Features::NONE);
    let kinds: Vec<_> = checked(&device).problems.iter().map(|problem| problem.kind).collect();
    assert_eq!(kinds, [ProblemKind::MissingFeature]);
    let left = repaired(&device).left.problems;
    assert_eq!((left, checked(&device).problems), (vec![], vec![]));
    assert!(copies(&device.home).iter().all(|copy| copy.features == features));
}

#[test]
pub(crate) fn wrong_slot_size_in_the_superblock_is_reported_and_repair_loses_nothing() {
    for golden in GOLDENS {
        let (name, features) = (golden.name, golden.features);
        for slots in SlotSize::ALL.into_iter().filter(|&slots| slots != features.slots()) {
            let devices = devices(golden);
            set_features(&devices.home, features.with_slots(slots));
            let found = checked(&devices).problems;
            let kinds: Vec<_> = found.iter().map(|problem| problem.kind).collect();
            assert_eq!(kinds, [ProblemKind::OtherSlots], "{name}, {slots:?}");
            assert_eq!(found[0].subject, Subject::Whole);
            let Repaired { left, lost, done, .. } = repaired(&devices);
            assert_eq!((left.problems, lost, done), (found, vec![], vec![]), "{name}, {slots:?}");
            assert!(text(&devices).as_bytes() == read(name, "txt"), "{name}, {slots:?}");
            set_features(&devices.home, features);
            assert_eq!(checked(&devices).problems, [], "{name}, {slots:?}, and back");
        }
    }
    settled(ProblemKind::OtherSlots, Outcome::Left);
}
