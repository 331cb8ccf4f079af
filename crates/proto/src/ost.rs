//! Messages between a client, or a metadata server, and an object storage target (paper 001,
//! section 3.1: an OST).
//!
//! An *object* is a sparse sequence of 4 KiB blocks without a name: the part of a file's content
//! that one target holds. It begins with its first write and ends with [`Op::Destroy`]. Its size is
//! not the file's: the metadata server knows that one.
//!
//! Invariants:
//! - every operation on an object shows a [`Capability`]; a target believes nobody else;
//! - the bytes of a block travel with their CRC32C, from the client that wrote them to the one that
//!   reads them: each receiver checks it, so they may travel behind their message
//!   ([`crate::frame`]);
//! - repeating an operation in the order of a session changes nothing: a client that replays what
//!   a target may have lost need not know what has survived;
//! - a *statement* says how many free blocks the client counts that the target keeps for it. It
//!   only lowers what the target counts. Of two statements the one with the higher number counts,
//!   in whatever order they arrive.

use types::limits::BLOCK;
use types::{ClientId, Epoch, ObjectId, Transno, Uuid};

use crate::capability::Capability;
use crate::content::Content;
use crate::message::{self, Notice, OBJECT_TARGET, Peer, Versions};
use crate::{wire_enum, wire_struct};

/// The version of the protocol that this code speaks.
pub const VERSION: u32 = 5;

/// Blocks of one read or write at most: 1 MiB.
pub const IO_BLOCKS_MAX: u32 = 256;
/// Objects of one [`Op::Destroy`] at most.
pub const DESTROY_MAX: usize = 1024;

/// An object storage target, as a session's peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ost;

/// See [`message::Message`].
pub type Message = message::Message<Ost>;
/// See [`message::Welcome`]. It says which target that is.
pub type Welcome = message::Welcome<Ost>;
/// See [`message::Request`].
pub type Request = message::Request<Ost>;
/// See [`message::Reply`].
pub type Reply = message::Reply<Ost>;

wire_struct! {
    /// A target.
    #[derive(Default)]
    pub struct TargetInfo {
        /// UUID of its store.
        pub uuid: Uuid,
        /// Blocks for content.
        pub blocks: u64,
        /// How many of them are free.
        pub free: u64,
        /// It keeps and checks checksums of content.
        pub checksums: bool,
    }

    /// What a client believes that a target keeps for it.
    #[derive(Copy, Default)]
    pub struct Statement {
        /// Its place in the order of the client's statements; 0: it says nothing.
        pub number: u64,
        /// Free blocks, without those that the request takes which carries the statement.
        pub blocks: u64,
        /// More blocks that a request without an answer so far may bring.
        pub asked: u64,
    }

    /// Blocks of an object that hold something.
    pub struct ObjectRun {
        /// The first.
        pub block: u64,
        /// How many.
        pub len: u64,
    }
}

wire_enum! {
    /// An operation.
    pub enum Op {
        /// Writes whole blocks from `block` on, at most [`IO_BLOCKS_MAX`]; `sums` has the CRC32C of
        /// each. Fresh blocks of the target take them, so a crash leaves the old or the new bytes.
        /// With [`message::Request::sync`] the answer says that they are durable (001, section 5,
        /// step 8), else that the device has the data (step 7a). Fails `NoSpace`; `Corrupt` if a
        /// checksum differs, and nothing is written then. Blocks that the target keeps for other
        /// clients are not taken. Reply `Done`.
        Write = 1 {
            may: Capability, block: u64, data: Content, sums: Vec<u32>, room: Statement,
        },
        /// Reads `len` blocks from `block` on, at most [`IO_BLOCKS_MAX`]. Reply `Data`. `Io` if
        /// a block cannot be read; `Corrupt` if one does not match its checksum.
        Read = 2 { may: Capability, block: u64, len: u32, },
        /// The blocks `from..to` become holes; `u64::MAX`: to the end. Reply `Done`.
        Punch = 3 { may: Capability, from: u64, to: u64, },
        /// The runs of blocks from `from` on that hold something, at most `max`. Reply `Runs`.
        Runs = 4 { may: Capability, from: u64, max: u32, },
        /// Destroys objects, at most [`DESTROY_MAX`]; unknown ones are no failure. `may` is that of
        /// the metadata server that had their files last. `Busy` while clients may repeat writes
        /// from before a restart. Reply `Done`.
        Destroy = 5 { may: Capability, objects: Vec<ObjectId>, },
        /// Refuses every capability of this client from now on, also after a restart. When it is
        /// answered, nothing of the client is being written, and that is durable. `may` is that of
        /// the metadata server of the client's shard; `Invalid` if it is another one. Reply `Done`.
        Fence = 6 { may: Capability, client: ClientId, },
        /// What the target is and how much is free. Reply `Target`.
        Statfs = 7 {},
        /// Every earlier operation of this session is durable when it is answered. Reply `Done`.
        Sync = 8 {},
        /// Renews the lease. Reply `Done`.
        Renew = 9 {},
        /// Replay is complete. Reply `Done`.
        Recovered = 10 {},
        /// The client leaves. Reply `Done`.
        Goodbye = 11 {},
        /// The target's state as JSON (administrator). Reply `Text`.
        Status = 12 {},
        /// Asks the target to keep `wanted` more free blocks for the client, and `needed` at least.
        /// It waits until all clients from before a restart are back. `may` allows writes to some
        /// object. Reply `Room`. `NoSpace` if there are not so many as are needed, also when other
        /// clients have given back what they were asked for ([`Push::Short`]).
        Reserve = 13 { may: Capability, room: Statement, needed: u64, wanted: u64, },
        /// The client gives back what is above its statement. In its recovery it says what was kept
        /// for it before the restart. Reply `Done`.
        Hold = 14 { room: Statement, },
        /// The metadata server has fenced all clients that it had to, in this start of the target.
        /// Its `epoch` is that of the greeting, else the answer is `Stale`. Until then a target
        /// that knows a metadata server of that shard changes nothing for clients of the shard.
        /// `may` is the metadata server's. Reply `Done`.
        Admit = 15 { may: Capability, epoch: Epoch, },
    }
}

