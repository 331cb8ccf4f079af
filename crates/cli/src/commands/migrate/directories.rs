//! `redbud migrate DIR --mds N`: moves directories to another metadata server, through a mount.
//!
//! Invariants:
//! - each directory is a move of its own, and so is each of its files, which follow it: what was
//!   moved before the command ends stays moved;
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
    /// The files that have followed it.
    files: u64,
    /// The files that stay with their metadata server.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    files_stayed: Vec<FileReport>,
}

#[derive(Serialize)]
struct FileReport {
    name: String,
    /// Why it stayed.
    why: String,
}

/// How the files of a directory have followed it.
#[derive(Default)]
struct Followed {
    moved: u64,
    stayed: Vec<FileReport>,
    /// Why the others were not asked to.
    ended: Option<String>,
}

impl DirectoryReport {
    fn new(path: &Path, outcome: Result<&'static str, String>) -> DirectoryReport {
        let path = path.display().to_string();
        match outcome {
            Ok(state) => {
                DirectoryReport { path, state, why: None, files: 0, files_stayed: Vec::new() }
            }
            Err(why) => {
                let (state, why) = ("stayed", Some(why));
                DirectoryReport { path, state, why, files: 0, files_stayed: Vec::new() }
            }
        }
    }

    fn with(self, followed: Followed) -> DirectoryReport {
        let Followed { moved: files, stayed: files_stayed, ended: why } = followed;
        DirectoryReport { files, files_stayed, why, ..self }
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
            let has_moved = moved.is_ok();
            let report = DirectoryReport::new(&path, moved);
            directories.push(match has_moved {
                true => report.with(have_files_follow(&path, mds)?),
                false => report,
            });
        }
    }
    finish(args, &Report { version: 1, source: source.to_string(), mds, directories })
}

