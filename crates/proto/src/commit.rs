//! How a client's commits are sent: how many requests at once, and how many commits each carries
//! (paper 000 §IV.B, "adaptive RPC compound").
//!
//! Both controllers are pure: they know what they are given, and no clock.
//!
//! - [`Tasks`] follows the commit queue: ρ × its length, with ρ = [`TASKS_MAX`] / [`QUEUE_MAX`].
//!   One more begins only after the queue has grown by [`GROWTH`], and one ends when even a queue
//!   that is longer by half of that would need fewer.
//! - [`Degree`] follows the network and the server. It doubles while answers take much longer than
//!   the fastest ones, or while the server has many requests to work on; else it shrinks slowly.

use std::fmt;
use std::str::FromStr;

use types::{Duration, Instant};

/// Most requests with commits that are in flight at once (paper 000 §V.E).
pub const TASKS_MAX: usize = 9;
/// Length of the queue that asks for [`TASKS_MAX`] (paper 000 Fig. 6).
pub const QUEUE_MAX: usize = 90;
/// So many files the queue grows before another task begins.
pub const GROWTH: usize = QUEUE_MAX / TASKS_MAX;
/// Most commits of one request.
pub const DEGREE_MAX: usize = 64;
/// Commits of one request while nothing is congested: more than three helped little in paper 000
/// §V.E, and six did not hurt.
pub const DEGREE_CALM: usize = 6;
/// Congestion is judged so often.
const PERIOD: Duration = Duration::from_millis(100);
/// An answer that takes so many times the fastest ones' time shows congestion.
const SLOW: u64 = 3;
/// So many requests that the server has to work on show that it is busy.
const BUSY: u16 = 16;
/// The fastest answer is forgotten by one part in so many, each period.
const FORGET: u64 = 64;

/// A number that is fixed, or that the client chooses from what it measures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Choice {
    /// The client chooses.
    #[default]
    Auto,
    /// Always this.
    Fixed(usize),
}

impl Choice {
    /// `auto`, or a number from 1 to `max`.
    ///
    /// # Errors
    /// What may be written instead.
    pub fn parse(text: &str, max: usize) -> Result<Choice, String> {
        match text.parse::<Choice>() {
            Ok(Choice::Fixed(n)) if n > max => Err(format!("write auto or 1 to {max}")),
            Ok(choice) => Ok(choice),
            Err(()) => Err(format!("write auto or 1 to {max}")),
        }
    }
}

impl FromStr for Choice {
    type Err = ();

    fn from_str(text: &str) -> Result<Choice, ()> {
        match text {
            "auto" => Ok(Choice::Auto),
            number => match number.parse() {
                Ok(n) if n > 0 => Ok(Choice::Fixed(n)),
                _ => Err(()),
            },
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Auto => f.write_str("auto"),
            Choice::Fixed(n) => write!(f, "{n}"),
        }
    }
}

/// How a client commits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommitPolicy {
    /// A write is answered only when its data is stable and the server has the commit (paper 000
    /// §III.A, "synchronous commit"); else at once.
    pub sync: bool,
    /// Commits of one request, at most [`DEGREE_MAX`].
    pub degree: Choice,
    /// Requests with commits at once, at most [`TASKS_MAX`].
    pub tasks: Choice,
    /// From a write to the end of its commit, if devices and server answer soon.
    pub max_age: Duration,
}

impl CommitPolicy {
    /// From a write to the begin of its commit, at most: a quarter of `max_age` is left to the
    /// commit itself.
    pub fn due(&self) -> Duration {
        self.max_age - self.early()
    }

    /// So much earlier a file's commit begins if another one begins anyway.
    pub fn early(&self) -> Duration {
        self.max_age / 4
    }
}

