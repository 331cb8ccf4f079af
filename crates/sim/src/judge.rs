//! Looks for an order of the steps, consistent with real time, in which the model gives every
//! observed answer.
//!
//! Invariants:
//! - steps are settled in the order of their ends; a candidate is a state of the model plus the
//!   steps that took effect before they ended;
//! - a read-only step takes effect as soon as it may;
//! - a step without an answer is followed both ways: it took effect at some moment before its end,
//!   or never;
//! - where changes may be lost, a candidate keeps its past, so that the judge can replay it without
//!   the lost changes;
//! - the judge accuses only while no search was given up. After that, a step that nothing explains
//!   ends the judging, and the judge reports where;
//! - before a step the judge tries other running steps only if the order can matter: their
//!   footprints conflict, directly or through others. This loses no candidate.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use types::{FileKind, HashMap, Ino};

use crate::call::{At, Call, FileNo, Op, Outcome};
use crate::footprint::Footprint;
use crate::model::{FsState, Step};
use crate::observed_order::is_reported;
use crate::undo::{self, PastStep};

/// Most candidates kept; with more the search gives up and reports it.
const CANDIDATES_MAX: usize = 500;
/// After this many abandoned searches the judge stops: the open choices keep multiplying.
const GIVEN_UP_MAX: u64 = 32;
/// Most steps tried for one end from one candidate, and from all.
const TRIES_MAX: usize = 20_000;
const END_TRIES_MAX: usize = 200_000;
/// Up to this many candidates, comparing costs less than hashing.
const FEW: usize = 16;

/// A state of the model that explains everything so far.
#[derive(Clone)]
struct Candidate {
    state: Rc<FsState>,
    /// Steps that took effect and have not ended, sorted.
    done: Vec<usize>,
    /// The steps that led here, if changes may be lost.
    past: Option<Rc<PastStep>>,
    /// The beginnings of the changes that were lost, or that took effect without an answer; sorted.
    /// Two states equal now may diverge when a later change is rolled back, so both are kept.
    uncertain: Rc<Vec<u64>>,
}

/// A step that no order explains.
#[derive(Clone, Debug)]
pub struct Unexplained {
    /// The step, what the model expects, and what ran at the same time.
    pub text: String,
}

/// The judge stopped before the end of the history: it neither accuses nor acquits the rest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Abandoned {
    /// The end of the first step that was not judged.
    pub from: u64,
    /// The reason.
    pub text: String,
}

/// See the module.
pub struct Judge {
    candidates: Vec<Candidate>,
    /// Tries only the observed order, and other orders for steps that nobody reports. It may
    /// explain a history, but it accuses nobody.
    guided: bool,
    /// Steps tried, in all.
    pub tries: u64,
    /// Searches given up: their steps are not judged.
    pub given_up: u64,
    /// Where the judge stopped, if it did.
    pub abandoned: Option<Abandoned>,
    /// The end of the last step that the judge explained.
    pub settled: u64,
}

/// Facts of the whole history, for every moment of it.
struct Facts {
    /// Inodes that were seen before any answer says who created them: the name and the end of the
    /// first lookup, and the type.
    uncreated: BTreeMap<Ino, (At, u64, Option<FileKind>)>,
    /// Names that were renamed, or may have been.
    renamed: BTreeSet<At>,
    /// For each inode the position at which its last lookup began.
    looked_up: BTreeMap<Ino, u64>,
    /// For each step without an answer: inode numbers that it may have reused after the files that
    /// had them first were lost.
    reused: BTreeMap<usize, Vec<Ino>>,
}

