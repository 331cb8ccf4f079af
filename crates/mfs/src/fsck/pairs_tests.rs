//! Damage to one or two blocks of those that everything is found through, on devices with one
//! bitmap block.
//!
//! In the gate a part of the pairs is tried; `REDBUD_PAIRS=all cargo test -p redbud-mfs
//! fsck::pairs` tries all of them, with slots of each size, each pair damaged in every way.
//!
//! Invariants:
//! - the log does not have the blocks any more, so what is mended comes from other blocks;
//! - every inode whose slot was not in the damaged blocks is there after a repair, as it was, by
//!   its path or in lost+found; at its path, where neither content of directories was damaged nor
//!   everything that says where inodes are;
//! - nothing is found by a second check, and the table of data zones says of each what it said,
//!   which is taken from their labels;
//! - what was removed does not come back, though free blocks still say something of it.

use std::collections::{BTreeMap, BTreeSet};

use env::sim::{CrashOptions, SimDisk, SimRng};
use types::limits::BLOCK;
use types::{
    DirNo, Fault, FileBlock, FileKind, Ino, MetaBlock, PagBlock, PagId, Segment, SegmentState, Uuid,
};

use super::device_tests::{
    Shape, WRITE, ZONES, directory, flip, in_world, name, new, populated_as, run, wipe_log, zones,
};
use super::fix::{Fixer, RepairState};
use super::plan::Fix;
use super::{FsckOptions, Repaired, Report, fsck, repair, whole_check};
use crate::format::chunk::ContentRun;
use crate::format::number::SYSTEM_CHUNK;
use crate::format::segment::{SEGMENT_KEY, segment_key};
use crate::format::slot::{SLOTS_PER_BLOCK, Slot, SlotSize, SlotState};
use crate::golden::lasting;
use crate::handle::Mfs;
use crate::layouts::LayoutLimits;
use crate::names::MapLimits;
use crate::open::OpenOptions;
use crate::testing::links;
use crate::trees;
use crate::txn::Txn;
use engine::alloc::metaspace::bitmap_blocks;
use engine::btree::{NodeContent, Tree, entries_of};
use engine::cost::Cost;
use engine::error::Stop;
use engine::format::block::{self, Block, BlockType, type_of};
use engine::format::roots::ROOTS_BLOCK;
use engine::format::superblock::Superblock;

const OPTIONS: FsckOptions<'_> =
    FsckOptions { cache_bytes: 0, jobs: 1, zones: &ZONES, ..FsckOptions::USUAL };
/// Directories that come and go, and files in each.
const GONE: (usize, usize) = (3, 40);

/// Number, UUID and blocks of a data zone.
type Zone = (PagId, Uuid, u64);

/// A block, and what it is for.
type Critical = (String, u64);

/// A device, and what a repair of it must keep.
struct Device {
    disk: SimDisk,
    /// Blocks that are free.
    free: Vec<u64>,
    critical: Vec<Critical>,
    /// All that can be read, by path.
    before: BTreeMap<String, String>,
    /// The data zones.
    zones: Vec<Zone>,
    /// Inodes that were removed.
    removed: BTreeSet<String>,
}

fn top<const K: usize, const V: usize>(txn: &Txn<'_>, tree: Tree<K, V>) -> Result<u64, Stop> {
    Ok(tree.root_node(txn)?.map_or(0, |node| node.block.0))
}

/// The roots of all trees that there are.
fn tree_roots(txn: &mut Txn<'_>) -> Result<Vec<Critical>, Stop> {
    use trees::{
        CHUNKS, CLIENTS, FREE, FREED, FROZEN, MOVED, NAMESPACE, ORPHANS, PAGS, POOLS, QUARANTINES,
        REPLIES, SEGMENTS, SETTINGS,
    };
    let all = [
        ("directory table", top(txn, CHUNKS)?),
        ("moved inodes", top(txn, MOVED)?),
        ("orphans", top(txn, ORPHANS)?),
        ("segments", top(txn, SEGMENTS)?),
        ("data zones", top(txn, PAGS)?),
        ("free space", top(txn, FREE)?),
        ("pools", top(txn, POOLS)?),
        ("freed space", top(txn, FREED)?),
        ("quarantines", top(txn, QUARANTINES)?),
        ("frozen files", top(txn, FROZEN)?),
        ("clients", top(txn, CLIENTS)?),
        ("replies", top(txn, REPLIES)?),
        ("settings", top(txn, SETTINGS)?),
        ("namespace index", top(txn, NAMESPACE)?),
    ];
    assert!(all.iter().all(|(_, block)| *block != 0), "{all:?}");
    Ok(all.into_iter().map(|(what, block)| (what.to_owned(), block)).collect())
}

