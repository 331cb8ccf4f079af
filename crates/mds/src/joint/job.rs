//! A joint operation that is not over: what its entry in the store keeps, and what the server has
//! beside it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use commitment::Action;
use env::sync::Notify;
use proto::mds::{Op, OpReply, Principal};
use proto::wire::{Bytes, Malformed, Reader, Wire};
use proto::{wire_enum, wire_struct};
use types::{ClientId, Fault, Ino, Instant, ShardId, Timestamp, Transno};

use super::part::{Answer, Part};
use crate::context::Waited;
use crate::leases::HeldGates;
use crate::recovery::kept_results::Outcome;

wire_struct! {
    /// The parts of one shard.
    pub struct Share {
        /// The shard.
        pub shard: u8,
        /// Its parts, in order.
        pub parts: Vec<Part>,
    }

    /// An operation that this shard coordinates.
    pub struct Coordination {
        /// Whose request it is.
        pub client: ClientId,
        /// The request's slot.
        pub slot: u16,
        /// Its number there.
        pub seq: u32,
        /// Which operation of the request it is.
        pub index: u8,
        /// Outcomes of the request's earlier operations, as a kept reply has them.
        pub record: Bytes,
        /// The user on whose behalf it runs.
        pub principal: Principal,
        /// The time of the operation.
        pub time: Timestamp,
        /// When it was tried first.
        pub age: Timestamp,
        /// The operation.
        pub op: Op,
        /// What other shards do.
        pub shares: Vec<Share>,
        /// Inodes of this shard whose gates it holds.
        pub gates: Vec<Ino>,
    }
}

wire_struct! {
    /// What a worker is asked for.
    pub struct Asked {
        /// When the operation was tried first.
        pub age: Timestamp,
        /// The worker's parts.
        pub parts: Vec<Part>,
    }
}

wire_enum! {
    /// What an entry keeps beside its state.
    pub enum Job {
        /// The shard coordinates it.
        Coordinates = 1 { it: Coordination, },
        /// The shard is a worker, and has not committed. `made`: orphans that its parts need, made
        /// with PREPARED. `answers`: what it has answered.
        Works = 2 { asked: Asked, gates: Vec<Ino>, made: Vec<Ino>, answers: Vec<Answer>, },
        /// The shard is a worker that has committed (1PC).
        Worked = 3 { answers: Vec<Answer>, },
    }
}

/// The inodes of which an open operation may still change names on other shards, as the bytes that
/// a shard keeps of it say. Each shard knows a part of them.
///
/// # Errors
/// They are not those of a joint operation.
pub fn changed_inodes(operation: &[u8]) -> Result<BTreeSet<Ino>, Malformed> {
    let named = |parts: &[Part]| parts.iter().flat_map(Part::inodes).collect::<Vec<Ino>>();
    let known = |answers: &[Answer]| answers.iter().flat_map(Answer::inodes).collect::<Vec<Ino>>();
    Ok(match Job::of(operation)? {
        Job::Coordinates { it } => it.shares.iter().flat_map(|share| named(&share.parts)).collect(),
        Job::Works { asked, made, answers, .. } => {
            named(&asked.parts).into_iter().chain(known(&answers)).chain(made).collect()
        }
        Job::Worked { answers } => known(&answers).into_iter().collect(),
    })
}

impl Job {
    /// What an entry's bytes say.
    ///
    /// # Errors
    /// They are not those of a job.
    pub fn of(bytes: &[u8]) -> Result<Job, Malformed> {
        let mut reader = Reader::new(bytes);
        let job = Job::get(&mut reader)?;
        if reader.remaining() > 0 {
            return Err(Malformed("bytes after a joint operation"));
        }
        Ok(job)
    }
}

impl Job {
    /// When the operation was tried first; `None`: it holds nothing any more.
    pub fn age(&self) -> Option<Timestamp> {
        match self {
            Job::Coordinates { it } => Some(it.age),
            Job::Works { asked, .. } => Some(asked.age),
            Job::Worked { .. } => None,
        }
    }

    /// Does the operation give the directory `ino` another parent?
    pub fn reparents(&self, ino: Ino) -> bool {
        let moves = |part: &Part| matches!(part, Part::Move { it } if it.reparents(ino));
        match self {
            Job::Coordinates { it } => it.shares.iter().any(|share| share.parts.iter().any(moves)),
            Job::Works { asked, .. } => asked.parts.iter().any(moves),
            Job::Worked { .. } => false,
        }
    }
}

/// How a coordinated operation ended: its reply, what is kept of it, and its transaction; or why
/// nothing happened.
pub type Ending = Result<(OpReply, Option<Outcome>, Transno), Fault>;

/// See the module.
pub struct Open {
    pub job: RefCell<Job>,
    /// Gates that it holds.
    pub waited: RefCell<Waited>,
    /// Gates of inodes that it has made, which nobody can have found before.
    pub made: RefCell<Option<HeldGates>>,
    /// Inodes whose gates it holds or waits for, as a worker.
    pub wants: RefCell<Vec<Ino>>,
    /// Inodes that nobody reads before it has ended, so that nobody sees it half done.
    pub closed: RefCell<Vec<Ino>>,
    /// What is still to do, in order.
    pub queue: RefCell<VecDeque<Action>>,
    /// Somebody carries the queue out.
    pub is_running: Cell<bool>,
    /// Of a coordinator: what workers have answered, or why one has refused.
    pub answers: RefCell<BTreeMap<ShardId, Result<Vec<Answer>, Fault>>>,
    /// Of a worker: its own answers.
    pub own: RefCell<Vec<Answer>>,
    /// Of a worker: why it has refused.
    pub refusal: Cell<Option<Fault>>,
    /// Of a coordinator: how it ended. Its request waits for `ended`.
    pub ending: RefCell<Option<Ending>>,
    pub ended: Notify,
    /// Of a coordinator: it is applied, or never will be.
    pub is_decided: Cell<bool>,
    /// Of a worker: its plan is made, or refused.
    pub is_planned: Cell<bool>,
    /// The log says that a worker does not answer.
    pub is_suspected: Cell<bool>,
    /// When the machine last heard of it.
    pub since: Cell<Instant>,
}

impl Open {
    pub fn new(job: Job, waited: Waited, now: Instant) -> Open {
        Open {
            job: RefCell::new(job),
            waited: RefCell::new(waited),
            made: RefCell::default(),
            wants: RefCell::default(),
            closed: RefCell::default(),
            queue: RefCell::default(),
            is_running: Cell::new(false),
            answers: RefCell::default(),
            own: RefCell::default(),
            refusal: Cell::new(None),
            ending: RefCell::default(),
            ended: Notify::new(),
            is_decided: Cell::new(false),
            is_planned: Cell::new(false),
            is_suspected: Cell::new(false),
            since: Cell::new(now),
        }
    }
}
