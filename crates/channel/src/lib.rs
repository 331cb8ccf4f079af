//! What a connection is before its first frame: who is at the other end, and who else can read.
//!
//! Each node has a static key. A server keeps a list of the keys that it allows ([`Allowed`]), and
//! a client knows the keys of its servers. A handshake by the pattern XK of the Noise protocol
//! proves both ([`Initiator`], [`Responder`]). From then on every frame is encrypted
//! ([`Transport`]), unless both sides asked for the proof alone.
//!
//! Invariants:
//! - no I/O, no clock, no randomness: bytes come in and go out, and the caller draws the random
//!   ones;
//! - the cryptography is the crate `snow`'s; here are texts, framing and bounds;
//! - no input makes it panic or keep more than one message.

mod allowed;
mod handshake;
mod key;
mod transport;

pub use allowed::{Allowed, AllowedError, ENTRIES_MAX, Entry, Role, Squash};
pub use handshake::{
    Established, FIRST_BYTES, Initiator, MESSAGE_MAX, Mode, Problem, Responder, refuse,
};
pub use key::{KeyError, PublicKey, SECRETS_MAX, SecretKey, SecretKeys};
pub use transport::{Broken, RECORD_MAX, Transport};
