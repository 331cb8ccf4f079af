//! Who looks on while simulated disks are used.
//!
//! Invariants:
//! - one at a time looks on, on the thread that it looks at, and changes nothing of what it sees;
//! - it is told at the moment at which a thing happens. The world is busy then: who looks on must
//!   not touch it, nor use a disk but for [`SimDisk::peek`] and [`SimDisk::is`].

use std::cell::RefCell;
use std::rc::Rc;

use super::disk::{DiskAction, SimDisk};

/// What happens to a disk.
#[derive(Clone, Copy)]
pub enum DiskEvent<'a> {
    /// A write is under way.
    Submitted {
        /// Its number on this disk.
        id: u64,
        /// By whom: the name of the node, and its number, which no other run of that node has.
        node: (&'a str, u32),
        /// Where it begins.
        offset: u64,
        /// What is written.
        bytes: &'a [u8],
    },
    /// A write has reached the disk, if not yet for good.
    Completed {
        /// Its number on this disk.
        id: u64,
    },
    /// These writes are stable.
    Stable {
        /// Their numbers on this disk.
        ids: &'a [u64],
    },
    /// The disk has failed what it was asked.
    Failed {
        /// By whom, as above.
        node: (&'a str, u32),
        /// What it was.
        action: DiskAction,
    },
}

type Watcher = Rc<dyn Fn(&SimDisk, DiskEvent<'_>)>;

thread_local! {
    static WATCHER: RefCell<Option<Watcher>> = const { RefCell::new(None) };
}

/// Somebody looks on as long as this lives.
#[must_use = "nobody looks on any more when it is dropped"]
pub struct Watching(());

impl Drop for Watching {
    fn drop(&mut self) {
        let before = WATCHER.take();
        drop(before);
    }
}

/// From here on `watcher` is told what happens to every simulated disk of this thread.
pub fn watch_disks(watcher: impl Fn(&SimDisk, DiskEvent<'_>) + 'static) -> Watching {
    WATCHER.set(Some(Rc::new(watcher)));
    Watching(())
}

/// Tells who looks on, if somebody does.
pub(crate) fn tell(disk: &SimDisk, event: DiskEvent<'_>) {
    let watcher = WATCHER.with_borrow(Clone::clone);
    if let Some(watcher) = watcher {
        watcher(disk, event);
    }
}
