//! A survey of a target through its messages, as Lustre's `obdfilter-survey` makes it (paper 001,
//! section 4): threads that write, write again, and read records of objects one after the other.
//!
//! Threads of one object take its records in their order, so the target sees sequential streams.
//! Every block says where it belongs and in which pass it was written; reads look at that.
//!
//! Invariants:
//! - the objects have numbers that no metadata server issues ([`OBJECTS`]);
//! - they are destroyed at the end, unless the target is gone.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use env::Env;
use proto::capability::{Capability, READ, SERVE, TargetKey, WRITE};
use proto::message::Principal;
use proto::ost::{DESTROY_MAX, IO_BLOCKS_MAX, Op, OpReply, Ost, Statement};
use proto::slots::SlotClass;
use session::client::{Call, Session, done, result};
use types::limits::{BLOCK, BLOCK_U64};
use types::{ClientId, Duration, Epoch, Fault, ObjectId, crc32c};

/// The first number of a survey's objects: of a shard that no metadata server has.
pub const OBJECTS: u64 = 0xff << 56;
/// Threads of one session: fewer than it has slots.
pub const THREADS_PER_SESSION: usize = 32;

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
    /// The epoch that the capabilities are of.
    pub epoch: Epoch,
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

/// See the module. `sessions`: with the target, [`THREADS_PER_SESSION`] threads to each.
pub struct Survey {
    env: Env,
    plan: Plan,
    key: TargetKey,
    sessions: Vec<Rc<Session<Ost>>>,
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
    pub fn new(
        env: Env,
        plan: Plan,
        key: TargetKey,
        sessions: Vec<Rc<Session<Ost>>>,
    ) -> Rc<Survey> {
        assert!(plan.record <= IO_BLOCKS_MAX && plan.objects > 0 && !sessions.is_empty());
        Rc::new(Survey { env, plan, key, sessions })
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
        for session in &self.sessions {
            session.sync().await?;
        }
        let durable = self.env.now().since(begun);
        let mut latencies = shared.latencies.take();
        latencies.sort_unstable();
        let bytes = latencies.len() as u64 * u64::from(self.plan.record) * BLOCK_U64;
        Ok(Measured { pass, bytes, answered, durable, latencies })
    }

    async fn work(self: Rc<Survey>, thread: usize, pass: Pass, shared: Rc<Shared>) {
        let session = &self.sessions[thread / THREADS_PER_SESSION % self.sessions.len()];
        let object = thread % self.plan.objects;
        while shared.failed.get().is_none() {
            let record = shared.next[object].get();
            if record >= self.plan.records {
                return;
            }
            shared.next[object].set(record + 1);
            let begun = self.env.now();
            let block = record * u64::from(self.plan.record);
            let asked = match pass {
                Pass::Write | Pass::Rewrite => self.write(session, object, block, pass).await,
                Pass::Read => self.read(session, object, block).await,
            };
            if let Err(fault) = asked {
                shared.failed.set(Some(fault));
                return;
            }
            shared.latencies.borrow_mut().push(self.env.now().since(begun));
        }
    }

    async fn write(
        &self,
        session: &Session<Ost>,
        object: usize,
        block: u64,
        pass: Pass,
    ) -> Result<(), Fault> {
        let mut data = vec![0; self.plan.record as usize * BLOCK];
        for (at, bytes) in (block..).zip(data.chunks_exact_mut(BLOCK)) {
            fill(bytes, object as u64, at, pass == Pass::Rewrite);
        }
        let sums = data.chunks_exact(BLOCK).map(crc32c).collect();
        let may = self.may(object, WRITE);
        let op = Op::Write { may, block, data: data.into(), sums, room: Statement::default() };
        done(&*session.call(Call { sync: self.plan.sync, ..call(op) }).await?)
    }

    /// Both passes of writing are right: the second may not have been made.
    async fn read(&self, session: &Session<Ost>, object: usize, block: u64) -> Result<(), Fault> {
        let len = self.plan.record;
        let op = Op::Read { may: self.may(object, READ), block, len };
        let reply = session.call(call(op)).await?;
        let OpReply::Data { runs, data, sums } = result(&reply, 0)? else {
            return Err(Fault::Protocol);
        };
        let mut wanted = [vec![0; BLOCK], vec![0; BLOCK]];
        let mut found = data.chunks_exact(BLOCK).zip(sums);
        for at in runs.iter().flat_map(|run| run.block..run.block + run.len) {
            let (bytes, sum) = found.next().ok_or(Fault::Protocol)?;
            for (again, wanted) in wanted.iter_mut().enumerate() {
                fill(wanted, object as u64, block + at, again == 1);
            }
            if crc32c(bytes) != *sum || !wanted.iter().any(|wanted| wanted == bytes) {
                return Err(Fault::Corrupt);
            }
        }
        let blocks: u64 = runs.iter().map(|run| run.len).sum();
        if blocks == u64::from(len) { Ok(()) } else { Err(Fault::Corrupt) }
    }

    /// Destroys the objects.
    ///
    /// # Errors
    /// The fault of the request.
    pub async fn clean(&self) -> Result<(), Fault> {
        let objects: Vec<_> = (0..self.plan.objects).map(object_of).collect();
        let session = &self.sessions[0];
        let may = self.key.issue(ObjectId(0), ClientId(0), SERVE, self.plan.epoch);
        for part in objects.chunks(DESTROY_MAX) {
            let op = Op::Destroy { may, objects: part.to_vec() };
            done(&*session.call(call(op)).await?)?;
        }
        session.sync().await
    }

    fn may(&self, object: usize, rights: u8) -> Capability {
        // No metadata server gives a client this number.
        self.key.issue(object_of(object), ClientId(u64::MAX), rights, self.plan.epoch)
    }
}

fn object_of(index: usize) -> ObjectId {
    ObjectId(OBJECTS + index as u64)
}

fn call(op: Op) -> Call<Ost> {
    let principal = Principal { uid: 0, gid: 0, groups: Vec::new() };
    Call { ops: vec![op], principal, sync: false, class: SlotClass::Ordinary }
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
