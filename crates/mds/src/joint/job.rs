//! The bytes of an entry's operation, in the code of messages (PROTOCOLS.md). An entry has a
//! *batch*: one operation, or several of one directory with the same worker. Each has its own
//! request, its own answers, and its own end.
//!
//! | entry | id | fields |
//! |---|---|---|
//! | of a coordinator | 1 | sequence of *operations* |
//! | of a worker that has not committed | 2 | age 12, sequence (by operation) of sequences of *parts*, gates, made inodes, sequence of *answers* |
//! | of a worker that has committed (1PC) | 3 | sequence of *answers* |
//!
//! | *operation* | meaning |
//! |---|---|
//! | client 8, slot 2, seq 4, index 1 | whose request it is, and which operation of that |
//! | record: bytes | kept outcomes of the request's earlier operations |
//! | user 4, group 4, sequence of groups | on whose behalf it runs |
//! | time 12, age 12 | its time, and when it was tried first |
//! | operation | as in a request |
//! | sequence of shares: shard 1, sequence of *parts* | what other shards do |
//! | gates: sequence of inodes | what it holds at this shard |
//! | made: optional inode | that of a new file which has no link yet |
//!
//! The *answers* to an operation are a flag and an answer to each of its parts, or a fault: the
//! worker does none of it. An operation that is refused leaves the others of its batch alone.
//!
//! In letters, UPDATE REQ has the age and the parts, as an entry with id 2. UPDATED, PREPARED and
//! ASK have the sequence of answers. REFUSED has a fault for each operation; those that it does
//! not name are refused as busy.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use commitment::Action;
use env::sync::Notify;
use proto::mds::{Op, OpReply, Principal};
use proto::wire::{Bytes, Malformed, Reader, Wire};
use proto::{wire_enum, wire_struct};
use types::{ClientId, Fault, Ino, Instant, PagId, ShardId, Timestamp, Transno};

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

    /// An operation that this shard coordinates, by itself or in a batch.
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
        /// The inode of a new file that has no link yet.
        pub made: Option<Ino>,
    }
}

/// What a worker answers to an operation: to each of its parts, or why it does none of them.
pub type Answered = Result<Vec<Answer>, Fault>;

wire_struct! {
    /// What a worker is asked for.
    pub struct Asked {
        /// When the oldest operation of the batch was tried first.
        pub age: Timestamp,
        /// The worker's parts, for each operation of the batch.
        pub batch: Vec<Vec<Part>>,
    }
}

wire_enum! {
    /// What an entry keeps beside its state.
    pub enum Job {
        /// The shard coordinates it.
        Coordinates = 1 { batch: Vec<Coordination>, },
        /// The shard is a worker, and has not committed. `made`: orphans that its parts need, made
        /// with PREPARED. `answers`: what it has answered.
        Works = 2 { asked: Asked, gates: Vec<Ino>, made: Vec<Ino>, answers: Vec<Answered>, },
        /// The shard is a worker that has committed (1PC).
        Worked = 3 { answers: Vec<Answered>, },
    }
}

/// The inodes of which an open operation may still change names on other shards, as the bytes that
/// a shard keeps of it say. Each shard knows a part of them.
///
/// # Errors
/// They are not those of a joint operation.
pub fn changed_inodes(operation: &[u8]) -> Result<BTreeSet<Ino>, Malformed> {
    let job = Job::of(operation)?;
    let mut all: BTreeSet<Ino> = job.parts().flat_map(Part::inodes).collect();
    if let Job::Works { answers, .. } | Job::Worked { answers } = &job {
        all.extend(answers.iter().flatten().flatten().flat_map(Answer::inodes));
    }
    if let Job::Works { made, .. } = &job {
        all.extend(made);
    }
    Ok(all)
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
    /// When its oldest operation was tried first; `None`: it holds nothing any more.
    pub fn age(&self) -> Option<Timestamp> {
        match self {
            Job::Coordinates { batch } => batch.iter().map(|it| it.age).min(),
            Job::Works { asked, .. } => Some(asked.age),
            Job::Worked { .. } => None,
        }
    }

    /// How many operations it has.
    pub fn operations(&self) -> usize {
        match self {
            Job::Coordinates { batch } => batch.len(),
            Job::Works { asked, .. } => asked.batch.len(),
            Job::Worked { answers } => answers.len(),
        }
    }

    /// Can these be a worker's answers? One for each operation.
    pub fn takes(&self, answers: &[Answered]) -> bool {
        !matches!(self, Job::Coordinates { batch } if batch.len() != answers.len())
    }

    /// Is the shard a worker that only adds names of new files?
    pub fn only_adds_files(&self) -> bool {
        let adds = |part: &Part| matches!(part, Part::AddFile { .. });
        matches!(self, Job::Works { asked, .. } if asked.batch.iter().flatten().all(adds))
    }

    /// Does one of its operations give the directory `ino` another parent?
    pub fn reparents(&self, ino: Ino) -> bool {
        self.parts().filter_map(Part::as_move).any(|it| it.reparents(ino))
    }

    /// Do blocks of the zone go back by one of its operations, and has this shard not done its
    /// share yet?
    pub fn gives_back(&self, zone: PagId) -> bool {
        self.parts().any(|part| matches!(part, Part::GiveBack { pag, .. } if *pag == zone))
    }

    /// Do lent blocks go back by one of its operations, and has this shard not done its share yet?
    pub fn takes_back(&self) -> bool {
        self.parts().any(|part| matches!(part, Part::GiveBack { .. }))
    }

    /// Does this shard coordinate an operation of that request?
    pub fn is_of(&self, client: ClientId, slot: u16, seq: u32) -> bool {
        let is_of = |it: &Coordination| (it.client, it.slot, it.seq) == (client, slot, seq);
        matches!(self, Job::Coordinates { batch } if batch.iter().any(is_of))
    }

    /// What a worker of it is asked for.
    pub fn asks(&self, worker: ShardId) -> Option<Asked> {
        let Job::Coordinates { batch } = self else { return None };
        let of = |it: &Coordination| it.share_of(worker).map(|share| share.parts.clone());
        let batch: Option<Vec<Vec<Part>>> = batch.iter().map(of).collect();
        Some(Asked { age: self.age()?, batch: batch? })
    }

    /// All inodes that its parts name.
    pub fn inodes(&self) -> BTreeSet<Ino> {
        self.parts().flat_map(|part| part.inodes().into_iter().chain(part.directories())).collect()
    }

    /// All parts that it names.
    fn parts(&self) -> Box<dyn Iterator<Item = &Part> + '_> {
        match self {
            Job::Coordinates { batch } => {
                let shares = batch.iter().flat_map(|it| &it.shares);
                Box::new(shares.flat_map(|share| &share.parts))
            }
            Job::Works { asked, .. } => Box::new(asked.batch.iter().flatten()),
            Job::Worked { .. } => Box::new(std::iter::empty()),
        }
    }
}

