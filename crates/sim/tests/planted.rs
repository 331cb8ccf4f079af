//! Planted bugs: one at a time is switched on, and the simulator must catch it.
//!
//! For each bug the table has a seed that shows it, and the checker that catches it. A change of
//! the code changes what seeds do. If the recorded seed no longer shows the bug, the test fails and
//! prints the row to write. With `REDBUD_AGED=1` another seed that shows it suffices.
//!
//! `REDBUD_PLANT=1000 cargo test -p redbud-sim --test planted` searches this many seeds for every
//! bug and prints a new table.
#![cfg(debug_assertions)]
#![allow(missing_docs)]

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, Once};

use redbud_sim::{Fault, Invariant, Keep, Plan, Report, Workload, run, shrink};
use types::plant::plant;
use types::{Bug, Duration};

/// The bug, a seed that shows it, and its checker.
const TABLE: &[(Bug, u64, Invariant)] = &[
    (Bug::LogNotFlushed, 1, Invariant::Durable),
    (Bug::EvictionUntold, 112, Invariant::Noticed),
    (Bug::QuarantineRefused, 1, Invariant::Server),
    (Bug::OldLapAccepted, 3, Invariant::PowerCut),
    (Bug::RecallSkipped, 14, Invariant::Linearizable),
    (Bug::NamesKeptAfterRecall, 1, Invariant::Lease),
    (Bug::AttrKeptAfterRecall, 1, Invariant::Lease),
    (Bug::RightsGivenTwice, 3, Invariant::NoPanic),
    (Bug::DataKeptAfterRecall, 19, Invariant::Owner),
    (Bug::RecallWithoutFlush, 15, Invariant::NoPanic),
    (Bug::ChecksumIgnored, 103, Invariant::Damage),
    (Bug::AddressIgnored, 239, Invariant::Damage),
    (Bug::SlotAnswerLost, 123, Invariant::Once),
    (Bug::ResultNotKept, 330, Invariant::Once),
    (Bug::InodeNumberReused, 1, Invariant::PowerCut),
    (Bug::DoubleAllocation, 1, Invariant::Owner),
    (Bug::ReplayOutOfOrder, 17, Invariant::Linearizable),
    (Bug::ReplaySkipped, 5, Invariant::Linearizable),
    (Bug::GraceSkipped, 4, Invariant::Lease),
    (Bug::LeasesNotReclaimed, 4, Invariant::Lease),
    (Bug::GlimpseIgnored, 4, Invariant::Linearizable),
    (Bug::CommitBeforeStable, 5, Invariant::Stable),
    (Bug::LeaseIgnored, 188, Invariant::Lease),
    (Bug::EpochKept, 1, Invariant::Epoch),
    (Bug::QuarantineSkipped, 319, Invariant::Owner),
    (Bug::InPlaceNotFlushed, 53, Invariant::Durable),
    (Bug::ReplyGateSkipped, 1, Invariant::Durable),
    (Bug::SyncNotDurable, 27, Invariant::Durable),
    (Bug::OrphanFreedOpen, 4, Invariant::Linearizable),
    (Bug::LocksIgnored, 20, Invariant::Linearizable),
    (Bug::UnlockLost, 15, Invariant::Linearizable),
    (Bug::TailNotZeroed, 76, Invariant::Linearizable),
    (Bug::ContentNotCut, 889, Invariant::Linearizable),
    (Bug::HoleNotPunched, 11, Invariant::Linearizable),
    (Bug::AppendAtOldEnd, 6, Invariant::Linearizable),
    (Bug::CookieSkips, 1, Invariant::Linearizable),
    (Bug::CircleUnchecked, 2, Invariant::Recovered),
    (Bug::ParentLinkKept, 3, Invariant::PowerCut),
    (Bug::SameFileRename, 54, Invariant::Linearizable),
    (Bug::EmptyUnchecked, 2, Invariant::Recovered),
    (Bug::KernelNamesKept, 37, Invariant::Linearizable),
    (Bug::KernelAttrKept, 24, Invariant::Linearizable),
    (Bug::StaleWriteBack, 344, Invariant::Linearizable),
    (Bug::LocksNotReclaimed, 1, Invariant::Linearizable),
    (Bug::LockKeptByNobody, 38, Invariant::Linearizable),
    (Bug::KernelPagesKept, 1, Invariant::Linearizable),
    (Bug::GroupKept, 1, Invariant::Linearizable),
    (Bug::RequestNotHeard, 1, Invariant::Eviction),
    (Bug::ProbeSkipped, 1, Invariant::Slow),
    (Bug::RecallNotRepeated, 3, Invariant::Ends),
    (Bug::HoarderKept, 24, Invariant::Room),
    (Bug::FreezeSkipped, 319, Invariant::Writer),
    (Bug::CookieRepeats, 1, Invariant::OneName),
    (Bug::SlowFlushFailed, 17, Invariant::Loss),
    (Bug::ErrorSpreads, 241, Invariant::Zone),
    (Bug::WrongZoneCounted, 1, Invariant::Whole),
    (Bug::MoveNotFlushed, 1, Invariant::Stable),
    (Bug::FreedCalledFree, 52, Invariant::Drained),
    (Bug::ZoneStateForced, 98, Invariant::Drained),
    (Bug::RepairOnce, 14, Invariant::Repair),
    (Bug::NewcomerRefused, 1, Invariant::Mount),
    (Bug::ReplacedLinkKept, 11, Invariant::Whole),
    (Bug::LackingPageKept, 8, Invariant::Own),
    (Bug::PartWaits, 4, Invariant::Fair),
    (Bug::FenceBelieved, 190, Invariant::Epoch),
    (Bug::TermIgnored, 15, Invariant::Epoch),
    (Bug::ContentNotAwaited, 14, Invariant::Target),
    (Bug::TargetReplaySkipped, 2, Invariant::Linearizable),
    (Bug::ObjectsKept, 1, Invariant::Target),
    (Bug::FailedFlushIgnored, 14, Invariant::Target),
    (Bug::FailedTargetAnswers, 9, Invariant::Loss),
    (Bug::RoomPromisedTwice, 1, Invariant::Zone),
    (Bug::StaleCopyExchanged, 7, Invariant::Linearizable),
];

