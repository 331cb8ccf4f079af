//! Several servers of one namespace in a simulated world: operations that concern two of them, and
//! kills of each at every moment.
#![allow(missing_docs, reason = "a test program has no users")]

mod batches;
mod bed;
mod crashes;
mod file_moves;
mod loans;
mod migrations;
mod moves;
mod names;
mod object_moves;
mod spread;
mod spread_batches;
#[path = "../server/target.rs"]
#[allow(dead_code, reason = "the tests of one server need more of it")]
mod target;
