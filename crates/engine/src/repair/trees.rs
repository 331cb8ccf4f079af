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
//! - entries go from leaf to leaf, so that a tree of any size needs little memory.

use std::collections::{BTreeMap, BTreeSet};

use types::MetaBlock;

use super::{RepairState, change};
use crate::alloc::metaspace::BITS;
use crate::btree::{Entry, NodeContent, Tree, entries_of};
use crate::check::{Checker, allocated, read};
use crate::cost::Cost;
use crate::error::StoreError;
use crate::format::block::{Block, BlockType, get_u16, lsn_of};
use crate::format::roots::{PARTIAL_TREE, SCRATCH, UNFINISHED};
use crate::store::transact::Transact;

/// Entries put into the new tree by one transaction.
const BATCH: usize = 64;

/// Builds trees of a layer's store anew, after a check.
pub struct Rebuild<'a, C, L> {
    /// The check that found them damaged.
    pub check: &'a mut C,
    /// Runs the transactions.
    pub layer: &'a L,
    /// What earlier rounds did.
    pub state: &'a RepairState,
}

impl<C: Checker, L: Transact> Rebuild<'_, C, L> {
    /// Builds a tree anew; returns what was done. The new tree also gets the entries of `also`
    /// before it replaces the old one. With `unique`, no other tree has entries of these widths.
    ///
    /// # Errors
    /// As [`Store::run`](crate::store::Store::run).
    pub async fn build<const K: usize, const V: usize>(
        &mut self,
        tree: Tree<K, V>,
        unique: bool,
        what: &str,
        also: &[Entry<K, V>],
    ) -> Result<String, StoreError> {
        let young_wins = self.begin_scratch().await? && self.state.bitmap_lost;
        let (reached, spans) = self.reached(tree).await?;
        let spans = young_wins.then_some(spans);
        let found = if unique { self.unreached_leaves::<K, V>(spans).await? } else { 0 };
        let added = self.enter(also, false).await?;
        change(self.layer, |txn| {
            let txn = txn.as_mut();
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
        Ok(line)
    }

    /// Begins a new tree; returns whether there are no nodes of an unfinished one. Leaves of an
    /// unfinished tree are newer than those that they were made from, and may have fewer entries.
    async fn begin_scratch(&mut self) -> Result<bool, StoreError> {
        let begin = self.layer.run(Cost::DELETE, |txn| {
            let txn = txn.as_mut();
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
        let mut seen = BTreeSet::new();
        let mut stack = Vec::new();
        stack.extend(read(self.check, |txn| tree.root_node(txn)).await?.flatten());
        while let Some(node) = stack.pop() {
            if !seen.insert(node.block) {
                continue;
            }
            match read(self.check, |txn| tree.inspect(txn, &node)).await? {
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
        entries: &[Entry<K, V>],
        over: bool,
    ) -> Result<u64, StoreError> {
        let scratch: Tree<K, V> = Tree::at(SCRATCH);
        let mut count = 0;
        for batch in entries.chunks(BATCH) {
            let put = self.layer.run(Cost::DELETE, |txn| {
                let txn = txn.as_mut();
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
        let store = self.layer.store();
        for block in unowned_blocks(self.check).await? {
            let read = store.run(Cost::READ, |txn| {
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
            let read = store.run(Cost::READ, |txn| Ok(leaf::<K, V>(txn.read(block)?)));
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
}

/// Blocks that are allocated and that the check found no owner of.
///
/// # Errors
/// `Io`, `Poisoned`; damage is a finding.
pub async fn unowned_blocks(check: &mut impl Checker) -> Result<Vec<MetaBlock>, StoreError> {
    let blocks = check.claims().blocks;
    let mut out = Vec::new();
    for from in (0..blocks).step_by(BITS as usize) {
        let Some(bits) = allocated(check, from, blocks.min(from + BITS)).await? else { continue };
        let claims = check.claims();
        let unowned =
            (from..).zip(bits).filter(|&(block, allocated)| allocated && !claims.get(block));
        out.extend(unowned.map(|(block, _)| MetaBlock(block)));
    }
    Ok(out)
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

fn leaf<const K: usize, const V: usize>(data: &Block) -> Vec<Entry<K, V>> {
    let mut out = Vec::new();
    for entry in data[48..].chunks_exact(K + V).take(entries_of(data)) {
        let (mut key, mut value) = ([0; K], [0; V]);
        key.copy_from_slice(&entry[..K]);
        value.copy_from_slice(&entry[K..]);
        out.push((key, value));
    }
    out
}
