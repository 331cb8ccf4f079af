//! The boundary between the two halves of the client.
//!
//! The metadata half (sessions, leases, names) calls the data half (`data`) through [`DataHalf`],
//! one per client, and [`FileContent`], one per inode. The data half calls back through [`Rpc`].
//! Everything else of `data` is visible only there, so the compiler refuses any other call.

use std::collections::BTreeSet;
use std::future::Future;
use std::rc::Rc;

use env::{Env, IoBuf};
use proto::mds::{DataAttr, Edit, LayoutSlice, Leased, PagInfo, PagRun, UnplacedPiece, ZoneList};
use proto::prealloc::{Policy, Stream};
use types::{
    Attr, BlockRange, ClientId, Duration, Epoch, Fault, FileBlock, Ino, Instant, PagId, Rights,
    Segment, ServerId, Timestamp, Uuid,
};

use crate::api::{DeviceStatus, ReadData, Whence};
use crate::data::{DataConfig, MoveStep, Room};

pub use env::LocalFuture;

/// What a metadata server offers beside its session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    /// The server.
    pub server: ServerId,
    /// The client's number there.
    pub client: ClientId,
    /// Its data zones. The blocks of its files lie there.
    pub zones: Vec<PagInfo>,
}

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

/// Where a file lies, under a right on its content.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lies {
    /// Of an object file: the blocks of a stripe unit, and its targets.
    pub object: Option<(u64, Vec<PagId>)>,
    /// The text of its layout; empty: none of its own.
    pub placement: Vec<u8>,
}

/// What of a file's content is not durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Unsaved {
    /// Bytes of blocks that no device has been given yet.
    pub dirty_bytes: u64,
    /// Bytes of blocks that devices are writing.
    pub in_flight_bytes: u64,
    /// Changes of the layout that are not sent to the server.
    pub edits: usize,
    /// A commit is on its way to the devices and the server.
    pub committing: bool,
    /// The server does not have the size or the times.
    pub attributes: bool,
    /// A device that has written blocks in place has not been flushed since.
    pub unflushed: bool,
    /// Content that was accepted is lost, and no handle, rename or truncation has heard of it.
    pub lost: bool,
    /// Since when; `None` if there is nothing.
    pub since: Option<Instant>,
}

/// Blocks that the server has granted.
#[derive(Clone, Debug, Default)]
pub struct Granted {
    /// The blocks, all of one zone.
    pub runs: Vec<PagRun>,
    /// How many blocks are free in that zone now.
    pub left: u64,
}

/// Pieces of a file for which the server is to choose places.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlaceRequest {
    /// The file.
    pub ino: Ino,
    /// Its blocks.
    pub pieces: Vec<UnplacedPiece>,
    /// Who wrote them; `None`: they get no window.
    pub stream: Option<Stream>,
    /// How places are chosen.
    pub policy: Policy,
    /// As for [`Rpc::space`].
    pub hint: Option<PagId>,
    /// As for [`Rpc::space`].
    pub unreachable: Vec<PagId>,
}

/// Blocks that a request with commits asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpaceRequest {
    /// The server that grants them.
    pub server: ServerId,
    /// As for [`Rpc::space`].
    pub hint: Option<PagId>,
    /// As for [`Rpc::space`].
    pub blocks: u64,
    /// As for [`Rpc::space`].
    pub unreachable: Vec<PagId>,
}

/// The results of commits, and that of a request for blocks.
pub type CommitsAndGrant = (Vec<Result<Leased, Refusal>>, Option<Result<Granted, Fault>>);

