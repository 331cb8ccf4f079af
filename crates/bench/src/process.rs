//! Processes that are waited for with a limit, and end with this one.
//!
//! Invariant: no wait goes on after its limit or after an interrupt.

use std::fs::{File, OpenOptions};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::{Res, failed};

/// How often a wait looks whether it is over.
const PAUSE: Duration = Duration::from_millis(5);
/// How long a killed process may take to be gone.
const DYING: Duration = Duration::from_secs(20);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static NAMES: AtomicU32 = AtomicU32::new(0);

extern "C" fn interrupt(_: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From now on SIGINT and SIGTERM end waits with an error, instead of the process.
pub fn catch_interrupts() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic; a zeroed sigaction has an empty mask.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = interrupt as *const () as usize;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

/// What every step needs: the program that plays all parts, where logs go, how long a step may
/// take.
#[derive(Clone, Debug)]
pub struct Tools {
    /// `redbud`, or another program that is a worker when it is called with `bench worker JOB`.
    pub program: PathBuf,
    /// Directory of the logs.
    pub logs: PathBuf,
    /// Longest time of one step.
    pub limit: Duration,
}

/// The end of a step's time.
#[derive(Clone, Debug)]
pub struct Deadline {
    step: String,
    limit: Duration,
    until: Instant,
}

impl Deadline {
    /// `limit` from now on.
    pub fn new(step: impl Into<String>, limit: Duration) -> Deadline {
        Deadline { step: step.into(), limit, until: Instant::now() + limit }
    }

    /// Time that a wait may take until it must look at [`Deadline::check`] again.
    pub fn pause(&self) -> Duration {
        PAUSE
    }

    /// The step's name.
    pub fn step(&self) -> &str {
        &self.step
    }

    /// Fails after the limit and after an interrupt.
    ///
    /// # Errors
    /// Names the step.
    pub fn check(&self) -> Res<()> {
        if INTERRUPTED.load(Ordering::Relaxed) {
            return failed(&self.step, "interrupted");
        }
        if Instant::now() >= self.until {
            return failed(&self.step, format!("not done after {} s", self.limit.as_secs()));
        }
        Ok(())
    }
}

/// A process that serves. It is killed when this value goes.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts this program with `arguments` and waits until it says that it is ready.
    ///
    /// # Errors
    /// It ended or was not ready in time; with what it wrote to its log.
    pub fn serve(tools: &Tools, name: &str, arguments: &[&std::ffi::OsStr]) -> Res<Process> {
        let step = format!("starting {name}");
        let log = tools.logs.join(format!("{name}.log"));
        let number = NAMES.fetch_add(1, Ordering::Relaxed);
        let socket_name = format!("redbud-bench-{}-{number}", std::process::id());
        let listen = || {
            let address = SocketAddr::from_abstract_name(&socket_name)?;
            let socket = UnixDatagram::bind_addr(&address)?;
            socket.set_read_timeout(Some(PAUSE))?;
            Ok(socket)
        };
        let socket = listen().or_else(|error: std::io::Error| failed(&step, error))?;
        let mut command = Command::new(&tools.program);
        command.args(arguments).env("NOTIFY_SOCKET", format!("@{socket_name}"));
        let (out, err) = logs(&log).or_else(|error| failed(&step, error))?;
        // A group of its own: an interrupt at the terminal is this process's to pass on.
        command.stdin(Stdio::piped()).stdout(out).stderr(err).process_group(0);
        let child = command.spawn().or_else(|error| failed(&step, error))?;
        let mut process = Process { child, log };
        let deadline = Deadline::new(step, tools.limit);
        let mut message = [0u8; 256];
        loop {
            match socket.recv(&mut message) {
                Ok(len) if message[..len].starts_with(b"READY=1") => return Ok(process),
                _ => deadline.check()?,
            }
            if let Ok(Some(status)) = process.child.try_wait() {
                return failed(deadline.step(), format!("{status}; {}", tail(&process.log)));
            }
        }
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Closes its standard input, which tells a server that follows it to stop.
    pub fn close_input(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// It did not end in time, or not well.
    pub fn wait(mut self, deadline: &Deadline) -> Res<()> {
        loop {
            match self.child.try_wait() {
                Ok(None) => deadline.check()?,
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => {
                    return failed(deadline.step(), format!("{status}; {}", tail(&self.log)));
                }
                Err(error) => return failed(deadline.step(), error),
            }
            std::thread::sleep(PAUSE);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        kill(&mut self.child);
    }
}

/// Kills a process and waits for its end, for a while: one that the kernel holds must not hold this
/// one.
pub fn kill(child: &mut Child) {
    // It may have ended already; then there is nothing to kill.
    drop(child.kill());
    let until = Instant::now() + DYING;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
        std::thread::sleep(PAUSE);
    }
}

/// Runs this program with `arguments` to its end.
///
/// # Errors
/// It did not end in time, or not well; with what it wrote.
pub fn run(tools: &Tools, step: &str, arguments: &[&std::ffi::OsStr]) -> Res<()> {
    let log = tools.logs.join("commands.log");
    let (out, err) = logs(&log).or_else(|error| failed(step, error))?;
    let mut command = Command::new(&tools.program);
    command.args(arguments).stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
    let child = command.spawn().or_else(|error| failed(step, error))?;
    Process { child, log }.wait(&Deadline::new(step, tools.limit))
}

/// What this program prints with `arguments`; it ends soon by itself.
///
/// # Errors
/// It did not end well; with what it wrote.
pub fn output(tools: &Tools, step: &str, arguments: &[&std::ffi::OsStr]) -> Res<String> {
    let mut command = Command::new(&tools.program);
    let done = command.args(arguments).stdin(Stdio::null()).output();
    let done = done.or_else(|error| failed(step, error))?;
    if !done.status.success() {
        let why = String::from_utf8_lossy(&done.stderr);
        return failed(step, format!("{}; {}", done.status, why.trim()));
    }
    String::from_utf8(done.stdout).or_else(|error| failed(step, error))
}

/// How `status` ended, if it was not well.
pub fn ended_badly(status: ExitStatus, log: &Path) -> Option<String> {
    (!status.success()).then(|| format!("{status}; {}", tail(log)))
}

/// The file `path` twice, to append to.
pub fn logs(path: &Path) -> std::io::Result<(File, File)> {
    let file = OpenOptions::new().create(true).append(true).open(path)?;
    Ok((file.try_clone()?, file))
}

/// The last lines of a log.
pub fn tail(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(3).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
}
