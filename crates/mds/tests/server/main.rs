//! The server as clients see it: scripted clients speak the protocol to a server in a simulated
//! world with a simulated disk.
#![allow(missing_docs, reason = "a test program has no users")]

mod bed;
mod chaos;
mod coherence;
mod fences;
mod greeting;
mod holders;
mod inline;
mod local_clients;
mod names;
mod objects;
mod placement;
mod placing;
mod quarantine;
mod recovery;
mod restarts;
mod scrub;
mod space;
mod squash;
mod swaps;
mod target;
mod workers;
mod zones;
