//! The server's state, and the tasks that maintain it.
//!
//! Invariants:
//! - there is one thread: no borrow of this state is held across an await;
//! - a poisoned store ends the server: a restart recovers.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::{Rc, Weak};

use env::Env;
use env::sync::Notify;
use mfs::{Cost, Mfs, StoreError};
use proto::lease_server::{LeaseTable, Recall};
use proto::lock_server::{LockFree, LockTable};
use proto::mds::{Message, PagInfo, Push};
use types::{ClientId, Duration, Instant, Lsn, Timestamp, Transno};

use crate::config::Config;
use crate::connection::Connection;
use crate::contention::Contention;
use crate::devices::DataDevice;
use crate::evict::{self, Quarantine};
use crate::gate::Gates;
use crate::grace::Grace;
use crate::lease_pressure::{self, LeasePressure};
use crate::lock_fairness::LockFairness;
use crate::reaper::OrphanReaper;
use crate::recall;
use crate::recall::HandOvers;
use crate::scrub::Scrubber;
use crate::session::{Session, SessionState};
use crate::unacknowledged::UnacknowledgedOpens;
use crate::uncommitted::UncommittedChanges;

/// Metadata space is short when less than one part in this many of its device is free.
const SHORT_FRACTION: u64 = 16;
/// Pause between two rounds of upkeep.
const TICK: Duration = Duration::from_millis(250);
/// Freed runs that one transaction looks at.
const RELEASE_RUNS: usize = 64;
/// How many such transactions one round runs at most.
const RELEASE_ROUNDS: usize = 64;

