//! `redbud sim`: the cluster in a simulated world.

use std::io::{IsTerminal, Write};

use serde::Serialize;
use sim::{Fault, Plan, Report};

use crate::args::SimArgs;
use crate::exit::{Ended, Failure, Status};
use crate::output;

/// Exit status if a violation was found.
const VIOLATED: u8 = Status::Failed as u8;

#[derive(Serialize)]
struct Document {
    version: u32,
    runs: Vec<Run>,
}

#[derive(Serialize)]
struct Run {
    seed: u64,
    command: String,
    trace: String,
    operations: u64,
    faults: u64,
    restarts: u64,
    virtual_milliseconds: u64,
    unjudged: u64,
    violation: Option<Violation>,
}

#[derive(Serialize)]
struct Violation {
    invariant: &'static str,
    text: String,
    log: Vec<String>,
    history: Vec<String>,
}

/// Runs the seeds, and tells what they came to.
pub fn run(args: &SimArgs) -> Ended {
    let faults = faults(args.faults.as_deref())?;
    let progress = args.count > 1 && std::io::stderr().is_terminal();
    let mut reports = Vec::new();
    for nth in 0..args.count {
        let plan = plan(args, args.seed.wrapping_add(nth), &faults);
        if progress {
            drop(write!(std::io::stderr(), "\rseed {} ({} of {})", plan.seed, nth + 1, args.count));
        }
        reports.push(sim::run(&plan));
    }
    if progress {
        drop(writeln!(std::io::stderr()));
    }
    let violated = reports.iter().any(|report| report.violation.is_some());
    let text = describe(&reports);
    let runs = reports.into_iter().map(document).collect();
    output::print_report(args.output, &Document { version: 1, runs }, |_| text)?;
    Ok(if violated { VIOLATED } else { 0 })
}

fn faults(asked: Option<&[String]>) -> Result<Vec<Fault>, Failure> {
    let Some(asked) = asked else { return Ok(Fault::ALL.to_vec()) };
    if asked == ["none"] {
        return Ok(Vec::new());
    }
    let parsed: Result<Vec<Fault>, String> = asked.iter().map(|name| name.parse()).collect();
    parsed.map_err(|text| Failure::new(Status::Usage, "", text))
}

fn plan(args: &SimArgs, seed: u64, faults: &[Fault]) -> Plan {
    let usual = Plan::new(seed);
    Plan {
        clients: args.clients.map_or(usual.clients, usize::from),
        processes: args.processes.map_or(usual.processes, usize::from),
        operations: args.operations,
        faults: faults.to_vec(),
        ..usual
    }
}

fn document(report: Report) -> Run {
    Run {
        seed: report.plan.seed,
        command: report.plan.command(),
        trace: format!("{:016x}", report.trace),
        operations: report.operations,
        faults: report.faults,
        restarts: report.restarts,
        virtual_milliseconds: u64::try_from(report.time.as_millis()).unwrap_or(u64::MAX),
        unjudged: report.unjudged,
        violation: report.violation.map(|violation| Violation {
            invariant: violation.invariant,
            text: violation.text,
            log: violation.log,
            history: violation.history,
        }),
    }
}

fn describe(reports: &[Report]) -> String {
    let mut text = String::new();
    for report in reports {
        if let Some(violation) = &report.violation {
            text += &format!("VIOLATION of \"{}\"\n  {}\n", violation.invariant, violation.text);
            text += "the newest lines of the log:\n";
            for line in violation.log.iter().rev().take(30).rev() {
                text += &format!("  {line}\n");
            }
            text += &format!("repeat it with\n  {}\n", report.plan.command());
        } else if reports.len() == 1 {
            text += &format!("{}\n", report.plan.command());
        }
    }
    let sum = |count: &dyn Fn(&Report) -> u64| reports.iter().map(count).sum::<u64>();
    let seconds: f64 = reports.iter().map(|report| report.time.as_secs_f64()).sum();
    let bad = reports.iter().filter(|report| report.violation.is_some()).count();
    text += &format!(
        "{} seeds, {bad} with a violation: {} operations, {} faults, {} restarts of the server, \
         {seconds:.1} s of virtual time",
        reports.len(),
        sum(&|report| report.operations),
        sum(&|report| report.faults),
        sum(&|report| report.restarts),
    );
    let unjudged = sum(&|report| report.unjudged);
    if unjudged > 0 {
        text +=
            &format!("; {unjudged} moments with too many possible orders were not judged fully");
    }
    let trace = reports.iter().fold(0u64, |trace, report| trace.rotate_left(1) ^ report.trace);
    text + &format!("\ntrace {trace:016x}\n")
}
