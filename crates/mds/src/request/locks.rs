//! Requests on locks.

use proto::lock_server::Owner;
use proto::mds::{Lock, OpReply};
use types::{Fault, Ino};

use super::Execution;
use crate::leases::{Evictor, HeldGates};

impl Execution {
    /// Evicts holders of conflicting locks that are dead or have been silent for a lease. (As long
    /// as someone waits for the lock, upkeep evicts holders that fall silent later.)
    async fn evict_unresponsive_holders(&self, ino: Ino, lock: &Lock) {
        let holders = self.server.locks.holders(ino, self.owner(lock), lock);
        let evicted = self.server.evictions.evict_unresponsive(&holders);
        self.worker.away(evicted).await;
    }

    fn owner(&self, lock: &Lock) -> Owner {
        Owner { client: self.client(), owner: lock.owner }
    }

    /// Waits until it is decided whether a directory moves, and keeps it where it is meanwhile.
    ///
    /// # Errors
    /// `Moved`: it lives elsewhere.
    async fn stay(&self, ino: Ino) -> Result<Option<HeldGates>, Fault> {
        let (server, mut held) = (&self.server, None);
        let is_closed = || server.leases.is_gate_closed(ino, None);
        if server.joint.has_peers() && (server.joint.is_closed(ino) || is_closed()) {
            held = Some(self.worker.away(server.leases.enter(vec![ino])).await);
        }
        if server.is_here(ino) { Ok(held) } else { Err(Fault::Moved) }
    }

    pub(super) async fn lock(&self, ino: Ino, lock: &Lock, wait: bool) -> Result<OpReply, Fault> {
        let (locks, owner) = (&self.server.locks, self.owner(lock));
        self.evict_unresponsive_holders(ino, lock).await;
        // Another owner comes first that was refused for long.
        let turn = locks.give_way(ino, owner);
        self.worker.away(turn).await;
        let _stays = self.stay(ino).await?;
        if self.session.is_over() {
            return Err(Fault::Evicted);
        }
        locks.lock(ino, owner, lock, wait)?;
        Ok(OpReply::Done {})
    }

    pub(super) fn unlock(&self, ino: Ino, lock: &Lock) -> Result<OpReply, Fault> {
        self.server.locks.unlock(ino, self.owner(lock), lock)?;
        Ok(OpReply::Done {})
    }

    pub(super) fn cancel_lock(&self, ino: Ino, lock: &Lock) -> Result<OpReply, Fault> {
        self.server.locks.cancel(ino, self.owner(lock), lock);
        Ok(OpReply::Done {})
    }

    pub(super) async fn test_lock(&self, ino: Ino, lock: &Lock) -> Result<OpReply, Fault> {
        self.evict_unresponsive_holders(ino, lock).await;
        if self.session.is_over() {
            return Err(Fault::Evicted);
        }
        let lock = self.server.locks.test(ino, self.owner(lock), lock)?;
        Ok(OpReply::Locked { lock })
    }
}
