//! Threads for work that would block an executor: expensive functions, name lookups,
//! discards, and disk I/O without io_uring.
//!
//! Invariant: a job's completion goes to the mailbox it came from exactly once,
//! even if the job panics.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::driver::{Completion, Payload, Token};
use crate::mailbox::Mailbox;

/// Upper bound of threads in the process; one is created when all others are busy.
const THREADS_MAX: usize = 16;

type Work = Box<dyn FnOnce() -> (io::Result<usize>, Payload) + Send>;

struct Job {
    token: Token,
    work: Work,
    mailbox: Arc<Mailbox>,
}

struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

static STATE: Mutex<State> = Mutex::new(State { jobs: VecDeque::new(), threads: 0, idle: 0 });
static ARRIVED: Condvar = Condvar::new();

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work` on some thread; its completion goes to `mailbox`.
pub(crate) fn submit(
    mailbox: &Arc<Mailbox>,
    token: Token,
    work: impl FnOnce() -> (io::Result<usize>, Payload) + Send + 'static,
) {
    let mut state = lock();
    state.jobs.push_back(Job { token, work: Box::new(work), mailbox: mailbox.clone() });
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
                drop(state);
                run(job);
                state = lock();
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
