//! Decisions about fences, without I/O: what comes next while a client is being fenced, and when
//! its quarantine ends.
//!
//! A client may have several means of fencing, which are tried in order. One that has cut the
//! client off and then confirms it has proven it. Nothing else counts as success:
//!
//! | step ↓ answer → | yes | no | late |
//! |---|---|---|---|
//! | cut by means n | check means n | cut by means n + 1 | cut by means n + 1 |
//! | check means n | proven | cut by means n + 1 | cut by means n + 1 |
//!
//! Behind the last means the client is not fenced, and its quarantine ends by time.
//!
//! The quarantine of a client whose eviction is durable ends as soon as one row holds:
//!
//! | process of this host | fence | its time | devices | ends |
//! |---|---|---|---|---|
//! | has ended | – | – | – | yes: no request of it is in flight |
//! | – | proven for 5 s | – | settled, all open here | yes: no write can arrive any more |
//! | – | – | over | settled | yes: a lease and a half have passed |
//! | – | – | – | – | no |
//!
//! A device is settled if it owes no flush and did not owe one a moment ago. Nor may it be absent
//! for want of an answer, or have been a moment ago. In the 5 s since the proof it carries out what
//! it was given before the client was cut off; then it is flushed. Of a device that is absent on
//! the server's host nothing is known.

use crate::fence::Answer;

/// A step of a fencing; the number is that of the means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Cut the client off.
    Cut(usize),
    /// Ask whether it is cut off.
    Check(usize),
    /// It is cut off, by this means.
    Proven(usize),
    /// No means has cut it off.
    Failed,
}

/// The first step with so many means.
pub fn first(means: usize) -> Step {
    if means == 0 { Step::Failed } else { Step::Cut(0) }
}

/// The step after `step`, to which the means answered.
pub fn next(means: usize, step: Step, answer: &Answer) -> Step {
    match (step, answer) {
        (Step::Cut(at), Answer::Yes) => Step::Check(at),
        (Step::Check(at), Answer::Yes) => Step::Proven(at),
        (Step::Cut(at) | Step::Check(at), Answer::No(_) | Answer::Late) if at + 1 < means => {
            Step::Cut(at + 1)
        }
        (Step::Cut(_) | Step::Check(_), Answer::No(_) | Answer::Late) => Step::Failed,
        (Step::Proven(_) | Step::Failed, _) => step,
    }
}

/// What is known of a client in quarantine whose eviction is durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// Its process ran on this host and has ended.
    pub ended: bool,
    /// A fence has proven that it is cut off, and the settling time has passed since.
    pub fenced: bool,
    /// All data devices are open on this host.
    pub all_open: bool,
    /// A lease and a half have passed since its eviction.
    pub over: bool,
    /// No data device owes a flush, or is absent for want of an answer, or was so a moment ago.
    pub settled: bool,
}

/// Does the quarantine end?
pub fn quarantine_ends(known: Known) -> bool {
    known.ended || known.settled && (known.fenced && known.all_open || known.over)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEANS: usize = 3;

    fn answers() -> [Answer; 3] {
        [Answer::Yes, Answer::No("on".into()), Answer::Late]
    }

    /// Every course of answers: the last step, and how often each means was cut and checked.
    fn courses(step: Step, course: &[(Step, Answer)], all: &mut Vec<(Step, Vec<(Step, Answer)>)>) {
        if matches!(step, Step::Proven(_) | Step::Failed) {
            all.push((step, course.to_vec()));
            return;
        }
        for answer in answers() {
            let mut course = course.to_vec();
            course.push((step, answer.clone()));
            courses(next(MEANS, step, &answer), &course, all);
        }
    }

    #[test]
    fn fence_is_proven_only_by_a_means_that_cut_and_then_confirmed() {
        let mut all = Vec::new();
        courses(first(MEANS), &[], &mut all);
        // Each means fails in 2 ways at its cut and in 2 at its check, or succeeds.
        assert_eq!(all.len(), 1 + 4 + 16 + 64);
        for (end, course) in all {
            let confirmed = |at| {
                let cut = (Step::Cut(at), Answer::Yes);
                course.ends_with(&[cut, (Step::Check(at), Answer::Yes)])
            };
            match end {
                Step::Proven(at) => assert!(confirmed(at), "{course:?}"),
                _ => assert!((0..MEANS).all(|at| !confirmed(at)), "{course:?}"),
            }
            assert!(course.len() <= 2 * MEANS, "{course:?}");
            let cut = |at| course.iter().filter(|(step, _)| *step == Step::Cut(at)).count();
            assert!((0..MEANS).all(|at| cut(at) <= 1), "{course:?}");
        }
    }

    #[test]
    fn end_of_a_fencing_is_its_last_step() {
        assert_eq!(first(0), Step::Failed);
        for answer in answers() {
            for end in [Step::Proven(1), Step::Failed] {
                assert_eq!(next(MEANS, end, &answer), end);
            }
        }
    }

    #[test]
    fn quarantine_ends_by_death_fence_or_time_and_waits_for_stalled_devices() {
        let mut ends = Vec::new();
        for bits in 0..32u8 {
            let bit = |at: u8| bits & (1 << at) != 0;
            let (ended, all_open) = (bit(4), bit(3));
            let (fenced, over, settled) = (bit(2), bit(1), bit(0));
            let known = Known { ended, fenced, all_open, over, settled };
            if quarantine_ends(known) {
                ends.push(bits);
            }
        }
        let not_ended = [0b00011, 0b00111, 0b01011, 0b01101, 0b01111];
        let all: Vec<u8> = not_ended.into_iter().chain(16..32).collect();
        assert_eq!(ends, all);
    }
}
