//! What a cluster knows of its object storage targets.
//!
//! Invariant: a client of a target is the run of a node that got its number there. So a target
//! never counts as having forgotten a later run of that node.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use env::sim::SimDisk;

/// The node of a target; its device has the same name.
pub(crate) fn node_name(nth: usize) -> String {
    format!("ost{nth}")
}

/// A client as a target knows it: the run of a node.
pub(crate) type TargetClient = (String, u32);

/// See the module.
#[derive(Default)]
pub(crate) struct Targets {
    pub(crate) disks: RefCell<Vec<SimDisk>>,
    /// The clients to which targets have given numbers.
    pub(crate) clients: RefCell<BTreeMap<(usize, u64), TargetClient>>,
    /// The clients that some target has forgotten.
    pub(crate) forgotten: RefCell<BTreeSet<TargetClient>>,
    /// The targets whose devices have failed a request since they were last started.
    failed: RefCell<BTreeSet<usize>>,
    /// How often one ended because its device failed.
    pub(crate) ends: Cell<u64>,
    /// Objects that the last check found.
    pub(crate) objects: Cell<u64>,
    /// The making of a file may be lost with a client and a server.
    lost_names: Cell<bool>,
}

impl Targets {
    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.disks.borrow().len()
    }

    /// The nodes of all.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = String> + use<> {
        (0..self.count()).map(node_name)
    }

    /// The attached device of a target.
    pub(crate) fn disk(&self, nth: usize) -> SimDisk {
        self.disks.borrow()[nth].clone()
    }

    /// So many changes of names went with a client that a dead server had not made durable.
    pub(crate) fn note_lost_names(&self, undurable: u32) {
        self.lost_names.set(self.lost_names.get() || undurable > 0);
    }

    /// May there be objects of files whose making is lost? Nobody destroys these.
    pub(crate) fn may_have_strays(&self) -> bool {
        self.lost_names.get()
    }

    /// This disk has failed a request: perhaps it is that of a target.
    pub(crate) fn note_failed(&self, disk: &SimDisk) {
        if let Some(nth) = self.disks.borrow().iter().position(|of| of.is(disk)) {
            self.failed.borrow_mut().insert(nth);
        }
    }

    /// A target is about to start.
    pub(crate) fn note_start(&self, nth: usize) {
        self.failed.borrow_mut().remove(&nth);
    }

    /// Has the device of a target failed a request since its last start? Then it may end.
    pub(crate) fn may_end(&self, nth: usize) -> bool {
        self.failed.borrow().contains(&nth)
    }

    /// Has some target forgotten this run of a node?
    pub(crate) fn have_forgotten(&self, client: &TargetClient) -> bool {
        self.forgotten.borrow().contains(client)
    }
}
