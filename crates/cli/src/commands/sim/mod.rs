//! `redbud sim`: simulates a cluster.

mod batch;
mod campaign;
mod report;

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use sim::{Fault, Keep, Plan, Report, Workload};

use self::batch::{Batch, Totals};
use self::campaign::{Campaign, Stage};
use crate::args::SimArgs;
use crate::exit::{Ended, Failure, Status};
use crate::output;

/// Exit status if a violation was found.
const VIOLATED: u8 = Status::Failed as u8;

/// Exit status if a history was not fully judged.
const UNJUDGED: u8 = Status::Partial as u8;

/// Maximum of virtual hours of one history.
const HOURS_MAX: f64 = 12.0;

/// Interval of progress lines if standard error is not a terminal.
const NEXT_LINE: Duration = Duration::from_secs(10);

/// The options that all plans of a call share.
struct Options {
    faults: Vec<Fault>,
    keep: Option<Keep>,
    workload: Workload,
    time: Option<Duration>,
}

impl Options {
    fn new(args: &SimArgs) -> Result<Options, Failure> {
        let several = Several { standbys: args.standbys, osts: args.osts, shards: args.mds };
        several.go_together()?;
        let faults = faults(args.faults.as_deref(), &several)?;
        if faults.contains(&Fault::Drain) && args.zones < 2 {
            return Err(Failure::usage("--faults drain needs --zones of 2 or more"));
        }
        let keep = args.keep.as_deref().map(str::parse).transpose().map_err(Failure::usage)?;
        let workload = args.workload.parse().map_err(Failure::usage)?;
        let time = match args.hours {
            Some(hours) if !(hours > 0.0 && hours <= HOURS_MAX) => {
                return Err(Failure::usage(format!(
                    "--hours is more than 0 and at most {HOURS_MAX}"
                )));
            }
            hours => hours.map(|hours| Duration::from_millis((hours * 3_600_000.0).round() as u64)),
        };
        if args.core_hours.is_some_and(|hours| !(hours > 0.0 && hours.is_finite())) {
            return Err(Failure::usage("--core-hours is a number of hours, more than 0"));
        }
        if args.mds > 1 && workload == Workload::Fields {
            return Err(Failure::usage("--workload fields: not simulated with --mds of 2 or more"));
        }
        Ok(Options { faults, keep, workload, time })
    }

    fn plan(&self, args: &SimArgs, seed: u64) -> Plan {
        if args.pool {
            let (timing, all_orders) = (args.timing, args.all_orders);
            return Plan { timing, all_orders, ..Plan::drawn(seed).0 };
        }
        let usual = Plan::new(seed);
        Plan {
            clients: args.clients.map_or(usual.clients, usize::from),
            processes: args.processes.map_or(usual.processes, usize::from),
            executors: args.executors.into(),
            operations: args.operations,
            faults: self.faults.clone(),
            keep: self.keep.clone(),
            workload: self.workload,
            time: self.time,
            timing: args.timing,
            usual_format: args.usual_format,
            usual_operations: args.usual_operations,
            all_orders: args.all_orders,
            zones: args.zones.into(),
            timed: args.timed_disks,
            devices: args.devices,
            lease: args.lease.unwrap_or(usual.lease),
            keys: args.security.0,
            standbys: args.standbys.into(),
            placing: args.placing,
            osts: args.osts.into(),
            shards: args.mds.into(),
            ..usual
        }
    }
}

