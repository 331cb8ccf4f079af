//! ZONE: a device that fails, stalls or is dead concerns the files that lie on it, and no others.
//!
//! A file lies in the zones in which it has or had blocks, and in those where a client that wrote
//! it has blocks of its pool or wrote any: the content that it has not committed goes there.
//! - An operation on a file, also `syncfs`, fails with EIO only if a device of such a zone has
//!   failed a request of its client, or may count as absent: it failed, stalled or was dead within
//!   the last 20 s. The same holds where a client says that it lost what was
//!   written to a file. If that was at a target, its zone has failed the client from there on.
//!   A client none of whose zones works places nothing, so there any file may fail. Zones that
//!   drain, or did in the last 20 s, take nothing either.
//! - A call takes a second at most if its file lies in no zone that stalls or is dead during the
//!   call.
//!
//! Not checked: errors of clients that lost a session, since SEMANTICS.md 3.4 has EIO for these,
//! too; nor errors of files whose pages a kernel could not write back. The time of calls is checked
//! only in runs without other faults, and not for calls that wait for locks or are about names.
//! While the metadata device stalls, any call may wait.

use std::collections::{BTreeMap, BTreeSet};

use env::sim::{DiskAction, DiskEvent};
use mds::CommittedBlocks;
use types::{Duration, Fault, Ino, Instant, PagId, ShardId};

use super::{ClientPlace, NodeRun};
use crate::call::{Call, Op, Outcome};
use crate::cluster::Cluster;
use crate::events::Events;
use crate::invariant::Invariant;
use crate::troubles::Troubles;

/// Most time of a call about a file on sound devices.
const PATIENCE: Duration = Duration::from_secs(1);

type Zones = BTreeSet<PagId>;

/// The state of the checker.
pub(crate) struct Lying {
    events: Events,
    /// The only faults are those of data devices.
    timed: bool,
    /// All zones; empty before the first call has ended.
    all: Zones,
    /// The same of each shard.
    shards: BTreeMap<ShardId, Zones>,
    /// When the history got to each position.
    times: Vec<Instant>,
    /// The zones in which each file has or had blocks.
    committed: BTreeMap<Ino, Zones>,
    /// The processes that wrote each file.
    writers: BTreeMap<Ino, BTreeSet<NodeRun>>,
    /// The zones in which a process had blocks of a pool, or wrote.
    used: BTreeMap<NodeRun, Zones>,
    /// The zones whose devices failed a request of a process.
    failed: BTreeMap<NodeRun, Zones>,
    /// The targets on which the object of a file lies, if it has one and a server was asked.
    objects: BTreeMap<Ino, Zones>,
    /// All targets.
    targets: Zones,
    /// Clients whose kernel could not write back stores into a mapping of a file.
    unwritten: BTreeSet<(usize, Ino)>,
    /// Processes that lost a session.
    evicted: BTreeSet<NodeRun>,
    /// The zones that stall or are dead, or did. `None` is the metadata device, on which everything
    /// lies.
    troubles: Troubles,
    /// The zones that drain, or did a moment ago.
    leaving: Troubles,
}

/// The file that an operation is about, if it needs its content; `Err`: it needs that of any file.
fn file_of(op: &Op) -> Option<Result<Ino, ()>> {
    match *op {
        Op::Read { ino, .. } | Op::End(ino, _) | Op::Write { ino, .. } | Op::Truncate(ino, _) => {
            Some(Ok(ino))
        }
        Op::Allocate { ino, .. } | Op::Fsync(ino, _) | Op::Close(ino, _) => Some(Ok(ino)),
        // It replaces a file of any name.
        Op::SyncAll | Op::Rename { .. } => Some(Err(())),
        _ => None,
    }
}

impl Lying {
    /// With `timed` the times of calls are checked, too.
    pub(crate) fn new(events: &Events, timed: bool, targets: Zones) -> Lying {
        Lying {
            events: events.clone(),
            timed,
            all: Zones::new(),
            shards: BTreeMap::new(),
            times: Vec::new(),
            committed: BTreeMap::new(),
            writers: BTreeMap::new(),
            used: BTreeMap::new(),
            failed: BTreeMap::new(),
            objects: BTreeMap::new(),
            targets,
            unwritten: BTreeSet::new(),
            evicted: BTreeSet::new(),
            troubles: Troubles::default(),
            leaving: Troubles::default(),
        }
    }