/// The bugs of object storage targets, and of what uses them.
const OF_TARGETS: [Bug; 7] = [
    Bug::ContentNotAwaited,
    Bug::TargetReplaySkipped,
    Bug::ObjectsKept,
    Bug::FailedFlushIgnored,
    Bug::FailedTargetAnswers,
    Bug::RoomPromisedTwice,
    Bug::StaleCopyExchanged,
];

/// The plan of a seed, with the faults and the format of the table.
fn plan(bug: Bug, seed: u64) -> Plan {
    let faults = vec![
        Fault::Cut,
        Fault::Partition,
        Fault::ServerKill,
        Fault::ServerPower,
        Fault::Stall,
        Fault::ClientKill,
        Fault::Silence,
        Fault::Power,
        Fault::DataEio,
        Fault::OneWay,
        Fault::ClusterPower,
    ];
    // Media corruption needs no other faults.
    let faults = match bug {
        Bug::ErrorSpreads => vec![Fault::DataEio],
        Bug::WrongZoneCounted => vec![],
        Bug::ChecksumIgnored | Bug::AddressIgnored | Bug::RepairOnce => vec![Fault::Damage],
        Bug::ContentNotCut | Bug::RequestNotHeard | Bug::ReplacedLinkKept => vec![],
        Bug::LackingPageKept | Bug::PartWaits => vec![],
        Bug::RecallNotRepeated => vec![Fault::Cut, Fault::OneWay],
        Bug::HoarderKept => vec![Fault::Space, Fault::ClientKill],
        Bug::FreezeSkipped => vec![Fault::LongStall, Fault::Silence, Fault::Power],
        Bug::SlowFlushFailed | Bug::ProbeSkipped => vec![Fault::Stall],
        Bug::NewcomerRefused => vec![Fault::ClientKill, Fault::ServerKill],
        Bug::StaleWriteBack => vec![Fault::Silence],
        Bug::QuarantineSkipped => vec![Fault::LongStall, Fault::Silence, Fault::Power],
        Bug::FenceBelieved | Bug::TermIgnored => vec![Fault::Takeover],
        Bug::MoveNotFlushed | Bug::FreedCalledFree | Bug::ZoneStateForced => vec![Fault::Drain],
        Bug::ContentNotAwaited => vec![Fault::TargetPower],
        Bug::TargetReplaySkipped => vec![Fault::TargetKill],
        // A run in which the making of a file may be lost has to show it, too.
        Bug::ObjectsKept => vec![Fault::ServerPower, Fault::ClientKill],
        Bug::FailedFlushIgnored => vec![Fault::DataEio, Fault::TargetPower],
        Bug::FailedTargetAnswers => vec![Fault::DataEio],
        Bug::RoomPromisedTwice => vec![Fault::Space],
        Bug::StaleCopyExchanged => vec![Fault::Migrate],
        Bug::LockKeptByNobody => vec![Fault::Signal],
        Bug::LocksNotReclaimed => vec![Fault::ServerKill],
        _ => faults,
    };
    let workload = match bug {
        Bug::StaleWriteBack | Bug::ContentNotCut => Workload::Content,
        Bug::LockKeptByNobody | Bug::LocksNotReclaimed => Workload::Content,
        Bug::FreezeSkipped | Bug::SlowFlushFailed => Workload::Content,
        Bug::MoveNotFlushed | Bug::FreedCalledFree | Bug::ZoneStateForced => Workload::Content,
        Bug::ContentNotAwaited | Bug::TargetReplaySkipped => Workload::Content,
        Bug::RoomPromisedTwice | Bug::StaleCopyExchanged => Workload::Content,
        Bug::LackingPageKept | Bug::PartWaits => Workload::Fields,
        _ => Workload::Mixed,
    };
    let zones = match bug {
        Bug::ErrorSpreads | Bug::WrongZoneCounted => 4,
        Bug::MoveNotFlushed | Bug::FreedCalledFree | Bug::ZoneStateForced => 4,
        _ => 1,
    };
    // Half of the seeds have inline data.
    let usual_format = bug != Bug::ContentNotCut;
    let usual_operations = bug != Bug::GroupKept;
    // Without pauses a run is no longer than a lease.
    let time = (bug == Bug::RequestNotHeard).then_some(Duration::from_secs(60));
    let standbys = match bug {
        Bug::FenceBelieved | Bug::TermIgnored => 1 + (seed % 2) as usize,
        _ => 0,
    };
    let osts = if OF_TARGETS.contains(&bug) { 2 } else { 0 };
    let mut plan = Plan {
        standbys,
        osts,
        faults,
        workload,
        time,
        usual_format,
        usual_operations,
        zones,
        ..Plan::new(seed)
    };
    if workload == Workload::Fields {
        (plan.clients, plan.processes) = (2, 2);
    }
    plan
}

