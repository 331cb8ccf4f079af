//! Objects of a content delivery network, as the benchmark xcdn has them (000 §V.B, §V.D): servers
//! write new objects, and read others, all over one namespace.
//!
//! The paper gives the sizes of the objects and says that writes are scattered over the whole
//! namespace; it gives neither the number of processes, nor the tree, nor the share of reads. Here
//! they are constants, fixed before anything was measured, and the same for every contender:
//! [`PROCESSES`], [`WIDTH`], [`STOCK`], [`READS`].
//!
//! Invariants:
//! - an object's directory follows from its process and its number, evenly over the whole tree, so
//!   neighbours in time are no neighbours in the tree;
//! - every process has its stock before any process reads; only objects of stocks are read, those
//!   of all processes alike, so no read waits for another process;
//! - an object has one size in a run, is made and written once, and never changes.

use env::sim::SimRng;

/// Processes of each client.
pub const PROCESSES: u64 = 8;
/// Directories of the top, and directories in each of them: 256 together hold the objects.
pub const WIDTH: u64 = 16;
/// Objects of each process that are there before.
pub const STOCK: u64 = 128;
/// One of so many operations reads: writes outweigh, as the paper explains its result by them.
pub const READS: u64 = 4;
/// Sizes of objects in kibibytes: a run has one of them.
pub const SIZES_KIB: [u64; 6] = [32, 64, 128, 256, 512, 1024];

/// An object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Object {
    /// The process that writes it.
    pub process: u64,
    /// Its number there; those below [`STOCK`] are the stock.
    pub number: u64,
}

/// What a process does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deed {
    /// Makes the object, writes it whole and closes it.
    Write(Object),
    /// Opens the object, reads it whole and closes it.
    Read(Object),
}

impl Object {
    /// The directory that it lies in: a number of the top, and one in that.
    pub fn dir(self) -> (u64, u64) {
        let mut rng = SimRng::new(self.process << 32 | self.number);
        let dir = rng.below(WIDTH * WIDTH);
        (dir / WIDTH, dir % WIDTH)
    }

    /// Its name there.
    pub fn name(self) -> String {
        format!("object-{:03}-{:07}", self.process, self.number)
    }
}

/// Name of a directory of either level.
pub fn dir_name(number: u64) -> String {
    format!("d{number:02}")
}

/// The objects that are there before a process begins.
pub fn stock(process: u64) -> impl Iterator<Item = Object> {
    (0..STOCK).map(move |number| Object { process, number })
}

/// What a process does, one operation after the other.
#[derive(Debug)]
pub struct Script {
    rng: SimRng,
    process: u64,
    /// Processes of all clients.
    all: u64,
    /// The next object that it writes.
    next: u64,
    /// Operations to come.
    ops: u64,
}

impl Script {
    /// So many operations of `process`, of `all` of them.
    pub fn new(process: u64, all: u64, ops: u64) -> Script {
        Script { rng: SimRng::new(!process), process, all: all.max(1), next: STOCK, ops }
    }
}

impl Iterator for Script {
    type Item = Deed;

    fn next(&mut self) -> Option<Deed> {
        self.ops = self.ops.checked_sub(1)?;
        if self.rng.one_in(READS) {
            let (process, number) = (self.rng.below(self.all), self.rng.below(STOCK));
            return Some(Deed::Read(Object { process, number }));
        }
        let object = Object { process: self.process, number: self.next };
        self.next += 1;
        Some(Deed::Write(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn script_is_the_same_again_and_reads_a_quarter() {
        let script = || Script::new(5, 56, 4000);
        assert!(script().eq(script()), "the same process does the same");
        assert!(!script().eq(Script::new(6, 56, 4000)), "another one does not");
        let reads = script().filter(|deed| matches!(deed, Deed::Read(_))).count() as u64;
        assert!(reads.abs_diff(4000 / READS) < 100, "{reads} of 4000 operations read");
    }

    #[test]
    fn objects_are_written_once_and_read_from_every_stock() {
        let mut written: BTreeSet<Object> = (0..8).flat_map(stock).collect();
        assert_eq!(written.len() as u64, 8 * STOCK);
        let stocks = written.clone();
        let mut read_of = BTreeMap::<u64, u64>::new();
        for process in 0..8 {
            for deed in Script::new(process, 8, 1000) {
                match deed {
                    Deed::Write(object) => {
                        assert!(object.process == process && written.insert(object), "{object:?}");
                    }
                    Deed::Read(object) => {
                        assert!(stocks.contains(&object), "{object:?} may not be there");
                        *read_of.entry(object.process).or_default() += 1;
                    }
                }
            }
        }
        assert!(read_of.len() == 8 && read_of.values().all(|&n| n > 150), "{read_of:?}");
    }

    #[test]
    fn objects_are_spread_evenly_over_the_tree() {
        let mut count = BTreeMap::<(u64, u64), u64>::new();
        for process in 0..56 {
            for object in stock(process) {
                *count.entry(object.dir()).or_default() += 1;
            }
        }
        assert_eq!(count.len() as u64, WIDTH * WIDTH);
        let mean = 56 * STOCK / (WIDTH * WIDTH);
        assert!(count.values().all(|&n| n > mean / 3 && n < mean * 3), "{count:?}");
        let dirs: BTreeSet<_> = stock(3).take(64).map(Object::dir).collect();
        assert!(dirs.len() > 48, "neighbours in time lie in {} directories", dirs.len());
    }
}
