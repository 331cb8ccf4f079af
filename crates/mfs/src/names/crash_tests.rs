//! Crashes of the namespace, layouts and data space at every moment.
//!
//! Random operations run on a recorded disk; after each, the test records everything that can be
//! read. It recovers every image that a power cut may leave. The recovered state must equal that
//! after some operation, not older than the newest durable one, and `fsck` must find nothing. The
//! same is done to a store whose cache is as small as possible.
//!
//! Each sweep (crashes here; failing calls, and no space, in `faults`) meets every lasting feature
//! with slots of every size: [`Swept`] reports a feature that no operation used.

mod dump;
mod faults;
mod homes;
mod intents;
mod loans;
mod objects;
mod outside;
mod planted;

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Write;

use env::sim::{CrashOptions, DiskAction, DiskFault, SimDisk, SimRng, SimWorld, crash_images};
use env::{DiskOptions, Env};
use types::limits::BLOCK;
use types::{
    Attr, ClientId, DirNo, Fault, FileBlock, FileKind, Ino, Name, PagBlock, PagId, Segment,
    SegmentState, Transno, Uuid,
};

use self::dump::dump_inode;
use self::planted::planted;
use super::{MapLimits, NewInode, Within};
use crate::format::object::ObjectRecord;
use crate::format::slot::SlotSize;
use crate::format::slot_size::SlotFeatures;
use crate::fsck::{FsckOptions, ProblemKind, check, fsck};
use crate::golden::lasting;
use crate::handle::Mfs;
use crate::layouts::LayoutLimits;
use crate::mkfs::{FormatOptions, PagFormat};
use crate::open::OpenOptions;
use crate::testing::new_inode;
use crate::trees::NEXT_CHUNK;
use crate::txn::Txn;
use engine::cost::{Cost, Reserve};
use engine::error::{Stop, StoreError};
use engine::format::block::{get_u64, put_u64};
use engine::format::features::{Feature, Features};

const COST: Cost = Cost { log_bytes: 100 << 10, dirty: 32, reserve: Reserve::ToFree };
const WRITE: DiskOptions = DiskOptions { write: true, exclusive: false };
const SIZE: u64 = 6 << 20;
const LOG: u64 = 512 << 10;
/// The setting in which an operation notes its number.
const COUNT: u32 = 1;
/// A sweep looks for features in use after each of so many operations.
const LOOK: usize = 10;

async fn open(env: &Env) -> Mfs {
    open_as(env, MapLimits::USUAL, LayoutLimits::USUAL).await
}

/// Opens a store with the limits of this seed.
async fn open_with(env: &Env, seed: u64) -> Mfs {
    open_as(env, maps(seed), layouts(seed)).await
}

async fn open_as(env: &Env, maps: MapLimits, layouts: LayoutLimits) -> Mfs {
    let disk = env.open_disk("meta", WRITE).await.unwrap();
    let options = OpenOptions { cache_bytes: 0, maps, layouts, ..OpenOptions::default() };
    Mfs::open(env, &disk, options).await.unwrap()
}

/// Four seeds of five (one for each size of slots) give small directories name maps.
fn maps(seed: u64) -> MapLimits {
    if seed.is_multiple_of(5) { MapLimits::USUAL } else { MapLimits::TINY }
}

/// For the same seeds a layout block holds few segments, and files get theirs early.
fn layouts(seed: u64) -> LayoutLimits {
    if seed.is_multiple_of(5) { LayoutLimits::USUAL } else { LayoutLimits::TINY }
}

/// Structures that every file system may have, by their names in [`Swept`].
const NAME_MAP: &str = "name map";
const BLOB: &str = "blob";
const OUTSIDE: &str = "names on other shards";

