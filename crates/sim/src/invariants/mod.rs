//! The checkers of the invariants of docs/INVARIANTS.md, one module for each invariant, or for
//! several that one check covers. Except `views` they check while the cluster runs, at the moment
//! at which an invariant could break: [`Checkers`] takes the events of the run and passes each to
//! the checkers that it concerns.
//!
//! Invariants:
//! - a checker changes nothing: the run is the same without it ([`crate::Report::trace`]). The one
//!   exception is [`Event::Unflushed`];
//! - a violation carries the invariant's name, and is reported before its consequences.

mod drained;
mod durable;
mod epochs;
mod leases;
mod once;
mod ownership;
mod recovery;
mod slow;
mod stable;
pub(crate) mod views;
mod zones;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use env::sim::{DiskAction, DiskEvent};
use mds::CommittedBlocks;
use proto::mds::Op as Asked;
use types::{ClientId, PagId, ShardId, Transno};

use crate::call::{Call, Op, Outcome};
use crate::cluster::{Cluster, is_server};
use crate::events::{Applied, DrainStage, Event, Events};
use crate::fleet::{Fleet, WeakFleet};
use crate::zones::Place;

/// A node, and the number of its run.
type NodeRun = (String, u32);
/// Where a client runs: its node, and the node's run if known.
type ClientPlace = (String, Option<u32>);
/// A write of a data device: its zone, and its number there.
type WriteId = (PagId, u64);

/// Does that client act as this node?
fn runs_at(node: &NodeRun, place: &ClientPlace) -> bool {
    node.0 == place.0 && place.1.is_none_or(|run| run == node.1)
}

/// Leases checked for each event, on average and at most: checking all leases at every event would
/// dominate long runs.
const LEASES_PER_EVENT: usize = 32;

/// All checkers of a run.
struct Checkers {
    cluster: Cluster,
    fleet: WeakFleet,
    owners: RefCell<ownership::Owners>,
    drained: RefCell<drained::Drained>,
    stable: RefCell<stable::Stable>,
    /// What follows the log of a shard, for each shard.
    logs: Vec<LogCheckers>,
    lying: RefCell<zones::Lying>,
    /// The place of each client of the history.
    places: RefCell<BTreeMap<usize, ClientPlace>>,
    /// Events since the last check of the leases, and how many leases there were.
    moved: Cell<usize>,
    leases: Cell<usize>,
}

/// The checkers that follow the log of one shard.
struct LogCheckers {
    epochs: RefCell<epochs::Epochs>,
    durable: RefCell<durable::Durable>,
    once: RefCell<once::Once>,
    recovery: RefCell<recovery::Recovery>,
}

impl LogCheckers {
    fn new(events: &Events, shard: ShardId) -> LogCheckers {
        LogCheckers {
            epochs: RefCell::new(epochs::Epochs::new(events)),
            durable: RefCell::new(durable::Durable::new(events, shard)),
            once: RefCell::new(once::Once::new(events)),
            recovery: RefCell::default(),
        }
    }
}

/// From here on checks the events of the run, and at each position the leases of the fleet. With
/// `only_devices` nothing but data devices fails.
pub(crate) fn watch(cluster: &Cluster, fleet: &Fleet, only_devices: bool) {
    let checkers = Checkers::new(cluster, fleet, only_devices);
    cluster.events.subscribe(Box::new(move |event| checkers.happened(event)));
}

impl Checkers {
    fn new(cluster: &Cluster, fleet: &Fleet, only_devices: bool) -> Checkers {
        let events = &cluster.events;
        Checkers {
            cluster: cluster.clone(),
            fleet: fleet.weak(),
            owners: RefCell::default(),
            drained: RefCell::default(),
            stable: RefCell::new(stable::Stable::new(events)),
            logs: cluster.all_shards().map(|shard| LogCheckers::new(events, shard)).collect(),
            lying: RefCell::new(zones::Lying::new(
                events,
                only_devices,
                cluster.target_zones().collect(),
            )),
            places: RefCell::default(),
            moved: Cell::new(0),
            leases: Cell::new(0),
        }
    }

