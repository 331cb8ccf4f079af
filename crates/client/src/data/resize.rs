//! Changes of size and layout that carry no bytes: truncation, fallocate.
//!
//! Invariants:
//! - blocks leave a file only when no read or write of them is in flight;
//! - bytes behind the size in the last block are zero before the size passes them;
//! - a file is cut off and zeroed behind its new end in one step, which no reader sees in part;
//! - what is allocated ahead reads as zeros;
//! - a range is zeroed, and the size that the file gets by it set, while nobody reads it: no
//!   process of this host sees the one without the other;
//! - no append comes between the zeroing of a range and the size that the file gets by it: the
//!   kernel keeps appends from it only as long as the appending process lives;
//! - what waited while its session was lost changes nothing in the next one.

use std::rc::Rc;

use proto::mds::Edit;
use types::limits::{BLOCK_U64, FILE_SIZE_MAX};
use types::{Bug, Fault, FileBlock, planted};

use super::extents::{Mapped, to_extent};
use super::file::{File, State};
use super::write::Lack;
use crate::api::Edited;

/// `FALLOC_FL_KEEP_SIZE`.
const KEEP_SIZE: u32 = 1;
/// `FALLOC_FL_PUNCH_HOLE`.
const PUNCH_HOLE: u32 = 2;
/// `FALLOC_FL_ZERO_RANGE`.
const ZERO_RANGE: u32 = 16;
/// Blocks allocated ahead in one step: 256 MiB.
const STEP: u64 = 65_536;
/// Edits not yet sent from which on the commit is not put off.
const LOG_MANY: usize = 4096;

impl File {
    /// Sets the size. Waits for devices only; never for the server, unless a block of a frozen
    /// file has to be copied.
    pub async fn set_size(self: &Rc<Self>, size: u64) -> Result<(), Fault> {
        if size > FILE_SIZE_MAX {
            return Err(Fault::FileTooBig);
        }
        if size == 0 {
            // Nothing of what was lost would be there.
            self.report_loss();
        }
        let generation = self.state.borrow().generation;
        // Something else may change the size between the steps: then the step is chosen anew.
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
        self.state.borrow_mut().touch(self.stamp());
        self.enqueue();
        Ok(())
    }

