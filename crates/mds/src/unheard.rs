//! Answers of before a restart that their client may not have heard.
//!
//! The client asks again, and may be told of a file that it made open, or of one that was removed
//! while it was to have it open. Until it asks nobody else would know.
//!
//! Invariants:
//! - an inode that a kept answer tells of counts as open by its client from the end of the client's
//!   recovery on, so it is not freed before the client has said whether it is;
//! - the client is asked as soon as it can answer, and nobody waits for that.

use std::cell::RefCell;

use proto::lease_server::Recall;
use store::{Stop, StoreError, Txn};
use types::{ClientId, Ino, Rights, Transno};

use crate::ops::READ;
use crate::record::{self, Outcome};
use crate::server::Server;
use crate::session::{SLOTS_ALL, Session};

/// Inodes that count as open, and by whom, until these are asked.
#[derive(Default)]
pub struct Unheard(RefCell<Vec<(ClientId, Ino)>>);

/// What the kept answers of a client that has recovered tell of counts as open by it. What is
/// damaged is told in the log and counts as not open: nobody can use it, and the client's recovery
/// does not fail for it.
///
/// # Errors
/// The store's, but for damage.
pub async fn presume_open(server: &Server, session: &Session) -> Result<(), StoreError> {
    let mut told = Vec::new();
    for slot in 0..SLOTS_ALL as u32 {
        let inos = server.mfs.run(READ, |txn| told_by(txn, session.client, slot)).await;
        told.extend(sound(server, inos)?.unwrap_or_default());
    }
    told.sort_unstable();
    told.dedup();
    for ino in told {
        let attr = server.mfs.run(READ, |txn| txn.attr(ino)).await;
        let is_there = sound(server, attr)?.flatten().is_some();
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
        server.unheard.0.borrow_mut().push((client, ino));
    }
}

/// `None` where the device is damaged.
fn sound<T>(
    server: &Server,
    read: Result<(T, Transno), StoreError>,
) -> Result<Option<T>, StoreError> {
    match read {
        Ok((value, _)) => Ok(Some(value)),
        Err(error @ StoreError::Corrupt { .. }) => {
            server.log(&format!("what a client may have open: {error}"));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The inodes that the answer kept in a slot tells of.
fn told_by(txn: &mut Txn<'_>, client: ClientId, slot: u32) -> Result<Vec<Ino>, Stop> {
    let Some((_, bytes)) = txn.reply(client, slot)? else { return Ok(Vec::new()) };
    let outcomes = record::decode(&bytes).unwrap_or_default();
    let inos = outcomes.into_iter().filter_map(|(_, outcome)| match outcome {
        Outcome::Inode(ino) | Outcome::Moved(ino, _) | Outcome::MovedLeaving(ino, ..) => Some(ino),
        _ => None,
    });
    Ok(inos.collect())
}

/// The grace is over: clients are asked whether they have open what counts as such.
pub fn ask(server: &Server) {
    for (client, ino) in server.unheard.0.take() {
        let asked: Option<Recall> = server.leases.borrow_mut().recall_of(client, ino, Rights::OPEN);
        asked.into_iter().for_each(|recall| server.push_recall(recall));
    }
}
