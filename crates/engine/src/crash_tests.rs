//! Crashes at every moment.
//!
//! A store runs random transactions on a recorded disk. The test writes the number of the newest
//! acknowledged transaction to a second disk, which loses power at the same moment. It recovers
//! every image that a power cut may leave. The image must have the state after some transaction,
//! not older than the newest acknowledged one, and the store must be able to continue from there.
//! These tests do not cover damage of stable data by a device.

mod barrier;
mod depth;
mod journal;
mod relocate;

use std::collections::BTreeMap;

use env::sim::{CrashOptions, DiskAction, DiskFault, SimDisk, SimRng, SimWorld, crash_images};
use env::{Disk, DiskOptions, Env};
use types::limits::BLOCK;
use types::{Duration, MetaBlock, ShardId, Uuid};

use crate::btree::Tree;
use crate::cost::{Cost, Reserve};
use crate::device::log::Disks;
use crate::error::StoreError;
use crate::format::block::{BlockType, get_u64, put_u64};
use crate::format::roots::RootId;
use crate::format::superblock::Superblock;
use crate::store::Store;
use crate::store::mkfs::FormatOptions;
use crate::store::open::OpenOptions;

const TREE: Tree<8, 100> = Tree::at(RootId(60));
const COUNT: RootId = RootId(61);
/// Maps a number to a block that holds it.
const BLOCKS: Tree<8, 8> = Tree::at(RootId(62));
const COST: Cost = Cost { log_bytes: 10 << 10, dirty: 10, reserve: Reserve::ToFree };
const WRITE: DiskOptions = DiskOptions { write: true, exclusive: false };
const SIZE: u64 = 3 << 20;

/// The expected content after some transactions.
type Model = BTreeMap<u64, u64>;

fn small() -> OpenOptions {
    OpenOptions { cache_bytes: 0, ..OpenOptions::default() }
}

async fn open(env: &Env) -> Result<Store, StoreError> {
    Store::open(env, disks(env).await, small()).await
}

/// The metadata device, and that of its journal if the world has one.
async fn disks(env: &Env) -> Disks {
    let home = env.open_disk("meta", WRITE).await.unwrap();
    Disks { home, log: env.open_disk("log", WRITE).await.ok() }
}

fn formatted(log_bytes: u64) -> SimDisk {
    let world = SimWorld::new(1);
    let disk = world.disk("meta", SIZE);
    world.run(|env| async move {
        format(&env, log_bytes).await;
    });
    disk
}

async fn format(env: &Env, log_bytes: u64) {
    let options = FormatOptions {
        name: "home",
        uuid: Uuid([9; 16]),
        shard: ShardId(3),
        log_bytes,
        features: crate::format::features::Features::NONE,
        force: false,
    };
    let store = Store::begin_format(env, disks(env).await, &options).await.unwrap();
    store.end_format().await.unwrap();
}

fn long_value(value: u64) -> [u8; 100] {
    let mut bytes = [0; 100];
    bytes.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&value.to_le_bytes()));
    bytes
}

/// Makes random transactions, and has the model after each.
struct Work {
    rng: SimRng,
    models: Vec<Model>,
}

impl Work {
    fn new(seed: u64) -> Work {
        Work { rng: SimRng::new(seed), models: vec![Model::new()] }
    }

    /// Runs one more transaction; returns its number.
    async fn step(&mut self, store: &Store) -> Result<types::Transno, StoreError> {
        let count = self.models.len() as u64;
        let mut model = self.models[self.models.len() - 1].clone();
        let key = self.rng.below(300);
        let remove = self.rng.one_in(3);
        match remove {
            true => drop(model.remove(&key)),
            false => drop(model.insert(key, count)),
        }
        let change = store.run(COST, |txn| {
            txn.set_root(COUNT, count)?;
            let bytes = key.to_be_bytes();
            if let Some(old) = BLOCKS.get(txn, &bytes)? {
                txn.free_meta(MetaBlock(u64::from_le_bytes(old)), 1)?;
            }
            if remove {
                TREE.remove(txn, &bytes)?;
                BLOCKS.remove(txn, &bytes)?;
                return Ok(());
            }
            TREE.insert(txn, &bytes, &long_value(count))?;
            let block = txn.alloc_meta(1, Some(MetaBlock(100)))?;
            let data = txn.init(block, BlockType::Table)?;
            put_u64(data, 64, count);
            put_u64(data, BLOCK - 8, count);
            BLOCKS.insert(txn, &bytes, &block.0.to_le_bytes())?;
            Ok(())
        });
        let number = change.await?.1;
        self.models.push(model);
        Ok(number)
    }
}