/// Why the server ended.
#[derive(Clone, Debug)]
pub enum ServeError {
    /// The server cannot listen on its address.
    Listen(String),
    /// A data device is not what the configuration says.
    Device(String),
    /// The metadata store failed.
    Store(StoreError),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServeError::Listen(text) | ServeError::Device(text) => f.write_str(text),
            ServeError::Store(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for ServeError {}

impl From<StoreError> for ServeError {
    fn from(error: StoreError) -> ServeError {
        ServeError::Store(error)
    }
}

/// See the module.
pub struct Server {
    /// Clock, network, devices and tasks, real or simulated.
    pub env: Env,
    /// The store.
    pub mfs: Mfs,
    /// The configuration.
    pub config: Config,
    /// Name and UUID of the file system, and the epoch of this start.
    pub identity: mfs::Identity,
    /// When the server started.
    pub started: Instant,
    /// The address it listens on.
    pub address: RefCell<String>,
    /// Leases.
    pub leases: RefCell<LeaseTable>,
    /// Files that several clients use at the same time.
    pub contention: RefCell<Contention>,
    /// Leases to recall because there are too many.
    pub lease_pressure: LeasePressure,
    /// Locks.
    pub locks: RefCell<LockTable>,
    /// Lock owners that poll without success, and who must give way to them.
    pub lock_fairness: LockFairness,
    /// Gates.
    pub gates: Gates,
    /// Changes that are not durable yet.
    pub uncommitted: RefCell<UncommittedChanges>,
    /// Sessions of clients.
    pub sessions: RefCell<BTreeMap<ClientId, Rc<Session>>>,
    /// Connections, including those without a session yet.
    pub connections: RefCell<Vec<Weak<Connection>>>,
    /// Orphans.
    pub reaper: OrphanReaper,
    /// Scrubs of the metadata device.
    pub scrubber: Scrubber,
    /// Evicted clients.
    pub quarantine: Quarantine,
    /// The grace period after a restart.
    pub grace: Grace,
    /// Opens that clients may not know of, because the server that granted them died first.
    pub unacknowledged: UnacknowledgedOpens,
    /// Counts hand-overs of rights on content.
    pub hand_overs: HandOvers,
    /// Notified when a client gives up a right, or a session ends.
    pub lease_events: Notify,
    /// Notified when blocks may have become free.
    pub space_events: Notify,
    /// Data zones as reported to clients.
    pub pags: RefCell<Vec<PagInfo>>,
    /// Data devices that this host has.
    pub disks: RefCell<Vec<Rc<DataDevice>>>,
    /// Number of requests executed.
    pub requests: Cell<u64>,
    /// Notified when the server has to end.
    pub stop: Notify,
    /// When the server last looked at the clock, and since when it has done so without a gap.
    last_tick: Cell<Instant>,
    awake_since: Cell<Instant>,
    failure: RefCell<Option<StoreError>>,
    stopping: Cell<bool>,
    last_time: Cell<Timestamp>,
    last_id: Cell<u64>,
}

impl Server {
    /// A server that does not serve yet.
    pub fn new(env: Env, mfs: Mfs, config: Config) -> Server {
        let identity = mfs.identity();
        let now = env.now();
        Server {
            started: now,
            leases: RefCell::new(LeaseTable::new(identity.epoch)),
            env,
            mfs,
            config,
            identity,
            address: RefCell::default(),
            contention: RefCell::default(),
            hand_overs: HandOvers::default(),
            lease_pressure: LeasePressure::default(),
            locks: RefCell::default(),
            lock_fairness: LockFairness::default(),
            gates: Gates::default(),
            uncommitted: RefCell::default(),
            sessions: RefCell::default(),
            connections: RefCell::default(),
            reaper: OrphanReaper::default(),
            scrubber: Scrubber::default(),
            quarantine: Quarantine::default(),
            grace: Grace::default(),
            unacknowledged: UnacknowledgedOpens::default(),
            lease_events: Notify::new(),
            space_events: Notify::new(),
            pags: RefCell::default(),
            disks: RefCell::default(),
            requests: Cell::new(0),
            stop: Notify::new(),
            last_tick: Cell::new(now),
            awake_since: Cell::new(now),
            failure: RefCell::default(),
            stopping: Cell::new(false),
            last_time: Cell::default(),
            last_id: Cell::new(0),
        }
    }

    /// Writes a line to the log.
    pub fn log(&self, text: &str) {
        (self.config.log)(text);
    }

    /// The session of a client.
    pub fn session(&self, client: ClientId) -> Option<Rc<Session>> {
        self.sessions.borrow().get(&client).cloned()
    }

    /// Sends a recall to its client, if that client still has a session.
    pub fn push_recall(&self, recall: Recall) {
        if let Some(session) = self.session(recall.client) {
            session.push_recall(recall);
        }
    }

    /// Since when the server has run without a long stop of its own process.
    pub fn awake_since(&self) -> Instant {
        let now = self.env.now();
        if now.since(self.last_tick.replace(now)) >= self.config.lease / 2 {
            self.awake_since.set(now);
        }
        self.awake_since.get()
    }

    /// How long a client has been silent. While the server itself was stopped it could not hear
    /// anybody, so that time does not count.
    pub fn silence(&self, session: &Session) -> Duration {
        let awake = self.awake_since();
        self.env.now().since(session.last_heard.get().max(awake))
    }

    /// The timestamp for a change; it never goes back.
    pub fn stamp(&self) -> Timestamp {
        let now = self.env.wall().max(self.last_time.get());
        self.last_time.set(now);
        now
    }

    /// A number that this server has not used before.
    pub fn next_id(&self) -> u64 {
        self.last_id.set(self.last_id.get() + 1);
        self.last_id.get()
    }

    /// Notifies waiting clients that their locks may be free.
    pub fn push_lock_free(&self, free: &[LockFree]) {
        for LockFree { to, ino } in free {
            if let Some(session) = self.session(to.client) {
                let push = Push::LockFree { ino: *ino, owner: to.owner };
                session.push(Message::Push { push });
            }
        }
    }

    /// Waits until a transaction is durable.
    ///
    /// # Errors
    /// The store's; it has been logged.
    pub async fn wait_durable(&self, transno: Transno) -> Result<(), StoreError> {
        if transno <= self.mfs.last_committed() {
            return Ok(());
        }
        let result = self.mfs.wait_durable(transno).await;
        if let Err(error) = &result {
            self.note_failure(error, "waiting for the log");
        }
        result
    }

    /// The last transaction that survived of those the client has seen: `seen` itself, or an
    /// earlier one.
    pub fn survived(&self, seen: Transno) -> Transno {
        if seen == Transno::ZERO {
            return seen;
        }
        let lsn = self.mfs.survived(seen.epoch).unwrap_or(Lsn(0));
        Transno { epoch: seen.epoch, lsn }
    }

    /// The value of a background task's result; logs a failure.
    pub fn checked<T>(&self, result: Result<T, StoreError>, doing: &str) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.note_failure(&error, doing);
                None
            }
        }
    }

    /// Handles a failure of the store: logs damage with its address, and ends the server if the
    /// store is poisoned.
    pub fn note_failure(&self, error: &StoreError, doing: &str) {
        match error {
            StoreError::Fault(_) => {}
            StoreError::Poisoned(_) => {
                if !self.stopping.get() && self.failure.borrow().is_none() {
                    self.log(&format!("{doing}: {error}"));
                    *self.failure.borrow_mut() = Some(error.clone());
                    self.stop.notify_all();
                }
            }
            _ => self.log(&format!("{doing}: {error}")),
        }
    }

    /// The failure that ends the server, if there is one.
    pub fn failure(&self) -> Option<StoreError> {
        self.failure.borrow().clone()
    }

    /// Is the server stopping?
    pub fn is_stopping(&self) -> bool {
        self.stopping.get() || self.failure.borrow().is_some()
    }

    /// Closes all connections and refuses new ones.
    pub fn begin_stop(&self) {
        self.stopping.set(true);
        for connection in self.connections.borrow_mut().drain(..) {
            if let Some(connection) = connection.upgrade() {
                connection.close();
            }
        }
        self.grace.progress();
        self.reaper.stop();
        self.scrubber.stop();
        self.stop.notify_all();
    }

    /// Is so little of the metadata device free that a change may have failed for it?
    pub fn metadata_is_short(&self) -> bool {
        let usage = self.mfs.usage();
        usage.blocks_free < usage.blocks_set_aside + usage.blocks / SHORT_FRACTION
    }

    /// Makes freed blocks reusable, as far as their freeing is durable. Returns their number.
    pub async fn release_freed(&self) -> u64 {
        let mut blocks = 0;
        for _ in 0..RELEASE_ROUNDS {
            let step = self.mfs.run(Cost::STEP, |txn| txn.release_freed(RELEASE_RUNS)).await;
            match self.checked(step, "releasing freed blocks") {
                Some((released, _)) if released > 0 => blocks += released,
                _ => break,
            }
        }
        blocks
    }
}

