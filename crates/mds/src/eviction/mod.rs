//! The end of a session: goodbye, eviction, and the quarantine of blocks and files that an evicted
//! client could still write.
//!
//! Invariants:
//! - an eviction is durable before the server gives anything that the client held to others. So is
//!   what the client had written in place, unless a data device does not answer in time. And no
//!   object target takes its writes any more, unless it is away ([`Space::stop_writes_of`]);
//! - a session that is over holds its leases and locks until its eviction is durable, and the
//!   server executes nothing more of it.

mod fence_plan;
mod fencing;
mod local;
mod quarantine;

use std::rc::Rc;

use mfs::{ALL_FILES, Cost, StoreError};
use proto::mds::{Message, Push};
use types::{Bug, ClientId, Ino, Rights, Transno, planted};

pub use self::fencing::FenceState;
use self::fencing::Fencing;
use self::quarantine::Quarantine;
use crate::leases::{Evictor, Leases};
use crate::locks::Locks;
use crate::orphans::Orphans;
use crate::runtime::Runtime;
use crate::sessions::{ClientInfo, Session, SessionState, Sessions};
use crate::space::Space;

/// Files that one transaction freezes.
const FREEZE: usize = 16;
/// Targets that one transaction notes as owing a fence.
const FENCES: usize = 64;

/// A client, and the files that it could write.
type WritableFiles = (ClientId, Vec<Ino>);

/// See the module.
pub struct Evictions {
    runtime: Rc<Runtime>,
    sessions: Rc<Sessions>,
    leases: Rc<Leases>,
    locks: Rc<Locks>,
    orphans: Rc<Orphans>,
    space: Rc<Space>,
    quarantine: Quarantine,
    fencing: Rc<Fencing>,
}

impl Evictions {
    /// Nobody is evicted.
    pub fn new(
        runtime: Rc<Runtime>,
        (sessions, leases, locks): (Rc<Sessions>, Rc<Leases>, Rc<Locks>),
        (orphans, space): (Rc<Orphans>, Rc<Space>),
    ) -> Evictions {
        let quarantine = Quarantine::new(runtime.clone());
        let fencing = Fencing::new(runtime.clone(), sessions.clone());
        Evictions { runtime, sessions, leases, locks, orphans, space, quarantine, fencing }
    }

    /// Do all files count as frozen?
    pub fn is_all_frozen(&self) -> bool {
        self.quarantine.is_all_frozen()
    }

    /// Clients in quarantine.
    pub fn quarantined(&self) -> Vec<ClientId> {
        self.quarantine.clients()
    }

    /// Is the client in quarantine?
    pub fn is_quarantined(&self, client: ClientId) -> bool {
        self.quarantine.contains(client)
    }

    /// A client in quarantine: its description of itself, and how far its fencing is (`None`: no
    /// fence is configured for it).
    pub fn quarantined_client(&self, client: ClientId) -> (String, Option<FenceState>) {
        (self.quarantine.description(client), self.fencing.state(client))
    }

    /// Evicts a client, if it has a session.
    pub async fn evict(&self, client: ClientId, reason: &str) {
        self.evict_all(&[client], reason).await;
    }

    /// Evicts those of `clients` that have a session, all together.
    pub async fn evict_all(&self, clients: &[ClientId], reason: &str) {
        let out = clients.iter().filter_map(|&client| self.end_session(client, reason));
        let (sessions, writable): (Vec<_>, Vec<_>) = out.unzip();
        if !self.quarantine(&writable).await {
            return;
        }
        for session in sessions {
            self.free_holdings(&session);
            self.runtime.log(&format!(
                "client {} has been evicted: its leases and locks are free",
                session.client
            ));
        }
    }

    /// Evicts clients that have not come back after a restart, all together.
    pub async fn evict_absent(&self, absent: &[(ClientId, ClientInfo)]) {
        for (client, info) in absent {
            self.runtime.log(&format!(
                "client {client} ({}) has not come back: it is being evicted",
                info.description
            ));
            self.quarantine.add(*client, self.watches(info), true, &info.description);
        }
        let writable: Vec<_> =
            absent.iter().map(|(client, _)| (*client, vec![ALL_FILES])).collect();
        if self.quarantine(&writable).await {
            for (client, _) in absent {
                self.runtime.log(&format!(
                    "client {client} has been evicted: its leases and locks are free"
                ));
            }
        }
    }

    /// A client leaves: frees all that it held and forgets its number.
    ///
    /// # Errors
    /// The store's.
    pub async fn goodbye(&self, session: &Session) -> Result<Transno, StoreError> {
        session.set_state(SessionState::Over);
        self.free_holdings(session);
        let transno = self.remove_from_store(session.client).await?;
        let (client, description) = (session.client, &session.description);
        self.runtime.log(&format!("client {client} ({description}) has left"));
        Ok(transno)
    }

    /// Space has run out: evicts clients that have been silent for a lease and hold unused blocks,
    /// or have an orphan open.
    pub async fn evict_hoarders(&self) {
        for session in self.sessions.all() {
            if self.sessions.is_silent(&session) && self.space.hoards(session.client).await {
                self.evict(session.client, "it is silent and keeps space that others need").await;
            }
        }
    }

