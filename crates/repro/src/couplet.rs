//! The storage of paper 001 (section 2.2) on virtual disks: 28 targets of four servers, each on a
//! tier of ten disks that move as one.
//!
//! Invariants:
//! - a tier takes a write when it is on its medium; it moves as one hard disk whose figures are
//!   fitted to the paper's Table 1: sequential writes at a 28th of the couplet's, random writes of
//!   1 MiB with one in flight at a 28th of its random ones;
//! - the store is that of `redbud ost`; the servers' computing takes no time;
//! - the same run gives the same figures on every machine.

mod journals;
mod xdd;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use env::sim::{DiskModel, HardDisk, SimDisk, SimOptions, SimWorld};
use env::{Disk, DiskOptions, Env, IoBuf};
use ost::store::{Asked, FormatOptions, ObjectStore, Options, Room};
use proto::ost::Statement;
use serde::Serialize;
use types::limits::{BLOCK, BLOCK_U64};
use types::{ClientId, Duration, ObjectId, Uuid, crc32c};

use bench::{BenchError, Res, failed};

use journals::JOURNAL_BYTES;
pub use journals::Journal;
pub(crate) use journals::Journals;
pub use xdd::Transfers;

/// Targets of a couplet, and servers that they are divided among.
pub const TARGETS: usize = 28;
const SERVERS: usize = 4;
/// Bytes of a record: the paper's transfers.
pub const RECORD: u64 = 1 << 20;
/// Bytes of a tier; a part of the real one, which has 8 TB.
const TIER_BYTES: u64 = 64 << 30;
/// Bytes a second between the controllers and a tier, and what a request costs there.
const TIER_LINK: u64 = 800_000_000;
const TIER_OVERHEAD: Duration = Duration::from_micros(50);

/// How targets answer and where their journals are.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
pub struct Setting {
    /// The journals.
    pub journal: Journal,
    /// Writes are answered before they are committed (001, section 5).
    pub asynchronous: bool,
}

/// What was measured.
#[derive(Clone, Copy, PartialEq, Serialize, Debug)]
pub struct Took {
    /// Bytes of all records.
    pub bytes: u64,
    /// Until everything was durable.
    pub nanos: u64,
    /// Groups that were written to journals.
    pub journal_writes: u64,
    /// Their bytes.
    pub journal_bytes: u64,
}

impl Took {
    /// MB a second.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 * 1e3 / self.nanos.max(1) as f64
    }
}

/// A tier: 8 + 2 disks of 7,200 revolutions a minute with synchronous heads (001, section 6).
fn tier() -> DiskModel {
    // 5,608.15 MB/s of 28 tiers written in sequence.
    let rate = 200_290_000;
    DiskModel::Hard(HardDisk {
        capacity: TIER_BYTES,
        revolution: Duration::from_micros(8333),
        outer: (rate, rate),
        middle: (rate, rate),
        link: TIER_LINK,
        overhead: TIER_OVERHEAD,
        seek: (Duration::from_micros(500), Duration::from_micros(2000), Duration::from_millis(4)),
        read_ahead: 1 << 20,
    })
}

/// A target, and its devices.
pub(crate) struct Target {
    pub env: Env,
    pub store: Rc<ObjectStore>,
    tier: SimDisk,
}

fn io(step: &str) -> impl Fn(std::io::Error) -> BenchError {
    move |error| BenchError(format!("{step}: {error}"))
}

pub(crate) fn refused(step: &str, error: &dyn std::fmt::Display) -> BenchError {
    BenchError(format!("{step}: {error}"))
}

async fn open(env: &Env, name: &str) -> Res<Disk> {
    let options = DiskOptions { write: true, exclusive: true };
    env.open_disk(name, options).await.map_err(io("opening a device"))
}

