//! Free blocks that the target keeps for clients: no write fails for want of room after its client
//! has accepted it.
//!
//! A client asks for room ahead of its writes. A write takes from what is kept for its client as
//! many blocks as it adds. So both sides count the same, but where a write turned out to need less,
//! or an answer was lost. A statement (`proto::ost::Statement`) in each request says what the
//! client counts, and lowers what is kept to that. The promises are in memory. After a restart the
//! clients state them again, and nobody is promised anything before all of them are back.
//! A target that has too little for a request asks the other clients for what they have ahead
//! (`proto::ost::Push::Short`), and waits a moment for their statements before it refuses.
//!
//! Invariants:
//! - the sum of all promises is kept beside them;
//! - of two statements of a client the older one changes nothing, and none raises a promise but the
//!   first after a restart;
//! - a client is kept no more than its newest statement says and what it was given since;
//! - only a client with a session is kept any;
//! - a promise is made only of blocks that are free, not of the reserve and not promised. What is
//!   stated after a restart may exceed that: others may have freed it, and repeat that only later;
//! - so many blocks are promised at most as the free metadata blocks can map, one by one;
//! - these leave out what writes over the blocks that are there may need. Such a write takes no
//!   room, and goes to fresh blocks: at worst, each block ends up as a segment of its own, with
//!   free runs of one block between them ([`overwrites`]).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use env::sync::Notify;
use proto::ost::Statement;
use types::{Bug, ClientId, planted};

/// Content blocks that one free metadata block can certainly map, if each lies alone: with a
/// segment, a group of checksums and a free run, in nodes that are half full.
const MAPPED_BY_NODE: u64 = 8;
/// Free metadata blocks that no promise counts on.
const NODES_LEFT: u64 = 64;
/// Segments of one block that a metadata block can map, and free runs, in leaves that are half full
/// and with their part of the nodes above.
const SEGMENTS_BY_NODE: u64 = 70;
const RUNS_BY_NODE: u64 = 120;
/// Of all metadata blocks, writes over others are left so many tenths at most. A target that was
/// made with few of them can still be filled when its objects lie in large segments.
const OVERWRITES_TENTHS: u64 = 7;

/// Metadata blocks that writes over others may need at worst, where objects have `mapped` content
/// blocks, `free` ones are free, and there are `nodes` metadata blocks.
pub(super) fn overwrites(mapped: u64, free: u64, nodes: u64) -> u64 {
    let segments = mapped.div_ceil(SEGMENTS_BY_NODE);
    let runs = mapped.min(free).div_ceil(RUNS_BY_NODE);
    (segments + runs).min(nodes / 10 * OVERWRITES_TENTHS)
}

/// What is kept for a client.
#[derive(Clone, Copy, Default)]
struct Promise {
    /// The number of the newest statement.
    number: u64,
    blocks: u64,
    /// What the newest statement says, and what was given since.
    most: u64,
    /// The last request for room, and what was given.
    asked: u64,
    given: u64,
    /// How often the client has given back what it did not need.
    holds: u64,
}

/// See the module.
#[derive(Default)]
pub(super) struct Promises {
    of: RefCell<BTreeMap<ClientId, Promise>>,
    total: Cell<u64>,
    /// Notified when a client has made a statement, or is forgotten.
    pub(super) changed: Notify,
}

/// What there is to promise.
#[derive(Clone, Copy, Debug)]
pub(super) struct Supply {
    /// Free content blocks without the reserve.
    pub blocks: u64,
    /// Free metadata blocks, without those that writes over others may need.
    pub nodes: u64,
}

impl Supply {
    /// Content blocks that the metadata can map.
    pub(super) fn mappable(&self) -> u64 {
        self.nodes.saturating_sub(NODES_LEFT).saturating_mul(MAPPED_BY_NODE)
    }
}

impl Promises {
    /// Blocks that are kept for all clients.
    pub(super) fn total(&self) -> u64 {
        self.total.get()
    }

    /// Blocks that are kept for this client.
    pub(super) fn of(&self, client: ClientId) -> u64 {
        self.of.borrow().get(&client).map_or(0, |promise| promise.blocks)
    }

    /// The clients for which something is kept, and how often each has given something back.
    pub(super) fn all(&self) -> BTreeMap<ClientId, u64> {
        let of = self.of.borrow();
        let has = of.iter().filter(|(_, promise)| promise.blocks > 0);
        has.map(|(&client, promise)| (client, promise.holds)).collect()
    }

    fn change<T>(&self, client: ClientId, change: impl FnOnce(&mut Promise) -> T) -> T {
        let mut of = self.of.borrow_mut();
        let promise = of.entry(client).or_default();
        let before = promise.blocks;
        let result = change(promise);
        self.total.set(self.total.get() - before + promise.blocks);
        result
    }

