//! B+trees: FORMAT.md 5, and the table of those that there are (7.4).

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
pub const EXTENTS: Tree = tree(4, 16, 16);
pub const PAGS: Tree = tree(5, 2, 48);
pub const FREE: Tree = tree(6, 10, 8);
pub const POOLS: Tree = tree(7, 18, 8);
pub const FREED: Tree = tree(8, 10, 24);
pub const CLIENTS: Tree = tree(11, 8, 8);
pub const REPLIES: Tree = tree(12, 12, 8);
pub const SETTINGS: Tree = tree(13, 4, 64);
pub const NAMESPACE: Tree = tree(17, 16, 8);

/// Trees in which an entry whose key is zeros means nothing.
const PLANTED: [usize; 6] = [2, 3, 4, 7, 8, 17];

const ENTRIES: usize = 48;
/// Higher trees would have more leaves than a device has blocks.
const LEVELS: u8 = 16;

pub type Entry = (Vec<u8>, Vec<u8>);

impl Image {
    /// The value of a key.
    pub fn get(&self, tree: &Tree, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.range(tree, key, key)?.pop().map(|(_, value)| value))
    }

    /// All entries that mean something.
    pub fn entries(&self, tree: &Tree) -> Result<Vec<Entry>, Error> {
        self.range(tree, &vec![0; tree.key], &vec![0xff; tree.key])
    }

    /// The entries with keys from `first` to `last`, in their order.
    pub fn range(&self, tree: &Tree, first: &[u8], last: &[u8]) -> Result<Vec<Entry>, Error> {
        let mut out = Vec::new();
        if let root @ 1.. = self.roots[tree.root] {
            self.descend(tree, root, None, (first, last), &mut out)?;
        }
        if PLANTED.contains(&tree.root) {
            out.retain(|(key, _)| !is_zero(key));
        }
        Ok(out)
    }

    /// Adds what is below the node in `block`; `level`: of the node above it.
    fn descend(
        &self,
        tree: &Tree,
        block: u64,
        above: Option<u8>,
        (first, last): (&[u8], &[u8]),
        out: &mut Vec<Entry>,
    ) -> Result<(), Error> {
        let node = self.device.read(block, TREE)?;
        let (level, list) = node_of(tree, &node, block)?;
        if level > LEVELS || above.is_some_and(|above| above != level + 1) {
            return damaged(block, "a node at the wrong level");
        }
        for (n, &(key, value)) in list.iter().enumerate() {
            if level == 0 {
                if (first..=last).contains(&key) {
                    out.push((key.to_vec(), value.to_vec()));
                }
                continue;
            }
            // A child has the keys from its separator on and below the next one's; that of the first is unused.
            let begins_behind = n > 0 && key > last;
            let ends_before = list.get(n + 1).is_some_and(|(next, _)| *next <= first);
            if !begins_behind && !ends_before {
                self.descend(tree, u64_at(value, 0), Some(level), (first, last), out)?;
            }
        }
        Ok(())
    }
}

/// The level of a node, and its keys with what belongs to them.
fn node_of<'a>(
    tree: &Tree,
    node: &'a Block,
    block: u64,
) -> Result<(u8, Vec<(&'a [u8], &'a [u8])>), Error> {
    let (level, count) = (node[32], usize::from(u16_at(node, 36)));
    let value = if level == 0 { tree.value } else { 8 };
    let widths = (usize::from(node[33]), usize::from(u16_at(node, 34)));
    if widths != (tree.key, tree.value) || count * (tree.key + value) > node.len() - ENTRIES {
        return damaged(block, "a node of another tree");
    }
    let entries = node[ENTRIES..].chunks_exact(tree.key + value).take(count);
    Ok((level, entries.map(|entry| entry.split_at(tree.key)).collect()))
}
