//! The sessions of a target's clients, and how they end.
//!
//! | a client | what happens |
//! |---|---|
//! | says goodbye | it is forgotten, with its kept replies |
//! | is silent for a lease | the same. It holds nothing that others wait for; what it has written stays |
//! | has not come back a lease after a restart | the same |
//! | comes back later with its number | its session is refused as evicted; it begins a new one |
//!
//! Forgetting costs a client only what this start of the server never got from it: answered writes
//! that an earlier start had not made durable.
//!
//! Invariants:
//! - a known client is absent, or has a session, or is being forgotten;
//! - a client is forgotten when it has no request in flight: none keeps a reply of it afterwards;
//! - free blocks are kept for clients with a session only.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::rc::Rc;

use engine::cost::Cost;
use engine::error::StoreError;
use env::sync::{Notify, Semaphore};
use proto::message::Message;
use proto::ost::{IO_BLOCKS_MAX, Ost, Push};
use proto::wire::{Appended, Wire};
use proto::{Reader, wire_struct};
use session::server::recovery::decision::ServerKnowledge;
use session::server::{SessionIdentity, SessionState, Table};
use types::limits::BLOCK;
use types::{ClientId, Fault, Instant, Transno};

use super::runtime::Runtime;

/// Clients that one transaction reads.
const LOADED: usize = 16;
/// Bytes of reads of a session whose answers have not left.
const READ_MAX: usize = 8 << 20;
const _: () = assert!(IO_BLOCKS_MAX as usize * BLOCK <= READ_MAX);

wire_struct! {
    /// What the store keeps of a client, beside its kept replies.
    #[derive(Default)]
    pub struct ClientInfo {
        /// Random number of the client's process.
        pub nonce: u64,
        /// Name of its node, by its key; empty if it had none.
        pub node: String,
        /// Description of the client for administrators.
        pub description: String,
        /// It is a metadata server; older records do not say so.
        pub serves: Appended<bool>,
    }
}

/// A client's session, with what a target keeps there beside.
pub struct Session {
    common: session::server::Session<Ost>,
    /// It is a metadata server's.
    pub serves: bool,
    /// Bytes of reads whose answers have not left: so many at most.
    pub read: Semaphore,
    in_flight: Cell<usize>,
    idle: Notify,
}

impl Deref for Session {
    type Target = session::server::Session<Ost>;

    fn deref(&self) -> &Self::Target {
        &self.common
    }
}

/// A request of a session in flight.
pub struct Busy(Rc<Session>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.in_flight.set(self.0.in_flight.get() - 1);
        self.0.idle.notify_all();
    }
}

impl Session {
    /// A session without a connection.
    pub fn new(
        identity: SessionIdentity,
        (state, known, serves): (SessionState, bool, bool),
        now: Instant,
    ) -> Session {
        let common = session::server::Session::new(identity, state, known, now);
        let read = Semaphore::new(READ_MAX);
        Session { common, serves, read, in_flight: Cell::new(0), idle: Notify::new() }
    }

    /// A request is in flight until the value is dropped.
    pub fn begin(self: &Rc<Session>) -> Busy {
        self.in_flight.set(self.in_flight.get() + 1);
        Busy(self.clone())
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.get()
    }

    /// Waits until at most `left` requests are in flight.
    async fn idle(&self, left: usize) {
        loop {
            let idle = self.idle.notified();
            if self.in_flight.get() <= left {
                return;
            }
            idle.await;
        }
    }
}

/// See the module.
pub struct Sessions {
    runtime: Rc<Runtime>,
    table: Table<Ost, Session>,
    /// Clients from before the restart that have not come back yet.
    absent: RefCell<BTreeMap<ClientId, ClientInfo>>,
    /// Notified when no client but metadata servers may repeat anything any more.
    settled: Notify,
}

impl Deref for Sessions {
    type Target = Table<Ost, Session>;

    fn deref(&self) -> &Self::Target {
        &self.table
    }
}

impl Sessions {
    /// No sessions.
    pub fn new(runtime: Rc<Runtime>) -> Sessions {
        let table = Table::new(runtime.env.clone(), runtime.config.lease);
        Sessions { runtime, table, absent: RefCell::default(), settled: Notify::new() }
    }

    /// Reads the known clients from the store.
    ///
    /// # Errors
    /// The store's.
    pub async fn load(&self) -> Result<(), StoreError> {
        let mut known: BTreeMap<ClientId, ClientInfo> = BTreeMap::new();
        loop {
            let next = known.last_key_value().map_or(ClientId(0), |(last, _)| ClientId(last.0 + 1));
            let engine = self.runtime.engine();
            let (part, _) = engine.run(Cost::READ, |txn| txn.clients_from(next, LOADED)).await?;
            if part.is_empty() {
                break;
            }
            // Who has left bytes that are no description cannot come back: no nonce is 0.
            let decode =
                |bytes: &[u8]| ClientInfo::get(&mut Reader::new(bytes)).unwrap_or_default();
            known.extend(part.into_iter().map(|(client, info)| (client, decode(&info))));
        }
        if !known.is_empty() {
            self.runtime.log(&format!("{} known clients may come back", known.len()));
        }
        *self.absent.borrow_mut() = known;
        Ok(())
    }