    /// A client says what is kept for it; that is never more than before.
    pub(super) fn state(&self, client: ClientId, said: Statement) {
        if said.number == 0 || client == ClientId::NONE {
            return;
        }
        let before = self.total.get();
        self.change(client, |promise| {
            if said.number > promise.number {
                promise.number = said.number;
                promise.most = said.blocks.saturating_add(said.asked);
                promise.blocks = promise.blocks.min(promise.most);
            }
        });
        // Those who wait for room make statements, too: one that gives nothing back wakes nobody.
        if self.total.get() < before {
            self.changed.notify_all();
        }
    }

    /// A client gives back what it does not need: all above this statement.
    pub(super) fn hold(&self, client: ClientId, said: Statement) {
        if client != ClientId::NONE {
            self.change(client, |promise| promise.holds += 1);
        }
        self.state(client, said);
        self.changed.notify_all();
    }

    /// A client says what was kept for it before a restart; the target has `all` blocks.
    pub(super) fn state_anew(&self, client: ClientId, said: Statement, all: u64) {
        let left = all.saturating_sub(self.total.get());
        self.change(client, |promise| {
            if said.number > promise.number {
                promise.number = said.number;
                promise.most = said.blocks;
                promise.blocks = said.blocks.min(promise.blocks + left);
            }
        });
    }

    /// A write of the client takes `blocks` that were free, and makes a statement.
    pub(super) fn spend(&self, client: ClientId, blocks: u64, said: Statement) {
        if client != ClientId::NONE {
            self.change(client, |promise| promise.blocks = promise.blocks.saturating_sub(blocks));
        }
        self.state(client, said);
    }

    /// A client asks for `wanted` more blocks, and `needed` at least; `None`: there are not so
    /// many. The same request again has the same answer.
    pub(super) fn give(
        &self,
        client: ClientId,
        said: Statement,
        (needed, wanted): (u64, u64),
        supply: Supply,
    ) -> Option<u64> {
        let repeated = self.change(client, |promise| {
            (promise.asked == said.number && said.number > 0).then_some(promise.given)
        });
        if repeated.is_some() {
            return repeated;
        }
        self.state(client, said);
        let kept = if planted(Bug::RoomPromisedTwice) { 0 } else { self.total.get() };
        let left = supply.blocks.min(supply.mappable()).saturating_sub(kept);
        if needed > left {
            return None;
        }
        // The less there is, the less one client takes of it ahead of its needs.
        let given = wanted.min(left / 4).max(needed);
        self.change(client, |promise| {
            promise.blocks += given;
            promise.most = promise.most.saturating_add(given);
            (promise.asked, promise.given) = (said.number, given);
        });
        Some(given)
    }

    /// The client is gone.
    pub(super) fn forget(&self, client: ClientId) {
        if let Some(promise) = self.of.borrow_mut().remove(&client) {
            self.total.set(self.total.get() - promise.blocks);
            self.changed.notify_all();
        }
    }

    /// Checks the invariants; `is_here`: has this client a session?
    pub(super) fn validate(&self, is_here: impl Fn(ClientId) -> bool) {
        let mut sum = 0;
        for (&client, promise) in &*self.of.borrow() {
            let Promise { number, blocks, most, asked, given, holds: _ } = *promise;
            sum += blocks;
            assert!(blocks <= most, "client {client} is kept {blocks} blocks of {most} at most");
            assert!(blocks == 0 || is_here(client), "client {client} is kept room, and is gone");
            assert!(client != ClientId::NONE, "nobody is kept room");
            assert!(given == 0 || asked <= number, "client {client} was given room unasked");
        }
        assert_eq!(sum, self.total.get(), "the sum of all promises");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);

    fn said(number: u64, blocks: u64) -> Statement {
        Statement { number, blocks, asked: 0 }
    }

    fn supply(blocks: u64) -> Supply {
        Supply { blocks, nodes: 1 << 20 }
    }

    #[test]
    fn two_clients_never_get_more_than_there_is() {
        let promises = Promises::default();
        assert_eq!(promises.give(A, said(1, 0), (10, 1000), supply(100)), Some(25));
        assert_eq!(promises.give(B, said(1, 0), (70, 1000), supply(100)), Some(70));
        assert_eq!(promises.give(B, said(2, 70), (6, 6), supply(100)), None);
        assert_eq!(promises.give(B, said(3, 70), (5, 6), supply(100)), Some(5));
        assert_eq!((promises.of(B), promises.total()), (75, 100));
        promises.forget(A);
        assert_eq!(promises.total(), 75);
        promises.validate(|_| true);
    }

