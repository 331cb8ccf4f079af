//! Accepting writes.
//!
//! A write first acquires everything that it may have to wait for: its share of the dirty budget,
//! blocks of the pool, and the old content of partially covered blocks. Then, without waiting, it
//! checks that nothing of this has changed, and copies its bytes into the dirty runs. It acquires
//! again what has changed, and for an append it takes the end of the file again: the kernel
//! serializes an append and a truncation of one client only as long as the appending process lives.
//!
//! Invariants: an accepted write cannot fail for space or memory; the blocks of dirty runs are
//! whole: bytes that the write did not supply are the old content, or zeros.

use std::cell::Cell;
use std::rc::Rc;

use env::IoBuf;
use proto::prealloc::{Stream, When};
use types::limits::{BLOCK, BLOCK_U64, FILE_SIZE_MAX};
use types::{Bug, Duration, Fault, ServerId, planted};

use super::budget::Claim;
use super::disks::Disks;
use super::file::{DirtyRun, FetchedBlock, File, FileState, blocks_of};
use super::launch::RUN_BLOCKS;
use super::pool::Reservation;
use super::read::Source;
use super::segments::Mapped;
use super::target_room::Needs;
use crate::api::Edited;
use crate::waits::Wait;

/// A write of at least so many bytes goes to the device at once, without a copy.
pub(super) const DIRECT_MIN: usize = 128 << 10;
/// A write of fewer bytes is appended, by a copy, to the run that it continues.
const APPEND_MAX: usize = 64 << 10;
/// Pause between looks whether a silent device has answered.
const STUCK_POLL: Duration = Duration::from_millis(100);
/// How often a write asks for blocks of the zone where it is to lie before it is accepted without.
const FILLS: u32 = 4;
/// How often a write that got no block is sent as inline data before it fails.
const SENDS: u32 = 4;

/// Where to find the old content of a block.
enum OldContent {
    /// In a dirty run: nothing has to be read.
    Dirty,
    /// There is none: zeros.
    Zero,
    /// In memory, as inline data.
    Inline,
    /// On the device.
    Fetch,
}

/// The range of a write.
#[derive(Clone, Copy, PartialEq, Eq)]
struct WriteRange {
    /// The first byte, and the byte behind the last.
    start: u64,
    end: u64,
    /// The first block, and the block behind the last.
    first: u64,
    last: u64,
}

impl WriteRange {
    fn len(&self) -> usize {
        (self.end - self.start) as usize
    }
}

/// What a write still needs before it can be accepted.
pub(super) enum Missing {
    Nothing,
    Space(Unreserved),
    Content(u64),
}

/// Blocks without a place, of which no dirty run has reserved one, and for which a write needs one.
#[derive(Clone)]
pub(super) struct Unreserved {
    /// How many more it has to reserve.
    pub missing: u64,
    /// The room at targets that it lacks.
    pub room: Needs,
    /// They are in this range, and are this one in front of it.
    pub range: (u64, u64),
    /// See `range`.
    pub tail: Option<u64>,
}

/// What a write has acquired before it is accepted.
pub(super) struct PreparedWrite {
    /// Its share of the dirty budget.
    pub claim: Claim,
    /// Blocks of the pool.
    pub reserved: Reservation,
    /// Old content of partially covered blocks.
    pub fetched: Vec<FetchedBlock>,
    /// Who writes; `None`: the client itself.
    pub stream: Option<Stream>,
}

impl PreparedWrite {
    fn new(claim: Claim, reserved: Reservation, stream: Option<Stream>) -> PreparedWrite {
        PreparedWrite { claim, reserved, fetched: Vec::new(), stream }
    }

    /// What it lacks of `need` blocks of the pool and of `room`.
    fn lack(&self, need: u64, room: &Needs) -> Option<Unreserved> {
        let missing = need.saturating_sub(self.reserved.blocks());
        let room = self.reserved.room.lacks(room);
        let lacks = missing > 0 || !room.is_empty();
        lacks.then_some(Unreserved { missing, room, range: (0, 0), tail: None })
    }

    fn content(&self, block: u64) -> Option<&IoBuf> {
        self.fetched
            .iter()
            .find(|fetched| fetched.block == block && !fetched.stale.get())
            .map(|fetched| &fetched.buf)
    }
}

/// How often a write may still send its bytes as inline data, and whether it did.
struct InlineSends {
    left: u32,
    sent: bool,
}

