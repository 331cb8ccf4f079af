//! A client's session: its slots, its connection, and what the client has been notified of.
//!
//! Invariants:
//! - a slot executes one request at a time, and each request once: the slot keeps the answer until
//!   the next request comes;
//! - a recall never overtakes the reply that grants what it recalls: the session holds a recall
//!   back while a request that has granted something is unanswered;
//! - a session outlives its connections; goodbye or eviction ends it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use env::sync::{OneReceiver, OneSender, oneshot};
use proto::lease_server::Recall;
use proto::mds::{DataAttr, Message, Push, Reply};
use types::limits::{RESERVED_SLOTS, SLOTS};
use types::{Bug, ClientId, Duration, HashMap, Instant, Transno, planted};

use super::Connection;

/// Slots of a session, ordinary and reserved.
const SLOTS_ALL: usize = (SLOTS + RESERVED_SLOTS) as usize;
const _: () = assert!(SLOTS_ALL <= 128, "a slot is a bit of a u128");

/// The state of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionState {
    /// It executes requests.
    Live,
    /// The server restarted; the client reclaims and replays.
    Recovering,
    /// The client was evicted, or said goodbye.
    Over,
}

/// What to do with a request.
#[derive(Debug)]
pub enum Admission {
    /// Execute it.
    New {
        /// The slot has seen no request since the server started.
        fresh: bool,
    },
    /// It was executed before: this is the answer.
    Answered(Box<Reply>),
    /// It is being executed, or is older than the last answered one: do nothing.
    Ignore,
    /// It violates the protocol: close the connection.
    Protocol(&'static str),
}

#[derive(Default)]
struct Slot {
    number: u16,
    seq: Option<u32>,
    busy: bool,
    /// The request is executed for the second time: the client sent it again on a new connection,
    /// and it changes nothing.
    repeated: bool,
    answer: Option<Reply>,
}

/// The slots that have been used, by number. Clients use few of them most of the time, and a server
/// has many clients.
#[derive(Default)]
struct UsedSlots(Vec<Slot>);

impl UsedSlots {
    /// Slot `number`; `None` if a session has no such slot.
    fn get_mut(&mut self, number: u16) -> Option<&mut Slot> {
        if usize::from(number) >= SLOTS_ALL {
            return None;
        }
        let at = match self.0.binary_search_by_key(&number, |slot| slot.number) {
            Ok(at) => at,
            Err(at) => {
                self.0.insert(at, Slot { number, ..Slot::default() });
                at
            }
        };
        self.0.get_mut(at)
    }
}

/// See the module.
pub struct Session {
    /// Its client; 0 for an administrator's tool.
    pub client: ClientId,
    /// Random number of the client's process.
    pub nonce: u64,
    /// Description of the client for administrators.
    pub description: String,
    /// The lease that `Welcome` grants the client.
    pub lease: Duration,
    /// When the session began.
    pub begun: Instant,
    /// The client was known before this start of the server: its slots may have kept replies.
    pub known: bool,
    last_heard: Cell<Instant>,
    local: Cell<bool>,
    last_transno: Cell<Transno>,
    /// The last transaction that the client knows to be durable.
    known_durable: Cell<Transno>,
    requests: Cell<u64>,
    /// The server has asked the client for unused space, and has no answer yet.
    space_asked: Cell<bool>,
    /// The server does not ask for space again before this time, as the client has just answered.
    space_asked_until: Cell<Instant>,
    /// Glimpses that wait for an answer.
    glimpses: RefCell<HashMap<u64, OneSender<Option<DataAttr>>>>,
    state: Cell<SessionState>,
    connection: RefCell<Option<Rc<Connection>>>,
    connections: Cell<u64>,
    slots: RefCell<UsedSlots>,
    granting: Cell<u128>,
    held_back: RefCell<VecDeque<(u128, Recall)>>,
}

/// The identity of a session's client.
pub struct SessionIdentity {
    /// Its number.
    pub client: ClientId,
    /// Random number of the client's process.
    pub nonce: u64,
    /// Description of the client for administrators.
    pub description: String,
    /// Lease.
    pub lease: Duration,
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
            client: identity.client,
            nonce: identity.nonce,
            description: identity.description,
            lease: identity.lease,
            begun: now,
            known,
            last_heard: Cell::new(now),
            local: Cell::new(false),
            last_transno: Cell::new(Transno::ZERO),
            known_durable: Cell::new(Transno::ZERO),
            requests: Cell::new(0),
            space_asked: Cell::new(false),
            space_asked_until: Cell::new(now),
            glimpses: RefCell::default(),
            state: Cell::new(state),
            connection: RefCell::new(None),
            connections: Cell::new(0),
            slots: RefCell::default(),
            granting: Cell::new(0),
            held_back: RefCell::default(),
        }
    }

    /// Its state.
    pub fn state(&self) -> SessionState {
        self.state.get()
    }

    /// Has it ended?
    pub fn is_over(&self) -> bool {
        self.state.get() == SessionState::Over
    }

    /// Changes the state; a session that is over stays over.
    pub fn set_state(&self, state: SessionState) {
        if !self.is_over() {
            self.state.set(state);
        }
    }

    /// A frame has come from the client.
    pub fn heard(&self, now: Instant) {
        self.last_heard.set(now);
    }

    /// When the last frame came.
    pub fn last_heard(&self) -> Instant {
        self.last_heard.get()
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

    /// Number of requests executed.
    pub fn requests(&self) -> u64 {
        self.requests.get()
    }

    /// The client's last transaction.
    pub fn last_transno(&self) -> Transno {
        self.last_transno.get()
    }

    /// The client has changed something in transaction `transno`.
    pub fn note_change(&self, transno: Transno) {
        self.last_transno.set(self.last_transno.get().max(transno));
    }

    /// An answer tells the client that everything up to `durable` is durable.
    pub fn note_durable(&self, durable: Transno) {
        self.known_durable.set(durable);
    }

    /// Tells the client that its changes have become durable, if it does not know.
    pub fn push_committed(&self, durable: Transno) {
        let last = self.last_transno.get();
        let waits = last > self.known_durable.get() && last <= durable;
        if waits && self.state() == SessionState::Live && self.is_connected() {
            self.known_durable.set(durable);
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

    /// Does it have an open connection?
    pub fn is_connected(&self) -> bool {
        self.connection.borrow().as_ref().is_some_and(|connection| !connection.is_closed())
    }

    /// How many connections it has had.
    pub fn connection_number(&self) -> u64 {
        self.connections.get()
    }

    /// Binds a new connection and closes the old one.
    pub fn bind(&self, connection: Rc<Connection>) {
        self.connections.set(self.connections.get() + 1);
        connection.set_client(self.client);
        if let Some(old) = self.connection.borrow_mut().replace(connection) {
            old.close();
        }
    }

    /// Address of the other end.
    pub fn peer(&self) -> Option<String> {
        self.connection.borrow().as_ref().filter(|c| !c.is_closed()).map(|c| c.peer())
    }

    /// Closes the connection once everything queued has been written.
    pub fn unbind(&self) {
        if let Some(connection) = self.connection.borrow_mut().take() {
            connection.finish();
        }
    }

    /// Sends a message, if there is a connection.
    pub fn push(&self, message: Message) {
        if let Some(connection) = &*self.connection.borrow() {
            connection.send(&message);
        }
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

    /// Decides what to do with a request that has come.
    pub fn admit(&self, slot: u16, seq: u32) -> Admission {
        let mut slots = self.slots.borrow_mut();
        let Some(slot) = slots.get_mut(slot) else {
            return Admission::Protocol("a slot is out of range");
        };
        let fresh = slot.seq.is_none();
        match slot.seq {
            Some(last) if seq == last => {
                if slot.busy {
                    return Admission::Ignore;
                }
                if let Some(answer) = &slot.answer
                    && !planted(Bug::SlotAnswerLost)
                {
                    return Admission::Answered(Box::new(answer.clone()));
                }
            }
            // The client got the first answer before its resend came here: nobody waits for the
            // second answer.
            Some(last) if slot.repeated && seq == last.wrapping_add(1) => {}
            _ if slot.busy => return Admission::Protocol("a slot is used while it is busy"),
            Some(last) if seq != last.wrapping_add(1) => {
                return Admission::Protocol("a sequence number is out of order");
            }
            _ => {}
        }
        let repeated = slot.seq == Some(seq);
        let number = slot.number;
        *slot = Slot { number, seq: Some(seq), busy: true, repeated, answer: None };
        Admission::New { fresh }
    }

    /// Admits a replayed request in any idle slot, whatever its sequence number. The request after
    /// it may have any number: requests that changed nothing are not replayed.
    pub fn admit_replay(&self, slot: u16) -> Admission {
        let mut slots = self.slots.borrow_mut();
        let Some(slot) = slots.get_mut(slot) else {
            return Admission::Protocol("a slot is out of range");
        };
        if slot.busy {
            return Admission::Ignore;
        }
        let number = slot.number;
        *slot = Slot { number, seq: None, busy: true, repeated: false, answer: None };
        Admission::New { fresh: true }
    }

    /// Records the answer of a slot's request. `keep`: executing the request again would not give
    /// the same answer.
    pub fn answered(&self, reply: &Reply, keep: bool) {
        if let Some(slot) = self.slots.borrow_mut().get_mut(reply.slot)
            && slot.seq.is_none_or(|seq| seq == reply.seq)
        {
            slot.busy = false;
            slot.answer = keep.then(|| reply.clone());
        }
        self.requests.set(self.requests.get() + 1);
    }

    /// Checks the invariants; `durable`: the last durable transaction.
    pub fn validate(&self, durable: Transno) {
        let (slots, granting) = (self.slots.borrow(), self.granting.get());
        assert!(slots.0.is_sorted_by(|a, b| a.number < b.number), "a slot is there twice");
        for slot in &slots.0 {
            let number = slot.number;
            assert!(!slot.busy || slot.answer.is_none(), "slot {number} is busy and has an answer");
        }
        for (after, recall) in &*self.held_back.borrow() {
            assert_eq!(recall.client, self.client, "another client's recall is held back");
            assert_eq!(after & !granting, 0, "a recall waits for an answer that grants nothing");
        }
        let first = self.held_back.borrow().front().map(|(after, _)| *after);
        assert_ne!(first, Some(0), "a recall is held back that need not wait");
        assert!(self.known_durable.get() <= durable, "the client takes a change for durable");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{Ino, Rights};

    fn session() -> Session {
        let (client, lease) = (ClientId(1), Duration::from_secs(1));
        let identity = SessionIdentity { client, nonce: 1, description: String::new(), lease };
        Session::new(identity, SessionState::Live, false, Instant(0))
    }

    fn reply(slot: u16, seq: u32) -> Reply {
        let (transno, last_committed) = (Transno::ZERO, Transno::ZERO);
        Reply { slot, seq, transno, last_committed, results: Vec::new() }
    }

    /// PROTOCOLS 3.6.
    #[test]
    fn slot_executes_each_request_once_and_in_order() {
        let session = session();
        assert!(matches!(session.admit(3, 1), Admission::New { fresh: true }));
        assert!(matches!(session.admit(3, 1), Admission::Ignore));
        assert!(matches!(session.admit(3, 2), Admission::Protocol(_)), "busy");
        session.answered(&reply(3, 1), true);
        assert!(matches!(session.admit(3, 1), Admission::Answered(_)));
        assert!(matches!(session.admit(3, 3), Admission::Protocol(_)));
        assert!(matches!(session.admit(3, 2), Admission::New { fresh: false }));
        assert!(matches!(session.admit(SLOTS_ALL as u16, 1), Admission::Protocol(_)));
    }

    #[test]
    fn slot_keeps_no_answer_that_can_be_computed_again() {
        let session = session();
        session.admit(0, 9);
        session.answered(&reply(0, 9), false);
        assert!(matches!(session.admit(0, 9), Admission::New { .. }));
        // The answer had reached the client when it sent the request again.
        assert!(matches!(session.admit(0, 10), Admission::New { .. }));
        session.answered(&reply(0, 9), false);
        assert!(matches!(session.admit(0, 11), Admission::Protocol(_)), "10 is being executed");
    }

    #[test]
    fn sequence_numbers_may_jump_after_a_replay() {
        let session = session();
        assert!(matches!(session.admit_replay(1), Admission::New { fresh: true }));
        assert!(matches!(session.admit(1, 9), Admission::Protocol(_)), "busy");
        session.answered(&reply(1, 5), false);
        assert!(matches!(session.admit(1, 9), Admission::New { fresh: true }));
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
