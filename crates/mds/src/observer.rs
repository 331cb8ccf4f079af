//! The view of a test into a running server.
//!
//! Invariant: an observer is called at the instant at which a thing takes effect, waits for nothing
//! and changes nothing. A server without an observer does nothing for it.

use proto::mds::{Op, Reply};
use types::{ClientId, Ino, Segment, Transno};

/// Blocks that a commit makes part of a file.
#[derive(Clone, Copy, Debug)]
pub struct CommittedBlocks<'a> {
    /// The client that commits.
    pub client: ClientId,
    /// The file.
    pub ino: Ino,
    /// Blocks that the commit maps, or that hold the file's data from now on.
    pub segments: &'a [Segment],
    /// It is a replay of a commit that a server executed before it died.
    pub replay: bool,
}

/// An operation that was executed, or a part of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Executed {
    /// The client.
    pub client: ClientId,
    /// Slot and sequence number of its request; no other request of the client has both.
    pub request: (u16, u32),
    /// Index of the operation in the request.
    pub index: u8,
    /// A commit is done up to this edit, which is not its last; `None`: the operation is done.
    pub edits: Option<u32>,
    /// The transaction that did it.
    pub transno: Transno,
}

/// See the module.
pub trait Observer {
    /// An operation of a client took effect; `transno`: its transaction, if it changed the store.
    fn took_effect(&self, client: ClientId, op: &Op, transno: Option<Transno>);

    /// A transaction of the store executed an operation, or a part of it.
    fn executed(&self, executed: Executed);

    /// A commit is being executed. The call comes from within the transaction, and again if that
    /// starts over.
    fn commits(&self, pointed: &CommittedBlocks<'_>);

    /// An answer leaves; `durable`: it confirms that all of the client's changes up to its number
    /// are durable.
    fn answers(&self, client: ClientId, reply: &Reply, durable: bool);
}
