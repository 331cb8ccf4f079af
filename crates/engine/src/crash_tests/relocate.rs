//! Crashes while the log moves between the metadata device and journals.

use env::Disk;
use env::sim::{CrashOptions, SimDisk, SimRng, SimWorld, crash_images};
use label::{Label, Slice, SliceKind};
use types::Uuid;
use types::limits::BLOCK;

use super::journal::{LOG_SIZE, Pair, change_header, formatted_pair, record_pair};
use super::{Disks, Duration, Model, WRITE, Work, check, formatted, record, small};
use crate::error::StoreError;
use crate::format::journal::{COPIES, JournalHeader};
use crate::store::Store;
use crate::store::relocate::{Moved, look, move_log};

/// A disk that the log may be on.
const PLACES: [Option<&str>; 3] = [None, Some("log"), Some("new")];

/// The metadata device and two devices for journals.
#[derive(Clone)]
struct Bed {
    disks: [SimDisk; 3],
}

impl Bed {
    fn fork(&self) -> Bed {
        Bed { disks: self.disks.each_ref().map(SimDisk::fork) }
    }

    fn world(&self, seed: u64) -> SimWorld {
        let world = SimWorld::new(seed);
        for (name, disk) in ["meta", "log", "new"].into_iter().zip(&self.disks) {
            world.attach(name, disk);
        }
        world
    }

    /// Moves the log.
    fn move_log(&self, seed: u64, from: Option<&'static str>, to: Option<&'static str>) -> Moved {
        self.world(seed).run(|env| async move {
            let (disks, to) = (at(&env, from).await, at(&env, to).await.log);
            move_log(&env, disks, to.as_ref(), false).await.unwrap()
        })
    }

    /// The place from which the store opens, with the right content; the others are refused.
    fn place(&self, seed: u64, models: &[Model], what: &str) -> Option<&'static str> {
        let mut found = Vec::new();
        for place in PLACES {
            let opened = self.fork().world(seed).run(|env| async move {
                let disks = at(&env, place).await;
                let state = look(&env, &disks).await.unwrap();
                match Store::open(&env, &disks, small()).await {
                    Ok(store) => {
                        let count = check(&store, models).await;
                        assert_eq!(count, models.len() as u64 - 1, "{what}");
                        assert_eq!(state.mismatch, None, "{what}");
                        true
                    }
                    Err(StoreError::Refused(text)) => {
                        let here = state.mismatch.unwrap();
                        assert!(text.contains(&here), "{what}: {text}");
                        false
                    }
                    Err(error) => panic!("{what}: {error}"),
                }
            });
            found.extend(opened.then_some(place));
        }
        assert_eq!(found.len(), 1, "{what}: {found:?}");
        found[0]
    }
}

async fn at(env: &env::Env, place: Option<&str>) -> Disks {
    let home = env.open_disk("meta", WRITE).await.unwrap();
    let log: Option<Disk> = match place {
        Some(name) => Some(env.open_disk(name, WRITE).await.unwrap()),
        None => None,
    };
    Disks { home, log }
}

/// A store that was not closed, with its log in this place.
fn store_at(place: Option<&'static str>, seed: u64) -> (Bed, Vec<Model>) {
    let spare = || SimWorld::new(1).disk("spare", LOG_SIZE + 7 * BLOCK as u64);
    if place.is_none() {
        let disk = formatted(64 << 10);
        let (models, _) = record(seed, &disk, 90, true);
        return (Bed { disks: [disk, spare(), spare()] }, models);
    }
    let Pair { home, log } = formatted_pair();
    let (models, _) = record_pair(seed, &Pair { home: home.clone(), log: log.clone() }, 90);
    (Bed { disks: [home, log, spare()] }, models)
}

