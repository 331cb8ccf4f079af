//! Processes of a test, and the bounds on how many and how long.

use std::fs::OpenOptions;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{PATIENCE, wait_child};

/// Clusters at once: more would only make each other slow.
const TURNS: usize = 3;

static BUSY: Mutex<usize> = Mutex::new(0);
static DONE: Condvar = Condvar::new();
static LISTENERS: AtomicU32 = AtomicU32::new(0);

/// The right to run a cluster.
pub struct Turn(());

impl Turn {
    pub fn wait() -> Turn {
        let busy = BUSY.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = DONE.wait_while(busy, |busy| *busy >= TURNS);
        *wait.unwrap_or_else(PoisonError::into_inner) += 1;
        Turn(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *BUSY.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        DONE.notify_one();
    }
}

/// The processes of a cluster, for its watchdog.
#[derive(Clone, Default)]
pub struct SharedPids(Arc<Mutex<Vec<i32>>>);

impl SharedPids {
    fn add(&self, pid: i32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(pid);
    }

    fn remove(&self, pid: i32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|&one| one != pid);
    }

    fn kill_all(&self) {
        for &pid in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            signal(pid, Signal::KILL);
        }
    }
}

/// Kills a test's processes if it is stuck: its file operations then fail, and so does it.
pub struct Watchdog(Sender<()>);

impl Watchdog {
    pub fn start(limit: Duration, pids: SharedPids) -> Watchdog {
        let (sender, receiver) = channel();
        let test = std::thread::current().name().unwrap_or("?").to_owned();
        std::thread::spawn(move || {
            if receiver.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{test}: stuck for {} s: its processes are killed", limit.as_secs());
                pids.kill_all();
            }
        });
        Watchdog(sender)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // The thread may have ended at its limit.
        let _ = self.0.send(());
    }
}

/// A server or client.
pub struct Running {
    child: Child,
    pids: SharedPids,
}

impl Running {
    /// Starts `command`, logging to `log`, and waits until it says that it is ready.
    pub fn ready(mut command: Command, log: &Path, pids: &SharedPids) -> Running {
        let number = LISTENERS.fetch_add(1, Ordering::Relaxed);
        // A path, unlike an abstract name, is the same in every network namespace.
        let name = log.with_file_name(format!("ready{number}"));
        let socket = UnixDatagram::bind(&name).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let file = OpenOptions::new().create(true).append(true).open(log).unwrap();
        command.stdout(file.try_clone().unwrap()).stderr(file);
        command.env("NOTIFY_SOCKET", &name).env("RUST_BACKTRACE", "1");
        let child = command.spawn().unwrap();
        pids.add(child.id() as i32);
        let mut running = Running { child, pids: pids.clone() };
        let until = Instant::now() + PATIENCE;
        let mut message = [0u8; 256];
        while socket.recv(&mut message).is_err() {
            let ended = running.child.try_wait().unwrap();
            // The last line first: it remains if the text is cut.
            let said = || {
                let all = std::fs::read_to_string(log).unwrap_or_default();
                format!("{}\n…\n{all}", all.lines().last().unwrap_or("(it said nothing)"))
            };
            assert!(ended.is_none(), "{command:?} ended ({ended:?}): {}", said());
            assert!(Instant::now() < until, "{command:?} is not ready: {}", said());
        }
        running
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn signal(&self, what: Signal) {
        signal(self.pid(), what);
    }

    /// Has it ended by itself?
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits until it ends by itself.
    pub fn wait(mut self) -> ExitStatus {
        wait_child(&mut self.child)
    }

    /// Kills it, also if it is stopped.
    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.pids.remove(self.pid());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Sends a signal; the process may be gone.
pub fn signal(pid: i32, what: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, what);
    }
}
