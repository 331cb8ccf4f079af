//! Detects a server that does not answer at all.
//!
//! A request may take long although the server is well: it waits for another client. So to find out
//! whether the server is silent, the client sends a request that the server always answers at once:
//! a renewal of the lease.
//!
//! Invariants:
//! - the server counts as silent only while a request is unanswered that it answers at once, or
//!   while there is no connection on which requests are sent;
//! - any message from the server while requests are sent ends the silence.

use std::future::{Future, pending};

use env::sync::first;
use proto::message::Peer;
use types::{Duration, Instant};

use super::{Phase, Session, SessionState};

/// How long the server sends nothing before it counts as silent.
const SILENT_AFTER: Duration = Duration::from_secs(1);
/// How long the server sends nothing before the client probes it.
const PROBE_AFTER: Duration = Duration::from_millis(500);
/// A process that was suspended has replies in its sockets that it has not read: how long it reads
/// them.
const SETTLE: Duration = Duration::from_millis(20);

impl<P: Peer> SessionState<P> {
    /// Something was received from the server.
    pub(super) fn note_received(&mut self, now: Instant) {
        self.heard_at = now;
        if self.phase == Phase::Up {
            self.silent_since = None;
        }
    }

    /// The connection was lost.
    pub(super) fn disconnected(&mut self, now: Instant) {
        self.phase = Phase::Down;
        self.disconnected_at = Some(now);
        self.silent_since.get_or_insert(now);
    }
}

impl<P: Peer> Session<P> {
    /// The output of `ask`; `None` if the server is silent, or becomes silent before that.
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
                // The request itself fails then.
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

    /// Probes the server, if nothing was received since `begin`.
    fn probe(&self, begin: Instant) {
        {
            let mut state = self.state.borrow_mut();
            if state.phase != Phase::Up || state.silent_since.is_some() || state.heard_at > begin {
                return;
            }
            state.silent_since = Some(begin);
        }
        // Without a permit a renewal is in flight already.
        if let Some(permit) = self.renewal.try_acquire(1) {
            drop(self.submit_own(P::renew(), permit));
        }
    }

    /// Ends when the server has been away for `patience` without a break, counted from the first
    /// call on: of several waits, the later ones end with the first.
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
