//! Where names and inodes lie: the embedded directories of MFS and, beside them, a traditional
//! layout on the same journal, cache and space, so that only the layout differs between what is
//! compared.
//!
//! Invariants:
//! - nothing that serves or mounts depends on this crate: it is for `repro` alone;
//! - both layouts give the same answers to the same operations, but for inode numbers, the sizes of
//!   directories and the order in which names are listed;
//! - an operation is one transaction of the store, so both survive a crash in the same way.

mod embedded;
mod layout;
mod traditional;

pub use embedded::Embedded;
pub use layout::{Layout, Listing};
pub use traditional::{Geometry, Traditional};

#[cfg(test)]
mod tests;
