//! Does the server answer at all?
//!
//! A request may take long although the server is well: it waits for another client. So who wants
//! to know whether the server is silent asks for something that is always answered at once, a
//! renewal of the lease.
//!
//! Invariants:
//! - the server counts as silent only while something is asked of it that it would answer at once,
//!   or while there is no connection on which requests go out;
//! - whatever it says while requests go out ends the silence.

use std::future::{Future, pending};

use proto::mds::Op;
use types::{Duration, Instant};

use super::{Call, Phase, Session, SessionState};
use crate::client::first;

/// How long the server says nothing before it counts as silent.
const SILENT_AFTER: Duration = Duration::from_secs(1);
/// After so much of that the server is asked for a sign of life.
const PROBE_AFTER: Duration = Duration::from_millis(500);
/// A process that stood still has answers in its sockets that it has not looked at: it looks for so
/// long.
const SETTLE: Duration = Duration::from_millis(20);

impl SessionState {
    /// Something came from the server.
    pub(super) fn hears(&mut self, now: Instant) {
        self.heard_at = now;
        if self.phase == Phase::Up {
            self.silent_since = None;
        }
    }

    /// The connection is gone.
    pub(super) fn disconnected(&mut self, now: Instant) {
        self.phase = Phase::Down;
        self.disconnected_at = Some(now);
        self.silent_since.get_or_insert(now);
    }
}

impl Session {
    /// What `ask` gives; `None` if the server is silent, or falls silent before that.
    pub async fn unless_silent<T>(&self, ask: impl Future<Output = T>) -> Option<T> {
        if self.is_silent().await {
            return None;
        }
        first(ask, self.silence()).await
    }

    /// Has the server been silent for long?
    async fn is_silent(&self) -> bool {
        let silent_since = || self.state.borrow().silent_since;
        let Some(since) =
            silent_since().filter(|since| self.env.now().since(*since) >= SILENT_AFTER)
        else {
            return false;
        };
        self.env.sleep(SETTLE).await;
        silent_since() == Some(since)
    }

    /// Ends when the server has been silent for long.
    async fn silence(&self) {
        loop {
            let begin = self.env.now();
            let (phase, silent_since) = {
                let state = self.state.borrow();
                (state.phase, state.silent_since)
            };
            if phase == Phase::Closed {
                // Whoever asks hears of that.
                return pending().await;
            }
            match silent_since {
                Some(since) => {
                    self.env.sleep_until(since + SILENT_AFTER).await;
                    if self.is_silent().await {
                        return;
                    }
                }
                None => {
                    self.env.sleep(PROBE_AFTER).await;
                    self.probe(begin);
                }
            }
        }
    }

    /// Asks for a sign of life, if nothing was heard since `begin`.
    fn probe(&self, begin: Instant) {
        {
            let mut state = self.state.borrow_mut();
            if state.phase != Phase::Up || state.silent_since.is_some() || state.heard_at > begin {
                return;
            }
            state.silent_since = Some(begin);
        }
        // Without a permit one is under way.
        if let Some(permit) = self.renewal.try_acquire(1) {
            drop(self.submit(Call::reserved(vec![Op::Renew {}]), permit, 0));
        }
    }

    /// Ends when the server has been away for `patience` without a break, counted from the first
    /// call on: of several waits for one end the later ones wait no longer than the first.
    pub async fn away(&self, patience: Duration) {
        const LOOK: Duration = Duration::from_millis(250);
        let asked = self.away_since.get().unwrap_or(self.env.now());
        self.away_since.set(Some(asked));
        loop {
            let lost = self.state.borrow().disconnected_at;
            if lost.is_some_and(|lost| self.env.now().since(lost.max(asked)) >= patience) {
                return;
            }
            self.env.sleep(LOOK).await;
        }
    }
}
