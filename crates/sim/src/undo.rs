//! What led to a state, and how the state would be without the last changes of a client.
//!
//! Invariants:
//! - a client loses its changes in the order in which it made them, the last ones first: one that
//!   ended before another began is lost only with it;
//! - what a client synced, and what others were told of its changes, is not lost: a past in which
//!   another client's answer were different is none.

use std::rc::Rc;

use types::Ino;

use crate::call::{At, Call, FileNo, Op, Outcome};
use crate::model::{FsState, Step};

/// Steps further back than this from the last sync of a client are not looked at.
const LOOK_BACK: u64 = 400;
/// Changes beyond those that may be lost that are looked at: others may have run beside them.
const EXTRA_CHANGES: usize = 16;

/// One step of a past.
pub struct PastStep {
    /// The state before it.
    pub state: Rc<FsState>,
    /// The step, with its answer or what was guessed.
    pub call: Rc<Call>,
    /// Of the loss of a session: what its client takes for lost with it.
    lost: AssumedLost,
    before: Option<Rc<PastStep>>,
}

/// What a client that lives takes for lost with its session.
#[derive(Clone, Default)]
pub struct AssumedLost {
    /// Files whose making was lost, and its descriptors of them.
    pub files: Vec<(Ino, FileNo)>,
    /// Inodes whose making may have been lost.
    pub uncertain: Vec<Ino>,
}

impl PastStep {
    /// A step after others.
    pub fn new(
        before: &Option<Rc<PastStep>>,
        state: &Rc<FsState>,
        call: &Rc<Call>,
    ) -> Rc<PastStep> {
        PastStep::of_loss(before, state, call, AssumedLost::default())
    }

    /// The loss of a session after others.
    pub fn of_loss(
        before: &Option<Rc<PastStep>>,
        state: &Rc<FsState>,
        call: &Rc<Call>,
        lost: AssumedLost,
    ) -> Rc<PastStep> {
        let (state, call, before) = (state.clone(), call.clone(), before.clone());
        Rc::new(PastStep { state, call, lost, before })
    }
}

impl Drop for PastStep {
    /// One after the other: a past is long.
    fn drop(&mut self) {
        let mut next = self.before.take();
        while let Some(link) = next {
            match Rc::try_unwrap(link) {
                Ok(mut link) => next = link.before.take(),
                Err(_) => return,
            }
        }
    }
}

fn past_steps(past: Option<&Rc<PastStep>>) -> impl Iterator<Item = &Rc<PastStep>> {
    std::iter::successors(past, |link| link.before.as_ref())
}

/// The changes of names and attributes of a client that may be among its last `most`, and that it
/// has not synced, the newest first: of those that ran at the same time each may have been made
/// last.
pub fn last_changes(past: Option<&Rc<PastStep>>, client: usize, most: u32) -> Vec<&Rc<PastStep>> {
    let most = most as usize;
    let (mut floor, mut earlier, mut since) = (0, 0, 0);
    let mut found: Vec<&Rc<PastStep>> = Vec::new();
    for link in past_steps(past) {
        let call = &link.call;
        if earlier > EXTRA_CHANGES || call.ended + LOOK_BACK < floor || call.ended < since {
            break;
        }
        if call.client != client {
            continue;
        }
        match &call.op {
            Op::Fsync(..) | Op::SyncNames | Op::SyncAll if call.outcome == Some(Outcome::Done) => {
                floor = floor.max(call.begun);
            }
            // What its next session did may come before an earlier loss, which is noted late.
            Op::Lost { next, .. } => since = since.max(next.unwrap_or(call.ended)),
            op if op.changes_names() => {
                if !is_change(link) || call.ended < floor || call.begun < since {
                    continue;
                }
                let later = found.iter().filter(|link| link.call.begun > call.ended).count();
                if later < most { found.push(link) } else { earlier += 1 }
            }
            _ => {}
        }
    }
    found
}

/// Inodes that a client made with changes that may be among its last `most`.
pub fn last_made(past: Option<&Rc<PastStep>>, client: usize, most: u32) -> Vec<Ino> {
    let changes = last_changes(past, client, most);
    let made = changes.iter().filter(|link| link.call.op.makes());
    made.filter_map(|link| match link.call.outcome {
        Some(Outcome::Found(ino)) => ino,
        _ => None,
    })
    .collect()
}

/// What there may have been when a client lost some of its changes.
pub struct Alternative {
    /// The state; `None`: as it was.
    pub state: Option<Rc<FsState>>,
    /// What led to it; `None`: as it was.
    pub past: Option<Rc<PastStep>>,
    /// Descriptors of files whose making was among the lost.
    pub files: Vec<(Ino, FileNo)>,
    /// When each of the lost changes began.
    pub lost: Vec<u64>,
    /// Looks that had not ended, and could not have seen what they saw before the loss: they come
    /// after it.
    pub later: Vec<Rc<Call>>,
}

