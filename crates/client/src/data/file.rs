//! One regular file: what this client knows of its content, and what it has
//! accepted but not yet made the server's.
//!
//! Invariants:
//! - `dirty` runs do not overlap, `writing` flights do not overlap; a dirty run may
//!   overlap a flight and is then launched after it;
//! - every block of a dirty run either has a place it may be written to, or is
//!   counted in the run's reservation;
//! - `log` is the ordered list of layout edits not yet sent; those that speak of
//!   data carry it in blocks whose write was launched before them;
//! - `disk_size` is what the size would be if only launched writes had been made:
//!   it is the size that commits carry;
//! - bytes beyond `size` in memory blocks are zero.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};

use env::IoBuf;
use env::sync::{AsyncMutex, Notify};
use proto::mds::{DataAttr, Edit, LayoutPart};
use proto::parts::Parts;
use types::limits::{BLOCK, BLOCK_U64};
use types::{Attr, Extent, ExtentState, Fault, FileBlock, Ino, Instant, PagId, Rights, Timestamp};

use super::budget::Claim;
use super::commit::DataContext;
use super::extents::{ExtentMap, from_extent};
use super::inline::{Inline, thin_contents};
use super::pool::{Reserved, Run as PoolRun};

/// Accepted bytes not yet given to a device: whole blocks.
pub(super) struct Run {
    /// The blocks' bytes.
    pub buf: IoBuf,
    /// Order of acceptance: that of the oldest bytes in it.
    pub seq: u64,
    /// To be launched as soon as nothing stands in the way.
    pub wanted: bool,
    /// Its share of the dirty budget.
    pub claim: Claim,
    /// For its blocks that have no place yet.
    pub reserved: Reserved,
}

impl Run {
    /// Blocks.
    pub fn blocks(&self) -> u64 {
        (self.buf.len() / BLOCK) as u64
    }
}

/// An edit and its place in the order of all edits of this file.
pub(super) struct Logged {
    /// Order.
    pub seq: u64,
    /// The edit.
    pub edit: Edit,
}

/// A block whose old content was read to be completed by a write.
pub(super) struct Fetched {
    /// Which.
    pub block: u64,
    /// Its bytes.
    pub buf: IoBuf,
    /// Set when the block changed meanwhile.
    pub stale: Rc<Cell<bool>>,
}

/// The mutable part of a file.
pub(super) struct State {
    pub rights: Rights,
    pub size: u64,
    pub disk_size: u64,
    /// Size as the server has it.
    pub server_size: u64,
    /// Allocated blocks.
    pub blocks: u64,
    /// Newer than what the server has.
    pub mtime: Option<Timestamp>,
    pub ctime: Option<Timestamp>,
    pub layout: ExtentMap,
    /// Frozen blocks that a place in `layout` which the server does not know has replaced.
    pub replaced: ExtentMap,
    /// What of block 0 lies with the inode.
    pub inline: Inline,
    /// Blocks below it are in `layout`.
    pub loaded_to: u64,
    /// Under `DATA_P`: blocks whose mapping is in `layout`.
    pub known: Parts,
    /// Under `DATA_P`: blocks written since all was settled.
    pub touched: Parts,
    /// The bytes of the last block beyond the size are known to be zero on the device, too.
    pub tail_zero: bool,
    /// Content of the last, partial block, as launched last.
    pub tail: Option<(u64, IoBuf)>,
    pub dirty: BTreeMap<u64, Run>,
    pub next_seq: u64,
    /// Writes that a device has not completed: first block, one past the last.
    pub writing: BTreeMap<u64, u64>,
    /// Their numbers, in the order of launching, and the devices of each.
    pub flights: BTreeMap<u64, Vec<PagId>>,
    pub next_flight: u64,
    /// Device reads in flight, by number.
    pub reading: BTreeMap<u64, (u64, u64)>,
    pub next_read: u64,
    /// Ranges of blocks that are being zeroed in several steps, which nobody reads meanwhile.
    pub zeroing: Vec<(u64, u64)>,
    /// Fetched blocks in use by writes.
    pub fetched: Vec<(u64, Weak<Cell<bool>>)>,
    pub log: VecDeque<Logged>,
    pub next_edit: u64,
    /// Edits below it belong to a commit under way and are not joined with later ones.
    pub sealed: u64,
    /// Flights below it belong to a commit under way.
    pub sealed_flights: u64,
    /// Lowest and highest completion stamp per device of writes that are not known to be stable.
    pub stamps: BTreeMap<PagId, (u64, u64)>,
    /// Since when there are stamps; means nothing while there are none.
    pub stamped: Instant,
    pub committing: bool,
    /// Writes accepted since the last fsync, or since it was clean.
    pub writes: u32,
    /// A commit in company failed: the next is sent alone, so that its fault is its own.
    pub alone: bool,
    pub paused: bool,
    /// Is it in the commit queue?
    pub queued: bool,
    /// Raised when everything was dropped or rights went: what began before means nothing now.
    pub generation: u64,
    /// The session was lost, and nothing was accepted since.
    pub loss_told: bool,
}

