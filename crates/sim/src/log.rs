//! What clients and servers log and clients tell, and violations that are seen while the cluster
//! runs. All belong to the run of this thread: a client's log is a plain function. Each line begins
//! with the position in the history at which it was written.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use client::Edited;
use types::Ino;

/// Lines kept.
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

/// How often a checker count_look into the store of the server that runs.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Looks {
    /// And saw what there is.
    pub seen: u64,
    /// And could not, as a block of it was not at hand, or damaged: then nobody is accused.
    pub unseen: u64,
}

/// Which invariant is broken, and how.
pub type Broken = (&'static str, String);

/// Who looks whenever something happens that an application sees.
pub type OnEvent = Box<dyn Fn()>;

/// Violations that are kept.
const KEPT: usize = 100;

/// Who is told the lines of clients.
pub type Listener = Box<dyn Fn(&str)>;

/// Who is told that the client that runs changes content.
pub type OnEdit = Box<dyn Fn(Ino, Edited)>;

/// The run has ended: nobody listens any more.
pub fn end() {
    LISTENER.with(|listener| drop(listener.take()));
    ON_EDIT.with(|listener| drop(listener.take()));
    ON_EVENT.with(|looks| drop(looks.take()));
}

/// From here on until the run's end `looks` is called whenever an application asks or is answered.
pub fn on_event(looks: OnEvent) {
    ON_EVENT.with(|place| *place.borrow_mut() = Some(looks));
}

/// From here on until the run's end `listener` is told what clients log.
pub fn listen(listener: Listener) {
    LISTENER.with(|place| *place.borrow_mut() = Some(listener));
}

/// One line of a client.
pub fn client_line(text: &str) {
    line(text);
    LISTENER.with(|listener| {
        if let Some(listener) = &*listener.borrow() {
            listener(text);
        }
    });
}

/// From here on until the run's end `listener` is told what clients do to content.
pub fn listen_to_edits(listener: OnEdit) {
    ON_EDIT.with(|place| *place.borrow_mut() = Some(listener));
}

/// The client that runs changes content.
pub fn edited(ino: Ino, edited: Edited) {
    ON_EDIT.with(|listener| {
        if let Some(listener) = &*listener.borrow() {
            listener(ino, edited);
        }
    });
}

/// A new run begins.
pub fn clear() {
    POSITION.set(0);
    end();
    LOG.with(|log| log.borrow_mut().clear());
    VIOLATIONS.with(|found| found.borrow_mut().clear());
    PANIC.set(None);
    LOOKS.set(Looks::default());
}

/// A checker count_look into the store of the server that runs; did it see what there is?
pub(crate) fn count_look(saw: bool) {
    let Looks { seen, unseen } = LOOKS.get();
    LOOKS.set(Looks { seen: seen + u64::from(saw), unseen: unseen + u64::from(!saw) });
}

/// How often they did.
pub(crate) fn looks() -> Looks {
    LOOKS.get()
}

/// What a panic hook knows of a panic on this thread: the run that it ends tells it.
pub fn panicked(text: &str) {
    PANIC.set(Some(text.to_owned()));
}

/// What [`panicked`] was told last.
pub fn panic() -> Option<String> {
    PANIC.take()
}

/// The history has come to this position.
pub fn at(position: u64) {
    POSITION.set(position);
    ON_EVENT.with(|looks| {
        if let Some(looks) = &*looks.borrow() {
            looks();
        }
    });
}

/// The position that the history has come to.
pub fn position() -> u64 {
    POSITION.get()
}

/// One line.
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

/// Something that must not be: which invariant it breaks, and how. Said again it is no news: what
/// led to it stays in the log.
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

/// The first of them.
pub fn first_violation() -> Option<Broken> {
    VIOLATIONS.with(|found| found.borrow().first().cloned())
}
