//! Carries out what the machine asks for, and brings it what happens.

use std::pin::pin;
use std::rc::Rc;

use commitment::{Action, Entry, Envelope, Message, Outcome, Record, TxnId, Wait};
use mfs::{Cost, Reserve, Stop, StoreError, Txn};
use proto::mds::Letter;
use proto::wire::{Reader, Wire};
use types::{Duration, Epoch, Fault, Ino, ShardId, Transno};

use super::job::{Answered, Asked, Job, Open, Refusal};
use super::part::{self, Answer, Part};
use super::{
    ANSWER_PATIENCE, GATE_PATIENCE, OLDER_PATIENCE, ask, bounds, coordinate, guest, letter,
};
use crate::context::{Effects, OpContext, Waited};
use crate::leases::{HeldGates, NO_CLIENT, open_recalled, recall_behind};
use crate::ops::SERVER_PRINCIPAL;
use crate::recovery::kept_results::OutcomeRecord;
use crate::server::Server;
use crate::sessions::Session;

/// Pause before a write is tried again that had no room.
const RETRY: Duration = Duration::from_millis(100);
/// Pause between two looks for operations that have waited for too long.
const TICK: Duration = Duration::from_millis(500);
/// A part may take what removals may: its shard has promised it.
pub const APPLY: Cost = Cost { reserve: Reserve::Replay, ..Cost::STEP };

/// Another shard has this epoch, and can be reached.
pub fn reached(server: &Rc<Server>, shard: ShardId, epoch: Epoch) {
    let mut actions = Vec::new();
    server.joint.site.borrow_mut().peer(shard, epoch, &mut actions);
    perform(server, actions);
    if let Some(peer) = server.joint.peers.get(&shard) {
        peer.send_again(&server.runtime, epoch);
    }
}

/// Letters have come from another shard.
///
/// # Errors
/// `Protocol`: one of them is not to be understood, not from a server of this namespace, or of
/// another shard than that for which the session's server has spoken before.
pub fn hear(server: &Rc<Server>, session: &Session, letters: &[Letter]) -> Result<(), Fault> {
    for letter in letters {
        let (from, to) = (ShardId(letter.from), ShardId(letter.to));
        let is_for_me = to == server.runtime.shard;
        if !is_for_me || !server.joint.is_peer(from) || !session.speaks_for(from) {
            return Err(Fault::Protocol);
        }
        if let Some(aside) = letter::aside(letter) {
            ask::hear(server, aside, letter)?;
            continue;
        }
        let Some(envelope) = letter::envelope(letter) else { return Err(Fault::Protocol) };
        let joint = &server.joint;
        let is_new = take_body(server, &envelope, &letter.body.0)?;
        let mut actions = Vec::new();
        joint.site.borrow_mut().receive(envelope, &mut actions);
        if is_new && !joint.site.borrow().is_open(envelope.id) {
            // The machine does not take it up: it is late, or has been refused before.
            joint.open.borrow_mut().remove(&envelope.id);
        }
        perform(server, actions);
    }
    Ok(())
}

