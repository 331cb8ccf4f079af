//! Writers run ahead of the devices (paper 000 §III.A). From half of the dirty bound on they are
//! slowed, the more the closer the bound is. So they go as fast as the devices take the data, and
//! do not stop at the bound.
//!
//! Of the room between half of the bound and [`FULL`], a share `f` is used. Then writers together
//! may go at `1 / f` times the rate at which claims are returned. That is their own speed at half
//! of the bound, and exactly that of the devices at [`FULL`]. Each is held for its own bytes, times
//! the writers that are held: so one who writes little waits little beside a stream.
//!
//! This is memory only, and knows no clock.

use types::{Duration, Instant};

/// The rate is measured over so long.
const WINDOW: Duration = Duration::from_millis(100);
/// No write is held longer: beyond that the bound itself holds writers.
const HOLD_MAX: Duration = Duration::from_millis(500);
/// Where writers go as fast as the devices: at 15 / 16 of the bound.
const FULL: (u64, u64) = (15, 16);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Begin of the window, and bytes returned in it.
    since: Instant,
    returned: u64,
    /// Bytes that devices take in a second; 0: not known.
    rate: u64,
}

impl Pace {
    /// Claims of `bytes` were returned, and `used` remain of `max`.
    pub(super) fn returned(&mut self, bytes: u64, used: u64, max: u64) {
        self.returned += bytes;
        if used <= max / 2 {
            // The devices may have had too little to do: such a window says nothing.
            self.since = Instant::default();
        }
    }

    /// A writer has claimed `bytes` at `now`, while so many `others` are held, and `used` bytes are
    /// claimed of `max`. Returns how long it is to be held.
    pub(super) fn hold(
        &mut self,
        now: Instant,
        bytes: u64,
        others: usize,
        (used, max): (u64, u64),
    ) -> Duration {
        let over = used.saturating_sub(max / 2);
        if over == 0 {
            return Duration::ZERO;
        }
        self.measure(now);
        if self.rate == 0 {
            return Duration::ZERO;
        }
        let room = (max / FULL.1 * FULL.0).saturating_sub(max / 2).max(1);
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate) * u128::from(over)
            / u128::from(room)
            * (others as u128 + 1);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).min(HOLD_MAX)
    }

    fn measure(&mut self, now: Instant) {
        if self.since == Instant::default() {
            (self.since, self.returned) = (now, 0);
        }
        let elapsed = now.since(self.since);
        if elapsed < WINDOW {
            return;
        }
        let nanos = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        let rate = u128::from(self.returned) * 1_000_000_000 / u128::from(nanos);
        let rate = u64::try_from(rate).unwrap_or(u64::MAX).max(1);
        self.rate = if self.rate == 0 { rate } else { self.rate / 4 * 3 + rate / 4 }.max(1);
        (self.since, self.returned) = (now, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const MAX: u64 = 256 * MIB;
    const STEP: Duration = Duration::from_millis(1);

    /// Writers that write a mebibyte each as soon as they may, for `millis`, to a device that takes
    /// `rate(millisecond)` bytes in a millisecond. Returns the most that was dirty, and for each
    /// write the millisecond when it began and for how many it was held.
    fn run(writers: usize, millis: u64, rate: impl Fn(u64) -> u64) -> (u64, Vec<(u64, u64)>) {
        let mut pace = Pace::default();
        let (mut used, mut most) = (0u64, 0);
        let mut now = Instant(1_000_000);
        let mut free_at = vec![now; writers];
        let mut waits = vec![0u64; writers];
        let mut holds = Vec::new();
        for at in 0..millis {
            let taken = rate(at).min(used);
            used -= taken;
            pace.returned(taken, used, MAX);
            for writer in 0..writers {
                if free_at[writer] > now {
                    continue;
                }
                if used + MIB > MAX {
                    waits[writer] += 1;
                    continue;
                }
                used += MIB;
                let others = free_at.iter().filter(|&&free| free > now).count();
                let hold = pace.hold(now, MIB, others, (used, MAX));
                holds.push((at, waits[writer] + hold.as_millis() as u64));
                waits[writer] = 0;
                free_at[writer] = now + hold.max(STEP);
            }
            most = most.max(used);
            now += STEP;
        }
        (most, holds)
    }

    fn most_held(holds: &[(u64, u64)], from: u64) -> u64 {
        holds.iter().filter(|(at, _)| *at >= from).map(|(_, held)| *held).max().unwrap()
    }

    #[test]
    fn writers_never_reach_the_bound_and_keep_the_device_busy() {
        for writers in [1, 8] {
            let (most, holds) = run(writers, 20_000, |_| 100 * MIB / 1000);
            assert!(most < MAX, "{writers} writers: {most} bytes dirty");
            let written = holds.len() as u64;
            assert!((2000..2400).contains(&written), "{writers} writers wrote {written} MiB");
            // A writer's even share is a mebibyte in 10 ms times the writers.
            let held = most_held(&holds, 3000);
            assert!(held <= 20 * writers as u64, "{writers} writers: held {held} ms");
        }
    }

    #[test]
    fn one_who_writes_little_is_held_for_little_beside_a_stream() {
        let mut pace = Pace::default();
        let (used, start) = (MAX / 16 * 15, Instant(1_000_000));
        pace.hold(start, MIB, 0, (used, MAX));
        pace.returned(100 * MIB / 10, used, MAX);
        let now = start + Duration::from_millis(100);
        assert_eq!(pace.hold(now, MIB, 0, (used, MAX)).as_millis(), 10);
        assert!(pace.hold(now, 4096, 1, (used, MAX)) < Duration::from_micros(100));
    }

    #[test]
    fn below_half_of_the_bound_nobody_is_held() {
        let (most, holds) = run(1, 20_000, |_| 2 * MIB);
        assert!(most <= MAX / 2);
        assert_eq!(most_held(&holds, 0), 0);
    }

    #[test]
    fn pace_follows_a_device_that_becomes_slower_and_faster() {
        let slow = |at| (5000..10_000).contains(&at);
        let rate = move |at| if slow(at) { 25 } else { 200 } * MIB / 1000;
        let (most, holds) = run(1, 20_000, rate);
        assert!(most <= MAX);
        let late = holds.iter().filter(|(at, _)| *at >= 12_000).count() as u64;
        assert!((1500..1800).contains(&late), "{late} MiB in the last eight seconds");
        assert!(most_held(&holds, 12_000) <= 10);
    }

    #[test]
    fn device_that_takes_nothing_holds_a_write_for_half_a_second_at_most() {
        let (most, holds) = run(1, 9000, |at| if at < 4000 { 100 * MIB / 1000 } else { 0 });
        assert!(most <= MAX);
        assert!(most_held(&holds, 0) <= 501);
    }
}
