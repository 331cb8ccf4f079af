//! Who may do what with an object: capabilities, epochs, fences, and objects that are gone.
//!
//! | a capability | is refused |
//! |---|---|
//! | that the holder of the key has not issued as it is | always |
//! | without the right that the operation needs | always |
//! | of a fenced client | always |
//! | of an older epoch than the newest server of its shard has shown | but in a replay |
//!
//! The newest server of a shard is the one with the highest epoch in any genuine capability of that
//! shard: a client has one of a newer epoch from that server only. So a server that was replaced
//! admits, destroys and fences nothing any more, and a client fetches its layouts anew after a
//! restart of the metadata server. What the server itself shows is kept over restarts of the
//! target. A replay was allowed when it ran first, and its client cannot have a newer capability.
//!
//! The shards of several metadata servers have nothing to do with each other: one epoch, one set of
//! evicted clients and one word that all are fenced for each. A client has another number at each
//! server, so the fence of one refuses what the client does under that one. A capability is of the
//! shard of its client, whatever the number of its object is: a file that moves to another server
//! keeps its object. Who may do what with an object, and who destroys it, the server of its file
//! says, and the target cannot know which one that is.
//!
//! Invariants:
//! - a fence refuses at once. When it is answered nothing of the client is in flight, and what the
//!   client has written and the fence itself are durable: so nobody sees the bytes change later;
//! - a target that knows a metadata server of a shard changes nothing for clients of the shard,
//!   from its start until that server has fenced all that it has evicted;
//! - no object is destroyed while clients may repeat writes to it from before a restart: it would
//!   come back.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use engine::cost::Cost;
use engine::error::StoreError;
use env::sync::Notify;
use proto::capability::{Capability, SERVE, TargetKey};
use types::{ClientId, Epoch, Fault, ShardId, Transno};

use super::runtime::Runtime;
use crate::store::format::epoch_setting;

/// What a target knows of the metadata server of a shard.
#[derive(Clone, Copy, Default)]
struct OfShard {
    /// Capabilities of earlier epochs are refused.
    oldest: Epoch,
    /// The newest epoch that the store has.
    noted: Epoch,
    /// The server is known, and has not said since the start that all are fenced that it has
    /// evicted.
    awaits: bool,
    /// The log says so.
    says: bool,
}

/// See the module.
pub struct Access {
    runtime: Rc<Runtime>,
    key: TargetKey,
    shards: RefCell<BTreeMap<ShardId, OfShard>>,
    /// The last transaction of this start that has put an epoch into the store.
    note: Cell<Transno>,
    /// Clients whose fence has begun, by the metadata servers' numbers.
    fencing: RefCell<BTreeSet<ClientId>>,
    /// Changes in flight of clients, by the same numbers.
    in_flight: RefCell<BTreeMap<ClientId, usize>>,
    /// Notified when a client has nothing in flight any more.
    calm: Notify,
    refused: Cell<u64>,
    /// Notified when a server has said that all are fenced.
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
            shards: RefCell::default(),
            note: Cell::new(Transno::ZERO),
            fencing: RefCell::default(),
            in_flight: RefCell::default(),
            calm: Notify::new(),
            refused: Cell::new(0),
            heard: Notify::new(),
        }
    }

    /// Reads the newest epoch of the metadata server of each shard.
    ///
    /// # Errors
    /// The store's.
    pub async fn load(&self) -> Result<(), StoreError> {
        // Neighbours in their tree: they lie in a block or two.
        let read = self.runtime.engine().run(Cost::READ, |txn| {
            let mut found = Vec::new();
            for shard in (0..=u8::MAX).map(ShardId) {
                found.extend(txn.setting(epoch_setting(shard))?.map(|bytes| (shard, bytes)));
            }
            Ok(found)
        });
        for (shard, bytes) in read.await?.0 {
            let known = bytes.try_into().map_or(Epoch(0), |it| Epoch(u32::from_le_bytes(it)));
            let awaits = known > Epoch(0);
            let is = OfShard { oldest: known, noted: known, awaits, says: false };
            self.shards.borrow_mut().insert(shard, is);
        }
        Ok(())
    }

    fn of(&self, shard: ShardId) -> OfShard {
        self.shards.borrow().get(&shard).copied().unwrap_or_default()
    }

    fn change(&self, shard: ShardId, change: impl FnOnce(&mut OfShard)) {
        change(self.shards.borrow_mut().entry(shard).or_default());
    }

    /// May the bearer do what needs `right`?
    ///
    /// # Errors
    /// `AccessDenied`.
    pub fn check(&self, may: &Capability, right: u8, replays: bool) -> Result<(), Fault> {
        let is_genuine = self.key.is_genuine(may);
        if is_genuine {
            self.change(may.shard(), |of| of.oldest = of.oldest.max(may.epoch));
        }
        let is_right = is_genuine
            && may.rights & right == right
            && (replays || may.epoch >= self.of(may.shard()).oldest)
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

    /// Waits until this start of the target knows which clients the metadata server of the shard
    /// has evicted: they must not repeat what they wrote over what others have written since.
    pub async fn admitted(&self, shard: ShardId) {
        loop {
            let heard = self.heard.notified();
            let is = self.of(shard);
            if !is.awaits || self.runtime.is_stopping() {
                return;
            }
            if !is.says {
                self.change(shard, |of| of.says = true);
                self.runtime.log(&format!(
                    "clients that write wait until metadata server {shard} has named those \
                     that it has evicted"
                ));
            }
            heard.await;
        }
    }

    /// The metadata server of the shard has fenced all that it had to.
    pub fn admit(&self, shard: ShardId) {
        self.change(shard, |of| of.awaits = false);
        self.heard.notify_all();
    }

    /// What is known of the metadata server of each shard: the oldest epoch whose capabilities are
    /// accepted, and whether the target waits for that server.
    pub fn servers(&self) -> Vec<(ShardId, Epoch, bool)> {
        let shards = self.shards.borrow();
        shards.iter().map(|(shard, of)| (*shard, of.oldest, of.awaits)).collect()
    }

    /// May the bearer act as the metadata server of its shard? Notes a newer one, before that does
    /// anything. If that fails, the next request tries again.
    ///
    /// # Errors
    /// `AccessDenied`; `NoSpace`; `Io`.
    pub async fn check_server(&self, may: &Capability, replays: bool) -> Result<(), Fault> {
        self.check(may, SERVE, replays)?;
        let (shard, epoch) = (may.shard(), may.epoch);
        if epoch <= self.of(shard).noted {
            return Ok(());
        }
        // Its transaction is before that of what the server asks for, so it needs no wait here.
        let noted = self.runtime.engine().run(Cost::DELETE, |txn| {
            // A newer server may have come meanwhile.
            match epoch > self.of(shard).noted {
                true => txn.set_setting(epoch_setting(shard), &epoch.0.to_le_bytes()),
                false => Ok(()),
            }
        });
        let noted = noted.await;
        let ((), note) = noted
            .map_err(|error| self.runtime.fault_of(&error, "noting a metadata server's epoch"))?;
        self.change(shard, |of| of.noted = of.noted.max(epoch));
        self.note.set(self.note.get().max(note));
        Ok(())
    }

    /// With this transaction the newest epochs are durable that metadata servers have shown.
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
        let shards = self.shards.borrow();
        assert!(shards.values().all(|of| of.noted <= of.oldest), "a noted epoch was forgotten");
    }
}
