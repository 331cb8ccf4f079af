//! One module for each invariant, or for several that one check covers. Except `views` they check
//! while the cluster runs, at the moment at which an invariant could break.
//!
//! Invariants:
//! - a checker changes nothing: the run is the same without it ([`crate::Report::trace`]);
//! - a violation carries the invariant's number and text, and is reported before its consequences.

pub(crate) mod durable;
pub(crate) mod epochs;
pub(crate) mod leases;
pub(crate) mod once;
pub(crate) mod ownership;
pub(crate) mod recovery;
pub(crate) mod stable;
pub(crate) mod views;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use env::sim::{DiskAction, DiskEvent, DiskObservation, watch_disks};
use mds::{CommittedBlocks, Executed};
use proto::mds::Reply;
use types::{ClientId, Transno};

use crate::call::{Call, Op, Outcome};
use crate::cluster::{Cluster, SERVER};
use crate::fleet::Fleet;
use crate::history::{Applied, History};
use crate::{cluster, fields, fleet, log, media_corruption, mount, run, space};

/// Every invariant that a violation may name. `tests/planted.rs` has a bug for each.
pub const ALL: &[&str] = &[
    leases::CONFLICT,
    durable::DURABLE,
    epochs::OLDER,
    once::ONCE,
    ownership::OWNED,
    ownership::WRITER,
    recovery::WHOLE,
    stable::UNSTABLE,
    cluster::SERVER_STAYS,
    fields::FAIR,
    fields::OWN,
    fleet::NO_SPURIOUS_EVICTION,
    fleet::NOTICED,
    fleet::NO_SPURIOUS_LOSS,
    mount::ONE_NAME,
    media_corruption::DAMAGE,
    media_corruption::REPAIR,
    run::EVERYONE_MOUNTS,
    run::EVERYTHING_ENDS,
    run::NO_PANICS,
    run::POWER_CUT,
    run::WHOLE,
    space::ROOM,
    views::LINEARIZABLE,
];

/// A node, and the number of its run.
type NodeRun = (String, u32);
/// Where a client runs: its node, and the node's run if known.
type ClientPlace = (String, Option<u32>);

/// Does that client act as this node?
fn runs_at(node: &NodeRun, place: &ClientPlace) -> bool {
    node.0 == place.0 && place.1.is_none_or(|run| run == node.1)
}

/// The state of all checkers of a run. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Checks(Rc<Inner>);

#[derive(Default)]
struct Inner {
    owners: RefCell<ownership::Owners>,
    stable: RefCell<stable::Stable>,
    epochs: RefCell<epochs::Epochs>,
    durable: RefCell<durable::Durable>,
    once: RefCell<once::Once>,
    recovery: RefCell<recovery::Recovery>,
    /// The place of each client of the history.
    places: RefCell<BTreeMap<usize, ClientPlace>>,
    /// Requests that the data device failed, by node, since its present run began.
    failed: RefCell<BTreeMap<String, BTreeSet<DiskAction>>>,
}

impl Checks {
    /// A commit makes the metadata point at blocks.
    pub(crate) fn commits(&self, pointed: &CommittedBlocks<'_>) {
        self.0.owners.borrow_mut().pointed(pointed);
        let place = self.0.owners.borrow().place_of(pointed.client);
        self.0.stable.borrow_mut().pointed(pointed, place.as_ref());
    }

    /// A transaction of the store executed an operation of a client.
    pub(crate) fn executed(&self, executed: Executed) {
        self.0.once.borrow_mut().executed(executed);
    }

    /// The server answers; `durable`: the transaction of the answer is durable.
    pub(crate) fn answers(&self, reply: &Reply, durable: bool) {
        let its = durable.then_some(reply.transno);
        self.0.durable.borrow_mut().answers(reply.last_committed, its);
    }

    /// The server applied a request of a client of the history.
    pub(crate) fn applied(&self, client: usize, asked: &proto::mds::Op, applied: &Applied) {
        let Some(transno) = applied.transno else { return };
        let mut durable = self.0.durable.borrow_mut();
        if let proto::mds::Op::Commit { ino, .. } = asked {
            durable.committed(client, applied.at, *ino, transno);
        } else if let Some(op) = &applied.step {
            durable.changed(client, applied.at, op, transno);
        }
    }

    /// A server has opened the metadata; its log continues at `from`.
    pub(crate) fn opened(&self, cluster: &Cluster, from: Transno) {
        let (epoch, end) = (from.epoch.0, from.lsn.0);
        self.0.epochs.borrow_mut().opened(epoch);
        self.0.durable.borrow_mut().opened(epoch, end);
        self.0.once.borrow_mut().opened(end);
        self.0.stable.borrow_mut().unmapped(|block| ownership::is_mapped(cluster, block));
        recovery::recovered(cluster, "the store's recovery");
    }

    /// A node begins a new run.
    pub(crate) fn begins(&self, node: &str) {
        self.0.failed.borrow_mut().remove(node);
    }

    /// The place of a client of the history.
    pub(crate) fn runs(&self, cluster: &Cluster, client: usize, node: &str) {
        let place = (node.to_owned(), cluster.world.run_of(node));
        self.0.places.borrow_mut().insert(client, place);
    }

