//! Devices that fail, and content that is damaged.

use env::sim::{CrashOptions, DiskAction, DiskFault, SimDisk, SimRng, crash_images};
use types::limits::BLOCK_U64;
use types::{Fault, ObjectId};

use super::super::scrub::Damaged;
use super::super::{ObjectStore, map};
use super::{Blocks, Disks, NOBODY, look, open, write};

/// Where a block of an object lies on the device, in bytes, and in the content slice.
async fn place(store: &ObjectStore, object: u64, block: u64) -> (u64, u64) {
    let found = store.engine().run(engine::cost::Cost::READ, |txn| {
        map::overlapping(txn, ObjectId(object), block, block + 1, 1)
    });
    let at = found.await.unwrap().0[0].part(block, block + 1).at;
    ((store.flight.content.start + at) * BLOCK_U64, at)
}

#[test]
fn flipped_bit_of_content_is_found_by_reads_and_by_a_scrub() {
    let disks = Disks::formatted(2000, 1 << 20, false, true);
    let device = disks.device.clone();
    disks.world(1).run(|env| async move {
        let store = open(&env).await;
        write(&store, 1, 0, 200, 1).await.unwrap();
        write(&store, 2, 1 << 40, 100, 1).await.unwrap();
        let clean = store.scrub(0).await.unwrap();
        assert_eq!((clean.objects, clean.blocks, clean.damaged), (2, 300, 0));
        let mut rng = SimRng::new(1);
        for n in 0..200 {
            let (object, first, len) = [(1, 0, 200), (2, 1 << 40, 100)][n % 2];
            let block = first + rng.below(len);
            let (offset, at) = place(&store, object, block).await;
            let (byte, bit) = (offset + rng.below(BLOCK_U64), rng.below(8) as u8);
            device.flip_bit(byte, bit);
            let read = store.read(ObjectId(object), first, len as u32).await;
            assert_eq!(read.err(), Some(Fault::Corrupt));
            // All others can be read.
            for other in [block - 1, block, block + 1] {
                if (first..first + len).contains(&other) {
                    let read = store.read(ObjectId(object), other, 1).await;
                    assert_eq!(read.is_err(), other == block, "{other}");
                }
            }
            if n < 20 {
                let found = store.scrub(0).await.unwrap();
                let damaged =
                    Damaged { object: ObjectId(object), block, at, fault: Fault::Corrupt };
                assert_eq!((found.damaged, found.findings), (1, vec![damaged]));
            }
            device.flip_bit(byte, bit);
        }
        assert_eq!(store.scrub(0).await.unwrap().damaged, 0);
        assert!(store.counters().corrupt >= 400);
    });
}

#[test]
fn unreadable_block_fails_its_read_alone_and_a_scrub_names_it() {
    let disks = Disks::formatted(2000, 1 << 20, false, true);
    let device = disks.device.clone();
    disks.world(1).run(|env| async move {
        let store = open(&env).await;
        write(&store, 1, 0, 200, 1).await.unwrap();
        let (offset, at) = place(&store, 1, 77).await;
        device.make_unreadable(offset..offset + BLOCK_U64);
        assert_eq!(store.read(ObjectId(1), 0, 200).await.err(), Some(Fault::Io));
        assert_eq!(store.read(ObjectId(1), 77, 1).await.err(), Some(Fault::Io));
        assert!(store.read(ObjectId(1), 78, 100).await.is_ok());
        let found = store.scrub(0).await.unwrap();
        let damaged = Damaged { object: ObjectId(1), block: 77, at, fault: Fault::Io };
        assert_eq!((found.blocks, found.findings), (200, vec![damaged]));
        // New bytes go elsewhere.
        write(&store, 1, 77, 1, 2).await.unwrap();
        let known = |block| vec![if block == 77 { 2 } else { 1 }];
        assert_eq!(look(&store, 1, 200, known).await.unwrap().len(), 200);
    });
}

