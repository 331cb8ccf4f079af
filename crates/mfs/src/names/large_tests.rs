//! Counts disk accesses of lookups, changes and listings in a large directory that is not in
//! memory.
//!
//! `REDBUD_LARGE=1000000 cargo test --release -p redbud-mfs names::large -- --nocapture` uses a
//! directory of so many names.

use env::sim::{DiskModel, HardDisk, SimDisk, SimRng, SimWorld};
use env::{DiskOptions, Env};
use types::{Attr, FileKind, Ino, Name, Uuid};

use super::MapLimits;
use crate::format::slot::SlotSize;
use crate::format::slot_size::SlotFeatures;
use crate::fsck::check;
use crate::handle::Mfs;
use crate::mkfs::FormatOptions;
use crate::open::OpenOptions;
use crate::testing::new_inode;
use engine::cost::Cost;
use engine::format::features::Features;

/// Names of the directory, unless the environment sets another number.
const NAMES: u32 = 40_000;
/// Maps from 16,384 names on, so that a directory of [`NAMES`] has one.
const EARLY: MapLimits = MapLimits { blocks: 2048, ..MapLimits::USUAL };
const WRITE: DiskOptions = DiskOptions { write: true, exclusive: false };

fn names() -> u32 {
    let names = std::env::var("REDBUD_LARGE").ok();
    names.map_or(NAMES, |text| text.parse().expect("a number of names"))
}

/// The limits of servers, if the directory is large enough for a map with them.
fn maps() -> MapLimits {
    let usual = u64::from(names()) > 8 * MapLimits::USUAL.blocks;
    if usual { MapLimits::USUAL } else { EARLY }
}

async fn open(env: &Env, maps: MapLimits) -> Mfs {
    open_with_cache(env, maps, 16 << 20).await
}

async fn open_with_cache(env: &Env, maps: MapLimits, cache_bytes: usize) -> Mfs {
    let disk = env.open_disk("meta", WRITE).await.unwrap();
    let options = OpenOptions { cache_bytes, maps, ..OpenOptions::default() };
    Mfs::open(env, &disk, options).await.unwrap()
}

async fn format(env: &Env) {
    format_with(env, SlotSize::Bytes512).await;
}

async fn format_with(env: &Env, size: SlotSize) {
    let disk = env.open_disk("meta", WRITE).await.unwrap();
    let (name, uuid, log_bytes) = ("home".to_owned(), Uuid([9; 16]), 64 << 20);
    let options = FormatOptions {
        name,
        uuid,
        log_bytes,
        pags: vec![],
        features: Features::NONE.with_slots(size),
        force: false,
    };
    Mfs::format(env, &disk, &options).await.unwrap();
}

fn name(n: u32) -> Name {
    Name::new(format!("file{n}").as_bytes()).unwrap()
}

async fn create(mfs: &Mfs, dir: Ino, n: u32) -> Ino {
    let made = mfs.run(Cost::SMALL, |txn| {
        txn.names().create(dir, &name(n), &new_inode(FileKind::Regular), None)
    });
    made.await.unwrap().0
}

async fn mkdir(mfs: &Mfs) -> Ino {
    let made = mfs.run(Cost::SMALL, |txn| {
        let attr = txn.names().attr(Ino::ROOT)?.unwrap();
        txn.names().set_attr(&Attr { nlink: attr.nlink + 1, ..attr })?;
        let name = Name::new(b"large").unwrap();
        txn.names().create(Ino::ROOT, &name, &new_inode(FileKind::Directory), None)
    });
    made.await.unwrap().0
}

async fn lookup(mfs: &Mfs, dir: Ino, n: u32) -> Option<Ino> {
    mfs.run(Cost::READ, |txn| txn.names().lookup(dir, &name(n))).await.unwrap().0
}

