//! What all files of a client share, and what a commit is to the rest of this module.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use env::Env;
use env::sync::Notify;
use proto::commit::CommitPolicy;
use proto::prealloc::Allocation;
use types::{Duration, Fault, Ino, PagId, ServerId};

use super::budget::Budget;
use super::class::Class;
use super::device::DataDevice;
use super::disks::Disks;
use super::file::File;
use super::pipeline::Pipeline;
use super::sealed::Sealed;
use super::session_numbers::SessionNumbers;
use super::transfers::Transfers;
use crate::api::{Edited, OnEdit};
use crate::boundary::Rpc;
use crate::waits::Waits;

/// Until a file whose commit failed is tried again.
pub(super) const RETRY: Duration = Duration::from_millis(50);
/// Tries of a recall's commit while the server cannot take it: 5 s.
pub(super) const FLUSH_TRIES: u32 = 100;

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

/// Files whose changes are on their way to one server, and what was sealed of each.
type CommitPipeline = Pipeline<Rc<File>, Option<Sealed>>;

/// State that all files of a client share.
pub struct DataContext {
    pub(super) env: Env,
    pub(super) rpc: Rc<dyn Rpc>,
    pub(super) waits: Rc<Waits>,
    pub(super) disks: Disks,
    /// The classes of zones, those of all zones of a server first.
    pub(super) classes: RefCell<Vec<Rc<Class>>>,
    /// How blocks for growing files are chosen.
    pub(super) allocation: Allocation,
    pub(super) budget: Rc<Budget>,
    pub(super) transfers: Transfers,
    /// The files that are marked as `is_unlaunched`: they have dirty runs that nobody wanted to be
    /// launched, when their last write was accepted.
    pub(super) unlaunched: RefCell<Vec<Weak<File>>>,
    /// There are such files again.
    pub(super) unlaunched_wake: Notify,
    /// Positive if each recent fsync followed a single write: so many writes are launched at once.
    pub(super) fsync_credit: Cell<u32>,
    /// Device writes in flight.
    pub(super) flights: Cell<usize>,
    /// Files of which content was lost and no process has heard of it.
    pub(super) unreported_losses: Cell<usize>,
    /// The sessions: a write that was launched in an earlier one is not submitted.
    pub(super) sessions: SessionNumbers,
    pub(super) dirty_max: u64,
    pub(super) on_edit: Option<OnEdit>,
    /// How files are committed.
    pub(super) commit: CommitPolicy,
    /// One for the files of each server: a server that is away holds up the files of no other.
    pub(super) pipelines: BTreeMap<ServerId, RefCell<CommitPipeline>>,
    /// The files that are not clean.
    pub(super) active: RefCell<BTreeMap<Ino, Rc<File>>>,
    /// [`DataContext::commit_unmapped`] is committing files.
    pub(super) unmapping: Cell<bool>,
    /// A file ages that is due before the others.
    pub(super) wake: Notify,
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

    /// The commits of the files of this server.
    pub(super) fn pipeline(&self, server: ServerId) -> &RefCell<CommitPipeline> {
        self.pipelines.get(&server).expect("every server is known from the beginning")
    }

    /// See [`crate::boundary::DataHalf::most_silent`].
    pub(super) fn most_silent(&self) -> Option<(String, Duration)> {
        self.most_silent_of(|_| true)
    }

    fn most_silent_of(&self, counts: impl Fn(&DataDevice) -> bool) -> Option<(String, Duration)> {
        let devices = self.disks.devices().filter(|device| counts(device));
        let all = devices.map(|device| (device.path(), device.silence()));
        all.filter(|(_, silence)| *silence > Duration::ZERO).max_by_key(|(_, silence)| *silence)
    }

    /// See [`crate::boundary::DataHalf::device_silent_for`].
    pub(super) async fn device_silent_for(&self, patience: Duration) {
        self.silent_for(|_| true, patience).await;
    }

    /// See [`crate::boundary::DataHalf::zone_silent_for`].
    pub(super) async fn zone_silent_for(&self, zones: Vec<PagId>, patience: Duration) -> String {
        let counts = |device: &DataDevice| match zones.is_empty() {
            true => !device.is_target(),
            false => device.infos().iter().any(|zone| zones.contains(&zone.id)),
        };
        self.silent_for(counts, patience).await
    }

    /// Waits until a device that counts has been silent for `patience`. Returns its path.
    async fn silent_for(&self, counts: impl Fn(&DataDevice) -> bool, patience: Duration) -> String {
        const POLL: Duration = Duration::from_millis(250);
        let begin = self.env.now();
        loop {
            if let Some((path, silence)) = self.most_silent_of(&counts)
                && silence.min(self.env.now().since(begin)) >= patience
            {
                return path;
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
