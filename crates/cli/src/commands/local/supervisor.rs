//! Starts the server and the client, watches both, and stops them in order.

use std::fs::{File, OpenOptions};
use std::io::{PipeReader, PipeWriter};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use env::{DriverKind, Env};
use rustix::process::{Pid, Signal, kill_process};

use super::stop;
use crate::exit::{Ended, Failure};
use crate::notify::{Readiness, ReadyListener};
use crate::source::Source;
use crate::{log, output, units};

/// Recovery of a large log on a slow disk included.
const SERVER_START: Duration = Duration::from_secs(300);
/// A client waits for a recovering server's grace.
const CLIENT_START: Duration = Duration::from_secs(300);
/// How often the children are looked at.
const TICK: Duration = Duration::from_millis(50);
/// A server that dies this many times in a row before it is ready is not started again.
const ATTEMPTS: u32 = 5;

/// What to run.
pub struct Plan {
    /// The cluster's file.
    pub cluster: PathBuf,
    /// What clients mount.
    pub source: Source,
    /// The cluster's directory.
    pub dir: PathBuf,
    /// Where to mount.
    pub mount: PathBuf,
    /// Options of the mount.
    pub options: Vec<String>,
    /// A command to run.
    pub exec: Option<String>,
}

/// Runs until a signal, the client's end, or the command's end.
pub fn run(plan: Plan) -> Ended {
    let (until, alive) = std::io::pipe()
        .map_err(|error| Failure::failed("RB-LOCAL", format!("cannot make a pipe: {error}")))?;
    let mut parts = Parts::start(&plan, until, alive)?;
    greet(&plan);
    let command =
        match plan.exec.as_deref().map(|command| start_command(&plan, command)).transpose() {
            Ok(command) => command,
            Err(failure) => {
                stop::stop(&mut parts, &plan.mount);
                return Err(failure);
            }
        };
    let ended = env::run(DriverKind::Fallback, |env| watch(env, &plan, &mut parts, command))
        .map_err(|error| Failure::failed("RB-LOCAL", format!("cannot wait for signals: {error}")))
        .flatten();
    let stopped = stop::stop(&mut parts, &plan.mount);
    match ended {
        Ok(code) if stopped || plan.exec.is_some() => Ok(code),
        Ok(_) => Err(Failure::failed("RB-LOCAL", "not everything stopped cleanly: see above")),
        Err(failure) => Err(failure),
    }
}

/// The processes of the cluster.
pub struct Parts {
    /// The metadata server.
    pub server: Child,
    /// The client.
    pub client: Child,
    /// The server reads it, and stops at its end.
    until: PipeReader,
    /// The other end: held by this process and the client.
    _alive: PipeWriter,
}

impl Parts {
    fn start(plan: &Plan, until: PipeReader, alive: PipeWriter) -> Result<Parts, Failure> {
        let mut server = start_server(plan, &until)?;
        match start_client(plan, &alive) {
            Ok(client) => Ok(Parts { server, client, until, _alive: alive }),
            Err(failure) => {
                stop::end(&mut server);
                Err(failure)
            }
        }
    }
}

fn start_server(plan: &Plan, until: &PipeReader) -> Result<Child, Failure> {
    let path = plan.dir.join("mds.log");
    let mut command = part(&path)?;
    command.arg("mds").arg(&plan.cluster).arg("--until-eof");
    command.stdin(Stdio::from(until.try_clone().map_err(|error| unable("mds", &error))?));
    ready(command, "the metadata server", &path, SERVER_START)
}

fn start_client(plan: &Plan, alive: &PipeWriter) -> Result<Child, Failure> {
    let path = plan.dir.join("client.log");
    let mut command = part(&path)?;
    command.args(["mount", "--foreground", "--parent"]).arg(std::process::id().to_string());
    // Never read: it only keeps the pipe open while the client lives.
    command.stdin(Stdio::from(alive.try_clone().map_err(|error| unable("mount", &error))?));
    command.args(["-o", &format!("log={}", path.display())]);
    for options in &plan.options {
        command.args(["-o", options]);
    }
    command.arg("--").arg(plan.source.to_string()).arg(&plan.mount);
    ready(command, "the client", &path, CLIENT_START)
}

/// This program again, in a process group of its own, so that Ctrl-C reaches only this process.
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
            let said = log_since(log, begin);
            // What it said carries its own code.
            Err(Failure::failed("", format!("{what} did not start ({status}): {said}")))
        }
        Readiness::Late => {
            stop::end(&mut child);
            let text =
                format!("{what} was not ready after {} s; see {}", limit.as_secs(), log.display());
            Err(failed(text))
        }
    }
}

