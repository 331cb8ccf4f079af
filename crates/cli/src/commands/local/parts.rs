//! The processes of a local cluster: how each is started, signalled and killed.

use std::fs::{File, OpenOptions};
use std::io::{PipeReader, PipeWriter};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::commands::pag;
use crate::exit::Failure;
use crate::log;
use crate::notify::{Readiness, ReadyListener};
use crate::source::Source;

/// Includes the recovery of a large log on a slow disk.
const SERVER_START: Duration = Duration::from_secs(300);
/// Includes the grace of a recovering server.
const CLIENT_START: Duration = Duration::from_secs(300);
/// Attempts to restart a server that dies before it is ready.
const ATTEMPTS: u32 = 5;

/// What to run.
pub struct Plan {
    /// The cluster's file.
    pub cluster: PathBuf,
    /// The metadata servers.
    pub servers: Vec<Server>,
    /// What clients mount.
    pub source: Source,
    /// The addresses of the object targets.
    pub targets: Vec<String>,
    /// The cluster's directory.
    pub dir: PathBuf,
    /// Where to mount.
    pub mount: PathBuf,
    /// Options of the mount.
    pub options: Vec<String>,
    /// A command to run.
    pub exec: Option<String>,
}

/// How a metadata server is run.
pub struct Server {
    /// The name of its log and control socket, without their ends.
    pub name: String,
    /// What tells it apart from others in the log; empty: it is the only one.
    pub which: String,
    /// Its options of `redbud mds`.
    pub options: Vec<String>,
}

/// The processes of the cluster.
pub struct Parts {
    /// The metadata servers, in the order of the plan.
    pub servers: Vec<Child>,
    /// The process that serves the object targets, if there are any.
    pub osts: Option<Child>,
    /// The client.
    pub client: Child,
    /// The server reads this end, and stops when the other is closed.
    until: PipeReader,
    /// The other end: this process and the client hold it.
    _alive: PipeWriter,
}

impl Parts {
    /// Starts the targets, the server, and then the client; none runs if one cannot.
    pub fn start(plan: &Plan, until: PipeReader, alive: PipeWriter) -> Result<Parts, Failure> {
        let (mut servers, mut osts) = (Vec::new(), None);
        let started = start_osts(plan, &until)
            .and_then(|started| {
                osts = started;
                (0..plan.servers.len()).try_for_each(|index| {
                    servers.push(start_server(plan, index, &until)?);
                    Ok(())
                })
            })
            .and_then(|()| add_targets(plan))
            .and_then(|()| start_client(plan, &alive));
        match started {
            Ok(client) => Ok(Parts { servers, osts, client, until, _alive: alive }),
            Err(failure) => {
                servers.iter_mut().chain(&mut osts).for_each(end);
                Err(failure)
            }
        }
    }

    /// Restarts the targets; tries several times.
    pub fn restart_osts(&mut self, plan: &Plan) -> Result<(), Failure> {
        self.osts = again(|| start_osts(plan, &self.until))?;
        Ok(())
    }

    /// Restarts a server; tries several times if it ends before it is ready.
    pub fn restart_server(&mut self, plan: &Plan, index: usize) -> Result<(), Failure> {
        self.servers[index] = again(|| start_server(plan, index, &self.until))?;
        Ok(())
    }
}

/// Starts something; tries several times if it ends before it is ready.
fn again<T>(start: impl Fn() -> Result<T, Failure>) -> Result<T, Failure> {
    let mut attempt = 1;
    loop {
        match start() {
            Ok(started) => return Ok(started),
            Err(failure) if attempt == ATTEMPTS => return Err(failure),
            Err(failure) => log::line(&failure.to_string()),
        }
        std::thread::sleep(Duration::from_millis(200 << attempt));
        attempt += 1;
    }
}

fn start_osts(plan: &Plan, until: &PipeReader) -> Result<Option<Child>, Failure> {
    if plan.targets.is_empty() {
        return Ok(None);
    }
    let path = plan.dir.join("ost.log");
    let mut command = part(&path)?;
    command.args(["ost", "serve", "--until-eof", "--config"]).arg(&plan.cluster);
    command.arg("--control").arg(plan.dir.join("ost.sock"));
    command.stdin(Stdio::from(until.try_clone().map_err(|error| unable("ost", &error))?));
    ready(command, "the object targets", &path, SERVER_START).map(Some)
}

/// Tells the metadata server where its targets are: new ones, and those that have another port now.
fn add_targets(plan: &Plan) -> Result<(), Failure> {
    plan.targets.iter().try_for_each(|address| pag::add_target(&plan.source, address).map(drop))
}

