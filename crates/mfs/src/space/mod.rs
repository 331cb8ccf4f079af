//! Data space: the layouts of files, and who owns the blocks of the data zones.
//!
//! Invariants:
//! - every block above a PAG's label is in exactly one state: free, in a client's pool
//!   (quarantined with it), mapped by one file, or freed;
//! - blocks leave a pool only into a layout or back to free, and a layout only to freed;
//! - freed blocks become free when the log is durable beyond the record that freed
//!   them, no lease holds them back and no evicted client could still write them;
//! - the counts in the PAG table are the sums of the trees.

pub mod freed;
pub mod frozen;
pub mod grant;
pub mod inline_data;
pub mod layout;
pub(crate) mod layout_ahead;
pub(crate) mod near;
pub mod pags;
pub mod pool;
pub mod runs;
pub mod splice;

pub use frozen::ALL_FILES;
pub use grant::GRANT_PIECES;
pub use pags::PagState;

pub use crate::volatile::layouts::{LayoutAhead, LayoutLimits};

#[cfg(test)]
mod fragment_tests;
#[cfg(test)]
mod inline_data_tests;
#[cfg(test)]
mod tests;
