//! A sweep of the checkpoint: selects the dirty blocks that go home next.
//!
//! Invariants:
//! - a sweep passes once over the device in the order of addresses. It takes every block that was
//!   dirty when it began or, if they are too scattered, every block dirtied by [`Sweep::until`].
//!   So at its end no block is dirty since before that position;
//! - the sweep takes a block that became dirty later only directly after one that it takes, in the
//!   same request. There are at most as many of these riders as there were dirty blocks when it
//!   began: redo finds at most three times as many blocks in the log as may be dirty at once;
//! - a batch never splits a request: it ends where a request ends.

use types::{Lsn, MetaBlock};

use crate::cache::Cache;
use crate::device::RUN_MAX;

/// Approximate number of runs that one sweep takes. The time of a sweep bounds how long a change
/// waits when the log is full; if there are more runs, the oldest blocks go first.
const RUNS_MAX: usize = 2048;

/// The state of a sweep.
#[derive(Debug)]
pub(crate) struct Sweep {
    /// The sweep takes blocks that were dirtied by the group at this position.
    until: Lsn,
    /// The sweep has passed all blocks before this one.
    at: MetaBlock,
    /// Number of later dirty blocks that the sweep may still take.
    riders: usize,
}

impl Sweep {
    /// A sweep over the blocks that are dirty now; `group` is where the running group begins.
    /// `None` if no block is dirty.
    pub(crate) fn begin(cache: &Cache, group: Lsn) -> Option<Sweep> {
        let dirty = cache.dirty_count();
        let taken = dirty * RUNS_MAX / cache.dirty_runs().max(1);
        let until = if taken >= dirty { group } else { cache.dirty_since(taken)? };
        (dirty > 0).then_some(Sweep { until, at: MetaBlock(0), riders: dirty })
    }

    /// The next blocks to write home, about `most`, and whether they are the last.
    pub(crate) fn next(&mut self, cache: &Cache, most: usize) -> (Vec<MetaBlock>, bool) {
        let mut batch = Vec::new();
        let mut run = 0;
        for dirty in cache.dirty_from(self.at) {
            let adjoins = dirty.block == self.at;
            if batch.len() >= most && (!adjoins || run % RUN_MAX == 0) {
                return (batch, false);
            }
            if dirty.since > self.until {
                if !adjoins || self.riders == 0 {
                    continue;
                }
                self.riders -= 1;
            }
            run = if adjoins { run + 1 } else { 1 };
            self.at = MetaBlock(dirty.block.0 + 1);
            batch.push(dirty.block);
        }
        (batch, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dirty(blocks: impl IntoIterator<Item = (u64, u64)>) -> Cache {
        let mut cache = Cache::new(100_000);
        for (block, since) in blocks {
            let data = cache.buffer();
            cache.insert(MetaBlock(block), data);
            cache.mark_dirty(MetaBlock(block), Lsn(since));
        }
        cache
    }

    fn numbers(blocks: &[MetaBlock]) -> Vec<u64> {
        blocks.iter().map(|block| block.0).collect()
    }

    #[test]
    fn sweep_takes_dirty_blocks_by_address_and_riders_next_to_them() {
        let mut cache = dirty([(50, 1), (10, 2), (30, 2)]);
        let mut sweep = Sweep::begin(&cache, Lsn(2)).unwrap();
        let late = [9, 11, 12, 14, 31, 49, 51, 60];
        for block in late {
            let data = cache.buffer();
            cache.insert(MetaBlock(block), data);
            cache.mark_dirty(MetaBlock(block), Lsn(3));
        }
        let (batch, last) = sweep.next(&cache, 1);
        assert_eq!((numbers(&batch), last), (vec![10, 11, 12], false));
        let (batch, last) = sweep.next(&cache, 100);
        // The sweep takes three riders for its three blocks, and not the one after 50.
        assert_eq!((numbers(&batch), last), (vec![30, 31, 50], true));
    }

    #[test]
    fn batch_ends_where_a_request_ends() {
        let cache = dirty((100..1100).chain(2000..2003).map(|block| (block, 1)));
        let mut sweep = Sweep::begin(&cache, Lsn(1)).unwrap();
        let sizes = [10, 300, 1000].map(|most| sweep.next(&cache, most).0.len());
        assert_eq!(sizes, [256, 512, 235]);
        assert_eq!(sweep.next(&cache, 10), (vec![], true));
    }

    #[test]
    fn sweep_of_scattered_blocks_takes_the_oldest() {
        let scattered = 4 * RUNS_MAX as u64;
        let cache = dirty((0..scattered).map(|n| (2 * n + 1, n)));
        let mut sweep = Sweep::begin(&cache, Lsn(scattered)).unwrap();
        let (batch, last) = sweep.next(&cache, usize::MAX);
        assert!(last);
        assert_eq!(numbers(&batch), (0..RUNS_MAX as u64).map(|n| 2 * n + 1).collect::<Vec<_>>());
        assert!(Sweep::begin(&dirty([]), Lsn(1)).is_none());
    }
}
