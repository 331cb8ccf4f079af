//! An observer of simulated disks.
//!
//! Invariants:
//! - there is at most one observer per thread, for the disks of that thread, and it changes nothing
//!   that it sees;
//! - it is notified at the moment of the event. The world is locked then: the observer must not
//!   touch it, nor use a disk except for [`SimDisk::peek`] and [`SimDisk::is`].

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use super::disk::{DiskAction, SimDisk};

/// An event of a disk.
#[derive(Clone, Copy)]
pub enum DiskEvent<'a> {
    /// A write was submitted.
    Submitted {
        /// Its number on this disk.
        id: u64,
        /// The name of the node that wrote, and its number, which is unique to this run of the
        /// node.
        node: (&'a str, u32),
        /// Its offset.
        offset: u64,
        /// Its bytes.
        bytes: &'a [u8],
    },
    /// A write has reached the disk, but is not stable yet.
    Completed {
        /// Its number on this disk.
        id: u64,
    },
    /// These writes are stable.
    Stable {
        /// Their numbers on this disk.
        ids: &'a [u64],
    },
    /// The disk failed an operation.
    Failed {
        /// The node, as above.
        node: (&'a str, u32),
        /// The operation.
        action: DiskAction,
        /// Its bytes on the disk; none for a flush.
        bytes: &'a Range<u64>,
    },
}

type Watcher = Rc<dyn Fn(&SimDisk, DiskEvent<'_>)>;

thread_local! {
    static WATCHER: RefCell<Option<Watcher>> = const { RefCell::new(None) };
}

/// The observer is active as long as this lives.
#[must_use = "dropping it ends the observation"]
pub struct DiskObservation(());

impl Drop for DiskObservation {
    fn drop(&mut self) {
        let before = WATCHER.take();
        drop(before);
    }
}

/// From now on, `watcher` is called for every event of a simulated disk on this thread.
pub fn watch_disks(watcher: impl Fn(&SimDisk, DiskEvent<'_>) + 'static) -> DiskObservation {
    WATCHER.set(Some(Rc::new(watcher)));
    DiskObservation(())
}

/// Notifies the observer, if there is one.
pub(crate) fn notify(disk: &SimDisk, event: DiskEvent<'_>) {
    let watcher = WATCHER.with_borrow(Clone::clone);
    if let Some(watcher) = watcher {
        watcher(disk, event);
    }
}
