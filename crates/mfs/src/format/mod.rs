//! The structures on the metadata device, one module each. All numbers are little-endian, except
//! the keys of trees: these are big-endian, so that their bytes sort as numbers.

pub mod chunk;
pub mod home;
pub mod intent;
pub mod layout;
pub mod lmap;
pub mod namespace;
pub mod number;
pub mod object;
pub mod outside;
pub mod segment;
pub mod slot;
pub mod slot_size;
pub mod space;
pub mod xattr;
