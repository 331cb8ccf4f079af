//! What lies on the metadata device, one module per structure. Little-endian,
//! except the keys of trees, which are big-endian so that bytes sort as numbers.

pub mod blob;
pub mod chunk;
pub mod extent;
pub mod layout;
pub mod lmap;
pub mod namespace;
pub mod number;
pub mod reply;
pub mod slot;
pub mod space;
