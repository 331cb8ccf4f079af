//! The scrub of the metadata device: periodic, and on an administrator's request.
//!
//! Invariants:
//! - one scrub runs at a time; the next begins an interval after the last has ended;
//! - the findings of a scrub are logged, and `redbud status` shows them until the next has ended.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use env::sync::Notify;
use mfs::StoreError;
use mfs::scrub::{ScrubOptions, Scrubbed};
use types::{Duration, Instant};

use crate::runtime::Runtime;

/// Findings and repaired blocks that one scrub logs at most.
const LOGGED_MAX: usize = 100;

/// See the module.
pub struct Scrubber {
    runtime: Rc<Runtime>,
    /// Options of the scrub that was requested and has not started.
    requested: Cell<Option<ScrubOptions>>,
    /// Options of the running scrub, and since when it runs.
    running: Cell<Option<(ScrubOptions, Instant)>>,
    cancelled: Cell<bool>,
    /// Has the scrub task been started?
    started: Cell<bool>,
    wake: Notify,
    /// Progress of the running scrub.
    progress: RefCell<Scrubbed>,
    last: RefCell<Option<EndedScrub>>,
}

/// A scrub that has ended.
#[derive(Clone, Debug)]
pub struct EndedScrub {
    /// When it ended.
    pub at: Instant,
    /// How long it took.
    pub took: Duration,
    /// Did it reach the end of the device?
    pub whole: bool,
    /// What it found.
    pub found: Scrubbed,
}

impl Scrubber {
    /// No scrub.
    pub fn new(runtime: Rc<Runtime>) -> Scrubber {
        Scrubber {
            runtime,
            requested: Cell::default(),
            running: Cell::default(),
            cancelled: Cell::new(false),
            started: Cell::new(false),
            wake: Notify::new(),
            progress: RefCell::default(),
            last: RefCell::default(),
        }
    }

    /// Requests a scrub that reads at most `rate` bytes a second (0: no bound), unless one runs.
    pub fn request(self: &Rc<Self>, rate: u64) {
        self.begin();
        if self.running.get().is_none() {
            self.requested.set(Some(ScrubOptions { rate, unreadable: true }));
            self.wake.notify_all();
        }
    }

    /// Starts the scrub task.
    pub fn begin(self: &Rc<Self>) {
        if !self.started.replace(true) {
            self.runtime.env.spawn(run(self.clone()));
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

    /// The running or requested scrub: its options, since when it runs, and its progress.
    pub fn running(&self) -> Option<(ScrubOptions, Option<Instant>, Scrubbed)> {
        match (self.running.get(), self.requested.get()) {
            (Some((options, since)), _) => {
                Some((options, Some(since), self.progress.borrow().clone()))
            }
            (None, Some(options)) => Some((options, None, Scrubbed::default())),
            (None, None) => None,
        }
    }

    /// The scrub that ended last.
    pub fn last(&self) -> Option<EndedScrub> {
        self.last.borrow().clone()
    }

    /// Checks the invariants.
    pub fn validate(&self) {
        let (running, requested) = (self.running.get().is_some(), self.requested.get().is_some());
        assert!(self.started.get() || !running && !requested, "a scrub runs without its task");
        assert!(running || !self.cancelled.get(), "a scrub is cancelled that does not run");
    }
}

/// The scrub task: scrubs periodically and on request, until the server stops.
async fn run(scrubber: Rc<Scrubber>) {
    let runtime = scrubber.runtime.clone();
    while let Some(options) = next_due(&scrubber).await {
        let since = runtime.env.now();
        scrubber.cancelled.set(false);
        scrubber.running.set(Some((options, since)));
        let scrub = runtime.mfs.scrub(options, &scrubber.progress);
        let ended = until_cancelled(&scrubber, scrub).await;
        scrubber.running.set(None);
        scrubber.cancelled.set(false);
        let whole = match ended {
            Some(result) => runtime.checked(result, "scrubbing the metadata device").is_some(),
            None => false,
        };
        let found = scrubber.progress.borrow().clone();
        log_findings(&runtime, &found, whole);
        let at = runtime.env.now();
        let ended = EndedScrub { at, took: at.since(since), whole, found };
        *scrubber.last.borrow_mut() = Some(ended);
        runtime.event_ended();
    }
}

/// Waits until the next scrub is due and yields its options; `None`: the server stops.
async fn next_due(scrubber: &Scrubber) -> Option<ScrubOptions> {
    let runtime = &scrubber.runtime;
    let interval = runtime.config.scrub_interval;
    let since = runtime.env.now();
    loop {
        let wake = scrubber.wake.notified();
        if runtime.is_stopping() {
            return None;
        }
        if let Some(options) = scrubber.requested.take() {
            return Some(options);
        }
        if interval == Duration::ZERO {
            wake.await;
            continue;
        }
        let waited = runtime.env.now().since(since);
        if waited >= interval {
            return Some(ScrubOptions { rate: runtime.config.scrub_rate, unreadable: false });
        }
        runtime.env.timeout(interval.saturating_sub(waited), wake).await;
    }
}

/// The result of `scrub`; `None`: it was stopped, or the server stops.
async fn until_cancelled(
    scrubber: &Scrubber,
    scrub: impl Future<Output = Result<(), StoreError>>,
) -> Option<Result<(), StoreError>> {
    let mut scrub = pin!(scrub);
    loop {
        let mut wake = pin!(scrubber.wake.notified());
        if scrubber.runtime.is_stopping() || scrubber.cancelled.get() {
            return None;
        }
        let ended = poll_fn(|cx| match scrub.as_mut().poll(cx) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending => wake.as_mut().poll(cx).map(|()| None),
        });
        if let Some(result) = ended.await {
            return Some(result);
        }
    }
}

fn log_findings(runtime: &Runtime, found: &Scrubbed, whole: bool) {
    for block in found.rewritten.iter().take(LOGGED_MAX) {
        runtime.log(&format!("scrub: metadata block {block} was damaged and has been rewritten"));
    }
    for problem in found.problems.iter().take(LOGGED_MAX) {
        runtime.log(&format!("scrub: {problem}"));
    }
    let problems = found.problems.len() as u64 + found.omitted;
    if problems > 0 {
        runtime.log(&format!(
            "scrub: {problems} findings; stop the server and run redbud fsck --repair"
        ));
    }
    let end = if whole { "read to the end" } else { "stopped" };
    runtime.log(&format!(
        "scrub: {end}, {} blocks, {} inodes, {} blocks rewritten, {problems} findings",
        found.blocks,
        found.inodes,
        found.rewritten.len()
    ));
}