    /// The history is at this position.
    pub(crate) fn at(&mut self, position: u64, now: Instant) {
        let from = self.times.len();
        self.times.resize((position as usize + 1).max(from), now);
    }

    /// A commit makes the metadata point at blocks.
    pub(crate) fn pointed(&mut self, pointed: &CommittedBlocks<'_>) {
        let zones = pointed.segments.iter().map(|segment| segment.pag);
        self.committed.entry(pointed.ino).or_default().extend(zones);
    }

    /// An event of the device of a zone.
    pub(crate) fn on_data(&mut self, zone: PagId, event: DiskEvent<'_>) {
        let add = |all: &mut BTreeMap<NodeRun, Zones>, (node, run): (&str, u32)| {
            _ = all.entry((node.to_owned(), run)).or_default().insert(zone);
        };
        match event {
            DiskEvent::Submitted { node, .. } => add(&mut self.used, node),
            DiskEvent::Failed { node, action, .. } => {
                add(&mut self.failed, node);
                if action == DiskAction::Write {
                    add(&mut self.used, node);
                }
            }
            DiskEvent::Completed { .. } | DiskEvent::Stable { .. } => {}
        }
    }

    /// A zone stalls or is dead from here on, or no longer.
    pub(crate) fn troubled(&mut self, zone: Option<PagId>, begins: bool, now: Instant) {
        self.troubles.note(zone, begins, now);
    }

    /// A zone drains from here on, or no longer.
    pub(crate) fn leaving(&mut self, zone: PagId, begins: bool, now: Instant) {
        self.leaving.note(Some(zone), begins, now);
    }

    /// A target has forgotten a process, and what was not durable with it.
    pub(crate) fn forgets(&mut self, zone: PagId, place: NodeRun) {
        self.failed.entry(place).or_default().insert(zone);
    }

    /// A process lost its session.
    pub(crate) fn evicted(&mut self, place: NodeRun) {
        self.evicted.insert(place);
    }

    /// A process edits content at this moment.
    pub(crate) fn edited(&mut self, ino: Ino, place: NodeRun) {
        self.writers.entry(ino).or_default().insert(place);
    }

    /// These zones have blocks of the pools of this process.
    fn learn_pools(&mut self, cluster: &Cluster, clients: &[types::ClientId], place: &NodeRun) {
        for shard in cluster.all_shards() {
            let zones = cluster.inspect_at(shard, |txn| {
                let mut zones = Zones::new();
                for &client in clients.iter().filter(|client| client.shard() == shard) {
                    zones.extend(txn.space().pool(client)?.iter().map(|(zone, ..)| *zone));
                }
                Ok(zones)
            });
            self.used.entry(place.clone()).or_default().extend(zones.unwrap_or_default());
        }
    }

    /// Learns on which targets a file lies, if it is there.
    fn learn_object(&mut self, cluster: &Cluster, ino: Ino) {
        if self.targets.is_empty() {
            return;
        }
        let found = cluster.inspect(|txn| match txn.names().attr(ino)? {
            Some(_) => Ok(Some(txn.layouts().object(ino)?)),
            None => Ok(None),
        });
        if let Some(Some(record)) = found {
            let known = self.objects.entry(ino).or_default();
            match record {
                Some(record) => known.extend(record.targets),
                // A file that moved lies in any data zones.
                None => known.extend(&self.all),
            }
        }
    }

