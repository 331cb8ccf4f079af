//! The past of a state, and the state without a client's last changes.
//!
//! Invariants:
//! - a client loses its changes in reverse order, the last one first. A change that ended before
//!   another began is lost only together with that one;
//! - a change that a client synced, or that another client saw, is not lost: a past in which
//!   another client's answer would differ is impossible;
//! - each shard has a log of its own: a client loses the changes that one server has executed. A
//!   change of several shards was agreed on before it took effect, and is never lost.

use std::rc::Rc;

use types::{Ino, ShardId};

use crate::call::{At, Call, FileNo, Op, Outcome, are_apart};
use crate::model::{FsState, Step};

/// Steps this far before a client's last sync are not examined.
const LOOK_BACK: u64 = 400;
/// Changes examined beyond those that may be lost: others may have run concurrently.
const EXTRA_CHANGES: usize = 16;

/// One step of a past.
pub struct PastStep {
    /// The state before it.
    pub state: Rc<FsState>,
    /// The step, with its answer or a guessed one.
    pub call: Rc<Call>,
    /// For the loss of a session: what its client assumes lost.
    lost: AssumedLost,
    before: Option<Rc<PastStep>>,
}

/// What a live client assumes lost with its session.
#[derive(Clone, Default)]
pub struct AssumedLost {
    /// Its open files on inodes that were lost before they became durable.
    pub files: Vec<(Ino, FileNo)>,
    /// Inodes that may have been lost so.
    pub uncertain: Vec<Ino>,
}

impl PastStep {
    /// A step that follows a past.
    pub fn new(
        before: &Option<Rc<PastStep>>,
        state: &Rc<FsState>,
        call: &Rc<Call>,
    ) -> Rc<PastStep> {
        PastStep::of_loss(before, state, call, AssumedLost::default())
    }

    /// The loss of a session that follows a past.
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
    /// Iterative, because a past is long.
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

/// A client, and the shard whose server it loses.
pub type Loser = (usize, ShardId);

/// A client's unsynced changes of names and attributes at a shard that may be among its last `most`
/// there, newest first. Of concurrent changes each may have been the last.
pub fn last_changes(
    past: Option<&Rc<PastStep>>,
    (client, shard): Loser,
    most: u32,
) -> Vec<&Rc<PastStep>> {
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
            Op::Fsync(..) | Op::SyncNames(_) | Op::SyncAll
                if call.outcome == Some(Outcome::Done)
                    && call.op.executed_at().is_none_or(|at| at == shard) =>
            {
                floor = floor.max(call.begun);
            }
            // Changes of its next session may come before an earlier loss that is recorded late.
            Op::Lost { next, shard: its, .. } if *its == shard => {
                since = since.max(next.unwrap_or(call.ended));
            }
            op if op.changes_names() && call.executed_at() == Some(shard) => {
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

/// Inodes that a client created by changes at a shard that may be among its last `most`.
pub fn last_made(past: Option<&Rc<PastStep>>, of: Loser, most: u32) -> Vec<Ino> {
    let changes = last_changes(past, of, most);
    let made = changes.iter().filter(|link| link.call.op.makes());
    made.filter_map(|link| match link.call.outcome {
        Some(Outcome::Found(ino)) => ino,
        _ => None,
    })
    .collect()
}

/// A possible state after a client lost some of its changes.
pub struct Alternative {
    /// The state; `None`: unchanged.
    pub state: Option<Rc<FsState>>,
    /// Its past; `None`: unchanged.
    pub past: Option<Rc<PastStep>>,
    /// Open files whose inode was lost before it became durable.
    pub files: Vec<(Ino, FileNo)>,
    /// The beginnings of the lost changes.
    pub lost: Vec<u64>,
    /// Unfinished reads that could not have seen this before the loss: they come after it.
    pub later: Vec<Rc<Call>>,
}

/// Every possible state when a client loses some of its last changes at a shard, by the position
/// `end`; the first is the state without a loss. `stays` holds for inodes that were seen later.
pub fn without(
    past: Option<&Rc<PastStep>>,
    (of, end): (Loser, u64),
    most: u32,
    stays: &dyn Fn(Ino) -> bool,
) -> Vec<Alternative> {
    let (client, _) = of;
    let changes = last_changes(past, of, most);
    let seen = |link: &&Rc<PastStep>| match &link.call.outcome {
        Some(Outcome::Found(Some(ino))) if stays(*ino) => true,
        _ => is_joint(link),
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
        // With the lost change that ended first all later ones are lost, and any of those that ran
        // when it ended.
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

/// The state without the lost steps, if all others can have had their answers.
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
            // The name is lost. The inode was opened all the same, unless it is lost too.
            if state.nodes.get(&ino).is_none_or(|node| node.nlink == 0) {
                orphans.push((ino, file));
                continue;
            }
            call = Rc::new(Call { op: Op::Open(ino, file), ..Call::clone(&call) });
        }
        if link.call.client == client && renamed_nothing(link) {
            // Without the lost steps it would rename, but the server did nothing.
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
            // Any of several states will do: names are lost here, not sizes.
            Step::Several(mut next) => Rc::new(next.swap_remove(0)),
            // The client's own reads are lost with its changes, and so are its dependent changes.
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

/// Did it change what two shards have?
fn is_joint(link: &PastStep) -> bool {
    let apart = |at: At| link.state.find(at).is_some_and(|ino| are_apart(ino, at.dir));
    match (&link.call.op, &link.call.outcome) {
        (Op::Make(at, _), Some(Outcome::Found(Some(ino)))) => are_apart(*ino, at.dir),
        (Op::Link(ino, at), _) => are_apart(*ino, at.dir),
        (Op::Unlink(at) | Op::Rmdir(at), _) => apart(*at),
        (Op::Rename { from, to, .. }, _) => are_apart(from.dir, to.dir),
        _ => false,
    }
}

/// Did it change names or attributes?
fn is_change(link: &PastStep) -> bool {
    // Opening an existing file changes nothing.
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

/// The name, the inode and the open file, if `O_CREAT` opened an existing file.
fn opened_by_name(link: &PastStep) -> Option<(At, Ino, FileNo)> {
    let Op::Create { at, .. } = link.call.op else { return None };
    let (ino, file) = opened(&link.call)?;
    (link.state.find(at) == Some(ino)).then_some((at, ino, file))
}

/// The inode and the open file of an operation that opened one.
fn opened(call: &Call) -> Option<(Ino, FileNo)> {
    let opens = matches!(call.op, Op::Open(..) | Op::Create { .. } | Op::TmpFile(..));
    match call.outcome {
        Some(Outcome::Found(Some(ino))) if opens => Some((ino, call.op.file()?)),
        _ => None,
    }
}
