//! The state of the grants of the server to the pool.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use env::sync::{AsyncMutex, Notify};
use types::limits::GRANT_BLOCKS;
use types::{Ino, Instant};

use super::file::File;

/// State of the pool's grants.
pub(super) struct Space {
    pub(super) fifo: AsyncMutex,
    pub(super) waiting: Cell<usize>,
    pub(super) refilling: Cell<bool>,
    pub(super) granted: Notify,
    /// Blocks to ask for at a time; doubles when a writer had to wait.
    pub(super) grant_size: Cell<u64>,
    /// A writer got `NoSpace` recently.
    pub(super) scarce_until: Cell<Instant>,
    /// Until then, the client asks for no grant in advance.
    pub(super) quiet_until: Cell<Instant>,
    /// Were blocks reserved since the last check?
    pub(super) used: Cell<bool>,
    /// Transfers of blocks between server and pool: how many are in progress, and how often one has
    /// begun or ended.
    pub(super) transfers: Cell<usize>,
    pub(super) transfer_changes: Cell<u64>,
    pub(super) transfers_done: Notify,
    /// Files with runs that wait for blocks of another zone.
    pub(super) starved: RefCell<BTreeMap<Ino, Rc<File>>>,
    pub(super) relieving: Cell<bool>,
    /// Until then, silent and failing zones are used, too.
    pub(super) modest_until: Cell<Instant>,
}

impl Space {
    /// Are silent and failing zones avoided?
    pub(super) fn is_choosy(&self, now: Instant) -> bool {
        now >= self.modest_until.get()
    }
}

/// A transfer of blocks between server and pool.
pub(super) struct Transfer<'a>(&'a Space);

impl Transfer<'_> {
    pub(super) fn begin(space: &Space) -> Transfer<'_> {
        space.transfers.set(space.transfers.get() + 1);
        space.transfer_changes.set(space.transfer_changes.get() + 1);
        Transfer(space)
    }
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        self.0.transfers.set(self.0.transfers.get() - 1);
        self.0.transfer_changes.set(self.0.transfer_changes.get() + 1);
        self.0.transfers_done.notify_all();
    }
}

impl Default for Space {
    fn default() -> Space {
        Space {
            fifo: AsyncMutex::new(),
            waiting: Cell::new(0),
            refilling: Cell::new(false),
            granted: Notify::new(),
            grant_size: Cell::new(GRANT_BLOCKS),
            scarce_until: Cell::new(Instant::default()),
            quiet_until: Cell::new(Instant::default()),
            used: Cell::new(false),
            transfers: Cell::new(0),
            transfer_changes: Cell::new(0),
            transfers_done: Notify::new(),
            starved: RefCell::default(),
            relieving: Cell::new(false),
            modest_until: Cell::new(Instant::default()),
        }
    }
}
