//! Crashes of a store whose log is on a disk of its own. Both disks lose and reorder their writes
//! independently of each other.

use std::collections::BTreeMap;

use env::sim::{CrashOptions, SimDisk, SimWorld, crash_images};
use types::limits::BLOCK;
use types::{ShardId, Uuid};

use super::{
    Disks, Duration, Model, SIZE, Work, acknowledge, acknowledged, check, disks, format, open,
};
use crate::device::Device;
use crate::device::log::{read_headers, write_headers};
use crate::device::pairing::newest;
use crate::error::StoreError;
use crate::format::journal::{COPIES, JournalHeader};
use crate::format::superblock::{LOG_BYTES_MIN, Superblock};
use crate::store::Store;

/// The metadata device and the device of its journal.
#[derive(Clone)]
pub(super) struct Pair {
    pub(super) home: SimDisk,
    pub(super) log: SimDisk,
}

impl Pair {
    pub(super) fn fork(&self) -> Pair {
        Pair { home: self.home.fork(), log: self.log.fork() }
    }

    pub(super) fn world(&self, seed: u64) -> SimWorld {
        let world = SimWorld::new(seed);
        world.attach("meta", &self.home);
        world.attach("log", &self.log);
        world
    }

    /// The error of an opening, which must fail.
    fn refusal(&self) -> String {
        let result = self.world(1).run(|env| async move { open(&env).await.err() });
        match result {
            Some(StoreError::Refused(text)) => text.to_string(),
            other => panic!("{other:?}"),
        }
    }
}

/// Room of a journal for the smallest log.
pub(super) const LOG_SIZE: u64 = LOG_BYTES_MIN + 4 * BLOCK as u64;

pub(super) fn formatted_pair() -> Pair {
    let world = SimWorld::new(1);
    let pair = Pair { home: world.disk("meta", SIZE), log: world.disk("log", LOG_SIZE) };
    world.run(|env| async move { format(&env, LOG_BYTES_MIN).await });
    pair
}

/// Runs `steps` transactions, as [`super::record`]; returns the models and the acknowledgements.
pub(super) fn record_pair(seed: u64, pair: &Pair, steps: usize) -> (Vec<Model>, SimDisk) {
    let world = pair.world(seed);
    let acks = world.disk("acks", BLOCK as u64);
    acks.set_write_through(true);
    let recorded = [pair.home.clone(), pair.log.clone(), acks.clone()];
    let models = world.run(|env| async move {
        let store = open(&env).await.unwrap();
        let notes = env.open_disk("acks", super::WRITE).await.unwrap();
        recorded.iter().for_each(SimDisk::record);
        let mut work = Work::new(seed);
        for step in 0..steps {
            let number = work.step(&store).await.unwrap();
            if work.rng.one_in(6) {
                store.wait_durable(number).await.unwrap();
                acknowledge(&env, &notes, work.models.len() as u64 - 1).await;
            }
            if step % 40 == 39 {
                // Everything goes home, and the tail to the end of the log.
                env.sleep(Duration::from_secs(6)).await;
            }
        }
        store.sync().await.unwrap();
        work.models
    });
    (models, acks)
}

fn recover(seed: u64, pair: &Pair, models: &[Model], at_least: u64, what: &str) -> u64 {
    pair.world(seed).run(|env| async move {
        let store = open(&env).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        let count = check(&store, models).await;
        assert!(count >= at_least, "{what}: {at_least} were durable, {count} are there");
        count
    })
}

/// Recovers with a crash at every moment of the recovery: the result must be the same.
fn crash_in_recovery(seed: u64, pair: &Pair, models: &[Model], count: u64, what: &str) {
    pair.home.record();
    pair.log.record();
    assert_eq!(recover(seed, pair, models, count, what), count, "{what}");
    let recordings = [&pair.home, &pair.log].map(|disk| disk.recording().unwrap());
    for point in crash_images(recordings.into(), CrashOptions { seed, subsets: 2 }) {
        let what = format!("{what}; in recovery: {}", point.description);
        let [home, log] = <[SimDisk; 2]>::try_from(point.disks).ok().unwrap();
        let pair = Pair { home, log };
        lose_a_copy(seed, &pair, models, count, &what);
        assert_eq!(recover(seed, &pair, models, count, &what), count, "{what}");
    }
}