/// Works on the store where it is now, and checks it.
fn work_on(bed: &Bed, seed: u64, place: Option<&'static str>, models: &[Model]) {
    let models = models.to_vec();
    bed.world(seed).run(|env| async move {
        let disks = at(&env, place).await;
        let store = Store::open(&env, &disks, small()).await.unwrap();
        let mut work = Work { rng: SimRng::new(seed), models };
        for _ in 0..60 {
            work.step(&store).await.unwrap();
        }
        store.sync().await.unwrap();
        drop(store);
        env.sleep(Duration::from_millis(1)).await;
        let store = Store::open(&env, &disks, small()).await.unwrap();
        assert_eq!(check(&store, &work.models).await, work.models.len() as u64 - 1);
    });
}

/// The log moves, with a crash at every write and flush: it is in the old place or in the new one,
/// and the same move ends what the crash interrupted.
fn crash_in_move(from: Option<&'static str>, to: Option<&'static str>) {
    let seed = 3;
    let (bed, models) = store_at(from, seed);
    let before = bed.fork();
    bed.disks.iter().for_each(SimDisk::record);
    let moved = bed.move_log(seed, from, to);
    assert_eq!((moved.already, moved.journal.is_some()), (false, to.is_some()));
    assert_eq!(bed.place(seed, &models, "moved"), to);
    let recordings = bed.disks.each_ref().map(|disk| disk.recording().unwrap());
    let (mut old, mut new) = (0, 0);
    for point in crash_images(recordings.into(), CrashOptions { seed, subsets: 3 }) {
        let what = format!("{from:?} to {to:?}: {}", point.description);
        let bed = Bed { disks: point.disks.try_into().ok().unwrap() };
        let place = bed.place(seed, &models, &what);
        assert!(place == from || place == to, "{what}: {place:?}");
        let already = place == to;
        (old, new) = (old + u32::from(!already), new + u32::from(already));
        if (old + new) % 3 == 0 {
            work_on(&bed.fork(), seed, place, &models);
        }
        assert_eq!(bed.move_log(seed, from, to).already, already, "{what}");
        assert_eq!(bed.place(seed, &models, &what), to, "{what}");
        if (old + new) % 5 == 0 {
            work_on(&bed, seed, to, &models);
        }
    }
    assert!(old > 20 && new > 2, "{from:?} to {to:?}: {old} {new}");
    // What the old device had before the move is not taken for the log again.
    if let Some(at) = from.map(|_| 1) {
        let retired = JournalHeader::decode(&bed.disks[at].peek(BLOCK as u64, BLOCK)).unwrap();
        assert!(retired.retired);
        let mut mixed = bed.fork();
        mixed.disks[at] = before.disks[at].fork();
        assert_eq!(mixed.place(seed, &models, "the old journal is back"), to);
    }
}

#[test]
fn log_that_moves_out_is_never_lost() {
    crash_in_move(None, Some("new"));
}

#[test]
fn log_that_moves_back_in_is_never_lost() {
    crash_in_move(Some("log"), None);
}

#[test]
fn log_that_moves_to_another_journal_is_never_lost() {
    crash_in_move(Some("log"), Some("new"));
}

#[test]
fn log_moves_around_and_every_copy_of_an_earlier_place_is_refused() {
    let seed = 5;
    let (bed, models) = store_at(None, seed);
    let route = [Some("log"), Some("new"), None, Some("new"), Some("log"), None];
    let mut copies: Vec<Bed> = Vec::new();
    let mut from = None;
    for to in route {
        bed.move_log(seed, from, to);
        assert_eq!(bed.place(seed, &models, "moved"), to);
        for copy in &copies {
            let mut mixed = bed.fork();
            for at in 1..3 {
                mixed.disks[at] = copy.disks[at].fork();
            }
            let opens = mixed.world(seed).run(|env| async move {
                Store::open(&env, &at(&env, to).await, small()).await.is_ok()
            });
            assert_eq!(opens, to.is_none(), "{to:?}");
        }
        copies.push(bed.fork());
        from = to;
    }
}

