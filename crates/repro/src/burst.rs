//! A burst of requests at a modelled metadata server: how long each takes, and whether the timeouts
//! of each estimator would have called the server dead (002 §6.5).
//!
//! The server takes requests in the order in which they come, each at the same price. Its speed
//! wanders: the logarithm keeps nine tenths of its deviation from one second to the next. Each
//! client sends its requests of a second at once, at a moment of its own, and waits for none
//! before it sends the next. Clients estimate from their own answers alone.
//!
//! The paper does not say how fast its server was. Here the burst exceeds what the server can do by
//! so much that a timeout of 30 s is first over where the paper has it: at 110 s.
//!
//! Invariants:
//! - time is virtual, and a run gives the same figures on every machine;
//! - an estimate for a request uses only answers that had come when it was sent;
//! - estimators judge the same requests, and never change what the server does.

use std::collections::VecDeque;

use env::sim::SimRng;
use proto::timeout::{Estimator, STATIC, Window};
use serde::Serialize;
use types::{Duration, Instant};

/// Clients of a group.
pub const GROUP: u32 = 80;
/// Groups.
pub const GROUPS: u32 = 400;
/// Requests that a client sends in each second of the burst.
const REQUESTS: u32 = 100;
/// Length of the burst in seconds.
pub const BURST: u32 = 200;
/// Afterwards clients go on with this share of it, so that there is something to estimate.
const AFTER: u32 = 10;
/// When the run ends.
pub const END: u32 = 400;
/// When a timeout of 30 s is first over.
pub const CLEAN: f64 = 110.0;
/// Standard deviation of the logarithm of the server's speed.
const WANDER: f64 = 0.15;
/// What a second keeps of the deviation of the one before.
const KEEPS: f64 = 0.9;
/// Seconds of the network, there and back.
const NETWORK: f64 = 0.000_2;
/// No timeout is below this.
const LEAST: f64 = 0.25;
/// Requests of a group that are handled as one.
const BUNDLE: u32 = 800;

/// What the paper's "every client in one group sent 100 requests every second" means.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
pub enum Reading {
    /// One group works, and the others are idle: 8,000 requests a second, each by itself.
    OneGroup,
    /// All groups work: 3.2 million a second. The clients of a group act as one.
    AllGroups,
}

impl Reading {
    /// Both.
    pub const ALL: [Reading; 2] = [Reading::OneGroup, Reading::AllGroups];

    /// Who has an estimate of its own: clients, or groups.
    fn senders(self) -> u32 {
        match self {
            Reading::OneGroup => GROUP,
            Reading::AllGroups => GROUPS,
        }
    }

    /// Requests of a sender in a second of the burst, and how many of them are handled as one.
    fn requests(self) -> (u32, u32) {
        match self {
            Reading::OneGroup => (REQUESTS, 1),
            Reading::AllGroups => (GROUP * REQUESTS, BUNDLE),
        }
    }

    /// Requests a second of the burst.
    pub fn rate(self) -> u32 {
        self.senders() * self.requests().0
    }
}

/// Requests that one sender sent at one time.
struct Sending {
    sent: f64,
    /// By estimator; `None` before the first answer.
    estimates: [Option<f64>; 4],
    /// Seconds that each bundle took, as indices.
    took: std::ops::Range<usize>,
}

/// A run.
pub struct Run {
    sendings: Vec<Sending>,
    took: Vec<f64>,
    bundle: u32,
}

/// The server of the model.
struct Server {
    /// Speed in each second, about 1.
    speed: Vec<f64>,
    /// Seconds for a request at speed 1.
    price: f64,
    free_at: f64,
}

impl Server {
    fn new(price: f64, seed: u64) -> Server {
        let mut rng = SimRng::new(seed);
        let mut deviation = 0.0;
        let noise = WANDER * (1.0 - KEEPS * KEEPS).sqrt();
        let mut next = || {
            deviation = KEEPS * deviation + noise * normal(&mut rng);
            f64::exp(deviation)
        };
        Server { speed: (0..END).map(|_| next()).collect(), price, free_at: 0.0 }
    }

    /// When these requests, which arrive at `arrival`, are done.
    fn serve(&mut self, arrival: f64, requests: u32) -> f64 {
        let begin = self.free_at.max(arrival);
        let second = (begin as usize).min(self.speed.len() - 1);
        self.free_at = begin + f64::from(requests) * self.price / self.speed[second];
        self.free_at
    }
}

