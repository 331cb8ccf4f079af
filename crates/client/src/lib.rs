//! A client of a Redbud file system: sessions, leases, the namespace, and the
//! content of files.
//!
//! Invariants:
//! - what is answered from memory is covered by a right that this client holds
//!   and a session whose lease has not run out;
//! - replies and pushes of the server are absorbed in the order of their arrival,
//!   before any waiting operation sees them;
//! - a request in service holds a use of its right; a right is returned only
//!   when nothing uses it;
//! - acknowledged work is kept until the server says that it is durable.

pub mod api;
pub mod boundary;
mod client;
mod core;
pub mod data;
mod data_lease;
mod early_recalls;
mod handles;
mod inode;
mod linger;
mod locks;
mod names;
mod ops;
mod pages;
mod path_hints;
mod ranges;
mod recall;
mod rpc;
mod unanswered;

pub use api::*;
pub use client::Client;