/// Features and structures of which a sweep found something on the device, by the size of slots.
#[derive(Default)]
struct Swept(BTreeSet<(SlotSize, &'static str)>);

impl Swept {
    /// Notes what is in use now.
    async fn look(&mut self, mfs: &Mfs) {
        let size = mfs.superblock().features.slots();
        let used = mfs.run(Cost::READ, in_use).await.unwrap().0;
        self.0.extend(used.into_iter().map(|name| (size, name)));
    }

    /// Checks that each lasting feature and structure was met with slots of each size. A new
    /// feature that no operation uses fails this.
    fn met_all(&self) {
        for size in SlotSize::ALL {
            let features = lasting(size).iter().filter_map(Feature::name);
            for name in features.chain([NAME_MAP, BLOB, OUTSIDE]) {
                assert!(self.0.contains(&(size, name)), "no operation met {name} with {size:?}");
            }
        }
    }
}

/// The features and structures of which something is on the device. A new feature needs its own
/// answer here.
fn in_use(txn: &mut Txn<'_>) -> Result<BTreeSet<&'static str>, Stop> {
    let sizes = [Feature::SLOTS_1024, Feature::SLOTS_2048, Feature::SLOTS_4096];
    let sizes = sizes.into_iter().filter(|&size| txn.has_feature(size));
    let mut out: BTreeSet<_> = sizes.filter_map(Feature::name).collect();
    let shared = intents::describe(txn)?;
    out.extend(Feature::SHARDS.name().filter(|_| !shared.is_empty()));
    let has_loans = !loans::describe(txn)?.is_empty();
    out.extend(Feature::LENT_SPACE.name().filter(|_| has_loans));
    let has_moved = !homes::describe(txn)?.is_empty();
    out.extend(Feature::MOVED_DIRECTORIES.name().filter(|_| has_moved));
    out.extend((!outside::describe(txn)?.is_empty()).then_some(OUTSIDE));
    for dir in directories(txn)? {
        let mapped = txn.names().locate_live(dir)?.1.map() != 0;
        out.extend(mapped.then_some(NAME_MAP));
        for entry in txn.names().readdir(dir, 0, 1000)? {
            if outside::is_far(txn, entry.ino)? {
                continue;
            }
            let slot = txn.names().locate_live(entry.ino)?.1;
            let regular = entry.kind == FileKind::Regular;
            let layout = regular && !slot.layout_blocks().is_empty() && slot.body() > 0;
            let content = regular && slot.has_content();
            out.extend((!slot.blobs().is_empty()).then_some(BLOB));
            out.extend(Feature::INLINE_DATA.name().filter(|_| content));
            out.extend(Feature::LAYOUT_BLOCKS.name().filter(|_| layout));
            out.extend(Feature::OBJECT_FILES.name().filter(|_| regular && slot.has_object()));
            let far = |record: ObjectRecord| record.object.shard() != txn.shard();
            let far = regular && slot.object().is_some_and(far);
            out.extend(Feature::FOLLOWED_OBJECTS.name().filter(|_| far));
        }
    }
    Ok(out)
}

/// Seeds use the sizes of slots in turn.
fn slots(seed: u64) -> SlotSize {
    SlotSize::ALL[(seed + 3) as usize % SlotSize::ALL.len()]
}

fn formatted(size: SlotSize) -> SimDisk {
    formatted_with(size, SIZE, LOG)
}

fn formatted_with(size: SlotSize, bytes: u64, log_bytes: u64) -> SimDisk {
    let world = SimWorld::new(1);
    let disk = world.disk("meta", bytes);
    world.run(|env| async move {
        let disk = env.open_disk("meta", WRITE).await.unwrap();
        let pag = |id: u16| PagFormat::whole(PagId(id), Uuid([id as u8; 16]), 500);
        let options = FormatOptions {
            name: "home".to_owned(),
            uuid: Uuid([9; 16]),
            log_bytes,
            pags: vec![pag(3), pag(4)],
            features: lasting(size),
            force: false,
        };
        Mfs::format(&env, &disk, &options).await.unwrap();
    });
    disk
}

fn new(kind: FileKind) -> NewInode<'static> {
    let symlink = (kind == FileKind::Symlink).then_some(&[b't'; 700][..]);
    NewInode { symlink, ..new_inode(kind) }
}

/// Random numbers are smaller; those of planted operations need not be.
const DRAWN: u64 = 1 << 20;

/// An operation, drawn before it runs so that it can run again.
#[derive(Clone, Debug)]
struct Draw {
    kind: u64,
    numbers: [u64; 6],
}

struct Work {
    rng: SimRng,
    /// Operations before the random ones.
    first: VecDeque<Draw>,
    /// What could be read after each operation.
    dumps: Vec<String>,
}

fn any_name(number: u64) -> Name {
    let len = [1, 8, 60, 255][(number % 4) as usize];
    Name::new(&vec![b'a' + (number / 4 % 5) as u8; len]).unwrap()
}

fn many(number: u64) -> Name {
    Name::new(format!("m{number}").as_bytes()).unwrap()
}

/// The root, directories with names on other shards, and all directories below them.
fn directories(txn: &mut Txn<'_>) -> Result<Vec<Ino>, Stop> {
    let mut out = vec![Ino::ROOT];
    out.extend(outside::directories(txn)?);
    let mut at = 0;
    while at < out.len() {
        for entry in txn.names().readdir(out[at], 0, 1000)? {
            if entry.kind == FileKind::Directory && !outside::is_far(txn, entry.ino)? {
                out.push(entry.ino);
            }
        }
        at += 1;
    }
    Ok(out)
}

fn links(txn: &mut Txn<'_>, ino: Ino, change: i32) -> Result<u32, Stop> {
    let attr = txn.names().attr(ino)?.ok_or(Stop::Fault(Fault::Stale))?;
    let nlink = attr.nlink.saturating_add_signed(change);
    txn.names().set_attr(&Attr { nlink, version: attr.version + 1, ..attr })?;
    Ok(nlink)
}

fn operate(txn: &mut Txn<'_>, client: ClientId, draw: &Draw) -> Result<(), Stop> {
    let [a, b, c, d, e, f] = draw.numbers;
    let dirs = directories(txn)?;
    let (dir, other) = (dirs[a as usize % dirs.len()], dirs[b as usize % dirs.len()]);
    let (name, second) = (any_name(c), any_name(d));
    let old = txn.names().lookup(dir, &name)?;
    if let Some(ino) = old
        && outside::is_far(txn, ino)?
        && draw.kind != 36
    {
        return outside::with_name(txn, draw.kind, (dir, &name), (other, &second));
    }
    let kind = match old {
        Some(ino) => txn.names().attr(ino)?.map(|attr| attr.kind),
        None => None,
    };
    match draw.kind {
        0..=4 if old.is_none() => {
            let kind =
                [FileKind::Regular, FileKind::Regular, FileKind::Directory, FileKind::Symlink]
                    [e as usize % 4];
            txn.names().create(dir, &name, &new(kind), None)?;
            if kind == FileKind::Directory {
                links(txn, dir, 1)?;
            }
        }
        5..=6 => {
            let Some(ino) = old else { return Ok(()) };
            if kind == Some(FileKind::Directory) {
                if !txn.names().is_empty(ino)? {
                    return Ok(());
                }
                links(txn, dir, -1)?;
            }
            if e % 2 == 1 && txn.names().free_with_name(dir, &name)?.is_some() {
                return Ok(());
            }
            txn.names().remove_name(dir, &name)?;
            links(txn, ino, if kind == Some(FileKind::Directory) { -2 } else { -1 })?;
        }
        7 => {
            let Some(ino) = old.filter(|_| kind != Some(FileKind::Directory)) else {
                return Ok(());
            };
            if txn.names().lookup(other, &second)?.is_none() {
                txn.names().link(other, &second, ino)?;
                links(txn, ino, 1)?;
            }
        }
        8..=9 => {
            let Some(ino) = old else { return Ok(()) };
            let within = txn.names().is_within(other, ino)? == Within::Yes;
            if txn.names().lookup(other, &second)?.is_some() || within {
                return Ok(());
            }
            txn.names().rename(dir, &name, other, &second)?;
            if kind == Some(FileKind::Directory) {
                links(txn, dir, -1)?;
                links(txn, other, 1)?;
            }
        }
        10 => {
            if let Some(ino) = old {
                txn.names().set_xattr(
                    ino,
                    b"user.a",
                    &vec![e as u8; [3, 300, 9000][f as usize % 3]],
                )?;
            }
        }
        11 => {
            txn.names().create_orphan(&new(FileKind::Regular), None)?;
        }
        12..=13 => {
            for ino in txn.names().orphans(Ino(0), 3)? {
                txn.names().free_inode_step(ino, 2)?;
            }
        }
        14 => match txn.space().grant(client, None, 1 + e % 40) {
            Err(Stop::Fault(Fault::NoSpace)) => {}
            other => drop(other?),
        },
        15..=18 => {
            let Some(ino) = old.filter(|_| kind == Some(FileKind::Regular)) else { return Ok(()) };
            let pool = txn.space().pool(client)?;
            let Some(&(pag, start, len)) = pool.get(e as usize % pool.len().max(1)) else {
                return Ok(());
            };
            let state = if f % 2 == 0 { SegmentState::Written } else { SegmentState::Unwritten };
            let (addr, len) = (PagBlock(start.0 + e % len), 1 + f % (len - e % len).min(5));
            let segment = Segment { file: FileBlock(f % 100), len, pag, addr, state };
            txn.layouts().map(ino, client, segment)?;
        }
        19 => {
            if let Some(ino) = old.filter(|_| kind == Some(FileKind::Regular)) {
                txn.layouts().mark_written(ino, FileBlock(e % 100), 1 + f % 30)?;
                txn.layouts().unmap(ino, FileBlock(f % 100), FileBlock(f % 100 + 10))?;
            }
        }
        20 => drop(txn.space().release_freed(5)?),
        22 => {
            let dir = dirs[a as usize % dirs.len().min(2)];
            for name in (0..30 + e % 60).map(many) {
                if txn.names().lookup(dir, &name)?.is_none() {
                    txn.names().create(dir, &name, &new(FileKind::Regular), None)?;
                }
            }
        }
        23 => {
            let dir = dirs[a as usize % dirs.len().min(2)];
            for name in (f % 3 * 20..90).map(many) {
                if let Some(ino) = txn.names().lookup(dir, &name)? {
                    txn.names().remove_name(dir, &name)?;
                    if links(txn, ino, -1)? == 0 {
                        while !txn.names().free_inode_step(ino, 3)? {}
                    }
                }
            }
        }
        24..=25 => {
            if let Some(ino) = old.filter(|_| kind == Some(FileKind::Regular)) {
                let len = [0, 40, 300, 3928][e as usize % 4];
                txn.layouts().set_content(ino, &vec![f as u8; len])?;
            }
        }
        26 => {
            if let Some(ino) = old.filter(|_| kind == Some(FileKind::Regular)) {
                let attr = txn.names().attr(ino)?.ok_or(Stop::Fault(Fault::Stale))?;
                txn.names().set_attr(&Attr { size: e % 500, ..attr })?;
            }
        }
        27 => {
            let Some(ino) = old.filter(|_| kind != Some(FileKind::Directory)) else {
                return Ok(());
            };
            let Some(target) = txn.names().lookup(other, &second)?.filter(|target| *target != ino)
            else {
                return Ok(());
            };
            if txn.names().attr(target)?.is_some_and(|attr| attr.kind != FileKind::Directory) {
                txn.names().remove_name(other, &second)?;
                links(txn, target, -1)?;
                txn.names().rename(dir, &name, other, &second)?;
            }
        }
        28 => {
            if txn.space().quarantines()?.len() < 3 {
                let evicted = txn.new_client(&vec![5; (f % 900) as usize])?;
                match txn.space().grant(evicted, None, 1 + e % 20) {
                    Err(Stop::Fault(Fault::NoSpace)) => {}
                    other => drop(other?),
                }
                txn.space().freeze(evicted, old.unwrap_or(dir))?;
                txn.space().quarantine(evicted)?;
            }
        }
        29 => {
            for evicted in txn.space().quarantines()? {
                for ino in txn.space().frozen(evicted)? {
                    txn.space().unfreeze(evicted, ino)?;
                }
                if txn.space().release_pool(evicted)? {
                    txn.space().remove_client(evicted)?;
                }
            }
        }
        30 => {
            if let Some(ino) = old.filter(|_| kind == Some(FileKind::Regular)) {
                txn.layouts().unmap(ino, FileBlock(e % 50), FileBlock(u64::MAX))?;
                let attr = txn.names().attr(ino)?.ok_or(Stop::Fault(Fault::Stale))?;
                let size = e % 50 * BLOCK as u64;
                txn.names().set_attr(&Attr { size, version: attr.version + 1, ..attr })?;
            }
        }
        31..=32 => {
            let Some(ino) = old.filter(|_| kind == Some(FileKind::Regular)) else { return Ok(()) };
            let pool = txn.space().pool(client)?;
            let Some(&(pag, start, len)) = pool.get(e as usize % pool.len().max(1)) else {
                return Ok(());
            };
            // Blocks that are not adjacent in the file.
            for n in 0..len.min(20) {
                let (addr, state) = (PagBlock(start.0 + n), SegmentState::Written);
                let file = FileBlock(f.checked_sub(DRAWN).unwrap_or(f % 100) + 2 * n);
                txn.layouts().map(ino, client, Segment { file, len: 1, pag, addr, state })?;
            }
        }
        // These are only planted, as other operations are none of such files and trees.
        33 => objects::toggle(txn, e, 1 + f)?,
        34 => {
            loans::step(txn)?;
            intents::step(txn, e, f)?;
        }
        35 => outside::step(txn, (dir, &name), e, f)?,
        36 => homes::step(txn, old, e, f)?,
        _ => txn.set_reply(client, (e % 7) as u32, f as u32, &vec![7; (f % 1000) as usize])?,
    }
    Ok(())
}

impl Work {
    fn new(seed: u64) -> Work {
        Work { rng: SimRng::new(seed), first: planted(slots(seed)), dumps: Vec::new() }
    }

    fn draw(&mut self) -> Draw {
        if let Some(draw) = self.first.pop_front() {
            return draw;
        }
        let mut numbers = [0; 6];
        numbers.iter_mut().for_each(|number| *number = self.rng.below(DRAWN));
        Draw { kind: self.rng.below(33), numbers }
    }

    async fn step(&mut self, mfs: &Mfs, client: ClientId) -> Result<Transno, StoreError> {
        let draw = self.draw();
        let count = self.dumps.len() as u32;
        let number = attempt(mfs, COST, client, &draw, count).await?;
        self.dumps.push(dump(mfs).await);
        Ok(number)
    }
}

/// Runs one operation, which is the `count`-th.
async fn attempt(
    mfs: &Mfs,
    cost: Cost,
    client: ClientId,
    draw: &Draw,
    count: u32,
) -> Result<Transno, StoreError> {
    let change = mfs.run(cost, |txn| {
        operate(txn, client, draw)?;
        txn.set_setting(COUNT, &count.to_le_bytes())
    });
    Ok(change.await?.1)
}

/// Everything that can be read.
async fn dump(mfs: &Mfs) -> String {
    let read = mfs.run(Cost::READ, |txn| {
        let mut out = String::new();
        for dir in directories(txn)? {
            let attr = txn.names().attr(dir)?;
            writeln!(out, "{attr:?} in {:?}", txn.names().parent(dir)?).unwrap();
            for entry in txn.names().readdir(dir, 0, 1000)? {
                writeln!(out, " {:?} {} {}", entry.name, entry.ino, entry.cookie).unwrap();
                assert_eq!(txn.names().lookup(dir, &entry.name)?, Some(entry.ino));
                if outside::is_far(txn, entry.ino)? {
                    writeln!(out, "  {:?} elsewhere", entry.kind).unwrap();
                    continue;
                }
                dump_inode(txn, entry.ino, &mut out)?;
            }
        }
        for ino in txn.names().orphans(Ino(0), 1000)? {
            dump_inode(txn, ino, &mut out)?;
        }
        for (client, _) in txn.clients()? {
            writeln!(out, "{client} {:?}", txn.space().pool(client)?).unwrap();
            for slot in 0..7 {
                writeln!(out, "{:?}", txn.reply(client, slot)?).unwrap();
            }
        }
        for client in txn.space().quarantines()? {
            writeln!(out, "{client} may write {:?}", txn.space().frozen(client)?).unwrap();
        }
        writeln!(out, "{:?}", txn.space().pags()?).unwrap();
        writeln!(out, "doomed {:?}", txn.space().doomed(objects::TARGET, 99)?).unwrap();
        out += &homes::describe(txn)?;
        Ok(out + &loans::describe(txn)? + &intents::describe(txn)? + &outside::describe(txn)?)
    });
    read.await.unwrap().0
}

async fn first(mfs: &Mfs) -> ClientId {
    let made = mfs.run(COST, |txn| {
        txn.set_setting(COUNT, &0u32.to_le_bytes())?;
        txn.new_client(b"client")
    });
    let (client, number) = made.await.unwrap();
    mfs.wait_durable(number).await.unwrap();
    client
}

async fn count_of(mfs: &Mfs) -> u32 {
    let read = mfs.run(Cost::READ, |txn| txn.setting(COUNT)).await.unwrap().0;
    u32::from_le_bytes(read.expect("noted before recording").try_into().unwrap())
}

/// Runs operations on a recorded disk; returns what could be read after each, and the recordings.
fn record(seed: u64, swept: &mut Swept) -> (Vec<String>, Vec<env::sim::Recording>) {
    let disk = formatted(slots(seed));
    disk.set_rotational(seed % 2 == 1);
    let world = SimWorld::new(seed);
    world.attach("meta", &disk);
    let acks = world.disk("acks", BLOCK as u64);
    acks.set_write_through(true);
    let recorded = (disk.clone(), acks.clone());
    let dumps = world.run(|env| async move {
        let mfs = open_with(&env, seed).await;
        let client = first(&mfs).await;
        let mut work = Work { dumps: vec![dump(&mfs).await], ..Work::new(seed) };
        let notes = env.open_disk("acks", WRITE).await.unwrap();
        recorded.0.record();
        recorded.1.record();
        for n in 0..500 {
            if n % LOOK == 0 {
                swept.look(&mfs).await;
            }
            let number = work.step(&mfs, client).await.unwrap();
            if work.rng.one_in(9) {
                mfs.wait_durable(number).await.unwrap();
                let mut buf = env.buffer(BLOCK);
                put_u64(&mut buf, 0, work.dumps.len() as u64 - 1);
                notes.write(0, buf).await.0.unwrap();
            }
        }
        mfs.sync().await.unwrap();
        work.dumps
    });
    (dumps, vec![disk.recording().unwrap(), acks.recording().unwrap()])
}

#[test]
fn every_crash_image_recovers_whole_transactions_and_all_durable_ones() {
    let mut swept = Swept::default();
    for seed in 1..6 {
        let (dumps, recordings) = record(seed, &mut swept);
        let mut images = 0;
        for point in crash_images(recordings, CrashOptions { seed, subsets: 1 }) {
            images += 1;
            let at_least = get_u64(&point.disks[1].peek(0, 8), 0) as u32;
            let world = SimWorld::new(seed);
            world.attach("meta", point.disk());
            let (dumps, what) = (&dumps, &point.description);
            world.run(|env| async move {
                let mfs = open_with(&env, seed).await;
                let count = count_of(&mfs).await;
                assert!(count >= at_least, "{what}: {at_least} were durable, {count} are there");
                assert_eq!(dump(&mfs).await, dumps[count as usize], "{what}: operation {count}");
                let report = check(&mfs).await.unwrap();
                assert_eq!(report.problems, [], "{what}");
            });
        }
        assert!(images > 100, "{images}");
    }
    swept.met_all();
}

#[test]
fn directory_larger_than_the_cache_is_looked_up_listed_and_checked() {
    const FILES: u32 = 12_000;
    let world = SimWorld::new(1);
    world.disk("meta", 64 << 20);
    world.run(|env| async move {
        let disk = env.open_disk("meta", WRITE).await.unwrap();
        let options = FormatOptions {
            name: "home".to_owned(),
            uuid: Uuid([9; 16]),
            log_bytes: 4 << 20,
            pags: vec![],
            features: Features::NONE,
            force: false,
        };
        Mfs::format(&env, &disk, &options).await.unwrap();
        let mfs = open(&env).await;
        for n in 0..FILES {
            let name = Name::new(format!("file{n}").as_bytes()).unwrap();
            let made = mfs.run(Cost::SMALL, |txn| {
                txn.names().create(Ino::ROOT, &name, &new(FileKind::Regular), None)
            });
            made.await.unwrap();
        }
        mfs.close().await.unwrap();
        let mfs = open(&env).await;
        assert!(mfs.usage().cache_max < FILES as usize / 8, "the directory fits in the cache");
        for n in (0..FILES).step_by(977) {
            let name = Name::new(format!("file{n}").as_bytes()).unwrap();
            let found = mfs.run(Cost::READ, |txn| txn.names().lookup(Ino::ROOT, &name));
            assert!(found.await.unwrap().0.is_some());
        }
        let (mut listed, mut after) = (0, 0);
        loop {
            let read = mfs.run(Cost::READ, |txn| txn.names().readdir(Ino::ROOT, after, 1000));
            let entries = read.await.unwrap().0;
            let Some(last) = entries.last() else { break };
            after = last.cookie;
            listed += entries.len();
        }
        assert_eq!(listed, FILES as usize);
        assert!(mfs.usage().cached <= mfs.usage().cache_max + 300, "{:?}", mfs.usage());
        let report = check(&mfs).await.unwrap();
        assert_eq!(report.problems, []);
    });
}

#[test]
fn fsck_checks_a_closed_or_crashed_device_without_writing() {
    for close in [true, false] {
        let disk = formatted(SlotSize::Bytes512);
        let world = SimWorld::new(7);
        world.attach("meta", &disk);
        world.run(|env| async move {
            let mfs = open(&env).await;
            let client = first(&mfs).await;
            let mut work = Work { dumps: vec![String::new()], ..Work::new(8) };
            for _ in 0..200 {
                work.step(&mfs, client).await.unwrap();
            }
            mfs.sync().await.unwrap();
            if close {
                mfs.close().await.unwrap();
            }
        });
        let world = SimWorld::new(9);
        world.attach("meta", &disk);
        let before = disk.counts();
        let report = world.run(|env| async move {
            let disk = env.open_disk("meta", DiskOptions::default()).await.unwrap();
            fsck(&env, &disk, FsckOptions { cache_bytes: 0, jobs: 2, ..FsckOptions::USUAL })
                .await
                .unwrap()
        });
        assert_eq!(report.problems, []);
        assert!(report.counts.inodes > 10);
        assert_eq!(disk.counts().writes, before.writes);
    }
}

#[test]
fn fsck_finds_a_flipped_bit_in_any_block_in_use() {
    let disk = formatted(SlotSize::Bytes512);
    let world = SimWorld::new(7);
    world.attach("meta", &disk);
    let (first_block, blocks, unused) = world.run(|env| async move {
        let mfs = open(&env).await;
        let client = first(&mfs).await;
        let mut work = Work { dumps: vec![String::new()], ..Work::new(8) };
        for _ in 0..200 {
            work.step(&mfs, client).await.unwrap();
        }
        let unused = mfs.run(Cost::READ, |txn| {
            let mut unused = 0;
            for chunk in 1..txn.root(NEXT_CHUNK)? {
                if txn.names().ensure_chunk(DirNo(chunk))? {
                    let chunk = txn.names().chunk(DirNo(chunk))?.clone();
                    unused += u64::from(chunk.allocated() - chunk.descriptor.used);
                }
            }
            Ok(unused + txn.volatile().space.unused.len() as u64)
        });
        let unused = unused.await.unwrap().0;
        mfs.close().await.unwrap();
        let superblock = mfs.superblock();
        (superblock.bitmap_first.0, superblock.blocks, unused)
    });
    let sound = run_fsck(&disk);
    assert_eq!(sound.problems, []);
    let mut found = 0;
    for block in first_block..blocks {
        let damaged = disk.fork();
        if damaged.peek(block * BLOCK as u64, BLOCK).iter().all(|&byte| byte == 0) {
            continue;
        }
        damaged.flip_bit(block * BLOCK as u64 + 40 + block % 4000, (block % 8) as u8);
        found += u64::from(!run_fsck(&damaged).is_clean());
    }
    // Blocks allocated ahead for content and layouts are not read, and one superblock is enough.
    let wanted = sound.counts.meta_blocks - first_block - 1 - unused;
    assert!(found >= wanted, "{found} of {wanted}, {unused} unused");
}

#[test]
fn fsck_finds_damage_in_the_middle_of_the_log() {
    let disk = formatted(SlotSize::Bytes512);
    let world = SimWorld::new(7);
    world.attach("meta", &disk);
    let (from, to) = world.run(|env| async move {
        let mfs = open(&env).await;
        let client = first(&mfs).await;
        let mut work = Work { dumps: vec![String::new()], ..Work::new(8) };
        for _ in 0..20 {
            let number = work.step(&mfs, client).await.unwrap();
            mfs.wait_durable(number).await.unwrap();
        }
        let superblock = mfs.superblock();
        (superblock.log_first.0, superblock.bitmap_first.0)
    });
    let mut kinds = Vec::new();
    for block in from..to {
        let damaged = disk.fork();
        if damaged.peek(block * BLOCK as u64, BLOCK).iter().all(|&byte| byte == 0) {
            continue;
        }
        damaged.flip_bit(block * BLOCK as u64 + 77, 3);
        kinds.extend(run_fsck(&damaged).problems.first().map(|problem| problem.kind));
    }
    assert!(kinds.contains(&ProblemKind::DamagedLog), "{kinds:?}");
}

fn run_fsck(disk: &SimDisk) -> crate::fsck::Report {
    let world = SimWorld::new(9);
    world.attach("meta", disk);
    world.run(|env| async move {
        let disk = env.open_disk("meta", DiskOptions::default()).await.unwrap();
        fsck(&env, &disk, FsckOptions { cache_bytes: 0, jobs: 2, ..FsckOptions::USUAL })
            .await
            .unwrap()
    })
}

#[test]
fn recovery_applies_a_long_log_also_after_a_failed_read() {
    const FILES: u64 = 160;
    let disk = formatted_with(SlotSize::Bytes512, 64 << 20, 16 << 20);
    let world = SimWorld::new(11);
    world.attach("meta", &disk);
    let text = |n: u64| Name::new(format!("f{n}").as_bytes()).unwrap();
    let value = |n: u64| vec![n as u8; 60_000];
    let options = OpenOptions { cache_bytes: 64 << 20, ..OpenOptions::default() };
    let crashed = world.run(|env| async move {
        let meta = env.open_disk("meta", WRITE).await.unwrap();
        let mfs = Mfs::open(&env, &meta, options).await.unwrap();
        for n in 0..FILES {
            let made = mfs.run(COST, |txn| {
                let ino = txn.names().create(Ino::ROOT, &text(n), &new(FileKind::Regular), None)?;
                txn.names().set_xattr(ino, b"user.long", &value(n))
            });
            made.await.unwrap();
        }
        mfs.sync().await.unwrap();
        let log = mfs.last_committed().lsn.0 - mfs.superblock().tail.0;
        assert!(log > 7 << 20, "{log} bytes of log");
        disk.stable_only()
    });
    let mut failed = 0;
    for nth in 0..20 {
        let disk = crashed.fork();
        let world = SimWorld::new(nth);
        world.attach("meta", &disk);
        failed += world.run(|env| async move {
            if nth > 0 {
                disk.fail(DiskAction::Read, nth, DiskFault::Io);
            }
            let meta = env.open_disk("meta", WRITE).await.unwrap();
            let (mfs, failed) = match Mfs::open(&env, &meta, options).await {
                Ok(mfs) => (mfs, 0),
                Err(error) => {
                    assert!(matches!(error, StoreError::Io { .. }), "{error}");
                    (Mfs::open(&env, &meta, options).await.unwrap(), 1)
                }
            };
            for n in 0..FILES {
                let read = mfs.run(Cost::READ, |txn| {
                    let ino =
                        txn.names().lookup(Ino::ROOT, &text(n))?.expect("the file was created");
                    txn.names().xattr(ino, b"user.long")
                });
                let (read, _) = read.await.unwrap();
                assert!(read == Some(value(n)), "file {n}");
            }
            failed
        });
    }
    assert!(failed > 5, "{failed} of 19 reads failed");
}
