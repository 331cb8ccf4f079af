//! The data devices of this host: the server uses them for byte locks, and flushes what evicted
//! clients wrote.
//!
//! Invariants:
//! - nobody waits for a flush for longer than [`EVICTION_FLUSH`], and not at all for a device that
//!   still owes one (a *suspect*);
//! - once a suspect answers, it is flushed once more, for evictions that did not wait for it;
//! - for another [`SETTLING`] it may still complete older writes: a flush covers what a device has
//!   completed, and says nothing of writes in flight.

use std::cell::Cell;
use std::rc::Rc;

use env::Disk;
use types::limits::EVICTION_FLUSH;
use types::{ClientId, Duration, Instant};

use crate::server::Server;

/// A device that answers, and does not complete its older writes within this time, counts as
/// stalled.
const SETTLING: Duration = EVICTION_FLUSH;

/// A data device of this host.
pub struct DataDevice {
    /// The device.
    pub disk: Disk,
    /// An eviction went on without waiting for its flush.
    suspect: Cell<bool>,
    /// When it answered after that.
    answered: Cell<Option<Instant>>,
}

impl DataDevice {
    /// A device that counts as sound.
    pub fn new(disk: Disk) -> DataDevice {
        DataDevice { disk, suspect: Cell::new(false), answered: Cell::new(None) }
    }
}

/// The state of the data device at `path`: "sound", "suspect" or "not open".
pub fn state(server: &Server, path: &str) -> &'static str {
    let devices = server.disks.borrow();
    match devices.iter().find(|device| device.disk.path() == path) {
        Some(device) if device.suspect.get() => "suspect",
        Some(_) => "sound",
        None => "not open",
    }
}

/// Is a device stalled, as far as is known, or was it a moment ago? At any moment it may complete
/// what evicted clients had submitted.
pub fn may_write_late(server: &Server) -> bool {
    let now = server.env.now();
    let settles = |answered: Instant| now.since(answered) < SETTLING;
    let devices = server.disks.borrow();
    devices.iter().any(|device| device.suspect.get() || device.answered.get().is_some_and(settles))
}

/// Flushes all devices at the same time: other clients can read what `clients` wrote in place, so a
/// power cut must not lose it. The log names devices for which the server cannot guarantee that.
pub async fn flush_for(server: &Rc<Server>, clients: &[ClientId]) {
    let devices = server.disks.borrow().clone();
    let mut flushes = Vec::new();
    for device in devices {
        if device.suspect.get() {
            warn(server, clients, &device, "still owes an earlier flush");
            continue;
        }
        let (server, asked) = (server.clone(), device.clone());
        let flush = server.env.clone().spawn_join(async move { flush(&server, &asked).await });
        flushes.push((device, flush));
    }
    let until = server.env.now() + EVICTION_FLUSH;
    for (device, mut flush) in flushes {
        match server.env.timeout(until.since(server.env.now()), &mut flush).await {
            Some(Ok(())) => {}
            Some(Err(text)) => warn(server, clients, &device, &text),
            None => {
                device.suspect.set(true);
                let text = format!("has not flushed within {} s", EVICTION_FLUSH.as_secs());
                warn(server, clients, &device, &text);
            }
        }
    }
}

/// Flushes a device, and once more for evictions that did not wait.
async fn flush(server: &Server, device: &DataDevice) -> Result<(), String> {
    loop {
        let flushed = device.disk.flush().await;
        let flushed = flushed.map_err(|error| format!("cannot be flushed: {error}"));
        if !device.suspect.replace(false) {
            return flushed;
        }
        device.answered.set(Some(server.env.now()));
        let what = flushed.err().unwrap_or_else(|| "answers again".into());
        server.log(&format!("data device {} {what}; it is flushed once more", device.disk.path()));
    }
}

fn warn(server: &Server, clients: &[ClientId], device: &DataDevice, what: &str) {
    for client in clients {
        server.log(&format!(
            "data device {} {what}: the last writes in place of the evicted client {client} may be lost in a \
             power cut",
            device.disk.path()
        ));
    }
}