impl Target {
    pub async fn make(world: &SimWorld, number: usize, journals: &Journals) -> Res<Target> {
        let env = world.node(&format!("oss{}", number % SERVERS));
        let (name, log_name) = (format!("tier{number}"), format!("journal{number}"));
        let disk = world.disk(&name, TIER_BYTES);
        let device = open(&env, &name).await?;
        let log = match journals.device(world, &log_name) {
            None => None,
            Some(log) => Some((log, open(&env, &log_name).await?)),
        };
        let mut target = [0x54; 16];
        target[0] = number as u8;
        let format = FormatOptions {
            fs_name: "spider",
            fs: Uuid([0x4d; 16]),
            target: Uuid(target),
            log_bytes: JOURNAL_BYTES,
            checksums: true,
            force: false,
        };
        let (log, log_device) = log.unzip();
        let log: Option<SimDisk> = log;
        let formatted =
            ObjectStore::format(&env, &device, log_device.as_ref().map(Into::into), &format).await;
        formatted.map_err(|error| refused("formatting a target", &error))?;
        // The papers' interval (001, section 5).
        let options = Options { cache_bytes: 64 << 20, commit_interval: Duration::from_secs(5) };
        let opened = ObjectStore::open(&env, &device, log_device.as_ref(), options).await;
        let store = opened.map_err(|error| refused("opening a target", &error))?;
        disk.set_model(tier());
        if let Some(log) = log {
            journals.set_model(number, &log);
        }
        Ok(Target { env, store, tier: disk })
    }

    /// Requests that the tier has dispatched, by the power of two of their bytes.
    pub fn add_requests(&self, sizes: &mut BTreeMap<u32, u64>) {
        for (size, count) in self.tier.report().unwrap_or_default().sizes {
            *sizes.entry(size).or_default() += count;
        }
    }

    /// Writes a record of zeros to the object from `block` on, and waits until it is answered.
    ///
    /// # Errors
    /// The target fails.
    pub async fn record(&self, object: ObjectId, block: u64, asynchronous: bool) -> Res<()> {
        let sums = vec![crc32c(&[0; BLOCK]); (RECORD / BLOCK_U64) as usize];
        let asked = Asked { client: ClientId::NONE, slot: 0, seq: 0 };
        let data = IoBuf::zeroed(RECORD as usize);
        let room = Room::Of(Statement::default());
        let number = match self.store.write(asked, (object, block), data, &sums, room).await {
            Ok(number) => number,
            Err(fault) => return failed("writing a record", fault),
        };
        if !asynchronous {
            let durable = self.store.engine().wait_durable(number).await;
            durable.map_err(|error| refused("committing a record", &error))?;
        }
        Ok(())
    }
}

/// Runs `threads` threads, each with an object of its own on one of the targets in turn; together
/// they write `records` records to each target that has threads.
///
/// # Errors
/// A target fails.
pub fn survey(threads: usize, records: u64, setting: Setting) -> Res<Took> {
    let world = SimWorld::with_options(1, SimOptions::default());
    let used = threads.min(TARGETS);
    let inner = world.clone();
    world.run(|env| async move {
        let (mut targets, journals) = (Vec::new(), Journals::new(setting.journal));
        for number in 0..used {
            targets.push(Rc::new(Target::make(&inner, number, &journals).await?));
        }
        let left: Vec<_> = targets.iter().map(|_| Rc::new(Cell::new(records))).collect();
        let begun = env.now();
        let work = (0..threads).map(|thread| {
            let (target, left) = (targets[thread % used].clone(), left[thread % used].clone());
            let at = target.env.clone();
            at.spawn_join(write(target, thread as u64, left, setting.asynchronous))
        });
        for thread in work.collect::<Vec<_>>() {
            thread.await?;
        }
        let commit = |target: &Rc<Target>| {
            let (target, env) = (target.clone(), target.env.clone());
            env.spawn_join(async move { target.store.engine().sync().await })
        };
        for synced in targets.iter().map(commit).collect::<Vec<_>>() {
            synced.await.map_err(|error| refused("committing", &error))?;
        }
        let nanos = env.now().since(begun).as_nanos() as u64;
        let commits = targets.iter().map(|target| target.store.counters().commit);
        let (mut journal_writes, mut journal_bytes) = (0, 0);
        for commit in commits {
            journal_writes += commit.groups;
            journal_bytes += commit.bytes;
        }
        for target in targets {
            let closed = target.store.close().await;
            closed.map_err(|error| refused("closing a target", &error))?;
        }
        Ok(Took { bytes: used as u64 * records * RECORD, nanos, journal_writes, journal_bytes })
    })
}

async fn write(
    target: Rc<Target>,
    thread: u64,
    left: Rc<Cell<u64>>,
    asynchronous: bool,
) -> Res<()> {
    let mut block = 0;
    while left.get() > 0 {
        left.set(left.get() - 1);
        target.record(ObjectId(thread + 1), block, asynchronous).await?;
        block += RECORD / BLOCK_U64;
    }
    Ok(())
}
