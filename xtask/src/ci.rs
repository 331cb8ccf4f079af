//! The gate, step by step. Every step runs even if an earlier one failed (a
//! build that fails makes the later ones fail at once), so one run tells all.

use std::cell::Cell;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use crate::step::{self, Outcome};
use crate::{documents, prerequisites};

/// No step takes this long on two quiet cores; a hang ends here.
pub const LIMIT: Duration = Duration::from_secs(25 * 60);

/// A step: its name, the arguments of cargo, its environment.
type Step = (&'static str, &'static [&'static str], &'static [(&'static str, &'static str)]);

const STEPS: [Step; 6] = [
    ("formatting", &["fmt", "--all", "--check"], &[]),
    ("lints", &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"], &[]),
    ("build", &["build", "--workspace", "--all-targets", "--locked"], &[]),
    ("tests", &["test", "--workspace", "--locked", "--no-fail-fast"], &[("RUST_BACKTRACE", "1")]),
    (
        "orders of threads",
        &["test", "--package", "redbud-env", "--lib", "--locked", "loom_"],
        // Another directory: the flag is one of every crate.
        &[("RUSTFLAGS", "--cfg loom"), ("CARGO_TARGET_DIR", "target/loom")],
    ),
    (
        "documentation",
        &["doc", "--workspace", "--no-deps", "--document-private-items", "--locked"],
        // Private items are documented too, so links to them lead somewhere.
        &[("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links")],
    ),
];

/// Runs the gate.
pub fn run() -> ExitCode {
    let begin = Instant::now();
    if let Err(text) = prerequisites::ensure() {
        println!("ci: FAILED: prerequisites: {text}");
        return ExitCode::FAILURE;
    }
    let tree = tree_state();
    let quoted = documents::check(&crate::root());
    let mut failed: Vec<(&str, Outcome)> = Vec::new();
    for (name, arguments, environment) in STEPS {
        println!("== {name}: cargo {}", arguments.join(" "));
        let panicked = Cell::new(false);
        let watch = |line: &str| {
            // What a panic says is in the line after the place where it did.
            let says = panicked.replace(is_panic(line)).then(|| line.to_owned());
            finding(line).or(says)
        };
        let outcome = step::cargo(arguments, environment, LIMIT, watch);
        let word = if outcome.passed { "passed" } else { "FAILED" };
        println!("== {name}: {word} in {:.0} s", outcome.time.as_secs_f64());
        if !outcome.passed {
            failed.push((name, outcome));
        }
    }
    let touched = tree_state() != tree;
    let seconds = begin.elapsed().as_secs();
    for (name, outcome) in &failed {
        for line in &outcome.failures {
            println!("ci: {name}: {line}");
        }
    }
    // Worth a word, not a failure: the code is right, its quotation is late.
    if let Err(text) = &quoted {
        println!("ci: note: {text}");
    }
    if touched {
        println!("ci: the gate changed the tree: see git status");
    }
    if failed.is_empty() && !touched {
        println!("ci: passed: {} steps in {seconds} s", STEPS.len());
        return ExitCode::SUCCESS;
    }
    let mut names: Vec<&str> = failed.iter().map(|(name, _)| *name).collect();
    names.extend(touched.then_some("tree changed"));
    println!("ci: FAILED: {} in {seconds} s", names.join(", "));
    ExitCode::FAILURE
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
    fn a_failing_test_is_named_and_a_passing_one_is_not() {
        assert_eq!(finding("test a::b ... FAILED").as_deref(), Some("test failed: a::b"));
        assert_eq!(finding("test a::b ... ok"), None);
        assert!(finding("error[E0308]: mismatched types").is_some());
        assert!(finding("thread 'a::b' (17) panicked at crates/a/src/b.rs:1:2:").is_some());
        assert!(finding("  process didn't exit successfully: `x` (signal: 6, SIGABRT)").is_some());
    }
}
