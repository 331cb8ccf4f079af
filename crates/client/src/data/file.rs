//! One regular file: what this client knows of its content, and what it has accepted but not yet
//! committed.
//!
//! Invariants:
//! - `dirty` runs do not overlap, and `writing` flights do not overlap; a dirty run may overlap a
//!   flight, and is then launched after it;
//! - every block of a dirty run either has a place that may be overwritten, or is counted in the
//!   run's reservation;
//! - `edits` is the ordered list of layout edits that are not yet sent; edits that refer to data
//!   refer to blocks whose write was launched before;
//! - `disk_size` is the size if only launched writes had been made: commits carry this size;
//! - bytes beyond `size` in memory blocks are zero.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};

use env::IoBuf;
use env::sync::{AsyncMutex, Notify};
use proto::mds::{DataAttr, Edit, LayoutSlice};
use proto::placement::Layout;
use proto::prealloc::Stream;
use proto::ranges::HeldRanges;
use types::limits::{BLOCK, BLOCK_U64};
use types::{Attr, Fault, FileBlock, Ino, Instant, PagId, Rights, Segment, ServerId, Timestamp};

use super::budget::Claim;
use super::class::Class;
use super::context::DataContext;
use super::given_up::GivenUp;
use super::inline_state::{Inline, drop_superseded};
use super::pool::{PoolRun, Reservation};
use super::segments::{SegmentMap, from_wire_segment};
use super::stillness::Stillness;
use super::striped::Object;
use crate::boundary::Lies;
use crate::waits::Wait;

/// Accepted bytes that no device has been given yet: whole blocks.
pub(super) struct DirtyRun {
    /// The blocks' bytes.
    pub buf: IoBuf,
    /// Order of acceptance: that of the oldest bytes in it.
    pub seq: u64,
    /// The run is to be launched as soon as nothing blocks it.
    pub wanted: bool,
    /// Its share of the dirty budget.
    pub claim: Claim,
    /// Covers those of its blocks that have no place yet.
    pub reserved: Reservation,
    /// Who wrote its oldest bytes; a run that others continue stays that stream's.
    pub stream: Option<Stream>,
}

impl DirtyRun {
    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        (self.buf.len() / BLOCK) as u64
    }
}

/// An edit and its position in the order of all edits of this file.
pub(super) struct PendingEdit {
    /// Position.
    pub seq: u64,
    /// The edit.
    pub edit: Edit,
}

/// A block that was read so that a partial write can complete it.
pub(super) struct FetchedBlock {
    /// Block of the file.
    pub block: u64,
    /// Its bytes.
    pub buf: IoBuf,
    /// Set when the block has changed since it was read.
    pub stale: Rc<Cell<bool>>,
}

