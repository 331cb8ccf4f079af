//! The allocator of metadata blocks.

pub mod max_tree;
pub mod metaspace;
pub mod reservation;
