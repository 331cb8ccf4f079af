//! The kernel adapter under a real kernel. Needs root and /dev/fuse.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test lies above the seam: it is the program that uses the mount"
)]

mod coherence;
mod common;
mod mounts;
mod order;
