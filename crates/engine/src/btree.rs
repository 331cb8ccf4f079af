//! B+trees with fixed-size keys and values, in blocks of their own.
//!
//! Invariants:
//! - keys are byte strings in their lexicographic order, so integers go in big-endian;
//! - every leaf is at the same depth; every node except the root was at least a quarter full
//!   when a removal last descended through it;
//! - the separator of a child is not above the child's keys and is above all keys before them; the
//!   first separator of a node is unused;
//! - splits and merges happen on the way down, so no change propagates up again.
//!
//! | offset | size | field    | meaning                                     |
//! |-------:|-----:|----------|---------------------------------------------|
//! |      0 |   32 | header   | block header, type tree node                |
//! |     32 |    1 | level    | 0 for a leaf                                |
//! |     33 |    1 | key      | bytes of a key                              |
//! |     34 |    2 | value    | bytes of a value, also above leaves         |
//! |     36 |    2 | count    | entries                                     |
//! |     38 |   10 | reserved | zero                                        |
//! |     48 | 4048 | entries  | key and value; above leaves: key, child u64 |
//!
//! The address of the root node is in the roots (3.4); 0: the tree has no entries. Bytes after the
//! entries have no meaning.

mod entries;
mod inspect;

use types::MetaBlock;
use types::limits::BLOCK;

use entries::{ENTRIES, insert_entry, remove_entry};
pub use inspect::{Descent, ExpectedNode, NodeContent};

use crate::error::Stop;
use crate::format::block::{Block, BlockType, get_u16, get_u64, put_u16, put_u64};
use crate::format::roots::{ROOTS_BLOCK, RootId};
use crate::txn::Txn;

const LEVEL_MAX: u8 = 24;

/// Where the address of a tree's root node is stored: a `u64` that is 0 for an empty tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RootLocation {
    /// In the block of roots.
    RootsBlock(RootId),
    /// At a byte offset of some other block.
    Block(MetaBlock, u16),
}

/// The entry count in a node, unchecked.
pub fn entries_of(node: &Block) -> usize {
    usize::from(get_u16(node, 36))
}

impl From<RootId> for RootLocation {
    fn from(id: RootId) -> RootLocation {
        RootLocation::RootsBlock(id)
    }
}

/// An entry of a tree.
pub type Entry<const K: usize, const V: usize> = ([u8; K], [u8; V]);

/// A path from the root to a leaf, from which a search for a nearby key starts. It is valid until a
/// node of the tree is split, merged or freed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finger<const K: usize> {
    path: Vec<PathNode<K>>,
}

/// A node on the path, and the bounds of its keys: at least `low`, below `high`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct PathNode<const K: usize> {
    block: MetaBlock,
    level: Option<u8>,
    low: Option<[u8; K]>,
    high: Option<[u8; K]>,
}

impl<const K: usize> Default for Finger<K> {
    fn default() -> Finger<K> {
        Finger { path: Vec::new() }
    }
}

impl<const K: usize> Finger<K> {
    /// The leaf at the end of the path, if there is one.
    fn leaf(&self) -> Option<MetaBlock> {
        self.path.last().map(|node| node.block)
    }

    /// The first key that belongs after its leaf; `None` for the last leaf.
    pub fn upper_bound(&self) -> Option<[u8; K]> {
        self.path.last()?.high
    }

    /// The least key that belongs in its leaf; `None` for the first leaf.
    pub fn lower_bound(&self) -> Option<[u8; K]> {
        self.path.last()?.low
    }
}

impl<const K: usize> PathNode<K> {
    fn covers(&self, key: &[u8; K]) -> bool {
        self.low.is_none_or(|low| low <= *key) && self.high.is_none_or(|high| *key < high)
    }
}

/// A handle of a tree, by the location of its root; it holds no state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tree<const K: usize, const V: usize> {
    location: RootLocation,
}

impl<const K: usize, const V: usize> Tree<K, V> {
    const LEAF: usize = (BLOCK - ENTRIES) / (K + V);
    const INNER: usize = (BLOCK - ENTRIES) / (K + 8);
    const CHECK: () = assert!(K > 0 && K <= 128 && V <= 480, "a node holds several entries");