/// Either copy of the superblock suffices, and either copy of the journal's header.
fn lose_a_copy(seed: u64, pair: &Pair, models: &[Model], at_least: u64, what: &str) {
    let blocks = SIZE / BLOCK as u64 - 1;
    let place = |index| Superblock::place(index, blocks).0 * BLOCK as u64;
    let whole =
        |index| Superblock::decode(&pair.home.peek(place(index), BLOCK), index, blocks).is_ok();
    for index in 0..2 {
        if whole(1 - index) {
            let pair = pair.fork();
            pair.home.poke(place(index), &[0x5a; BLOCK]);
            recover(seed, &pair, models, at_least, &format!("{what}; copy {index} is lost"));
        }
        let at = |index: usize| COPIES[index].0 * BLOCK as u64;
        let header = |index| JournalHeader::decode(&pair.log.peek(at(index), BLOCK));
        if header(1 - index).is_ok() && header(0) == header(1) {
            let pair = pair.fork();
            pair.log.poke(at(index), &[0x5a; BLOCK]);
            recover(seed, &pair, models, at_least, &format!("{what}; header {index} is lost"));
        }
    }
}

#[test]
fn crash_with_an_external_log_leaves_a_prefix_with_all_acknowledged_transactions() {
    let mut images = 0;
    for seed in 1..3 {
        let pair = formatted_pair();
        let (models, acks) = record_pair(seed, &pair, 150);
        let recordings = [&pair.home, &pair.log, &acks].map(|disk| disk.recording().unwrap());
        let mut newest = 0;
        for point in crash_images(recordings.into(), CrashOptions { seed, subsets: 2 }) {
            let what = point.description;
            let [home, log, acks] = <[SimDisk; 3]>::try_from(point.disks).ok().unwrap();
            let (pair, at_least) = (Pair { home, log }, acknowledged(&acks));
            images += 1;
            let again = pair.fork();
            if images % 5 == 0 {
                lose_a_copy(seed, &pair, &models, at_least, &what);
            }
            let count = recover(seed, &pair, &models, at_least, &what);
            newest = newest.max(count);
            if images % 101 == 0 {
                crash_in_recovery(seed, &again, &models, count, &what);
            }
        }
        assert_eq!(newest, models.len() as u64 - 1);
    }
    assert!(images > 1000, "{images}");
}

#[cfg(debug_assertions)]
#[test]
fn planted_bugs_of_the_order_between_both_disks_are_caught() {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use types::Bug;

    let visit = |seed| {
        let pair = formatted_pair();
        let (models, acks) = record_pair(seed, &pair, 150);
        let recordings = [&pair.home, &pair.log, &acks].map(|disk| disk.recording().unwrap());
        for point in crash_images(recordings.into(), CrashOptions { seed, subsets: 2 }) {
            let [home, log, acks] = <[SimDisk; 3]>::try_from(point.disks).ok().unwrap();
            recover(seed, &Pair { home, log }, &models, acknowledged(&acks), &point.description);
        }
    };
    for bug in [Bug::LogNotFlushed, Bug::TailBeforeFlush, Bug::HomeBeforeLog] {
        let caught = (1..10).find(|&seed| {
            let _planted = types::plant::plant(bug);
            catch_unwind(AssertUnwindSafe(|| visit(seed))).is_err()
        });
        assert!(caught.is_some(), "{bug:?} is not caught");
    }
}

/// Reads the newest header, changes it and writes both copies.
pub(super) fn change_header(log: &SimDisk, change: impl FnOnce(&mut JournalHeader) + 'static) {
    let world = SimWorld::new(1);
    world.attach("log", log);
    world.run(|env| async move {
        let disk = env.open_disk("log", super::WRITE).await.unwrap();
        let device = Device::whole(&env, &disk);
        let mut header = newest(&read_headers(&device).await).unwrap();
        change(&mut header);
        write_headers(&device, &header).await.unwrap();
    });
}

