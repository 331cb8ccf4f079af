//! The overlay: copies of the blocks that a running transaction changes.

use types::{HashMap, MetaBlock, Transno};

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

/// Runs when its transaction has succeeded, with the transaction's number.
pub(crate) type Hook = Box<dyn FnOnce(Transno)>;

/// Memory that one transaction leaves to the next.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) layers: Vec<Layer>,
    pub(crate) index: HashMap<u64, u32>,
    pub(crate) space_change: SpaceChange,
    pub(crate) hooks: Vec<Hook>,
}