    /// The tree whose root address is at `location`.
    pub const fn new(location: RootLocation) -> Tree<K, V> {
        let () = Self::CHECK;
        Tree { location }
    }

    /// The tree whose root address is in the block of roots.
    pub const fn at(id: RootId) -> Tree<K, V> {
        Tree::new(RootLocation::RootsBlock(id))
    }

    /// Where its root is.
    pub const fn location(&self) -> RootLocation {
        self.location
    }

    fn root_word(&self) -> (MetaBlock, usize) {
        match self.location {
            RootLocation::RootsBlock(id) => (ROOTS_BLOCK, usize::from(id.offset())),
            RootLocation::Block(block, offset) => (block, usize::from(offset)),
        }
    }

    fn root(&self, txn: &Txn<'_>) -> Result<Option<MetaBlock>, Stop> {
        let (block, offset) = self.root_word();
        let value = get_u64(txn.read(block)?, offset);
        Ok((value != 0).then_some(MetaBlock(value)))
    }

    fn set_root(&self, txn: &mut Txn<'_>, root: Option<MetaBlock>) -> Result<(), Stop> {
        let (block, offset) = self.root_word();
        put_u64(txn.write(block)?, offset, root.map_or(0, |block| block.0));
        Ok(())
    }

    /// Makes another node, or none (0), the root, without freeing the nodes below the old one.
    pub fn replace_root(&self, txn: &mut Txn<'_>, root: u64) -> Result<(), Stop> {
        self.set_root(txn, (root != 0).then_some(MetaBlock(root)))
    }

    /// Reports that entries are invalid, with the address of the tree's root node.
    pub fn corrupt(&self, txn: &Txn<'_>, what: &'static str) -> Stop {
        match self.root(txn) {
            Ok(root) => Stop::Corrupt(root.unwrap_or(self.root_word().0), what),
            Err(stop) => stop,
        }
    }

