//! Requests on locks.

use proto::lock_server::Owner;
use proto::mds::{Lock, Op, OpReply};
use types::{Bug, Fault, Ino, planted};

use super::Work;
use crate::{recall, turns};

impl Work {
    /// A lock is asked for: holders that stand in its way and are gone or silent for a
    /// lease are evicted. (Those that fall silent later are, as long as someone waits.)
    pub(super) async fn end_late_holders(&self, ino: Ino, lock: &Lock) {
        let owner = Owner { client: self.client(), owner: lock.owner };
        let holders = self.server.locks.borrow().holders(ino, owner, lock);
        recall::end_the_late(&self.server, &holders).await;
    }

    pub(super) fn lock(&mut self, op: &Op) -> Result<OpReply, Fault> {
        let client = self.client();
        let owner = |lock: &Lock| Owner { client, owner: lock.owner };
        let turns = &self.server.turns;
        let mut locks = self.server.locks.borrow_mut();
        let free = match op {
            Op::Lock { ino, lock, wait } => {
                let locked = locks.lock(*ino, owner(lock), lock, *wait);
                match locked {
                    Ok(_) => turns.granted(*ino, owner(lock)),
                    Err(Fault::WouldBlock) if !wait => {
                        turns.refused(*ino, owner(lock), self.server.env.now());
                    }
                    Err(_) => {}
                }
                locked?
            }
            Op::Unlock { .. } if planted(Bug::UnlockLost) => Vec::new(),
            Op::Unlock { ino, lock } => {
                let free = locks.unlock(*ino, owner(lock), lock)?;
                if !locks.holds(*ino, owner(lock)) {
                    turns.freed(*ino, owner(lock));
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
        self.server.tell_lock_free(&free);
        Ok(OpReply::Done {})
    }

    /// Lets an owner come first that was refused for long.
    pub(super) async fn give_way(&self, ino: Ino, lock: &Lock) {
        let owner = Owner { client: self.client(), owner: lock.owner };
        turns::give_way(&self.server, ino, owner).await;
    }

    pub(super) fn reclaim_lock(&self, ino: Ino, lock: &Lock) {
        let owner = Owner { client: self.client(), owner: lock.owner };
        if self.server.locks.borrow_mut().lock(ino, owner, lock, false).is_err() {
            let text =
                format!("client {} claims a lock of inode {ino}, another has it", self.client());
            self.server.log(&text);
        }
    }
}
