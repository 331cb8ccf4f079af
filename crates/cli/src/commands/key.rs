//! `redbud key`: makes keys, and changes a server's list of allowed keys.
//!
//! Invariant: one process changes a list at a time, and a reader sees all of a change or nothing.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use channel::{Allowed, AllowedError, Entry, PublicKey, Squash};
use serde::Serialize;

use crate::args::{
    KeyAllowArgs, KeyArgs, KeyCommand, KeyListArgs, KeyNewArgs, KeyRevokeArgs, KeyShowArgs,
};
use crate::config::Cluster;
use crate::exit::{Ended, Failure};
use crate::lockfile::{LockError, LockFile};
use crate::{keys, output, target};

/// How long a change waits for another one.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs the verb.
pub fn run(args: &KeyArgs) -> Ended {
    match &args.verb {
        KeyCommand::New(args) => new(args),
        KeyCommand::Show(args) => show(args),
        KeyCommand::Allow(args) => allow(args),
        KeyCommand::Revoke(args) => revoke(args),
        KeyCommand::List(args) => list(args),
    }
}

fn failed(text: String) -> Failure {
    Failure::failed("RB-KEY", text)
}

/// The file of secret keys that `path` means.
fn secrets_of(path: &Path) -> Result<PathBuf, Failure> {
    let is_cluster = path.is_dir() || path.extension().is_some_and(|end| end == "toml");
    match is_cluster {
        true => Ok(target::cluster(path)?.any().key.clone()),
        false => Ok(path.to_owned()),
    }
}

fn new(args: &KeyNewArgs) -> Ended {
    let file = secrets_of(&args.file)?;
    if let Some(dir) = file.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        let made = std::fs::create_dir_all(dir);
        made.map_err(|error| failed(format!("{}: {error}", dir.display())))?;
    }
    let key = keys::make(&file, args.add).map_err(failed)?;
    output::print(&format!("{key}\n"))?;
    Ok(0)
}

fn show(args: &KeyShowArgs) -> Ended {
    let secrets = keys::read_secrets(&secrets_of(&args.file)?).map_err(failed)?;
    let text: String = secrets.all().iter().map(|key| format!("{}\n", key.public())).collect();
    output::print(&text)?;
    Ok(0)
}

/// Changes the list of a cluster's server, and yields what `change` yields.
fn edit<T>(
    cluster: &Cluster,
    change: impl FnOnce(&str) -> Result<(String, T), AllowedError>,
) -> Result<T, Failure> {
    let list = &cluster.allowed;
    let wrong = |text: String| failed(format!("{}: {text}", list.display()));
    let mut lock = list.clone().into_os_string();
    lock.push(".lock");
    let until = Instant::now() + PATIENCE;
    let held = loop {
        match LockFile::take(Path::new(&lock), &format!("pid {}", std::process::id())) {
            Ok(held) => break held,
            Err(LockError::Held(_)) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(LockError::Held(holder)) => {
                return Err(wrong(format!("another command changes it ({holder})")));
            }
            Err(LockError::Io(error)) => return Err(wrong(error.to_string())),
        }
    };
    let old = keys::read_list(list).map_err(failed)?.unwrap_or_default();
    let (new, value) = change(&old).map_err(|error| wrong(error.to_string()))?;
    keys::replace(list, &new, 0o644).map_err(failed)?;
    drop(held);
    Ok(value)
}

fn allow(args: &KeyAllowArgs) -> Ended {
    let cluster = target::cluster(&args.cluster)?.any().clone();
    let entry = Entry {
        key: args.key,
        name: args.name.clone(),
        role: args.role,
        squash: args.squash,
        revoked: false,
    };
    edit(&cluster, |old| Ok((Allowed::with(old, &entry)?, ())))?;
    Ok(0)
}

fn revoke(args: &KeyRevokeArgs) -> Ended {
    let cluster = target::cluster(&args.cluster)?.any().clone();
    let key = args.which.parse::<PublicKey>();
    if args.which.starts_with("redbud-") {
        key.as_ref().map_err(|error| Failure::usage(error.to_string()))?;
    }
    let which = |entry: &Entry| match &key {
        Ok(key) => entry.key == *key,
        Err(_) => entry.name == args.which,
    };
    let count = edit(&cluster, |old| Allowed::without(old, which))?;
    if count == 0 {
        let list = cluster.allowed.display();
        return Err(failed(format!("{list}: no key that is allowed is of `{}`", args.which)));
    }
    output::print(&format!("{count} revoked\n"))?;
    Ok(0)
}

#[derive(Serialize)]
struct Report {
    version: u32,
    file: String,
    keys: Vec<Line>,
}

#[derive(Serialize)]
struct Line {
    key: String,
    name: String,
    role: String,
    squash: String,
    revoked: bool,
}

fn list(args: &KeyListArgs) -> Ended {
    let cluster = target::cluster(&args.cluster)?.any().clone();
    let allowed = keys::read_allowed(&cluster.allowed).map_err(failed)?;
    let line = |entry: &Entry| Line {
        key: entry.key.to_string(),
        name: entry.name.clone(),
        role: entry.role.to_string(),
        squash: entry.squash.to_string(),
        revoked: entry.revoked,
    };
    let keys = allowed.entries().map(line).collect();
    let report = Report { version: 1, file: cluster.allowed.display().to_string(), keys };
    output::print_report(args.output, &report, table)?;
    Ok(0)
}

fn table(report: &Report) -> String {
    let mut text = format!("{:<20} {:<13} {:<7} {:<7} key\n", "node", "role", "squash", "state");
    for line in &report.keys {
        let state = if line.revoked { "revoked" } else { "allowed" };
        let squash = if line.squash == Squash::Off.to_string() { "-" } else { &line.squash };
        text +=
            &format!("{:<20} {:<13} {squash:<7} {state:<7} {}\n", line.name, line.role, line.key);
    }
    text
}
