//! The allocator of metadata blocks.

pub(crate) mod max_tree;
pub mod metaspace;
pub mod reservation;