/// The first block of a directory, and that of its name map if it has one.
fn first_blocks(txn: &mut Txn<'_>, dir: Ino) -> Result<Vec<MetaBlock>, Stop> {
    let (_, slot) = txn.names().locate_live(dir)?;
    let mut out = Vec::new();
    for chunk in [slot.body(), slot.map()].map(DirNo).into_iter().filter(|chunk| chunk.0 != 0) {
        txn.names().ensure_chunk(chunk)?;
        let runs = txn.names().chunk(chunk)?.runs.clone();
        let first = runs.iter().find(|run| run.is_present());
        out.extend(first.map(|run: &ContentRun| run.start));
    }
    Ok(out)
}

fn child(txn: &mut Txn<'_>, dir: Ino, text: &str) -> Result<Ino, Stop> {
    txn.names().lookup(dir, &name(text.to_owned()))?.ok_or(Stop::Fault(Fault::NotFound))
}

/// The blocks through which everything else is found, and one of each sort of content of
/// directories.
fn critical(txn: &mut Txn<'_>) -> Result<Vec<Critical>, Stop> {
    let blocks = txn.meta_space().0;
    let mut out = vec![
        ("first superblock".to_owned(), Superblock::place(0, blocks).0),
        ("second superblock".to_owned(), Superblock::place(1, blocks).0),
        ("roots".to_owned(), ROOTS_BLOCK.0),
    ];
    let first = txn.bitmap_first().0;
    let bitmap = |at| (format!("bitmap {at}"), first + at);
    out.extend((0..bitmap_blocks(blocks)).map(bitmap));
    out.extend(tree_roots(txn)?);
    txn.names().ensure_chunk(SYSTEM_CHUNK)?;
    out.push((
        "content: root and orphans".to_owned(),
        txn.names().chunk(SYSTEM_CHUNK)?.runs[0].start.0,
    ));
    let dir = child(txn, Ino::ROOT, "d0")?;
    for (what, of) in [("root directory", Ino::ROOT), ("directory", dir)] {
        let parts = ["content:", "name map:"];
        for (part, block) in parts.into_iter().zip(first_blocks(txn, of)?) {
            out.push((format!("{part} {what}"), block.0));
        }
    }
    Ok(out)
}

async fn open(env: &env::Env) -> Mfs {
    let disk = env.open_disk("meta", WRITE).await.unwrap();
    let (maps, layouts) = (MapLimits::TINY, LayoutLimits::TINY);
    let options = OpenOptions { cache_bytes: 0, maps, layouts, ..OpenOptions::default() };
    Mfs::open(env, &disk, options).await.unwrap()
}

