//! What the allocator of data space keeps in memory.

use std::collections::BTreeMap;

use types::{HashMap, Ino, PagId};

use crate::volatile::layouts::UnusedLayoutBlocks;

/// The allocator's state in memory.
#[derive(Default, Debug)]
pub(crate) struct SpaceHints {
    /// Where the last grant of each PAG ended.
    pub(crate) cursors: BTreeMap<PagId, u64>,
    /// Where the last scan of the freed tree ended.
    pub(crate) freed_at: Option<(PagId, u64)>,
    /// Files whose freed blocks must wait, with the number of holds.
    pub(crate) holds: HashMap<Ino, u32>,
    /// Files with a layout block that they do not use.
    pub(crate) unused: UnusedLayoutBlocks,
}