    /// A client of the history lost its session, and with it everything unsynced.
    pub(crate) fn lost_session(&self, client: usize) {
        if let Some(place) = self.0.places.borrow().get(&client) {
            self.0.durable.borrow_mut().abandon_writes(place);
        }
    }

    /// Did the data device fail such a request in the node's present run?
    pub(crate) fn was_failed(&self, node: &str, action: DiskAction) -> bool {
        self.0.failed.borrow().get(node).is_some_and(|failed| failed.contains(&action))
    }

    /// Writes of this client that are not certainly stable.
    pub(crate) fn unflushed_of(&self, client: ClientId) -> BTreeSet<u64> {
        let place = self.0.owners.borrow().place_of(client);
        place.map_or_else(BTreeSet::new, |place| self.0.stable.borrow().unflushed_of(&place))
    }

    /// The data device was replaced: its content is stable, and the writers are gone.
    pub(crate) fn data_replaced(&self) {
        *self.0.stable.borrow_mut() = stable::Stable::default();
        self.0.durable.borrow_mut().data_replaced();
    }

    /// The metadata device was replaced: its content is stable.
    pub(crate) fn meta_replaced(&self) {
        self.0.durable.borrow_mut().meta_replaced();
    }

    /// An application got an answer.
    fn ended(&self, cluster: &Cluster, call: &Call) {
        let durable = &self.0.durable;
        durable.borrow_mut().ended(call);
        let places = self.0.places.borrow();
        let (Some(Outcome::Done), Some(place)) = (&call.outcome, places.get(&call.client)) else {
            return;
        };
        let owners = self.0.owners.borrow();
        let of = |block| owners.written_of(cluster, block);
        match call.op {
            Op::Fsync(ino, _) => {
                durable.borrow().synced(call, place, |block| of(block) == Some(ino));
            }
            Op::SyncAll => durable.borrow().synced(call, place, |block| of(block).is_some()),
            _ => {}
        }
    }
}

/// Checks every event of the devices while the guard lives.
pub(crate) fn watch_devices(cluster: &Cluster) -> DiskObservation {
    let (cluster, checks) = (cluster.clone(), cluster.checks.0.clone());
    checks.durable.borrow_mut().watch();
    watch_disks(move |disk, event| {
        if disk.is(&cluster.meta()) {
            checks.epochs.borrow_mut().happened(event);
            checks.durable.borrow_mut().on_meta(event);
        } else if disk.is(&cluster.data()) {
            on_data(&cluster, &checks, event);
        }
    })
}

fn on_data(cluster: &Cluster, checks: &Inner, event: DiskEvent<'_>) {
    match event {
        DiskEvent::Failed { node, action } => {
            checks.failed.borrow_mut().entry(node.0.to_owned()).or_default().insert(action);
            if matches!(action, DiskAction::Write | DiskAction::Flush) {
                let place = (node.0.to_owned(), Some(node.1));
                checks.durable.borrow_mut().abandon_writes(&place);
            }
        }
        DiskEvent::Submitted { node: (SERVER, _), .. } => {}
        DiskEvent::Submitted { id, node, offset, bytes } => {
            let blocks = stable::blocks_of(offset, bytes.len() as u64);
            checks.owners.borrow_mut().submitted(cluster, node, blocks.clone());
            checks.durable.borrow_mut().submitted(id, node, blocks.clone());
            checks.stable.borrow_mut().submitted(id, node, blocks);
        }
        DiskEvent::Completed { id } => {
            let Some(((node, run), blocks)) = checks.stable.borrow().write(id) else { return };
            let owners = checks.owners.borrow_mut().completed(cluster, (&node, run), blocks);
            checks.stable.borrow_mut().completed(id, &owners);
        }
        DiskEvent::Stable { ids } => {
            let (mut durable, mut stable) =
                (checks.durable.borrow_mut(), checks.stable.borrow_mut());
            for id in ids {
                stable.write(*id).into_iter().for_each(|(_, blocks)| durable.stable(*id, blocks));
            }
            stable.stable(ids);
        }
    }
}

/// Leases checked for each event, on average and at most: checking all leases at every event would
/// dominate long runs.
const LEASES_PER_EVENT: usize = 32;

/// From here on checks the clients, their leases and the answers to their applications, at every
/// event that an application sees.
pub(crate) fn watch_clients(cluster: &Cluster, fleet: &Fleet, history: &History) {
    let of = cluster.clone();
    history.on_end(Box::new(move |call| of.checks.ended(&of, call)));
    let (cluster, fleet) = (cluster.clone(), fleet.weak());
    let (events, leases) = (Cell::new(0), Cell::new(0));
    log::on_event(Box::new(move || {
        cluster.checks.0.owners.borrow_mut().learn_sessions(&cluster);
        events.set(events.get() + 1);
        let due = events.get() * LEASES_PER_EVENT >= leases.get();
        if let Some(mounts) = fleet.mounts().filter(|_| due) {
            leases.set(leases::check(&cluster, &mounts));
            events.set(0);
        }
        let ended = cluster.checks.0.recovery.borrow_mut().has_ended(&cluster);
        if ended {
            recovery::recovered(&cluster, "the recovery of all clients");
        }
    }));
}
