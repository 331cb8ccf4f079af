//! What every part of the server uses: the environment, the store, the configuration, the log, and
//! the server's end.
//!
//! Invariants:
//! - it knows no other part of the server;
//! - time stamps never go back, and numbers are never given out twice;
//! - a poisoned store ends the server: a restart recovers.

use std::cell::{Cell, OnceCell, RefCell};

use env::Env;
use env::sync::{Notified, Notify};
use mfs::{Mfs, StoreError};
use types::{Instant, Lsn, ServerId, ShardId, Timestamp, Transno};

use crate::config::Config;

/// See the module.
pub struct Runtime {
    /// Clock, network, devices and tasks, real or simulated.
    pub env: Env,
    /// The store.
    pub mfs: Mfs,
    /// The configuration.
    pub config: Config,
    /// Name and UUID of the file system, and the epoch of this start.
    pub identity: mfs::Identity,
    /// The shard that it serves.
    pub shard: ShardId,
    /// When the server started.
    pub started: Instant,
    /// Notified when the server has to end.
    stop: Notify,
    failure: RefCell<Option<StoreError>>,
    stopping: Cell<bool>,
    last_time: Cell<Timestamp>,
    last_id: Cell<u64>,
    /// Checks the invariants of the whole server.
    check: OnceCell<Box<dyn Fn()>>,
}

impl Runtime {
    /// The runtime of a server that does not serve yet.
    pub fn new(env: Env, mfs: Mfs, config: Config) -> Runtime {
        Runtime {
            started: env.now(),
            identity: mfs.identity(),
            shard: mfs.superblock().shard,
            env,
            mfs,
            config,
            stop: Notify::new(),
            failure: RefCell::default(),
            stopping: Cell::new(false),
            last_time: Cell::default(),
            last_id: Cell::new(0),
            check: OnceCell::new(),
        }
    }

    /// Its number among the servers of the namespace: that of its shard.
    pub fn server_id(&self) -> ServerId {
        ServerId(u16::from(self.shard.0))
    }

    /// From now on `check` runs after every event.
    pub fn check_with(&self, check: impl Fn() + 'static) {
        // A second one would check the same.
        let _ = self.check.set(Box::new(check));
    }

    /// An event has been handled: the invariants hold now. `Config::validate`: checks them.
    pub fn event_ended(&self) {
        if let Some(check) = self.check.get() {
            check();
        }
    }

    /// Writes a line to the log.
    pub fn log(&self, text: &str) {
        (self.config.log)(text);
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

    /// The server begins to stop.
    pub fn begin_stop(&self) {
        self.stopping.set(true);
    }

    /// Wakes those who wait for the server's end.
    pub fn announce_stop(&self) {
        self.stop.notify_all();
    }

    /// Ends when the server has to end; it misses nothing after the call.
    pub fn stopped(&self) -> Notified {
        self.stop.notified()
    }
}