    /// Makes the file shorter; `false` if it was not longer any more. Its last block is zeroed
    /// behind the new size in the same step, so that nobody sees the one without the other.
    async fn shrink(self: &Rc<Self>, size: u64, generation: u64) -> Result<bool, Fault> {
        let from = size.div_ceil(BLOCK_U64);
        let cut = !size.is_multiple_of(BLOCK_U64) && !planted(Bug::TailNotZeroed);
        let mut means = self.no_means();
        loop {
            self.ensure_loaded(from).await?;
            self.settled(from, u64::MAX).await;
            let lack = {
                let mut state = self.state.borrow_mut();
                state.goes_on(generation)?;
                if !means.reserved.is_valid() {
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
                let lack = last.map_or(Lack::Nothing, |last| state.lacks_block(&means, last));
                if matches!(lack, Lack::Nothing) {
                    state.size = size;
                    state.disk_size = state.disk_size.min(size);
                    state.tail_zero = true;
                    if let Some(last) = last {
                        let base = last * BLOCK_U64;
                        self.put_zeros(&mut state, means, base, size, base + BLOCK_U64);
                    }
                    self.unmap(&mut state, from, u64::MAX);
                    self.ctx.edited(self.ino, Edited::Size(size));
                    return Ok(true);
                }
                lack
            };
            self.fill(&mut means, lack).await?;
        }
    }

    async fn extend(self: &Rc<Self>, size: u64, generation: u64) -> Result<(), Fault> {
        loop {
            let tail = {
                let mut state = self.state.borrow_mut();
                state.goes_on(generation)?;
                let old = state.size;
                if size <= old {
                    return Ok(());
                }
                let block = old / BLOCK_U64;
                let known = state.tail_zero || old.is_multiple_of(BLOCK_U64);
                if known || state.loaded_to > block && !state.has_content(block) {
                    state.size = size;
                    state.disk_size = size;
                    state.tail_zero = true;
                    self.ctx.edited(self.ino, Edited::Size(size));
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

    /// Makes blocks `[from, to)` a hole. Nothing may be in flight there.
    fn unmap(self: &Rc<Self>, state: &mut State, from: u64, to: u64) {
        if from >= to {
            return;
        }
        if to < u64::MAX && planted(Bug::HoleNotPunched) {
            return;
        }
        state.mark_stale(from, to);
        drop(state.cut_dirty(from, to));
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

    /// fallocate(2): allocate, punch a hole, zero a range. What fails may have done a part of it.
    /// Fails `NotSupported` for other modes, before anything is done.
    pub async fn fallocate(self: &Rc<Self>, mode: u32, offset: u64, len: u64) -> Result<(), Fault> {
        let Some(end) = offset.checked_add(len).filter(|&end| end <= FILE_SIZE_MAX) else {
            return Err(Fault::FileTooBig);
        };
        if len == 0 {
            return Err(Fault::Invalid);
        }
        let keep = mode & KEEP_SIZE != 0;
        let generation = self.state.borrow().generation;
        // An append comes before the range is zeroed, or goes to the end that the file gets.
        let _turn = if keep { None } else { Some(self.append.lock().await) };
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
        // What was done before it failed stays.
        if self.state.borrow().goes_on(generation).is_ok() {
            self.state.borrow_mut().touch(self.stamp());
            self.enqueue();
        }
        done
    }

    /// Bytes `[from, to)` read as zeros, and whole blocks among them are free.
    async fn punch(self: &Rc<Self>, from: u64, to: u64, generation: u64) -> Result<(), Fault> {
        while !self.try_punch(from, to, generation).await? {}
        Ok(())
    }

    /// As [`File::punch`]; `false`: the file grew meanwhile beyond what was taken for its end.
    async fn try_punch(
        self: &Rc<Self>,
        from: u64,
        end: u64,
        generation: u64,
    ) -> Result<bool, Fault> {
        // Behind the size there are only zeros: the last block may go whole.
        let to = if end >= self.size() { end.next_multiple_of(BLOCK_U64) } else { end };
        let first = from.div_ceil(BLOCK_U64);
        let last = to / BLOCK_U64;
        if first > last {
            return self.zero_in_block(from, to).await.map(|()| true);
        }
        if from < first * BLOCK_U64 {
            // What is behind `end` may be appended meanwhile.
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
            self.settled(first, last).await;
            let mut state = self.state.borrow_mut();
            state.goes_on(generation)?;
            if to > end && state.size > end {
                return Ok(false);
            }
            if !state.is_writing(first, last) && !state.is_reading(first, last) {
                self.unmap(&mut state, first, last);
                let (from, to) = (first * BLOCK_U64, last * BLOCK_U64);
                self.ctx.edited(self.ino, Edited::Bytes { from, to });
                return Ok(true);
            }
        }
    }

    /// Gives the holes among blocks `[from, to)` unwritten blocks. What was allocated before
    /// space ran out stays.
    async fn allocate(self: &Rc<Self>, from: u64, to: u64, generation: u64) -> Result<(), Fault> {
        let mut at = from;
        let mut reserved = self.ctx.pool.nothing();
        if from == 0 && to > 0 {
            self.move_out().await?;
        }
        while at < to {
            let step = to.min(at + STEP);
            self.ensure_loaded(step).await?;
            let lack = {
                let mut state = self.state.borrow_mut();
                state.goes_on(generation)?;
                if !reserved.is_valid() {
                    return Err(Fault::Evicted);
                }
                let holes = state.holes(at, step);
                let need: u64 = holes.iter().map(|(from, to)| to - from).sum();
                let lack = need.saturating_sub(reserved.blocks());
                if lack == 0 {
                    for (from, to) in holes {
                        self.map_unwritten(&mut state, from, to, &mut reserved);
                    }
                }
                lack
            };
            if lack > 0 {
                let more = self.ctx.reserve(lack).await?;
                reserved.merge(more);
                continue;
            }
            at = step;
            if self.state.borrow().log.len() >= LOG_MANY {
                self.hurry();
            }
        }
        Ok(())
    }

    fn map_unwritten(
        &self,
        state: &mut State,
        from: u64,
        to: u64,
        reserved: &mut super::pool::Reserved,
    ) {
        let after = state.layout.end_before(from);
        let mut at = from;
        for run in self.ctx.pool.allocate(self.ino, to - from, after, reserved) {
            let mapped = Mapped {
                len: run.len,
                pag: run.pag,
                addr: run.addr,
                written: false,
                frozen: false,
            };
            state.layout.insert(at, mapped);
            state.push_edit(Edit::Map { extent: to_extent(at, &mapped) });
            at += run.len;
        }
        state.blocks += to - from;
    }
}

impl State {
    /// Is this the session in which it began?
    fn goes_on(&self, generation: u64) -> Result<(), Fault> {
        if self.generation == generation { Ok(()) } else { Err(Fault::Evicted) }
    }

    /// The holes among `[from, to)` that no dirty run is about to fill.
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
