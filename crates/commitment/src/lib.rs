//! Atomic commitment between metadata servers: PrN, PrC, EP and 1PC as one pure machine (003).
//!
//! A *transaction* is an operation of the namespace that changes what several shards hold, or a
//! batch of such operations. The server that got the request *coordinates*; each other shard is a
//! *worker*. A [`Site`] is what one shard knows of all its transactions. Its driver brings durable
//! records, messages, results of plans and timers in, and carries [`Action`]s out.
//!
//! | `!` = forced | coordinator's log | worker's log | extra messages | reply after |
//! |---|---|---|---|---|
//! | PrN | STARTED! PREPARED! COMMITTED! ENDED | PREPARED! COMMITTED! | PREPARE PREPARED COMMIT ACK | ACK |
//! | PrC | STARTED! PREPARED! COMMITTED! | PREPARED! COMMITTED | PREPARE PREPARED COMMIT | COMMITTED! |
//! | EP | as PrC | as PrC, at UPDATE REQ | COMMIT | COMMITTED! |
//! | 1PC | STARTED! COMMITTED! | COMMITTED! ENDED | ACK | UPDATED |
//!
//! UPDATE REQ and its answers, UPDATED and REFUSED, exist without any protocol: they are not extra.
//!
//! **Records are entries of a tree, not of a log of their own.** STARTED and PREPARED keep the
//! operation as an intent; nothing of it is in the caches yet. COMMITTED is the ordinary
//! transaction that applies it. What the shard keeps of it afterwards is in the same transaction
//! ([`Action::Write`]). So "the log holds COMMITTED" means: the entry says so, or is gone.
//!
//! **Recovery, one table** (003 §II.C, §III.C; the tests of `tests/recovery.rs` are its cells):
//!
//! | who | its log holds | what it does |
//! |---|---|---|
//! | 2PC coordinator | STARTED | aborts: ABORT until each worker has answered ACK |
//! | | PREPARED | PREPARE again, also with EP |
//! | | COMMITTED | PrN: COMMIT again; PrC and EP keep nothing: as ENDED |
//! | | ABORTED | ABORT again |
//! | | ENDED, nothing | nothing; asked, it answers ABORT (PrN) or COMMIT (PrC, EP) |
//! | 2PC worker | PREPARED | asks the coordinator |
//! | | COMMITTED, nothing | nothing; PREPARE → NOT-PREPARED; COMMIT → ACK (PrN); ABORT → ACK |
//! | 1PC coordinator | STARTED | UPDATE REQ again, one after the other in their old order |
//! | | COMMITTED, ABORTED | nothing; asked, it answers ACK |
//! | 1PC worker | COMMITTED | asks for ACK; UPDATE REQ again → UPDATED again |
//! | | ENDED, nothing | nothing |
//! | 1PC, worker silent | | the driver fences it and reads its log: COMMITTED → commit, no entry → abort |
//!
//! Decided here, not in the paper:
//!
//! | case | what happens |
//! |---|---|
//! | a worker refuses (the name exists, no space, busy) | REFUSED instead of UPDATED, nothing is logged there; the coordinator forces ABORTED before it answers the client |
//! | a late or doubled message | a shard remembers what it has finished, as long as the coordinator may still have older transactions out; what is below the coordinator's oldest is old |
//! | UPDATE REQ, late, after the worker's restart or fence | it names the worker's old epoch: dropped |
//! | a message of a coordinator that was replaced | it names the coordinator's old epoch: dropped |
//! | both dead | the order of their restarts does not matter: each asks, or is asked, by the table |
//! | a coordinator that never returns | the server that claims its shard recovers its entries, by the table |
//!
//! Invariants:
//! - no I/O, no clock, no randomness: the same events give the same actions;
//! - nothing that another shard may rely on is sent before it is durable here;
//! - locks are freed after COMMITTED or ABORTED, with 1PC at UPDATED, once the updates are applied.

mod cost;
mod message;
mod one_phase;
mod site;
mod two_phase;

pub use cost::{Aside, Counts, Path};
pub use message::{Entry, Envelope, Kept, Message, Part, TxnId};
pub use site::{Guards, Site};

/// How the shards of a transaction agree (003 §II, §III).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Protocol {
    /// Two phases, nothing presumed.
    PresumeNothing,
    /// Two phases; a transaction that its coordinator does not know has been committed.
    PresumeCommit,
    /// Presumed commit, with the vote in the answer to the update.
    EarlyPrepare,
    /// One phase: the worker commits at once. For exactly one worker.
    OnePhase,
}

impl Protocol {
    /// All, in the order of the paper's Table I.
    pub const ALL: [Protocol; 4] = [
        Protocol::PresumeNothing,
        Protocol::PresumeCommit,
        Protocol::EarlyPrepare,
        Protocol::OnePhase,
    ];

    /// Its name in the paper and in options.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::PresumeNothing => "PrN",
            Protocol::PresumeCommit => "PrC",
            Protocol::EarlyPrepare => "EP",
            Protocol::OnePhase => "1PC",
        }
    }
}

/// How a transaction ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Outcome {
    /// All its updates happen, on all shards.
    Committed,
    /// None does.
    Aborted,
}

/// What a shard writes of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Record {
    /// The coordinator has begun; with the operation.
    Started,
    /// The shard can commit, whatever happens; with its updates as an intent.
    Prepared,
    /// The updates are applied.
    Committed,
    /// Nothing will be applied.
    Aborted,
    /// Nobody needs the entry any more.
    Ended,
}

/// Who waits for a record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Wait {
    /// Nobody: it becomes durable with whatever follows it.
    Lazy,
    /// The machine ([`Site::logged`]), but neither a client nor a lock: the record may travel with
    /// the next write of the log. It counts as forced.
    Patient,
    /// The machine, and with it a client or a lock: write it now.
    Now,
}

/// What a driver does for its [`Site`], in this order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Send it, if the shard can be reached: the machine repeats what has no answer.
    Send(Envelope),
    /// Write the record in one ordinary transaction, which also leaves `keeps` as the shard's entry
    /// (`None`: no entry). [`Record::Committed`] applies the updates in it. It takes effect in the
    /// caches before the next action.
    Write {
        /// Of which transaction.
        id: TxnId,
        /// What is written.
        record: Record,
        /// The shard's entry afterwards.
        keeps: Option<Entry>,
        /// Who waits for it.
        wait: Wait,
    },
    /// A worker's part: take the locks and plan the updates, then [`Site::planned`].
    Plan(TxnId),
    /// Free the locks, and forget a plan that is not applied.
    Unlock(TxnId),
    /// Answer the client, of a transaction that this shard coordinates.
    Reply(TxnId, Outcome),
    /// This worker has not answered a 1PC transaction in time. If it is dead, and not only slow:
    /// fence it, read its log, then [`Site::fenced`].
    Suspect(TxnId, types::ShardId),
}