/// Changes two objects until something fails; returns what they had after each change, and how many
/// changes were durable.
async fn work(store: &ObjectStore, seed: u64) -> (Vec<Blocks>, usize, bool) {
    let mut rng = SimRng::new(seed);
    let (mut models, mut durable) = (vec![Blocks::new()], 0);
    for version in 1..40 {
        let mut model = models[models.len() - 1].clone();
        let (from, len) = (rng.below(40), 1 + rng.below(20));
        let punch = rng.one_in(5);
        match punch {
            true => model.retain(|block, _| *block < from || *block >= from + len),
            false => model.extend((from..from + len).map(|block| (block, version))),
        }
        models.push(model);
        let made = match punch {
            true => store.punch(NOBODY, ObjectId(1), from, from + len).await,
            false => write(store, 1, from, len, version).await,
        };
        match made {
            Ok(number) if version % 3 == 0 => {
                if store.engine().wait_durable(number).await.is_err() {
                    return (models, durable, true);
                }
                durable = models.len() - 1;
            }
            Ok(_) => {}
            Err(fault) => {
                assert_eq!(fault, Fault::Io);
                return (models, durable, true);
            }
        }
    }
    (models, durable, store.close().await.is_err())
}

fn recover(seed: u64, disks: &Disks, models: &[Blocks], durable: usize, what: &str) {
    disks.world(seed).run(|env| async move {
        let store = open(&env).await;
        assert_eq!(store.check().await.unwrap(), [], "{what}");
        let known =
            |block: u64| models.iter().rev().filter_map(|m| m.get(&block).copied()).collect();
        let found =
            look(&store, 1, 64, known).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(models[durable..].contains(&found), "{what}: {durable} changes were durable");
    });
}

fn fail_each(external: bool, which: usize) {
    let pristine = Disks::formatted(300, 256 << 10, external, true);
    for action in [DiskAction::Write, DiskAction::Flush] {
        let mut survived = 0;
        for nth in 1.. {
            let disks = pristine.fork();
            let faulty = disks.all()[which].clone();
            let broken = faulty.clone();
            let (models, durable, failed) = disks.world(nth).run(|env| async move {
                let store = open(&env).await;
                broken.fail(action, nth, DiskFault::Io);
                let (models, durable, failed) = work(&store, nth).await;
                if failed {
                    // The store has stopped.
                    assert_eq!(write(&store, 1, 0, 1, 99).await.err(), Some(Fault::Io));
                    assert_eq!(store.read(ObjectId(1), 0, 1).await.err(), Some(Fault::Io));
                    assert!(store.scrub(0).await.is_err());
                    assert!(store.close().await.is_err());
                }
                (models, durable, failed)
            });
            faulty.heal();
            let what = format!("{action:?} {nth} of disk {which} fails");
            let stable = Disks {
                device: disks.device.stable_only(),
                journal: disks.journal.as_ref().map(SimDisk::stable_only),
            };
            recover(nth, &stable, &models, durable, &what);
            // The devices continue without a power cut, and then there is one.
            disks.all().iter().for_each(SimDisk::record);
            recover(nth, &disks, &models, durable, &what);
            let recordings = disks.all().iter().map(|disk| disk.recording().unwrap()).collect();
            for point in crash_images(recordings, CrashOptions { seed: nth, subsets: 1 }).step_by(5)
            {
                let mut all = point.disks.into_iter();
                let disks = Disks { device: all.next().unwrap(), journal: all.next() };
                let what = format!("{what}; in recovery: {}", point.description);
                recover(nth, &disks, &models, durable, &what);
            }
            if !failed {
                survived += 1;
                if survived == 2 {
                    assert!(nth > 10, "{nth}");
                    break;
                }
            }
        }
    }
}

#[test]
fn failed_write_or_flush_of_the_device_stops_the_store_and_loses_nothing() {
    fail_each(false, 0);
    fail_each(true, 0);
}

#[test]
fn failed_write_or_flush_of_the_journal_stops_the_store_and_loses_nothing() {
    fail_each(true, 1);
}
