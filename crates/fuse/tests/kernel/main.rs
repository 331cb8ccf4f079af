//! The kernel adapter under a real kernel. Needs root and /dev/fuse.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the test is the program that uses the mount, above the seam"
)]

mod coherence;
mod common;
mod mounts;
mod order;
