//! Waits for rights: takes gates, sends recalls, and evicts clients that do not answer.
//!
//! Invariants:
//! - an operation that waits for rights on an inode holds the inode's gate meanwhile, so the server
//!   grants nobody anything there;
//! - the server evicts a client that others wait for once it has been silent for a lease, and at
//!   once if its process is known to have ended.

use types::{ClientId, Duration, HeldRange, Ino, Instant, Rights};

use super::{Evictor, HeldGates, Leases};
use crate::sessions::Session;

/// No client: the server itself.
pub const NO_CLIENT: ClientId = ClientId(0);

/// How often a waiter checks whether a client that it waits for has died.
pub const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Rights on an inode that no other client may hold while an operation runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Need {
    /// The inode (or [`super::RENAME_GATE`]).
    pub ino: Ino,
    /// The rights.
    pub take: Rights,
    /// Of `DATA_P` only the ranges that exclude this one.
    pub range: Option<HeldRange>,
}

/// Takes the gates of `needs`, recalls the rights from all other clients, and waits until they have
/// given them up, or until the `waiter`'s own session is over.
pub async fn recall(
    leases: &Leases,
    evictor: &impl Evictor,
    client: ClientId,
    needs: &[Need],
    waiter: Option<&Session>,
) -> HeldGates {
    let asked = leases.runtime.env.now();
    let inos = needs.iter().map(|need| need.ino).collect();
    let gates = leases.gates.enter(inos, (client, asked)).await;
    recall_behind(leases, evictor, (client, asked), needs, waiter).await;
    gates
}

/// The same of an operation that holds the gates and has waited since `asked`.
pub async fn recall_behind(
    leases: &Leases,
    evictor: &impl Evictor,
    (client, asked): (ClientId, Instant),
    needs: &[Need],
    waiter: Option<&Session>,
) {
    let runtime = &leases.runtime;
    let mut hands_over = false;
    for need in needs.iter().filter(|need| !need.take.is_empty()) {
        let mut table = leases.table.borrow_mut();
        let mut recalls = table.recall(client, need.ino, need.take);
        if let Some(part) = need.range {
            recalls.extend(table.recall_range(client, need.ino, part));
        }
        drop(table);
        leases.push(recalls);
    }
    let begun = runtime.env.now();
    let mut logged = false;
    loop {
        let notified = leases.given_up.notified();
        let mut awaited = Vec::new();
        for need in needs {
            let table = leases.table.borrow();
            let content = need.take & (Rights::WHOLE | Rights::DATA_P);
            hands_over |= table.awaited(client, need.ino, content).into_iter().next().is_some();
            awaited.extend(table.awaited(client, need.ino, need.take));
            if let Some(part) = need.range {
                let held = awaited.len();
                awaited.extend(table.range_conflicts(client, need.ino, part));
                hands_over |= awaited.len() > held;
            }
        }
        if awaited.is_empty() || waiter.is_some_and(|waiter| waiter.is_over()) {
            if hands_over {
                leases.hand_overs.note(runtime.env.now().since(asked));
            }
            return;
        }
        if !logged && runtime.env.now().since(begun) > runtime.config.lease {
            logged = true;
            let inos = needs.iter().map(|need| need.ino).collect();
            runtime.log(&wait_line(client, &awaited, inos));
        }
        evictor.evict_unresponsive(&awaited).await;
        runtime.env.timeout(CHECK_INTERVAL.min(runtime.config.lease / 4), notified).await;
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
