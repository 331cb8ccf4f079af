//! Changes of size and layout that carry no bytes: truncation and fallocate.
//!
//! Invariants:
//! - blocks leave a file only when no read or write of them is in flight;
//! - bytes behind the size in the last block are zero before the size passes them;
//! - a truncation cuts the file and zeroes the last block behind its new end in one step: no reader
//!   sees a part of it;
//! - preallocated blocks read as zeros;
//! - nobody reads a range from before it is zeroed until the resulting size is set: no process of
//!   this host sees one without the other;
//! - no append comes between the zeroing of a range and the setting of the resulting size; the
//!   kernel serializes them only as long as the appending process lives;
//! - an operation that waited while its session was lost changes nothing in the next session.

use std::rc::Rc;

use proto::mds::Edit;
use proto::prealloc::Stream;
use types::limits::{BLOCK_U64, FILE_SIZE_MAX};
use types::{Bug, Fault, FileBlock, planted};

use super::file::{File, FileState};
use super::pool::Reservation;
use super::segments::{Mapped, to_wire_segment};
use super::write::Missing;
use crate::api::Edited;

/// `FALLOC_FL_KEEP_SIZE`.
const KEEP_SIZE: u32 = 1;
/// `FALLOC_FL_PUNCH_HOLE`.
const PUNCH_HOLE: u32 = 2;
/// `FALLOC_FL_ZERO_RANGE`.
const ZERO_RANGE: u32 = 16;
/// Blocks preallocated in one step: 256 MiB.
const ALLOCATE_STEP: u64 = 65_536;
/// Number of pending edits from which on the commit is due at once.
const EDITS_MANY: usize = 4096;

impl File {
    /// See [`crate::boundary::FileContent::set_size`].
    pub(super) async fn set_size(self: &Rc<Self>, size: u64) -> Result<(), Fault> {
        if size > FILE_SIZE_MAX {
            return Err(Fault::FileTooBig);
        }
        if size == 0 {
            // Nothing of what was lost would be there.
            self.acknowledge_loss();
        }
        let generation = self.state.borrow().generation;
        // Another operation may change the size between the steps: then choose again.
        loop {
            let done = if size < self.size() {
                self.shrink(size, generation).await?
            } else {
                self.extend(size, generation).await?;
                true
            };
            if done {
                break;
            }
        }
        self.state.borrow_mut().touch(self.change_time());
        self.enqueue();
        Ok(())
    }

    /// Makes the file shorter; `false` if it is no longer than `size` any more. Zeroes the last
    /// block behind the new size in the same step, so that no reader sees one without the other.
    async fn shrink(self: &Rc<Self>, size: u64, generation: u64) -> Result<bool, Fault> {
        let from = size.div_ceil(BLOCK_U64);
        let cut = !size.is_multiple_of(BLOCK_U64) && !planted(Bug::TailNotZeroed);
        let mut prepared = self.prepare_one_block();
        loop {
            self.ensure_loaded(from).await?;
            self.wait_for_io(from, u64::MAX).await;
            let missing = {
                let mut state = self.state.borrow_mut();
                state.check_generation(generation)?;
                if !prepared.reserved.is_valid() {
                    return Err(Fault::Evicted);
                }
                if state.is_writing(from, u64::MAX) || state.is_reading(from, u64::MAX) {
                    continue;
                }
                if size >= state.size {
                    return Ok(false);
                }
                let zero =
                    |last| !state.has_content(last) || state.ends_inline(last, size % BLOCK_U64);
                let last = from.checked_sub(1).filter(|&last| cut && !zero(last));
                let missing =
                    last.map_or(Missing::Nothing, |last| state.missing_for_block(&prepared, last));
                if matches!(missing, Missing::Nothing) {
                    state.size = size;
                    state.disk_size = state.disk_size.min(size);
                    state.tail_zero = true;
                    if let Some(last) = last {
                        let base = last * BLOCK_U64;
                        self.put_zeros(&mut state, prepared, base, size, base + BLOCK_U64);
                    }
                    self.unmap(&mut state, from, u64::MAX);
                    self.ctx.report_edit(self.ino, Edited::Size(size));
                    return Ok(true);
                }
                missing
            };
            self.acquire_missing(&mut prepared, missing).await?;
        }
    }

