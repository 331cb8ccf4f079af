//! The executors of a mount besides the first.
//!
//! By the device, one executor waits for requests. Waking another thread costs more than most
//! requests, so the others sleep until requests come faster than the first serves them. Then
//! one more is woken, with a cloned channel of its own, and serves until no request is left.
//! Over io_uring the kernel has a queue for each CPU, and each executor serves its share of
//! them.
//!
//! Invariants:
//! - a woken executor serves until it finds no request, so no request stays unserved because
//!   another executor was woken for it;
//! - when serving ends, even by dropping it ([`RunningPool`]), no executor takes another request.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use env::sync::{Notify, OneReceiver, OneSender, oneshot};
use env::{Env, FuseChannel, UringOptions};

use crate::fs::Filesystem;
use crate::init::{InitOptions, UringEntries};
use crate::mount::become_io_flusher;
use crate::session::{Session, start};

/// After this number of requests in a row without waiting, except for the first, one executor is
/// not enough.
pub(crate) const BUSY: u32 = 64;
/// Requests that a woken executor takes before its other tasks run.
const BURST: u32 = 8;

/// The extended attribute of the root that shows how many requests each executor has taken, as
/// JSON.
pub const EXECUTORS_XATTR: &[u8] = b"user.redbud.executors";

/// More executors contend for the run token without a gain.
const EXECUTORS: usize = 8;

/// The default number of executors of a mount: one for each processor that this process may use,
/// up to a limit. Over io_uring one: there, every request would wake the executor of its
/// processor. A request that asks the server would cost two more wake-ups, because one executor
/// receives the answers (measured: docs/BENCHMARKS.md).
pub fn executors(init: &InitOptions) -> usize {
    let cpus = || std::thread::available_parallelism().map_or(1, |cpus| cpus.get().min(EXECUTORS));
    if init.uring.is_some() { 1 } else { cpus() }
}

/// The other executors, from the first one's point of view.
#[derive(Default)]
pub(crate) struct ExecutorPool {
    /// After this number of requests in a row, one more executor is woken.
    wake_after: u32,
    /// The executors that sleep.
    sleeping: RefCell<Vec<OneSender<()>>>,
    stopped: Cell<bool>,
    /// The thread that sent the last request, and whether several threads sent requests since
    /// the last check.
    caller: Cell<u32>,
    several_callers: Cell<bool>,
    /// The channels of all executors.
    channels: RefCell<Vec<FuseChannel>>,
    /// The error of a channel that failed.
    failure: RefCell<Option<io::Error>>,
    changed: Notify,
}

impl ExecutorPool {
    pub(crate) fn new(wake_after: u32) -> ExecutorPool {
        ExecutorPool { wake_after: wake_after.max(1), ..ExecutorPool::default() }
    }

    /// The number of requests that each executor has taken, as a JSON array.
    pub(crate) fn json(&self) -> String {
        let channels = self.channels.borrow();
        let taken: Vec<String> = channels.iter().map(|c| c.requests().to_string()).collect();
        format!("[{}]", taken.join(","))
    }

    /// Records a request of thread `caller`.
    pub(crate) fn record_request(&self, caller: u32) {
        if self.caller.replace(caller) != caller {
            self.several_callers.set(true);
        }
    }

    /// Wakes one more executor if one has taken `in_a_row` requests, all but the first without
    /// waiting.
    pub(crate) fn wake_if_busy(&self, in_a_row: u32) {
        // A single thread that sends its next request after each answer needs one executor.
        if in_a_row > 0 && in_a_row.is_multiple_of(self.wake_after) && self.several_callers.take() {
            let sleeper = self.sleeping.borrow_mut().pop();
            if let Some(sleeper) = sleeper {
                sleeper.send(());
            }
        }
    }

    /// Ends serving: no executor takes another request.
    fn stop(&self) {
        self.stopped.set(true);
        drop(self.sleeping.take());
        self.changed.notify_all();
    }

