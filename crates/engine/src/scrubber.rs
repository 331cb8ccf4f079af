//! When a server scrubs: periodically, and on an administrator's request.
//!
//! Invariant: one scrub runs at a time; the next periodic one begins an interval after the last has
//! ended.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;

use env::Env;
use env::sync::{Notify, first};
use types::{Duration, Instant};

/// A server that can be scrubbed.
pub trait Scrubbing: 'static {
    /// Counts of what a scrub has read, and its findings.
    type Found: Clone + Default;

    /// Clock and tasks.
    fn env(&self) -> &Env;

    /// Does the server stop?
    fn is_stopping(&self) -> bool;

    /// The pause between two scrubs that nobody requested (zero: there are none), and the bytes
    /// that they read in a second at most (0: no bound).
    fn periodic(&self) -> (Duration, u64);

    /// Scrubs, and notes in `found` what it has read and found so far. Returns whether it came to
    /// the end; it may be dropped before.
    fn scrub(&self, how: How, found: &RefCell<Self::Found>) -> impl Future<Output = bool>;

    /// A scrub has ended: it came to the end, or was stopped.
    fn ended(&self, found: &Self::Found, whole: bool);
}

/// How a scrub reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct How {
    /// Bytes that it reads in a second at most; 0: no bound.
    pub rate: u64,
    /// Somebody has requested it.
    pub requested: bool,
}

/// A scrub that has ended.
#[derive(Clone, Debug)]
pub struct Ended<F> {
    /// When it ended.
    pub at: Instant,
    /// How long it took.
    pub took: Duration,
    /// Did it come to the end?
    pub whole: bool,
    /// Its findings.
    pub found: F,
}

/// A scrub that runs, or is requested.
#[derive(Clone, Debug)]
pub struct Running<F> {
    /// How it reads.
    pub how: How,
    /// When it began; `None`: it has not.
    pub since: Option<Instant>,
    /// Its findings so far.
    pub found: F,
}

/// See the module.
pub struct Scrubber<S: Scrubbing> {
    server: Rc<S>,
    /// The scrub that was requested and has not begun.
    requested: Cell<Option<How>>,
    /// The running scrub, and since when it runs.
    running: Cell<Option<(How, Instant)>>,
    cancelled: Cell<bool>,
    /// Has the task been started?
    started: Cell<bool>,
    wake: Notify,
    /// Of the running scrub.
    found: RefCell<S::Found>,
    last: RefCell<Option<Ended<S::Found>>>,
}

impl<S: Scrubbing> Scrubber<S> {
    /// No scrub.
    pub fn new(server: Rc<S>) -> Scrubber<S> {
        Scrubber {
            server,
            requested: Cell::default(),
            running: Cell::default(),
            cancelled: Cell::new(false),
            started: Cell::new(false),
            wake: Notify::new(),
            found: RefCell::default(),
            last: RefCell::default(),
        }
    }

    /// Requests a scrub that reads at most `rate` bytes a second (0: no bound), unless one runs.
    pub fn request(self: &Rc<Self>, rate: u64) {
        self.start();
        if self.running.get().is_none() {
            self.requested.set(Some(How { rate, requested: true }));
            self.wake.notify_all();
        }
    }

    /// Starts the task if there are periodic scrubs.
    pub fn begin(self: &Rc<Self>) {
        if self.server.periodic().0 > Duration::ZERO {
            self.start();
        }
    }

    fn start(self: &Rc<Self>) {
        if !self.started.replace(true) {
            self.server.env().spawn(run(self.clone()));
        }
    }

    /// Stops the running scrub, or cancels the one that was requested.
    pub fn cancel(&self) {
        self.requested.set(None);
        self.cancelled.set(self.running.get().is_some());
        self.wake.notify_all();
    }

    /// The server stops.
    pub fn stop(&self) {
        self.wake.notify_all();
    }

    /// The running or requested scrub.
    pub fn running(&self) -> Option<Running<S::Found>> {
        match (self.running.get(), self.requested.get()) {
            (Some((how, since)), _) => {
                let found = self.found.borrow().clone();
                Some(Running { how, since: Some(since), found })
            }
            (None, Some(how)) => Some(Running { how, since: None, found: S::Found::default() }),
            (None, None) => None,
        }
    }

    /// The scrub that ended last.
    pub fn last(&self) -> Option<Ended<S::Found>> {
        self.last.borrow().clone()
    }

    /// Checks the invariants.
    pub fn validate(&self) {
        let (running, requested) = (self.running.get().is_some(), self.requested.get().is_some());
        assert!(self.started.get() || !running && !requested, "a scrub runs without its task");
        assert!(running || !self.cancelled.get(), "a scrub is cancelled that does not run");
    }

    /// Waits until the next scrub is due; `None`: the server stops.
    async fn next_due(&self) -> Option<How> {
        let env = self.server.env();
        let (interval, rate) = self.server.periodic();
        let since = env.now();
        loop {
            let wake = self.wake.notified();
            if self.server.is_stopping() {
                return None;
            }
            if let Some(how) = self.requested.take() {
                return Some(how);
            }
            if interval == Duration::ZERO {
                wake.await;
                continue;
            }
            let waited = env.now().since(since);
            if waited >= interval {
                return Some(How { rate, requested: false });
            }
            env.timeout(interval.saturating_sub(waited), wake).await;
        }
    }

    /// Scrubs once; returns whether it came to the end.
    async fn scrub(&self, how: How) -> bool {
        let mut scrub = pin!(self.server.scrub(how, &self.found));
        loop {
            let wake = self.wake.notified();
            if self.server.is_stopping() || self.cancelled.get() {
                return false;
            }
            if let Some(whole) = first(scrub.as_mut(), wake).await {
                return whole;
            }
        }
    }
}

/// Scrubs periodically and on request, until the server stops.
async fn run<S: Scrubbing>(scrubber: Rc<Scrubber<S>>) {
    while let Some(how) = scrubber.next_due().await {
        let since = scrubber.server.env().now();
        scrubber.cancelled.set(false);
        scrubber.running.set(Some((how, since)));
        scrubber.found.replace(S::Found::default());
        let whole = scrubber.scrub(how).await;
        scrubber.running.set(None);
        scrubber.cancelled.set(false);
        let found = scrubber.found.borrow().clone();
        let at = scrubber.server.env().now();
        let ended = Ended { at, took: at.since(since), whole, found: found.clone() };
        *scrubber.last.borrow_mut() = Some(ended);
        scrubber.server.ended(&found, whole);
    }
}