/// Requests of the data half to the metadata servers. All calls use reserved slots and may be made
/// during a recall. They wait through restarts of the server; `Fault::Evicted` means that the
/// session is gone.
pub trait Rpc {
    /// The server that has the inode, and gives it blocks.
    fn server_of(&self, ino: Ino) -> ServerId;
    /// Blocks for a pool of the server, about `blocks`, of the zone `hint` if it has any, and of
    /// none of the zones `unreachable`; fewer, or `NoSpace`, when space is short.
    fn space(&self, asked: SpaceRequest) -> LocalFuture<'_, Result<Granted, Fault>>;
    /// Places for pieces of a file, in their order: blocks of the pool. They may end before the
    /// pieces do; `NoSpace` when there is none.
    fn place(&self, asked: PlaceRequest) -> LocalFuture<'_, Result<Granted, Fault>>;
    /// The client does not extend the file any more, or not through the handle: no places are kept
    /// for it.
    fn end_placing(&self, ino: Ino, handle: Option<u64>) -> LocalFuture<'_, Result<(), Fault>>;
    /// Returns pool blocks to the server, or reports that there are none to return.
    fn return_space(
        &self,
        server: ServerId,
        runs: Vec<PagRun>,
    ) -> LocalFuture<'_, Result<(), Fault>>;
    /// The data zones as the server has them now. `Unsupported`: it never adds any.
    fn zones(&self, _server: ServerId) -> LocalFuture<'_, Result<ZoneList, Fault>> {
        Box::pin(async { Err(Fault::Unsupported) })
    }
    /// More of a layout, under a `DATA` right.
    fn layout(&self, ino: Ino, from: FileBlock) -> LocalFuture<'_, Result<LayoutSlice, Fault>>;
    /// Makes everything of the session with the server so far durable. Fails with the reason why it
    /// may not be.
    fn sync(&self, server: ServerId) -> LocalFuture<'_, Result<(), Fault>>;
    /// Sends commits, in order, from one to `COMPOUND_OPS_MAX`. `sync`: they are durable when
    /// answered, as is everything of the sessions with their servers so far. The results are one
    /// for
    /// each commit. After a commit that fails, later ones of the same inode are not sent. `Stale`:
    /// the inode is gone for everybody.
    fn commit(
        &self,
        commits: Vec<Commit>,
        sync: bool,
    ) -> LocalFuture<'_, Vec<Result<Leased, Refusal>>>;
    /// As [`Rpc::commit`] with at least one commit, and asks for blocks in the last request. No
    /// result for them: they were not asked for, because a commit failed, or no answer has come.
    fn commit_and_refill(
        &self,
        commits: Vec<Commit>,
        sync: bool,
        refill: SpaceRequest,
    ) -> LocalFuture<'_, CommitsAndGrant>;
    /// Requests that the busiest server had to work on, as its last answer said.
    fn load(&self) -> u16;
    /// Until when the lease of the session with the server is good, as far as this client knows.
    /// After that nothing new is submitted to a device for a file of that server.
    fn lease_ends(&self, server: ServerId) -> Instant;
    /// Waits until that lease is good again, or a new session exists (then `Evicted`).
    fn wait_lease(&self, server: ServerId) -> LocalFuture<'_, Result<(), Fault>>;
    /// A successor of the server, of this epoch, has taken over: until it answers, the lease is not
    /// good.
    fn require_epoch(&self, server: ServerId, epoch: Epoch);
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

/// What a commit pipeline has done, and what it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CommitCounts {
    /// Requests with commits of files that became old enough.
    pub requests: u64,
    /// Files in them.
    pub files: u64,
    /// Files that are not committed: what the number of tasks follows.
    pub queue: usize,
    /// Files that are not old enough yet.
    pub aging: usize,
    /// Files that wait until a batch of the same devices may begin.
    pub waiting: usize,
    /// Files whose data is stable and that wait for a task to send them.
    pub ready: usize,
    /// Requests in flight.
    pub sending: usize,
    /// Requests that may be in flight.
    pub tasks: usize,
    /// Commits of a request, as the network and the server ask for it.
    pub degree: usize,
}

/// The data half of one client, as the metadata half uses it.
pub trait DataHalf: Sized {
    /// The content of one file.
    type File: FileContent;