    async fn extend(self: &Rc<Self>, size: u64, generation: u64) -> Result<(), Fault> {
        loop {
            let tail = {
                let mut state = self.state.borrow_mut();
                state.check_generation(generation)?;
                let old = state.size;
                if size <= old {
                    return Ok(());
                }
                let block = old / BLOCK_U64;
                let known = state.tail_zero || old.is_multiple_of(BLOCK_U64);
                if known || state.loaded_to > block && !state.has_content(block) {
                    state.pass_blocks(size.div_ceil(BLOCK_U64));
                    state.size = size;
                    state.disk_size = size;
                    state.tail_zero = true;
                    self.ctx.report_edit(self.ino, Edited::Size(size));
                    return Ok(());
                }
                old
            };
            self.zero_behind(tail).await?;
            let mut state = self.state.borrow_mut();
            if state.size == tail {
                state.tail_zero = true;
            }
        }
    }

    /// Makes blocks `[from, to)` a hole. No I/O may be in flight there.
    fn unmap(self: &Rc<Self>, state: &mut FileState, from: u64, to: u64) {
        if from >= to {
            return;
        }
        if to < u64::MAX && planted(Bug::HoleNotPunched) {
            return;
        }
        state.mark_stale(from, to);
        drop(state.cut_dirty(from, to));
        if state.layout.object().is_some() {
            return state.declare_hole(from, to);
        }
        let removed = state.layout.remove(from, to);
        state.replaced.remove(from, to);
        let content = from == 0 && state.drop_inline();
        let all_known = state.loaded_to >= to;
        if removed.is_empty() && !content && all_known {
            return;
        }
        let blocks: u64 = removed.iter().map(|(_, mapped)| mapped.len).sum();
        state.blocks = state.blocks.saturating_sub(blocks);
        state.push_edit(Edit::Unmap { from: FileBlock(from), to });
        if to == u64::MAX && state.loaded_to >= from {
            state.loaded_to = u64::MAX;
            state.blocks = state.layout.blocks() + state.inline_blocks();
        }
    }

    /// See [`crate::boundary::FileContent::fallocate`].
    pub(super) async fn fallocate(
        self: &Rc<Self>,
        mode: u32,
        offset: u64,
        len: u64,
    ) -> Result<(), Fault> {
        let Some(end) = offset.checked_add(len).filter(|&end| end <= FILE_SIZE_MAX) else {
            return Err(Fault::FileTooBig);
        };
        if len == 0 {
            return Err(Fault::Invalid);
        }
        let keep = mode & KEEP_SIZE != 0;
        let generation = self.state.borrow().generation;
        // An append comes before the range is zeroed, or goes to the end that results.
        let _append = if keep { None } else { Some(self.append.lock().await) };
        let (first, behind) = (offset / BLOCK_U64, end.div_ceil(BLOCK_U64));
        let zeroes = matches!(mode & !KEEP_SIZE, PUNCH_HOLE | ZERO_RANGE);
        let _unread = zeroes.then(|| self.begin_zeroing(first, behind));
        let mut done = match mode & !KEEP_SIZE {
            0 => self.allocate(first, behind, generation).await,
            PUNCH_HOLE if keep => self.punch(offset, end, generation).await,
            ZERO_RANGE => match self.punch(offset, end, generation).await {
                Ok(()) => self.allocate(first, behind, generation).await,
                failed => failed,
            },
            _ => return Err(Fault::NotSupported),
        };
        if !keep && done.is_ok() {
            done = self.extend(end, generation).await;
        }
        // What was done before the error stays.
        if self.state.borrow().check_generation(generation).is_ok() {
            self.state.borrow_mut().touch(self.change_time());
            self.enqueue();
        }
        done
    }

    /// Zeroes bytes `[from, to)` and frees the whole blocks among them.
    async fn punch(self: &Rc<Self>, from: u64, to: u64, generation: u64) -> Result<(), Fault> {
        while !self.try_punch(from, to, generation).await? {}
        Ok(())
    }