async fn unlink(mfs: &Mfs, dir: Ino, n: u32) {
    let removed = mfs.run(Cost::DELETE, |txn| {
        let ino = txn.names().remove_name(dir, &name(n))?;
        let attr = txn.names().attr(ino)?.unwrap();
        txn.names().set_attr(&Attr { nlink: 0, ..attr })?;
        Ok(ino)
    });
    let ino = removed.await.unwrap().0;
    mfs.run(Cost::DELETE, |txn| txn.names().free_inode_step(ino, 9)).await.unwrap();
}

/// Names that were created in sequence are looked up, created, moved and removed in a directory of
/// which only the inode and the runs are in memory. A change never reads the whole directory.
#[test]
fn cold_large_directory_costs_two_reads_for_a_lookup() {
    let (world, names) = (SimWorld::new(1), names());
    let disk = world.disk("meta", (u64::from(names) * 1024).max(256 << 20));
    disk.set_model(DiskModel::Hard(HardDisk::fibre_channel()));
    let outside = disk.clone();
    world.run(|env| async move {
        format(&env).await;
        // The server's cache size: the name map has to fit, or each create logs an image of a
        // bucket.
        let mfs = open_with_cache(&env, maps(), 256 << 20).await;
        let dir = mkdir(&mfs).await;
        let before = mfs.last_committed().lsn.0;
        for n in 0..names {
            create(&mfs, dir, n).await;
        }
        mfs.sync().await.unwrap();
        let log = (mfs.last_committed().lsn.0 - before) / u64::from(names);
        println!("{names} names, {log} bytes of log each");
        assert!(log <= 600, "{log}");
        mfs.close().await.unwrap();
        lookups(&open(&env, maps()).await, &outside, dir, names).await;
        changes(&open(&env, maps()).await, &outside, dir, names).await;
        listing(&open(&env, maps()).await, &outside, dir, names).await;
    });
}

/// Eight clients create files in directories of their own, and each group of eight becomes durable
/// together. The test measures the log bytes of each create, with header, padding and the full
/// images of blocks.
#[test]
fn create_logs_few_bytes_with_slots_of_any_size() {
    for (size, most) in SlotSize::ALL.into_iter().zip([600, 700, 900, 1200]) {
        let world = SimWorld::new(1);
        world.disk("meta", 256 << 20);
        world.run(|env| async move {
            format_with(&env, size).await;
            let mfs = open(&env, MapLimits::USUAL).await;
            let mut dirs = Vec::new();
            for n in 0..8 {
                let made = mfs.run(Cost::SMALL, |txn| {
                    let attr = txn.names().attr(Ino::ROOT)?.unwrap();
                    txn.names().set_attr(&Attr { nlink: attr.nlink + 1, ..attr })?;
                    txn.names().create(Ino::ROOT, &name(n), &new_inode(FileKind::Directory), None)
                });
                dirs.push(made.await.unwrap().0);
            }
            mfs.sync().await.unwrap();
            let before = mfs.last_committed().lsn.0;
            for n in 0..1000 {
                for &dir in &dirs {
                    create(&mfs, dir, n).await;
                }
                mfs.sync().await.unwrap();
            }
            let each = (mfs.last_committed().lsn.0 - before) / 8000;
            println!("slots of {} bytes: {each} bytes of log for a create", size.share());
            assert!(each <= most, "{size:?}: {each}");
            assert_eq!(check(&mfs).await.unwrap().problems, []);
            mfs.close().await.unwrap();
        });
    }
}

