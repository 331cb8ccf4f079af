//! How long a server takes for a request: estimates from the requests before (002 §5).
//!
//! A client records each request's *service time*: from its sending to its answer, less the time
//! for which the server waited for other clients. Network and queues stay in.
//!
//! | estimate | of a request that is sent now |
//! |---|---|
//! | Static | 30 s, whatever the server does |
//! | MAX | the largest average of a sub-window |
//! | LCF | the line through the sub-windows' averages, by least squares |
//! | LCF of each | the line through every request of the window |
//!
//! The window spans H = 50 s in N = 10 sub-windows. A request belongs to the sub-window in which
//! its answer came, and its time on the line is when it was sent. The line is therefore read where
//! the next request begins, although the newest answers are to requests sent earlier. The paper
//! leaves both open. Equation (4) as printed lacks a square in its denominator; this is ordinary
//! least squares. Sums of each sub-window replace the requests themselves, so the fit of every
//! request needs no more memory than that of averages.
//!
//! Invariants:
//! - no I/O and no clock: time is an argument, and may stand still;
//! - a window holds ten sub-windows, however many requests came;
//! - a line is read no further ahead of its last request than twice the span of its requests, and
//!   never below zero: a few requests within a moment say nothing of a distant time.

use types::{Duration, Instant};

/// Length of the window: H of the paper.
pub const WINDOW: Duration = Duration::from_secs(50);
/// Its sub-windows: N of the paper.
pub const PARTS: usize = 10;
/// The static estimate.
pub const STATIC: Duration = Duration::from_secs(30);
/// A request's time is this much above the estimate: the line lies amid the requests, not above
/// them.
pub const MARGIN: f64 = 1.5;
/// Share of a request's time, in percent, that it may have waited for other clients. Beyond that
/// the difference of two clocks, up to a tenth, would be too much of what is left.
const WAITED_MAX: u32 = 80;

const PART: u64 = WINDOW.as_nanos() as u64 / PARTS as u64;

/// A way to estimate.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Estimator {
    /// Always the same.
    Static,
    /// The largest average.
    Max,
    /// A line through averages.
    Lcf,
    /// A line through every request.
    LcfEach,
}

impl Estimator {
    /// All of them.
    pub const ALL: [Estimator; 4] =
        [Estimator::Static, Estimator::Max, Estimator::Lcf, Estimator::LcfEach];

    /// Its name in figures.
    pub fn name(self) -> &'static str {
        match self {
            Estimator::Static => "Static",
            Estimator::Max => "MAX",
            Estimator::Lcf => "LCF",
            Estimator::LcfEach => "LCF of each",
        }
    }
}

/// The service time of a request that took `took` from its sending to its answer, `waited` of it
/// for other clients. `None`: it waited for so long that the rest says nothing.
pub fn service_time(took: Duration, waited: Duration) -> Option<Duration> {
    (waited <= took * WAITED_MAX / 100).then(|| took - waited)
}

/// Sums over the requests answered in a sub-window; times of sending in seconds from its begin.
#[derive(Clone, Copy, Default, Debug)]
struct Part {
    /// Its number since the clock's zero.
    number: u64,
    count: f64,
    times: f64,
    services: f64,
    squares: f64,
    products: f64,
    first: Instant,
    last: Instant,
}

impl Part {
    fn begin(number: u64) -> Part {
        Part { number, first: Instant::FAR, ..Part::default() }
    }

    fn add(&mut self, sent: Instant, service: f64, weight: f64) {
        let time = from_to(self.number * PART, sent.0);
        self.count += weight;
        self.times += weight * time;
        self.services += weight * service;
        self.squares += weight * time * time;
        self.products += weight * time * service;
        self.first = self.first.min(sent);
        self.last = self.last.max(sent);
    }

    fn mean(&self) -> f64 {
        self.services / self.count
    }
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

/// Seconds from an instant to another; negative if that is earlier.
fn from_to(from: u64, to: u64) -> f64 {
    if to >= from { seconds(to - from) } else { -seconds(from - to) }
}

/// A fitted line.
struct Line {
    /// Sums over points: how many, times, services, squares of times, products of both.
    sums: [f64; 5],
}

impl Line {
    fn new() -> Line {
        Line { sums: [0.0; 5] }
    }

