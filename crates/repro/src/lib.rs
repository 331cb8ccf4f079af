//! What the papers' figures show, made again, and what else tells where Redbud's time and accesses
//! go.
//!
//! Invariants:
//! - no part of the product depends on this crate: what is measured is the store, the server and
//!   the messages that users run, beside the traditional layout, which only this crate knows;
//! - what is compared gets the same calls in the same order; what runs in virtual time gives the
//!   same figures on every machine;
//! - processes that work on loop devices are this program, as `bench` starts its workers: they can
//!   be waited for with a limit and killed;
//! - whatever was started, mounted, attached or made is taken away, also after an error or an
//!   interrupt.
// Above the seam: these are programs that start processes and read clocks and files.
#![allow(clippy::disallowed_methods)]

pub mod aging;
pub mod alone;
pub mod figures;
pub mod inline;
pub mod layouts;
pub mod metarates;
pub mod mfs;
pub mod placement;
pub mod price;
pub mod server;
pub mod small;
