//! The namespace: directories with their inodes embedded.
//!
//! Invariants:
//! - an inode is in exactly one slot: its home slot, the slot that `moved` names,
//!   or, without a name, a slot of the attic;
//! - occupancy of a directory changes only through this module, which keeps the
//!   name index and the slots the same;
//! - slots never move while a directory lives, so a readdir cookie (position + 1)
//!   stays valid;
//! - every operation is bounded, except those that say how far they came.

pub mod ahead;
pub mod blobs;
pub mod content;
pub mod entry;
pub mod find;
pub mod free;
pub mod idle;
pub mod index;
pub mod inode;
pub mod lmap;
pub(crate) mod namespace;
pub(crate) mod nearby;
pub mod path;
pub(crate) mod placement;
pub mod readdir;
pub mod rename;
pub mod xattr;

pub use inode::{InodeCounts, NewInode};
pub use lmap::Limits as MapLimits;
pub use namespace::{Cursor, SearchCounts, Subdirectory};
pub use path::{AllPaths, PATHS_MAX, Paths};
pub use placement::DirPlacement;
pub use readdir::DirEntry;

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod huge_tests;
#[cfg(test)]
mod large_tests;
#[cfg(test)]
mod tests;