impl File {
    /// See [`crate::boundary::FileContent::write`].
    pub(super) async fn write(
        self: &Rc<Self>,
        offset: Option<u64>,
        data: IoBuf,
        len: usize,
        stream: Option<Stream>,
    ) -> Result<(u64, u32), Fault> {
        // If the session is lost while this call waits, the call fails.
        let generation = self.state.borrow().generation;
        let _append = match offset {
            None => Some(self.append.lock().await),
            Some(_) => None,
        };
        let len = len.min(data.len());
        let range = self.state.borrow().write_range(offset, len)?;
        if len == 0 {
            return Ok((range.start, 0));
        }
        // One more: the old last block may have to be zeroed, and an append may start in mid-block.
        let blocks = match offset {
            None => (len as u64).div_ceil(BLOCK_U64) + 1,
            Some(_) => range.last - range.first + 1,
        };
        let claim = self.claim(blocks * BLOCK_U64).await;
        let mut prepared = PreparedWrite::new(claim, self.pool().no_blocks(), stream);
        let (mut data, mut inline) = (Some(data), InlineSends { left: SENDS, sent: false });
        let mut fills = if self.ctx.allocation.when == When::Write { FILLS } else { 0 };
        let range = loop {
            if self.state.borrow().generation != generation {
                return Err(Fault::Evicted);
            }
            let range = self.state.borrow().write_range(offset, len)?;
            self.ensure_writable(range.first, range.last).await?;
            let (missing, lacking) = {
                let mut state = self.state.borrow_mut();
                if state.generation != generation || !prepared.reserved.is_valid() {
                    return Err(Fault::Evicted);
                }
                if state.write_range(offset, len)? != range {
                    continue;
                }
                let missing = state.missing_for(&prepared, range.start, range.end);
                let mut lacking = None;
                if matches!(missing, Missing::Nothing) {
                    if fills > 0 {
                        lacking = self.lacking(&mut state, range.first, range.last);
                    }
                    if lacking.is_none() {
                        let data = data.take().expect("put in once");
                        self.put(&mut state, prepared, range.start, data, range.len());
                        break range;
                    }
                }
                (missing, lacking)
            };
            if let Some(wanted) = lacking {
                fills -= 1;
                self.ctx.fill_zone(&self.class(), wanted).await?;
                continue;
            }
            let bytes = &data.as_ref().expect("not put in yet")[..range.len()];
            self.get_missing(&mut prepared, missing, (generation, range.start, bytes), &mut inline)
                .await?;
        };
        self.enqueue_written();
        Ok((range.start, range.len() as u32))
    }

    /// Gets what the write of `bytes` at `start` lacks. If there is no space, sends them as inline
    /// data, as far as they can be that.
    async fn get_missing(
        self: &Rc<Self>,
        prepared: &mut PreparedWrite,
        missing: Missing,
        (generation, start, bytes): (u64, u64, &[u8]),
        inline: &mut InlineSends,
    ) -> Result<(), Fault> {
        let scarce = matches!(missing, Missing::Space(_)) && self.is_scarce();
        if scarce && inline.left > 0 {
            inline.left -= 1;
            if self.send_inline(generation, start, bytes).await {
                inline.sent = true;
                return Ok(());
            }
        }
        match self.acquire_missing(prepared, missing).await {
            Err(Fault::NoSpace)
                if inline.left > 0 && self.send_inline(generation, start, bytes).await =>
            {
                inline.left -= 1;
                inline.sent = true;
                Ok(())
            }
            Err(Fault::NoSpace) if inline.sent => {
                self.revert_sent_inline();
                Err(Fault::NoSpace)
            }
            other => other,
        }
    }

    /// Claims bytes of the budget. Does not claim what a silent device would keep for ever: a
    /// writer to a file on it waits for the device when it has enough.
    async fn claim(&self, bytes: u64) -> Claim {
        let budget = &self.ctx.budget;
        let (env, waits) = (&self.ctx.env, &self.ctx.waits);
        let is_stuck = || {
            let share = budget.silent_share();
            self.state.borrow().is_stuck(self.server(), &self.ctx.disks, share)
        };
        if is_stuck() {
            let _stuck = waits.begin(env, Wait::Stuck(self.ino));
            while is_stuck() {
                env.sleep(STUCK_POLL).await;
            }
        }
        let room = budget.claim(bytes, || self.ctx.launch_for_room());
        let claim = waits.named(env, Wait::DirtyRoom, room).await;
        if let Some((hold, _held)) = budget.hold(env.now(), bytes) {
            self.ctx.wake.notify_all();
            waits.named(env, Wait::DirtyRoom, env.sleep(hold)).await;
        }
        claim
    }

