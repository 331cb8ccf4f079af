//! The namespace: directories with their inodes embedded.
//!
//! Invariants:
//! - an inode is in exactly one slot: its home slot, the slot that `moved` names, or, if it has no
//!   name, a slot of the orphan directory;
//! - only this module changes which slots of a directory are in use, and it keeps the name index
//!   equal to the slots;
//! - slots never move while a directory exists, so a readdir cookie (position + 1) stays valid;
//! - every operation is bounded, except those that return how far they came.

pub(crate) mod chunk_numbers;
pub mod dir_content;
pub mod entry;
pub mod find;
pub mod free;
pub mod free_slots;
pub mod index;
pub mod inode;
pub mod name_map;
pub(crate) mod namespace;
pub mod path;
pub(crate) mod placement;
pub(crate) mod read_around;
pub mod readahead;
pub mod readdir;
pub mod rename;
pub mod slot_scan;
pub mod xattr;

pub use inode::{InodeCounts, NewInode};
pub use namespace::{SubdirCursor, Subdirectory};
pub use path::{AllPaths, PATHS_MAX, Paths};
pub use readdir::DirEntry;

pub use crate::volatile::maps::MapLimits;
pub use crate::volatile::placement::DirPlacement;
pub use crate::volatile::searches::SearchCounts;

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod huge_tests;
#[cfg(test)]
mod large_tests;
#[cfg(test)]
mod replay_tests;
#[cfg(test)]
mod tests;
