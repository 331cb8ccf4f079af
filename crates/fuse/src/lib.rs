//! The kernel adapter: a thin FUSE transport, the trait that a mounted file
//! system implements, and the mount of a client.
//!
//! Invariants:
//! - this is the only crate that knows errno and the kernel's numbers ([`errno`], [`abi`]);
//! - the executor that took a request serves it to its end;
//! - whatever bytes arrive, a request gets one answer and nothing panics;
//! - the kernel trusts nothing for longer than the file system said.

pub mod abi;
mod adapter;
mod counters;
pub mod decode;
mod dispatch;
pub mod errno;
mod executor_pool;
pub mod fs;
pub mod init;
mod interrupt;
mod locks;
pub mod mount;
mod mounted;
pub mod notify;
mod privileges;
mod reply;
mod session;

pub use counters::REQUESTS_XATTR;
pub use executor_pool::{EXECUTORS_XATTR, executors};
pub use fs::Filesystem;
pub use interrupt::{Requests, Waiting};
pub use mount::{MountOptions, mount, unmount};
pub use mounted::{
    ClientMount, Introspection, MountError, Mounting, mount_and_serve, mount_client,
};
pub use notify::{NotifiableKernel, Notifier, NotifySupport};
pub use session::{ServeOptions, serve};
