//! A client's session: its slots, its connection, what it has been told.
//!
//! Invariants:
//! - a slot executes one request at a time, and each request once: its answer is
//!   kept until the next one comes;
//! - a recall never overtakes the reply that grants what it recalls: it is held back
//!   while a request that has granted something has not been answered;
//! - a session outlives its connections; it ends by goodbye or eviction.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use env::sync::OneSender;
use proto::lease_server::Recall;
use proto::mds::{DataAttr, Message, Push, Reply};
use types::limits::{RESERVED_SLOTS, SLOTS};
use types::{Bug, ClientId, Duration, HashMap, Instant, Transno, planted};

use crate::connection::Connection;

/// Slots of a session, ordinary and reserved.
pub const SLOTS_ALL: usize = (SLOTS + RESERVED_SLOTS) as usize;
const _: () = assert!(SLOTS_ALL <= 128, "a slot is a bit of a u128");

/// What became of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It works.
    Live,
    /// The server restarted; the client reclaims and replays.
    Recovering,
    /// It was evicted, or said goodbye.
    Over,
}

/// What to do with a request.
#[derive(Debug)]
pub enum Admission {
    /// Execute it. `fresh`: the slot has seen none since the server started.
    New {
        /// The slot has seen none since the server started.
        fresh: bool,
    },
    /// It was executed: this is the answer.
    Again(Box<Reply>),
    /// It is being executed, or older than what was answered; nothing to do.
    Ignore,
    /// It makes no sense: the connection ends.
    Protocol(&'static str),
}

#[derive(Default)]
struct Slot {
    seq: Option<u32>,
    busy: bool,
    /// It is being executed for the second time: it was sent again on a new connection, and
    /// changes nothing.
    again: bool,
    answer: Option<Reply>,
}

/// See the module.
pub struct Session {
    /// Its client; 0 for an administrator's tool.
    pub client: ClientId,
    /// Number of this run of the client.
    pub nonce: u64,
    /// For people.
    pub description: String,
    /// How long silence is borne.
    pub lease: Duration,
    /// When it began.
    pub begun: Instant,
    /// Known before this start of the server: its slots may have kept replies.
    pub known: bool,
    /// When a frame last came.
    pub heard: Cell<Instant>,
    /// Its lock on a data device has been seen: a free lock means that its process is gone.
    pub local: Cell<bool>,
    /// Last transaction.
    pub last: Cell<Transno>,
    /// What it knows to be durable.
    pub told: Cell<Transno>,
    /// Requests executed.
    pub requests: Cell<u64>,
    /// It has been asked for unused space and has not answered.
    pub space_asked: Cell<bool>,
    /// Until when it is not asked again: it gave what it had.
    pub space_asked_until: Cell<Instant>,
    /// Glimpses under way.
    pub glimpses: RefCell<HashMap<u64, OneSender<Option<DataAttr>>>>,
    state: Cell<State>,
    connection: RefCell<Option<Rc<Connection>>>,
    connections: Cell<u64>,
    slots: RefCell<Vec<Slot>>,
    granting: Cell<u128>,
    held_back: RefCell<VecDeque<(u128, Recall)>>,
}

/// Who a session is of.
pub struct Identity {
    /// Its number.
    pub client: ClientId,
    /// Number of its run.
    pub nonce: u64,
    /// For people.
    pub description: String,
    /// Lease.
    pub lease: Duration,
}

impl Session {
    /// A session without a connection.
    pub fn new(identity: Identity, state: State, known: bool, now: Instant) -> Session {
        Session {
            client: identity.client,
            nonce: identity.nonce,
            description: identity.description,
            lease: identity.lease,
            begun: now,
            known,
            heard: Cell::new(now),
            local: Cell::new(false),
            last: Cell::new(Transno::ZERO),
            told: Cell::new(Transno::ZERO),
            requests: Cell::new(0),
            space_asked: Cell::new(false),
            space_asked_until: Cell::new(now),
            glimpses: RefCell::default(),
            state: Cell::new(state),
            connection: RefCell::new(None),
            connections: Cell::new(0),
            slots: RefCell::new((0..SLOTS_ALL).map(|_| Slot::default()).collect()),
            granting: Cell::new(0),
            held_back: RefCell::default(),
        }
    }

    /// What became of it.
    pub fn state(&self) -> State {
        self.state.get()
    }

    /// Has it ended?
    pub fn is_over(&self) -> bool {
        self.state.get() == State::Over
    }

    /// It goes on as `state`; a session that is over stays so.
    pub fn set_state(&self, state: State) {
        if !self.is_over() {
            self.state.set(state);
        }
    }

