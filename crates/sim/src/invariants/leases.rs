//! LEASE: two clients never hold conflicting rights, by the server's count and by their own.
//!
//! Checked when an application's call begins or ends; with many leases less often
//! (`LEASES_PER_EVENT`):
//! - no two leases that the server counts on one inode conflict;
//! - the server counts everything that a client relies on while its lease is valid, recalled or
//!   not, once all clients of the previous server have reclaimed. Freed inodes are exempt: their
//!   numbers are not reused, and a client may learn of the end later;
//! - what two clients rely on does not conflict, whatever any server counts, and whether one runs.
//!
//! So an evicted client with a valid lease that relies on what another one was granted since is a
//! violation. A client past its lease holds nothing. Ranges are compared too, block by block.

use std::collections::BTreeMap;
use std::fmt;

use client::Client;
use mds::{Introspection, SessionStanding};
use types::{ClientId, Duration, HeldRange, Ino, Rights};

use crate::across::shard_of;
use crate::cluster::Cluster;
use crate::events::Events;
use crate::invariant::Invariant;
use crate::mount::Mount;

/// A holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Who {
    /// A client, by the server's count.
    Counted(ClientId),
    /// A mount, by its own count.
    Mount(usize, ClientId),
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Who::Counted(client) => write!(f, "client {client}"),
            Who::Mount(index, client) => write!(f, "c{index} (client {client})"),
        }
    }
}

/// Holders of rights by inode.
type Holders = BTreeMap<Ino, Vec<(Who, Rights)>>;

/// The number of the mover, which is no client of the history.
const MOVER: usize = 98;

/// The clients that run, and their numbers: the mounted ones, and the mover if there is one.
pub(crate) fn holders(cluster: &Cluster, mounts: &[Mount]) -> Vec<(usize, Client)> {
    let mounts = mounts.iter().map(|mount| (mount.index, mount.client.clone()));
    mounts.chain(cluster.drains.mover(&cluster.world).map(|client| (MOVER, client))).collect()
}

/// Checks all leases; returns how many there were.
pub(crate) fn check(cluster: &Cluster, clients: &[(usize, Client)]) -> usize {
    let mut looked_at = 0;
    let serving = |shard| cluster.ledger_of(shard).filter(Introspection::serves);
    let ledgers: Vec<Option<Introspection>> = cluster.all_shards().map(serving).collect();
    let mut counted: BTreeMap<(Ino, ClientId), Rights> = BTreeMap::new();
    for ledger in ledgers.iter().flatten() {
        let mut holders = Holders::new();
        for lease in ledger.leases() {
            counted.insert((lease.ino, lease.client), lease.rights);
            let who = Who::Counted(lease.client);
            holders.entry(lease.ino).or_default().push((who, lease.rights));
            looked_at += 1;
        }
        conflicts(&cluster.events, &holders, "the server counts");
    }
    let (mut holders, mut parts) = (Holders::new(), PartHolders::new());
    let sessions = clients.iter().flat_map(|(index, its)| {
        its.sessions().into_iter().map(move |session| (*index, its, session))
    });
    for (index, its, session) in sessions.filter(|(.., of)| of.lease_left > Duration::ZERO) {
        let (client, shard) = (session.client, shard_of(&session));
        let who = Who::Mount(index, client);
        let ledger = &ledgers[usize::from(shard.0)];
        // The server of its believed home has granted what the client holds.
        let is_its = |ino: Ino| ledgers.len() == 1 || its.home(ino) == shard;
        let live =
            ledger.as_ref().is_some_and(|ledger| ledger.standing(client) == SessionStanding::Live);
        for (ino, rights) in its.leases().into_iter().filter(|(ino, _)| is_its(*ino)) {
            let rights = rights.closed();
            let of = counted.get(&(ino, client)).copied().unwrap_or_default().closed();
            let is_here = || ledgers.len() == 1 || cluster.home_of(ino) == shard;
            if live && !of.contains(rights) && is_here() && !is_gone(cluster, ledger.as_ref(), ino)
            {
                cluster.events.broken(
                    Invariant::Lease,
                    &format!("{who} relies on {rights:?} of inode {ino}; the server counts {of:?}"),
                );
            }
            holders.entry(ino).or_default().push((who, rights));
            looked_at += 1;
        }
        for (ino, part) in its.ranges().into_iter().filter(|(ino, _)| is_its(*ino)) {
            let counts = |ledger: &Introspection| ledger.holds_range(client, ino, part);
            if live
                && !ledger.as_ref().is_some_and(counts)
                && !is_gone(cluster, ledger.as_ref(), ino)
            {
                let text = format!(
                    "{who} relies on {part:?} of inode {ino}; the server does not count it"
                );
                cluster.events.broken(Invariant::Lease, &text);
            }
            parts.entry(ino).or_default().push((who, part));
        }
    }
    conflicts(&cluster.events, &holders, "clients rely");
    overlaps(&cluster.events, &parts);
    looked_at
}

