//! `redbud why PID|PATH`: what a process waits for in a mount, who holds it, since when, and until
//! when at most.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::args::WhyArgs;
use crate::commands::status::problems::{list, number, text};
use crate::commands::status::text::ago;
use crate::control::{self, Ask};
use crate::exit::{Ended, Failure, Status};
use crate::mountinfo::Mounted;
use crate::{mountinfo, output, target};

/// How long a path may take to be found: the mount may be what it waits for.
const LOOK: Duration = Duration::from_secs(2);

#[derive(Serialize)]
struct Report {
    version: u32,
    mounts: Vec<Said>,
    /// Mounts that were to be asked and did not answer.
    unasked: Vec<Unasked>,
}

/// A mount that did not answer, and why.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Unasked {
    mount: String,
    error: String,
}

/// What one mount says.
#[derive(Serialize)]
struct Said {
    mount: String,
    #[serde(flatten)]
    answer: Value,
}

/// Prints what is waited for. Fails if nothing waits, or if a mount could not be asked.
pub fn run(args: &WhyArgs) -> Ended {
    let report = match args.subject.parse::<u32>() {
        Ok(pid) if Path::new("/proc").join(pid.to_string()).exists() => of_process(pid)?,
        _ => {
            let mounts = vec![of_path(Path::new(&args.subject))?];
            Report { version: 1, mounts, unasked: Vec::new() }
        }
    };
    output::print_report(args.output, &report, |report| describe(report, &args.subject))?;
    Ok(code(&report))
}

fn code(report: &Report) -> u8 {
    let waits = |said: &Said| list(&said.answer["waiting"]).next().is_some();
    match report.mounts.iter().any(waits) {
        true => 0,
        false if report.unasked.is_empty() => 1,
        false => Status::Partial as u8,
    }
}

/// Asks all mounts of this host for the threads of a process.
fn of_process(pid: u32) -> Result<Report, Failure> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let tasks =
        tasks.map_err(|error| Failure::failed("RB-WHY", format!("process {pid}: {error}")))?;
    let threads = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok());
    let threads: Vec<u32> = threads.collect();
    let asked = control::mounts_of(|_| true);
    let reached: Vec<PathBuf> = asked.iter().map(|(mount, _)| mount.mount.clone()).collect();
    let mut report = Report {
        version: 1,
        mounts: Vec::new(),
        unasked: not_reached(&target::mounts()?, &reached),
    };
    for (mount, socket) in asked {
        let mount = mount.mount.display().to_string();
        match control::ask(&socket, Ask::Why { threads: threads.clone(), ino: None }) {
            Ok(answer) => report.mounts.push(Said { mount, answer }),
            Err(failure) => report.unasked.push(Unasked { mount, error: failure.to_string() }),
        }
    }
    Ok(report)
}

/// The mounts of the system whose clients have no control socket that this user finds.
fn not_reached(all: &[Mounted], reached: &[PathBuf]) -> Vec<Unasked> {
    let missing = all.iter().filter(|mount| !reached.contains(&mount.path));
    let unasked = missing.map(|mount| Unasked {
        mount: mount.path.display().to_string(),
        error: "no client of this user's has a control socket for it: ask as root, or as the user \
                that mounted it"
            .into(),
    });
    unasked.collect()
}

/// Asks the mount that a path lies in: for its inode, or for everything if it is the mount point or
/// cannot be found in time.
fn of_path(path: &Path) -> Result<Said, Failure> {
    let wrong = |text: String| Failure::usage(format!("{}: {text}", path.display()));
    let whole = std::path::absolute(path).map_err(|error| wrong(error.to_string()))?;
    let mount = mountinfo::mount_of(&whole).map_err(|error| wrong(error.to_string()))?;
    let Some(mount) = mount else {
        return Err(wrong("neither a process nor a path in a Redbud mount".into()));
    };
    let ino = (mount.path != whole).then(|| inode_of(whole)).flatten();
    let answer = control::ask_mount(&mount.path, Ask::Why { threads: Vec::new(), ino })?;
    Ok(Said { mount: mount.path.display().to_string(), answer })
}

/// The inode's number, if the mount gives it in time.
fn inode_of(path: PathBuf) -> Option<u64> {
    let (sender, receiver) = mpsc::channel();
    // It may wait for as long as the server is away; the process ends without it.
    std::thread::spawn(move || {
        let found = std::fs::symlink_metadata(path).map(|metadata| metadata.ino());
        sender.send(found.ok())
    });
    receiver.recv_timeout(LOOK).ok().flatten()
}

