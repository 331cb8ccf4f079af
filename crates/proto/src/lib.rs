//! Messages between clients and metadata servers, and the protocol state
//! machines: sessions, leases, locks.
//!
//! Invariants:
//! - decoders are total: any bytes give a message or [`Malformed`], with memory
//!   bounded by the frame's length;
//! - new versions only append fields; a receiver ignores an unknown tail and answers an
//!   unknown id "unsupported";
//! - state machines take time as an argument and do no I/O.

pub mod capability;
pub mod commit;
pub mod content;
pub mod frame;
pub mod lease_client;
pub mod lease_server;
pub mod liveness;
pub mod lock_server;
pub mod mds;
pub mod message;
pub mod operation;
pub mod ost;
mod peer;
pub mod placement;
pub mod prealloc;
pub mod ranges;
pub mod slots;
pub mod timeout;
pub mod wire;

pub use wire::{Malformed, Reader, Wire};
