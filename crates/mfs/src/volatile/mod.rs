//! The volatile state: what the namespace and the space allocator keep in memory besides the
//! blocks, such as name indexes, chunk maps and hints.
//!
//! Invariants:
//! - the store can rebuild all of it from the blocks, except the holds on freed space,
//!   which belong to leases and end with this process;
//! - changes that depend on a transaction are in [`Pending`] until the transaction has
//!   succeeded; pure caches of committed state may be filled at any time.

pub mod layouts;
pub(crate) mod listing;
pub mod maps;
pub mod placement;
pub(crate) mod regions;
pub mod searches;
pub(crate) mod space;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use types::{Ino, ShardId, Transno};

use crate::names::{NameIndexes, PendingNames, Replays};
use layouts::LayoutLimits;
use listing::ListingReadahead;
use maps::MapLimits;
use placement::Placement;
use regions::RegionReads;
use searches::{PendingSearches, Searches};
use space::SpaceHints;

/// The volatile state of a store.
#[derive(Default)]
pub struct VolatileState {
    pub(crate) names: NameIndexes,
    /// The replays of clients after a restart.
    pub(crate) replays: Replays,
    pub(crate) space: SpaceHints,
    pub(crate) placement: Placement,
    pub(crate) namespace: Searches,
    pub(crate) listed: ListingReadahead,
    pub(crate) nearby: RegionReads,
    /// The sizes from which on directories have name maps.
    pub(crate) limits: MapLimits,
    /// How layout blocks are used.
    pub(crate) layouts: LayoutLimits,
    /// Inodes with another home than their numbers say.
    pub(crate) homes: SharedHomes,
}

/// Homes of inodes. The file system has them too: it is asked for them while transactions run.
pub(crate) type SharedHomes = Rc<RefCell<BTreeMap<Ino, ShardId>>>;

/// The volatile state, as its file system and the hooks of a transaction share it.
pub(crate) type SharedState = Rc<RefCell<VolatileState>>;

/// Changes of the running transaction to the volatile state.
#[derive(Default)]
pub(crate) struct Pending {
    pub(crate) names: PendingNames,
    pub(crate) namespace: PendingSearches,
}

impl VolatileState {
    /// Applies the changes of a transaction that succeeded.
    pub(crate) fn apply(&mut self, pending: Pending, number: Transno) {
        self.names.apply(pending.names, number);
        self.namespace.apply(pending.namespace);
    }
}
