//! A client's session: its slots, its connection, and what the client has been notified of.
//!
//! Invariants:
//! - a slot executes one request at a time, and each request once: the slot keeps the answer until
//!   the next request comes;
//! - a session outlives its connections; goodbye or eviction ends it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use proto::message::{Message, Peer, Reply};
use types::limits::{RESERVED_SLOTS, SLOTS};
use types::{Bug, ClientId, Duration, Instant, Transno, planted};

use super::{Agreed, Connection, Who};

/// Slots of a session, ordinary and reserved.
pub const SLOTS_ALL: usize = (SLOTS + RESERVED_SLOTS) as usize;

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
pub enum Admission<P: Peer> {
    /// Execute it.
    New {
        /// The slot has seen no request since the server started.
        fresh: bool,
    },
    /// It was executed before: this is the answer.
    Answered(Box<Reply<P>>),
    /// It is being executed, or is older than the last answered one: do nothing.
    Ignore,
    /// It violates the protocol: close the connection.
    Protocol(&'static str),
}

struct Slot<P: Peer> {
    number: u16,
    seq: Option<u32>,
    busy: bool,
    /// The request is executed for the second time: the client sent it again on a new connection,
    /// and it changes nothing.
    repeated: bool,
    answer: Option<Reply<P>>,
}

/// The slots that have been used, by number. Clients use few of them most of the time, and a server
/// has many clients.
struct UsedSlots<P: Peer>(Vec<Slot<P>>);

impl<P: Peer> UsedSlots<P> {
    /// Slot `number`; `None` if a session has no such slot.
    fn get_mut(&mut self, number: u16) -> Option<&mut Slot<P>> {
        if usize::from(number) >= SLOTS_ALL {
            return None;
        }
        let at = match self.0.binary_search_by_key(&number, |slot| slot.number) {
            Ok(at) => at,
            Err(at) => {
                let (seq, busy, repeated, answer) = (None, false, false, None);
                self.0.insert(at, Slot { number, seq, busy, repeated, answer });
                at
            }
        };
        self.0.get_mut(at)
    }
}

/// See the module.
pub struct Session<P: Peer> {
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
    agreed: Cell<Agreed>,
    who: RefCell<Who>,
    last_heard: Cell<Instant>,
    last_transno: Cell<Transno>,
    /// The last transaction that the client knows to be durable.
    known_durable: Cell<Transno>,
    requests: Cell<u64>,
    state: Cell<SessionState>,
    connection: RefCell<Option<Rc<Connection>>>,
    connections: Cell<u64>,
    slots: RefCell<UsedSlots<P>>,
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
    /// What was agreed with the client when it greeted.
    pub agreed: Agreed,
    /// Who it is.
    pub who: Who,
}

impl<P: Peer> Session<P> {
    /// A session without a connection.
    pub fn new(
        identity: SessionIdentity,
        state: SessionState,
        known: bool,
        now: Instant,
    ) -> Session<P> {
        Session {
            client: identity.client,
            nonce: identity.nonce,
            description: identity.description,
            lease: identity.lease,
            begun: now,
            known,
            agreed: Cell::new(identity.agreed),
            who: RefCell::new(identity.who),
            last_heard: Cell::new(now),
            last_transno: Cell::new(Transno::ZERO),
            known_durable: Cell::new(Transno::ZERO),
            requests: Cell::new(0),
            state: Cell::new(state),
            connection: RefCell::new(None),
            connections: Cell::new(0),
            slots: RefCell::new(UsedSlots(Vec::new())),
        }
    }

    /// What was agreed with the client when it last greeted.
    pub fn agreed(&self) -> Agreed {
        self.agreed.get()
    }

    /// The client has greeted again.
    pub fn set_agreed(&self, agreed: Agreed) {
        self.agreed.set(agreed);
    }

    /// Who the client is, by its last connection.
    pub fn who(&self) -> Who {
        self.who.borrow().clone()
    }

    /// Whose requests count as nobody's.
    pub fn squash(&self) -> channel::Squash {
        self.who.borrow().squash()
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

    /// Does the client wait to hear that its changes have become durable? If so, it knows now.
    pub fn learns_durable(&self, durable: Transno) -> bool {
        let last = self.last_transno.get();
        let waits = last > self.known_durable.get() && last <= durable;
        let learns = waits && self.state() == SessionState::Live && self.is_connected();
        if learns {
            self.known_durable.set(durable);
        }
        learns
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
        self.who.borrow_mut().clone_from(connection.who());
        if let Some(old) = self.connection.borrow_mut().replace(connection) {
            old.close();
        }
    }

    /// Are the frames of its connection encrypted?
    pub fn is_encrypted(&self) -> bool {
        self.connection.borrow().as_ref().is_some_and(|connection| connection.is_encrypted())
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
    pub fn push(&self, message: Message<P>) {
        if let Some(connection) = &*self.connection.borrow() {
            connection.send(&message);
        }
    }

    /// Decides what to do with a request that has come.
    pub fn admit(&self, slot: u16, seq: u32) -> Admission<P> {
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
    /// it may have any number: requests that changed nothing are not replayed. When the client has
    /// said that it has recovered, a copy that comes late must not touch the slot.
    pub fn admit_replay(&self, slot: u16) -> Admission<P> {
        if self.state() != SessionState::Recovering {
            return Admission::Protocol("a request is replayed outside a recovery");
        }
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
    pub fn answered(&self, reply: &Reply<P>, keep: bool) {
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
        let slots = self.slots.borrow();
        assert!(slots.0.is_sorted_by(|a, b| a.number < b.number), "a slot is there twice");
        for slot in &slots.0 {
            let number = slot.number;
            assert!(!slot.busy || slot.answer.is_none(), "slot {number} is busy and has an answer");
        }
        assert!(self.known_durable.get() <= durable, "the client takes a change for durable");
    }
}

#[cfg(test)]
mod tests {
    use proto::mds::{Mds, Reply};

    use super::*;

    fn session() -> Session<Mds> {
        let (client, lease) = (ClientId(1), Duration::from_secs(1));
        let (description, agreed) = (String::new(), Agreed { version: 5, features: 0 });
        let who = Who::Anybody;
        let identity = SessionIdentity { client, nonce: 1, description, lease, agreed, who };
        Session::new(identity, SessionState::Live, false, Instant(0))
    }

    fn reply(slot: u16, seq: u32) -> Reply {
        let (transno, last_committed) = (Transno::ZERO, Transno::ZERO);
        Reply { slot, seq, transno, last_committed, waited: 0, load: 0, results: Vec::new() }
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
        session.set_state(SessionState::Recovering);
        assert!(matches!(session.admit_replay(1), Admission::New { fresh: true }));
        assert!(matches!(session.admit(1, 9), Admission::Protocol(_)), "busy");
        session.answered(&reply(1, 5), false);
        session.set_state(SessionState::Live);
        assert!(matches!(session.admit(1, 9), Admission::New { fresh: true }));
    }

    #[test]
    fn late_copy_of_a_replayed_request_leaves_its_slot_alone() {
        let session = session();
        session.set_state(SessionState::Recovering);
        session.admit_replay(1);
        session.answered(&reply(1, 5), true);
        session.set_state(SessionState::Live);
        session.admit(1, 6);
        session.answered(&reply(1, 6), true);
        assert!(matches!(session.admit_replay(1), Admission::Protocol(_)));
        assert!(matches!(session.admit(1, 6), Admission::Answered(_)), "its answer is still there");
    }
}
