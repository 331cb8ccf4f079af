//! A survey as Lustre's `obdfilter-survey` makes it (paper 001, section 4): threads that write,
//! write again, and read records of objects one after the other, at a [`Place`].
//!
//! | place | what is measured |
//! |---|---|
//! | [`Place::Device`] | the device alone: an object is a range of it |
//! | [`Place::Store`] | the object store in this process, without messages |
//! | [`Place::Targets`] | targets through their messages; several: objects are striped over them |
//!
//! Threads of one object take its records in their order, so the place sees sequential streams.
//! Every block says where it belongs and in which pass it was written; reads look at that.
//!
//! Invariants:
//! - the objects have numbers that no metadata server issues ([`OBJECTS`]);
//! - they are destroyed at the end, unless the target is gone. A device keeps the bytes.

mod device;
mod store;
mod targets;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use env::{Disk, Env};
use proto::ost::IO_BLOCKS_MAX;
use types::limits::{BLOCK, BLOCK_U64};
use types::{Duration, Fault, ObjectId};

use crate::store::ObjectStore;
pub use targets::{THREADS_PER_SESSION, Target, Targets};

/// The first number of a survey's objects: of a shard that no metadata server has.
pub const OBJECTS: u64 = 0xff << 56;
/// What the threads do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pass {
    /// Write records of new objects.
    Write,
    /// Write them again.
    Rewrite,
    /// Read them, and compare.
    Read,
}

impl Pass {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Pass::Write => "write",
            Pass::Rewrite => "rewrite",
            Pass::Read => "read",
        }
    }
}

/// What a survey does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Requests in flight.
    pub threads: usize,
    /// Objects; each thread works on one of them.
    pub objects: usize,
    /// Blocks of a record, at most [`IO_BLOCKS_MAX`].
    pub record: u32,
    /// Records of each object.
    pub records: u64,
    /// Each write is answered when it is durable.
    pub sync: bool,
}

impl Plan {
    /// Bytes of all objects.
    pub fn bytes(&self) -> u64 {
        self.objects as u64 * self.records * u64::from(self.record) * BLOCK_U64
    }
}

/// What a survey measures; see the module.
pub enum Place {
    /// A device that is free: the survey overwrites its beginning.
    Device(Disk),
    /// A store that nobody serves.
    Store(Rc<ObjectStore>),
    /// Targets that are served.
    Targets(Targets),
}

/// What a pass has measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Measured {
    /// The pass.
    pub pass: Pass,
    /// Bytes of all records.
    pub bytes: u64,
    /// Until the last answer.
    pub answered: Duration,
    /// Until everything was durable.
    pub durable: Duration,
    /// How long each request took, ascending.
    pub latencies: Vec<Duration>,
}

impl Measured {
    /// The time within which so many percent of the requests were answered.
    pub fn percentile(&self, percent: u64) -> Duration {
        let count = self.latencies.len() as u64;
        let rank = (count * percent).div_ceil(100).clamp(1, count.max(1)) - 1;
        self.latencies.get(rank as usize).copied().unwrap_or_default()
    }

    /// MiB a second until everything was durable.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / (1 << 20) as f64 / self.durable.as_secs_f64().max(1e-9)
    }
}

/// See the module.
pub struct Survey {
    env: Env,
    plan: Plan,
    place: Place,
}

/// A record of an object: its first block, and how many there are.
#[derive(Clone, Copy)]
struct Record {
    object: usize,
    block: u64,
    len: u32,
}

/// What the threads of a pass share.
struct Shared {
    /// The next record of each object.
    next: Vec<Cell<u64>>,
    latencies: RefCell<Vec<Duration>>,
    failed: Cell<Option<Fault>>,
}

impl Survey {
    /// A survey that has not begun.
    ///
    /// # Errors
    /// `NoSpace`: the device is smaller than all objects.
    pub fn new(env: Env, plan: Plan, place: Place) -> Result<Rc<Survey>, Fault> {
        assert!((1..=IO_BLOCKS_MAX).contains(&plan.record) && plan.objects > 0);
        match &place {
            Place::Device(disk) if disk.size() < plan.bytes() => Err(Fault::NoSpace),
            _ => Ok(Rc::new(Survey { env, plan, place })),
        }
    }

    /// Runs a pass.
    ///
    /// # Errors
    /// The first fault of a request; `Corrupt`: other bytes were read than were written.
    pub async fn run(self: &Rc<Survey>, pass: Pass) -> Result<Measured, Fault> {
        let shared = Rc::new(Shared {
            next: (0..self.plan.objects).map(|_| Cell::new(0)).collect(),
            latencies: RefCell::default(),
            failed: Cell::new(None),
        });
        let begun = self.env.now();
        let threads: Vec<_> = (0..self.plan.threads)
            .map(|thread| self.env.spawn_join(self.clone().work(thread, pass, shared.clone())))
            .collect();
        for thread in threads {
            thread.await;
        }
        let answered = self.env.now().since(begun);
        if let Some(fault) = shared.failed.get() {
            return Err(fault);
        }
        self.flush().await?;
        let durable = self.env.now().since(begun);
        let mut latencies = shared.latencies.take();
        latencies.sort_unstable();
        let bytes = latencies.len() as u64 * u64::from(self.plan.record) * BLOCK_U64;
        Ok(Measured { pass, bytes, answered, durable, latencies })
    }