/// Keeps what a letter carries beside its message, before the machine acts on that. Yields whether
/// it is the first one of its operation.
fn take_body(server: &Rc<Server>, envelope: &Envelope, body: &[u8]) -> Result<bool, Fault> {
    let mut open = server.joint.open.borrow_mut();
    let now = server.runtime.env.now();
    let mut reader = Reader::new(body);
    match envelope.message {
        Message::UpdateReq { .. } if !open.contains_key(&envelope.id) => {
            let asked = Asked::get(&mut reader).map_err(|_| Fault::Protocol)?;
            let (gates, made, answers) = (Vec::new(), Vec::new(), Vec::new());
            let job = Job::Works { asked, gates, made, answers };
            open.insert(envelope.id, Rc::new(Open::new(job, Waited::default(), now)));
            return Ok(true);
        }
        Message::Updated | Message::Prepared | Message::Ask => {
            if let Some(it) = open.get(&envelope.id)
                && !body.is_empty()
            {
                let answers = Vec::<Answered>::get(&mut reader).map_err(|_| Fault::Protocol)?;
                if !it.job.borrow().takes(&answers) {
                    return Err(Fault::Protocol);
                }
                let mut known = it.answers.borrow_mut();
                // In two phases UPDATED may be late, and a worker knows more at PREPARED.
                let is_known = matches!(known.get(&envelope.from), Some(Ok(_)));
                if envelope.message != Message::Updated || !is_known {
                    known.insert(envelope.from, Ok(answers));
                }
            }
        }
        Message::Refused => {
            if let Some(it) = open.get(&envelope.id) {
                let refusal = Refusal(Vec::get(&mut reader).unwrap_or_default());
                it.answers.borrow_mut().insert(envelope.from, Err(refusal));
            }
        }
        _ => {}
    }
    Ok(false)
}

/// Queues actions, each behind those of its operation.
pub fn perform(server: &Rc<Server>, actions: Vec<Action>) {
    for action in actions {
        let id = match &action {
            Action::Send(envelope) => envelope.id,
            Action::Write { id, .. }
            | Action::Plan(id)
            | Action::Unlock(id)
            | Action::Reply(id, _)
            | Action::Suspect(id, _) => *id,
        };
        let open = server.joint.open.borrow().get(&id).cloned();
        match (open, action) {
            (Some(open), action) => {
                open.since.set(server.runtime.env.now());
                open.queue.borrow_mut().push_back(action);
                if !open.is_running.replace(true) {
                    server.runtime.env.spawn(carry_out(server.clone(), id, open));
                }
            }
            // An answer about an operation of which this shard keeps nothing.
            (None, Action::Send(envelope)) => send(server, None, &envelope),
            (None, _) => {}
        }
    }
    server.joint.changed.notify_all();
}

/// Carries out the actions of an operation until none is left.
async fn carry_out(server: Rc<Server>, id: TxnId, open: Rc<Open>) {
    loop {
        let Some(action) = open.queue.borrow_mut().pop_front() else { break };
        match action {
            Action::Send(envelope) => send(&server, Some(&open), &envelope),
            Action::Write { id, record, keeps, wait } => {
                match write(&server, &open, (id, record), keeps.as_ref()).await {
                    Ok(transno) if wait != Wait::Lazy => {
                        server.runtime.env.spawn(log(server.clone(), (id, record), transno));
                    }
                    Ok(_) => {}
                    Err(Unwritten::NoRoom) => no_room(&server, &open, (id, record)),
                    Err(Unwritten::Failed) => return,
                }
            }
            Action::Plan(id) => server.runtime.env.spawn(plan(server.clone(), id, open.clone())),
            Action::Unlock(_) => server.joint.unlock(&open),
            Action::Reply(_, outcome) => reply(&open, outcome),
            Action::Suspect(_, worker) => {
                if !open.is_suspected.replace(true) {
                    let text = format!("joint operation {id} waits for shard {worker}");
                    server.runtime.log(&format!("{text}, which does not answer"));
                }
            }
        }
    }
    open.is_running.set(false);
    if !server.joint.site.borrow().is_open(id) {
        server.joint.unlock(&open);
        server.joint.open.borrow_mut().remove(&id);
    }
    server.joint.changed.notify_all();
    server.runtime.event_ended();
}

/// Waits until a record is durable, and lets the machine know.
async fn log(server: Rc<Server>, (id, record): (TxnId, Record), transno: Transno) {
    if server.runtime.wait_durable(transno).await.is_ok() {
        if record == Record::Started {
            // The next new files of the directory are begun while this is agreed on.
            let open = server.joint.open.borrow().get(&id).cloned();
            drop(open.and_then(|open| open.turn.take()));
        }
        let mut actions = Vec::new();
        server.joint.site.borrow_mut().logged(id, record, &mut actions);
        perform(&server, actions);
    }
}

