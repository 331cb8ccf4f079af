//! A client's session, with what the metadata server keeps there beside.
//!
//! Invariants:
//! - a recall never overtakes the reply that grants what it recalls: the session holds a recall
//!   back while a request that has granted something is unanswered;
//! - the server asks a client for unused space once at a time.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Deref;

use env::sync::{OneReceiver, OneSender, oneshot};
use proto::lease_server::Recall;
use proto::mds::{COMMITTED_PUSHES, DataAttr, Mds, Message, Push};
use session::server::{SLOTS_ALL, SessionIdentity, SessionState};
use types::limits::PAGS_MAX;
use types::{HashMap, Instant, PagId, ShardId, Transno};

const _: () = assert!(SLOTS_ALL <= 128, "a slot is a bit of a u128");

/// See the module.
pub struct Session {
    common: session::server::Session<Mds>,
    local: Cell<bool>,
    unreachable: RefCell<Vec<PagId>>,
    /// Number of the data zones that the welcome named.
    zones_named: Cell<usize>,
    /// The server has asked the client for unused space, and has no answer yet.
    space_asked: Cell<bool>,
    /// The server does not ask for space again before this time, as the client has just answered.
    space_asked_until: Cell<Instant>,
    /// Glimpses that wait for an answer.
    glimpses: RefCell<HashMap<u64, OneSender<Option<DataAttr>>>>,
    granting: Cell<u128>,
    held_back: RefCell<VecDeque<(u128, Recall)>>,
    /// Of another metadata server: the shard for which it has spoken.
    shard: Cell<Option<ShardId>>,
}

impl Deref for Session {
    type Target = session::server::Session<Mds>;

    fn deref(&self) -> &Self::Target {
        &self.common
    }
}

impl Session {
    /// A session without a connection.
    pub fn new(
        identity: SessionIdentity,
        state: SessionState,
        known: bool,
        now: Instant,
    ) -> Session {
        Session {
            common: session::server::Session::new(identity, state, known, now),
            local: Cell::new(false),
            unreachable: RefCell::default(),
            zones_named: Cell::new(0),
            space_asked: Cell::new(false),
            space_asked_until: Cell::new(now),
            glimpses: RefCell::default(),
            granting: Cell::new(0),
            held_back: RefCell::default(),
            shard: Cell::new(None),
        }
    }

    /// May the session's server speak for this shard? It speaks for the same one for ever.
    pub fn speaks_for(&self, shard: ShardId) -> bool {
        let known = self.shard.get().unwrap_or(shard);
        self.shard.set(Some(known));
        known == shard
    }

    /// Has the server seen the client's lock on a data device? Then the client's process has ended
    /// once that lock is free.
    pub fn is_local(&self) -> bool {
        self.local.get()
    }

    /// See [`Session::is_local`].
    pub fn set_local(&self, local: bool) {
        self.local.set(local);
    }

    /// The data zones that the client could not reach when it last asked for space.
    pub fn unreachable(&self) -> Vec<PagId> {
        self.unreachable.borrow().clone()
    }

    /// See [`Session::unreachable`]. Keeps at most [`PAGS_MAX`] of them.
    pub fn set_unreachable(&self, zones: &[PagId]) {
        let mut known = self.unreachable.borrow_mut();
        if *known != zones {
            zones[..zones.len().min(PAGS_MAX)].clone_into(&mut known);
        }
    }

    /// How many data zones the welcome named.
    pub fn zones_named(&self) -> usize {
        self.zones_named.get()
    }

    /// See [`Session::zones_named`].
    pub fn set_zones_named(&self, count: usize) {
        self.zones_named.set(count);
    }

    /// Tells the client that its changes have become durable, if it does not know and wants to.
    pub fn push_committed(&self, durable: Transno) {
        let wants = self.agreed().features & COMMITTED_PUSHES != 0;
        if wants && self.learns_durable(durable) {
            self.push(Message::Push { push: Push::Committed { transno: durable } });
        }
    }

    /// May the server ask the client for unused space?
    pub fn may_ask_space(&self, now: Instant) -> bool {
        now >= self.space_asked_until.get()
    }

    /// Asks the client for unused space, unless it owes an answer already.
    pub fn ask_space(&self) {
        if !self.space_asked.replace(true) {
            self.push(Message::Push { push: Push::SpaceWanted {} });
        }
    }

    /// Does the client owe an answer about unused space?
    pub fn owes_space_answer(&self) -> bool {
        self.space_asked.get()
    }

