//! The overlay: copies of the blocks that a running transaction changes.

use types::{HashMap, MetaBlock};

use crate::alloc::metaspace::SpaceChange;
use crate::format::block::Block;

/// A changed block of a running transaction.
pub(crate) struct Layer {
    pub(crate) block: MetaBlock,
    pub(crate) data: Box<Block>,
    /// The transaction initialised it: its former content does not matter.
    pub(crate) fresh: bool,
    /// It differs from the cache; set at commit.
    pub(crate) changed: bool,
}

/// Memory that one transaction leaves to the next.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) layers: Vec<Layer>,
    pub(crate) index: HashMap<u64, u32>,
    pub(crate) space_change: SpaceChange,
}
