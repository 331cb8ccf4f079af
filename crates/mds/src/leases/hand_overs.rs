//! Counts hand-overs of rights on content between clients.

use std::cell::Cell;

use types::Duration;

/// Since the server's start.
#[derive(Default)]
pub struct HandOvers {
    count: Cell<u64>,
    waited: Cell<Duration>,
    longest: Cell<Duration>,
}

impl HandOvers {
    /// A hand-over has ended, for which a client waited this long.
    pub fn note(&self, waited: Duration) {
        self.count.set(self.count.get() + 1);
        self.waited.set(self.waited.get() + waited);
        self.longest.set(self.longest.get().max(waited));
    }

    /// Their number, how long clients waited for all of them together, and the longest wait.
    pub fn counts(&self) -> (u64, Duration, Duration) {
        (self.count.get(), self.waited.get(), self.longest.get())
    }
}