    /// An application got an answer. `clients_at` names the server's clients of a place.
    pub(crate) fn ended(
        &mut self,
        call: &Call,
        cluster: &Cluster,
        places: &BTreeMap<usize, ClientPlace>,
        clients_at: impl Fn(&NodeRun) -> Vec<types::ClientId>,
    ) {
        if self.all.is_empty() {
            self.all = cluster.zones().collect();
            let of = |shard| (shard, cluster.zones_of(shard).collect());
            self.shards = cluster.all_shards().map(of).collect();
        }
        if let Some(ino) = call.op.edited()
            && let Some(place) = run_of(places, call.client)
        {
            self.learn_pools(cluster, &clients_at(&place), &place);
            self.edited(ino, place);
        }
        if let Op::Unwritten(ino) = call.op {
            self.unwritten.insert((call.client, ino));
        }
        let failed =
            matches!(call.outcome, Some(Outcome::DeviceFailed | Outcome::Failed(Fault::Io)));
        let Some(file) = file_of(&call.op) else { return };
        if let Ok(ino) = file
            && (failed || call.op.edited().is_some())
        {
            self.learn_object(cluster, ino);
        }
        if failed {
            let file = file.ok();
            self.check_error(call.client, file, places, &call.line());
        }
        if let (true, Ok(ino)) = (self.timed, file) {
            self.check_time(call, ino, cluster, places, clients_at);
        }
    }

    /// A client says that it lost what was written to a file. (If no device has failed it at all,
    /// `LOSS` says so.)
    pub(crate) fn lost(&mut self, client: usize, ino: Ino, places: &BTreeMap<usize, ClientPlace>) {
        let Some(place) = run_of(places, client) else { return };
        // A target's device fails the target, and a client may report the loss much later.
        let doubtful: Zones = self.troubles.doubtful(self.now()).collect();
        let of_targets: Zones = doubtful.intersection(&self.targets).copied().collect();
        if !of_targets.is_empty() {
            self.failed.entry(place.clone()).or_default().extend(of_targets);
        }
        if !self.failed.contains_key(&place) {
            return;
        }
        let text = format!("c{client} says that what was written to inode {ino} is lost");
        self.check_error(client, Some(ino), places, &text);
    }

    fn now(&self) -> Instant {
        self.times.last().copied().unwrap_or_default()
    }

    /// The zones in which a file lies, as far as known.
    fn zones_of(&self, ino: Ino) -> Zones {
        let mut zones = self.committed.get(&ino).cloned().unwrap_or_default();
        // The object of a file that is gone, or that no server was asked for, may lie anywhere.
        zones.extend(self.objects.get(&ino).unwrap_or(&self.targets));
        for writer in self.writers.get(&ino).into_iter().flatten() {
            zones.extend(self.used.get(writer).into_iter().flatten());
        }
        zones
    }

    fn check_error(
        &self,
        client: usize,
        file: Option<Ino>,
        places: &BTreeMap<usize, ClientPlace>,
        what: &str,
    ) {
        let Some(place) = run_of(places, client).filter(|place| !self.evicted.contains(place))
        else {
            return;
        };
        let is_it = |of: &&(usize, Ino)| of.0 == client && file.is_none_or(|ino| of.1 == ino);
        if self.unwritten.iter().any(|of| is_it(&of)) {
            return;
        }
        let mut failed = self.failed.get(&place).cloned().unwrap_or_default();
        let now = self.now();
        failed.extend(self.troubles.doubtful(now));
        let zones = file.map_or_else(|| failed.clone(), |ino| self.zones_of(ino));
        let unusable: Zones = failed.iter().copied().chain(self.leaving.doubtful(now)).collect();
        // New blocks of a file come from the zones of its shard.
        let its = file.and_then(|ino| self.shards.get(&ino.shard())).unwrap_or(&self.all);
        if failed.is_disjoint(&zones) && (its.is_empty() || !its.is_subset(&unusable)) {
            let text = format!(
                "{what}: the file lies in zones {zones:?}; the devices of {failed:?} failed \
                 requests of its client"
            );
            self.events.broken(Invariant::Zone, &text);
        }
    }