#[test]
fn missing_foreign_older_or_doubled_journal_is_refused_with_both_uuids() {
    let pair = formatted_pair();
    let (_, older) = (record_pair(1, &pair, 60), pair.fork());
    // Two openings, each of which raises the generation: the copies of before are older now.
    record_pair(2, &pair, 0);
    record_pair(3, &pair, 0);
    let header = JournalHeader::decode(&pair.log.peek(BLOCK as u64, BLOCK)).unwrap();
    let uuids = [header.journal.to_string(), header.metadata.to_string()];
    let expect = |pair: &Pair, texts: &[&str]| {
        let text = pair.refusal();
        for part in uuids.iter().map(String::as_str).chain(texts.iter().copied()) {
            assert!(text.contains(part), "`{part}` is not in: {text}");
        }
    };
    // An older copy of one of the two devices.
    expect(&Pair { log: older.log.fork(), ..pair.fork() }, &["an older copy of it"]);
    expect(&Pair { home: older.home.fork(), ..pair.fork() }, &["metadata device is an older copy"]);
    // The journal of other metadata, and another journal of these.
    let other = formatted_pair();
    change_header(&other.log, |header| header.metadata = Uuid([7; 16]));
    let foreign = Uuid([7; 16]).to_string();
    expect(&Pair { log: other.log.fork(), ..pair.fork() }, &[&foreign, "the right device"]);
    let before = pair.fork();
    change_header(&before.log, |header| header.journal = Uuid([8; 16]));
    let used = Uuid([8; 16]).to_string();
    expect(&before, &[&used, "used before"]);
    // Headers of two journals on one device.
    let doubled = pair.fork();
    let second = before.log.peek(COPIES[1].0 * BLOCK as u64, BLOCK);
    doubled.log.poke(COPIES[1].0 * BLOCK as u64, &second);
    expect(&doubled, &[&used, "headers of two journals"]);
    // No journal at all, an unusable one, and none given.
    let empty = SimWorld::new(1).disk("log", LOG_SIZE);
    expect(&Pair { log: empty, ..pair.fork() }, &["carries no journal"]);
    let damaged = pair.fork();
    COPIES.iter().for_each(|copy| damaged.log.flip_bit(copy.0 * BLOCK as u64 + 100, 1));
    expect(&damaged, &["unusable"]);
    let world = SimWorld::new(1);
    world.attach("meta", &pair.home.fork());
    let missing = world.run(|env| async move { open(&env).await.err().unwrap().to_string() });
    assert!(uuids.iter().all(|uuid| missing.contains(uuid)), "{missing}");
    assert!(missing.contains("set `journal`"), "{missing}");
    // Retired: the log has moved on, these metadata have not.
    let retired = pair.fork();
    change_header(&retired.log, |header| header.retired = true);
    expect(&retired, &["has moved elsewhere"]);
    // A journal beside an internal log.
    let unwanted = Pair { home: super::formatted(64 << 10), ..pair.fork() };
    assert!(unwanted.refusal().contains("is internal"), "{}", unwanted.refusal());
    // The pair itself opens.
    pair.world(1).run(|env| async move {
        let store = Store::open(&env, disks(&env).await, super::small()).await.unwrap();
        store.close().await.unwrap();
    });
}

/// The generation of the journal that the superblock on this disk knows.
fn known_generation(home: &SimDisk) -> u64 {
    let blocks = SIZE / BLOCK as u64 - 1;
    let copies = (0..2).filter_map(|index| {
        let place = Superblock::place(index, blocks).0 * BLOCK as u64;
        Superblock::decode(&home.peek(place, BLOCK), index, blocks).ok()
    });
    copies.map(|copy| copy.log_generation).max().unwrap()
}

/// Generations cannot tell a copy of the metadata that is one generation old from a crash in a
/// checkpoint. Redo finds all that was durable, or is refused: the log was overwritten since.
#[test]
fn metadata_copy_one_generation_old_loses_nothing_or_is_refused() {
    let pair = formatted_pair();
    let world = pair.world(5);
    let Pair { home, log } = pair.clone();
    let (stale, models) = world.run(|env| async move {
        let store = open(&env).await.unwrap();
        let mut work = Work::new(5);
        let mut copies: BTreeMap<u64, SimDisk> = BTreeMap::new();
        let (mut stale, mut durable) = (Vec::new(), 0);
        for step in 1..=1500 {
            // Bursts fill the log while a checkpoint is on its way.
            let number = work.step(&store).await.unwrap();
            if step % 8 == 0 {
                store.wait_durable(number).await.unwrap();
                durable = step;
            }
            copies.entry(known_generation(&home)).or_insert_with(|| home.fork());
            let header = JournalHeader::decode(&log.peek(BLOCK as u64, BLOCK)).unwrap();
            let old = copies.get(&(header.generation - 1)).filter(|_| step % 3 == 0);
            if let Some(home) = old {
                stale.push((durable, Pair { home: home.fork(), log: log.fork() }));
            }
        }
        (stale, work.models)
    });
    let mut refused = 0;
    for (durable, pair) in &stale {
        let opened = pair.world(1).run(|env| async move { open(&env).await.map(drop) });
        match opened {
            Ok(()) => drop(recover(1, pair, &models, *durable, "an older copy")),
            Err(StoreError::Refused(text)) => {
                assert!(text.contains("metadata device is an older copy"), "{text}");
                refused += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(refused > 0, "of {} copies none had lost its log", stale.len());
}

#[test]
fn mkfs_does_not_overwrite_a_journal_without_force() {
    let pair = formatted_pair();
    let world = SimWorld::new(2);
    world.disk("meta", SIZE);
    world.attach("log", &pair.log);
    world.run(|env| async move {
        let mut options = crate::store::mkfs::FormatOptions {
            name: "home",
            uuid: Uuid([6; 16]),
            shard: ShardId(0),
            log_bytes: LOG_BYTES_MIN,
            features: crate::format::features::Features::NONE,
            force: false,
        };
        let both: Disks = disks(&env).await;
        let error = Store::begin_format(&env, &both, &options).await.err().unwrap().to_string();
        assert!(error.contains("has journal") && error.contains("--force"), "{error}");
        options.force = true;
        let store = Store::begin_format(&env, &both, &options).await.unwrap();
        store.end_format().await.unwrap();
    });
}