    /// Opens the data devices of all servers and checks their labels. What lies on a device that is
    /// not there, or cannot be read, fails until it is. The error names a device that is a wrong
    /// one.
    fn open(
        env: Env,
        config: DataConfig,
        fs: Uuid,
        offers: Vec<Offer>,
        rpc: Rc<dyn Rpc>,
    ) -> impl Future<Output = Result<Rc<Self>, String>>;
    /// The content of inode `ino`, with no layout loaded and no right held.
    fn file(self: &Rc<Self>, ino: Ino, attr: &Attr) -> Rc<Self::File>;
    /// Makes every dirty file's data stable and commits it. Returns the first error.
    fn sync_all(self: &Rc<Self>) -> impl Future<Output = Result<(), Fault>>;
    /// Commits the files with freed blocks that the server does not know of; waits at most
    /// `patience`. Errors are left to the files' own commits.
    fn commit_unmapped(self: &Rc<Self>, patience: Duration) -> impl Future<Output = ()>;
    /// The session with the server is lost, and with it the pools, windows and buffers of its
    /// files. The client has a new number there.
    fn evicted(self: &Rc<Self>, server: ServerId, new_client: ClientId);
    /// The client has ended: drops the files in the queue, which hold references to this half.
    fn release_files(&self);

    /// Is nothing dirty, in flight, uncommitted or not yet stable?
    fn is_settled(&self) -> bool;
    /// Is content of a file lost of which no process has heard?
    fn has_unreported_loss(&self) -> bool;
    /// Files of which something is dirty, in flight or uncommitted.
    fn unsaved(&self) -> Vec<Ino>;
    /// Since when the oldest change of a file's content is not committed and stable.
    fn unsaved_since(&self) -> Option<Instant>;
    /// Bytes accepted and not yet written.
    fn dirty_bytes(&self) -> u64;
    /// Number of launched writes that have not ended.
    fn writes_in_flight(&self) -> usize;
    /// The commit pipeline.
    fn commit_counts(&self) -> CommitCounts;
    /// The device that has been silent for the longest time with requests pending, and that time.
    fn most_silent(&self) -> Option<(String, Duration)>;
    /// The server's list of its data zones: opens those that are new, and uses none that is lost.
    fn zones_reported(self: &Rc<Self>, server: ServerId, list: &ZoneList);
    /// The data zones of a later greeting, which does not say what is lost.
    fn zones_offered(self: &Rc<Self>, server: ServerId, zones: &[PagInfo]);
    /// Did a server call a zone lost or draining when it last named them?
    fn any_out_of_service(&self) -> bool;
    /// Places nothing in these zones from now on.
    fn shun_zones(&self, zones: BTreeSet<PagId>);
    /// Returns when a device with pending requests has been silent for `patience`, counted from the
    /// call.
    fn device_silent_for(&self, patience: Duration) -> impl Future<Output = ()>;
    /// As [`DataHalf::device_silent_for`], for the device of one of `zones`; none: of any zone
    /// with blocks. Returns the path of the device.
    fn zone_silent_for(
        &self,
        zones: Vec<PagId>,
        patience: Duration,
    ) -> impl Future<Output = String>;

    /// The data devices.
    fn devices(&self) -> Vec<DeviceStatus>;
    /// The caller of `operation` is gone: what it has not sent to a target fails.
    fn give_up(&self, operation: u64);
    /// Ends the sessions with all targets; everything is written by then.
    fn leave_targets(&self) -> impl Future<Output = ()>;

    /// Blocks of the pool, and tainted blocks, which are to be returned.
    fn pool_blocks(&self) -> (u64, u64);
    /// Blocks of the pool that wait in windows for the next writes of open files.
    fn blocks_in_windows(&self) -> u64;
    /// Blocks in the standby pools.
    fn blocks_in_standby(&self) -> u64;
    /// Grants to the pools so far, and those of them that were asked for with commits.
    fn grants(&self) -> (u64, u64);
    /// Blocks given to this client that are neither in a file nor reserved for accepted bytes.
    fn unused_blocks(&self) -> u64;
    /// Is no transfer of blocks in progress?
    fn is_pool_idle(&self) -> bool;
    /// Rises whenever a transfer of blocks begins or ends.
    fn pool_transfers(&self) -> u64;
    /// Waits until no transfer of blocks is in progress.
    fn pool_idle(&self) -> impl Future<Output = ()>;
    /// Returns the pool (unmount, idle). Blocks reserved for accepted bytes stay.
    fn return_pool(&self) -> impl Future<Output = ()>;
    /// The server has no space for another client: returns what of its blocks is neither reserved
    /// nor waited for.
    fn return_unused(&self, server: ServerId) -> impl Future<Output = ()>;
}

