//! Waiting for rights: gates, recalls, and the end of patience.
//!
//! Invariants:
//! - while an operation waits for rights on an inode it holds the inode's gate, so
//!   nobody is granted anything there;
//! - a client that is waited for and has been silent for a lease is evicted; one that
//!   is known to be dead at once.

use std::rc::Rc;

use types::{ClientId, Duration, Ino, Rights};

use crate::cx::Need;
use crate::evict;
use crate::gate::Held;
use crate::server::Server;
use crate::session::Session;

/// How often a waiter looks whether the one it waits for has died.
pub const LOOK: Duration = Duration::from_millis(500);

/// Takes the gates of `needs`, asks every other client for the rights, and waits until they are given up,
/// or the `waiter`'s own session is over.
pub async fn recall(
    server: &Rc<Server>,
    client: ClientId,
    needs: &[Need],
    waiter: Option<&Session>,
) -> Held {
    let gates = server.gates.enter(needs.iter().map(|need| need.ino).collect()).await;
    for need in needs.iter().filter(|need| !need.take.is_empty()) {
        let mut leases = server.leases.borrow_mut();
        let mut recalls = leases.recall(client, need.ino, need.take);
        if let Some(part) = need.part {
            recalls.extend(leases.recall_part(client, need.ino, part));
        }
        drop(leases);
        recalls.into_iter().for_each(|recall| server.push_recall(recall));
    }
    let begun = server.env.now();
    let mut told = false;
    loop {
        let notified = server.lease_events.notified();
        let mut awaited = Vec::new();
        for need in needs {
            let leases = server.leases.borrow();
            awaited.extend(leases.awaited(client, need.ino, need.take));
            if let Some(part) = need.part {
                awaited.extend(leases.part_conflicts(client, need.ino, part));
            }
        }
        if awaited.is_empty() || waiter.is_some_and(Session::is_over) {
            return gates;
        }
        if !told && server.env.now().since(begun) > server.config.lease {
            told = true;
            let inos: Vec<Ino> = needs.iter().map(|need| need.ino).collect();
            server.log(&format!(
                "client {client} has waited for more than a lease until {awaited:?} give up rights on {inos:?}"
            ));
        }
        end_the_late(server, &awaited).await;
        server.env.timeout(LOOK.min(server.config.lease / 4), notified).await;
    }
}

/// Asks for `OPEN` of others is part of `needs`: which inodes have been asked about.
pub fn asked_about_open(needs: &[Need]) -> impl Iterator<Item = Ino> {
    needs.iter().filter(|need| need.take.contains(Rights::OPEN)).map(|need| need.ino)
}

/// Evicts those of `clients`, whom others wait for, that have been silent for a lease or
/// are known to be dead; was there one?
pub async fn end_the_late(server: &Rc<Server>, clients: &[ClientId]) -> bool {
    let mut ended = false;
    for &client in clients {
        let Some(session) = server.session(client) else { continue };
        if session.is_over() {
            continue;
        }
        let silent = server.silence(&session);
        if silent >= server.config.lease {
            let text = format!("silent for {} ms while others waited", silent.as_millis());
            evict::evict(server, client, &text).await;
            ended = true;
        } else if !session.is_connected() && evict::is_proven_dead(server, &session).await {
            evict::evict(server, client, "its process has ended").await;
            ended = true;
        }
    }
    ended
}
