//! The sessions of a server's clients and their connections, and who has been silent for how long.
//!
//! Invariants:
//! - a client has at most one session. The session is in the table from its beginning until all
//!   that the client held is free, even if it is over before;
//! - an administrator's tool (client 0) has a session of its own that is not in the table;
//! - while the server's own process was stopped, no client counts as silent.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::rc::{Rc, Weak};

use env::Env;
use env::sync::{Notified, Notify};
use proto::message::Peer;
use types::{ClientId, Duration, Instant};

use super::{Connection, Session, SessionState};

/// See the module. `S`: a session, with what the server keeps there beside.
pub struct Table<P: Peer, S: Deref<Target = Session<P>>> {
    env: Env,
    /// How long a client may be silent.
    lease: Duration,
    table: RefCell<BTreeMap<ClientId, Rc<S>>>,
    /// Connections, including those without a session yet.
    connections: RefCell<Vec<Weak<Connection>>>,
    /// Notified when a session has ended or has finished its recovery, and when the server stops.
    changed: Notify,
    /// Number of requests answered.
    answered: Cell<u64>,
    /// When the server last looked at the clock, and since when it has done so without a gap.
    last_tick: Cell<Instant>,
    awake_since: Cell<Instant>,
}

impl<P: Peer, S: Deref<Target = Session<P>>> Table<P, S> {
    /// No sessions.
    pub fn new(env: Env, lease: Duration) -> Table<P, S> {
        let now = env.now();
        Table {
            env,
            lease,
            table: RefCell::default(),
            connections: RefCell::default(),
            changed: Notify::new(),
            answered: Cell::new(0),
            last_tick: Cell::new(now),
            awake_since: Cell::new(now),
        }
    }

    /// The session of a client.
    pub fn get(&self, client: ClientId) -> Option<Rc<S>> {
        self.table.borrow().get(&client).cloned()
    }

    /// All sessions, by client.
    pub fn all(&self) -> Vec<Rc<S>> {
        self.table.borrow().values().cloned().collect()
    }

    /// Does `which` hold for any session?
    pub fn any(&self, mut which: impl FnMut(&S) -> bool) -> bool {
        self.table.borrow().values().any(|session| which(session))
    }

    /// Hands every session to `f`, by client.
    pub fn each(&self, mut f: impl FnMut(&S)) {
        self.table.borrow().values().for_each(|session| f(session));
    }

    /// Number of sessions.
    pub fn len(&self) -> usize {
        self.table.borrow().len()
    }

    /// Are there no sessions?
    pub fn is_empty(&self) -> bool {
        self.table.borrow().is_empty()
    }

    /// A session begins.
    pub fn begin(&self, session: Rc<S>) {
        self.table.borrow_mut().insert(session.client, session);
    }

    /// All that the client held is free: its session ends.
    pub fn end(&self, client: ClientId) {
        self.table.borrow_mut().remove(&client);
    }

    /// The client has reclaimed and replayed everything.
    pub fn finish_recovery(&self, session: &Session<P>) {
        session.set_state(SessionState::Live);
        self.announce_change();
    }

    /// Wakes those who wait for [`Table::changed`].
    pub fn announce_change(&self) {
        self.changed.notify_all();
    }

    /// Ends when a session has ended or has finished its recovery, or the server stops; it misses
    /// nothing after the call.
    pub fn changed(&self) -> Notified {
        self.changed.notified()
    }

    /// Remembers a new connection, so that the server's end closes it.
    pub fn add_connection(&self, connection: &Rc<Connection>) {
        self.connections.borrow_mut().push(Rc::downgrade(connection));
    }

    /// Forgets connections that have ended.
    pub fn forget_ended_connections(&self) {
        self.connections.borrow_mut().retain(|connection| connection.strong_count() > 0);
    }

    /// Closes the connections of which `which` is true.
    pub fn close_if(&self, which: impl Fn(&Connection) -> bool) {
        let connections = self.connections.borrow().clone();
        for connection in connections.iter().filter_map(Weak::upgrade).filter(|one| which(one)) {
            connection.close();
        }
    }

    /// Closes all connections.
    pub fn close_connections(&self) {
        for connection in self.connections.borrow_mut().drain(..) {
            if let Some(connection) = connection.upgrade() {
                connection.close();
            }
        }
    }

    /// A request has been answered.
    pub fn note_answer(&self) {
        self.answered.set(self.answered.get() + 1);
    }

    /// Number of requests answered.
    pub fn answered(&self) -> u64 {
        self.answered.get()
    }

    /// Since when the server has run without a long stop of its own process.
    pub fn awake_since(&self) -> Instant {
        let now = self.env.now();
        if now.since(self.last_tick.replace(now)) >= self.lease / 2 {
            self.awake_since.set(now);
        }
        self.awake_since.get()
    }

    /// How long a client has been silent. While the server itself was stopped it could not hear
    /// anybody, so that time does not count.
    pub fn silence(&self, session: &Session<P>) -> Duration {
        let awake = self.awake_since();
        self.env.now().since(session.last_heard().max(awake))
    }

    /// Has the client been silent for a lease?
    pub fn is_silent(&self, session: &Session<P>) -> bool {
        self.silence(session) >= self.lease
    }

    /// Checks the invariants of the table.
    pub fn validate(&self) {
        for (client, session) in &*self.table.borrow() {
            assert_eq!(*client, session.client, "a session under another client's number");
            assert_ne!(*client, ClientId(0), "an administrator's tool is in the table");
        }
        assert!(self.awake_since.get() <= self.last_tick.get());
    }
}
