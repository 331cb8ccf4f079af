//! What servers that stand by for each other share in a run: their etcd cluster, who of them owns,
//! whose host is cut off, and which writes are under way.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use env::Env;
use env::sim::{DiskAction, DiskEvent, SimRng};
use env::sync::Notify;
use types::Duration;

use crate::etcd::Etcd;

/// The node of the first server.
pub const SERVER: &str = "mds";
/// Lease of an owner of the metadata.
const LEASE: Duration = Duration::from_secs(4);

/// How the servers' hosts are fenced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Means {
    /// Not at all.
    None,
    /// Their power is cut.
    Power,
    /// They are cut off from the metadata device, and go on.
    Paths,
}

/// A process of a server: its node, and the number of the run.
pub(crate) type Process = (String, u32);

/// What the servers of a run share.
pub(crate) struct Standing {
    pub(crate) etcd: Etcd,
    servers: usize,
    pub(crate) means: Means,
    /// The owner, from its claim until it ends or is replaced.
    pub(crate) owner: RefCell<Option<Process>>,
    /// The node of the last owner.
    pub(crate) last: RefCell<String>,
    /// Runs that owned, oldest first.
    pub(crate) owned: RefCell<Vec<u32>>,
    /// Writes to the metadata device that have not ended, and the runs that submitted them.
    flying: RefCell<BTreeMap<u64, u32>>,
    /// Nodes that do not reach the metadata device.
    pub(crate) cut: RefCell<BTreeSet<String>>,
    /// Nodes that have handed over.
    pub(crate) hold_back: RefCell<BTreeSet<String>>,
    pub(crate) handover: Notify,
    /// Claims that replaced an owner.
    pub(crate) takeovers: Cell<u64>,
    /// Writes of replaced owners, or of owners whose term was over, that were refused.
    pub(crate) late_writes: Cell<u64>,
    rng: RefCell<SimRng>,
}

/// The node of a server.
pub(crate) fn node_name(index: usize) -> String {
    if index == 0 { SERVER.to_owned() } else { format!("{SERVER}{index}") }
}

impl Standing {
    /// `standbys` servers beside the first one.
    pub(crate) fn new(env: &Env, standbys: usize, seed: u64) -> Standing {
        let mut rng = SimRng::new(seed ^ 0x5354_414e_4442_5900);
        let means = [Means::None, Means::Power, Means::Paths][rng.below(3) as usize];
        Standing {
            etcd: Etcd::new(env, LEASE, rng.next_u64()),
            servers: standbys + 1,
            means,
            owner: RefCell::default(),
            last: RefCell::new(SERVER.to_owned()),
            owned: RefCell::default(),
            flying: RefCell::default(),
            cut: RefCell::default(),
            hold_back: RefCell::default(),
            handover: Notify::new(),
            takeovers: Cell::default(),
            late_writes: Cell::default(),
            rng: RefCell::new(rng),
        }
    }

    /// The nodes of all servers.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = String> + use<> {
        (0..self.servers).map(node_name)
    }

    /// The node of the owner, or of the last one.
    pub(crate) fn node(&self) -> String {
        self.last.borrow().clone()
    }

    /// A server that stands by, if there is one.
    pub(crate) fn other(&self) -> Option<String> {
        let owner = self.node();
        self.nodes().find(|node| *node != owner)
    }

    /// Takeovers, and late writes that were refused.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.takeovers.get(), self.late_writes.get())
    }

    /// The owner has ended, or is replaced.
    pub(crate) fn owner_ends(&self) {
        self.owner.borrow_mut().take();
    }

    /// Does this run of a node own?
    pub(crate) fn is_owner(&self, run: u32) -> bool {
        self.owner.borrow().as_ref().is_some_and(|(_, owner)| *owner == run)
    }

    /// Does a server own?
    pub(crate) fn has_owner(&self) -> bool {
        self.owner.borrow().is_some()
    }

    /// The owner is asked to hand over.
    pub(crate) fn hand_over(&self) {
        self.hold_back.borrow_mut().insert(self.node());
        self.handover.notify_all();
    }

    /// An event of the metadata device.
    pub(crate) fn happened(&self, event: DiskEvent<'_>) {
        match event {
            DiskEvent::Submitted { id, node: (_, run), .. } => {
                self.flying.borrow_mut().insert(id, run);
            }
            DiskEvent::Completed { id } => _ = self.flying.borrow_mut().remove(&id),
            DiskEvent::Failed { node: (_, run), action: DiskAction::Write, .. }
                if self.owned.borrow().contains(&run) =>
            {
                self.late_writes.set(self.late_writes.get() + 1);
            }
            DiskEvent::Failed { .. } | DiskEvent::Stable { .. } => {}
        }
    }

    /// Has everything ended that this run has submitted?
    pub(crate) fn is_quiet(&self, run: Option<u32>) -> bool {
        !self.flying.borrow().values().any(|flying| Some(*flying) == run)
    }

    /// A number below this.
    pub(crate) fn below(&self, most: u64) -> u64 {
        self.rng.borrow_mut().below(most)
    }
}
