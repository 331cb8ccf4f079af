//! Is the server alive? A client's judgement of one connection after the other (002 §5).
//!
//! Each request has a time, by the estimate of its session (`timeout`). A server that is over it
//! may be slow, or the request may wait for another client. So the client asks with a *probe*, a
//! renewal of the lease, which the server answers at once whatever else it does.
//!
//! | state | event | next state | the client |
//! |---|---|---|---|
//! | away | *Welcome* | trusted | |
//! | trusted | a request's time is over, but something was received just now | trusted | looks again when nothing was for a quarter of a second |
//! | trusted | a request's time is over | asked once | sends a probe; gives the request its time again, doubled |
//! | trusted | a caller that cannot wait has heard nothing for half a second | asked once | sends a probe |
//! | asked once | anything is received | trusted | |
//! | asked once | the probe's time is over | asked twice | sends it again |
//! | asked twice | anything is received | trusted | |
//! | asked twice | the probe's time is over | away | drops the connection, and connects again |
//! | asked | the client itself was stopped for half of the probe's time | the same | gives the probe its time again, twice at most |
//! | asked | bytes left that had waited for room in the socket | the same | gives the probe its time again: it is behind them |
//! | any | the connection ends | away | connects again at once |
//!
//! A probe's time is eight times the best round trip of the connection, a second at least, and half
//! of the lease at most. Of a short lease it is a quarter at least. Until a request was answered on
//! the connection, it is an eighth of the lease at most. A quiet client renews its lease
//! after a third of it. That is a request like others, so a server that is silent is noticed within
//! the lease, also by a client that asks nothing.
//!
//! A server is *silent* for a client after a second without a connection on which requests are
//! sent. It also is after a second in which nothing was received, if a probe was out for half of
//! it. Callers that cannot wait are then answered from caches.
//!
//! Invariants:
//! - only a closed connection, and two probes in a row without a byte from the server, end a
//!   connection: nothing that is only slow does;
//! - whatever is received ends all doubt;
//! - no I/O and no clock: time is an argument.

use types::{Duration, Instant};

use crate::timeout::{Estimator, MARGIN, Window, service_time};

/// A request's time is not below this, nor above a third of the lease.
const TIME_MIN: Duration = Duration::from_millis(250);
/// A probe's time is not below this.
const PROBE_MIN: Duration = Duration::from_secs(1);
/// Best round trips in a probe's time.
const ROUND_TRIPS: u32 = 8;
/// How often a doubt outlasts a stop of the client.
const STOPS_MAX: u32 = 2;
/// Probes without an answer that end a connection.
const PROBES: u32 = 2;
/// How long nothing was received when the server counts as silent.
pub const SILENT_AFTER: Duration = Duration::from_secs(1);
/// How long nothing was received when a caller that cannot wait has a probe sent.
pub const ASK_AFTER: Duration = Duration::from_millis(500);
/// A process that was suspended has replies in its sockets that it has not read: how long it reads
/// them.
pub const SETTLE: Duration = Duration::from_millis(20);
/// An estimate is used again for this long.
const FRESH: Duration = Duration::from_millis(10);

/// How long a request may still take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timer {
    begun: Instant,
    ends: Instant,
    span: Duration,
    /// It was over once.
    counted: bool,
}

impl Timer {
    /// When the time is over.
    pub fn ends(&self) -> Instant {
        self.ends
    }
}

/// What the client has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send a probe, or send the unanswered one again.
    Probe,
    /// Drop the connection and connect again.
    Reconnect,
}

/// What a session knows of its server's speed, and how often it doubted the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Timing {
    /// Estimated service time of a request that is sent now; `None`: too little is known.
    pub estimate: Option<Duration>,
    /// How long a request that is sent now may take before the client doubts the server.
    pub time: Duration,
    /// The best round trip of the connection.
    pub best_round_trip: Option<Duration>,
    /// Requests whose time was over.
    pub timeouts: u64,
    /// Of these: the server was alive.
    pub false_timeouts: u64,
    /// Probes sent, repeated ones included.
    pub probes: u64,
    /// Connections that were dropped because the server did not answer probes.
    pub reconnections: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Away,
    Trusted,
    Asked {
        /// Unanswered probes.
        probes: u32,
        /// When the time of the last is over.
        ends: Instant,
        /// The client has read what had come while it was stopped.
        settled: bool,
        /// How often the client was stopped meanwhile.
        stops: u32,
    },
}

