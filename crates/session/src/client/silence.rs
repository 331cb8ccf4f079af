//! What does not wait for a server that is silent, or away: queries that may be answered from
//! caches, and unmounting. `proto::liveness` says what silence is.

use std::future::{Future, pending};

use env::sync::first;
use proto::liveness::{ASK_AFTER, SETTLE, SILENT_AFTER};
use proto::message::Peer;
use types::{Duration, Instant};

use super::{Phase, Session};

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
        let silent_since = || self.state.borrow().liveness.silent_since();
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
                (state.phase, state.liveness.silent_since())
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
                    self.env.sleep(ASK_AFTER).await;
                    self.doubt(begin);
                }
            }
        }
    }

    /// A caller that cannot wait has heard nothing since `begin`, unless something came.
    fn doubt(&self, begin: Instant) {
        let now = self.env.now();
        let doubted = {
            let mut state = self.state.borrow_mut();
            state.phase == Phase::Up && state.liveness.impatient(begin, now).is_some()
        };
        if doubted {
            self.probe();
            self.look_at(&mut self.state.borrow_mut(), now);
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
