//! The `redbud` binary: all commands, and the helper of mount(8), umount(8) and fsck(8) if it is
//! called by the name of one.
//!
//! Invariants:
//! - a command that fails prints one line with the reason; every exit status is documented;
//! - this crate does not decide what the file system does: commands start processes, send
//!   requests to them, and print.
// Above the seam: commands start processes, and read clocks and files.
#![allow(clippy::disallowed_methods)]

mod address;
mod admin;
mod args;
mod busy;
mod commands;
mod config;
mod control;
mod devices;
mod etcd;
mod exit;
mod fence_agent;
mod helper;
mod keys;
mod lockfile;
mod log;
mod membership_file;
mod mount_options;
mod mountinfo;
mod mover;
mod notify;
mod output;
mod placing_options;
mod registry;
mod source;
mod target;
mod zoning;

use std::ffi::OsString;
use std::process::ExitCode;

use crate::args::Command;
use crate::exit::Ended;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let ended = match helper::arguments(&arguments) {
        Some(Ok(helper::HelperCommand::Nothing)) => Ok(0),
        Some(Ok(helper::HelperCommand::Mount(args))) => commands::mount::run(&args),
        Some(Ok(helper::HelperCommand::Umount(args))) => commands::umount::run(&args),
        Some(Ok(helper::HelperCommand::Fsck(args))) => commands::fsck::run(&args),
        Some(Err(failure)) => Err(failure),
        None => match args::parse(&arguments) {
            Ok(cli) => run(cli.command),
            Err(code) => Ok(code),
        },
    };
    match ended {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            if !failure.text.is_empty() {
                output::eprint_line(&format!("redbud: {failure}"));
            }
            ExitCode::from(failure.code)
        }
    }
}

fn run(command: Command) -> Ended {
    match command {
        Command::Local(args) => commands::local::run(&args),
        Command::Mkfs(args) => commands::mkfs::run(&args),
        Command::Mds(args) => commands::mds::run(&args),
        Command::Ost(args) => commands::ost::run(&args),
        Command::Mount(args) => commands::mount::run(&args),
        Command::Umount(args) => commands::umount::run(&args),
        Command::Status(args) => commands::status::run(&args),
        Command::Client(args) => commands::client::run(&args),
        Command::Pag(args) => commands::pag::run(&args),
        Command::Rebalance(args) => commands::rebalance::run(&args),
        Command::Sync(args) => commands::sync::run(&args),
        Command::Durable(args) => commands::durable::run(&args),
        Command::Why(args) => commands::why::run(&args),
        Command::Scrub(args) => commands::scrub::run(&args),
        Command::Fence(args) => commands::fence::run(&args),
        Command::Df(args) => commands::df::run(&args),
        Command::Layout(args) => commands::layout::run(&args),
        Command::SetLayout(args) => commands::set_layout::run(&args),
        Command::Migrate(args) => commands::migrate::run(&args),
        Command::Fsck(args) => commands::fsck::run(&args),
        Command::Journal(args) => commands::journal::run(&args),
        Command::Key(args) => commands::key::run(&args),
        Command::Dump(args) => commands::dump::dump(&args),
        Command::Load(args) => commands::dump::load(&args),
        Command::Path(args) => commands::path::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Sim(args) => commands::sim::run(&args),
        Command::Completions(args) => commands::documents::completions(&args),
        Command::Man(args) => commands::documents::manual(&args),
    }
}
