//! A sweep of the checkpoint: which dirty blocks go home next.
//!
//! Invariants:
//! - a sweep goes once over the device in the order of addresses, and takes every block that was
//!   dirty when it began (or all that were so by [`Sweep::until`], if they lie too scattered), so
//!   at its end nothing is dirty since before that;
//! - a block that became dirty later rides along only behind one that is taken, in its request, and
//!   no more do so than the sweep found dirty: redo finds at most thrice as many blocks in the log
//!   as may be dirty at once;
//! - a request that was begun is not cut: a batch ends where a request does.

use types::{Lsn, MetaBlock};

use crate::cache::Cache;
use crate::device::RUN_MAX;

/// Stretches that one sweep brings home, about: the time of a sweep bounds how long a change waits
/// when the log is full, and beyond this the oldest blocks go first.
const STRETCHES_MAX: usize = 2048;

/// Where a sweep is.
#[derive(Debug)]
pub(crate) struct Sweep {
    /// Blocks that were dirty by then are taken.
    until: Lsn,
    /// It has passed everything before.
    at: MetaBlock,
    /// Blocks that may still ride along.
    rides: usize,
}

impl Sweep {
    /// A sweep over what is dirty now, while the group at `group` runs; `None` if nothing is.
    pub(crate) fn begin(cache: &Cache, group: Lsn) -> Option<Sweep> {
        let dirty = cache.dirty_count();
        let taken = dirty * STRETCHES_MAX / cache.stretches().max(1);
        let until = if taken >= dirty { group } else { cache.dirty_since(taken)? };
        (dirty > 0).then_some(Sweep { until, at: MetaBlock(0), rides: dirty })
    }

    /// The next blocks to take home, about `most`, and whether they are the last.
    pub(crate) fn next(&mut self, cache: &Cache, most: usize) -> (Vec<MetaBlock>, bool) {
        let mut batch = Vec::new();
        let mut run = 0;
        for dirty in cache.dirty_from(self.at) {
            let adjoins = dirty.block == self.at;
            if batch.len() >= most && (!adjoins || run % RUN_MAX == 0) {
                return (batch, false);
            }
            if dirty.since > self.until {
                if !adjoins || self.rides == 0 {
                    continue;
                }
                self.rides -= 1;
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
    fn a_sweep_takes_what_is_dirty_in_the_order_of_addresses_and_neighbours_ride_along() {
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
        // Three may ride along with three, and one is left behind 50.
        assert_eq!((numbers(&batch), last), (vec![30, 31, 50], true));
    }

    #[test]
    fn a_batch_ends_where_a_request_ends() {
        let cache = dirty((100..1100).chain(2000..2003).map(|block| (block, 1)));
        let mut sweep = Sweep::begin(&cache, Lsn(1)).unwrap();
        let sizes = [10, 300, 1000].map(|most| sweep.next(&cache, most).0.len());
        assert_eq!(sizes, [256, 512, 235]);
        assert_eq!(sweep.next(&cache, 10), (vec![], true));
    }

    #[test]
    fn of_scattered_blocks_the_oldest_go_first() {
        let scattered = 4 * STRETCHES_MAX as u64;
        let cache = dirty((0..scattered).map(|n| (2 * n + 1, n)));
        let mut sweep = Sweep::begin(&cache, Lsn(scattered)).unwrap();
        let (batch, last) = sweep.next(&cache, usize::MAX);
        assert!(last);
        assert_eq!(
            numbers(&batch),
            (0..STRETCHES_MAX as u64).map(|n| 2 * n + 1).collect::<Vec<_>>()
        );
        assert!(Sweep::begin(&dirty([]), Lsn(1)).is_none());
    }
}
