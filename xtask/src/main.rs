//! What developers run: `cargo xtask ci`, the whole gate; `cargo xtask quick`, its part that needs
//! neither root nor much time; `cargo xtask tidy`, what keeps the tree readable.
//!
//! Invariants:
//! - the gate never writes to the tree: everything it makes is under `target`
//!   or the system's temporary directory;
//! - whatever fails, the last lines name it: the step, and each failing test;
//! - every step has a bound on its time and is killed, with its children, at it.
// The workshop is above the seam: it runs programs and reads the clock.
#![allow(clippy::disallowed_methods)]

mod ci;
mod documents;
mod lanes;
mod prerequisites;
mod step;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask <command>

  ci             the whole gate: tidy, formatting, lints, build, tests, documentation; needs root
  quick          tidy, formatting, lints, unit tests and 200 seeds of the simulator
  tidy           width of lines, sizes, import circles, words and sentences (xtask/ratchet.txt)
  tidy --lower   the same; brings entries of the ratchet down to what is counted
  golden         makes the golden images of the format that are missing (docs/FORMAT-CHANGES.md)
  documents      brings FORMAT.md and PROTOCOLS.md up to date with the code that they quote
  prerequisites  only looks for what the gate needs, and installs what it can
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["ci"] => ci::run(),
        ["quick"] => ci::quick(),
        ["tidy"] => tidy::run(&root(), false),
        ["tidy", "--lower"] => tidy::run(&root(), true),
        ["golden"] => golden(),
        ["documents"] => done(documents::write(&root())),
        ["prerequisites"] => done(prerequisites::ensure()),
        ["help" | "-h" | "--help"] => {
            print!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => {
            eprint!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Has the tests of `mfs` write the images that are not there; those that are stay as they are.
fn golden() -> ExitCode {
    let arguments =
        ["test", "--package", "redbud-mfs", "--lib", "--locked", "golden::release_makes_the_tree"];
    let outcome = step::cargo(&arguments, &[("REDBUD_GOLDEN", "write")], ci::LIMIT, |_| None);
    done(if outcome.passed { Ok(()) } else { Err(outcome.failures.join("; ")) })
}

fn done(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("xtask: {text}");
            ExitCode::FAILURE
        }
    }
}

/// The repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
