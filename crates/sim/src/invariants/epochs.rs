//! EPOCH, of the log: after an epoch was raised, no older record takes effect.
//!
//! - Every server that opens the metadata has a higher epoch than all before it;
//! - once a server has written to the metadata device, no write of an earlier server is submitted
//!   or reaches the device;
//! - no group of records carries an older epoch than that of the newest server that opened the
//!   metadata, and in log order no older epoch follows a newer one.

use std::collections::BTreeMap;

use env::sim::DiskEvent;

use crate::events::Events;
use crate::invariant::Invariant;

/// Magic number of a group's header, as in the log of the store.
const MAGIC: &[u8] = b"RBLG";
const HEADER: usize = 64;

/// The state of the checker.
pub(crate) struct Epochs {
    events: Events,
    /// The epoch of the server that last opened the metadata.
    newest: u32,
    /// Runs of servers that are or were owners, in the order of their claims.
    owners: BTreeMap<u32, u32>,
    /// The newest server that has written, by that order.
    writer: u32,
    /// Writes under way, by their servers.
    writes: BTreeMap<u64, u32>,
    /// The position of the last group of each epoch.
    last: BTreeMap<u32, u64>,
}

/// Epoch and position of a group of records, if the bytes begin with one.
pub(crate) fn group(bytes: &[u8]) -> Option<(u32, u64)> {
    let header = bytes.get(..HEADER).filter(|header| &header[4..8] == MAGIC)?;
    let lsn = u64::from_le_bytes(header[8..16].try_into().ok()?);
    let epoch = u32::from_le_bytes(header[20..24].try_into().ok()?);
    Some((epoch, lsn))
}

impl Epochs {
    pub(crate) fn new(events: &Events) -> Epochs {
        let (owners, writes, last) = Default::default();
        Epochs { events: events.clone(), newest: 0, owners, writer: 0, writes, last }
    }

    /// The server of this run of a node owns the metadata from here on.
    pub(crate) fn owns(&mut self, run: u32) {
        let rank = self.owners.len() as u32 + 1;
        self.owners.insert(run, rank);
    }

    /// The place of a run among the owners. One that never owned is older than all.
    fn rank(&self, run: u32) -> u32 {
        self.owners.get(&run).copied().unwrap_or_default()
    }

    /// A server has opened the metadata.
    pub(crate) fn opened(&mut self, epoch: u32) {
        if epoch <= self.newest {
            let newest = self.newest;
            let text = format!("a server begins epoch {epoch}, after one of epoch {newest}");
            self.broken(&text);
        }
        self.newest = self.newest.max(epoch);
    }

    /// An event of the metadata device.
    pub(crate) fn happened(&mut self, event: DiskEvent<'_>) {
        match event {
            DiskEvent::Submitted { id, node: (name, node), offset, bytes } => {
                self.by(node, &format!("{name} submits a write at {offset}"));
                self.writer = self.writer.max(self.rank(node));
                self.writes.insert(id, node);
                if let Some((epoch, lsn)) = group(bytes) {
                    self.group(epoch, lsn);
                }
            }
            DiskEvent::Completed { id } => {
                if let Some(node) = self.writes.remove(&id) {
                    self.by(node, "a write reaches the metadata device");
                }
            }
            DiskEvent::Stable { .. } | DiskEvent::Failed { .. } => {}
        }
    }

    fn broken(&self, text: &str) {
        self.events.broken(Invariant::Epoch, text);
    }

    fn by(&self, node: u32, what: &str) {
        let newer = |(_, rank): &(&u32, &u32)| **rank == self.writer;
        if self.rank(node) < self.writer
            && let Some((writer, _)) = self.owners.iter().find(newer)
        {
            let text = format!("{what}, of server run {node}, after run {writer} has written");
            self.broken(&text);
        }
    }

    fn group(&mut self, epoch: u32, lsn: u64) {
        let newest = self.newest;
        if epoch < newest {
            self.broken(&format!("a group of epoch {epoch} is logged at {lsn} in epoch {newest}"));
        }
        let before = self.last.range(epoch + 1..).next().map(|(&newer, &at)| (newer, at));
        if let Some((newer, at)) = before.filter(|&(_, at)| at <= lsn) {
            let text =
                format!("a group of epoch {epoch} is logged at {lsn}, one of {newer} at {at}");
            self.broken(&text);
        }
        self.last.insert(epoch, lsn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(work: impl FnOnce(&mut Epochs)) -> Option<String> {
        let events = Events::default();
        work(&mut Epochs::new(&events));
        events.first_violation().map(|(invariant, text)| {
            assert_eq!(invariant, Invariant::Epoch);
            text
        })
    }

    fn write(node: u32, epoch: u32, lsn: u64) -> (u32, Vec<u8>) {
        let mut bytes = vec![0; 4096];
        bytes[4..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&lsn.to_le_bytes());
        bytes[20..24].copy_from_slice(&epoch.to_le_bytes());
        (node, bytes)
    }

    fn submit(epochs: &mut Epochs, id: u64, (node, bytes): &(u32, Vec<u8>)) {
        let node = ("mds", *node);
        epochs.happened(DiskEvent::Submitted { id, node, offset: 0, bytes });
    }

    #[test]
    fn write_of_an_earlier_server_is_a_violation() {
        let sound = found(|epochs| {
            epochs.owns(1);
            epochs.opened(1);
            submit(epochs, 1, &write(1, 1, 4096));
            epochs.happened(DiskEvent::Completed { id: 1 });
            epochs.owns(5);
            epochs.opened(2);
            submit(epochs, 2, &write(5, 2, 8192));
        });
        assert_eq!(sound, None);
        let woken = found(|epochs| {
            epochs.owns(1);
            epochs.opened(1);
            epochs.owns(5);
            epochs.opened(2);
            submit(epochs, 1, &write(5, 2, 8192));
            submit(epochs, 2, &write(1, 2, 12288));
        });
        assert!(woken.is_some_and(|text| text.contains("server run 1")));
        let late = found(|epochs| {
            epochs.owns(1);
            submit(epochs, 1, &write(1, 1, 4096));
            epochs.owns(5);
            submit(epochs, 2, &write(5, 1, 8192));
            epochs.happened(DiskEvent::Completed { id: 1 });
        });
        assert!(late.is_some_and(|text| text.contains("reaches")));
    }

    #[test]
    fn repeated_epoch_or_older_record_is_a_violation() {
        let again = found(|epochs| {
            epochs.opened(3);
            epochs.opened(3);
        });
        assert!(again.is_some_and(|text| text.contains("begins epoch 3")));
        let older = found(|epochs| {
            epochs.opened(3);
            submit(epochs, 1, &write(1, 2, 4096));
        });
        assert!(older.is_some_and(|text| text.contains("epoch 2")));
        let behind = found(|epochs| {
            submit(epochs, 1, &write(1, 2, 4096));
            submit(epochs, 2, &write(1, 1, 8192));
        });
        assert!(behind.is_some_and(|text| text.contains("one of 2 at 4096")));
    }
}
