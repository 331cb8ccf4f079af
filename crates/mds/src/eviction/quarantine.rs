//! The quarantine of evicted clients whose writes may still arrive.
//!
//! Invariants:
//! - until an evicted client's writes have certainly ended, the server freezes the files that it
//!   could write and does not reuse their blocks or its pool. [`quarantine_ends`] says when they
//!   have ended. By then what it wrote late is stable, too;
//! - the server keeps a client's number until its quarantine has ended, so a restart goes on with
//!   the quarantine.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use mfs::{ALL_FILES, Cost, StoreError, Txn};
use types::{Bug, ClientId, Duration, Ino, Instant, planted};

use super::fence_plan::{Known, quarantine_ends};
use super::{Evictions, FREEZE};
use crate::runtime::Runtime;
use crate::sessions::ClientInfo;
use crate::space::SETTLING;

struct QuarantinedClient {
    until: Instant,
    local: bool,
    /// Which files it could write is unknown.
    all_files: bool,
    /// The eviction is durable in the store.
    recorded: bool,
    /// The client's description of itself.
    description: String,
}

/// Clients in quarantine.
pub struct Quarantine {
    runtime: Rc<Runtime>,
    clients: RefCell<BTreeMap<ClientId, QuarantinedClient>>,
}

impl Quarantine {
    /// Nobody is in quarantine.
    pub fn new(runtime: Rc<Runtime>) -> Quarantine {
        Quarantine { runtime, clients: RefCell::default() }
    }

    /// Do all files count as frozen?
    pub fn is_all_frozen(&self) -> bool {
        self.clients.borrow().values().any(|evicted| evicted.all_files)
    }

    /// Clients in quarantine.
    pub fn clients(&self) -> Vec<ClientId> {
        self.clients.borrow().keys().copied().collect()
    }

    /// Is the client in quarantine?
    pub fn contains(&self, client: ClientId) -> bool {
        self.clients.borrow().contains_key(&client)
    }

    /// The client's description of itself; empty if it is not in quarantine.
    pub fn description(&self, client: ClientId) -> String {
        let clients = self.clients.borrow();
        clients.get(&client).map_or_else(String::new, |evicted| evicted.description.clone())
    }

    /// The quarantine of a client begins; `all_files`: which files it could write is unknown.
    pub fn add(&self, client: ClientId, local: bool, all_files: bool, description: &str) {
        if all_files && !self.is_all_frozen() {
            self.runtime.mfs.hold_freed(Ino::NONE);
        }
        let until = self.runtime.env.now() + quarantine_time(self.runtime.config.lease);
        let description = description.to_owned();
        let evicted = QuarantinedClient { until, local, all_files, recorded: false, description };
        self.clients.borrow_mut().insert(client, evicted);
    }

    /// The eviction is durable.
    pub fn set_recorded(&self, client: ClientId) {
        if let Some(evicted) = self.clients.borrow_mut().get_mut(&client) {
            evicted.recorded = true;
        }
    }

    /// Would its lock on this host show that it has ended?
    pub fn is_local(&self, client: ClientId) -> bool {
        self.clients.borrow().get(&client).is_some_and(|evicted| evicted.local)
    }

    fn remove(&self, client: ClientId) {
        let gone = self.clients.borrow_mut().remove(&client);
        if gone.is_some_and(|evicted| evicted.all_files) && !self.is_all_frozen() {
            self.runtime.mfs.unhold_freed(Ino::NONE);
        }
    }

    /// Clients whose eviction is durable; whether their time is over, and whether they are local.
    fn recorded(&self) -> Vec<(ClientId, bool, bool)> {
        let now = self.runtime.env.now();
        let clients = self.clients.borrow();
        let recorded = clients.iter().filter(|(_, evicted)| evicted.recorded);
        recorded.map(|(&client, evicted)| (client, evicted.until <= now, evicted.local)).collect()
    }