impl Facts {
    fn of(calls: &[Call]) -> Facts {
        // When each inode was first created, by an answer.
        let mut made = BTreeMap::from([(Ino::ROOT, 0)]);
        let mut again = BTreeSet::new();
        let mut uncreated: BTreeMap<Ino, (At, u64, Option<FileKind>)> = BTreeMap::new();
        let mut renamed = BTreeSet::new();
        let mut looked_up: BTreeMap<Ino, u64> = BTreeMap::new();
        let losses: Vec<&Call> = losses(calls).collect();
        // After a loss another file may have the number.
        let is_same = |seen: u64, call: &Call| {
            !losses.iter().any(|loss| loss.ended > seen && loss.begun < call.ended)
        };
        for call in calls {
            match (&call.op, &call.outcome) {
                (
                    Op::Lookup(at),
                    Some(found @ (Outcome::Found(Some(ino)) | Outcome::Listed(ino, _))),
                ) => {
                    let last = looked_up.entry(*ino).or_insert(0);
                    *last = call.begun.max(*last);
                    let (_, first, kind) = uncreated.entry(*ino).or_insert((*at, call.ended, None));
                    if let Outcome::Listed(_, listed) = found
                        && is_same(*first, call)
                    {
                        kind.get_or_insert(*listed);
                    }
                }
                (Op::GetAttr(ino), Some(Outcome::Attr(seen))) => {
                    if let Some((_, first, kind)) = uncreated.get_mut(ino)
                        && is_same(*first, call)
                    {
                        kind.get_or_insert(seen.kind);
                    }
                }
                (Op::Create { at, exclusive: false, .. }, Some(Outcome::Found(Some(ino)))) => {
                    let known = made.contains_key(ino) || uncreated.contains_key(ino);
                    again.extend(known.then_some(*ino));
                    let kind = Some(FileKind::Regular);
                    let (_, first, its) = uncreated.entry(*ino).or_insert((*at, call.ended, kind));
                    if is_same(*first, call) {
                        *its = kind;
                    }
                }
                (op, Some(Outcome::Found(Some(ino)))) if op.makes() => {
                    // A number that was lost with its file may be reused.
                    let seen = uncreated.contains_key(ino);
                    let known = made.contains_key(ino) || seen;
                    again.extend(known.then_some(*ino));
                    made.entry(*ino).or_insert(call.begun);
                }
                (Op::Rename { from, to, .. }, _) => renamed.extend([*from, *to]),
                _ => {}
            }
        }
        // A step without an answer may have created it before, and lost it.
        uncreated.retain(|ino, (_, seen, _)| made.get(ino).is_none_or(|begun| *seen < *begun));
        let reused = reused(calls, &renamed);
        again.extend(reused.values().flatten());
        looked_up.retain(|ino, _| !again.contains(ino));
        Facts { uncreated, renamed, looked_up, reused }
    }

    /// Inodes that an operation without an answer may have created.
    fn made_by(&self, call: &Call, index: usize) -> Vec<Ino> {
        let Some((at, kind)) = makes(&call.op) else { return Vec::new() };
        let fits = |(first, seen, its): &(At, u64, Option<FileKind>)| {
            *seen > call.begun
                && its.is_none_or(|its| its == kind)
                && (*first == at || self.renamed.contains(&at))
        };
        let new = self.uncreated.iter().filter(|(_, what)| fits(what)).map(|(ino, _)| *ino);
        new.chain(self.reused.get(&index).into_iter().flatten().copied()).collect()
    }
}

/// The name and the type that an operation creates.
fn makes(op: &Op) -> Option<(At, FileKind)> {
    match op {
        Op::Make(at, kind) => Some((*at, *kind)),
        Op::Symlink(at, _) => Some((*at, FileKind::Symlink)),
        Op::Create { at, .. } => Some((*at, FileKind::Regular)),
        _ => None,
    }
}

/// The losses of sessions that may include changes of names.
fn losses(calls: &[Call]) -> impl Iterator<Item = &Call> {
    calls.iter().filter(|call| matches!(call.op, Op::Lost { kept: 1.., .. }))
}

/// The first file with an inode number.
struct FirstUse {
    /// The client whose answered step created it; `None`: unknown.
    client: Option<usize>,
    /// The file existed at this position at the latest.
    ended: u64,
}

