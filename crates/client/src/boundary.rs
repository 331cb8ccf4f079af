//! What the two halves of the client ask of each other.
//!
//! The namespace half (sessions, leases, names) implements [`Rpc`]; the content
//! half (`data`) calls it. In the other direction the namespace half calls `data::DataContext`,
//! one a client, and `data::File`, one an inode; their methods say what they expect.

use std::future::Future;
use std::pin::Pin;

use proto::mds::{Edit, LayoutPart, Leased, PagRun};
use types::{Attr, Fault, FileBlock, Ino, Instant, PagId, Timestamp};

/// A boxed future of this thread.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// One inode's part of a commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Commit {
    /// Inode.
    pub ino: Ino,
    /// Edits, at most `COMMIT_EDITS_MAX`; the data of mapped blocks is stable.
    pub edits: Vec<Edit>,
    /// New size, if it changed.
    pub size: Option<u64>,
    /// New modification time, if it was written since times were last set explicitly.
    pub mtime: Option<Timestamp>,
    /// New change time.
    pub ctime: Option<Timestamp>,
    /// Made under `DATA_P`: size and times count if they are above what the server has.
    pub merge: bool,
    /// What the last block holds behind the size is zero on the device.
    pub tail_zero: bool,
}

/// Why a commit was not taken, or not whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// What came in the way.
    pub fault: Fault,
    /// So many edits, the first ones, took effect all the same, with a size that grows if there are
    /// any.
    pub done: usize,
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Refusal {
        Refusal { fault, done: 0 }
    }
}

/// What the content half asks of the metadata server. All calls travel in
/// reserved slots and may be made while a recall is under way. They wait through
/// restarts of the server; `Fault::Evicted` means that the session is gone.
pub trait Rpc {
    /// Blocks for the pool, about `blocks`; fewer or `NoSpace` when space is short.
    fn space(
        &self,
        hint: Option<PagId>,
        blocks: u64,
    ) -> LocalFuture<'_, Result<Vec<PagRun>, Fault>>;
    /// Gives pool blocks back, or says that there are none to give.
    fn return_space(&self, runs: Vec<PagRun>) -> LocalFuture<'_, Result<(), Fault>>;
    /// More of a layout, under a `DATA` right.
    fn layout(&self, ino: Ino, from: FileBlock) -> LocalFuture<'_, Result<LayoutPart, Fault>>;
    /// Commits, in order, at most `COMPOUND_OPS_MAX`; `sync`: durable, as is everything of the
    /// session so far, when it is answered. One result for each (for no commits: none, or why the
    /// session's work is not known to be durable); after one that is not taken, later ones of the
    /// same inode are not sent. `Stale`: the inode is gone for everybody.
    fn commit(
        &self,
        commits: Vec<Commit>,
        sync: bool,
    ) -> LocalFuture<'_, Vec<Result<Leased, Refusal>>>;
    /// Until when the session's lease is good, as far as this client knows: nothing new
    /// is submitted to a device after it.
    fn lease_ends(&self) -> Instant;
    /// Waits until the lease is good again, or a new session stands (then `Evicted`).
    fn wait_lease(&self) -> LocalFuture<'_, Result<(), Fault>>;
    /// The server's clock, estimated; never goes back.
    fn time(&self) -> Timestamp;
    /// One line for the log.
    fn log(&self, text: &str);
    /// The inode for messages to people: by its name, as far as that is known.
    fn describe(&self, ino: Ino) -> String {
        format!("inode {ino}")
    }
    /// The attributes as the server told them last.
    fn attr(&self, ino: Ino) -> Option<Attr>;
    /// Bytes `[from, to)` of the inode are not what they were: the kernel forgets them soon.
    fn inval_pages(&self, ino: Ino, from: u64, to: u64);
    /// Has this client a handle of the inode?
    fn is_open(&self, ino: Ino) -> bool;
}
