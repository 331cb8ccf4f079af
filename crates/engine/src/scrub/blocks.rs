//! Reads blocks at home, and rewrites damaged ones.

use types::MetaBlock;
use types::limits::BLOCK;

use super::{Finding, Progress, Scrub, TRIES};
use crate::cost::Cost;
use crate::error::{Stop, StoreError};
use crate::format::blob::BlobOwner;
use crate::format::block::{self, Block, BlockType, lsn_of, type_of};
use crate::store::home::{CacheState, Rewrite};
use crate::store::transact::Transact;

/// Detail of findings about blocks that the device fails to read.
const UNREADABLE: &str = "cannot be read";

/// Is a block still what it was read as?
pub type Still<'a, L> = &'a dyn Fn(&mut <L as Transact>::Txn<'_>, MetaBlock) -> Result<bool, Stop>;

impl<L: Transact, P: Progress> Scrub<'_, L, P> {
    /// Reads `count` blocks of type `kind` from `first` on at home. Returns those that are sound
    /// and of which the cache has nothing newer. Rewrites or reports damaged ones that are in use
    /// `still`.
    ///
    /// # Errors
    /// `Poisoned`, `ReadOnly`.
    pub async fn read(
        &self,
        first: MetaBlock,
        count: usize,
        kind: BlockType,
        still: Still<'_, L>,
    ) -> Result<Vec<Option<Box<Block>>>, StoreError> {
        self.throttle(count as u64).await;
        let inside =
            first.0.checked_add(count as u64).is_some_and(|end| end <= self.device.blocks());
        let read = if inside { self.device.read(first, count).await.ok() } else { None };
        let mut out = Vec::with_capacity(count);
        for at in 0..count {
            let block = MetaBlock(first.0 + at as u64);
            let bytes = read.as_ref().map(|read| &read[at * BLOCK..(at + 1) * BLOCK]);
            let cached = self.store().cache_state(block);
            let whole = bytes.filter(|bytes| self.fault(block, kind, bytes, cached).is_none());
            out.push(whole.filter(|_| cached != CacheState::Newer).map(|bytes| {
                let mut image = Box::new([0; BLOCK]);
                image.copy_from_slice(bytes);
                image
            }));
            match cached {
                CacheState::Newer => self.progress.newer(),
                _ if whole.is_some() => self.progress.sound(),
                _ => self.examine(block, kind, still).await?,
            }
        }
        Ok(out)
    }

    /// Checks the blocks of the blob that begins at `first`, if it is still `named`.
    ///
    /// # Errors
    /// `Poisoned`, `ReadOnly`.
    pub async fn blob(
        &self,
        (first, whose): (MetaBlock, BlobOwner),
        named: &dyn Fn(&mut L::Txn<'_>) -> Result<bool, Stop>,
    ) -> Result<(), StoreError> {
        let read = self
            .query(|txn| {
                if !named(txn)? {
                    return Ok(None);
                }
                let txn = txn.as_mut();
                let blocks = txn.blob_blocks(first, whose).and_then(|blocks| {
                    txn.read_blob(first, self.blob_max, whose)?;
                    Ok(blocks)
                });
                match blocks {
                    Err(Stop::OwnerMismatch(block, mismatch)) => Ok(Some(Err((block, mismatch)))),
                    blocks => blocks.map(|blocks| Some(Ok(blocks))),
                }
            })
            .await?;
        let blocks = match read {
            Some(Some(Ok(blocks))) => blocks,
            Some(Some(Err((block, mismatch)))) => {
                self.progress.found(Finding::WrongBlob(whose, block, mismatch));
                return Ok(());
            }
            _ => return Ok(()),
        };
        let still = |txn: &mut L::Txn<'_>, block| {
            Ok(named(txn)? && txn.as_mut().blob_blocks(first, whose)?.contains(&block))
        };
        for block in blocks {
            self.read(block, 1, BlockType::Blob, &still).await?;
        }
        Ok(())
    }

    /// Is the block not cached?
    pub(super) fn is_uncached(&self, block: MetaBlock) -> bool {
        self.store().cache_state(block) == CacheState::NotCached
    }

    /// The fault of a block's bytes, given its state in the cache.
    fn fault(
        &self,
        block: MetaBlock,
        kind: BlockType,
        bytes: &[u8],
        cached: CacheState,
    ) -> Option<&'static str> {
        let bytes: &Block = bytes.try_into().expect("one block");
        match block::verify(bytes, block, self.store().tag()) {
            Err(what) => Some(what),
            Ok(found) if found != kind && !(found.is_content() && kind.is_content()) => {
                Some("of another type than what leads to it")
            }
            Ok(_) => match cached {
                CacheState::Clean(lsn) if lsn_of(bytes) < lsn => {
                    Some("the device lost a write of it")
                }
                _ => None,
            },
        }
    }

    /// Examines a block that looks damaged: was it changing, is it in use at all?
    async fn examine(
        &self,
        block: MetaBlock,
        kind: BlockType,
        still: Still<'_, L>,
    ) -> Result<(), StoreError> {
        for _ in 0..TRIES {
            let before = self.store().cache_state(block);
            if before == CacheState::Newer {
                return Ok(());
            }
            let what = match self.device.read(block, 1).await {
                Ok(bytes) => self.fault(block, kind, &bytes, before),
                Err(_) => Some(UNREADABLE),
            };
            if self.store().cache_state(block) != before {
                continue;
            }
            let Some(what) = what else {
                self.progress.sound();
                return Ok(());
            };
            // If damage prevents the answer, the block counts as in use.
            let used = match self.layer.run(Cost::READ, |txn| still(txn, block)).await {
                Ok((used, _)) => used,
                Err(StoreError::Corrupt { .. } | StoreError::Fault(_) | StoreError::Io { .. }) => {
                    true
                }
                Err(error) => return Err(error),
            };
            if !used {
                return Ok(());
            }
            if self.store().cache_state(block) == CacheState::Newer {
                return Ok(());
            }
            let writable = what != UNREADABLE || self.options.unreadable;
            if !writable
                || self.is_other(block, kind)
                || self.rewrite(block).await? == Rewrite::Impossible
            {
                self.progress.found(Finding::Damaged(block, what.into()));
            }
            return Ok(());
        }
        Ok(())
    }

    /// Is the block cached, and of another type than what leads to it expects?
    fn is_other(&self, block: MetaBlock, kind: BlockType) -> bool {
        let cached = self.store().with_cached(block, |data| data.and_then(type_of));
        cached.is_some_and(|cached| cached != kind && !(cached.is_content() && kind.is_content()))
    }

    /// Rewrites a block that is damaged at home, if cache or log have its newest version.
    pub(super) async fn rewrite(&self, block: MetaBlock) -> Result<Rewrite, StoreError> {
        if self.unrepairable.borrow().contains(&block) {
            return Ok(Rewrite::Impossible);
        }
        let done = self.store().rewrite_home(block).await?;
        match done {
            Rewrite::Done => self.progress.rewritten(block),
            Rewrite::Impossible => {
                self.unrepairable.borrow_mut().insert(block);
            }
            Rewrite::NotNeeded => {}
        }
        Ok(done)
    }

    /// Rewrites unreadable blocks that a body needs; those that neither cache nor log has become
    /// findings. Returns whether the body may be tried again.
    pub(super) async fn rewrite_unreadable<T>(
        &self,
        body: &mut impl FnMut(&mut L::Txn<'_>) -> Result<T, Stop>,
    ) -> Result<bool, StoreError> {
        let (first, count) = match self.layer.attempt(Cost::READ, body)? {
            Err(
                Stop::Miss(first, count)
                | Stop::Scan(first, count)
                | Stop::MissWithReadahead(first, count, _),
            ) => (first.0, count.max(1)),
            _ => return Ok(true),
        };
        let mut again = true;
        for block in (first..first.saturating_add(count.into())).map(MetaBlock) {
            let read = self.device.read(block, 1).await;
            let writable = self.options.unreadable;
            if read.is_err() && (!writable || self.rewrite(block).await? == Rewrite::Impossible) {
                self.progress.found(Finding::Damaged(block, UNREADABLE.into()));
                again = false;
            }
        }
        Ok(again)
    }
}
