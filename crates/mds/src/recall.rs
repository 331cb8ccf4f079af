//! Waits for rights: takes gates, sends recalls, and evicts clients that do not answer.
//!
//! Invariants:
//! - an operation that waits for rights on an inode holds the inode's gate meanwhile, so the server
//!   grants nobody anything there;
//! - the server evicts a client that others wait for once it has been silent for a lease, and at
//!   once if its process is known to have ended.

use std::cell::Cell;
use std::rc::Rc;

use types::{ClientId, Duration, Ino, Rights};

use crate::context::Need;
use crate::evict;
use crate::gate::HeldGates;
use crate::reaper::NO_CLIENT;
use crate::server::Server;
use crate::session::Session;

/// How often a waiter checks whether a client that it waits for has died.
pub const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Counts hand-overs of rights on content between clients, since the server's start.
#[derive(Default)]
pub struct HandOvers {
    count: Cell<u64>,
    waited: Cell<Duration>,
    longest: Cell<Duration>,
}

impl HandOvers {
    /// A hand-over has ended, for which a client waited this long.
    fn note(&self, waited: Duration) {
        self.count.set(self.count.get() + 1);
        self.waited.set(self.waited.get() + waited);
        self.longest.set(self.longest.get().max(waited));
    }

    /// Their number, how long clients waited for all of them together, and the longest wait.
    pub fn counts(&self) -> (u64, Duration, Duration) {
        (self.count.get(), self.waited.get(), self.longest.get())
    }
}

/// Takes the gates of `needs`, recalls the rights from all other clients, and waits until they have
/// given them up, or until the `waiter`'s own session is over.
pub async fn recall(
    server: &Rc<Server>,
    client: ClientId,
    needs: &[Need],
    waiter: Option<&Session>,
) -> HeldGates {
    let asked = server.env.now();
    let mut hands_over = false;
    let gates = server.gates.enter(needs.iter().map(|need| need.ino).collect()).await;
    for need in needs.iter().filter(|need| !need.take.is_empty()) {
        let mut leases = server.leases.borrow_mut();
        let mut recalls = leases.recall(client, need.ino, need.take);
        if let Some(part) = need.range {
            recalls.extend(leases.recall_range(client, need.ino, part));
        }
        drop(leases);
        recalls.into_iter().for_each(|recall| server.push_recall(recall));
    }
    let begun = server.env.now();
    let mut logged = false;
    loop {
        let notified = server.lease_events.notified();
        let mut awaited = Vec::new();
        for need in needs {
            let leases = server.leases.borrow();
            let content = need.take & (Rights::WHOLE | Rights::DATA_P);
            hands_over |= leases.awaited(client, need.ino, content).into_iter().next().is_some();
            awaited.extend(leases.awaited(client, need.ino, need.take));
            if let Some(part) = need.range {
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
        if !logged && server.env.now().since(begun) > server.config.lease {
            logged = true;
            let inos = needs.iter().map(|need| need.ino).collect();
            server.log(&wait_line(client, &awaited, inos));
        }
        evict_unresponsive(server, &awaited).await;
        server.env.timeout(CHECK_INTERVAL.min(server.config.lease / 4), notified).await;
    }
}

/// The log line of a long wait: names each client and inode once.
fn wait_line(client: ClientId, awaited: &[ClientId], mut inos: Vec<Ino>) -> String {
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
    let waits = if client == NO_CLIENT { "the server".into() } else { format!("client {client}") };
    format!(
        "{waits} has waited longer than a lease for {} to give up rights on {}",
        listed("client", "clients", holders.iter().map(ClientId::to_string).collect()),
        listed("inode", "inodes", inos.iter().map(Ino::to_string).collect()),
    )
}

/// The inodes of `needs` for which other clients have been asked for `OPEN`.
pub fn open_recalled(needs: &[Need]) -> impl Iterator<Item = Ino> {
    needs.iter().filter(|need| need.take.contains(Rights::OPEN)).map(|need| need.ino)
}

/// Evicts those of `clients` that have been silent for a lease or are known to be dead. Others wait
/// for all of them. Returns whether there was one.
pub async fn evict_unresponsive(server: &Rc<Server>, clients: &[ClientId]) -> bool {
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
    fn log_line_of_a_long_wait_names_each_client_and_inode_once() {
        let line = wait_line(ClientId(2), &[ClientId(1), ClientId(1)], vec![Ino(77), Ino(77)]);
        assert_eq!(
            line,
            "client 2 has waited longer than a lease for client 1 to give up rights on inode 77"
        );
        let line = wait_line(NO_CLIENT, &[ClientId(3), ClientId(1)], (5..17).map(Ino).collect());
        assert_eq!(
            line,
            "the server has waited longer than a lease for clients 1, 3 to give up rights on \
             inodes 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 2 more"
        );
    }
}
