//! Is there an order of the steps, consistent with real time, in which the model gives
//! every answer that was seen?
//!
//! Invariants:
//! - steps are settled in the order of their ends; a candidate is the model's state with the
//!   steps that took effect before they ended;
//! - a step that only looked takes effect as soon as it may;
//! - of a step without an answer both are followed up: that it took effect at some moment before
//!   its end, and that it never did;
//! - where changes may be lost, a candidate knows what led to it, so that it can be led there
//!   again without them;
//! - it accuses only while no search was given up; what nothing explains after that ends the
//!   judging, and where it ended is told;
//! - before a step others that still run are tried only if the order can matter: their
//!   footprints meet, directly or through others. So no candidate is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use types::{FileKind, HashMap, Ino};

use crate::call::{At, Call, FileNo, Op, Outcome};
use crate::footprint::Footprint;
use crate::model::{State, Step};
use crate::undo::{self, Link};
use crate::witness;

/// Candidates kept; beyond it the search gives up, and says so.
const CANDIDATES_MAX: usize = 500;
/// A history of which so many searches were given up is not judged any further: what is open in it
/// goes on multiplying.
const GIVEN_UP_MAX: u64 = 32;
/// Steps tried for one end from one candidate, and from all of them.
const TRIES_MAX: usize = 20_000;
const END_TRIES_MAX: usize = 200_000;
/// As long as there are no more candidates than these, comparing costs less than hashing.
const FEW: usize = 16;

/// A state that explains everything so far.
#[derive(Clone)]
struct Candidate {
    state: Rc<State>,
    /// Steps that took effect and have not ended, sorted.
    done: Vec<usize>,
    /// What led here, if something may be lost.
    past: Option<Rc<Link>>,
    /// When each change began that was lost on the way here, or that had no answer and took effect;
    /// sorted. What is the same now without and with it may differ again when what came over it is
    /// lost.
    ways: Rc<Vec<u64>>,
}

/// No order explains this.
#[derive(Clone, Debug)]
pub struct Unexplained {
    /// For people: the step, what the model expects, and what ran at the same time.
    pub text: String,
}

/// The end of judging before the end of the history. It is no accusation, and no acquittal either.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Abandoned {
    /// The end of the first step that was not judged, and after which none was.
    pub from: u64,
    /// For people: why.
    pub text: String,
}

/// See the module.
pub struct Judge {
    candidates: Vec<Candidate>,
    /// Only the order that the server tells is tried, and others where it tells nothing and nothing
    /// else will do. What that explains is explained; it accuses nobody.
    guided: bool,
    /// Steps tried, in all.
    pub tries: u64,
    /// Searches given up: nothing is said about them.
    pub given_up: u64,
    /// Where it stopped judging, if it did.
    pub abandoned: Option<Abandoned>,
    /// The end of the last step that it has explained.
    pub settled: u64,
}

/// What the whole history says, whatever moment is judged.
struct Whole {
    /// Inodes that were seen and of which no answer says that they were made before: the name and
    /// the end of the first lookup, and the type.
    unmade: BTreeMap<Ino, (At, u64, Option<FileKind>)>,
    /// Names that were renamed, or may have been.
    renamed: BTreeSet<At>,
    /// When each inode was looked up for the last time: position of the lookup's beginning.
    looked_up: BTreeMap<Ino, u64>,
    /// Inodes whose numbers steps without an answer may have been given again, after the files that
    /// were made with them first were lost. By the steps' places.
    remade: BTreeMap<usize, Vec<Ino>>,
}

