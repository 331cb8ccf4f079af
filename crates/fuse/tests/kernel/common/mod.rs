//! Real mounts of a small file system in memory, and control over its handlers.

pub mod memory;

use std::collections::VecDeque;
use std::fs;
use std::future::poll_fn;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use client::Kernel;
use env::{DriverKind, Env, FuseChannel};
use redbud_fuse::{MountOptions, Notifier, ServeOptions, mount, serve, unmount};
use types::Ino;

use memory::MemoryFs;

/// Longer than anything here takes, however busy the machine is.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What the test and the server's thread tell each other.
#[derive(Default)]
pub struct Control {
    /// While set, handlers of these kinds wait.
    pub park_lookups: AtomicBool,
    pub park_reads: AtomicBool,
    pub park_setattrs: AtomicBool,
    pub park_creates: AtomicBool,
    /// Handlers that wait now.
    pub parked: AtomicU32,
    /// Lock requests that wait now.
    pub lock_waits: AtomicU32,
    /// Inodes the kernel refers to, except the root.
    pub referenced: AtomicU64,
    /// Files created by CREATE.
    pub created: AtomicU32,
    /// Open handles of files.
    pub open: AtomicU32,
    /// Asks to drop `serve`; `given_up` reports that it was dropped.
    pub give_up: AtomicBool,
    pub given_up: AtomicBool,
    /// The executors may end after `serve` was dropped.
    leave: AtomicBool,
    commands: Mutex<VecDeque<(Notice, Arc<AtomicBool>)>>,
    over: AtomicBool,
}

/// A notification to the kernel.
#[derive(Clone, Copy, Debug)]
pub enum Notice {
    IncEpoch,
    InvalAttr(u64),
    InvalPages(u64, u64, u64),
}

impl Control {
    /// Has the server's thread notify the kernel; the flag is set when the kernel has done it.
    pub fn notify(&self, notice: Notice) -> Arc<AtomicBool> {
        let done = Arc::new(AtomicBool::new(false));
        self.commands.lock().unwrap().push_back((notice, Arc::clone(&done)));
        done
    }

    /// Waits until `count` handlers are parked.
    pub fn wait_parked(&self, count: u32) {
        wait_for("handlers to park", || self.parked.load(Ordering::SeqCst) >= count);
    }
}

/// Waits for a condition that must become true.
pub fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "timed out waiting for {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A mount of a [`MemoryFs`], served by a thread of its own.
pub struct TestMount {
    pub dir: PathBuf,
    pub control: Arc<Control>,
    server: Option<thread::JoinHandle<()>>,
}

/// Executors that serve a mount of the tests.
pub const EXECUTORS: usize = 3;

