//! The engine's structures on the device, one module each. All numbers are little-endian, except
//! the keys of trees: these are big-endian, so that their bytes sort as numbers.

pub mod bitmap;
pub mod blob;
pub mod block;
pub mod features;
pub mod journal;
pub mod reply;
pub mod roots;
pub mod superblock;
