//! The seam: time, randomness, tasks, sockets, devices, the FUSE channel.
//!
//! Everything below `fuse` and `cli` reaches the world only through these types.
//!
//! Invariants:
//! - tasks are `!Send` and never leave their thread; threads that share state take
//!   turns ([`run_team`]): one of them runs tasks at a time;
//! - one driver under each executor: io_uring, epoll with threads, or a
//!   simulated world; the code above cannot tell them apart;
//! - a buffer handed to an operation belongs to the driver until that operation
//!   has completed, whatever becomes of the future.

mod baton;
mod buffer;
mod disk;
mod driver;
mod env;
mod executor;
mod fuse;
mod lane;
mod mailbox;
mod net;
mod os;
pub mod sim;
pub mod sync;
mod team;
mod threads;
mod timer;

pub use buffer::IoBuf;
pub use disk::{Disk, DiskOptions};
pub use env::{Env, Join};
pub use fuse::{FuseChannel, FuseRequest, NotifyLane, UringOptions};
pub use net::{Listener, Stream};
pub use os::signal::asked_to_stop;
pub use os::{run, run_team};

/// Which driver production uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DriverKind {
    /// io_uring where the kernel has it, else epoll and threads.
    #[default]
    Auto,
    /// io_uring.
    Ring,
    /// epoll and threads.
    Fallback,
}
