//! Arguments of `redbud fence`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Arguments of `fence`.
#[derive(Args, Debug)]
pub struct FenceArgs {
    /// What to do
    #[command(subcommand)]
    pub command: FenceCommand,
}

/// The verbs of `fence`.
#[derive(Subcommand, Debug)]
pub enum FenceCommand {
    /// Cut a host off by each of its fences, show that it is, and give it back
    Test(FenceTestArgs),
}

/// Arguments of `fence test`.
#[derive(Args, Debug)]
#[command(after_help = "\
The host is cut off as after an eviction: its mounts lose their devices, or it is powered off.

Without --device the agents' word is all that is shown. With it, run the command where PATH leads
through what the agents cut. It writes the copy of the label in the device's last block as it is,
before, between and after. Start no server meanwhile.

Exit status: 0 each fence works, 1 one does not.")]
pub struct FenceTestArgs {
    /// Host to cut off, as its mounts name it in `redbud status`
    pub host: String,
    /// The cluster's file, with the tables `[[fence]]`
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Path of a data device on which a write must fail while the host is cut off
    #[arg(long, value_name = "PATH")]
    pub device: Option<PathBuf>,
}