/// The mutable state of a file.
pub(super) struct FileState {
    pub rights: Rights,
    pub size: u64,
    pub disk_size: u64,
    /// Size as the server has it.
    pub server_size: u64,
    /// Allocated blocks.
    pub blocks: u64,
    /// Set if newer than what the server has.
    pub mtime: Option<Timestamp>,
    pub ctime: Option<Timestamp>,
    pub layout: SegmentMap,
    /// Where new blocks go, by the directory; and the zone that they go to under `fileround`.
    pub policy: Layout,
    pub home: Option<PagId>,
    /// Frozen blocks that `layout` already maps elsewhere, while the server does not know that yet.
    pub replaced: SegmentMap,
    /// The inline data, if block 0 is kept with the inode.
    pub inline: Inline,
    /// The mappings of all blocks below it are in `layout`.
    pub loaded_to: u64,
    /// Under `DATA_P`: blocks whose mapping is in `layout`.
    pub loaded: HeldRanges,
    /// Under `DATA_P`: blocks written since the file was last settled.
    pub unsettled: HeldRanges,
    /// The device, too, has zeros in the last block beyond the size.
    pub tail_zero: bool,
    /// Content of the last, partial block, as last launched.
    pub tail: Option<(u64, IoBuf)>,
    pub dirty: BTreeMap<u64, DirtyRun>,
    pub next_seq: u64,
    /// Writes that a device has not completed: first block, one past the last.
    pub writing: BTreeMap<u64, u64>,
    /// Of an object file: blocks that read as zeros and that its targets do not know as holes yet;
    /// and those that are on their way there.
    pub punches: HeldRanges,
    pub punching: Vec<(u64, u64)>,
    /// The devices of each of these writes, by its number, in the order of launching.
    pub flights: BTreeMap<u64, Vec<PagId>>,
    pub next_flight: u64,
    /// Blocks of the file that became part of none, while writes were in flight.
    pub tainted: Vec<PoolRun>,
    /// Device reads in flight, by number.
    pub reading: BTreeMap<u64, (u64, u64)>,
    pub next_read: u64,
    /// Ranges of blocks that are being zeroed in several steps; reads of them wait.
    pub zeroing: Vec<(u64, u64)>,
    /// Fetched blocks that writes are using.
    pub fetched: Vec<(u64, Weak<Cell<bool>>)>,
    pub edits: VecDeque<PendingEdit>,
    pub next_edit: u64,
    /// Edits below it belong to the current commit and are not joined with later ones.
    pub sealed_below: u64,
    /// Flights below it belong to the current commit.
    pub sealed_flights: u64,
    /// Lowest and highest completion stamp, per device, of writes that may not be stable yet.
    pub stamps: BTreeMap<PagId, (u64, u64)>,
    /// Since when there are stamps; meaningless while there are none.
    pub stamped_since: Instant,
    /// Since when the file has changes that are not committed; `None` while it has none.
    pub unsaved_since: Option<Instant>,
    pub stillness: Stillness,
    pub committing: bool,
    /// The batch that makes it stable, as long as it may leave that.
    pub batch: Option<u64>,
    /// It has left a batch, and no commit has succeeded since: it leaves no other one.
    pub has_left: bool,
    /// Writes accepted since the last fsync, or since the file was clean.
    pub writes: u32,
    /// A batched commit failed: the next one is sent alone, so that a failure is this file's own.
    pub alone: bool,
    pub paused: bool,
    /// Is it in the commit queue?
    pub queued: bool,
    /// Raised when all state was dropped or rights were lost: invalidates operations begun before.
    pub generation: u64,
    /// The loss of the session was reported, and nothing was accepted since.
    pub loss_reported: bool,
}

/// The content of one regular file.
pub struct File {
    pub(super) ctx: Rc<DataContext>,
    pub(super) ino: Ino,
    /// The metadata server that has it.
    server: Cell<ServerId>,
    /// The zones that it may lie in, and their pool.
    pub(super) class: RefCell<Rc<Class>>,
    /// The text of its layout; `None`: it is not known.
    pub(super) placement: RefCell<Option<Vec<u8>>>,
    pub(super) state: RefCell<FileState>,
    /// Notified when a flight, a read or a commit ends.
    pub(super) changed: Notify,
    pub(super) append: AsyncMutex,
    pub(super) loading: AsyncMutex,
    pub(super) errors: Cell<u64>,
    /// Content was lost, and neither a descriptor nor a rename has reported it.
    pub(super) unreported: Cell<bool>,
    /// The inode does not exist any more, and another one may have its number: send nothing for it.
    pub(super) detached: Cell<bool>,
    pub(super) is_unlaunched: Cell<bool>,
    /// Changes of its object that targets may still make.
    pub(super) given_up: Rc<GivenUp>,
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File").field("ino", &self.ino).finish_non_exhaustive()
    }
}

/// The blocks that bytes `[from, to)` touch.
pub(super) fn blocks_of(from: u64, to: u64) -> (u64, u64) {
    (from / BLOCK_U64, to.div_ceil(BLOCK_U64))
}

impl FileState {
    /// Is a write to a block of `[from, to)`, or a hole there, in flight?
    pub fn is_writing(&self, from: u64, to: u64) -> bool {
        if self.punching.iter().any(|&(start, end)| start < to && from < end) {
            return true;
        }
        self.writing.range(..to).next_back().is_some_and(|(_, &end)| end > from)
    }

