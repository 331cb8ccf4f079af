//! The sessions of clients and their connections, and who has been silent for how long.
//!
//! Invariants:
//! - a client has at most one session. The session is in the table from its beginning until all
//!   that the client held is free, even if it is over before;
//! - an administrator's tool (client 0) has a session of its own that is not in the table;
//! - while the server's own process was stopped, no client counts as silent.

mod client_info;
mod connection;
mod session;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use env::sync::{Notified, Notify};
use proto::lease_server::Recall;
use proto::lock_server::LockFree;
use proto::mds::{Message, Push};
use types::{ClientId, Duration, Instant, Transno};

pub use self::client_info::ClientInfo;
pub use self::connection::{Connection, receive, write};
pub use self::session::{Admission, Session, SessionIdentity, SessionState};
use crate::runtime::Runtime;

/// Longest pause between two looks at the clock.
const CLOCK_INTERVAL: Duration = Duration::from_millis(250);

/// See the module.
pub struct Sessions {
    runtime: Rc<Runtime>,
    table: RefCell<BTreeMap<ClientId, Rc<Session>>>,
    /// Connections, including those without a session yet.
    connections: RefCell<Vec<Weak<Connection>>>,
    /// Notified when a session has ended, when the last one has finished its recovery, and when the
    /// server stops.
    changed: Notify,
    /// The address at which clients find the server.
    address: RefCell<String>,
    /// Number of requests answered.
    answered: Cell<u64>,
    /// When the server last looked at the clock, and since when it has done so without a gap.
    last_tick: Cell<Instant>,
    awake_since: Cell<Instant>,
}

impl Sessions {
    /// No sessions.
    pub fn new(runtime: Rc<Runtime>) -> Sessions {
        let now = runtime.env.now();
        Sessions {
            runtime,
            table: RefCell::default(),
            connections: RefCell::default(),
            changed: Notify::new(),
            address: RefCell::default(),
            answered: Cell::new(0),
            last_tick: Cell::new(now),
            awake_since: Cell::new(now),
        }
    }

    /// The address at which clients find the server; empty before it listens.
    pub fn address(&self) -> String {
        self.address.borrow().clone()
    }

    /// The server listens at `address` now.
    pub fn set_address(&self, address: String) {
        *self.address.borrow_mut() = address;
    }

    /// The session of a client.
    pub fn get(&self, client: ClientId) -> Option<Rc<Session>> {
        self.table.borrow().get(&client).cloned()
    }

    /// All sessions, by client.
    pub fn all(&self) -> Vec<Rc<Session>> {
        self.table.borrow().values().cloned().collect()
    }

    /// Does `which` hold for any session?
    pub fn any(&self, mut which: impl FnMut(&Session) -> bool) -> bool {
        self.table.borrow().values().any(|session| which(session))
    }

    /// Number of sessions.
    pub fn len(&self) -> usize {
        self.table.borrow().len()
    }

    /// A session begins.
    pub fn begin(&self, session: Rc<Session>) {
        self.table.borrow_mut().insert(session.client, session);
    }

    /// All that the client held is free: its session ends.
    pub fn end(&self, client: ClientId) {
        self.table.borrow_mut().remove(&client);
    }

    /// Wakes those who wait for [`Sessions::changed`].
    pub fn announce_change(&self) {
        self.changed.notify_all();
    }

    /// Ends when a session has ended, the last one has finished its recovery, or the server stops;
    /// it misses nothing after the call.
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

    /// Sends a recall to its client, if that client still has a session.
    pub fn push_recall(&self, recall: Recall) {
        if let Some(session) = self.get(recall.client) {
            session.push_recall(recall);
        }
    }

    /// Notifies waiting clients that their locks may be free.
    pub fn push_lock_free(&self, free: &[LockFree]) {
        for LockFree { to, ino } in free {
            if let Some(session) = self.get(to.client) {
                let push = Push::LockFree { ino: *ino, owner: to.owner };
                session.push(Message::Push { push });
            }
        }
    }

    /// Notifies clients whose changes have become durable since their last answer.
    pub fn push_committed(&self, durable: Transno) {
        for session in self.table.borrow().values() {
            session.push_committed(durable);
        }
    }

    /// Since when the server has run without a long stop of its own process.
    pub fn awake_since(&self) -> Instant {
        let now = self.runtime.env.now();
        if now.since(self.last_tick.replace(now)) >= self.runtime.config.lease / 2 {
            self.awake_since.set(now);
        }
        self.awake_since.get()
    }

    /// How long a client has been silent. While the server itself was stopped it could not hear
    /// anybody, so that time does not count.
    pub fn silence(&self, session: &Session) -> Duration {
        let awake = self.awake_since();
        self.runtime.env.now().since(session.last_heard().max(awake))
    }

    /// Has the client been silent for a lease?
    pub fn is_silent(&self, session: &Session) -> bool {
        self.silence(session) >= self.runtime.config.lease
    }

    /// Watches the clock, to notice when the server's process was stopped.
    pub async fn watch_clock(self: Rc<Sessions>) {
        let runtime = self.runtime.clone();
        while !runtime.is_stopping() {
            self.awake_since();
            runtime.env.sleep(CLOCK_INTERVAL.min(runtime.config.lease / 8)).await;
        }
    }

    /// Checks the invariants.
    pub fn validate(&self) {
        let durable = self.runtime.mfs.last_committed();
        for (client, session) in &*self.table.borrow() {
            assert_eq!(*client, session.client, "a session under another client's number");
            assert_ne!(*client, ClientId(0), "an administrator's tool is in the table");
            session.validate(durable);
        }
        assert!(self.awake_since.get() <= self.last_tick.get());
    }
}
