//! A target's server, and clients of it, in a simulated world.
#![allow(missing_docs, reason = "a test program has no users")]

mod access;
mod bed;
mod behind;
mod clients;
mod pinned;
mod restarts;
mod room;
mod shards;
mod survey;
mod writes;