#[test]
fn move_refuses_a_target_that_is_in_use_and_changes_nothing() {
    let (bed, models) = store_at(None, 7);
    let foreign = formatted_pair();
    change_header(&foreign.log, |header| header.metadata = Uuid([7; 16]));
    let mut bed = bed.fork();
    bed.disks[2] = foreign.log.fork();
    let refused = bed.fork().world(1).run(|env| async move {
        let disks = at(&env, None).await;
        let to = at(&env, Some("new")).await.log;
        let error = move_log(&env, &disks, to.as_ref(), false).await.unwrap_err();
        let home = disks.home.clone();
        let own = move_log(&env, &disks, Some(&home), true).await.unwrap_err().to_string();
        assert!(own.contains("metadata device"), "{own}");
        error.to_string()
    });
    let foreign = Uuid([7; 16]).to_string();
    assert!(refused.contains("--force") && refused.contains(&foreign), "{refused}");
    assert_eq!(bed.place(1, &models, "refused"), None);
    for copy in COPIES {
        assert!(JournalHeader::decode(&bed.disks[2].peek(copy.0 * 4096, BLOCK)).is_ok());
    }
}

/// A device with the journal of `bed` and a slice of another owner behind it.
fn shared_with_another(log: &SimDisk) -> SimDisk {
    let old = Label::decode(&log.peek(0, BLOCK)).unwrap();
    let shared = SimDisk::new(2 * LOG_SIZE);
    shared.poke(0, &log.peek(0, (LOG_SIZE - BLOCK as u64) as usize));
    let kind = SliceKind::Journal { shard: 0, metadata: Uuid([7; 16]) };
    let (start, uuid) = (LOG_SIZE / BLOCK as u64, Uuid([8; 16]));
    let slices = vec![old.slices[0], Slice { kind, start, blocks: 10, uuid }];
    label::put(&shared, &Label { blocks: 2 * start, slices, ..old });
    shared.make_all_stable();
    shared
}

#[test]
fn log_that_leaves_a_shared_device_gives_its_slice_back_and_touches_no_other() {
    let seed = 9;
    let (mut bed, models) = store_at(Some("log"), seed);
    let shared = shared_with_another(&bed.disks[1]);
    bed.disks[1] = shared.clone();
    assert_eq!(bed.place(seed, &models, "shared"), Some("log"));
    let other = |disk: &SimDisk| disk.peek(LOG_SIZE, 10 * BLOCK);
    shared.poke(LOG_SIZE, &[0xa5; 10 * BLOCK]);
    let before = other(&shared);
    bed.disks.iter().for_each(SimDisk::record);
    bed.move_log(seed, Some("log"), None);
    let recordings = bed.disks.each_ref().map(|disk| disk.recording().unwrap());
    for point in crash_images(recordings.into(), CrashOptions { seed, subsets: 1 }) {
        let bed = Bed { disks: point.disks.try_into().ok().unwrap() };
        let place = bed.place(seed, &models, &point.description);
        assert!(place.is_none() || place == Some("log"), "{}", point.description);
        bed.move_log(seed, Some("log"), None);
        let label = bed.world(1).run(|env| async move {
            let log = env.open_disk("log", WRITE).await.unwrap();
            label::read(&log).await.unwrap().label
        });
        assert_eq!(label.slices.iter().map(|slice| slice.uuid.0[0]).collect::<Vec<_>>(), [8]);
        assert_eq!(other(&bed.disks[1]), before, "{}", point.description);
    }
    // Nor does it come back over the other one, even with force: its own old header is retired.
    for force in [false, true] {
        let refused = bed.world(1).run(|env| async move {
            let (disks, to) = (at(&env, None).await, at(&env, Some("log")).await.log);
            move_log(&env, &disks, to.as_ref(), force).await.unwrap_err().to_string()
        });
        assert!(refused.contains("journals of the file system"), "{refused}");
    }
    assert_eq!(other(&bed.disks[1]), before);
    assert_eq!(bed.place(seed, &models, "internal"), None);
}
