//! What all files of a client share, and what a commit is to the rest of this module.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};

use env::Env;
use env::sync::Notify;
use proto::prealloc::Allocation;
use types::limits::COMPOUND_OPS_MAX;
use types::{ClientId, Duration, Fault, Ino, Instant};

use super::budget::Budget;
use super::class::Class;
use super::disks::Disks;
use super::file::File;
use super::sync_groups::{Devices, Syncs};
use super::transfers::Transfers;
use crate::api::{Edited, OnEdit};
use crate::boundary::Rpc;
use crate::waits::Waits;

/// Until a file whose commit failed is tried again.
pub(super) const RETRY: Duration = Duration::from_millis(50);
/// Tries of a recall's commit while the server cannot take it: 5 s.
pub(super) const FLUSH_TRIES: u32 = 100;
/// Commits of one compound; the sender adds the other operations.
pub(super) const COMMITS_MAX: usize = COMPOUND_OPS_MAX - 4;

/// The purpose of a commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// The file is old enough. Only edits that refer to data, and a larger size, need a flush at
    /// once; writes in place are flushed by age.
    Background,
    /// A right is returned: the data is stable, and the server has all changes.
    Flush,
    /// fsync: as `Flush`, and the server has it in its flushed log.
    Sync,
}

/// A file that is not clean, and when its commit is due.
pub(super) struct QueuedFile {
    pub(super) file: Rc<File>,
    pub(super) due: Instant,
}

/// State that all files of a client share.
pub struct DataContext {
    pub(super) env: Env,
    pub(super) rpc: Rc<dyn Rpc>,
    pub(super) waits: Rc<Waits>,
    pub(super) disks: Disks,
    /// The classes of zones, that of all zones first.
    pub(super) classes: RefCell<Vec<Rc<Class>>>,
    /// How blocks for growing files are chosen.
    pub(super) allocation: Allocation,
    /// This client, in the current session.
    pub(super) client: Cell<ClientId>,
    pub(super) budget: Rc<Budget>,
    pub(super) transfers: Transfers,
    /// The files that are marked as `is_unlaunched`: they have dirty runs that nobody wanted to be
    /// launched, when their last write was accepted.
    pub(super) unlaunched: RefCell<Vec<Weak<File>>>,
    /// There are such files again.
    pub(super) unlaunched_wake: Notify,
    pub(super) syncs: Syncs,
    /// Device writes in flight.
    pub(super) flights: Cell<usize>,
    /// Files of which content was lost and no process has heard of it.
    pub(super) unreported_losses: Cell<usize>,
    /// Number of lost sessions: a write that was launched in an earlier session is not submitted.
    pub(super) session: Cell<u64>,
    pub(super) dirty_max: u64,
    pub(super) on_edit: Option<OnEdit>,
    pub(super) queue: RefCell<VecDeque<QueuedFile>>,
    pub(super) active: RefCell<BTreeMap<Ino, Rc<File>>>,
    /// [`DataContext::commit_unmapped`] is committing files.
    pub(super) unmapping: Cell<bool>,
    pub(super) wake: Notify,
    /// Background batches in progress, by the devices that they wait for.
    pub(super) batches: RefCell<BTreeMap<Devices, usize>>,
}

impl std::fmt::Debug for DataContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataContext").finish_non_exhaustive()
    }
}

impl DataContext {
    /// Reports a change of content to the observer.
    pub(super) fn report_edit(&self, ino: Ino, edited: Edited) {
        if let Some(on_edit) = &self.on_edit {
            on_edit(ino, edited);
        }
    }

    /// See [`crate::boundary::DataHalf::most_silent`].
    pub(super) fn most_silent(&self) -> Option<(String, Duration)> {
        let all = self.disks.devices().map(|device| (device.path(), device.silence()));
        all.filter(|(_, silence)| *silence > Duration::ZERO).max_by_key(|(_, silence)| *silence)
    }

    /// See [`crate::boundary::DataHalf::device_silent_for`].
    pub(super) async fn device_silent_for(&self, patience: Duration) {
        const POLL: Duration = Duration::from_millis(250);
        let begin = self.env.now();
        loop {
            let silence = self.most_silent().map_or(Duration::ZERO, |(_, silence)| silence);
            if silence.min(self.env.now().since(begin)) >= patience {
                return;
            }
            self.env.sleep(POLL).await;
        }
    }

    /// See [`crate::boundary::DataHalf::writes_in_flight`].
    pub(super) fn writes_in_flight(&self) -> usize {
        self.flights.get()
    }
}

/// Can the server take the same commit later?
pub(super) fn is_transient(fault: Fault) -> bool {
    matches!(fault, Fault::NoSpace | Fault::Overloaded | Fault::Unreachable | Fault::Busy)
}

/// For people: why a commit was given up that the server refused with a transient fault.
pub(super) fn refusal_text(fault: Fault) -> &'static str {
    match fault {
        Fault::NoSpace => "the server had no room for its layout",
        Fault::Overloaded => "the server could not change so much of its layout at once",
        Fault::Busy => "the server was busy with its layout",
        _ => "the server could not be reached with its layout",
    }
}