wire_enum! {
    /// The result of an operation.
    pub enum OpReply {
        /// Success without a result.
        Done = 1 {},
        /// The blocks of a read that hold something: which ones, counted from its first block; all
        /// others are zeros. `data` has their bytes in that order, `sums` the CRC32C of each.
        Data = 2 { runs: Vec<ObjectRun>, data: Content, sums: Vec<u32>, },
        /// Runs of blocks; `end`: there are no more behind them.
        Runs = 3 { runs: Vec<ObjectRun>, end: bool, },
        /// The target.
        Target = 4 { info: TargetInfo, },
        /// Text.
        Text = 5 { text: String, },
        /// So many more free blocks are kept for the client.
        Room = 6 { blocks: u64, },
    }
}

wire_enum! {
    /// What a target sends unasked.
    pub enum Push {
        /// Everything up to this number is durable.
        Committed = 1 { transno: Transno, },
        /// The session is over.
        Evicted = 2 { reason: String, },
        /// Another client needs room. The client gives back, by [`Op::Hold`] and at once, what no
        /// bytes that it has accepted need.
        Short = 3 {},
    }
}

wire_enum! {
    /// The answer to a push: no push of a target has one.
    pub enum PushReply {
        /// Nothing.
        Nothing = 1 {},
    }
}

impl Op {
    /// What the sender shows, if the operation needs it.
    pub fn capability(&self) -> Option<&Capability> {
        match self {
            Op::Write { may, .. }
            | Op::Read { may, .. }
            | Op::Punch { may, .. }
            | Op::Runs { may, .. }
            | Op::Destroy { may, .. }
            | Op::Fence { may, .. }
            | Op::Reserve { may, .. }
            | Op::Admit { may, .. } => Some(may),
            Op::Statfs {}
            | Op::Sync {}
            | Op::Renew {}
            | Op::Recovered {}
            | Op::Goodbye {}
            | Op::Status {}
            | Op::Hold { .. } => None,
        }
    }
}

impl Peer for Ost {
    const NAME: &'static str = "object storage target";
    const ROLE: u8 = OBJECT_TARGET;
    const VERSIONS: Versions = Versions::only(VERSION);
    const FEATURES: u64 = 0;

    type Op = Op;
    type OpReply = OpReply;
    type Push = Push;
    type PushReply = PushReply;
    type Offer = TargetInfo;

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

    fn outlives_session(op: &Op) -> bool {
        // What a client may do, its capabilities say, and not its session.
        op.capability().is_some() || matches!(op, Op::Statfs {})
    }

    fn may_change(op: &Op) -> bool {
        matches!(op, Op::Write { .. } | Op::Punch { .. } | Op::Destroy { .. } | Op::Fence { .. })
    }

    fn carried_bytes(op: &Op) -> usize {
        match op {
            Op::Write { data, sums, .. } => data.len() + size_of_val(&sums[..]),
            Op::Destroy { objects, .. } => size_of_val(&objects[..]),
            _ => 0,
        }
    }

    const BEHIND_MAX: usize = IO_BLOCKS_MAX as usize * BLOCK;

    fn content(op: &Op) -> Option<&Content> {
        match op {
            Op::Write { data, .. } => Some(data),
            _ => None,
        }
    }

    fn content_of_reply(reply: &OpReply) -> Option<&Content> {
        match reply {
            OpReply::Data { data, .. } => Some(data),
            _ => None,
        }
    }

    fn notice(push: Push) -> Notice<Ost> {
        match push {
            Push::Committed { transno } => Notice::Committed(transno),
            Push::Evicted { reason } => Notice::Evicted(reason),
            Push::Short {} => Notice::Other(push),
        }
    }
}
