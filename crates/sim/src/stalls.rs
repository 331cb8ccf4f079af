//! Stalled disks, and blocked network paths of clients. With several data zones one of them stalls,
//! for all hosts or for one.
//!
//! Invariants:
//! - every stall ends, and what it delayed arrives;
//! - no stall of one host alone outlasts the quarantine of a client;
//! - no stall lasts longer than it may alone; with `pairs` a second one begins before the first has
//!   ended;
//! - the second stall draws its own random numbers: the first is the same without it.

use env::sim::{SimDisk, SimRng};
use types::{Duration, PagId};

use crate::devices::{SETTLING, device_is_back};
use crate::events::Event;
use crate::faults::{Fault, Injector};

/// A device may stall this long without an eviction.
const STALL: Duration = Duration::from_millis(1_500);
/// A long stall, which outlasts sessions and quarantines.
const LONG_STALL: Duration = Duration::from_secs(60);
/// A network path is blocked at most this long.
const BLOCKED: Duration = Duration::from_secs(2);
/// After this long without a block the server hears a client again.
const BREATH: Duration = Duration::from_secs(1);

/// The blocked direction between a client and the server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToServer,
    FromServer,
    Both,
}

/// A stalled disk, or a client with a blocked path.
enum Stall {
    /// `zone` is that of a data device. The requests of `node` stall; `None`: all requests.
    Disk {
        disk: SimDisk,
        zone: Option<PagId>,
        node: Option<String>,
        most: Duration,
    },
    /// The device of a target.
    Target {
        disk: SimDisk,
        nth: usize,
        most: Duration,
    },
    Client {
        slot: usize,
        name: String,
        server: String,
        direction: Direction,
    },
}

impl Stall {
    fn most(&self) -> Duration {
        match self {
            Stall::Disk { most, .. } | Stall::Target { most, .. } => *most,
            Stall::Client { .. } => BLOCKED,
        }
    }
}

fn up_to(most: Duration, rng: &mut SimRng) -> Duration {
    Duration::from_micros(rng.below(most.as_micros() as u64))
}

impl Injector {
    /// Stalls a disk or blocks a client for a while; with `pairs` perhaps a second one too.
    pub(crate) async fn stall(&mut self, kind: Fault) {
        let first = match kind {
            Fault::Stall | Fault::LongStall => {
                let most = if kind == Fault::Stall { STALL } else { LONG_STALL };
                let is_data = !self.rng.one_in(2);
                self.disk(is_data, None, most, &mut self.aside())
            }
            Fault::Partition => {
                let slot = self.slot();
                self.blocked_client(slot, Direction::Both)
            }
            _ => {
                let slot = self.slot();
                let direction =
                    if self.rng.one_in(2) { Direction::ToServer } else { Direction::FromServer };
                self.blocked_client(slot, direction)
            }
        };
        let time = up_to(first.most(), &mut self.rng);
        self.begin(&first);
        let Some((second, chances)) = &mut self.second(&first) else {
            self.wait(time).await;
            return self.end(&first).await;
        };
        let before = up_to(time, chances);
        self.wait(before).await;
        self.begin(second);
        let (rest, its) = (time - before, up_to(second.most(), chances));
        let (sooner, later) = if rest <= its { (&first, &*second) } else { (&*second, &first) };
        self.wait(rest.min(its)).await;
        self.end(sooner).await;
        self.wait(rest.abs_diff(its)).await;
        self.end(later).await;
    }

    /// The metadata device, or that of a data zone other than `beside`, or of a target.
    fn disk(
        &self,
        is_data: bool,
        beside: Option<PagId>,
        most: Duration,
        chances: &mut SimRng,
    ) -> Stall {
        if !is_data {
            return Stall::Disk {
                disk: self.cluster.meta_of(self.a_shard()),
                zone: None,
                node: None,
                most,
            };
        }
        if let Some(nth) = self.target_in_place_of_a_zone(chances) {
            return Stall::Target { disk: self.cluster.targets.disk(nth), nth, most };
        }
        let zone = self.any_zone(beside, chances);
        let node = self.reach(zone, chances);
        Stall::Disk { disk: self.cluster.device(zone), zone: Some(zone), node, most }
    }

    fn blocked_client(&self, slot: usize, direction: Direction) -> Stall {
        let (name, server) = (self.fleet.name(slot), self.a_server());
        Stall::Client { slot, name, server, direction }
    }

