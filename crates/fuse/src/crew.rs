//! The executors of a mount besides the first.
//!
//! By the device one executor listens. A wake-up of another thread costs more than most requests,
//! so the others sleep until requests come faster than it serves them: then one more is called,
//! with a cloned channel of its own, and goes on until no request is there. Over io_uring the
//! kernel has a queue for each CPU, and each executor serves its share of them.
//!
//! Invariants:
//! - an executor that was called serves until it found no request; so none is left unserved because
//!   someone else was called for it;
//! - when serving ends, also by being dropped ([`Mustered`]), nobody takes a request any more.

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

/// So many requests in a row, of which none but the first had to be waited for, are more than one
/// executor serves.
pub(crate) const BUSY: u32 = 64;
/// Requests that a called executor takes before its other tasks have a turn.
const BURST: u32 = 8;

/// The extended attribute of the root that shows how many requests each executor has taken, as
/// JSON.
pub const EXECUTORS_XATTR: &[u8] = b"user.redbud.executors";

/// More take turns at what one at a time may do, and gain nothing.
const EXECUTORS: usize = 8;

/// How many executors serve a mount if nobody says: one for each processor that this process may
/// use, within reason. Over io_uring one: there each would be woken for every request of its
/// processor, and a request that asks the server costs two more wake-ups, because one executor
/// hears the answers (measured: docs/BENCHMARKS.md).
pub fn executors(init: &InitOptions) -> usize {
    let cpus = || std::thread::available_parallelism().map_or(1, |cpus| cpus.get().min(EXECUTORS));
    if init.uring.is_some() { 1 } else { cpus() }
}

/// The other executors, as the first sees them.
#[derive(Default)]
pub(crate) struct Crew {
    /// After so many requests in a row one is called.
    call_after: u32,
    /// Those that wait to be called.
    resting: RefCell<Vec<OneSender<()>>>,
    dismissed: Cell<bool>,
    /// The thread whose request was the last, and whether those since the last look were of
    /// several.
    asker: Cell<u32>,
    several: Cell<bool>,
    /// Those of all executors.
    channels: RefCell<Vec<FuseChannel>>,
    /// What broke the channel of one of them.
    failure: RefCell<Option<io::Error>>,
    changed: Notify,
}

impl Crew {
    pub(crate) fn new(call_after: u32) -> Crew {
        Crew { call_after: call_after.max(1), ..Crew::default() }
    }

    /// The requests that each executor has taken, as a JSON array.
    pub(crate) fn json(&self) -> String {
        let channels = self.channels.borrow();
        let taken: Vec<String> = channels.iter().map(|c| c.requests().to_string()).collect();
        format!("[{}]", taken.join(","))
    }

    /// Thread `asker` asks for something.
    pub(crate) fn heard(&self, asker: u32) {
        if self.asker.replace(asker) != asker {
            self.several.set(true);
        }
    }

    /// Calls one more if an executor has taken `in_a_row` requests, all but the first without
    /// waiting.
    pub(crate) fn call_if_busy(&self, in_a_row: u32) {
        // A single thread that asks again as soon as it is answered needs one executor.
        if in_a_row > 0 && in_a_row.is_multiple_of(self.call_after) && self.several.take() {
            let called = self.resting.borrow_mut().pop();
            if let Some(called) = called {
                called.send(());
            }
        }
    }

    /// Nobody takes a request any more.
    fn dismiss(&self) {
        self.dismissed.set(true);
        drop(self.resting.take());
        self.changed.notify_all();
    }

    /// Ends when it is called; `None`: dismissed.
    fn call(&self) -> OneReceiver<()> {
        let (called, call) = oneshot();
        if !self.dismissed.get() {
            self.resting.borrow_mut().push(called);
        }
        call
    }

    /// Ends when the channel of another executor broke.
    pub(crate) async fn failed(&self) -> io::Error {
        loop {
            if let Some(error) = self.failure.take() {
                return error;
            }
            self.changed.notified().await;
        }
    }

    /// Ends when nobody is called any more.
    async fn dismissed(&self) {
        while !self.dismissed.get() {
            self.changed.notified().await;
        }
    }

    fn fail(&self, error: io::Error) {
        *self.failure.borrow_mut() = Some(error);
        self.changed.notify_all();
    }
}

/// The executors serve the session until this is dropped.
pub(crate) struct Mustered<F>(Rc<Session<F>>);

impl<F> Drop for Mustered<F> {
    fn drop(&mut self) {
        self.0.crew.dismiss();
    }
}

/// Lets all executors of `env` serve the session; by the device, as many as get a channel.
///
/// # Errors
/// Over io_uring: the channel cannot be cloned, or the kernel refuses.
pub(crate) fn muster<F: Filesystem>(
    env: &Env,
    session: &Rc<Session<F>>,
    channel: &FuseChannel,
    uring: Option<UringEntries>,
    log: Option<fn(&str)>,
) -> io::Result<Mustered<F>> {
    let mustered = Mustered(session.clone());
    let executors = env.executors();
    let share = |executor| {
        uring.map(|entries| UringOptions {
            executor,
            executors,
            depth: entries.first,
            depth_max: entries.most,
        })
    };
    let channels = &session.crew.channels;
    channels.borrow_mut().push(channel.clone());
    for executor in 1..executors {
        let channel = match channel.another() {
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
            None => env.spawn_on(executor, help(env.clone(), session.clone(), channel)),
            Some(share) => {
                env.spawn_on(executor, serve_share(env.clone(), session.clone(), channel, share))
            }
        }
    }
    // Registered only now: the kernel refuses it before INIT was answered.
    share(0).map_or(Ok(()), |share| channel.start_uring(share))?;
    Ok(mustered)
}

/// Takes requests of the device whenever it is called.
async fn help<F: Filesystem>(env: Env, session: Rc<Session<F>>, channel: FuseChannel) {
    become_io_flusher();
    while session.crew.call().await.is_some() {
        let mut in_a_row = 0;
        // Other errors than that there is none are told by the first channel.
        while !session.crew.dismissed.get()
            && let Ok(request) = channel.try_recv()
        {
            start(&env, &session, &channel, request).await;
            in_a_row += 1;
            session.crew.call_if_busy(in_a_row);
            if in_a_row % BURST == 0 {
                env.yield_now().await;
            }
        }
    }
}

/// Takes the requests of its share of the kernel's queues.
async fn serve_share<F: Filesystem>(
    env: Env,
    session: Rc<Session<F>>,
    channel: FuseChannel,
    share: UringOptions,
) {
    become_io_flusher();
    if let Err(error) = channel.start_uring(share) {
        return session.crew.fail(error);
    }
    let mut dismissed = pin!(session.crew.dismissed());
    loop {
        let mut next = pin!(channel.recv());
        let request = poll_fn(|cx| match dismissed.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Ok(None)),
            Poll::Pending => next.as_mut().poll(cx),
        });
        match request.await {
            Ok(Some(request)) => start(&env, &session, &channel, request).await,
            Ok(None) => return,
            Err(error) => return session.crew.fail(error),
        }
    }
}
