//! `redbud status`: what is wrong; then the servers, and what this host's mounts hold and owe.

pub mod problems;
mod takeovers;
pub mod text;

use serde::Serialize;
use serde_json::Value;

use self::problems::Problem;
use crate::admin::Server;
use crate::args::StatusArgs;
use crate::control::{self, Ask};
use crate::exit::{Ended, Failure};
use crate::mountinfo::Mounted;
use crate::registry::{self, Kind, Registration};
use crate::source::Source;
use crate::{admin, output, target};

#[derive(Serialize)]
struct Report {
    version: u32,
    /// Something is left out: clients of mounts that this user cannot ask, or other nodes' clients,
    /// which the server shows only to administrators.
    partial: bool,
    /// Empty: nothing is wrong.
    problems: Vec<Problem>,
    filesystems: Vec<FileSystem>,
    mounts: Vec<Mount>,
    /// What the object targets say that this host serves for these file systems.
    targets: Vec<Value>,
}

#[derive(Serialize)]
struct FileSystem {
    source: String,
    /// The number of the server, if there are several: each has an entry of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<u16>,
    /// The server's status; null if it did not answer.
    server: Value,
    /// Why it did not answer.
    error: Option<String>,
    /// The stable code of that.
    code: Option<&'static str>,
    /// The status of each standby on this host.
    standbys: Vec<Value>,
    /// The other servers that the server's process is, too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    also: Vec<u16>,
}

#[derive(Serialize)]
struct Mount {
    mount: String,
    source: String,
    /// The client's process; null if it is gone or runs elsewhere.
    pid: Option<u32>,
    log: Option<String>,
    /// What the client says; null if it did not answer.
    client: Value,
    /// Why it did not answer.
    error: Option<String>,
    /// Is its client another user's, so that this one cannot ask it?
    foreign: bool,
}

/// Prints the status; fails if a server did not answer.
pub fn run(args: &StatusArgs) -> Ended {
    let running: Vec<Registration> = registry::running().into_iter().map(|(_, one)| one).collect();
    let sources = match &args.target {
        Some(text) => vec![target::source(text)?],
        None => target::all_here()?,
    };
    let is_asked = |mount: &&Mounted| {
        let source = Source::parse(&mount.source).ok();
        args.target.is_none()
            || source.is_some_and(|source| sources.iter().any(|asked| asked.is_same_as(&source)))
    };
    let mounts: Vec<Mount> = target::mounts()?
        .iter()
        .filter(is_asked)
        .map(|mount| describe_mount(mount, &running))
        .collect();
    let asked: Vec<Asked> = sources.into_iter().flat_map(ask).collect();
    let worst = asked.iter().filter_map(|(_, answer)| answer.as_ref().err()).map(|f| f.code).max();
    let mut report = Report {
        version: 1,
        partial: false,
        problems: Vec::new(),
        filesystems: asked.into_iter().map(file_system).collect(),
        mounts,
        targets: Vec::new(),
    };
    takeovers::note_neighbours(&mut report.filesystems);
    report.targets = targets_of(&report);
    report.partial = is_partial(&report);
    report.problems = problems::find(&report);
    output::print_report(args.output, &report, text::describe)?;
    Ok(worst.unwrap_or(0))
}

/// The status of each target of this host that belongs to a file system of the report.
fn targets_of(report: &Report) -> Vec<Value> {
    // Nothing is said of those that cannot be asked: that this host serves none is no problem.
    let mut all = admin::targets_here().unwrap_or_default();
    let is_shown = |one: &Value| {
        report.filesystems.iter().any(|shown| shown.server["fs_uuid"] == one["fs_uuid"])
    };
    all.retain(|one| one["fs_uuid"].is_string() && is_shown(one));
    all
}

/// A server, and what it says.
type Asked = (Server, Result<Value, Failure>);

/// Asks each server of a file system.
fn ask(source: Source) -> Vec<Asked> {
    let first = match admin::status(&source) {
        Ok(status) => status,
        Err(failure) => return vec![(Server { number: None, source }, Err(failure))],
    };
    let servers = admin::servers_in(&source, &first).into_iter();
    let said_by = |number| number == first["server"].as_u64();
    let answer = |server: Server| {
        let is_known = server.number.is_none() || said_by(server.number.map(u64::from));
        let answer = if is_known { Ok(first.clone()) } else { admin::status(&server.source) };
        (server, answer)
    };
    servers.map(answer).collect()
}

fn is_partial(report: &Report) -> bool {
    let of_server = |file_system: &FileSystem| file_system.server["partial"] == true;
    report.filesystems.iter().any(of_server) || report.mounts.iter().any(|mount| mount.foreign)
}

fn file_system((Server { number, source }, answer): Asked) -> FileSystem {
    let said = admin::servers_here(&source).into_iter().map(|one| admin::status_of(&one));
    let standbys = said.flatten().filter(admin::stands_by);
    let standbys = standbys.filter_map(|one| admin::standing_for(&one, number)).collect();
    let source = source.to_string();
    let (server, failure) = match answer {
        Ok(server) => (server, None),
        Err(failure) => (Value::Null, Some(failure)),
    };
    let (error, code) = failure.map(|one| (one.text, one.name)).unzip();
    FileSystem { source, number, server, error, code, standbys, also: Vec::new() }
}

fn describe_mount(mount: &Mounted, running: &[Registration]) -> Mount {
    let of_mount = |one: &&Registration| one.kind == Kind::Mount && one.mount == mount.path;
    let registered = running.iter().rfind(of_mount);
    let socket = registered.and_then(|client| client.socket.as_ref());
    let (client, error) = match socket.map(|socket| control::ask(socket, Ask::Status)) {
        Some(Ok(mut said)) => (said["client"].take(), None),
        Some(Err(failure)) => (Value::Null, Some(failure.to_string())),
        None => (Value::Null, None),
    };
    Mount {
        mount: mount.path.display().to_string(),
        source: mount.source.clone(),
        pid: registered.map(|client| client.pid),
        log: registered.and_then(|one| one.log.as_ref()).map(|log| log.display().to_string()),
        client,
        error,
        foreign: registered.is_none() && mount.user != rustix::process::geteuid().as_raw(),
    }
}
