//! A small protocol: a server that keeps numbers in the order in which they came.

use proto::message::{Notice, Peer, Versions};
use proto::{wire_enum, wire_struct};
use types::Transno;

/// Feature: the server pushes what has become durable.
pub const COMMITTED_PUSHES: u64 = 1;
pub const ROLE: u8 = 200;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ledger;

wire_enum! {
    /// Operations.
    pub enum Op {
        /// Keeps a number.
        Add = 1 { number: u64, },
        /// Answered when the test allows it.
        Hold = 2 {},
        /// Flushes the log.
        Sync = 3 {},
        /// Renews the lease.
        Renew = 4 {},
        /// Ends the session.
        Goodbye = 5 {},
        /// Ends a recovery.
        Recovered = 6 {},
        /// What the client holds.
        Reclaim = 7 { text: String, },
        /// Changes nothing, as the return of a right.
        GiveBack = 8 {},
    }
}

wire_enum! {
    /// Results.
    pub enum OpReply {
        /// Success.
        Done = 1 {},
        /// The position of the number that was added.
        Position = 2 { position: u64, },
    }
}

wire_enum! {
    /// Pushes.
    pub enum Push {
        /// Everything up to this number is durable.
        Committed = 1 { transno: Transno, },
        /// The session is over.
        Evicted = 2 { reason: String, },
        /// A question.
        Ask = 3 { id: u64, },
    }
}

wire_struct! {
    /// The answer to a question.
    pub struct PushReply {
        /// As in the question.
        pub id: u64,
    }
}

impl Peer for Ledger {
    const NAME: &'static str = "ledger";
    const ROLE: u8 = ROLE;
    const VERSIONS: Versions = Versions { min: 5, max: 5 };
    const FEATURES: u64 = COMMITTED_PUSHES;

    type Op = Op;
    type OpReply = OpReply;
    type Push = Push;
    type PushReply = PushReply;
    type Offer = String;

    fn renew() -> Op {
        Op::Renew {}
    }

    fn sync() -> Op {
        Op::Sync {}
    }

    fn goodbye() -> Op {
        Op::Goodbye {}
    }

    fn recovered() -> Op {
        Op::Recovered {}
    }

    fn outlives_session(_: &Op) -> bool {
        false
    }

    fn may_change(op: &Op) -> bool {
        matches!(op, Op::Add { .. })
    }

    fn carried_bytes(_: &Op) -> usize {
        0
    }

    fn notice(push: Push) -> Notice<Ledger> {
        match push {
            Push::Committed { transno } => Notice::Committed(transno),
            Push::Evicted { reason } => Notice::Evicted(reason),
            push => Notice::Other(push),
        }
    }
}
