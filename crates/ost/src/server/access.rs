//! Who may do what with an object: capabilities, epochs, fences, and objects that are gone.
//!
//! | a capability | is refused |
//! |---|---|
//! | that the holder of the key has not issued as it is | always |
//! | without the right that the operation needs | always |
//! | of a fenced client | always |
//! | of an older epoch than the newest metadata server has shown | but in a replay |
//!
//! The newest metadata server is the one with the highest epoch in a capability with [`SERVE`]. So
//! a server that was replaced destroys and fences nothing any more, and a client fetches its
//! layouts anew after a restart of the metadata server. A replay was allowed when it ran first, and
//! its client cannot have a newer capability.
//!
//! Invariants:
//! - a fence refuses at once. When it is answered nothing of the client is in flight, and what the
//!   client has written and the fence itself are durable: so nobody sees the bytes change later;
//! - an object that was destroyed after a restart does not come back by a write that is repeated
//!   later ([`Access::note_gone`]). Numbers of objects are used once.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use engine::cost::Cost;
use engine::error::StoreError;
use env::sync::Notify;
use proto::capability::{Capability, SERVE, TargetKey};
use types::{ClientId, Epoch, Fault, ObjectId};

use super::runtime::Runtime;

/// The engine's setting with the newest epoch of a metadata server, 4 bytes.
const EPOCH: u32 = 0x6f73_7401;

/// See the module.
pub struct Access {
    runtime: Rc<Runtime>,
    key: TargetKey,
    /// Capabilities of earlier epochs are refused.
    oldest: Cell<Epoch>,
    /// Clients whose fence has begun, by the metadata server's numbers.
    fencing: RefCell<BTreeSet<ClientId>>,
    /// Changes in flight of clients, by the same numbers.
    in_flight: RefCell<BTreeMap<ClientId, usize>>,
    /// Notified when a client has nothing in flight any more.
    calm: Notify,
    /// Objects that were destroyed while clients repeat what they did before the restart.
    gone: RefCell<BTreeSet<ObjectId>>,
    refused: Cell<u64>,
}

/// A change in flight.
pub struct InFlight {
    access: Rc<Access>,
    client: ClientId,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut in_flight = self.access.in_flight.borrow_mut();
        if let Some(count) = in_flight.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                in_flight.remove(&self.client);
                drop(in_flight);
                self.access.calm.notify_all();
            }
        }
    }
}

impl Access {
    /// Nothing is known of fences and epochs but what the store says.
    pub fn new(runtime: Rc<Runtime>) -> Access {
        let key = TargetKey::new(runtime.config.key, runtime.fs);
        Access {
            runtime,
            key,
            oldest: Cell::new(Epoch(0)),
            fencing: RefCell::default(),
            in_flight: RefCell::default(),
            calm: Notify::new(),
            gone: RefCell::default(),
            refused: Cell::new(0),
        }
    }

    /// Reads the newest epoch of a metadata server.
    ///
    /// # Errors
    /// The store's.
    pub async fn load(&self) -> Result<(), StoreError> {
        let (read, _) = self.runtime.engine().run(Cost::READ, |txn| txn.setting(EPOCH)).await?;
        let known = read.and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes);
        self.oldest.set(self.oldest.get().max(Epoch(known)));
        Ok(())
    }

    /// May the bearer do what needs `right`?
    ///
    /// # Errors
    /// `AccessDenied`.
    pub fn check(&self, may: &Capability, right: u8, replays: bool) -> Result<(), Fault> {
        let is_right = self.key.is_genuine(may)
            && may.rights & right == right
            && (replays || may.epoch >= self.oldest.get())
            && !self.is_fenced(may.client);
        if is_right {
            return Ok(());
        }
        self.refused.set(self.refused.get() + 1);
        Err(Fault::AccessDenied)
    }

    /// As [`Access::check`]; a fence of the client waits until the value is dropped.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub fn begin(
        self: &Rc<Access>,
        may: &Capability,
        right: u8,
        replays: bool,
    ) -> Result<InFlight, Fault> {
        self.check(may, right, replays)?;
        *self.in_flight.borrow_mut().entry(may.client).or_default() += 1;
        Ok(InFlight { access: self.clone(), client: may.client })
    }

    /// May the bearer act as the metadata server? Remembers a newer one.
    ///
    /// # Errors
    /// `AccessDenied`; `Io`.
    pub async fn check_server(&self, may: &Capability, replays: bool) -> Result<(), Fault> {
        self.check(may, SERVE, replays)?;
        if may.epoch <= self.oldest.get() {
            return Ok(());
        }
        // Its transaction is before that of what the server asks for, so it needs no wait.
        self.oldest.set(may.epoch);
        let epoch = may.epoch.0.to_le_bytes();
        let noted = self.runtime.engine().run(Cost::SMALL, |txn| txn.set_setting(EPOCH, &epoch));
        let noted = noted.await.map(drop);
        noted.map_err(|error| self.runtime.fault_of(&error, "noting a metadata server's epoch"))
    }

    fn is_fenced(&self, client: ClientId) -> bool {
        self.fencing.borrow().contains(&client) || self.runtime.store.is_fenced(client)
    }

    /// Refuses a client's capabilities from now on; see the module.
    ///
    /// # Errors
    /// `Io`.
    pub async fn fence(&self, client: ClientId) -> Result<(), Fault> {
        self.fencing.borrow_mut().insert(client);
        loop {
            let calm = self.calm.notified();
            if !self.in_flight.borrow().contains_key(&client) {
                break;
            }
            calm.await;
        }
        // This makes everything before it durable, too.
        self.runtime.store.fence(client).await
    }

    /// Objects were destroyed while clients may repeat writes to them from before the restart.
    pub fn note_gone(&self, objects: &[ObjectId]) {
        self.gone.borrow_mut().extend(objects);
    }

    /// Was the object destroyed since the restart?
    pub fn is_gone(&self, object: ObjectId) -> bool {
        self.gone.borrow().contains(&object)
    }

    /// All clients have repeated what they had to.
    pub fn forget_gone(&self) {
        self.gone.borrow_mut().clear();
    }

    /// The oldest epoch whose capabilities are accepted.
    pub fn oldest(&self) -> Epoch {
        self.oldest.get()
    }

    /// Changes in flight of all clients.
    pub fn changes_in_flight(&self) -> usize {
        self.in_flight.borrow().values().sum()
    }

    /// Capabilities that were refused.
    pub fn refused(&self) -> u64 {
        self.refused.get()
    }

    /// Waits until no change is in flight.
    pub async fn calmed(&self) {
        loop {
            let calm = self.calm.notified();
            if self.in_flight.borrow().is_empty() {
                return;
            }
            calm.await;
        }
    }

    /// Checks the invariants.
    pub fn validate(&self) {
        assert!(self.in_flight.borrow().values().all(|count| *count > 0), "an idle client");
    }
}
