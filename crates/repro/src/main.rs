//! The program `repro`: the papers' figures, and measurements that the product does not need.
//!
//! Invariant: a command that fails ends with one line that says why, and status 1; one that cannot
//! be read with status 2.
// Above the seam: commands start processes, and read clocks and files.
#![allow(clippy::disallowed_methods)]

mod args;
mod commands;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match commands::run(&args::Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            bench::tell(&format!("repro: {error}"));
            ExitCode::FAILURE
        }
    }
}
