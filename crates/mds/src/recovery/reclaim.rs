//! Reclaim: a recovering client says which leases and locks it holds.
//!
//! Invariant: what a client reclaims conflicts with nothing that another one holds. If it does, a
//! server had given it away; the second one is refused, and the log says so.

use proto::lock_server::Owner;
use proto::mds::{HeldLease, Lock};
use types::Ino;

use super::Recovery;
use crate::sessions::{Session, SessionState};
use mfs::StoreError;

impl Recovery {
    /// The client reclaims leases and locks.
    pub fn reclaim(&self, session: &Session, leases: &[HeldLease], locks: &[(Ino, Lock)]) {
        for held in leases {
            self.reclaim_lease(session, held);
        }
        for (ino, lock) in locks {
            self.reclaim_lock(session, *ino, lock);
        }
    }

    /// The client has reclaimed and replayed everything.
    ///
    /// # Errors
    /// The store's.
    pub async fn finish(&self, session: &Session) -> Result<(), StoreError> {
        self.presume_open(session).await?;
        session.set_state(SessionState::Live);
        self.recovering.borrow_mut().remove(&session.client);
        // While grace waits for other clients it need not wake: it would look at each of them.
        if self.recovering.borrow().is_empty() && self.absent.borrow().is_empty() {
            self.sessions.announce_change();
        }
        Ok(())
    }

    fn reclaim_lease(&self, session: &Session, held: &HeldLease) {
        let (client, ino) = (session.client, held.ino);
        let (refused, parts) = self.leases.reclaim(client, held);
        if !refused.is_empty() || !parts.is_empty() {
            let text = format!(
                "client {client} reclaims {refused:?} {parts:?} of inode {ino}, which another client holds"
            );
            self.runtime.log(&text);
        }
    }

    fn reclaim_lock(&self, session: &Session, ino: Ino, lock: &Lock) {
        let client = session.client;
        if !self.locks.reclaim(ino, Owner { client, owner: lock.owner }, lock) {
            let text = format!(
                "client {client} reclaims a lock of inode {ino}, which another client holds"
            );
            self.runtime.log(&text);
        }
    }
}
