//! A client of a Redbud file system: sessions, leases, the namespace, and the content of files.
//!
//! Invariants:
//! - the client answers from memory only what is covered by a right that it holds, and by a session
//!   whose lease has not run out;
//! - it applies replies and pushes of the server in the order of their arrival, before any waiting
//!   operation sees them;
//! - a request in service holds an I/O guard of its right; the client returns a right only when no
//!   guard is left;
//! - the client keeps acknowledged work until the server says that it is durable.

pub mod api;
pub mod boundary;
mod client;
mod core;
pub mod data;
mod data_lease;
mod data_rpc;
mod early_recalls;
mod handles;
mod homes;
mod inode;
mod linger;
mod locks;
mod names;
mod ops;
mod pages;
mod path_hints;
mod ranges;
mod recall;
mod report;
mod rpc;
mod servers;
mod unanswered;
mod waits;
mod why;

pub use api::*;
pub use boundary::CommitCounts;
pub use client::Client;
pub use ops::migrating::{MigrateStep, Migration};
pub use ops::move_directory::{DirectoryMove, Followed};
pub use ops::moving::{FileMove, NotMoved};
pub use waits::{Named, Wait, Waits};
