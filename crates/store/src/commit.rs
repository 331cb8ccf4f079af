//! Group commit: the background task that makes the running group durable.
//!
//! Invariants:
//! - one group is on its way at a time; meanwhile the next one collects;
//! - a group is written when somebody waits for it, when it is large, or when it
//!   is as old as the commit interval;
//! - on a slow device it gathers ([`Gathering`]): those whom the group before released are likely
//!   to come again at once, and without that moment two halves of them would take turns, each
//!   waiting for the other's group;
//! - one write and one flush commit a group; if either fails the store is poisoned.

use std::cell::RefMut;
use std::rc::Weak;

use types::{Bug, Duration, Instant, Lsn, Transno, planted};

use crate::error::StoreError;
use crate::journal::padded;
use crate::mfs::{Inner, Mfs};
use crate::state::State;

/// A group of this size is written even if nobody waits.
const GROUP_LARGE: usize = 1 << 20;
/// A device that makes a group durable in less time is not slow.
const SLOW: Duration = Duration::from_millis(1);
/// A group gathers for this part of the time that the one before took, and at most for so long. A
/// disk with heads has missed the place behind that one anyway, and waits for it to come round
/// again.
const GATHER_PART: u32 = 8;
const GATHER_MAX: Duration = Duration::from_millis(1);

/// How long the running group gathers, from what the one before was like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Gathering {
    until: Instant,
    /// Or until so many wait.
    expected: usize,
}

impl Gathering {
    /// None: what is wanted is written at once.
    pub(crate) const NOTHING: Gathering = Gathering { until: Instant(0), expected: 0 };

    /// After a group that took `took` and ended at `now`, when `waiting` had waited for it and for
    /// the next one, as far as is known: who gave up waiting is counted, too. Who is alone waits
    /// for nobody.
    fn after(took: Duration, now: Instant, waiting: usize) -> Gathering {
        if took < SLOW || waiting < 2 {
            return Gathering::NOTHING;
        }
        Gathering { until: now + (took / GATHER_PART).min(GATHER_MAX), expected: waiting }
    }

    /// Until when the group goes on gathering, if `waiting` wait for it by now.
    fn goes_on(&self, now: Instant, waiting: usize) -> Option<Instant> {
        (now < self.until && waiting < self.expected).then_some(self.until)
    }
}

impl Mfs {
    /// Waits until the transaction `number` is on stable storage.
    ///
    /// # Errors
    /// `Poisoned` if the log cannot be written.
    pub async fn wait_durable(&self, number: Transno) -> Result<(), StoreError> {
        let target = {
            let state = self.inner.state.borrow();
            if number.epoch < state.log.epoch {
                return state.usable();
            }
            number.lsn.min(state.log.end())
        };
        self.inner.wait_lsn(target).await
    }

    /// Makes everything so far durable.
    ///
    /// # Errors
    /// `Poisoned` if the log cannot be written.
    pub async fn sync(&self) -> Result<(), StoreError> {
        let target = self.inner.state.borrow().log.end();
        self.inner.wait_lsn(target).await
    }
}

impl Inner {
    /// Waits until the log is durable up to `target`.
    pub(crate) async fn wait_lsn(&self, target: Lsn) -> Result<(), StoreError> {
        let mut joined = false;
        loop {
            let progress = {
                let mut state = self.state.borrow_mut();
                if state.log.durable >= target {
                    return Ok(());
                }
                state.usable()?;
                let Some(background) = &self.background else { return Ok(()) };
                if !joined {
                    joined = true;
                    state.log.join(target);
                }
                if state.log.wanted < target {
                    state.log.wanted = target;
                    background.flusher.notify_all();
                }
                background.progress.notified()
            };
            progress.await;
        }
    }

