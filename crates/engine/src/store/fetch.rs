//! Fetches blocks that a transaction misses.
//!
//! Invariants:
//! - at most one read of a block is in flight; other operations that miss the block wait;
//! - a block that was read enters the cache only if no transaction initialised or changed it
//!   meanwhile, so the cache never goes back in time;
//! - read-ahead uses the same request as the needed blocks. A block read ahead need not be sound or
//!   readable, and the cache may evict it at once;
//! - needed blocks stay cached until the operation that needs them has ended.

use std::collections::VecDeque;
use std::ops::Range;

use env::IoBuf;
use types::MetaBlock;
use types::limits::BLOCK;

use crate::device::{Device, RUN_MAX};
use crate::error::{Readahead, StoreError};
use crate::format::block;
use crate::store::{Background, Inner};

/// Most reads of one fetch in flight.
const READS_MAX: usize = 8;

/// Blocks pinned in the cache for one operation.
pub(crate) struct Pins<'a> {
    inner: &'a Inner,
    blocks: Vec<MetaBlock>,
}

impl<'a> Pins<'a> {
    pub(crate) fn new(inner: &'a Inner) -> Pins<'a> {
        Pins { inner, blocks: Vec::new() }
    }

    fn add(&mut self, first: MetaBlock, count: u64) {
        let cache = &mut self.inner.state.borrow_mut().cache;
        for block in (first.0..first.0 + count).map(MetaBlock) {
            if cache.contains(block) {
                cache.pin(block);
                self.blocks.push(block);
            }
        }
    }
}

impl Pins<'_> {
    /// Unpins all of them.
    pub(crate) fn clear(&mut self) {
        if self.blocks.is_empty() {
            return;
        }
        let cache = &mut self.inner.state.borrow_mut().cache;
        for block in self.blocks.drain(..) {
            cache.unpin(block);
        }
    }
}

impl Drop for Pins<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The exclusive right of one fetch to read blocks `[first, first + count)`, until it is
/// dropped.
struct Claim<'a> {
    inner: &'a Inner,
    background: &'a Background,
    first: MetaBlock,
    count: usize,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut state = self.inner.state.borrow_mut();
        for block in self.first.0..self.first.0 + self.count as u64 {
            state.fetching.remove(&block);
        }
        drop(state);
        self.background.progress.notify_all();
    }
}

