//! A max segment tree: finds the next number of an array that is large enough.
//!
//! Invariants:
//! - an inner node is the maximum of its two children, and the leaves are the numbers;
//! - a change and a search visit few more nodes than twice the depth of the tree.

use std::cell::Cell;

/// An array of numbers with a maximum over each subtree, so that a search skips small numbers.
/// They can change behind a shared reference: they are bounds, which a search may tighten.
#[derive(Clone, Debug)]
pub struct MaxTree {
    /// Number of leaves, a power of two; leaves beyond the array are 0.
    width: usize,
    /// Node 1 is the root, the children of node n are 2n and 2n + 1, and the last `width` nodes are
    /// the leaves.
    nodes: Vec<Cell<u32>>,
    /// Nodes visited.
    #[cfg(test)]
    visits: Cell<u64>,
}

impl MaxTree {
    /// An array of `len` zeros.
    pub fn new(len: usize) -> MaxTree {
        let width = len.next_power_of_two();
        MaxTree {
            width,
            nodes: vec![Cell::new(0); 2 * width],
            #[cfg(test)]
            visits: Cell::new(0),
        }
    }

    fn node(&self, at: usize) -> u32 {
        #[cfg(test)]
        self.visits.set(self.visits.get() + 1);
        self.nodes[at].get()
    }

    /// Number `index`.
    pub fn get(&self, index: usize) -> u32 {
        self.node(self.width + index)
    }

    /// Changes number `index`.
    pub fn set(&self, index: usize, value: u32) {
        let mut at = self.width + index;
        self.nodes[at].set(value);
        while at > 1 {
            let greater = self.node(at).max(self.node(at ^ 1));
            at /= 2;
            if self.nodes[at].replace(greater) == greater {
                return;
            }
        }
    }

    /// The index of the first number from `from` on that is at least `least`, which is not 0.
    pub fn next_at_least(&self, from: usize, least: u32) -> Option<usize> {
        if from >= self.width {
            return None;
        }
        let mut at = self.width + from;
        while self.node(at) < least {
            // Go to the largest subtree that begins right after this one.
            while at % 2 == 1 {
                at /= 2;
            }
            if at == 0 {
                return None;
            }
            at += 1;
        }
        while at < self.width {
            at *= 2;
            if self.node(at) < least {
                at += 1;
            }
        }
        Some(at - self.width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::random;

    #[test]
    fn max_tree_search_agrees_with_a_linear_search() {
        let mut seed = 1;
        for len in [1usize, 2, 3, 4, 5, 7, 8, 9, 31, 33, 100] {
            let (tree, mut row) = (MaxTree::new(len), vec![0; len]);
            for _ in 0..2000 {
                let index = random(&mut seed, len as u64) as usize;
                row[index] = random(&mut seed, 9) as u32;
                tree.set(index, row[index]);
                assert_eq!(tree.get(index), row[index]);
                let from = random(&mut seed, len as u64 + 2) as usize;
                let least = random(&mut seed, 10) as u32 + 1;
                let naive = (from..len).find(|&at| row[at] >= least);
                assert_eq!(tree.next_at_least(from, least), naive, "{row:?} from {from}, {least}");
            }
        }
    }

    #[test]
    fn max_tree_search_visits_few_nodes() {
        // The bitmap blocks of 16 TiB.
        let len = ((16u64 << 40) / 4096).div_ceil(crate::alloc::metaspace::BITS) as usize;
        assert!(len > 132_000);
        let depth = u64::from(len.next_power_of_two().ilog2());
        let tree = MaxTree::new(len);
        let visits = |work: &dyn Fn()| {
            let before = tree.visits.get();
            work();
            tree.visits.get() - before
        };
        let mut most = 0;
        for at in [0, 1, len / 3, len / 2, len - 1] {
            most = most.max(visits(&|| tree.set(at, 7)));
            for from in [0, 1, at / 2, at, at + 1, len - 1] {
                let found = (from <= at).then_some(at);
                most = most.max(visits(&|| assert_eq!(tree.next_at_least(from, 5), found)));
                most = most.max(visits(&|| assert_eq!(tree.next_at_least(from, 8), None)));
            }
            most = most.max(visits(&|| tree.set(at, 0)));
        }
        assert!(most <= 2 * depth + 2, "{most} nodes of a tree of depth {depth}");
    }
}
