//! What the run knows of its drains: whether a zone drains, who moves its files, and what drains
//! came to so far.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use client::Client;
use env::sim::SimWorld;
use types::{Instant, PagId};

use crate::troubles::Troubles;

/// The node of the mover.
pub(crate) const MOVER: &str = "mover";
/// The node of the administrator.
pub(crate) const ADMINISTRATOR: &str = "admin";

/// What drains came to.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DrainCounts {
    /// Zones that were emptied.
    pub emptied: u64,
    /// Drains that the administrator stopped.
    pub stopped: u64,
    /// Drains for which the other zones had no room.
    pub crowded: u64,
    /// Blocks that were moved.
    pub blocks: u64,
    /// Movers that died.
    pub deaths: u64,
    /// Files that followed a directory to another metadata server.
    pub followed: u64,
}

/// The drains of a run. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Drains(Rc<Shared>);

#[derive(Default)]
struct Shared {
    /// A zone drains.
    running: Cell<bool>,
    /// The mover's client, and the run of its node.
    mover: RefCell<Option<(Client, Option<u32>)>>,
    /// The run of the mover's node.
    run: Cell<Option<u32>>,
    /// The mover is about to ask the server for the blocks in pools.
    asks_for_pools: Cell<bool>,
    /// Why a server did not do what was asked last.
    refusal: RefCell<String>,
    /// Zones whose devices do not work for some host.
    troubles: RefCell<Troubles>,
    counts: Cell<DrainCounts>,
}

impl Drains {
    /// What they came to so far.
    pub(crate) fn counts(&self) -> DrainCounts {
        self.0.counts.get()
    }

    /// Changes what they came to.
    pub(crate) fn count(&self, change: impl FnOnce(&mut DrainCounts)) {
        let mut counts = self.counts();
        change(&mut counts);
        self.0.counts.set(counts);
    }

    /// A zone begins to drain. `false`: another one does.
    pub(crate) fn begin(&self) -> bool {
        !self.0.running.replace(true)
    }

    /// The zone is in service again.
    pub(crate) fn end(&self) {
        self.0.running.set(false);
    }

    /// Does a zone drain?
    pub(crate) fn is_running(&self) -> bool {
        self.0.running.get()
    }

    /// A zone stalls or is dead for some host, or no longer.
    pub(crate) fn troubled(&self, zone: Option<PagId>, begins: bool, now: Instant) {
        self.0.troubles.borrow_mut().note(zone, begins, now);
    }

    /// The zones whose devices may be absent for the mover.
    pub(crate) fn doubtful(&self, now: Instant) -> Vec<PagId> {
        self.0.troubles.borrow().doubtful(now).collect()
    }

    /// The mover is about to ask for the blocks in pools, or has asked.
    pub(crate) fn note_asking(&self, asks: bool) {
        self.0.asks_for_pools.set(asks);
    }

    /// Is the mover about to ask for the blocks in pools?
    pub(crate) fn asks_for_pools(&self) -> bool {
        self.0.asks_for_pools.get()
    }

    /// So many blocks lie in another zone now.
    pub(crate) fn moved(&self, blocks: u64) {
        self.count(|counts| counts.blocks += blocks);
    }

    /// So many files have followed their directory.
    pub(crate) fn followed(&self, files: u32) {
        self.count(|counts| counts.followed += u64::from(files));
    }

    /// A server did not do what it was asked.
    pub(crate) fn note_refusal(&self, why: String) {
        *self.0.refusal.borrow_mut() = why;
    }

    /// Why a server did not do what was asked last.
    pub(crate) fn refusal(&self) -> String {
        self.0.refusal.borrow().clone()
    }

    /// The mover's client, until it has left the file system.
    pub(crate) fn mover_is(&self, client: Option<Client>) {
        *self.0.mover.borrow_mut() = client.map(|client| (client, self.0.run.get()));
    }

    /// A mover starts, as this run of its node.
    pub(crate) fn mover_starts(&self, run: Option<u32>) {
        self.0.run.set(run);
        self.note_asking(false);
    }

    /// The client of the mover, if that lives.
    pub(crate) fn mover(&self, world: &SimWorld) -> Option<Client> {
        let mover = self.0.mover.borrow();
        let (client, run) = mover.as_ref()?;
        (run.is_some() && world.run_of(MOVER) == *run).then(|| client.clone())
    }
}
