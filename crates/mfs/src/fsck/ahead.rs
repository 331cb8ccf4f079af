//! Read-ahead of directory content: other threads make digests before their turn in the check.
//!
//! Invariants:
//! - the report does not depend on it: the check takes digests in the order of its own walk, and
//!   makes those that were not read ahead;
//! - a cached block counts as it was in the cache before the unit is read. Any other is at home in
//!   its newest version, because nothing changes the store during a check. Blocks read here do not
//!   enter the cache;
//! - bounded: each block that is being read or waits, raw or as a digest, holds a permit
//!   ([`Ahead::room`]); at most [`FsckOptions::jobs`](super::FsckOptions::jobs) threads work;
//! - what cannot be read is left to the check, which reads it through the store and reports it.

use std::collections::VecDeque;

use env::sync::{OneReceiver, OneSender, Permit, Semaphore, oneshot};
use env::{IoBuf, Join};
use types::MetaBlock;
use types::limits::BLOCK;

use super::JOBS_MAX;
use super::digest::{BATCH, Digest, Rules, Unit, digest};
use crate::handle::Mfs;
use engine::device::Device;
use engine::format::block::Block;

/// Digests of fewer blocks are made in place: a thread would cost more.
const FEW: u32 = 8;

/// A digest that waits for its turn, and its permits.
type ReadyDigest = (Digest, Permit);

/// Content whose turn will come.
pub(super) struct Ahead {
    /// `None`: the store has no device, and nothing is foreseen.
    device: Option<Device>,
    rules: Rules,
    /// Permits to use a worker thread; `None`: only this thread works.
    workers: Option<Semaphore>,
    /// See the module.
    room: Semaphore,
    /// In the order of their turn; those being read before those that are only known.
    units: VecDeque<(Unit, Option<OneReceiver<ReadyDigest>>)>,
    /// How many of them are being read.
    launched: usize,
    /// Directories at the front of the check's queue whose units are known.
    pub(super) directories: usize,
}

impl Ahead {
    pub(super) fn new(mfs: &Mfs, jobs: usize) -> Ahead {
        let jobs = jobs.clamp(1, JOBS_MAX);
        Ahead {
            device: mfs.device(),
            rules: Rules::new(&mfs.superblock()),
            workers: (jobs > 1).then(|| Semaphore::new(jobs)),
            room: Semaphore::new((2 * jobs + 2) * BATCH as usize),
            units: VecDeque::new(),
            launched: 0,
            directories: 0,
        }
    }

    /// Should the check announce further units? Only as many as the next launch may take.
    pub(super) fn wants_units(&self) -> bool {
        self.device.is_some() && self.units.len() - self.launched < BATCH as usize
    }

    /// Announces units whose turn comes behind all known ones.
    pub(super) fn foresee(&mut self, units: Vec<Unit>) {
        self.units.extend(units.into_iter().map(|unit| (unit, None)));
    }

    /// Drops all known units: none of them will have a turn.
    pub(super) fn forget(&mut self) {
        self.units.clear();
        (self.launched, self.directories) = (0, 0);
    }

    /// Starts to read the next units, as many as go together, if there is room; returns whether it
    /// did.
    pub(super) fn launch(&mut self, mfs: &Mfs) -> bool {
        let room = self.room.available() >= BATCH as usize;
        let Some(device) = self.device.clone().filter(|_| room) else { return false };
        let (mut looks, mut answers, mut blocks) = (Vec::new(), Vec::new(), 0);
        while let Some((unit, coming)) = self.units.get_mut(self.launched)
            && blocks + unit.len <= BATCH
            && let Some(permit) = self.room.try_acquire(unit.len as usize)
        {
            let (answer, receiver) = oneshot();
            *coming = Some(receiver);
            answers.push((answer, permit));
            looks.push(UnitLook::new(*unit, mfs));
            blocks += unit.len;
            self.launched += 1;
        }
        if blocks > 0 {
            let workers = self.workers.clone().filter(|_| blocks >= FEW);
            device.env.clone().spawn(look(device, self.rules, looks, (workers, answers)));
        }
        blocks > 0
    }