/// Every state that there may be when a client loses some of its last changes, by the position
/// `end`, first none; inodes of which `stays` is true were seen later.
pub fn without(
    past: Option<&Rc<PastStep>>,
    (client, end): (usize, u64),
    most: u32,
    stays: &dyn Fn(Ino) -> bool,
) -> Vec<Alternative> {
    let changes = last_changes(past, client, most);
    let seen = |link: &&Rc<PastStep>| match &link.call.outcome {
        Some(Outcome::Found(Some(ino))) => stays(*ino),
        _ => false,
    };
    let may_go: Vec<&Rc<PastStep>> = changes.iter().copied().filter(|link| !seen(link)).collect();
    let none = Alternative {
        state: None,
        past: None,
        files: Vec::new(),
        lost: Vec::new(),
        later: Vec::new(),
    };
    let mut all = vec![none];
    for &first in &changes {
        // AssumedLost with the one of the lost that ended first: those that began later, and any of those
        // that ran when it ended.
        let first_end = first.call.ended;
        let after = changes.iter().filter(|link| link.call.begun > first_end);
        let beside: Vec<&Rc<PastStep>> = changes
            .iter()
            .copied()
            .filter(|link| link.call.begun < first_end && link.call.ended > first_end)
            .take(4)
            .collect();
        let sure: Vec<&Rc<PastStep>> = after.copied().chain([first]).collect();
        for choice in 0..1usize << beside.len() {
            let some = beside.iter().enumerate().filter(|(nth, _)| choice >> nth & 1 == 1);
            let lost: Vec<&Rc<PastStep>> =
                sure.iter().copied().chain(some.map(|(_, l)| *l)).collect();
            if lost.len() > most as usize {
                continue;
            }
            if lost.iter().any(seen) {
                continue;
            }
            all.extend(again(past, &lost, (&may_go, most as usize), (client, end)));
        }
    }
    all
}

/// What would have been without the lost steps, if all others can have had their answers.
fn again(
    past: Option<&Rc<PastStep>>,
    lost: &[&Rc<PastStep>],
    (changes, most): (&[&Rc<PastStep>], usize),
    (client, end): (usize, u64),
) -> Option<Alternative> {
    let mut later = Vec::new();
    let mut left = lost.len();
    let mut tail = Vec::new();
    let mut start = None;
    for link in past_steps(past) {
        let is_lost = lost.iter().any(|lost| Rc::ptr_eq(lost, link));
        if is_lost {
            left -= 1;
        } else {
            tail.push(link);
        }
        if is_lost {
            start = Some((link, tail.len()));
        }
        if left == 0 {
            break;
        }
    }
    let (start, others) = start.filter(|_| left == 0)?;
    tail.truncate(others);
    let mut gone: Vec<u64> = lost.iter().map(|link| link.call.begun).collect();
    let (mut state, mut past) = (start.state.clone(), start.before.clone());
    let mut orphans: Vec<(Ino, FileNo)> =
        lost.iter().filter_map(|link| opened(&link.call)).collect();
    for link in tail.into_iter().rev() {
        let mut call = link.call.clone();
        if call.client == client
            && let Some((at, ino, file)) = opened_by_name(link)
            && state.find(at) != Some(ino)
        {
            // The name is lost. What it led to was opened all the same, unless that is lost, too.
            if state.nodes.get(&ino).is_none_or(|node| node.nlink == 0) {
                orphans.push((ino, file));
                continue;
            }
            call = Rc::new(Call { op: Op::Open(ino, file), ..Call::clone(&call) });
        }
        if link.call.client == client && renamed_nothing(link) {
            // Without what is lost it would, but the server did nothing.
            continue;
        }
        if let Op::Close(_, file) | Op::Left(_, file) = call.op {
            orphans.retain(|(_, open)| *open != file);
        }
        if !link.lost.files.is_empty() {
            Rc::make_mut(&mut state).give_up_handles(call.client, &link.lost.files);
        }
        let next = match state.step(&call) {
            Step::Same => state.clone(),
            Step::Next(next) => Rc::new(next),
            // Of several the first will do: what is lost are names, not sizes.
            Step::Several(mut next) => Rc::new(next.swap_remove(0)),
            // What the client itself saw goes with what it lost, and what it changed is lost, too.
            Step::Impossible(_) if call.client == client => {
                if is_change(link) {
                    let may_go = changes.iter().any(|change| Rc::ptr_eq(change, link));
                    if !may_go || gone.len() == most {
                        return None;
                    }
                    gone.push(link.call.begun);
                }
                orphans.extend(opened(&call));
                continue;
            }
            Step::Impossible(_) if call.op.only_looks() && call.ended > end => {
                later.push(call);
                continue;
            }
            Step::Impossible(_) => return None,
        };
        past = Some(PastStep::of_loss(&past, &state, &call, link.lost.clone()));
        state = next;
        if !link.lost.uncertain.is_empty() {
            Rc::make_mut(&mut state).mark_uncertain(call.client, &link.lost.uncertain);
        }
    }
    Some(Alternative { state: Some(state), past, files: orphans, lost: gone, later })
}

/// Has it changed names or attributes?
fn is_change(link: &PastStep) -> bool {
    // Opening what is there changes nothing.
    let idle = match link.call.op {
        Op::Create { at, .. } => link.state.find(at).is_some(),
        _ => renamed_nothing(link),
    };
    let done = matches!(link.call.outcome, Some(Outcome::Done | Outcome::Found(_)));
    link.call.op.changes_names() && done && !idle
}

/// Was it a rename between two names of one inode? The server does nothing then.
fn renamed_nothing(link: &PastStep) -> bool {
    match link.call.op {
        Op::Rename { from, to, .. } => link.state.find(from) == link.state.find(to),
        _ => false,
    }
}

/// The name, the inode and the file, if it opened by `O_CREAT` what was there.
fn opened_by_name(link: &PastStep) -> Option<(At, Ino, FileNo)> {
    let Op::Create { at, .. } = link.call.op else { return None };
    let (ino, file) = opened(&link.call)?;
    (link.state.find(at) == Some(ino)).then_some((at, ino, file))
}

/// The file that an operation has opened.
fn opened(call: &Call) -> Option<(Ino, FileNo)> {
    let opens = matches!(call.op, Op::Open(..) | Op::Create { .. } | Op::TmpFile(..));
    match call.outcome {
        Some(Outcome::Found(Some(ino))) if opens => Some((ino, call.op.file()?)),
        _ => None,
    }
}
