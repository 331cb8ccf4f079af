//! The interface between the two halves of the client.
//!
//! The namespace half (sessions, leases, names) implements [`Rpc`]; the data half (`data`) calls
//! it. In the other direction the namespace half calls `data::DataContext`, one per client, and
//! `data::File`, one per inode; their methods document what they expect.

use std::future::Future;
use std::pin::Pin;

use proto::mds::{Edit, LayoutSlice, Leased, PagRun};
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
    /// Made under `DATA_P`: size and times take effect if they are above the server's.
    pub merge: bool,
    /// The bytes behind the size in the last block are zero on the device.
    pub tail_zero: bool,
}

/// Why the server did not apply a commit, or not all of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// What prevented it.
    pub fault: Fault,
    /// How many edits, counted from the first, took effect nevertheless. If there are any, so did a
    /// size that grows.
    pub done: usize,
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Refusal {
        Refusal { fault, done: 0 }
    }
}

/// Requests of the data half to the metadata server. All calls use reserved slots and may be made
/// during a recall. They wait through restarts of the server; `Fault::Evicted` means that the
/// session is gone.
pub trait Rpc {
    /// Blocks for the pool, about `blocks`; fewer, or `NoSpace`, when space is short.
    fn space(
        &self,
        hint: Option<PagId>,
        blocks: u64,
    ) -> LocalFuture<'_, Result<Vec<PagRun>, Fault>>;
    /// Returns pool blocks, or reports that there are none to return.
    fn return_space(&self, runs: Vec<PagRun>) -> LocalFuture<'_, Result<(), Fault>>;
    /// More of a layout, under a `DATA` right.
    fn layout(&self, ino: Ino, from: FileBlock) -> LocalFuture<'_, Result<LayoutSlice, Fault>>;
    /// Sends commits, in order, at most `COMPOUND_OPS_MAX`. `sync`: they are durable when answered,
    /// as is everything of the session so far. The results are one for each commit. Without commits
    /// there is none, or the reason why the session's work may not be durable. After a commit that
    /// fails, later ones of the same inode are not sent. `Stale`: the inode is gone for everybody.
    fn commit(
        &self,
        commits: Vec<Commit>,
        sync: bool,
    ) -> LocalFuture<'_, Vec<Result<Leased, Refusal>>>;
    /// Until when the session's lease is good, as far as this client knows: nothing new is
    /// submitted to a device after it.
    fn lease_ends(&self) -> Instant;
    /// Waits until the lease is good again, or a new session exists (then `Evicted`).
    fn wait_lease(&self) -> LocalFuture<'_, Result<(), Fault>>;
    /// The server's clock, estimated; never goes back.
    fn time(&self) -> Timestamp;
    /// One line for the log.
    fn log(&self, text: &str);
    /// Describes the inode in messages: by its name, as far as that is known.
    fn describe(&self, ino: Ino) -> String {
        format!("inode {ino}")
    }
    /// The attributes as the server last reported them.
    fn attr(&self, ino: Ino) -> Option<Attr>;
    /// Bytes `[from, to)` of the inode have changed: the kernel drops its pages of them soon.
    fn inval_pages(&self, ino: Ino, from: u64, to: u64);
    /// Does this client have a handle of the inode?
    fn is_open(&self, ino: Ino) -> bool;
}