/// Bugs that no seed has shown so far. A test in `crates/mds/tests` shows the first (a durable
/// request whose answer was lost). Nothing shows older attributes, since replies grant rights only
/// under the sequence that they were read under.
const NOT_SHOWN: [Bug; 2] = [Bug::RepeatedAnswerLost, Bug::AttrVersionIgnored];

/// Seeds tried if the recorded one no longer shows the bug.
const TRIES: u64 = 2000;

/// Bugs that only a crash at every write of the store shows (`crates/engine/src/crash_tests`).
const OF_THE_STORE: [Bug; 3] = [Bug::TornGroupAccepted, Bug::TailBeforeFlush, Bug::HomeBeforeLog];

/// Bugs that the walk of a small world of leases shows (`crates/proto/tests/leases.rs`).
const OF_THE_LEASES: [Bug; 4] =
    [Bug::OlderGrantTaken, Bug::EarlyRecallForgotten, Bug::UnawareReturnTaken, Bug::ReturnKept];

thread_local! {
    static PLANTED: Cell<bool> = const { Cell::new(false) };
}

/// A panic by a planted bug is the result of the run.
fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| match PLANTED.get() {
            true => redbud_sim::panicked(&info.to_string()),
            false => usual(info),
        }));
    });
}

fn run_with(bug: Bug, plan: &Plan) -> Report {
    quiet_panics();
    // Formats the disk of all runs without the bug.
    drop(redbud_sim::cluster::world(0));
    PLANTED.set(true);
    let guard = plant(bug);
    let report = run(plan);
    drop(guard);
    PLANTED.set(false);
    report
}

