//! Crashes inside the recovery from a crash, and inside the recovery from that.
//!
//! Invariants:
//! - each crash inside a recovery leaves the content that the first crash left: an interrupted
//!   recovery does not change the result of the next one;
//! - the test has recovered and completely read every state that it counts.
//!
//! The test visits all crashes of the first level. In the recovery of some of them it visits all
//! crashes of the second and third level. `REDBUD_CRASH_STATES=1000000 cargo test --release -p
//! redbud-engine depth -- --nocapture` visits that many states.

use env::sim::{CrashOptions, SimDisk, SimRng, crash_images};

use super::{Model, acknowledged, formatted, record, recover};

/// Levels of nested crashes.
const DEPTH: usize = 3;
/// States that the test visits by default.
const STATES: u64 = 6_000;
/// The test visits the crashes inside the recovery of one state in this many.
const SPARSE: u64 = 30;

/// Visits the states of one history.
struct Visit<'a> {
    seed: u64,
    models: &'a [Model],
    rng: SimRng,
    /// States by depth.
    states: [u64; DEPTH],
    /// Most states to visit.
    most: u64,
}

impl Visit<'_> {
    fn is_over(&self) -> bool {
        self.states.iter().sum::<u64>() >= self.most
    }

    /// Recovers the state after the crash of level `depth`, and some states after crashes inside
    /// that recovery.
    fn state(&mut self, disk: &SimDisk, depth: usize, at_least: u64, what: &str) -> u64 {
        let deeper = depth < DEPTH && self.rng.one_in(SPARSE);
        if deeper {
            disk.record();
        }
        let count = recover(self.seed, disk, self.models, at_least, what);
        self.states[depth - 1] += 1;
        let Some(recording) = disk.recording().filter(|_| deeper) else { return count };
        for point in recording.crash_images(CrashOptions { seed: self.seed, subsets: 2 }) {
            if self.is_over() {
                break;
            }
            let what = format!("{what}; in the recovery: {}", point.description);
            let again = self.state(point.disk(), depth + 1, at_least, &what);
            assert_eq!(again, count, "{what}");
        }
        count
    }
}

/// Visits at most `most` states of the history of `seed`; returns how many there were, by depth.
fn visit(seed: u64, most: u64) -> [u64; DEPTH] {
    let disk = formatted(64 << 10);
    let (models, acks) = record(seed, &disk, 150, true);
    let recordings = [&disk, &acks].map(|disk| disk.recording().expect("it was recorded"));
    let rng = SimRng::new(seed);
    let mut visit = Visit { seed, models: &models, rng, states: [0; DEPTH], most };
    for point in crash_images(recordings.into(), CrashOptions { seed, subsets: 2 }) {
        if visit.is_over() {
            break;
        }
        let at_least = acknowledged(&point.disks[1]);
        visit.state(point.disk(), 1, at_least, &format!("seed {seed}: {}", point.description));
    }
    visit.states
}

#[test]
fn crash_inside_a_recovery_leaves_what_the_first_crash_left() {
    let most = std::env::var("REDBUD_CRASH_STATES").ok();
    let most = most.map_or(STATES, |text| text.parse().expect("a number of states"));
    let mut states = [0; DEPTH];
    for seed in 100.. {
        let left = most.saturating_sub(states.iter().sum());
        if left == 0 {
            break;
        }
        let more = visit(seed, left);
        states.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        if seed % 50 == 0 {
            println!("{states:?} states, up to seed {seed}");
        }
    }
    println!("{states:?} states by depth");
    assert!(states.iter().all(|&states| states > most / 20), "{states:?}");
}

#[cfg(debug_assertions)]
#[test]
fn planted_bugs_in_log_and_checkpoint_are_caught() {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use types::Bug;

    let bugs = [
        Bug::LogNotFlushed,
        Bug::TornGroupAccepted,
        Bug::OldLapAccepted,
        Bug::TailBeforeFlush,
        Bug::HomeBeforeLog,
    ];
    for bug in bugs {
        let caught = (100..110).find(|&seed| {
            let _planted = types::plant::plant(bug);
            catch_unwind(AssertUnwindSafe(|| visit(seed, STATES))).is_err()
        });
        println!("{bug:?} is caught by the crashes of seed {caught:?}");
        assert!(caught.is_some(), "{bug:?} is not caught");
    }
}
