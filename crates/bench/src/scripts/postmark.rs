//! PostMark (002 §6.3, 004 §V.D.3): a pool of small files, then transactions on it, then all of it
//! goes.
//!
//! Invariants:
//! - a transaction reads or appends to one file, and makes or deletes one, each with even odds, as
//!   Katcher's program does by default; sizes are even between its default bounds;
//! - the work is one [`Script`], for the store as a library and for system calls on a mount.

use env::sim::SimRng;

/// Sizes of files, in bytes.
const SIZES: std::ops::Range<u64> = 500..10_000;

/// Name of a file.
pub fn name(file: u64) -> String {
    file.to_string()
}

/// One step. A file is known by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deed {
    /// A new file with so many bytes.
    Make {
        /// Which.
        file: u64,
        /// Its size.
        bytes: u64,
    },
    /// The whole file is read.
    Read {
        /// Which.
        file: u64,
    },
    /// So many bytes come to its end.
    Append {
        /// Which.
        file: u64,
        /// How many.
        bytes: u64,
    },
    /// The file goes.
    Delete {
        /// Which.
        file: u64,
    },
}

/// All steps of one process, in order; the same for the same number.
#[derive(Debug)]
pub struct Script {
    rng: SimRng,
    /// Files that the pool still lacks, and transactions to come.
    files: u64,
    transactions: u64,
    /// The second half of a transaction is next.
    half: bool,
    /// Numbers of the files that there are.
    live: Vec<u64>,
    made: u64,
}

impl Script {
    /// Of process `number`: a pool of `files` files and so many transactions on it.
    pub fn new(number: u64, files: u64, transactions: u64) -> Script {
        let rng = SimRng::new(number);
        Script { rng, files, transactions, half: false, live: Vec::new(), made: 0 }
    }

    /// Files that are made first, and transactions.
    pub fn steps(&self) -> u64 {
        self.files + self.transactions
    }

    fn make(&mut self) -> Deed {
        let (file, bytes) = (self.made, self.size());
        self.made += 1;
        self.live.push(file);
        Deed::Make { file, bytes }
    }

    fn size(&mut self) -> u64 {
        SIZES.start + self.rng.below(SIZES.end - SIZES.start)
    }

    fn some(&mut self) -> usize {
        self.rng.below(self.live.len() as u64) as usize
    }

    fn touch(&mut self) -> Deed {
        let at = self.some();
        let file = self.live[at];
        match self.rng.below(2) {
            0 => Deed::Read { file },
            _ => Deed::Append { file, bytes: self.size() },
        }
    }

    fn delete(&mut self) -> Deed {
        let at = self.some();
        Deed::Delete { file: self.live.swap_remove(at) }
    }
}

impl Iterator for Script {
    type Item = Deed;

    fn next(&mut self) -> Option<Deed> {
        if self.files > 0 {
            self.files -= 1;
            return Some(self.make());
        }
        if self.transactions == 0 {
            return (!self.live.is_empty()).then(|| self.delete());
        }
        if !self.half && !self.live.is_empty() {
            self.half = true;
            return Some(self.touch());
        }
        (self.half, self.transactions) = (false, self.transactions - 1);
        let make = self.live.is_empty() || self.rng.below(2) == 0;
        Some(if make { self.make() } else { self.delete() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn script_uses_only_existing_files_and_removes_all() {
        for (files, transactions) in [(100, 2000), (1, 50), (0, 10)] {
            let (mut live, mut halves) = (BTreeSet::new(), [0u64; 4]);
            for deed in Script::new(7, files, transactions) {
                match deed {
                    Deed::Make { file, bytes } => {
                        assert!(live.insert(file) && SIZES.contains(&bytes));
                        halves[0] += 1;
                    }
                    Deed::Read { file } => {
                        assert!(live.contains(&file));
                        halves[1] += 1;
                    }
                    Deed::Append { file, .. } => {
                        assert!(live.contains(&file));
                        halves[2] += 1;
                    }
                    Deed::Delete { file } => {
                        assert!(live.remove(&file));
                        halves[3] += 1;
                    }
                }
            }
            assert!(live.is_empty());
            assert_eq!(halves[0], halves[3], "what was made went");
            if transactions == 2000 {
                assert_eq!(halves[1] + halves[2], 2000);
                assert!(halves[1].abs_diff(halves[2]) < 200 && halves[0].abs_diff(1100) < 100);
            }
        }
    }
}
