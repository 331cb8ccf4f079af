//! The data zones that come while the client is there, and those that are lost or leave; `zones.rs`
//! changes this.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use env::sync::Notify;
use types::PagId;

/// Zones that are on their way into the table of the disks.
#[derive(Default)]
pub(super) struct Arrivals {
    /// Zones whose devices are being opened.
    pub opening: RefCell<BTreeSet<PagId>>,
    /// Zones that cannot be used before the next mount.
    pub refused: RefCell<BTreeSet<PagId>>,
    pub opened: Notify,
    /// Number of lost zones.
    pub lost: Cell<usize>,
    /// Those that the server last named.
    pub lost_ids: RefCell<BTreeSet<PagId>>,
    /// Those that drain, as the server last said: new blocks go there only for want of others.
    pub leaving: RefCell<BTreeSet<PagId>>,
    /// Those that this client itself places nothing in.
    pub shunned: RefCell<BTreeSet<PagId>>,
}

impl Arrivals {
    /// The zones that are lost, as the server last said.
    pub fn lost(&self) -> BTreeSet<PagId> {
        self.lost_ids.borrow().clone()
    }

    /// Do blocks leave this zone, and none come?
    pub fn is_leaving(&self, zone: PagId) -> bool {
        self.leaving.borrow().contains(&zone) || self.shunned.borrow().contains(&zone)
    }

    /// Is any zone lost?
    pub fn any_lost(&self) -> bool {
        self.lost.get() > 0
    }
}
