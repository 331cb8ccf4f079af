//! The whole cluster in a simulated world: real clients and a real metadata server on virtual
//! time, on one thread, from a seed, with faults; and a judge who knows what was to be seen.
//!
//! Invariants:
//! - the same plan and the same code give the same run: [`Report::trace`] tells;
//! - the judge never accuses wrongly: where SEMANTICS.md leaves a choice, every choice is
//!   allowed;
//! - a run ends: once the faults have stopped everything must finish within a bound of
//!   virtual time, else that is the violation.

pub mod call;
pub mod cluster;
pub mod content;
mod damage;
mod devices;
pub mod faults;
mod fields;
mod fleet;
pub mod footprint;
mod history;
mod invariants;
pub mod judge;
pub mod kernel;
mod log;
mod loss;
pub mod model;
mod mount;
mod outages;
mod repairs;
mod rot;
mod run;
pub mod script;
mod shrink;
mod space;
mod spoil;
mod undo;
mod witness;
mod workload;

pub use faults::Fault;
pub use invariants::ALL as INVARIANTS;
pub use judge::Abandoned;
pub use log::{Looks, panicked};
pub use rot::Damaged;
pub use run::{NO_PANICS, Plan, Report, Violation, run, run_spoiled};
pub use script::{Keep, Workload};
pub use shrink::{Progress, shrink};
pub use spoil::Verdicts;
