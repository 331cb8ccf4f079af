//! The checkpoint: writes dirty blocks home and moves the log's tail.
//!
//! Invariants:
//! - the checkpoint writes blocks home in sweeps over the device ([`crate::cache::sweep`]), one
//!   batch at a time. The copies of a batch are all the memory that it needs. A sweep that has
//!   begun runs to its end;
//! - the checkpoint writes copies. It makes a copy when the write begins, and writes it only when
//!   the log is durable up to that version. From the copy on the block counts as clean:
//!   its next change logs an image, so redo can always repair a torn home write;
//! - on a rotating disk the checkpoint also writes the few clean blocks between two dirty ones, so
//!   that one request takes both. A torn write of a clean block changes nothing. It may change
//!   meanwhile like any clean block: the next home write begins when this one is stable;
//! - the tail moves only past blocks that a flush has made stable at home: at the end of a sweep,
//!   and earlier if that frees much of the log. The store reuses the log before the tail only when
//!   both superblock copies have the new tail;
//! - a checkpoint begins when log or cache fill up, or when nothing has changed for a while. In
//!   that case it writes everything home, once, so that a restart finds nothing to redo.

use std::ops::Range;
use std::rc::Weak;

use env::Env;
use types::{Bug, Duration, Lsn, MetaBlock, planted};

use crate::cache::Cache;
use crate::cache::sweep::Sweep;
use crate::cost::Cost;
use crate::error::StoreError;
use crate::format::block::{Block, HEADER, lsn_of};
use crate::format::roots::{ROOTS_BLOCK, get_words};
use crate::log::reader::GROUP_BYTES_MAX;
use crate::state::State;
use crate::store::{Background, Inner};

/// After this time without a change, the checkpoint writes everything home.
const IDLE: Duration = Duration::from_secs(5);

/// A sweep begins when this percentage of the log is in use.
const LOG_SWEEP_PERCENT: u64 = 40;
/// The tail moves before the end of a sweep if that frees at least this fraction of the log.
const TAIL_PARTS: u64 = 16;

/// Most clean blocks that the checkpoint also writes to join two requests. On a rotating disk,
/// writing them takes at most a quarter of the time of another request.
pub const BRIDGE_MAX: u64 = 32;
/// The copies of a batch are at most this many times its dirty blocks.
const COPIES_PER_DIRTY: usize = 4;

/// Copies of blocks to be written home.
#[derive(Default)]
struct HomeBatch {
    /// All copies, in the order of addresses.
    copies: Vec<(MetaBlock, Box<Block>)>,
    /// Those blocks of them that were dirty.
    dirty: Vec<MetaBlock>,
    /// The log must be durable up to here before the copies are written.
    lsn: Lsn,
}

/// Why a transaction has to wait for room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shortage {
    /// The running group is full.
    Group,
    /// Log or cache hold too much that is not yet home.
    Home,
}

impl Inner {
    /// Is there room for a transaction of this cost?
    pub(crate) fn has_room(&self, cost: Cost) -> bool {
        self.background.is_none() || self.shortage(cost).is_none()
    }

    fn shortage(&self, cost: Cost) -> Option<Shortage> {
        let state = self.state.borrow();
        let log = &state.log;
        if state.read_only || cost.log_bytes == 0 && cost.dirty == 0 {
            return None;
        }
        if log.group.is_empty() && log.used() == 0 {
            return None;
        }
        let record = u64::from(cost.log_bytes);
        let group_max = (log.bytes / 4).min(GROUP_BYTES_MAX);
        let home = log.used() + record <= log.bytes / 4 * 3
            && record <= group_max
            && state.cache.dirty_or_in_flight() + cost.dirty as usize <= state.cache.capacity() / 2;
        match home {
            false => Some(Shortage::Home),
            true => (log.group.len() as u64 + record > group_max).then_some(Shortage::Group),
        }
    }

