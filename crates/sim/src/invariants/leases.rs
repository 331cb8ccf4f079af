//! Invariant 6: two clients never hold conflicting rights, as the server counts them and as they
//! believe themselves.
//!
//! Looked at whenever an application asks or is answered, where there are many leases less often
//! (`LEASES_AN_EVENT`):
//! - no two leases that the server counts on one inode conflict;
//! - what a client relies on, while its lease has not run out, the server counts as the client's,
//!   asked back or not, once it has heard all clients of the server before it. Of an inode that is
//!   gone the server counts nothing: its number does not come back, and a client may learn later
//!   that it is;
//! - what two clients rely on does not conflict, whatever any server counts, or whether one runs.
//!
//! So a client that was evicted while its lease is good, and relies on what another was given
//! since, is a violation; one past its lease counts as holding nothing. Of parts each is compared,
//! too, block by block.

use std::collections::BTreeMap;
use std::fmt;

use mds::{Ledger, Standing};
use types::{ClientId, Duration, Ino, Part, Rights};

use crate::cluster::Cluster;
use crate::log;
use crate::mount::Mount;

/// The invariant.
pub(crate) const CONFLICT: &str = "6: two clients never hold conflicting rights of one range";

/// One who holds something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Who {
    /// A client, as the server counts.
    Counted(ClientId),
    /// A mount, as it believes itself.
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

/// Who holds what on an inode.
type Holders = BTreeMap<Ino, Vec<(Who, Rights)>>;

/// Looks at all leases; how many there were.
pub(crate) fn check(cluster: &Cluster, mounts: &[Mount]) -> usize {
    let mut looked_at = 0;
    let ledger = cluster.ledger().filter(|ledger| ledger.serves());
    let mut counted: BTreeMap<(Ino, ClientId), Rights> = BTreeMap::new();
    if let Some(ledger) = &ledger {
        let mut holders = Holders::new();
        for lease in ledger.leases() {
            counted.insert((lease.ino, lease.client), lease.rights);
            let who = Who::Counted(lease.client);
            holders.entry(lease.ino).or_default().push((who, lease.rights));
            looked_at += 1;
        }
        conflicts(&holders, "the server counts");
    }
    let (mut holders, mut parts) = (Holders::new(), PartHolders::new());
    for mount in mounts.iter().filter(|mount| mount.client.lease_left() > Duration::ZERO) {
        let client = mount.client.number();
        let who = Who::Mount(mount.index, client);
        let live = ledger.as_ref().is_some_and(|ledger| ledger.standing(client) == Standing::Live);
        for (ino, rights) in mount.client.leases() {
            let rights = rights.closed();
            let of = counted.get(&(ino, client)).copied().unwrap_or_default().closed();
            if live && !of.contains(rights) && !is_gone(cluster, ledger.as_ref(), ino) {
                log::broken(
                    CONFLICT,
                    &format!("{who} relies on {rights:?} of inode {ino}; the server counts {of:?}"),
                );
            }
            holders.entry(ino).or_default().push((who, rights));
            looked_at += 1;
        }
        for (ino, part) in mount.client.ranges() {
            let counts = |ledger: &Ledger| ledger.holds_part(client, ino, part);
            if live
                && !ledger.as_ref().is_some_and(counts)
                && !is_gone(cluster, ledger.as_ref(), ino)
            {
                let text =
                    format!("{who} relies on {part:?} of inode {ino}; the server counts it not");
                log::broken(CONFLICT, &text);
            }
            parts.entry(ino).or_default().push((who, part));
        }
    }
    conflicts(&holders, "there rely");
    overlaps(&parts);
    looked_at
}

/// Who relies on which part of an inode.
type PartHolders = BTreeMap<Ino, Vec<(Who, Part)>>;

fn overlaps(parts: &PartHolders) {
    for (ino, held) in parts {
        for (nth, (one, part)) in held.iter().enumerate() {
            for (other, others) in held[nth + 1..].iter().filter(|(other, _)| other != one) {
                if part.range.overlaps(others.range) && (part.exclusive || others.exclusive) {
                    log::broken(
                        CONFLICT,
                        &format!("on inode {ino} there rely: {one} {part:?}, {other} {others:?}"),
                    );
                }
            }
        }
    }
}

/// Is there no such inode any more, or soon, as far as can be told?
fn is_gone(cluster: &Cluster, ledger: Option<&Ledger>, ino: Ino) -> bool {
    ledger.is_some_and(|ledger| ledger.is_freeing(ino))
        || cluster.look(|txn| Ok(txn.attr(ino)?.is_none())).unwrap_or(true)
}

fn conflicts(holders: &Holders, how: &str) {
    for (ino, held) in holders {
        for (nth, (one, rights)) in held.iter().enumerate() {
            for (other, others) in &held[nth + 1..] {
                if rights.conflicts().intersects(*others) {
                    log::broken(
                        CONFLICT,
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
        log::clear();
        conflicts(&Holders::from([(Ino(9), held.to_vec())]), "there rely");
        log::first_violation().is_some_and(|(invariant, text)| {
            assert_eq!(invariant, CONFLICT);
            ["inode 9", "c0 (client 1)", "c1 (client 2)"].iter().all(|part| text.contains(part))
        })
    }

    #[test]
    fn rights_that_exclude_each_other_are_told_with_inode_clients_and_rights() {
        assert!(!found(&[(A, Rights::DATA_S | Rights::ATTR), (B, Rights::DATA_S)]));
        assert!(!found(&[(A, Rights::DATA_P), (B, Rights::DATA_P)]));
        assert!(found(&[(A, Rights::DATA_X), (B, Rights::DATA_S)]));
        assert!(found(&[(A, Rights::OPEN), (A, Rights::DATA_P), (B, Rights::ATTR)]));
    }

    #[test]
    fn parts_that_exclude_each_other_are_told_those_of_one_client_are_not() {
        let told = |one: (Who, u64, u64, bool), other: (Who, u64, u64, bool)| {
            log::clear();
            let held = [one, other].map(|(who, from, to, exclusive)| {
                (who, Part { range: types::BlockRange::new(from, to), exclusive })
            });
            overlaps(&PartHolders::from([(Ino(9), held.to_vec())]));
            log::first_violation().is_some()
        };
        assert!(told((A, 0, 4, true), (B, 3, 5, false)));
        assert!(!told((A, 0, 4, false), (B, 3, 5, false)));
        assert!(!told((A, 0, 4, true), (B, 4, 5, true)));
        assert!(!told((A, 0, 4, true), (A, 3, 5, true)));
    }
}
