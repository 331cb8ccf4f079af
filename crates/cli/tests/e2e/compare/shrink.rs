//! Makes a failing script shorter.

use super::Difference;
use super::step::Step;

/// Runs of a script for shrinking it, at most.
const RUNS_MAX: usize = 600;

/// The shortest script found, by leaving steps out, that still shows a difference; `None` if the
/// whole one does not show it a second time.
pub fn shortest(
    script: &[Step],
    mut run: impl FnMut(&[Step]) -> Option<Difference>,
) -> Option<(Vec<Step>, Difference)> {
    let mut last = run(script)?;
    let mut script = script[..last.steps].to_vec();
    let (mut runs, mut piece) = (1, script.len().div_ceil(2));
    loop {
        let mut at = 0;
        let before = script.len();
        while at < script.len() && runs < RUNS_MAX {
            let mut part = script.clone();
            part.drain(at..(at + piece).min(part.len()));
            runs += 1;
            match run(&part) {
                Some(difference) => {
                    part.truncate(difference.steps);
                    (script, last) = (part, difference);
                }
                None => at += piece,
            }
        }
        if runs >= RUNS_MAX || (piece == 1 && script.len() == before) {
            return Some((script, last));
        }
        piece = (piece / 2).max(1);
    }
}