impl Inner {
    /// Brings blocks `[first, first + count)` into the cache and keeps them there until `pins` is
    /// dropped. Also reads the blocks of `readahead` that the same request can read.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(crate) async fn fetch(
        &self,
        first: MetaBlock,
        count: u32,
        readahead: Readahead,
        pins: &mut Pins<'_>,
    ) -> Result<(), StoreError> {
        let blocks = self.state.borrow().space.blocks;
        let corrupt = |what| StoreError::corrupt(first, what);
        let end = first.0.saturating_add(u64::from(count.max(1)));
        if end > blocks {
            return Err(corrupt("the address lies outside the device"));
        }
        let Some(background) = &self.background else { return Err(corrupt("never written")) };
        pins.add(first, end - first.0);
        let needed = first.0..end;
        let limit = end.saturating_add(u64::from(readahead.behind)).min(blocks);
        let mut at = self.reach_back(first.0, readahead.before);
        let mut reads = VecDeque::new();
        while at < end || !reads.is_empty() {
            while at < end && reads.len() < READS_MAX {
                let Some(claim) = self.claim(background, &mut at, limit) else { break };
                let device = background.device.clone();
                let (first, count) = (claim.first, claim.count);
                let only = reads.is_empty() && at >= end;
                let reading = read(device, first, count, needed.clone());
                if only {
                    let read = reading.await?;
                    self.enter(claim, &read, &needed, pins)?;
                } else {
                    reads.push_back((claim, background.device.env.spawn_join(reading)));
                }
            }
            match reads.pop_front() {
                Some((claim, join)) => {
                    let read = join.await?;
                    self.enter(claim, &read, &needed, pins)?;
                }
                None if at < end => self.wait_for(background, at).await?,
                None => {}
            }
        }
        Ok(())
    }

    /// The first of at most `before` blocks before `first` from which on no block up to `first` is
    /// cached or being read.
    fn reach_back(&self, first: u64, before: u32) -> u64 {
        let state = self.state.borrow();
        let free = |block: &u64| {
            !state.cache.contains(MetaBlock(*block)) && !state.fetching.contains_key(block)
        };
        if before == 0 || !free(&first) {
            return first;
        }
        let least = first.saturating_sub(u64::from(before));
        (least..first).rev().take_while(free).last().unwrap_or(first)
    }

    /// Claims one block that is not cached: no fetch reads it until the claim is dropped, and
    /// `fetching` says whether a transaction changed it meanwhile. `None` if it is cached or being
    /// read.
    pub(crate) fn claim_one(&self, block: MetaBlock) -> Option<impl Drop + '_> {
        let background = self.background.as_ref()?;
        let mut at = block.0;
        self.claim(background, &mut at, block.0 + 1).filter(|claim| claim.first == block)
    }

    /// Claims the next run of blocks that are not cached, from `at` on; moves `at` past it. `None`
    /// at the end, or if another fetch is reading the block at `at`.
    fn claim<'a>(
        &'a self,
        background: &'a Background,
        at: &mut u64,
        end: u64,
    ) -> Option<Claim<'a>> {
        let mut state = self.state.borrow_mut();
        while *at < end && state.cache.contains(MetaBlock(*at)) {
            *at += 1;
        }
        let first = *at;
        while *at < end
            && ((*at - first) as usize) < RUN_MAX
            && !state.cache.contains(MetaBlock(*at))
            && !state.fetching.contains_key(at)
        {
            state.fetching.insert(*at, true);
            *at += 1;
        }
        let count = (*at - first) as usize;
        (count > 0).then(|| Claim { inner: self, background, first: MetaBlock(first), count })
    }

    /// Waits until no other fetch is reading `block`.
    async fn wait_for(&self, background: &Background, block: u64) -> Result<(), StoreError> {
        loop {
            let progress = {
                let state = self.state.borrow();
                state.usable()?;
                if !state.fetching.contains_key(&block) {
                    return Ok(());
                }
                background.progress.notified()
            };
            progress.await;
        }
    }

    /// Puts the blocks read into the cache; blocks not `needed` may be damaged.
    fn enter(
        &self,
        claim: Claim<'_>,
        (from, buf): &(MetaBlock, IoBuf),
        needed: &Range<u64>,
        pins: &mut Pins<'_>,
    ) -> Result<(), StoreError> {
        let mut damage = None;
        let mut state = self.state.borrow_mut();
        for (index, bytes) in buf.chunks_exact(BLOCK).enumerate() {
            let block = MetaBlock(from.0 + index as u64);
            let valid = state.fetching.get(&block.0) == Some(&true);
            if !valid || state.cache.contains(block) {
                continue;
            }
            let bytes = bytes.try_into().expect("one block");
            match block::verify(bytes, block, state.tag) {
                Ok(_) => {
                    let mut data = state.cache.buffer();
                    data.copy_from_slice(bytes);
                    state.cache.insert(block, data);
                    if needed.contains(&block.0) {
                        state.cache.pin(block);
                        pins.blocks.push(block);
                    }
                }
                Err(_) if !needed.contains(&block.0) => {}
                Err(what) => damage = damage.or(Some(StoreError::corrupt(block, what))),
            }
        }
        drop(state);
        drop(claim);
        damage.map_or(Ok(()), Err)
    }
}

/// Reads `count` blocks, or if that fails those of them that are `needed`. Returns the first block
/// read.
async fn read(
    device: Device,
    first: MetaBlock,
    count: usize,
    needed: Range<u64>,
) -> Result<(MetaBlock, IoBuf), StoreError> {
    let from = MetaBlock(needed.start.max(first.0));
    let len = needed.end.min(first.0 + count as u64).saturating_sub(from.0) as usize;
    match device.read(first, count).await {
        Err(_) if len < count => Ok((from, device.read(from, len).await?)),
        read => Ok((first, read?)),
    }
}
