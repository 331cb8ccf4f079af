//! Power cuts at every write and flush of the device and of its journal.
//!
//! Several clients change an object each, at the same time. A disk of acknowledgements, which loses
//! power at the same moment, has how many changes of each object were said to be durable. In every
//! image that a power cut may leave, each object must be as after one of its changes. That change
//! must not precede the newest that was acknowledged, and all records must agree.

use std::cell::RefCell;
use std::rc::Rc;

use env::sim::{CrashOptions, SimDisk, SimRng, crash_images};
use env::{Disk, Env};
use types::limits::BLOCK;
use types::{Fault, ObjectId};

use super::super::ObjectStore;
use super::super::flight::Planted;
use super::{Blocks, Disks, NOBODY, OPEN, look, open, write};

pub(super) const OBJECTS: u64 = 4;
const END: u64 = 48;

/// Plants a fault in a store.
type Plant = fn(&ObjectStore);

/// What each object had after each of its changes, and how many of them are acknowledged.
#[derive(Clone)]
pub(super) struct History {
    models: Vec<Vec<Blocks>>,
    acknowledged: Vec<u64>,
}

impl History {
    pub(super) fn new() -> History {
        let objects = OBJECTS as usize;
        History { models: vec![vec![Blocks::new()]; objects], acknowledged: vec![0; objects] }
    }

    /// All versions that a block of an object ever had.
    fn versions(&self, object: u64, block: u64) -> Vec<u64> {
        let models = self.models[object as usize].iter().rev();
        let mut out: Vec<u64> = models.filter_map(|model| model.get(&block).copied()).collect();
        out.dedup();
        out
    }
}

/// Records which changes are acknowledged.
async fn acknowledge(env: &Env, acks: &Disk, history: &RefCell<History>, object: u64, count: u64) {
    let mut buf = env.buffer(BLOCK);
    {
        let all = &mut history.borrow_mut().acknowledged;
        all[object as usize] = all[object as usize].max(count);
        for (out, count) in buf.chunks_exact_mut(8).zip(all) {
            out.copy_from_slice(&count.to_le_bytes());
        }
    }
    acks.write(0, buf).await.0.unwrap();
}

fn acknowledged(acks: &SimDisk, object: u64) -> u64 {
    let bytes = acks.peek(8 * object, 8);
    u64::from_le_bytes(bytes.try_into().unwrap())
}

/// Changes one object at random.
pub(super) async fn client(
    env: Env,
    store: Rc<ObjectStore>,
    acks: Disk,
    history: Rc<RefCell<History>>,
    (object, seed, steps): (u64, u64, usize),
) {
    let mut rng = SimRng::new(seed * 100 + object);
    for _ in 0..steps {
        let count = history.borrow().models[object as usize].len() as u64;
        let mut model = history.borrow().models[object as usize][count as usize - 1].clone();
        let (from, len) = (rng.below(END - 16), 1 + rng.below(16));
        let kind = rng.below(12);
        match kind {
            0 => model.clear(),
            1 => model.retain(|block, _| *block < from || *block >= from + len),
            _ => model.extend((from..from + len).map(|block| (block, count))),
        }
        // The change may survive from the moment on in which it is made.
        history.borrow_mut().models[object as usize].push(model);
        let made = match kind {
            0 => store.destroy(NOBODY, &[ObjectId(object)]).await,
            1 => store.punch(NOBODY, ObjectId(object), from, from + len).await,
            _ => write(&store, object, from, len, count).await,
        };
        match made {
            Ok(number) if rng.one_in(3) => {
                store.engine().wait_durable(number).await.unwrap();
                acknowledge(&env, &acks, &history, object, count).await;
            }
            Ok(_) => {}
            Err(fault) => {
                assert_eq!(fault, Fault::NoSpace);
                let models = &mut history.borrow_mut().models[object as usize];
                models[count as usize] = models[count as usize - 1].clone();
            }
        }
    }
}

