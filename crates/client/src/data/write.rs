//! Accepting writes.
//!
//! A write first gets everything that may have to be waited for (its share of the
//! dirty budget, blocks of the pool, the old content of blocks that it covers in
//! part); then, without waiting, it checks that nothing of this changed and puts
//! its bytes into the dirty runs. What changed is got anew. So is the end of the
//! file, for an append: the kernel keeps a truncation of the same client from an
//! append only as long as the appending process lives.
//!
//! Invariants: after acceptance a write cannot fail for space or memory; the
//! blocks of dirty runs are whole: what the write did not give is the old content,
//! or zeros.

use std::cell::Cell;
use std::rc::Rc;

use env::IoBuf;
use types::limits::{BLOCK, BLOCK_U64, FILE_SIZE_MAX};
use types::{Bug, Fault, planted};

use super::budget::Claim;
use super::file::{Fetched, File, Run, State, blocks_of};
use super::launch::RUN_BLOCKS;
use super::pool::Reserved;
use crate::api::Edited;

/// A write of at least so many bytes goes to the device at once, without a copy.
const DIRECT_MIN: usize = 128 << 10;
/// A write of fewer bytes is copied behind the run that it continues.
const APPEND_MAX: usize = 64 << 10;
/// How often a write is sent as content, for want of a block, before it fails.
const SENDS: u32 = 4;

/// Where the old content of a block is.
enum Old {
    /// In a dirty run: it need not be brought in.
    Dirty,
    /// There is none: zeros.
    Zero,
    /// With the inode: it is known.
    Inline,
    /// On the device.
    Fetch,
}

/// Where the bytes of a write go.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    /// The first byte, and the byte behind the last.
    start: u64,
    end: u64,
    /// The first block, and the block behind the last.
    first: u64,
    last: u64,
}

impl Place {
    fn len(&self) -> usize {
        (self.end - self.start) as usize
    }
}

/// What a write needs before it can be put in.
pub(super) enum Lack {
    Nothing,
    Space(u64),
    Content(u64),
}

/// What a write brought together.
pub(super) struct Means {
    /// Share of the dirty budget.
    pub claim: Claim,
    /// Blocks.
    pub reserved: Reserved,
    /// Old contents.
    pub fetched: Vec<Fetched>,
}

impl Means {
    fn content(&self, block: u64) -> Option<&IoBuf> {
        self.fetched
            .iter()
            .find(|fetched| fetched.block == block && !fetched.stale.get())
            .map(|fetched| &fetched.buf)
    }
}

impl File {
    /// Writes the first `len` bytes of `data` at `offset`, or at the end; where they
    /// went, and how many. Fails with `NoSpace`, `FileTooBig`, `Io`, `Evicted`.
    pub async fn write(
        self: &Rc<Self>,
        offset: Option<u64>,
        data: IoBuf,
        len: usize,
    ) -> Result<(u64, u32), Fault> {
        // From here on it waits: what is lost meanwhile takes it along.
        let generation = self.state.borrow().generation;
        let _turn = match offset {
            None => Some(self.append.lock().await),
            Some(_) => None,
        };
        let len = len.min(data.len());
        let place = self.state.borrow().place(offset, len)?;
        if len == 0 {
            return Ok((place.start, 0));
        }
        // One block more: the old last block may have to be zeroed behind the old size. An append
        // may come to begin anywhere in a block.
        let blocks = match offset {
            None => (len as u64).div_ceil(BLOCK_U64) + 1,
            Some(_) => place.last - place.first + 1,
        };
        let claim = self.ctx.budget.claim(blocks * BLOCK_U64, || self.ctx.press()).await;
        let mut means = Means { claim, reserved: self.ctx.pool.nothing(), fetched: Vec::new() };
        let mut data = Some(data);
        let (mut sends, mut sent) = (SENDS, false);
        let place = loop {
            if self.state.borrow().generation != generation {
                return Err(Fault::Evicted);
            }
            let place = self.state.borrow().place(offset, len)?;
            self.ensure_known(place.first, place.last).await?;
            let lack = {
                let mut state = self.state.borrow_mut();
                if state.generation != generation || !means.reserved.is_valid() {
                    return Err(Fault::Evicted);
                }
                if state.place(offset, len)? != place {
                    continue;
                }
                let lack = state.lacks(&means, place.start, place.end);
                if matches!(lack, Lack::Nothing) {
                    let data = data.take().expect("put in once");
                    self.put(&mut state, means, place.start, data, place.len());
                    break place;
                }
                lack
            };
            let bytes = &data.as_ref().expect("not put in yet")[..place.len()];
            if matches!(lack, Lack::Space(_)) && sends > 0 && self.ctx.is_scarce() {
                sends -= 1;
                if self.send_content(generation, place.start, bytes).await {
                    sent = true;
                    continue;
                }
            }
            match self.fill(&mut means, lack).await {
                Err(Fault::NoSpace)
                    if sends > 0 && self.send_content(generation, place.start, bytes).await =>
                {
                    sends -= 1;
                    sent = true;
                }
                Err(Fault::NoSpace) if sent => {
                    self.unsend_content();
                    return Err(Fault::NoSpace);
                }
                other => other?,
            }
        };
        self.enqueue();
        Ok((place.start, place.len() as u32))
    }