/// Makes what will be removed: directories with files, and most of the segments of a file; and
/// files that have a layout block ahead, which is allocated and was never written.
async fn come(mfs: &Mfs) -> BTreeSet<String> {
    let parent = run(mfs, |txn| child(txn, Ino::ROOT, "d0")).await;
    let mut removed = BTreeSet::new();
    for n in 0..GONE.0 {
        let dir = run(mfs, |txn| directory(txn, parent, format!("gone{n}"))).await;
        removed.insert(dir.to_string());
        for m in 0..GONE.1 {
            let text = name(format!("gone{m}"));
            let file =
                run(mfs, |txn| txn.names().create(dir, &text, &new(FileKind::Regular), None)).await;
            removed.insert(file.to_string());
        }
    }
    let client = run(mfs, |txn| txn.new_client(b"another")).await;
    let (pag, addr, _) = run(mfs, |txn| txn.space().grant(client, None, 1000)).await[0];
    let kind = new(FileKind::Regular);
    let long = run(mfs, |txn| txn.names().create(parent, &name("long".into()), &kind, None)).await;
    for n in 0..900 {
        let (addr, state) = (PagBlock(addr.0 + n), SegmentState::Written);
        let segment = Segment { file: FileBlock(2 * n), len: 1, pag, addr, state };
        run(mfs, |txn| txn.layouts().map(long, client, segment)).await;
    }
    for n in 0..6 {
        run(mfs, |txn| txn.names().create(parent, &name(format!("ahead{n}")), &kind, None)).await;
    }
    assert!(mfs.volatile_state().space.unused.len() > 0, "layout blocks ahead");
    removed
}

async fn go(mfs: &Mfs) {
    let parent = run(mfs, |txn| child(txn, Ino::ROOT, "d0")).await;
    for n in 0..GONE.0 {
        let text = format!("gone{n}");
        let dir = run(mfs, |txn| child(txn, parent, &text)).await;
        for m in 0..GONE.1 {
            run(mfs, |txn| {
                let file = txn.names().remove_name(dir, &name(format!("gone{m}")))?;
                links(txn, file, -1)?;
                txn.names().free_inode_step(file, 100)
            })
            .await;
        }
        run(mfs, |txn| {
            txn.names().remove_name(parent, &name(text.clone()))?;
            links(txn, parent, -1)?;
            links(txn, dir, -2)
        })
        .await;
        while !run(mfs, |txn| txn.names().free_inode_step(dir, 100)).await {}
    }
    let long = run(mfs, |txn| child(txn, parent, "long")).await;
    for n in 100..800 {
        run(mfs, |txn| txn.layouts().unmap(long, FileBlock(2 * n), FileBlock(2 * n + 1))).await;
    }
}

/// A block of a device.
fn block_at(disk: &SimDisk, at: u64) -> Box<Block> {
    Box::new(disk.peek(at * BLOCK as u64, BLOCK)[..].try_into().unwrap())
}

/// Inodes whose slots are in a block of content.
fn inside(disk: &SimDisk, at: u64) -> BTreeSet<String> {
    let data = block_at(disk, at);
    if !type_of(&data).is_some_and(BlockType::is_content) {
        return BTreeSet::new();
    }
    let slots = (0..SLOTS_PER_BLOCK).map(|n| Slot::load(&data, n));
    let inodes = slots.filter(|slot| slot.state() == SlotState::Inode);
    inodes.map(|slot| slot.ino().to_string()).collect()
}

impl Device {
    fn new(size: SlotSize) -> Device {
        let shape = Shape { features: lasting(size), maps: MapLimits::TINY, dirs: 12 };
        let disk = populated_as(shape);
        let (removed, segments) = in_world(&disk, |env| async move {
            let mfs = open(&env).await;
            let removed = come(&mfs).await;
            let segments = run(&mfs, |txn| top(txn, trees::SEGMENTS)).await;
            mfs.close().await.unwrap();
            (removed, segments)
        });
        // A repair leaves leaves behind that say what was in them; by themselves trees empty those
        // that they give back.
        wipe_log(&disk);
        Way::Zeros.damage(&disk, segments, &mut SimRng::new(1));
        assert!(repaired(&disk).1.is_clean());
        let (critical, free) = in_world(&disk, |env| async move {
            let mfs = open(&env).await;
            go(&mfs).await;
            let found = run(&mfs, |txn| Ok((critical(txn)?, free_blocks(txn)?))).await;
            mfs.close().await.unwrap();
            found
        });
        wipe_log(&disk);
        // Content is emptied before its block becomes free.
        let stale = |&at: &u64| {
            let data = block_at(&disk, at);
            type_of(&data) == Some(BlockType::Tree)
                && (data[32], usize::from(data[33])) == (0, SEGMENT_KEY)
                && entries_of(&data) > 0
        };
        assert!(free.iter().any(stale), "{size:?}: free leaves of the tree of segments");
        assert!(free.iter().all(|&at| inside(&disk, at).is_empty()), "{size:?}: free content");
        let (before, zones) = (readable(&disk), table(&disk));
        Device { disk, free, critical, before, zones, removed }
    }

