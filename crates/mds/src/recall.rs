//! Waiting for rights: gates, recalls, and the end of patience.
//!
//! Invariants:
//! - while an operation waits for rights on an inode it holds the inode's gate, so
//!   nobody is granted anything there;
//! - a client that is waited for and has been silent for a lease is evicted; one that
//!   is known to be dead at once.

use std::cell::Cell;
use std::rc::Rc;

use types::{ClientId, Duration, Ino, Rights};

use crate::cx::Need;
use crate::evict;
use crate::freer::NOBODY;
use crate::gate::Held;
use crate::server::Server;
use crate::session::Session;

/// How often a waiter looks whether the one it waits for has died.
pub const LOOK: Duration = Duration::from_millis(500);

/// Hand-overs of rights on content from some clients to another one, since the server's start.
#[derive(Default)]
pub struct HandOvers {
    count: Cell<u64>,
    waited: Cell<Duration>,
    longest: Cell<Duration>,
}

impl HandOvers {
    /// One has ended for which a client waited so long.
    fn note(&self, waited: Duration) {
        self.count.set(self.count.get() + 1);
        self.waited.set(self.waited.get() + waited);
        self.longest.set(self.longest.get().max(waited));
    }

    /// How many there were, how long clients waited for all of them together, and for one at most.
    pub fn counts(&self) -> (u64, Duration, Duration) {
        (self.count.get(), self.waited.get(), self.longest.get())
    }
}

/// Takes the gates of `needs`, asks every other client for the rights, and waits until they are
/// given up, or the `waiter`'s own session is over.
pub async fn recall(
    server: &Rc<Server>,
    client: ClientId,
    needs: &[Need],
    waiter: Option<&Session>,
) -> Held {
    let asked = server.env.now();
    let mut hands_over = false;
    let gates = server.gates.enter(needs.iter().map(|need| need.ino).collect()).await;
    for need in needs.iter().filter(|need| !need.take.is_empty()) {
        let mut leases = server.leases.borrow_mut();
        let mut recalls = leases.recall(client, need.ino, need.take);
        if let Some(part) = need.part {
            recalls.extend(leases.recall_range(client, need.ino, part));
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
            let content = need.take & (Rights::WHOLE | Rights::DATA_P);
            hands_over |= leases.awaited(client, need.ino, content).into_iter().next().is_some();
            awaited.extend(leases.awaited(client, need.ino, need.take));
            if let Some(part) = need.part {
                let held = awaited.len();
                awaited.extend(leases.range_conflicts(client, need.ino, part));
                hands_over |= awaited.len() > held;
            }
        }
        if awaited.is_empty() || waiter.is_some_and(Session::is_over) {
            if hands_over {
                server.hand_overs.note(server.env.now().since(asked));
            }
            return gates;
        }
        if !told && server.env.now().since(begun) > server.config.lease {
            told = true;
            let inos = needs.iter().map(|need| need.ino).collect();
            server.log(&late_line(client, &awaited, inos));
        }
        end_the_late(server, &awaited).await;
        server.env.timeout(LOOK.min(server.config.lease / 4), notified).await;
    }
}

/// Who waits for whose rights on what, each named once.
fn late_line(client: ClientId, awaited: &[ClientId], mut inos: Vec<Ino>) -> String {
    const NAMED: usize = 10;
    let mut holders = awaited.to_vec();
    holders.sort_unstable();
    holders.dedup();
    inos.sort_unstable();
    inos.dedup();
    let listed = |one: &str, several: &str, mut all: Vec<String>| {
        let word = if all.len() == 1 { one } else { several };
        if all.len() > NAMED {
            let more = all.split_off(NAMED).len();
            all.push(format!("{more} more"));
        }
        format!("{word} {}", all.join(", "))
    };
    let waits = if client == NOBODY { "the server".into() } else { format!("client {client}") };
    let verb = if holders.len() == 1 { "gives" } else { "give" };
    format!(
        "{waits} has waited for more than a lease until {} {verb} up rights on {}",
        listed("client", "clients", holders.iter().map(ClientId::to_string).collect()),
        listed("inode", "inodes", inos.iter().map(Ino::to_string).collect()),
    )
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_long_is_told_each_client_and_inode_once() {
        let line = late_line(ClientId(2), &[ClientId(1), ClientId(1)], vec![Ino(77), Ino(77)]);
        assert_eq!(
            line,
            "client 2 has waited for more than a lease until client 1 gives up rights on inode 77"
        );
        let line = late_line(NOBODY, &[ClientId(3), ClientId(1)], (5..17).map(Ino).collect());
        assert_eq!(
            line,
            "the server has waited for more than a lease until clients 1, 3 give up rights on \
             inodes 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 2 more"
        );
    }
}