/// A number of the normal distribution (Box and Muller).
fn normal(rng: &mut SimRng) -> f64 {
    let mut unit = || (rng.below(1 << 53) as f64 + 0.5) / (1u64 << 53) as f64;
    let (a, b) = (unit(), unit());
    (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
}

fn instant(seconds: f64) -> Instant {
    Instant(0) + Duration::from_secs_f64(seconds)
}

/// By how much the burst exceeds the server: a timeout of 30 s is first over at [`CLEAN`].
pub fn calibrate(reading: Reading, seed: u64) -> f64 {
    let (mut low, mut high) = (1.05, 4.0);
    for _ in 0..24 {
        let middle = (low + high) / 2.0;
        let first = run(reading, middle, seed, false).first_over(STATIC.as_secs_f64());
        match first.is_some_and(|first| first < CLEAN) {
            true => high = middle,
            false => low = middle,
        }
    }
    high
}

/// Runs the burst at a server that it exceeds by the factor `load`.
pub fn run(reading: Reading, load: f64, seed: u64, estimate: bool) -> Run {
    let (requests, bundle) = reading.requests();
    let mut server = Server::new(load / f64::from(reading.rate()), seed);
    let mut rng = SimRng::new(!seed);
    let moment = |rng: &mut SimRng| rng.below(1_000_000) as f64 / 1e6;
    let mut moments: Vec<f64> = (0..reading.senders()).map(|_| moment(&mut rng)).collect();
    moments.sort_by(f64::total_cmp);
    let mut windows = vec![Window::new(); moments.len()];
    let mut answers: VecDeque<(f64, usize, f64)> = VecDeque::new();
    let mut run = Run { sendings: Vec::new(), took: Vec::new(), bundle };
    for second in 0..END {
        let each = if second < BURST { requests } else { requests / AFTER };
        for (sender, moment) in moments.iter().enumerate() {
            let sent = f64::from(second) + moment;
            let mut estimates = [None; 4];
            if estimate {
                while let Some((at, whose, took)) = answers.pop_front_if(|answer| answer.0 <= sent)
                {
                    let service = Duration::from_secs_f64(took);
                    windows[whose].note_many(instant(at - took), instant(at), service, bundle);
                }
                estimates = Estimator::ALL.map(|which| {
                    let value = windows[sender].estimate(which, instant(sent));
                    value.map(|value| value.as_secs_f64())
                });
            }
            let from = run.took.len();
            for _ in 0..each / bundle {
                let took = server.serve(sent + NETWORK / 2.0, bundle) + NETWORK / 2.0 - sent;
                run.took.push(took);
                if estimate {
                    answers.push_back((sent + took, sender, took));
                }
            }
            run.sendings.push(Sending { sent, estimates, took: from..run.took.len() });
        }
    }
    run
}

/// How an estimator with a margin judges a run.
#[derive(Clone, Serialize, Debug)]
pub struct Judged {
    /// The estimator.
    pub estimator: String,
    /// Its timeouts are this many times its estimates.
    pub margin: f64,
    /// Seconds after which a dead server is doubted, on average over the requests.
    pub delay: f64,
    /// Requests that took longer than their timeout.
    pub timeouts: u64,
    /// Of these, over within the first 120 s.
    pub early: u64,
    /// When the first was over, in seconds.
    pub first: Option<f64>,
    /// Timeouts by the second in which they were over.
    pub each_second: Vec<f64>,
    /// The mean estimate of the requests sent in each second.
    pub estimates: Vec<f64>,
}

/// Seconds within which the paper's LCF has "some" timeouts.
pub const EARLY: f64 = 120.0;

impl Run {
    /// Requests.
    pub fn requests(&self) -> u64 {
        self.took.len() as u64 * u64::from(self.bundle)
    }

    /// When the first request is over a timeout of `limit` seconds.
    fn first_over(&self, limit: f64) -> Option<f64> {
        let is_over =
            |sending: &&Sending| self.took[sending.took.clone()].iter().any(|took| *took > limit);
        self.sendings.iter().find(is_over).map(|sending| sending.sent + limit)
    }

    /// Mean over the requests sent in each second.
    fn means(&self, value: impl Fn(&Sending) -> Option<f64>) -> Vec<f64> {
        let mut sums = vec![(0.0, 0.0); END as usize];
        for sending in &self.sendings {
            if let Some(value) = value(sending) {
                let sum = &mut sums[sending.sent as usize];
                (sum.0, sum.1) = (sum.0 + value, sum.1 + 1.0);
            }
        }
        sums.into_iter().map(|(sum, count)| if count > 0.0 { sum / count } else { 0.0 }).collect()
    }

    /// What the requests sent in each second took, on average.
    pub fn service(&self) -> Vec<f64> {
        self.means(|sending| {
            let took = &self.took[sending.took.clone()];
            (!took.is_empty()).then(|| took.iter().sum::<f64>() / took.len() as f64)
        })
    }

    /// The timeout of a sending. Without any answer to go by it is the static one.
    fn limit(sending: &Sending, estimator: Estimator, margin: f64) -> f64 {
        match (estimator, sending.estimates[estimator as usize]) {
            (Estimator::Static, _) | (_, None) => STATIC.as_secs_f64(),
            (_, Some(estimate)) => (estimate * margin).max(LEAST),
        }
    }

    /// The mean timeout over the requests.
    fn delay(&self, estimator: Estimator, margin: f64) -> f64 {
        let each = self
            .sendings
            .iter()
            .map(|sending| Run::limit(sending, estimator, margin) * sending.took.len() as f64);
        each.sum::<f64>() / self.took.len() as f64
    }

    /// The margin with which the mean timeout is `delay`.
    fn margin_for(&self, estimator: Estimator, delay: f64) -> f64 {
        let (mut low, mut high) = (0.0, 100.0);
        for _ in 0..50 {
            let middle = (low + high) / 2.0;
            match self.delay(estimator, middle) > delay {
                true => high = middle,
                false => low = middle,
            }
        }
        high
    }

    /// Judges with a margin.
    pub fn judge(&self, estimator: Estimator, margin: f64) -> Judged {
        let mut judged = Judged {
            estimator: estimator.name().to_owned(),
            margin,
            delay: self.delay(estimator, margin),
            timeouts: 0,
            early: 0,
            first: None,
            each_second: vec![0.0; END as usize],
            estimates: self.means(|sending| sending.estimates[estimator as usize]),
        };
        for sending in &self.sendings {
            let limit = Run::limit(sending, estimator, margin);
            let over = self.took[sending.took.clone()].iter().filter(|took| **took > limit);
            let over = over.count() as u64 * u64::from(self.bundle);
            if over == 0 {
                continue;
            }
            let at = sending.sent + limit;
            judged.timeouts += over;
            judged.early += if at < EARLY { over } else { 0 };
            judged.first = Some(judged.first.map_or(at, |first: f64| first.min(at)));
            if let Some(count) = judged.each_second.get_mut(at as usize) {
                *count += over as f64;
            }
        }
        judged
    }

    /// Judges with every estimator: Static as it is, LCF of each request with this margin, the
    /// others with margins that give the same mean timeout.
    pub fn judge_all(&self, margin: f64) -> Vec<Judged> {
        let delay = self.delay(Estimator::LcfEach, margin);
        let judge = |estimator| match estimator {
            Estimator::Static => self.judge(estimator, 1.0),
            Estimator::LcfEach => self.judge(estimator, margin),
            _ => self.judge(estimator, self.margin_for(estimator, delay)),
        };
        Estimator::ALL.map(judge).to_vec()
    }
}

impl Judged {
    /// One estimator's judgements of several servers: sums of timeouts, means of all else, and the
    /// earliest first timeout.
    ///
    /// # Panics
    /// There is none.
    pub fn of_all(all: &[&Judged]) -> Judged {
        let count = all.len() as f64;
        let mean = |value: &dyn Fn(&Judged) -> f64| {
            all.iter().map(|judged| value(judged)).sum::<f64>() / count
        };
        let seconds = 0..END as usize;
        Judged {
            estimator: all[0].estimator.clone(),
            margin: mean(&|judged| judged.margin),
            delay: mean(&|judged| judged.delay),
            timeouts: all.iter().map(|judged| judged.timeouts).sum(),
            early: all.iter().map(|judged| judged.early).sum(),
            first: all.iter().filter_map(|judged| judged.first).min_by(f64::total_cmp),
            each_second: seconds
                .clone()
                .map(|second| mean(&|judged| judged.each_second[second]))
                .collect(),
            estimates: seconds.map(|second| mean(&|judged| judged.estimates[second])).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_grows_by_what_exceeds_the_server() {
        let mut server = Server { speed: vec![1.0; 400], price: 0.015, free_at: 0.0 };
        // 100 requests a second at 1.5 times what it can do.
        let mut last = 0.0;
        for second in 0..100_u32 {
            last = server.serve(f64::from(second), 100) - f64::from(second);
        }
        assert!((last - (0.5 * 99.0 + 1.5)).abs() < 1e-6, "{last}");
    }

    #[test]
    fn numbers_are_distributed_normally() {
        let mut rng = SimRng::new(7);
        let numbers: Vec<f64> = (0..20_000).map(|_| normal(&mut rng)).collect();
        let mean = numbers.iter().sum::<f64>() / 20_000.0;
        let variance = numbers.iter().map(|number| number * number).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
    }

    #[test]
    fn estimators_judge_the_same_requests_at_the_same_delay() {
        let run = run(Reading::AllGroups, 1.4, 3, true);
        let burst = u64::from(BURST) * u64::from(Reading::AllGroups.rate());
        let after = u64::from(END - BURST) * u64::from(Reading::AllGroups.rate() / AFTER);
        assert_eq!(run.requests(), burst + after);
        let [still, max, lcf, each] = &run.judge_all(1.5)[..] else { panic!("four of them") };
        assert_eq!(still.delay, 30.0);
        for other in [max, lcf] {
            assert!((other.delay - each.delay).abs() < 1e-3, "{} {}", other.delay, each.delay);
        }
        for judged in [still, max, lcf, each] {
            assert!(judged.timeouts <= run.requests() && judged.early <= judged.timeouts);
        }
        // A static timeout is over when the queue is 30 s long, and not before.
        assert_eq!(still.first, run.first_over(30.0));
        assert!(still.first > Some(60.0), "{:?}", still.first);
    }
}