/// Runs the seeds and prints their results.
pub fn run(args: &SimArgs) -> Ended {
    let options = Options::new(args)?;
    if let Some(path) = &args.campaign {
        return run_campaign(args, &options, path);
    }
    let count = args.count.unwrap_or(1);
    if options.keep.is_some() && count > 1 {
        return Err(Failure::usage("--keep is about one seed, --count asks for several"));
    }
    let plan = options.plan(args, args.seed);
    if let Some(step) = plan.kept_beyond() {
        return Err(Failure::usage(format!(
            "--keep {step}: there is no such operation with {} clients of {} processes and {} operations in all",
            plan.clients, plan.processes, plan.operations
        )));
    }
    let mut batch = Batch::new(args.jobs, args.twice);
    let mut reports = Vec::new();
    let mut totals = Totals::default();
    let mut line = ProgressLine::new(count > 1);
    while totals.seeds < count && !env::asked_to_stop() {
        let next = args.seed.wrapping_add(totals.seeds);
        let size = batch.size().min(count - totals.seeds);
        let plans: Vec<Plan> =
            (0..size).map(|nth| options.plan(args, next.wrapping_add(nth))).collect();
        for report in batch.run(&plans) {
            totals.add(&report);
            // For runs without a violation the table has only the summary, JSON has every run.
            if report.violation.is_some() || count == 1 || args.output.is_json() {
                reports.push(report);
            }
        }
        totals.processor_seconds = batch.processor_seconds();
        line.show(&format!("{} of {count} seeds, {}", totals.seeds, totals.brief()));
    }
    line.clear();
    let sound = reports.first().filter(|report| report.violation.is_none());
    let missing = sound.and_then(|report| options.keep.as_ref()?.fault_beyond(report.fault_steps));
    if let Some(missing) = missing {
        return Err(Failure::usage(format!(
            "--keep f:{missing}: no fault of that number occurred; the history differs from the original, and has no violation"
        )));
    }
    let shrunk = reports.iter().find(|report| report.violation.is_some());
    let shrunk = shrunk.and_then(|report| shrink(report, Duration::from_secs(args.shrink)));
    let text = report::text(&reports, shrunk.as_ref(), &totals, &options.faults);
    let document = report::document(&reports, shrunk.as_ref(), &totals);
    output::print_report(args.output, &document, |_| text)?;
    Ok(ended(&totals))
}

fn ended(totals: &Totals) -> u8 {
    match totals {
        Totals { violations: 1.., .. } => VIOLATED,
        Totals { abandoned: 1.., .. } => UNJUDGED,
        _ => 0,
    }
}

/// The version and checksum of this program; the checksum differs between builds.
fn build() -> Result<String, Failure> {
    let failed = |error| Failure::failed("RB-CAMPAIGN", format!("cannot read redbud: {error}"));
    let program = std::fs::read("/proc/self/exe").map_err(failed)?;
    Ok(format!("{} build {:08x}", env!("CARGO_PKG_VERSION"), types::crc32c(&program)))
}

/// Continues the campaign of a file, until its time or its seeds are used up.
fn run_campaign(args: &SimArgs, options: &Options, path: &Path) -> Ended {
    if options.keep.is_some() {
        return Err(Failure::usage("--keep is about one seed, --campaign runs many"));
    }
    if args.count.is_none() && args.core_hours.is_none() {
        return Err(Failure::usage("--campaign needs a limit: --core-hours or --count"));
    }
    let first = options.plan(args, args.seed);
    let mut command = match args.pool {
        true => "redbud sim --pool".to_owned(),
        false => first.command(),
    };
    if !args.pool && (args.clients.is_none() || args.processes.is_none()) {
        command += " (clients and processes by the seed, where not asked for)";
    }
    if args.twice {
        command += " --twice";
    }
    let stage = Stage::new(build()?, command, first.seed);
    let mut campaign = Campaign::open(path, stage, args.changed)?;
    let mut batch = Batch::new(args.jobs, args.twice);
    let before = campaign.totals.processor_seconds;
    let mut line = ProgressLine::new(true);
    loop {
        let totals = &campaign.totals;
        let left = args.count.map_or(u64::MAX, |count| count.saturating_sub(totals.seeds));
        let late = args.core_hours.is_some_and(|hours| totals.processor_seconds >= hours * 3600.0);
        if left == 0 || late || env::asked_to_stop() {
            break;
        }
        let plans = (0..batch.size().min(left))
            .map(|nth| options.plan(args, campaign.next_seed.wrapping_add(nth)));
        let plans: Vec<Plan> = plans.collect();
        for report in batch.run(&plans) {
            campaign.add(&report);
        }
        campaign.totals.processor_seconds = before + batch.processor_seconds();
        campaign.save(path)?;
        line.show(&format!("{} seeds, {}", campaign.totals.seeds, campaign.totals.brief()));
    }
    line.clear();
    let text = |campaign: &Campaign| report::campaign_text(campaign, &options.faults);
    output::print_report(args.output, &campaign, text)?;
    Ok(ended(&campaign.totals))
}

/// What a cluster may have several of, beside data zones.
struct Several {
    standbys: u16,
    osts: u16,
    shards: u16,
}

