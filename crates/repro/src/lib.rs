//! The papers' figures, made again, and other measurements of where Redbud's time and accesses
//! go.
//!
//! Invariants:
//! - no part of the product depends on this crate. It measures the store, the server and the
//!   messages that users run, beside the traditional layout, which only this crate knows;
//! - contenders get the same calls in the same order; a run in virtual time gives the same figures
//!   on every machine;
//! - processes that work on loop devices are this program, as `bench` starts its workers. A wait
//!   for them has a limit, and kills them at it;
//! - a command takes away everything that it started, mounted, attached or made, also after an
//!   error or an interrupt.
// Above the seam: these are programs that start processes and read clocks and files.
#![allow(clippy::disallowed_methods)]

pub mod aging;
pub mod agreement;
pub mod alone;
pub mod burst;
pub mod cluster;
pub mod couplet;
pub mod figures;
pub mod greet;
pub mod gtc;
pub mod inline;
pub mod layouts;
pub mod loads;
pub mod metarates;
pub mod mfs;
pub mod pages;
pub mod placement;
pub mod price;
pub mod programs;
pub mod server;
pub mod shards;
pub mod shared;
pub mod small;
pub mod snapshot;
pub mod streams;
pub mod switches;
pub mod timeouts;
pub mod tree;
pub mod watch;