impl TestMount {
    /// Mounts an empty file system whose attributes and names the kernel may trust for `ttl`.
    pub fn new(name: &str, ttl: Duration) -> TestMount {
        let dir = std::env::temp_dir().join(format!("redbud-fuse-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let mounted = mount(&dir, &MountOptions::new("test"));
        let fd = mounted.expect("these tests mount: they need root and /dev/fuse");
        let control = Arc::new(Control::default());
        let server = thread::spawn({
            let control = Arc::clone(&control);
            move || {
                env::run_group(DriverKind::Auto, EXECUTORS, |env| async move {
                    let channel = FuseChannel::new(&env, fd).unwrap();
                    let notifier = Notifier::new();
                    let fs = MemoryFs::new(&env, ttl, Arc::clone(&control));
                    env.spawn(carry_out(env.clone(), control.clone(), notifier.clone()));
                    // The other executors serve whenever they can, to test them.
                    let options = ServeOptions { notifier, wake_after: 1, ..Default::default() };
                    let serving = serve(&env, channel, fs, options);
                    if let Some(served) = unless_given_up(&env, &control, serving).await {
                        return served.unwrap();
                    }
                    control.given_up.store(true, Ordering::SeqCst);
                    while !control.leave.load(Ordering::SeqCst) {
                        env.sleep(types::Duration::from_millis(1)).await;
                    }
                })
                .unwrap();
            }
        });
        let mount = TestMount { dir, control, server: Some(server) };
        mount.watch();
        mount
    }

    /// Waits until serving has ended because the file system was unmounted.
    pub fn wait_for_end(&self) {
        wait_for("the server's thread to end", || {
            self.server.as_ref().is_some_and(thread::JoinHandle::is_finished)
        });
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The request counters, as JSON.
    pub fn requests(&self) -> String {
        let value = get_xattr(&self.dir, "user.redbud.requests").unwrap();
        String::from_utf8(value).unwrap()
    }

    /// Number of requests with this opcode.
    pub fn counted(&self, opcode: &str) -> u64 {
        let requests = self.requests();
        let key = format!("\"{opcode}\":");
        requests.find(&key).map_or(0, |at| {
            let digits = requests[at + key.len()..].split(|c: char| !c.is_ascii_digit()).next();
            digits.unwrap().parse().unwrap()
        })
    }

    /// Aborts the mount of a test that hangs: every request fails then.
    fn watch(&self) {
        let (dir, control) = (self.dir.clone(), Arc::clone(&self.control));
        thread::spawn(move || {
            let start = Instant::now();
            while !control.over.load(Ordering::SeqCst) {
                if start.elapsed() > 2 * PATIENCE {
                    eprintln!("{} hangs: the mount is aborted", dir.display());
                    abort(&dir);
                    return;
                }
                thread::sleep(Duration::from_millis(50));
            }
        });
    }
}

/// Aborts a mount; every request fails then.
pub fn abort(dir: &Path) {
    let path = std::ffi::CString::new(dir.as_os_str().as_bytes()).unwrap();
    // SAFETY: the path is NUL-terminated and outlives the call.
    unsafe { libc::umount2(path.as_ptr(), libc::MNT_FORCE | libc::MNT_DETACH) };
}

impl Drop for TestMount {
    fn drop(&mut self) {
        self.control.park_lookups.store(false, Ordering::SeqCst);
        self.control.park_reads.store(false, Ordering::SeqCst);
        self.control.park_setattrs.store(false, Ordering::SeqCst);
        self.control.leave.store(true, Ordering::SeqCst);
        // Between fork and exec, a process started by another test holds the descriptors of all
        // tests.
        let busy = |unmounted: &io::Result<()>| {
            unmounted.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
        };
        if thread::panicking() {
            abort(&self.dir);
        } else {
            wait_for("the mount to be unused", || !busy(&unmount(&self.dir, false)));
        }
        let ended = self.server.take().map(thread::JoinHandle::join);
        self.control.over.store(true, Ordering::SeqCst);
        let _ = fs::remove_dir(&self.dir);
        if !thread::panicking() {
            ended.unwrap().expect("the server's thread ended without a panic");
        }
    }
}

/// The result of `serving`; `None`: dropped on request of the test.
async fn unless_given_up<T>(
    env: &Env,
    control: &Control,
    serving: impl Future<Output = T>,
) -> Option<T> {
    let mut serving = pin!(serving);
    let mut given_up = pin!(async {
        while !control.give_up.load(Ordering::SeqCst) {
            env.sleep(types::Duration::from_millis(1)).await;
        }
    });
    poll_fn(|cx| match given_up.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(None),
        Poll::Pending => serving.as_mut().poll(cx).map(Some),
    })
    .await
}

async fn carry_out(env: Env, control: Arc<Control>, notifier: Notifier) {
    loop {
        let command = control.commands.lock().unwrap().pop_front();
        let Some((notice, done)) = command else {
            env.sleep(Duration::from_millis(1)).await;
            continue;
        };
        let notified = match notice {
            Notice::IncEpoch => notifier.inc_epoch(),
            Notice::InvalAttr(ino) => notifier.inval_attr(Ino(ino)),
            Notice::InvalPages(ino, offset, len) => notifier.inval_pages(Ino(ino), offset, len),
        };
        env.spawn(async move {
            notified.await;
            done.store(true, Ordering::SeqCst);
        });
    }
}

/// An extended attribute, or the errno.
pub fn get_xattr(path: &Path, name: &str) -> Result<Vec<u8>, i32> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    let name = std::ffi::CString::new(name).unwrap();
    let mut value = vec![0u8; 65_536];
    // SAFETY: the strings are NUL-terminated, and `value` has the stated length.
    let got = unsafe {
        libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len())
    };
    if got < 0 {
        return Err(std::io::Error::last_os_error().raw_os_error().unwrap());
    }
    value.truncate(got as usize);
    Ok(value)
}

/// Waits while `flag` is set.
pub(crate) async fn park(env: &Env, control: &Arc<Control>, flag: fn(&Control) -> &AtomicBool) {
    if !flag(control).load(Ordering::SeqCst) {
        return;
    }
    control.parked.fetch_add(1, Ordering::SeqCst);
    while flag(control).load(Ordering::SeqCst) {
        env.sleep(Duration::from_millis(1)).await;
    }
    control.parked.fetch_sub(1, Ordering::SeqCst);
}