/// The content of one regular file.
pub struct File {
    pub(super) ctx: Rc<DataContext>,
    pub(super) ino: Ino,
    pub(super) state: RefCell<State>,
    /// Something ended: a flight, a read, a commit.
    pub(super) changed: Notify,
    pub(super) append: AsyncMutex,
    pub(super) loading: AsyncMutex,
    pub(super) errors: Cell<u64>,
    /// The inode is no more, and its number perhaps another one's: nothing goes to the server.
    pub(super) given_up: Cell<bool>,
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

impl State {
    /// Is a write to a block of `[from, to)` in flight?
    pub fn is_writing(&self, from: u64, to: u64) -> bool {
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
    pub fn dirty_at(&self, block: u64) -> Option<(u64, &Run)> {
        let (&start, run) = self.dirty.range(..=block).next_back()?;
        (block < start + run.blocks()).then_some((start, run))
    }

    /// The first dirty run that ends after `block`, if it starts before `to`.
    pub fn dirty_from(&self, block: u64, to: u64) -> Option<(u64, &Run)> {
        if block >= to {
            return None;
        }
        self.dirty_at(block)
            .or_else(|| self.dirty.range(block..to).next().map(|(&start, run)| (start, run)))
    }

    /// Blocks in `[from, to)` changed: what was fetched of them is old.
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

    /// Appends an edit, joined with the last one where that says the same.
    pub fn push_edit(&mut self, edit: Edit) {
        if let Some(last) = self.log.back_mut()
            && last.seq >= self.sealed
            && join_edits(&mut last.edit, &edit)
        {
            return;
        }
        let whole = match &edit {
            Edit::Content { .. } => true,
            Edit::Unmap { from, .. } => from.0 == 0,
            Edit::Map { .. } | Edit::Written { .. } => false,
        };
        self.log.push_back(Logged { seq: self.next_edit, edit });
        self.next_edit += 1;
        if whole {
            thin_contents(&mut self.log, self.sealed);
        }
    }

    /// Were blocks given up that the server still counts?
    pub fn unmaps(&self) -> bool {
        self.log.iter().any(|logged| matches!(logged.edit, Edit::Unmap { .. }))
    }

    /// Nothing dirty, in flight or uncommitted?
    pub fn is_clean(&self) -> bool {
        !self.committing && !self.has_changes()
    }

    /// Would anything be lost with the session? What a commit tells stays here until that is
    /// answered.
    pub fn has_changes(&self) -> bool {
        !self.dirty.is_empty() || !self.writing.is_empty() || self.has_uncommitted()
    }

    /// Clean, and what was written in place is stable, too?
    pub fn is_settled(&self) -> bool {
        self.is_clean() && self.stamps.is_empty()
    }

    /// Does the server lack something that a commit would tell?
    pub fn has_uncommitted(&self) -> bool {
        !self.log.is_empty()
            || self.mtime.is_some()
            || self.ctime.is_some()
            || self.launched_size() != self.server_size
    }

    /// The size if only launched writes had been made: the whole size unless the file ends in a
    /// dirty run.
    pub fn launched_size(&self) -> u64 {
        match self.dirty.last_key_value() {
            Some((start, run)) if (start + run.blocks()) * BLOCK_U64 >= self.size => self.disk_size,
            _ => self.size,
        }
    }

    /// The content changed now.
    pub fn touch(&mut self, now: Timestamp) {
        self.loss_told = false;
        self.mtime = Some(now);
        self.ctime = Some(self.ctime.map_or(now, |ctime| ctime.max(now)));
    }

    /// Takes the dirty blocks of `[from, to)` away; runs that reach beyond keep the rest.
    /// What they held of the budget and the pool is returned.
    pub fn cut_dirty(&mut self, from: u64, to: u64) -> Option<(Claim, Reserved)> {
        let mut taken: Option<(Claim, Reserved)> = None;
        while let Some((start, _)) = self.dirty_from(from, to) {
            let mut run = self.dirty.remove(&start).expect("found");
            let end = start + run.blocks();
            let (cut_from, cut_to) = (start.max(from), end.min(to));
            let rest = |state: &mut State, first: u64, last: u64, run: &mut Run| {
                if first >= last {
                    return;
                }
                let at = (first - start) as usize * BLOCK;
                let bytes = (last - first) as usize * BLOCK;
                let buf = IoBuf::copy_of(&run.buf[at..at + bytes]);
                let piece = Run {
                    buf,
                    seq: run.seq,
                    wanted: run.wanted,
                    claim: run.claim.split(bytes as u64),
                    reserved: run.reserved.split(state.layout.unplaced(first, last)),
                };
                state.dirty.insert(first, piece);
            };
            rest(self, start, cut_from, &mut run);
            rest(self, cut_to, end, &mut run);
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

/// Makes `last` say what `next` says, too, if one edit can.
fn join_edits(last: &mut Edit, next: &Edit) -> bool {
    match (last, next) {
        (Edit::Map { extent: last }, Edit::Map { extent: next }) if last.joins(next) => {
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
    /// The content of inode `ino`; no layout is known, no right held.
    pub fn new(ctx: &Rc<DataContext>, ino: Ino, attr: &Attr) -> Rc<File> {
        Rc::new(File {
            ctx: ctx.clone(),
            ino,
            state: RefCell::new(State {
                rights: Rights::empty(),
                size: attr.size,
                disk_size: attr.size,
                server_size: attr.size,
                blocks: attr.blocks,
                mtime: None,
                ctime: None,
                layout: ExtentMap::default(),
                replaced: ExtentMap::default(),
                inline: Inline::default(),
                loaded_to: 0,
                known: Parts::default(),
                touched: Parts::default(),
                tail_zero: false,
                tail: None,
                dirty: BTreeMap::new(),
                next_seq: 0,
                writing: BTreeMap::new(),
                flights: BTreeMap::new(),
                next_flight: 0,
                reading: BTreeMap::new(),
                next_read: 0,
                zeroing: Vec::new(),
                fetched: Vec::new(),
                log: VecDeque::new(),
                next_edit: 0,
                sealed: 0,
                sealed_flights: 0,
                stamps: BTreeMap::new(),
                stamped: Instant::default(),
                committing: false,
                writes: 0,
                alone: false,
                paused: false,
                queued: false,
                generation: 0,
                loss_told: false,
            }),
            changed: Notify::new(),
            append: AsyncMutex::new(),
            loading: AsyncMutex::new(),
            errors: Cell::new(0),
            given_up: Cell::new(false),
        })
    }

    /// Its inode.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// A `DATA` right came; `rights` are all held now. `layout` is the stretch that came with
    /// it; `None`: what is known of the layout still holds.
    pub fn acquired(&self, rights: Rights, attr: &Attr, layout: Option<LayoutPart>) {
        let mut state = self.state.borrow_mut();
        let before = state.rights.closed();
        state.rights = rights;
        if !before.contains(Rights::DATA_X) {
            state.take_attr(attr);
            state.tail_zero = attr.size.is_multiple_of(BLOCK_U64);
        }
        if let Some(part) = layout {
            if !before.contains(Rights::DATA_X) {
                state.layout.clear();
                state.inline.clear();
                state.loaded_to = 0;
            }
            state.load(&part);
        }
    }

    /// Are all of `rights` held, and size and layout known as they came with them?
    pub fn holds(&self, rights: Rights) -> bool {
        self.state.borrow().rights.closed().contains(rights)
    }

    /// A `DATA` right went. Nothing is dirty by then.
    pub fn lost(&self, rights_left: Rights) {
        let mut state = self.state.borrow_mut();
        // What came meanwhile, by another answer, comes with its layout.
        let left = rights_left.closed() & state.rights.closed();
        state.rights = left;
        if !left.contains(Rights::DATA_X) {
            state.tail = None;
            state.stamps.clear();
            self.ctx.pool.release_window(self.ino);
        }
        if !left.contains(Rights::DATA_S) {
            state.generation += 1;
            state.layout.clear();
            state.replaced.clear();
            state.inline.clear();
            state.loaded_to = 0;
            state.known.clear();
            state.touched.clear();
        }
    }

    /// The server told newer attributes; without `DATA_X` or `DATA_P` they are the truth.
    pub fn server_attr(&self, attr: &Attr) {
        let mut state = self.state.borrow_mut();
        if !state.rights.intersects(Rights::WRITES) {
            state.take_attr(attr);
        }
    }

    /// The time of a change of now: no earlier than what the server has stamped, whose clock may be
    /// ahead.
    pub(super) fn stamp(&self) -> Timestamp {
        let stamped =
            self.ctx.rpc.attr(self.ino).map_or_else(Timestamp::default, |attr| attr.ctime);
        self.ctx.rpc.time().max(stamped)
    }

    /// Times were set explicitly at the server: earlier writes no longer set them.
    pub fn times_set(&self) {
        self.state.borrow_mut().mtime = None;
    }

    /// Before times are set explicitly at the server: earlier writes no longer set mtime, and no
    /// commit that does is under way when it ends.
    pub async fn times_setting(&self) {
        loop {
            let changed = self.changed.notified();
            if !self.state.borrow().committing {
                break;
            }
            changed.await;
        }
        self.times_set();
    }

    /// Puts in what this client knows better.
    pub fn overlay(&self, attr: &mut Attr) {
        let state = self.state.borrow();
        if state.in_parts() {
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

    /// The answer to a glimpse.
    pub fn data_attr(&self) -> DataAttr {
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

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.state.borrow().size
    }

    /// Nothing dirty, in flight or uncommitted?
    pub fn is_clean(&self) -> bool {
        self.state.borrow().is_clean()
    }

    /// Clean, and what was written in place is stable, too?
    pub fn is_settled(&self) -> bool {
        self.state.borrow().is_settled()
    }

    /// Rises with every failure of what was accepted before; a handle reports it once per rise.
    pub fn error_seq(&self) -> u64 {
        self.errors.get()
    }

    /// Nothing new goes to the devices or the server until `resume`; ends when nothing is in
    /// flight.
    pub async fn pause(self: &Rc<Self>) {
        self.state.borrow_mut().paused = true;
        self.changed.notify_all();
        loop {
            let changed = self.changed.notified();
            {
                let state = self.state.borrow();
                if state.writing.is_empty() && state.reading.is_empty() && !state.committing {
                    return;
                }
            }
            changed.await;
        }
    }

    /// Ends a pause.
    pub fn resume(self: &Rc<Self>) {
        {
            let mut state = self.state.borrow_mut();
            state.paused = false;
            self.launch_wanted(&mut state, 0, u64::MAX);
        }
        self.changed.notify_all();
        self.enqueue();
    }

    /// Forgets everything: the file is gone, or (`lost`) the session is, which is reported
    /// as an error if something was not yet the server's.
    pub fn drop_all(self: &Rc<Self>, lost: bool) {
        let mut state = self.state.borrow_mut();
        if lost && !state.loss_told && state.has_changes() {
            self.errors.set(self.errors.get() + 1);
            self.ctx.rpc.log(&format!(
                "{}: the session was lost; what was written and not yet committed is lost",
                self.ctx.rpc.describe(self.ino)
            ));
        }
        let log = std::mem::take(&mut state.log);
        if !lost {
            self.reuse(&state, log.into_iter().map(|logged| logged.edit));
            self.ctx.pool.release_window(self.ino);
        }
        let unflushed = std::mem::take(&mut state.stamps);
        state.abandon();
        if lost {
            // Written in place and no more than that: the next fsync flushes it.
            state.stamps = unflushed;
        }
        // What is still in flight belongs to the same loss.
        state.loss_told = lost;
        state.rights = Rights::empty();
        state.paused = false;
        drop(state);
        self.changed.notify_all();
    }

    /// The inode's making was lost with the session, after [`File::drop_all`].
    pub fn give_up_for_good(self: &Rc<Self>) {
        self.given_up.set(true);
        self.state.borrow_mut().abandon();
        self.ctx.forget_file(self);
        self.changed.notify_all();
    }

    /// A commit that the server had answered went with that server and the session.
    pub fn lost_commit(&self) {
        let told = self.state.borrow().loss_told;
        self.errors.set(self.errors.get() + 1);
        if !told {
            self.ctx.rpc.log(&format!(
                "{}: the session was lost; what was committed last is lost with the server's restart",
                self.ctx.rpc.describe(self.ino)
            ));
        }
    }

    /// What the kernel had yet to write back, under a right that went with its session, is not
    /// taken.
    pub fn lose_pages(&self) {
        self.errors.set(self.errors.get() + 1);
        self.ctx.rpc.log(&format!(
            "{}: the session was lost; what was stored into a mapping and not yet written back is lost",
            self.ctx.rpc.describe(self.ino)
        ));
    }

    /// Blocks that edits mapped of which the server will never hear are the pool's again, also
    /// those that were unmapped since.
    pub(super) fn reuse(&self, state: &State, edits: impl Iterator<Item = Edit>) {
        let idle = state.writing.is_empty();
        for edit in edits {
            let Edit::Map { extent } = edit else { continue };
            let run = PoolRun { pag: extent.pag, addr: extent.addr.0, len: extent.len };
            if idle {
                self.ctx.pool.give_back(run);
            } else {
                self.ctx.pool.taint(run);
            }
        }
    }

    /// The last handle was closed: blocks held ready for further writes are given back.
    pub fn closed(self: &Rc<Self>) {
        self.ctx.pool.release_window(self.ino);
    }

    /// The whole layout.
    pub async fn layout(self: &Rc<Self>) -> Result<Vec<Extent>, Fault> {
        self.ensure_loaded(u64::MAX).await?;
        Ok(self.state.borrow().layout.to_extents())
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
            let part = self.ctx.rpc.layout(self.ino, FileBlock(from)).await;
            let mut state = self.state.borrow_mut();
            if state.generation != generation {
                return Err(Fault::Evicted);
            }
            // Who asks began under a right of a session that was lost before.
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
    pub(super) async fn settled(&self, from: u64, to: u64) {
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

    /// Writes to `[from, to)` are lost: the edits that speak of their data are taken back.
    pub(super) fn fail_range(&self, state: &mut State, from: u64, to: u64, why: &str) {
        self.tell_loss(from, to, why);
        let log = std::mem::take(&mut state.log);
        for Logged { seq, edit } in log {
            match edit {
                Edit::Map { extent } if extent.state == ExtentState::Written => {
                    for (a, b) in [(extent.file.0, from), (to, extent.end())] {
                        if let Some(kept) = extent.slice(a, b) {
                            state.log.push_back(Logged { seq, edit: Edit::Map { extent: kept } });
                        }
                    }
                    if let Some(gone) = extent.slice(from, to) {
                        self.unmap_failed(state, &gone);
                    }
                }
                Edit::Written { from: start, len } => {
                    let end = start.0 + len;
                    for (a, b) in [(start.0, end.min(from)), (start.0.max(to), end)] {
                        if a < b {
                            let edit = Edit::Written { from: FileBlock(a), len: b - a };
                            state.log.push_back(Logged { seq, edit });
                        }
                    }
                    let (a, b) = (start.0.max(from), end.min(to));
                    if a < b {
                        state.layout.set_written(a, b, false);
                    }
                }
                other => state.log.push_back(Logged { seq, edit: other }),
            }
        }
        self.reserve_again(state, from, to);
        self.log_unconfirmed(state);
        state.mark_stale(from, to);
        state.tail = None;
        // What lay behind the size before may lie there still.
        if (from..to).contains(&(state.size / BLOCK_U64)) {
            state.tail_zero = false;
        }
    }

    /// Data of blocks `[from, to)` is lost: who has the file open is told, and so is the log, and
    /// the kernel shows it no longer.
    pub(super) fn tell_loss(&self, from: u64, to: u64, why: &str) {
        self.errors.set(self.errors.get() + 1);
        let who = self.ctx.rpc.describe(self.ino);
        self.ctx.rpc.log(&format!("{who}: written data is lost: {why}"));
        let byte = |block: u64| block.saturating_mul(BLOCK_U64);
        self.ctx.rpc.inval_pages(self.ino, byte(from), byte(to));
    }

    /// Blocks that lost their place may be dirty anew, by writes that found them placed:
    /// they need another place. Without space for it they are lost with the rest.
    fn reserve_again(&self, state: &mut State, from: u64, to: u64) {
        let mut at = from;
        while let Some((start, run)) = state.dirty_from(at, to) {
            at = start + run.blocks();
            let lack = state.layout.unplaced(start, at).saturating_sub(run.reserved.blocks());
            if lack == 0 {
                continue;
            }
            match self.ctx.pool.reserve(lack) {
                Some(more) => {
                    let run = state.dirty.get_mut(&start).expect("found");
                    run.reserved.merge(more);
                }
                None => drop(state.dirty.remove(&start)),
            }
        }
    }

    fn unmap_failed(&self, state: &mut State, gone: &Extent) {
        self.ctx.pool.taint(PoolRun { pag: gone.pag, addr: gone.addr.0, len: gone.len });
        for piece in state.layout.pieces(gone.file.0, gone.end()) {
            let addr = gone.addr.0 + (piece.from - gone.file.0);
            if piece.mapped.is_some_and(|now| now.pag == gone.pag && now.addr == addr) {
                let removed = state.layout.remove(piece.from, piece.to);
                let blocks: u64 = removed.iter().map(|(_, mapped)| mapped.len).sum();
                state.blocks = state.blocks.saturating_sub(blocks);
                // Frozen blocks whose place it took are the file's still.
                for (at, old) in state.replaced.remove(piece.from, piece.to) {
                    state.layout.insert(at, old);
                    state.blocks += old.len;
                }
                if piece.from == 0 {
                    state.restore_inline();
                }
            }
        }
    }
}

impl State {
    /// Forgets what is not the server's, after it refused it; what is known comes from there again.
    pub fn abandon(&mut self) {
        self.mark_stale(0, u64::MAX);
        self.dirty.clear();
        self.log.clear();
        self.layout.clear();
        self.replaced.clear();
        self.inline.clear();
        self.loaded_to = 0;
        self.known.clear();
        self.touched.clear();
        self.stamps.clear();
        self.mtime = None;
        self.ctime = None;
        self.size = self.server_size;
        self.disk_size = self.server_size;
        self.tail_zero = self.in_parts();
        self.generation += 1;
    }

    pub(super) fn take_attr(&mut self, attr: &Attr) {
        self.size = attr.size;
        self.disk_size = attr.size;
        self.server_size = attr.size;
        self.blocks = attr.blocks;
    }

    /// Blocks in use, those of accepted bytes without a place included.
    fn allocated(&self) -> u64 {
        let twice = if self.dirty_at(0).is_some() { self.inline_blocks() } else { 0 };
        self.blocks - twice.min(self.blocks) + self.dirty_blocks()
    }

    /// Takes a stretch of the layout in.
    fn load(&mut self, part: &LayoutPart) {
        if self.loaded_to == 0 && part.from.0 == 0 && part.to > 0 {
            self.inline.load(part);
            // Nothing lies behind it on a device.
            self.tail_zero |= self.is_inline(0) && self.size <= BLOCK_U64;
        }
        for extent in &part.extents {
            if let Some(extent) = extent.slice(self.loaded_to.max(part.from.0), part.to) {
                self.layout.insert(extent.file.0, from_extent(&extent, part.frozen));
            }
        }
        if part.from.0 <= self.loaded_to {
            self.loaded_to = self.loaded_to.max(part.to);
        }
    }
}
