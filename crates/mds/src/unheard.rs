//! Answers of before a restart that their client may not have heard.
//!
//! The client asks again, and may be told of a file that it made open, or of one that was removed while
//! it was to have it open. Until it asks nobody else would know.
//!
//! Invariants:
//! - an inode that a kept answer tells of counts as open by its client from the end of the client's
//!   recovery on, so it is not freed before the client has said whether it is;
//! - the client is asked as soon as it can answer, and nobody waits for that.

use std::cell::RefCell;

use proto::lease_server::Recall;
use store::{Stop, StoreError, Txn};
use types::{ClientId, Ino, Rights};

use crate::ops::READ;
use crate::record::{self, Outcome};
use crate::server::Server;
use crate::session::{SLOTS_ALL, Session};

/// Inodes that count as open, and by whom, until these are asked.
#[derive(Default)]
pub struct Unheard(RefCell<Vec<(ClientId, Ino)>>);

/// What the kept answers of a client that has recovered tell of counts as open by it.
///
/// # Errors
/// The store's.
pub async fn presume_open(server: &Server, session: &Session) -> Result<(), StoreError> {
    let client = session.client;
    let (told, _) = server.mfs.run(READ, |txn| told_of(txn, client)).await?;
    if session.is_over() {
        return Ok(());
    }
    let mut leases = server.leases.borrow_mut();
    for ino in told {
        let held = leases.rights(client, ino).contains(Rights::OPEN);
        if !held && leases.grantable(client, ino, Rights::OPEN) == Rights::OPEN {
            leases.grant(client, ino, Rights::OPEN);
            server.unheard.0.borrow_mut().push((client, ino));
        }
    }
    Ok(())
}

/// The inodes that the kept answers of a client tell of, and that are there.
fn told_of(txn: &mut Txn<'_>, client: ClientId) -> Result<Vec<Ino>, Stop> {
    let mut inos = Vec::new();
    for slot in 0..SLOTS_ALL as u32 {
        let Some((_, bytes)) = txn.reply(client, slot)? else { continue };
        for (_, outcome) in record::decode(&bytes).unwrap_or_default() {
            let (Outcome::Inode(ino) | Outcome::Moved(ino, _)) = outcome else { continue };
            if !inos.contains(&ino) && txn.attr(ino)?.is_some() {
                inos.push(ino);
            }
        }
    }
    Ok(inos)
}

/// The grace is over: clients are asked whether they have open what counts as such.
pub fn ask(server: &Server) {
    for (client, ino) in server.unheard.0.take() {
        let asked: Option<Recall> = server.leases.borrow_mut().recall_of(client, ino, Rights::OPEN);
        if let (Some(recall), Some(session)) = (asked, server.session(client)) {
            session.push_recall(recall);
        }
    }
}
