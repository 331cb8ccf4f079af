//! All tests of the workspace, in two lanes: the tests of the whole program, which mostly wait,
//! run beside all others.
//!
//! Invariants:
//! - one build makes all test programs, with the features of the whole workspace;
//! - a lane runs its programs one after another, in an order that only their names decide;
//! - the output of a program is shown in one piece, when the program has ended or was killed.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::ci::watcher;
use crate::step::{self, Outcome};

/// What is built, and then run.
const WORKSPACE: [&str; 3] = ["test", "--workspace", "--locked"];
/// The directory of the package whose tests run in the first lane.
const PROGRAM: &str = "crates/cli";

/// A program that runs tests.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
struct TestProgram {
    /// The directory of its package, where it runs.
    directory: PathBuf,
    /// The kind of its target: `lib`, `bin` or `test`.
    kind: String,
    name: String,
    executable: PathBuf,
}

/// Builds all tests, and runs them and the tests in documentation; all within `limit`.
pub fn run(environment: &[(&str, &str)], limit: Duration) -> Outcome {
    let begin = Instant::now();
    let left = || limit.saturating_sub(begin.elapsed());
    let (mut outcome, programs) = build(environment, left());
    if outcome.passed {
        let lanes = lanes(programs);
        let ended: Vec<Outcome> = std::thread::scope(|scope| {
            let run = |lane| scope.spawn(move || run_lane(lane, environment, begin, limit));
            // All have begun before the first one is waited for.
            let running: Vec<_> = lanes.iter().map(run).collect();
            running.into_iter().map(|lane| lane.join().expect("a lane does not panic")).collect()
        });
        let documentation = [&WORKSPACE[..], &["--doc", "--no-fail-fast"]].concat();
        let doc_tests = step::cargo(&documentation, environment, left(), watcher());
        for part in ended.into_iter().chain([doc_tests]) {
            outcome.passed &= part.passed;
            outcome.failures.extend(part.failures);
        }
    }
    Outcome { time: begin.elapsed(), ..outcome }
}

/// Builds the test programs, and finds their names in what cargo says.
fn build(environment: &[(&str, &str)], limit: Duration) -> (Outcome, Vec<TestProgram>) {
    let arguments =
        [&WORKSPACE[..], &["--no-run", "--message-format=json-render-diagnostics"]].concat();
    let (mut programs, mut watch) = (Vec::new(), watcher());
    let mut outcome = step::run(&mut step::cargo_command(&arguments, environment), limit, |line| {
        if is_message(line) {
            programs.extend(test_program(line));
            return None;
        }
        println!("{line}");
        watch(line)
    });
    if outcome.passed && programs.is_empty() {
        outcome.passed = false;
        outcome.failures.push("cargo named no test program".into());
    }
    (outcome, programs)
}

/// Is it a message for programs?
fn is_message(line: &str) -> bool {
    line.starts_with(r#"{"reason":"#)
}

/// The test program that a message of cargo is about.
fn test_program(message: &str) -> Option<TestProgram> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let text = |pointer: &str| message.pointer(pointer)?.as_str().map(str::to_owned);
    if text("/reason")? != "compiler-artifact" || !message.pointer("/profile/test")?.as_bool()? {
        return None;
    }
    Some(TestProgram {
        directory: Path::new(&text("/manifest_path")?).parent()?.to_owned(),
        kind: text("/target/kind/0")?,
        name: text("/target/name")?,
        executable: text("/executable")?.into(),
    })
}

/// Divides the programs into lanes, each in order.
fn lanes(mut programs: Vec<TestProgram>) -> [Vec<TestProgram>; 2] {
    programs.sort();
    let waits = |one: &TestProgram| one.kind == "test" && one.directory.ends_with(PROGRAM);
    let (first, second) = programs.into_iter().partition(waits);
    [first, second]
}

/// Runs programs one after another; later ones run even if one fails.
fn run_lane(
    lane: &Vec<TestProgram>,
    environment: &[(&str, &str)],
    begin: Instant,
    limit: Duration,
) -> Outcome {
    let mut all = Outcome { passed: true, failures: Vec::new(), time: Duration::ZERO };
    for program in lane {
        let outcome = program.run(environment, limit.saturating_sub(begin.elapsed()));
        all.passed &= outcome.passed;
        let named = |failure| format!("{}: {failure}", program.title());
        all.failures.extend(outcome.failures.into_iter().map(named));
        all.time += outcome.time;
    }
    all
}

