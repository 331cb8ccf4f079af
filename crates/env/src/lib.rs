//! The seam: time, randomness, tasks, sockets, devices, the FUSE channel.
//!
//! Everything except `fuse` and `cli` reaches the outside world only through these types.
//!
//! Invariants:
//! - tasks are `!Send` and never leave their thread; threads that share state form an executor
//!   group ([`run_group`]): one of them runs tasks at a time;
//! - under each executor is one driver: io_uring, epoll with threads, or a simulated
//!   world; the code above cannot tell which;
//! - a buffer passed to an operation belongs to the driver until that operation
//!   has completed, whatever happens to the future.

mod buffer;
mod disk;
mod driver;
mod env;
mod executor;
mod executor_group;
mod fuse;
mod lane;
mod mailbox;
mod meter;
mod net;
mod os;
mod run_token;
pub mod sim;
pub mod sync;
mod threads;
mod timer;

pub use buffer::IoBuf;
pub use disk::{Disk, PARTS_MAX};
pub use driver::{DiskOptions, LockScope, Part};
pub use env::{Env, Join};
pub use executor::TERM_OVER;
/// A future of this thread in a box. An entry of a crate yields one, so that the code behind it is
/// compiled once, in that crate, and not in each that calls it.
pub type LocalFuture<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + 'a>>;

pub use fuse::{FuseChannel, FuseRequest, NotifyLane, UringOptions};
pub use net::{Listener, Stream};
pub use os::signal::asked_to_stop;
pub use os::{raise_open_files, run, run_group};

/// The driver that a production executor uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DriverKind {
    /// io_uring if the kernel has it, else epoll and threads.
    #[default]
    Auto,
    /// io_uring.
    Ring,
    /// epoll and threads.
    Fallback,
}
