//! The options of `migrate`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use types::units::parse_size;

use super::Output;

/// Arguments of `migrate`.
#[derive(Args, Debug)]
#[command(after_help = "\
The command is a client of its own, which opens the data devices at the paths of the cluster's file
and reaches the object targets. It needs a key of an administrator. It copies the content of a file,
and exchanges the old place for the new one at once. Content, holes, size, times, attributes and the
number of the file stay, and programs that have it open go on. If they write it during the copy, the
copy begins again; the third one keeps writers out until it ends.

A file that lies in the pool stays as it is; with --part, --width or --zones it moves if its layout
is another one. The command may be interrupted at any moment, also by SIGKILL: a file lies in the
old place or in the new one, and what was copied in vain is freed.

With --mds directories move to another metadata server, with their names. Their files follow them,
and keep their numbers; no data is copied. A file stays if it is open or locked, has other names or
lies in objects. The mount where a directory lies asks for that, so this needs a mount of this host,
as root or as its user. A directory of more than about 1,000 names is refused. Each directory and
each file is a move of its own, which happens at once or not at all.

  redbud migrate /mnt/home/video.mkv --to objects --width 2
  redbud migrate /mnt/home/data/* --to blocks --zones 0,2-3
  redbud migrate /mnt/home/build --mds 1 --recursive

Exit status: 0 all files lie in the pool, or all directories with their files at the server; 3 some
do not, as the command says; 1 failed.")]
pub struct MigrateArgs {
    /// Regular files in a mount; with --mds directories
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Where the files are to lie
    #[arg(long, value_enum, value_name = "POOL", required_unless_present = "mds")]
    pub to: Option<PoolName>,
    /// The metadata server where the directories are to live
    #[arg(long, value_name = "N", conflicts_with_all = ["to", "part", "width", "zones", "rate"])]
    pub mds: Option<u8>,
    /// With --mds: also all directories below
    #[arg(long, requires = "mds", conflicts_with = "to")]
    pub recursive: bool,
    /// As of set-layout: bytes of a part; of blocks it asks for striping
    #[arg(long, value_name = "SIZE")]
    pub part: Option<String>,
    /// As of set-layout: number of zones of a file; of blocks it asks for striping
    #[arg(long, value_name = "N")]
    pub width: Option<u16>,
    /// As of set-layout: the zones that may be used, such as 0,2-3
    #[arg(long, value_name = "LIST")]
    pub zones: Option<String>,
    /// Copy at most so many bytes in a second
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub rate: Option<u64>,
    /// How to print it
    #[command(flatten)]
    pub output: Output,
}

/// The pools.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum PoolName {
    /// Blocks of data zones
    Blocks,
    /// Objects at object targets
    Objects,
}
