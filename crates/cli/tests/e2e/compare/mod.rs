//! Random scripts of system calls, made by a seed, run on two mounts of one Redbud and on one
//! ext4: every answer, and the tree at the end, must be the same. A script that shows a
//! difference is made as short as possible before it is printed.
//!
//! Invariants:
//! - a script is data: it runs again, whole or in part, and does the same on the same file
//!   system, because nothing in it depends on the result of an earlier step;
//! - what POSIX and ext4 leave open is not compared: times of access, allocated blocks, sizes of
//!   directories, the order of names, the moment of "now".

mod apply;
mod shrink;
mod step;

use std::path::PathBuf;

use crate::harness::{Cluster, Ext4, Spec};

use apply::Place;
use step::Step;

/// Steps of one script.
const STEPS: usize = 250;

/// Where the scripts run, each in directories of its own.
struct Arena {
    ext4: PathBuf,
    mounts: Vec<PathBuf>,
    runs: u64,
}

/// Where a script's answers differ first.
struct Difference {
    /// Steps up to it.
    steps: usize,
    text: String,
}

impl Arena {
    /// Runs the script on both, side by side, until they differ.
    fn run(&mut self, script: &[Step]) -> Option<Difference> {
        self.runs += 1;
        // So deep that no ".." of a script leads out of it.
        let name = format!("run-{}/2/3/4/5", self.runs);
        let mut theirs = Place::new(&[self.ext4.join(&name)]);
        let ours: Vec<PathBuf> = self.mounts.iter().map(|mount| mount.join(&name)).collect();
        let mut ours = Place::new(&ours);
        for (number, step) in script.iter().enumerate() {
            let (expected, found) = (theirs.apply(step), ours.apply(step));
            if found != expected {
                let text = format!("redbud: {found}\n  ext4: {expected}");
                return Some(Difference { steps: number + 1, text });
            }
        }
        let expected = theirs.tree(0);
        for mount in 0..self.mounts.len() {
            let found = ours.tree(mount);
            let differing = expected.iter().find(|&(path, text)| found.get(path) != Some(text));
            let further = found.keys().find(|path| !expected.contains_key(*path));
            if differing.is_some() || further.is_some() {
                let there = differing.and_then(|(path, _)| found.get(path));
                let text = format!(
                    "the trees, through mount {mount}: ext4 has {differing:?}, redbud {there:?}; \
                     only redbud has {further:?}"
                );
                return Some(Difference { steps: script.len(), text });
            }
        }
        None
    }
}

fn print(script: &[Step]) -> String {
    script.iter().map(|step| format!("    {step:?}\n")).collect()
}

#[test]
fn random_system_calls_behave_as_on_ext4() {
    let seeds: u64 = std::env::var("REDBUD_E2E_COMPARE_SEEDS")
        .map_or(100, |text| text.parse().expect("a number of seeds"));
    let ext4 = Ext4::mounted();
    let mut cluster = Cluster::start(&Spec::default());
    cluster.mount();
    cluster.mount();
    let mounts = vec![cluster.path(0), cluster.path(1)];
    let mut arena = Arena { ext4: ext4.root(), mounts, runs: 0 };
    for seed in 1..=seeds {
        let script = step::script(seed, STEPS);
        let Some(difference) = arena.run(&script) else { continue };
        let short = shrink::shortest(&script[..difference.steps], |part| arena.run(part));
        let (script, text) = short.map_or_else(
            || (print(&script[..difference.steps]), difference.text + "\n(not seen again)"),
            |(script, difference)| (print(&script), difference.text),
        );
        panic!("seed {seed}: after\n{script}{text}");
    }
    cluster.finish();
}

/// Of a long script only the step is left that makes the difference.
#[test]
fn difference_is_found_and_its_script_shrunk() {
    let script = step::script(3, STEPS);
    let wrong = |part: &[Step]| {
        let at = part.iter().position(|step| matches!(step.act, step::Act::Rename { .. }))?;
        Some(Difference { steps: at + 1, text: String::new() })
    };
    let (short, _) = shrink::shortest(&script, wrong).expect("a rename in so many steps");
    assert_eq!(short.len(), 1, "{}", print(&short));
}