    /// The block with this role.
    fn block(&self, role: &str) -> u64 {
        self.critical.iter().find(|(of, _)| of == role).unwrap().1
    }

    /// The device with that role damaged, and the bitmap lost.
    fn without_bitmap_and(&self, disk: &SimDisk, role: &str) -> SimDisk {
        let broken = disk.fork();
        for role in ["bitmap 0", role] {
            broken.poke(self.block(role) * BLOCK as u64, &[0xa5; BLOCK]);
        }
        broken
    }

    /// All pairs but that of the superblocks.
    fn pairs(&self) -> Vec<[&Critical; 2]> {
        let mut out = Vec::new();
        for (n, first) in self.critical.iter().enumerate() {
            let rest = self.critical[n + 1..].iter();
            let both = |role: &str| role.ends_with("superblock");
            let rest = rest.filter(|second| !(both(&first.0) && both(&second.0)));
            out.extend(rest.map(|second| [first, second]));
        }
        out
    }
}

/// What the table of data zones says of each, but for counts.
fn table(disk: &SimDisk) -> Vec<Zone> {
    zones(disk).iter().map(|zone| (zone.id, zone.uuid, zone.total)).collect()
}

fn free_blocks(txn: &mut Txn<'_>) -> Result<Vec<u64>, Stop> {
    let mut out = Vec::new();
    for at in 0..txn.meta_space().0 {
        if !txn.meta_allocated(MetaBlock(at))? {
            out.push(at);
        }
    }
    Ok(out)
}

/// What an inode is, but for the names it has.
fn told(txn: &mut Txn<'_>, ino: Ino) -> Result<String, Stop> {
    let attr = txn.names().attr(ino)?.ok_or(Stop::Fault(Fault::NotFound))?;
    let mut text = format!("{ino} {:?} {:o}", attr.kind, attr.mode);
    match attr.kind {
        FileKind::Regular => {
            let layout = format!("{:?}", txn.layouts().layout(ino, FileBlock(0), 2000)?);
            let sum = types::crc32c(&[layout.as_bytes(), &txn.layouts().content(ino)?].concat());
            text +=
                &format!(" {} {} {sum:x} {:?}", attr.size, attr.blocks, txn.names().xattrs(ino)?);
        }
        FileKind::Symlink => text += &format!(" {}", txn.names().symlink(ino)?.len()),
        _ => {}
    }
    Ok(text)
}

/// All that can be read of inodes, by their paths; what cannot be read is left out.
fn readable(disk: &SimDisk) -> BTreeMap<String, String> {
    in_world(&disk.fork(), |env| async move {
        let mfs = open(&env).await;
        let mut out = BTreeMap::new();
        let mut queue = vec![(String::new(), Ino::ROOT)];
        while let Some((path, dir)) = queue.pop() {
            let listed = mfs.run(Cost::READ, |txn| txn.names().readdir(dir, 0, 10_000)).await;
            for entry in listed.map_or(Vec::new(), |(entries, _)| entries) {
                let path = format!("{path}/{}", String::from_utf8_lossy(entry.name.as_bytes()));
                let found =
                    mfs.run(Cost::READ, |txn| match txn.names().lookup(dir, &entry.name)? {
                        Some(ino) if ino == entry.ino => told(txn, ino),
                        _ => Err(Stop::Fault(Fault::NotFound)),
                    });
                if let Ok((text, _)) = found.await {
                    out.insert(path.clone(), text);
                    if entry.kind == FileKind::Directory {
                        queue.push((path, entry.ino));
                    }
                }
            }
        }
        out
    })
}

/// The number of the inode of which this was told.
fn number(text: &str) -> &str {
    text.split(' ').next().unwrap()
}

