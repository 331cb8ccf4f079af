//! Runs and histories without planted bugs: the seeds of the gate, those that once failed, and the
//! judge. One test binary, because each links client and server. `planted.rs` is another one: a
//! planted bug may reach the formatted disks that all runs of a process begin with.

mod judge;
mod regressions;
mod seeds;
mod shards;
mod targets;