    /// Is a read of a block of `[from, to)` in flight?
    pub fn is_reading(&self, from: u64, to: u64) -> bool {
        self.reading.values().any(|&(start, end)| start < to && from < end)
    }

    /// Is a block of `[from, to)` being zeroed?
    pub fn is_zeroing(&self, from: u64, to: u64) -> bool {
        self.zeroing.iter().any(|&(start, end)| start < to && from < end)
    }

    /// The dirty run that holds `block`.
    pub fn dirty_at(&self, block: u64) -> Option<(u64, &DirtyRun)> {
        let (&start, run) = self.dirty.range(..=block).next_back()?;
        (block < start + run.blocks()).then_some((start, run))
    }

    /// The first dirty run that ends after `block`, if it starts before `to`.
    pub fn dirty_from(&self, block: u64, to: u64) -> Option<(u64, &DirtyRun)> {
        if block >= to {
            return None;
        }
        self.dirty_at(block)
            .or_else(|| self.dirty.range(block..to).next().map(|(&start, run)| (start, run)))
    }

    /// Blocks in `[from, to)` changed: marks their fetched copies as stale.
    pub fn mark_stale(&mut self, from: u64, to: u64) {
        self.fetched.retain(|(block, stale)| match stale.upgrade() {
            Some(stale) => {
                if (from..to).contains(block) {
                    stale.set(true);
                }
                true
            }
            None => false,
        });
        if self.tail.as_ref().is_some_and(|(block, _)| (from..to).contains(block)) {
            self.tail = None;
        }
    }

    /// Appends an edit, or joins it with the last one if a single edit can express both.
    pub fn push_edit(&mut self, edit: Edit) {
        if let Some(last) = self.edits.back_mut()
            && last.seq >= self.sealed_below
            && join_edits(&mut last.edit, &edit)
        {
            return;
        }
        let whole = match &edit {
            Edit::Content { .. } => true,
            Edit::Unmap { from, .. } => from.0 == 0,
            Edit::Map { .. } | Edit::Written { .. } => false,
        };
        self.edits.push_back(PendingEdit { seq: self.next_edit, edit });
        self.next_edit += 1;
        if whole {
            drop_superseded(&mut self.edits, self.sealed_below);
        }
    }

    /// Do pending edits free blocks that the server still counts as used?
    pub fn unmaps(&self) -> bool {
        self.edits.iter().any(|pending| matches!(pending.edit, Edit::Unmap { .. }))
    }

    /// Is nothing dirty, in flight or uncommitted?
    pub fn is_clean(&self) -> bool {
        !self.committing && !self.has_changes()
    }

    /// Would a loss of the session lose anything? A commit's changes count until it is answered.
    pub fn has_changes(&self) -> bool {
        let punches = !self.punches.is_empty() || !self.punching.is_empty();
        !self.dirty.is_empty() || !self.writing.is_empty() || punches || self.has_uncommitted()
    }

    /// Is the file clean, and are all writes in place stable?
    pub fn is_settled(&self) -> bool {
        self.is_clean() && self.stamps.is_empty()
    }

    /// Is there anything to commit?
    pub fn has_uncommitted(&self) -> bool {
        !self.edits.is_empty()
            || self.mtime.is_some()
            || self.ctime.is_some()
            || self.launched_size() != self.server_size
    }

    /// The size if only launched writes had been made: `size`, unless the file ends in a dirty run.
    pub fn launched_size(&self) -> u64 {
        match self.dirty.last_key_value() {
            Some((start, run)) if (start + run.blocks()) * BLOCK_U64 >= self.size => self.disk_size,
            _ => self.size,
        }
    }

    /// Records a change of the content at `now`.
    pub fn touch(&mut self, now: Timestamp) {
        self.loss_reported = false;
        self.mtime = Some(now);
        self.ctime = Some(self.ctime.map_or(now, |ctime| ctime.max(now)));
    }

    /// Splits off what blocks `[first, last)` need, as far as it is there.
    pub fn split_reserved(&self, reserved: &mut Reservation, first: u64, last: u64) -> Reservation {
        let mut part = reserved.split(self.layout.unplaced(first, last));
        part.room = reserved.room.split(&self.layout.room_needed(first, last));
        part
    }