/// All inodes that were told, whatever their paths, but lost+found, and those that repair makes in
/// it for content, as of further names alone, of which it does not know the directory: their names
/// are other numbers than theirs.
fn inodes(told: &BTreeMap<String, String>) -> BTreeSet<&String> {
    let made = |(path, text): &(&String, &String)| {
        let name = path.strip_prefix("/lost+found").filter(|_| text.contains(" Directory "));
        let direct = name.filter(|name| !name.trim_start_matches('/').contains('/'));
        direct.is_some_and(|name| name.is_empty() || name != format!("/#{}", number(text)))
    };
    told.iter().filter(|entry| !made(entry)).map(|(_, text)| text).collect()
}

/// How a block is damaged.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Some bits are wrong.
    Flipped,
    /// All of it is.
    Overwritten,
    /// It is as if it had never been written.
    Zeros,
}

impl Way {
    const ALL: [Way; 3] = [Way::Flipped, Way::Overwritten, Way::Zeros];

    fn damage(self, disk: &SimDisk, at: u64, rng: &mut SimRng) {
        match self {
            Way::Flipped => drop(flip(disk, at, rng)),
            Way::Overwritten => disk.poke(at * BLOCK as u64, &[0xa5; BLOCK]),
            Way::Zeros => disk.poke(at * BLOCK as u64, &[0; BLOCK]),
        }
    }
}

fn repaired(disk: &SimDisk) -> (Repaired, Report) {
    in_world(disk, |env| async move {
        let disk = env.open_disk("meta", WRITE).await.unwrap();
        let repaired = repair(&env, &disk, OPTIONS).await.unwrap();
        (repaired, fsck(&env, &disk, OPTIONS).await.unwrap())
    })
}

/// Damages these blocks, repairs, and says what does not hold.
fn faults(device: &Device, pair: &[&Critical], way: Way, rng: &mut SimRng) -> Vec<String> {
    let disk = device.disk.fork();
    pair.iter().for_each(|(_, at)| way.damage(&disk, *at, rng));
    let (repaired, again) = repaired(&disk);
    let has = |role: &str| pair.iter().any(|(of, _)| of.starts_with(role));
    let mut out = Vec::new();
    let left = &repaired.left.problems;
    if !left.is_empty() || !again.is_clean() {
        out.push(format!("left {left:?}, then {:?}; wanted {:?}", again.problems, repaired.wanted));
    } else if table(&disk) != device.zones {
        out.push(format!("the data zones are {:?}", zones(&disk)));
    }
    let lost: BTreeSet<String> =
        pair.iter().flat_map(|(_, at)| inside(&device.disk, *at)).collect();
    // What both of them said is in no other place.
    let unknown = has("directory table") && has("moved inodes");
    let after = readable(&disk);
    let mut by_number: BTreeMap<&str, Vec<(&String, &String)>> = BTreeMap::new();
    for (path, text) in &after {
        by_number.entry(number(text)).or_default().push((path, text));
    }
    for (path, text) in device.before.iter().filter(|(_, text)| !lost.contains(number(text))) {
        let Some(found) = by_number.get(number(text)) else {
            out.push(format!("{path} ({text}) is gone"));
            continue;
        };
        let was =
            |path: &str| device.before.get(path).is_some_and(|was| number(was) == number(text));
        let at_home = found.iter().any(|(path, _)| was(path));
        let rescued = found.iter().any(|(path, _)| path.starts_with("/lost+found/"));
        if !(at_home || has("content") && rescued || unknown) {
            out.push(format!("{path} is at {found:?}"));
        }
        if found[0].1 != text {
            out.push(format!("{path} was {text}, is {}", found[0].1));
        }
    }
    let back = after.iter().filter(|(_, text)| device.removed.contains(number(text)));
    out.extend(back.map(|(path, _)| format!("{path} is back")));
    if !out.is_empty() {
        out.truncate(6);
        let roles: Vec<_> = pair.iter().map(|(role, at)| format!("{role} ({at})")).collect();
        out.insert(0, format!("{way:?}: {}", roles.join(" and ")));
        out.extend(repaired.done.iter().take(40).cloned());
    }
    out
}