    /// Waits until there is room for a transaction of this cost.
    pub(crate) async fn admit(&self, cost: Cost) -> Result<(), StoreError> {
        let Some(background) = &self.background else { return Ok(()) };
        let (mut first, begin) = (None, background.device.env.now());
        while let Some(shortage) = self.shortage(cost) {
            first.get_or_insert(shortage);
            let home = usize::from(shortage == Shortage::Home);
            let progress = {
                let mut state = self.state.borrow_mut();
                state.usable()?;
                state.home_waiters += home;
                state.log.wanted = state.log.end();
                background.flusher.notify_all();
                background.checkpointer.notify_all();
                background.progress.notified()
            };
            let _waiting = HomeWaiter(self, home);
            progress.await;
        }
        let waited = background.device.env.now().since(begin);
        let stats = &mut *self.stats.borrow_mut();
        match first {
            Some(Shortage::Group) => stats.locked.add(waited),
            Some(Shortage::Home) => stats.home.add(waited),
            None => {}
        }
        Ok(())
    }

    /// Is a step of the checkpoint due?
    pub(crate) fn wants_checkpoint(&self) -> bool {
        let state = self.state.borrow();
        if state.read_only || state.poisoned.is_some() {
            return false;
        }
        let can = state.cache.dirty_or_in_flight() > 0
            || state.log.tails[0] != state.log.tails[1]
            || state.log.tails[0] < state.log.durable;
        let pressed = state.sweep.is_some()
            || state.home_waiters > 0
            || state.draining
            || state.log.tails.iter().any(|&tail| tail < state.checkpoint_to)
            || state.log.used() > state.log.bytes / 100 * LOG_SWEEP_PERCENT
            || state.cache.dirty_or_in_flight() > state.cache.capacity() / 4;
        can && pressed
    }

    /// Writes one batch home, and moves the tail if that is due.
    async fn checkpoint_round(&self, background: &Background) -> Result<(), StoreError> {
        let device = &background.device;
        let HomeBatch { copies, dirty, lsn } = self.next_batch();
        if !copies.is_empty() {
            if !planted(Bug::HomeBeforeLog) {
                self.wait_lsn(lsn).await?;
            }
            let roots = copies.iter().find(|(block, _)| *block == ROOTS_BLOCK);
            let roots = roots.map(|(_, data)| get_words(&data[HEADER..]));
            device.write_home(copies).await?;
            if !planted(Bug::TailBeforeFlush) {
                device.flush().await?;
            }
            let mut state = self.state.borrow_mut();
            for block in dirty {
                state.cache.end_home_write(block);
            }
            // The next superblock has a copy of the roots as they are stable at home.
            state.superblock.roots = roots.unwrap_or(state.superblock.roots);
        }
        let (tail, due) = self.next_tail();
        if due { self.move_tail(background, tail).await } else { Ok(()) }
    }

    /// Where redo has to start from now on, and whether to write that to the superblocks now.
    fn next_tail(&self) -> (Lsn, bool) {
        let State { cache, log, sweep, .. } = &mut *self.state.borrow_mut();
        let oldest = cache.oldest_dirty();
        let tail = oldest.map_or(log.durable, |oldest| oldest.since.min(log.durable));
        let freed = tail.0.saturating_sub(log.tails[0].min(log.tails[1]).0);
        (tail, sweep.is_none() || freed >= log.bytes / TAIL_PARTS)
    }

    /// Writes `tail` to both copies of the superblock, one after the other. Before that, a journal
    /// gets a header with the generation that they will know.
    async fn move_tail(&self, background: &Background, tail: Lsn) -> Result<(), StoreError> {
        let Background { device, log: window, .. } = background;
        if window.header().is_some() {
            let header = {
                let State { log, superblock, .. } = &*self.state.borrow();
                let generation = superblock.log_generation + 1;
                (log.tails != [tail; 2]).then_some((generation, log.durable))
            };
            let Some((generation, durable)) = header else { return Ok(()) };
            window.write_header(generation, durable).await?;
            self.state.borrow_mut().superblock.log_generation = generation;
        }
        for _ in 0..2 {
            let (superblock, index) = {
                let mut state = self.state.borrow_mut();
                let index = usize::from(state.log.tails[1] < state.log.tails[0]);
                if state.log.tails[index] == tail {
                    return Ok(());
                }
                state.superblock.tail = tail;
                state.superblock.generation += 1;
                (state.superblock.clone(), index)
            };
            device.write_super(&superblock, index).await?;
            device.flush().await?;
            self.state.borrow_mut().log.tails[index] = tail;
        }
        Ok(())
    }