    /// Removes the dirty blocks of `[from, to)`; runs that reach beyond keep their other blocks.
    /// Returns the budget and the pool blocks that the removed ones held.
    pub fn cut_dirty(&mut self, from: u64, to: u64) -> Option<(Claim, Reservation)> {
        let mut taken: Option<(Claim, Reservation)> = None;
        while let Some((start, _)) = self.dirty_from(from, to) {
            let mut run = self.dirty.remove(&start).expect("found");
            let end = start + run.blocks();
            let (cut_from, cut_to) = (start.max(from), end.min(to));
            let keep = |state: &mut FileState, first: u64, last: u64, run: &mut DirtyRun| {
                if first >= last {
                    return;
                }
                let at = (first - start) as usize * BLOCK;
                let bytes = (last - first) as usize * BLOCK;
                let buf = IoBuf::copy_of(&run.buf[at..at + bytes]);
                let piece = DirtyRun {
                    buf,
                    seq: run.seq,
                    wanted: run.wanted,
                    claim: run.claim.split(bytes as u64),
                    reserved: state.split_reserved(&mut run.reserved, first, last),
                    stream: run.stream,
                };
                state.dirty.insert(first, piece);
            };
            keep(self, start, cut_from, &mut run);
            keep(self, cut_to, end, &mut run);
            match &mut taken {
                Some((claim, reserved)) => {
                    claim.merge(run.claim);
                    reserved.merge(run.reserved);
                }
                None => taken = Some((run.claim, run.reserved)),
            }
        }
        taken
    }
}

/// Extends `last` to express `next` as well, if one edit can.
fn join_edits(last: &mut Edit, next: &Edit) -> bool {
    match (last, next) {
        (Edit::Map { segment: last }, Edit::Map { segment: next }) if last.joins(next) => {
            last.len += next.len;
            true
        }
        (Edit::Written { from, len }, Edit::Written { from: next, len: more })
            if from.0 + *len == next.0 =>
        {
            *len += more;
            true
        }
        (Edit::Unmap { from, to }, Edit::Unmap { from: next, to: end })
            if next.0 <= *to && from.0 <= *end =>
        {
            from.0 = from.0.min(next.0);
            *to = (*to).max(*end);
            true
        }
        _ => false,
    }
}

impl File {
    /// The content of inode `ino`, with no layout loaded and no right held.
    pub(super) fn new(ctx: &Rc<DataContext>, ino: Ino, attr: &Attr) -> Rc<File> {
        let server = ctx.rpc.server_of(ino);
        Rc::new(File {
            ctx: ctx.clone(),
            ino,
            server: Cell::new(server),
            state: RefCell::new(FileState {
                rights: Rights::empty(),
                size: attr.size,
                disk_size: attr.size,
                server_size: attr.size,
                blocks: attr.blocks,
                mtime: None,
                ctime: None,
                layout: SegmentMap::default(),
                policy: Layout::default(),
                home: None,
                replaced: SegmentMap::default(),
                inline: Inline::default(),
                loaded_to: 0,
                loaded: HeldRanges::default(),
                unsettled: HeldRanges::default(),
                tail_zero: false,
                tail: None,
                dirty: BTreeMap::new(),
                next_seq: 0,
                writing: BTreeMap::new(),
                punches: HeldRanges::default(),
                punching: Vec::new(),
                flights: BTreeMap::new(),
                next_flight: 0,
                tainted: Vec::new(),
                reading: BTreeMap::new(),
                next_read: 0,
                zeroing: Vec::new(),
                fetched: Vec::new(),
                edits: VecDeque::new(),
                next_edit: 0,
                sealed_below: 0,
                sealed_flights: 0,
                stamps: BTreeMap::new(),
                stamped_since: Instant::default(),
                unsaved_since: None,
                stillness: Stillness::default(),
                committing: false,
                batch: None,
                has_left: false,
                writes: 0,
                alone: false,
                paused: false,
                queued: false,
                generation: 0,
                loss_reported: false,
            }),
            class: RefCell::new(ctx.class(server, &[])),
            placement: RefCell::new(None),
            changed: Notify::new(),
            append: AsyncMutex::new(),
            loading: AsyncMutex::new(),
            errors: Cell::new(0),
            unreported: Cell::new(false),
            detached: Cell::new(false),
            is_unlaunched: Cell::new(false),
            given_up: Rc::default(),
        })
    }