/// Holders of ranges by inode.
type PartHolders = BTreeMap<Ino, Vec<(Who, HeldRange)>>;

fn overlaps(events: &Events, parts: &PartHolders) {
    for (ino, held) in parts {
        for (nth, (one, part)) in held.iter().enumerate() {
            for (other, others) in held[nth + 1..].iter().filter(|(other, _)| other != one) {
                if part.range.overlaps(others.range) && (part.exclusive || others.exclusive) {
                    events.broken(
                        Invariant::Lease,
                        &format!("on inode {ino} clients rely: {one} {part:?}, {other} {others:?}"),
                    );
                }
            }
        }
    }
}

/// Is the inode gone, or being freed, as far as is known?
fn is_gone(cluster: &Cluster, ledger: Option<&Introspection>, ino: Ino) -> bool {
    ledger.is_some_and(|ledger| ledger.is_freeing(ino))
        || cluster
            .inspect_at(cluster.home_of(ino), |txn| Ok(txn.names().attr(ino)?.is_none()))
            .unwrap_or(true)
}

fn conflicts(events: &Events, holders: &Holders, how: &str) {
    for (ino, held) in holders {
        for (nth, (one, rights)) in held.iter().enumerate() {
            for (other, others) in &held[nth + 1..] {
                if rights.conflicts().intersects(*others) {
                    events.broken(
                        Invariant::Lease,
                        &format!("on inode {ino} {how}: {one} {rights:?}, {other} {others:?}"),
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Who = Who::Mount(0, ClientId(1));
    const B: Who = Who::Mount(1, ClientId(2));

    fn found(held: &[(Who, Rights)]) -> bool {
        let events = Events::default();
        conflicts(&events, &Holders::from([(Ino(9), held.to_vec())]), "clients rely");
        events.first_violation().is_some_and(|(invariant, text)| {
            assert_eq!(invariant, Invariant::Lease);
            ["inode 9", "c0 (client 1)", "c1 (client 2)"].iter().all(|part| text.contains(part))
        })
    }

    #[test]
    fn conflicting_rights_are_reported_with_inode_and_clients() {
        assert!(!found(&[(A, Rights::DATA_S | Rights::ATTR), (B, Rights::DATA_S)]));
        assert!(!found(&[(A, Rights::DATA_P), (B, Rights::DATA_P)]));
        assert!(found(&[(A, Rights::DATA_X), (B, Rights::DATA_S)]));
        assert!(found(&[(A, Rights::OPEN), (A, Rights::DATA_P), (B, Rights::ATTR)]));
    }

    #[test]
    fn conflicting_ranges_of_two_clients_are_a_violation() {
        let conflict = |one: (Who, u64, u64, bool), other: (Who, u64, u64, bool)| {
            let events = Events::default();
            let held = [one, other].map(|(who, from, to, exclusive)| {
                (who, HeldRange { range: types::BlockRange::new(from, to), exclusive })
            });
            overlaps(&events, &PartHolders::from([(Ino(9), held.to_vec())]));
            events.first_violation().is_some()
        };
        assert!(conflict((A, 0, 4, true), (B, 3, 5, false)));
        assert!(!conflict((A, 0, 4, false), (B, 3, 5, false)));
        assert!(!conflict((A, 0, 4, true), (B, 4, 5, true)));
        assert!(!conflict((A, 0, 4, true), (A, 3, 5, true)));
    }
}
