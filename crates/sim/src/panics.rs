//! The text of a panic. A panic hook belongs to the whole process and knows no run, only the
//! thread: a run reports what the hook noted on its thread.

use std::cell::RefCell;

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A panic hook passes the text of a panic on this thread; the run reports it.
pub fn panicked(text: &str) {
    PANIC.set(Some(text.to_owned()));
}

/// Takes the last text passed to [`panicked`].
pub(crate) fn take() -> Option<String> {
    PANIC.take()
}
