//! The log as a device of its own, for administrators: where it is, and moving it.

pub use engine::device::log::Disks;
pub use engine::format::journal::JournalHeader;
pub use engine::store::relocate::{LogState, Moved, is_of, look, move_log};
