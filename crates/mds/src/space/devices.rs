//! The data devices of this host: the server uses them for byte locks, and flushes what evicted
//! clients wrote.
//!
//! Invariants:
//! - nobody waits for a flush for longer than [`EVICTION_FLUSH`], and not at all for a device that
//!   still owes one (a *suspect*);
//! - once a suspect answers, it is flushed once more, for evictions that did not wait for it;
//! - for another [`SETTLING`] it may still complete older writes: a flush covers what a device has
//!   completed, and says nothing of writes in flight.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use env::{Disk, LockScope};
use types::limits::EVICTION_FLUSH;
use types::{ClientId, Duration, Instant};

use crate::runtime::Runtime;

/// A device that answers, and does not complete its older writes within this time, counts as
/// stalled.
const SETTLING: Duration = EVICTION_FLUSH;

/// A data device of this host.
struct DataDevice {
    disk: Disk,
    /// An eviction went on without waiting for its flush.
    suspect: Cell<bool>,
    /// When it answered after that.
    answered: Cell<Option<Instant>>,
}

/// See the module.
pub struct DataDevices {
    runtime: Rc<Runtime>,
    all: RefCell<Vec<Rc<DataDevice>>>,
}

impl DataDevices {
    /// No devices.
    pub fn new(runtime: Rc<Runtime>) -> DataDevices {
        DataDevices { runtime, all: RefCell::default() }
    }

    /// A further device, which counts as sound.
    pub fn add(&self, disk: Disk) {
        let device = DataDevice { disk, suspect: Cell::new(false), answered: Cell::new(None) };
        self.all.borrow_mut().push(Rc::new(device));
    }

    /// The state of the data device at `path`: "sound", "suspect" or "not open".
    pub fn state(&self, path: &str) -> &'static str {
        match self.all.borrow().iter().find(|device| device.disk.path() == path) {
            Some(device) if device.suspect.get() => "suspect",
            Some(_) => "sound",
            None => "not open",
        }
    }

    /// Is a device stalled, as far as is known, or was it a moment ago? At any moment it may
    /// complete what evicted clients had submitted.
    pub fn may_write_late(&self) -> bool {
        let now = self.runtime.env.now();
        let settles = |answered: Instant| now.since(answered) < SETTLING;
        let late = |device: &Rc<DataDevice>| {
            device.suspect.get() || device.answered.get().is_some_and(settles)
        };
        self.all.borrow().iter().any(late)
    }

    /// Is the lock that `client` takes on the data devices free on this host?
    pub async fn is_lock_free(&self, client: ClientId) -> bool {
        let devices = self.all.borrow().clone();
        if devices.is_empty() {
            return false;
        }
        for device in devices {
            if !device.disk.byte_is_free(client.0).await.unwrap_or(false) {
                return false;
            }
        }
        true
    }

    /// Where `client` holds its lock on a device of this host; `None`: it does not.
    pub async fn lock_held_at(&self, client: ClientId) -> Option<LockScope> {
        let devices = self.all.borrow().clone();
        for device in devices {
            if !device.disk.byte_is_free(client.0).await.unwrap_or(true) {
                return device.disk.lock_scope();
            }
        }
        None
    }

    /// Does this server see the locks of `scope`?
    pub fn sees(&self, scope: LockScope) -> bool {
        self.all.borrow().iter().any(|device| device.disk.lock_scope() == Some(scope))
    }

    /// Flushes all devices at the same time: other clients can read what `clients` wrote in place,
    /// so a power cut must not lose it. The log names devices for which the server cannot guarantee
    /// that.
    pub async fn flush_for(&self, clients: &[ClientId]) {
        let (runtime, devices) = (&self.runtime, self.all.borrow().clone());
        let mut flushes = Vec::new();
        for device in devices {
            if device.suspect.get() {
                warn(runtime, clients, &device, "still owes an earlier flush");
                continue;
            }
            let (this, asked) = (runtime.clone(), device.clone());
            let flush = runtime.env.spawn_join(async move { flush(&this, &asked).await });
            flushes.push((device, flush));
        }
        let env = &runtime.env;
        let until = env.now() + EVICTION_FLUSH;
        for (device, mut flush) in flushes {
            match env.timeout(until.since(env.now()), &mut flush).await {
                Some(Ok(())) => {}
                Some(Err(text)) => warn(runtime, clients, &device, &text),
                None => {
                    device.suspect.set(true);
                    let text = format!("has not flushed within {} s", EVICTION_FLUSH.as_secs());
                    warn(runtime, clients, &device, &text);
                }
            }
        }
    }

    /// Checks the invariants.
    pub fn validate(&self) {
        let now = self.runtime.env.now();
        for device in &*self.all.borrow() {
            let answered = device.answered.get();
            assert!(answered.is_none_or(|at| at <= now), "a device has answered in the future");
        }
    }
}

/// Flushes a device, and once more for evictions that did not wait.
async fn flush(runtime: &Runtime, device: &DataDevice) -> Result<(), String> {
    loop {
        let flushed = device.disk.flush().await;
        let flushed = flushed.map_err(|error| format!("cannot be flushed: {error}"));
        if !device.suspect.replace(false) {
            return flushed;
        }
        device.answered.set(Some(runtime.env.now()));
        let what = flushed.err().unwrap_or_else(|| "answers again".into());
        runtime.log(&format!("data device {} {what}; it is flushed once more", device.disk.path()));
    }
}

fn warn(runtime: &Runtime, clients: &[ClientId], device: &DataDevice, what: &str) {
    for client in clients {
        runtime.log(&format!(
            "data device {} {what}: the last writes in place of the evicted client {client} may be lost in a \
             power cut",
            device.disk.path()
        ));
    }
}
