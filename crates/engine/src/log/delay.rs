//! How long a group waits for more callers before it is written.

use types::{Duration, Instant};

/// A device that makes a group durable in less time than this is not slow.
const SLOW: Duration = Duration::from_millis(1);
/// The delay is this fraction of the time that the last group took, and at most `DELAY_MAX`. It
/// costs a rotating disk nothing: the sector after the last group has already passed the head.
const DELAY_PART: u32 = 8;
const DELAY_MAX: Duration = Duration::from_millis(1);

/// How long the running group waits for more callers, derived from the group before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CommitDelay {
    until: Instant,
    /// The delay ends early when this many callers wait.
    expected: usize,
}

impl CommitDelay {
    /// No delay: a group that a caller waits for is written at once.
    pub(crate) const NONE: CommitDelay = CommitDelay { until: Instant(0), expected: 0 };

    /// The delay after a group that took `took` and ended at `now`. `waiting` callers had waited
    /// for it or for the next group, including those that gave up. A single caller gets no delay.
    pub(crate) fn after(took: Duration, now: Instant, waiting: usize) -> CommitDelay {
        if took < SLOW || waiting < 2 {
            return CommitDelay::NONE;
        }
        CommitDelay { until: now + (took / DELAY_PART).min(DELAY_MAX), expected: waiting }
    }

    /// When the delay ends, if it is not over although `waiting` callers wait by now.
    pub(crate) fn wait_until(&self, now: Instant, waiting: usize) -> Option<Instant> {
        (now < self.until && waiting < self.expected).then_some(self.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_delay_is_an_eighth_of_the_last_group_or_until_all_wait() {
        let (ms, now) = (Duration::from_millis, Instant(1_000_000_000));
        let after = |took, waiting| CommitDelay::after(took, now, waiting);
        assert_eq!(after(ms(4), 1), CommitDelay::NONE, "a single caller");
        assert_eq!(after(Duration::from_micros(300), 40), CommitDelay::NONE, "a fast device");
        let four = after(ms(4), 40);
        let end = now + Duration::from_micros(500);
        assert_eq!(four.wait_until(now, 20), Some(end));
        assert_eq!(four.wait_until(now, 40), None, "all callers wait");
        assert_eq!(four.wait_until(end, 20), None, "the time is over");
        assert_eq!(after(ms(4000), 9).wait_until(now, 0), Some(now + DELAY_MAX));
        assert_eq!(CommitDelay::NONE.wait_until(Instant(0), 0), None);
    }
}