    /// What the server knows of a client's number, and the process and its node to which it has
    /// given it.
    pub fn knowledge(&self, client: ClientId) -> (ServerKnowledge, Option<(u64, String)>) {
        if let Some(session) = self.get(client) {
            let knowledge = match session.state() {
                SessionState::Live => ServerKnowledge::Live,
                SessionState::Recovering => ServerKnowledge::Recovering,
                SessionState::Over => ServerKnowledge::Over,
            };
            return (knowledge, Some((session.nonce, session.who().node().to_owned())));
        }
        match self.absent.borrow().get(&client) {
            Some(info) => (ServerKnowledge::Absent, Some((info.nonce, info.node.clone()))),
            None => (ServerKnowledge::Unknown, None),
        }
    }

    /// An absent client has come back; false if it is absent no longer.
    pub fn has_come_back(&self, client: ClientId) -> bool {
        self.absent.borrow_mut().remove(&client).is_some()
    }

    /// Clients from before the restart that have not come back.
    pub fn absent(&self) -> usize {
        self.absent.borrow().len()
    }

    /// May clients still repeat what they did before the restart?
    pub fn recovers(&self) -> bool {
        self.absent() > 0 || self.any(|session| session.state() == SessionState::Recovering)
    }

    /// May clients, other than metadata servers, still repeat what they did before the restart?
    pub fn clients_recover(&self) -> bool {
        let absent = self.absent.borrow().values().any(|info| info.serves.0 != Some(true));
        absent || self.any(|session| !session.serves && session.state() == SessionState::Recovering)
    }

    /// Waits until no client may repeat anything any more, metadata servers aside.
    pub async fn recovered(&self) {
        loop {
            let settled = self.settled.notified();
            if !self.clients_recover() || self.runtime.is_stopping() {
                return;
            }
            settled.await;
        }
    }

    /// Wakes those who wait for the end of the recovery, if it has ended.
    pub fn look_whether_settled(&self) {
        if !self.clients_recover() {
            self.settled.notify_all();
        }
    }

    /// Notifies quiet clients whose changes have become durable.
    pub fn push_committed(&self) {
        let transno = self.runtime.last_committed();
        self.each(|session| {
            if session.learns_durable(transno) {
                session.push(Message::Push { push: Push::Committed { transno } });
            }
        });
    }

    /// A client leaves, in a request that is in flight. Yields the transaction that forgot it.
    ///
    /// # Errors
    /// `Io`.
    pub async fn goodbye(&self, session: &Rc<Session>) -> Result<Transno, Fault> {
        session.set_state(SessionState::Over);
        session.idle(1).await;
        let forgotten = self.forget(session.client).await;
        self.end(session.client);
        let (client, description) = (session.client, &session.description);
        self.runtime.log(&format!("client {client} ({description}) has left"));
        forgotten
    }

    /// Forgets the clients that have been silent for a lease.
    pub async fn forget_silent(&self) {
        for session in self.all() {
            let silent = self.is_silent(&session) && session.in_flight() == 0;
            if !silent || session.is_over() {
                continue;
            }
            session.set_state(SessionState::Over);
            let (client, description) = (session.client, &session.description);
            let secs = self.runtime.config.lease.as_secs();
            let reason = format!("it was silent for {secs} s");
            self.runtime.log(&format!("client {client} ({description}) is forgotten: {reason}"));
            session.push(Message::Push { push: Push::Evicted { reason } });
            session.unbind();
            // A failure was logged, and ends the server if the store has failed.
            let _ = self.forget(client).await;
            self.end(client);
        }
    }

    /// Forgets the clients that have not come back within a lease after the restart.
    pub async fn forget_absent(&self) {
        let waited = self.runtime.env.now().since(self.runtime.started.max(self.awake_since()));
        if self.absent() == 0 || waited < self.runtime.config.lease {
            return;
        }
        let absent = std::mem::take(&mut *self.absent.borrow_mut());
        for (client, info) in absent {
            let description = info.description;
            self.runtime.log(&format!(
                "client {client} ({description}) has not come back, and is forgotten: what it had \
                 written and not made durable before the restart is lost"
            ));
            let _ = self.forget(client).await;
        }
    }

    /// Removes a client and its kept replies from the store.
    async fn forget(&self, client: ClientId) -> Result<Transno, Fault> {
        self.runtime.store.forget_promise(client);
        let mut last = Transno::ZERO;
        loop {
            let step = self.runtime.engine().run(Cost::STEP, |txn| txn.drop_client(client)).await;
            let (done, transno) =
                step.map_err(|error| self.runtime.fault_of(&error, "forgetting a client"))?;
            last = last.max(transno);
            if done {
                return Ok(last);
            }
        }
    }

    /// Checks the invariants.
    pub fn validate(&self) {
        let durable = self.runtime.last_committed();
        self.each(|session| {
            session.validate(durable);
            let absent = self.absent.borrow().contains_key(&session.client);
            assert!(!absent, "client {} is absent and here", session.client);
        });
        self.table.validate();
        self.runtime.store.validate(|client| self.get(client).is_some());
    }
}
