//! The checkpoint: brings dirty blocks home and moves the log's tail.
//!
//! Invariants:
//! - blocks go home in sweeps over the device ([`crate::sweep`]), a batch at a time, whose copies
//!   are all the memory that takes; a sweep that began goes on to its end;
//! - what goes home is a copy, made when the block leaves; the log is durable up
//!   to that copy before it is written. From then on the block counts as clean:
//!   its next change logs an image, so a torn home write can always be mended;
//! - on a disk with heads, clean blocks that lie between two that go home are written with them, as
//!   they are at home, so that one request takes both: nothing of them changes, however it is torn,
//!   and they may change meanwhile as any clean block may, for what is written next begins when
//!   this is stable;
//! - the tail moves only over blocks that a flush has made stable at home: when a sweep has ended,
//!   and earlier if much of the log comes free; the log's space behind it is reused only when both
//!   superblock copies say so;
//! - it begins when log or cache fill up, or when nothing has changed for a while: then
//!   everything goes home, once, so that a restart finds nothing to redo.

use std::ops::Range;
use std::rc::Weak;

use env::Env;
use types::{Bug, Duration, Lsn, MetaBlock, planted};

use crate::block::{Block, HEADER, lsn_of};
use crate::cache::Cache;
use crate::error::StoreError;
use crate::mfs::{Background, Cost, Inner};
use crate::recovery::GROUP_BYTES_MAX;
use crate::roots::{ROOTS_BLOCK, get_words};
use crate::state::State;
use crate::sweep::Sweep;

/// Blocks of one batch, if the opening says nothing else.
pub(crate) const BATCH: usize = 1024;
/// Without a change for so long, everything goes home.
const CALM: Duration = Duration::from_secs(5);

/// The log is this full, in hundredths, when a sweep begins.
const LOG_SWEPT: u64 = 40;
/// Of the log so many parts come free, or the tail waits for the end of the sweep.
const TAIL_PARTS: u64 = 16;

/// So many clean blocks at most are bridged to join two requests: on a disk with heads writing them
/// takes a quarter of what another request takes, or less.
const BRIDGE_MAX: u64 = 32;
/// All copies of a batch are at most so many times those that have to go home.
const BRIDGED_TIMES: usize = 4;

/// Copies of blocks that are on their way home.
#[derive(Default)]
struct Departed {
    /// All that are written, in the order of addresses.
    copies: Vec<(MetaBlock, Box<Block>)>,
    /// Those of them that were dirty.
    own: Vec<MetaBlock>,
    /// The log must be durable up to here before.
    lsn: Lsn,
}

/// What there is too little of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lack {
    /// The running group is full.
    Group,
    /// Log or cache hold too much that is not at home.
    Home,
}

impl Inner {
    /// Is there room for a transaction of this cost?
    pub(crate) fn has_room(&self, cost: Cost) -> bool {
        self.background.is_none() || self.lacks(cost).is_none()
    }

    fn lacks(&self, cost: Cost) -> Option<Lack> {
        let state = self.state.borrow();
        let log = &state.log;
        if state.read_only || cost.journal == 0 && cost.dirty == 0 {
            return None;
        }
        if log.group.is_empty() && log.used() == 0 {
            return None;
        }
        let journal = u64::from(cost.journal);
        let group_max = (log.bytes / 4).min(GROUP_BYTES_MAX);
        let home = log.used() + journal <= log.bytes / 4 * 3
            && journal <= group_max
            && state.cache.unsettled() + cost.dirty as usize <= state.cache.capacity() / 2;
        match home {
            false => Some(Lack::Home),
            true => (log.group.len() as u64 + journal > group_max).then_some(Lack::Group),
        }
    }

    /// Waits until there is room for a transaction of this cost.
    pub(crate) async fn admit(&self, cost: Cost) -> Result<(), StoreError> {
        let Some(background) = &self.background else { return Ok(()) };
        while let Some(lack) = self.lacks(cost) {
            let home = usize::from(lack == Lack::Home);
            let progress = {
                let mut state = self.state.borrow_mut();
                state.usable()?;
                state.waiting += home;
                state.log.wanted = state.log.end();
                background.flusher.notify_all();
                background.checkpointer.notify_all();
                background.progress.notified()
            };
            let _waiting = Waiting(self, home);
            progress.await;
        }
        Ok(())
    }

