//! The server's side of sessions: doors, connections, greetings, slots, answers, and who is silent.
//!
//! What a request does, and who may have a number, its user decides ([`Service`]).

mod absent;
mod connection;
mod door;
mod greeting;
pub mod recovery;
mod serve;
mod session;
mod table;

pub use crate::arriving::ArrivedContent;
pub use absent::turn_away;
pub use connection::{Connection, receive};
pub use door::{Door, DoorCounts, KeyFiles, KeyRing, ServerKeys, Who};
pub use greeting::{Agreed, Identity, check, described, granted_lease, hello, refusal};
pub use serve::{Service, accept, serve};
pub use session::{Admission, SLOTS_ALL, Session, SessionIdentity, SessionState};
pub use table::Table;
