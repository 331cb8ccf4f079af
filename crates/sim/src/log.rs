//! The log lines of clients and servers, the edits that clients report, and violations seen while
//! the cluster runs. All belong to the run of this thread, because a client's log is a plain
//! function. Each line begins with its position in the history.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use client::Edited;
use types::Ino;

/// Most lines kept.
const LINES: usize = 1000;

thread_local! {
    static POSITION: Cell<u64> = const { Cell::new(0) };
    static LOG: RefCell<VecDeque<String>> = const { RefCell::new(VecDeque::new()) };
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
    static LISTENER: RefCell<Option<Listener>> = const { RefCell::new(None) };
    static ON_EDIT: RefCell<Option<OnEdit>> = const { RefCell::new(None) };
    static ON_EVENT: RefCell<Option<OnEvent>> = const { RefCell::new(None) };
    static VIOLATIONS: RefCell<Vec<Broken>> = const { RefCell::new(Vec::new()) };
    static LOOKS: Cell<Looks> = const { Cell::new(Looks { seen: 0, unseen: 0 }) };
}

/// How often checkers read the store of the running server.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Looks {
    /// Successful reads.
    pub seen: u64,
    /// Failed reads, because a block was not cached or was corrupted: then nobody is accused.
    pub unseen: u64,
}

/// A broken invariant, and what broke it.
pub type Broken = (&'static str, String);

/// Called for every event that an application sees.
pub type OnEvent = Box<dyn Fn()>;

/// Most violations kept.
const KEPT: usize = 100;

/// Takes the log lines of clients.
pub type Listener = Box<dyn Fn(&str)>;

/// Takes the edits of content by the running client.
pub type OnEdit = Box<dyn Fn(Ino, Edited)>;

/// Ends the run: removes all listeners.
pub fn end() {
    LISTENER.with(|listener| drop(listener.take()));
    ON_EDIT.with(|listener| drop(listener.take()));
    ON_EVENT.with(|looks| drop(looks.take()));
}

/// Until the run ends, calls `looks` whenever an application's call begins or ends.
pub fn on_event(looks: OnEvent) {
    ON_EVENT.with(|place| *place.borrow_mut() = Some(looks));
}

/// Until the run ends, passes log lines of clients to `listener`.
pub fn listen(listener: Listener) {
    LISTENER.with(|place| *place.borrow_mut() = Some(listener));
}

/// Logs one line of a client.
pub fn client_line(text: &str) {
    line(text);
    LISTENER.with(|listener| {
        if let Some(listener) = &*listener.borrow() {
            listener(text);
        }
    });
}

/// Until the run ends, passes edits of content by clients to `listener`.
pub fn listen_to_edits(listener: OnEdit) {
    ON_EDIT.with(|place| *place.borrow_mut() = Some(listener));
}

/// The running client edits content.
pub fn edited(ino: Ino, edited: Edited) {
    ON_EDIT.with(|listener| {
        if let Some(listener) = &*listener.borrow() {
            listener(ino, edited);
        }
    });
}

/// Begins a new run.
pub fn clear() {
    POSITION.set(0);
    end();
    LOG.with(|log| log.borrow_mut().clear());
    VIOLATIONS.with(|found| found.borrow_mut().clear());
    PANIC.set(None);
    LOOKS.set(Looks::default());
}

/// A checker read the store of the running server; `saw`: successfully.
pub(crate) fn count_look(saw: bool) {
    let Looks { seen, unseen } = LOOKS.get();
    LOOKS.set(Looks { seen: seen + u64::from(saw), unseen: unseen + u64::from(!saw) });
}

/// How often checkers did.
pub(crate) fn looks() -> Looks {
    LOOKS.get()
}

/// A panic hook passes the text of a panic on this thread; the run reports it.
pub fn panicked(text: &str) {
    PANIC.set(Some(text.to_owned()));
}

/// The last text passed to [`panicked`].
pub fn panic() -> Option<String> {
    PANIC.take()
}

/// Moves the position of the history on, and runs the checker of events.
pub fn at(position: u64) {
    POSITION.set(position);
    ON_EVENT.with(|looks| {
        if let Some(looks) = &*looks.borrow() {
            looks();
        }
    });
}

/// The current position of the history.
pub fn position() -> u64 {
    POSITION.get()
}

/// Logs one line.
pub fn line(text: &str) {
    LOG.with(|log| {
        let mut log = log.borrow_mut();
        if log.len() == LINES {
            log.pop_front();
        }
        log.push_back(format!("[{}] {text}", POSITION.get()));
    });
}

/// The newest lines.
pub fn lines() -> Vec<String> {
    LOG.with(|log| log.borrow().iter().cloned().collect())
}

/// Records a broken invariant. A repeated text is ignored, so that the log keeps what led to the
/// first.
pub fn broken(invariant: &'static str, text: &str) {
    let is_news = VIOLATIONS.with(|found| {
        let mut found = found.borrow_mut();
        let is_news = found.len() < KEPT && found.iter().all(|(_, known)| known != text);
        if is_news {
            found.push((invariant, text.to_owned()));
        }
        is_news
    });
    if is_news {
        line(&format!("violation of \"{invariant}\": {text}"));
    }
}

/// The first recorded violation.
pub fn first_violation() -> Option<Broken> {
    VIOLATIONS.with(|found| found.borrow().first().cloned())
}