impl Default for CommitPolicy {
    fn default() -> CommitPolicy {
        CommitPolicy {
            sync: false,
            degree: Choice::Auto,
            tasks: Choice::Auto,
            max_age: Duration::from_secs(1),
        }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Tasks {
    choice: Choice,
    now: usize,
    /// Length of the queue when the number last changed.
    changed_at: usize,
}

impl Tasks {
    /// One task, or as many as are fixed.
    pub fn new(choice: Choice) -> Tasks {
        let now = match choice {
            Choice::Auto => 1,
            Choice::Fixed(n) => n.clamp(1, TASKS_MAX),
        };
        Tasks { choice, now, changed_at: 0 }
    }

    /// The number of tasks that may run.
    pub fn now(&self) -> usize {
        self.now
    }

    /// The queue has this length now. Returns the number of tasks that may run.
    pub fn queue_is(&mut self, len: usize) -> usize {
        if self.choice == Choice::Auto {
            let needed = |len: usize| (len * TASKS_MAX).div_ceil(QUEUE_MAX).clamp(1, TASKS_MAX);
            if needed(len) > self.now && len >= self.changed_at + GROWTH {
                (self.now, self.changed_at) = (needed(len), len);
            } else if needed(len + GROWTH / 2) < self.now {
                (self.now, self.changed_at) = (self.now - 1, len);
            }
            // A shorter queue has to grow less until the next task begins.
            self.changed_at = self.changed_at.min(len);
        }
        self.now
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Degree {
    choice: Choice,
    max: usize,
    now: usize,
    /// The fastest answer, in nanoseconds, slowly forgotten; 0: none yet.
    fastest: u64,
    /// Average of recent answers, in nanoseconds.
    usual: u64,
    /// Requests that the server had to work on, as its last answer said.
    load: u16,
    next: Instant,
}

impl Degree {
    /// A degree of at most `max` commits in a request.
    pub fn new(choice: Choice, max: usize) -> Degree {
        let now = match choice {
            Choice::Auto => DEGREE_CALM.min(max),
            Choice::Fixed(n) => n.clamp(1, max),
        };
        Degree { choice, max, now, fastest: 0, usual: 0, load: 0, next: Instant(0) }
    }

    /// The degree as the network and the server ask for it.
    pub fn now(&self) -> usize {
        self.now
    }

    /// Commits of the next request, of `ready` ones that `tasks` tasks send. What is more than all
    /// tasks take at this degree goes in full requests: smaller ones would only cost more.
    pub fn of(&self, ready: usize, tasks: usize) -> usize {
        let is_long = self.choice == Choice::Auto && ready > self.now * tasks;
        if is_long { self.max.min(ready) } else { self.now.min(ready) }
    }

    /// A request was answered at `now` after `took`, and the
    /// server had so many requests to work on.
    pub fn answered(&mut self, now: Instant, took: Duration, load: u16) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1);
        self.fastest = if self.fastest == 0 { took } else { self.fastest.min(took) };
        self.usual = if self.usual == 0 { took } else { self.usual / 8 * 7 + took / 8 };
        self.load = load;
        if now < self.next || self.choice != Choice::Auto {
            return;
        }
        self.next = now + PERIOD;
        self.now = match self.is_congested() {
            true => (self.now * 2).min(self.max),
            false => (self.now - self.now.div_ceil(8)).max(DEGREE_CALM.min(self.max)),
        };
        self.fastest = self.fastest.saturating_add(self.fastest / FORGET).saturating_add(1);
    }

    /// Are answers slow, or is the server busy?
    pub fn is_congested(&self) -> bool {
        self.load >= BUSY || self.usual > self.fastest.saturating_mul(SLOW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn tasks_follow_the_queue_and_do_not_flutter() {
        let mut tasks = Tasks::new(Choice::Auto);
        assert_eq!(tasks.queue_is(0), 1);
        assert_eq!(tasks.queue_is(9), 1, "the queue has not grown enough");
        assert_eq!(tasks.queue_is(35), 4, "the paper's varmail has 1 to 5 at 20 to 40");
        assert_eq!(tasks.queue_is(41), 4, "it has grown by 6 only");
        assert_eq!(tasks.queue_is(50), 5, "the paper's webproxy has 5 at 50");
        assert_eq!(tasks.queue_is(46), 5);
        assert_eq!(tasks.queue_is(400), TASKS_MAX);
        for (len, expected) in [(85, 9), (60, 8), (60, 7), (60, 7), (0, 6), (0, 5)] {
            assert_eq!(tasks.queue_is(len), expected, "at {len}");
        }
        // A queue that sways by less than the threshold changes nothing.
        let mut tasks = Tasks::new(Choice::Auto);
        let at_30 = tasks.queue_is(30);
        for len in [31, 34, 29, 33, 28, 35, 27].repeat(9) {
            assert_eq!(tasks.queue_is(len), at_30, "at {len}");
        }
    }

    #[test]
    fn tasks_are_bounded_and_may_be_fixed() {
        let mut fixed = Tasks::new(Choice::Fixed(3));
        let mut auto = Tasks::new(Choice::Auto);
        for len in [0, 1, 90, 10_000, 5, 0] {
            assert_eq!(fixed.queue_is(len), 3);
            assert!((1..=TASKS_MAX).contains(&auto.queue_is(len)));
        }
        assert_eq!(Tasks::new(Choice::Fixed(99)).now(), TASKS_MAX);
    }

    #[test]
    fn degree_grows_while_answers_are_slow_or_the_server_is_busy() {
        let run = |took: fn(u64) -> u64, load: u16| {
            let mut degree = Degree::new(Choice::Auto, 60);
            let mut now = Instant(0);
            for nth in 0..90 {
                now += ms(50);
                degree.answered(now, ms(took(nth)), load);
            }
            degree.now()
        };
        assert_eq!(run(|_| 1, 0), DEGREE_CALM);
        assert_eq!(run(|nth| if nth < 2 { 1 } else { 9 }, 0), 60);
        assert_eq!(run(|_| 1, BUSY), 60);
        assert_eq!(run(|nth| 1 + nth % 2, 0), DEGREE_CALM, "a little jitter is no congestion");
        assert_eq!(run(|nth| if nth < 10 { 9 } else { 1 }, 0), DEGREE_CALM, "it is over");
    }

    #[test]
    fn degree_goes_back_when_the_network_stays_slower() {
        let mut degree = Degree::new(Choice::Auto, 60);
        let mut now = Instant(0);
        for nth in 0..4000 {
            now += ms(100);
            degree.answered(now, ms(if nth < 2 { 1 } else { 4 }), 0);
        }
        assert_eq!(degree.now(), DEGREE_CALM, "four milliseconds are what this network takes");
    }

    #[test]
    fn long_queue_goes_in_full_requests() {
        let degree = Degree::new(Choice::Auto, 60);
        assert_eq!(degree.of(3, 9), 3);
        assert_eq!(degree.of(40, 9), DEGREE_CALM);
        assert_eq!(degree.of(55, 9), 55);
        assert_eq!(degree.of(10_000, 9), 60);
        let fixed = Degree::new(Choice::Fixed(3), 60);
        assert_eq!((fixed.of(256, 9), fixed.of(2, 1)), (3, 2));
        assert_eq!(Degree::new(Choice::Fixed(64), 60).now(), 60, "never beyond a message");
    }

    #[test]
    fn choices_are_read_and_written() {
        for text in ["auto", "1", "9"] {
            assert_eq!(Choice::parse(text, 9).unwrap().to_string(), text);
        }
        for text in ["", "0", "10", "-1", "Auto", "1.5"] {
            assert_eq!(Choice::parse(text, 9), Err("write auto or 1 to 9".into()), "{text}");
        }
    }
}
