//! Mutated histories: one answer was never given. The observed order must not explain what no order
//! explains.
//!
//! Invariant: a mutant differs from a real history in one answer, or lacks one answered change. The
//! guided judge and the searching judge get the same mutant.

use std::mem::discriminant;

use env::sim::SimRng;
use types::Fault;

use crate::call::{Call, Op, Outcome};
use crate::judge::Judge;
use crate::model::FsState;

/// The verdicts of the two judges on mutants.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Verdicts {
    /// Both explain it: the answer was possible.
    pub explained: u64,
    /// Both refuse it.
    pub refused: u64,
    /// Only the search explains it.
    pub only_searched: u64,
    /// Only the observed order explains it: one of the judges is wrong.
    pub only_observed: u64,
}

/// Judges `count` random mutants of a history.
pub(crate) fn judge_mutants(
    calls: &[Call],
    may_crash: bool,
    (seed, count): (u64, u64),
) -> Verdicts {
    let mut rng = SimRng::new(seed ^ 0x0005_b011);
    let mut verdicts = Verdicts::default();
    for _ in 0..count {
        let Some(mutant) = mutate(calls, &mut rng) else { continue };
        let start = || FsState { may_crash, ..FsState::default() };
        let mut guided = Judge::guided(start());
        let observed = guided.settle(&mutant).is_ok() && guided.given_up == 0;
        let mut search = Judge::new(start());
        let explains = search.settle(&mutant).is_ok();
        if search.given_up > 0 {
            continue;
        }
        *match (observed, explains) {
            (true, true) => &mut verdicts.explained,
            (false, false) => &mut verdicts.refused,
            (false, true) => &mut verdicts.only_searched,
            (true, false) => &mut verdicts.only_observed,
        } += 1;
    }
    verdicts
}

fn mutate(calls: &[Call], rng: &mut SimRng) -> Option<Vec<Call>> {
    if calls.is_empty() {
        return None;
    }
    let mut mutant = calls.to_vec();
    for _ in 0..64 {
        let (at, other) = (rng.below(calls.len() as u64), rng.below(calls.len() as u64));
        let (call, other) = (&calls[at as usize], &calls[other as usize]);
        let Some(outcome) = &call.outcome else { continue };
        let new = match (rng.below(3), &call.op, outcome) {
            (0, op, _) if op.changes_names() => {
                mutant.remove(at as usize);
                return Some(mutant);
            }
            (1, _, _) if discriminant(&call.op) == discriminant(&other.op) => {
                other.outcome.clone()?
            }
            (_, Op::Lookup(_), Outcome::Found(Some(_)) | Outcome::Listed(..)) => {
                Outcome::Found(None)
            }
            (_, Op::Unlink(_) | Op::Rmdir(_) | Op::Rename { .. }, Outcome::Done) => {
                Outcome::Failed(Fault::NotFound)
            }
            (_, Op::Make(..) | Op::Create { .. } | Op::Link(..), _) => {
                Outcome::Failed(Fault::Exists)
            }
            _ => continue,
        };
        if new == *outcome {
            continue;
        }
        mutant[at as usize].outcome = Some(new);
        return Some(mutant);
    }
    None
}
