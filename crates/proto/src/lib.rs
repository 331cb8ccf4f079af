//! Messages between clients and metadata servers, and the pure protocol
//! machines: sessions, leases, locks.
//!
//! Invariants:
//! - decoders are total: any bytes give a message or [`Malformed`], with memory
//!   bounded by the frame's length;
//! - fields are only ever appended; an unknown tail is ignored, an unknown id is
//!   answered "unsupported";
//! - machines take time as an argument and do no I/O.

pub mod frame;
pub mod lease_client;
pub mod lease_server;
pub mod lock_server;
pub mod mds;
pub mod parts;
pub mod slots;
pub mod wire;

pub use wire::{Malformed, Reader, Wire};
