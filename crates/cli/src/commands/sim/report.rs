//! The output of `redbud sim`.

use std::collections::BTreeMap;

use serde::Serialize;
use sim::{Fault, Report};

use super::batch::Totals;
use super::campaign::Campaign;

/// Maximum of printed steps of the smallest history.
const STEPS: usize = 60;
/// Maximum of printed lines of the log.
const LINES: usize = 20;

/// The output with `--json`.
#[derive(Serialize)]
pub struct Document {
    version: u32,
    summary: Totals,
    /// Each run; the smallest one that shows the first violation is the last.
    runs: Vec<SimulatedRun>,
}

#[derive(Serialize)]
struct SimulatedRun {
    seed: u64,
    command: String,
    shrunk: bool,
    trace: String,
    operations: u64,
    faults: u64,
    /// Injected faults by kind.
    made: BTreeMap<&'static str, u64>,
    restarts: u64,
    /// Takeovers by servers that stood by, and writes of replaced servers that were refused.
    takeovers: u64,
    late_writes: u64,
    /// Sessions that ended with their clients, and of clients that lived.
    sessions_died: u64,
    sessions_evicted: u64,
    /// Steps of the history.
    steps: u64,
    virtual_milliseconds: u64,
    unjudged: u64,
    /// Checks of the running store, and those that could not see it.
    looks: u64,
    looks_unseen: u64,
    misled: Option<String>,
    abandoned: Option<Abandoned>,
    violation: Option<Violation>,
}

/// The position from which on the history was not judged, and why.
#[derive(Serialize)]
struct Abandoned {
    from: u64,
    text: String,
}

#[derive(Serialize)]
struct Violation {
    invariant: &'static str,
    text: String,
    log: Vec<String>,
    history: Vec<String>,
}

/// The output for programs.
pub fn document(reports: &[Report], shrunk: Option<&Report>, totals: &Totals) -> Document {
    let runs = reports.iter().map(|report| (report, false));
    let runs = runs.chain(shrunk.map(|report| (report, true)));
    let trace = only(reports, totals).map_or(totals.trace, |report| report.trace);
    Document {
        version: 2,
        summary: Totals { trace, ..totals.clone() },
        runs: runs.map(|(report, shrunk)| run(report, shrunk)).collect(),
    }
}

/// The run, if there was only one.
fn only<'a>(reports: &'a [Report], totals: &Totals) -> Option<&'a Report> {
    reports.first().filter(|_| totals.seeds == 1)
}

fn run(report: &Report, shrunk: bool) -> SimulatedRun {
    SimulatedRun {
        seed: report.plan.seed,
        command: report.plan.command(),
        shrunk,
        trace: format!("{:016x}", report.trace),
        operations: report.operations,
        faults: report.faults,
        made: report.made.iter().map(|(kind, count)| (kind.name(), *count)).collect(),
        restarts: report.restarts,
        takeovers: report.takeovers.0,
        late_writes: report.takeovers.1,
        sessions_died: report.lost.0,
        sessions_evicted: report.lost.1,
        steps: report.steps,
        virtual_milliseconds: u64::try_from(report.time.as_millis()).unwrap_or(u64::MAX),
        unjudged: report.unjudged,
        looks: report.looks.seen + report.looks.unseen,
        looks_unseen: report.looks.unseen,
        misled: report.misled.clone(),
        abandoned: report
            .abandoned
            .as_ref()
            .map(|abandoned| Abandoned { from: abandoned.from, text: abandoned.text.clone() }),
        violation: report.violation.as_ref().map(|violation| Violation {
            invariant: violation.invariant.name(),
            text: violation.text.clone(),
            log: violation.log.clone(),
            history: violation.history.clone(),
        }),
    }
}

/// The output for people.
pub fn text(
    reports: &[Report],
    shrunk: Option<&Report>,
    totals: &Totals,
    asked: &[Fault],
) -> String {
    let mut text = String::new();
    let violated: Vec<&Report> = reports.iter().filter(|r| r.violation.is_some()).collect();
    for (nth, report) in violated.iter().enumerate() {
        let smallest = shrunk.filter(|_| nth == 0);
        if nth == 0 {
            text += &explained(smallest.unwrap_or(report));
            if smallest.is_some() {
                text += &format!("found with\n  {}\n", report.plan.command());
            }
        } else if let Some(violation) = &report.violation {
            text += &format!(
                "also VIOLATION of {}\n  {}\n",
                violation.invariant,
                report.plan.command()
            );
        }
    }
    let only = only(reports, totals);
    if let Some(report) = only.filter(|report| report.violation.is_none()) {
        text += &sound_run(report);
    }
    text += &summary(totals);
    text + &match only {
        Some(report) => format!("trace {:016x}\n", report.trace),
        None => kinds(totals, asked) + &trace_of_all(totals),
    }
}