    /// Is the tree empty?
    ///
    /// # Errors
    /// `Stop::Miss`, `Stop::Corrupt`.
    pub fn is_empty(&self, txn: &Txn<'_>) -> Result<bool, Stop> {
        Ok(self.root(txn)?.is_none())
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// `Stop::Miss`, `Stop::Corrupt`.
    pub fn get(&self, txn: &Txn<'_>, key: &[u8; K]) -> Result<Option<[u8; V]>, Stop> {
        let Some(mut block) = self.root(txn)? else { return Ok(None) };
        let mut node = self.node(txn, block, None)?;
        while node.level > 0 {
            block = node.child(node.child_of(key));
            node = self.node(txn, block, Some(node.level - 1))?;
        }
        Ok(node.find(key).ok().map(|at| node.value(at)))
    }

    /// Sets the value of `key`; returns its former one.
    ///
    /// # Errors
    /// `Stop::Miss`, `Stop::Corrupt`, `Fault::NoSpace`.
    pub fn insert(
        &self,
        txn: &mut Txn<'_>,
        key: &[u8; K],
        value: &[u8; V],
    ) -> Result<Option<[u8; V]>, Stop> {
        let mut block = match self.root(txn)? {
            Some(root) => self.split_root(txn, root)?,
            None => self.create_root(txn)?,
        };
        let mut expected = None;
        loop {
            let node = self.node(txn, block, expected)?;
            if node.level == 0 {
                return self.put(txn, block, key, value);
            }
            let at = node.child_of(key);
            let (level, child) = (node.level, node.child(at));
            block = self.make_room(txn, block, at, child, key)?;
            expected = Some(level - 1);
        }
    }

    /// Removes `key`; returns its value.
    ///
    /// # Errors
    /// `Stop::Miss`, `Stop::Corrupt`.
    pub fn remove(&self, txn: &mut Txn<'_>, key: &[u8; K]) -> Result<Option<[u8; V]>, Stop> {
        if self.get(txn, key)?.is_none() {
            return Ok(None);
        }
        let Some(mut block) = self.root(txn)? else { return Ok(None) };
        let mut is_root = true;
        let mut expected = None;
        loop {
            let node = self.node(txn, block, expected)?;
            if node.level == 0 {
                return self.remove_from_leaf(txn, block, key, is_root);
            }
            expected = Some(node.level - 1);
            let at = node.child_of(key);
            let at = self.fill_child(txn, block, at, expected)?;
            let node = self.node(txn, block, None)?;
            let child = node.child(at);
            if is_root && node.count == 1 {
                self.set_root(txn, Some(child))?;
                txn.free_meta(block, 1)?;
            } else {
                is_root = false;
            }
            block = child;
        }
    }

    /// The first entry whose key is at least `from`.
    ///
    /// # Errors
    /// `Stop::Miss`, `Stop::Corrupt`.
    pub fn next(&self, txn: &Txn<'_>, from: &[u8; K]) -> Result<Option<Entry<K, V>>, Stop> {
        let mut found = None;
        self.for_each(txn, from, |key, value| {
            found = Some((*key, *value));
            false
        })?;
        Ok(found)
    }

    /// The last entry whose key is at most `to`.
    ///
    /// # Errors
    /// `Stop::Miss`, `Stop::Corrupt`.
    pub fn prev(&self, txn: &Txn<'_>, to: &[u8; K]) -> Result<Option<Entry<K, V>>, Stop> {
        match self.root(txn)? {
            Some(root) => self.prev_below(txn, root, None, to),
            None => Ok(None),
        }
    }

    /// The first entry.
    ///
    /// # Errors
    /// `Stop::Miss`, `Stop::Corrupt`.
    pub fn first(&self, txn: &Txn<'_>) -> Result<Option<Entry<K, V>>, Stop> {
        self.next(txn, &[0; K])
    }

    /// The last entry.
    ///
    /// # Errors
    /// `Stop::Miss`, `Stop::Corrupt`.
    pub fn last(&self, txn: &Txn<'_>) -> Result<Option<Entry<K, V>>, Stop> {
        self.prev(txn, &[0xff; K])
    }

    /// Calls `each` with the entries from the key `from` on, in order, until it returns `false`.
    ///
    /// # Errors
    /// `Stop::Miss`, `Stop::Corrupt`.
    pub fn for_each(
        &self,
        txn: &Txn<'_>,
        from: &[u8; K],
        mut each: impl FnMut(&[u8; K], &[u8; V]) -> bool,
    ) -> Result<(), Stop> {
        let Some(root) = self.root(txn)? else { return Ok(()) };
        // A caller that continues after the last key would never end if keys went backwards.
        let (mut least, mut ordered) = (*from, true);
        self.walk(txn, root, None, Some(from), &mut |key, value| {
            ordered = least <= *key;
            least = *key;
            ordered && each(key, value)
        })?;
        if ordered { Ok(()) } else { Err(self.corrupt(txn, "keys of a tree are out of order")) }
    }

    /// At most `max` entries from the key `from` on, in order.
    ///
    /// # Errors
    /// `Stop::Miss`, `Stop::Corrupt`.
    pub fn range(
        &self,
        txn: &Txn<'_>,
        from: &[u8; K],
        max: usize,
    ) -> Result<Vec<Entry<K, V>>, Stop> {
        let mut out = Vec::new();
        if max > 0 {
            self.for_each(txn, from, |key, value| {
                out.push((*key, *value));
                out.len() < max
            })?;
        }
        Ok(out)
    }

    /// Moves `finger` to the leaf where `key` belongs: up the path as far as necessary, then down.
    /// Returns the number of nodes that it read; 0 for an empty tree.
    ///
    /// # Errors
    /// `Stop::Miss`, `Stop::Corrupt`.
    pub fn seek(&self, txn: &Txn<'_>, finger: &mut Finger<K>, key: &[u8; K]) -> Result<u64, Stop> {
        let path = &mut finger.path;
        let Some(root) = self.root(txn)? else {
            path.clear();
            return Ok(0);
        };
        if path.first().is_none_or(|top| top.block != root) {
            path.clear();
            path.push(PathNode { block: root, level: None, low: None, high: None });
        }
        while path.len() > 1 && path.last().is_some_and(|node| !node.covers(key)) {
            path.pop();
        }
        let mut read = 0;
        while let Some(&PathNode { block, level, low, high }) = path.last() {
            let node = self.node(txn, block, level)?;
            read += 1;
            if node.level == 0 {
                break;
            }
            let at = node.child_of(key);
            path.push(PathNode {
                block: node.child(at),
                level: Some(node.level - 1),
                low: if at == 0 { low } else { Some(node.key(at)) },
                high: if at + 1 < node.count { Some(node.key(at + 1)) } else { high },
            });
        }
        Ok(read)
    }

    /// At most `max` entries of the leaf at `finger`, from the key `from` on.
    ///
    /// # Errors
    /// `Stop::Miss`, `Stop::Corrupt`.
    pub fn leaf_range(
        &self,
        txn: &Txn<'_>,
        finger: &Finger<K>,
        from: &[u8; K],
        max: usize,
    ) -> Result<Vec<Entry<K, V>>, Stop> {
        let Some(leaf) = finger.leaf() else { return Ok(Vec::new()) };
        let node = self.node(txn, leaf, None)?;
        let start = node.find(from).unwrap_or_else(|at| at);
        let end = node.count.min(start.saturating_add(max));
        Ok((start..end).map(|at| (node.key(at), node.value(at))).collect())
    }

    /// The last entry below the key `below` in the leaf at `finger`.
    ///
    /// # Errors
    /// `Stop::Miss`, `Stop::Corrupt`.
    pub fn leaf_prev(
        &self,
        txn: &Txn<'_>,
        finger: &Finger<K>,
        below: &[u8; K],
    ) -> Result<Option<Entry<K, V>>, Stop> {
        let Some(leaf) = finger.leaf() else { return Ok(None) };
        let node = self.node(txn, leaf, None)?;
        let at = node.find(below).unwrap_or_else(|at| at);
        Ok(at.checked_sub(1).map(|at| (node.key(at), node.value(at))))
    }

    /// As [`Tree::insert`], in the leaf at `finger`, where `key` belongs; `false` if the leaf is
    /// full.
    ///
    /// # Errors
    /// `Stop::Miss`, `Stop::Corrupt`.
    pub fn leaf_insert(
        &self,
        txn: &mut Txn<'_>,
        finger: &Finger<K>,
        key: &[u8; K],
        value: &[u8; V],
    ) -> Result<bool, Stop> {
        let Some(leaf) = finger.leaf() else { return Ok(false) };
        let node = self.node(txn, leaf, None)?;
        if node.level > 0 || node.count >= Self::LEAF {
            return Ok(false);
        }
        self.put(txn, leaf, key, value)?;
        Ok(true)
    }

    /// As [`Tree::remove`], from the leaf at `finger`, where `key` belongs; `false` if too few
    /// entries would remain in the leaf.
    ///
    /// # Errors
    /// `Stop::Miss`, `Stop::Corrupt`.
    pub fn leaf_remove(
        &self,
        txn: &mut Txn<'_>,
        finger: &Finger<K>,
        key: &[u8; K],
    ) -> Result<bool, Stop> {
        let Some(leaf) = finger.leaf() else { return Ok(false) };
        let node = self.node(txn, leaf, None)?;
        if node.level > 0 || node.count <= Self::LEAF / 4 {
            return Ok(false);
        }
        self.remove_from_leaf(txn, leaf, key, false)?;
        Ok(true)
    }

    fn walk(
        &self,
        txn: &Txn<'_>,
        block: MetaBlock,
        level: Option<u8>,
        from: Option<&[u8; K]>,
        each: &mut impl FnMut(&[u8; K], &[u8; V]) -> bool,
    ) -> Result<bool, Stop> {
        let node = self.node(txn, block, level)?;
        if node.level == 0 {
            let start = from.map_or(0, |key| node.find(key).unwrap_or_else(|at| at));
            return Ok((start..node.count).all(|at| each(&node.key(at), &node.value(at))));
        }
        let start = from.map_or(0, |key| node.child_of(key));
        for at in start..node.count {
            let from = if at == start { from } else { None };
            if !self.walk(txn, node.child(at), Some(node.level - 1), from, each)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn prev_below(
        &self,
        txn: &Txn<'_>,
        block: MetaBlock,
        level: Option<u8>,
        to: &[u8; K],
    ) -> Result<Option<Entry<K, V>>, Stop> {
        let node = self.node(txn, block, level)?;
        if node.level == 0 {
            let at = match node.find(to) {
                Ok(at) => at,
                Err(0) => return Ok(None),
                Err(at) => at - 1,
            };
            return Ok(Some((node.key(at), node.value(at))));
        }
        for at in (0..=node.child_of(to)).rev() {
            let found = self.prev_below(txn, node.child(at), Some(node.level - 1), to)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// A checked view of the node in `block`, of level `level` if that is given.
    fn node<'t>(
        &self,
        txn: &'t Txn<'_>,
        block: MetaBlock,
        level: Option<u8>,
    ) -> Result<Node<'t, K, V>, Stop> {
        let bytes = txn.read_as(block, BlockType::Tree)?;
        let node = Node { bytes, level: bytes[32], count: usize::from(get_u16(bytes, 36)) };
        let capacity = if node.level == 0 { Self::LEAF } else { Self::INNER };
        if usize::from(bytes[33]) != K || usize::from(get_u16(bytes, 34)) != V {
            return Err(Stop::Corrupt(block, "a tree node has keys of another tree"));
        }
        if node.level > LEVEL_MAX || level.is_some_and(|level| level != node.level) {
            return Err(Stop::Corrupt(block, "a tree node has an impossible level"));
        }
        if node.count > capacity || node.count == 0 && (node.level > 0 || level.is_some()) {
            return Err(Stop::Corrupt(block, "a tree node has an impossible count"));
        }
        Ok(node)
    }

    fn capacity(level: u8) -> usize {
        if level == 0 { Self::LEAF } else { Self::INNER }
    }

    fn width(level: u8) -> usize {
        if level == 0 { K + V } else { K + 8 }
    }

    fn new_node<'t>(
        &self,
        txn: &'t mut Txn<'_>,
        level: u8,
        goal: Option<MetaBlock>,
    ) -> Result<(MetaBlock, &'t mut Block), Stop> {
        let block = txn.alloc_meta(1, goal)?;
        let bytes = txn.init(block, BlockType::Tree)?;
        bytes[32] = level;
        bytes[33] = K as u8;
        put_u16(bytes, 34, V as u16);
        Ok((block, bytes))
    }

    fn create_root(&self, txn: &mut Txn<'_>) -> Result<MetaBlock, Stop> {
        let (root, _) = self.new_node(txn, 0, None)?;
        self.set_root(txn, Some(root))?;
        Ok(root)
    }

    /// Splits a full root under a new root; returns the root node.
    fn split_root(&self, txn: &mut Txn<'_>, root: MetaBlock) -> Result<MetaBlock, Stop> {
        let node = self.node(txn, root, None)?;
        if node.count < Self::capacity(node.level) {
            return Ok(root);
        }
        if node.level >= LEVEL_MAX {
            return Err(Stop::Corrupt(root, "a tree is too deep"));
        }
        let level = node.level + 1;
        let (above, bytes) = self.new_node(txn, level, Some(root))?;
        put_u16(bytes, 36, 1);
        put_u64(bytes, ENTRIES + K, root.0);
        self.set_root(txn, Some(above))?;
        Ok(above)
    }

    /// Splits child `at` of `parent` if it is full; returns the child where `key` belongs.
    fn make_room(
        &self,
        txn: &mut Txn<'_>,
        parent: MetaBlock,
        at: usize,
        child: MetaBlock,
        key: &[u8; K],
    ) -> Result<MetaBlock, Stop> {
        let node = self.node(txn, child, None)?;
        let (level, count) = (node.level, node.count);
        if count < Self::capacity(level) {
            return Ok(child);
        }
        // For keys inserted in order, the split leaves the left node nearly full.
        let last = node.key(count - 1) < *key;
        let keep = if last { count - count.div_ceil(8) } else { count / 2 };
        let separator = node.key(keep);
        let width = Self::width(level);
        let mut moved = [0; BLOCK];
        let tail = &node.bytes[ENTRIES + keep * width..ENTRIES + count * width];
        moved[..tail.len()].copy_from_slice(tail);
        let len = tail.len();
        let (right, bytes) = self.new_node(txn, level, Some(child))?;
        bytes[ENTRIES..ENTRIES + len].copy_from_slice(&moved[..len]);
        put_u16(bytes, 36, (count - keep) as u16);
        let left = txn.write(child)?;
        left[ENTRIES + keep * width..ENTRIES + count * width].fill(0);
        put_u16(left, 36, keep as u16);
        let mut entry = [0; BLOCK];
        entry[..K].copy_from_slice(&separator);
        entry[K..K + 8].copy_from_slice(&right.0.to_le_bytes());
        insert_entry(txn.write(parent)?, at + 1, &entry[..K + 8]);
        Ok(if *key < separator { child } else { right })
    }

    fn put(
        &self,
        txn: &mut Txn<'_>,
        leaf: MetaBlock,
        key: &[u8; K],
        value: &[u8; V],
    ) -> Result<Option<[u8; V]>, Stop> {
        let node = self.node(txn, leaf, None)?;
        match node.find(key) {
            Ok(at) => {
                let former = node.value(at);
                if former != *value {
                    let start = ENTRIES + at * (K + V) + K;
                    txn.write(leaf)?[start..start + V].copy_from_slice(value);
                }
                Ok(Some(former))
            }
            Err(at) => {
                let mut entry = [0; BLOCK];
                entry[..K].copy_from_slice(key);
                entry[K..K + V].copy_from_slice(value);
                insert_entry(txn.write(leaf)?, at, &entry[..K + V]);
                Ok(None)
            }
        }
    }

    fn remove_from_leaf(
        &self,
        txn: &mut Txn<'_>,
        leaf: MetaBlock,
        key: &[u8; K],
        is_root: bool,
    ) -> Result<Option<[u8; V]>, Stop> {
        let node = self.node(txn, leaf, None)?;
        let Ok(at) = node.find(key) else { return Ok(None) };
        let (former, count) = (node.value(at), node.count);
        if is_root && count == 1 {
            self.set_root(txn, None)?;
            txn.free_meta(leaf, 1)?;
        } else {
            remove_entry(txn.write(leaf)?, at, K + V);
        }
        Ok(Some(former))
    }

    /// Ensures that child `at` of `parent` can lose an entry; returns the child's new index.
    fn fill_child(
        &self,
        txn: &mut Txn<'_>,
        parent: MetaBlock,
        at: usize,
        level: Option<u8>,
    ) -> Result<usize, Stop> {
        let node = self.node(txn, parent, None)?;
        let siblings = node.count;
        let child = self.node(txn, node.child(at), level)?;
        if child.count > Self::capacity(child.level) / 4 || siblings == 1 {
            return Ok(at);
        }
        let left_at = if at + 1 < siblings { at } else { at - 1 };
        let (left, right) = (node.child(left_at), node.child(left_at + 1));
        let separator = node.key(left_at + 1);
        let left_count = self.node(txn, left, level)?.count;
        let right_count = self.node(txn, right, level)?.count;
        let level = child.level;
        self.pull_down(txn, right, level, &separator)?;
        if left_count + right_count <= Self::capacity(level) * 3 / 4 {
            self.shift(txn, left, right, level, right_count)?;
            txn.free_meta(right, 1)?;
            remove_entry(txn.write(parent)?, left_at + 1, K + 8);
            return Ok(left_at);
        }
        let wanted = (left_count + right_count) / 2;
        if left_count < wanted {
            self.shift(txn, left, right, level, wanted - left_count)?;
        } else {
            self.unshift(txn, left, right, level, left_count - wanted)?;
        }
        let separator = self.node(txn, right, Some(level))?.key(0);
        let start = ENTRIES + (left_at + 1) * (K + 8);
        txn.write(parent)?[start..start + K].copy_from_slice(&separator);
        Ok(at)
    }

    /// Sets the unused first separator of an inner node.
    fn pull_down(
        &self,
        txn: &mut Txn<'_>,
        node: MetaBlock,
        level: u8,
        separator: &[u8; K],
    ) -> Result<(), Stop> {
        if level > 0 {
            txn.write(node)?[ENTRIES..ENTRIES + K].copy_from_slice(separator);
        }
        Ok(())
    }

    /// Moves the first `n` entries of `right` to the end of `left`.
    fn shift(
        &self,
        txn: &mut Txn<'_>,
        left: MetaBlock,
        right: MetaBlock,
        level: u8,
        n: usize,
    ) -> Result<(), Stop> {
        let width = Self::width(level);
        let mut moved = [0; BLOCK];
        let from = txn.write(right)?;
        let count = usize::from(get_u16(from, 36));
        moved[..n * width].copy_from_slice(&from[ENTRIES..ENTRIES + n * width]);
        from.copy_within(ENTRIES + n * width..ENTRIES + count * width, ENTRIES);
        from[ENTRIES + (count - n) * width..ENTRIES + count * width].fill(0);
        put_u16(from, 36, (count - n) as u16);
        let to = txn.write(left)?;
        let count = usize::from(get_u16(to, 36));
        let start = ENTRIES + count * width;
        to[start..start + n * width].copy_from_slice(&moved[..n * width]);
        put_u16(to, 36, (count + n) as u16);
        Ok(())
    }

    /// Moves the last `n` entries of `left` to the front of `right`.
    fn unshift(
        &self,
        txn: &mut Txn<'_>,
        left: MetaBlock,
        right: MetaBlock,
        level: u8,
        n: usize,
    ) -> Result<(), Stop> {
        let width = Self::width(level);
        let mut moved = [0; BLOCK];
        let from = txn.write(left)?;
        let count = usize::from(get_u16(from, 36));
        let tail = ENTRIES + (count - n) * width..ENTRIES + count * width;
        moved[..n * width].copy_from_slice(&from[tail.clone()]);
        from[tail].fill(0);
        put_u16(from, 36, (count - n) as u16);
        let to = txn.write(right)?;
        let count = usize::from(get_u16(to, 36));
        to.copy_within(ENTRIES..ENTRIES + count * width, ENTRIES + n * width);
        to[ENTRIES..ENTRIES + n * width].copy_from_slice(&moved[..n * width]);
        put_u16(to, 36, (count + n) as u16);
        Ok(())
    }
}

/// A checked view of a node.
struct Node<'t, const K: usize, const V: usize> {
    bytes: &'t Block,
    level: u8,
    count: usize,
}

impl<const K: usize, const V: usize> Node<'_, K, V> {
    fn offset(&self, at: usize) -> usize {
        ENTRIES + at * if self.level == 0 { K + V } else { K + 8 }
    }

    fn key(&self, at: usize) -> [u8; K] {
        *self.key_ref(at)
    }

    fn key_ref(&self, at: usize) -> &[u8; K] {
        let start = self.offset(at);
        self.bytes[start..start + K].try_into().expect("K bytes")
    }

    fn value(&self, at: usize) -> [u8; V] {
        let start = self.offset(at) + K;
        self.bytes[start..start + V].try_into().expect("V bytes")
    }

    fn child(&self, at: usize) -> MetaBlock {
        MetaBlock(get_u64(self.bytes, self.offset(at) + K))
    }

    /// The index of `key`, or the index where it belongs.
    fn find(&self, key: &[u8; K]) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = (low + high) / 2;
            match self.key_ref(middle).cmp(key) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// The child under which `key` belongs.
    fn child_of(&self, key: &[u8; K]) -> usize {
        let (mut low, mut high) = (1, self.count);
        while low < high {
            let middle = (low + high) / 2;
            if self.key_ref(middle) <= key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low - 1
    }
}

#[cfg(test)]
mod tests;