/// Reads everything; returns how many transactions the store has.
async fn check(store: &Store, models: &[Model]) -> u64 {
    try_check(store, models).await.unwrap()
}

/// As [`check`], for a device that may be damaged.
async fn try_check(store: &Store, models: &[Model]) -> Result<u64, StoreError> {
    let read = store.run(Cost::READ, |txn| {
        let mut used = 0;
        TREE.nodes(txn, |_, _| used += 1)?;
        BLOCKS.nodes(txn, |_, _| used += 1)?;
        let count = txn.root(COUNT)?;
        let mut found = Model::new();
        for (key, value) in TREE.range(txn, &[0; 8], usize::MAX)? {
            let (key, value) =
                (u64::from_be_bytes(key), u64::from_le_bytes(value[..8].try_into().unwrap()));
            found.insert(key, value);
        }
        let mut blocks = Model::new();
        for (key, block) in BLOCKS.range(txn, &[0; 8], usize::MAX)? {
            let block = MetaBlock(u64::from_le_bytes(block));
            let data = txn.read_as(block, BlockType::Table)?;
            assert_eq!(get_u64(data, 64), get_u64(data, BLOCK - 8));
            blocks.insert(u64::from_be_bytes(key), get_u64(data, 64));
            assert!(txn.meta_allocated(block)?);
            used += 1;
        }
        let (all, free) = txn.meta_space();
        Ok((count, found, blocks, used, all - free))
    });
    let (count, found, blocks, used, taken) = read.await?.0;
    let model = &models[count as usize];
    assert!(found == *model, "the tree after transaction {count}");
    assert!(blocks == *model, "the blocks after transaction {count}");
    // Besides, only the last copy of the superblock is allocated.
    let others = taken - used - store.superblock().reserved();
    assert_eq!(others, 1, "blocks are lost");
    Ok(count)
}

/// Records on the second disk that `count` transactions are durable.
async fn acknowledge(env: &Env, acks: &Disk, count: u64) {
    let mut buf = env.buffer(BLOCK);
    put_u64(&mut buf, 0, count);
    acks.write(0, buf).await.0.unwrap();
}

fn acknowledged(acks: &SimDisk) -> u64 {
    get_u64(&acks.peek(0, 8), 0)
}

/// Runs `steps` transactions on `disk` and records the disk. Waits until some of them are durable,
/// and at the end if `last`. Returns the models and the disk of acknowledgements.
fn record(seed: u64, disk: &SimDisk, steps: usize, last: bool) -> (Vec<Model>, SimDisk) {
    let world = SimWorld::new(seed);
    world.attach("meta", disk);
    let acks = world.disk("acks", BLOCK as u64);
    acks.set_write_through(true);
    let recorded = (disk.clone(), acks.clone());
    let models = world.run(|env| async move {
        let store = open(&env).await.unwrap();
        let notes = env.open_disk("acks", WRITE).await.unwrap();
        recorded.0.record();
        recorded.1.record();
        let mut work = Work::new(seed);
        for _ in 0..steps {
            let number = work.step(&store).await.unwrap();
            if work.rng.one_in(6) {
                store.wait_durable(number).await.unwrap();
                acknowledge(&env, &notes, work.models.len() as u64 - 1).await;
            }
        }
        if last {
            store.sync().await.unwrap();
        } else {
            let time = Duration::from_micros(work.rng.below(1500));
            env.timeout(time, store.sync()).await;
        }
        work.models
    });
    (models, acks)
}

