//! What a layer above must have made stable before the log says that it is there (paper 001,
//! section 3.2: ordered mode), and how long groups wait.
//!
//! Invariants:
//! - the store writes a group only when the barrier has said that everything is stable that
//!   records of this group, or of earlier ones, point at;
//! - meanwhile the next group collects records: there is one running and one closed group;
//! - a barrier that fails poisons the store: the records that it was asked about never become
//!   durable.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use types::{Duration, Lsn};

use crate::error::StoreError;
use crate::store::Store;

/// What a barrier answers in time.
pub type Awaited<'a> = Pin<Box<dyn Future<Output = Result<(), StoreError>> + 'a>>;

/// What must have happened before a group is written. It must not hold the store.
pub trait Barrier {
    /// Waits until every write of content has ended that a record before `end` points at.
    fn ended(&self, end: Lsn) -> Awaited<'_>;

    /// Makes stable what has ended.
    fn flush(&self) -> Awaited<'_>;
}

/// Upper bounds of the bins of [`Waits`], all but the last: 1 µs, 2 µs, 4 µs and so on.
pub const WAIT_BINS: usize = 24;

/// Waits of one kind, as numbers that a status can print.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Waits {
    /// How many.
    pub count: u64,
    /// All of them together, in nanoseconds.
    pub nanos: u64,
    /// The longest, in nanoseconds.
    pub longest_nanos: u64,
    /// How many took less than 2^n µs and not less than half of it; the last bin has all longer
    /// ones.
    pub bins: [u64; WAIT_BINS],
}

impl Waits {
    /// Adds a wait.
    pub fn add(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.count += 1;
        self.nanos = self.nanos.saturating_add(nanos);
        self.longest_nanos = self.longest_nanos.max(nanos);
        let bin = u64::BITS - (nanos / 1000).leading_zeros();
        self.bins[(bin as usize).min(WAIT_BINS - 1)] += 1;
    }
}

/// How groups were committed: the points of serialisation of paper 001, section 3.2.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CommitStats {
    /// Groups written.
    pub groups: u64,
    /// Bytes of them, with padding.
    pub bytes: u64,
    /// A caller waited for the running group while the closed one was being committed.
    pub closed: Waits,
    /// A transaction waited because the running group had a quarter of the log.
    pub locked: Waits,
    /// A transaction waited because log or cache held too much that was not yet home.
    pub home: Waits,
    /// A closed group waited for writes of content that its records point at.
    pub data: Waits,
    /// The flush of the content before the group.
    pub data_flush: Waits,
    /// The write of the group, and the flush behind it.
    pub log: Waits,
}

impl Store {
    /// Sets what must be stable before a group is written. There was none, and no transaction yet
    /// that needs it.
    pub fn set_barrier(&self, barrier: Rc<dyn Barrier>) {
        *self.inner.barrier.borrow_mut() = Some(barrier);
    }

    /// How groups were committed since the store was opened.
    pub fn commit_stats(&self) -> CommitStats {
        *self.inner.stats.borrow()
    }

    /// Stops the store because of a failure of the layer above, as a failed write of the log does:
    /// every later call fails with `Poisoned`.
    pub fn poison(&self, why: &str) {
        self.inner.poison(why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_falls_into_the_bin_of_its_length() {
        let mut waits = Waits::default();
        for (micros, bin) in [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (1 << 40, WAIT_BINS - 1)] {
            let before = waits.bins[bin];
            waits.add(Duration::from_micros(micros));
            assert_eq!(waits.bins[bin], before + 1, "{micros} us");
        }
        assert_eq!(waits.count, 6);
        assert_eq!(waits.longest_nanos, 1000 << 40);
        assert_eq!(waits.bins.iter().sum::<u64>(), 6);
    }
}
