//! Who may do what with an object: capabilities, epochs, fences, and objects that are gone.
//!
//! | a capability | is refused |
//! |---|---|
//! | that the holder of the key has not issued as it is | always |
//! | without the right that the operation needs | always |
//! | of a fenced client | always |
//! | of an older epoch than the newest metadata server has shown | but in a replay |
//!
//! The newest metadata server is the one with the highest epoch in any genuine capability: a client
//! has one of a newer epoch from that server only. So a server that was replaced admits, destroys
//! and fences nothing any more, and a client fetches its layouts anew after a restart of the
//! metadata server. What the server itself shows is kept over restarts of the target. A replay was
//! allowed when it ran first, and its client cannot have a newer capability.
//!
//! Invariants:
//! - a fence refuses at once. When it is answered nothing of the client is in flight, and what the
//!   client has written and the fence itself are durable: so nobody sees the bytes change later;
//! - a target that knows a metadata server changes nothing for clients, from its start until that
//!   server has fenced all that it has evicted;
//! - no object is destroyed while clients may repeat writes to it from before a restart: it would
//!   come back.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use engine::cost::Cost;
use engine::error::StoreError;
use env::sync::Notify;
use proto::capability::{Capability, SERVE, TargetKey};
use types::{ClientId, Epoch, Fault, Transno};

use super::runtime::Runtime;

/// The engine's setting with the newest epoch of a metadata server, 4 bytes.
const EPOCH: u32 = 0x6f73_7401;

/// See the module.
pub struct Access {
    runtime: Rc<Runtime>,
    key: TargetKey,
    /// Capabilities of earlier epochs are refused.
    oldest: Cell<Epoch>,
    /// The newest epoch that the store has.
    noted: Cell<Epoch>,
    /// The transaction that has put it there in this start.
    note: Cell<Transno>,
    /// Clients whose fence has begun, by the metadata server's numbers.
    fencing: RefCell<BTreeSet<ClientId>>,
    /// Changes in flight of clients, by the same numbers.
    in_flight: RefCell<BTreeMap<ClientId, usize>>,
    /// Notified when a client has nothing in flight any more.
    calm: Notify,
    refused: Cell<u64>,
    /// A metadata server is known, and has not said since the start that all are fenced that it has
    /// evicted.
    awaits: Cell<bool>,
    /// The log says so.
    says: Cell<bool>,
    /// Notified when it has.
    heard: Notify,
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
            noted: Cell::new(Epoch(0)),
            note: Cell::new(Transno::ZERO),
            fencing: RefCell::default(),
            in_flight: RefCell::default(),
            calm: Notify::new(),
            refused: Cell::new(0),
            awaits: Cell::new(false),
            says: Cell::new(false),
            heard: Notify::new(),
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
        self.noted.set(Epoch(known));
        self.awaits.set(known > 0);
        Ok(())
    }

    /// May the bearer do what needs `right`?
    ///
    /// # Errors
    /// `AccessDenied`.
    pub fn check(&self, may: &Capability, right: u8, replays: bool) -> Result<(), Fault> {
        let is_genuine = self.key.is_genuine(may);
        if is_genuine {
            self.oldest.set(self.oldest.get().max(may.epoch));
        }
        let is_right = is_genuine
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

    /// Waits until this start of the target knows which clients the metadata server has evicted:
    /// they must not repeat what they wrote over what others have written since.
    pub async fn admitted(&self) {
        loop {
            let heard = self.heard.notified();
            if !self.awaits.get() || self.runtime.is_stopping() {
                return;
            }
            if !self.says.replace(true) {
                self.runtime.log(
                    "clients that write wait until the metadata server has named those that it \
                     has evicted",
                );
            }
            heard.await;
        }
    }

    /// The metadata server has fenced all that it had to.
    pub fn admit(&self) {
        self.awaits.set(false);
        self.heard.notify_all();
    }

    /// Does it wait for the metadata server?
    pub fn awaits_server(&self) -> bool {
        self.awaits.get()
    }

    /// May the bearer act as the metadata server? Notes a newer one, before that does anything. If
    /// that fails, the next request tries again.
    ///
    /// # Errors
    /// `AccessDenied`; `NoSpace`; `Io`.
    pub async fn check_server(&self, may: &Capability, replays: bool) -> Result<(), Fault> {
        self.check(may, SERVE, replays)?;
        let epoch = may.epoch;
        if epoch <= self.noted.get() {
            return Ok(());
        }
        // Its transaction is before that of what the server asks for, so it needs no wait here.
        let noted = self.runtime.engine().run(Cost::DELETE, |txn| {
            // A newer server may have come meanwhile.
            match epoch > self.noted.get() {
                true => txn.set_setting(EPOCH, &epoch.0.to_le_bytes()),
                false => Ok(()),
            }
        });
        let noted = noted.await;
        let ((), note) = noted
            .map_err(|error| self.runtime.fault_of(&error, "noting a metadata server's epoch"))?;
        self.noted.set(self.noted.get().max(epoch));
        self.note.set(self.note.get().max(note));
        Ok(())
    }

    /// With this transaction the newest epoch is durable that a metadata server has shown.
    pub fn note(&self) -> Transno {
        self.note.get()
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
