//! Recovery after a restart: greeting, grace, reclaim, replay.
//!
//! 1. [`Recovery::load`] reads the clients that were there before, and takes up their quarantines;
//! 2. a client *greets* (`greeting`): it gets a number, goes on, or recovers (the
//!    table in [`session::server::recovery::decision`]);
//! 3. it *reclaims* the leases and locks that it holds (`reclaim`), and *replays* the requests
//!    whose results were not durable ([`session::server::recovery::replay`], `kept_results`);
//! 4. what its unanswered requests may have opened counts as open (`unacknowledged`);
//! 5. when nobody need be waited for, those that have not come back are evicted, and the service
//!    begins (`grace`).
//!
//! Invariants:
//! - a known client is absent, or has a session, or is evicted;
//! - until grace ends, the server executes only what recovering clients reclaim and replay;
//! - once it has ended, no client is absent, and no session is recovering.

mod grace;
mod greeting;
pub mod kept_results;
mod reclaim;
mod unacknowledged;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use env::sync::Notify;
use mfs::{Cost, StoreError};
use session::server::recovery::decision::ServerKnowledge;
use types::{ClientId, Ino};

use crate::eviction::Evictions;
use crate::leases::Leases;
use crate::locks::Locks;
use crate::orphans::Orphans;
use crate::runtime::Runtime;
use crate::sessions::{ClientInfo, Session, SessionState, Sessions};
use crate::space::Space;

/// Clients that one transaction reads.
const LOADED: usize = 16;

/// See the module.
pub struct Recovery {
    runtime: Rc<Runtime>,
    sessions: Rc<Sessions>,
    leases: Rc<Leases>,
    locks: Rc<Locks>,
    orphans: Rc<Orphans>,
    space: Rc<Space>,
    evictions: Rc<Evictions>,
    /// Known clients that have not connected yet.
    absent: RefCell<BTreeMap<ClientId, ClientInfo>>,
    /// Known clients that have connected, and have not said that they are done.
    recovering: RefCell<BTreeSet<ClientId>>,
    /// Inodes that count as open by a client until that client has been asked.
    presumed_open: RefCell<Vec<(ClientId, Ino)>>,
    /// Grace is over.
    over: Cell<bool>,
    ended: Notify,
}

impl Recovery {
    /// Nothing is known yet; grace lasts.
    pub fn new(
        runtime: Rc<Runtime>,
        (sessions, leases, locks): (Rc<Sessions>, Rc<Leases>, Rc<Locks>),
        (orphans, space, evictions): (Rc<Orphans>, Rc<Space>, Rc<Evictions>),
    ) -> Recovery {
        Recovery {
            runtime,
            sessions,
            leases,
            locks,
            orphans,
            space,
            evictions,
            absent: RefCell::default(),
            recovering: RefCell::default(),
            presumed_open: RefCell::default(),
            over: Cell::new(false),
            ended: Notify::new(),
        }
    }

    /// Reads the known clients from the store, and takes up their quarantines.
    ///
    /// # Errors
    /// The store's.
    pub async fn load(&self) -> Result<(), StoreError> {
        let mfs = &self.runtime.mfs;
        let mut known: BTreeMap<ClientId, ClientInfo> = BTreeMap::new();
        loop {
            let next = known.last_key_value().map_or(ClientId(0), |(last, _)| ClientId(last.0 + 1));
            // A transaction that misses a block starts over: few clients at a time.
            let (part, _) = mfs.run(Cost::READ, |txn| txn.clients_from(next, LOADED)).await?;
            if part.is_empty() {
                break;
            }
            known.extend(part.into_iter().map(|(at, info)| (at, ClientInfo::decode(&info))));
        }
        self.evictions.resume_quarantines(&known).await?;
        for client in self.evictions.quarantined() {
            known.remove(&client);
            self.runtime.log(&format!("client {client} has been evicted, before the restart"));
        }
        if !known.is_empty() {
            self.runtime.log(&format!("waiting for {} known clients to come back", known.len()));
            mfs.run(Cost::READ, |txn| {
                txn.names().begin_replays();
                Ok(())
            })
            .await?;
        }
        *self.absent.borrow_mut() = known;
        Ok(())
    }

    /// Is grace over?
    pub fn is_over(&self) -> bool {
        self.over.get()
    }

    /// Waits for the end of grace.
    pub async fn ended(&self) {
        while !self.over.get() {
            let ended = self.ended.notified();
            if self.over.get() {
                return;
            }
            ended.await;
        }
    }

    /// What the server knows of a client's number, and the process and its node to which it has
    /// given it.
    fn knowledge(&self, client: ClientId) -> (ServerKnowledge, Option<(u64, String)>) {
        if let Some(session) = self.sessions.get(client) {
            let knowledge = match session.state() {
                SessionState::Live => ServerKnowledge::Live,
                SessionState::Recovering => ServerKnowledge::Recovering,
                SessionState::Over => ServerKnowledge::Over,
            };
            return (knowledge, Some((session.nonce, session.who().node().to_owned())));
        }
        match self.absent.borrow().get(&client) {
            Some(info) => (ServerKnowledge::Absent, Some((info.nonce, info.node.clone()))),
            None if self.evictions.is_quarantined(client) => (ServerKnowledge::Quarantined, None),
            None => (ServerKnowledge::Unknown, None),
        }
    }

    /// Checks the invariants.
    pub fn validate(&self) {
        let absent = self.absent.borrow();
        for client in absent.keys() {
            assert!(self.sessions.get(*client).is_none(), "client {client} is absent and here");
            assert!(
                !self.evictions.is_quarantined(*client),
                "client {client} is absent and evicted"
            );
        }
        let recovers = |s: &Session| s.state() == SessionState::Recovering;
        let listed = |s: &Session| self.recovering.borrow().contains(&s.client);
        let unlisted = self.sessions.any(|s| recovers(s) && !listed(s));
        assert!(!unlisted, "a client recovers, and grace does not wait for it");
        if self.over.get() {
            assert!(absent.is_empty(), "grace is over, and clients are absent");
            assert!(!self.sessions.any(recovers), "grace is over, and a client recovers");
        }
        assert_eq!(self.over.get(), self.orphans.is_allowed(), "orphans are freed after grace");
    }
}
