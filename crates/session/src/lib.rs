//! Sessions between a client and a server, whatever the server does: greeting, slots, exactly once,
//! replay after a restart, reconnection, and peers that no longer answer.
//!
//! A [`proto::message::Peer`] names the operations. The crate knows nothing of inodes, leases on
//! them, or files: what a request means, its user decides.
//!
//! Invariants:
//! - a request takes effect once, however often its connection breaks or the server restarts;
//! - a client keeps what was answered until it is durable, within a bound, and replays it to the
//!   server that answered it, and to no other;
//! - both sides speak the highest version that both know, and use the abilities that both have;
//! - a client goes on with the server that it knows, or not at all;
//! - where keys are asked for, nobody has a session by TCP who has not proved one.

mod arriving;
pub mod client;
mod link;
mod outgoing;
pub mod server;

pub use link::Link;
pub use outgoing::Outgoing;
