//! An object storage target (OST, paper 001): objects on a device that only its process opens, and
//! the server that gives them to clients.
//!
//! | room | what |
//! |---|---|
//! | `store/` | objects on the engine: blocks, checksums, ordered commits, check |
//! | `server/` | sessions, capabilities, operations, recovery, status |
//! | `survey/` | measures a device, a store, a target, or several |
//!
//! Invariant: a target knows no file. What an object belongs to, and who may use it, the metadata
//! server says; the target believes its capabilities.

pub mod server;
pub mod store;
pub mod survey;