    /// Adds points whose times begin `shift` seconds from the line's zero.
    fn add(&mut self, shift: f64, [n, t, v, tt, tv]: [f64; 5]) {
        let moved = [n, t + shift * n, v, tt + 2.0 * shift * t + shift * shift * n, tv + shift * v];
        for (sum, value) in self.sums.iter_mut().zip(moved) {
            *sum += value;
        }
    }

    /// Its value at `time`; equations (3) and (4).
    fn at(&self, time: f64) -> f64 {
        let [n, t, v, tt, tv] = self.sums;
        let spread = tt - t * t / n;
        // All points at one time: no slope. The bound is far above what rounding leaves.
        let slope = if spread > 1e-9 * n { (tv - t * v / n) / spread } else { 0.0 };
        v / n + slope * (time - t / n)
    }
}

/// The requests that were answered within the last [`WINDOW`].
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// By number modulo [`PARTS`].
    parts: [Part; PARTS],
}

impl Window {
    /// An empty window.
    pub fn new() -> Window {
        Window::default()
    }

    /// A request that was sent at `sent` has been answered at `answered`, with this service time.
    pub fn note(&mut self, sent: Instant, answered: Instant, service: Duration) {
        self.note_many(sent, answered, service, 1);
    }

    /// As many like requests have been answered at once.
    pub fn note_many(&mut self, sent: Instant, answered: Instant, service: Duration, many: u32) {
        let number = answered.0 / PART;
        let part = &mut self.parts[(number % PARTS as u64) as usize];
        if part.number != number || part.count == 0.0 {
            *part = Part::begin(number);
        }
        part.add(sent, service.as_secs_f64(), f64::from(many));
    }

    /// The sub-windows with requests that the window has at `now`.
    fn used(&self, now: Instant) -> impl Iterator<Item = &Part> {
        let current = now.0 / PART;
        self.parts
            .iter()
            .filter(move |part| part.count > 0.0 && part.number + PARTS as u64 > current)
    }