    /// Copies the next batch of the sweep, or of a new sweep, and the clean blocks that bridge gaps
    /// in it.
    fn next_batch(&self) -> HomeBatch {
        let State { cache, home_batch, sweep, log, bridge, .. } = &mut *self.state.borrow_mut();
        let bridge = if *bridge { BRIDGE_MAX } else { 0 };
        let Some(mut current) = sweep.take().or_else(|| Sweep::begin(cache, log.start)) else {
            return HomeBatch::default();
        };
        let (batch, last) = current.next(cache, *home_batch);
        *sweep = (!last).then_some(current);
        let most = batch.len() * COPIES_PER_DIRTY;
        let mut out = HomeBatch { dirty: batch, ..HomeBatch::default() };
        for at in 0..out.dirty.len() {
            let block = out.dirty[at];
            if let Some(before) = at.checked_sub(1).map(|at| out.dirty[at])
                && block.0 - before.0 - 1 <= bridge
                && out.copies.len() < most
            {
                bridge_gap(cache, before.0 + 1..block.0, &mut out.copies);
            }
            let mut copy = cache.buffer();
            copy.copy_from_slice(cache.begin_home_write(block));
            out.lsn = out.lsn.max(lsn_of(&copy));
            out.copies.push((block, copy));
        }
        out
    }

    /// Requests that everything is written home, if nothing changed since the log ended at `end`.
    fn checkpoint_when_idle(&self, end: Lsn) {
        let state = &mut *self.state.borrow_mut();
        if state.log.end() == end && state.log.durable == end {
            state.checkpoint_to = end;
        }
    }

    /// Is everything home, with both tails at the end of the log?
    pub(crate) fn is_drained(&self) -> bool {
        let state = self.state.borrow();
        state.cache.dirty_or_in_flight() == 0
            && state.log.group.is_empty()
            && state.log.tails == [state.log.durable; 2]
    }
}

/// Copies the blocks of a gap, if all of them are cached and clean.
fn bridge_gap(cache: &mut Cache, gap: Range<u64>, copies: &mut Vec<(MetaBlock, Box<Block>)>) {
    if !gap.clone().all(|block| cache.get_clean(MetaBlock(block)).is_some()) {
        return;
    }
    for block in gap.map(MetaBlock) {
        let mut copy = cache.buffer();
        if let Some(data) = cache.get_clean(block) {
            copy.copy_from_slice(data);
            copies.push((block, copy));
        }
    }
}

/// Counts a caller that waits until blocks are home.
struct HomeWaiter<'a>(&'a Inner, usize);

impl Drop for HomeWaiter<'_> {
    fn drop(&mut self) {
        self.0.state.borrow_mut().home_waiters -= self.1;
    }
}

/// The background task; it ends with the store.
pub(crate) async fn run(env: Env, weak: Weak<Inner>) {
    let Some(wake) = weak.upgrade().and_then(|inner| {
        inner.background.as_ref().map(|background| background.checkpointer.clone())
    }) else {
        return;
    };
    loop {
        let woken = wake.notified();
        let Some(inner) = weak.upgrade() else { return };
        let Some(background) = &inner.background else { return };
        if inner.state.borrow().poisoned.is_some() {
            return;
        }
        if inner.wants_checkpoint() {
            drop(woken);
            let result = inner.checkpoint_round(background).await;
            inner.report_progress(result);
        } else {
            let end = inner.state.borrow().log.end();
            drop(inner);
            if env.timeout(IDLE, woken).await.is_none()
                && let Some(inner) = weak.upgrade()
            {
                inner.checkpoint_when_idle(end);
            }
        }
    }
}
