//! Compares blocks at home with the cache and the log, and rewrites damaged ones.

use std::collections::BTreeSet;

use types::{Lsn, MetaBlock};

use crate::cost::Cost;
use crate::error::{Stop, StoreError};
use crate::format::block::{self, Block, HEADER, lsn_of, type_of};
use crate::format::roots::ROOTS_BLOCK;
use crate::format::superblock::Superblock;
use crate::store::Store;

/// State of a block in the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheState {
    /// Not cached: the device should have the newest version.
    NotCached,
    /// Cached, and at home: the LSN of its last change.
    Clean(Lsn),
    /// Dirty, or in flight to its home.
    Newer,
}

/// Result of rewriting a damaged block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rewrite {
    /// It was rewritten.
    Done,
    /// It is not damaged any more: something else has written it.
    NotNeeded,
    /// Neither cache nor log has it, or it must not be written.
    Impossible,
}

impl Store {
    /// Whether a block is cached, and whether the cache has a newer version than the device.
    pub fn cache_state(&self, block: MetaBlock) -> CacheState {
        let cache = &mut self.inner.state.borrow_mut().cache;
        match cache.frame_mut(block) {
            None => CacheState::NotCached,
            Some(frame) if frame.dirty || frame.in_flight => CacheState::Newer,
            Some(frame) => CacheState::Clean(lsn_of(&frame.data)),
        }
    }

    /// Is it part of label, superblocks or log, which no transaction writes?
    fn is_reserved(&self, block: MetaBlock) -> bool {
        let superblock = self.superblock();
        let last = Superblock::place(1, superblock.blocks);
        block < ROOTS_BLOCK
            || block >= last
            || block > ROOTS_BLOCK && block < superblock.bitmap_first
    }

    /// Rewrites a block that is damaged at home, if cache or log have its newest version, and waits
    /// until it is durable there or in the log.
    ///
    /// # Errors
    /// `Io`, `Poisoned`, `ReadOnly`.
    pub async fn rewrite_home(&self, block: MetaBlock) -> Result<Rewrite, StoreError> {
        if self.is_reserved(block) {
            return Ok(Rewrite::Impossible);
        }
        if self.cache_state(block) == CacheState::NotCached {
            let fetched = self.fetch_from_log(block).await?;
            if fetched != Rewrite::Done {
                return Ok(fetched);
            }
        }
        let put = self.run(Cost::STEP, |txn| {
            let data = match txn.read(block) {
                Ok(data) => Box::new(*data),
                // It left the cache meanwhile: the next scrub tries again.
                Err(Stop::Miss(..)) => return Ok(false),
                Err(stop) => return Err(stop),
            };
            let Some(kind) = type_of(&data) else { return Ok(false) };
            txn.init(block, kind)?[HEADER..].copy_from_slice(&data[HEADER..]);
            Ok(true)
        });
        let (put, _) = put.await?;
        if !put {
            return Ok(Rewrite::NotNeeded);
        }
        self.sync().await?;
        Ok(Rewrite::Done)
    }

    /// Puts the log's newest version of a damaged block that is not cached into the cache. The
    /// claim on the block shows if something initializes it meanwhile: the log's version is old
    /// then.
    async fn fetch_from_log(&self, block: MetaBlock) -> Result<Rewrite, StoreError> {
        let Some(claim) = self.inner.claim_one(block) else { return Ok(Rewrite::NotNeeded) };
        let mut found = match self.salvage(&BTreeSet::from([block])).await {
            Ok(found) => found,
            Err(StoreError::Io { .. }) => return Ok(Rewrite::Impossible),
            Err(error) => return Err(error),
        };
        let Some(data) = found.remove(&block) else { return Ok(Rewrite::Impossible) };
        let Some(device) = self.device() else { return Ok(Rewrite::Impossible) };
        let read = device.read(block, 1).await;
        let mut state = self.inner.state.borrow_mut();
        let tag = state.tag;
        let whole = |bytes: &[u8]| {
            bytes.try_into().is_ok_and(|bytes: &Block| block::verify(bytes, block, tag).is_ok())
        };
        if state.fetching.get(&block.0) != Some(&true)
            || state.cache.contains(block)
            || read.is_ok_and(|bytes| whole(&bytes))
        {
            drop(state);
            drop(claim);
            return Ok(Rewrite::NotNeeded);
        }
        state.cache.insert(block, data);
        drop(state);
        drop(claim);
        Ok(Rewrite::Done)
    }
}