    fn flush_due(&self, now: Instant, interval: Duration) -> Due {
        let state = self.state.borrow();
        let log = &state.log;
        if state.poisoned.is_some() {
            Due::Never
        } else if log.group.is_empty() {
            Due::Later(None)
        } else if log.group.len() >= GROUP_LARGE || log.group_since + interval <= now {
            Due::Now
        } else if log.wanted > log.durable {
            match log.gathering.goes_on(now, log.joined) {
                Some(until) => Due::Later(Some(until)),
                None => Due::Now,
            }
        } else {
            Due::Later(Some(log.group_since + interval))
        }
    }

    /// Writes the running group and waits until it is stable.
    async fn write_group(&self) -> Result<(), StoreError> {
        let Some(background) = &self.background else { return Ok(()) };
        let (bytes, lsn, end) = {
            let state = &mut *self.state.borrow_mut();
            let log = &mut state.log;
            let lsn = log.start;
            if padded(log.used()) > log.bytes {
                // Written, it would overwrite what recovery still needs.
                let what = "a transaction is larger than the log has room for";
                return Err(StoreError::DamagedLog { lsn: lsn.0, what });
            }
            let reuse = std::mem::take(&mut log.reuse);
            let bytes = log.group.seal(lsn, log.previous, log.epoch, state.uuid, reuse);
            (log.on_way, log.joined) = (log.joined, 0);
            log.previous = lsn;
            log.start = Lsn(padded(lsn.0 + bytes.len() as u64));
            (bytes, lsn, log.start)
        };
        let device = &background.device;
        let begin = device.env.now();
        device.write_log(&background.layout, lsn, &bytes).await?;
        if !planted(Bug::LogNotFlushed) {
            device.flush().await?;
        }
        let now = device.env.now();
        let log = &mut self.state.borrow_mut().log;
        log.gathering = Gathering::after(now.since(begin), now, log.on_way + log.joined);
        log.durable = end;
        log.reuse = bytes;
        Ok(())
    }
}

impl Inner {
    /// A transaction has entered the running group, which was empty before if `idle`.
    pub(crate) fn collected(&self, mut state: RefMut<'_, State>, idle: bool) {
        let Some(background) = &self.background else { return };
        if idle {
            state.log.group_since = background.device.env.now();
        }
        let wake = idle || state.log.group.len() >= GROUP_LARGE;
        drop(state);
        if wake {
            background.flusher.notify_all();
        }
        if self.wants_checkpoint() {
            background.checkpointer.notify_all();
        }
    }
}

enum Due {
    Now,
    Later(Option<Instant>),
    Never,
}

/// The task; ends with the store.
pub(crate) async fn run(weak: Weak<Inner>, interval: Duration) {
    let Some((env, wake)) = weak.upgrade().and_then(|inner| {
        let background = inner.background.as_ref()?;
        Some((background.device.env.clone(), background.flusher.clone()))
    }) else {
        return;
    };
    loop {
        let woken = wake.notified();
        let Some(inner) = weak.upgrade() else { return };
        match inner.flush_due(env.now(), interval) {
            Due::Never => return,
            Due::Now => {
                drop(woken);
                let result = inner.write_group().await;
                inner.settled(result);
            }
            Due::Later(until) => {
                drop(inner);
                match until {
                    Some(at) => drop(env.timeout(at.since(env.now()), woken).await),
                    None => woken.await,
                }
            }
        }
    }
}

impl Inner {
    /// After an attempt to make progress: tells all who wait, or poisons the store.
    pub(crate) fn settled(&self, result: Result<(), StoreError>) {
        let Some(background) = &self.background else { return };
        if let Err(error) = result {
            self.poison(&error.to_string());
        }
        background.progress.notify_all();
        if self.wants_checkpoint() {
            background.checkpointer.notify_all();
        }
    }

    /// Ends all work: every later call fails with `Poisoned`.
    pub(crate) fn poison(&self, why: &str) {
        let mut state = self.state.borrow_mut();
        if state.poisoned.is_none() {
            state.poisoned = Some(why.into());
        }
        drop(state);
        if let Some(background) = &self.background {
            background.flusher.notify_all();
            background.checkpointer.notify_all();
            background.progress.notify_all();
        }
    }
}

#[cfg(test)]
mod tests;