    /// Is a round of the checkpoint due?
    pub(crate) fn wants_checkpoint(&self) -> bool {
        let state = self.state.borrow();
        if state.read_only || state.poisoned.is_some() {
            return false;
        }
        let can = state.cache.unsettled() > 0
            || state.log.tails[0] != state.log.tails[1]
            || state.log.tails[0] < state.log.durable;
        let pressed = state.sweep.is_some()
            || state.waiting > 0
            || state.draining
            || state.log.tails.iter().any(|&tail| tail < state.settle)
            || state.log.used() > state.log.bytes / 100 * LOG_SWEPT
            || state.cache.unsettled() > state.cache.capacity() / 4;
        can && pressed
    }

    /// Brings one batch home, and moves the tail if that is due.
    async fn round(&self, background: &Background) -> Result<(), StoreError> {
        let device = &background.device;
        let Departed { copies, own, lsn } = self.depart();
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
            for block in own {
                state.cache.arrived(block);
            }
            // The next superblock repeats what is stable at home.
            state.superblock.roots = roots.unwrap_or(state.superblock.roots);
        }
        let (tail, due) = self.next_tail();
        if due { self.move_tail(background, tail).await } else { Ok(()) }
    }

    /// Where redo has to start from now on, and whether the superblocks shall say so now.
    fn next_tail(&self) -> (Lsn, bool) {
        let State { cache, log, sweep, .. } = &mut *self.state.borrow_mut();
        let oldest = cache.oldest_dirty();
        let tail = oldest.map_or(log.durable, |oldest| oldest.since.min(log.durable));
        let freed = tail.0.saturating_sub(log.tails[0].min(log.tails[1]).0);
        (tail, sweep.is_none() || freed >= log.bytes / TAIL_PARTS)
    }

    /// Has both copies of the superblock say `tail`, one after the other.
    async fn move_tail(&self, background: &Background, tail: Lsn) -> Result<(), StoreError> {
        let device = &background.device;
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

    /// Takes copies of the next batch of the sweep, or of a new one, and of clean blocks that
    /// bridge gaps in it.
    fn depart(&self) -> Departed {
        let State { cache, home_batch, sweep, log, bridge, .. } = &mut *self.state.borrow_mut();
        let bridge = if *bridge { BRIDGE_MAX } else { 0 };
        let Some(mut current) = sweep.take().or_else(|| Sweep::begin(cache, log.start)) else {
            return Departed::default();
        };
        let (batch, last) = current.next(cache, *home_batch);
        *sweep = (!last).then_some(current);
        let most = batch.len() * BRIDGED_TIMES;
        let mut out = Departed { own: batch, ..Departed::default() };
        for at in 0..out.own.len() {
            let block = out.own[at];
            if let Some(before) = at.checked_sub(1).map(|at| out.own[at])
                && block.0 - before.0 - 1 <= bridge
                && out.copies.len() < most
            {
                bridge_gap(cache, before.0 + 1..block.0, &mut out.copies);
            }
            let mut copy = cache.buffer();
            copy.copy_from_slice(cache.depart(block));
            out.lsn = out.lsn.max(lsn_of(&copy));
            out.copies.push((block, copy));
        }
        out
    }

    /// Nothing has changed since the log ended at `end`: everything up to there shall go home.
    fn calmed(&self, end: Lsn) {
        let state = &mut *self.state.borrow_mut();
        if state.log.end() == end && state.log.durable == end {
            state.settle = end;
        }
    }

    /// Has everything gone home, with both tails at the end of the log?
    pub(crate) fn is_drained(&self) -> bool {
        let state = self.state.borrow();
        state.cache.unsettled() == 0
            && state.log.group.is_empty()
            && state.log.tails == [state.log.durable; 2]
    }
}

/// Copies of these blocks, if all of them are cached as they are at home.
fn bridge_gap(cache: &mut Cache, gap: Range<u64>, copies: &mut Vec<(MetaBlock, Box<Block>)>) {
    if !gap.clone().all(|block| cache.at_home(MetaBlock(block)).is_some()) {
        return;
    }
    for block in gap.map(MetaBlock) {
        let mut copy = cache.buffer();
        if let Some(data) = cache.at_home(block) {
            copy.copy_from_slice(data);
            copies.push((block, copy));
        }
    }
}

/// Counts a caller that waits for blocks to go home.
struct Waiting<'a>(&'a Inner, usize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state.borrow_mut().waiting -= self.1;
    }
}

/// The task; ends with the store.
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
            let result = inner.round(background).await;
            inner.settled(result);
        } else {
            let end = inner.state.borrow().log.end();
            drop(inner);
            if env.timeout(CALM, woken).await.is_none()
                && let Some(inner) = weak.upgrade()
            {
                inner.calmed(end);
            }
        }
    }
}

#[cfg(test)]
mod tests;
