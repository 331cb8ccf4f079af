//! What every part of the server uses: the environment, the store, the configuration, the log, and
//! the server's end.
//!
//! Invariant: a poisoned store ends the server, and nothing more is answered: a restart recovers,
//! and clients replay.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use engine::error::StoreError;
use engine::store::Store;
use env::Env;
use env::sync::{Notified, Notify};
use types::{Epoch, Fault, Instant, Lsn, Transno, Uuid};

use super::Config;
use crate::store::ObjectStore;

/// See the module.
pub struct Runtime {
    /// Clock, network, devices and tasks.
    pub env: Env,
    /// The objects.
    pub store: Rc<ObjectStore>,
    /// The configuration.
    pub config: Config,
    /// UUID of the file system.
    pub fs: Uuid,
    /// Its name.
    pub fs_name: String,
    /// The epoch of this start.
    pub epoch: Epoch,
    /// When the server started.
    pub started: Instant,
    stop: Notify,
    stopping: Cell<bool>,
    failure: RefCell<Option<StoreError>>,
}

impl Runtime {
    /// The runtime of a server that does not serve yet.
    pub fn new(env: Env, store: Rc<ObjectStore>, config: Config) -> Runtime {
        let (fs, fs_name, epoch) = store.identity();
        let (started, stop) = (env.now(), Notify::new());
        let (stopping, failure) = (Cell::new(false), RefCell::default());
        Runtime { env, store, config, fs, fs_name, epoch, started, stop, stopping, failure }
    }

    /// The engine's store.
    pub fn engine(&self) -> &Store {
        self.store.engine()
    }

    /// Writes a line to the log.
    pub fn log(&self, text: &str) {
        (self.config.log)(text);
    }

    /// Everything up to this number is durable.
    pub fn last_committed(&self) -> Transno {
        self.engine().last_committed()
    }

    /// Waits until a transaction is durable.
    ///
    /// # Errors
    /// `Io`: the store has failed; it has been logged.
    pub async fn wait_durable(&self, transno: Transno) -> Result<(), Fault> {
        if transno <= self.last_committed() {
            return Ok(());
        }
        let waited = self.engine().wait_durable(transno).await;
        waited.map_err(|error| self.fault_of(&error, "waiting for the journal"))
    }

    /// The last transaction that survived of those that a client has seen: `seen` itself, or an
    /// earlier one.
    pub fn survived(&self, seen: Transno) -> Transno {
        if seen == Transno::ZERO {
            return seen;
        }
        let lsn = self.engine().survived(seen.epoch).unwrap_or(Lsn(0));
        Transno { epoch: seen.epoch, lsn }
    }

    /// The fault that a client gets for an error of the store. Logs it, and ends the server if the
    /// store is poisoned.
    pub fn fault_of(&self, error: &StoreError, doing: &str) -> Fault {
        match error {
            StoreError::Fault(_) => {}
            StoreError::Poisoned(_) => self.fail(error, doing),
            _ => self.log(&format!("{doing}: {error}")),
        }
        error.fault()
    }

    /// Ends the server if the store is poisoned.
    pub async fn look_at_store(&self) {
        // A number of no epoch waits for nothing: this only says whether the store has failed.
        if let Err(error) = self.engine().wait_durable(Transno::ZERO).await {
            self.fail(&error, "serving");
        }
    }

    fn fail(&self, error: &StoreError, doing: &str) {
        if !self.stopping.get() && self.failure.borrow().is_none() {
            self.log(&format!("{doing}: {error}"));
            *self.failure.borrow_mut() = Some(error.clone());
            self.stop.notify_all();
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

    /// The server begins to stop.
    pub fn begin_stop(&self) {
        self.stopping.set(true);
        self.stop.notify_all();
    }

    /// Ends when the server has to end; it misses nothing after the call.
    pub fn stopped(&self) -> Notified {
        self.stop.notified()
    }
}