/// Recovers `disk` and checks it; returns how many transactions it has.
fn recover(seed: u64, disk: &SimDisk, models: &[Model], at_least: u64, what: &str) -> u64 {
    let world = SimWorld::new(seed);
    world.attach("meta", disk);
    world.run(|env| async move {
        let store = match open(&env).await {
            Ok(store) => store,
            Err(error) => panic!("{what}: {error}"),
        };
        let count = check(&store, models).await;
        assert!(count >= at_least, "{what}: {at_least} were durable, {count} are there");
        count
    })
}

fn work_after_recovery(seed: u64, disk: &SimDisk, models: &[Model], count: u64) {
    let world = SimWorld::new(seed);
    world.attach("meta", disk);
    let models = models[..=count as usize].to_vec();
    world.run(|env| async move {
        let store = open(&env).await.unwrap();
        let mut work = Work { rng: SimRng::new(seed), models };
        for _ in 0..40 {
            work.step(&store).await.unwrap();
        }
        store.sync().await.unwrap();
        drop(store);
        let store = open(&env).await.unwrap();
        assert_eq!(check(&store, &work.models).await, work.models.len() as u64 - 1);
        store.close().await.unwrap();
        let store = open(&env).await.unwrap();
        assert_eq!(check(&store, &work.models).await, work.models.len() as u64 - 1);
    });
}

#[test]
fn crash_leaves_a_prefix_with_all_acknowledged_transactions() {
    let mut images = 0;
    for seed in 1..3 {
        let disk = formatted(64 << 10);
        let (models, acks) = record(seed, &disk, 150, true);
        let recordings = [&disk, &acks].map(|disk| disk.recording().unwrap());
        let mut newest = 0;
        for point in crash_images(recordings.into(), CrashOptions { seed, subsets: 2 }) {
            let at_least = acknowledged(&point.disks[1]);
            images += 1;
            let disk = point.disk();
            let (again, further) = (disk.fork(), disk.fork());
            if images % 7 == 0 {
                lose_the_roots(seed, disk, &models, at_least, &point.description);
            }
            if images % 5 == 0 {
                lose_a_superblock(seed, disk, &models, at_least, &point.description);
            }
            let count = recover(seed, disk, &models, at_least, &point.description);
            newest = newest.max(count);
            if images % 101 == 0 {
                crash_in_recovery(seed, &again, &models, count, &point.description);
            }
            if images % 37 == 0 {
                work_after_recovery(seed, &further, &models, count);
            }
        }
        assert_eq!(newest, models.len() as u64 - 1);
    }
    assert!(images > 1000, "{images}");
}

/// Either copy of the superblock suffices at every moment.
fn lose_a_superblock(seed: u64, disk: &SimDisk, models: &[Model], at_least: u64, what: &str) {
    let blocks = SIZE / BLOCK as u64 - 1;
    let place = |index| Superblock::place(index, blocks).0 * BLOCK as u64;
    let whole = |index| Superblock::decode(&disk.peek(place(index), BLOCK), index, blocks).is_ok();
    for index in 0..2 {
        if whole(1 - index) {
            let disk = disk.fork();
            disk.poke(place(index), &[0x5a; BLOCK]);
            recover(seed, &disk, models, at_least, &format!("{what}; copy {index} is lost"));
        }
    }
}

/// The superblock and the log together hold the roots at every moment, whichever copy is used.
fn lose_the_roots(seed: u64, disk: &SimDisk, models: &[Model], at_least: u64, what: &str) {
    let blocks = SIZE / BLOCK as u64 - 1;
    let place = |index| Superblock::place(index, blocks).0 * BLOCK as u64;
    // A store in which nothing was made has no roots, and no copy of them.
    let has_roots = |index| {
        let copy = Superblock::decode(&disk.peek(place(index), BLOCK), index, blocks);
        copy.is_ok_and(|copy| copy.roots.iter().any(|root| *root != 0))
    };
    for index in 0..2 {
        if has_roots(1 - index) {
            let disk = disk.fork();
            disk.poke(place(index), &[0x5a; BLOCK]);
            disk.flip_bit(crate::format::roots::ROOTS_BLOCK.0 * BLOCK as u64 + 77, 3);
            recover(seed, &disk, models, at_least, &format!("{what}; the roots are lost"));
        }
    }
}

