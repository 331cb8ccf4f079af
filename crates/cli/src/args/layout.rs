//! The options of `layout` and `set-layout`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};

use super::Output;
use crate::config::SERVERS_MAX;

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
  redbud set-layout /mnt/home --mds spread
  redbud set-layout /mnt/checkpoints --spread on
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
    /// Where the directories lie that are made there: at metadata server N, at each server in turn
    /// (spread), or where the directory lies itself (parent)
    #[arg(long, value_name = "N|spread|parent")]
    pub mds: Option<Home>,
    /// New files of the directory go to the metadata servers that their names choose: from now on
    /// (on), as soon as there are many names (auto), or never (off)
    #[arg(long, value_enum)]
    pub spread: Option<SpreadName>,
    /// Remove the layout: files go where those of the file system go
    #[arg(long, conflicts_with_all = ["policy", "part", "width", "zones", "mds", "spread"])]
    pub default: bool,
}

/// The metadata server of new directories.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Home {
    /// That of their parent.
    Parent,
    /// Each in turn.
    Spread,
    /// This one.
    Server(u16),
}

impl FromStr for Home {
    type Err = String;

    fn from_str(text: &str) -> Result<Home, String> {
        match (text, text.parse::<u16>()) {
            ("parent", _) => Ok(Home::Parent),
            ("spread", _) => Ok(Home::Spread),
            (_, Ok(number)) if usize::from(number) < SERVERS_MAX => Ok(Home::Server(number)),
            _ => Err(format!(
                "write the number of a server, at most {}, or spread, or parent",
                SERVERS_MAX - 1
            )),
        }
    }
}

impl fmt::Display for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Home::Parent => f.write_str("parent"),
            Home::Spread => f.write_str("spread"),
            Home::Server(number) => number.fmt(f),
        }
    }
}

/// Whether new files are spread over the metadata servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum SpreadName {
    /// As soon as the directory has many names
    Auto,
    /// They are
    On,
    /// They are not
    Off,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn home_is_a_server_or_a_rule() {
        for text in ["parent", "spread", "0", "63"] {
            assert_eq!(text.parse::<Home>().unwrap().to_string(), text);
        }
        for bad in ["64", "-1", "Spread", ""] {
            assert!(bad.parse::<Home>().is_err(), "{bad}");
        }
    }
}