    fn check_time(
        &mut self,
        call: &Call,
        ino: Ino,
        cluster: &Cluster,
        places: &BTreeMap<usize, ClientPlace>,
        clients_at: impl Fn(&NodeRun) -> Vec<types::ClientId>,
    ) {
        let Some(&begun) = self.times.get(call.begun as usize) else { return };
        let took = cluster.env.now().since(begun);
        let evicted = run_of(places, call.client).is_none_or(|by| self.evicted.contains(&by));
        if took <= PATIENCE || evicted {
            return;
        }
        for place in self.writers.get(&ino).cloned().unwrap_or_default() {
            self.learn_pools(cluster, &clients_at(&place), &place);
        }
        let zones = self.zones_of(ino);
        let mut its = zones.iter().copied().map(Some).chain([None]);
        if !its.any(|zone| self.troubles.since(zone, begun)) {
            let text = format!(
                "{} took {} ms: the file lies in zones {zones:?}, whose devices work",
                call.line(),
                took.as_millis()
            );
            self.events.broken(Invariant::Zone, &text);
        }
    }
}

/// The process of a client, if its run is known.
fn run_of(places: &BTreeMap<usize, ClientPlace>, client: usize) -> Option<NodeRun> {
    let (node, run) = places.get(&client)?;
    Some((node.clone(), (*run)?))
}

#[cfg(test)]
mod tests {
    use types::{ClientId, FileBlock, PagBlock, Segment, SegmentState};

    use super::*;

    const ME: (&str, u32) = ("c0", 4);

    fn places() -> BTreeMap<usize, ClientPlace> {
        BTreeMap::from([(0, (ME.0.to_owned(), Some(ME.1)))])
    }

    fn found(work: impl FnOnce(&mut Lying)) -> bool {
        found_with(Zones::new(), work)
    }

    fn found_with(targets: Zones, work: impl FnOnce(&mut Lying)) -> bool {
        let events = Events::default();
        work(&mut Lying::new(&events, false, targets));
        events.first_violation().is_some_and(|(invariant, _)| invariant == Invariant::Zone)
    }

    fn lies_in(lying: &mut Lying, zone: u16) {
        let (file, pag, addr) = (FileBlock(0), PagId(zone), PagBlock(7));
        let segments = [Segment { file, len: 1, pag, addr, state: SegmentState::Written }];
        let (client, ino) = (ClientId(4), Ino(20));
        let pointed = CommittedBlocks { client, ino, segments: &segments, replay: false };
        lying.pointed(&pointed);
    }

    fn fails(lying: &mut Lying, zone: u16, action: DiskAction) {
        lying.on_data(PagId(zone), DiskEvent::Failed { node: ME, action, bytes: &(0..4096) });
    }

    #[test]
    fn loss_needs_a_failed_device_on_which_the_file_lies() {
        let lost = |zone: u16, by: Option<u16>| {
            found(|lying| {
                lies_in(lying, zone);
                by.into_iter().for_each(|by| fails(lying, by, DiskAction::Flush));
                lying.lost(0, Ino(20), &places());
            })
        };
        assert!(!lost(2, Some(2)));
        assert!(lost(2, Some(1)));
        assert!(!lost(2, None), "LOSS");
    }

    #[test]
    fn content_that_is_not_committed_lies_where_its_writer_writes() {
        let lost = |writes: bool| {
            found(|lying| {
                lies_in(lying, 2);
                if writes {
                    lying.edited(Ino(20), (ME.0.to_owned(), ME.1));
                }
                fails(lying, 1, DiskAction::Write);
                lying.lost(0, Ino(20), &places());
            })
        };
        assert!(!lost(true));
        assert!(lost(false));
    }

    #[test]
    fn loss_at_a_target_may_be_reported_long_after_its_device_works_again() {
        let reported = |says_loss: bool| {
            found_with(Zones::from([PagId(2)]), |lying| {
                lying.all = Zones::from([PagId(1), PagId(2)]);
                lying.troubled(Some(PagId(2)), true, Instant(0));
                if says_loss {
                    lying.lost(0, Ino(20), &places());
                }
                lying.troubled(Some(PagId(2)), false, Instant(0));
                lying.at(9, Instant(0) + Duration::from_secs(60));
                lying.check_error(0, Some(Ino(20)), &places(), "a close");
            })
        };
        assert!(!reported(true));
        assert!(reported(false));
    }

    #[test]
    fn evicted_client_may_fail_without_a_device() {
        assert!(!found(|lying| {
            lying.evicted((ME.0.to_owned(), ME.1));
            lying.lost(0, Ino(20), &places());
        }));
    }
}
