//! POSIX, corner by corner: one script runs on a mount and on ext4, and says the same.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use crate::harness::{Cluster, Content, Ext4, PATIENCE, on_blocks_and_objects, success};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/posix.py");

fn transcript(root: &Path) -> Vec<String> {
    let seconds = PATIENCE.as_secs().to_string();
    let mut command = Command::new("timeout");
    command.args(["-k", "5", &seconds, "python3", "-I", SCRIPT]).arg(root);
    success(&mut command).lines().map(str::to_owned).collect()
}

/// Lines are matched by the case and step that they begin with.
fn differences(found: &[String], expected: &[String]) -> Vec<String> {
    let by_step = |lines: &[String]| -> BTreeMap<String, String> {
        let split =
            |line: &String| line.split_once(": ").map(|(a, b)| (a.to_owned(), b.to_owned()));
        lines.iter().filter_map(split).collect()
    };
    let (ours, theirs) = (by_step(found), by_step(expected));
    let steps: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    let differing = steps.into_iter().filter(|step| ours.get(*step) != theirs.get(*step));
    let describe = |step: &String| {
        format!("{step}:\n  redbud {:?}\n  ext4   {:?}\n", ours.get(step), theirs.get(step))
    };
    differing.map(describe).collect()
}

on_blocks_and_objects!(errnos_contents_and_attributes_equal_those_of_ext4);

fn errnos_contents_and_attributes_equal_those_of_ext4(content: Content) {
    let ext4 = Ext4::mounted();
    let cluster = Cluster::mounted_with(content);
    let expected = transcript(&ext4.root());
    let found = transcript(&cluster.root());
    let differences = differences(&found, &expected);
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.concat());
    cluster.finish();
}