/// See the module.
#[derive(Debug)]
pub struct Liveness {
    state: State,
    window: Window,
    lease: Duration,
    /// The last estimate, and when it was made.
    estimated: Option<(Instant, Option<Duration>)>,
    best_round_trip: Option<Duration>,
    /// A request was answered on this connection.
    measured: bool,
    heard: Instant,
    silent_since: Option<Instant>,
    /// Requests whose time was over since something was received.
    unproven: u64,
    counts: Timing,
}

impl Liveness {
    /// A session without a connection. `lease`: its length as the client counts it.
    pub fn new(lease: Duration, now: Instant) -> Liveness {
        Liveness {
            state: State::Away,
            window: Window::new(),
            lease,
            estimated: None,
            best_round_trip: None,
            measured: false,
            heard: now,
            silent_since: None,
            unproven: 0,
            counts: Timing::default(),
        }
    }

    /// A *Welcome* came, so long after the hello.
    pub fn connected(&mut self, lease: Duration, round_trip: Duration, now: Instant) {
        (self.state, self.lease, self.heard) = (State::Trusted, lease, now);
        // Another path may be slower, and a restarted server lets clients wait for its welcome:
        // this is only where the minimum begins.
        (self.best_round_trip, self.measured) = (Some(round_trip), false);
    }

    /// Requests are sent on the connection from here on.
    pub fn serving(&mut self) {
        self.silent_since = None;
    }

    /// The connection has ended.
    pub fn disconnected(&mut self, now: Instant) {
        self.state = State::Away;
        self.unproven = 0;
        self.silent_since.get_or_insert(now);
    }

    /// Bytes came from the server. `serving`: requests are sent on the connection.
    pub fn heard(&mut self, serving: bool, now: Instant) {
        self.heard = now;
        if serving {
            self.silent_since = None;
        }
        self.counts.false_timeouts += std::mem::take(&mut self.unproven);
        if self.state != State::Away {
            self.state = State::Trusted;
        }
    }

    /// Is there no connection, or is it to be dropped?
    pub fn is_away(&self) -> bool {
        self.state == State::Away
    }

    /// When something was received last.
    pub fn last_heard(&self) -> Instant {
        self.heard
    }

    /// A request that was sent once, on this connection, has been answered.
    pub fn answered(&mut self, sent: Instant, now: Instant) {
        let took = now.since(sent);
        self.best_round_trip = Some(self.best_round_trip.map_or(took, |best| best.min(took)));
        self.measured = true;
    }

    /// The same; the server has executed it, and waited so long for other clients.
    pub fn executed(&mut self, sent: Instant, waited: Duration, now: Instant) {
        self.answered(sent, now);
        if let Some(service) = service_time(now.since(sent), waited) {
            self.window.note(sent, now, service);
        }
    }

    /// The time of a request that is sent now.
    pub fn timer(&mut self, now: Instant) -> Timer {
        let span = self.time(now);
        Timer { begun: now, ends: now + span, span, counted: false }
    }

    fn time(&mut self, now: Instant) -> Duration {
        let estimate = match self.estimated {
            Some((at, estimate)) if now.since(at) < FRESH => estimate,
            _ => {
                let estimate = self.window.estimate(Estimator::LcfEach, now);
                self.estimated = Some((now, estimate));
                estimate
            }
        };
        let (least, most) = (self.time_min(), self.lease / 3);
        estimate.map_or(least, |estimate| estimate.min(most).mul_f64(MARGIN).clamp(least, most))
    }

    fn time_min(&self) -> Duration {
        TIME_MIN.min(self.lease / 12)
    }