    /// Makes the bytes `[from, to)` zero where they are not, and, if `to` is beyond the size,
    /// nothing: for edges of punched ranges and the last block. Both lie in one block.
    pub(super) async fn zero_in_block(self: &Rc<Self>, from: u64, to: u64) -> Result<(), Fault> {
        self.zero_while(from, to, |_| true).await
    }

    /// Makes what the last block holds behind `size` zero, as long as that is the size: what others
    /// append meanwhile stays.
    pub(super) async fn zero_behind(self: &Rc<Self>, size: u64) -> Result<(), Fault> {
        let end = size.next_multiple_of(BLOCK_U64);
        self.zero_while(size, end, |state| state.size == size).await
    }

    /// As [`File::zero_in_block`], unless `holds` no longer.
    async fn zero_while(
        self: &Rc<Self>,
        from: u64,
        to: u64,
        holds: impl Fn(&State) -> bool,
    ) -> Result<(), Fault> {
        let block = from / BLOCK_U64;
        debug_assert!(to <= (block + 1) * BLOCK_U64 && from < to);
        let mut means = self.no_means();
        loop {
            self.ensure_loaded(block + 1).await?;
            let lack = {
                let mut state = self.state.borrow_mut();
                let zero = !state.has_content(block) || state.ends_inline(block, from % BLOCK_U64);
                if zero || !holds(&state) {
                    return Ok(());
                }
                if !means.reserved.is_valid() {
                    return Err(Fault::Evicted);
                }
                let lack = state.lacks_block(&means, block);
                if matches!(lack, Lack::Nothing) {
                    let at = (block * BLOCK_U64, from, to);
                    self.put_zeros(&mut state, means, at.0, at.1, at.2);
                    self.ctx.edited(self.ino, Edited::Bytes { from, to });
                    break;
                }
                lack
            };
            self.fill(&mut means, lack).await?;
        }
        self.enqueue();
        Ok(())
    }

    /// Nothing yet, with one block of the budget beyond its bound.
    pub(super) fn no_means(self: &Rc<Self>) -> Means {
        Means {
            claim: self.ctx.budget.force(BLOCK_U64),
            reserved: self.ctx.pool.nothing(),
            fetched: Vec::new(),
        }
    }

    /// Gets what is lacking.
    pub(super) async fn fill(self: &Rc<Self>, means: &mut Means, lack: Lack) -> Result<(), Fault> {
        match lack {
            Lack::Nothing => {}
            Lack::Space(blocks) => {
                let more = self.ctx.reserve(blocks).await?;
                means.reserved.merge(more);
            }
            Lack::Content(block) => {
                means.fetched.retain(|fetched| fetched.block != block);
                let fetched = self.fetch(block).await?;
                means.fetched.push(fetched);
            }
        }
        Ok(())
    }