/// The results of a campaign, for people.
pub fn campaign_text(campaign: &Campaign, asked: &[Fault]) -> String {
    let mut text = String::new();
    for found in &campaign.found {
        text += &format!("VIOLATION of {}\n  {}\n", found.invariant, found.command);
    }
    text + &summary(&campaign.totals)
        + &kinds(&campaign.totals, asked)
        + &trace_of_all(&campaign.totals)
}

/// Number of faults of each kind, and the requested kinds that never occurred.
fn kinds(totals: &Totals, asked: &[Fault]) -> String {
    let made: Vec<String> =
        totals.made.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    let never: Vec<&str> = asked
        .iter()
        .map(|kind| kind.name())
        .filter(|name| !totals.made.contains_key(*name))
        .collect();
    let mut text = String::new();
    if !made.is_empty() {
        text += &format!("faults: {}\n", made.join(", "));
    }
    if !never.is_empty() {
        text += &format!("faults that never occurred: {}\n", never.join(", "));
    }
    text
}

fn trace_of_all(totals: &Totals) -> String {
    format!("trace of all seeds {:016x}\n", totals.trace)
}

/// A number of things, with an s unless it is one.
fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// The events of a run without a violation, and what was checked.
fn sound_run(report: &Report) -> String {
    let mut text = format!("{}\n", report.plan.command());
    let made: Vec<String> =
        report.made.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    let made = if made.is_empty() { "none".to_owned() } else { made.join(", ") };
    text += &format!("faults: {made}\n");
    let (dead, evicted) = report.lost;
    text += &format!(
        "sessions that ended: {dead} with their clients, {evicted} by eviction of running clients\n"
    );
    text += &match &report.abandoned {
        None => format!("checked: {}, all explained", counted(report.steps, "step")),
        Some(abandoned) => format!(
            "checked: {}, but not judged from [{}] on: {}\n ",
            counted(report.steps, "step"),
            abandoned.from,
            abandoned.text
        ),
    };
    text + " by one order of them on a POSIX file system; that all operations ended;\n\
            the metadata by fsck after every recovery and at the end;\n\
            and during the run the owners of written blocks, what commits point at, leases and epochs, that\n\
            acknowledged changes are durable, and that no request runs twice\n\
            the same seed with the same options gives the same trace\n"
}

/// The full report of a violation.
fn explained(report: &Report) -> String {
    let Some(violation) = &report.violation else { return String::new() };
    let mut text = format!("VIOLATION of {}\n  {}\n", violation.invariant, violation.text);
    text += "the last lines of the log:\n";
    for line in violation.log.iter().rev().take(LINES).rev() {
        text += &format!("  {line}\n");
    }
    if report.plan.keep.is_some() {
        text += "all operations, in the order of their replies:\n";
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
        "{}: {}, {}, {} of the server, {:.1} s of virtual time\n{}\n",
        counted(totals.seeds, "seed"),
        counted(totals.operations, "operation"),
        counted(totals.faults, "fault"),
        counted(totals.restarts, "restart"),
        totals.virtual_seconds,
        totals.brief(),
    );
    if totals.takeovers > 0 {
        let late = counted(totals.late_writes, "late write");
        text += &format!("{}, {late} refused\n", counted(totals.takeovers, "takeover"));
    }
    if totals.zones_emptied + totals.drains_ended > 0 {
        text += &format!(
            "{} emptied, {} ended before; {} moved, {} of a mover\n",
            counted(totals.zones_emptied, "data zone"),
            counted(totals.drains_ended, "drain"),
            counted(totals.blocks_moved, "block"),
            counted(totals.movers_died, "death"),
        );
    }
    if totals.files_followed > 0 {
        let files = counted(totals.files_followed, "file");
        text += &format!("{files} followed a directory to another metadata server\n");
    }
    if totals.misled > 0 {
        text += &format!(
            "for {} the observed order did not explain the history, and all orders were tried\n",
            counted(totals.misled, "seed")
        );
    }
    if totals.unjudged > 0 {
        text += &format!(
            "{} moments with too many possible orders were not fully judged\n",
            totals.unjudged
        );
    }
    if totals.abandoned > 0 {
        text += &format!(
            "not fully judged, after such moments: {}\n",
            counted(totals.abandoned, "seed")
        );
    }
    text
}