impl TestProgram {
    /// For people: the package and the target.
    fn title(&self) -> String {
        let package = self.directory.file_name().unwrap_or(self.directory.as_os_str());
        format!("{} {} {}", package.to_string_lossy(), self.kind, self.name)
    }

    /// Runs it as `cargo test` does, and shows its output at the end.
    fn run(&self, environment: &[(&str, &str)], limit: Duration) -> Outcome {
        println!("== {}: begins", self.title());
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.directory).env("CARGO_MANIFEST_DIR", &self.directory);
        command.envs(environment.iter().copied());
        let (mut output, mut watch) = (String::new(), watcher());
        let outcome = step::run(&mut command, limit, |line| {
            output.push_str(line);
            output.push('\n');
            watch(line)
        });
        let ended = if outcome.passed { "passed" } else { "FAILED" };
        let seconds = outcome.time.as_secs_f64();
        let shown = format!("{output}== {}: {ended} in {seconds:.1} s\n", self.title());
        // In one piece: the other lane writes, too. Nobody reads a closed output.
        let _ = std::io::stdout().lock().write_all(shown.as_bytes());
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(package: &str, kind: &str, name: &str, test: bool) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","manifest_path":"/r/crates/{package}/Cargo.toml",
            "target":{{"kind":["{kind}"],"name":"{name}"}},"profile":{{"test":{test}}},
            "executable":"/r/target/{name}-1"}}"#
        )
    }

    #[test]
    fn program_is_found_in_the_message_about_it() {
        let program = test_program(&message("mds", "test", "server", true)).unwrap();
        assert_eq!(program.title(), "mds test server");
        assert_eq!(program.directory, Path::new("/r/crates/mds"));
        assert_eq!(program.executable, Path::new("/r/target/server-1"));
    }

    #[test]
    fn message_about_anything_else_names_no_program() {
        let library = message("mds", "lib", "mds", true).replace(r#""/r/target/mds-1""#, "null");
        for other in [
            message("cli", "bin", "redbud", false).as_str(),
            library.as_str(),
            r#"{"reason":"build-finished","success":true}"#,
            r#"{"reason":"#,
        ] {
            assert!(is_message(other));
            assert_eq!(test_program(other), None, "{other}");
        }
        assert!(!is_message("   Compiling redbud v0.1.0"));
    }

    #[test]
    fn lanes_are_the_same_whatever_order_the_build_had() {
        let built = [
            ("sim", "test", "planted"),
            ("cli", "test", "e2e"),
            ("cli", "bin", "redbud"),
            ("mds", "test", "server"),
            ("mds", "lib", "mds"),
        ];
        let titles = |order: Vec<(&str, &str, &str)>| {
            let program =
                |(package, kind, name)| test_program(&message(package, kind, name, true)).unwrap();
            let lanes = lanes(order.into_iter().map(program).collect());
            lanes.map(|lane| lane.iter().map(TestProgram::title).collect::<Vec<_>>())
        };
        let expected = [
            vec!["cli test e2e"],
            vec!["cli bin redbud", "mds lib mds", "mds test server", "sim test planted"],
        ];
        assert_eq!(titles(built.to_vec()), expected);
        assert_eq!(titles(built.iter().rev().copied().collect()), expected);
    }

    #[test]
    fn failing_program_is_named_and_those_behind_it_run() {
        let program = |name: &str, executable: &str| TestProgram {
            directory: "/".into(),
            kind: "test".into(),
            name: name.into(),
            executable: executable.into(),
        };
        let lane = vec![program("one", "false"), program("two", "/nowhere/none")];
        let outcome = run_lane(&lane, &[], Instant::now(), Duration::from_secs(60));
        assert!(!outcome.passed);
        assert_eq!(outcome.failures.len(), 2, "{:?}", outcome.failures);
        assert!(outcome.failures[0].contains("test one: "), "{:?}", outcome.failures);
        assert!(outcome.failures[1].contains("test two: "), "{:?}", outcome.failures);
        let outcome =
            run_lane(&vec![program("three", "true")], &[], Instant::now(), Duration::from_secs(60));
        assert!(outcome.passed && outcome.failures.is_empty());
    }
}