impl Coordination {
    /// What a worker has of it.
    pub fn share_of(&self, worker: ShardId) -> Option<&Share> {
        self.shares.iter().find(|share| share.shard == worker.0)
    }
}

/// How a coordinated operation ended: its reply, what is kept of it, and its transaction; or why
/// nothing happened.
pub type Ending = Result<(OpReply, Option<Outcome>, Transno), Fault>;

/// Why a worker has refused each operation of a batch; of those that it does not name: it is busy.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Refusal(pub Vec<Fault>);

impl Refusal {
    /// Why it has refused an operation, by its number in the batch.
    pub fn of(&self, nth: usize) -> Fault {
        self.0.get(nth).copied().unwrap_or(Fault::Busy)
    }
}

/// See the module.
pub struct Open {
    pub job: RefCell<Job>,
    /// Gates that it holds.
    pub waited: RefCell<Waited>,
    /// Of a coordinator of new files: the gate of their directory here, where only further new
    /// files wait. It is given to the next ones when STARTED is durable, by a full batch at once.
    pub turn: RefCell<Option<HeldGates>>,
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
    /// Of a coordinator: what workers have answered to each operation, or why one has refused them
    /// all.
    pub answers: RefCell<BTreeMap<ShardId, Result<Vec<Answered>, Refusal>>>,
    /// Of a worker: its own answers.
    pub own: RefCell<Vec<Answered>>,
    /// Of a worker: why it has refused.
    pub refusal: RefCell<Refusal>,
    /// Of a coordinator: how each operation ended.
    pub endings: RefCell<Vec<Option<Ending>>>,
    /// Of a coordinator: the requests may be answered. They wait for `ended`.
    pub is_replied: Cell<bool>,
    pub ended: Notify,
    /// Of a coordinator: its request waits for it. Not so if a restart has found it.
    pub is_asked: Cell<bool>,
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
    /// May a part of it wait here, and its coordinator hold a gate that an older one waits for? The
    /// coordinator of a new file holds only that file's.
    pub fn may_block_an_older(&self) -> bool {
        !self.job.borrow().only_adds_files()
    }

    pub fn new(job: Job, waited: Waited, now: Instant) -> Open {
        Open {
            job: RefCell::new(job),
            waited: RefCell::new(waited),
            turn: RefCell::default(),
            made: RefCell::default(),
            wants: RefCell::default(),
            closed: RefCell::default(),
            queue: RefCell::default(),
            is_running: Cell::new(false),
            answers: RefCell::default(),
            own: RefCell::default(),
            refusal: RefCell::default(),
            endings: RefCell::default(),
            is_replied: Cell::new(false),
            ended: Notify::new(),
            is_asked: Cell::new(false),
            is_decided: Cell::new(false),
            is_planned: Cell::new(false),
            is_suspected: Cell::new(false),
            since: Cell::new(now),
        }
    }

    /// How an operation of the batch ended, by its number there, once its request may be answered.
    pub async fn ending(&self, nth: usize) -> Ending {
        loop {
            let ended = self.ended.notified();
            if self.is_replied.get() {
                let ending = self.endings.borrow_mut().get_mut(nth).and_then(Option::take);
                return ending.unwrap_or(Err(Fault::Io));
            }
            ended.await;
        }
    }
}