    /// The other disk, or another client, with the random numbers of its duration.
    fn second(&mut self, first: &Stall) -> Option<(Stall, SimRng)> {
        let mut chances = self.pairs.clone()?;
        if !chances.one_in(2) {
            return None;
        }
        let slots = self.fleet.slots();
        let blocked_client = [Direction::ToServer, Direction::FromServer, Direction::Both];
        let direction = blocked_client[chances.below(blocked_client.len() as u64) as usize];
        let a_disk = chances.one_in(2);
        let any = chances.below(slots as u64) as usize;
        let second = match first {
            Stall::Disk { zone, most, .. } if a_disk => {
                let several = self.cluster.zones().count() > 1;
                let is_data = zone.is_none() || several && chances.one_in(2);
                self.disk(is_data, *zone, *most, &mut chances)
            }
            Stall::Client { slot, .. } if !a_disk && slots > 1 => {
                let other = if any == *slot { (any + 1) % slots } else { any };
                self.blocked_client(other, direction)
            }
            Stall::Target { most, .. } if a_disk => self.disk(false, None, *most, &mut chances),
            Stall::Disk { .. } | Stall::Target { .. } => self.blocked_client(any, direction),
            Stall::Client { .. } => {
                let is_data = chances.one_in(2);
                self.disk(is_data, None, STALL, &mut chances)
            }
        };
        *self.made.borrow_mut().entry(Fault::Pairs).or_default() += 1;
        Some((second, chances))
    }

    fn begin(&mut self, stall: &Stall) {
        match stall {
            Stall::Disk { disk, zone, node, most } => {
                // A client that cannot write back what is recalled gets evicted.
                if *most == LONG_STALL {
                    self.fleet.all_may_lose(LONG_STALL + self.cluster.lease * 4);
                }
                let which = zone.map_or("metadata".to_owned(), |zone| format!("data {zone}"));
                let of = node.as_ref().map_or(String::new(), |node| format!(" for {node}"));
                self.cluster.events.line(&format!("the {which} device stalls{of}"));
                self.cluster.events.emit(Event::Troubled(*zone, true));
                if zone.is_some() {
                    // For a client that mounts meanwhile, or whose look gets no answer, the device
                    // is absent until the client has looked at it again.
                    self.history.devices_fail(true);
                }
                disk.stall_for(node.as_deref(), true);
                if let Some(node) = node {
                    self.end_at_an_eviction(disk, node);
                }
            }
            Stall::Target { disk, nth, most } => {
                if *most == LONG_STALL {
                    self.fleet.all_may_lose(LONG_STALL + self.cluster.lease * 4);
                }
                self.cluster.events.line(&format!("the device of ost{nth} stalls"));
                disk.stall_for(None, true);
            }
            Stall::Client { slot, name, server, direction } => {
                self.block_begins(*slot);
                let world = &self.cluster.world;
                match direction {
                    Direction::ToServer => world.block(name, server),
                    Direction::FromServer => world.block(server, name),
                    Direction::Both => world.partition(name, server),
                }
            }
        }
    }

    async fn end(&mut self, stall: &Stall) {
        match stall {
            Stall::Disk { disk, zone, node, most } => {
                disk.stall_for(node.as_deref(), false);
                self.cluster.events.emit(Event::Troubled(*zone, false));
                if let Some(zone) = *zone {
                    device_is_back((&self.cluster, &self.fleet, &self.history), zone).await;
                    self.history.devices_fail(false);
                }
                if zone.is_some() && *most == LONG_STALL {
                    self.cluster.env.sleep(SETTLING).await;
                    self.history.devices_settled();
                }
            }
            Stall::Target { disk, .. } => disk.stall_for(None, false),
            Stall::Client { slot, name, server, .. } => {
                self.cluster.world.heal_between(name, server);
                self.block_ends(*slot);
            }
        }
    }

    /// A device that stalls for one host alone answers the server, which reuses the blocks of an
    /// evicted client after its quarantine. Only fencing at the device could delay that further
    /// (SEMANTICS 3.6), so such a stall ends before.
    fn end_at_an_eviction(&self, disk: &SimDisk, node: &str) {
        let (cluster, disk, node) = (self.cluster.clone(), disk.clone(), node.to_owned());
        cluster.env.clone().spawn(async move {
            while disk.is_stalled_for(&node) {
                let mut ledgers = cluster.all_shards().filter_map(|shard| cluster.ledger_of(shard));
                if ledgers.any(|ledger| !ledger.quarantined().is_empty()) {
                    cluster.events.line(&format!("{node} reaches its devices: one is evicted"));
                    disk.stall_for(Some(&node), false);
                }
                cluster.env.sleep(cluster.lease / 16).await;
            }
        });
    }

    /// Blocks the path of a client from here on. One block is too short to lose a session; several
    /// in a row may not be.
    pub(crate) fn block_begins(&mut self, slot: usize) {
        let now = self.cluster.env.now();
        let since = match self.blocked.get(&slot) {
            Some(&(since, until)) if now.since(until) < BREATH => since,
            _ => now,
        };
        self.blocked.insert(slot, (since, now));
        if now + BLOCKED > since + self.cluster.lease / 2 {
            self.fleet.may_lose(slot, BLOCKED + self.cluster.lease * 4);
        }
    }

    /// Ends the block.
    pub(crate) fn block_ends(&mut self, slot: usize) {
        let now = self.cluster.env.now();
        if let Some((_, until)) = self.blocked.get_mut(&slot) {
            *until = now;
        }
    }
}
