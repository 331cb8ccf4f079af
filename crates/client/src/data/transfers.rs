//! Transfers of blocks between the server and the pools.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use env::sync::{Notify, Semaphore};
use proto::prealloc::Stream;
use types::Ino;
use types::limits::RESERVED_SLOTS;

/// How many transfers are in progress, and how often one has begun or ended.
pub(super) struct Transfers {
    pub in_progress: Cell<usize>,
    pub changes: Cell<u64>,
    pub done: Notify,
    /// Grants so far.
    pub grants: Cell<u64>,
    /// Those of them that were asked for with commits.
    pub rode: Cell<u64>,
    /// Places that the server was asked for.
    pub asked: Asked,
}

impl Default for Transfers {
    fn default() -> Transfers {
        Transfers {
            in_progress: Cell::new(0),
            changes: Cell::new(0),
            done: Notify::new(),
            grants: Cell::new(0),
            rode: Cell::new(0),
            asked: Asked::default(),
        }
    }
}

/// A transfer of blocks between server and pool.
pub(super) struct Transfer<'a>(&'a Transfers);

impl Transfer<'_> {
    pub fn begin(transfers: &Transfers) -> Transfer<'_> {
        transfers.in_progress.set(transfers.in_progress.get() + 1);
        transfers.changes.set(transfers.changes.get() + 1);
        Transfer(transfers)
    }
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        self.0.in_progress.set(self.0.in_progress.get() - 1);
        self.0.changes.set(self.0.changes.get() + 1);
        self.0.done.notify_all();
    }
}

/// Requests for places in flight. They use the slots that recalls need, and may wait for other
/// clients.
const AT_ONCE: usize = 16;

const _: () = assert!(AT_ONCE <= RESERVED_SLOTS as usize / 4);

/// Files for which places were asked for, and that were not closed since.
pub(super) struct Asked {
    /// Files, and the handles that wrote them.
    files: RefCell<BTreeMap<Ino, BTreeSet<u64>>>,
    /// A permit for each request.
    pub turns: Semaphore,
}

impl Default for Asked {
    fn default() -> Asked {
        Asked { files: RefCell::default(), turns: Semaphore::new(AT_ONCE) }
    }
}

impl Asked {
    /// Places are asked for.
    pub fn note(&self, ino: Ino, stream: Option<Stream>) {
        let mut files = self.files.borrow_mut();
        files.entry(ino).or_default().extend(stream.map(|stream| stream.handle));
    }

    /// Forgets the handle. Did it write?
    pub fn close_handle(&self, ino: Ino, handle: u64) -> bool {
        self.files.borrow_mut().get_mut(&ino).is_some_and(|handles| handles.remove(&handle))
    }

    /// Forgets the file. Was it asked for?
    pub fn close(&self, ino: Ino) -> bool {
        self.files.borrow_mut().remove(&ino).is_some()
    }

    /// Is a request in flight, or about to be?
    pub fn is_waiting(&self) -> bool {
        self.turns.available() < AT_ONCE
    }

    /// A session is lost: its server has forgotten all of it.
    pub fn forget(&self, of_session: impl Fn(Ino) -> bool) {
        self.files.borrow_mut().retain(|ino, _| !of_session(*ino));
    }
}
