//! Shrinks a run with a violation to the smallest one found that still shows it.
//!
//! Invariants:
//! - every intermediate plan was run and broke the same invariant;
//! - the search ends when nothing more can be left out, or when `go_on` says so.
//!
//! Steps are left out in halves, quarters and so on (delta debugging). Leaving one out shifts the
//! time of all later ones. Where that hides the violation, the search tries a few other timings of
//! the network and the disks ([`Plan::timing`]).

use std::collections::BTreeSet;

use crate::faults::Fault;
use crate::invariant::Invariant;
use crate::plan::Plan;
use crate::run::Report;
use crate::script::{Keep, ScriptStep};

/// Timings tried for a small candidate.
const TIMINGS: u64 = 6;
/// A candidate with at most this many steps is small.
const SMALL: usize = 40;

/// Progress of the search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Runs so far.
    pub runs: u64,
    /// Operations of the smallest plan so far.
    pub operations: usize,
    /// Its faults.
    pub faults: usize,
}

struct Search<'a> {
    best: Report,
    invariant: Invariant,
    runs: u64,
    attempt: &'a mut dyn FnMut(&Plan) -> Report,
    go_on: &'a mut dyn FnMut(Progress) -> bool,
    over: bool,
}

/// The smallest run that breaks the same invariant as `found`. `attempt` runs a plan; `go_on` is
/// asked after each run. Returns `found` itself if it broke nothing.
pub fn shrink(
    found: &Report,
    attempt: &mut dyn FnMut(&Plan) -> Report,
    go_on: &mut dyn FnMut(Progress) -> bool,
) -> Report {
    let Some(violation) = &found.violation else { return found.clone() };
    let invariant = violation.invariant;
    let mut search =
        Search { best: found.clone(), invariant, runs: 0, attempt, go_on, over: false };
    search.whole_kinds();
    let mut before = usize::MAX;
    while search.steps().len() < before && !search.over {
        before = search.steps().len();
        search.halves();
    }
    search.best
}

/// The steps of a run.
fn steps_of(report: &Report) -> BTreeSet<ScriptStep> {
    if let Some(keep) = &report.plan.keep {
        return keep.0.clone();
    }
    let plan = &report.plan;
    let mut steps: BTreeSet<ScriptStep> = (0..report.fault_steps).map(ScriptStep::Fault).collect();
    for client in 0..plan.clients as u32 {
        for process in 0..plan.processes as u32 {
            let all = 0..plan.operations_each() as u32;
            steps.extend(all.map(|index| ScriptStep::Operation { client, process, index }));
        }
    }
    steps
}

impl Search<'_> {
    fn steps(&self) -> BTreeSet<ScriptStep> {
        steps_of(&self.best)
    }

    /// Runs a plan; it becomes the best one if it breaks the invariant.
    fn try_plan(&mut self, plan: &Plan) -> bool {
        if self.over {
            return false;
        }
        let report = (self.attempt)(plan);
        self.runs += 1;
        let broken = report.violation.as_ref();
        let same = broken.is_some_and(|violation| violation.invariant == self.invariant);
        if same {
            self.best = report;
        }
        let steps = self.steps();
        let faults = steps.iter().filter(|step| matches!(step, ScriptStep::Fault(_))).count();
        let operations = steps.len() - faults;
        self.over = !(self.go_on)(Progress { runs: self.runs, operations, faults });
        same
    }

    fn try_keep(&mut self, steps: BTreeSet<ScriptStep>) -> bool {
        let small = steps.len() <= SMALL;
        let mut plan = Plan { keep: Some(Keep(steps)), ..self.best.plan.clone() };
        if self.try_plan(&plan) {
            return true;
        }
        let usual = plan.timing;
        for timing in (0..TIMINGS).filter(|&timing| small && timing != usual) {
            plan.timing = timing;
            if self.try_plan(&plan) {
                return true;
            }
        }
        false
    }

    /// Leaves out whole kinds: all faults, a client, a process.
    fn whole_kinds(&mut self) {
        let mut faults = self.best.plan.faults.clone();
        faults.retain(|fault| *fault != Fault::ClusterPower);
        if faults.len() < self.best.plan.faults.len() {
            let plan = Plan { faults, ..self.best.plan.clone() };
            self.try_plan(&plan);
        }
        let steps = self.steps();
        self.try_without(&|step| matches!(step, ScriptStep::Fault(_)));
        let owners: BTreeSet<(u32, u32)> = steps.iter().filter_map(owner).collect();
        let clients: BTreeSet<u32> = owners.iter().map(|(client, _)| *client).collect();
        for client in clients {
            self.try_without(&|step| owner(step).is_some_and(|(of, _)| of == client));
        }
        for each in owners {
            self.try_without(&|step| owner(step) == Some(each));
        }
    }

    fn try_without(&mut self, gone: &dyn Fn(&ScriptStep) -> bool) {
        let steps = self.steps();
        let left: BTreeSet<ScriptStep> = steps.iter().copied().filter(|step| !gone(step)).collect();
        if left.len() < steps.len() {
            self.try_keep(left);
        }
    }

    /// Leaves out ranges of the script, from its end: half of it, then shorter ones.
    fn halves(&mut self) {
        let mut len = self.steps().len().div_ceil(2);
        while len > 0 {
            let mut end = self.steps().len();
            while end > 0 {
                let steps: Vec<ScriptStep> = in_time(&self.steps());
                end = end.min(steps.len());
                let from = end.saturating_sub(len);
                let left = steps[..from].iter().chain(&steps[end..]).copied().collect();
                self.try_keep(left);
                if self.over {
                    return;
                }
                end = from;
            }
            len /= 2;
        }
    }
}

fn owner(step: &ScriptStep) -> Option<(u32, u32)> {
    match step {
        ScriptStep::Operation { client, process, .. } => Some((*client, *process)),
        ScriptStep::Fault(_) => None,
    }
}

/// The steps approximately in order of time: processes run concurrently.
fn in_time(steps: &BTreeSet<ScriptStep>) -> Vec<ScriptStep> {
    let mut steps: Vec<ScriptStep> = steps.iter().copied().collect();
    steps.sort_by_key(|step| match step {
        ScriptStep::Operation { index, .. } => (1, *index),
        ScriptStep::Fault(index) => (0, *index),
    });
    steps
}
