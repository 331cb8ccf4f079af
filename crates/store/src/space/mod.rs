//! Data space: the layouts of files, and who owns the blocks of the data zones.
//!
//! Invariants:
//! - every block above a PAG's label is in exactly one state: free, in a client's pool
//!   (quarantined with it), mapped by one file, or freed;
//! - blocks leave a pool only into a layout or back to free, and a layout only to freed;
//! - freed blocks become free when the log is durable beyond the record that freed
//!   them, no lease holds them back and no evicted client could still write them;
//! - the counts in the PAG table are the sums of the trees.

pub(crate) mod ahead;
pub mod content;
pub mod freed;
pub mod frozen;
pub mod grant;
pub mod layout;
pub(crate) mod near;
pub mod pags;
pub mod pool;
pub mod runs;
pub mod splice;

use std::collections::BTreeMap;

use types::{HashMap, Ino, PagId};

pub use ahead::{LayoutAhead, LayoutLimits};
pub use frozen::ALL_FILES;
pub use pags::PagState;

/// What the allocator remembers in memory.
#[derive(Default, Debug)]
pub(crate) struct Hints {
    /// Where the last grant of each PAG ended.
    pub(crate) cursors: BTreeMap<PagId, u64>,
    /// Where the last look through the freed tree ended.
    pub(crate) freed_at: Option<(PagId, u64)>,
    /// Files whose freed blocks must wait, with the number of holds.
    pub(crate) holds: HashMap<Ino, u32>,
    /// Files with a layout block that they do not use.
    pub(crate) unused: ahead::Unused,
}

#[cfg(test)]
mod content_tests;
#[cfg(test)]
mod fragment_tests;
#[cfg(test)]
mod tests;