fn reply(open: &Open, outcome: Outcome) {
    if outcome == Outcome::Aborted {
        let answers = open.answers.borrow();
        let refusal = answers.values().find_map(|answer| answer.as_ref().err());
        let refusal = refusal.cloned().unwrap_or_default();
        let ended = |nth| Some(Err(refusal.of(nth)));
        *open.endings.borrow_mut() = (0..open.job.borrow().operations()).map(ended).collect();
        open.is_decided.set(true);
    }
    open.is_replied.set(true);
    open.ended.notify_all();
}

fn send(server: &Server, open: Option<&Open>, envelope: &Envelope) {
    let body = match (envelope.message, open) {
        (Message::UpdateReq { .. }, Some(open)) => match open.job.borrow().asks(envelope.to) {
            Some(asked) => asked.to_bytes(),
            None => return,
        },
        (Message::Updated | Message::Prepared | Message::Ask, Some(open)) => {
            open.own.borrow().to_bytes()
        }
        (Message::Refused, Some(open)) => open.refusal.borrow().0.to_bytes(),
        // It is forgotten why.
        (Message::Refused, None) => Refusal::default().0.to_bytes(),
        _ => Vec::new(),
    };
    if let Some(peer) = server.joint.peers.get(&envelope.to) {
        peer.send(&server.runtime, letter::letter(envelope, body));
    }
}

/// Why a record was not written.
enum Unwritten {
    /// There is no room, and nothing is promised yet.
    NoRoom,
    /// The store has failed, or the server stops.
    Failed,
}

/// Nobody relies on the operation yet: the machine refuses it.
fn no_room(server: &Rc<Server>, open: &Open, (id, record): (TxnId, Record)) {
    // What has no room together may have it one by one, so a batch is busy.
    let refusal = match open.job.borrow().operations() {
        1 => Refusal(vec![Fault::NoSpace]),
        _ => Refusal::default(),
    };
    open.refusal.borrow_mut().clone_from(&refusal);
    open.answers.borrow_mut().insert(server.runtime.shard, Err(refusal));
    let mut actions = Vec::new();
    server.joint.site.borrow_mut().no_room(id, record, &mut actions);
    perform(server, actions);
}

/// Writes a record, with what the shard keeps afterwards. If there is no room for one that was
/// promised it tries again.
async fn write(
    server: &Rc<Server>,
    open: &Rc<Open>,
    (id, record): (TxnId, Record),
    keeps: Option<&Entry>,
) -> Result<Transno, Unwritten> {
    let promised = !matches!(record, Record::Started | Record::Prepared);
    let mut said = false;
    loop {
        let written = match record {
            Record::Committed => commit(server, open, id, keeps).await,
            _ => note(server, open, (id, record), keeps).await,
        };
        match written {
            Ok(transno) => return Ok(transno),
            Err(StoreError::Fault(Fault::NoSpace)) if !promised => return Err(Unwritten::NoRoom),
            Err(StoreError::Fault(fault)) => {
                if !std::mem::replace(&mut said, true) {
                    let text = format!("joint operation {id}: {record:?}: {fault}; trying again");
                    server.runtime.log(&text);
                }
                server.runtime.env.sleep(RETRY).await;
            }
            Err(error) => {
                server.runtime.note_failure(&error, "writing of a joint operation");
                return Err(Unwritten::Failed);
            }
        }
        if server.runtime.is_stopping() {
            return Err(Unwritten::Failed);
        }
    }
}