    /// Makes the mappings of these blocks known. Fails with `Io` if one is to be overwritten in
    /// place on an absent device.
    async fn ensure_writable(self: &Rc<Self>, first: u64, last: u64) -> Result<(), Fault> {
        self.ensure_known(first, last).await?;
        let disks = &self.ctx.disks;
        if !disks.any_absent() {
            return Ok(());
        }
        let pieces = self.state.borrow().layout.pieces(first, last);
        let mut in_place = pieces.iter().filter_map(|piece| piece.mapped).filter(Mapped::in_place);
        if in_place.any(|mapped| disks.refuses(self.server(), mapped.pag)) {
            Err(Fault::Io)
        } else {
            Ok(())
        }
    }

    /// Zeroes the bytes `[from, to)`, which lie in one block, unless they are zero already. Used
    /// for the edges of punched ranges and for the last block. The size stays as it is.
    pub(super) async fn zero_in_block(self: &Rc<Self>, from: u64, to: u64) -> Result<(), Fault> {
        self.zero_while(from, to, |_| true).await
    }

    /// Zeroes what the last block holds behind `size`, while that is the size: bytes that others
    /// append meanwhile stay.
    pub(super) async fn zero_behind(self: &Rc<Self>, size: u64) -> Result<(), Fault> {
        let end = size.next_multiple_of(BLOCK_U64);
        self.zero_while(size, end, |state| state.size == size).await
    }

    /// As [`File::zero_in_block`], but stops when `holds` is false.
    async fn zero_while(
        self: &Rc<Self>,
        from: u64,
        to: u64,
        holds: impl Fn(&FileState) -> bool,
    ) -> Result<(), Fault> {
        let block = from / BLOCK_U64;
        debug_assert!(to <= (block + 1) * BLOCK_U64 && from < to);
        let mut prepared = self.prepare_one_block();
        loop {
            self.ensure_loaded(block + 1).await?;
            let missing = {
                let mut state = self.state.borrow_mut();
                let zero = !state.has_content(block) || state.ends_inline(block, from % BLOCK_U64);
                if zero || !holds(&state) {
                    return Ok(());
                }
                if !prepared.reserved.is_valid() {
                    return Err(Fault::Evicted);
                }
                let missing = state.missing_for_block(&prepared, block);
                if matches!(missing, Missing::Nothing) {
                    let at = (block * BLOCK_U64, from, to);
                    self.put_zeros(&mut state, prepared, at.0, at.1, at.2);
                    self.ctx.report_edit(self.ino, Edited::Bytes { from, to });
                    break;
                }
                missing
            };
            self.acquire_missing(&mut prepared, missing).await?;
        }
        self.enqueue();
        Ok(())
    }

    /// Prepares a write of one block, whose share of the budget may exceed the bound.
    pub(super) fn prepare_one_block(self: &Rc<Self>) -> PreparedWrite {
        PreparedWrite {
            claim: self.ctx.budget.force(BLOCK_U64),
            reserved: self.pool().no_blocks(),
            fetched: Vec::new(),
            stream: None,
        }
    }

    /// Acquires what is missing.
    pub(super) async fn acquire_missing(
        self: &Rc<Self>,
        prepared: &mut PreparedWrite,
        missing: Missing,
    ) -> Result<(), Fault> {
        match missing {
            Missing::Nothing => {}
            Missing::Space(needed) if !needed.room.is_empty() => {
                prepared.reserved.room.merge(self.take_room(&needed).await?);
            }
            Missing::Space(needed) if self.ctx.allocation.delegated => {
                let (class, hint) = (self.class(), self.zone_hint());
                let more = self.ctx.reserve(&class, needed.missing, hint).await?;
                prepared.reserved.merge(more);
            }
            Missing::Space(needed) => {
                let (done, stream) = (prepared.reserved.blocks(), prepared.stream);
                prepared.reserved.merge(self.ask_places(needed, stream, done).await?);
            }
            Missing::Content(block) => {
                prepared.fetched.retain(|fetched| fetched.block != block);
                let fetched = self.fetch(block).await?;
                prepared.fetched.push(fetched);
            }
        }
        Ok(())
    }

