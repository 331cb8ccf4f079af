//! The kernel adapter: a thin FUSE transport, the trait that a mounted file
//! system implements, and the mount of a client.
//!
//! Invariants:
//! - the only place that knows errno and the kernel's numbers ([`errno`], [`abi`]);
//! - a request is served to its end by the executor that took it;
//! - whatever bytes arrive, a request gets one answer and nothing panics;
//! - the kernel believes nothing for longer than the file system said.

pub mod abi;
mod adapter;
mod counters;
mod crew;
pub mod decode;
mod dispatch;
pub mod errno;
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
pub use crew::{EXECUTORS_XATTR, executors};
pub use fs::Filesystem;
pub use mount::{MountOptions, mount, unmount};
pub use mounted::{ClientMount, MountError, Mounting, mount_and_serve, mount_client};
pub use notify::{Knows, Notified, Notifier};
pub use session::{ServeOptions, serve};