    /// The metadata server that has it.
    pub(super) fn server(&self) -> ServerId {
        self.server.get()
    }

    /// Another metadata server has the file from now on, and the client holds nothing of it: its
    /// blocks come from that server.
    pub(crate) fn rehomed(self: &Rc<Self>) {
        let server = self.ctx.rpc.server_of(self.ino);
        let before = self.server.replace(server);
        if before != server {
            self.ctx.pipeline(before).borrow_mut().forget(self);
            let zones = self.class.borrow().zones.clone();
            self.class.replace(self.ctx.class(server, &zones));
            self.state.borrow_mut().home = None;
        }
    }

    /// See [`crate::boundary::FileContent::rights_acquired`].
    pub(super) fn rights_acquired(&self, rights: Rights, attr: &Attr, layout: Option<LayoutSlice>) {
        let mut state = self.state.borrow_mut();
        let before = state.rights.closed();
        state.rights = rights;
        if !before.contains(Rights::DATA_X) {
            state.apply_attr(attr);
            state.tail_zero = attr.size.is_multiple_of(BLOCK_U64);
        }
        if let Some(part) = layout {
            if !before.contains(Rights::DATA_X) {
                state.layout.clear();
                state.inline.clear();
                state.loaded_to = 0;
                self.set_layout(&mut state, &part);
            }
            state.load(&part);
        }
    }

    /// See [`crate::boundary::FileContent::holds`].
    pub(super) fn holds(&self, rights: Rights) -> bool {
        self.state.borrow().rights.closed().contains(rights)
    }

    /// See [`crate::boundary::FileContent::rights_lost`].
    pub(super) fn rights_lost(&self, rights_left: Rights) {
        let mut state = self.state.borrow_mut();
        // A right that another reply granted meanwhile brings its layout along.
        let left = rights_left.closed() & state.rights.closed();
        state.rights = left;
        if !left.contains(Rights::DATA_X) {
            state.tail = None;
            state.stamps.clear();
            self.pool().release_windows(self.ino, None);
        }
        if !left.contains(Rights::DATA_S) {
            state.generation += 1;
            state.layout.clear();
            state.replaced.clear();
            state.inline.clear();
            state.loaded_to = 0;
            state.loaded.clear();
            state.unsettled.clear();
        }
    }

    /// See [`crate::boundary::FileContent::apply_server_attr`].
    pub(super) fn apply_server_attr(&self, attr: &Attr) {
        let mut state = self.state.borrow_mut();
        if !state.rights.intersects(Rights::WRITES) {
            state.apply_attr(attr);
        }
    }

    /// The timestamp for a change now: not before the server's ctime, whose clock may be ahead.
    pub(super) fn change_time(&self) -> Timestamp {
        let stamped =
            self.ctx.rpc.attr(self.ino).map_or_else(Timestamp::default, |attr| attr.ctime);
        self.ctx.rpc.time().max(stamped)
    }

    /// Times were set explicitly at the server: earlier writes no longer set mtime.
    pub(super) fn clear_write_mtime(&self) {
        self.state.borrow_mut().mtime = None;
    }

    /// See [`crate::boundary::FileContent::before_times_set`].
    pub(super) async fn before_times_set(self: &Rc<Self>) {
        self.commit_over().await;
        self.clear_write_mtime();
    }

    /// See [`crate::boundary::FileContent::overlay`].
    pub(super) fn overlay(&self, attr: &mut Attr) {
        let state = self.state.borrow();
        if state.holds_ranges() {
            attr.size = attr.size.max(state.size);
            attr.blocks = attr.blocks.max(state.allocated());
            attr.mtime = state.mtime.map_or(attr.mtime, |mtime| mtime.max(attr.mtime));
        } else if state.rights.contains(Rights::DATA_X) {
            attr.size = state.size;
            attr.blocks = state.allocated();
            attr.mtime = state.mtime.unwrap_or(attr.mtime);
        } else {
            return;
        }
        if let Some(ctime) = state.ctime {
            attr.ctime = attr.ctime.max(ctime);
        }
    }