    /// Reads a block from its device, after any write to it that is in flight. The result is marked
    /// stale if the block changes.
    async fn fetch(self: &Rc<Self>, block: u64) -> Result<FetchedBlock, Fault> {
        let stale = Rc::new(Cell::new(false));
        let (piece, guard) = loop {
            let changed = self.changed.notified();
            {
                let mut state = self.state.borrow_mut();
                if state.dirty_at(block).is_some() {
                    // Another write dirtied the block meanwhile: the content on the device is old.
                    stale.set(true);
                    return Ok(FetchedBlock { block, buf: self.ctx.env.buffer(0), stale });
                }
                if !state.is_writing(block, block + 1) {
                    state.fetched.push((block, Rc::downgrade(&stale)));
                    let mapped = state.layout.at(block).map(|mapped| (mapped, state.object()));
                    let guard = self.begin_read(&mut state, block, block + 1);
                    break (mapped, guard);
                }
            }
            changed.await;
        };
        let buf = self.ctx.env.buffer(BLOCK);
        let mut buf = match piece {
            Some((Mapped { written: true, pag, addr, .. }, object)) => {
                self.ctx.wait_for_lease(self.ctx.sessions.of(self.server())).await?;
                let source = match object {
                    Some(object) => Source::Target { object, pag, addr, blocks: 1 },
                    None => Source::Device { pag, addr, blocks: 1 },
                };
                self.read_source(source, buf).await?
            }
            _ => buf,
        };
        drop(guard);
        // An interrupted write may have left bytes behind the size: they are not content.
        let size = self.size().saturating_sub(block * BLOCK_U64);
        if size < BLOCK_U64 {
            buf[size as usize..].fill(0);
        }
        Ok(FetchedBlock { block, buf, stale })
    }

    /// Copies the bytes of a write into the dirty runs. Nothing is missing any more.
    fn put(
        self: &Rc<Self>,
        state: &mut FileState,
        mut prepared: PreparedWrite,
        offset: u64,
        mut data: IoBuf,
        len: usize,
    ) {
        let end = offset + len as u64;
        self.ctx.report_edit(self.ino, Edited::Bytes { from: offset, to: end });
        if state.has_inline_room(end) {
            let backing = self.backing_without_block(prepared.claim.split(BLOCK_U64));
            state.put_inline(offset as usize, &data[..len], backing);
            state.mark_stale(0, 1);
            self.grow(state, end);
            state.disk_size = state.disk_size.max(end);
            return self.accepted(state);
        }
        if let Some(block) = state.stale_tail(offset) {
            let old = state.size;
            let (claim, reserved) = (prepared.claim.split(BLOCK_U64), self.pool().no_blocks());
            let fetched = prepared.fetched.extract_if(.., |f| f.block == block).collect();
            let mut sub = PreparedWrite { claim, reserved, fetched, stream: prepared.stream };
            let part = state.split_reserved(&mut prepared.reserved, block, block + 1);
            sub.reserved.merge(part);
            self.put_zeros(state, sub, block * BLOCK_U64, old, (block + 1) * BLOCK_U64);
        }
        let (first, last) = blocks_of(offset, end);
        state.pass_blocks(first);
        let head = (offset - first * BLOCK_U64) as usize;
        let tail = (last * BLOCK_U64 - end) as usize;
        let adopt = head == 0
            && data.capacity() >= len + tail
            && data.capacity() <= 2 * (len + tail)
            && (len >= APPEND_MAX || state.dirty_from(first, last).is_none());
        let joins = state.run_to_join(first, last).filter(|_| !adopt || len < APPEND_MAX);
        let start = if let Some(start) = joins {
            self.put_into(state, &mut prepared, start, offset, &data[..len]);
            start
        } else {
            let last_old = (tail > 0).then(|| state.old_copy(&self.ctx.env, &prepared, last - 1));
            let bytes = len + head + tail;
            let buf = if adopt {
                data.set_len(bytes);
                data
            } else {
                let mut buf = self.ctx.env.buffer(bytes);
                if head > 0 {
                    let old = state.old_copy(&self.ctx.env, &prepared, first);
                    buf[..head].copy_from_slice(&old[..head]);
                }
                buf[head..head + len].copy_from_slice(&data[..len]);
                buf
            };
            let mut buf = buf;
            if let Some(old) = last_old {
                buf[bytes - tail..].copy_from_slice(&old[BLOCK - tail..]);
            }
            self.insert_run(state, &mut prepared, first, buf);
            first
        };
        state.mark_stale(first, last);
        state.mark_unsettled(first, last);
        self.grow(state, end);
        self.accepted(state);
        self.place_accepted(state, start, (first, last));
        self.launch_if_due(state, start, adopt && len >= DIRECT_MIN);
    }

