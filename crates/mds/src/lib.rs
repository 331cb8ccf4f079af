//! The metadata server.
//!
//! Invariants:
//! - an operation is one transaction of the store, run at one instant: it sees no
//!   other operation halfway, and holds no lock but gates while it waits;
//! - nothing a client may cache is changed before every other client that may cache
//!   it has given up the right, or has been evicted;
//! - a reply that rests on another client's change is sent when that change is durable;
//! - every request of a session takes effect once.
//!
//! [`request`] drives a request through its operations ([`ops`]); [`recall`] waits for
//! others; [`hello`], [`session`] and [`connection`] are the way in and out; [`grace`],
//! [`evict`] and [`freer`] are what happens around the operations.

pub mod config;
mod connection;
mod contention;
mod crowd;
mod cx;
mod devices;
pub mod evict;
mod freer;
mod gate;
mod glimpse;
mod grace;
mod hello;
mod ledger;
mod onlooker;
mod ops;
mod recall;
mod recent;
mod record;
mod request;
mod scrub;
mod server;
mod session;
mod spare;
mod start;
pub mod status;
mod turns;
mod unheard;

pub use config::{Config, Log, PagPlace, SCRUB_RATE};
pub use ledger::{Lease, Ledger, Standing};
pub use onlooker::{Executed, Onlooker, Pointed};
pub use server::ServeError;
pub use start::{Mds, serve};
pub use status::Status;
