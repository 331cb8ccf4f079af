//! Targets whose journals share a device: power cuts of all, and a slice that is added to a label.

use std::cell::RefCell;
use std::rc::Rc;

use engine::format::journal::LOG_FIRST;
use engine::format::superblock::LOG_BYTES_MIN;
use env::sim::{CrashOptions, SimDisk, SimWorld, crash_images};
use env::{Disk, Env};
use types::limits::{BLOCK, BLOCK_U64};
use types::{ObjectId, Uuid};

use super::super::{FormatOptions, NewJournal, ObjectStore, release_journal};
use super::crash::{History, OBJECTS, client, holds};
use super::{FRONT, OPEN, OPTIONS, bytes_of, write};
use engine::error::StoreError;

const FS: Uuid = Uuid([1; 16]);
/// Bytes of a slice.
const SLICE: u64 = (256 << 10) + LOG_FIRST.0 * BLOCK_U64;
/// Room for two slices and the label's copy.
const JOURNALS: u64 = 2 * SLICE + BLOCK_U64;

/// Two devices of targets, and one for their journals.
#[derive(Clone)]
struct Bed {
    devices: [SimDisk; 2],
    journals: SimDisk,
}

impl Bed {
    fn new(journals: u64) -> Bed {
        let blocks = LOG_BYTES_MIN / BLOCK_U64 + FRONT + 300 + 1;
        let device = || SimDisk::new(blocks * BLOCK_U64);
        Bed { devices: [device(), device()], journals: SimDisk::new(journals) }
    }

    fn formatted() -> Bed {
        let bed = Bed::new(JOURNALS);
        bed.run(|env| async move {
            for which in 0..2 {
                format(&env, which, options(which), Some(SLICE)).await.unwrap();
            }
        });
        bed.all().iter().for_each(|disk| disk.make_all_stable());
        bed
    }

    fn all(&self) -> Vec<SimDisk> {
        let [first, second] = self.devices.clone();
        vec![first, second, self.journals.clone()]
    }

    fn world(&self, seed: u64) -> SimWorld {
        let world = SimWorld::new(seed);
        world.attach("ost0", &self.devices[0]);
        world.attach("ost1", &self.devices[1]);
        world.attach("journals", &self.journals);
        world
    }

    fn run<T, F: Future<Output = T>>(&self, body: impl FnOnce(Env) -> F) -> T {
        self.world(1).run(body)
    }

    /// The disks of an image.
    fn of(disks: &[SimDisk]) -> Bed {
        let [first, second, journals] = disks else { panic!("three disks") };
        Bed { devices: [first.clone(), second.clone()], journals: journals.clone() }
    }
}

fn options(which: usize) -> FormatOptions<'static> {
    FormatOptions {
        fs_name: "home",
        fs: FS,
        target: Uuid([20 + which as u8; 16]),
        log_bytes: 0,
        checksums: true,
        force: false,
    }
}

async fn disks(env: &Env, which: usize) -> (Disk, Disk) {
    let device = env.open_disk(&format!("ost{which}"), OPEN).await.unwrap();
    (device, env.open_disk("journals", OPEN).await.unwrap())
}

async fn format(
    env: &Env,
    which: usize,
    options: FormatOptions<'_>,
    bytes: Option<u64>,
) -> Result<(), StoreError> {
    let (device, journal) = disks(env, which).await;
    let journal = NewJournal { disk: &journal, bytes };
    ObjectStore::format(env, &device, Some(journal), &options).await
}

async fn open(env: &Env, which: usize) -> Result<Rc<ObjectStore>, StoreError> {
    let (device, journal) = disks(env, which).await;
    ObjectStore::open(env, &device, Some(&journal), OPTIONS).await
}

/// The owners of the slices of a device's label.
fn owners(disk: &SimDisk) -> Vec<u8> {
    let world = SimWorld::new(1);
    world.attach("journals", disk);
    let found = world.run(|env| async move {
        let disk = env.open_disk("journals", OPEN).await.unwrap();
        label::read(&disk).await.map(|found| found.label)
    });
    let Ok(label) = found else { return Vec::new() };
    let owner = |slice: &label::Slice| match slice.kind {
        label::SliceKind::Journal { metadata, .. } => metadata.0[0],
        other => panic!("{other:?}"),
    };
    label.slices.iter().map(owner).collect()
}