/// Recovers `disk` with a crash at every moment of the recovery: the result must be the same.
fn crash_in_recovery(seed: u64, disk: &SimDisk, models: &[Model], count: u64, what: &str) {
    disk.record();
    let first = recover(seed, disk, models, count, what);
    assert_eq!(first, count, "{what}");
    let recording = disk.recording().unwrap();
    for point in recording.crash_images(CrashOptions { seed, subsets: 2 }) {
        let what = format!("{what}; in recovery: {}", point.description);
        assert_eq!(recover(seed, point.disk(), models, count, &what), count, "{what}");
    }
}

#[test]
fn power_cut_in_the_recovery_of_a_killed_store_leaves_a_prefix() {
    for seed in 1..25 {
        let disk = formatted(64 << 10);
        let (models, acks) = record(seed, &disk, 30 + 5 * seed as usize, false);
        let at_least = acknowledged(&acks);
        // The process has ended, and its last writes are not yet stable.
        disk.record();
        let count = recover(seed, &disk, &models, at_least, "after the kill");
        let recording = disk.recording().unwrap();
        for point in recording.crash_images(CrashOptions { seed, subsets: 4 }) {
            let found = recover(seed, point.disk(), &models, at_least, &point.description);
            assert!(found <= count, "{}", point.description);
        }
    }
}

#[test]
fn failed_write_or_flush_poisons_the_store_and_loses_nothing() {
    let pristine = formatted(64 << 10);
    for action in [DiskAction::Write, DiskAction::Flush] {
        let mut survived = 0;
        for nth in 1.. {
            let disk = pristine.fork();
            let world = SimWorld::new(nth);
            world.attach("meta", &disk);
            let faulty = disk.clone();
            let (work, acked, failed) = world.run(|env| async move {
                let (mut work, mut acked) = (Work::new(nth), 0);
                faulty.fail(action, nth, DiskFault::Io);
                let store = match open(&env).await {
                    Ok(store) => store,
                    Err(error) => {
                        assert!(matches!(error, StoreError::Io { .. }), "{error}");
                        return (work, acked, true);
                    }
                };
                let mut error = None;
                for step in 0..150 {
                    let result = match work.step(&store).await {
                        Ok(number) if step % 5 == 0 => store.wait_durable(number).await,
                        other => other.map(drop),
                    };
                    match result {
                        Ok(()) if step % 5 == 0 => acked = work.models.len() as u64 - 1,
                        Ok(()) => {}
                        Err(failure) => {
                            error = Some(failure);
                            break;
                        }
                    }
                }
                let Some(error) = error else { return (work, acked, false) };
                assert!(matches!(error, StoreError::Poisoned(_)), "{error}");
                let later = store.run(COST, |_| Ok(())).await;
                assert!(matches!(later, Err(StoreError::Poisoned(_))));
                assert!(store.close().await.is_err());
                (work, acked, true)
            });
            disk.heal();
            let what = format!("{action:?} {nth} fails");
            recover(nth, &disk.stable_only(), &work.models, acked, &what);
            // The device continues without a power cut: after a failed flush, the flush of another
            // store does not make the lost writes stable.
            disk.record();
            recover(nth, &disk, &work.models, acked, &what);
            for point in
                disk.recording().unwrap().crash_images(CrashOptions { seed: nth, subsets: 2 })
            {
                let what = format!("{what}; in recovery: {}", point.description);
                recover(nth, point.disk(), &work.models, acked, &what);
            }
            if !failed {
                survived += 1;
                if survived == 3 {
                    assert!(nth > 20, "{nth}");
                    break;
                }
            }
        }
    }
}

#[test]
fn failed_read_fails_only_its_operation() {
    let disk = formatted(64 << 10);
    let (models, _) = record(5, &disk, 200, true);
    for nth in 1..60 {
        let disk = disk.fork();
        let world = SimWorld::new(nth);
        world.attach("meta", &disk);
        let models = &models;
        world.run(|env| async move {
            disk.fail(DiskAction::Read, nth, DiskFault::Io);
            let healthy = disk.clone();
            let store = match open(&env).await {
                Ok(store) => store,
                Err(error) => {
                    assert!(
                        matches!(error, StoreError::Io { .. } | StoreError::Refused(_)),
                        "{error}"
                    );
                    open(&env).await.unwrap()
                }
            };
            let read = store.run(Cost::READ, |txn| TREE.range(txn, &[0; 8], usize::MAX)).await;
            if let Err(error) = read {
                assert!(matches!(error, StoreError::Io { .. }), "{error}");
            }
            healthy.heal();
            assert_eq!(check(&store, models).await, 200);
        });
    }
}