impl Several {
    fn go_together(&self) -> Result<(), Failure> {
        let wrong = match self {
            Several { shards: 2.., standbys: 1.., .. } => "--standbys",
            _ => return Ok(()),
        };
        Err(Failure::usage(format!("{wrong}: not simulated with --mds of 2 or more")))
    }
}

fn faults(asked: Option<&[String]>, cluster: &Several) -> Result<Vec<Fault>, Failure> {
    let &Several { standbys, osts, shards } = cluster;
    let several = standbys > 0;
    let Some(asked) = asked else {
        let all = match (several, shards > 1) {
            (true, _) => Fault::of_several_servers(),
            (_, true) => Fault::of_several_shards(),
            _ => Fault::of_one_server(),
        };
        return Ok(if osts > 0 { Fault::with_targets(&all) } else { all });
    };
    if asked == ["none"] {
        return Ok(Vec::new());
    }
    let mut faults = Vec::new();
    for name in asked {
        match &**name {
            "" => {
                return Err(Failure::usage(
                    "--faults names no fault; write \"none\" to run without faults",
                ));
            }
            "none" => return Err(Failure::usage("--faults: \"none\" must stand alone")),
            _ => {}
        }
        let fault: Fault = name.parse().map_err(Failure::usage)?;
        if fault == Fault::Takeover && !several {
            return Err(Failure::usage("--faults takeover needs --standbys"));
        }
        let of_targets = Fault::OF_TARGETS.contains(&fault) || fault == Fault::Migrate;
        if of_targets && osts == 0 {
            return Err(Failure::usage(format!("--faults {fault} needs --osts")));
        }
        if osts > 0 && !Fault::with_targets(&[fault]).contains(&fault) {
            let text = format!("--faults {fault}: not simulated with --osts");
            return Err(Failure::usage(text));
        }
        if several && !of_targets && !Fault::of_several_servers().contains(&fault) {
            let text = format!("--faults {fault}: not simulated with --standbys");
            return Err(Failure::usage(text));
        }
        let between_shards = Fault::BETWEEN_SHARDS.contains(&fault);
        if between_shards && shards < 2 {
            return Err(Failure::usage(format!("--faults {fault} needs --mds of 2 or more")));
        }
        let others = Fault::of_several_shards();
        if shards > 1 && !of_targets && !between_shards && !others.contains(&fault) {
            let text = format!("--faults {fault}: not simulated with --mds of 2 or more");
            return Err(Failure::usage(text));
        }
        if faults.contains(&fault) {
            return Err(Failure::usage(format!("--faults names {fault} twice")));
        }
        faults.push(fault);
    }
    if faults == [Fault::Together] {
        return Err(Failure::usage(
            "--faults: \"together\" occurs while another fault lasts; name others beside it",
        ));
    }
    if faults.contains(&Fault::Pairs) && !faults.iter().any(|fault| fault.has_pairs()) {
        return Err(Failure::usage(
            "--faults: \"pairs\" needs stall, long-stall, partition or one-way; name one of them",
        ));
    }
    Ok(faults)
}

/// Searches for a smaller run with the same violation, for at most `limit`.
fn shrink(found: &Report, limit: Duration) -> Option<Report> {
    if limit.is_zero() {
        return None;
    }
    let mut line = ProgressLine::new(true);
    let until = Instant::now() + limit;
    let smaller = sim::shrink(found, &mut sim::run, &mut |progress| {
        line.show(&format!(
            "shrinking: {} operations and {} faults are left after {} runs",
            progress.operations, progress.faults, progress.runs
        ));
        Instant::now() < until && !env::asked_to_stop()
    });
    line.clear();
    Some(smaller).filter(|smaller| smaller.plan != found.plan)
}

/// Progress: one line of the terminal that is overwritten; elsewhere a new line every 10 s.
struct ProgressLine {
    enabled: bool,
    terminal: bool,
    written: Instant,
}

impl ProgressLine {
    fn new(enabled: bool) -> ProgressLine {
        ProgressLine { enabled, terminal: std::io::stderr().is_terminal(), written: Instant::now() }
    }

    fn show(&mut self, text: &str) {
        if self.enabled && self.terminal {
            drop(write!(std::io::stderr(), "\r\x1b[K{text}"));
        } else if self.enabled && self.written.elapsed() >= NEXT_LINE {
            self.written = Instant::now();
            drop(writeln!(std::io::stderr(), "{text}"));
        }
    }