    /// Ends when the executor is woken; `None`: serving has ended.
    fn wake_up(&self) -> OneReceiver<()> {
        let (sender, wake_up) = oneshot();
        if !self.stopped.get() {
            self.sleeping.borrow_mut().push(sender);
        }
        wake_up
    }

    /// Ends when the channel of another executor failed; returns the error.
    pub(crate) async fn failed(&self) -> io::Error {
        loop {
            if let Some(error) = self.failure.take() {
                return error;
            }
            self.changed.notified().await;
        }
    }

    /// Ends when serving has ended.
    async fn stopped(&self) {
        while !self.stopped.get() {
            self.changed.notified().await;
        }
    }

    fn fail(&self, error: io::Error) {
        *self.failure.borrow_mut() = Some(error);
        self.changed.notify_all();
    }
}

/// The executors serve the session until this is dropped.
pub(crate) struct RunningPool<F>(Rc<Session<F>>);

impl<F> Drop for RunningPool<F> {
    fn drop(&mut self) {
        self.0.pool.stop();
    }
}

/// Lets all executors of `env` serve the session; by the device, as many as get a channel.
///
/// # Errors
/// Over io_uring: the channel cannot be cloned, or the kernel refuses.
pub(crate) fn start_pool<F: Filesystem>(
    env: &Env,
    session: &Rc<Session<F>>,
    channel: &FuseChannel,
    uring: Option<UringEntries>,
    log: Option<fn(&str)>,
) -> io::Result<RunningPool<F>> {
    let running_pool = RunningPool(session.clone());
    let executors = env.executors();
    let share = |executor| {
        uring.map(|entries| UringOptions {
            executor,
            executors,
            depth: entries.first,
            depth_max: entries.most,
        })
    };
    let channels = &session.pool.channels;
    channels.borrow_mut().push(channel.clone());
    for executor in 1..executors {
        let channel = match channel.clone_channel() {
            Err(error) if uring.is_none() => {
                if let Some(log) = log {
                    log(&format!("{executor} of {executors} executors serve the mount: {error}"));
                }
                break;
            }
            channel => channel?,
        };
        channels.borrow_mut().push(channel.clone());
        match share(executor) {
            None => env.spawn_on(executor, serve_when_woken(env.clone(), session.clone(), channel)),
            Some(share) => {
                env.spawn_on(executor, serve_share(env.clone(), session.clone(), channel, share))
            }
        }
    }
    // Registered only now: the kernel refuses it before INIT is answered.
    share(0).map_or(Ok(()), |share| channel.start_uring(share))?;
    Ok(running_pool)
}

/// Serves requests of the device whenever it is woken.
async fn serve_when_woken<F: Filesystem>(env: Env, session: Rc<Session<F>>, channel: FuseChannel) {
    become_io_flusher();
    while session.pool.wake_up().await.is_some() {
        let mut in_a_row = 0;
        // Any error but an empty device is reported by the first channel.
        while !session.pool.stopped.get()
            && let Ok(request) = channel.try_recv()
        {
            start(&env, &session, &channel, request).await;
            in_a_row += 1;
            session.pool.wake_if_busy(in_a_row);
            if in_a_row % BURST == 0 {
                env.yield_now().await;
            }
        }
    }
}

/// Serves the requests of its share of the kernel's queues.
async fn serve_share<F: Filesystem>(
    env: Env,
    session: Rc<Session<F>>,
    channel: FuseChannel,
    share: UringOptions,
) {
    become_io_flusher();
    if let Err(error) = channel.start_uring(share) {
        return session.pool.fail(error);
    }
    let mut stopped = pin!(session.pool.stopped());
    loop {
        let mut next = pin!(channel.recv());
        let request = poll_fn(|cx| match stopped.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Ok(None)),
            Poll::Pending => next.as_mut().poll(cx),
        });
        match request.await {
            Ok(Some(request)) => start(&env, &session, &channel, request).await,
            Ok(None) => return,
            Err(error) => return session.pool.fail(error),
        }
    }
}
