//! Changes of a file's objects that nobody waits for any more, and that a target may still make:
//! their zone was called lost while they were in flight.
//!
//! Invariants:
//! - a change that was given up and not sent is never sent, and one that was sent is not sent
//!   again;
//! - as long as a target may make one, no right on the content is returned: it could fall on what
//!   another client has written since.

use std::cell::Cell;

use env::sync::Notify;

/// See the module.
#[derive(Default)]
pub(super) struct GivenUp {
    open: Cell<usize>,
    ended: Notify,
}

impl GivenUp {
    /// Nobody waits for a change any more.
    pub fn begin(&self) {
        self.open.set(self.open.get() + 1);
    }

    /// A change has been made, or never will be.
    pub fn end(&self) {
        self.open.set(self.open.get() - 1);
        self.ended.notify_all();
    }

    /// May a target still make one?
    pub fn is_any(&self) -> bool {
        self.open.get() > 0
    }

    /// Waits until no target can make one any more.
    pub async fn ended(&self) {
        loop {
            let ended = self.ended.notified();
            if !self.is_any() {
                return;
            }
            ended.await;
        }
    }
}
