//! Claims metadata blocks for what owns them; and reads of blocks and trees.

use types::{Fault, MetaBlock};

use super::plan::{Fix, TreeName};
use super::{Check, ProblemKind, Subject};
use crate::txn::Txn;
use engine::alloc::metaspace::BITS;
use engine::btree::{NodeContent, Tree};
use engine::claims::{ClaimFault, Mismatch};
use engine::cost::Cost;
use engine::error::{Stop, StoreError};

impl Check {
    /// Runs a body that only reads; damage becomes a finding and `None`.
    pub(super) async fn read<T>(
        &mut self,
        body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>,
    ) -> Result<Option<T>, StoreError> {
        match self.mfs.run(Cost::READ, body).await {
            Ok((value, _)) => Ok(Some(value)),
            Err(StoreError::Corrupt { block, what }) => {
                self.found(ProblemKind::DamagedBlock, Subject::Block(block), what);
                self.plan.add(Fix::FromLog(block));
                Ok(None)
            }
            Err(StoreError::Fault(Fault::Corrupt)) => {
                self.found(ProblemKind::DamagedBlock, Subject::Whole, "unreadable");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Reads blocks together; damage of one is found when it is used.
    pub(super) async fn prefetch(&mut self, first: MetaBlock, n: u32) -> Result<(), StoreError> {
        match self.mfs.run(Cost::READ, |txn| txn.require_cached(first, n)).await {
            Err(StoreError::Corrupt { .. }) => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// Claims `len` blocks from `first` on; `false` if they are outside the device or claimed
    /// already.
    pub(super) fn claim(&mut self, first: MetaBlock, len: u64, what: &str) -> bool {
        match self.blocks.claim(first, len) {
            Ok(()) => true,
            Err(ClaimFault::Outside) => {
                self.found(ProblemKind::OutsideMetaBlock, Subject::Block(first), what);
                false
            }
            Err(ClaimFault::Shared(taken)) => {
                let one = taken.first().copied().unwrap_or(first);
                self.found(ProblemKind::SharedMetaBlock, Subject::Block(one), what);
                self.shared.extend(taken);
                false
            }
        }
    }

    /// Visits every entry of a tree, and checks and claims its nodes.
    pub(super) async fn walk<const K: usize, const V: usize>(
        &mut self,
        (tree, name, what): (Tree<K, V>, TreeName, &str),
        mut each: impl FnMut(&mut Check, &[u8; K], &[u8; V]),
    ) -> Result<(), StoreError> {
        let mut stack = Vec::new();
        stack.extend(self.read(|txn| tree.root_node(txn)).await?.flatten());
        while let Some(node) = stack.pop() {
            if !self.claim(node.block, 1, what) {
                self.plan.add(Fix::Rebuild(name));
                continue;
            }
            match self.read(|txn| tree.inspect(txn, &node)).await? {
                None => {
                    if name == TreeName::Segments {
                        let (low, high) = (node.low.as_ref(), node.high.as_ref());
                        self.gaps.node(low.map(|key| &key[..]), high.map(|key| &key[..]));
                    }
                    self.plan.add(Fix::Rebuild(name));
                }
                Some(NodeContent::Inner(_, children)) => stack.extend(children.into_iter().rev()),
                Some(NodeContent::Leaf(entries)) => {
                    entries.iter().for_each(|(key, value)| each(self, key, value));
                }
            }
        }
        Ok(())
    }

    /// Compares the bitmap with what is in use.
    pub(super) async fn bitmap(&mut self) -> Result<(), StoreError> {
        let blocks = self.blocks.blocks;
        for (index, from) in (0..).zip((0..blocks).step_by(BITS as usize)) {
            let to = blocks.min(from + BITS);
            let Some(bits) = self.allocated(from, to).await? else {
                self.plan.add(Fix::LostBitmap(index));
                continue;
            };
            for mismatch in self.blocks.mismatches(from, &bits) {
                match mismatch {
                    Mismatch::Lost(first, end) => self.lost_blocks(first, end).await?,
                    Mismatch::MarkedFree(first, end) => self.used_run(first, end - first),
                }
            }
        }
        self.report.counts.meta_blocks = self.blocks.count();
        Ok(())
    }

    /// Which of the blocks `from..to`, all of one bitmap block, are allocated.
    pub(super) async fn allocated(
        &mut self,
        from: u64,
        to: u64,
    ) -> Result<Option<Vec<bool>>, StoreError> {
        self.read(|txn| (from..to).map(|block| txn.meta_allocated(MetaBlock(block))).collect())
            .await
    }

    /// Blocks `from..to` are allocated without an owner: plans to free them, unless they are
    /// stranded.
    async fn lost_blocks(&mut self, first: u64, to: u64) -> Result<(), StoreError> {
        let mut from = first;
        for block in first..to {
            if self.strands(MetaBlock(block)).await? {
                self.lost_run(from, block - from);
                from = block + 1;
            }
        }
        self.lost_run(from, to - from);
        Ok(())
    }

    fn lost_run(&mut self, first: u64, len: u64) {
        if len > 0 {
            let first = MetaBlock(first);
            let detail = format!("{len} blocks");
            self.found(ProblemKind::LostMetaBlock, Subject::Block(first), detail);
            self.plan.add(Fix::FreeMeta(first, len));
        }
    }

    /// `len` blocks from `first` on are in use and marked free.
    fn used_run(&mut self, first: u64, len: u64) {
        let first = MetaBlock(first);
        self.found(ProblemKind::FreeMetaBlock, Subject::Block(first), format!("{len} blocks"));
        self.plan.add(Fix::MarkUsed(first, len));
    }

    /// Has this check claimed the block so far?
    pub(super) fn is_claimed(&self, block: u64) -> bool {
        self.blocks.get(block)
    }
}