    /// Launches the run at `start` if it is large, or was written by a large write (`direct`), or
    /// if somebody waits or will wait for it.
    fn launch_if_due(self: &Rc<Self>, state: &mut FileState, start: u64, direct: bool) {
        let soon = self.fsync_expected(state);
        let run = state.dirty.get_mut(&start).expect("given");
        if direct || run.blocks() >= RUN_BLOCKS || soon || self.ctx.budget.has_waiters() {
            run.wanted = true;
            self.launch(state, start);
        }
    }

    /// Records an accepted write.
    fn accepted(&self, state: &mut FileState) {
        state.touch(self.change_time());
        state.writes = state.writes.saturating_add(1);
    }

    /// Copies bytes into the run at `start`, which they overlap or continue; the run grows as
    /// needed.
    fn put_into(
        &self,
        state: &mut FileState,
        prepared: &mut PreparedWrite,
        start: u64,
        offset: u64,
        data: &[u8],
    ) {
        let end = offset + data.len() as u64;
        let (first, last) = blocks_of(offset, end);
        let run_end = start + state.dirty[&start].blocks();
        if last > run_end {
            // Old content of the edge blocks outside the run.
            let head = first >= run_end && !offset.is_multiple_of(BLOCK_U64);
            let head = head.then(|| state.old_copy(&self.ctx.env, prepared, first));
            let whole = end.is_multiple_of(BLOCK_U64) || (head.is_some() && last - 1 == first);
            let tail = (!whole).then(|| state.old_copy(&self.ctx.env, prepared, last - 1));
            let cut = state.cut_dirty(run_end, last);
            let added = (last - run_end) * BLOCK_U64;
            let mut run = state.dirty.remove(&start).expect("given");
            let len = (last - start) as usize * BLOCK;
            if run.buf.capacity() < len {
                let room = (2 * run.buf.len()).min(RUN_BLOCKS as usize * BLOCK).max(len);
                let mut larger = IoBuf::unspecified(room);
                larger[..run.buf.len()].copy_from_slice(&run.buf);
                run.buf = larger;
            }
            run.buf.set_len(len);
            let from = (run_end - start) as usize * BLOCK;
            run.buf[from..].fill(0);
            if let Some(head) = head {
                run.buf[from..from + BLOCK].copy_from_slice(&head);
            }
            if let Some(tail) = tail {
                run.buf[len - BLOCK..].copy_from_slice(&tail);
            }
            if let Some((claim, reserved)) = cut {
                prepared.claim.merge(claim);
                prepared.reserved.merge(reserved);
            }
            run.claim.merge(prepared.claim.split(added));
            state.dirty.insert(start, run);
        }
        let run = state.dirty.get_mut(&start).expect("given");
        let places = state.layout.unplaced(start, start + run.blocks());
        run.reserved.merge(prepared.reserved.split(places.saturating_sub(run.reserved.blocks())));
        let room = run.reserved.room.lacks(&state.layout.room_needed(start, start + run.blocks()));
        run.reserved.room.merge(prepared.reserved.room.split(&room));
        let at = (offset - start * BLOCK_U64) as usize;
        run.buf[at..at + data.len()].copy_from_slice(data);
    }

    /// Inserts whole blocks as a new run, replacing dirty blocks there.
    pub(super) fn insert_run(
        &self,
        state: &mut FileState,
        prepared: &mut PreparedWrite,
        first: u64,
        buf: IoBuf,
    ) {
        let last = first + (buf.len() / BLOCK) as u64;
        if let Some((claim, reserved)) = state.cut_dirty(first, last) {
            prepared.claim.merge(claim);
            prepared.reserved.merge(reserved);
        }
        if first == 0
            && let Some(block) = state.take_backing_block()
        {
            prepared.reserved.merge(block);
        }
        let seq = state.next_seq;
        state.next_seq += 1;
        let run = DirtyRun {
            claim: prepared.claim.split(buf.len() as u64),
            reserved: state.split_reserved(&mut prepared.reserved, first, last),
            buf,
            seq,
            wanted: false,
            stream: prepared.stream,
        };
        state.dirty.insert(first, run);
    }

