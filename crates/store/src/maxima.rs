//! The greatest values of a row of numbers: where is the next that is large enough?
//!
//! Invariants:
//! - a node is the greater of its two children, and the leaves are the numbers;
//! - changing a number and finding the next one look at no more nodes than twice the depth of the
//!   tree, and a few.

use std::cell::Cell;

/// A row of numbers, of which one that is large enough is found without looking at all before it.
/// They change behind a shared reference: they are bounds, and become tighter by looking.
#[derive(Clone, Debug)]
pub struct Maxima {
    /// Leaves, a power of two; those beyond the row are 0.
    width: usize,
    /// Node 1 is the root, below node n lie 2n and 2n + 1, and the last `width` ones are the
    /// leaves.
    nodes: Vec<Cell<u32>>,
    /// Nodes looked at.
    #[cfg(test)]
    looks: Cell<u64>,
}

impl Maxima {
    /// A row of so many zeros.
    pub fn new(len: usize) -> Maxima {
        let width = len.next_power_of_two();
        Maxima {
            width,
            nodes: vec![Cell::new(0); 2 * width],
            #[cfg(test)]
            looks: Cell::new(0),
        }
    }

    fn node(&self, at: usize) -> u32 {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
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

    /// The first from `from` on that is at least `least`, which is not 0.
    pub fn next(&self, from: usize, least: u32) -> Option<usize> {
        if from >= self.width {
            return None;
        }
        let mut at = self.width + from;
        while self.node(at) < least {
            // The subtree to the right of this one, as large a one as begins there.
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
    fn the_next_is_the_one_that_looking_at_all_finds() {
        let mut seed = 1;
        for len in [1usize, 2, 3, 4, 5, 7, 8, 9, 31, 33, 100] {
            let (maxima, mut row) = (Maxima::new(len), vec![0; len]);
            for _ in 0..2000 {
                let index = random(&mut seed, len as u64) as usize;
                row[index] = random(&mut seed, 9) as u32;
                maxima.set(index, row[index]);
                assert_eq!(maxima.get(index), row[index]);
                let from = random(&mut seed, len as u64 + 2) as usize;
                let least = random(&mut seed, 10) as u32 + 1;
                let naive = (from..len).find(|&at| row[at] >= least);
                assert_eq!(maxima.next(from, least), naive, "{row:?} from {from}, {least}");
            }
        }
    }

    #[test]
    fn of_a_nearly_full_row_few_nodes_are_looked_at() {
        // The bitmap blocks of 16 TiB.
        let len = ((16u64 << 40) / 4096).div_ceil(crate::metaspace::BITS) as usize;
        assert!(len > 132_000);
        let depth = u64::from(len.next_power_of_two().ilog2());
        let maxima = Maxima::new(len);
        let looks = |work: &dyn Fn()| {
            let before = maxima.looks.get();
            work();
            maxima.looks.get() - before
        };
        let mut most = 0;
        for at in [0, 1, len / 3, len / 2, len - 1] {
            most = most.max(looks(&|| maxima.set(at, 7)));
            for from in [0, 1, at / 2, at, at + 1, len - 1] {
                let found = (from <= at).then_some(at);
                most = most.max(looks(&|| assert_eq!(maxima.next(from, 5), found)));
                most = most.max(looks(&|| assert_eq!(maxima.next(from, 8), None)));
            }
            most = most.max(looks(&|| maxima.set(at, 0)));
        }
        assert!(most <= 2 * depth + 2, "{most} nodes of a tree of depth {depth}");
    }
}
