//! The engine's half of repair: blocks that come back from the log, the bitmap, trees that are
//! built anew, and records of clients.
//!
//! Invariants:
//! - a change is a transaction, or a series of which each leaves the store no worse: after a power
//!   cut the next check finds what remains;
//! - a change relies on nothing that an earlier one may have changed: it reads again what it
//!   changes;
//! - `None` and `false` mean that nothing changed.

mod bitmap;
mod records;
mod trees;

use std::collections::{BTreeMap, BTreeSet};

use types::{Lsn, MetaBlock, Transno};

pub use records::{beginning_of_blob, drop_description, drop_replies, drop_setting, empty_replies};
pub use trees::{Rebuild, unowned_blocks};

use crate::cost::Cost;
use crate::error::{Stop, StoreError};
use crate::format::block::{Block, HEADER, lsn_of, type_of};
use crate::format::roots::{BITMAP_LOST, RootId, UNFINISHED};
use crate::store::Store;
use crate::store::transact::Transact;

/// Metadata blocks that one step frees.
const FREE_STEP: u64 = 8192;

/// Versions of damaged blocks from the log. Repair searches the log before its own writes overwrite
/// what that still holds. So it keeps what it found from round to round, until it is restored.
#[derive(Default)]
pub struct Salvaged {
    searched: BTreeSet<MetaBlock>,
    found: BTreeMap<MetaBlock, Box<Block>>,
    /// The blocks of which the log has any change; only listed if a part of the bitmap is lost.
    changed: Option<BTreeSet<MetaBlock>>,
}

impl Salvaged {
    /// Searches the log in one pass for those of the blocks that were not searched before.
    ///
    /// # Errors
    /// `Io`.
    pub async fn seek(
        &mut self,
        store: &Store,
        blocks: impl Iterator<Item = MetaBlock>,
    ) -> Result<(), StoreError> {
        let wanted: BTreeSet<_> = blocks.filter(|block| !self.searched.contains(block)).collect();
        if !wanted.is_empty() {
            self.found.extend(store.salvage(&wanted).await?);
            self.searched.extend(wanted);
        }
        Ok(())
    }

    /// Was a version of this block found in the log?
    pub fn has(&self, block: MetaBlock) -> bool {
        self.found.contains_key(&block)
    }

    /// Lists the blocks of which the log has changes, unless that was done before.
    ///
    /// # Errors
    /// `Io`.
    pub async fn list(&mut self, store: &Store) -> Result<(), StoreError> {
        if self.changed.is_none() {
            self.changed = Some(store.changed().await?);
        }
        Ok(())
    }
}

/// State that the rounds of a repair hand on.
pub struct RepairState {
    /// What was found in the log.
    pub salvaged: Salvaged,
    /// A part of the bitmap was lost, now or before an interrupted repair: free blocks there look
    /// like allocated ones without an owner.
    pub bitmap_lost: bool,
    /// Where the log ended before the repair wrote anything.
    began: Lsn,
    /// Blocks restored from the log, with the LSN of their last change.
    returned: BTreeMap<MetaBlock, Lsn>,
}

impl RepairState {
    /// The state before the first round.
    ///
    /// # Errors
    /// `Io`, `Poisoned`.
    pub async fn new(store: &Store) -> Result<RepairState, StoreError> {
        let began = store.log_end();
        let bitmap_lost = match store.run(Cost::READ, |txn| txn.root(UNFINISHED)).await {
            Ok((word, _)) => word & BITMAP_LOST != 0,
            Err(StoreError::Corrupt { .. }) => false,
            Err(error) => return Err(error),
        };
        let (salvaged, returned) = (Salvaged::default(), BTreeMap::new());
        Ok(RepairState { salvaged, returned, bitmap_lost, began })
    }

    /// Everything is sound: the next repair starts without this one's marks.
    ///
    /// # Errors
    /// As [`Store::run`].
    pub async fn finish(layer: &impl Transact) -> Result<(), StoreError> {
        change(layer, |txn| match txn.as_mut().root(UNFINISHED)? {
            0 => Ok(()),
            _ => txn.as_mut().set_root(UNFINISHED, 0),
        })
        .await?;
        Ok(())
    }

    /// Puts back what the log has of this block; returns what was done.
    ///
    /// # Errors
    /// As [`Store::run`].
    pub async fn restore_from_log(
        &mut self,
        layer: &impl Transact,
        block: MetaBlock,
    ) -> Result<Option<String>, StoreError> {
        let Some(data) = self.salvaged.found.remove(&block) else { return Ok(None) };
        let store = layer.store();
        let same = store.run(Cost::READ, |txn| Ok(txn.read(block)?[HEADER..] == data[HEADER..]));
        if let Ok((true, _)) = same.await {
            return Ok(None);
        }
        let Some(kind) = type_of(&data) else { return Ok(None) };
        let done = change(layer, |txn| {
            txn.as_mut().init(block, kind)?[HEADER..].copy_from_slice(&data[HEADER..]);
            Ok(())
        })
        .await?;
        self.returned.insert(block, lsn_of(&data));
        let line = || format!("metadata block {block} ({}) came back from the log", kind.text());
        Ok(done.then(line))
    }
}

/// Runs a transaction of repair; returns whether it changed anything.
///
/// # Errors
/// As [`Store::run`].
pub async fn change<L: Transact>(
    layer: &L,
    body: impl FnMut(&mut L::Txn<'_>) -> Result<(), Stop>,
) -> Result<bool, StoreError> {
    Ok(layer.run(Cost::DELETE, body).await?.1 != Transno::ZERO)
}

/// Raises a counter to at least `least`; returns whether it was below that.
///
/// # Errors
/// As [`Store::run`].
pub async fn raise(layer: &impl Transact, root: RootId, least: u64) -> Result<bool, StoreError> {
    change(layer, |txn| {
        let txn = txn.as_mut();
        if txn.root(root)? < least { txn.set_root(root, least) } else { Ok(()) }
    })
    .await
}

/// Marks blocks in use as allocated; returns whether any was marked free.
///
/// # Errors
/// As [`Store::run`].
pub async fn mark_used(
    layer: &impl Transact,
    first: MetaBlock,
    len: u64,
) -> Result<bool, StoreError> {
    change(layer, |txn| txn.as_mut().mark_used(first, len).map(drop)).await
}

/// Frees blocks without an owner.
///
/// # Errors
/// As [`Store::run`].
pub async fn free(layer: &impl Transact, first: MetaBlock, len: u64) -> Result<(), StoreError> {
    let (mut at, end) = (first.0, first.0 + len);
    while at < end {
        let n = (end - at).min(FREE_STEP);
        change(layer, |txn| txn.as_mut().free_meta(MetaBlock(at), n as u32)).await?;
        at += n;
    }
    Ok(())
}