    /// Reads a block as it is on the device, after writes to it that are in flight. If the
    /// block changes until the result is dropped, that is marked.
    async fn fetch(self: &Rc<Self>, block: u64) -> Result<Fetched, Fault> {
        let stale = Rc::new(Cell::new(false));
        let (piece, guard) = loop {
            let changed = self.changed.notified();
            {
                let mut state = self.state.borrow_mut();
                if state.dirty_at(block).is_some() {
                    // Another write came meanwhile: what is on the device is not what the block
                    // holds.
                    stale.set(true);
                    return Ok(Fetched { block, buf: self.ctx.env.buffer(0), stale });
                }
                if !state.is_writing(block, block + 1) {
                    state.fetched.push((block, Rc::downgrade(&stale)));
                    let mapped = state.layout.at(block);
                    let guard = self.begin_read(&mut state, block, block + 1);
                    break (mapped, guard);
                }
            }
            changed.await;
        };
        let buf = self.ctx.env.buffer(BLOCK);
        let mut buf = match piece {
            Some(mapped) if mapped.written => {
                self.ctx.lease().await?;
                let disk = self.ctx.disks.get(mapped.pag)?.clone();
                let (result, buf) = disk.read(mapped.addr, buf).await;
                result?;
                buf
            }
            _ => buf,
        };
        drop(guard);
        // What an interrupted write may have left behind the size is not content.
        let size = self.size().saturating_sub(block * BLOCK_U64);
        if size < BLOCK_U64 {
            buf[size as usize..].fill(0);
        }
        Ok(Fetched { block, buf, stale })
    }

    /// Puts the bytes of a write into the dirty runs. Everything needed is there.
    fn put(
        self: &Rc<Self>,
        state: &mut State,
        mut means: Means,
        offset: u64,
        mut data: IoBuf,
        len: usize,
    ) {
        let end = offset + len as u64;
        self.ctx.edited(self.ino, Edited::Bytes { from: offset, to: end });
        if state.has_room_inline(end) {
            let held = self.held_at_rest(means.claim.split(BLOCK_U64));
            state.put_at_rest(offset as usize, &data[..len], held);
            state.mark_stale(0, 1);
            self.grow(state, end);
            state.disk_size = state.disk_size.max(end);
            return self.accepted(state);
        }
        if let Some(block) = state.stale_tail(offset) {
            let old = state.size;
            let (claim, reserved) = (means.claim.split(BLOCK_U64), self.ctx.pool.nothing());
            let mut sub = Means { claim, reserved, fetched: Vec::new() };
            sub.reserved.merge(means.reserved.split(state.layout.unplaced(block, block + 1)));
            sub.fetched = means.fetched.extract_if(.., |f| f.block == block).collect();
            self.put_zeros(state, sub, block * BLOCK_U64, old, (block + 1) * BLOCK_U64);
        }
        let (first, last) = blocks_of(offset, end);
        let head = (offset - first * BLOCK_U64) as usize;
        let tail = (last * BLOCK_U64 - end) as usize;
        let adopt = head == 0
            && data.capacity() >= len + tail
            && data.capacity() <= 2 * (len + tail)
            && (len >= APPEND_MAX || state.dirty_from(first, last).is_none());
        let joins = state.run_to_join(first, last).filter(|_| !adopt || len < APPEND_MAX);
        let start = if let Some(start) = joins {
            self.put_into(state, &mut means, start, offset, &data[..len]);
            start
        } else {
            let last_old = (tail > 0).then(|| state.old_copy(&self.ctx.env, &means, last - 1));
            let bytes = len + head + tail;
            let buf = if adopt {
                data.set_len(bytes);
                data
            } else {
                let mut buf = self.ctx.env.buffer(bytes);
                if head > 0 {
                    let old = state.old_copy(&self.ctx.env, &means, first);
                    buf[..head].copy_from_slice(&old[..head]);
                }
                buf[head..head + len].copy_from_slice(&data[..len]);
                buf
            };
            let mut buf = buf;
            if let Some(old) = last_old {
                buf[bytes - tail..].copy_from_slice(&old[BLOCK - tail..]);
            }
            self.insert_run(state, &mut means, first, buf);
            first
        };
        state.mark_stale(first, last);
        state.touch_blocks(first, last);
        self.grow(state, end);
        self.accepted(state);
        let soon = self.fsync_expected(state);
        let run = state.dirty.get_mut(&start).expect("put in above");
        let large = run.blocks() >= RUN_BLOCKS || (adopt && len >= DIRECT_MIN);
        if large || soon || self.ctx.budget.pressed() {
            run.wanted = true;
            self.launch(state, start);
        }
    }

