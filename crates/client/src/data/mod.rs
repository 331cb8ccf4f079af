//! The content of files: layouts, dirty buffers, space, commits.
//!
//! Invariants:
//! - data first, then the metadata that points at it: an edit is sent only when
//!   the writes it speaks of completed and a flush of their device that began
//!   later succeeded;
//! - two writes to one block of a file are never in flight at once, so two writes
//!   to one block of a device are not either: what an earlier session has in flight is waited for;
//! - a block that leaves a file by truncation or punching has no read or write of
//!   ours in flight when the edit is made;
//! - accepted bytes have their blocks reserved in the pool: they cannot fail for
//!   space later;
//! - bytes of a block that were never written read as zeros, in memory and on the
//!   device: partial blocks are filled, and the rest of the last block is zeroed
//!   before the size passes it;
//! - nothing new is submitted to a device after the session's lease has run out.

mod budget;
mod commit;
mod disks;
mod extents;
mod file;
mod inline;
mod launch;
mod parts;
mod pool;
mod read;
mod resize;
mod space;
mod sync;
mod write;

#[cfg(test)]
mod tests;

pub use commit::DataContext;
pub use disks::DataConfig;
pub use file::File;
