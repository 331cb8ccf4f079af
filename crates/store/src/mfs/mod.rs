//! MFS, the metadata file system: the namespace, the layouts and the space of Redbud, in the
//! blocks of a [`crate::engine`].

#[cfg(test)]
mod crash_tests;
pub mod dump;
pub mod format;
pub mod fsck;
#[cfg(test)]
mod golden;
pub mod mkfs;
pub mod names;
pub mod scrub;
pub mod space;
#[cfg(test)]
pub(crate) mod testing;
pub mod trees;
pub mod volatile;
pub(crate) mod zones;
