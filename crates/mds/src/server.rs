//! The server's state, and the tasks that keep it.
//!
//! Invariants:
//! - one thread: what is borrowed here is never borrowed across an await;
//! - a store that is poisoned ends the server: a restart recovers.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::{Rc, Weak};

use env::Env;
use env::sync::Notify;
use proto::lease_server::{LeaseTable, Recall};
use proto::lock_server::{LockFree, LockTable};
use proto::mds::{Message, PagInfo, Push};
use store::{Cost, Mfs, StoreError};
use types::{ClientId, Duration, Instant, Lsn, Timestamp, Transno};

use crate::config::Config;
use crate::connection::Connection;
use crate::contention::Contention;
use crate::crowd::{self, Crowd};
use crate::devices::DataDevice;
use crate::evict::{self, Quarantine};
use crate::freer::Freer;
use crate::gate::Gates;
use crate::grace::Grace;
use crate::recall;
use crate::recall::HandOvers;
use crate::recent::Recent;
use crate::scrub::Scrubber;
use crate::session::{Session, State};
use crate::turns::Turns;
use crate::unheard::Unheard;

/// Metadata is short when less than this part of its device is free.
const SHORT_PART: u64 = 16;
/// Pause between rounds of upkeep.
const TICK: Duration = Duration::from_millis(250);
/// Freed runs looked at in one transaction.
const RELEASE: usize = 64;
/// How many such transactions one round makes at most.
const RELEASES: usize = 64;

/// Why the server ended.
#[derive(Clone, Debug)]
pub enum ServeError {
    /// The address cannot be listened on.
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
    /// The world.
    pub env: Env,
    /// The store.
    pub mfs: Mfs,
    /// As configured.
    pub config: Config,
    /// File system and epoch.
    pub identity: store::mfs::Identity,
    /// When it started.
    pub started: Instant,
    /// Where it listens.
    pub address: RefCell<String>,
    /// Leases.
    pub leases: RefCell<LeaseTable>,
    /// Files that several clients use at the same time.
    pub contention: RefCell<Contention>,
    /// Leases to be recalled because there are too many.
    pub crowd: Crowd,
    /// Locks.
    pub locks: RefCell<LockTable>,
    /// Who polls for locks.
    pub turns: Turns,
    /// Gates.
    pub gates: Gates,
    /// Changes that are not durable.
    pub recent: RefCell<Recent>,
    /// Sessions of clients.
    pub sessions: RefCell<BTreeMap<ClientId, Rc<Session>>>,
    /// Connections, also those without a session yet.
    pub connections: RefCell<Vec<Weak<Connection>>>,
    /// Inodes without names.
    pub freer: Freer,
    /// Scrubs of the metadata device.
    pub scrubber: Scrubber,
    /// Evicted clients.
    pub quarantine: Quarantine,
    /// Recovery of clients.
    pub grace: Grace,
    /// What clients may be told of that they do not know.
    pub unheard: Unheard,
    /// Hand-overs of rights on content.
    pub hand_overs: HandOvers,
    /// A right was given up, or a session ended.
    pub lease_events: Notify,
    /// Blocks may have become free.
    pub space_events: Notify,
    /// Data zones as clients are told.
    pub pags: RefCell<Vec<PagInfo>>,
    /// Data zones that this host has.
    pub disks: RefCell<Vec<Rc<DataDevice>>>,
    /// Requests executed.
    pub requests: Cell<u64>,
    /// The server shall end.
    pub stop: Notify,
    /// When it last looked at the clock, and since when it has done so without a gap.
    beat: Cell<Instant>,
    awake: Cell<Instant>,
    failure: RefCell<Option<StoreError>>,
    stopping: Cell<bool>,
    last_time: Cell<Timestamp>,
    last_id: Cell<u64>,
}

impl Server {
    /// A server that serves nothing yet.
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
            crowd: Crowd::default(),
            locks: RefCell::default(),
            turns: Turns::default(),
            gates: Gates::default(),
            recent: RefCell::default(),
            sessions: RefCell::default(),
            connections: RefCell::default(),
            freer: Freer::default(),
            scrubber: Scrubber::default(),
            quarantine: Quarantine::default(),
            grace: Grace::default(),
            unheard: Unheard::default(),
            lease_events: Notify::new(),
            space_events: Notify::new(),
            pags: RefCell::default(),
            disks: RefCell::default(),
            requests: Cell::new(0),
            stop: Notify::new(),
            beat: Cell::new(now),
            awake: Cell::new(now),
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

    /// Tells a client what is asked of it, if it is still there.
    pub fn push_recall(&self, recall: Recall) {
        if let Some(session) = self.session(recall.client) {
            session.push_recall(recall);
        }
    }

