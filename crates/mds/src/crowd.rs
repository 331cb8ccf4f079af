//! Too many leases: the coldest of the client that has the most are recalled, in the background.
//!
//! Invariants:
//! - nobody waits for these recalls: whoever keeps a file open answers so and keeps it;
//! - the table is looked through once for many recalls, and few leave at a time.

use std::cell::RefCell;
use std::collections::VecDeque;

use types::{ClientId, Ino};

use crate::server::Server;

/// Recalls that leave in one round of upkeep.
const ROUND: usize = 1024;
/// Leases found by looking through the table once.
const FOUND: usize = 16 * ROUND;

/// Leases that are recalled next.
#[derive(Default)]
pub struct Crowd(RefCell<VecDeque<(ClientId, Ino)>>);

/// Recalls some leases if there are nearly as many as there may be.
pub fn relieve(server: &Server) {
    let mut next = server.crowd.0.borrow_mut();
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
