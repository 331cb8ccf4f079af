//! Labels: what a device belongs to, and what its slices hold.
//!
//! Invariants:
//! - everything that opens a device reads its label first, and refuses a device or slice that is
//!   not meant for it: a client refuses metadata, a server takes only what its metadata name;
//! - labels are read and written here only;
//! - a label has two copies. While one of them changes, the other one is whole and stable.

mod copies;
mod device;
mod format;

pub use copies::{Choice, CopyError, CopyResult, Place, choose};
pub use device::{Damage, Found, NoLabel, Why, erase, is_ours, read, update, write_new};
pub use format::{
    Contents, LABEL_MAGIC, LABEL_VERSION, Label, LabelError, SLICES_MAX, Slice, SliceKind,
    UNRELEASED_LABEL_MAGIC,
};

/// Writes both copies of a label to a simulated disk, at once and stable.
pub fn put(disk: &env::sim::SimDisk, label: &Label) {
    use types::limits::BLOCK_U64;
    for block in [0, label.blocks - 1] {
        disk.poke(block * BLOCK_U64, &label.encode());
    }
}