/// See [`Facts::reused`].
fn reused(calls: &[Call], renamed: &BTreeSet<At>) -> BTreeMap<usize, Vec<Ino>> {
    let mut firsts: BTreeMap<Ino, FirstUse> = BTreeMap::new();
    let mut seen: BTreeMap<Ino, BTreeMap<At, u64>> = BTreeMap::new();
    let losses: Vec<&Call> = losses(calls).collect();
    for call in calls {
        match (&call.op, &call.outcome) {
            (Op::Lookup(at), Some(Outcome::Found(Some(ino)) | Outcome::Listed(ino, _))) => {
                let last = seen.entry(*ino).or_default().entry(*at).or_insert(0);
                *last = call.ended.max(*last);
                firsts.entry(*ino).or_insert(FirstUse { client: None, ended: call.ended });
            }
            (op, Some(Outcome::Found(Some(ino)))) if op.makes() => {
                let made = FirstUse { client: Some(call.client), ended: call.ended };
                match firsts.get(ino) {
                    // It was seen before that.
                    Some(first) if first.client.is_some() || first.ended < call.begun => {}
                    _ => drop(firsts.insert(*ino, made)),
                }
            }
            _ => {}
        }
    }
    let mut reused = BTreeMap::new();
    for (index, call) in calls.iter().enumerate().filter(|(_, call)| call.outcome.is_none()) {
        let Some((at, _)) = makes(&call.op) else { continue };
        let was_lost = |first: &FirstUse| {
            losses.iter().any(|loss| {
                first.client.is_none_or(|client| client == loss.client)
                    && loss.ended > first.ended
                    && loss.begun < call.ended
            })
        };
        let seen_later = |ino| {
            seen.get(ino)
                .into_iter()
                .flatten()
                .any(|(name, last)| *last > call.begun && (*name == at || renamed.contains(&at)))
        };
        let lost = firsts.iter().filter(|(ino, first)| seen_later(ino) && was_lost(first));
        let inos: Vec<Ino> = lost.map(|(ino, _)| *ino).collect();
        if !inos.is_empty() {
            reused.insert(index, inos);
        }
    }
    reused
}

struct Search<'a> {
    calls: &'a [Call],
    facts: &'a Facts,
    guided: bool,
    /// Steps that began before the target's end and have not ended.
    running: Vec<usize>,
    target: usize,
    found: Distinct,
    seen: Distinct,
    tries: usize,
    /// The search gives up after this many tries.
    limit: usize,
    expected: Option<String>,
}

impl Judge {
    /// A judge whose history begins with this state.
    pub fn new(state: FsState) -> Judge {
        let start = Candidate {
            state: Rc::new(state),
            done: Vec::new(),
            past: None,
            uncertain: Rc::default(),
        };
        let candidates = vec![start];
        Judge { candidates, guided: false, tries: 0, given_up: 0, abandoned: None, settled: 0 }
    }

    /// Like [`Judge::new`], in the observed order (`observed_order.rs`).
    pub fn guided(state: FsState) -> Judge {
        Judge { guided: true, ..Judge::new(state) }
    }

    /// The states that explain everything once all steps have ended; none after an abandoned
    /// judging.
    pub fn states(&self) -> impl Iterator<Item = &FsState> {
        self.candidates.iter().map(|candidate| &*candidate.state)
    }

    /// Judges a history in which all steps have ended. `Ok` holds only for the steps before
    /// [`Judge::abandoned`].
    pub fn settle(&mut self, calls: &[Call]) -> Result<(), Unexplained> {
        let mut ends: Vec<usize> = (0..calls.len()).collect();
        ends.sort_by_key(|&index| (calls[index].ended, index));
        let mut begins: Vec<usize> = (0..calls.len()).collect();
        begins.sort_by_key(|&index| (calls[index].begun, index));
        let mut begins = begins.into_iter().peekable();
        let mut running: Vec<usize> = Vec::new();
        let facts = Facts::of(calls);
        for target in ends {
            while let Some(next) = begins.next_if(|&next| calls[next].begun < calls[target].ended) {
                running.push(next);
            }
            running.retain(|&index| index != target);
            self.end(calls, &facts, &running, target)?;
            if self.abandoned.is_some() {
                break;
            }
            self.settled = calls[target].ended;
        }
        Ok(())
    }

    fn abandon(&mut self, from: u64, text: String) {
        self.candidates.clear();
        self.abandoned = Some(Abandoned { from, text });
    }