/// Watches the clock, to notice when the server's process was stopped.
pub async fn watch_clock(server: Rc<Server>) {
    while !server.is_stopping() {
        server.awake_since();
        server.env.sleep(TICK.min(server.config.lease / 8)).await;
    }
}

/// The periodic work of the server.
pub async fn upkeep(server: Rc<Server>) {
    let mut round: u64 = 0;
    loop {
        server.env.sleep(TICK.min(server.config.lease / 4)).await;
        if server.is_stopping() {
            return;
        }
        let durable = server.mfs.last_committed();
        server.uncommitted.borrow_mut().forget(durable);
        push_committed(&server, durable);
        if server.grace.is_over() {
            server.release_freed().await;
        }
        lease_pressure::relieve(&server);
        let awaited = server.locks.borrow().awaited();
        recall::evict_unresponsive(&server, &awaited).await;
        evict::detect_local_clients(&server, round.is_multiple_of(4)).await;
        evict::end_quarantines(&server).await;
        evict::remove_unused(&server).await;
        round += 1;
        if round.is_multiple_of(16) {
            server.connections.borrow_mut().retain(|connection| connection.strong_count() > 0);
        }
    }
}

/// Notifies clients whose changes have become durable since their last answer.
fn push_committed(server: &Server, durable: Transno) {
    for session in server.sessions.borrow().values() {
        let waits = session.last_transno.get() > session.known_durable.get()
            && session.last_transno.get() <= durable;
        if waits && session.state() == SessionState::Live && session.is_connected() {
            session.known_durable.set(durable);
            session.push(Message::Push { push: Push::Committed { transno: durable } });
        }
    }
}