    /// The digest of a unit whose turn has come; units before it are dropped.
    pub(super) async fn take(&mut self, mfs: &Mfs, unit: &Unit) -> Digest {
        let known = self.units.iter().position(|(known, _)| known == unit);
        let mut coming = None;
        for (_, receiver) in self.units.drain(..known.map_or(0, |at| at + 1)) {
            self.launched -= usize::from(receiver.is_some());
            coming = receiver;
        }
        if let Some(receiver) = coming
            && let Some((digest, _)) = receiver.await
        {
            return digest;
        }
        let look = UnitLook::new(*unit, mfs);
        let buf = match &self.device {
            Some(device) => device.read(unit.home, unit.len as usize).await.ok(),
            None => None,
        };
        look.digest(self.rules, unit.home, buf.as_ref())
    }
}

/// A unit whose digest is to be made.
struct UnitLook {
    unit: Unit,
    /// Its blocks, as far as the cache has them.
    cached: Vec<Option<Box<Block>>>,
}

impl UnitLook {
    fn new(unit: Unit, mfs: &Mfs) -> UnitLook {
        let copy = |n| mfs.with_cached(unit.block(n), |data| data.map(|data| Box::new(*data)));
        UnitLook { unit, cached: (0..unit.len).map(copy).collect() }
    }

    /// Makes the digest from cached blocks, and for the others from what was read from block `from`
    /// on.
    fn digest(&self, rules: Rules, from: MetaBlock, read: Option<&IoBuf>) -> Digest {
        let unit = &self.unit;
        let blocks = (0..unit.len).zip(&self.cached).map(|(n, cached)| {
            let at = (unit.block(n).0 - from.0) as usize * BLOCK;
            match cached {
                Some(block) => Some(&**block),
                None => rules.verified(read?.get(at..at + BLOCK)?, unit.block(n)),
            }
        });
        digest(rules, unit, blocks)
    }
}

/// Units that lie together, and the read of all their blocks.
type Span = (Vec<UnitLook>, Join<Option<IoBuf>>);

/// Reads units, makes their digests, on a worker if there are any, and sends them.
async fn look(
    device: Device,
    rules: Rules,
    looks: Vec<UnitLook>,
    (workers, answers): (Option<Semaphore>, Vec<(OneSender<ReadyDigest>, Permit)>),
) {
    let mut spans = Vec::new();
    for (looks, reading) in spans_of(&device, looks) {
        spans.push((looks, reading.await));
    }
    // The buffers come back, too: they belong to this thread's pool.
    let work = move || {
        let digests = spans.iter().flat_map(|(looks, buf)| {
            let from = looks[0].unit.home;
            looks.iter().map(move |look| look.digest(rules, from, buf.as_ref()))
        });
        (digests.collect::<Vec<_>>(), spans)
    };
    let (digests, _spans) = match workers {
        Some(workers) => {
            let _permit = workers.acquire(1).await;
            device.env.offload(work).await
        }
        None => work(),
    };
    for ((answer, permit), digest) in answers.into_iter().zip(digests) {
        answer.send((digest, permit));
    }
}

/// Starts one read for each run of adjacent units.
fn spans_of(device: &Device, looks: Vec<UnitLook>) -> Vec<Span> {
    let mut spans: Vec<Vec<UnitLook>> = Vec::new();
    for look in looks {
        match spans.last_mut() {
            Some(span) if span.last().is_some_and(|last| last.unit.end() == look.unit.home) => {
                span.push(look);
            }
            _ => spans.push(vec![look]),
        }
    }
    let start = |span: Vec<UnitLook>| {
        let from = span[0].unit.home;
        let blocks: u32 = span.iter().map(|look| look.unit.len).sum();
        let device = device.clone();
        let env = device.env.clone();
        let read = async move { device.read(from, blocks as usize).await.ok() };
        (span, env.spawn_join(read))
    };
    spans.into_iter().map(start).collect()
}
