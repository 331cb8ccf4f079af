//! `redbud sim`: the cluster in a simulated world.

mod batch;
mod report;

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use sim::{Fault, Plan, Report};

use self::batch::{Batch, Totals};
use crate::args::SimArgs;
use crate::exit::{Ended, Failure, Status};
use crate::output;

/// Exit status if a violation was found.
const VIOLATED: u8 = Status::Failed as u8;

/// Runs the seeds, and tells what they came to.
pub fn run(args: &SimArgs) -> Ended {
    let faults = faults(args.faults.as_deref())?;
    let keep = args.keep.as_deref().map(str::parse).transpose().map_err(Failure::usage)?;
    if keep.is_some() && args.count > 1 {
        return Err(Failure::usage("--keep is about one seed, --count asks for several"));
    }
    let plan = |seed| {
        let usual = Plan::new(seed);
        Plan {
            clients: args.clients.map_or(usual.clients, usize::from),
            processes: args.processes.map_or(usual.processes, usize::from),
            operations: args.operations,
            faults: faults.clone(),
            keep: keep.clone(),
            timing: args.timing,
            ..usual
        }
    };
    let mut batch = Batch::new(args.jobs);
    let mut reports = Vec::new();
    let mut totals = Totals::default();
    let line = Line::new(args.count > 1);
    let mut next = 0;
    while next < args.count {
        let size = batch.size().min(args.count - next);
        let plans: Vec<Plan> =
            (0..size).map(|nth| plan(args.seed.wrapping_add(next + nth))).collect();
        for report in batch.run(&plans) {
            totals.add(&report);
            // Of runs that went well only the summary is told, unless a program reads it.
            if report.violation.is_some() || args.count == 1 || args.output.is_json() {
                reports.push(report);
            }
        }
        totals.processor = batch.processor_time();
        next += size;
        line.show(&format!("{next} of {} seeds, {}", args.count, totals.brief()));
    }
    line.clear();
    let shrunk = reports.iter().find(|report| report.violation.is_some());
    let shrunk = shrunk.and_then(|report| shrink(report, Duration::from_secs(args.shrink)));
    let text = report::text(&reports, shrunk.as_ref(), &totals);
    let violated = totals.violations > 0;
    let document = report::document(&reports, shrunk.as_ref(), &totals);
    output::print_report(args.output, &document, |_| text)?;
    Ok(if violated { VIOLATED } else { 0 })
}

fn faults(asked: Option<&[String]>) -> Result<Vec<Fault>, Failure> {
    let Some(asked) = asked else { return Ok(Fault::ALL.to_vec()) };
    if asked == ["none"] {
        return Ok(Vec::new());
    }
    let parsed: Result<Vec<Fault>, String> = asked.iter().map(|name| name.parse()).collect();
    parsed.map_err(Failure::usage)
}

/// Looks for a smaller run that shows the same, for at most this long.
fn shrink(found: &Report, most: Duration) -> Option<Report> {
    if most.is_zero() {
        return None;
    }
    let line = Line::new(true);
    let until = Instant::now() + most;
    let smaller = sim::shrink(found, &mut sim::run, &mut |progress| {
        line.show(&format!(
            "shrinking: {} operations and {} faults are left after {} runs",
            progress.operations, progress.faults, progress.runs
        ));
        Instant::now() < until
    });
    line.clear();
    Some(smaller).filter(|smaller| smaller.plan != found.plan)
}

/// One line on the terminal that is written over and over.
struct Line {
    shown: bool,
}

impl Line {
    fn new(wanted: bool) -> Line {
        Line { shown: wanted && std::io::stderr().is_terminal() }
    }

    fn show(&self, text: &str) {
        if self.shown {
            drop(write!(std::io::stderr(), "\r\x1b[K{text}"));
        }
    }

    fn clear(&self) {
        self.show("");
    }
}
