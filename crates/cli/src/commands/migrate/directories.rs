//! `redbud migrate DIR --mds N`: moves directories to another metadata server, through a mount.
//!
//! Invariants:
//! - each directory is a move of its own: what was moved before the command ends stays moved;
//! - with `--recursive` what lies in a directory moves before it. Symbolic links are not followed,
//!   and other file systems that are mounted there are left alone.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;
use types::Fault;

use crate::args::MigrateArgs;
use crate::control::{self, Ask};
use crate::exit::{Ended, Failure, Status};
use crate::{mountinfo, output, target};

/// What became of the directories.
#[derive(Serialize)]
struct Report {
    version: u32,
    source: String,
    /// The metadata server.
    mds: u8,
    directories: Vec<DirectoryReport>,
}

#[derive(Serialize)]
struct DirectoryReport {
    path: String,
    /// "moved", "there" or "stayed".
    state: &'static str,
    /// Why it stayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

impl DirectoryReport {
    fn new(path: &Path, outcome: Result<&'static str, String>) -> DirectoryReport {
        let path = path.display().to_string();
        match outcome {
            Ok(state) => DirectoryReport { path, state, why: None },
            Err(why) => DirectoryReport { path, state: "stayed", why: Some(why) },
        }
    }
}

/// Moves them to the metadata server `mds`.
pub fn run(args: &MigrateArgs, mds: u8) -> Ended {
    let source = target::source(&args.files[0].to_string_lossy())?;
    for other in &args.files[1..] {
        if target::source(&other.to_string_lossy())? != source {
            let text = format!("{} lies in another file system", other.display());
            return Err(Failure::usage(text));
        }
    }
    env::asked_to_stop();
    let mut directories = Vec::new();
    for path in &args.files {
        let (all, unread) = match args.recursive {
            true => with_those_below(path),
            false => (vec![path.clone()], Vec::new()),
        };
        directories.extend(unread);
        for path in all {
            let moved = match env::asked_to_stop() {
                true => Err("the command was asked to end".into()),
                false => move_one(&path, mds)?,
            };
            directories.push(DirectoryReport::new(&path, moved));
        }
    }
    finish(args, &Report { version: 1, source: source.to_string(), mds, directories })
}

fn finish(args: &MigrateArgs, report: &Report) -> Ended {
    output::print_report(args.output, report, |report| {
        let mds = report.mds;
        let line = |one: &DirectoryReport| match one.state {
            "moved" => format!("{}: moved to metadata server {mds}\n", one.path),
            _ => format!("{}: lives there already\n", one.path),
        };
        report.directories.iter().filter(|one| one.why.is_none()).map(line).collect()
    })?;
    let mut stayed = 0;
    for one in &report.directories {
        if let Some(why) = &one.why {
            stayed += 1;
            output::eprint_line(&format!("{}: {why}", one.path));
        }
    }
    let all = report.directories.len();
    if stayed == 0 {
        return Ok(0);
    }
    let status = if stayed == all { Status::Failed } else { Status::Partial };
    let text = format!("{stayed} of {all} directories stay where they are");
    Err(Failure::new(status, "RB-MIGRATE", text))
}

/// The directory and those below it, the deepest first; and those whose names cannot be read.
fn with_those_below(top: &Path) -> (Vec<PathBuf>, Vec<DirectoryReport>) {
    let (mut found, mut unread) = (vec![top.to_owned()], Vec::new());
    let device = top.metadata().map(|metadata| metadata.dev()).ok();
    let mut next = 0;
    while let Some(dir) = found.get(next).cloned() {
        next += 1;
        match std::fs::read_dir(&dir) {
            Ok(names) => {
                let here = |path: &PathBuf| {
                    let metadata = path.symlink_metadata();
                    metadata.is_ok_and(|one| one.is_dir() && Some(one.dev()) == device)
                };
                let paths = names.flatten().map(|name| name.path());
                let mut below: Vec<PathBuf> = paths.filter(here).collect();
                below.sort();
                found.extend(below);
            }
            // The one that is named says itself what is wrong with it.
            Err(_) if dir == top => {}
            Err(error) => {
                let why = format!("what lies below stays: {error}");
                unread.push(DirectoryReport::new(&dir, Err(why)));
            }
        }
    }
    // Each one was found after the directory where it lies.
    found.reverse();
    (found, unread)
}

/// Moves one directory; or why it stays. The failure ends the command: no mount takes the request.
fn move_one(path: &Path, mds: u8) -> Result<Result<&'static str, String>, Failure> {
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => metadata,
        Ok(_) => {
            let why = "it is no directory: a file stays with its metadata server, and --to moves \
                       its content";
            return Ok(Err(why.into()));
        }
        Err(error) => return Ok(Err(error.to_string())),
    };
    let mount = path.canonicalize().and_then(|whole| {
        let mount = mountinfo::mount_of(&whole)?;
        Ok(mount.map(|mount| (mount.path == whole, mount.path)))
    });
    let mount = match mount {
        Ok(Some((true, _))) => return Ok(Err(ROOT.into())),
        Ok(Some((false, mount))) => mount,
        Ok(None) => return Ok(Err("does not lie in a Redbud mount".into())),
        Err(error) => return Ok(Err(error.to_string())),
    };
    loop {
        let ask = Ask::MoveDirectory { ino: metadata.ino(), mds };
        let answer = control::ask_mount(&mount, ask)?;
        // A mount says in time that it is not done yet.
        if answer["state"] != "waits" {
            return Ok(outcome(&answer, mds));
        }
        if env::asked_to_stop() {
            return Ok(Err("the command was asked to end; it may still move".into()));
        }
    }
}