/// Lets the clients work, with a planted fault, and records the disks and the acknowledgements.
fn record(seed: u64, disks: &Disks, steps: usize, plant: Plant) -> (History, SimDisk) {
    let world = disks.world(seed);
    let acks = world.disk("acks", BLOCK as u64);
    acks.set_write_through(true);
    let recorded: Vec<SimDisk> = disks.all().into_iter().chain([acks.clone()]).collect();
    let history = world.run(|env| async move {
        let store = open(&env).await;
        plant(&store);
        let notes = env.open_disk("acks", OPEN).await.unwrap();
        recorded.iter().for_each(SimDisk::record);
        let history = Rc::new(RefCell::new(History::new()));
        let clients: Vec<_> = (0..OBJECTS)
            .map(|object| {
                let (store, history) = (store.clone(), history.clone());
                let work = (object, seed, steps);
                env.spawn_join(client(env.clone(), store, notes.clone(), history, work))
            })
            .collect();
        for client in clients {
            client.await;
        }
        assert_eq!(store.check().await.unwrap(), []);
        Rc::unwrap_or_clone(history).into_inner()
    });
    (history, acks)
}

/// Recovers an image and checks it.
fn recover(
    seed: u64,
    disks: &Disks,
    acks: &SimDisk,
    history: &History,
    work: bool,
) -> Result<(), String> {
    disks.world(seed).run(|env| async move {
        let store = open(&env).await;
        holds(&store, acks, history).await?;
        if work {
            for object in 0..OBJECTS {
                write(&store, object, 0, 20, 1 << 20).await.unwrap();
            }
            agrees(&store).await?;
            store.close().await.unwrap();
            let store = open(&env).await;
            agrees(&store).await?;
            let known = |block| if block < 20 { vec![1 << 20] } else { history.versions(1, block) };
            assert!(look(&store, 1, END, known).await?.len() >= 20);
        }
        Ok(())
    })
}

/// Is each object as after a change, and not before the newest that was acknowledged?
pub(super) async fn holds(
    store: &ObjectStore,
    acks: &SimDisk,
    history: &History,
) -> Result<(), String> {
    agrees(store).await?;
    for object in 0..OBJECTS {
        let found = look(store, object, END, |block| history.versions(object, block)).await?;
        let least = acknowledged(acks, object) as usize;
        if !history.models[object as usize][least..].contains(&found) {
            return Err(format!("object {object} is as after no change from the {least}th on"));
        }
    }
    Ok(())
}

/// Do all records agree?
pub(super) async fn agrees(store: &ObjectStore) -> Result<(), String> {
    match &store.check().await.unwrap()[..] {
        [] => Ok(()),
        [first, ..] => Err(first.to_string()),
    }
}

/// Checks all images of a run; returns how many there are, or what the first failure is.
fn cut_at_every_moment(
    seed: u64,
    (external, checksums): (bool, bool),
    plant: Plant,
) -> Result<usize, String> {
    let disks = Disks::formatted(300, 256 << 10, external, checksums);
    let (history, acks) = record(seed, &disks, 24, plant);
    let recorded = disks.all().into_iter().chain([acks]);
    let recordings = recorded.map(|disk| disk.recording().unwrap()).collect();
    let mut images = 0;
    for point in crash_images(recordings, CrashOptions { seed, subsets: 2 }) {
        images += 1;
        let mut all = point.disks.into_iter();
        let device = all.next().unwrap();
        let journal = if external { all.next() } else { None };
        let acks = all.next().unwrap();
        let disks = Disks { device, journal };
        recover(seed, &disks, &acks, &history, images % 53 == 0)
            .map_err(|what| format!("{}: {what}", point.description))?;
    }
    Ok(images)
}

#[test]
fn power_cut_leaves_old_or_new_content_with_an_internal_journal() {
    for (seed, checksums) in [(1, true), (2, false)] {
        let images = cut_at_every_moment(seed, (false, checksums), |_| ()).unwrap();
        assert!(images > 1000, "{images}");
    }
}

#[test]
fn power_cut_leaves_old_or_new_content_with_an_external_journal() {
    for (seed, checksums) in [(3, true), (4, false)] {
        let images = cut_at_every_moment(seed, (true, checksums), |_| ()).unwrap();
        assert!(images > 1000, "{images}");
    }
}

#[test]
fn planted_faults_are_found() {
    let faults: [(&str, Plant); 3] = [
        ("held blocks are taken", |store| store.space.ignore_held.set(true)),
        ("no wait for content", |store| store.flight.fault.set(Some(Planted::NoWait))),
        ("no flush of content", |store| store.flight.fault.set(Some(Planted::NoFlush))),
    ];
    for (what, plant) in faults {
        let found = (1..4).find_map(|seed| cut_at_every_moment(seed, (true, true), plant).err());
        let found = found.unwrap_or_else(|| panic!("{what}: not found"));
        assert!(found.contains("damaged") || found.contains("object"), "{what}: {found}");
    }
}
