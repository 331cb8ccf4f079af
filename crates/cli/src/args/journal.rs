//! Arguments of `journal`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{Output, ServerChoice};

/// Arguments of `journal`.
#[derive(Args, Debug)]
pub struct JournalArgs {
    /// What to do
    #[command(subcommand)]
    pub verb: JournalCommand,
}

/// What `journal` does.
#[derive(Subcommand, Debug)]
pub enum JournalCommand {
    /// Show where the log is, and whether the cluster's file says so
    Status(JournalStatusArgs),
    /// Move the log to another device, or back to the metadata device; the server must be stopped
    Move(JournalMoveArgs),
}

/// Arguments of `journal status`.
#[derive(Args, Debug)]
#[command(after_help = "\
Reads labels and superblocks only; a server may run. Exit status: 0 the log is where the
cluster's file says, 1 it is not.")]
pub struct JournalStatusArgs {
    /// The cluster's file
    pub config: PathBuf,
    /// Whose log
    #[command(flatten)]
    pub server: ServerChoice,
    /// How to print it
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `journal move`.
#[derive(Args, Debug)]
#[command(after_help = "\
Recovers the file system, writes everything home, and switches to the new place, which is
then empty. The command may be interrupted at any moment: the log is then in the old or in
the new place, and the same command ends the move. Afterwards set or remove `journal` in
[metadata], or in the server's table [[mds]], of the cluster's file, as the command says; until then no server starts.

The device that had the log before is marked as unused.

  redbud journal move home.toml --to /dev/disk/by-id/…
  redbud journal move home.toml --internal")]
pub struct JournalMoveArgs {
    /// The cluster's file, which names the present place of the log
    pub config: PathBuf,
    /// Whose log
    #[command(flatten)]
    pub server: ServerChoice,
    /// Move the log to this device or file
    #[arg(long, value_name = "DEVICE", required_unless_present = "internal")]
    pub to: Option<PathBuf>,
    /// Create a missing file of --to with this size
    #[arg(long, value_name = "SIZE", requires = "to", value_parser = types::units::parse_size)]
    pub size: Option<u64>,
    /// Move the log to its place on the metadata device
    #[arg(long, conflicts_with = "to")]
    pub internal: bool,
    /// Overwrite a device that has a Redbud label or other content: its content is lost
    #[arg(long)]
    pub force: bool,
    /// How to print the result
    #[command(flatten)]
    pub output: Output,
}