/// A directory with larger slots gives its blocks back, and its slots are used again.
#[test]
fn directory_with_larger_slots_shrinks_and_reuses_its_slots() {
    for (size, maps) in SlotSize::ALL
        .into_iter()
        .flat_map(|size| [(size, MapLimits::USUAL), (size, MapLimits::TINY)])
    {
        let world = SimWorld::new(1);
        world.disk("meta", 256 << 20);
        world.run(|env| async move {
            format_with(&env, size).await;
            let mfs = open(&env, maps).await;
            let dir = mkdir(&mfs).await;
            let free = mfs.usage().blocks_free;
            for _ in 0..3 {
                for n in 0..700 {
                    create(&mfs, dir, n).await;
                }
                let attr =
                    mfs.run(Cost::READ, |txn| txn.names().attr(dir)).await.unwrap().0.unwrap();
                let least = 700u64.div_ceil(u64::from(size.per_block()));
                assert!(
                    (least..=least + least / 4 + 16).contains(&attr.blocks),
                    "{size:?}: {}",
                    attr.blocks
                );
                assert_eq!(check(&mfs).await.unwrap().problems, []);
                for n in 0..700 {
                    unlink(&mfs, dir, n).await;
                }
                mfs.sync().await.unwrap();
                assert_eq!(check(&mfs).await.unwrap().problems, []);
                let used = free.saturating_sub(mfs.usage().blocks_free);
                assert!(used < 150, "{size:?}: {used} blocks are left of an empty directory");
            }
            mfs.close().await.unwrap();
        });
    }
}

fn reads(disk: &SimDisk) -> (u64, u64) {
    disk.report().map_or((0, 0), |report| (report.reads, report.read))
}

async fn lookups(mfs: &Mfs, disk: &SimDisk, dir: Ino, names: u32) {
    let first = reads(disk);
    assert!(lookup(mfs, dir, 0).await.is_some());
    println!(
        "the first lookup: {:?} reads and bytes",
        (reads(disk).0 - first.0, reads(disk).1 - first.1)
    );
    let mut rng = SimRng::new(7);
    let (mut most, mut sum) = (0, 0);
    for _ in 0..2000 {
        let before = reads(disk).0;
        let n = rng.below(u64::from(names) * 5 / 4) as u32;
        assert_eq!(lookup(mfs, dir, n).await.is_some(), n < names);
        let cost = reads(disk).0 - before;
        most = most.max(cost);
        sum += cost;
    }
    println!("2000 lookups: {sum} reads, at most {most}");
    assert!(most <= 2 && sum > 500, "{most}, {sum}");
    mfs.close().await.unwrap();
}

async fn changes(mfs: &Mfs, disk: &SimDisk, dir: Ino, names: u32) {
    assert!(lookup(mfs, dir, 0).await.is_some());
    let mut rng = SimRng::new(8);
    let before = reads(disk);
    for n in 0..50 {
        create(mfs, dir, names + n).await;
        unlink(mfs, dir, rng.below(u64::from(names) / 2) as u32 * 2 + n % 2).await;
        let (from, to) = (name(names + n), name(2 * names + n));
        mfs.run(Cost::SMALL, |txn| txn.names().rename(dir, &from, dir, &to)).await.unwrap();
    }
    let cost = (reads(disk).0 - before.0, (reads(disk).1 - before.1) >> 10);
    println!("50 creates, unlinks and renames: {cost:?} reads and KiB");
    // Four blocks for each round of three, and the whole map, which is soon read in pieces.
    let map = u64::from(names) / 128 * 6;
    assert!(cost.0 <= 50 * 4 && cost.1 <= 50 * 4 * 4 + map, "{cost:?}, the map {map} KiB");
    for n in 0..50 {
        assert!(lookup(mfs, dir, 2 * names + n).await.is_some());
        assert!(lookup(mfs, dir, names + n).await.is_none());
    }
    mfs.close().await.unwrap();
}

async fn listing(mfs: &Mfs, disk: &SimDisk, dir: Ino, names: u32) {
    let size = mfs.run(Cost::READ, |txn| txn.names().attr(dir)).await.unwrap().0.unwrap().size;
    let before = reads(disk);
    let (mut listed, mut after) = (0, 0);
    loop {
        let read = mfs.run(Cost::READ, |txn| txn.names().readdir(dir, after, 1024));
        let entries = read.await.unwrap().0;
        let Some(last) = entries.last() else { break };
        assert!(entries.iter().all(|entry| entry.attr.is_some()));
        after = last.cookie;
        listed += entries.len();
    }
    let (requests, bytes) = (reads(disk).0 - before.0, reads(disk).1 - before.1);
    println!(
        "listed {listed}: {requests} reads of {} KiB, {bytes} of {size} bytes",
        (bytes / requests) >> 10
    );
    assert_eq!(listed, names as usize);
    assert!(bytes * 10 <= size * 12, "{bytes} of {size}");
    assert!(bytes / requests >= 256 << 10, "{requests} for {bytes}");
    assert_eq!(check(mfs).await.unwrap().problems, []);
    mfs.close().await.unwrap();
}

