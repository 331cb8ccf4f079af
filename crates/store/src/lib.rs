//! MFS, the metadata file system: a logged store of checksummed blocks, which holds
//! the namespace, the layouts and the space of Redbud.
//!
//! Invariants:
//! - one operation is one transaction: it takes effect and survives as a whole
//!   ([`txn`], [`state`]);
//! - after a crash the state is that after some prefix of the transactions, and the prefix
//!   includes every transaction that the store acknowledged as durable ([`log`]);
//! - everything runs on one thread; no lock is held across an await.

pub mod block;
pub mod btree;
pub mod cache;
mod checkpoint;
pub mod clients;
mod commit;
#[cfg(test)]
mod crash_tests;
mod device;
pub mod diff;
pub mod dump;
pub mod error;
pub mod features;
mod fetch;
pub mod format;
pub mod fsck;
#[cfg(test)]
mod golden;
mod inspect;
pub mod log;
mod max_tree;
pub mod metaspace;
pub mod mfs;
pub mod mkfs;
pub mod names;
pub mod open;
mod recovery;
pub mod reservation;
pub mod roots;
pub mod scrub;
pub mod space;
mod state;
pub mod superblock;
mod sweep;
#[cfg(test)]
mod testing;
pub mod trees;
pub mod txn;
pub mod volatile_state;
mod zones;

pub use block::{Block, BlockType};
pub use btree::{RootLocation, Tree};
pub use error::{Stop, StoreError};
pub use features::{Feature, Features};
pub use format::slot::SlotSize;
pub use inspect::BlockOwner;
pub use mfs::{Cost, Identity, Mfs, Reserve, Usage};
pub use mkfs::{FormatOptions, PagFormat};
pub use names::{
    AllPaths, DirEntry, DirPlacement, InodeCounts, MapLimits, NewInode, Paths, SearchCounts,
    SubdirCursor, Subdirectory,
};
pub use open::OpenOptions;
pub use roots::RootId;
pub use space::{ALL_FILES, LayoutAhead, LayoutLimits, PagState};
pub use txn::Txn;
pub use volatile_state::VolatileState;
pub use zones::{ZoneDevice, data_label, foreign_devices, label_on};
