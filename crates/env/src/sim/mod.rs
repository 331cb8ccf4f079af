//! The simulated side of the seam, all on one thread: virtual time, a seeded scheduler, disks
//! that remember what a power cut may leave, and connections. Connections can be slow, cut
//! or partitioned.
//!
//! Invariants:
//! - the same seed and the same program give the same run, event by event
//!   ([`SimWorld::trace`] shows it);
//! - computing takes no virtual time, except a little when tasks keep each other busy, and except
//!   for messages that have a price ([`SimOptions::price`]);
//! - a disk outlives the worlds it is attached to.
//!
//! Not modelled: writes that reach a disk after a power cut, torn sectors of 512 bytes.

mod crash;
mod disk;
mod disk_op;
mod held_up;
mod image;
mod mechanics;
mod net;
#[cfg(test)]
mod parts_tests;
mod price;
mod rng;
mod state;
#[cfg(test)]
mod stop_tests;
#[cfg(test)]
mod tests;
mod watch;
mod world;

pub use crash::{CrashImages, CrashOptions, CrashPoint, Recording, crash_images};
pub use disk::{DiskAction, DiskCounts, DiskFault, SimDisk};
pub use mechanics::{DiskModel, DiskReport, DiskRequest, Flash, HardDisk, Mechanics, RangeWrites};
pub use price::{Price, Processors};
pub use rng::SimRng;
pub use state::SimOptions;
pub use watch::{DiskEvent, DiskObservation, watch_disks};
pub use world::SimWorld;

pub(crate) use state::SimHandle;
