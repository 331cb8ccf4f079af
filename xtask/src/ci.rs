//! The gate and its quick part, step by step. Every step runs even if an earlier one failed (a
//! build that fails makes the later ones fail at once), so one run reports everything.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use crate::step::{self, Outcome};
use crate::{lanes, prerequisites, tidy};

/// No step takes half as long on two quiet cores; a hang ends here.
pub const LIMIT: Duration = Duration::from_secs(40 * 60);

/// A step: its name, what runs, its environment.
type Step = (&'static str, Work, &'static [(&'static str, &'static str)]);

/// What a step runs.
#[derive(Clone, Copy)]
enum Work {
    /// cargo with these arguments.
    Cargo(&'static [&'static str]),
    /// All tests of the workspace, in lanes.
    Tests,
}
use Work::{Cargo, Tests};

const FORMATTING: Step = ("formatting", Cargo(&["fmt", "--all", "--check"]), &[]);
const LINTS: Step = (
    "lints",
    Cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]),
    &[],
);

/// The steps of the gate behind `tidy`.
const GATE: [Step; 6] = [
    FORMATTING,
    LINTS,
    ("build", Cargo(&["build", "--workspace", "--all-targets", "--locked"]), &[]),
    ("tests", Tests, &[("RUST_BACKTRACE", "1")]),
    (
        "orders of threads",
        Cargo(&["test", "--package", "redbud-env", "--lib", "--locked", "loom_"]),
        // Another directory: the flag is one of every crate.
        &[("RUSTFLAGS", "--cfg loom"), ("CARGO_TARGET_DIR", "target/loom")],
    ),
    (
        "documentation",
        Cargo(&["doc", "--workspace", "--no-deps", "--document-private-items", "--locked"]),
        // Private items are documented too, so links to them lead somewhere.
        &[("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links")],
    ),
];

/// The steps of `quick` behind `tidy`.
const QUICK: [Step; 4] = [
    FORMATTING,
    LINTS,
    ("unit tests", Cargo(&["test", "--workspace", "--lib", "--locked", "--no-fail-fast"]), &[]),
    (
        "seeds",
        Cargo(&[
            "run", "--quiet", "--locked", "--", "sim", "--seed", "1", "--count", "200", "--jobs",
            "2",
        ]),
        &[],
    ),
];

/// Runs the gate.
pub fn run() -> ExitCode {
    let begin = Instant::now();
    if let Err(text) = prerequisites::ensure() {
        println!("ci: FAILED: prerequisites: {text}");
        return ExitCode::FAILURE;
    }
    steps("ci", &GATE, &[ONCE], begin)
}

/// Runs what takes a few minutes, and needs neither root nor mounts.
pub fn quick() -> ExitCode {
    let begin = Instant::now();
    if let Err(text) = prerequisites::components() {
        println!("quick: FAILED: prerequisites: {text}");
        return ExitCode::FAILURE;
    }
    steps("quick", &QUICK, &[], begin)
}

/// For the gate, which as a rule compiles each crate once, from nothing. Incremental compilation
/// takes half as long again there, and writes several times as much.
const ONCE: (&str, &str) = ("CARGO_INCREMENTAL", "0");

/// Runs `tidy` and `steps`, all with `common` in their environment; reports failures, the time of
/// each step and the sum under `name`.
fn steps(name: &str, steps: &[Step], common: &[(&str, &str)], begin: Instant) -> ExitCode {
    let tree = tree_state();
    let mut done: Vec<(&str, Outcome)> = vec![("tidy", tidy())];
    for &(step, work, environment) in steps {
        let environment = [common, environment].concat();
        let outcome = match work {
            Cargo(arguments) => {
                println!("== {step}: cargo {}", arguments.join(" "));
                step::cargo(arguments, &environment, LIMIT, watcher())
            }
            Tests => {
                println!("== {step}: all of the workspace, in two lanes");
                lanes::run(&environment, LIMIT)
            }
        };
        done.push((step, outcome));
        report(step, &done[done.len() - 1].1);
    }
    let touched = tree_state() != tree;
    for (step, outcome) in &done {
        for line in &outcome.failures {
            println!("{name}: {step}: {line}");
        }
    }
    if touched {
        println!("{name}: the checks changed the tree: see git status");
    }
    for (step, outcome) in &done {
        println!("{name}: {:6.0} s  {step}", outcome.time.as_secs_f64());
    }
    let seconds = begin.elapsed().as_secs();
    let mut failed: Vec<&str> =
        done.iter().filter(|(_, outcome)| !outcome.passed).map(|(step, _)| *step).collect();
    failed.extend(touched.then_some("tree changed"));
    if failed.is_empty() {
        println!("{name}: passed: {} steps in {seconds} s", done.len());
        return ExitCode::SUCCESS;
    }
    println!("{name}: FAILED: {} in {seconds} s", failed.join(", "));
    ExitCode::FAILURE
}

/// Finds in the lines of one program's output those that the report must repeat.
pub fn watcher() -> impl FnMut(&str) -> Option<String> {
    let mut panicked = false;
    move |line| {
        // A panic prints its message in the line after its place.
        let says = std::mem::replace(&mut panicked, is_panic(line)).then(|| line.to_owned());
        finding(line).or(says)
    }
}

fn tidy() -> Outcome {
    println!("== tidy: cargo xtask tidy");
    let begin = Instant::now();
    let failures = tidy::findings(&crate::root(), false).unwrap_or_else(|text| vec![text]);
    let outcome = Outcome { passed: failures.is_empty(), failures, time: begin.elapsed() };
    report("tidy", &outcome);
    outcome
}

fn report(step: &str, outcome: &Outcome) {
    let word = if outcome.passed { "passed" } else { "FAILED" };
    println!("== {step}: {word} in {:.0} s", outcome.time.as_secs_f64());
}

/// Lines worth repeating at the end: failing tests and where they panicked, test programs that a
/// signal ended, the first line of errors.
fn finding(line: &str) -> Option<String> {
    let test = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"));
    if let Some(name) = test {
        return Some(format!("test failed: {name}"));
    }
    let slow = line.contains(" has been running for over ");
    let error = line.starts_with("error") || line.starts_with("Diff in ");
    // A test program that ends so tells of no test that failed.
    let ended = line.contains("process didn't exit successfully")
        || line.starts_with("fatal runtime error")
        || is_panic(line);
    (slow || error || ended).then(|| line.to_owned())
}

fn is_panic(line: &str) -> bool {
    line.starts_with("thread ") && line.contains(" panicked at ")
}

/// What git sees of the tree; empty outside a repository.
fn tree_state() -> Vec<u8> {
    let status = Command::new("git").args(["status", "--porcelain"]).output();
    status.map(|output| output.stdout).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::finding;

    #[test]
    fn only_failing_tests_are_named() {
        assert_eq!(finding("test a::b ... FAILED").as_deref(), Some("test failed: a::b"));
        assert_eq!(finding("test a::b ... ok"), None);
        assert!(finding("error[E0308]: mismatched types").is_some());
        assert!(finding("thread 'a::b' (17) panicked at crates/a/src/b.rs:1:2:").is_some());
        assert!(finding("  process didn't exit successfully: `x` (signal: 6, SIGABRT)").is_some());
    }
}