    /// An event of the run.
    fn happened(&self, event: Event<'_>) {
        match event {
            Event::Moved => self.moved(),
            Event::Ended(call) => self.ended(call),
            Event::Meta(shard, event) => {
                self.log(shard).epochs.borrow_mut().happened(event);
                self.log(shard).durable.borrow_mut().on_meta(event);
            }
            Event::Data(zone, event) => self.on_data(zone, event),
            Event::MetaReplaced(shard) => self.log(shard).durable.borrow_mut().meta_replaced(),
            Event::DataReplaced => {
                self.stable.borrow_mut().data_replaced();
                self.logs.iter().for_each(|log| log.durable.borrow_mut().data_replaced());
            }
            Event::Owns(shard, run) => self.log(shard).epochs.borrow_mut().owns(run),
            Event::Opened(shard, from) => self.opened(shard, from),
            Event::Executed(executed) => {
                self.log(executed.client.shard()).once.borrow_mut().executed(executed);
            }
            Event::Commits(pointed) => self.commits(&pointed),
            Event::Answers { shard, reply, durable } => {
                let its = durable.then_some(reply.transno);
                self.log(shard).durable.borrow_mut().answers(reply.last_committed, its);
            }
            Event::Applied { client, asked, applied } => self.applied(client, asked, applied),
            Event::Unflushed(client, zone) => self.settle_unflushed(client, zone),
            Event::Mounted { client, node } => {
                let place = (node.to_owned(), self.cluster.world.run_of(node));
                self.places.borrow_mut().insert(client, place);
            }
            Event::SessionLost(client, shard) => {
                if let Some(place) = self.places.borrow().get(&client) {
                    self.log(shard).durable.borrow_mut().abandon_writes(place, None);
                }
                self.evicted_from(self.places.borrow().get(&client).cloned());
            }
            Event::Forgets(zone, (node, run)) => {
                self.lying.borrow_mut().forgets(zone, (node.to_owned(), run));
            }
            Event::Drains(zone, stage) => self.drains(zone, stage),
            Event::Troubled(zone, begins) => {
                let now = self.cluster.env.now();
                self.lying.borrow_mut().troubled(zone, begins, now);
            }
            Event::LostWrites { client, ino } => {
                self.lying.borrow_mut().lost(client, ino, &self.places.borrow());
            }
            Event::Evicts(client, _) => {
                self.evicted_from(self.owners.borrow().place_of(client));
            }
            Event::Edited(ino, _) => {
                if let Some(place) = self.running() {
                    self.lying.borrow_mut().edited(ino, place);
                }
            }
            Event::ClientLine(text) if text.starts_with("this client was evicted") => {
                self.evicted_from(self.running().map(|(node, run)| (node, Some(run))));
            }
            Event::ClientLine(text) if text.contains(slow::DROPPED) => {
                if let Some((node, _)) = self.running() {
                    slow::dropped(&self.cluster, &node, text);
                }
            }
            Event::TookEffect { asked: &Asked::SwapLayouts { ino, spare }, .. } => {
                self.owners.borrow_mut().exchanged(ino, spare);
            }
            // The fleet reports what follows from these.
            Event::TookEffect { .. } | Event::ServerKilled(_) | Event::ClientLine(_) => {}
        }
    }

    /// The checkers of a shard's log.
    fn log(&self, shard: ShardId) -> &LogCheckers {
        &self.logs[usize::from(shard.0)]
    }

    /// The checker of `DURABLE` of the shard of a data zone.
    fn durable_of(&self, zone: PagId) -> &RefCell<durable::Durable> {
        &self.log(self.cluster.shard_of(zone)).durable
    }

    /// The process that runs now.
    fn running(&self) -> Option<NodeRun> {
        let node = self.cluster.world.running()?;
        let run = self.cluster.world.run_of(&node)?;
        Some((node, run))
    }

    /// The client at this place loses its session.
    fn evicted_from(&self, place: Option<ClientPlace>) {
        if let Some((node, Some(run))) = place {
            self.lying.borrow_mut().evicted((node, run));
        }
    }

    /// The history moves on.
    fn moved(&self) {
        let (position, now) = (self.cluster.events.position(), self.cluster.env.now());
        self.lying.borrow_mut().at(position, now);
        self.owners.borrow_mut().learn_sessions(&self.cluster);
        self.moved.set(self.moved.get() + 1);
        let due = self.moved.get() * LEASES_PER_EVENT >= self.leases.get();
        if let Some(mounts) = self.fleet.mounts().filter(|_| due) {
            self.leases.set(leases::check(&self.cluster, &leases::holders(&self.cluster, &mounts)));
            self.moved.set(0);
        }
        for shard in self.cluster.all_shards() {
            let ended = self.log(shard).recovery.borrow_mut().has_ended(&self.cluster, shard);
            if ended {
                recovery::recovered(&self.cluster, shard, "the recovery of all clients");
            }
        }
    }

    /// An application got an answer.
    fn ended(&self, call: &Call) {
        self.logs.iter().for_each(|log| log.durable.borrow_mut().ended(call));
        let places = self.places.borrow();
        let clients_at = |(node, run): &NodeRun| self.owners.borrow().clients_of((node, *run));
        self.lying.borrow_mut().ended(call, &self.cluster, &places, clients_at);
        let (Some(Outcome::Done), Some(place)) = (&call.outcome, places.get(&call.client)) else {
            return;
        };
        let owners = self.owners.borrow();
        let of = |block| owners.written_of(&self.cluster, block);
        for log in &self.logs {
            let durable = log.durable.borrow();
            match call.op {
                Op::Fsync(ino, _) => durable.synced(call, place, |block| of(block) == Some(ino)),
                Op::SyncAll => {
                    let is_named = |ino| ownership::is_named(&self.cluster, ino);
                    durable.synced(call, place, |block| of(block).is_some_and(is_named));
                }
                _ => {}
            }
        }
    }

