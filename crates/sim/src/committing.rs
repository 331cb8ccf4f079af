//! How a run's clients commit, and how many requests its server works on at once: as usual, or
//! drawn by the number that also draws how places are chosen.

use env::sim::SimRng;
use proto::commit::{Choice, CommitPolicy};
use types::Duration;

/// Separates the random numbers of commits from others.
const COMMITTING: u64 = 0x636f_6d6d_6974_0000;

/// How clients commit.
pub(crate) fn commit(placing: u64) -> CommitPolicy {
    if placing == 0 {
        return CommitPolicy::default();
    }
    let mut rng = SimRng::new(placing ^ COMMITTING);
    let mut choice = |most: u64| match rng.one_in(2) {
        true => Choice::Auto,
        false => Choice::Fixed(1 + rng.below(most) as usize),
    };
    let (degree, tasks) = (choice(8), choice(3));
    let max_age = Duration::from_millis(50 << rng.below(6));
    CommitPolicy { sync: rng.one_in(4), degree, tasks, max_age }
}

/// Requests that the server works on at once.
pub(crate) fn workers(placing: u64) -> Option<usize> {
    let mut rng = SimRng::new(placing ^ COMMITTING.rotate_left(8));
    (placing != 0 && rng.one_in(2)).then(|| 1 << rng.below(4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_ways_differ() {
        assert_eq!((commit(0), workers(0)), (CommitPolicy::default(), None));
        let one_worker = (1..200).filter(|placing| workers(*placing) == Some(1)).count();
        let single = (1..200).filter(|placing| commit(*placing).degree == Choice::Fixed(1)).count();
        let sync = (1..200).filter(|placing| commit(*placing).sync).count();
        for (count, what) in
            [(one_worker, "one worker"), (single, "one by one"), (sync, "commit=sync")]
        {
            assert!((5..80).contains(&count), "{count} of 199: {what}");
        }
    }
}
