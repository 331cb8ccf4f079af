//! The scrub of the metadata device: now and then, and when an administrator asks for it.
//!
//! Invariants:
//! - one runs at a time; the next begins an interval after the last has ended;
//! - what one found is logged, and told by `redbud status` until the next has ended.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use env::sync::Notify;
use store::StoreError;
use store::scrub::{ScrubOptions, Scrubbed};
use types::{Duration, Instant};

use crate::server::Server;

/// Findings and mended blocks that one scrub logs at most.
const LOGGED_MAX: usize = 100;

/// See the module.
#[derive(Default)]
pub struct Scrubber {
    /// How the next one that was asked for shall run.
    wanted: Cell<Option<ScrubOptions>>,
    /// How the one that runs does, and since when.
    running: Cell<Option<(ScrubOptions, Instant)>>,
    broken_off: Cell<bool>,
    /// Is the task there that scrubs?
    begun: Cell<bool>,
    wake: Notify,
    /// How far the one that runs is.
    told: RefCell<Scrubbed>,
    last: RefCell<Option<Ended>>,
}

/// A scrub that has ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// When.
    pub at: Instant,
    /// How long it took.
    pub took: Duration,
    /// Did it come to the end of the device?
    pub whole: bool,
    /// What it found.
    pub found: Scrubbed,
}

impl Scrubber {
    /// Breaks off the one that runs, or takes back that one was asked for.
    pub fn break_off(&self) {
        self.wanted.set(None);
        self.broken_off.set(self.running.get().is_some());
        self.wake.notify_all();
    }

    /// The server stops.
    pub fn stop(&self) {
        self.wake.notify_all();
    }

    /// How the one that runs or was asked for does, since when it runs, and how far it is.
    pub fn running(&self) -> Option<(ScrubOptions, Option<Instant>, Scrubbed)> {
        match (self.running.get(), self.wanted.get()) {
            (Some((options, since)), _) => Some((options, Some(since), self.told.borrow().clone())),
            (None, Some(options)) => Some((options, None, Scrubbed::default())),
            (None, None) => None,
        }
    }

    /// The one that ended last.
    pub fn last(&self) -> Option<Ended> {
        self.last.borrow().clone()
    }
}

/// Begins a scrub that reads at most `rate` bytes a second (0: no bound), unless one runs.
pub fn ask(server: &Rc<Server>, rate: u64) {
    begin(server);
    let scrubber = &server.scrubber;
    if scrubber.running.get().is_none() {
        scrubber.wanted.set(Some(ScrubOptions { rate, unreadable: true }));
        scrubber.wake.notify_all();
    }
}

/// From now on scrubs happen when it is time for them.
pub fn begin(server: &Rc<Server>) {
    if !server.scrubber.begun.replace(true) {
        server.env.spawn(run(server.clone()));
    }
}

/// Scrubs when it is time or asked for, until the server stops.
async fn run(server: Rc<Server>) {
    while let Some(options) = next(&server).await {
        let since = server.env.now();
        let scrubber = &server.scrubber;
        scrubber.broken_off.set(false);
        scrubber.running.set(Some((options, since)));
        let ended = until_broken_off(&server, server.mfs.scrub(options, &scrubber.told)).await;
        scrubber.running.set(None);
        let whole = match ended {
            Some(result) => server.checked(result, "scrubbing the metadata device").is_some(),
            None => false,
        };
        let found = scrubber.told.borrow().clone();
        tell(&server, &found, whole);
        let at = server.env.now();
        let ended = Ended { at, took: at.since(since), whole, found };
        *scrubber.last.borrow_mut() = Some(ended);
    }
}

/// How the next scrub shall run, when it shall begin; `None`: the server stops.
async fn next(server: &Server) -> Option<ScrubOptions> {
    let interval = server.config.scrub_interval;
    let since = server.env.now();
    loop {
        let wake = server.scrubber.wake.notified();
        if server.is_stopping() {
            return None;
        }
        if let Some(options) = server.scrubber.wanted.take() {
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

/// What `scrub` gives; `None`: it was broken off, or the server stops.
async fn until_broken_off(
    server: &Server,
    scrub: impl Future<Output = Result<(), StoreError>>,
) -> Option<Result<(), StoreError>> {
    let mut scrub = pin!(scrub);
    loop {
        let mut wake = pin!(server.scrubber.wake.notified());
        if server.is_stopping() || server.scrubber.broken_off.get() {
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

fn tell(server: &Server, found: &Scrubbed, whole: bool) {
    for block in found.mended.iter().take(LOGGED_MAX) {
        server.log(&format!("scrub: metadata block {block} was damaged and has been written anew"));
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
    let end = if whole { "read to the end" } else { "broken off" };
    server.log(&format!(
        "scrub: {end}, {} blocks, {} inodes, {} blocks written anew, {problems} findings",
        found.blocks,
        found.inodes,
        found.mended.len()
    ));
}
