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

use crate::server::Server;

/// Findings and repaired blocks that one scrub logs at most.
const LOGGED_MAX: usize = 100;

/// See the module.
#[derive(Default)]
pub struct Scrubber {
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
}

/// Requests a scrub that reads at most `rate` bytes a second (0: no bound), unless one runs.
pub fn request(server: &Rc<Server>, rate: u64) {
    begin(server);
    let scrubber = &server.scrubber;
    if scrubber.running.get().is_none() {
        scrubber.requested.set(Some(ScrubOptions { rate, unreadable: true }));
        scrubber.wake.notify_all();
    }
}

/// Starts the scrub task.
pub fn begin(server: &Rc<Server>) {
    if !server.scrubber.started.replace(true) {
        server.env.spawn(run(server.clone()));
    }
}

/// The scrub task: scrubs periodically and on request, until the server stops.
async fn run(server: Rc<Server>) {
    while let Some(options) = next_due(&server).await {
        let since = server.env.now();
        let scrubber = &server.scrubber;
        scrubber.cancelled.set(false);
        scrubber.running.set(Some((options, since)));
        let ended = until_cancelled(&server, server.mfs.scrub(options, &scrubber.progress)).await;
        scrubber.running.set(None);
        let whole = match ended {
            Some(result) => server.checked(result, "scrubbing the metadata device").is_some(),
            None => false,
        };
        let found = scrubber.progress.borrow().clone();
        log_findings(&server, &found, whole);
        let at = server.env.now();
        let ended = EndedScrub { at, took: at.since(since), whole, found };
        *scrubber.last.borrow_mut() = Some(ended);
    }
}

/// Waits until the next scrub is due and yields its options; `None`: the server stops.
async fn next_due(server: &Server) -> Option<ScrubOptions> {
    let interval = server.config.scrub_interval;
    let since = server.env.now();
    loop {
        let wake = server.scrubber.wake.notified();
        if server.is_stopping() {
            return None;
        }
        if let Some(options) = server.scrubber.requested.take() {
            return Some(options);
        }
        if interval == Duration::ZERO {
            wake.await;
            continue;
        }
        let waited = server.env.now().since(since);
        if waited >= interval {
            return Some(ScrubOptions { rate: server.config.scrub_rate, unreadable: false });
        }
        server.env.timeout(interval.saturating_sub(waited), wake).await;
    }
}

/// The result of `scrub`; `None`: it was stopped, or the server stops.
async fn until_cancelled(
    server: &Server,
    scrub: impl Future<Output = Result<(), StoreError>>,
) -> Option<Result<(), StoreError>> {
    let mut scrub = pin!(scrub);
    loop {
        let mut wake = pin!(server.scrubber.wake.notified());
        if server.is_stopping() || server.scrubber.cancelled.get() {
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

fn log_findings(server: &Server, found: &Scrubbed, whole: bool) {
    for block in found.rewritten.iter().take(LOGGED_MAX) {
        server.log(&format!("scrub: metadata block {block} was damaged and has been rewritten"));
    }
    for problem in found.problems.iter().take(LOGGED_MAX) {
        server.log(&format!("scrub: {problem}"));
    }
    let problems = found.problems.len() as u64 + found.omitted;
    if problems > 0 {
        server.log(&format!(
            "scrub: {problems} findings; stop the server and run redbud fsck --repair"
        ));
    }
    let end = if whole { "read to the end" } else { "stopped" };
    server.log(&format!(
        "scrub: {end}, {} blocks, {} inodes, {} blocks rewritten, {problems} findings",
        found.blocks,
        found.inodes,
        found.rewritten.len()
    ));
}
