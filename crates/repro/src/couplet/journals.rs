//! Where the journals of the targets are (001, section 4).

use env::sim::{DiskModel, Flash, HardDisk, SimDisk, SimRng, SimWorld};
use serde::Serialize;
use types::Duration;
use types::limits::BLOCK_U64;

use super::TARGETS;

/// Bytes of a journal: that of the paper's file systems, as `mkfs` chose it.
pub(super) const JOURNAL_BYTES: u64 = 400 << 20;
/// Tiers of SAS disks, and the journals on each.
const SAS_TIERS: usize = 2;
const SAS_PARTS: usize = TARGETS / SAS_TIERS;
/// A part begins at a random place in so many bytes, a few tracks: with a constant stride between
/// the journals, one angle of the platters would decide how long all of them take.
const JITTER: u64 = 16 << 20;
/// Disks of a tier that hold data; two more have parities.
const DATA_DISKS: u64 = 8;

/// Where the journals are.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
pub enum Journal {
    /// In front of the content of each tier.
    Internal,
    /// On two tiers of SAS disks, each split into 14 parts.
    Sas,
    /// Each on an SSD of its own, behind a network.
    Ssd,
}

/// The journals of a couplet, and the tiers that they share.
pub(crate) struct Journals {
    place: Journal,
    sas: [SimDisk; SAS_TIERS],
}

impl Journals {
    pub fn new(place: Journal) -> Journals {
        let tier = || {
            let whole = SimDisk::new(4096);
            whole.set_model(sas_tier());
            whole
        };
        Journals { place, sas: std::array::from_fn(|_| tier()) }
    }

    /// A device for the journal of this target; `None` if it is internal.
    pub(super) fn device(&self, world: &SimWorld, name: &str) -> Option<SimDisk> {
        let external = self.place != Journal::Internal;
        external.then(|| world.disk(name, JOURNAL_BYTES + (1 << 20)))
    }

    /// From now on the device of this target takes its time.
    pub(super) fn set_model(&self, target: usize, device: &SimDisk) {
        match self.place {
            Journal::Internal => {}
            Journal::Ssd => device.set_model(ssd()),
            Journal::Sas => {
                let part = (target / SAS_TIERS % SAS_PARTS) as u64;
                let begin = sas_disks().capacity / SAS_PARTS as u64 * part;
                let places = JITTER / BLOCK_U64;
                let at = begin + SimRng::new(target as u64).below(places) * BLOCK_U64;
                device.share_model(&self.sas[target % SAS_TIERS], at);
            }
        }
    }
}

/// A share of the SSD for journals (RamSan-400), which the server reaches through the network: a
/// quarter of one of its four links, and what a request takes there and back.
fn ssd() -> DiskModel {
    let latency = Duration::from_micros(60);
    DiskModel::Flash(Flash {
        channels: 4,
        stripe: 16 << 10,
        latency: (latency, latency),
        rate: (100_000_000, 100_000_000),
        link: 400_000_000,
        flush: Duration::from_micros(60),
    })
}

/// A tier of the reference disks (15,000 revolutions a minute), which move as one. The paper gives
/// no figures of its SAS disks, and does not say that a cache takes their writes.
fn sas_disks() -> HardDisk {
    let disk = HardDisk::fibre_channel();
    let of_all = |rates: (u64, u64)| (rates.0 * DATA_DISKS, rates.1 * DATA_DISKS);
    HardDisk {
        capacity: disk.capacity * DATA_DISKS,
        outer: of_all(disk.outer),
        middle: of_all(disk.middle),
        link: super::TIER_LINK,
        overhead: super::TIER_OVERHEAD,
        ..disk
    }
}

fn sas_tier() -> DiskModel {
    DiskModel::Hard(sas_disks())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sas_tier_has_the_heads_of_fourteen_journals() {
        let world = SimWorld::new(1);
        let journals = Journals::new(Journal::Sas);
        let requests = |target: usize| {
            let device = journals.device(&world, &format!("journal{target}")).unwrap();
            journals.set_model(target, &device);
            device
        };
        let devices: Vec<_> = (0..TARGETS).map(requests).collect();
        world.run(|env| async move {
            let options = env::DiskOptions { write: true, exclusive: true };
            for target in 0..TARGETS - 1 {
                let open = env.open_disk(&format!("journal{target}"), options).await.unwrap();
                open.write(0, env.buffer(4096)).await.0.unwrap();
            }
        });
        let served = |target: usize| devices[target].report().unwrap().writes;
        assert_eq!((served(0), served(26), served(1), served(27)), (14, 14, 13, 13));
        assert!(Journals::new(Journal::Internal).device(&world, "none").is_none());
    }
}
