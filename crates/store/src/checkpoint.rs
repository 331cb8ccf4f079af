//! The checkpoint: brings dirty blocks home and moves the log's tail.
//!
//! Invariants:
//! - the blocks that have been dirty for longest go first, a batch in the order of addresses;
//! - what goes home is a copy, made when the block leaves; the log is durable up
//!   to that copy before it is written. From then on the block counts as clean:
//!   its next change logs an image, so a torn home write can always be mended;
//! - the tail moves only over blocks that a flush has made stable at home, and
//!   the log's space behind it is reused only when both superblock copies say so;
//! - it begins when log or cache fill up, or when nothing has changed for a while: then
//!   everything goes home, once, so that a restart finds nothing to redo.

use std::rc::Weak;

use env::Env;
use types::{Bug, Duration, Lsn, MetaBlock, planted};

use crate::block::{Block, lsn_of};
use crate::error::StoreError;
use crate::mfs::{Background, Cost, Inner};
use crate::recovery::GROUP_BYTES_MAX;
use crate::state::State;

/// Blocks of one batch, if the opening says nothing else.
pub(crate) const BATCH: usize = 1024;
/// Without a change for so long, everything goes home.
const CALM: Duration = Duration::from_secs(5);

impl Inner {
    /// Is there room for a transaction of this cost?
    pub(crate) fn has_room(&self, cost: Cost) -> bool {
        if self.background.is_none() {
            return true;
        }
        let state = self.state.borrow();
        let log = &state.log;
        if state.read_only || cost.journal == 0 && cost.dirty == 0 {
            return true;
        }
        let journal = u64::from(cost.journal);
        let group_max = (log.bytes / 4).min(GROUP_BYTES_MAX);
        log.group.is_empty() && log.used() == 0
            || log.used() + journal <= log.bytes / 4 * 3
                && log.group.len() as u64 + journal <= group_max
                && state.cache.unsettled() + cost.dirty as usize <= state.cache.capacity() / 2
    }

    /// Waits until there is room for a transaction of this cost.
    pub(crate) async fn admit(&self, cost: Cost) -> Result<(), StoreError> {
        while !self.has_room(cost) {
            let Some(background) = &self.background else { return Ok(()) };
            let progress = {
                let mut state = self.state.borrow_mut();
                state.usable()?;
                state.waiting += 1;
                state.log.wanted = state.log.end();
                background.flusher.notify_all();
                background.checkpointer.notify_all();
                background.progress.notified()
            };
            let _waiting = Waiting(self);
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
        let pressed = state.waiting > 0
            || state.draining
            || state.log.tails.iter().any(|&tail| tail < state.settle)
            || state.log.used() > state.log.bytes / 5 * 2
            || state.cache.unsettled() > state.cache.capacity() / 4;
        can && pressed
    }

    /// Brings one batch home and moves the tail in one superblock copy.
    async fn round(&self, background: &Background) -> Result<(), StoreError> {
        let device = &background.device;
        let (blocks, lsn) = self.depart();
        if !blocks.is_empty() {
            if !planted(Bug::HomeBeforeLog) {
                self.wait_lsn(lsn).await?;
            }
            let addresses: Vec<MetaBlock> = blocks.iter().map(|(block, _)| *block).collect();
            device.write_home(blocks).await?;
            if !planted(Bug::TailBeforeFlush) {
                device.flush().await?;
            }
            let mut state = self.state.borrow_mut();
            for block in addresses {
                state.cache.arrived(block);
            }
        }
        let (superblock, index, tail) = {
            let mut state = self.state.borrow_mut();
            let durable = state.log.durable;
            let tail =
                state.cache.oldest_dirty().map_or(durable, |oldest| oldest.since.min(durable));
            let index = usize::from(state.log.tails[1] < state.log.tails[0]);
            if state.log.tails[index] == tail {
                return Ok(());
            }
            state.superblock.tail = tail;
            state.superblock.generation += 1;
            (state.superblock.clone(), index, tail)
        };
        device.write_super(&superblock, index).await?;
        device.flush().await?;
        self.state.borrow_mut().log.tails[index] = tail;
        Ok(())
    }

    /// Takes copies of the next batch; returns them with the position up to which
    /// the log must be durable before they go home.
    fn depart(&self) -> (Vec<(MetaBlock, Box<Block>)>, Lsn) {
        let State { cache, home_batch, .. } = &mut *self.state.borrow_mut();
        let (mut blocks, mut lsn) = (Vec::new(), Lsn(0));
        while blocks.len() < *home_batch {
            let mut copy = cache.buffer();
            let Some((dirty, data)) = cache.depart() else {
                cache.recycle(copy);
                break;
            };
            copy.copy_from_slice(data);
            lsn = lsn.max(lsn_of(&copy));
            blocks.push((dirty.block, copy));
        }
        (blocks, lsn)
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

/// Counts a caller that waits for room.
struct Waiting<'a>(&'a Inner);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state.borrow_mut().waiting -= 1;
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
