//! What the two halves of the client ask of each other.
//!
//! The namespace half (sessions, leases, names) implements [`Rpc`]; the content
//! half (`data`) calls it. In the other direction the namespace half calls
//! `data::DataContext` and `data::File`:
//!
//! ```text
//! DataContext::open(env, DataConfig, client: ClientId, fs: Uuid, pags: &[PagInfo], rpc: Rc<dyn Rpc>) -> Result<Rc<DataContext>, String>   (async)
//!     .evicted(new_client)        pool, windows and buffers are gone; the client has a new number (lock its byte)   (sync, locks in a task)
//!     .sync_all() -> Result<(), Fault>     (async) every dirty file's data is stable and its commits are answered
//!     .return_pool()              (async) gives the pool back (unmount, idle)
//!     .dirty_bytes() -> u64
//!     .is_settled() -> bool       every file is clean, and what was written in place is stable
//! File::new(ctx, ino, &Attr) -> Rc<File>           knows no layout, holds nothing
//!     .acquired(rights, &Attr, Option<LayoutPart>)  a DATA right came; `None`: what is known of the layout still holds
//!     .acquired_part(&Attr, range, Option<&LayoutPart>)   a part came under DATA_P, with its layout; `.lost_part(range)`: it went (clean by then)
//!     .flush_part(range)          (async) as flush, for one part
//!     .lost(rights_left)          a DATA right went (clean by then): without DATA_S layout and buffers are forgotten, without DATA_X nothing may be dirty
//!     .server_attr(&Attr)         the server told newer attributes; without DATA_X they are the truth
//!     .times_setting()            (async) before times are set explicitly at the server: pending mtime is dropped, no commit that carries it is under way
//!     .closed()                   the last handle went: space held for its next writes is free for others
//!     .times_set()                times were set explicitly at the server: earlier writes no longer set mtime
//!     .overlay(&mut Attr)         puts in what this client knows better (size, blocks, mtime, ctime) under DATA_X
//!     .data_attr() -> DataAttr    answer to a glimpse
//!     .read(offset, len) -> Result<ReadData, Fault>                             (async, all below too)
//!     .write(offset: Option<u64> /*None: at the end*/, data: IoBuf, len) -> Result<(u64 offset, u32), Fault>
//!     .set_size(size), .fallocate(mode, offset, len), .seek(offset, Whence) -> u64
//!     .flush()                    data stable, all committed and answered (recall, forget); loop until is_clean
//!     .commit_accepted()          what was accepted is stable and committed; nothing is given up (before a rename over a name)
//!     .fsync(datasync) -> Result<bool, Fault>    as flush, commit durable; true: a synchronous compound was answered during the call
//!     .is_clean() -> bool         nothing dirty, in flight or uncommitted
//!     .pause()/.resume()          before an unlink: nothing new goes to the devices or the server; pause ends when nothing is in flight
//!     .drop_all(lost: bool)       forgets everything (unlinked; or evicted: `lost`, then error_seq rises if anything was dirty and the file is named in the log)
//!     .error_seq() -> u64         rises with every failure of write-behind; a handle reports EIO once per rise
//!     .layout() -> Result<Vec<Extent>, Fault>    whole layout
//! ```

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
    /// So many edits, the first ones, took effect all the same, with a size that grows if there are any.
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
    /// Commits, in order, at most `COMPOUND_OPS_MAX`; `sync`: durable, as is everything
    /// of the session so far, when it is answered. One result for each (for no commits: none, or why
    /// the session's work is not known to be durable); after one that is not
    /// taken, later ones of the same inode are not sent. `Stale`: the inode is gone for everybody.
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
    fn void_pages(&self, ino: Ino, from: u64, to: u64);
    /// Has this client a handle of the inode?
    fn is_open(&self, ino: Ino) -> bool;
}