fn describe(report: &Report, subject: &str) -> String {
    let mut out = String::new();
    for said in &report.mounts {
        for waiting in list(&said.answer["waiting"]) {
            let thread = number(&waiting["thread"]);
            out += &format!(
                "thread {thread}{} waits in {} for {}: {} of {}\n",
                command(thread),
                said.mount,
                ago(number(&waiting["since_ms"])),
                text(&waiting["request"]),
                text(&waiting["inode"]),
            );
            list(&waiting["reasons"]).for_each(|reason| add_reason(&mut out, reason));
        }
        let holders = &said.answer["holders"];
        let mut held = String::new();
        add_holders(&mut held, holders);
        if !held.is_empty() {
            out += &format!("held at {subject}:\n{held}");
        }
    }
    if out.is_empty() {
        out = match report.unasked.is_empty() {
            true => format!("{subject}: nothing waits in a mount of this host\n"),
            false => {
                format!("{subject}: nothing is known to wait, but not every mount was asked\n")
            }
        };
    }
    for Unasked { mount, error } in &report.unasked {
        out += &format!("not asked: {mount}: {error}\n");
    }
    out
}

fn add_reason(out: &mut String, reason: &Value) {
    *out +=
        &format!("  for {}, since {}\n", text(&reason["what"]), ago(number(&reason["since_ms"])));
    for device in list(&reason["devices"]) {
        *out += &format!(
            "    zone {} ({}) is {} since {}\n",
            device["zone"],
            text(&device["path"]),
            text(&device["state"]),
            ago(number(&device["since_ms"])),
        );
    }
    list(&reason["holders"]).for_each(|holders| add_holders(out, holders));
    *out += &format!("    until {}\n", text(&reason["until"]));
}

fn add_holders(out: &mut String, holders: &Value) {
    if let Some(error) = holders["error"].as_str() {
        *out += &format!("    {error}\n");
    }
    if holders["grace"] == true {
        *out += "    the server waits for its clients after a restart\n";
    }
    for lock in list(&holders["locks"]) {
        let mode = if lock["exclusive"] == true { "exclusive" } else { "shared" };
        let range = match (lock["flock"] == true, number(&lock["end"])) {
            (true, _) => "flock".to_owned(),
            (false, end) if end >= i64::MAX as u64 => format!("bytes from {}", lock["start"]),
            (false, end) => format!("bytes {} to {end}", lock["start"]),
        };
        *out += &format!(
            "    held by {}, process {} there: {mode} {range}\n",
            holder(lock),
            lock["process"]
        );
    }
    for recall in list(&holders["recalls"]) {
        let rights = text(&recall["rights"]);
        *out += &format!("    {} is asked to give up {rights}\n", holder(recall));
    }
    for gate in list(&holders["gates"]).filter(|gate| gate["own"] != true) {
        let since = ago(number(&gate["since_ms"]));
        *out +=
            &format!("    an operation of {} goes first, and waits since {since}\n", holder(gate));
    }
}

fn holder(holder: &Value) -> String {
    let silent = match holder["silent_ms"].as_u64() {
        Some(silent) => format!(
            ", heard {} ago, evicted in {} if it stays silent",
            ago(silent),
            ago(number(&holder["evicted_in_ms"]))
        ),
        None => String::new(),
    };
    format!("client {} ({}{silent})", holder["client"], text(&holder["name"]))
}

/// The name of a thread of this host, in parentheses.
fn command(thread: u64) -> String {
    let name = std::fs::read_to_string(format!("/proc/{thread}/comm")).unwrap_or_default();
    if name.is_empty() { name } else { format!(" ({})", name.trim()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn mounts_that_were_not_asked_are_named_and_are_not_nothing() {
        let mounted = |path: &str| Mounted {
            path: path.into(),
            source: "127.0.0.1:1:/a".into(),
            device: "0:1".into(),
            user: 0,
        };
        let all = [mounted("/mnt/a"), mounted("/mnt/b")];
        let unasked = not_reached(&all, &["/mnt/a".into()]);
        assert_eq!(unasked.len(), 1);
        let said = Said { mount: "/mnt/a".into(), answer: json!({"waiting": []}) };
        let mut report = Report { version: 1, mounts: vec![said], unasked };
        let text = describe(&report, "7");
        assert!(text.contains("not asked: /mnt/b") && !text.contains("nothing waits"), "{text}");
        assert_eq!(code(&report), Status::Partial as u8);
        report.unasked.clear();
        assert!(describe(&report, "7").contains("nothing waits"));
        assert_eq!(code(&report), 1);
        report.mounts[0].answer = json!({"waiting": [{}]});
        assert_eq!(code(&report), 0);
    }
}