    /// Checks the invariants.
    pub fn validate(&self) {
        let last = self.runtime.env.now() + quarantine_time(self.runtime.config.lease);
        for (client, evicted) in &*self.clients.borrow() {
            assert_ne!(*client, ClientId(0), "an administrator's tool is in quarantine");
            assert!(evicted.until <= last, "the quarantine of client {client} lasts too long");
        }
    }
}

impl Evictions {
    /// Resumes the quarantines from before the restart. They last for their whole time again.
    /// Flushes the devices, as the server that died may not have flushed what these clients wrote.
    ///
    /// # Errors
    /// The store's.
    pub async fn resume_quarantines(
        &self,
        known: &BTreeMap<ClientId, ClientInfo>,
    ) -> Result<(), StoreError> {
        let mfs = &self.runtime.mfs;
        let (clients, _) = mfs.run(Cost::READ, |txn| txn.space().quarantines()).await?;
        if !clients.is_empty() && planted(Bug::QuarantineRefused) {
            return Err(StoreError::Refused("a client is in quarantine".into()));
        }
        if !clients.is_empty() {
            self.space.stop_writes_of(&clients).await;
        }
        for client in clients {
            let (files, _) = mfs.run(Cost::READ, |txn| txn.space().frozen(client)).await?;
            let info = known.get(&client);
            let local = info.is_some_and(|info| self.watches(info));
            let description = info.map_or("", |info| &info.description);
            self.quarantine.add(client, local, files.contains(&ALL_FILES), description);
            self.quarantine.set_recorded(client);
            self.begin_fence(client);
        }
        Ok(())
    }

    /// Ends the quarantines whose time has come.
    pub async fn end_quarantines(&self) {
        let (mut dead, mut past) = (Vec::new(), Vec::new());
        for (client, over, local) in self.quarantine.recorded() {
            let ended = local && self.space.is_lock_free(client).await;
            let fenced = self.fencing.proven_for(client).is_some_and(|time| time >= SETTLING);
            let (settled, all_open) = (!self.space.may_write_late(), self.space.are_all_open());
            let known = Known { ended, fenced, all_open, over, settled };
            if ended {
                dead.push(client);
            } else if quarantine_ends(known) || planted(Bug::QuarantineSkipped) {
                past.push(client);
            }
        }
        let clients = [&dead[..], &past[..]].concat();
        if clients.is_empty() {
            return;
        }
        // Others may have read what a device wrote late: it must be stable.
        self.space.flush_for(&clients).await;
        if self.space.may_write_late() && !planted(Bug::QuarantineSkipped) {
            past.clear();
        }
        for client in dead.into_iter().chain(past) {
            if let Err(error) = self.end_quarantine(client).await {
                self.runtime.note_failure(&error, "ending a quarantine");
                continue;
            }
            self.quarantine.remove(client);
            self.fencing.forget(client);
            self.space.announce_return();
        }
    }

    /// Is this host being fenced?
    pub fn is_being_fenced(&self, host: &str) -> bool {
        self.fencing.acts_on(host)
    }

    /// Grace is over: begins the fences that are due.
    pub fn begin_due_fences(&self) {
        self.fencing.begin_due();
    }

    /// Begins to fence a client in quarantine. One on this host is watched by its lock instead.
    pub fn begin_fence(&self, client: ClientId) {
        if !self.quarantine.is_local(client) {
            self.fencing.begin(client, &self.quarantine.description(client));
        }
    }

    async fn end_quarantine(&self, client: ClientId) -> Result<(), StoreError> {
        let mfs = &self.runtime.mfs;
        loop {
            let (files, _) = mfs.run(Cost::READ, |txn| txn.space().frozen(client)).await?;
            if files.is_empty() {
                break;
            }
            for part in files.chunks(FREEZE) {
                let thaw = |txn: &mut Txn<'_>| {
                    part.iter().try_for_each(|&ino| txn.space().unfreeze(client, ino))
                };
                mfs.run(Cost::STEP, thaw).await?;
            }
        }
        self.remove_from_store(client).await?;
        Ok(())
    }
}

/// How long after its eviction a client's blocks are not reused.
fn quarantine_time(lease: Duration) -> Duration {
    lease + lease / 2
}
