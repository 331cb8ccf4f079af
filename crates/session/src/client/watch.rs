//! Watches the server of a session: renews the lease, sends probes, and drops a connection on which
//! the server answers nothing. `proto::liveness` judges; this gives it the clock and the requests.
//!
//! Invariants:
//! - every request that was sent on the connection has a time, also those of a recovery;
//! - the watch looks when the first of these times is over, so a request needs no timer of its own.
//!   While nothing is unanswered it sleeps until the lease is to be renewed;
//! - with [`super::Config::ping`] a session that keeps something asks so long after its last use
//!   what is durable (paper 001, section 5). It asks by a renewal, whose answer says so; each
//!   request puts this off, and so does each answer that is kept.

use std::rc::Rc;

use env::sync::{OneReceiver, Permit};
use proto::liveness::{Action, Timer, Timing};
use proto::message::{Peer, Reply};
use types::{Bug, Duration, Fault, Instant, planted};

use super::{Answer, Call, PendingRequest, Phase, Session, SessionState, callers};

impl<P: Peer> SessionState<P> {
    /// Something was received from the server.
    pub(super) fn note_received(&mut self, now: Instant) {
        self.liveness.heard(self.phase == Phase::Up, now);
    }

    /// The connection was lost.
    pub(super) fn disconnected(&mut self, now: Instant) {
        self.phase = Phase::Down;
        self.disconnected_at = Some(now);
        self.liveness.disconnected(now);
    }

    /// A reply came: what it says of the server's speed.
    pub(super) fn note_timing(
        &mut self,
        pending: &PendingRequest<P>,
        reply: &Reply<P>,
        is_renewal: bool,
    ) {
        if is_renewal {
            self.renewal = None;
        }
        let now = self.liveness.last_heard();
        self.load = reply.load;
        match (pending.resent, is_renewal) {
            (true, _) => {}
            (false, true) => self.liveness.answered(pending.sent, now),
            (false, false) => {
                let waited = Duration::from_micros(u64::from(reply.waited));
                self.liveness.executed(pending.sent, waited, now);
            }
        }
    }

    /// Are messages exchanged on a connection?
    fn is_connected(&self) -> bool {
        matches!(self.phase, Phase::Up | Phase::Recovering)
    }

    /// When the lease is to be renewed: a third of it after the last answered request was sent.
    fn renewal_due(&self) -> Instant {
        let most = self.lease * 2 / 3;
        Instant(self.lease_ends.0.saturating_sub(most.as_nanos() as u64))
    }

    /// When the session asks what is durable, if it does so by itself and nothing puts it off.
    fn ping_due(&self, ping: Option<Duration>) -> Instant {
        match ping {
            Some(ping) if self.replay.len() > 0 => self.last_use + ping,
            _ => Instant::FAR,
        }
    }

    /// Looks at every time that may be over. Returns what to do, and when to look again.
    fn judge(&mut self, now: Instant) -> (Option<Action>, Instant) {
        let mut action = self.liveness.tick(now);
        let mut next = now + self.lease;
        let (phase, liveness) = (self.phase, &mut self.liveness);
        let mut look = |timer: &mut Timer| {
            let over = liveness.over(timer, now);
            action = action.or(over);
            next = next.min(timer.ends());
        };
        if phase == Phase::Recovering {
            self.recovery_timer.iter_mut().for_each(&mut look);
        } else {
            let sent = self.pending.values_mut().filter(|pending| pending.submitted);
            sent.for_each(|pending| look(&mut pending.timer));
        }
        (action, next)
    }
}

impl<P: Peer> Session<P> {
    /// Watches until the session is closed.
    pub(super) async fn watch(self: Rc<Self>) {
        loop {
            let woken = self.watched.notified();
            if self.is_closed() {
                return;
            }
            let now = self.env.now();
            let next = self.look(now);
            let _ = self.env.timeout(next.since(now), woken).await;
        }
    }

    /// A time ends at `at`: the watch looks then, or earlier.
    pub(super) fn look_at(&self, state: &mut SessionState<P>, at: Instant) {
        if at < state.next_look {
            state.next_look = at;
            self.watched.notify_one();
        }
    }

    /// An answer came that is kept: a ping is due so long after it.
    pub(super) fn schedule_ping(&self, state: &mut SessionState<P>) {
        state.last_use = self.env.now();
        let due = state.ping_due(self.config.ping);
        self.look_at(state, due);
    }

    /// Does what is due; returns when to look again.
    fn look(&self, now: Instant) -> Instant {
        let (action, next, renew) = {
            let mut state = self.state.borrow_mut();
            state.next_look = Instant::FAR;
            if !state.is_connected() || state.liveness.is_away() {
                // A new connection wakes the watch.
                return Instant::FAR;
            }
            let (action, next) = state.judge(now);
            let due = state.renewal_due().min(state.ping_due(self.config.ping));
            (action, next, state.phase == Phase::Up && now >= due)
        };
        match action {
            Some(Action::Probe) if planted(Bug::ProbeSkipped) => self.drop_connection(),
            Some(Action::Probe) => self.probe(),
            Some(Action::Reconnect) => self.drop_connection(),
            None if renew => self.renew_if_idle(),
            None => {}
        }
        let mut state = self.state.borrow_mut();
        // A renewal without an answer has a time of its own.
        let renewal = state.renewal_due();
        let renewal = if renewal > now { renewal } else { now + state.lease / 3 };
        // During a recovery a ping is late, and looked at again.
        let ping = state.ping_due(self.config.ping);
        let late = || now + self.config.ping.unwrap_or(state.lease);
        let ping = if ping > now { ping } else { late() };
        let probe = state.liveness.due().unwrap_or(Instant::FAR);
        // What was sent just now has set it.
        state.next_look = state.next_look.min(next).min(renewal).min(probe);
        state.next_look = state.next_look.min(ping);
        state.next_look
    }

    /// Sends a renewal, or again the one that is unanswered.
    pub(super) fn probe(&self) {
        {
            let mut state = self.state.borrow_mut();
            let state = &mut *state;
            if let Some(pending) =
                state.renewal.and_then(|renewal| state.pending.get_mut(&renewal.slot))
            {
                (pending.submitted, pending.resent) = (true, true);
                let request = (*pending.request).clone();
                self.enqueue(state, request);
                return;
            }
        }
        self.renew_if_idle();
        // During a recovery other requests wait.
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        if let Some(pending) =
            state.renewal.and_then(|renewal| state.pending.get_mut(&renewal.slot))
            && !std::mem::replace(&mut pending.submitted, true)
        {
            let request = (*pending.request).clone();
            self.enqueue(state, request);
        }
    }

    fn renew_if_idle(&self) {
        if let Some(permit) = self.renewal.try_acquire(1) {
            drop(self.renew(permit));
        }
    }

    /// Sends a renewal of the lease.
    pub(super) fn renew(&self, permit: Permit) -> Result<OneReceiver<Answer<P>>, Fault> {
        let call = Call::reserved(vec![P::renew()]);
        let (ticket, answer) = self.submit(call, None, permit, callers::NO_OPERATION)?;
        self.state.borrow_mut().renewal = Some(ticket);
        Ok(answer)
    }

    fn drop_connection(&self) {
        let mut state = self.state.borrow_mut();
        state.timed_out = true;
        if let Some(stream) = &state.stream {
            stream.shutdown();
        }
    }

    /// The server's speed as this session sees it, and how often it was doubted.
    pub fn timing(&self) -> Timing {
        self.state.borrow_mut().liveness.timing(self.env.now())
    }
}
