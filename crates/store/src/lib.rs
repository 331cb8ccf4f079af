//! MFS, the metadata file system: a logged store of checksummed blocks, which holds
//! the namespace, the layouts and the space of Redbud.

pub mod engine;
pub mod mfs;

pub use engine::alloc::{metaspace, reservation};
pub use engine::btree::{self, RootLocation, Tree};
pub use engine::error::{self, Stop, StoreError};
pub use engine::format::block::{self, Block, BlockType};
pub use engine::format::features::{self, Feature, Features};
pub use engine::format::roots::{self, RootId};
pub use engine::format::superblock;
pub use engine::log;
pub use engine::store::inspect::BlockOwner;
pub use engine::store::open::{self, OpenOptions};
pub use engine::store::{Cost, Identity, Mfs, Reserve, Usage};
pub use engine::txn::{self, Txn};
pub use mfs::format::slot::SlotSize;
pub use mfs::mkfs::{self, FormatOptions, PagFormat};
pub use mfs::names::{
    self, AllPaths, DirEntry, DirPlacement, InodeCounts, MapLimits, NewInode, Paths, SearchCounts,
    SubdirCursor, Subdirectory,
};
pub use mfs::space::{self, ALL_FILES, LayoutAhead, LayoutLimits, PagState};
pub use mfs::volatile::{self as volatile_state, VolatileState};
pub use mfs::zones::{ZoneDevice, data_label, foreign_devices, label_on};
pub use mfs::{dump, format, fsck, scrub, trees};