fn start_server(plan: &Plan, index: usize, until: &PipeReader) -> Result<Child, Failure> {
    let Server { name, which, options } = &plan.servers[index];
    let path = plan.dir.join(format!("{name}.log"));
    let mut command = part(&path)?;
    command.arg("mds").arg(&plan.cluster).arg("--until-eof").args(options);
    command.arg("--control").arg(plan.dir.join(format!("{name}.sock")));
    command.stdin(Stdio::from(until.try_clone().map_err(|error| unable("mds", &error))?));
    ready(command, &format!("the metadata server{which}"), &path, SERVER_START)
}

fn start_client(plan: &Plan, alive: &PipeWriter) -> Result<Child, Failure> {
    let path = plan.dir.join("client.log");
    let mut command = part(&path)?;
    // Server and client are on one host, so this host reaches the metadata.
    command
        .args(["mount", "--allow-unzoned", "--foreground", "--parent"])
        .arg(std::process::id().to_string());
    // The client never writes: it only keeps the pipe open while it lives.
    command.stdin(Stdio::from(alive.try_clone().map_err(|error| unable("mount", &error))?));
    let socket = plan.dir.join("client.sock");
    command.args(["-o", &format!("log={},control={}", path.display(), socket.display())]);
    for options in &plan.options {
        command.args(["-o", options]);
    }
    command.arg("--").arg(plan.source.to_string()).arg(&plan.mount);
    ready(command, "the client", &path, CLIENT_START)
}

/// A command for this program, in its own process group, so that Ctrl-C reaches only this process.
fn part(log: &Path) -> Result<Command, Failure> {
    let file = open_log(log)?;
    let copy = file.try_clone().map_err(|error| unable("log", &error))?;
    let mut command = Command::new(this_program());
    command.stdout(file).stderr(copy).process_group(0);
    Ok(command)
}

fn open_log(path: &Path) -> Result<File, Failure> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .map_err(|error| Failure::failed("RB-LOCAL", format!("{}: {error}", path.display())))
}

/// The path of this program; it may have been replaced by a newer build meanwhile.
pub fn this_program() -> PathBuf {
    let link = PathBuf::from("/proc/self/exe");
    std::env::current_exe().ok().filter(|path| path.exists()).unwrap_or(link)
}

fn ready(mut command: Command, what: &str, log: &Path, limit: Duration) -> Result<Child, Failure> {
    let failed = |text: String| Failure::failed("RB-LOCAL-START", text);
    let listener = ReadyListener::new().map_err(|error| unable(what, &error))?;
    let (name, value) = listener.environment();
    let begin = std::fs::metadata(log).map_or(0, |metadata| metadata.len());
    let mut child = command.env(name, value).spawn().map_err(|error| unable(what, &error))?;
    match listener.wait(&mut child, limit).map_err(|error| unable(what, &error))? {
        Readiness::Ready => Ok(child),
        Readiness::Ended(status) => {
            let reason = log_since(log, begin);
            // The text has its own error code.
            Err(Failure::failed("", format!("{what} did not start ({status}): {reason}")))
        }
        Readiness::Late => {
            end(&mut child);
            let text =
                format!("{what} was not ready after {} s; see {}", limit.as_secs(), log.display());
            Err(failed(text))
        }
    }
}

/// The last line of the log after its first `begin` bytes: usually the reason of a failure.
pub fn log_since(log: &Path, begin: u64) -> String {
    let bytes = std::fs::read(log).unwrap_or_default();
    let new = bytes.get(begin as usize..).unwrap_or_default();
    let text = String::from_utf8_lossy(new);
    let last = text.lines().rfind(|line| !line.trim().is_empty());
    last.map_or_else(
        || format!("see {}", log.display()),
        |line| line.trim_start_matches("redbud: ").to_owned(),
    )
}

/// The error that a process cannot be started.
pub fn unable(what: &str, error: &std::io::Error) -> Failure {
    Failure::failed("RB-LOCAL-START", format!("cannot start {what}: {error}"))
}

/// Sends a signal to a child.
pub fn signal_child(child: &Child, signal: Signal) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // It may have ended meanwhile.
        let _ = kill_process(pid, signal);
    }
}

/// Sends SIGTERM to a child.
pub fn terminate(child: &Child) {
    signal_child(child, Signal::TERM);
}

/// Kills a child and waits for its end.
pub fn end(child: &mut Child) {
    // It may have ended already; then there is nothing to kill.
    drop(child.kill());
    drop(child.wait());
}