/// Is this pair, the `at`-th, tried in the gate? All that tell what is used and where directories
/// are, and all with what only labels tell; with larger slots those from which least is left.
fn is_sampled(size: SlotSize, pair: [&Critical; 2], at: usize) -> bool {
    let first = ["bitmap 0", "directory table"].contains(&&*pair[0].0);
    let second = ["directory table", "moved inodes"].contains(&&*pair[1].0);
    match size {
        SlotSize::Bytes512 => first || pair[1].0 == "data zones" || at.is_multiple_of(5),
        _ => first && second,
    }
}

#[test]
fn damaged_pair_of_blocks_costs_no_inode_outside_of_them() {
    let all = std::env::var("REDBUD_PAIRS").is_ok_and(|what| what == "all");
    let mut rng = SimRng::new(31);
    let mut tried = 0;
    for size in SlotSize::ALL {
        let device = Device::new(size);
        for (at, pair) in device.pairs().into_iter().enumerate() {
            let sampled = is_sampled(size, pair, at);
            let ways = Way::ALL.into_iter().enumerate();
            for (_, way) in ways.filter(|(n, _)| all || sampled && at % 3 == *n) {
                tried += 1;
                let faults = faults(&device, &pair, way, &mut rng);
                assert!(faults.is_empty(), "{size:?} {}", faults.join("\n  "));
            }
        }
    }
    assert!(tried > 60, "{tried}");
}

#[test]
fn damaged_block_costs_no_inode_outside_of_it() {
    let (device, mut rng) = (Device::new(SlotSize::Bytes512), SimRng::new(32));
    assert!(device.critical.iter().any(|(role, _)| role == "data zones"));
    for critical in &device.critical {
        for way in Way::ALL {
            let faults = faults(&device, &[critical], way, &mut rng);
            assert!(faults.is_empty(), "{}", faults.join("\n  "));
        }
    }
}

#[test]
fn root_is_rebuilt_where_nothing_leads_to_anything_any_more() {
    let mut rng = SimRng::new(33);
    for size in [SlotSize::Bytes512, SlotSize::Bytes4096] {
        let device = Device::new(size);
        let role = |text: &str| device.critical.iter().find(|(role, _)| role == text).unwrap();
        let roles = ["bitmap 0", "content: root and orphans", "directory table"].map(role);
        for way in Way::ALL {
            let faults = faults(&device, &roles, way, &mut rng);
            assert!(faults.is_empty(), "{size:?} {}", faults.join("\n  "));
        }
    }
}

#[test]
fn block_that_only_the_log_has_is_not_reused_where_the_bitmap_is_lost() {
    let device = Device::new(SlotSize::Bytes512);
    // The log speaks of the inodes in one block, and neither of the bitmap nor of the directory
    // table.
    let disk = device.disk.fork();
    let block = in_world(&disk, |env| async move {
        let mfs = open(&env).await;
        let block = run(&mfs, |txn| {
            let dir = child(txn, Ino::ROOT, "d0")?;
            let file = child(txn, dir, "long")?;
            let attr = txn.names().attr(file)?.unwrap();
            txn.names().set_attr(&types::Attr { mode: 0o600, ..attr })?;
            Ok(txn.names().locate_live(file)?.0.block)
        })
        .await;
        mfs.close().await.unwrap();
        block
    });
    let before = readable(&disk);
    assert!(inside(&disk, block.0).len() > 3);
    let broken = device.without_bitmap_and(&disk, "directory table");
    broken.poke(block.0 * BLOCK as u64, &[0; BLOCK]);
    let (repaired, again) = repaired(&broken);
    assert_eq!((repaired.left.problems, again.problems), (vec![], vec![]), "{:#?}", repaired.done);
    assert!(repaired.done.iter().any(|line| line.contains("from the log")), "{:#?}", repaired.done);
    assert_eq!(inodes(&readable(&broken)), inodes(&before), "{:#?}", repaired.done);
}