    fn end(
        &mut self,
        calls: &[Call],
        facts: &Facts,
        running: &[usize],
        target: usize,
    ) -> Result<(), Unexplained> {
        let mut found = Distinct::default();
        let (mut expected, mut tried) = (None, 0);
        let before = std::mem::take(&mut self.candidates);
        for candidate in &before {
            // More candidates than the limit are not needed.
            if found.list.len() > CANDIDATES_MAX {
                break;
            }
            if let Ok(at) = candidate.done.binary_search(&target) {
                let mut candidate = candidate.clone();
                candidate.done.remove(at);
                found.keep(candidate);
                continue;
            }
            if calls[target].outcome.is_none() {
                // It may never have taken effect, or have been lost.
                found.keep(candidate.clone());
                let reported = self.guided && is_reported(&calls[target].op);
                if reported && calls[target].applied.is_none() {
                    continue;
                }
            }
            let running: Vec<usize> = running
                .iter()
                .copied()
                .filter(|index| candidate.done.binary_search(index).is_err())
                .collect();
            // Every candidate gets a first try, however many the others used.
            let limit = TRIES_MAX.min(END_TRIES_MAX.saturating_sub(tried)).max(2);
            let mut search = Search {
                calls,
                facts,
                guided: self.guided,
                running,
                target,
                found,
                seen: Distinct::default(),
                tries: 0,
                limit,
                expected: None,
            };
            let mut candidate = candidate.clone();
            search.absorb(&mut candidate);
            search.explore(candidate);
            tried += search.tries;
            self.tries += search.tries as u64;
            if search.tries >= limit {
                self.given_up += 1;
                if self.given_up >= GIVEN_UP_MAX {
                    let text = format!("{GIVEN_UP_MAX} searches were given up");
                    self.abandon(calls[target].ended, text);
                    return Ok(());
                }
            }
            expected = expected.or(search.expected);
            found = search.found;
        }
        let mut found = found.list;
        if found.len() > CANDIDATES_MAX {
            self.given_up += 1;
            found.truncate(CANDIDATES_MAX);
        }
        if found.is_empty() {
            let unexplained = unexplained(calls, running, target, expected);
            if self.given_up == 0 {
                return Err(unexplained);
            }
            // A part that was not searched may explain it.
            let text = format!("nothing explains after {} abandoned searches", self.given_up);
            self.abandon(calls[target].ended, format!("{text}\n  {}", unexplained.text));
            return Ok(());
        }
        self.candidates = found;
        Ok(())
    }
}

/// Different candidates, in the order in which they were found.
#[derive(Default)]
struct Distinct {
    list: Vec<Candidate>,
    /// Positions in `list` by hash, once it has more than [`FEW`].
    places: HashMap<u64, Vec<usize>>,
}

impl Distinct {
    /// Adds a candidate unless it is known.
    fn keep(&mut self, candidate: Candidate) -> bool {
        let number = self.list.len();
        if number < FEW {
            let new = !self.list.iter().any(|other| other.is_same(&candidate));
            if new {
                self.list.push(candidate);
            }
            return new;
        }
        if number == FEW && self.places.is_empty() {
            for (place, known) in self.list.iter().enumerate() {
                self.places.entry(known.hash()).or_default().push(place);
            }
        }
        let places = self.places.entry(candidate.hash()).or_default();
        let new = !places.iter().any(|&place| self.list[place].is_same(&candidate));
        if new {
            places.push(number);
            self.list.push(candidate);
        }
        new
    }
}

impl Candidate {
    /// Where changes may be lost, an answer that another client saw protects a change: reads belong
    /// to the past as well.
    fn remembers(&mut self, call: &Call) {
        if self.state.may_crash {
            let call = Rc::new(call.clone());
            self.past = Some(PastStep::new(&self.past, &self.state, &call));
        }
    }

    /// The uncertain changes, and `more`.
    fn with_uncertain(&self, more: &[u64]) -> Rc<Vec<u64>> {
        if more.is_empty() {
            return self.uncertain.clone();
        }
        let mut uncertain: Vec<u64> = self.uncertain.iter().chain(more).copied().collect();
        uncertain.sort_unstable();
        uncertain.dedup();
        Rc::new(uncertain)
    }

    /// Do the same futures follow from both?
    fn is_same(&self, other: &Candidate) -> bool {
        self.done == other.done
            && self.uncertain == other.uncertain
            && (Rc::ptr_eq(&self.state, &other.state) || self.state == other.state)
    }

    fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.done, &self.uncertain, &self.state).hash(&mut hasher);
        hasher.finish()
    }
}

