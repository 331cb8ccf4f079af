//! Rebuilding a tree from what is left of it.
//!
//! Invariants:
//! - the new tree grows beside the old one, under a root of its own ([`SCRATCH`]); one transaction
//!   replaces the old one by it. Until then the old one is unchanged;
//! - blocks of the old tree, and of an unfinished new one, have no owner then: the last stage frees
//!   them;
//! - the new tree gets the entries of all nodes that can be reached and read. It also gets those of
//!   allocated leaves without an owner that have the entry widths of this tree only. Reached
//!   entries win, then those changed last;
//! - where a part of the bitmap was lost such leaves may have been free. When a leaf is freed, the
//!   leaves that take over its keys change at that time or later, and leaves of one tree never
//!   overlap. So a leaf that overlaps a reached one, or one changed later, was free, and nothing of
//!   it is taken;
//! - evictions, and what evicted clients could write, are never forgotten. Where the list of
//!   quarantines is lost, the new one has every client. Where that of frozen files is lost, all
//!   files are frozen for every client in quarantine. Both happen before the old tree is replaced;
//! - entries go from leaf to leaf, so that a tree of any size needs little memory.

use std::collections::BTreeMap;

use types::{ClientId, MetaBlock};

use super::{Change, Done, Fixer};
use crate::format::space::frozen_keys;
use crate::fsck::lost::{Loss, table};
use crate::fsck::plan::TreeName;
use crate::space::ALL_FILES;
use crate::trees::{
    CHUNKS, CLIENTS, FREE, FREED, FROZEN, MOVED, NAMESPACE, ORPHANS, PARTIAL_TREE, POOLS,
    QUARANTINES, REPLIES, SCRATCH, SEGMENTS, SETTINGS, UNFINISHED,
};
use engine::btree::{NodeContent, Tree, entries_of};
use engine::cost::Cost;
use engine::error::StoreError;
use engine::format::block::{BlockType, get_u16, lsn_of};

/// Entries put into the new tree by one transaction.
const BATCH: usize = 64;

impl Fixer {
    pub(super) async fn rebuild(&mut self, name: TreeName) -> Done {
        // Lost segments, inodes and blocks are reported by the fixes that count them.
        let lost = table(name).map(|_| Loss::Table(name));
        Ok(self.rebuild_tree(name).await?.map(|change| Change::with_losses(change, lost)))
    }

    async fn rebuild_tree(&mut self, name: TreeName) -> Done {
        match name {
            TreeName::Chunks => self.build(CHUNKS, true, "directory table").await,
            TreeName::Moved => self.build(MOVED, false, "tree of moved inodes").await,
            TreeName::Orphans => self.build(ORPHANS, false, "list of orphans").await,
            TreeName::Segments => self.build(SEGMENTS, true, "tree of segments").await,
            TreeName::Pags => self.rebuild_zones().await,
            TreeName::Free => self.build(FREE, true, "tree of free space").await,
            TreeName::Pools => self.build(POOLS, true, "tree of pools").await,
            TreeName::Freed => self.build(FREED, true, "tree of freed space").await,
            TreeName::Quarantines => {
                let all = self.all_clients().await?;
                self.freeze_all(&all).await?;
                let entries: Vec<_> =
                    all.iter().map(|client| (client.0.to_be_bytes(), [0; 8])).collect();
                self.build_with(QUARANTINES, false, "list of quarantines", &entries).await
            }
            TreeName::Frozen => {
                let evicted = self.evicted().await?;
                let keys = evicted.iter().flat_map(|&client| frozen_keys(client, ALL_FILES));
                let entries: Vec<_> = keys.map(|key| (key, [0; 8])).collect();
                self.build_with(FROZEN, true, "list of frozen files", &entries).await
            }
            TreeName::Clients => self.build(CLIENTS, false, "table of clients").await,
            TreeName::Replies => self.build(REPLIES, true, "table of replies").await,
            TreeName::Namespace => self.build(NAMESPACE, true, "namespace index").await,
            TreeName::Settings => self.build(SETTINGS, true, "table of settings").await,
        }
    }

    /// Every client that is known.
    async fn all_clients(&mut self) -> Result<Vec<ClientId>, StoreError> {
        let all = self.mfs.run(Cost::READ, |txn| CLIENTS.range(txn, &[0; 8], usize::MAX)).await?.0;
        Ok(all.into_iter().map(|(key, _)| ClientId(u64::from_be_bytes(key))).collect())
    }