#[test]
fn leaf_that_only_the_log_has_is_part_of_a_tree_with_a_lost_root() {
    let device = Device::new(SlotSize::Bytes512);
    let root = device.block("segments");
    for bitmap in [false, true] {
        let disk = device.disk.fork();
        let leaf = in_world(&disk, |env| async move {
            let mfs = open(&env).await;
            let leaf = run(&mfs, |txn| {
                let dir = child(txn, Ino::ROOT, "d0")?;
                let file = child(txn, dir, "long")?;
                txn.layouts().unmap(file, FileBlock(2 * 820), FileBlock(2 * 820 + 1))?;
                let way = trees::SEGMENTS.descend(txn, &segment_key(file, 2 * 820))?;
                Ok(*way.unwrap().nodes.last().unwrap())
            });
            let leaf = leaf.await;
            mfs.close().await.unwrap();
            leaf
        });
        let before = readable(&disk);
        assert_ne!(leaf.0, root);
        let broken = disk.fork();
        let mut lost = vec![root, leaf.0];
        lost.extend(bitmap.then(|| device.block("bitmap 0")));
        lost.iter().for_each(|at| broken.poke(at * BLOCK as u64, &[0xa5; BLOCK]));
        let (repaired, again) = repaired(&broken);
        assert_eq!(
            (repaired.left.problems, again.problems),
            (vec![], vec![]),
            "{:#?}",
            repaired.done
        );
        assert_eq!(readable(&broken), before, "{:#?}", repaired.done);
    }
}

#[test]
fn bitmap_is_restored_from_the_log() {
    let device = Device::new(SlotSize::Bytes512);
    let disk = device.disk.fork();
    in_world(&disk, |env| async move {
        let mfs = open(&env).await;
        run(&mfs, |txn| txn.alloc_meta(1, None).and_then(|at| txn.free_meta(at, 1))).await;
        run(&mfs, |txn| directory(txn, Ino::ROOT, "late".into())).await;
        let late = run(&mfs, |txn| child(txn, Ino::ROOT, "late")).await;
        run(&mfs, |txn| txn.names().create(late, &name("f".into()), &new(FileKind::Fifo), None))
            .await;
        mfs.close().await.unwrap();
    });
    let broken = disk.fork();
    broken.poke(device.block("bitmap 0") * BLOCK as u64, &[0xa5; BLOCK]);
    let (repaired, again) = repaired(&broken);
    assert!(again.is_clean());
    assert_eq!(repaired.done.len(), 1, "{:#?}", repaired.done);
    assert!(repaired.done[0].contains("from the log"), "{:#?}", repaired.done);
}

#[test]
fn repair_finds_room_on_a_device_whose_free_blocks_were_all_used() {
    let device = Device::new(SlotSize::Bytes512);
    let broken = device.without_bitmap_and(&device.disk, "directory table");
    let never = |&at: &u64| block_at(&broken, at)[..].iter().all(|&byte| byte == 0);
    let never: Vec<u64> = device.free.iter().copied().filter(never).collect();
    assert!(never.len() > 1000, "{}", never.len());
    for at in never {
        // As far as anybody knows it may be an attribute of a file.
        let mut data = Box::new([0; BLOCK]);
        let tag = block::tag_of(types::Uuid([9; 16]));
        block::initialise(&mut data, MetaBlock(at), BlockType::Blob, tag);
        block::seal(&mut data[..]);
        broken.poke(at * BLOCK as u64, &data[..]);
    }
    let (repaired, again) = repaired(&broken);
    assert_eq!((repaired.left.problems, again.problems), (vec![], vec![]), "{:#?}", repaired.done);
    assert_eq!(inodes(&readable(&broken)), inodes(&device.before), "{:#?}", repaired.done);
}

/// The mapped blocks of a file, and where they lie.
fn mapped(disk: &SimDisk, text: &str) -> BTreeSet<(u64, u64)> {
    in_world(&disk.fork(), |env| async move {
        let mfs = open(&env).await;
        let layout = run(&mfs, |txn| {
            let dir = child(txn, Ino::ROOT, "d0")?;
            let file = child(txn, dir, text)?;
            txn.layouts().layout(file, FileBlock(0), 2000)
        });
        layout.await.iter().map(|segment| (segment.file.0, segment.addr.0)).collect()
    })
}