    /// Zeroes bytes `[from, to)` of the block that starts at byte `base`. Inline data is cut at the
    /// size.
    pub(super) fn put_zeros(
        self: &Rc<Self>,
        state: &mut FileState,
        mut prepared: PreparedWrite,
        base: u64,
        from: u64,
        to: u64,
    ) {
        let block = base / BLOCK_U64;
        let (a, b) = ((from - base) as usize, (to - base) as usize);
        if let Some((start, _)) = state.dirty_at(block) {
            let at = (block - start) as usize * BLOCK;
            let run = state.dirty.get_mut(&start).expect("found");
            run.buf[at + a..at + b].fill(0);
        } else if state.is_clean_inline(block) {
            state.zero_inline(a, b, self.backing_without_block(prepared.claim));
        } else {
            let mut buf = state.old_copy(&self.ctx.env, &prepared, block);
            buf[a..b].fill(0);
            self.insert_run(state, &mut prepared, block, buf);
        }
        state.mark_stale(block, block + 1);
    }

    /// Raises the size to `end`, after bytes up to there were accepted.
    fn grow(&self, state: &mut FileState, end: u64) {
        if end > state.size {
            state.size = end;
            state.tail_zero = true;
        }
    }
}

impl FileState {
    /// Has the file writes on a silent device that holds `share` bytes or more?
    fn is_stuck(&self, server: ServerId, disks: &Disks, share: u64) -> bool {
        let mut on = self.flights.values().flatten();
        on.any(|&pag| {
            let disk = disks.get(server, pag);
            disk.is_ok_and(|disk| disk.device.silent.get() && disk.device.held() >= share)
        })
    }

    /// The old last block, if `offset` lies beyond it, and the device may hold other bytes than
    /// zeros in it behind the size.
    pub(super) fn stale_tail(&self, offset: u64) -> Option<u64> {
        let block = self.size / BLOCK_U64;
        let stale = !self.tail_zero
            && !self.size.is_multiple_of(BLOCK_U64)
            && offset >= (block + 1) * BLOCK_U64
            && self.dirty_at(block).is_none()
            && self.layout.at(block).is_some_and(|mapped| mapped.written);
        stale.then_some(block)
    }

    /// May the block hold other bytes than zeros?
    pub(super) fn has_content(&self, block: u64) -> bool {
        // All blocks of an object are mapped, but those behind the size are no content.
        if self.layout.object().is_some() && block * BLOCK_U64 >= self.size {
            return false;
        }
        self.dirty_at(block).is_some()
            || self.is_writing(block, block + 1)
            || self.is_inline(block)
            || self.layout.at(block).is_some_and(|mapped| mapped.written)
    }

    /// The range of `len` bytes at `offset`, or at the current end, cut at the largest file size.
    /// Fails with `FileTooBig` if nothing is left.
    fn write_range(&self, offset: Option<u64>, len: usize) -> Result<WriteRange, Fault> {
        let old_end = planted(Bug::AppendAtOldEnd);
        let start = offset.unwrap_or(if old_end { self.server_size } else { self.size });
        if start >= FILE_SIZE_MAX && len > 0 {
            return Err(Fault::FileTooBig);
        }
        let end = start.saturating_add(len as u64).min(FILE_SIZE_MAX);
        let (first, last) = blocks_of(start, end);
        Ok(WriteRange { start, end, first, last })
    }

    fn old(&self, block: u64) -> OldContent {
        if self.dirty_at(block).is_some() {
            return OldContent::Dirty;
        }
        if block * BLOCK_U64 >= self.size {
            return OldContent::Zero;
        }
        if self.is_inline(block) {
            return OldContent::Inline;
        }
        match self.layout.at(block) {
            Some(mapped) if mapped.written => OldContent::Fetch,
            _ => OldContent::Zero,
        }
    }

    /// The current content of `block`, which is in memory or has been fetched.
    fn old_copy(&self, env: &env::Env, prepared: &PreparedWrite, block: u64) -> IoBuf {
        let mut out = env.buffer(BLOCK);
        match self.old(block) {
            OldContent::Dirty => {
                let (start, run) = self.dirty_at(block).expect("dirty");
                let at = (block - start) as usize * BLOCK;
                out.copy_from_slice(&run.buf[at..at + BLOCK]);
            }
            OldContent::Zero => {}
            OldContent::Inline => out = self.inline_block(env),
            OldContent::Fetch => {
                if let Some(content) = prepared.content(block) {
                    out.copy_from_slice(content);
                } else if let Some((_, tail)) = self.tail.as_ref().filter(|(b, _)| *b == block) {
                    out.copy_from_slice(tail);
                } else {
                    unreachable!("`missing_for` has checked it");
                }
            }
        }
        out
    }