/// The content of one file in the data half, as the metadata half uses it. The metadata half tells
/// which rights are held; requests come only while an I/O guard of a right is held.
pub trait FileContent {
    /// The client acquired a `DATA` right; it holds `rights` now. `layout` is the part of the
    /// layout that came with it; `None`: the layout known so far still holds.
    fn rights_acquired(&self, rights: Rights, attr: &Attr, layout: Option<LayoutSlice>);
    /// The client acquired a range, with the attributes and the layout of that moment.
    fn range_acquired(&self, attr: &Attr, range: BlockRange, layout: Option<&LayoutSlice>);
    /// The client lost a `DATA` right. Nothing is dirty by then.
    fn rights_lost(&self, rights_left: Rights);
    /// The client lost `range`. Nothing of it is dirty by then.
    fn range_lost(&self, range: BlockRange);
    /// Are all of `rights` held, and are size and layout known as of their grant?
    fn holds(&self, rights: Rights) -> bool;
    /// Does the client hold ranges, so that the size known here is only a lower bound?
    fn holds_ranges(&self) -> bool;

    /// Up to `len` bytes from `offset`; fewer only at the end of the file.
    fn read(
        self: &Rc<Self>,
        offset: u64,
        len: usize,
    ) -> impl Future<Output = Result<ReadData, Fault>>;
    /// Writes the first `len` bytes of `data` at `offset`, or at the end of the file. `stream`: who
    /// does, for the choice of a place. Returns the offset and the number of bytes. Fails with
    /// `NoSpace`, `FileTooBig`, `Io`, `Evicted`.
    fn write(
        self: &Rc<Self>,
        offset: Option<u64>,
        data: IoBuf,
        len: usize,
        stream: Option<Stream>,
    ) -> impl Future<Output = Result<(u64, u32), Fault>>;
    /// Sets the size. Waits for devices only, not for the server, unless a block of a frozen file
    /// has to be copied.
    fn set_size(self: &Rc<Self>, size: u64) -> impl Future<Output = Result<(), Fault>>;
    /// fallocate(2): allocate, punch a hole, zero a range. A failed call may have done a part.
    /// Fails with `NotSupported` for other modes, before it changes anything.
    fn fallocate(
        self: &Rc<Self>,
        mode: u32,
        offset: u64,
        len: u64,
    ) -> impl Future<Output = Result<(), Fault>>;
    /// The first data or hole at or after `offset`; the end of the file is a hole. Fails
    /// `NoData` at or beyond the size, or if there is no more data.
    fn seek(
        self: &Rc<Self>,
        offset: u64,
        whence: Whence,
    ) -> impl Future<Output = Result<u64, Fault>>;
    /// The whole layout, and why each segment lies where it lies, if this client has chosen it.
    fn layout(
        self: &Rc<Self>,
    ) -> impl Future<Output = Result<Vec<(Segment, Option<String>)>, Fault>>;
    /// Length of the file's inline data in bytes. Fails as [`FileContent::layout`].
    fn inline_len(self: &Rc<Self>) -> impl Future<Output = Result<usize, Fault>>;
    /// Under `DATA_X`: moves up to `most` blocks that lie in `zones`, from block `at` of the file
    /// on, elsewhere, to where its layout and the shunned zones allow. It is committed on return.
    ///
    /// # Errors
    /// `Io`: a device failed. `Evicted`: the session is lost. Nothing is lost in either case.
    fn move_blocks(
        self: &Rc<Self>,
        zones: &BTreeSet<PagId>,
        blocks: (u64, u64),
        room: &mut Room,
    ) -> impl Future<Output = Result<MoveStep, Fault>>;
    /// Gets what the last [`FileContent::move_blocks`] lacked. Fails with `NoSpace`, `Io`,
    /// `Evicted`.
    fn find_room(self: &Rc<Self>, room: &mut Room) -> impl Future<Output = Result<(), Fault>>;
    /// The zones that the file's layout allows, as far as it is known; empty: all.
    fn zones_allowed(&self) -> Vec<PagId>;
    /// Rises whenever a right to read ends: what was read before may be changed by others from then
    /// on.
    fn generation(&self) -> u64;
    /// Where the file lies.
    fn lies(&self) -> Lies;
    /// Under `DATA_X`: makes the next commit leave zeros on the device in the last block behind the
    /// size.
    fn zero_tail(self: &Rc<Self>) -> impl Future<Output = Result<(), Fault>>;

