//! The command `redbud sim`.

use std::fs;
use std::process::Command;

use crate::harness::{Scratch, describe, redbud};

fn sim(arguments: &str) -> Command {
    let mut command = redbud();
    command.arg("sim").args(arguments.split_whitespace());
    command
}

/// The exit status, and all that was said.
fn run(arguments: &str) -> (i32, String) {
    let output = sim(arguments).output().unwrap();
    (output.status.code().unwrap_or(-1), describe(&output))
}

fn json(arguments: &str) -> serde_json::Value {
    let output = sim(arguments).arg("--json").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", describe(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn trace(said: &str) -> &str {
    said.lines().find(|line| line.contains("trace ")).unwrap_or_else(|| panic!("{said}"))
}

#[test]
fn one_seed_is_explained_and_reproducible() {
    let (code, said) = run("--seed 1 --operations 120");
    assert_eq!(code, 0, "{said}");
    let parts = [
        "redbud sim --seed 1 --clients",
        "faults: ",
        "sessions that ended: ",
        "steps, all explained",
        "the metadata by fsck after every recovery",
        "what commits point at, leases and epochs",
        "1 seed: ",
        " operations, ",
        "0 with a violation",
        "trace ",
    ];
    for part in parts {
        assert!(said.contains(part), "{part:?} is not in: {said}");
    }
    let (_, again) = run("--seed 1 --operations 120");
    assert_eq!(trace(&said), trace(&again));
    let (_, other) = run("--seed 2 --operations 120");
    assert_ne!(trace(&said), trace(&other));
}

#[test]
fn seeds_have_a_summary_and_json_has_every_run() {
    let (code, said) = run("--seed 5 --count 3 --operations 40 --jobs 2 --twice");
    assert_eq!(code, 0, "{said}");
    for part in ["3 seeds: ", "\nfaults: ", "\nfaults that never occurred: ", "trace of all seeds "]
    {
        assert!(said.contains(part), "{part:?} is not in: {said}");
    }
    let report = json("--seed 5 --count 3 --operations 40");
    assert_eq!(report["version"], 2);
    assert_eq!(report["summary"]["seeds"], 3);
    assert!(report["summary"]["made"].as_object().is_some_and(|made| !made.is_empty()));
    let runs = report["runs"].as_array().unwrap();
    let seeds: Vec<_> = runs.iter().map(|run| run["seed"].as_u64().unwrap()).collect();
    assert_eq!(seeds, [5, 6, 7]);
    assert!(runs.iter().all(|run| run["steps"].as_u64() > Some(0) && run["violation"].is_null()));
    let of_all = report["summary"]["trace"].as_str().unwrap().to_owned();
    assert!(said.contains(&of_all), "{of_all} is not in: {said}");
}

#[test]
fn history_may_last_the_maximum_of_hours() {
    let (code, said) =
        run("--seed 1 --hours 12 --operations 10 --clients 1 --processes 1 --faults cut");
    assert_eq!(code, 0, "{said}");
    assert_eq!(
        json("--seed 1 --hours 6 --operations 20 --faults none")["summary"]["violations"],
        0
    );
}

#[test]
fn invalid_sim_arguments_are_refused_with_advice() {
    let refused = [
        ("--mds 5", "5 is not in 1..=4"),
        ("--faults rain", "no such fault: rain"),
        ("--faults cut,cut", "twice"),
        ("--faults together", "name others beside it"),
        ("--workload idle", "idle"),
        ("--hours 0", "--hours is more than 0"),
        ("--keep c0p0:1 --count 2", "--keep is about one seed"),
        ("--keep c9p9:1000", "--keep c9p9:1000: there is no such operation with"),
        ("--keep c0p0:40 --clients 1 --processes 1 --operations 40", "there is no such operation"),
        ("--keep c0p0:1/f:999 --operations 40", "--keep f:999: no fault of that number occurred"),
        ("--keep c0p0:1 --count 2 --campaign never.json", "--keep is about one seed"),
        ("--campaign never.json", "--core-hours or --count"),
        ("--core-hours 1", "--campaign"),
        ("--changed", "--campaign"),
        ("--seeds 1", "--seeds"),
    ];
    for (arguments, says) in refused {
        let (code, said) = run(arguments);
        assert_eq!(code, 2, "{arguments}: {said}");
        assert!(said.contains(says), "{arguments}: {said}");
    }
    assert!(!std::path::Path::new("never.json").exists());
}

#[test]
fn campaign_resumes_with_its_own_options_or_with_changed() {
    let scratch = Scratch::new();
    let file = scratch.path().join("campaign.json");
    let campaign = |more: &str| {
        let usual = "--seed 5 --operations 20 --faults none --campaign";
        run(&format!("{usual} {} {more}", file.display()))
    };
    let read = || -> serde_json::Value {
        serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap()
    };
    let (code, said) = campaign("--count 2");
    assert_eq!(code, 0, "{said}");
    let (code, said) = campaign("--count 3");
    assert_eq!(code, 0, "{said}");
    assert_eq!((&read()["totals"]["seeds"], &read()["next_seed"]), (&3.into(), &8.into()));
    let (code, said) = campaign("--count 4 --twice");
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("other options") && said.contains("--changed"), "{said}");
    assert_eq!(read()["totals"]["seeds"], 3);
    let (code, said) = campaign("--count 4 --twice --changed");
    assert_eq!(code, 0, "{said}");
    let stages = read()["stages"].as_array().unwrap().clone();
    assert_eq!(stages.len(), 2);
    assert_eq!(stages[1]["from_seed"], 8);
    assert!(stages[1]["command"].as_str().unwrap().contains("--twice"));
    // Another build.
    let text = fs::read_to_string(&file).unwrap().replace(" build ", " building ");
    fs::write(&file, text).unwrap();
    let (code, said) = campaign("--count 5 --twice");
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("another build"), "{said}");
}