impl Whole {
    fn of(calls: &[Call]) -> Whole {
        // When each was made first, by an answer.
        let mut made = BTreeMap::from([(Ino::ROOT, 0)]);
        let mut again = BTreeSet::new();
        let mut unmade: BTreeMap<Ino, (At, u64, Option<FileKind>)> = BTreeMap::new();
        let mut renamed = BTreeSet::new();
        let mut looked_up: BTreeMap<Ino, u64> = BTreeMap::new();
        let losses: Vec<&Call> = losses(calls).collect();
        // After a loss the number of what was seen may be another file's.
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
                    let (_, first, kind) = unmade.entry(*ino).or_insert((*at, call.ended, None));
                    if let Outcome::Listed(_, listed) = found
                        && is_same(*first, call)
                    {
                        kind.get_or_insert(*listed);
                    }
                }
                (Op::GetAttr(ino), Some(Outcome::Attr(seen))) => {
                    if let Some((_, first, kind)) = unmade.get_mut(ino)
                        && is_same(*first, call)
                    {
                        kind.get_or_insert(seen.kind);
                    }
                }
                (Op::Create { at, exclusive: false, .. }, Some(Outcome::Found(Some(ino)))) => {
                    let known = made.contains_key(ino) || unmade.contains_key(ino);
                    again.extend(known.then_some(*ino));
                    let kind = Some(FileKind::Regular);
                    let (_, first, its) = unmade.entry(*ino).or_insert((*at, call.ended, kind));
                    if is_same(*first, call) {
                        *its = kind;
                    }
                }
                (op, Some(Outcome::Found(Some(ino)))) if op.makes() => {
                    // A number that was lost with its file may come again.
                    let seen = unmade.contains_key(ino);
                    let known = made.contains_key(ino) || seen;
                    again.extend(known.then_some(*ino));
                    made.entry(*ino).or_insert(call.begun);
                }
                (Op::Rename { from, to, .. }, _) => renamed.extend([*from, *to]),
                _ => {}
            }
        }
        // One that was seen before may have been made, and lost, by a step without an answer.
        unmade.retain(|ino, (_, seen, _)| made.get(ino).is_none_or(|begun| *seen < *begun));
        let remade = remade(calls, &renamed);
        again.extend(remade.values().flatten());
        looked_up.retain(|ino, _| !again.contains(ino));
        Whole { unmade, renamed, looked_up, remade }
    }

    /// Inodes that an operation without an answer may have made.
    fn made_by(&self, call: &Call, index: usize) -> Vec<Ino> {
        let Some((at, kind)) = makes(&call.op) else { return Vec::new() };
        let fits = |(first, seen, its): &(At, u64, Option<FileKind>)| {
            *seen > call.begun
                && its.is_none_or(|its| its == kind)
                && (*first == at || self.renamed.contains(&at))
        };
        let new = self.unmade.iter().filter(|(_, what)| fits(what)).map(|(ino, _)| *ino);
        new.chain(self.remade.get(&index).into_iter().flatten().copied()).collect()
    }
}

/// The name and the type that an operation makes.
fn makes(op: &Op) -> Option<(At, FileKind)> {
    match op {
        Op::Make(at, kind) => Some((*at, *kind)),
        Op::Symlink(at, _) => Some((*at, FileKind::Symlink)),
        Op::Create { at, .. } => Some((*at, FileKind::Regular)),
        _ => None,
    }
}

/// The ends of sessions with which names may have been lost.
fn losses(calls: &[Call]) -> impl Iterator<Item = &Call> {
    calls.iter().filter(|call| matches!(call.op, Op::Lost { kept: 1.., .. }))
}

/// How a number was first given to a file.
struct First {
    /// By a step of this client, which had its answer; else nobody knows by which.
    client: Option<usize>,
    /// When there was the file, at the latest.
    ended: u64,
}

/// See [`Whole::remade`].
fn remade(calls: &[Call], renamed: &BTreeSet<At>) -> BTreeMap<usize, Vec<Ino>> {
    let mut firsts: BTreeMap<Ino, First> = BTreeMap::new();
    let mut seen: BTreeMap<Ino, BTreeMap<At, u64>> = BTreeMap::new();
    let losses: Vec<&Call> = losses(calls).collect();
    for call in calls {
        match (&call.op, &call.outcome) {
            (Op::Lookup(at), Some(Outcome::Found(Some(ino)) | Outcome::Listed(ino, _))) => {
                let last = seen.entry(*ino).or_default().entry(*at).or_insert(0);
                *last = call.ended.max(*last);
                firsts.entry(*ino).or_insert(First { client: None, ended: call.ended });
            }
            (op, Some(Outcome::Found(Some(ino)))) if op.makes() => {
                let made = First { client: Some(call.client), ended: call.ended };
                match firsts.get(ino) {
                    // It was seen before that.
                    Some(first) if first.client.is_some() || first.ended < call.begun => {}
                    _ => drop(firsts.insert(*ino, made)),
                }
            }
            _ => {}
        }
    }
    let mut remade = BTreeMap::new();
    for (index, call) in calls.iter().enumerate().filter(|(_, call)| call.outcome.is_none()) {
        let Some((at, _)) = makes(&call.op) else { continue };
        let was_lost = |first: &First| {
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
            remade.insert(index, inos);
        }
    }
    remade
}

