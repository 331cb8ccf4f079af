//! MFS, the metadata file system: a journaled store of checksummed blocks, and
//! on it the namespace, the layouts and the space of Redbud.
//!
//! Invariants:
//! - one operation is one transaction: it takes effect and survives as a whole
//!   ([`txn`], [`state`]);
//! - after a crash the state is that after some prefix of the transactions, and the prefix
//!   holds everything that was acknowledged as durable ([`journal`]);
//! - everything runs on one thread; nothing is locked across an await.

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
pub mod journal;
mod look;
mod maxima;
pub mod metaspace;
pub mod mfs;
pub mod mkfs;
pub mod names;
pub mod open;
pub mod promise;
mod recovery;
pub mod roots;
pub mod scrub;
pub mod side;
pub mod space;
mod state;
pub mod superblock;
mod sweep;
#[cfg(test)]
mod testing;
pub mod trees;
pub mod txn;
mod zones;

pub use block::{Block, BlockType};
pub use btree::{Place, Tree};
pub use error::{Stop, StoreError};
pub use features::{Feature, Features};
pub use format::slot::SlotSize;
pub use look::Owner;
pub use mfs::{Cost, Identity, Mfs, Reserve, Usage};
pub use mkfs::{FormatOptions, PagFormat};
pub use names::{
    AllPaths, DirEntry, DirPlacement, InodeCounts, MapLimits, NewInode, Paths, SearchCounts,
    SubdirCursor, Subdirectory,
};
pub use open::OpenOptions;
pub use roots::RootId;
pub use side::SideState;
pub use space::{ALL_FILES, LayoutAhead, LayoutLimits, PagState};
pub use txn::Txn;
pub use zones::{ZonePlace, data_label, label_on, strangers};