    fn on_data(&self, zone: PagId, event: DiskEvent<'_>) {
        self.lying.borrow_mut().on_data(zone, event);
        match event {
            DiskEvent::Failed { node, action, .. } => {
                if matches!(action, DiskAction::Write | DiskAction::Flush) {
                    let place = (node.0.to_owned(), Some(node.1));
                    self.durable_of(zone).borrow_mut().abandon_writes(&place, Some(zone));
                }
            }
            DiskEvent::Submitted { node: (name, _), .. } if is_server(name) => {}
            DiskEvent::Submitted { id, node, offset, bytes } => {
                let blocks = stable::blocks_of(offset, bytes.len() as u64);
                let written = (zone, blocks.clone());
                self.owners.borrow_mut().submitted(&self.cluster, node, written);
                let durable = self.durable_of(zone);
                durable.borrow_mut().submitted((zone, id), node, blocks.clone());
                self.stable.borrow_mut().submitted((zone, id), node, blocks);
            }
            DiskEvent::Completed { id } => {
                let id = (zone, id);
                let Some(((node, run), blocks)) = self.stable.borrow().write(id) else { return };
                let (by, written) = ((&*node, run), (zone, blocks));
                let owners = self.owners.borrow_mut().completed(&self.cluster, by, written);
                self.stable.borrow_mut().completed(id, &owners);
            }
            DiskEvent::Stable { ids } => {
                let (mut durable, mut stable) =
                    (self.durable_of(zone).borrow_mut(), self.stable.borrow_mut());
                for id in ids {
                    if let Some((_, blocks)) = stable.write((zone, *id)) {
                        durable.stable((zone, *id), blocks);
                    }
                }
                stable.stable(zone, ids);
            }
        }
    }

    /// A server has opened the metadata of a shard; its log continues at `from`.
    fn opened(&self, shard: ShardId, from: Transno) {
        let (epoch, end) = (from.epoch.0, from.lsn.0);
        let log = self.log(shard);
        log.epochs.borrow_mut().opened(epoch);
        log.durable.borrow_mut().opened(epoch, end);
        log.once.borrow_mut().opened(end);
        let is_mapped = |block: Place| {
            // What the other servers have is as it was.
            ownership::holder(&self.cluster, block) != shard
                || ownership::is_mapped(&self.cluster, block)
        };
        self.stable.borrow_mut().unmapped(is_mapped);
        recovery::recovered(&self.cluster, shard, "the store's recovery");
    }

    /// A commit makes the metadata point at blocks.
    fn commits(&self, pointed: &CommittedBlocks<'_>) {
        self.owners.borrow_mut().pointed(pointed);
        self.drained.borrow().pointed(&self.cluster, pointed);
        self.lying.borrow_mut().pointed(pointed);
        let place = self.owners.borrow().place_of(pointed.client);
        self.stable.borrow_mut().pointed(pointed, place.as_ref());
    }

    /// A zone drains.
    fn drains(&self, zone: PagId, stage: DrainStage) {
        let now = self.cluster.env.now();
        let since = match stage {
            DrainStage::Begins => return self.lying.borrow_mut().leaving(zone, true, now),
            DrainStage::Ended => return self.lying.borrow_mut().leaving(zone, false, now),
            DrainStage::CalledEmpty(starts) => Some(starts),
            DrainStage::Resumes => None,
        };
        let of_files = self.owners.borrow().blocks_of(zone);
        self.drained.borrow_mut().called(&self.cluster, (zone, since), &of_files);
    }

    /// The server applied a request of a client of the history.
    fn applied(&self, client: usize, asked: &proto::mds::Op, applied: &Applied) {
        let Some(transno) = applied.transno else { return };
        let op = applied.step.as_ref();
        if let proto::mds::Op::Commit { ino, .. } = asked {
            let mut durable = self.log(applied.shard).durable.borrow_mut();
            durable.committed(client, applied.at, *ino, transno);
        } else if let Some(op) = op {
            let mut durable = self.log(applied.shard).durable.borrow_mut();
            let home = |ino| self.cluster.home_of(ino);
            durable.changed((client, applied.at), op, transno, home);
        }
    }

    /// A power cut may lose this client's writes to a zone, says the server. The simulated device
    /// keeps those that are not certainly stable; with a working device the server should have
    /// flushed them.
    fn settle_unflushed(&self, client: ClientId, zone: PagId) {
        let data = self.cluster.device(zone);
        let server = self.cluster.server_of(self.cluster.shard_of(zone));
        let failed = self.cluster.was_failed_by(zone, &server, DiskAction::Flush);
        if failed || data.is_stalled_for(&server) {
            let place = self.owners.borrow().place_of(client);
            let unflushed = place.map_or_else(BTreeSet::new, |place| {
                self.stable.borrow().unflushed_of(&place, zone)
            });
            data.make_writes_stable(&unflushed);
        }
    }
}