    #[test]
    fn repeated_request_is_answered_as_before_and_old_statements_change_nothing() {
        let promises = Promises::default();
        assert_eq!(promises.give(A, said(4, 0), (10, 10), supply(100)), Some(10));
        assert_eq!(promises.give(A, said(4, 0), (10, 10), supply(100)), Some(10));
        assert_eq!(promises.total(), 10);
        promises.state(A, said(6, 7));
        promises.state(A, said(5, 3));
        assert_eq!(promises.total(), 7);
        promises.state(A, said(7, u64::MAX));
        assert_eq!(promises.total(), 7, "nobody gets more by saying so");
        promises.state(A, Statement { asked: 3, ..said(8, 2) });
        assert_eq!(promises.total(), 5, "the answer to a request may be on its way");
        promises.state(A, said(0, 0));
        assert_eq!(promises.total(), 5, "who says nothing keeps what it has");
        promises.validate(|_| true);
    }

    #[test]
    fn writes_in_flight_together_spend_what_each_takes() {
        let promises = Promises::default();
        assert_eq!(promises.give(A, said(1, 0), (60, 60), supply(100)), Some(60));
        // Each statement counts the other write as not made yet.
        promises.spend(A, 20, said(2, 40));
        promises.spend(A, 20, said(3, 40));
        assert_eq!(promises.total(), 20);
        promises.spend(A, 0, said(4, 10));
        assert_eq!(promises.total(), 10, "a write that took less than its client counted");
        promises.spend(B, 5, said(1, u64::MAX));
        assert_eq!((promises.of(B), promises.total()), (0, 10));
        promises.validate(|_| true);
    }

    #[test]
    fn after_a_restart_clients_state_what_they_had_and_nobody_gets_it_before() {
        let promises = Promises::default();
        promises.state_anew(A, said(9, 60), 100);
        assert_eq!(promises.give(B, said(1, 0), (1, 1), supply(50)), None);
        assert_eq!(promises.give(B, said(2, 0), (1, 9), supply(61)), Some(1));
        promises.state_anew(B, said(3, u64::MAX), 100);
        assert_eq!((promises.of(A), promises.of(B)), (60, 40), "no more than there is");
        promises.validate(|_| true);
    }

    #[test]
    fn no_more_is_promised_than_the_metadata_can_map() {
        let promises = Promises::default();
        let few = Supply { blocks: 1 << 20, nodes: NODES_LEFT + 2 };
        assert_eq!(promises.give(A, said(1, 0), (2 * MAPPED_BY_NODE, 1 << 20), few), Some(16));
        assert_eq!(promises.give(B, said(1, 0), (1, 1), few), None);
        let none = Supply { nodes: NODES_LEFT - 1, ..few };
        assert_eq!(Promises::default().give(B, said(1, 0), (1, 1), none), None);
    }

    #[test]
    fn writes_over_others_keep_the_metadata_of_the_worst_case_or_seven_tenths() {
        assert_eq!(overwrites(70 * 100, 120 * 3, 1000), 103);
        assert_eq!(overwrites(70 * 100, u64::MAX, 1000), 100 + 59, "a run behind each segment");
        assert_eq!(overwrites(0, 1 << 40, 1000), 0);
        assert_eq!(overwrites(1 << 40, 0, 1000), 700);
        // A target as it is made now: 1/48 of its blocks are metadata.
        for mapped in [0u64, 1 << 20, 24 << 20, 47 << 20] {
            let (nodes, content) = (1 << 20, 47 << 20);
            let kept = overwrites(mapped, content - mapped, nodes);
            assert!(kept < nodes / 10 * OVERWRITES_TENTHS, "{mapped}: the bound falsifies it");
        }
    }

    /// Two clients with room; `mutate` changes what is kept for the first one, not the sum.
    fn mutated(mutate: impl FnOnce(&mut Promise, &mut Promise)) {
        let promises = Promises::default();
        for client in [A, B] {
            assert_eq!(promises.give(client, said(1, 0), (9, 9), supply(1000)), Some(9));
        }
        promises.validate(|_| true);
        let (mut first, mut second) = {
            let of = promises.of.borrow();
            (of[&A], of[&B])
        };
        mutate(&mut first, &mut second);
        promises.of.borrow_mut().extend([(A, first), (B, second)]);
        promises.validate(|client| client == A || client == B);
    }

    #[test]
    #[should_panic(expected = "client 1 is kept 12 blocks of 9 at most")]
    fn room_of_one_client_that_is_counted_for_another_is_noticed() {
        mutated(|first, second| (first.blocks, second.blocks) = (12, 6));
    }

    #[test]
    #[should_panic(expected = "client 1 was given room unasked")]
    fn answer_to_a_request_that_no_statement_made_is_noticed() {
        mutated(|first, _| first.asked = 2);
    }

    #[test]
    #[should_panic(expected = "client 2 is kept room, and is gone")]
    fn room_that_is_kept_for_a_client_without_a_session_is_noticed() {
        let promises = Promises::default();
        assert_eq!(promises.give(B, said(1, 0), (9, 9), supply(1000)), Some(9));
        promises.validate(|client| client == A);
    }
}
