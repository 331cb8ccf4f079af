//! Invariants 1, 2 and 5, after every recovery: the metadata are whole.
//!
//! The metadata device is copied and checked whole (`fsck`) twice for each start of a server: when
//! the store's recovery has ended, which is when nothing of this server was changed yet; and when
//! all clients have reclaimed and replayed, as soon as an application then asks or is answered.
//! What is in the log alone counts: the check recovers the copy as the next server would.

use crate::cluster::{self, Cluster};
use crate::log;

/// The invariants.
pub(crate) const WHOLE: &str = "1, 2, 5: the metadata are whole after a recovery";

/// What is remembered.
#[derive(Default)]
pub(crate) struct Recovery {
    /// The start whose recovery has ended.
    ended: u64,
}

impl Recovery {
    /// Has the recovery of the server that runs ended since it was asked last?
    pub(crate) fn has_ended(&mut self, cluster: &Cluster) -> bool {
        let start = cluster.starts.get();
        if start == self.ended || !cluster.ledger().is_some_and(|ledger| ledger.serves()) {
            return false;
        }
        self.ended = start;
        true
    }
}

/// A recovery has ended: what it left is looked at.
pub(crate) fn recovered(cluster: &Cluster, what: &str) {
    if let Err(text) = cluster::fsck(cluster.meta().fork(), cluster.starts.get()) {
        log::broken(WHOLE, &format!("after {what}: {text}"));
    }
}
