//! Reads a tree node by node, and checks each against what its parent says about it.

use std::collections::BTreeSet;

use types::MetaBlock;

use super::{Entry, Tree};
use crate::error::Stop;
use crate::txn::Txn;

/// A node to be inspected, and what its parent says about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExpectedNode<const K: usize> {
    /// Its block.
    pub block: MetaBlock,
    /// Its level; `None`: any.
    pub level: Option<u8>,
    /// Its keys are not below this; `None`: no bound.
    pub low: Option<[u8; K]>,
    /// They are below this.
    pub high: Option<[u8; K]>,
}

/// The content of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeContent<const K: usize, const V: usize> {
    /// Entries, in order.
    Leaf(Vec<Entry<K, V>>),
    /// The level above the leaves, and the children.
    Inner(u8, Vec<ExpectedNode<K>>),
}

/// The nodes on the path to a key, and the content of the leaf at its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Descent<const K: usize, const V: usize> {
    /// From the root to the leaf.
    pub nodes: Vec<MetaBlock>,
    /// Entries of the leaf, in order.
    pub entries: Vec<Entry<K, V>>,
    /// The least key that the next leaf may have; `None`: there is no next leaf.
    pub next: Option<[u8; K]>,
}

impl<const K: usize, const V: usize> Tree<K, V> {
    /// Calls `each` with every node's address and level, the root first. Checks the order of keys
    /// and the shape of the tree on the way. For tests and fsck.
    ///
    /// # Errors
    /// `Stop::Miss`; `Stop::Corrupt` for a malformed node.
    pub fn nodes(&self, txn: &Txn<'_>, mut each: impl FnMut(MetaBlock, u8)) -> Result<(), Stop> {
        match self.root_node(txn)? {
            Some(root) => self.check_node(txn, &root, &mut each),
            None => Ok(()),
        }
    }

    fn check_node(
        &self,
        txn: &Txn<'_>,
        expected: &ExpectedNode<K>,
        each: &mut impl FnMut(MetaBlock, u8),
    ) -> Result<(), Stop> {
        match self.inspect(txn, expected)? {
            NodeContent::Leaf(_) => each(expected.block, 0),
            NodeContent::Inner(level, children) => {
                each(expected.block, level);
                for child in &children {
                    self.check_node(txn, child, each)?;
                }
            }
        }
        Ok(())
    }

    /// The root node, to be inspected; `None` for an empty tree.
    ///
    /// # Errors
    /// `Stop::Miss`, `Stop::Corrupt`.
    pub fn root_node(&self, txn: &Txn<'_>) -> Result<Option<ExpectedNode<K>>, Stop> {
        let root = self.root(txn)?;
        Ok(root.map(|block| ExpectedNode { block, level: None, low: None, high: None }))
    }

    /// Checks one node against what its parent says about it, and returns its content.
    ///
    /// # Errors
    /// `Stop::Miss`; `Stop::Corrupt` for a malformed node or keys out of order.
    pub fn inspect(
        &self,
        txn: &Txn<'_>,
        expected: &ExpectedNode<K>,
    ) -> Result<NodeContent<K, V>, Stop> {
        let ExpectedNode { block, level, low, high } = *expected;
        let node = self.node(txn, block, level)?;
        let first = usize::from(node.level > 0);
        for at in first..node.count {
            let key = node.key(at);
            let after = if at > first { Some(node.key(at - 1)) } else { None };
            if after.is_some_and(|before| before >= key)
                || low.is_some_and(|low| key < low)
                || high.is_some_and(|high| key >= high)
            {
                return Err(Stop::Corrupt(block, "the keys of a tree node are out of order"));
            }
        }
        if node.level == 0 {
            let entries = (0..node.count).map(|at| (node.key(at), node.value(at)));
            return Ok(NodeContent::Leaf(entries.collect()));
        }
        let children = (0..node.count).map(|at| ExpectedNode {
            block: node.child(at),
            level: Some(node.level - 1),
            low: if at == 0 { low } else { Some(node.key(at)) },
            high: if at + 1 < node.count { Some(node.key(at + 1)) } else { high },
        });
        Ok(NodeContent::Inner(node.level, children.collect()))
    }

    /// Checks the nodes from the root to the leaf where `key` belongs; `None` for an empty tree.
    ///
    /// # Errors
    /// As [`Tree::inspect`].
    pub fn descend(&self, txn: &Txn<'_>, key: &[u8; K]) -> Result<Option<Descent<K, V>>, Stop> {
        let mut nodes = Vec::new();
        let mut next = self.root_node(txn)?;
        while let Some(node) = next {
            nodes.push(node.block);
            match self.inspect(txn, &node)? {
                NodeContent::Leaf(entries) => {
                    return Ok(Some(Descent { nodes, entries, next: node.high }));
                }
                NodeContent::Inner(_, children) => {
                    let at =
                        children.partition_point(|child| child.low.is_none_or(|low| low <= *key));
                    next = children.get(at.saturating_sub(1)).copied();
                }
            }
        }
        Ok(None)
    }

    /// Calls `each` with the entries from `first` to `last`, in order, but not those below the
    /// nodes `without`, which cannot be read. It ends when `each` returns `false`.
    ///
    /// # Errors
    /// As [`Tree::inspect`].
    pub fn range_without(
        &self,
        txn: &Txn<'_>,
        (first, last): (&[u8; K], &[u8; K]),
        without: &BTreeSet<MetaBlock>,
        mut each: impl FnMut(&[u8; K], &[u8; V]) -> bool,
    ) -> Result<(), Stop> {
        let mut stack: Vec<_> = self.root_node(txn)?.into_iter().collect();
        while let Some(node) = stack.pop() {
            let before = node.high.is_some_and(|high| high <= *first);
            let behind = node.low.is_some_and(|low| low > *last);
            if before || behind || without.contains(&node.block) {
                continue;
            }
            match self.inspect(txn, &node)? {
                NodeContent::Inner(_, children) => stack.extend(children.into_iter().rev()),
                NodeContent::Leaf(entries) => {
                    let mut within = entries.iter().filter(|(key, _)| first <= key && key <= last);
                    if !within.all(|(key, value)| each(key, value)) {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }
}
