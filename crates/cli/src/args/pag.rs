//! Arguments of `pag`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use types::units::parse_size;

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
    /// List the data zones of a file system that is served
    List(PagListArgs),
    /// Say that the device of a data zone is gone: clients fail what lies there at once
    Lost(PagLostArgs),
    /// Empty a data zone: move its files to others, and grant no more blocks of it
    Drain(PagDrainArgs),
    /// Name the files that have blocks in a data zone
    Files(PagFilesArgs),
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
    /// Device or file, as the server's host and the clients' name it; or an object target, as
    /// ost:HOST:PORT
    pub device: PathBuf,
    /// File system, as of `status`; default: the only one of this host
    pub target: Option<String>,
    /// Add it even if it has content, which is lost
    #[arg(long)]
    pub force: bool,
    /// The metadata server whose zone it is to be; needed for a device if there are several
    #[arg(long, value_name = "N")]
    pub server: Option<u16>,
    /// How to print it
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `pag list`.
#[derive(Args, Debug)]
pub struct PagListArgs {
    /// File system, as of `status`; default: the only one of this host
    pub target: Option<String>,
    /// How to print it
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `pag lost`.
#[derive(Args, Debug)]
#[command(after_help = "\
Reads and writes of files there say EIO at once, on every client; all other files go on, and no
blocks are granted there. Data that a client has accepted and not written there is lost, which
the client reports. `redbud pag files` names the files. --undo takes the zone into service again,
with all that its device holds.")]
pub struct PagLostArgs {
    /// Number of the data zone
    pub pag: u16,
    /// File system, as of `status`; default: the only one of this host
    pub target: Option<String>,
    /// The device is there after all
    #[arg(long)]
    pub undo: bool,
    /// How to print it
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `pag drain`.
#[derive(Args, Debug)]
#[command(after_help = "\
The command is a client of its own, which opens the data devices at the paths of the cluster's file.
It takes one file after the other from its writers, for at most about 100 ms at a time, and moves its
blocks to zones that the layout of the file allows. Programs notice nothing else.

It may be interrupted at any moment, also by SIGKILL: nothing is lost, the zone goes on draining, and
the same command ends the work. When the zone is empty it stays in the table, and nothing is granted
there until --undo.

Exit status: 0 the zone is empty, or what was asked for is done; 3 something is left, as the command
says; 1 failed.")]
pub struct PagDrainArgs {
    /// Number of the data zone
    pub pag: u16,
    /// File system, as of `status`; default: the only one of this host
    pub target: Option<String>,
    /// Move at most so many bytes in a second
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub rate: Option<u64>,
    /// Move nothing from now on, and end a command that does; nothing is granted there all the same
    #[arg(long, conflicts_with_all = ["rate", "undo"])]
    pub pause: bool,
    /// Grant blocks of it again, and end a command that moves files
    #[arg(long, conflicts_with = "rate")]
    pub undo: bool,
    /// How to print it
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `rebalance`.
#[derive(Args, Debug)]
#[command(after_help = "\
Moves whole files, as `redbud pag drain` does, from the fullest data zone to emptier ones, until the
shares of their space that files take differ by 5 % at most, or nothing more can move. It may be
interrupted at any moment.

Exit status: 0 done; 3 some files could not be moved, as the command says; 1 failed.")]
pub struct RebalanceArgs {
    /// File system, as of `status`; default: the only one of this host
    pub target: Option<String>,
    /// Move at most so many bytes in a second
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub rate: Option<u64>,
    /// How to print it
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `pag files`.
#[derive(Args, Debug)]
#[command(after_help = "\
Reads all layouts while the file system is in use. A file that is renamed into another directory
meanwhile may be missed. A removed file that is still open has no path, nor has a file whose first
name was removed: their inode numbers are printed, as `ino N`.

Exit status: 0 also if there are none.")]
pub struct PagFilesArgs {
    /// Number of the data zone
    pub pag: u16,
    /// File system, as of `status`; default: the only one of this host
    pub target: Option<String>,
    /// Only files with some of these blocks of 4 KiB, the last one included
    #[arg(long, value_name = "A-B", value_parser = parse_range)]
    pub range: Option<(u64, u64)>,
    /// How to print them
    #[command(flatten)]
    pub output: Output,
}

/// Parses `A-B`.
fn parse_range(text: &str) -> Result<(u64, u64), String> {
    let parts = text.split_once('-').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    match parts {
        Some((from, to)) if from <= to => Ok((from, to)),
        _ => Err("write the first and the last block, as 100-199".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::parse_range;

    #[test]
    fn range_has_a_first_and_a_last_block() {
        assert_eq!(parse_range("7-7"), Ok((7, 7)));
        for bad in ["7", "8-7", "a-9", "1-", "-1", "1-2-3"] {
            assert!(parse_range(bad).is_err(), "{bad}");
        }
    }
}
