//! Group commit: the background task that makes the running group durable.
//!
//! Invariants:
//! - one group is in flight at a time; meanwhile the next group collects records;
//! - the task writes a group when a caller waits for it, when it is large, or when it
//!   is as old as the commit interval;
//! - on a slow device the task delays the write ([`CommitDelay`]): callers that the last group
//!   released are likely to wait again at once. Without the delay they would split into two halves
//!   that take turns, each waiting for the other's group;
//! - a group is *closed* when the task has taken it: it waits for the barrier
//!   ([`crate::store::barrier`]) of the layer above, if there is one;
//! - one write and one flush commit a group; if either fails the store is poisoned.

use std::cell::RefMut;
use std::rc::Weak;

use types::{Bug, Duration, Instant, Lsn, Transno, planted};

use crate::error::StoreError;
use crate::log::delay::CommitDelay;
use crate::log::padded;
use crate::state::State;
use crate::store::{Background, Inner, Store};

/// The task writes a group of this size even if no caller waits for it.
const GROUP_LARGE: usize = 1 << 20;
impl Store {
    /// Waits until the transaction `number` is durable.
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
        let mut counted = false;
        loop {
            let progress = {
                let mut state = self.state.borrow_mut();
                if state.log.durable >= target {
                    return Ok(());
                }
                state.usable()?;
                let Some(background) = &self.background else { return Ok(()) };
                if !counted {
                    counted = true;
                    state.log.add_waiter(target);
                }
                if state.log.wanted < target {
                    state.log.wanted = target;
                    if target > state.log.start && state.log.start > state.log.durable {
                        let now = background.device.env.now();
                        state.log.closed_since.get_or_insert(now);
                    }
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
            match log.commit_delay.wait_until(now, log.waiters) {
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
                // The write would overwrite records that recovery still needs.
                let what = "a transaction is larger than the free space of the log";
                return Err(StoreError::DamagedLog { lsn: lsn.0, what });
            }
            let reuse = std::mem::take(&mut log.reuse);
            let bytes = log.group.seal(lsn, log.previous, log.epoch, state.uuid, reuse);
            (log.waiters_in_flight, log.waiters) = (log.waiters, 0);
            log.previous = lsn;
            log.start = Lsn(padded(lsn.0 + bytes.len() as u64));
            (bytes, lsn, log.start)
        };
        let Background { device, log: window, .. } = background;
        let barrier = self.barrier.borrow().clone();
        if let Some(barrier) = barrier {
            let begin = device.env.now();
            barrier.ended(end).await?;
            let ended = device.env.now();
            barrier.flush().await?;
            let stats = &mut *self.stats.borrow_mut();
            stats.data.add(ended.since(begin));
            stats.data_flush.add(device.env.now().since(ended));
        }
        let begin = device.env.now();
        window.write(lsn, &bytes).await?;
        if !planted(Bug::LogNotFlushed) {
            window.flush().await?;
        }
        let now = device.env.now();
        let log = &mut self.state.borrow_mut().log;
        log.commit_delay =
            CommitDelay::after(now.since(begin), now, log.waiters_in_flight + log.waiters);
        log.durable = end;
        let stats = &mut *self.stats.borrow_mut();
        stats.groups += 1;
        stats.bytes += end.0 - lsn.0;
        stats.log.add(now.since(begin));
        if let Some(since) = log.closed_since.take() {
            stats.closed.add(now.since(since));
        }
        log.reuse = bytes;
        Ok(())
    }
}

impl Inner {
    /// A transaction has added its record to the running group, which was empty if `idle`.
    pub(crate) fn transaction_logged(&self, mut state: RefMut<'_, State>, idle: bool) {
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

/// The background task; it ends with the store.
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
                inner.report_progress(result);
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
    /// Ends a step of a background task: wakes all waiting callers; poisons the store on failure.
    pub(crate) fn report_progress(&self, result: Result<(), StoreError>) {
        let Some(background) = &self.background else { return };
        if let Err(error) = result {
            self.poison(&error.to_string());
        }
        background.progress.notify_all();
        if self.wants_checkpoint() {
            background.checkpointer.notify_all();
        }
    }

    /// Stops the store: every later call fails with `Poisoned`.
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