    fn probe_time(&self) -> Duration {
        let round_trips = self.best_round_trip.unwrap_or_default() * ROUND_TRIPS;
        let least = PROBE_MIN.min(self.lease / 4);
        let most = if self.measured { self.lease / 2 } else { self.lease / 8 };
        round_trips.clamp(least, least.max(most))
    }

    /// The time of a request may be over: gives it more, and says what to do.
    pub fn over(&mut self, timer: &mut Timer, now: Instant) -> Option<Action> {
        if now < timer.ends || self.state == State::Away {
            return None;
        }
        if !timer.counted {
            timer.counted = true;
            self.counts.timeouts += 1;
            self.unproven += 1;
        }
        let quiet = self.heard + self.time_min();
        if now < quiet {
            timer.ends = quiet;
            return None;
        }
        timer.span = (timer.span * 2).min(self.lease / 3);
        timer.ends = now + timer.span;
        self.ask(timer.begun.max(self.heard), now)
    }

    /// A caller that cannot wait has heard nothing since `since`.
    pub fn impatient(&mut self, since: Instant, now: Instant) -> Option<Action> {
        if self.heard > since { None } else { self.ask(since, now) }
    }

    fn ask(&mut self, silent_since: Instant, now: Instant) -> Option<Action> {
        if self.state != State::Trusted {
            return None;
        }
        let probed_for = SILENT_AFTER - ASK_AFTER;
        let since = silent_since.max(Instant(now.0.saturating_sub(probed_for.as_nanos() as u64)));
        self.silent_since.get_or_insert(since);
        Some(self.probe(1, now))
    }

    fn probe(&mut self, probes: u32, now: Instant) -> Action {
        self.counts.probes += 1;
        self.state =
            State::Asked { probes, ends: now + self.probe_time(), settled: false, stops: 0 };
        Action::Probe
    }

    /// When [`Liveness::tick`] has something to do, if nothing is received until then.
    pub fn due(&self) -> Option<Instant> {
        match self.state {
            State::Asked { ends, .. } => Some(ends),
            _ => None,
        }
    }