struct Search<'a> {
    calls: &'a [Call],
    whole: &'a Whole,
    guided: bool,
    /// Steps that run, that is: begun before the end that is settled, and not ended.
    running: Vec<usize>,
    target: usize,
    found: Distinct,
    seen: Distinct,
    tries: usize,
    /// After so many it gives up.
    most: usize,
    expected: Option<String>,
}

impl Judge {
    /// Everything begins from this state.
    pub fn new(state: State) -> Judge {
        let start =
            Candidate { state: Rc::new(state), done: Vec::new(), past: None, ways: Rc::default() };
        let candidates = vec![start];
        Judge { candidates, guided: false, tries: 0, given_up: 0, abandoned: None, settled: 0 }
    }

    /// As [`Judge::new`], in the order that the server tells (`witness.rs`).
    pub fn guided(state: State) -> Judge {
        Judge { guided: true, ..Judge::new(state) }
    }

    /// The states that explain everything; all steps have ended. None is left where judging was
    /// abandoned.
    pub fn states(&self) -> impl Iterator<Item = &State> {
        self.candidates.iter().map(|candidate| &*candidate.state)
    }

    /// Settles a history in which all steps have ended. That it holds is said of the steps before
    /// [`Judge::abandoned`] alone.
    pub fn settle(&mut self, calls: &[Call]) -> Result<(), Unexplained> {
        let mut ends: Vec<usize> = (0..calls.len()).collect();
        ends.sort_by_key(|&index| (calls[index].ended, index));
        let mut begins: Vec<usize> = (0..calls.len()).collect();
        begins.sort_by_key(|&index| (calls[index].begun, index));
        let mut begins = begins.into_iter().peekable();
        let mut running: Vec<usize> = Vec::new();
        let whole = Whole::of(calls);
        for target in ends {
            while let Some(next) = begins.next_if(|&next| calls[next].begun < calls[target].ended) {
                running.push(next);
            }
            running.retain(|&index| index != target);
            self.end(calls, &whole, &running, target)?;
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
        whole: &Whole,
        running: &[usize],
        target: usize,
    ) -> Result<(), Unexplained> {
        let mut found = Distinct::default();
        let (mut expected, mut tried) = (None, 0);
        let before = std::mem::take(&mut self.candidates);
        for candidate in &before {
            // More than are kept need not be found.
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
                let told = self.guided && witness::is_told(&calls[target].op);
                if told && calls[target].applied.is_none() {
                    continue;
                }
            }
            let running: Vec<usize> = running
                .iter()
                .copied()
                .filter(|index| candidate.done.binary_search(index).is_err())
                .collect();
            // Every candidate has its first try, whatever the others took.
            let most = TRIES_MAX.min(END_TRIES_MAX.saturating_sub(tried)).max(2);
            let mut search = Search {
                calls,
                whole,
                guided: self.guided,
                running,
                target,
                found,
                seen: Distinct::default(),
                tries: 0,
                most,
                expected: None,
            };
            let mut candidate = candidate.clone();
            search.absorb(&mut candidate);
            search.explore(candidate);
            tried += search.tries;
            self.tries += search.tries as u64;
            if search.tries >= most {
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
            // Perhaps what was not looked at explains it.
            let text = format!("after {} searches given up nothing explains", self.given_up);
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
    /// Where those of a hash are, once they are more than [`FEW`].
    places: HashMap<u64, Vec<usize>>,
}

impl Distinct {
    /// Adds one, unless it is there.
    fn keep(&mut self, candidate: Candidate) -> bool {
        let number = self.list.len();
        if number < FEW {
            let new = !self.list.iter().any(|other| other.is(&candidate));
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
        let new = !places.iter().any(|&place| self.list[place].is(&candidate));
        if new {
            places.push(number);
            self.list.push(candidate);
        }
        new
    }
}

impl Candidate {
    /// Where changes may be lost, whoever was told of them keeps them from that: so what was seen
    /// is part of the past.
    fn remembers(&mut self, call: &Call) {
        if self.state.mortal {
            let call = Rc::new(call.clone());
            self.past = Some(Link::new(&self.past, &self.state, &call));
        }
    }

    /// Its ways and `more`.
    fn with_ways(&self, more: &[u64]) -> Rc<Vec<u64>> {
        if more.is_empty() {
            return self.ways.clone();
        }
        let mut ways: Vec<u64> = self.ways.iter().chain(more).copied().collect();
        ways.sort_unstable();
        ways.dedup();
        Rc::new(ways)
    }

    /// Does the same follow from both?
    fn is(&self, other: &Candidate) -> bool {
        self.done == other.done
            && self.ways == other.ways
            && (Rc::ptr_eq(&self.state, &other.state) || self.state == other.state)
    }

    fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.done, &self.ways, &self.state).hash(&mut hasher);
        hasher.finish()
    }
}

impl Search<'_> {
    /// Tries the target, then every step that may have to come before it.
    fn explore(&mut self, candidate: Candidate) {
        self.tries += 1;
        if self.tries >= self.most || self.found.list.len() > CANDIDATES_MAX {
            return;
        }
        let mut concerned = self.concerned(&candidate);
        let told = if self.guided { self.told_first(&mut concerned) } else { None };
        let answered = told.is_some_and(|told| self.calls[told].outcome.is_some());
        if !answered || self.may_go_at_once() {
            let follows = self.take_target(&candidate);
            // What others do after who only looked, and narrowed nothing down by it, they need not
            // do before.
            let enough = self.guided && told.is_none_or(|_| answered || self.may_go_at_once());
            if follows && (enough || self.only_looks(&candidate)) {
                return;
            }
        } else {
            concerned.clear();
        }
        for index in told.into_iter().chain(concerned) {
            if self.comes_first(&candidate, index)
                || self.comes_later(index)
                || self.has_its_turn(&candidate, index)
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

    /// The target takes effect, if it can here.
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

    /// Takes those out of `concerned` of which the server tells when they took effect, or that they
    /// did not. Gives the one that is next, if it was before the target took effect: at its end, if
    /// nothing is told of it.
    fn told_first(&self, concerned: &mut Vec<usize>) -> Option<usize> {
        let all = self.calls;
        let (told, rest) = concerned
            .drain(..)
            .filter(|&index| {
                let call = &all[index];
                call.applied.is_some() || call.outcome.is_some() || !witness::is_told(&call.op)
            })
            .partition(|&index| all[index].applied.is_some());
        *concerned = rest;
        let told: Vec<usize> = told;
        let target = &all[self.target];
        let target = target.applied.unwrap_or(target.ended);
        let before = |&index: &usize| all[index].applied < Some(target);
        told.into_iter().filter(before).min_by_key(|&index| all[index].applied)
    }

    /// Are these the attributes that came with the answer to a step that has not taken effect yet?
    fn comes_first(&self, candidate: &Candidate, index: usize) -> bool {
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

    /// A process that ends gives up what it had open and locked. Of one inode that is taken in the
    /// order in which it was noted: nobody can tell another one, for a lock is in the way until all
    /// that it conflicts with are free, and a file without names is there until the last has closed
    /// it.
    fn has_its_turn(&self, candidate: &Candidate, index: usize) -> bool {
        let this = &self.calls[index];
        let Some(ino) = given_up(this) else { return false };
        let others = self.running.iter().copied().chain([self.target]);
        others.filter(|&other| other < index).any(|other| {
            let before = &self.calls[other];
            given_up(before) == Some(ino)
                && (before.client, before.begun, before.ended)
                    == (this.client, this.begun, this.ended)
                && candidate.done.binary_search(&other).is_err()
        })
    }

    /// Is the target what a device failed, and a write runs that failed, too? What was lost may be
    /// its bytes, so it is put into the file first, too; or it failed because of that, and was done
    /// later.
    fn awaits_writes(&self, candidate: &Candidate) -> bool {
        let target = &self.calls[self.target];
        let Op::Damaged { ino: damaged, .. } = target.op else { return false };
        self.running.iter().any(|&index| {
            let other = &self.calls[index];
            let Op::Write { ino, sync: true, .. } = other.op else { return false };
            ino == damaged
                && other.client == target.client
                && other.outcome == Some(Outcome::DeviceFailed)
                && candidate.done.binary_search(&index).is_err()
        })
    }

    /// Is the target what a device failed, and this an fsync that fails with it? It changes nothing
    /// else, and may as well have told of it.
    fn comes_later(&self, index: usize) -> bool {
        let (target, other) = (&self.calls[self.target], &self.calls[index]);
        matches!(target.op, Op::Damaged { .. })
            && matches!(other.op, Op::Fsync(..) | Op::SyncAll)
            && other.client == target.client
            && other.outcome == Some(Outcome::DeviceFailed)
    }

    /// Everything that may follow when a step takes effect; else what the model expects.
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
            candidate.state.guesses(call, &self.whole.made_by(call, index), index)
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
            let past = match candidate.state.mortal {
                true => Some(Link::new(&candidate.past, &candidate.state, &call)),
                false => None,
            };
            // No loss of changes brings back locks.
            let guessed = call.guessed && !matches!(call.op, Op::Tried { .. });
            let ways = match candidate.state.mortal && guessed {
                true => candidate.with_ways(&[call.begun]),
                false => candidate.ways.clone(),
            };
            follow.extend(states.into_iter().map(|state| Candidate {
                state,
                done: candidate.done.clone(),
                past: past.clone(),
                ways: ways.clone(),
            }));
        }
        if !call.op.only_looks() {
            follow.iter_mut().for_each(|next| self.absorb(next));
        }
        if follow.is_empty() { Err(expected) } else { Ok(follow) }
    }

    /// Running steps that only look, and could see here what they saw, are taken to have done so,
    /// and so are unlocks of what is not locked: nothing that explains the rest needs them to do it
    /// later.
    fn absorb(&self, candidate: &mut Candidate) {
        for &index in &self.running {
            let call = &self.calls[index];
            let Err(place) = candidate.done.binary_search(&index) else { continue };
            if self.guided
                && !self.comes_first(candidate, index)
                && self.takes_at_once(candidate, call)
            {
                candidate.done.insert(place, index);
                continue;
            }
            let fits = match call.op.only_looks() {
                true => {
                    call.outcome.is_some()
                        && !self.comes_first(candidate, index)
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

    /// Is the target one of those that take effect as soon as they can?
    fn may_go_at_once(&self) -> bool {
        let target = &self.calls[self.target];
        target.op.only_looks()
            || target.applied.is_none()
                && (matches!(target.outcome, Some(Outcome::Failed(_)))
                    || matches!(target.op, Op::Open(..) | Op::Create { .. }))
    }

    /// Of what nobody tells, and of which one may well suppose that it took effect as soon as it
    /// could: who looked or failed, and who opened what is there.
    fn takes_at_once(&self, candidate: &mut Candidate, call: &Call) -> bool {
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

    /// May the owner of what `unlock` frees have it only later, while that runs?
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
        let stays = |ino: Ino| self.whole.looked_up.get(&ino).is_some_and(|at| *at > lost.ended);
        let mut found = Distinct::default();
        let made = undo::last_made(candidate.past.as_ref(), lost.client, kept);
        let call = Rc::new(lost.clone());
        let dead = matches!(lost.op, Op::Lost { dead: true, .. });
        let of = (lost.client, lost.ended);
        for other in undo::without(candidate.past.as_ref(), of, kept, &stays) {
            let later = |index: &usize| other.later.iter().any(|look| look.is(&self.calls[*index]));
            let done: Vec<usize> =
                candidate.done.iter().copied().filter(|index| !later(index)).collect();
            let before = other.state.unwrap_or_else(|| candidate.state.clone());
            let past = other.past.or_else(|| candidate.past.clone());
            let ways = candidate.with_ways(&other.lost);
            // Of what it made the client may take the newest for lost, though it is not.
            let newest = (1..=made.len()).filter(|_| !dead);
            let mut gone: Vec<Vec<(Ino, FileNo)>> = vec![Vec::new()];
            gone.extend(newest.map(|newest| before.open_of(lost.client, &made[..newest])));
            gone.dedup();
            for more in gone {
                let files = other.files.iter().copied().chain(more).collect();
                let what = undo::Lost { files, doubted: made.clone() };
                let mut state = State::clone(&before);
                state.give_up(lost.client, &what.files);
                let Step::Next(mut state) = state.step(lost) else { continue };
                state.doubt(lost.client, &made);
                let past = Some(Link::of_loss(&past, &before, &call, what));
                let (state, done) = (Rc::new(state), done.clone());
                let mut next = Candidate { state, done, past, ways: ways.clone() };
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
            for lost in undo::last_changes(candidate.past.as_ref(), call.client, kept) {
                all.join(lost.state.footprint(&lost.call));
            }
        }
        all
    }

    /// Running steps whose order with the target may matter.
    fn concerned(&self, candidate: &Candidate) -> Vec<usize> {
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

/// The inode of which this gives up an open file or a lock.
fn given_up(call: &Call) -> Option<Ino> {
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