/// A directory with a map that grew and was emptied has given back its content and nearly all of
/// its map. Its slots are used again, and removing it leaves nothing.
#[test]
fn large_directory_shrinks_reuses_its_slots_and_is_freed() {
    let world = SimWorld::new(1);
    world.disk("meta", 256 << 20);
    world.run(|env| async move {
        format(&env).await;
        let mfs = open(&env, MapLimits::TINY).await;
        let free = mfs.usage().blocks_free;
        let dir = mkdir(&mfs).await;
        for _ in 0..3 {
            for n in 0..3000 {
                create(&mfs, dir, n).await;
            }
            assert_eq!(check(&mfs).await.unwrap().problems, []);
            for n in 0..3000 {
                unlink(&mfs, dir, n).await;
            }
            mfs.sync().await.unwrap();
            assert_eq!(check(&mfs).await.unwrap().problems, []);
            let used = free - mfs.usage().blocks_free;
            assert!(used < 100, "{used} blocks are left of an empty directory");
        }
        let empty = mfs.run(Cost::READ, |txn| txn.names().is_empty(dir)).await.unwrap().0;
        assert!(empty);
        let gone = mfs.run(Cost::DELETE, |txn| {
            let ino = txn.names().remove_name(Ino::ROOT, &Name::new(b"large").unwrap())?;
            for (ino, change) in [(ino, -2), (Ino::ROOT, -1)] {
                let attr = txn.names().attr(ino)?.unwrap();
                let nlink = attr.nlink.saturating_add_signed(change);
                txn.names().set_attr(&Attr { nlink, ..attr })?;
            }
            Ok(ino)
        });
        let ino = gone.await.unwrap().0;
        while !mfs.run(Cost::DELETE, |txn| txn.names().free_inode_step(ino, 1)).await.unwrap().0 {
            assert_eq!(check(&mfs).await.unwrap().problems, []);
        }
        assert_eq!(check(&mfs).await.unwrap().problems, []);
        let used = free - mfs.usage().blocks_free;
        assert!(used < 20, "{used} blocks are left of no directory");
    });
}

/// Names were removed at random, and the directory is not in memory. If at least a quarter of its
/// slots would be wasted, the content is read again, and new names take these slots.
#[test]
fn idle_slots_of_a_cold_directory_are_found_when_many() {
    let world = SimWorld::new(1);
    world.disk("meta", 256 << 20);
    world.run(|env| async move {
        format(&env).await;
        let mfs = open(&env, EARLY).await;
        let dir = mkdir(&mfs).await;
        for n in 0..30_000 {
            create(&mfs, dir, n).await;
        }
        for n in (0..30_000).filter(|n| n % 3 != 0) {
            unlink(&mfs, dir, n).await;
        }
        mfs.close().await.unwrap();
        let mfs = open(&env, EARLY).await;
        let size = |mfs: &Mfs| {
            let mfs = mfs.clone();
            async move {
                mfs.run(Cost::READ, |txn| txn.names().attr(dir)).await.unwrap().0.unwrap().blocks
            }
        };
        let before = size(&mfs).await;
        for n in 0..19_000 {
            create(&mfs, dir, 100_000 + n).await;
        }
        let after = size(&mfs).await;
        // Below a quarter of the slots the directory grows and is not read.
        assert!(after < before * 5 / 4, "{before} blocks, then {after}");
        assert_eq!(check(&mfs).await.unwrap().problems, []);
    });
}
