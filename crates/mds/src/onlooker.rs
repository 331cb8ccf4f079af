//! Who looks on at what a server does: tests.
//!
//! Invariant: it is told of a thing at the instant at which that takes effect, waits for nothing
//! and changes nothing. A server without one tells nobody, and does nothing for it.

use proto::mds::{Op, Reply};
use types::{ClientId, Extent, Ino, Transno};

/// What a commit lets the metadata point at.
#[derive(Clone, Copy, Debug)]
pub struct Pointed<'a> {
    /// Whose commit.
    pub client: ClientId,
    /// Of which file.
    pub ino: Ino,
    /// Blocks that become the file's, or hold its data from now on.
    pub extents: &'a [Extent],
    /// It was done before, by a server that died.
    pub replay: bool,
}

/// An operation that was carried out, or a part of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Executed {
    /// Whose.
    pub client: ClientId,
    /// Slot and sequence of its request: of all requests of a client no other has both.
    pub request: (u16, u32),
    /// Which one of the request's operations.
    pub index: u8,
    /// A commit is done up to this edit, which is not its last; `None`: the operation is done.
    pub edits: Option<u32>,
    /// The transaction that did it.
    pub transno: Transno,
}

/// See the module.
pub trait Onlooker {
    /// An operation of a client took effect, by this transaction if it changed what is kept.
    fn took_effect(&self, client: ClientId, op: &Op, transno: Option<Transno>);

    /// A transaction of the store did what an operation asks for, or a part of it.
    fn executed(&self, executed: Executed);

    /// A commit is executed. It is told within the transaction, which may begin anew: then it is
    /// told again.
    fn commits(&self, pointed: &Pointed<'_>);

    /// An answer leaves; with `durable` it says that all of the client's work up to its number is
    /// durable.
    fn answers(&self, client: ClientId, reply: &Reply, durable: bool);
}