#[test]
fn flipped_bits_in_the_log_are_reported_or_harmless() {
    let disk = formatted(256 << 10);
    let (models, _) = record(7, &disk, 120, true);
    let disk = disk.stable_only();
    let mut rng = SimRng::new(7);
    let (mut reported, mut shorter) = (0, 0);
    for n in 0..320 {
        let disk = disk.fork();
        let block = 3 * BLOCK as u64 + rng.below(256 << 10) / BLOCK as u64 * BLOCK as u64;
        for _ in 0..1 + n % 8 {
            disk.flip_bit(block + rng.below(BLOCK as u64), rng.below(8) as u8);
        }
        match open_damaged_log(&disk, &models) {
            None => reported += 1,
            // Damage of the last group looks like a group that was being written.
            Some(count) if count < 120 => shorter += 1,
            Some(_) => {}
        }
    }
    assert!(reported > 20, "{reported}");
    assert!(shorter < 30, "{shorter}");
}

/// The number of recovered transactions; `None` if the store reports a damaged log.
fn open_damaged_log(disk: &SimDisk, models: &[Model]) -> Option<u64> {
    let world = SimWorld::new(1);
    world.attach("meta", disk);
    world.run(|env| async move {
        match open(&env).await {
            Ok(store) => Some(check(&store, models).await),
            Err(StoreError::DamagedLog { .. }) => None,
            Err(other) => panic!("{other}"),
        }
    })
}

#[test]
fn log_group_at_a_wrong_position_is_reported() {
    let disk = formatted(256 << 10);
    let (models, _) = record(7, &disk, 120, true);
    let disk = disk.stable_only();
    let blocks = 3..3 + (256 << 10) / BLOCK as u64;
    let at = |block: u64| disk.peek(block * BLOCK as u64, BLOCK);
    let lsn = |block: u64| get_u64(&at(block), 8);
    let groups: Vec<u64> = blocks.filter(|&block| at(block)[4..8] == *b"RBLG").collect();
    let last = groups.iter().copied().max_by_key(|&block| lsn(block)).unwrap();
    let (mut reported, mut harmless) = (0, 0);
    for pair in groups.windows(2) {
        // Place a misdirected group, and one of an earlier lap. Each is whole and has its own
        // position in the header.
        for (to, from) in [(pair[0], pair[1]), (pair[1], pair[0])] {
            let broken = disk.fork();
            broken.poke(to * BLOCK as u64, &at(from));
            match open_damaged_log(&broken, &models) {
                None => reported += 1,
                Some(120) => harmless += 1,
                Some(count) => assert!(to == last && count > 100, "{from} at {to}: {count}"),
            }
        }
    }
    // Recovery does not read groups before the tail.
    assert!(reported > 4 && reported + harmless > 20, "{reported} {harmless}");
}

#[test]
fn garbage_in_any_block_gives_an_error_or_the_right_content() {
    let disk = formatted(256 << 10);
    let (models, _) = record(8, &disk, 120, true);
    let disk = disk.stable_only();
    let mut rng = SimRng::new(8);
    let mut refused = 0;
    for _ in 0..300 {
        let disk = disk.fork();
        let at = rng.below(200) * BLOCK as u64 + rng.below(8) * 512;
        let bytes: Vec<u8> = (0..512).map(|_| rng.next_u64() as u8).collect();
        disk.poke(at, &bytes);
        let world = SimWorld::new(1);
        world.attach("meta", &disk);
        let models = &models;
        refused += world.run(|env| async move {
            let Ok(store) = open(&env).await else { return 1 };
            match try_check(&store, models).await {
                Ok(count) => u32::from(count < 120),
                Err(StoreError::Corrupt { .. }) => 1,
                Err(other) => panic!("{other}"),
            }
        });
    }
    assert!(refused > 10, "{refused}");
}