    /// Is the old content of `block` in memory or fetched?
    fn is_available(&self, prepared: &PreparedWrite, block: u64) -> bool {
        !matches!(self.old(block), OldContent::Fetch)
            || prepared.content(block).is_some()
            || self.tail.as_ref().is_some_and(|(tail, _)| *tail == block)
    }

    /// Blocks of `[from, to)` that have no place and no reservation.
    fn unreserved(&self, from: u64, to: u64) -> u64 {
        let mut need = self.layout.unplaced(from, to);
        let mut at = from;
        while let Some((start, run)) = self.dirty_from(at, to) {
            let end = start + run.blocks();
            need -= self.layout.unplaced(start.max(from), end.min(to));
            at = end;
            if at >= to {
                break;
            }
        }
        let backed =
            from == 0 && need > 0 && self.layout.at(0).is_none() && self.dirty_at(0).is_none();
        need - if backed { self.backing_blocks().min(1) } else { 0 }
    }

    /// The blocks that [`FileState::unreserved`] counts.
    pub(super) fn unreserved_pieces(&self, needed: &Unreserved) -> Vec<(u64, u64)> {
        let mut out = Vec::new();
        let tail = needed.tail.map(|block| (block, block + 1));
        for (from, to) in tail.into_iter().chain([needed.range]) {
            for piece in self.layout.pieces(from, to) {
                if piece.mapped.is_some_and(|mapped| mapped.in_place()) {
                    continue;
                }
                let mut at = piece.from;
                if at == 0 && self.unreserved(0, 1) == 0 {
                    at = 1;
                }
                while at < piece.to {
                    let dirty = self.dirty_from(at, piece.to);
                    let dirty = dirty.map(|(start, run)| (start, start + run.blocks()));
                    let (end, next) = dirty.unwrap_or((piece.to, piece.to));
                    if at < end {
                        out.push((at, end));
                    }
                    at = next;
                }
            }
        }
        out
    }

    fn missing_for(&self, prepared: &PreparedWrite, offset: u64, end: u64) -> Missing {
        if self.has_inline_room(end) {
            return Missing::Nothing;
        }
        let (first, last) = blocks_of(offset, end);
        let mut need = self.unreserved(first, last);
        let mut room = self.unreserved_room(first, last);
        let stale_tail = self.stale_tail(offset);
        if let Some(block) = stale_tail {
            need += self.unreserved(block, block + 1);
            room.add_all(&self.unreserved_room(block, block + 1));
        }
        if let Some(lack) = prepared.lack(need, &room) {
            return Missing::Space(Unreserved { range: (first, last), tail: stale_tail, ..lack });
        }
        let head = (!offset.is_multiple_of(BLOCK_U64)).then_some(first);
        let tail = (!end.is_multiple_of(BLOCK_U64)).then(|| last - 1);
        for block in head.into_iter().chain(tail).chain(stale_tail) {
            if !self.is_available(prepared, block) {
                return Missing::Content(block);
            }
        }
        Missing::Nothing
    }

    /// What is missing for zeroing a part of `block`.
    pub(super) fn missing_for_block(&self, prepared: &PreparedWrite, block: u64) -> Missing {
        if self.dirty_at(block).is_some() || self.is_clean_inline(block) {
            return Missing::Nothing;
        }
        let (need, room) =
            (self.unreserved(block, block + 1), self.unreserved_room(block, block + 1));
        if let Some(lack) = prepared.lack(need, &room) {
            Missing::Space(Unreserved { range: (block, block + 1), ..lack })
        } else if self.is_available(prepared, block) {
            Missing::Nothing
        } else {
            Missing::Content(block)
        }
    }

    /// The dirty run that can take blocks `[first, last)`: it holds the first of them or ends
    /// there, and does not become too long.
    fn run_to_join(&self, first: u64, last: u64) -> Option<u64> {
        let (&start, run) = self.dirty.range(..=first).next_back()?;
        let end = start + run.blocks();
        let fits = first <= end && (last <= end || last - start <= RUN_BLOCKS);
        (fits && !(first == end && run.wanted)).then_some(start)
    }
}