/// Writes a record that applies nothing.
async fn note(
    server: &Rc<Server>,
    open: &Open,
    (id, record): (TxnId, Record),
    keeps: Option<&Entry>,
) -> Result<Transno, StoreError> {
    let job = open.job.borrow().clone();
    let (asked, gates, made, answers) = match job {
        Job::Works { asked, gates, made, answers } => (asked, gates, made, answers),
        Job::Coordinates { batch } => {
            return guest::note(server, open, batch, (id, record), keeps).await;
        }
        Job::Worked { .. } => {
            let bytes = job.to_bytes();
            let wrote = server.runtime.mfs.run(APPLY, |txn| keep(txn, id, keeps, Some(&bytes)));
            return Ok(wrote.await?.1);
        }
    };
    if record != Record::Prepared {
        let wrote = server.runtime.mfs.run(APPLY, |txn| keep(txn, id, keeps, None)).await?;
        for ino in made {
            server.orphans.release(ino);
        }
        return Ok(wrote.1);
    }
    let cost = Cost { reserve: Cost::STEP.reserve, ..cost_of(&asked.batch, &answers) };
    let mut prepared = Job::Works { asked: asked.clone(), gates, made, answers };
    let wrote = server.runtime.mfs.run(cost, |txn| {
        let Job::Works { made, answers, .. } = &mut prepared else { return Ok(()) };
        made.clear();
        // Of refused operations there are no answers.
        let agreed = asked.batch.iter().zip(answers).filter_map(|(parts, said)| {
            let said = said.as_mut().ok()?;
            Some(parts.iter().zip(said))
        });
        for (part, answer) in agreed.flatten() {
            if let Some(ino) = part::prepare(txn, part)? {
                // At once: the reaper may look for orphans just now.
                server.orphans.hold(ino);
                made.push(ino);
                *answer = Answer::Made { ino };
            }
        }
        keep(txn, id, keeps, Some(&prepared.to_bytes()))
    });
    let wrote = wrote.await;
    if let (Err(_), Job::Works { made, .. }) = (&wrote, &prepared) {
        made.iter().for_each(|&ino| server.orphans.unhold(ino));
    }
    let (_, transno) = wrote?;
    if let Job::Works { made, answers, .. } = &prepared {
        open.own.borrow_mut().clone_from(answers);
        server.joint.close(open, made);
        *open.made.borrow_mut() = Some(server.leases.enter(made.clone()).await);
    }
    *open.job.borrow_mut() = prepared;
    Ok(transno)
}

/// Writes what the shard keeps of an operation.
pub fn keep(
    txn: &mut Txn<'_>,
    id: TxnId,
    keeps: Option<&Entry>,
    bytes: Option<&[u8]>,
) -> Result<(), Stop> {
    match keeps {
        Some(entry) => txn.intents().put(id, entry, bytes),
        None => txn.intents().remove(id).map(drop),
    }
}

/// COMMITTED: applies what this shard has of the operation.
async fn commit(
    server: &Rc<Server>,
    open: &Rc<Open>,
    id: TxnId,
    keeps: Option<&Entry>,
) -> Result<Transno, StoreError> {
    let job = open.job.borrow().clone();
    match job {
        Job::Coordinates { batch } => {
            coordinate::commit(server, open, &batch, |txn| keep(txn, id, keeps, None)).await
        }
        Job::Works { asked, made, answers, .. } => {
            let batch = (&asked.batch[..], &answers[..]);
            let ran = run_parts(server, open, batch, &made, |txn, answers| {
                let worked = Job::Worked { answers: answers.to_vec() };
                keep(txn, id, keeps, Some(&worked.to_bytes()))
            });
            let (answers, transno, effects) = ran.await?;
            *open.own.borrow_mut() = answers;
            made.iter().for_each(|&ino| server.orphans.unhold(ino));
            apply(server, NO_CLIENT, effects, transno);
            if open.job.borrow().only_adds_files() {
                // Nobody sees a new file before its coordinator frees it, and nobody hears of its
                // name before that is durable. So the directory is free for others at once.
                server.joint.unlock(open);
            }
            Ok(transno)
        }
        // A restart has found it: only the end is written.
        Job::Worked { .. } => {
            let wrote = server.runtime.mfs.run(APPLY, |txn| keep(txn, id, keeps, None));
            Ok(wrote.await?.1)
        }
    }
}

