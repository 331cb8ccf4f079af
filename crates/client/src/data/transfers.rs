//! Transfers of blocks between the server and the pools.

use std::cell::Cell;

use env::sync::Notify;

/// How many transfers are in progress, and how often one has begun or ended.
pub(super) struct Transfers {
    pub in_progress: Cell<usize>,
    pub changes: Cell<u64>,
    pub done: Notify,
}

impl Default for Transfers {
    fn default() -> Transfers {
        Transfers { in_progress: Cell::new(0), changes: Cell::new(0), done: Notify::new() }
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
