//! The locks of applications (POSIX and flock), and fairness between owners that poll.
//!
//! Invariants:
//! - only this module changes the table. It notifies the owners that waited for what a change frees
//!   at the same instant;
//! - fairness delays requests only: it grants nothing and refuses nothing.

mod fairness;

use std::cell::RefCell;
use std::rc::Rc;

use proto::lock_server::{LockTable, Owner};
use proto::mds::Lock;
use types::{Bug, ClientId, Duration, Fault, Ino, planted};

use self::fairness::LockFairness;
use crate::runtime::Runtime;
use crate::sessions::Sessions;

/// See the module.
pub struct Locks {
    runtime: Rc<Runtime>,
    sessions: Rc<Sessions>,
    table: RefCell<LockTable>,
    /// Lock owners that poll without success, and who must give way to them.
    fairness: LockFairness,
}

impl Locks {
    /// No locks.
    pub fn new(runtime: Rc<Runtime>, sessions: Rc<Sessions>) -> Locks {
        let (table, fairness) = (RefCell::default(), LockFairness::default());
        Locks { runtime, sessions, table, fairness }
    }

    /// Takes a lock; with `wait`, a push says when to ask again.
    ///
    /// # Errors
    /// As [`LockTable::lock`].
    pub fn lock(&self, ino: Ino, owner: Owner, lock: &Lock, wait: bool) -> Result<(), Fault> {
        let locked = self.table.borrow_mut().lock(ino, owner, lock, wait);
        match locked {
            Ok(_) => self.fairness.granted(ino, owner),
            Err(Fault::WouldBlock) if !wait => {
                self.fairness.refused(ino, owner, self.runtime.env.now());
            }
            Err(_) => {}
        }
        self.sessions.push_lock_free(&locked?);
        Ok(())
    }

    /// Releases a range of an owner.
    ///
    /// # Errors
    /// As [`LockTable::unlock`].
    pub fn unlock(&self, ino: Ino, owner: Owner, lock: &Lock) -> Result<(), Fault> {
        if planted(Bug::UnlockLost) {
            return Ok(());
        }
        let mut table = self.table.borrow_mut();
        let free = table.unlock(ino, owner, lock)?;
        if !table.holds(ino, owner) {
            self.fairness.freed(ino, owner);
        }
        drop(table);
        self.sessions.push_lock_free(&free);
        Ok(())
    }

    /// The owner does not wait any more.
    pub fn cancel(&self, ino: Ino, owner: Owner, lock: &Lock) {
        let free = self.table.borrow_mut().cancel(ino, owner, lock);
        self.sessions.push_lock_free(&free);
    }

    /// A lock that keeps the owner from taking this one.
    ///
    /// # Errors
    /// As [`LockTable::test`].
    pub fn test(&self, ino: Ino, owner: Owner, lock: &Lock) -> Result<Option<Lock>, Fault> {
        let found = self.table.borrow().test(ino, owner, lock)?;
        Ok(found.map(|(_, lock)| lock))
    }

    /// After a restart the owner holds a lock again. Yields whether it can.
    pub fn reclaim(&self, ino: Ino, owner: Owner, lock: &Lock) -> bool {
        self.table.borrow_mut().lock(ino, owner, lock, false).is_ok()
    }

    /// The clients that keep the owner from taking the lock.
    pub fn holders(&self, ino: Ino, owner: Owner, lock: &Lock) -> Vec<ClientId> {
        self.table.borrow().holders(ino, owner, lock)
    }

    /// The locks that keep the owner from taking this one.
    pub fn conflicts(&self, ino: Ino, owner: Owner, lock: &Lock) -> Vec<(Owner, Lock)> {
        self.table.borrow().conflicts(ino, owner, lock)
    }

    /// The locks on an inode.
    pub fn held(&self, ino: Ino) -> Vec<(Owner, Lock)> {
        self.table.borrow().held(ino)
    }

    /// The clients that hold a lock for which others wait.
    pub fn awaited(&self) -> Vec<ClientId> {
        self.table.borrow().awaited()
    }

    /// Frees all locks of a client.
    pub fn drop_client(&self, client: ClientId) {
        let free = self.table.borrow_mut().drop_client(client);
        self.sessions.push_lock_free(&free);
    }

    /// Number of locks and waiters of a client.
    pub fn count(&self, client: ClientId) -> usize {
        self.table.borrow().count(client)
    }

    /// Number of locks and waiters.
    pub fn len(&self) -> usize {
        self.table.borrow().len()
    }

    /// Waits a moment if another owner, refused for long, has to go first.
    pub async fn give_way(&self, ino: Ino, owner: Owner) {
        if self.table.borrow().holds(ino, owner) {
            return;
        }
        let env = &self.runtime.env;
        let Some(until) = self.fairness.pause(ino, owner, env.now()) else { return };
        loop {
            let changed = self.fairness.changed();
            let left = until.since(env.now());
            if left == Duration::ZERO || !self.fairness.favours_another(ino, owner) {
                return;
            }
            env.timeout(left, changed).await;
        }
    }

    /// Checks the invariants.
    pub fn validate(&self) {
        self.table.borrow().validate();
        self.fairness.validate();
    }
}