/// The worst case of the transaction that applies a worker's parts, and keeps the answers as far as
/// they are known.
fn cost_of(batch: &[Vec<Part>], said: &[Answered]) -> Cost {
    match batch.len() {
        0 | 1 => batch.iter().flatten().find_map(Part::cost).unwrap_or(APPLY),
        operations => {
            let parts: usize = batch.iter().map(|parts| parts.to_bytes().len()).sum();
            let answers: usize = said.iter().map(|answer| answer.to_bytes().len()).sum();
            bounds::cost(operations, parts + answers)
        }
    }
}

/// Runs the parts of all operations that were not refused (`said`) as one transaction. Needs are
/// met: the batch holds its gates.
async fn run_parts(
    server: &Rc<Server>,
    open: &Open,
    (batch, said): (&[Vec<Part>], &[Answered]),
    made: &[Ino],
    mut last: impl FnMut(&mut Txn<'_>, &[Answered]) -> Result<(), Stop>,
) -> Result<(Vec<Answered>, Transno, Effects), StoreError> {
    let mut effects = Effects::default();
    let waited = open.waited.take();
    let ran = server.runtime.mfs.run(cost_of(batch, said), |txn| {
        let mut cx = context(server, &waited, true);
        let mut made = made.iter().copied();
        let each = batch.iter().zip(said).map(|(parts, said)| match said {
            Ok(_) => part::execute_all(&mut cx, txn, parts, &mut made).map(Ok),
            Err(refused) => Ok(Err(*refused)),
        });
        let answers: Result<Vec<Answered>, Stop> = each.collect();
        effects = cx.effects;
        let answers = answers?;
        last(txn, &answers)?;
        Ok(answers)
    });
    let ran = ran.await;
    open.waited.replace(waited);
    let (answers, transno) = ran?;
    Ok((answers, transno, effects))
}

/// The context of parts, for the server itself. `is_sure`: what they need is met.
fn context<'a>(server: &'a Server, waited: &'a Waited, is_sure: bool) -> OpContext<'a> {
    const NOTHING_KEPT: &OutcomeRecord = &OutcomeRecord::new();
    OpContext {
        server,
        client: NO_CLIENT,
        principal: &SERVER_PRINCIPAL,
        now: server.runtime.stamp(),
        kept: NOTHING_KEPT,
        replayed: None,
        replay: is_sure,
        squashed: false,
        waited,
        joint: None,
        effects: Effects::default(),
    }
}

/// Applies what a transaction of a joint operation decided, at the instant it succeeded.
pub fn apply(server: &Server, client: types::ClientId, effects: Effects, transno: Transno) {
    let durable = server.runtime.mfs.last_committed();
    server.uncommitted.note(effects.changes, client, (transno, durable), false);
    for ino in effects.gone {
        server.leases.inode_left(ino);
    }
    for ino in effects.came {
        server.leases.inode_came(ino);
    }
    for ino in effects.relinked {
        server.orphans.relinked(ino);
    }
    for (ino, returns) in effects.orphaned {
        server.orphans.orphaned(returns, ino);
    }
    server.runtime.event_ended();
}

/// A worker's plan: takes the gates, has clients give up what stands in the way, and tries the
/// parts without keeping what they change. After [`GATE_PATIENCE`] it is refused. It goes on to its
/// end even then, since it may be evicting a client.
async fn plan(server: Rc<Server>, id: TxnId, open: Rc<Open>) {
    server.runtime.env.spawn(expire(server.clone(), id, open.clone()));
    let prepared = prepare(&server, &open).await;
    if open.is_planned.get() || !server.joint.site.borrow().is_open(id) {
        return server.joint.unlock(&open);
    }
    planned(&server, id, &open, prepared.err());
}

/// Refuses a plan that takes too long.
async fn expire(server: Rc<Server>, id: TxnId, open: Rc<Open>) {
    server.runtime.env.sleep(GATE_PATIENCE).await;
    if !open.is_planned.get() {
        planned(&server, id, &open, Some(Refusal::default()));
    }
}

fn planned(server: &Rc<Server>, id: TxnId, open: &Open, refusal: Option<Refusal>) {
    open.is_planned.set(true);
    let possible = refusal.is_none();
    *open.refusal.borrow_mut() = refusal.unwrap_or_default();
    let mut actions = Vec::new();
    server.joint.site.borrow_mut().planned(id, possible, &mut actions);
    perform(server, actions);
}

async fn prepare(server: &Rc<Server>, open: &Rc<Open>) -> Result<(), Refusal> {
    server.recovery.ended().await;
    let Job::Works { asked, .. } = open.job.borrow().clone() else {
        return Err(Refusal::default());
    };
    let batch = asked.batch;
    if !bounds::fits(server, batch.len(), batch.to_bytes().len()) {
        return Err(Refusal::default());
    }
    let mut waited = Waited::default();
    while !open.is_planned.get() {
        let Tried { effects, done } = try_parts(server, &batch, &waited).await;
        let inos: Vec<_> = effects.needs.iter().map(|need| need.ino).collect();
        let held = waited.gates.as_ref().is_some_and(|gates| gates.cover(&inos));
        if let Some(mut found) = done
            && (held || inos.is_empty() || found.iter().all(Result::is_err))
        {
            bounds::cut(batch.to_bytes().len(), &mut found);
            if let Some(refusal) = refused(server, &effects, &found).await {
                return Err(refusal);
            }
            server.joint.close(open, &inos);
            if let Job::Works { gates, answers, .. } = &mut *open.job.borrow_mut() {
                *gates = inos;
                answers.clone_from(&found);
            }
            *open.own.borrow_mut() = found;
            *open.waited.borrow_mut() = waited;
            return Ok(());
        }
        if !effects.missing && held {
            coordinate::glimpse_all(server, &effects, &mut waited).await;
            waited.find_out(server, effects.ask).await;
            continue;
        }
        waited.drop_gates();
        let asked = (NO_CLIENT, server.runtime.env.now());
        waited.gates = Some(enter(server, open, inos).await.map_err(|_| Refusal::default())?);
        let (leases, evictions) = (&server.leases, &*server.evictions);
        recall_behind(leases, evictions, asked, &effects.needs, None).await;
        waited.open_asked.extend(open_recalled(&effects.needs));
    }
    Err(Refusal::default())
}

/// Why all operations are refused, if they are. What a refusal tells of is durable after that.
async fn refused(server: &Server, effects: &Effects, found: &[Answered]) -> Option<Refusal> {
    if found.iter().any(Result::is_err) {
        let awaited = server.uncommitted.awaited(&effects.reads, NO_CLIENT);
        drop(server.runtime.wait_durable(awaited).await);
    }
    let faults: Vec<Fault> = found.iter().filter_map(|said| said.as_ref().err().copied()).collect();
    (faults.len() == found.len()).then_some(Refusal(faults))
}

/// What a worker's parts would do.
struct Tried {
    /// What they need.
    effects: Effects,
    /// What they would answer; `None`: something must be waited for.
    done: Option<Vec<Answered>>,
}

/// Tries the parts of all operations as one transaction, of which nothing is kept. One that fails
/// is left out, and the others are tried again without it.
async fn try_parts(server: &Rc<Server>, batch: &[Vec<Part>], waited: &Waited) -> Tried {
    let cost = Cost { reserve: Cost::STEP.reserve, ..cost_of(batch, &[]) };
    let mut refused: Vec<Option<Fault>> = vec![None; batch.len()];
    let mut reads = Vec::new();
    loop {
        let (mut effects, mut done, mut failed) = (Effects::default(), None, None);
        let tried = server.runtime.mfs.run(cost, |txn| {
            let mut cx = context(server, waited, false);
            failed = None;
            let ran = try_each(&mut cx, txn, (batch, &refused), &mut failed);
            effects = cx.effects;
            done = Some(ran?);
            // Nothing of it is kept.
            Err::<(), Stop>(Fault::Busy.into())
        });
        let fault = match tried.await {
            Ok(_) => Fault::Protocol,
            Err(error) => {
                server.runtime.note_failure(&error, "planning a joint operation");
                error.fault()
            }
        };
        if done.is_none() && !effects.waits() {
            reads.append(&mut effects.reads);
            match failed {
                Some(nth) => refused[nth] = Some(fault),
                // It is not one of them that fails.
                None => refused.fill(Some(fault)),
            }
            if !refused.contains(&None) {
                done = Some(refused.iter().map(|it| Err(it.unwrap_or(fault))).collect());
                return Tried { effects: Effects { reads, ..Effects::default() }, done };
            }
            continue;
        }
        effects.reads.append(&mut reads);
        return Tried { effects, done };
    }
}

/// Executes the parts of all operations but the refused ones. Those that have to wait change
/// nothing, so the needs of all come together. `failed`: which one has ended it.
fn try_each(
    cx: &mut OpContext<'_>,
    txn: &mut Txn<'_>,
    (batch, refused): (&[Vec<Part>], &[Option<Fault>]),
    failed: &mut Option<usize>,
) -> Result<Vec<Answered>, Stop> {
    let mut all = Vec::with_capacity(batch.len());
    for (nth, (parts, refused)) in batch.iter().zip(refused).enumerate() {
        if let Some(fault) = refused {
            all.push(Err(*fault));
            continue;
        }
        match part::execute_all(cx, txn, parts, &mut std::iter::empty()) {
            Ok(answers) => all.push(Ok(answers)),
            Err(Stop::Fault(fault)) if cx.effects.waits() => all.push(Err(fault)),
            Err(stop) => {
                *failed = matches!(stop, Stop::Fault(_)).then_some(nth);
                return Err(stop);
            }
        }
    }
    match cx.effects.waits() {
        true => Err(Fault::Busy.into()),
        false => Ok(all),
    }
}

/// Takes the gates of a part. It gives way to an older operation that has one of them, and may be
/// waiting for a gate that this one has on another shard.
async fn enter(server: &Server, open: &Rc<Open>, inos: Vec<Ino>) -> Result<HeldGates, Fault> {
    open.wants.borrow_mut().clone_from(&inos);
    let mut entering = pin!(server.leases.enter(inos.clone()));
    while !open.is_planned.get() {
        let entered = server.runtime.env.timeout(OLDER_PATIENCE, entering.as_mut()).await;
        if let Some(gates) = entered {
            return Ok(gates);
        }
        if open.may_block_an_older() && server.joint.is_behind_an_older(open, &inos) {
            break;
        }
    }
    Err(Fault::Busy)
}

/// Asks the machine what to do with operations that have waited for too long.
pub async fn remind(server: Rc<Server>) {
    while !server.runtime.is_stopping() {
        server.runtime.env.sleep(TICK).await;
        let now = server.runtime.env.now();
        let late: Vec<TxnId> = {
            let open = server.joint.open.borrow();
            let late = |it: &Rc<Open>| now.since(it.since.get()) > ANSWER_PATIENCE;
            open.iter().filter(|(_, it)| late(it)).map(|(&id, _)| id).collect()
        };
        for id in late {
            if let Some(it) = server.joint.open.borrow().get(&id) {
                it.since.set(now);
            }
            let mut actions = Vec::new();
            server.joint.site.borrow_mut().overdue(id, &mut actions);
            perform(&server, actions);
        }
    }
}