    /// Removes clients that enrolled and went away without a request: their greeting broke off.
    pub async fn remove_unused(&self) {
        for session in self.sessions.all() {
            let unused = !session.known && session.requests() == 0 && !session.is_connected();
            if unused && !session.is_over() && self.sessions.is_silent(&session) {
                let left = self.goodbye(&session).await;
                self.runtime.checked(left, "removing an unused client");
            }
        }
    }

    /// Ends the client's session: the server executes nothing more of it. Returns the session, and
    /// the files that the client could write.
    fn end_session(&self, client: ClientId, reason: &str) -> Option<(Rc<Session>, WritableFiles)> {
        let session = self.sessions.get(client).filter(|session| !session.is_over())?;
        // What it held before the restart is known only once it has reclaimed everything.
        let unknown = session.state() == SessionState::Recovering;
        session.set_state(SessionState::Over);
        let description = &session.description;
        self.runtime.log(&format!("client {client} ({description}) is being evicted: {reason}"));
        session.push(Message::Push { push: Push::Evicted { reason: reason.to_owned() } });
        session.unbind();
        let held = self.leases.table().of_client(client);
        let writable = held.iter().filter(|(_, rights)| rights.intersects(Rights::WRITES));
        let mut writable: Vec<Ino> = writable.map(|(ino, _)| *ino).collect();
        writable.iter().for_each(|&ino| self.leases.forget_contention(ino));
        if unknown {
            writable = vec![ALL_FILES];
        }
        self.quarantine.add(client, session.is_local(), unknown, description);
        Some((session, (client, writable)))
    }

    /// Makes durable that the clients are evicted, which files they could write, and what they have
    /// written.
    async fn quarantine(&self, writable: &[WritableFiles]) -> bool {
        let mut last = Transno::ZERO;
        for (client, files) in writable {
            let Some(transno) = self.record_eviction(*client, files).await else { return false };
            last = last.max(transno);
        }
        let durable = self.runtime.wait_durable(last).await.is_ok();
        if durable && !writable.is_empty() {
            let clients: Vec<ClientId> = writable.iter().map(|(client, _)| *client).collect();
            self.space.stop_writes_of(&clients).await;
            for &client in &clients {
                self.quarantine.set_recorded(client);
                self.begin_fence(client);
            }
        }
        durable
    }

    /// Records in the store that the client is evicted, and which files it could write.
    async fn record_eviction(&self, client: ClientId, files: &[Ino]) -> Option<Transno> {
        let mut parts: Vec<&[Ino]> = files.chunks(FREEZE).collect();
        if parts.is_empty() {
            parts.push(&[]);
        }
        let mut last = Transno::ZERO;
        let targets = self.space.target_ids();
        for part in parts {
            let done = self.runtime.mfs.run(Cost::STEP, |txn| {
                for &ino in part.iter().filter(|_| !planted(Bug::FreezeSkipped)) {
                    txn.space().freeze(client, ino)?;
                }
                txn.space().quarantine(client)
            });
            let ((), transno) = self.runtime.checked(done.await, "evicting a client")?;
            last = last.max(transno);
        }
        for part in targets.chunks(FENCES) {
            let owed = self.runtime.mfs.run(Cost::STEP, |txn| txn.space().owe_fences(client, part));
            let ((), transno) = self.runtime.checked(owed.await, "evicting a client")?;
            last = last.max(transno);
        }
        Some(last)
    }

    /// Frees everything that the session held.
    fn free_holdings(&self, session: &Session) {
        let client = session.client;
        let held = self.leases.drop_client(client);
        self.locks.drop_client(client);
        self.space.placing.end_client(client);
        self.sessions.end(client);
        session.forget_glimpses();
        for (ino, rights) in held {
            if rights.contains(Rights::OPEN) {
                self.orphans.free_if_closed(ino);
            }
        }
        self.leases.announce_end();
        self.sessions.announce_change();
        self.runtime.event_ended();
    }

    /// Frees a client's pool and removes the client from the store.
    async fn remove_from_store(&self, client: ClientId) -> Result<Transno, StoreError> {
        let (mfs, mut last) = (&self.runtime.mfs, Transno::ZERO);
        loop {
            let step = mfs.run(Cost::STEP, |txn| txn.space().release_pool(client)).await?;
            last = last.max(step.1);
            if step.0 {
                break;
            }
        }
        loop {
            let step = mfs.run(Cost::STEP, |txn| txn.space().remove_client(client)).await?;
            last = last.max(step.1);
            if step.0 {
                return Ok(last);
            }
        }
    }

    /// Checks the invariants.
    pub fn validate(&self) {
        self.quarantine.validate();
        for client in self.quarantine.clients() {
            let over = self.sessions.get(client).is_none_or(|session| session.is_over());
            assert!(over, "client {client} is in quarantine and has a session");
        }
    }
}

impl Evictor for Evictions {
    async fn evict_unresponsive(&self, clients: &[ClientId]) -> bool {
        let mut ended = false;
        for &client in clients {
            let Some(session) = self.sessions.get(client) else { continue };
            if session.is_over() {
                continue;
            }
            let silent = self.sessions.silence(&session);
            if silent >= self.runtime.config.lease {
                let text = format!("silent for {} ms while others waited", silent.as_millis());
                self.evict(client, &text).await;
                ended = true;
            } else if !session.is_connected() && self.is_proven_dead(&session).await {
                self.evict(client, "its process has ended").await;
                ended = true;
            }
        }
        ended
    }
}
