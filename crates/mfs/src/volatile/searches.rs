//! Where searches in the namespace index ended, and how many there were.

use crate::format::namespace::NAMESPACE_KEY;
use engine::btree::Finger;

/// Where the last search ended, and how much was searched.
#[derive(Default, Debug)]
pub(crate) struct Searches {
    pub(crate) finger: Finger<NAMESPACE_KEY>,
    /// Searches since the store was opened.
    pub(crate) counts: SearchCounts,
}

/// The searches of the running transaction; dropped when its body starts over.
#[derive(Default, Debug)]
pub(crate) struct PendingSearches {
    pub(crate) finger: Option<Finger<NAMESPACE_KEY>>,
    pub(crate) counts: SearchCounts,
}

/// Searches in the namespace index by successful transactions, since the store was opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SearchCounts {
    /// Searches.
    pub searches: u64,
    /// Nodes that they read.
    pub nodes: u64,
}

impl Searches {
    /// Takes over the searches of a transaction that succeeded.
    pub(crate) fn apply(&mut self, pending: PendingSearches) {
        if let Some(finger) = pending.finger {
            self.finger = finger;
        }
        self.counts.searches += pending.counts.searches;
        self.counts.nodes += pending.counts.nodes;
    }

    /// Drops the finger: the tree was changed without this module.
    pub(crate) fn forget(&mut self) {
        self.finger = Finger::default();
    }
}