    /// Every client in quarantine; where the list of them is damaged, every one that is known.
    async fn evicted(&mut self) -> Result<Vec<ClientId>, StoreError> {
        match self.mfs.run(Cost::READ, |txn| txn.space().quarantines()).await {
            Ok((clients, _)) => Ok(clients),
            Err(StoreError::Corrupt { .. } | StoreError::Fault(_)) => self.all_clients().await,
            Err(error) => Err(error),
        }
    }

    /// For each of these clients all files count as frozen.
    async fn freeze_all(&self, clients: &[ClientId]) -> Result<(), StoreError> {
        for batch in clients.chunks(BATCH / 2) {
            self.change(|txn| {
                batch.iter().try_for_each(|&client| txn.space().freeze(client, ALL_FILES))
            })
            .await?;
        }
        Ok(())
    }

    async fn build<const K: usize, const V: usize>(
        &mut self,
        tree: Tree<K, V>,
        unique: bool,
        what: &str,
    ) -> Done {
        self.build_with(tree, unique, what, &[]).await
    }

    /// As [`Fixer::build`]; the new tree also gets these entries before it replaces the old one.
    pub(super) async fn build_with<const K: usize, const V: usize>(
        &mut self,
        tree: Tree<K, V>,
        unique: bool,
        what: &str,
        also: &[([u8; K], [u8; V])],
    ) -> Done {
        let young_wins = self.begin_scratch().await? && self.state.bitmap_lost;
        let (reached, spans) = self.reached(tree).await?;
        let spans = young_wins.then_some(spans);
        let found = if unique { self.unreached_leaves::<K, V>(spans).await? } else { 0 };
        let added = self.enter(also, false).await?;
        self.change(|txn| {
            let root = txn.root(SCRATCH)?;
            tree.replace_root(txn, root)?;
            txn.set_root(SCRATCH, 0)
        })
        .await?;
        let mut line =
            format!("the {what} was built anew: {reached} entries, and {found} of lost nodes");
        if !also.is_empty() {
            line += &format!("; {added} were added for what is lost");
        }
        Ok(Some(line.into()))
    }

    /// Begins a new tree; returns whether there are no nodes of an unfinished one. Leaves of an
    /// unfinished tree are newer than those that they were made from, and may have fewer entries.
    async fn begin_scratch(&mut self) -> Result<bool, StoreError> {
        let begin = self.mfs.run(Cost::DELETE, |txn| {
            let mut word = txn.root(UNFINISHED)?;
            if txn.root(SCRATCH)? != 0 {
                word |= PARTIAL_TREE;
                txn.set_root(UNFINISHED, word)?;
                txn.set_root(SCRATCH, 0)?;
            }
            Ok(word & PARTIAL_TREE == 0)
        });
        Ok(begin.await?.0)
    }

    /// Puts the entries of all nodes that can be reached and read into the new tree; returns their
    /// number, and the spans of all reached leaves.
    async fn reached<const K: usize, const V: usize>(
        &mut self,
        tree: Tree<K, V>,
    ) -> Result<(u64, Spans<K>), StoreError> {
        let (mut count, mut spans) = (0, Spans::default());
        let mut seen = std::collections::BTreeSet::new();
        let mut stack = Vec::new();
        stack.extend(self.check.read(|txn| tree.root_node(txn)).await?.flatten());
        while let Some(node) = stack.pop() {
            if !seen.insert(node.block) {
                continue;
            }
            match self.check.read(|txn| tree.inspect(txn, &node)).await? {
                // No other leaf has the keys of a damaged one.
                None if node.level == Some(0) => {
                    spans.take(node.low.unwrap_or([0; K]), node.high);
                }
                None => {}
                Some(NodeContent::Inner(_, children)) => stack.extend(children),
                Some(NodeContent::Leaf(entries)) => {
                    spans.take(node.low.unwrap_or([0; K]), node.high);
                    count += self.enter(&entries, true).await?;
                }
            }
        }
        Ok((count, spans))
    }