    /// The answer about unused space is lost, or comes too late.
    pub fn forget_space_ask(&self) {
        self.space_asked.set(false);
    }

    /// The client has answered about unused space: the server leaves it alone until `until`.
    pub fn space_answered(&self, until: Instant) {
        if self.space_asked.replace(false) {
            self.space_asked_until.set(until);
        }
    }

    /// The answer to glimpse `id` will come here.
    pub fn expect_glimpse(&self, id: u64) -> OneReceiver<Option<DataAttr>> {
        let (send, receive) = oneshot();
        self.glimpses.borrow_mut().insert(id, send);
        receive
    }

    /// The client has answered glimpse `id`.
    pub fn glimpse_answered(&self, id: u64, data: Option<DataAttr>) {
        let waiting = self.glimpses.borrow_mut().remove(&id);
        if let Some(waiting) = waiting {
            waiting.send(data);
        }
    }

    /// Nobody waits for glimpse `id` any more.
    pub fn forget_glimpse(&self, id: u64) {
        self.glimpses.borrow_mut().remove(&id);
    }

    /// The client will answer no glimpse any more.
    pub fn forget_glimpses(&self) {
        self.glimpses.borrow_mut().clear();
    }

    /// Sends a recall, after the replies that it must not overtake.
    pub fn push_recall(&self, recall: Recall) {
        let after = self.granting.get();
        let mut held_back = self.held_back.borrow_mut();
        if after == 0 && held_back.is_empty() {
            drop(held_back);
            self.send_recall(recall);
        } else {
            held_back.push_back((after, recall));
        }
    }

    fn send_recall(&self, recall: Recall) {
        let Recall { ino, seq, take, range: part, .. } = recall;
        self.push(Message::Push { push: Push::Recall { ino, seq, take, range: part } });
    }

    /// The request in `slot` has granted something.
    pub fn mark_granting(&self, slot: u16) {
        self.granting.set(self.granting.get() | 1 << slot);
    }

    /// The request in `slot` is answered, or waits for other clients: recalls need not wait for it.
    pub fn unmark_granting(&self, slot: u16) {
        let bit = 1u128 << slot;
        if self.granting.get() & bit == 0 {
            return;
        }
        self.granting.set(self.granting.get() & !bit);
        loop {
            let mut held_back = self.held_back.borrow_mut();
            held_back.iter_mut().for_each(|(after, _)| *after &= !bit);
            match held_back.front() {
                Some((0, recall)) => {
                    let recall = *recall;
                    held_back.pop_front();
                    drop(held_back);
                    self.send_recall(recall);
                }
                _ => return,
            }
        }
    }

    /// Drops the recalls that were held back. The caller pushes all unanswered recalls again.
    pub fn forget_held_back(&self) {
        self.held_back.borrow_mut().clear();
    }

    /// Checks the invariants; `durable`: the last durable transaction.
    pub fn validate(&self, durable: Transno) {
        self.common.validate(durable);
        let granting = self.granting.get();
        for (after, recall) in &*self.held_back.borrow() {
            assert_eq!(recall.client, self.client, "another client's recall is held back");
            assert_eq!(after & !granting, 0, "a recall waits for an answer that grants nothing");
        }
        let first = self.held_back.borrow().front().map(|(after, _)| *after);
        assert_ne!(first, Some(0), "a recall is held back that need not wait");
    }
}

#[cfg(test)]
mod tests {
    use session::server::Agreed;
    use types::{ClientId, Duration, Ino, Rights};

    use super::*;

    fn session() -> Session {
        let (client, lease) = (ClientId(1), Duration::from_secs(1));
        let (description, agreed) = (String::new(), Agreed { version: 5, features: 0 });
        let who = session::server::Who::Anybody;
        let identity = SessionIdentity { client, nonce: 1, description, lease, agreed, who };
        Session::new(identity, SessionState::Live, false, Instant(0))
    }

    #[test]
    fn recall_waits_for_the_replies_that_grant() {
        let session = session();
        let recall =
            Recall { client: ClientId(1), ino: Ino(5), seq: 1, take: Rights::ATTR, range: None };
        session.mark_granting(2);
        session.push_recall(recall);
        session.mark_granting(7);
        session.push_recall(Recall { seq: 2, ..recall });
        assert_eq!(session.held_back.borrow().len(), 2);
        session.unmark_granting(2);
        assert_eq!(session.held_back.borrow().len(), 1);
        session.unmark_granting(7);
        assert!(session.held_back.borrow().is_empty());
    }
}
