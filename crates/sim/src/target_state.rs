//! What a cluster knows of its object storage targets.
//!
//! Invariants:
//! - a client of a target is the run of a node that got its number there. So a target never counts
//!   as having forgotten a later run of that node;
//! - an object may be without a file only if a server answered that it had made the file, and the
//!   next one does not know that any more. If that one makes the file again for a client that
//!   repeats its request, the object has a file again.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};

use env::sim::{DiskAction, SimDisk};
use ost::store::ObjectStore;
use proto::mds::{OpReply, Reply};
use types::{Lsn, ObjectId, ShardId};

use crate::events::Event;

/// Below so many free blocks that are kept for nobody, a target may refuse a write.
const LOW: u64 = 16;

/// What targets did in a run.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TargetCounts {
    /// How often one ended because its device failed.
    pub ends: u64,
    /// Files that moved between blocks and objects, or to other objects.
    pub moved: u64,
}

/// Blocks that a target keeps for nobody.
pub(crate) fn left(store: &ObjectStore) -> u64 {
    store.info().free.saturating_sub(store.counters().promised_blocks)
}

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
    /// They fill up.
    pub(crate) are_small: Cell<bool>,
    /// The stores of those that run, or ran.
    stores: RefCell<BTreeMap<usize, Weak<ObjectStore>>>,
    /// The clients to which targets have given numbers.
    pub(crate) clients: RefCell<BTreeMap<(usize, u64), TargetClient>>,
    /// The clients that some target has forgotten.
    pub(crate) forgotten: RefCell<BTreeSet<TargetClient>>,
    /// The targets whose devices have failed a request since they were last started.
    failed: RefCell<BTreeSet<usize>>,
    /// The device of a target has failed a read in this run.
    reads_failed: Cell<bool>,
    counts: Cell<TargetCounts>,
    /// Objects that the last check found.
    pub(crate) objects: Cell<u64>,
    /// The objects of files that servers said they had made, and where their logs have that, until
    /// it is durable.
    made: RefCell<BTreeMap<ObjectId, Lsn>>,
    /// Those of them whose making was lost with a server, and not repeated.
    unmade: RefCell<BTreeSet<ObjectId>>,
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

    /// What they did so far.
    pub(crate) fn counts(&self) -> TargetCounts {
        self.counts.get()
    }

    /// Changes what they did.
    pub(crate) fn note(&self, change: impl FnOnce(&mut TargetCounts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// The attached device of a target.
    pub(crate) fn disk(&self, nth: usize) -> SimDisk {
        self.disks.borrow()[nth].clone()
    }

    /// Is a small target, if there is one, short of room, or does it not run?
    pub(crate) fn are_low(&self) -> bool {
        let is_low = |nth| self.store(nth).is_none_or(|store| left(&store) < LOW);
        self.are_small.get() && (0..self.count()).any(is_low)
    }

    /// This store serves a target from here on.
    pub(crate) fn serves(&self, nth: usize, store: &Rc<ObjectStore>) {
        self.stores.borrow_mut().insert(nth, Rc::downgrade(store));
    }

    /// The store of a target, if it runs.
    pub(crate) fn store(&self, nth: usize) -> Option<Rc<ObjectStore>> {
        self.stores.borrow().get(&nth)?.upgrade()
    }

    /// An event of the run.
    pub(crate) fn happened(&self, event: Event<'_>) {
        match event {
            Event::Answers { shard, reply, .. } => self.note_made(shard, reply),
            Event::Opened(shard, from) => {
                let is_its = |object: &ObjectId| object.shard() == shard;
                let (its, others): (BTreeMap<ObjectId, Lsn>, _) =
                    self.made.take().into_iter().partition(|(object, _)| is_its(object));
                *self.made.borrow_mut() = others;
                let lost = its.into_iter().filter(|(_, at)| *at > from.lsn);
                self.unmade.borrow_mut().extend(lost.map(|(object, _)| object));
            }
            _ => {}
        }
    }

    /// The server of a shard answers: perhaps it has made files.
    fn note_made(&self, shard: ShardId, reply: &Reply) {
        let durable = reply.last_committed.lsn;
        self.made.borrow_mut().retain(|object, at| object.shard() != shard || *at > durable);
        for result in &reply.results {
            if let Ok(OpReply::Created { object: Some(layout), .. }) = result {
                self.made.borrow_mut().insert(layout.object, reply.transno.lsn);
                self.unmade.borrow_mut().remove(&layout.object);
            }
        }
    }

    /// May the object be without a file? The making of its file was lost, and nobody destroys it.
    pub(crate) fn may_be_stray(&self, object: ObjectId) -> bool {
        self.unmade.borrow().contains(&object)
    }

    /// This disk has failed a request: perhaps it is that of a target.
    pub(crate) fn note_failed(&self, disk: &SimDisk, action: DiskAction) {
        if let Some(nth) = self.disks.borrow().iter().position(|of| of.is(disk)) {
            self.failed.borrow_mut().insert(nth);
            self.reads_failed.set(self.reads_failed.get() || action == DiskAction::Read);
        }
    }

    /// Has the device of a target failed a read? A write of a part of a block reads it first.
    pub(crate) fn have_failed_reads(&self) -> bool {
        self.reads_failed.get()
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
