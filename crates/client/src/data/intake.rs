//! How much a device takes, measured while it has requests. Pure: time is an argument.
//!
//! The time in which no request is in flight does not count. So a device that is idle now and then
//! is not taken for a slow one.

use types::{Duration, Instant};

use super::device_queue::{JOINED_MAX, REQUESTS_MAX};

/// The bound on what is in flight is as much as the device takes in so long. It is measured anew
/// after so long.
pub(super) const SPAN: Duration = Duration::from_millis(50);
/// Least number of blocks of the bound: 4 MiB. A device that answers a request within [`SPAN`] is
/// as fast with it as with any other: the bound grows until its answers take so long.
pub(super) const LEAST: u64 = 1024;
/// With so many no request waits.
const MOST: u64 = REQUESTS_MAX as u64 * JOINED_MAX;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Intake {
    /// Since when requests have been in flight; `None`: none are.
    since: Option<Instant>,
    /// Time with requests in flight before that, since the last measurement.
    before: Duration,
    /// Blocks of requests that ended since then.
    blocks: u64,
    /// Blocks that it takes in [`SPAN`], smoothed.
    in_span: u64,
}

impl Intake {
    /// A request goes to the device.
    pub(super) fn begun(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// A request of so many blocks has ended; `is_idle`: it was the only one.
    pub(super) fn ended(&mut self, now: Instant, blocks: u64, is_idle: bool) {
        let since = self.since.unwrap_or(now);
        self.since = (!is_idle).then_some(now);
        self.before += now.since(since);
        self.blocks += blocks;
        if self.before < SPAN {
            return;
        }
        let share = SPAN.as_secs_f64() / self.before.as_secs_f64();
        self.in_span = u64::midpoint(self.in_span, (self.blocks as f64 * share) as u64);
        (self.before, self.blocks) = (Duration::ZERO, 0);
    }

    /// Most blocks that are to be in flight.
    pub(super) fn bound(&self) -> u64 {
        self.in_span.clamp(LEAST, MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bound after `requests` requests of 1 MiB, one after the other, each of so many
    /// microseconds, with a pause behind each.
    fn bound(intake: &mut Intake, requests: u64, micros: u64, pause: u64) -> u64 {
        let (mut now, idle) = (intake.since.unwrap_or(Instant(1)), pause > 0);
        for _ in 0..requests {
            intake.begun(now);
            now += Duration::from_micros(micros);
            intake.ended(now, JOINED_MAX, idle);
            now += Duration::from_micros(pause);
        }
        intake.bound()
    }

    #[test]
    fn bound_is_what_the_device_takes_in_fifty_milliseconds() {
        let mut intake = Intake::default();
        assert_eq!(intake.bound(), LEAST);
        let fast = bound(&mut intake, 1000, 5000, 0);
        assert!((2500..=2560).contains(&fast), "200 MiB/s: {fast} blocks");
        let slow = bound(&mut intake, 100, 12_500, 0);
        assert_eq!(slow, LEAST, "80 MiB/s are 4 MiB");
        assert_eq!(bound(&mut intake, 100, 1_000_000, 0), LEAST);
        let most = bound(&mut intake, 100_000, 10, 0);
        assert_eq!(most, MOST);
    }

    #[test]
    fn idle_time_does_not_make_a_device_slow() {
        let (mut busy, mut idle) = (Intake::default(), Intake::default());
        let fast = bound(&mut busy, 1000, 5000, 0);
        assert_eq!(bound(&mut idle, 1000, 5000, 200_000), fast);
    }
}
