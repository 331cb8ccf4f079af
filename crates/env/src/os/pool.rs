//! Threads for work that would block an executor: expensive functions, name lookups,
//! discards, and disk I/O without io_uring.
//!
//! Invariants:
//! - a job's completion goes to the mailbox it came from exactly once, even if the job panics;
//! - behind [`end`] no job of that mailbox begins.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use types::Duration;

use crate::driver::{Completion, Payload, Token};
use crate::mailbox::Mailbox;
use crate::os::sys;

/// Upper bound of threads in the process; one is created when all others are busy.
const THREADS_MAX: usize = 16;
/// How long [`end`] waits for jobs that have begun.
const PATIENCE: Duration = Duration::from_secs(30);

type Work = Box<dyn FnOnce() -> (io::Result<usize>, Payload) + Send>;

struct Job {
    token: Token,
    work: Work,
    mailbox: Arc<Mailbox>,
    /// It reads or changes a file.
    is_io: bool,
}

struct State {
    jobs: VecDeque<Job>,
    /// The mailboxes of jobs of I/O that have begun.
    begun: Vec<Arc<Mailbox>>,
    threads: usize,
    idle: usize,
}

static STATE: Mutex<State> =
    Mutex::new(State { jobs: VecDeque::new(), begun: Vec::new(), threads: 0, idle: 0 });
static ARRIVED: Condvar = Condvar::new();
static ENDED: Condvar = Condvar::new();

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work` on some thread; its completion goes to `mailbox`.
pub(crate) fn submit(
    mailbox: &Arc<Mailbox>,
    token: Token,
    work: impl FnOnce() -> (io::Result<usize>, Payload) + Send + 'static,
) {
    let work = Box::new(work);
    enqueue(Job { token, work, mailbox: mailbox.clone(), is_io: false });
}

/// As [`submit`], for work that reads or changes a file: [`end`] waits for it.
pub(crate) fn submit_io(
    mailbox: &Arc<Mailbox>,
    token: Token,
    work: impl FnOnce() -> (io::Result<usize>, Payload) + Send + 'static,
) {
    let work = Box::new(work);
    enqueue(Job { token, work, mailbox: mailbox.clone(), is_io: true });
}

/// Drops the jobs of a mailbox that have not begun, and waits for its I/O that has, for
/// [`PATIENCE`] at most. Nobody gets a completion of those that are dropped.
pub(crate) fn end(mailbox: &Arc<Mailbox>) {
    let is_its = |of: &Arc<Mailbox>| Arc::ptr_eq(of, mailbox);
    let mut state = lock();
    state.jobs.retain(|job| !is_its(&job.mailbox));
    let deadline = sys::now() + PATIENCE;
    while state.begun.iter().any(is_its) {
        let left = deadline.since(sys::now());
        if left == Duration::ZERO {
            return;
        }
        let waited = ENDED.wait_timeout(state, left);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

fn enqueue(job: Job) {
    let mut state = lock();
    state.jobs.push_back(job);
    let wanted = state.jobs.len() > state.idle && state.threads < THREADS_MAX;
    if wanted {
        let made = std::thread::Builder::new().name("redbud-pool".to_owned()).spawn(serve);
        match made {
            Ok(_) => state.threads += 1,
            Err(error) => assert!(state.threads > 0, "cannot create a pool thread: {error}"),
        }
    }
    drop(state);
    ARRIVED.notify_one();
}

fn serve() {
    let mut state = lock();
    loop {
        match state.jobs.pop_front() {
            Some(job) => {
                let io = job.is_io.then(|| job.mailbox.clone());
                state.begun.extend(io.clone());
                drop(state);
                run(job);
                state = lock();
                if let Some(mailbox) = io {
                    let at = state.begun.iter().position(|of| Arc::ptr_eq(of, &mailbox));
                    at.map(|at| state.begun.swap_remove(at));
                    ENDED.notify_all();
                }
            }
            None => {
                state.idle += 1;
                state = ARRIVED.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }
}

fn run(job: Job) {
    let (result, payload) = catch_unwind(AssertUnwindSafe(job.work))
        .unwrap_or_else(|_| (Err(io::Error::other("the job panicked")), Payload::None));
    job.mailbox.complete(Completion::new(job.token, result, payload));
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn end_waits_for_io_that_has_begun_and_drops_what_has_not() {
        static DONE: AtomicUsize = AtomicUsize::new(0);
        let [mailbox, other] = [(); 2].map(|()| Mailbox::new(Box::new(|| ())));
        let (begun, has_begun) = mpsc::channel();
        for _ in 0..THREADS_MAX {
            let begun = begun.clone();
            submit_io(&mailbox, 0, move || {
                begun.send(()).expect("the test waits");
                std::thread::sleep(std::time::Duration::from_millis(100));
                DONE.fetch_add(1, Ordering::SeqCst);
                (Ok(0), Payload::None)
            });
        }
        (0..THREADS_MAX).for_each(|_| has_begun.recv().expect("a job begins"));
        submit_io(&mailbox, 0, || unreachable!("no thread is free before the end"));
        let (ran, has_run) = mpsc::channel();
        submit(&other, 0, move || {
            ran.send(()).expect("the test waits");
            (Ok(0), Payload::None)
        });
        end(&mailbox);
        assert_eq!(DONE.load(Ordering::SeqCst), THREADS_MAX);
        has_run.recv().expect("a job of another mailbox runs");
    }
}
