//! Lease pressure: when there are too many leases, the server recalls the coldest ones of the
//! client that has the most, in the background.
//!
//! Invariants:
//! - nobody waits for these recalls: a client that keeps a file open says so and keeps its lease;
//! - one pass over the table finds many leases to recall, and few recalls leave at a time.

use std::cell::RefCell;
use std::collections::VecDeque;

use types::{ClientId, Ino};

use crate::server::Server;

/// Recalls that leave in one round of upkeep.
const ROUND: usize = 1024;
/// Leases that one pass over the table selects.
const FOUND: usize = 16 * ROUND;

/// The leases to recall next.
#[derive(Default)]
pub struct LeasePressure(RefCell<VecDeque<(ClientId, Ino)>>);

/// Recalls some leases if their number comes close to the maximum.
pub fn relieve(server: &Server) {
    let mut next = server.lease_pressure.0.borrow_mut();
    let mut leases = server.leases.borrow_mut();
    let enough = server.config.leases_max / 16 * 15;
    let surplus = leases.len().saturating_sub(enough);
    if surplus == 0 {
        next.clear();
        return;
    }
    if next.is_empty()
        && let Some((client, _)) = leases.largest()
    {
        let coldest = leases.coldest(client, FOUND.min(surplus));
        next.extend(coldest.into_iter().map(|ino| (client, ino)));
    }
    for _ in 0..ROUND.min(surplus) {
        let Some((client, ino)) = next.pop_front() else { return };
        if server.session(client).is_some() {
            leases
                .recall_all(client, ino)
                .into_iter()
                .for_each(|recall| server.push_recall(recall));
        }
    }
}
