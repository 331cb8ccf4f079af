//! Opens in kept answers from before a restart, which the client may not have received.
//!
//! The client sends its request again. Its answer may report a file that it opened, or one that it
//! was to have open when the file was removed. Until then only the kept answer says so.
//!
//! Invariants:
//! - from the end of a client's recovery on, an inode in one of its kept answers counts as open by
//!   it. So the inode is not freed before the client has said whether it has it open;
//! - the server asks the client as soon as it can answer, and nobody waits for that answer.

use mfs::{Cost, Stop, StoreError, Txn};
use types::{ClientId, Ino, Transno};

use super::Recovery;
use super::kept_results::{self, Outcome};
use crate::sessions::Session;

impl Recovery {
    /// Makes the inodes in the kept answers of a recovered client count as open by it. Damage is
    /// logged, and a damaged inode does not count as open: nobody can use it, and the client's
    /// recovery must not fail for it.
    ///
    /// # Errors
    /// The store's, except damage.
    pub(super) async fn presume_open(&self, session: &Session) -> Result<(), StoreError> {
        let (mfs, client) = (&self.runtime.mfs, session.client);
        let mut opened = Vec::new();
        let slots = mfs.run(Cost::READ, |txn| txn.replied_slots(client)).await;
        for slot in self.skip_damage(slots)?.unwrap_or_default() {
            let inos = mfs.run(Cost::READ, |txn| inodes_in_reply(txn, client, slot)).await;
            opened.extend(self.skip_damage(inos)?.unwrap_or_default());
        }
        opened.sort_unstable();
        opened.dedup();
        for ino in opened {
            let attr = mfs.run(Cost::READ, |txn| txn.names().attr(ino)).await;
            let is_there = self.skip_damage(attr)?.flatten().is_some();
            if session.is_over() {
                return Ok(());
            }
            if is_there && self.leases.presume_open(client, ino) {
                self.presumed_open.borrow_mut().push((client, ino));
            }
        }
        Ok(())
    }

    /// Grace is over: asks clients whether they have the presumed inodes open.
    pub(super) fn recall_presumed(&self) {
        for (client, ino) in self.presumed_open.take() {
            self.leases.recall_open_of(client, ino);
        }
    }

    /// The value that was read; logs damage of the device and yields `None`.
    fn skip_damage<T>(
        &self,
        read: Result<(T, Transno), StoreError>,
    ) -> Result<Option<T>, StoreError> {
        match read {
            Ok((value, _)) => Ok(Some(value)),
            Err(error @ StoreError::Corrupt { .. }) => {
                let text = format!("skipping an inode that a client may have open: {error}");
                self.runtime.log(&text);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// The inodes in the answer that is kept for a slot.
fn inodes_in_reply(txn: &mut Txn<'_>, client: ClientId, slot: u32) -> Result<Vec<Ino>, Stop> {
    let Some((_, bytes)) = txn.reply(client, slot)? else { return Ok(Vec::new()) };
    let outcomes = kept_results::decode(&bytes).unwrap_or_default();
    let inos = outcomes.into_iter().filter_map(|(_, outcome)| match outcome {
        Outcome::Inode(ino) | Outcome::Moved(ino, _) | Outcome::MovedLeaving(ino, ..) => Some(ino),
        Outcome::Done | Outcome::Space(_) | Outcome::Edits(_) => None,
    });
    Ok(inos.collect())
}