    /// The estimate for a request sent at `now`; `None` without any request to go by.
    pub fn estimate(&self, estimator: Estimator, now: Instant) -> Option<Duration> {
        if estimator == Estimator::Static {
            return Some(STATIC);
        }
        let (mut first, mut last, mut largest) = (Instant::FAR, Instant(0), 0.0_f64);
        let mut line = Line::new();
        for part in self.used(now) {
            first = first.min(part.first);
            last = last.max(part.last);
            largest = largest.max(part.mean());
            let shift = from_to(now.0, part.number * PART);
            let Part { count, times, services, squares, products, .. } = *part;
            match estimator {
                Estimator::LcfEach => {
                    line.add(shift, [count, times, services, squares, products]);
                }
                _ => {
                    let (t, v) = (times / count, part.mean());
                    line.add(shift, [1.0, t, v, t * t, t * v]);
                }
            }
        }
        if first == Instant::FAR {
            return None;
        }
        let value = match estimator {
            Estimator::Max => largest,
            _ => {
                let until = last + last.since(first) * 2;
                line.at(-seconds(now.since(until).as_nanos() as u64))
            }
        };
        Some(Duration::try_from_secs_f64(value.max(0.0)).unwrap_or(STATIC))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Instant {
        // Far from the clock's zero, as on a host that has run for months.
        Instant(10_000_000_000_000_000) + Duration::from_secs_f64(seconds)
    }

    /// Requests sent each 100 ms from `from` to `to`, with these service times.
    fn series(from: f64, to: f64, service: impl Fn(f64) -> f64) -> Window {
        let mut sent: Vec<(f64, f64)> = (0..)
            .map(|n| from + 0.1 * f64::from(n))
            .take_while(|time| *time < to)
            .map(|time| (time, service(time)))
            .collect();
        sent.sort_by(|a, b| (a.0 + a.1).total_cmp(&(b.0 + b.1)));
        let mut window = Window::new();
        for (time, service) in sent {
            window.note(at(time), at(time + service), Duration::from_secs_f64(service));
        }
        window
    }

    fn estimates(window: &Window, now: f64) -> [f64; 3] {
        [Estimator::Max, Estimator::Lcf, Estimator::LcfEach]
            .map(|which| window.estimate(which, at(now)).unwrap().as_secs_f64())
    }

    #[test]
    fn constant_series_is_estimated_exactly() {
        let window = series(0.0, 40.0, |_| 0.25);
        for estimate in estimates(&window, 40.3) {
            assert!((estimate - 0.25).abs() < 1e-6, "{estimate}");
        }
        assert_eq!(window.estimate(Estimator::Static, at(40.0)), Some(STATIC));
    }

    #[test]
    fn line_is_continued_and_the_maximum_lags_behind() {
        // A queue that grows: the request sent at t takes t / 4.
        let window = series(0.0, 40.0, |time| time / 4.0);
        let [max, lcf, each] = estimates(&window, 50.0);
        assert!((lcf - 12.5).abs() < 1e-3 && (each - 12.5).abs() < 1e-3, "{lcf} {each}");
        assert!(max < 10.0, "{max}");
        // And when it shrinks the maximum stays above.
        let window = series(0.0, 40.0, |time| 10.0 - time / 4.0);
        let [max, lcf, each] = estimates(&window, 40.0);
        assert!(lcf < 0.01 && each < 0.01 && max > 1.0, "{max} {lcf} {each}");
    }

    #[test]
    fn line_of_each_request_shows_what_averages_hide() {
        // All within one sub-window: its average alone has no slope.
        let mut window = Window::new();
        for n in 0..100_u32 {
            let sent = at(20.0 + f64::from(n) / 100.0);
            window.note(sent, sent, Duration::from_millis(1000) + Duration::from_millis(10) * n);
        }
        let [max, lcf, each] = estimates(&window, 21.0);
        assert!((max - 1.495).abs() < 1e-6 && (lcf - 1.495).abs() < 1e-6, "{max} {lcf}");
        assert!((each - 2.0).abs() < 1e-4, "{each}");
    }

    #[test]
    fn old_requests_leave_and_an_empty_window_has_no_estimate() {
        let window = series(0.0, 10.0, |_| 1.0);
        assert_eq!(Window::new().estimate(Estimator::LcfEach, at(0.0)), None);
        assert!(window.estimate(Estimator::Max, at(50.0)).is_some());
        assert_eq!(window.estimate(Estimator::Max, at(70.0)), None);
        let mut window = window;
        window.note(at(99.0), at(100.0), Duration::from_secs(3));
        assert_eq!(estimates(&window, 100.0), [3.0; 3]);
    }

    #[test]
    fn few_requests_within_a_moment_say_nothing_of_a_distant_time() {
        let mut window = Window::new();
        for n in 0..3_u32 {
            let sent = at(f64::from(n) / 1000.0);
            window.note(sent, sent, Duration::from_millis(5) * n);
        }
        let [_, _, each] = estimates(&window, 30.0);
        assert!(each < 0.05, "{each}");
    }

    #[test]
    fn many_like_requests_count_as_if_noted_one_by_one() {
        let (mut one_by_one, mut at_once) = (Window::new(), Window::new());
        for (sent, service, many) in [(1.0, 2.0, 7), (8.0, 3.0, 1), (14.0, 9.0, 3)] {
            let service_time = Duration::from_secs_f64(service);
            for _ in 0..many {
                one_by_one.note(at(sent), at(sent + service), service_time);
            }
            at_once.note_many(at(sent), at(sent + service), service_time, many);
        }
        let (one_by_one, at_once) = (estimates(&one_by_one, 25.0), estimates(&at_once, 25.0));
        for (a, b) in one_by_one.iter().zip(at_once) {
            assert!((a - b).abs() < 1e-6, "{a} {b}");
        }
    }

    #[test]
    fn waiting_for_other_clients_is_no_service_time() {
        let seconds = Duration::from_secs;
        assert_eq!(service_time(seconds(10), seconds(4)), Some(seconds(6)));
        assert_eq!(service_time(seconds(10), seconds(8)), Some(seconds(2)));
        assert_eq!(service_time(seconds(10), seconds(9)), None);
        // The server's clock may be faster than the client's.
        assert_eq!(service_time(seconds(10), seconds(11)), None);
        assert_eq!(service_time(seconds(0), seconds(0)), Some(seconds(0)));
    }
}
