//! Disks that stand still, and clients that are held up.
//!
//! Invariants:
//! - all of them go on in the end, and what they held up arrives;
//! - none lasts longer than it may alone; with `pairs` a second one begins before the first has
//!   ended;
//! - what the second one is, and when, are chances of its own: the first is what it is without it.

use env::sim::{SimDisk, SimRng};
use types::Duration;

use crate::cluster::{LEASE, SERVER};
use crate::devices::SETTLING;
use crate::faults::{Fault, Injector};
use crate::log;

/// A device may stand still for so long, and nobody is evicted for it.
const STALL: Duration = Duration::from_millis(1_500);
/// The same of one that stands still for longer than sessions and quarantines last.
const LONG_STALL: Duration = Duration::from_secs(60);
/// For so long at most nothing passes between a client and the server.
const HELD: Duration = Duration::from_secs(2);
/// A client that was not held up for so long is heard.
const BREATH: Duration = Duration::from_secs(1);

/// What is held up of a client.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    ToServer,
    FromServer,
    Both,
}

/// What stands still, or who is held up.
enum Outage {
    Disk { disk: SimDisk, is_data: bool, most: Duration },
    Client { slot: usize, name: String, way: Way },
}

impl Outage {
    fn most(&self) -> Duration {
        match self {
            Outage::Disk { most, .. } => *most,
            Outage::Client { .. } => HELD,
        }
    }
}

fn up_to(most: Duration, rng: &mut SimRng) -> Duration {
    Duration::from_micros(rng.below(most.as_micros() as u64))
}

impl Injector {
    /// A disk stands still or a client is held up for a while; with `pairs` perhaps another one,
    /// too.
    pub(crate) async fn outage(&mut self, kind: Fault) {
        let first = match kind {
            Fault::Stall | Fault::LongStall => {
                let most = if kind == Fault::Stall { STALL } else { LONG_STALL };
                let is_data = !self.rng.one_in(2);
                self.disk(is_data, most)
            }
            Fault::Partition => {
                let slot = self.slot();
                self.ways(slot, Way::Both)
            }
            _ => {
                let slot = self.slot();
                let way = if self.rng.one_in(2) { Way::ToServer } else { Way::FromServer };
                self.ways(slot, way)
            }
        };
        let time = up_to(first.most(), &mut self.rng);
        self.begin(&first);
        let Some((second, chances)) = &mut self.second(&first) else {
            self.lasts(time).await;
            return self.end(&first).await;
        };
        let before = up_to(time, chances);
        self.lasts(before).await;
        self.begin(second);
        let (rest, its) = (time - before, up_to(second.most(), chances));
        let (sooner, later) = if rest <= its { (&first, &*second) } else { (&*second, &first) };
        self.lasts(rest.min(its)).await;
        self.end(sooner).await;
        self.lasts(rest.abs_diff(its)).await;
        self.end(later).await;
    }

    fn disk(&self, is_data: bool, most: Duration) -> Outage {
        let disk = if is_data { self.cluster.data() } else { self.cluster.meta() };
        Outage::Disk { disk, is_data, most }
    }

    fn ways(&self, slot: usize, way: Way) -> Outage {
        Outage::Client { slot, name: self.fleet.name(slot), way }
    }

    /// The other disk, or another client, with the chances of how long.
    fn second(&mut self, first: &Outage) -> Option<(Outage, SimRng)> {
        let mut chances = self.pairs.clone()?;
        if !chances.one_in(2) {
            return None;
        }
        let slots = self.fleet.slots();
        let ways = [Way::ToServer, Way::FromServer, Way::Both];
        let way = ways[chances.below(ways.len() as u64) as usize];
        let a_disk = chances.one_in(2);
        let any = chances.below(slots as u64) as usize;
        let second = match first {
            Outage::Disk { is_data, most, .. } if a_disk => self.disk(!is_data, *most),
            Outage::Client { slot, .. } if !a_disk && slots > 1 => {
                let other = if any == *slot { (any + 1) % slots } else { any };
                self.ways(other, way)
            }
            Outage::Disk { .. } => self.ways(any, way),
            Outage::Client { .. } => self.disk(chances.one_in(2), STALL),
        };
        *self.made.borrow_mut().entry(Fault::Pairs).or_default() += 1;
        Some((second, chances))
    }

    fn begin(&mut self, outage: &Outage) {
        match outage {
            Outage::Disk { disk, is_data, most } => {
                // Who cannot write what is recalled is evicted.
                if *most == LONG_STALL {
                    self.fleet.all_may_lose(LONG_STALL + LEASE * 4);
                }
                let which = if *is_data { "data" } else { "metadata" };
                log::line(&format!("the {which} device stands still"));
                disk.stall(true);
            }
            Outage::Client { slot, name, way } => {
                self.holds_up(*slot);
                let world = &self.cluster.world;
                match way {
                    Way::ToServer => world.block(name, SERVER),
                    Way::FromServer => world.block(SERVER, name),
                    Way::Both => world.partition(name, SERVER),
                }
            }
        }
    }

    async fn end(&mut self, outage: &Outage) {
        match outage {
            Outage::Disk { disk, is_data, most } => {
                disk.stall(false);
                if *is_data && *most == LONG_STALL {
                    self.cluster.env.sleep(SETTLING).await;
                    self.history.devices_settled();
                }
            }
            Outage::Client { slot, name, .. } => {
                self.cluster.world.heal_between(name, SERVER);
                self.held_up(*slot);
            }
        }
    }

    /// What this client says or hears is held up from here on. One time is too short to lose a
    /// session by it; several, one right after the other, may not be.
    pub(crate) fn holds_up(&mut self, slot: usize) {
        let now = self.cluster.env.now();
        let since = match self.held.get(&slot) {
            Some(&(since, until)) if now.since(until) < BREATH => since,
            _ => now,
        };
        self.held.insert(slot, (since, now));
        if now + HELD > since + LEASE / 2 {
            self.fleet.may_lose(slot, HELD + LEASE * 4);
        }
    }

    /// It is not held up any longer.
    pub(crate) fn held_up(&mut self, slot: usize) {
        let now = self.cluster.env.now();
        if let Some((_, until)) = self.held.get_mut(&slot) {
            *until = now;
        }
    }
}