    async fn work(self: Rc<Survey>, thread: usize, pass: Pass, shared: Rc<Shared>) {
        let object = thread % self.plan.objects;
        while shared.failed.get().is_none() {
            let number = shared.next[object].get();
            if number >= self.plan.records {
                return;
            }
            shared.next[object].set(number + 1);
            let len = self.plan.record;
            let record = Record { object, block: number * u64::from(len), len };
            let begun = self.env.now();
            let asked = match pass {
                Pass::Write | Pass::Rewrite => self.write(thread, record, pass).await,
                Pass::Read => self.read(thread, record).await,
            };
            if let Err(fault) = asked {
                shared.failed.set(Some(fault));
                return;
            }
            shared.latencies.borrow_mut().push(self.env.now().since(begun));
        }
    }

    async fn write(&self, thread: usize, record: Record, pass: Pass) -> Result<(), Fault> {
        let mut data = vec![0; record.len as usize * BLOCK];
        for (at, bytes) in (record.block..).zip(data.chunks_exact_mut(BLOCK)) {
            fill(bytes, record.object as u64, at, pass == Pass::Rewrite);
        }
        let sync = self.plan.sync;
        match &self.place {
            Place::Device(disk) => device::write(disk, self.range(record), &data, sync).await,
            Place::Store(store) => store::write(store, record, &data, sync).await,
            Place::Targets(targets) => targets.write(&self.env, thread, record, data, sync).await,
        }
    }

    async fn read(&self, thread: usize, record: Record) -> Result<(), Fault> {
        match &self.place {
            Place::Device(disk) => compare(record, &device::read(disk, self.range(record)).await?),
            Place::Store(store) => compare(record, &store::read(store, record).await?),
            Place::Targets(targets) => {
                compare(record, &targets.read(&self.env, thread, record).await?)
            }
        }
    }

    /// Makes all that was written durable.
    async fn flush(&self) -> Result<(), Fault> {
        match &self.place {
            Place::Device(disk) => device::flush(disk).await,
            Place::Store(store) => store::flush(store).await,
            Place::Targets(targets) => targets.flush().await,
        }
    }

    /// Destroys the objects, durably.
    ///
    /// # Errors
    /// The fault of the first request that failed.
    pub async fn clean(&self) -> Result<(), Fault> {
        let objects: Vec<_> = (0..self.plan.objects).map(object_of).collect();
        match &self.place {
            Place::Device(_) => Ok(()),
            Place::Store(store) => store::destroy(store, &objects).await,
            Place::Targets(targets) => targets.destroy(&objects).await,
        }
    }

    /// Ends the sessions, or closes the store; a request of the survey may fail from then on.
    ///
    /// # Errors
    /// `Io`: the store did not become durable.
    pub async fn close(&self) -> Result<(), Fault> {
        match &self.place {
            Place::Device(_) => Ok(()),
            Place::Store(store) => store.close().await.map_err(|error| error.fault()),
            Place::Targets(targets) => {
                targets.close().await;
                Ok(())
            }
        }
    }

    /// Where a record lies on a device: its offset and length in bytes.
    fn range(&self, record: Record) -> (u64, usize) {
        let before = record.object as u64 * self.plan.records * u64::from(self.plan.record);
        ((before + record.block) * BLOCK_U64, record.len as usize * BLOCK)
    }
}

/// Are these the bytes of the record? Those of both passes of writing are right: the second may not
/// have been made.
fn compare(record: Record, found: &[u8]) -> Result<(), Fault> {
    let mut wanted = [vec![0; BLOCK], vec![0; BLOCK]];
    for (at, bytes) in (record.block..).zip(found.chunks_exact(BLOCK)) {
        for (again, wanted) in wanted.iter_mut().enumerate() {
            fill(wanted, record.object as u64, at, again == 1);
        }
        if !wanted.iter().any(|wanted| wanted == bytes) {
            return Err(Fault::Corrupt);
        }
    }
    if found.len() == record.len as usize * BLOCK { Ok(()) } else { Err(Fault::Corrupt) }
}

fn object_of(index: usize) -> ObjectId {
    ObjectId(OBJECTS + index as u64)
}

/// Content of a block: its place, and bytes that no other place has.
fn fill(bytes: &mut [u8], object: u64, block: u64, again: bool) {
    let mut state = (object << 40 ^ block << 1 ^ u64::from(again)) | 1 << 63;
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&state.to_le_bytes());
        state = state.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_latencies_that_occurred() {
        let latencies = (1..=10).map(Duration::from_millis).collect();
        let (pass, second) = (Pass::Write, Duration::from_secs(1));
        let measured =
            Measured { pass, bytes: 3 << 20, answered: second, durable: second, latencies };
        let millis = |percent| measured.percentile(percent).as_millis();
        assert_eq!([0, 50, 90, 99, 100].map(millis), [1, 5, 9, 10, 10]);
        assert_eq!(measured.rate(), 3.0);
    }

    #[test]
    fn blocks_of_other_places_and_passes_differ() {
        let block = |object, at, again| {
            let mut bytes = vec![0; BLOCK];
            fill(&mut bytes, object, at, again);
            bytes
        };
        let all = [block(0, 0, false), block(0, 1, false), block(1, 0, false), block(0, 0, true)];
        for (index, one) in all.iter().enumerate() {
            assert!(all[..index].iter().all(|other| other != one), "{index}");
        }
    }
}
