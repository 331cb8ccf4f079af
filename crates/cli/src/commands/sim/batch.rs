//! Many seeds on several threads.
//!
//! Invariant: what is reported follows from the plans alone, not from the number of threads.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sim::{Invariant, Plan, Report, Violation};

/// Seeds of each thread in one batch.
const EACH: u64 = 32;

thread_local! {
    /// The plan that this thread runs.
    static PLAN: RefCell<Option<Plan>> = const { RefCell::new(None) };
}

/// Runs plans on several threads.
pub struct Batch {
    jobs: usize,
    twice: bool,
    processor: Duration,
}

impl Batch {
    /// Runs plans on `jobs` threads; `twice`: runs each plan again and compares the results.
    pub fn new(jobs: u16, twice: bool) -> Batch {
        std::panic::set_hook(Box::new(panicked));
        Batch { jobs: usize::from(jobs), twice, processor: Duration::ZERO }
    }

    /// Number of plans of one batch.
    pub fn size(&self) -> u64 {
        EACH * self.jobs as u64
    }

    /// Processor time used so far.
    pub fn processor_seconds(&self) -> f64 {
        self.processor.as_secs_f64()
    }

    /// Runs all plans; the reports have the order of the plans.
    pub fn run(&mut self, plans: &[Plan]) -> Vec<Report> {
        let next = AtomicUsize::new(0);
        let done: Mutex<(Vec<(usize, Report)>, Duration)> = Mutex::default();
        let work = || {
            let begun = thread_time();
            let mut mine = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(plan) = plans.get(index) else { break };
                PLAN.set(Some(plan.clone()));
                mine.push((index, self.one(plan)));
                PLAN.set(None);
            }
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.0.extend(mine);
            done.1 += thread_time().saturating_sub(begun);
        };
        std::thread::scope(|scope| {
            for _ in 1..self.jobs.min(plans.len()) {
                scope.spawn(work);
            }
            work();
        });
        let (mut reports, processor) = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.processor += processor;
        reports.sort_unstable_by_key(|(index, _)| *index);
        reports.into_iter().map(|(_, report)| report).collect()
    }
}

impl Batch {
    fn one(&self, plan: &Plan) -> Report {
        let mut report = sim::run(plan);
        if self.twice && report.violation.is_none() {
            let again = sim::run(plan);
            if again != report {
                report.violation = Some(differs(&report, &again));
            }
        }
        report
    }
}

fn differs(report: &Report, again: &Report) -> Violation {
    Violation {
        invariant: Invariant::SameRun,
        text: format!("{report:?}\n  the second time:\n  {again:?}"),
        log: Vec::new(),
        history: Vec::new(),
    }
}

/// Processor time of this thread; zero if the kernel does not count it.
fn thread_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|first| first.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

/// A panic of a run is its result. If panics abort, the hook prints the violation at once.
fn panicked(info: &PanicHookInfo<'_>) {
    let text = info.to_string();
    sim::panicked(&text);
    if cfg!(panic = "unwind") && PLAN.with_borrow(Option::is_some) {
        return;
    }
    let mut report = format!("{text}\n");
    if let Some(plan) = PLAN.with_borrow(Clone::clone) {
        report = format!(
            "VIOLATION of {}\n  {text}\nrepeat it with\n  {}\n",
            Invariant::NoPanic,
            plan.command()
        );
    }
    drop(std::io::Write::write_all(&mut std::io::stderr(), report.as_bytes()));
    std::process::exit(super::VIOLATED.into());
}

/// Sums over all runs.
#[derive(Serialize, Deserialize, Clone, Default, PartialEq, Debug)]
pub struct Totals {
    /// Runs.
    pub seeds: u64,
    /// Runs with a violation.
    pub violations: u64,
    /// Operations that ended.
    pub operations: u64,
    /// Injected faults.
    pub faults: u64,
    /// Injected faults by kind; campaigns of earlier releases did not count them.
    #[serde(default)]
    pub made: BTreeMap<String, u64>,
    /// Restarts of the server.
    pub restarts: u64,
    /// Takeovers by servers that stood by; campaigns of earlier releases did not count them.
    #[serde(default)]
    pub takeovers: u64,
    /// Writes of replaced servers that were refused.
    #[serde(default)]
    pub late_writes: u64,
    /// Data zones that were emptied; campaigns of earlier releases did not count them.
    #[serde(default)]
    pub zones_emptied: u64,
    /// Drains that ended before, since they were stopped or other zones were full.
    #[serde(default)]
    pub drains_ended: u64,
    /// Blocks that drains moved.
    #[serde(default)]
    pub blocks_moved: u64,
    /// Clients that moved blocks, and died.
    #[serde(default)]
    pub movers_died: u64,
    /// Files that followed a directory to another metadata server.
    #[serde(default)]
    pub files_followed: u64,
    /// Moments that were not fully judged.
    pub unjudged: u64,
    pub misled: u64,
    /// Runs that were not fully judged; campaigns of earlier releases did not count them.
    #[serde(default)]
    pub abandoned: u64,
    /// Checks of the running store, and those that could not see it and reported nothing;
    /// campaigns of earlier releases did not count them.
    #[serde(default)]
    pub looks: u64,
    #[serde(default)]
    pub looks_unseen: u64,
    /// Virtual time.
    pub virtual_seconds: f64,
    /// Processor time.
    pub processor_seconds: f64,
    /// Combined trace of all runs, independent of their order.
    #[serde(with = "hexadecimal")]
    pub trace: u64,
}

impl Totals {
    /// Counts one run.
    pub fn add(&mut self, report: &Report) {
        self.seeds += 1;
        self.violations += u64::from(report.violation.is_some());
        self.operations += report.operations;
        self.faults += report.faults;
        for (kind, count) in &report.made {
            *self.made.entry(kind.name().to_owned()).or_default() += count;
        }
        self.restarts += report.restarts;
        self.takeovers += report.takeovers.0;
        self.late_writes += report.takeovers.1;
        self.zones_emptied += report.drains.emptied;
        self.drains_ended += report.drains.stopped + report.drains.crowded;
        self.blocks_moved += report.drains.blocks;
        self.movers_died += report.drains.deaths;
        self.files_followed += report.drains.followed;
        self.unjudged += report.unjudged;
        self.misled += u64::from(report.misled.is_some());
        self.abandoned += u64::from(report.abandoned.is_some());
        self.looks += report.looks.seen + report.looks.unseen;
        self.looks_unseen += report.looks.unseen;
        self.virtual_seconds += report.time.as_secs_f64();
        self.trace ^= report.trace.rotate_left((report.plan.seed % 64) as u32);
    }

    /// Violations and speed, in a few words.
    pub fn brief(&self) -> String {
        let mut text = format!("{} with a violation", self.violations);
        let seconds = self.processor_seconds;
        if seconds > 0.0 {
            let per = |count: u64| count as f64 / seconds;
            let (operations, faults) = (per(self.operations), per(self.faults));
            let _ = write!(
                text,
                "; {operations:.0} operations and {faults:.0} faults a second of processor time, \
                 {:.0} times as fast as real time",
                self.virtual_seconds / seconds
            );
        }
        text
    }
}

/// Numbers that JSON readers would round.
mod hexadecimal {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{value:016x}"))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        u64::from_str_radix(&text, 16).map_err(D::Error::custom)
    }
}