    /// Is there a connection?
    pub fn is_connected(&self) -> bool {
        self.connection.borrow().as_ref().is_some_and(|connection| !connection.is_closed())
    }

    /// How many connections it has had.
    pub fn connection_number(&self) -> u64 {
        self.connections.get()
    }

    /// Binds a new connection; the old one ends.
    pub fn bind(&self, connection: Rc<Connection>) {
        self.connections.set(self.connections.get() + 1);
        connection.belongs_to(self.client);
        if let Some(old) = self.connection.borrow_mut().replace(connection) {
            old.close();
        }
    }

    /// Address of the other end.
    pub fn peer(&self) -> Option<String> {
        self.connection.borrow().as_ref().filter(|c| !c.is_closed()).map(|c| c.peer())
    }

    /// Lets go of the connection after what is queued has been written.
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

    /// The request in `slot` is answered, or waits for others: recalls need not wait for it.
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

    /// Forgets recalls that were held back: all unanswered ones are pushed anew.
    pub fn forget_held_back(&self) {
        self.held_back.borrow_mut().clear();
    }

    /// A request has come.
    pub fn admit(&self, slot: u16, seq: u32) -> Admission {
        let mut slots = self.slots.borrow_mut();
        let Some(slot) = slots.get_mut(usize::from(slot)) else {
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
                    return Admission::Again(Box::new(answer.clone()));
                }
            }
            // The client got the first answer before its resend came here: the second is for
            // nobody.
            Some(last) if slot.again && seq == last.wrapping_add(1) => {}
            _ if slot.busy => return Admission::Protocol("a slot is used while it is busy"),
            Some(last) if seq != last.wrapping_add(1) => {
                return Admission::Protocol("a sequence number is out of order");
            }
            _ => {}
        }
        let again = slot.seq == Some(seq);
        *slot = Slot { seq: Some(seq), busy: true, again, answer: None };
        Admission::New { fresh }
    }

    /// A replayed request is admitted whatever the slot has seen, if it is idle. What comes after
    /// it may have any number: requests that changed nothing are not replayed.
    pub fn admit_replay(&self, slot: u16) -> Admission {
        let mut slots = self.slots.borrow_mut();
        let Some(slot) = slots.get_mut(usize::from(slot)) else {
            return Admission::Protocol("a slot is out of range");
        };
        if slot.busy {
            return Admission::Ignore;
        }
        *slot = Slot { seq: None, busy: true, again: false, answer: None };
        Admission::New { fresh: true }
    }

    /// The answer of a slot's request; `keep` it if executing the request again would not give it.
    pub fn answered(&self, reply: &Reply, keep: bool) {
        if let Some(slot) = self.slots.borrow_mut().get_mut(usize::from(reply.slot))
            && slot.seq.is_none_or(|seq| seq == reply.seq)
        {
            slot.busy = false;
            slot.answer = keep.then(|| reply.clone());
        }
        self.requests.set(self.requests.get() + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{Ino, Rights};

    fn session() -> Session {
        let (client, lease) = (ClientId(1), Duration::from_secs(1));
        let identity = Identity { client, nonce: 1, description: String::new(), lease };
        Session::new(identity, State::Live, false, Instant(0))
    }

    fn reply(slot: u16, seq: u32) -> Reply {
        let (transno, last_committed) = (Transno::ZERO, Transno::ZERO);
        Reply { slot, seq, transno, last_committed, results: Vec::new() }
    }

    #[test]
    fn a_slot_executes_each_request_once_and_in_order() {
        let session = session();
        assert!(matches!(session.admit(3, 1), Admission::New { fresh: true }));
        assert!(matches!(session.admit(3, 1), Admission::Ignore));
        assert!(matches!(session.admit(3, 2), Admission::Protocol(_)), "busy");
        session.answered(&reply(3, 1), true);
        assert!(matches!(session.admit(3, 1), Admission::Again(_)));
        assert!(matches!(session.admit(3, 3), Admission::Protocol(_)));
        assert!(matches!(session.admit(3, 2), Admission::New { fresh: false }));
        assert!(matches!(session.admit(SLOTS_ALL as u16, 1), Admission::Protocol(_)));
    }

    #[test]
    fn an_answer_that_can_be_had_again_is_not_kept() {
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
    fn after_a_replay_numbers_may_go_on_anywhere() {
        let session = session();
        assert!(matches!(session.admit_replay(1), Admission::New { fresh: true }));
        assert!(matches!(session.admit(1, 9), Admission::Protocol(_)), "busy");
        session.answered(&reply(1, 5), false);
        assert!(matches!(session.admit(1, 9), Admission::New { fresh: true }));
    }

    #[test]
    fn a_recall_waits_for_the_replies_that_grant() {
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