    /// A write was put in.
    fn accepted(&self, state: &mut State) {
        state.touch(self.stamp());
        state.writes = state.writes.saturating_add(1);
    }

    /// Puts bytes into the run at `start`, which they overlap or continue; the run grows as needed.
    fn put_into(&self, state: &mut State, means: &mut Means, start: u64, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        let (first, last) = blocks_of(offset, end);
        let run_end = start + state.dirty[&start].blocks();
        if last > run_end {
            // Old contents of the edges that lie outside the run.
            let head = first >= run_end && !offset.is_multiple_of(BLOCK_U64);
            let head = head.then(|| state.old_copy(&self.ctx.env, means, first));
            let whole = end.is_multiple_of(BLOCK_U64) || (head.is_some() && last - 1 == first);
            let tail = (!whole).then(|| state.old_copy(&self.ctx.env, means, last - 1));
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
                means.claim.merge(claim);
                means.reserved.merge(reserved);
            }
            run.claim.merge(means.claim.split(added));
            state.dirty.insert(start, run);
        }
        let run = state.dirty.get_mut(&start).expect("given");
        let places = state.layout.unplaced(start, start + run.blocks());
        run.reserved.merge(means.reserved.split(places.saturating_sub(run.reserved.blocks())));
        let at = (offset - start * BLOCK_U64) as usize;
        run.buf[at..at + data.len()].copy_from_slice(data);
    }

    /// Inserts whole blocks as a run of their own, over what was dirty there.
    pub(super) fn insert_run(&self, state: &mut State, means: &mut Means, first: u64, buf: IoBuf) {
        let last = first + (buf.len() / BLOCK) as u64;
        if let Some((claim, reserved)) = state.cut_dirty(first, last) {
            means.claim.merge(claim);
            means.reserved.merge(reserved);
        }
        if first == 0
            && let Some(place) = state.take_held_place()
        {
            means.reserved.merge(place);
        }
        let seq = state.next_seq;
        state.next_seq += 1;
        let run = Run {
            claim: means.claim.split(buf.len() as u64),
            reserved: means.reserved.split(state.layout.unplaced(first, last)),
            buf,
            seq,
            wanted: false,
        };
        state.dirty.insert(first, run);
    }

    /// Zeroes bytes `[from, to)` of the block that starts at byte `base`. What lies with the inode
    /// ends at the size.
    pub(super) fn put_zeros(
        self: &Rc<Self>,
        state: &mut State,
        mut means: Means,
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
        } else if state.is_at_rest_inline(block) {
            state.zero_inline(a, b, self.held_at_rest(means.claim));
        } else {
            let mut buf = state.old_copy(&self.ctx.env, &means, block);
            buf[a..b].fill(0);
            self.insert_run(state, &mut means, block, buf);
        }
        state.mark_stale(block, block + 1);
    }

    /// The size is at least `end`: bytes up to there were just accepted.
    fn grow(&self, state: &mut State, end: u64) {
        if end > state.size {
            state.size = end;
            state.tail_zero = true;
        }
    }
}

impl State {
    /// The old last block, if bytes behind the size in it may not be zero on the device and
    /// something at `offset`, beyond that block, is about to move the size past them.
    pub(super) fn stale_tail(&self, offset: u64) -> Option<u64> {
        let block = self.size / BLOCK_U64;
        let stale = !self.tail_zero
            && !self.size.is_multiple_of(BLOCK_U64)
            && offset >= (block + 1) * BLOCK_U64
            && self.dirty_at(block).is_none()
            && self.layout.at(block).is_some_and(|mapped| mapped.written);
        stale.then_some(block)
    }

    /// Might the block hold other bytes than zeros?
    pub(super) fn has_content(&self, block: u64) -> bool {
        self.dirty_at(block).is_some()
            || self.is_writing(block, block + 1)
            || self.is_inline(block)
            || self.layout.at(block).is_some_and(|mapped| mapped.written)
    }

