//! Timers of one executor.
//!
//! Invariant: a dropped timer leaves nothing behind, so memory is
//! bounded by the timers that tasks wait for.

use std::collections::BTreeMap;
use std::task::Waker;

use types::Instant;

/// Orders timers by time, then by creation.
pub(crate) type TimerKey = (Instant, u64);

/// The timers that tasks wait for.
#[derive(Default)]
pub(crate) struct Timers {
    waiting: BTreeMap<TimerKey, Waker>,
    created: u64,
}

impl Timers {
    pub(crate) fn add(&mut self, at: Instant, waker: Waker) -> TimerKey {
        self.created += 1;
        let key = (at, self.created);
        self.waiting.insert(key, waker);
        key
    }

    /// Replaces the waker; `false` if the timer has fired.
    pub(crate) fn renew(&mut self, key: TimerKey, waker: &Waker) -> bool {
        match self.waiting.get_mut(&key) {
            Some(old) => {
                old.clone_from(waker);
                true
            }
            None => false,
        }
    }

    pub(crate) fn remove(&mut self, key: TimerKey) -> Option<Waker> {
        self.waiting.remove(&key)
    }

    /// When the first timer fires.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.waiting.first_key_value().map(|(key, _)| key.0)
    }

    /// Removes and returns one timer that is due.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Waker> {
        let entry = self.waiting.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }
}
