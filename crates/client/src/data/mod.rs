//! The content of files: layouts, dirty buffers, space, commits.
//!
//! Invariants:
//! - data before metadata: the client sends an edit only when the writes that it refers to have
//!   completed, and a flush of their device that began later has succeeded;
//! - two writes to one block of a file are never in flight at once. So neither are two writes to
//!   one block of a device: a write waits for those that an earlier session has in flight;
//! - when an edit removes a block from a file by truncation or punching, this client has no read or
//!   write of the block in flight;
//! - accepted bytes have their blocks reserved in the pool: they cannot fail for space later;
//! - bytes of a block that were never written read as zeros, in memory and on the device: the
//!   client fills partial blocks, and zeroes the remainder of the last block before the size passes
//!   it;
//! - the client submits nothing new to a device after the session's lease has run out.
//!
//! Files that lie in objects at targets follow the same rules ([`objects`]): their blocks always
//! have a place, so that nothing is reserved and nothing is mapped.

mod arrivals;
mod boundary;
mod budget;
mod class;
mod commit;
mod context;
mod device;
mod device_open;
mod device_queue;
mod device_state;
mod device_watch;
mod device_writes;
mod disks;
mod double_pool;
mod durability;
mod file;
mod given_up;
mod idle;
mod inline;
mod inline_state;
mod intake;
mod launch;
mod losses;
mod moving;
mod objects;
mod pace;
mod pause;
mod pipeline;
mod place;
mod placing;
mod pool;
mod ranges;
mod read;
mod resize;
mod schedule;
mod sealed;
mod segments;
mod session_numbers;
mod space;
mod stamps;
mod stillness;
mod striped;
mod sync;
mod target;
mod target_room;
mod transfers;
mod validate;
mod why;
mod windows;
mod write;
mod zones;

#[cfg(test)]
mod tests;

pub use context::DataContext;
pub use disks::DataConfig;
pub use file::File;
pub use moving::{MoveStep, Room};
pub use target::TargetSettings;
