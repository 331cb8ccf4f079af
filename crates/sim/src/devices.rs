//! Injection of device errors.
//!
//! Invariants:
//! - every failing device works again in the end;
//! - while a device may fail, and until all failed requests are answered, the history and the
//!   cluster know it. Then the server may end by itself, and applications may get EIO.

use std::cell::RefCell;
use std::rc::Rc;

use env::sim::{DiskAction, DiskFault, SimDisk, SimRng};
use types::{Duration, PagId};

use crate::cluster::Cluster;
use crate::events::Event;
use crate::faults::Injector;
use crate::fleet::Fleet;
use crate::history::History;
use crate::mount::Mount;
use crate::servers::node_name;

/// Within this time everybody knows of a failed request.
pub(crate) const SETTLING: Duration = Duration::from_millis(20);

/// Within this time a client that runs looks at a device for which nobody asks.
const RETURN: Duration = Duration::from_secs(15);

/// Separates random numbers about zones from others.
const ASIDE: u64 = 0x7a6f_6e65_7300_0000;
/// Most time for which a device is dead while other faults come.
const DEAD_MS: u64 = 40_000;

/// A client mounts, and a server starts, only with every data device. If they do without, no dead
/// device excuses that they fail.
const START_NEEDS_DEVICES: bool = true;

/// A dead device: its zone, and the host for which it is dead; `None`: for all.
pub(crate) type DeadFor = (PagId, Option<String>);

/// Fails the `nth` action of a kind, several from it on, or all from it on.
pub(crate) fn fail(disk: &SimDisk, action: DiskAction, rng: &mut SimRng) {
    let first = rng.between(1, 8);
    match rng.below(4) {
        0 => disk.fail(action, first, DiskFault::Io),
        1 => {
            for nth in first..first + rng.between(2, 6) {
                disk.fail(action, nth, DiskFault::Io);
            }
        }
        _ => disk.fail_from(action, first, DiskFault::Io),
    }
}

impl Injector {
    /// The metadata device fails: the server ends, and restarts on a working device.
    pub(crate) async fn fail_meta(&mut self) {
        self.cluster.devices_fail(true);
        let shard = self.a_shard();
        let disk = self.cluster.meta_of(shard);
        match self.rng.below(3) {
            0 => fail(&disk, DiskAction::Write, &mut self.rng),
            1 => fail(&disk, DiskAction::Flush, &mut self.rng),
            _ => {
                self.cluster.kill_shard(shard);
                disk.fail(DiskAction::Read, self.rng.between(1, 6), DiskFault::Io);
                self.cluster.start_shard(shard);
            }
        }
        self.pause(1_000).await;
        disk.clear_faults();
        self.cluster.env.sleep(SETTLING).await;
        self.cluster.devices_fail(false);
    }

    /// A data device, or that of a target, fails requests for a while.
    pub(crate) async fn fail_data(&mut self) {
        if let Some(nth) = self.target_in_place_of_a_zone(&mut self.aside()) {
            return self.fail_target_disk(nth).await;
        }
        let zone = self.any_zone(None, &mut self.aside());
        let disk = self.cluster.device(zone);
        let actions = [DiskAction::Write, DiskAction::Flush, DiskAction::Read];
        self.history.devices_fail(true);
        self.cluster.devices_fail(true);
        self.cluster.events.emit(Event::Troubled(Some(zone), true));
        let first = self.rng.below(3) as usize;
        fail(&disk, actions[first], &mut self.rng);
        if self.rng.one_in(3) {
            fail(&disk, actions[(first + 1) % 3], &mut self.rng);
        }
        let most = [50, 1_000, 5_000][self.rng.below(3) as usize];
        self.pause(most).await;
        disk.clear_faults();
        self.cluster.env.sleep(SETTLING).await;
        device_is_back((&self.cluster, &self.fleet, &self.history), zone).await;
        self.cluster.events.emit(Event::Troubled(Some(zone), false));
        self.cluster.devices_fail(false);
        self.history.devices_fail(false);
    }

    /// Random numbers beside those of the fault, which are the same whatever the number of zones.
    pub(crate) fn aside(&self) -> SimRng {
        SimRng::new(self.rng.clone().next_u64() ^ ASIDE)
    }

    /// One of the data zones, not `beside` if there is another. With one zone nothing is drawn.
    pub(crate) fn any_zone(&self, beside: Option<PagId>, chances: &mut SimRng) -> PagId {
        let zones = self.cluster.zones().filter(|zone| Some(*zone) != beside);
        let mut zones: Vec<PagId> = zones.collect();
        match zones.len() {
            0 => PagId(0),
            1 => zones[0],
            len => zones.swap_remove(chances.below(len as u64) as usize),
        }
    }