impl Search<'_> {
    /// Tries the target, then every step that may have to come before it.
    fn explore(&mut self, candidate: Candidate) {
        self.tries += 1;
        if self.tries >= self.limit || self.found.list.len() > CANDIDATES_MAX {
            return;
        }
        let mut conflicting = self.conflicting(&candidate);
        let reported = if self.guided { self.next_reported(&mut conflicting) } else { None };
        let answered = reported.is_some_and(|reported| self.calls[reported].outcome.is_some());
        if !answered || self.may_take_now() {
            let follows = self.take_target(&candidate);
            // After a read-only target that excluded no state, the others need not come first.
            let enough = self.guided && reported.is_none_or(|_| answered || self.may_take_now());
            if follows && (enough || self.only_looks(&candidate)) {
                return;
            }
        } else {
            conflicting.clear();
        }
        for index in reported.into_iter().chain(conflicting) {
            if self.awaits_its_step(&candidate, index)
                || self.fails_with_target(index)
                || self.awaits_release(&candidate, index)
            {
                continue;
            }
            for next in self.follow(&candidate, index).unwrap_or_default() {
                if self.seen.keep(next.clone()) {
                    self.explore(next);
                }
            }
        }
    }

    /// Lets the target take effect, if it can here.
    fn take_target(&mut self, candidate: &Candidate) -> bool {
        match self.follow(candidate, self.target) {
            Ok(next) => {
                next.into_iter().for_each(|next| _ = self.found.keep(next));
                !self.awaits_writes(candidate)
            }
            Err(text) => {
                self.expected = self.expected.take().or(Some(text));
                false
            }
        }
    }

    /// Does the target change nothing here?
    fn only_looks(&self, candidate: &Candidate) -> bool {
        let target = &self.calls[self.target];
        target.op.only_looks() && matches!(candidate.state.step(target), Step::Same)
    }

    /// Removes from `conflicting` the steps whose effect is reported or known not to have happened.
    /// Returns the next step reported before the target (an unreported target counts at its end).
    fn next_reported(&self, conflicting: &mut Vec<usize>) -> Option<usize> {
        let all = self.calls;
        let (reported, rest) = conflicting
            .drain(..)
            .filter(|&index| {
                let call = &all[index];
                call.applied.is_some() || call.outcome.is_some() || !is_reported(&call.op)
            })
            .partition(|&index| all[index].applied.is_some());
        *conflicting = rest;
        let reported: Vec<usize> = reported;
        let target = &all[self.target];
        let target = target.applied.unwrap_or(target.ended);
        let before = |&index: &usize| all[index].applied < Some(target);
        reported.into_iter().filter(before).min_by_key(|&index| all[index].applied)
    }

    /// Are these attributes part of an answer whose own step has not taken effect yet?
    fn awaits_its_step(&self, candidate: &Candidate, index: usize) -> bool {
        let attributes = &self.calls[index];
        let Op::GetAttr(_) = attributes.op else { return false };
        let before = index.checked_sub(1).map(|before| (before, &self.calls[before]));
        before.is_some_and(|(before, call)| {
            (call.client, call.begun, call.ended)
                == (attributes.client, attributes.begun, attributes.ended)
                && !matches!(call.op, Op::Lookup(_))
                && candidate.done.binary_search(&before).is_err()
                && (before == self.target || self.running.contains(&before))
        })
    }

    /// At its exit a process releases its open files and locks. On one inode the judge takes these
    /// in the recorded order: nobody can observe another one. A lock conflicts until all its parts
    /// are free, and an orphan exists until its last close.
    fn awaits_release(&self, candidate: &Candidate, index: usize) -> bool {
        let this = &self.calls[index];
        let Some(ino) = released_inode(this) else { return false };
        let others = self.running.iter().copied().chain([self.target]);
        others.filter(|&other| other < index).any(|other| {
            let before = &self.calls[other];
            released_inode(before) == Some(ino)
                && (before.client, before.begun, before.ended)
                    == (this.client, this.begun, this.ended)
                && candidate.done.binary_search(&other).is_err()
        })
    }

    /// Did a device fail the target, while a write runs that failed too? The lost bytes may be
    /// those of the write, so it is tried first as well; or the write failed first and was done
    /// later.
    fn awaits_writes(&self, candidate: &Candidate) -> bool {
        let target = &self.calls[self.target];
        let Op::Damaged { ino: damaged, .. } = target.op else { return false };
        self.running.iter().any(|&index| {
            let other = &self.calls[index];
            let Op::Write { ino, until, .. } = other.op else { return false };
            (ino, until.is_later()) == (damaged, true)
                && other.client == target.client
                && other.outcome == Some(Outcome::DeviceFailed)
                && candidate.done.binary_search(&index).is_err()
        })
    }

    /// Did a device fail the target, and is this an fsync that reports it? Then it changes nothing
    /// else.
    fn fails_with_target(&self, index: usize) -> bool {
        let (target, other) = (&self.calls[self.target], &self.calls[index]);
        matches!(target.op, Op::Damaged { .. })
            && matches!(other.op, Op::Fsync(..) | Op::SyncAll)
            && other.client == target.client
            && other.outcome == Some(Outcome::DeviceFailed)
    }

    /// All candidates after a step takes effect; else what the model expects.
    fn follow(&self, candidate: &Candidate, index: usize) -> Result<Vec<Candidate>, String> {
        let call = &self.calls[index];
        let mut candidate = candidate.clone();
        if index != self.target
            && let Err(place) = candidate.done.binary_search(&index)
        {
            candidate.done.insert(place, index);
        }
        if let Op::Lost { kept, .. } = call.op
            && kept > 0
        {
            return Ok(self.lost(&candidate, call, kept));
        }
        let calls = if call.outcome.is_some() {
            vec![Rc::new(call.clone())]
        } else {
            candidate.state.possible_answers(call, &self.facts.made_by(call, index), index)
        };
        let mut follow = Vec::new();
        let mut expected = String::new();
        for call in calls {
            let states = match candidate.state.step(&call) {
                Step::Impossible(text) => {
                    expected = text;
                    continue;
                }
                Step::Same => vec![candidate.state.clone()],
                Step::Next(state) => vec![Rc::new(state)],
                Step::Several(states) => states.into_iter().map(Rc::new).collect(),
            };
            let past = match candidate.state.may_crash {
                true => Some(PastStep::new(&candidate.past, &candidate.state, &call)),
                false => None,
            };
            // No rollback of changes brings locks back.
            let guessed = call.guessed && !matches!(call.op, Op::Tried { .. });
            let uncertain = match candidate.state.may_crash && guessed {
                true => candidate.with_uncertain(&[call.begun]),
                false => candidate.uncertain.clone(),
            };
            follow.extend(states.into_iter().map(|state| Candidate {
                state,
                done: candidate.done.clone(),
                past: past.clone(),
                uncertain: uncertain.clone(),
            }));
        }
        if !call.op.only_looks() {
            follow.iter_mut().for_each(|next| self.absorb(next));
        }
        if follow.is_empty() { Err(expected) } else { Ok(follow) }
    }

    /// Lets running read-only steps that fit here take effect, and unlocks of nothing: no
    /// explanation of the others needs them later.
    fn absorb(&self, candidate: &mut Candidate) {
        for &index in &self.running {
            let call = &self.calls[index];
            let Err(place) = candidate.done.binary_search(&index) else { continue };
            if self.guided
                && !self.awaits_its_step(candidate, index)
                && self.take_now(candidate, call)
            {
                candidate.done.insert(place, index);
                continue;
            }
            let fits = match call.op.only_looks() {
                true => {
                    call.outcome.is_some()
                        && !self.awaits_its_step(candidate, index)
                        && matches!(candidate.state.step(call), Step::Same)
                }
                false => candidate.state.unlocks_nothing(call) && !self.is_being_locked(call),
            };
            if fits {
                candidate.remembers(call);
                candidate.done.insert(place, index);
            }
        }
    }

    /// Does the target take effect as soon as it can?
    fn may_take_now(&self) -> bool {
        let target = &self.calls[self.target];
        target.op.only_looks()
            || target.applied.is_none()
                && (matches!(target.outcome, Some(Outcome::Failed(_)))
                    || matches!(target.op, Op::Open(..) | Op::Create { .. }))
    }

    /// Lets an unreported step take effect as soon as it can: a read, a failure, or an open of an
    /// existing file.
    fn take_now(&self, candidate: &mut Candidate, call: &Call) -> bool {
        if call.applied.is_some() {
            return false;
        }
        let takes = match (&call.op, &call.outcome) {
            (_, Some(Outcome::Failed(_))) => false,
            (op, Some(_)) if op.only_looks() => true,
            (Op::Open(..), Some(Outcome::Found(_))) => true,
            (Op::Create { at, .. }, Some(Outcome::Found(ino))) => candidate.state.find(*at) == *ino,
            _ => return false,
        };
        let next = match candidate.state.step(call) {
            Step::Same => None,
            Step::Next(next) if takes => Some(Rc::new(next)),
            _ => return false,
        };
        candidate.remembers(call);
        candidate.state = next.unwrap_or_else(|| candidate.state.clone());
        true
    }

    /// May a running lock request give the owner the lock that `unlock` frees?
    fn is_being_locked(&self, unlock: &Call) -> bool {
        let Op::Lock { ino, owner, .. } = unlock.op else { return false };
        let running = self.running.iter().chain([&self.target]);
        running.map(|&index| &self.calls[index].op).any(|op| match op {
            Op::Lock { ino: other, owner: its, exclusive: Some(_), .. }
            | Op::Tried { ino: other, owner: its, .. } => (*other, *its) == (ino, owner),
            _ => false,
        })
    }

    /// A session is lost, with any part of its last changes.
    fn lost(&self, candidate: &Candidate, lost: &Call, kept: u32) -> Vec<Candidate> {
        let stays = |ino: Ino| self.facts.looked_up.get(&ino).is_some_and(|at| *at > lost.ended);
        let mut found = Distinct::default();
        let made = undo::last_made(candidate.past.as_ref(), lost.loser(), kept);
        let call = Rc::new(lost.clone());
        let dead = matches!(lost.op, Op::Lost { dead: true, .. });
        let of = (lost.loser(), lost.ended);
        for other in undo::without(candidate.past.as_ref(), of, kept, &stays) {
            let later = |index: &usize| other.later.iter().any(|look| look.is(&self.calls[*index]));
            let done: Vec<usize> =
                candidate.done.iter().copied().filter(|index| !later(index)).collect();
            let before = other.state.unwrap_or_else(|| candidate.state.clone());
            let past = other.past.or_else(|| candidate.past.clone());
            let uncertain = candidate.with_uncertain(&other.lost);
            // The client may assume that its newest files are lost, though they are not.
            let newest = (1..=made.len()).filter(|_| !dead);
            let mut gone: Vec<Vec<(Ino, FileNo)>> = vec![Vec::new()];
            gone.extend(newest.map(|newest| before.open_of(lost.client, &made[..newest])));
            gone.dedup();
            for more in gone {
                let files = other.files.iter().copied().chain(more).collect();
                let what = undo::AssumedLost { files, uncertain: made.clone() };
                let mut state = FsState::clone(&before);
                state.give_up_handles(lost.client, &what.files);
                let Step::Next(mut state) = state.step(lost) else { continue };
                state.mark_uncertain(lost.client, &made);
                let past = Some(PastStep::of_loss(&past, &before, &call, what));
                let (state, done) = (Rc::new(state), done.clone());
                let mut next = Candidate { state, done, past, uncertain: uncertain.clone() };
                self.absorb(&mut next);
                found.keep(next);
            }
        }
        found.list
    }

    /// What a running step may read and write.
    fn footprint(&self, candidate: &Candidate, index: usize) -> Footprint {
        let call = &self.calls[index];
        let mut all = candidate.state.footprint(call);
        if let Op::Lost { kept, .. } = call.op {
            for lost in undo::last_changes(candidate.past.as_ref(), call.loser(), kept) {
                all.join(lost.state.footprint(&lost.call));
            }
        }
        all
    }

    /// Running steps whose order with the target may matter.
    fn conflicting(&self, candidate: &Candidate) -> Vec<usize> {
        let mut left: Vec<(usize, Footprint)> = self
            .running
            .iter()
            .filter(|index| candidate.done.binary_search(index).is_err())
            .map(|&index| (index, self.footprint(candidate, index)))
            .collect();
        if left.is_empty() {
            return Vec::new();
        }
        let mut front = vec![self.footprint(candidate, self.target)];
        let mut conflicting = Vec::new();
        while let Some(footprint) = front.pop() {
            let mut rest = Vec::new();
            for (index, other) in left {
                if footprint.meets(&other) {
                    conflicting.push(index);
                    front.push(other);
                } else {
                    rest.push((index, other));
                }
            }
            left = rest;
        }
        conflicting.sort_unstable();
        conflicting
    }
}

/// The inode on which this step releases an open file or a lock.
fn released_inode(call: &Call) -> Option<Ino> {
    match call.op {
        Op::Left(ino, _) | Op::Lock { ino, exclusive: None, .. } => {
            (call.outcome == Some(Outcome::Done)).then_some(ino)
        }
        _ => None,
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
    // Earlier steps on the same objects, newest last.
    let state = FsState::default();
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
