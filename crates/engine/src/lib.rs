//! The storage engine: a logged store of checksummed blocks on one device, with transactions,
//! B+trees, an allocator, and the table of clients; and what checks, scrubs and repairs these. It
//! knows no file.
//!
//! Invariants:
//! - one operation is one transaction: it takes effect and survives as a whole
//!   ([`txn`], [`state`]);
//! - after a crash the state is that after some prefix of the transactions, and the prefix
//!   includes every transaction that the store acknowledged as durable ([`log`]);
//! - everything runs on one thread; no lock is held across an await.

pub mod alloc;
pub mod blobs;
pub mod btree;
pub mod cache;
pub mod check;
pub mod clients;
pub mod cost;
#[cfg(test)]
mod crash_tests;
pub mod device;
pub mod error;
pub mod format;
pub mod log;
pub mod repair;
pub mod scrub;
pub mod scrubber;
pub(crate) mod state;
pub mod store;
pub mod stream;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod txn;
