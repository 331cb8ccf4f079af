//! Arguments of `pag`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Output;

/// Arguments of `pag`.
#[derive(Args, Debug)]
pub struct PagArgs {
    /// What to do
    #[command(subcommand)]
    pub command: PagCommand,
}

/// What to do with data zones.
#[derive(Subcommand, Debug)]
pub enum PagCommand {
    /// Make a device a data zone of a file system that is served
    Add(PagAddArgs),
}

/// Arguments of `pag add`.
#[derive(Args, Debug)]
#[command(after_help = "\
The metadata server opens the device at this path, labels it, and tells the clients, which use it
at once; programs notice nothing. Then name the device in the cluster's file of every server, as
the command says: a server that is started without that does not have the device.

The command may be interrupted at any moment: the same command then ends the work.

  redbud pag add /dev/disk/by-id/… /mnt")]
pub struct PagAddArgs {
    /// Device or file, as the server's host and the clients' name it
    pub device: PathBuf,
    /// File system, as of `status`; default: the only one of this host
    pub target: Option<String>,
    /// Add it even if it has content, which is lost
    #[arg(long)]
    pub force: bool,
    /// How to print it
    #[command(flatten)]
    pub output: Output,
}
