//! The operations, one file per family.

mod io;
mod listing;
pub(crate) mod lock;
mod lookup;
pub(crate) mod migrating;
mod modify;
pub(crate) mod move_directory;
pub(crate) mod moving;
pub(crate) mod open;
mod root;
mod setattr;
pub(crate) mod space;
mod take_back;
mod xattr;
