//! B+trees, and the list of them: FORMAT.md 5 and 5.1.

use crate::Image;
use crate::device::{Block, Error, TREE, damaged, is_zero, u16_at, u64_at};

/// A tree: the number of its root, and the bytes of its keys and values.
pub struct Tree {
    root: usize,
    key: usize,
    value: usize,
}

const fn tree(root: usize, key: usize, value: usize) -> Tree {
    Tree { root, key, value }
}

pub const DIRECTORY_TABLE: Tree = tree(1, 8, 24);
pub const MOVED: Tree = tree(2, 8, 8);
pub const ORPHANS: Tree = tree(3, 8, 8);
pub const SEGMENTS: Tree = tree(4, 16, 16);
pub const PAGS: Tree = tree(5, 2, 64);
pub const FREE: Tree = tree(6, 10, 8);
pub const POOLS: Tree = tree(7, 18, 8);
pub const FREED: Tree = tree(8, 10, 24);
pub const CLIENTS: Tree = tree(11, 8, 8);
pub const REPLIES: Tree = tree(12, 12, 8);
pub const SETTINGS: Tree = tree(13, 4, 64);
pub const NAMESPACE: Tree = tree(17, 16, 8);
pub const DOOMED: Tree = tree(19, 10, 2);
pub const OWED_FENCES: Tree = tree(20, 10, 4);
pub const INTENTS: Tree = tree(22, 15, 112);
pub const OUTSIDE: Tree = tree(23, 8, 16);
pub const LENT: Tree = tree(24, 10, 13);
pub const HOMES: Tree = tree(25, 8, 8);

/// Trees in which an entry with a key of zeros has no meaning.
const PLANTED: [usize; 12] = [2, 3, 4, 7, 8, 17, 19, 20, 22, 23, 24, 25];

const ENTRIES: usize = 48;
/// Bytes of a child's block number.
const CHILD: usize = 8;

pub type Entry = (Vec<u8>, Vec<u8>);

impl Image {
    /// The value of a key.
    pub fn get(&self, tree: &Tree, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.range(tree, key, key)?.pop().map(|(_, value)| value))
    }

    /// All entries, without the meaningless ones.
    pub fn entries(&self, tree: &Tree) -> Result<Vec<Entry>, Error> {
        self.range(tree, &vec![0; tree.key], &vec![0xff; tree.key])
    }

    /// The entries with keys from `first` to `last`, in order.
    pub fn range(&self, tree: &Tree, first: &[u8], last: &[u8]) -> Result<Vec<Entry>, Error> {
        let mut out = Vec::new();
        if let root @ 1.. = self.roots[tree.root] {
            let node = self.node(tree, root)?;
            let bounds = Bounds { low: &vec![0; tree.key], high: None };
            self.descend(tree, &node, bounds, (first, last), &mut out)?;
        }
        if PLANTED.contains(&tree.root) {
            out.retain(|(key, _)| !is_zero(key));
        }
        Ok(out)
    }

    /// Adds the entries below a node whose keys are in the range. The node's keys must be within
    /// `bounds`.
    fn descend(
        &self,
        tree: &Tree,
        node: &Node,
        bounds: Bounds<'_>,
        (first, last): (&[u8], &[u8]),
        out: &mut Vec<Entry>,
    ) -> Result<(), Error> {
        for n in 0..node.count {
            let (key, value) = node.entry(n);
            // The separator of the first child is unused: its keys begin at the node's own bound.
            let low = if node.level > 0 && n == 0 { bounds.low } else { key };
            let high = if n + 1 < node.count { Some(node.entry(n + 1).0) } else { bounds.high };
            if low < bounds.low || high.is_some_and(|high| high <= low) {
                return damaged(node.block, "keys out of order");
            }
            let is_wanted = low <= last && high.is_none_or(|high| high > first);
            if node.level == 0 && (first..=last).contains(&key) {
                out.push((key.to_vec(), value.to_vec()));
            } else if node.level > 0 && is_wanted {
                let child = self.node(tree, u64_at(value, 0))?;
                if child.level != node.level - 1 || child.count == 0 {
                    return damaged(child.block, "a node in the wrong place");
                }
                self.descend(tree, &child, Bounds { low, high }, (first, last), out)?;
            }
        }
        Ok(())
    }

    fn node(&self, tree: &Tree, block: u64) -> Result<Node, Error> {
        let data = self.device.read(block, TREE)?;
        let (level, count) = (data[32], usize::from(u16_at(&data[..], 36)));
        let value = if level == 0 { tree.value } else { CHILD };
        let widths = (usize::from(data[33]), usize::from(u16_at(&data[..], 34)));
        if widths != (tree.key, tree.value) || count * (tree.key + value) > data.len() - ENTRIES {
            return damaged(block, "a node of another tree");
        }
        Ok(Node { block, level, key: tree.key, width: tree.key + value, count, data })
    }
}

/// The bounds of a node's keys: at least `low`, and below `high` if there is one.
#[derive(Clone, Copy)]
struct Bounds<'a> {
    low: &'a [u8],
    high: Option<&'a [u8]>,
}

struct Node {
    block: u64,
    level: u8,
    /// Bytes of a key, and of an entry.
    key: usize,
    width: usize,
    count: usize,
    data: Box<Block>,
}

impl Node {
    /// A key, and the value or child that belongs to it.
    fn entry(&self, n: usize) -> (&[u8], &[u8]) {
        let at = ENTRIES + n * self.width;
        self.data[at..at + self.width].split_at(self.key)
    }
}
