//! SIGINT and SIGTERM as futures.
//!
//! Invariant: each executor sees each signal that arrives after its first wait
//! began at most once, and several executors may wait for the same signal.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::task::{Poll, Waker};

use super::sys;

/// The descriptor that the handler writes to; -1 before it is installed.
static PIPE: AtomicI32 = AtomicI32::new(-1);
/// Signals taken from the pipe so far.
static COUNT: AtomicU64 = AtomicU64::new(0);
static LAST: AtomicI32 = AtomicI32::new(0);
static WAITING: Mutex<Vec<Waker>> = Mutex::new(Vec::new());
static INSTALL: Once = Once::new();

fn waiting() -> MutexGuard<'static, Vec<Waker>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

extern "C" fn handle(signal: libc::c_int) {
    let byte = signal as u8;
    // SAFETY: write(2) is async-signal-safe; errno is restored for the interrupted code.
    unsafe {
        let errno = libc::__errno_location();
        let saved = *errno;
        libc::write(PIPE.load(Ordering::Relaxed), (&raw const byte).cast(), 1);
        *errno = saved;
    }
}

fn install() {
    let mut ends = [0; 2];
    // SAFETY: the kernel fills the two descriptors.
    let made = sys::check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) });
    made.expect("create the pipe for signals");
    let reader: OwnedFd = sys::owned(ends[0]).expect("pipe2 returned a descriptor");
    // A full pipe must not block the handler; a lost signal does not matter then.
    sys::set_nonblocking(ends[1], true).expect("a pipe can be non-blocking");
    PIPE.store(ends[1].as_raw_fd(), Ordering::Relaxed);
    std::thread::Builder::new()
        .name("redbud-signals".to_owned())
        .spawn(move || listen(reader))
        .expect("create the thread for signals");
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler does only async-signal-safe things; a zeroed sigaction has an empty
        // mask.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

fn listen(reader: OwnedFd) {
    let mut reader = std::fs::File::from(reader);
    let mut byte = [0];
    while reader.read_exact(&mut byte).is_ok() {
        let mut waiting = waiting();
        LAST.store(i32::from(byte[0]), Ordering::Relaxed);
        COUNT.fetch_add(1, Ordering::Relaxed);
        for waker in waiting.drain(..) {
            waker.wake();
        }
    }
}

/// Signals that have arrived in this process.
pub(crate) fn count() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// Has SIGINT or SIGTERM arrived? From the first call on, these signals no longer end the
/// process by themselves.
pub fn asked_to_stop() -> bool {
    INSTALL.call_once(install);
    count() > 0
}

/// The next signal after the first `seen` ones.
pub(crate) async fn next(seen: &Cell<u64>) -> i32 {
    INSTALL.call_once(install);
    poll_fn(|cx| {
        let mut waiting = waiting();
        if count() > seen.get() {
            seen.set(count());
            return Poll::Ready(LAST.load(Ordering::Relaxed));
        }
        if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
        Poll::Pending
    })
    .await
}
