//! The fsyncs that wait, by the devices that they wait for.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use env::sync::OneSender;
use types::{Fault, PagId};

use super::context::DataContext;
use super::file::File;

/// How an fsync ends.
pub(super) type Outcome = Result<(), Fault>;

/// The devices that have writes of a file, sorted.
pub(super) type Devices = Vec<PagId>;

/// Lowest and highest stamp of completed writes, by device.
pub(super) type Stamps = BTreeMap<PagId, (u64, u64)>;

/// The fsyncs that wait for the same devices.
#[derive(Default)]
pub(super) struct SyncGroup {
    pub(super) waiting: VecDeque<(Rc<File>, OneSender<Outcome>)>,
    /// Batches in progress.
    pub(super) running: usize,
    /// One of them waits for its devices.
    pub(super) preparing: bool,
}

/// The fsyncs of one client.
#[derive(Default)]
pub(super) struct Syncs {
    /// Groups with waiting callers or a batch in progress.
    pub(super) groups: RefCell<BTreeMap<Devices, SyncGroup>>,
    /// Positive if each recent fsync followed a single write: so many writes are launched at once.
    pub(super) credit: Cell<u32>,
}

impl DataContext {
    /// Flushes all these devices at the same time.
    pub(super) async fn flush_past(&self, all: &Stamps) {
        let mut flushes = Vec::new();
        for (&pag, &(_, high)) in all {
            if let Ok(disk) = self.disks.get(pag) {
                let disk = disk.clone();
                flushes.push(
                    self.env.spawn_join(async move { disk.device.flush_past((high, high)).await }),
                );
            }
        }
        for flush in flushes {
            flush.await;
        }
    }
}
