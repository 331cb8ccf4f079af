//! What the cluster knows of each shard.

use std::cell::{Cell, RefCell};

use mds::Introspection;
use mfs::Mfs;
use types::Instant;

/// A shard, and the server that has it, or had it last.
#[derive(Default)]
pub(crate) struct Shard {
    /// Starts of its server so far.
    pub(crate) starts: Cell<u64>,
    /// When it was last killed or restarted.
    pub(crate) restarted: Cell<Option<Instant>>,
    /// Kills so far.
    pub(crate) kills: Cell<u64>,
    /// The epoch of the running server; 0 without one.
    pub(crate) epoch: Cell<u32>,
    /// The store of the running server.
    pub(crate) store: RefCell<Option<Mfs>>,
    /// Its introspection.
    pub(crate) ledger: RefCell<Option<Introspection>>,
}