    /// Bytes have left that had waited for room in the socket. So the other host takes them, and a
    /// probe that was sent since then waits behind them.
    pub fn moved(&mut self, now: Instant) {
        let fresh = now + self.probe_time();
        if let State::Asked { ends, .. } = &mut self.state {
            *ends = fresh.max(*ends);
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Instant) -> Option<Action> {
        let State::Asked { probes, ends, settled, stops } = self.state else { return None };
        if now < ends {
            return None;
        }
        let late = now.since(ends);
        if late >= self.probe_time() / 2 && stops < STOPS_MAX {
            // The client was stopped: perhaps before the probe left.
            let ends = now + self.probe_time();
            self.state = State::Asked { probes, ends, settled: false, stops: stops + 1 };
            return None;
        }
        if late >= SETTLE / 4 && !settled {
            self.state = State::Asked { probes, ends: now + SETTLE, settled: true, stops };
            return None;
        }
        if probes < PROBES {
            return Some(self.probe(probes + 1, now));
        }
        self.counts.reconnections += 1;
        self.unproven = 0;
        self.state = State::Away;
        Some(Action::Reconnect)
    }

    /// Since when the server has been silent, or may turn out to have been.
    pub fn silent_since(&self) -> Option<Instant> {
        self.silent_since
    }

    /// For status reports.
    pub fn timing(&mut self, now: Instant) -> Timing {
        let estimate = self.window.estimate(Estimator::LcfEach, now);
        let time = self.time(now);
        Timing { estimate, time, best_round_trip: self.best_round_trip, ..self.counts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(27);

    fn at(millis: u64) -> Instant {
        Instant(1_000_000_000_000) + Duration::from_millis(millis)
    }

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Connected at 0, with a round trip of 1 ms.
    fn connected() -> Liveness {
        let mut liveness = Liveness::new(LEASE, at(0));
        liveness.connected(LEASE, millis(1), at(0));
        liveness.serving();
        liveness
    }

    #[test]
    fn two_unanswered_probes_end_a_connection() {
        let mut liveness = connected();
        let mut timer = liveness.timer(at(1000));
        assert_eq!(timer.ends(), at(1250));
        assert_eq!(liveness.over(&mut timer, at(1249)), None);
        assert_eq!(liveness.over(&mut timer, at(1250)), Some(Action::Probe));
        assert_eq!((liveness.due(), timer.ends()), (Some(at(2250)), at(1750)));
        // Other requests that are over change nothing.
        assert_eq!(liveness.over(&mut timer, at(1750)), None);
        assert_eq!(liveness.tick(at(2249)), None);
        assert_eq!(liveness.tick(at(2250)), Some(Action::Probe));
        assert_eq!(liveness.tick(at(3250)), Some(Action::Reconnect));
        assert!(liveness.is_away() && liveness.tick(at(9000)).is_none());
        let timing = liveness.timing(at(3250));
        assert_eq!((timing.timeouts, timing.false_timeouts), (1, 0));
        assert_eq!((timing.probes, timing.reconnections), (2, 1));
    }

    #[test]
    fn whatever_is_received_ends_the_doubt() {
        for after_probes in [1, 2] {
            let mut liveness = connected();
            let mut timer = liveness.timer(at(0));
            assert_eq!(liveness.over(&mut timer, at(250)), Some(Action::Probe));
            if after_probes == 2 {
                assert_eq!(liveness.tick(at(1250)), Some(Action::Probe));
            }
            liveness.heard(true, at(1260));
            assert_eq!((liveness.due(), liveness.silent_since()), (None, None));
            assert_eq!(liveness.tick(at(99_000)), None);
            let timing = liveness.timing(at(1260));
            assert_eq!((timing.timeouts, timing.false_timeouts, timing.reconnections), (1, 1, 0));
        }
    }

    #[test]
    fn request_that_waits_while_others_are_answered_needs_no_probe() {
        let mut liveness = connected();
        let mut timer = liveness.timer(at(0));
        for n in 1..100 {
            liveness.heard(true, at(n * 100));
            if at(n * 100) >= timer.ends() {
                assert_eq!(liveness.over(&mut timer, at(n * 100)), None);
            }
        }
        let timing = liveness.timing(at(9900));
        assert_eq!((timing.timeouts, timing.false_timeouts, timing.probes), (1, 1, 0));
        // When it is quiet, the request asks soon, and then less and less often.
        assert_eq!(liveness.over(&mut timer, at(10_150)), Some(Action::Probe));
        let mut asked = 0;
        for n in 10_150..70_000 {
            if at(n) >= timer.ends() {
                asked += u64::from(liveness.over(&mut timer, at(n)).is_some());
                liveness.heard(true, at(n));
            }
        }
        assert!((7..=12).contains(&asked), "{asked}");
    }

    #[test]
    fn time_of_a_request_follows_the_server_within_bounds() {
        let mut liveness = connected();
        let time = |liveness: &mut Liveness, now| liveness.timer(now).ends().since(now);
        assert_eq!(time(&mut liveness, at(0)), millis(250));
        for n in 1..200 {
            liveness.executed(at(n * 10), Duration::ZERO, at(n * 10 + 1000));
        }
        let slow = time(&mut liveness, at(3000));
        assert!(slow > millis(1499) && slow < millis(1501), "{slow:?}");
        assert_eq!(liveness.timing(at(3000)).best_round_trip, Some(millis(1)));
        // What waited for a stopped client is left out.
        for n in 1..200 {
            liveness.executed(at(n * 10), millis(29_500), at(n * 10 + 30_000));
        }
        let slow = time(&mut liveness, at(32_000));
        assert!(slow < millis(1501), "{slow:?}");
        for n in 1..200 {
            liveness.executed(at(n * 10), Duration::ZERO, at(n * 10 + 30_000));
        }
        assert_eq!(time(&mut liveness, at(32_100)), LEASE / 3);
    }

    #[test]
    fn probes_of_a_distant_server_take_their_time() {
        let mut liveness = Liveness::new(LEASE, at(0));
        liveness.connected(LEASE, millis(900), at(0));
        liveness.answered(at(100), at(600));
        let mut timer = liveness.timer(at(1000));
        assert_eq!(liveness.over(&mut timer, at(1250)), Some(Action::Probe));
        assert_eq!(liveness.due(), Some(at(1250 + 8 * 500)));
    }

    #[test]
    fn probe_behind_a_large_request_has_its_time_when_that_has_left() {
        let mut liveness = connected();
        let mut timer = liveness.timer(at(0));
        assert_eq!(liveness.over(&mut timer, at(250)), Some(Action::Probe));
        for n in 1..50 {
            liveness.moved(at(250 + n * 900));
            assert_eq!(liveness.tick(at(250 + n * 900 + 899)), None);
        }
        let left = 250 + 49 * 900;
        assert_eq!(liveness.tick(at(left + 1000)), Some(Action::Probe));
        assert_eq!(liveness.tick(at(left + 2000)), Some(Action::Reconnect));
    }

    #[test]
    fn client_that_is_always_late_still_leaves_a_dead_server() {
        let mut liveness = connected();
        let mut timer = liveness.timer(at(0));
        assert_eq!(liveness.over(&mut timer, at(250)), Some(Action::Probe));
        let mut now = 250;
        for _ in 0..20 {
            now += 1600;
            if liveness.tick(at(now)) == Some(Action::Reconnect) {
                return;
            }
        }
        panic!("the server is dead for {now} ms");
    }

    #[test]
    fn slow_welcome_does_not_make_probes_slow() {
        let mut liveness = Liveness::new(LEASE, at(0));
        liveness.connected(LEASE, millis(9000), at(0));
        let mut timer = liveness.timer(at(0));
        assert_eq!(liveness.over(&mut timer, at(250)), Some(Action::Probe));
        assert_eq!(liveness.due(), Some(at(250) + LEASE / 8));
    }

    #[test]
    fn client_that_was_stopped_does_not_blame_the_server() {
        let mut liveness = connected();
        let mut timer = liveness.timer(at(0));
        assert_eq!(liveness.over(&mut timer, at(250)), Some(Action::Probe));
        // Stopped for a minute: the probe gets its time again.
        assert_eq!(liveness.tick(at(60_250)), None);
        assert_eq!(liveness.due(), Some(at(61_250)));
        // Stopped for a moment: it reads what has come.
        assert_eq!(liveness.tick(at(61_350)), None);
        assert_eq!(liveness.due(), Some(at(61_370)));
        assert_eq!(liveness.tick(at(61_380)), Some(Action::Probe));
        assert_eq!(liveness.tick(at(62_380)), Some(Action::Reconnect));
    }

    #[test]
    fn silence_is_a_second_without_a_byte_half_of_it_with_a_probe() {
        let mut liveness = connected();
        let mut timer = liveness.timer(at(1000));
        liveness.over(&mut timer, at(1250));
        assert_eq!(liveness.silent_since(), Some(at(1000)));
        liveness.heard(true, at(1260));
        // A caller that cannot wait has a probe sent earlier than a long time of requests would.
        assert_eq!(liveness.impatient(at(1255), at(1755)), None);
        assert_eq!(liveness.impatient(at(1300), at(1800)), Some(Action::Probe));
        assert_eq!(liveness.silent_since(), Some(at(1300)));
        liveness.heard(true, at(1900));
        // While a recovery goes on, other requests wait.
        liveness.disconnected(at(2000));
        liveness.connected(LEASE, millis(1), at(2100));
        liveness.heard(false, at(2200));
        assert_eq!(liveness.silent_since(), Some(at(2000)));
        liveness.serving();
        assert_eq!(liveness.silent_since(), None);
    }

    #[test]
    fn short_lease_shortens_every_time() {
        let lease = millis(900);
        let mut liveness = Liveness::new(lease, at(0));
        liveness.connected(lease, millis(1), at(0));
        let mut timer = liveness.timer(at(0));
        assert_eq!(timer.ends(), at(75));
        assert_eq!(liveness.over(&mut timer, at(75)), Some(Action::Probe));
        assert_eq!(liveness.tick(at(300)), Some(Action::Probe));
        assert_eq!(liveness.tick(at(525)), Some(Action::Reconnect));
    }
}
