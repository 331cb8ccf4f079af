//! What `redbud sim` prints.

use serde::Serialize;
use sim::Report;

use super::batch::Totals;
use super::campaign::Campaign;

/// Steps of the smallest history that are printed.
const STEPS: usize = 60;
/// Lines of the log that are printed.
const LINES: usize = 20;

/// What `--json` prints.
#[derive(Serialize)]
pub struct Document {
    version: u32,
    summary: Totals,
    /// Each run; the smallest one that shows the first violation is the last.
    runs: Vec<Run>,
}

#[derive(Serialize)]
struct Run {
    seed: u64,
    command: String,
    shrunk: bool,
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

/// For programs.
pub fn document(reports: &[Report], shrunk: Option<&Report>, totals: &Totals) -> Document {
    let runs = reports.iter().map(|report| (report, false));
    let runs = runs.chain(shrunk.map(|report| (report, true)));
    Document {
        version: 2,
        summary: totals.clone(),
        runs: runs.map(|(report, shrunk)| run(report, shrunk)).collect(),
    }
}

fn run(report: &Report, shrunk: bool) -> Run {
    Run {
        seed: report.plan.seed,
        command: report.plan.command(),
        shrunk,
        trace: format!("{:016x}", report.trace),
        operations: report.operations,
        faults: report.faults,
        restarts: report.restarts,
        virtual_milliseconds: u64::try_from(report.time.as_millis()).unwrap_or(u64::MAX),
        unjudged: report.unjudged,
        violation: report.violation.as_ref().map(|violation| Violation {
            invariant: violation.invariant,
            text: violation.text.clone(),
            log: violation.log.clone(),
            history: violation.history.clone(),
        }),
    }
}

/// For people.
pub fn text(reports: &[Report], shrunk: Option<&Report>, totals: &Totals) -> String {
    let mut text = String::new();
    let violated: Vec<&Report> = reports.iter().filter(|r| r.violation.is_some()).collect();
    for (nth, report) in violated.iter().enumerate() {
        let smallest = shrunk.filter(|_| nth == 0);
        if nth == 0 {
            text += &explained(smallest.unwrap_or(report));
            if smallest.is_some() {
                text += &format!("it was found with\n  {}\n", report.plan.command());
            }
        } else if let Some(violation) = &report.violation {
            text += &format!("\"{}\" too\n  {}\n", violation.invariant, report.plan.command());
        }
    }
    if let [report] = reports
        && report.violation.is_none()
    {
        text += &format!("{}\n", report.plan.command());
    }
    text + &summary(totals)
}

/// What a campaign came to, for people.
pub fn campaign_text(campaign: &Campaign) -> String {
    let mut text = String::new();
    for found in &campaign.found {
        text += &format!("VIOLATION of \"{}\"\n  {}\n", found.invariant, found.command);
    }
    text + &summary(&campaign.totals)
}

/// A violation, all that is known of it.
fn explained(report: &Report) -> String {
    let Some(violation) = &report.violation else { return String::new() };
    let mut text = format!("VIOLATION of \"{}\"\n  {}\n", violation.invariant, violation.text);
    text += "the newest lines of the log:\n";
    for line in violation.log.iter().rev().take(LINES).rev() {
        text += &format!("  {line}\n");
    }
    if report.plan.keep.is_some() {
        text += "all that was done, in the order of the answers:\n";
        for line in violation.history.iter().take(STEPS) {
            text += &format!("  {line}\n");
        }
        if violation.history.len() > STEPS {
            let more = violation.history.len() - STEPS;
            text += &format!("  ({more} more: --json)\n");
        }
    }
    text + &format!("repeat it with\n  {}\n", report.plan.command())
}

fn summary(totals: &Totals) -> String {
    let mut text = format!(
        "{} seeds: {} operations, {} faults, {} restarts of the server, {:.1} s of virtual time\n{}\n",
        totals.seeds,
        totals.operations,
        totals.faults,
        totals.restarts,
        totals.virtual_seconds,
        totals.brief(),
    );
    if totals.unjudged > 0 {
        text += &format!(
            "{} moments with too many possible orders were not judged fully\n",
            totals.unjudged
        );
    }
    text + &format!("trace {:016x}\n", totals.trace)
}