    /// Where `len` bytes at `offset` go, or at the end as it is now: as many of them as a file
    /// holds. Fails with `FileTooBig`, if that is none.
    fn place(&self, offset: Option<u64>, len: usize) -> Result<Place, Fault> {
        let old_end = planted(Bug::AppendAtOldEnd);
        let start = offset.unwrap_or(if old_end { self.server_size } else { self.size });
        if start >= FILE_SIZE_MAX && len > 0 {
            return Err(Fault::FileTooBig);
        }
        let end = start.saturating_add(len as u64).min(FILE_SIZE_MAX);
        let (first, last) = blocks_of(start, end);
        Ok(Place { start, end, first, last })
    }

    fn old(&self, block: u64) -> Old {
        if self.dirty_at(block).is_some() {
            return Old::Dirty;
        }
        if block * BLOCK_U64 >= self.size {
            return Old::Zero;
        }
        if self.is_inline(block) {
            return Old::Inline;
        }
        match self.layout.at(block) {
            Some(mapped) if mapped.written => Old::Fetch,
            _ => Old::Zero,
        }
    }

    /// What `block` holds now: it need not be fetched, or was.
    fn old_copy(&self, env: &env::Env, means: &Means, block: u64) -> IoBuf {
        let mut out = env.buffer(BLOCK);
        match self.old(block) {
            Old::Dirty => {
                let (start, run) = self.dirty_at(block).expect("dirty");
                let at = (block - start) as usize * BLOCK;
                out.copy_from_slice(&run.buf[at..at + BLOCK]);
            }
            Old::Zero => {}
            Old::Inline => out = self.inline_block(env),
            Old::Fetch => {
                if let Some(content) = means.content(block) {
                    out.copy_from_slice(content);
                } else if let Some((_, tail)) = self.tail.as_ref().filter(|(b, _)| *b == block) {
                    out.copy_from_slice(tail);
                } else {
                    unreachable!("checked by `lacks`");
                }
            }
        }
        out
    }

    /// Is the old content of `block` at hand?
    fn at_hand(&self, means: &Means, block: u64) -> bool {
        !matches!(self.old(block), Old::Fetch)
            || means.content(block).is_some()
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
        let held =
            from == 0 && need > 0 && self.layout.at(0).is_none() && self.dirty_at(0).is_none();
        need - if held { self.held_place().min(1) } else { 0 }
    }

    fn lacks(&self, means: &Means, offset: u64, end: u64) -> Lack {
        if self.has_room_inline(end) {
            return Lack::Nothing;
        }
        let (first, last) = blocks_of(offset, end);
        let mut need = self.unreserved(first, last);
        let stale_tail = self.stale_tail(offset);
        if let Some(block) = stale_tail {
            need += self.unreserved(block, block + 1);
        }
        if need > means.reserved.blocks() {
            return Lack::Space(need - means.reserved.blocks());
        }
        let head = (!offset.is_multiple_of(BLOCK_U64)).then_some(first);
        let tail = (!end.is_multiple_of(BLOCK_U64)).then(|| last - 1);
        for block in head.into_iter().chain(tail).chain(stale_tail) {
            if !self.at_hand(means, block) {
                return Lack::Content(block);
            }
        }
        Lack::Nothing
    }

    /// What zeroing a part of `block` lacks.
    pub(super) fn lacks_block(&self, means: &Means, block: u64) -> Lack {
        if self.dirty_at(block).is_some() || self.is_at_rest_inline(block) {
            return Lack::Nothing;
        }
        let need = self.unreserved(block, block + 1);
        if need > means.reserved.blocks() {
            Lack::Space(need - means.reserved.blocks())
        } else if self.at_hand(means, block) {
            Lack::Nothing
        } else {
            Lack::Content(block)
        }
    }

    /// The dirty run into which blocks `[first, last)` can be put: it holds the first of them
    /// or ends there, and does not become too long.
    fn run_to_join(&self, first: u64, last: u64) -> Option<u64> {
        let (&start, run) = self.dirty.range(..=first).next_back()?;
        let end = start + run.blocks();
        let fits = first <= end && (last <= end || last - start <= RUN_BLOCKS);
        (fits && !(first == end && run.wanted)).then_some(start)
    }
}