/// Both targets work at the same time; what each did, and the disks of acknowledgements.
fn record(seed: u64, bed: &Bed) -> ([History; 2], [SimDisk; 2]) {
    let world = bed.world(seed);
    let acks = ["acks0", "acks1"].map(|name| world.disk(name, BLOCK as u64));
    acks.iter().for_each(|disk| disk.set_write_through(true));
    let recorded: Vec<SimDisk> = bed.all().into_iter().chain(acks.clone()).collect();
    let histories = world.run(|env| async move {
        let mut parts = Vec::new();
        for which in 0..2 {
            let notes = env.open_disk(&format!("acks{which}"), OPEN).await.unwrap();
            let history = Rc::new(RefCell::new(History::new()));
            parts.push((open(&env, which).await.unwrap(), notes, history));
        }
        recorded.iter().for_each(SimDisk::record);
        let mut clients = Vec::new();
        for ((store, notes, history), seed) in parts.iter().zip([seed, seed + 50]) {
            for object in 0..OBJECTS {
                let (store, history) = (store.clone(), history.clone());
                let work = client(env.clone(), store, notes.clone(), history, (object, seed, 16));
                clients.push(env.spawn_join(work));
            }
        }
        for client in clients {
            client.await;
        }
        parts.into_iter().map(|(_, _, history)| history.borrow().clone()).collect::<Vec<_>>()
    });
    (histories.try_into().ok().expect("two"), acks)
}

#[test]
fn power_cut_of_a_shared_device_leaves_both_targets_whole() {
    for seed in [1, 2] {
        let bed = Bed::formatted();
        let (histories, acks) = record(seed, &bed);
        let all = bed.all().into_iter().chain(acks);
        let recordings = all.map(|disk| disk.recording().unwrap()).collect();
        let mut images = 0;
        for point in crash_images(recordings, CrashOptions { seed, subsets: 1 }) {
            images += 1;
            let (disks, acks) = point.disks.split_at(3);
            let (histories, acks) = (&histories, acks.to_vec());
            let checked = Bed::of(disks).world(seed).run(|env| async move {
                // Both are open at once, as in one process; either may be the first.
                let order = if images % 2 == 0 { [0, 1] } else { [1, 0] };
                let mut stores = Vec::new();
                for which in order {
                    stores.push((which, open(&env, which).await.unwrap()));
                }
                for (which, store) in &stores {
                    holds(store, &acks[*which], &histories[*which])
                        .await
                        .map_err(|what| format!("target {which}: {what}"))?;
                }
                Ok::<(), String>(())
            });
            checked.unwrap_or_else(|what| panic!("{}: {what}", point.description));
        }
        assert!(images > 1000, "{images}");
    }
}

#[test]
fn cut_while_a_slice_is_added_keeps_the_first_target_and_its_data() {
    let bed = Bed::new(JOURNALS);
    // The first one is left as after a crash: its changes are in its journal alone.
    bed.run(|env| async move {
        format(&env, 0, options(0), Some(SLICE)).await.unwrap();
        let store = open(&env, 0).await.unwrap();
        let number = write(&store, 5, 0, 8, 3).await.unwrap();
        store.engine().wait_durable(number).await.unwrap();
    });
    let all = bed.all();
    all.iter().for_each(|disk| disk.make_all_stable());
    assert_eq!(owners(&bed.journals), [20]);
    all.iter().for_each(SimDisk::record);
    // Another seed: a world of the same one repeats its random UUIDs.
    let world = bed.world(2);
    world.run(|env| async move { format(&env, 1, options(1), Some(SLICE)).await.unwrap() });
    assert_eq!(owners(&bed.journals), [20, 21]);
    let recordings: Vec<_> = all.iter().map(|disk| disk.recording().unwrap()).collect();
    let (mut seen, mut torn) = ([0; 3], 0);
    for seed in 0..6 {
        for point in crash_images(recordings.clone(), CrashOptions { seed, subsets: 2 }) {
            let bed = Bed::of(&point.disks);
            let before = owners(&bed.journals);
            let (kind, was_torn) = bed.run(|env| async move {
                let (device, journals) = disks(&env, 1).await;
                let torn = label::read(&journals).await.unwrap().damage.is_some();
                let second = ObjectStore::open(&env, &device, Some(&journals), OPTIONS).await;
                let second = second.is_ok();
                let store = open(&env, 0).await.unwrap();
                let found = store.read(ObjectId(5), 0, 8).await.unwrap();
                assert_eq!(found.data[7 * BLOCK..], bytes_of(5, 7, 3)[..]);
                assert_eq!(store.check().await.unwrap(), []);
                assert_eq!(label::read(&journals).await.unwrap().damage, None);
                let kind = match (&before[..], second) {
                    ([20], false) => 0,
                    ([20, 21], false) => 1,
                    ([20, 21], true) => 2,
                    other => panic!("{other:?}"),
                };
                (kind, torn)
            });
            seen[kind] += 1;
            torn += u32::from(was_torn);
        }
    }
    assert!(torn > 0 && seen.iter().all(|&images| images > 0), "{seen:?} {torn}");
}

