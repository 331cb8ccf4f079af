//! Requests on locks.

use proto::lock_server::Owner;
use proto::mds::{Lock, Op, OpReply};
use types::{Bug, Fault, Ino, planted};

use super::Execution;
use crate::{lock_fairness, recall};

impl Execution {
    /// Evicts holders of conflicting locks that are dead or have been silent for a lease. (As long
    /// as someone waits for the lock, upkeep evicts holders that fall silent later.)
    pub(super) async fn evict_unresponsive_holders(&self, ino: Ino, lock: &Lock) {
        let owner = Owner { client: self.client(), owner: lock.owner };
        let holders = self.server.locks.borrow().holders(ino, owner, lock);
        recall::evict_unresponsive(&self.server, &holders).await;
    }

    pub(super) fn lock(&mut self, op: &Op) -> Result<OpReply, Fault> {
        let client = self.client();
        let owner = |lock: &Lock| Owner { client, owner: lock.owner };
        let fairness = &self.server.lock_fairness;
        let mut locks = self.server.locks.borrow_mut();
        let free = match op {
            Op::Lock { ino, lock, wait } => {
                let locked = locks.lock(*ino, owner(lock), lock, *wait);
                match locked {
                    Ok(_) => fairness.granted(*ino, owner(lock)),
                    Err(Fault::WouldBlock) if !wait => {
                        fairness.refused(*ino, owner(lock), self.server.env.now());
                    }
                    Err(_) => {}
                }
                locked?
            }
            Op::Unlock { .. } if planted(Bug::UnlockLost) => Vec::new(),
            Op::Unlock { ino, lock } => {
                let free = locks.unlock(*ino, owner(lock), lock)?;
                if !locks.holds(*ino, owner(lock)) {
                    fairness.freed(*ino, owner(lock));
                }
                free
            }
            Op::CancelLock { ino, lock } => locks.cancel(*ino, owner(lock), lock),
            Op::TestLock { ino, lock } => {
                let found = locks.test(*ino, owner(lock), lock)?;
                return Ok(OpReply::Locked { lock: found.map(|(_, lock)| lock) });
            }
            _ => return Err(Fault::Unsupported),
        };
        drop(locks);
        self.server.push_lock_free(&free);
        Ok(OpReply::Done {})
    }

    /// Lets another owner come first that was refused for long.
    pub(super) async fn give_way(&self, ino: Ino, lock: &Lock) {
        let owner = Owner { client: self.client(), owner: lock.owner };
        lock_fairness::give_way(&self.server, ino, owner).await;
    }

    pub(super) fn reclaim_lock(&self, ino: Ino, lock: &Lock) {
        let owner = Owner { client: self.client(), owner: lock.owner };
        if self.server.locks.borrow_mut().lock(ino, owner, lock, false).is_err() {
            let text = format!(
                "client {} reclaims a lock of inode {ino}, which another client holds",
                self.client()
            );
            self.server.log(&text);
        }
    }
}