#[test]
fn stale_segments_do_not_return_where_leaf_and_bitmap_are_lost() {
    let device = Device::new(SlotSize::Bytes512);
    let files = ["long", "big"].map(|text| (text, mapped(&device.disk, text)));
    let leaves = in_world(&device.disk.fork(), |env| async move {
        let mfs = open(&env).await;
        run(&mfs, |txn| {
            let root = trees::SEGMENTS.root_node(txn)?.unwrap();
            match trees::SEGMENTS.inspect(txn, &root)? {
                NodeContent::Inner(_, leaves) => Ok(leaves),
                NodeContent::Leaf(_) => panic!("the root is no leaf"),
            }
        })
        .await
    });
    let mut fewer = 0;
    for leaf in leaves {
        let broken = device.without_bitmap_and(&device.disk, "pools");
        broken.poke(leaf.block.0 * BLOCK as u64, &[0xa5; BLOCK]);
        let (repaired, again) = repaired(&broken);
        assert_eq!((repaired.left.problems, again.problems), (vec![], vec![]));
        for (text, before) in &files {
            let now = mapped(&broken, text);
            assert!(now.is_subset(before), "{text}: {:?}", now.difference(before));
            fewer += before.len() - now.len();
        }
    }
    assert!(fewer > 100, "{fewer}");
}

#[test]
fn interrupted_repair_of_bitmap_and_tree_is_finished_by_the_next() {
    let device = Device::new(SlotSize::Bytes512);
    let wanted = inodes(&device.before);
    for role in ["directory table", "segments"] {
        let broken = device.without_bitmap_and(&device.disk, role);
        broken.record();
        assert!(repaired(&broken).1.is_clean());
        let options = CrashOptions { seed: 3, subsets: 1 };
        let mut images = 0;
        for point in broken.recording().unwrap().crash_images(options) {
            images += 1;
            let (again, clean) = repaired(point.disk());
            let what = format!("{role}: {}: {:#?}", point.description, again.done);
            assert_eq!((again.left.problems, clean.problems), (vec![], vec![]), "{what}");
            assert_eq!(inodes(&readable(point.disk())), wanted, "{what}");
        }
        assert!(images > 10, "{images}");
    }
}

#[test]
fn lost_bitmap_is_remembered_until_a_repair_ends_well() {
    let device = Device::new(SlotSize::Bytes512);
    let broken = device.without_bitmap_and(&device.disk, "segments");
    let word = |disk: &SimDisk| {
        in_world(&disk.fork(), |env| async move {
            let mfs = open(&env).await;
            run(&mfs, |txn| txn.root(trees::UNFINISHED)).await
        })
    };
    // A repair that ends with its first step.
    in_world(&broken, |env| async move {
        let disk = env.open_disk("meta", WRITE).await.unwrap();
        let options = OpenOptions { cache_bytes: 0, repair: true, ..OpenOptions::default() };
        let mfs = Mfs::open(&env, &disk, options).await.unwrap();
        let check = whole_check(&mfs, OPTIONS).await.unwrap();
        let mut kept = RepairState::new(&mfs).await.unwrap();
        kept.engine.salvaged.list(&mfs).await.unwrap();
        let mut fixer = Fixer::new(&mfs, check, kept);
        assert!(fixer.apply(&Fix::LostBitmap(0)).await.unwrap().is_some());
        mfs.close().await.unwrap();
    });
    assert_eq!(word(&broken), 1);
    let (repaired, again) = repaired(&broken);
    assert_eq!((repaired.left.problems, again.problems), (vec![], vec![]), "{:#?}", repaired.done);
    // What leaves of the past say has not come back.
    assert_eq!(inodes(&readable(&broken)), inodes(&device.before), "{:#?}", repaired.done);
    assert_eq!(word(&broken), 0);
}