    /// Size in bytes.
    fn size(&self) -> u64;
    /// Replaces attributes by those that this client knows better.
    fn overlay(&self, attr: &mut Attr);
    /// The answer to a glimpse.
    fn data_attr(&self) -> DataAttr;
    /// The server sent newer attributes; they are authoritative without `DATA_X` and `DATA_P`.
    fn apply_server_attr(&self, attr: &Attr);
    /// Call before setting times at the server: earlier writes no longer set mtime. Waits until no
    /// commit that sets it is in progress.
    fn before_times_set(self: &Rc<Self>) -> impl Future<Output = ()>;

    /// What of it is not durable.
    fn unsaved(&self) -> Unsaved;
    /// Is nothing dirty, in flight or uncommitted?
    fn is_clean(&self) -> bool;
    /// Is the file clean, and are all writes in place stable?
    fn is_settled(&self) -> bool;
    /// Is nothing of `range` dirty, in flight, uncommitted, or written in place and not yet stable?
    /// For [`BlockRange::ALL`] this includes size and times.
    fn is_settled_in(&self, range: BlockRange) -> bool;
    /// Was a change given up that a target may still make? Then no right on the content may go.
    fn has_given_up(&self) -> bool;
    /// Waits until no target can make such a change any more.
    fn given_up_ended(self: &Rc<Self>) -> impl Future<Output = ()>;
    /// Makes everything accepted before the call durable. `true`: the server answered a synchronous
    /// compound during the call.
    fn fsync(self: &Rc<Self>, datasync: bool) -> impl Future<Output = Result<bool, Fault>>;
    /// Makes what was accepted before the call stable, and commits it. Unlike
    /// [`FileContent::flush`] it discards nothing: what the server cannot take now stays dirty.
    ///
    /// # Errors
    /// Some of it is lost now, or the server has had no room for it for 5 s.
    fn commit_accepted(self: &Rc<Self>) -> impl Future<Output = Result<(), Fault>>;
    /// Makes the data stable and commits everything that was accepted.
    ///
    /// # Errors
    /// Some of it is lost.
    fn flush(self: &Rc<Self>) -> impl Future<Output = Result<(), Fault>>;
    /// Makes the data of `range` stable and commits all changes there. The caller lets no new
    /// writes in.
    fn flush_range(self: &Rc<Self>, range: BlockRange) -> impl Future<Output = Result<(), Fault>>;
    /// Drops uncommitted changes, because a recall could not flush them; the ranges stay.
    fn discard_for_recall(self: &Rc<Self>);
    /// Sends nothing new to the devices or the server until `resume`. Returns when nothing is in
    /// flight.
    fn pause(self: &Rc<Self>) -> impl Future<Output = ()>;
    /// Ends a pause.
    fn resume(self: &Rc<Self>);

    /// A handle of the file was closed: its streams need no windows any more.
    fn handle_closed(&self, handle: u64);
    /// The last handle was closed: returns the blocks of the file's window.
    fn last_handle_closed(self: &Rc<Self>);
    /// Drops all state: the file is gone, or (`lost`) the session is. A lost session counts as an
    /// error if anything was uncommitted.
    fn drop_all(self: &Rc<Self>, lost: bool);
    /// The creation of the inode was lost with the session. Called after
    /// [`FileContent::drop_all`].
    fn detach(self: &Rc<Self>);
    /// Rises whenever something accepted before fails; a handle reports an error once per rise.
    fn error_seq(&self) -> u64;
    /// Is content lost of which no process has heard?
    fn has_unreported_loss(&self) -> bool;
    /// A process hears now of what was lost, or has replaced it. Was there anything?
    fn acknowledge_loss(&self) -> bool;
    /// The server acknowledged a commit and lost it in a crash, and the session is lost as well.
    fn report_lost_commit(&self);
    /// The session was lost, and the client refuses pages that the kernel dirtied under its right.
    fn report_lost_pages(&self);
}