fn finish(args: &MigrateArgs, report: &Report) -> Ended {
    output::print_report(args.output, report, |report| {
        let mds = report.mds;
        let line = |one: &DirectoryReport| match (one.state, one.files) {
            ("moved", 0) => format!("{}: moved to metadata server {mds}\n", one.path),
            ("moved", files) => {
                format!("{}: moved to metadata server {mds}, with {files} files\n", one.path)
            }
            (_, 0) => format!("{}: lives there already\n", one.path),
            (_, files) => format!("{}: lives there already; {files} files follow\n", one.path),
        };
        report.directories.iter().filter(|one| one.state != "stayed").map(line).collect()
    })?;
    let (mut stayed, mut files) = (0, 0);
    for one in &report.directories {
        if let Some(why) = &one.why {
            output::eprint_line(&format!("{}: {why}", one.path));
        }
        stayed += usize::from(one.state == "stayed");
        files += one.files_stayed.len();
        let shown = one.files_stayed.iter().take(FILES_SHOWN);
        shown.for_each(|it| {
            output::eprint_line(&format!("{}/{}: stays: {}", one.path, it.name, it.why));
        });
        if let Some(more) = one.files_stayed.len().checked_sub(FILES_SHOWN).filter(|&n| n > 0) {
            let text = format!("{}: {more} more files stay; --output json shows them", one.path);
            output::eprint_line(&text);
        }
    }
    let all = report.directories.len();
    if report.directories.iter().all(|one| one.why.is_none()) && files == 0 {
        return Ok(0);
    }
    let status = if stayed == all { Status::Failed } else { Status::Partial };
    let text = match (stayed, files) {
        (0, 0) => "not all files were asked to follow".to_owned(),
        (0, files) => format!("{files} files stay with their metadata servers"),
        (_, 0) => format!("{stayed} of {all} directories stay where they are"),
        _ => format!("{stayed} of {all} directories and {files} files stay where they are"),
    };
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
            let why =
                "it is no directory: a file follows its directory, and --to moves its content";
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

/// Has the files of a directory follow it. The failure is as that of [`move_one`].
fn have_files_follow(path: &Path, mds: u8) -> Result<Followed, Failure> {
    let mut all = Followed::default();
    let found = path
        .canonicalize()
        .and_then(|whole| Ok((mountinfo::mount_of(&whole)?, std::fs::metadata(&whole)?.ino())));
    let (mount, ino) = match found {
        Ok((Some(mount), ino)) => (mount.path, ino),
        Ok((None, _)) => return Ok(all),
        Err(error) => {
            all.ended = Some(error.to_string());
            return Ok(all);
        }
    };
    let (mut after, mut waits) = (0, 0);
    loop {
        if env::asked_to_stop() {
            all.ended = Some("the command was asked to end before all files had followed".into());
            return Ok(all);
        }
        let answer = control::ask_mount(&mount, Ask::MoveFiles { ino, mds, after })?;
        match answer["state"].as_str() {
            // A mount says in time that it is not done yet. What it was asked for goes on.
            Some("waits") if waits < WAITS_MAX => {
                waits += 1;
                continue;
            }
            Some("followed") => all.add(&answer, mds),
            _ => {
                let fault = match answer["state"].as_str() {
                    Some("waits") => Some(Fault::Busy),
                    _ => fault_of(&answer),
                };
                let why = fault.map_or_else(|| UNKNOWN.into(), |it| reason(it, mds));
                all.ended = Some(format!("not all of its files follow: {why}"));
                return Ok(all);
            }
        }
        match answer["next"].as_u64() {
            Some(next) => after = next,
            None => return Ok(all),
        }
    }
}

impl Followed {
    /// Adds what a mount says of some files.
    fn add(&mut self, answer: &Value, mds: u8) {
        self.moved += answer["moved"].as_u64().unwrap_or(0);
        for file in answer["stayed"].as_array().into_iter().flatten() {
            let name = file["name"].as_str().unwrap_or("?").to_owned();
            let why = fault_of(file).map_or_else(|| UNKNOWN.into(), |it| reason_of_file(it, mds));
            self.stayed.push(FileReport { name, why });
        }
    }
}

/// How often a mount may say of some files that they have not followed yet.
const WAITS_MAX: u32 = 3;

/// Files that stay of each directory that are named.
const FILES_SHOWN: usize = 10;

const UNKNOWN: &str = "the mount answered with something else: it is of another release";

const ROOT: &str = "it is the root of the mount, which does not move";

/// What the mount says of a directory.
fn outcome(answer: &Value, mds: u8) -> Result<&'static str, String> {
    match (answer["state"].as_str(), fault_of(answer)) {
        (Some("moved"), _) => Ok("moved"),
        (Some("there"), _) => Ok("there"),
        (Some("root"), _) => Err(ROOT.into()),
        (Some("no-server"), _) => {
            Err(format!("there is no metadata server {mds}: `redbud status` shows them"))
        }
        (Some("stayed"), Some(fault)) => Err(reason(fault, mds)),
        _ => Err(UNKNOWN.into()),
    }
}

fn fault_of(answer: &Value) -> Option<Fault> {
    answer["fault"].as_u64().and_then(|code| Fault::from_u16(code.try_into().ok()?))
}

/// Why a file stays.
fn reason_of_file(fault: Fault, mds: u8) -> String {
    match fault {
        Fault::WouldBlock => {
            "it is open or locked, or an evicted client may still write it: try again when no \
             program uses it, and its object targets answer"
                .into()
        }
        Fault::TooManyLinks => "it has other names, too".into(),
        Fault::CrossDevice => {
            "its data zone is not in service, another metadata server has lent its blocks, or the \
             new one does not have its object targets: --to moves the content to other data zones, \
             `redbud pag add` adds targets"
                .into()
        }
        Fault::TooBig => "it is too fragmented, or has too large attributes, for one move".into(),
        fault => reason(fault, mds),
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
        Fault::Overloaded => {
            "its metadata server, or the other one, has noted a million inodes that \
                              have moved, and notes no more"
                .into()
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
