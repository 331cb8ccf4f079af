//! Lease pressure: when there are too many leases, the server recalls the coldest ones of the
//! client that has the most, in the background.
//!
//! Invariants:
//! - nobody waits for these recalls: a client that keeps a file open says so and keeps its lease;
//! - one pass over the table finds many leases to recall, and few recalls leave at a time.

use std::cell::RefCell;
use std::collections::VecDeque;

use proto::lease_server::{LeaseTable, Recall};
use types::{ClientId, Ino};

/// Recalls that leave in one round of upkeep.
const ROUND: usize = 1024;
/// Leases that one pass over the table selects.
const FOUND: usize = 16 * ROUND;

/// The leases to recall next.
#[derive(Default)]
pub struct LeasePressure(RefCell<VecDeque<(ClientId, Ino)>>);

impl LeasePressure {
    /// The recalls to send now, of clients that are `here`, if the number of leases comes close to
    /// `leases_max`.
    pub fn relieve(
        &self,
        leases: &mut LeaseTable,
        leases_max: usize,
        here: impl Fn(ClientId) -> bool,
    ) -> Vec<Recall> {
        let (mut next, mut recalls) = (self.0.borrow_mut(), Vec::new());
        let surplus = leases.len().saturating_sub(leases_max / 16 * 15);
        if surplus == 0 {
            next.clear();
            return recalls;
        }
        if next.is_empty()
            && let Some((client, _)) = leases.largest()
        {
            let coldest = leases.coldest(client, FOUND.min(surplus));
            next.extend(coldest.into_iter().map(|ino| (client, ino)));
        }
        for _ in 0..ROUND.min(surplus) {
            let Some((client, ino)) = next.pop_front() else { return recalls };
            if here(client) {
                recalls.extend(leases.recall_all(client, ino));
            }
        }
        recalls
    }
}
