//! Requests on locks.

use proto::lock_server::Owner;
use proto::mds::{Lock, OpReply};
use types::{Bug, Fault, Ino, planted};

use super::Execution;
use crate::{lock_fairness, recall};

impl Execution {
    /// Evicts holders of conflicting locks that are dead or have been silent for a lease. (As long
    /// as someone waits for the lock, upkeep evicts holders that fall silent later.)
    async fn evict_unresponsive_holders(&self, ino: Ino, lock: &Lock) {
        let owner = self.owner(lock);
        let holders = self.server.locks.borrow().holders(ino, owner, lock);
        recall::evict_unresponsive(&self.server, &holders).await;
    }

    fn owner(&self, lock: &Lock) -> Owner {
        Owner { client: self.client(), owner: lock.owner }
    }

    pub(super) async fn lock(&self, ino: Ino, lock: &Lock, wait: bool) -> Result<OpReply, Fault> {
        self.evict_unresponsive_holders(ino, lock).await;
        self.give_way(ino, lock).await;
        if self.session.is_over() {
            return Err(Fault::Evicted);
        }
        let (owner, fairness) = (self.owner(lock), &self.server.lock_fairness);
        let locked = self.server.locks.borrow_mut().lock(ino, owner, lock, wait);
        match locked {
            Ok(_) => fairness.granted(ino, owner),
            Err(Fault::WouldBlock) if !wait => {
                fairness.refused(ino, owner, self.server.env.now());
            }
            Err(_) => {}
        }
        self.server.push_lock_free(&locked?);
        Ok(OpReply::Done {})
    }

    pub(super) fn unlock(&self, ino: Ino, lock: &Lock) -> Result<OpReply, Fault> {
        if planted(Bug::UnlockLost) {
            return Ok(OpReply::Done {});
        }
        let owner = self.owner(lock);
        let mut locks = self.server.locks.borrow_mut();
        let free = locks.unlock(ino, owner, lock)?;
        if !locks.holds(ino, owner) {
            self.server.lock_fairness.freed(ino, owner);
        }
        drop(locks);
        self.server.push_lock_free(&free);
        Ok(OpReply::Done {})
    }

    pub(super) fn cancel_lock(&self, ino: Ino, lock: &Lock) -> Result<OpReply, Fault> {
        let free = self.server.locks.borrow_mut().cancel(ino, self.owner(lock), lock);
        self.server.push_lock_free(&free);
        Ok(OpReply::Done {})
    }

    pub(super) async fn test_lock(&self, ino: Ino, lock: &Lock) -> Result<OpReply, Fault> {
        self.evict_unresponsive_holders(ino, lock).await;
        if self.session.is_over() {
            return Err(Fault::Evicted);
        }
        let found = self.server.locks.borrow().test(ino, self.owner(lock), lock)?;
        Ok(OpReply::Locked { lock: found.map(|(_, lock)| lock) })
    }

    /// Lets another owner come first that was refused for long.
    async fn give_way(&self, ino: Ino, lock: &Lock) {
        let owner = self.owner(lock);
        lock_fairness::give_way(&self.server, ino, owner).await;
    }

    pub(super) fn reclaim_lock(&self, ino: Ino, lock: &Lock) {
        let owner = self.owner(lock);
        if self.server.locks.borrow_mut().lock(ino, owner, lock, false).is_err() {
            let text = format!(
                "client {} reclaims a lock of inode {ino}, which another client holds",
                self.client()
            );
            self.server.log(&text);
        }
    }
}
