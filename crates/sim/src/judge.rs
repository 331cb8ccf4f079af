//! Is there an order of the steps, consistent with real time, in which the model gives
//! every answer that was seen?
//!
//! Invariants:
//! - steps are settled in the order of their ends; a candidate is the model's state with the
//!   steps that took effect before they ended;
//! - before a step others that still run are tried only if the order can matter: their
//!   footprints meet, directly or through others. So no candidate is lost.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::call::Call;
use crate::model::{Footprint, State, Step};

/// Candidates kept; beyond it the search gives up, and says so.
const CANDIDATES_MAX: usize = 2000;
/// Steps tried for one end.
const TRIES_MAX: usize = 20_000;

/// A state that explains everything so far.
#[derive(Clone)]
struct Candidate {
    state: Rc<State>,
    /// Steps that took effect and have not ended, sorted.
    done: Vec<usize>,
}

/// No order explains this.
#[derive(Clone, Debug)]
pub struct Unexplained {
    /// For people: the step, what the model expects, and what ran at the same time.
    pub text: String,
}

/// See the module.
pub struct Judge {
    candidates: Vec<Candidate>,
    /// Steps tried, in all.
    pub tries: u64,
    /// Searches given up: nothing is said about them.
    pub given_up: u64,
}

struct Search<'a> {
    calls: &'a [Call],
    /// Steps that run, that is: begun before the end that is settled, and not ended.
    running: Vec<usize>,
    target: usize,
    found: Vec<Candidate>,
    seen: Vec<Candidate>,
    tries: usize,
    expected: Option<String>,
}

impl Judge {
    /// Everything begins from this state.
    pub fn new(state: State) -> Judge {
        let start = Candidate { state: Rc::new(state), done: Vec::new() };
        Judge { candidates: vec![start], tries: 0, given_up: 0 }
    }

    /// The states that explain everything; all steps have ended.
    pub fn states(&self) -> impl Iterator<Item = &State> {
        self.candidates.iter().map(|candidate| &*candidate.state)
    }

    /// Settles a history in which all steps have ended.
    pub fn settle(&mut self, calls: &[Call]) -> Result<(), Unexplained> {
        let mut ends: Vec<usize> = (0..calls.len()).collect();
        ends.sort_by_key(|&index| (calls[index].ended, index));
        let mut begins: Vec<usize> = (0..calls.len()).collect();
        begins.sort_by_key(|&index| (calls[index].begun, index));
        let mut begins = begins.into_iter().peekable();
        let mut running: Vec<usize> = Vec::new();
        for target in ends {
            while let Some(next) = begins.next_if(|&next| calls[next].begun < calls[target].ended) {
                running.push(next);
            }
            running.retain(|&index| index != target);
            self.end(calls, &running, target)?;
        }
        Ok(())
    }

    fn end(&mut self, calls: &[Call], running: &[usize], target: usize) -> Result<(), Unexplained> {
        let mut found: Vec<Candidate> = Vec::new();
        let mut expected = None;
        let before = std::mem::take(&mut self.candidates);
        for candidate in &before {
            if let Ok(at) = candidate.done.binary_search(&target) {
                let mut candidate = candidate.clone();
                candidate.done.remove(at);
                keep(&mut found, candidate);
                continue;
            }
            let running: Vec<usize> = running
                .iter()
                .copied()
                .filter(|index| candidate.done.binary_search(index).is_err())
                .collect();
            let mut search = Search {
                calls,
                running,
                target,
                found,
                seen: Vec::new(),
                tries: 0,
                expected: None,
            };
            search.explore(candidate.clone());
            self.tries += search.tries as u64;
            if search.tries >= TRIES_MAX {
                self.given_up += 1;
            }
            expected = expected.or(search.expected);
            found = search.found;
        }
        if found.len() > CANDIDATES_MAX {
            self.given_up += 1;
            found.truncate(CANDIDATES_MAX);
        }
        if found.is_empty() {
            return Err(unexplained(calls, running, target, expected));
        }
        self.candidates = found;
        Ok(())
    }
}

fn keep(list: &mut Vec<Candidate>, candidate: Candidate) -> bool {
    let known = list.iter().any(|other| {
        other.done == candidate.done
            && (Rc::ptr_eq(&other.state, &candidate.state) || other.state == candidate.state)
    });
    if !known {
        list.push(candidate);
    }
    !known
}

impl Search<'_> {
    /// Tries the target, then every step that may have to come before it.
    fn explore(&mut self, candidate: Candidate) {
        self.tries += 1;
        if self.tries >= TRIES_MAX {
            return;
        }
        match candidate.state.step(&self.calls[self.target]) {
            Step::Impossible(text) => self.expected = self.expected.take().or(Some(text)),
            Step::Same => _ = keep(&mut self.found, candidate.clone()),
            Step::Next(state) => {
                let next = Candidate { state: Rc::new(state), done: candidate.done.clone() };
                keep(&mut self.found, next);
            }
        }
        for index in self.concerned(&candidate) {
            let state = match candidate.state.step(&self.calls[index]) {
                Step::Impossible(_) => continue,
                Step::Same => candidate.state.clone(),
                Step::Next(state) => Rc::new(state),
            };
            let mut done = candidate.done.clone();
            let place = done.partition_point(|&other| other < index);
            done.insert(place, index);
            let next = Candidate { state, done };
            if keep(&mut self.seen, next.clone()) {
                self.explore(next);
            }
        }
    }

    /// Running steps whose order with the target may matter.
    fn concerned(&self, candidate: &Candidate) -> Vec<usize> {
        let mut left: Vec<(usize, Footprint)> = self
            .running
            .iter()
            .filter(|index| candidate.done.binary_search(index).is_err())
            .map(|&index| (index, candidate.state.footprint(&self.calls[index])))
            .collect();
        if left.is_empty() {
            return Vec::new();
        }
        let mut front = vec![candidate.state.footprint(&self.calls[self.target])];
        let mut concerned = Vec::new();
        while let Some(footprint) = front.pop() {
            let mut rest = Vec::new();
            for (index, other) in left {
                if footprint.meets(&other) {
                    concerned.push(index);
                    front.push(other);
                } else {
                    rest.push((index, other));
                }
            }
            left = rest;
        }
        concerned.sort_unstable();
        concerned
    }
}

fn unexplained(
    calls: &[Call],
    running: &[usize],
    target: usize,
    expected: Option<String>,
) -> Unexplained {
    let call = &calls[target];
    let mut text = format!("{}\n  the model expects: ", call.line());
    text += expected.as_deref().unwrap_or("something else");
    for &index in running {
        text += &format!("\n  running: {}", calls[index].line());
    }
    // What touched the same objects before, newest last.
    let state = State::default();
    let mine = state.footprint(call);
    let mut before: BTreeMap<(u64, usize), String> = BTreeMap::new();
    for (index, other) in calls.iter().enumerate() {
        if other.ended < call.ended && state.footprint(other).meets(&mine) {
            before.insert((other.ended, index), other.line());
        }
    }
    for line in before.values().rev().take(12).rev() {
        text += &format!("\n  before: {line}");
    }
    Unexplained { text }
}
