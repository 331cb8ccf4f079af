//! The data zones that come while the client is there, and those that are lost or leave; `zones.rs`
//! changes this.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use env::sync::Notify;
use types::{PagId, ServerId};

/// Zones that are on their way into the table of the disks.
#[derive(Default)]
pub(super) struct Arrivals {
    /// Zones whose devices are being opened, and of which server.
    pub opening: RefCell<BTreeSet<(PagId, ServerId)>>,
    /// Zones that cannot be used before the next mount.
    pub refused: RefCell<BTreeSet<(PagId, ServerId)>>,
    pub opened: Notify,
    /// Number of lost zones.
    pub lost: Cell<usize>,
    /// Those that the servers last named.
    pub lost_ids: NamedZones,
    /// Those that drain, as the servers last said: new blocks go there only for want of others.
    pub leaving: NamedZones,
    /// Those that this client itself places nothing in.
    pub shunned: RefCell<BTreeSet<PagId>>,
}

impl Arrivals {
    /// The zones that are lost, as the servers last said.
    pub fn lost(&self) -> BTreeSet<PagId> {
        self.lost_ids.all()
    }

    /// Do blocks leave this zone, and none come?
    pub fn is_leaving(&self, zone: PagId) -> bool {
        self.leaving.contains(zone) || self.shunned.borrow().contains(&zone)
    }

    /// Is any zone lost?
    pub fn any_lost(&self) -> bool {
        self.lost.get() > 0
    }
}

/// Zones that each server has named when it last spoke of them. Several may name a target.
#[derive(Default)]
pub(super) struct NamedZones(RefCell<BTreeMap<ServerId, BTreeSet<PagId>>>);

impl NamedZones {
    /// The server names these, and no others.
    pub fn set(&self, server: ServerId, zones: &[PagId]) {
        let mut named = self.0.borrow_mut();
        match zones {
            [] => drop(named.remove(&server)),
            zones => drop(named.insert(server, zones.iter().copied().collect())),
        }
    }

    /// Those that any server names.
    pub fn all(&self) -> BTreeSet<PagId> {
        self.0.borrow().values().flatten().copied().collect()
    }

    /// Does any server name this zone?
    pub fn contains(&self, zone: PagId) -> bool {
        self.0.borrow().values().any(|zones| zones.contains(&zone))
    }

    /// Is none named?
    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }
}
