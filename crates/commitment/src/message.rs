//! What travels between shards, and what they keep.

use types::{Epoch, ShardId};

use crate::{Aside, Path, Protocol};

/// Names a transaction, for ever.
///
/// The order of the names is the order in which their coordinator received the operations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TxnId {
    /// The shard that coordinates it.
    pub coordinator: ShardId,
    /// The epoch in which that shard began it.
    pub epoch: Epoch,
    /// How many it had begun before in that epoch.
    pub number: u64,
}

impl std::fmt::Display for TxnId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.coordinator, self.epoch, self.number)
    }
}

/// What one shard says to another of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Message {
    /// To the worker: make these updates. The driver adds the operation.
    UpdateReq {
        /// The coordinator has no older transaction left.
        oldest: TxnId,
    },
    /// To the coordinator: they can be made (PrN, PrC), are prepared (EP) or committed (1PC).
    Updated,
    /// To the coordinator: they cannot be made. The driver adds why.
    Refused,
    /// To the worker: prepare.
    Prepare,
    /// To the coordinator: prepared.
    Prepared,
    /// To the coordinator: the worker knows nothing of the transaction.
    NotPrepared,
    /// To the worker: commit.
    Commit,
    /// To the worker: nothing will be applied.
    Abort,
    /// Two phases, to the coordinator: the worker has obeyed. 1PC, to the worker:
    /// the coordinator has committed.
    Ack,
    /// To the coordinator, from a worker that has waited: what became of it? With 1PC: is ACK due?
    Ask,
}

impl Message {
    /// Is it a message that only the protocol needs (003 Table I)?
    pub fn is_extra(self) -> bool {
        !matches!(self, Message::UpdateReq { .. } | Message::Updated | Message::Refused)
    }
}

/// A message with its way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Envelope {
    /// The shard that says it.
    pub from: ShardId,
    /// That shard's epoch.
    pub from_epoch: Epoch,
    /// The shard that it is for.
    pub to: ShardId,
    /// The epoch of that shard as far as the sender knows.
    pub to_epoch: Epoch,
    /// Of which transaction.
    pub id: TxnId,
    /// By which protocol.
    pub protocol: Protocol,
    /// What had to happen before it.
    pub path: Aside<Path>,
    /// What it says.
    pub message: Message,
}

/// A shard's part in a transaction.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Part {
    /// It coordinates these workers.
    Coordinator(Vec<ShardId>),
    /// It is a worker.
    Worker,
}

/// How far an entry is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kept {
    /// STARTED; with 1PC the redo is beside it.
    Started,
    /// PREPARED: the intent is beside it.
    Prepared,
    /// COMMITTED: the updates are applied.
    Committed,
    /// ABORTED.
    Aborted,
}

/// What a shard keeps of a transaction in its tree.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Entry {
    /// By which protocol.
    pub protocol: Protocol,
    /// Its part.
    pub part: Part,
    /// How far it is.
    pub kept: Kept,
}