/// The last line that was logged after the first `begin` bytes: usually the reason.
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

fn unable(what: &str, error: &std::io::Error) -> Failure {
    Failure::failed("RB-LOCAL-START", format!("cannot start {what}: {error}"))
}

/// Says where everything is; to standard error, so that a command's output stays its own.
fn greet(plan: &Plan) {
    if plan.exec.is_some() {
        return;
    }
    let space = rustix::fs::statvfs(&plan.mount).map_or_else(
        |_| "space unknown".to_owned(),
        |stat| {
            let size = |blocks: u64| units::human_size(blocks * stat.f_frsize);
            format!("{} free of {}", size(stat.f_bfree), size(stat.f_blocks))
        },
    );
    let text = format!(
        "mounted at {mount}\n  \
         stop:   Ctrl-C, or kill {pid}\n  \
         again:  redbud mount {source} OTHER-DIRECTORY\n  \
         logs:   {dir}/mds.log, {dir}/client.log\n  \
         status: up, {space}\n",
        mount = plan.mount.display(),
        pid = std::process::id(),
        source = plan.source,
        dir = plan.dir.display(),
    );
    // Someone who closed standard output still wants the mount.
    drop(output::print(&text));
}

fn start_command(plan: &Plan, command: &str) -> Result<Child, Failure> {
    Command::new("/bin/sh")
        .args(["-c", command])
        .current_dir(&plan.mount)
        .env("REDBUD_MOUNT", &plan.mount)
        .env("REDBUD_SOURCE", plan.source.to_string())
        .spawn()
        .map_err(|error| unable("/bin/sh", &error))
}

/// Watches everything; gives the exit status to end with.
async fn watch(env: Env, plan: &Plan, parts: &mut Parts, mut command: Option<Child>) -> Ended {
    let mut interrupts = 0u32;
    loop {
        let mut signal = pin!(env.stop_signal());
        let arrived = loop {
            if let Some(signal) = env.timeout(TICK, signal.as_mut()).await {
                break signal;
            }
            if let Some(ended) = look(plan, parts, &mut command)? {
                return Ok(ended);
            }
        };
        let Some(command) = &command else { return Ok(0) };
        interrupts += 1;
        // The terminal has sent the first Ctrl-C to the command too.
        if arrived != Signal::INT.as_raw() || interrupts > 1 {
            signal_child(command, Signal::TERM);
        }
    }
}

/// One look at the children: the exit status if it is time to end.
fn look(
    plan: &Plan,
    parts: &mut Parts,
    command: &mut Option<Child>,
) -> Result<Option<u8>, Failure> {
    if let Some(child) = command
        && let Some(status) = child.try_wait().map_err(|error| unable("wait", &error))?
    {
        return Ok(Some(exit_code(status)));
    }
    if let Ok(Some(status)) = parts.client.try_wait() {
        if let Some(child) = command {
            signal_child(child, Signal::TERM);
        }
        let said = plan.dir.join("client.log");
        let text = match status.success() {
            true => format!("{} was unmounted by someone else", plan.mount.display()),
            false => format!("the client ended ({status}); see {}", said.display()),
        };
        return if status.success() && command.is_none() {
            log::line(&text);
            Ok(Some(0))
        } else {
            Err(Failure::failed("RB-CLIENT-DIED", text))
        };
    }
    if let Ok(Some(status)) = parts.server.try_wait() {
        log::line(&format!("the metadata server ended ({status}); it is started again"));
        parts.server = restart(plan, &parts.until)?;
    }
    Ok(None)
}

fn restart(plan: &Plan, until: &PipeReader) -> Result<Child, Failure> {
    let mut attempt = 1;
    loop {
        match start_server(plan, until) {
            Ok(server) => return Ok(server),
            Err(failure) if attempt == ATTEMPTS => return Err(failure),
            Err(failure) => log::line(&failure.to_string()),
        }
        std::thread::sleep(Duration::from_millis(200 << attempt));
        attempt += 1;
    }
}

fn signal_child(child: &Child, signal: Signal) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // It may have ended meanwhile.
        let _ = kill_process(pid, signal);
    }
}

/// The status that a shell gives for `status`.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Sends SIGTERM to a child.
pub fn terminate(child: &Child) {
    signal_child(child, Signal::TERM);
}