    fn clear(&self) {
        if self.enabled && self.terminal {
            drop(write!(std::io::stderr(), "\r\x1b[K"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> Result<Vec<Fault>, Failure> {
        let names: Vec<String> = text.split(',').map(str::to_owned).collect();
        with(&names, 0, 0, 1)
    }

    fn with(
        names: &[String],
        standbys: u16,
        osts: u16,
        shards: u16,
    ) -> Result<Vec<Fault>, Failure> {
        faults(Some(names), &Several { standbys, osts, shards })
    }

    #[test]
    fn several_shards_have_faults_of_their_own_and_not_all_others() {
        let on_two = |name: &str| with(&[name.to_owned()], 0, 0, 2);
        assert_eq!(on_two("peer-cut").unwrap(), [Fault::PeerCut]);
        assert!(asked("peer-cut").unwrap_err().text.contains("--mds"));
        for name in ["space", "damage", "death", "drain"] {
            assert!(on_two(name).unwrap_err().text.contains("not simulated"), "{name}");
        }
        let all = faults(None, &Several { standbys: 0, osts: 0, shards: 2 }).unwrap();
        assert!(all.contains(&Fault::PeerCut) && !all.contains(&Fault::Damage));
        let on_targets = faults(None, &Several { standbys: 0, osts: 1, shards: 2 }).unwrap();
        assert!([Fault::PeerCut, Fault::TargetKill].iter().all(|kind| on_targets.contains(kind)));
        assert_eq!(with(&["migrate".to_owned()], 0, 1, 2).unwrap(), [Fault::Migrate]);
        let together = Several { standbys: 1, osts: 0, shards: 2 };
        assert!(together.go_together().unwrap_err().text.contains("--standbys"));
    }

    #[test]
    fn takeovers_need_servers_that_stand_by_and_go_with_some_faults() {
        let several = |name: &str| with(&[name.to_owned()], 1, 0, 1);
        let all = |standbys| faults(None, &Several { standbys, osts: 0, shards: 1 });
        assert_eq!(several("takeover").unwrap(), [Fault::Takeover]);
        assert!(several("space").unwrap_err().text.contains("not simulated"));
        assert!(asked("takeover").unwrap_err().text.contains("--standbys"));
        assert!(all(1).unwrap().contains(&Fault::Takeover));
        assert!(!all(0).unwrap().contains(&Fault::Takeover));
    }

    #[test]
    fn faults_of_targets_need_targets_which_have_no_faults_of_data_devices() {
        let with = |name: &str, osts: u16| with(&[name.to_owned()], 0, osts, 1);
        let all = |osts| faults(None, &Several { standbys: 0, osts, shards: 1 });
        assert_eq!(with("target-kill", 1).unwrap(), [Fault::TargetKill]);
        assert!(with("target-kill", 0).unwrap_err().text.contains("--osts"));
        assert_eq!(with("data-eio", 1).unwrap(), [Fault::DataEio]);
        assert!(with("death", 1).unwrap_err().text.contains("not simulated"));
        assert!(all(2).unwrap().contains(&Fault::TargetPower));
        assert!(!all(0).unwrap().contains(&Fault::TargetPower));
    }

    #[test]
    fn histories_not_fully_judged_have_their_own_exit_status() {
        let totals = |seeds, violations, abandoned| {
            ended(&Totals { seeds, violations, abandoned, ..Totals::default() })
        };
        assert_eq!(totals(1, 0, 0), 0);
        assert_eq!(totals(1, 0, 1), 3);
        assert_eq!(totals(1, 1, 1), 1);
        assert_eq!(totals(9, 0, 1), 3);
        assert_eq!(totals(9, 1, 1), 1);
    }

    #[test]
    fn faults_are_named_once_each_or_none_alone() {
        assert_eq!(asked("cut,space").unwrap(), [Fault::Cut, Fault::Space]);
        assert_eq!(asked("none").unwrap(), []);
        for (text, says) in [
            ("", "no fault"),
            ("cut,cut", "twice"),
            ("none,cut", "alone"),
            ("x", "no such"),
            ("together", "beside"),
            ("pairs,cut", "name one of"),
        ] {
            let failure = asked(text).unwrap_err();
            assert!(failure.text.contains(says), "{text:?}: {failure}");
        }
    }
}
