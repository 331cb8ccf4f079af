//! The namespace: directories with their inodes embedded.
//!
//! Invariants:
//! - an inode is in exactly one slot: its home slot, the slot that `moved` names, or, if it has no
//!   name on this shard, a slot of the orphan directory;
//! - only this module changes which slots of a directory are in use, and it keeps the name index
//!   equal to the slots;
//! - slots never move while a directory exists, so a readdir cookie (position + 1) stays valid;
//! - every operation is bounded, except those that return how far they came.

mod chunk_numbers;
mod dir_content;
mod entry;
mod find;
mod free;
mod free_slots;
mod homes;
mod index;
mod inode;
mod migrate;
mod name_map;
mod namespace;
mod outside;
mod path;
mod placement;
mod read_around;
mod readahead;
mod readdir;
mod rename;
mod slot_scan;
mod view;
mod xattr;

pub(crate) use chunk_numbers::{ChunkNumbers, Replays};
pub(crate) use find::Spot;
pub use homes::HOMES_MAX;
pub(crate) use index::{Chunk, NameIndexes, PendingNames, Position};
pub use inode::{InodeCounts, NewInode};
pub use migrate::{Arrival, FileArrival, PlacedName};
pub use namespace::{SubdirCursor, Subdirectory};
pub use path::{AllPaths, NamesHere, PATHS_MAX, Paths, Top};
pub(crate) use placement::trim;
pub use readdir::DirEntry;
pub(crate) use readdir::SkippedEntry;
pub use rename::Within;
pub use view::Names;

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
