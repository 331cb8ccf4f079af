//! The engine's half of an online scrub: reads the store while it is in use, and checks label,
//! superblocks, journal, blocks, trees, blobs and the table of clients.
//!
//! Invariants:
//! - operations wait for a scrub only at the disk and for the executor. The scrub reads nodes, and
//!   what the layer above asks for, at a bounded rate and past the cache, and other blocks that a
//!   decision needs through it;
//! - every finding was true at one moment: one transaction that reads everything it depends on
//!   decides a suspicion. A block counts as damaged only if nothing touched it while it was read,
//!   and if it is still in use;
//! - a damaged block of which cache or log have the newest version is rewritten through the log,
//!   with exactly that version.

mod blocks;
mod clients;
mod fixed;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use types::limits::BLOCK_U64;
use types::{Duration, Fault, MetaBlock};

pub use blocks::Still;

use crate::btree::{Descent, Tree};
pub use crate::check::Finding;
use crate::cost::Cost;
use crate::device::Device;
use crate::error::{Stop, StoreError};
use crate::format::block::BlockType;
use crate::store::Store;
use crate::store::home::Rewrite;
use crate::store::transact::Transact;

/// Transactions after which the scrub yields to other tasks, even if none of them had to read.
const YIELD_AFTER: u32 = 32;
/// How often the scrub reads something again that changes during the read.
const TRIES: usize = 8;

/// How to scrub.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScrubOptions {
    /// Bytes read per second at most; 0: as many as the device gives.
    pub rate: u64,
    /// Rewrite blocks that the device cannot read, too. If it cannot write them either, that ends
    /// the store.
    pub unreadable: bool,
}

/// Takes the progress and the findings of a scrub.
pub trait Progress {
    /// A block was read from the device and found sound.
    fn sound(&self);

    /// A block was skipped because the cache has a newer version.
    fn newer(&self);

    /// A damaged block was rewritten from cache or log.
    fn rewritten(&self, block: MetaBlock);

    /// Takes a finding that was not repaired.
    fn found(&self, finding: Finding);
}

/// A running scrub of a layer's store.
pub struct Scrub<'a, L, P> {
    layer: &'a L,
    device: Device,
    options: ScrubOptions,
    /// Bytes of a blob at most.
    blob_max: usize,
    progress: P,
    /// Damaged blocks of which neither cache nor log has the newest version.
    unrepairable: RefCell<BTreeSet<MetaBlock>>,
    /// Transactions so far.
    transactions: Cell<u32>,
}

impl<'a, L: Transact, P: Progress> Scrub<'a, L, P> {
    /// A scrub of a store in which blobs have at most `blob_max` bytes; `None` for a store in
    /// memory, which has nothing that could be damaged.
    pub fn new(
        layer: &'a L,
        options: ScrubOptions,
        blob_max: usize,
        progress: P,
    ) -> Option<Scrub<'a, L, P>> {
        let device = layer.store().device()?;
        let (unrepairable, transactions) = (RefCell::default(), Cell::new(0));
        Some(Scrub { layer, device, options, blob_max, progress, unrepairable, transactions })
    }

    fn store(&self) -> &Store {
        self.layer.store()
    }

    /// Sleeps for as long as `blocks` blocks take at the requested rate.
    async fn throttle(&self, blocks: u64) {
        if let Some(nanos) = (blocks * BLOCK_U64 * 1_000_000_000).checked_div(self.options.rate) {
            self.device.env.sleep(Duration::from_nanos(nanos)).await;
        }
    }

    /// Runs a body that only reads. A damaged block that it meets is rewritten, or becomes a
    /// finding and `None`.
    ///
    /// # Errors
    /// `Poisoned`, `ReadOnly`.
    pub async fn query<T>(
        &self,
        mut body: impl FnMut(&mut L::Txn<'_>) -> Result<T, Stop>,
    ) -> Result<Option<T>, StoreError> {
        self.transactions.set(self.transactions.get().wrapping_add(1));
        if self.transactions.get().is_multiple_of(YIELD_AFTER) {
            self.device.env.yield_now().await;
        }
        for _ in 0..TRIES {
            match self.layer.run(Cost::READ, &mut body).await {
                Ok((value, _)) => return Ok(Some(value)),
                Err(StoreError::Corrupt { block, what }) => {
                    // If it is cached, the cached version is the newest, and nothing better is
                    // known.
                    let rewritten = self.is_uncached(block)
                        && self.rewrite(block).await? != Rewrite::Impossible;
                    if !rewritten {
                        self.progress.found(Finding::Damaged(block, what));
                        return Ok(None);
                    }
                }
                Err(StoreError::Io { .. }) => {
                    if !self.rewrite_unreadable(&mut body).await? {
                        return Ok(None);
                    }
                }
                Err(StoreError::Fault(Fault::Corrupt)) => {
                    self.progress.found(Finding::Unreadable);
                    return Ok(None);
                }
                Err(StoreError::Fault(_)) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Visits every node and every entry of a tree, leaf by leaf: each leaf and the path to it as
    /// of one moment.
    ///
    /// # Errors
    /// `Poisoned`, `ReadOnly`.
    pub async fn tree<const K: usize, const V: usize>(
        &self,
        tree: Tree<K, V>,
        mut each: impl FnMut(&[u8; K], &[u8; V]),
    ) -> Result<(), StoreError> {
        let mut key = [0; K];
        let mut before = Vec::new();
        while let Some(descent) = self.descend(tree, key, &before).await? {
            descent.entries.iter().filter(|(at, _)| *at >= key).for_each(|(at, v)| each(at, v));
            before = descent.nodes;
            match descent.next {
                Some(next) => key = next,
                None => break,
            }
        }
        Ok(())
    }

    /// The leaf where `key` belongs, and the path to it, whose nodes are checked but for those of
    /// `before`, the path to the leaf before it. `None` for an empty tree, and if it cannot be
    /// read.
    ///
    /// # Errors
    /// `Poisoned`, `ReadOnly`.
    pub async fn descend<const K: usize, const V: usize>(
        &self,
        tree: Tree<K, V>,
        key: [u8; K],
        before: &[MetaBlock],
    ) -> Result<Option<Descent<K, V>>, StoreError> {
        let Some(Some(descent)) = self.query(|txn| tree.descend(txn.as_mut(), &key)).await? else {
            return Ok(None);
        };
        let still = |txn: &mut L::Txn<'_>, block| {
            let descent = tree.descend(txn.as_mut(), &key)?;
            Ok(descent.is_some_and(|descent| descent.nodes.contains(&block)))
        };
        for &node in descent.nodes.iter().filter(|node| !before.contains(*node)) {
            self.read(node, 1, BlockType::Tree, &still).await?;
        }
        Ok(Some(descent))
    }
}