    /// See [`crate::boundary::FileContent::data_attr`].
    pub(super) fn data_attr(&self) -> DataAttr {
        let known = self.ctx.rpc.attr(self.ino);
        let state = self.state.borrow();
        let mtime = known.map_or_else(Timestamp::default, |attr| attr.mtime);
        let ctime = known.map_or_else(Timestamp::default, |attr| attr.ctime);
        DataAttr {
            size: state.size,
            blocks: state.allocated(),
            mtime: state.mtime.unwrap_or(mtime),
            ctime: state.ctime.map_or(ctime, |own| own.max(ctime)),
        }
    }

    /// See [`crate::boundary::FileContent::size`].
    pub(super) fn size(&self) -> u64 {
        self.state.borrow().size
    }

    /// See [`crate::boundary::FileContent::generation`].
    pub(super) fn generation(&self) -> u64 {
        self.state.borrow().generation
    }

    /// See [`crate::boundary::FileContent::lies`].
    pub(super) fn lies(&self) -> Lies {
        let state = self.state.borrow();
        let object = state.layout.object().map(|object| (object.part(), object.targets.clone()));
        Lies { object, placement: self.placement.borrow().clone().unwrap_or_default() }
    }

    /// See [`crate::boundary::FileContent::is_clean`].
    pub(super) fn is_clean(&self) -> bool {
        self.state.borrow().is_clean()
    }

    /// See [`crate::boundary::FileContent::is_settled`].
    pub(super) fn is_settled(&self) -> bool {
        self.state.borrow().is_settled()
    }

    /// See [`crate::boundary::FileContent::error_seq`].
    pub(super) fn error_seq(&self) -> u64 {
        self.errors.get()
    }

    /// See [`crate::boundary::FileContent::drop_all`].
    pub(super) fn drop_all(self: &Rc<Self>, lost: bool) {
        let mut state = self.state.borrow_mut();
        let loses = lost && state.has_changes();
        let reported = lost && state.loss_reported;
        if loses && !reported {
            self.fail();
            self.ctx.rpc.log(&format!(
                "{}: the session was lost; what was not yet committed is lost{}",
                self.ctx.rpc.describe(self.ino),
                state.uncommitted_bytes()
            ));
        }
        let edits = std::mem::take(&mut state.edits);
        if !lost {
            self.reclaim_unsent(&mut state, edits.into_iter().map(|pending| pending.edit));
            self.pool().release_windows(self.ino, None);
        }
        let unflushed = std::mem::take(&mut state.stamps);
        state.abandon();
        if lost {
            // Written in place and committed, but not flushed: the next fsync flushes it.
            state.stamps = unflushed;
        }
        // Writes that are still in flight belong to the same loss.
        state.loss_reported = loses || reported;
        state.rights = Rights::empty();
        state.paused = false;
        let settled = state.is_settled();
        drop(state);
        if settled {
            self.ctx.deactivate(self);
        }
        self.notify();
    }

    /// See [`crate::boundary::FileContent::detach`].
    pub(super) fn detach(self: &Rc<Self>) {
        self.detached.set(true);
        self.pool().release_windows(self.ino, None);
        self.state.borrow_mut().abandon();
        self.ctx.forget_file(self);
        self.notify();
    }

    /// Returns blocks to the pool that were mapped by edits which will never be sent, even if a
    /// later edit unmapped them.
    pub(super) fn reclaim_unsent(&self, state: &mut FileState, edits: impl Iterator<Item = Edit>) {
        let idle = state.writing.is_empty();
        for edit in edits {
            let Edit::Map { segment } = edit else { continue };
            let run = PoolRun { pag: segment.pag, addr: segment.addr.0, len: segment.len };
            if idle {
                self.pool().give_back(run);
            } else {
                self.pool().add_tainted(run);
                state.tainted.push(run);
            }
        }
    }