#[test]
fn what_has_no_room_or_belongs_elsewhere_is_refused_and_harms_nobody() {
    let bed = Bed::formatted();
    bed.run(|env| async move {
        let text = |made: Result<(), StoreError>| made.expect_err("refused").to_string();
        let new = FormatOptions { target: Uuid([30; 16]), force: true, ..options(0) };
        let (spare, journals) = disks(&env, 0).await;
        let full = NewJournal { disk: &journals, bytes: Some(SLICE + BLOCK_U64) };
        let other = FormatOptions { fs: Uuid([9; 16]), ..new.clone() };
        let refusals = [
            (None, &new, "--journal-size"),
            (Some(SLICE), &other, "file system `home`"),
            (Some(1 << 12), &new, "too few for a journal"),
        ];
        for (bytes, options, wanted) in refusals {
            let journal = NewJournal { bytes, ..full };
            let made = ObjectStore::format(&env, &spare, Some(journal), options).await;
            let said = text(made);
            assert!(said.starts_with("journals: ") && said.contains(wanted), "{said}");
        }
        let said = text(ObjectStore::format(&env, &spare, Some(full), &new).await);
        assert!(said.contains("bytes free together"), "{said}");
        // Nothing has changed, and the lock of the label is free again.
        for which in 0..2 {
            open(&env, which).await.unwrap().close().await.unwrap();
        }
        // In place of the old target a new one gets the old one's slice.
        format(&env, 0, new, Some(SLICE)).await.unwrap();
        let store = open(&env, 0).await.unwrap();
        let place = store.journal().await.expect("an external journal");
        assert_eq!((place.start, place.blocks, place.others), (0, SLICE / BLOCK_U64, 1));
        assert_eq!(store.info().uuid, Uuid([30; 16]));
        assert_eq!(open(&env, 1).await.unwrap().check().await.unwrap(), []);
    });
    assert_eq!(owners(&bed.journals), [30, 21]);
}

#[test]
fn journal_as_large_as_its_device_does_not_share_it() {
    let bed = Bed::new(SLICE);
    bed.run(|env| async move {
        format(&env, 0, options(0), Some(SLICE)).await.unwrap();
        let second = format(&env, 1, options(1), Some(SLICE)).await.unwrap_err().to_string();
        assert!(second.contains("1 journals, and at most 0 bytes"), "{second}");
        let place = open(&env, 0).await.unwrap().journal().await.unwrap();
        assert_eq!((place.start, place.blocks), (0, SLICE / BLOCK_U64 - 1));
    });
}

/// As when target and journal are named in the wrong order.
#[test]
fn no_target_is_made_on_a_device_with_journals_even_with_force() {
    let bed = Bed::new(64 << 20);
    bed.run(|env| async move {
        for which in 0..2 {
            format(&env, which, options(which), Some(SLICE)).await.unwrap();
        }
        let (spare, journals) = disks(&env, 0).await;
        let (target, log_bytes) = (Uuid([30; 16]), LOG_BYTES_MIN);
        let new = FormatOptions { target, log_bytes, force: true, ..options(0) };
        let swapped = [Some(SLICE), None].map(|bytes| Some(NewJournal { disk: &spare, bytes }));
        for journal in swapped.into_iter().chain([None]) {
            let made = ObjectStore::format(&env, &journals, journal, &new).await;
            let said = made.expect_err("it would take both their journals").to_string();
            assert!(said.starts_with("journals: ") && said.contains("share it, 2 in"), "{said}");
        }
        for which in 0..2 {
            open(&env, which).await.unwrap().close().await.unwrap();
        }
    });
    assert_eq!(owners(&bed.journals), [20, 21]);
}

/// Also that of the only one on the device, which has no label then.
#[test]
fn released_journal_opens_no_target_and_makes_room_for_another() {
    for others in [false, true] {
        let bed = Bed::new(JOURNALS);
        bed.run(|env| async move {
            if others {
                format(&env, 1, options(1), Some(SLICE)).await.unwrap();
            }
            format(&env, 0, options(0), Some(SLICE)).await.unwrap();
            let (_, journals) = disks(&env, 0).await;
            let target = Uuid([20; 16]);
            assert!(release_journal(&env, &journals, target).await.unwrap());
            assert!(!release_journal(&env, &journals, target).await.unwrap());
            let said = open(&env, 0).await.err().expect("its journal is lost").to_string();
            assert!(said.starts_with("journals: "), "{said}");
            let next = if others { 0 } else { 1 };
            let new = FormatOptions { target: Uuid([30; 16]), force: others, ..options(next) };
            format(&env, next, new, Some(SLICE)).await.unwrap();
            assert_eq!(open(&env, next).await.unwrap().check().await.unwrap(), []);
        });
    }
}

/// Both find the device without a label; one waits for the other.
#[test]
fn two_formats_at_once_get_a_slice_each() {
    for seed in 0..8 {
        let bed = Bed::new(JOURNALS);
        bed.world(seed).run(|env| async move {
            let made = [0, 1].map(|which| {
                let on = env.clone();
                env.spawn_join(async move { format(&on, which, options(which), Some(SLICE)).await })
            });
            for made in made {
                made.await.unwrap();
            }
            for which in 0..2 {
                assert_eq!(open(&env, which).await.unwrap().check().await.unwrap(), []);
            }
        });
        let mut found = owners(&bed.journals);
        found.sort_unstable();
        assert_eq!(found, [20, 21], "seed {seed}");
    }
}
