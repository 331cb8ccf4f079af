//! The metadata server.
//!
//! Invariants:
//! - an operation is one transaction of the store and runs at one instant: it never sees another
//!   operation half done, and while it waits it holds nothing but gates;
//! - before the server changes anything that a client may cache, every other client that may cache
//!   it has given up the right or has been evicted;
//! - a reply that depends on another client's change leaves when that change is durable;
//! - every request of a session takes effect once.
//!
//! [`request`] drives a request through its operations ([`ops`]); [`recall`] waits for other
//! clients; [`hello`], [`session`] and [`connection`] connect clients and disconnect them;
//! [`grace`], [`evict`] and [`reaper`] do what happens around the operations.

pub mod config;
mod connection;
mod contention;
mod context;
mod devices;
pub mod evict;
mod gate;
mod glimpse;
mod grace;
mod hello;
mod introspection;
mod lease_pressure;
mod lock_fairness;
mod observer;
mod ops;
mod pool_reclaim;
mod reaper;
mod recall;
mod record;
mod request;
mod scrub;
mod server;
mod session;
mod start;
pub mod status;
mod unacknowledged;
mod uncommitted;

pub use config::{Config, Log, PagPlace, SCRUB_RATE};
pub use introspection::{Introspection, Lease, SessionStanding};
pub use observer::{CommittedBlocks, Executed, Observer};
pub use server::ServeError;
pub use start::{Mds, serve};
pub use status::Status;