fn invariant(report: &Report) -> Option<Invariant> {
    report.violation.as_ref().map(|violation| violation.invariant)
}

/// The first seed that shows the bug, and no violation without it; with the report.
fn find(bug: Bug, seeds: impl Iterator<Item = u64>) -> Option<(u64, Report)> {
    let mut reports = seeds.map(|seed| (seed, run_with(bug, &plan(bug, seed))));
    reports.find(|(seed, report)| report.violation.is_some() && is_sound(bug, *seed))
}

fn is_sound(bug: Bug, seed: u64) -> bool {
    run(&plan(bug, seed)).violation.is_none()
}

/// Is it one of the bugs in `REDBUD_BUG`, divided by commas? Without the variable every bug is.
fn is_asked_for(bug: Bug) -> bool {
    let name = format!("{bug:?}");
    std::env::var("REDBUD_BUG").map_or(true, |asked| asked.split(',').any(|one| one == name))
}

/// Runs `work` for all rows, on two threads.
fn for_rows<T: Sync>(rows: &[T], work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work(row);
                }
            });
        }
    });
}

#[test]
fn planted_bugs_are_caught_and_without_them_nothing_is_found() {
    if let Ok(count) = std::env::var("REDBUD_PLANT") {
        return print_table(count.parse().expect("REDBUD_PLANT is a number of seeds"));
    }
    assert!(TABLE.len() >= 20);
    let wrong = Mutex::new(Vec::new());
    let aged_will_do = std::env::var("REDBUD_AGED").is_ok();
    let rows: Vec<_> = TABLE.iter().filter(|(bug, ..)| is_asked_for(*bug)).collect();
    for_rows(&rows, |&&(bug, recorded, checker)| {
        let shown = |seed: u64| invariant(&run_with(bug, &plan(bug, seed)));
        let sound = run(&plan(bug, recorded));
        assert_eq!(sound.violation, None, "{}", sound.plan.command());
        let seen = shown(recorded);
        if seen == Some(checker) {
            return;
        }
        let other = (1..=TRIES).find(|&seed| shown(seed) == Some(checker) && is_sound(bug, seed));
        let mut text = other.map_or_else(
            || format!("    // Bug::{bug:?}: not caught by {} in {TRIES} seeds", checker.name()),
            |seed| {
                format!(
                    "    (Bug::{bug:?}, {seed}, Invariant::{checker:?}), // no longer {recorded}"
                )
            },
        );
        if let Some(seen) = seen {
            text += &format!(
                "\n    (Bug::{bug:?}, {recorded}, Invariant::{seen:?}), // or by this checker"
            );
        }
        println!("{text}");
        if other.is_none() || !aged_will_do {
            wrong.lock().expect("no other row failed").push(text);
        }
    });
    let wrong = wrong.into_inner().expect("no other row failed");
    assert!(wrong.is_empty(), "rows to write:\n{}", wrong.join("\n"));
}

#[test]
fn planted_bugs_have_a_row_each() {
    let apart = [&OF_THE_STORE[..], &OF_THE_LEASES, &NOT_SHOWN].concat();
    let known = |bug: &Bug| TABLE.iter().any(|(of, ..)| of == bug) || apart.contains(bug);
    let without: Vec<&Bug> = Bug::ALL.iter().filter(|bug| !known(bug)).collect();
    assert!(without.is_empty(), "no row: {without:?}");
}

