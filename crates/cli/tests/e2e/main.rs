//! End-to-end tests: the real binary, real mounts, killed processes.
//!
//! Every test makes a cluster of its own in a temporary directory and takes it away
//! again, also when it fails. They need root, /dev/fuse and loop devices, and the
//! programs that `cargo xtask prerequisites` installs; one that is missing fails the test
//! that needs it, by name.
//!
//! Time: nothing here measures it. Waits poll for a condition and give up after a
//! bound that no working system reaches ([`harness::PATIENCE`]).
// Tests run programs, read clocks and files: they are above the seam.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod away;
mod bench;
mod broken;
mod coherence;
mod commands;
mod commits;
mod compare;
mod control;
mod damage;
mod deadlock;
mod failover;
mod fence;
mod harness;
mod inline;
mod journal;
mod keys;
mod kill;
mod kill_loads;
mod locks;
mod migrate;
mod missing;
mod mover;
mod namespaces;
mod objects;
mod ost;
mod pag;
mod placement;
mod posix;
mod prealloc;
mod programs;
mod random;
mod ranges;
mod replaced;
mod servers;
mod shared_journals;
mod shared_page;
mod simulated;
mod slices;
mod space;
mod stopped;
mod strangers;
mod survey;
mod target_kills;
mod user;