    /// See [`crate::boundary::FileContent::layout`].
    pub(super) async fn layout(self: &Rc<Self>) -> Result<Vec<Segment>, Fault> {
        self.ensure_loaded(u64::MAX).await?;
        if let Some(segments) = self.object_segments() {
            return Ok(segments);
        }
        Ok(self.state.borrow().layout.to_segments())
    }

    /// Loads the layout of the blocks below `to`.
    pub(super) async fn ensure_loaded(&self, to: u64) -> Result<(), Fault> {
        if self.state.borrow().loaded_to >= to {
            return Ok(());
        }
        let _one = self.loading.lock().await;
        loop {
            let (from, generation) = {
                let state = self.state.borrow();
                (state.loaded_to, state.generation)
            };
            if from >= to {
                return Ok(());
            }
            let asked = self.ctx.rpc.layout(self.ino, FileBlock(from));
            let part = self.ctx.waits.named(&self.ctx.env, Wait::Layout(self.ino), asked).await;
            let mut state = self.state.borrow_mut();
            if state.generation != generation {
                return Err(Fault::Evicted);
            }
            // The caller's right belonged to a session that was lost.
            let part = part.map_err(|fault| match fault {
                Fault::NotHeld => Fault::Evicted,
                fault => fault,
            })?;
            if state.loaded_to == from {
                if part.to <= from {
                    return Err(Fault::Protocol);
                }
                state.load(&part);
            }
        }
    }

    /// Waits until no write or read of a block of `[from, to)` is in flight.
    pub(super) async fn wait_for_io(&self, from: u64, to: u64) {
        loop {
            let changed = self.changed.notified();
            {
                let state = self.state.borrow();
                if !state.is_writing(from, to) && !state.is_reading(from, to) {
                    return;
                }
            }
            changed.await;
        }
    }
}

impl FileState {
    /// Drops everything uncommitted after the server refused it, and all cached state.
    pub fn abandon(&mut self) {
        self.mark_stale(0, u64::MAX);
        self.dirty.clear();
        self.punches.clear();
        self.edits.clear();
        self.layout.clear();
        self.replaced.clear();
        self.inline.clear();
        self.loaded_to = 0;
        self.loaded.clear();
        self.unsettled.clear();
        self.stamps.clear();
        self.unsaved_since = None;
        self.mtime = None;
        self.ctime = None;
        self.size = self.server_size;
        self.disk_size = self.server_size;
        self.tail_zero = self.holds_ranges();
        self.generation += 1;
    }

    pub(super) fn apply_attr(&mut self, attr: &Attr) {
        self.size = attr.size;
        self.disk_size = attr.size;
        self.server_size = attr.size;
        self.blocks = attr.blocks;
    }

    /// Blocks in use, including accepted bytes that have no place yet.
    fn allocated(&self) -> u64 {
        if self.layout.object().is_some() {
            return self.size.div_ceil(BLOCK_U64);
        }
        let twice = if self.dirty_at(0).is_some() { self.inline_blocks() } else { 0 };
        self.blocks - twice.min(self.blocks) + self.dirty_blocks()
    }

    /// Adds a part of the layout.
    fn load(&mut self, part: &LayoutSlice) {
        if let Some(layout) = &part.object {
            match self.layout.object().filter(|object| object.number == layout.object) {
                Some(object) => object.may.set(layout.may),
                None => _ = Object::new(layout).map(|new| self.layout.set_object(Rc::new(new))),
            }
            self.loaded_to = u64::MAX;
            return;
        }
        if self.loaded_to == 0 && part.from.0 == 0 && part.to > 0 {
            self.inline.load(part);
            // Inline data has no bytes behind it on a device.
            self.tail_zero |= self.is_inline(0) && self.size <= BLOCK_U64;
        }
        for segment in &part.segments {
            if let Some(segment) = segment.slice(self.loaded_to.max(part.from.0), part.to) {
                self.layout.insert(segment.file.0, from_wire_segment(&segment, part.frozen));
            }
        }
        if part.from.0 <= self.loaded_to {
            self.loaded_to = self.loaded_to.max(part.to);
        }
    }
}
