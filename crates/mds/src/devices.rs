//! The data devices as the server sees them: for locks of bytes, and for flushes of what evicted
//! clients wrote.
//!
//! Invariants:
//! - nobody waits for a flush for longer than [`EVICTION_FLUSH`], and not at all for a device that
//!   still owes one (a *suspect*);
//! - a suspect that answers is flushed once more: for what was left;
//! - it may carry out what it had been given before for another [`SETTLING`]: a flush is for what a
//!   device has done, and says nothing of what is under way.

use std::cell::Cell;
use std::rc::Rc;

use env::Disk;
use types::limits::EVICTION_FLUSH;
use types::{ClientId, Duration, Instant};

use crate::server::Server;

/// A device that answers and has not carried out by then what it was given counts as one that
/// stands still.
const SETTLING: Duration = EVICTION_FLUSH;

/// A data device of this host.
pub struct DataDevice {
    /// The device.
    pub disk: Disk,
    /// Somebody went on without its flush.
    suspect: Cell<bool>,
    /// When it answered after that.
    answered: Cell<Option<Instant>>,
}

impl DataDevice {
    /// A device that is sound as far as is known.
    pub fn new(disk: Disk) -> DataDevice {
        DataDevice { disk, suspect: Cell::new(false), answered: Cell::new(None) }
    }
}

/// What is known of the data device at `path`: "sound", "suspect" or "not open".
pub fn state(server: &Server, path: &str) -> &'static str {
    let devices = server.disks.borrow();
    match devices.iter().find(|device| device.disk.path() == path) {
        Some(device) if device.suspect.get() => "suspect",
        Some(_) => "sound",
        None => "not open",
    }
}

/// Does a device stand still, as far as is known, or did it a moment ago? It may carry out at any
/// moment what evicted clients had submitted.
pub fn may_write_late(server: &Server) -> bool {
    let now = server.env.now();
    let settles = |answered: Instant| now.since(answered) < SETTLING;
    let devices = server.disks.borrow();
    devices.iter().any(|device| device.suspect.get() || device.answered.get().is_some_and(settles))
}

/// What `clients` wrote in place others can read from now on: it must not go with a power cut. All
/// devices are flushed at the same time; the log says of which that cannot be promised.
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

/// Flushes a device, and once more for those who did not wait.
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
            "data device {} {what}: what the evicted client {client} wrote there in place last may not outlive a \
             power cut",
            device.disk.path()
        ));
    }
}
