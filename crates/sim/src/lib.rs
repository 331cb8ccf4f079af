//! The simulator: real clients and a real metadata server run in a simulated world, on virtual
//! time, on one thread and from a seed. Faults are injected, and a judge compares what applications
//! saw with a model.
//!
//! Invariants:
//! - the same plan and the same code give the same run; [`Report::trace`] shows it;
//! - the judge never accuses wrongly: where SEMANTICS.md leaves a choice, it allows every choice;
//! - a run ends: after the last fault everything finishes within a bound of virtual time. A run
//!   that exceeds the bound is a violation.

mod across;
pub mod call;
pub mod cluster;
mod committing;
pub mod content;
mod device_errors;
mod devices;
mod drain_state;
mod drains;
mod etcd;
pub mod events;
pub mod faults;
mod fences;
mod fields;
mod fleet;
pub mod footprint;
mod history;
mod invariant;
mod invariants;
pub mod judge;
pub mod kernel;
pub mod keys;
mod log_lines;
mod loss;
mod low_space;
mod media_corruption;
mod migrations;
pub mod model;
mod mount;
mod mover;
mod mutate_history;
mod observed_order;
mod panics;
mod placing;
mod plan;
mod pool;
mod repairs;
mod run;
pub mod script;
mod servers;
mod sessions;
mod shard_state;
mod shards;
mod shrink;
mod space;
mod stalls;
mod standing;
mod takeovers;
mod target_checks;
mod target_faults;
mod target_space;
mod target_state;
pub mod targets;
mod troubles;
mod undo;
mod undurable;
mod workload;
pub mod zones;

pub use drain_state::DrainCounts;
pub use events::{Events, Looks};
pub use faults::Fault;
pub use invariant::Invariant;
pub use judge::Abandoned;
pub use media_corruption::DamageCounts;
pub use mutate_history::Verdicts;
pub use panics::panicked;
pub use plan::Plan;
pub use pool::Subject;
pub use run::{Report, Violation, run, run_mutated};
pub use script::{Keep, Workload};
pub use shrink::{Progress, shrink};
pub use target_state::TargetCounts;
