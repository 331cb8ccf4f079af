//! The benchmark runs, at sizes that say nothing about speed, and leaves nothing.

use std::process::Stdio;

use rustix::process::Signal;

use crate::harness::{Scratch, describe, eventually, redbud, signal, wait_child};

fn left(scratch: &Scratch) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts = table.lines().filter_map(|line| line.split(' ').nth(4));
    let root = format!("{}/", scratch.path().display());
    let mounts = mounts.filter(|mount| mount.starts_with(&root)).map(str::to_owned);
    let files = std::fs::read_dir(scratch.path()).unwrap();
    mounts.chain(files.map(|file| file.unwrap().path().display().to_string())).collect()
}

#[test]
fn every_work_is_done_by_every_contender_with_the_same_requests() {
    let scratch = Scratch::new();
    let json = Scratch::new();
    let json = json.path().join("table.json");
    let mut command = redbud();
    command.args(["bench", "table", "--runs", "1", "--files", "80", "--entries", "300"]);
    command.args(["--size", "4M", "--depth", "4", "--random", "100ms", "--json"]).arg(&json);
    let output = command.arg("--dir").arg(scratch.path()).output().unwrap();
    let said = describe(&output);
    assert!(output.status.success(), "{said}");
    let report = std::fs::read_to_string(&json).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 12, "{said}");
    for row in rows {
        for (kind, samples) in row["samples"].as_object().unwrap() {
            assert_eq!(samples.as_array().unwrap().len(), 1, "{} on {kind}", row["work"]);
            assert!(samples[0]["ops"].as_u64().unwrap() > 0, "{} on {kind}", row["work"]);
        }
        // None of these is asked twice. (Names that a stalled machine lets run out are looked
        // up again, so lookups are compared only where every name is new.)
        let fresh = row["work"].as_str().unwrap().starts_with("stat-");
        let lookup: &[&str] = if fresh { &["lookup"] } else { &[] };
        for request in ["create", "unlink", "write", "fsync"].iter().chain(lookup) {
            let count = |kind: &str| row["samples"][kind][0]["requests"][request].as_u64();
            if row["samples"].get("null").is_some() {
                assert_eq!(count("redbud"), count("null"), "{} {request}", row["work"]);
            }
        }
    }
    assert_eq!(left(&scratch), Vec::<String>::new());
}

#[test]
fn memory_is_told_for_every_process() {
    let scratch = Scratch::new();
    let mut command = redbud();
    command.args(["bench", "memory", "--inodes", "500", "--dir"]).arg(scratch.path());
    let output = command.output().unwrap();
    let said = describe(&output);
    assert!(output.status.success() && said.contains("metadata server"), "{said}");
    assert_eq!(left(&scratch), Vec::<String>::new());
}

/// Runs a bench that works in `scratch`, named as `.`; what it said. It writes JSON, and leaves
/// nothing.
fn measured(scratch: &Scratch, work: &str) -> String {
    let json = Scratch::new();
    let json = json.path().join("found.json");
    let mut command = redbud();
    // The directory's name need not be absolute.
    command.current_dir(scratch.path()).arg("bench").args(work.split(' ')).arg("--json").arg(&json);
    let output = command.output().unwrap();
    let said = describe(&output);
    assert!(output.status.success(), "{work}: {said}");
    let found = std::fs::read_to_string(&json).unwrap();
    let found: serde_json::Value = serde_json::from_str(&found).unwrap();
    assert!(found.as_object().is_some_and(|found| !found.is_empty()), "{work}: {found}");
    assert_eq!(left(scratch), Vec::<String>::new(), "{work}");
    said
}

/// On the virtual disk, on loop devices beside ext4, and, where there is such a part, on mounts.
const LAYOUTS: [&str; 4] = [
    "metarates --clients 1 --processes 2 --files 60 --log 16M --device 256M --dir .",
    "postmark --pool 50 --transactions 100 --clients 1 --files 40 --runs 1 --device 512M --dir .",
    "polygraph --webs 1 --clients 1 --files 40 --runs 1 --device 2G --lazy --dir .",
    "source --sources 60 --clients 1 --device 512M --lazy --dir .",
];

#[test]
fn layouts_are_compared_in_every_work_and_leave_nothing() {
    let scratch = Scratch::new();
    for work in LAYOUTS {
        let said = measured(&scratch, work);
        for contender in ["embedded", "traditional", "traditional, hashed", "ext4", "ext4, hashed"]
        {
            let line = format!(", {contender}: ");
            let on_loops = |told: &str| told.starts_with("loop devices") && told.contains(&line);
            assert!(said.lines().any(on_loops), "{work} by {contender}: {said}");
        }
    }
}

/// Within one process, in virtual time or on a sparse file.
const ALONE: [&str; 4] = [
    "placement --users 2 --dirs 3 --files 4",
    "inline --dirs 1 --files 30",
    "mfs --files 2000 --log 16M --dir .",
    "mds --files 2000 --log 16M --dir .",
];

#[test]
fn what_needs_no_mount_is_measured_without_one() {
    let scratch = Scratch::new();
    for work in ALONE {
        measured(&scratch, work);
    }
}

#[test]
fn an_interrupted_benchmark_says_so_and_leaves_nothing() {
    let scratch = Scratch::new();
    let mut command = redbud();
    command.args(["bench", "table", "--only", "create-1", "--runs", "1000", "--size", "4M"]);
    command.args(["--files", "1000", "--dir"]).arg(scratch.path());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("both mounts stand", || {
        left(&scratch).iter().filter(|name| name.contains("/mnt-")).count() == 2
    });
    signal(child.id() as i32, Signal::INT);
    assert_eq!(wait_child(&mut child).code(), Some(1));
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
    assert!(said.contains("interrupted"), "{said}");
    assert_eq!(left(&scratch), Vec::<String>::new());
}