    /// Puts entries into the new tree; returns how many are new there. With `over` they replace
    /// others.
    async fn enter<const K: usize, const V: usize>(
        &self,
        entries: &[([u8; K], [u8; V])],
        over: bool,
    ) -> Result<u64, StoreError> {
        let scratch: Tree<K, V> = Tree::at(SCRATCH);
        let mut count = 0;
        for batch in entries.chunks(BATCH) {
            let put = self.mfs.run(Cost::DELETE, |txn| {
                let mut new = 0;
                for (key, value) in batch {
                    if over || scratch.get(txn, key)?.is_none() {
                        new += u64::from(scratch.insert(txn, key, value)?.is_none());
                    }
                }
                Ok(new)
            });
            count += put.await?.0;
        }
        Ok(count)
    }

    /// Adds the entries of such a tree's unreached leaves, those changed last first; returns how
    /// many. With spans, only leaves that overlap none of them.
    async fn unreached_leaves<const K: usize, const V: usize>(
        &mut self,
        mut spans: Option<Spans<K>>,
    ) -> Result<u64, StoreError> {
        let mut leaves = Vec::new();
        for block in self.unowned_blocks().await? {
            let read = self.mfs.run(Cost::READ, |txn| {
                let data = txn.read(block)?;
                let fits = data[4] == BlockType::Tree as u8
                    && (data[32], usize::from(data[33])) == (0, K)
                    && usize::from(get_u16(data, 34)) == V;
                Ok(fits.then(|| lsn_of(data)))
            });
            let Some(lsn) = read.await.ok().and_then(|(lsn, _)| lsn) else { continue };
            match self.state.returned.get(&block) {
                Some(before) => leaves.push((*before, block)),
                // A leaf that this repair wrote is of an unfinished tree, made from the same
                // leaves.
                None if lsn > self.state.began => {}
                None => leaves.push((lsn, block)),
            }
        }
        leaves.sort_unstable_by(|a, b| b.cmp(a));
        let mut count = 0;
        for (_, block) in leaves {
            let read = self.mfs.run(Cost::READ, |txn| Ok(leaf::<K, V>(txn.read(block)?)));
            let Ok((entries, _)) = read.await else { continue };
            let (Some((first, _)), Some((last, _))) = (entries.first(), entries.last()) else {
                continue;
            };
            if spans.as_mut().is_none_or(|spans| spans.take(*first, after(last))) {
                count += self.enter(&entries, false).await?;
            }
        }
        Ok(count)
    }

    /// Blocks that are allocated and that the check found no owner of.
    pub(super) async fn unowned_blocks(&mut self) -> Result<Vec<MetaBlock>, StoreError> {
        let blocks = self.mfs.superblock().blocks;
        let bits = engine::alloc::metaspace::BITS;
        let mut out = Vec::new();
        for from in (0..blocks).step_by(bits as usize) {
            let to = blocks.min(from + bits);
            let Some(allocated) = self.check.allocated(from, to).await? else { continue };
            let free = (from..to)
                .zip(allocated)
                .filter(|&(block, allocated)| allocated && !self.check.is_claimed(block));
            out.extend(free.map(|(block, _)| MetaBlock(block)));
        }
        Ok(out)
    }
}

/// Keys that leaves have, from a first one up to below a last one: spans that do not overlap.
/// `None`: there is no last.
struct Spans<const K: usize>(BTreeMap<[u8; K], Option<[u8; K]>>);

impl<const K: usize> Default for Spans<K> {
    fn default() -> Spans<K> {
        Spans(BTreeMap::new())
    }
}

impl<const K: usize> Spans<K> {
    /// Adds a span, if it overlaps with none.
    fn take(&mut self, first: [u8; K], end: Option<[u8; K]>) -> bool {
        let below = match end {
            Some(end) => self.0.range(..end).next_back(),
            None => self.0.last_key_value(),
        };
        let free = below.is_none_or(|(_, end)| end.is_some_and(|end| end <= first));
        if free {
            self.0.insert(first, end);
        }
        free
    }
}

/// The key after this one.
fn after<const K: usize>(key: &[u8; K]) -> Option<[u8; K]> {
    let mut next = *key;
    for byte in next.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            return Some(next);
        }
    }
    None
}

fn leaf<const K: usize, const V: usize>(
    data: &engine::format::block::Block,
) -> Vec<([u8; K], [u8; V])> {
    let mut out = Vec::new();
    for entry in data[48..].chunks_exact(K + V).take(entries_of(data)) {
        let (mut key, mut value) = ([0; K], [0; V]);
        key.copy_from_slice(&entry[..K]);
        value.copy_from_slice(&entry[K..]);
        out.push((key, value));
    }
    out
}
