//! MFS, the metadata file system: the namespace, the layouts and the space of Redbud, in the
//! blocks of a store of the [`engine`].

pub mod dump;
#[cfg(test)]
mod engine_tests;
pub mod format;
pub mod fsck;
#[cfg(test)]
mod golden;
pub mod handle;
pub mod inspect;
mod intents;
pub mod journal;
pub mod layouts;
pub mod mkfs;
pub mod names;
pub mod new_device;
pub mod open;
mod run;
pub mod scrub;
pub mod space;
#[cfg(test)]
pub(crate) mod testing;
pub mod trees;
pub mod txn;
pub mod volatile;
mod zone_files;
pub(crate) mod zones;

pub use engine::btree::{self, RootLocation, Tree};
pub use engine::cost::{Cost, Reserve};
pub use engine::error::{Stop, StoreError};
pub use engine::format::block::{self, Block, BlockType};
pub use engine::format::features::{Feature, Features};
pub use engine::format::roots::RootId;
pub use engine::format::superblock;
pub use engine::store::Identity;
pub use format::object::{OBJECT_TARGETS_MAX, ObjectRecord};
pub use format::outside::Outside;
pub use format::slot::SlotSize;
pub use format::slot_size::SlotFeatures;
pub use format::space::{PagUse, ZoneKind};
pub use handle::{Mfs, Usage};
pub use intents::Intents;
pub use layouts::{LayoutAhead, LayoutLimits};
pub use mkfs::{FormatOptions, PagFormat};
pub use names::{
    AllPaths, Arrival, DirEntry, DirPlacement, FileArrival, HOMES_MAX, InodeCounts, MapLimits,
    NamesHere, NewInode, Paths, PlacedName, SearchCounts, SubdirCursor, Subdirectory, Top, Within,
};
pub use open::OpenOptions;
pub use space::{
    ALL_FILES, BlockOwner, GRANT_PIECES, LOAN_RUNS, Loan, OBJECTS_TAKEN, PagState, RETURNED_MAX,
    TARGET_ADDRESS_MAX,
};
pub use txn::Txn;
pub use volatile::VolatileState;
pub use zone_files::ZoneWalk;
pub use zones::{ZoneDevice, data_label, foreign_devices, label_on};
