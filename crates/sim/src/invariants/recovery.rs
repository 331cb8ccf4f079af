//! RECOVERED: the metadata are whole after every recovery.
//!
//! After each start of a server `fsck` checks a copy of the metadata device twice: after the
//! store's recovery, before this server changes anything; and after all clients have reclaimed and
//! replayed, at the next call of an application. Only what is in the log counts: the check recovers
//! the copy like the next server would.

use types::ShardId;

use crate::cluster::{self, Cluster};
use crate::invariant::Invariant;

/// The state of the checker.
#[derive(Default)]
pub(crate) struct Recovery {
    /// The last start whose recovery has ended.
    ended: u64,
}

impl Recovery {
    /// Has the recovery of a shard's running server ended since the last call?
    pub(crate) fn has_ended(&mut self, cluster: &Cluster, shard: ShardId) -> bool {
        let start = cluster.shard(shard).starts.get();
        if start == self.ended || !cluster.ledger_of(shard).is_some_and(|ledger| ledger.serves()) {
            return false;
        }
        self.ended = start;
        true
    }
}

/// Checks the metadata of a shard after a recovery.
pub(crate) fn recovered(cluster: &Cluster, shard: ShardId, what: &str) {
    if let Err(text) = cluster::fsck(cluster.meta_of(shard).fork(), cluster.starts.get()) {
        cluster.events.broken(Invariant::Recovered, &format!("after {what}: {text}"));
    }
}