    /// Since when it has run without having been stopped for long itself.
    pub fn awake_since(&self) -> Instant {
        let now = self.env.now();
        if now.since(self.beat.replace(now)) >= self.config.lease / 2 {
            self.awake.set(now);
        }
        self.awake.get()
    }

    /// How long a client has said nothing. While the server itself did not run, nobody could be
    /// heard.
    pub fn silence(&self, session: &Session) -> Duration {
        let awake = self.awake_since();
        self.env.now().since(session.heard.get().max(awake))
    }

    /// The time for a change: it never goes back.
    pub fn stamp(&self) -> Timestamp {
        let now = self.env.wall().max(self.last_time.get());
        self.last_time.set(now);
        now
    }

    /// A number that was not used before.
    pub fn next_id(&self) -> u64 {
        self.last_id.set(self.last_id.get() + 1);
        self.last_id.get()
    }

    /// Tells waiters that their locks may be free.
    pub fn tell_lock_free(&self, free: &[LockFree]) {
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
    /// The store's; it is noted.
    pub async fn wait_durable(&self, transno: Transno) -> Result<(), StoreError> {
        if transno <= self.mfs.last_committed() {
            return Ok(());
        }
        let result = self.mfs.wait_durable(transno).await;
        if let Err(error) = &result {
            self.failed(error, "waiting for the log");
        }
        result
    }

    /// How far what the client has seen survived: `seen` itself, or less.
    pub fn survived(&self, seen: Transno) -> Transno {
        if seen == Transno::ZERO {
            return seen;
        }
        let lsn = self.mfs.survived(seen.epoch).unwrap_or(Lsn(0));
        Transno { epoch: seen.epoch, lsn }
    }

    /// The value of background work; a failure is noted.
    pub fn checked<T>(&self, result: Result<T, StoreError>, doing: &str) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.failed(&error, doing);
                None
            }
        }
    }

    /// Notes a failure of the store: damage is logged with its address, poison ends the server.
    pub fn failed(&self, error: &StoreError, doing: &str) {
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

    /// Why the server must end, if it must.
    pub fn failure(&self) -> Option<StoreError> {
        self.failure.borrow().clone()
    }

    /// Is it on its way out?
    pub fn is_stopping(&self) -> bool {
        self.stopping.get() || self.failure.borrow().is_some()
    }

    /// Ends all connections; new ones are refused.
    pub fn begin_stop(&self) {
        self.stopping.set(true);
        for connection in self.connections.borrow_mut().drain(..) {
            if let Some(connection) = connection.upgrade() {
                connection.close();
            }
        }
        self.grace.progress();
        self.freer.stop();
        self.scrubber.stop();
        self.stop.notify_all();
    }

    /// Is so little of the metadata device free that a change may have been refused for it?
    pub fn metadata_is_short(&self) -> bool {
        let usage = self.mfs.usage();
        usage.blocks_free < usage.blocks_set_aside + usage.blocks / SHORT_PART
    }

    /// Makes freed blocks free, as far as their freeing is durable.
    pub async fn release_freed(&self) -> u64 {
        let mut blocks = 0;
        for _ in 0..RELEASES {
            let step = self.mfs.run(Cost::STEP, |txn| txn.release_freed(RELEASE)).await;
            match self.checked(step, "releasing freed blocks") {
                Some((released, _)) if released > 0 => blocks += released,
                _ => break,
            }
        }
        blocks
    }
}

/// Notices when the server has been stopped.
pub async fn beat(server: Rc<Server>) {
    while !server.is_stopping() {
        server.awake_since();
        server.env.sleep(TICK.min(server.config.lease / 8)).await;
    }
}

/// What must be done from time to time.
pub async fn upkeep(server: Rc<Server>) {
    let mut round: u64 = 0;
    loop {
        server.env.sleep(TICK.min(server.config.lease / 4)).await;
        if server.is_stopping() {
            return;
        }
        let durable = server.mfs.last_committed();
        server.recent.borrow_mut().forget(durable);
        tell_committed(&server, durable);
        if server.grace.is_over() {
            server.release_freed().await;
        }
        crowd::relieve(&server);
        let awaited = server.locks.borrow().awaited();
        recall::end_the_late(&server, &awaited).await;
        evict::look_for_locals(&server, round.is_multiple_of(4)).await;
        evict::end_quarantines(&server).await;
        evict::forget_unused(&server).await;
        round += 1;
        if round.is_multiple_of(16) {
            server.connections.borrow_mut().retain(|connection| connection.strong_count() > 0);
        }
    }
}

/// Clients whose changes have become durable without their hearing of it are told.
fn tell_committed(server: &Server, durable: Transno) {
    for session in server.sessions.borrow().values() {
        let waits = session.last.get() > session.told.get() && session.last.get() <= durable;
        if waits && session.state() == State::Live && session.is_connected() {
            session.told.set(durable);
            session.push(Message::Push { push: Push::Committed { transno: durable } });
        }
    }
}
