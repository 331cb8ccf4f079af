//! Clients against a real metadata server, in simulated worlds.
//!
//! The tests run in virtual time, on disks that lose unflushed writes as real ones do. Nothing
//! depends on the speed of the machine.
#![allow(missing_docs)]

extern crate redbud_client as client;

mod coherence;
mod devices;
mod eviction;
mod harness;
mod inline;
mod kept;
mod listing;
mod locks;
mod model;
mod namespace;
mod pages;
mod ranges;
mod recovery;
mod replace;
mod server_silent;
mod shards;
mod space;