    /// The host whose requests a fault of one of several zones hits: one client, the server, or
    /// (`None`) all.
    pub(crate) fn reach(&self, zone: PagId, chances: &mut SimRng) -> Option<String> {
        if self.cluster.zones().count() == 1 {
            return None;
        }
        self.drawn_reach(zone, chances)
    }

    fn drawn_reach(&self, zone: PagId, chances: &mut SimRng) -> Option<String> {
        match chances.below(4) {
            0 => Some(node_name(usize::from(self.cluster.shard_of(zone).0))),
            1 => Some(self.fleet.name(chances.below(self.fleet.slots() as u64) as usize)),
            _ => None,
        }
    }

    /// A data device dies for one host or for all: every request fails at once. It comes back soon,
    /// or while other faults come, or when no more of them come.
    pub(crate) async fn device_dies(&mut self) {
        let chances = &mut self.aside();
        let zone = self.any_zone(None, chances);
        let node = self.drawn_reach(zone, chances);
        let place = (zone, node);
        if self.dead.borrow().contains(&place) {
            return;
        }
        let of = place.1.as_ref().map_or(String::new(), |node| format!(" for {node}"));
        self.cluster.events.line(&format!("the device of data zone {zone} dies{of}"));
        self.dead.borrow_mut().push(place.clone());
        self.history.devices_fail(true);
        if START_NEEDS_DEVICES {
            self.cluster.devices_fail(true);
        }
        self.cluster.events.emit(Event::Troubled(Some(zone), true));
        self.cluster.device(zone).set_dead_for(place.1.as_deref(), true);
        match self.rng.below(4) {
            0 => {
                self.pause(5_000).await;
                self.revival().revive(&place).await;
            }
            1 | 2 => {
                let time = Duration::from_millis(self.rng.below(DEAD_MS));
                let revival = self.revival();
                self.cluster.env.spawn(async move {
                    revival.cluster.env.sleep(time).await;
                    revival.revive(&place).await;
                });
            }
            // The end of the faults does.
            _ => {}
        }
    }

    /// All dead devices come back.
    pub(crate) async fn devices_come_back(&self) {
        let dead: Vec<DeadFor> = self.dead.borrow().clone();
        for place in dead {
            self.revival().revive(&place).await;
        }
    }
}

/// What brings dead devices back.
struct Revival {
    cluster: Cluster,
    fleet: Fleet,
    history: History,
    dead: Rc<RefCell<Vec<DeadFor>>>,
}

impl Injector {
    fn revival(&self) -> Revival {
        Revival {
            cluster: self.cluster.clone(),
            fleet: self.fleet.clone(),
            history: self.history.clone(),
            dead: self.dead.clone(),
        }
    }
}

impl Revival {
    /// A dead device comes back with what it held, unless it has already.
    async fn revive(&self, place: &DeadFor) {
        let before = self.dead.borrow().len();
        self.dead.borrow_mut().retain(|other| other != place);
        if self.dead.borrow().len() == before {
            return;
        }
        let (zone, node) = place;
        let cluster = &self.cluster;
        // A power cut may have replaced the device meanwhile: that one works.
        cluster.device(*zone).set_dead_for(node.as_deref(), false);
        cluster.env.sleep(SETTLING).await;
        cluster.events.line(&format!("the device of data zone {zone} is back"));
        device_is_back((cluster, &self.fleet, &self.history), *zone).await;
        cluster.events.emit(Event::Troubled(Some(*zone), false));
        if START_NEEDS_DEVICES {
            cluster.devices_fail(false);
        }
        self.history.devices_fail(false);
    }
}

/// Waits until every client that took the device of a zone for dead has looked at it again. For
/// clients that do so later, because they are still mounting or stand still, the history goes on to
/// know of the device.
pub(crate) async fn device_is_back(
    (cluster, fleet, history): (&Cluster, &Fleet, &History),
    zone: PagId,
) {
    let missing = fleet.connecting_or(misses_device);
    let until = cluster.env.now() + RETURN;
    while cluster.env.now() < until && fleet.mounts().iter().any(misses_device) {
        cluster.env.sleep(SETTLING).await;
    }
    let weak = fleet.weak();
    if !weak.any_connecting_or(&missing, misses_device) {
        return;
    }
    history.devices_fail(true);
    cluster.events.emit(Event::Troubled(Some(zone), true));
    let (cluster, history) = (cluster.clone(), history.clone());
    cluster.env.clone().spawn(async move {
        while weak.any_connecting_or(&missing, misses_device) {
            cluster.env.sleep(SETTLING).await;
        }
        cluster.events.emit(Event::Troubled(Some(zone), false));
        history.devices_fail(false);
    });
}

/// Does the client take a data device for dead?
fn misses_device(mount: &Mount) -> bool {
    mount.client.devices().iter().any(|device| device.state == "absent")
}