#[test]
fn checkers_catch_a_planted_bug_each_within_the_seeds_that_are_tried() {
    let catches = |invariant: &Invariant| TABLE.iter().any(|(.., by)| by == invariant);
    // Two runs of a seed are compared outside of a run (`redbud sim --twice`).
    let is_apart = |invariant: &Invariant| *invariant == Invariant::SameRun;
    let without: Vec<&Invariant> =
        Invariant::ALL.iter().filter(|all| !catches(all) && !is_apart(all)).collect();
    assert!(without.is_empty(), "checkers that no planted bug shows: {without:?}");
    let late: Vec<_> = TABLE.iter().filter(|(_, seed, _)| *seed > TRIES).collect();
    assert!(late.is_empty(), "{late:?}");
}

/// Prints a new table, or only the bugs that `REDBUD_BUG` names.
fn print_table(seeds: u64) {
    let first = std::env::var("REDBUD_FIRST").map_or(1, |text| text.parse().expect("a number"));
    let all = Bug::ALL.iter().filter(|bug| !OF_THE_STORE.contains(bug) && is_asked_for(**bug));
    for_rows(&all.collect::<Vec<_>>(), |&&bug| match find(bug, first..first + seeds) {
        Some((seed, report)) => {
            let by = invariant(&report).expect("it is a violation");
            println!("    (Bug::{bug:?}, {seed}, Invariant::{by:?}),");
        }
        None => println!("    // Bug::{bug:?}: not in {seeds} seeds from {first} on"),
    });
}

#[test]
fn failed_run_reports_its_history_up_to_then() {
    for bug in [Bug::RecallWithoutFlush, Bug::LogNotFlushed] {
        let (_, seed, _) = TABLE.iter().find(|(of, ..)| *of == bug).expect("it has a row");
        let report = run_with(bug, &plan(bug, *seed));
        let violation = report.violation.expect("it is caught");
        assert_ne!(violation.invariant, Invariant::Linearizable);
        assert!(!violation.history.is_empty(), "{bug:?}");
        assert_eq!(violation.history.len() as u64, report.steps);
    }
}

/// The report of a bug's recorded seed, and the smallest run found that shows the same.
fn shrunk(bug: Bug) -> (Report, Report) {
    let recorded = TABLE.iter().find(|(of, ..)| *of == bug).map_or(1, |(_, seed, _)| *seed);
    let (_, found) = find(bug, recorded..=TRIES).expect("the bug is found soon");
    let smallest =
        shrink(&found, &mut |plan| run_with(bug, plan), &mut |progress| progress.runs < 400);
    (found, smallest)
}

#[test]
fn shrink_keeps_the_signal_that_a_failing_run_needs() {
    let (found, smallest) = shrunk(Bug::LockKeptByNobody);
    assert_ne!(found.faults, u64::from(found.fault_steps), "{}", found.plan.command());
    assert_eq!(invariant(&smallest), invariant(&found));
    let keep = smallest.plan.keep.clone().expect("something was left out");
    assert!(keep.to_string().contains("f:"), "{}", smallest.plan.command());
    assert!(keep.0.len() <= 40, "{}", smallest.plan.command());
}

#[test]
fn shrink_finds_a_few_steps_that_repeat_a_failure() {
    let bug = Bug::HoleNotPunched;
    let (found, smallest) = shrunk(bug);
    let keep = smallest.plan.keep.clone().expect("something was left out");
    assert!(keep.0.len() <= 15, "{}", smallest.plan.command());
    assert_eq!(invariant(&smallest), invariant(&found));
    assert!(smallest.operations < found.operations);
    let parsed: Keep = keep.to_string().parse().expect("printed steps can be parsed");
    let again = run_with(bug, &Plan { keep: Some(parsed), ..smallest.plan.clone() });
    assert_eq!(again, smallest);
    let sound = run(&smallest.plan);
    assert_eq!(sound.violation, None, "the bug is what fails");
}
