//! The options of `layout` and `set-layout`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::Output;

/// Arguments of `layout`.
#[derive(Args, Debug)]
pub struct LayoutArgs {
    /// Regular files and directories in a mount
    #[arg(required = true, value_name = "PATH")]
    pub files: Vec<PathBuf>,
    /// Draw a file over its zones into this file
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,
    /// How to print them
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `set-layout`.
#[derive(Args, Debug)]
#[command(after_help = "\
Files and directories that exist keep their layout; what is created in the directory later
inherits the new one.

  redbud set-layout /mnt/video --policy striping --part 8M
  redbud set-layout /mnt/fast --zones 0,2-3
  redbud set-layout /mnt/data --policy objects --width 2
  redbud set-layout /mnt/video --default")]
pub struct SetLayoutArgs {
    /// Directories in a mount
    #[arg(required = true, value_name = "DIR")]
    pub directories: Vec<PathBuf>,
    /// Whole files take turns among the zones, or parts of each file, or they lie in objects
    #[arg(long, value_enum, default_value = "fileround")]
    pub policy: PolicyName,
    /// Bytes of a part: a multiple of 4096, with K, M or G
    #[arg(long, value_name = "SIZE")]
    pub part: Option<String>,
    /// Number of zones that a file is striped over; of targets 1 by default
    #[arg(long, value_name = "N")]
    pub width: Option<u16>,
    /// The zones that may be used, such as 0,2-3; without it all
    #[arg(long, value_name = "LIST")]
    pub zones: Option<String>,
    /// Remove the layout: files go where those of the file system go
    #[arg(long, conflicts_with_all = ["policy", "part", "width", "zones"])]
    pub default: bool,
}

/// The policies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum PolicyName {
    /// A file lies on one zone as a whole
    Fileround,
    /// Parts of a file lie on one zone after the other
    Striping,
    /// Parts of a file lie in objects on one object target after the other
    Objects,
}
