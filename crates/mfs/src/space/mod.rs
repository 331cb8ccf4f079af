//! Data space: who owns the blocks of the data zones.
//!
//! Invariants:
//! - every block above a PAG's label is in exactly one state: free, in a client's pool
//!   (quarantined with it), mapped by one file, freed, or lent to another shard; of a zone that
//!   another shard has lent blocks of, that holds for these blocks;
//! - blocks leave a pool only into a layout or back to free, and a layout only to freed;
//! - freed blocks become free when the log is durable beyond the record that freed
//!   them, no lease holds them back and no evicted client could still write them;
//! - the counts in the PAG table are the sums of the trees.

mod clients;
mod freed;
mod frozen;
mod given;
mod grant;
mod lent;
#[cfg(test)]
mod lent_tests;
mod owner;
mod pags;
mod pool;
mod returned;
mod runs;
mod targets;
mod view;

pub use frozen::ALL_FILES;
pub(crate) use given::GIVEN;
pub use grant::GRANT_PIECES;
pub use lent::{LOAN_RUNS, Loan};
pub use owner::BlockOwner;
pub use pags::PagState;
pub use returned::RETURNED_MAX;
pub use targets::{OBJECTS_TAKEN, TARGET_ADDRESS_MAX};
pub use view::Space;

#[cfg(test)]
mod tests;