    /// As [`File::punch`]; `false`: the file has grown beyond what was taken for its end.
    async fn try_punch(
        self: &Rc<Self>,
        from: u64,
        end: u64,
        generation: u64,
    ) -> Result<bool, Fault> {
        // There are only zeros behind the size: the last block may be freed whole.
        let to = if end >= self.size() { end.next_multiple_of(BLOCK_U64) } else { end };
        let first = from.div_ceil(BLOCK_U64);
        let last = to / BLOCK_U64;
        if first > last {
            return self.zero_in_block(from, to).await.map(|()| true);
        }
        if from < first * BLOCK_U64 {
            // Another process may append behind `end` meanwhile.
            self.zero_in_block(from, end.min(first * BLOCK_U64)).await?;
        }
        if last * BLOCK_U64 < to {
            self.zero_in_block(last * BLOCK_U64, to).await?;
        }
        if first == last {
            return Ok(true);
        }
        self.ensure_loaded(last).await?;
        loop {
            self.wait_for_io(first, last).await;
            let mut state = self.state.borrow_mut();
            state.check_generation(generation)?;
            if to > end && state.size > end {
                return Ok(false);
            }
            if !state.is_writing(first, last) && !state.is_reading(first, last) {
                self.unmap(&mut state, first, last);
                let (from, to) = (first * BLOCK_U64, last * BLOCK_U64);
                self.ctx.report_edit(self.ino, Edited::Bytes { from, to });
                return Ok(true);
            }
        }
    }

    /// Maps the holes among blocks `[from, to)` to unwritten blocks. On `NoSpace`, blocks allocated
    /// before stay.
    async fn allocate(self: &Rc<Self>, from: u64, to: u64, generation: u64) -> Result<(), Fault> {
        self.ensure_loaded(0).await?;
        if self.state.borrow().layout.object().is_some() {
            // A target keeps no room for blocks without content.
            return self.state.borrow().check_generation(generation);
        }
        let mut at = from;
        let mut reserved = self.pool().no_blocks();
        if from == 0 && to > 0 {
            self.move_inline_to_block().await?;
        }
        while at < to {
            let step = to.min(at + ALLOCATE_STEP);
            self.ensure_loaded(step).await?;
            let class = self.class();
            let (missing, short, lacking) = {
                let mut state = self.state.borrow_mut();
                state.check_generation(generation)?;
                if !reserved.is_valid() {
                    return Err(Fault::Evicted);
                }
                let holes = state.holes(at, step);
                let need: u64 = holes.iter().map(|(from, to)| to - from).sum();
                let missing = need.saturating_sub(reserved.blocks());
                let short = missing == 0 && !class.pool.can_place(need);
                let mut lacking = None;
                if missing == 0 && !short {
                    lacking = self.lacking_for(&mut state, &class, holes.iter().copied());
                }
                if missing == 0 && !short && lacking.is_none() {
                    for (from, to) in holes {
                        // The range is known in advance: it needs no window.
                        self.map_unwritten(&mut state, None, (from, to), &mut reserved);
                    }
                }
                (missing, short, lacking)
            };
            if short {
                self.ctx.fill_shortage(&class).await?;
                continue;
            }
            if let Some(wanted) = lacking {
                self.ctx.fill_zone(&class, wanted).await?;
                continue;
            }
            if missing > 0 {
                let more = self.ctx.reserve(&class, missing, self.zone_hint()).await?;
                reserved.merge(more);
                continue;
            }
            at = step;
            if self.state.borrow().edits.len() >= EDITS_MANY {
                self.commit_soon();
            }
        }
        Ok(())
    }

    /// Gives the blocks `[from, to)` a place before they are written.
    pub(super) fn map_unwritten(
        &self,
        state: &mut FileState,
        stream: Option<Stream>,
        (from, to): (u64, u64),
        reserved: &mut Reservation,
    ) {
        let mut at = from;
        for run in self.allocate_blocks(state, stream, (from, to), reserved) {
            let mapped = Mapped {
                len: run.len,
                pag: run.pag,
                addr: run.addr,
                written: false,
                frozen: false,
            };
            state.layout.insert(at, mapped);
            state.push_edit(Edit::Map { segment: to_wire_segment(at, &mapped) });
            at += run.len;
        }
        state.blocks += to - from;
    }
}

impl FileState {
    /// Fails if the operation began in a session that is lost.
    fn check_generation(&self, generation: u64) -> Result<(), Fault> {
        if self.generation == generation { Ok(()) } else { Err(Fault::Evicted) }
    }

    /// The holes among `[from, to)`, without those that a dirty run is about to fill.
    fn holes(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let mut out = Vec::new();
        let mut at = from;
        while at < to {
            if let Some((start, run)) = self.dirty_at(at) {
                at = start + run.blocks();
                continue;
            }
            if self.is_inline(at) {
                at += 1;
                continue;
            }
            let end = self.dirty_from(at, to).map_or(to, |(start, _)| start);
            let piece = self.layout.piece_at(at, end);
            if piece.mapped.is_none() {
                out.push((at, piece.to));
            }
            at = piece.to;
        }
        out
    }
}