const ROOT: &str = "it is the root of the mount, which does not move";

/// What the mount says of a directory.
fn outcome(answer: &Value, mds: u8) -> Result<&'static str, String> {
    let fault = answer["fault"].as_u64().and_then(|code| Fault::from_u16(code.try_into().ok()?));
    match (answer["state"].as_str(), fault) {
        (Some("moved"), _) => Ok("moved"),
        (Some("there"), _) => Ok("there"),
        (Some("root"), _) => Err(ROOT.into()),
        (Some("no-server"), _) => {
            Err(format!("there is no metadata server {mds}: `redbud status` shows them"))
        }
        (Some("stayed"), Some(fault)) => Err(reason(fault, mds)),
        _ => Err("the mount answered with something else: it is of another release".into()),
    }
}

/// Why a directory stays.
fn reason(fault: Fault, mds: u8) -> String {
    match fault {
        Fault::TooBig => "it has more names than one move takes (about 1,000): spread it instead \
                          (`redbud set-layout --spread on`)"
            .into(),
        Fault::Busy | Fault::Unreachable => {
            format!("metadata server {mds} does not answer, or is busy with it: try again")
        }
        Fault::NotSupported | Fault::Unsupported => {
            "its metadata server, or the other one, is of an older release".into()
        }
        Fault::NotDirectory => "it is no directory".into(),
        Fault::WouldBlock => "a program has locked it".into(),
        Fault::Stale | Fault::NotFound => "it is gone".into(),
        fault => fault.text().into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn directory_that_stays_has_a_reason_that_says_what_to_do() {
        let stayed = |fault: Fault| {
            outcome(&json!({"state": "stayed", "fault": fault as u16}), 3).unwrap_err()
        };
        assert!(stayed(Fault::TooBig).contains("--spread on"));
        assert!(stayed(Fault::Busy).contains("server 3 does not answer"));
        assert!(stayed(Fault::NotSupported).contains("older release"));
        assert_eq!(stayed(Fault::Io), Fault::Io.text());
        let unknown = outcome(&json!({"state": "no-server"}), 3).unwrap_err();
        assert!(unknown.contains("no metadata server 3"));
        assert_eq!(outcome(&json!({"state": "there"}), 3), Ok("there"));
        assert!(outcome(&json!({"state": "flew"}), 3).is_err());
        assert!(outcome(&json!({"state": "stayed", "fault": 70_000}), 3).is_err());
    }

    #[test]
    fn deepest_directories_come_first_and_links_are_not_followed() {
        let top = std::env::temp_dir().join(format!("redbud-below-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&top));
        for dir in ["a/b/c", "a/d"] {
            std::fs::create_dir_all(top.join(dir)).unwrap();
        }
        std::fs::write(top.join("a/file"), b"").unwrap();
        std::os::unix::fs::symlink(&top, top.join("a/link")).unwrap();
        let (found, unread) = with_those_below(&top);
        let names: Vec<_> = found.iter().map(|path| path.strip_prefix(&top).unwrap()).collect();
        assert_eq!(names, ["a/b/c", "a/d", "a/b", "a", ""].map(Path::new));
        assert!(unread.is_empty());
        std::fs::remove_dir_all(&top).unwrap();
    }
}
