//! Workloads, and what they are compared with.
//!
//! Invariants:
//! - contenders answer the same system calls of the same load generators, so that
//!   their times can be compared; what a contender does not do is written where it
//!   is made ([`null`], [`contender`]);
//! - contenders take turns within each run, so that a machine that gets slower gets
//!   slower for all;
//! - the process that measures touches no mount itself: every system call on one is
//!   made by a worker process, which can be waited for with a limit and killed;
//! - every wait is bounded, and whatever was started, mounted or made is taken away,
//!   also after an error or an interrupt.
// Above the seam: these are programs that start processes and read clocks and files.
#![allow(clippy::disallowed_methods)]

pub mod barrier;
pub mod contender;
pub mod devices;
mod disk;
pub mod loads;
pub mod loops;
pub mod memory;
pub mod null;
pub mod observe;
pub mod process;
mod redbud;
mod relay;
pub mod report;
pub mod scripts;
pub mod table;
pub mod worker;
pub mod works;

/// Why a benchmark could not be finished: the step and what went wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BenchError(pub String);

impl std::fmt::Display for BenchError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BenchError {}

/// A result of this crate.
pub type Res<T> = Result<T, BenchError>;

/// The error of a step that failed for `why`.
pub fn failed<T>(step: &str, why: impl std::fmt::Display) -> Res<T> {
    Err(BenchError(format!("{step}: {why}")))
}

/// Says something beside the output. Nobody may be left to read it.
pub fn tell(line: &str) {
    drop(std::io::Write::write_all(&mut std::io::stderr(), format!("{line}\n").as_bytes()));
}
