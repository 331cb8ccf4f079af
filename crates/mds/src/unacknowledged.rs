//! Opens in kept answers from before a restart, which the client may not have received.
//!
//! The client sends its request again. Its answer may report a file that it opened, or one that it
//! was to have open when the file was removed. Until then only the kept answer says so.
//!
//! Invariants:
//! - from the end of a client's recovery on, an inode in one of its kept answers counts as open by
//!   it. So the inode is not freed before the client has said whether it has it open;
//! - the server asks the client as soon as it can answer, and nobody waits for that answer.

use std::cell::RefCell;

use mfs::{Stop, StoreError, Txn};
use proto::lease_server::Recall;
use types::{ClientId, Ino, Rights, Transno};

use crate::ops::READ;
use crate::record::{self, Outcome};
use crate::server::Server;
use crate::session::{SLOTS_ALL, Session};

/// Inodes that count as open by a client until that client has been asked.
#[derive(Default)]
pub struct UnacknowledgedOpens(RefCell<Vec<(ClientId, Ino)>>);

/// Makes the inodes in the kept answers of a recovered client count as open by it. Damage is
/// logged, and a damaged inode does not count as open: nobody can use it, and the client's recovery
/// must not fail for it.
///
/// # Errors
/// The store's, except damage.
pub async fn presume_open(server: &Server, session: &Session) -> Result<(), StoreError> {
    let mut opened = Vec::new();
    for slot in 0..SLOTS_ALL as u32 {
        let inos = server.mfs.run(READ, |txn| inodes_in_reply(txn, session.client, slot)).await;
        opened.extend(skip_damage(server, inos)?.unwrap_or_default());
    }
    opened.sort_unstable();
    opened.dedup();
    for ino in opened {
        let attr = server.mfs.run(READ, |txn| txn.attr(ino)).await;
        let is_there = skip_damage(server, attr)?.flatten().is_some();
        if session.is_over() {
            return Ok(());
        }
        if is_there {
            presume(server, session.client, ino);
        }
    }
    Ok(())
}

fn presume(server: &Server, client: ClientId, ino: Ino) {
    let mut leases = server.leases.borrow_mut();
    let held = leases.rights(client, ino).contains(Rights::OPEN);
    if !held && leases.grantable(client, ino, Rights::OPEN) == Rights::OPEN {
        leases.grant(client, ino, Rights::OPEN);
        server.unacknowledged.0.borrow_mut().push((client, ino));
    }
}

/// The value that was read; logs damage of the device and yields `None`.
fn skip_damage<T>(
    server: &Server,
    read: Result<(T, Transno), StoreError>,
) -> Result<Option<T>, StoreError> {
    match read {
        Ok((value, _)) => Ok(Some(value)),
        Err(error @ StoreError::Corrupt { .. }) => {
            server.log(&format!("skipping an inode that a client may have open: {error}"));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The inodes in the answer that is kept for a slot.
fn inodes_in_reply(txn: &mut Txn<'_>, client: ClientId, slot: u32) -> Result<Vec<Ino>, Stop> {
    let Some((_, bytes)) = txn.reply(client, slot)? else { return Ok(Vec::new()) };
    let outcomes = record::decode(&bytes).unwrap_or_default();
    let inos = outcomes.into_iter().filter_map(|(_, outcome)| match outcome {
        Outcome::Inode(ino) | Outcome::Moved(ino, _) | Outcome::MovedLeaving(ino, ..) => Some(ino),
        _ => None,
    });
    Ok(inos.collect())
}

/// Grace is over: asks clients whether they have the presumed inodes open.
pub fn recall_presumed(server: &Server) {
    for (client, ino) in server.unacknowledged.0.take() {
        let asked: Option<Recall> = server.leases.borrow_mut().recall_of(client, ino, Rights::OPEN);
        asked.into_iter().for_each(|recall| server.push_recall(recall));
    }
}
