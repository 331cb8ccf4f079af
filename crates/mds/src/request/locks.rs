//! Requests on locks.

use proto::lock_server::Owner;
use proto::mds::{Lock, Op, OpReply};
use types::{Fault, Ino};

use super::Execution;
use crate::leases::Evictor;

impl Execution {
    /// Evicts holders of conflicting locks that are dead or have been silent for a lease. (As long
    /// as someone waits for the lock, upkeep evicts holders that fall silent later.)
    pub(super) async fn evict_unresponsive_holders(&self, ino: Ino, lock: &Lock) {
        let holders = self.server.locks.holders(ino, self.owner(lock), lock);
        self.server.evictions.evict_unresponsive(&holders).await;
    }

    pub(super) fn lock(&self, op: &Op) -> Result<OpReply, Fault> {
        let locks = &self.server.locks;
        match op {
            Op::Lock { ino, lock, wait } => locks.lock(*ino, self.owner(lock), lock, *wait)?,
            Op::Unlock { ino, lock } => locks.unlock(*ino, self.owner(lock), lock)?,
            Op::CancelLock { ino, lock } => locks.cancel(*ino, self.owner(lock), lock),
            Op::TestLock { ino, lock } => {
                let lock = locks.test(*ino, self.owner(lock), lock)?;
                return Ok(OpReply::Locked { lock });
            }
            _ => return Err(Fault::Unsupported),
        }
        Ok(OpReply::Done {})
    }

    /// Lets another owner come first that was refused for long.
    pub(super) async fn give_way(&self, ino: Ino, lock: &Lock) {
        self.server.locks.give_way(ino, self.owner(lock)).await;
    }

    fn owner(&self, lock: &Lock) -> Owner {
        Owner { client: self.client(), owner: lock.owner }
    }
}
