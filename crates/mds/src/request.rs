//! A request from its arrival to its answer.
//!
//! Invariants:
//! - the transaction that changes something also keeps the operation's outcome under the request's
//!   number; a request that is sent again goes on after the kept outcomes;
//! - an operation grants leases when it succeeds; an answer reports them as of when it leaves;
//! - an answer leaves when its dependencies are durable (the reply gate).

mod joint;
mod locks;
mod space;

use std::rc::Rc;

use channel::Squash;
use mfs::{Cost, Reserve, Stop, StoreError, Txn};
use proto::mds::{HeldLease, Lock, Message, Op, OpReply, Principal, Reply, Request, ZONE_PUSHES};
use proto::operation::{Class, Grace, Repeat, Sender};
use types::limits::COMPOUND_OPS_MAX;
use types::{BlockRange, Bug, ClientId, Duration, Fault, Ino, Rights, Timestamp, Transno, planted};

use crate::administration;
use crate::context::{Effects, OpContext, Waited};
use crate::holders;
use crate::joint::hear;
use crate::leases::{Glimpsed, Granted, Grants, glimpse, open_recalled};
use crate::observer::Executed;
use crate::ops::{self, READ, commit, permission, repeat};
use crate::recovery::kept_results::{self, Outcome, OutcomeRecord};
use crate::server::Server;
use crate::sessions::{Session, SessionState};
use crate::uncommitted::MetaItem;
use crate::workers::Worker;
use session::server::recovery::replay::{self, KeptResults, ReplayDecision, Sending};

/// The user and the group without any right but everybody's.
const NOBODY: u32 = 65_534;
/// How long `statfs` waits for orphans that are being freed.
const STATFS_WAIT: Duration = Duration::from_secs(1);

/// Executes a request and sends its answer.
pub async fn serve(server: Rc<Server>, session: Rc<Session>, mut request: Request, fresh: bool) {
    squash(session.squash(), &mut request.principal);
    let worker = server.workers.admit(needs_worker(&request));
    if !may_pass(&server, &session, &request) {
        worker.away(server.recovery.ended()).await;
    }
    worker.begin().await;
    if session.is_over() {
        return;
    }
    let mut work = Execution {
        results: Vec::with_capacity(request.ops.len()),
        record: OutcomeRecord::new(),
        kept: OutcomeRecord::new(),
        dependency: Transno::ZERO,
        transno: Transno::ZERO,
        sync: request.sync,
        leave: false,
        worker,
        joining: joint::Joining::default(),
        server,
        session,
        request,
    };
    if fresh {
        work.wait_until_settled().await;
    }
    match work.look_up_kept(fresh).await {
        Ok(false) => work.execute().await,
        Ok(true) => work.answer_surviving_replay(),
        Err(fault) => work.results.push(Err(fault)),
    }
    work.answer().await;
}

/// Is it work that a bounded number of workers does? Others wait for a session that is renewed,
/// reclaimed or ended, and an administrator's request may wait for all clients.
fn needs_worker(request: &Request) -> bool {
    let is_work = |op: &Op| {
        let spec = op.spec();
        spec.class != Class::Session && spec.sender != Sender::Administrator
    };
    request.replay.is_none() && request.ops.iter().all(is_work)
}

/// From here on a caller whose rights are squashed counts as nobody (PROTOCOLS 1a.9).
fn squash(squash: Squash, principal: &mut Principal) {
    let all = squash == Squash::All;
    // A caller that the client cannot name is nobody, too.
    let unknown = principal.uid == u32::MAX && squash != Squash::Off;
    if all || unknown || squash == Squash::Root && principal.uid == 0 {
        *principal = Principal { uid: NOBODY, gid: NOBODY, groups: Vec::new() };
    } else if squash == Squash::Root {
        principal.groups.retain(|group| *group != 0);
        if principal.gid == 0 {
            principal.gid = NOBODY;
        }
    }
}

/// During the grace only recovery passes.
fn may_pass(server: &Server, session: &Session, request: &Request) -> bool {
    let recovering = session.state() == SessionState::Recovering;
    let is_served = |op: &Op| match op.spec().grace {
        Grace::Served => true,
        Grace::Recovery => recovering,
        Grace::Waits => false,
    };
    server.recovery.is_over()
        || planted(Bug::GraceSkipped)
        || (recovering && request.replay.is_some())
        || request.ops.iter().all(is_served)
}

/// Rights that let the client cache attributes and names that a reply carries in passing.
const CACHE: Rights = Rights::ATTR.union(Rights::NAMES);

/// Fills in the leases of `session` as they are now. A cache right that the client did not hold at
/// the read is left out, even if it was granted since: the value may have changed in between. The
/// same goes for a right that was granted again since the read.
pub fn fill_in_leases(server: &Server, session: &Session, results: &mut [Result<OpReply, Fault>]) {
    let leases = server.leases.table();
    for reply in results.iter_mut().flatten() {
        if let OpReply::Acquired { leased, ranges: parts, .. } = reply {
            // Ranges that the client lost meanwhile, or that are being recalled, are left out.
            parts.retain(|&part| leases.keeps_range(session.client, leased.attr.ino, part));
        }
        reply.each_leased(&mut |leased| {
            let held = leases.held(session.client, leased.attr.ino);
            let same = leased.seq == held.seq;
            let believed = if same { held.rights & leased.rights & CACHE } else { Rights::empty() };
            (leased.rights, leased.seq) = ((held.rights - CACHE) | believed, held.seq);
        });
    }
}

struct Execution {
    server: Rc<Server>,
    session: Rc<Session>,
    request: Request,
    results: Vec<Result<OpReply, Fault>>,
    /// Outcomes of this request's operations so far.
    record: OutcomeRecord,
    /// Outcomes that were kept before the server restarted.
    kept: OutcomeRecord,
    /// The dependency: it must be durable before the answer leaves.
    dependency: Transno,
    /// The last transaction of the request.
    transno: Transno,
    sync: bool,
    leave: bool,
    worker: Worker,
    /// What the operation that runs has to do with other shards.
    joining: joint::Joining,
}

impl Execution {
    fn client(&self) -> ClientId {
        self.session.client
    }

    /// Looks up whether the request was executed before the server restarted. True: it is a replay
    /// whose changes have all survived.
    async fn look_up_kept(&mut self, fresh: bool) -> Result<bool, Fault> {
        let replays = self.request.replay.is_some();
        if replays && self.session.state() != SessionState::Recovering {
            return Err(Fault::Protocol);
        }
        // A renewal is a probe: it waits for nothing, so not for the store either.
        let is_probe = self.request.ops.iter().all(|op| matches!(op, Op::Renew {}));
        if !fresh || !self.session.known || is_probe {
            return Ok(false);
        }
        let (client, slot) = (self.client(), u32::from(self.request.slot));
        let found = self.server.runtime.mfs.run(READ, |txn| txn.reply(client, slot)).await;
        let found = self.store(found)?.0;
        let kept = found.as_ref().map(|(seq, _)| *seq);
        if let Some((_, bytes)) = found.filter(|(seq, _)| *seq == self.request.seq) {
            self.kept = kept_results::decode(&bytes).map_err(|_| Fault::Corrupt)?;
        }
        let sending = if replays { Sending::Replayed } else { Sending::Sent };
        let kept = KeptResults::of(self.request.seq, kept, || self.is_replay_done());
        match replay::decide(sending, kept) {
            ReplayDecision::Execute => Ok(false),
            ReplayDecision::GoOn => {
                self.record.clone_from(&self.kept);
                Ok(false)
            }
            ReplayDecision::AnswerAsBefore => Ok(true),
            ReplayDecision::Refuse => Err(Fault::Protocol),
        }
    }

    /// Has everything that the replayed request changed survived? Each of its operations is a
    /// transaction of its own, and a large commit is several: some of them may be lost.
    fn is_replay_done(&self) -> bool {
        let Some(replay) = &self.request.replay else { return false };
        let mut done = self.request.ops.iter().zip(&replay.results).enumerate();
        done.all(|(index, (op, result))| match (self.kept_outcome(index), result) {
            (Some(Outcome::Edits(kept)), Ok(OpReply::Partial { done, .. })) => kept >= done,
            (Some(outcome), _) => !matches!(outcome, Outcome::Edits(_)),
            (None, result) => result.is_err() || !op.spec().is_change(),
        })
    }

    /// Answers a replay whose changes have survived with the results that it had.
    fn answer_surviving_replay(&mut self) {
        if let Some(replay) = &self.request.replay {
            self.results.clone_from(&replay.results);
            // It must be durable before the answer: several such answers carry the same number.
            self.transno = self.session.last_transno();
            self.dependency = self.transno;
        }
    }

    async fn execute(&mut self) {
        let count = self.request.ops.len();
        if count > COMPOUND_OPS_MAX {
            self.results.push(Err(Fault::TooBig));
            return;
        }
        if let Some(fault) = self.refusal_as_misdirected() {
            self.results.push(Err(fault));
            return;
        }
        for index in 0..count {
            let mut result = self.execute_one(index).await;
            // What is read of a joint operation is older than its answer, and brings no right.
            if let Ok(reply) = &mut result
                && !self.joining.was_joint.take()
            {
                self.note_leases(index, reply);
            }
            let failed = matches!(result, Err(_) | Ok(OpReply::Partial { .. }));
            self.results.push(result.map_err(|fault| self.or_stale(index, fault)));
            if failed {
                return;
            }
        }
    }

    /// Records the client's rights on what the operation has just read, and the sequence number of
    /// their grant or recall. A repeated answer was read at another time, so it carries no right.
    fn note_leases(&self, index: usize, reply: &mut OpReply) {
        if self.request.replay.is_some() || self.kept_outcome(index).is_some() {
            return;
        }
        let leases = self.server.leases.table();
        reply.each_leased(&mut |leased| {
            let held = leases.held(self.client(), leased.attr.ino);
            // Another answer may have granted the right, and may be waiting until the change that
            // this one reports in passing is durable.
            (leased.rights, leased.seq) = (self.cacheable(leased.attr.ino, held.rights), held.seq);
        });
    }

    async fn execute_one(&mut self, index: usize) -> Result<OpReply, Fault> {
        if let Some(Err(fault)) = self.replayed(index) {
            // It changed nothing then, and the client has acted on that failure.
            return Err(*fault);
        }
        let sender = self.request.ops[index].spec().sender;
        let may = || match sender {
            Sender::Administrator => self.session.who().administers(),
            Sender::Server => self.session.who().serves(),
            Sender::Client | Sender::Anybody => true,
        };
        if !sender.is(self.client()) || !may() {
            return Err(Fault::NotPermitted);
        }
        let op = std::mem::replace(&mut self.request.ops[index], Op::Renew {});
        let before = self.transno;
        self.begin_joining(index, &op);
        let result = match ops::cost(&op) {
            Some(cost) => {
                let mut run =
                    self.attempt(cost, index, |cx, txn| run_op(cx, txn, index, &op)).await;
                if self.waited_for_room(&run).await {
                    run = self.attempt(cost, index, |cx, txn| run_op(cx, txn, index, &op)).await;
                }
                while self.is_to_go_on(&mut run, index, &op).await {
                    self.pause_before_another_try().await;
                    run = self.attempt(cost, index, |cx, txn| run_op(cx, txn, index, &op)).await;
                }
                run
            }
            None => self.other(index, &op).await,
        };
        if let Ok(reply) = &result {
            debug_assert!(self.is_as_declared(index, &op, reply), "{op:?}: {reply:?}");
            self.took_effect(index, &op, before);
        }
        self.request.ops[index] = op;
        result
    }

    /// Do answer and outcome agree with the operation's declaration? An outcome that was kept
    /// before depends on what the client sends again.
    fn is_as_declared(&self, index: usize, op: &Op, reply: &OpReply) -> bool {
        let spec = op.spec();
        let outcome = self.record.iter().find(|(at, _)| usize::from(*at) == index);
        let outcome_agrees = outcome.is_none_or(|(_, outcome)| match spec.class {
            Class::Change(change) => outcome.is(change.kept),
            Class::Read | Class::Session => false,
        });
        (outcome_agrees || self.kept_outcome(index).is_some()) && reply.answer() == spec.answer
    }

    /// Reports to the observer that an operation took effect, unless that was before the server
    /// restarted. `before`: the request's last transaction until then.
    fn took_effect(&self, index: usize, op: &Op, before: Transno) {
        if let Some(observer) = &self.server.runtime.config.observer
            && self.kept_outcome(index).is_none()
        {
            let transno = (self.transno > before).then_some(self.transno);
            observer.took_effect(self.client(), op, transno);
        }
    }

    /// Reports to the observer what a transaction did of operation `index`.
    fn executed(&self, index: usize, outcome: &Outcome, transno: Transno) {
        let Some(observer) = &self.server.runtime.config.observer else { return };
        let edits = match outcome {
            Outcome::Edits(done) => Some(*done),
            _ => None,
        };
        let (client, request) = (self.client(), (self.request.slot, self.request.seq));
        observer.executed(Executed { client, request, index: index as u8, edits, transno });
    }

    /// Executes operations that are not a single transaction.
    async fn goodbye(&mut self) -> Result<OpReply, Fault> {
        let left = self.server.evictions.goodbye(&self.session).await;
        let transno = self.store(left)?;
        self.dependency = self.dependency.max(transno);
        self.leave = true;
        Ok(OpReply::Done {})
    }

    async fn other(&mut self, index: usize, op: &Op) -> Result<OpReply, Fault> {
        match op {
            Op::Renew {} => Ok(OpReply::Done {}),
            Op::Statfs {} => self.statfs().await,
            Op::Status {}
            | Op::Evict { .. }
            | Op::Scrub { .. }
            | Op::AddZone { .. }
            | Op::SetZoneState { .. }
            | Op::ZoneFiles { .. } => {
                administration::execute(&self.server, &self.session.who(), op).await
            }
            Op::Why { ino, lock } => Ok(self.why(*ino, lock.as_ref())),
            Op::Zones {} => self.zones().await,
            Op::Servers {} => self.servers(),
            Op::Tell { letters } => {
                hear(&self.server, &self.session, letters).map(|()| OpReply::Done {})
            }
            Op::Lend { .. } => self.lend(op).await,
            Op::Where { ino } => Ok(OpReply::Where { shard: self.server.home_of(*ino).0 }),
            Op::Commit { .. } => self.commit(index, op).await,
            Op::Space { .. } => self.space(index, op).await,
            Op::Place { .. } => self.place(index, op).await,
            Op::EndPlacing { ino, handle } => self.end_placing(*ino, *handle),
            Op::Sync {} => {
                self.sync = true;
                Ok(OpReply::Done {})
            }
            Op::Lock { ino, lock, wait } => self.lock(*ino, lock, *wait).await,
            Op::Unlock { ino, lock } => self.unlock(*ino, lock),
            Op::TestLock { ino, lock } => self.test_lock(*ino, lock).await,
            Op::CancelLock { ino, lock } => self.cancel_lock(*ino, lock),
            Op::Return { ino, seq, give, still_open, range: part } => {
                let unknown = self.server.leases.table().newer_seq(self.client(), *ino, *seq);
                self.give_back((*ino, *seq), *give, *still_open, *part);
                Ok(unknown.map_or(OpReply::Done {}, |seq| OpReply::StaleReturn { seq }))
            }
            Op::Reclaim { leases, locks } => self.reclaim(leases, locks),
            Op::ReclaimDone {} => {
                let finished = self.server.recovery.finish(&self.session).await;
                self.store(finished)?;
                Ok(OpReply::Done {})
            }
            Op::Goodbye {} => self.goodbye().await,
            // `ops::execute` runs these.
            Op::Lookup { .. }
            | Op::GetAttr { .. }
            | Op::ReadDir { .. }
            | Op::Create { .. }
            | Op::CreateTmpfile { .. }
            | Op::Link { .. }
            | Op::Unlink { .. }
            | Op::Rmdir { .. }
            | Op::Rename { .. }
            | Op::SetAttr { .. }
            | Op::GetXattr { .. }
            | Op::SetXattr { .. }
            | Op::ListXattr { .. }
            | Op::RemoveXattr { .. }
            | Op::ReadLink { .. }
            | Op::Acquire { .. }
            | Op::Layout { .. }
            | Op::ReturnSpace { .. }
            | Op::SwapLayouts { .. }
            | Op::MoveDirectory { .. }
            | Op::MoveFile { .. }
            | Op::TakeBack { .. } => Err(Fault::Unsupported),
        }
    }

    fn why(&self, ino: Ino, lock: Option<&Lock>) -> OpReply {
        OpReply::Text { text: holders::report(&self.server, self.client(), ino, lock) }
    }

    /// Waits a moment for the reaper, so that space of files removed before counts as free. It does
    /// not wait for all of it: the reaper may be waiting for another client.
    async fn statfs(&mut self) -> Result<OpReply, Fault> {
        let (env, orphans) = (&self.server.runtime.env, &self.server.orphans);
        if orphans.counts().1 > 0 {
            self.worker.away(env.timeout(STATFS_WAIT, orphans.drained())).await;
        }
        let targets = self.server.targets.free_blocks();
        let statfs =
            self.server.runtime.mfs.run(READ, |txn| ops::space::statfs(txn, &targets)).await;
        Ok(OpReply::Statfs { statfs: self.store(statfs)?.0 })
    }

    async fn commit(&mut self, index: usize, op: &Op) -> Result<OpReply, Fault> {
        let Op::Commit { ino, edits, size, mtime, ctime, merge, tail_zero } = op else {
            return Err(Fault::Protocol);
        };
        let (ino, size, mtime, ctime) = (*ino, *size, *mtime, *ctime);
        let (merge, tail_zero) = (*merge, *tail_zero);
        let commit = commit::Commit { ino, edits, size, mtime, ctime, merge, tail_zero };
        commit.check_size()?;
        let mut done = match self.kept_outcome(index) {
            Some(Outcome::Edits(done)) => *done as usize,
            Some(_) => {
                return self
                    .attempt(Cost::SMALL, index, |cx, txn| run_op(cx, txn, index, op))
                    .await;
            }
            None => 0,
        };
        // A replay goes as far as the request did: the client sent the other edits in a new one.
        let part = match self.replayed(index) {
            Some(Ok(OpReply::Partial { done, fault })) => Some((*done as usize, *fault)),
            _ => None,
        };
        let until = part.map_or(commit.edits.len(), |(until, _)| until);
        if until > commit.edits.len() {
            return Err(Fault::Protocol);
        }
        loop {
            if let Some((until, fault)) = part
                && done >= until
            {
                return Ok(OpReply::Partial { done: until as u32, fault });
            }
            let step = self
                .attempt(Cost::STEP, index, |cx, txn| commit::step(cx, txn, commit, done..until));
            match step.await {
                Ok((Some(reply), _)) => return Ok(reply),
                Ok((None, at)) => done = at,
                Err(Fault::Evicted) => return Err(Fault::Evicted),
                Err(fault) if done > 0 => return Ok(OpReply::Partial { done: done as u32, fault }),
                Err(fault) => return Err(fault),
            }
        }
    }

    /// The data zones, for a client that knows of changes.
    async fn zones(&self) -> Result<OpReply, Fault> {
        if self.session.agreed().features & ZONE_PUSHES == 0 {
            return Err(Fault::Unsupported);
        }
        Ok(OpReply::Zones { list: self.server.space.zone_list().await })
    }

    /// Did it fail for lack of metadata blocks, and has this waited for the reaper? A commit does
    /// not wait: the reaper may wait for a recall that waits for the commit.
    async fn waited_for_room<T>(&self, ran: &Result<T, Fault>) -> bool {
        let short = matches!(ran, Err(Fault::NoSpace)) && self.server.space.metadata_is_short();
        short && self.wait_for_reaper().await
    }

    /// Waits until the orphans being freed are freed; `false` if there were none.
    async fn wait_for_reaper(&self) -> bool {
        let (runtime, orphans) = (&self.server.runtime, &self.server.orphans);
        let waits = orphans.counts().1 > 0;
        if waits {
            let drained = runtime.env.timeout(runtime.config.lease, orphans.drained());
            self.worker.away(drained).await;
        }
        waits
    }

    fn reclaim(&self, leases: &[HeldLease], locks: &[(Ino, Lock)]) -> Result<OpReply, Fault> {
        if self.session.state() != SessionState::Recovering {
            return Err(Fault::Protocol);
        }
        self.server.recovery.reclaim(&self.session, leases, locks);
        Ok(OpReply::Done {})
    }

    fn give_back(
        &self,
        (ino, seq): (Ino, u64),
        give: Rights,
        still_open: bool,
        part: Option<BlockRange>,
    ) {
        let leases = &self.server.leases;
        let changed = leases.give_back(self.client(), (ino, seq), give, still_open, part);
        if changed && give.contains(Rights::OPEN) && !still_open {
            self.server.orphans.free_if_closed(ino);
        }
    }

    /// Of a replay: the result that the operation had.
    fn replayed(&self, index: usize) -> Option<&Result<OpReply, Fault>> {
        self.request.replay.as_ref().and_then(|replay| replay.results.get(index))
    }

    fn kept_outcome(&self, index: usize) -> Option<&Outcome> {
        let kept = self.kept.iter().find(|(at, _)| usize::from(*at) == index);
        kept.map(|(_, outcome)| outcome)
    }

    /// The time of an operation: now, or of a replayed one the time it had.
    fn time(&self, replayed: Option<&OpReply>) -> Timestamp {
        let then = replayed.and_then(|reply| reply.changed().time);
        then.unwrap_or_else(|| self.server.runtime.stamp())
    }

    /// Runs `body` as a transaction, and again each time it had to wait for rights or glimpses.
    async fn attempt<T>(
        &mut self,
        cost: Cost,
        index: usize,
        mut body: impl FnMut(&mut OpContext<'_>, &mut Txn<'_>) -> Result<T, Stop>,
    ) -> Result<T, Fault> {
        let mut waited = Waited::default();
        let replay = self.request.replay.take();
        // A replay had room before, so it may use the reserve if others have taken that room since.
        let reserve = if replay.is_some() { Reserve::Replay } else { cost.reserve };
        let cost = Cost { reserve, ..cost };
        let result = loop {
            let results = replay.as_ref().map_or(&[][..], |replay| &replay.results);
            let replayed = results.get(index).and_then(|result| result.as_ref().ok());
            let now = self.time(replayed);
            let (mut effects, mut record) = (Effects::default(), OutcomeRecord::new());
            let ran = self.server.runtime.mfs.run(cost, |txn| {
                if self.session.is_over() {
                    return Err(Fault::Evicted.into());
                }
                let mut cx = OpContext {
                    server: &self.server,
                    client: self.session.client,
                    principal: &self.request.principal,
                    now,
                    kept: &self.kept,
                    replayed,
                    replay: replay.is_some(),
                    squashed: self.session.squash() != Squash::Off,
                    waited: &waited,
                    joint: None,
                    effects: Effects::default(),
                };
                let value = body(&mut cx, txn);
                effects = cx.effects;
                let value = value?;
                if let Some(outcome) = &effects.outcome {
                    record = self.keep(txn, index, outcome)?;
                }
                Ok(value)
            });
            match ran.await {
                Ok((value, transno)) => {
                    if let Some(outcome) = &effects.outcome {
                        self.record = record;
                        self.executed(index, outcome, transno);
                    }
                    if replay.is_some() {
                        effects.grant_nothing();
                    }
                    self.apply(effects, transno, &waited);
                    break Ok(value);
                }
                Err(StoreError::Fault(Fault::Busy))
                    if effects.joint.is_some() || effects.waits() =>
                {
                    if self.goes_with_others(&mut effects, &mut waited, now).await {
                        break Err(Fault::Busy);
                    }
                }
                Err(error) => {
                    self.depend_on(&effects.reads);
                    self.server.runtime.note_failure(&error, "executing a request");
                    break Err(error.fault());
                }
            }
        };
        self.request.replay = replay;
        result
    }

    /// Keeps an operation's outcome with those before it.
    fn keep(
        &self,
        txn: &mut Txn<'_>,
        index: usize,
        outcome: &Outcome,
    ) -> Result<OutcomeRecord, Stop> {
        let (mut record, at) = (self.record.clone(), index as u8);
        record.retain(|(other, _)| *other != at);
        record.push((at, outcome.clone()));
        if !planted(Bug::ResultNotKept) {
            let (slot, bytes) = (u32::from(self.request.slot), kept_results::encode(&record));
            txn.set_reply(self.session.client, slot, self.request.seq, &bytes)?;
        }
        Ok(record)
    }

    /// Waits for rights, or for glimpses of writers. Recalls of what this request was granted need
    /// not wait for its answer meanwhile.
    async fn wait_for(&self, effects: &Effects, waited: &mut Waited) {
        self.session.unmark_granting(self.request.slot);
        let held = || waited.gates.as_ref().is_some_and(|gates| gates.cover(&effects.gates()));
        if effects.missing || effects.ask.is_some() && !held() {
            waited.drop_gates();
            let Some(gates) = self.enter(effects, waited).await else { return };
            waited.gates = Some(gates);
            waited.open_asked.extend(open_recalled(&effects.needs));
            return;
        }
        for &attr in &effects.glimpse {
            let tries = waited.glimpsed.get(&attr.ino).map_or(0, Glimpsed::tries);
            let (leases, evictions) = (&self.server.leases, &self.server.evictions);
            let glimpsed = glimpse(leases, evictions, attr, tries).await;
            waited.glimpsed.insert(attr.ino, glimpsed);
        }
        if !waited.find_out(&self.server, effects.ask.clone()).await {
            self.joining.asked_in_vain.set(true);
        }
    }

    /// Will others' changes of `ino`'s attributes be durable when the reply leaves? If not, the
    /// client must not cache attributes that the reply carries in passing.
    fn attr_will_be_durable(&self, ino: Ino) -> bool {
        let item = MetaItem::Attr(ino);
        let changed = self.server.uncommitted.awaited([&item], self.session.client);
        changed <= self.dependency.max(self.server.runtime.mfs.last_committed())
    }

    /// `rights` without `ATTR`, if the client must not cache the attributes.
    fn cacheable(&self, ino: Ino, rights: Rights) -> Rights {
        match rights.contains(Rights::ATTR) && !self.attr_will_be_durable(ino) {
            true => rights - Rights::ATTR,
            false => rights,
        }
    }

    fn depend_on(&mut self, reads: &[MetaItem]) {
        if !planted(Bug::ReplyGateSkipped) {
            let awaited = self.server.uncommitted.awaited(reads, self.session.client);
            self.dependency = self.dependency.max(awaited);
        }
    }

    /// Applies what a transaction decided, at the instant it succeeded.
    fn apply(&mut self, effects: Effects, transno: Transno, waited: &Waited) {
        self.depend_on(&effects.reads);
        let (server, session, client) = (&self.server, &self.session, self.session.client);
        let Effects { drops, grants, ranges, found, wants, .. } = effects;
        let asked = Grants { drops, grants, ranges, found, wants };
        let cacheable = |ino, rights| self.cacheable(ino, rights);
        let granted = server.leases.grant(client, asked, waited.gates.as_ref(), cacheable);
        let Granted { anything, opened, recalls } = granted;
        if anything {
            session.mark_granting(self.request.slot);
        }
        server.leases.push(recalls);
        for ino in opened {
            server.orphans.open_granted(client, ino);
        }
        if transno != Transno::ZERO {
            let durable = server.runtime.mfs.last_committed();
            // Otherwise the answer waits in the reply gate, or for later operations of the request.
            let alone = self.request.ops.len() == 1;
            let answered = alone && !self.sync && self.dependency <= durable;
            server.uncommitted.note(effects.changes, client, (transno, durable), answered);
            if let Some((ino, size, zero)) = effects.tail {
                server.leases.note_tail(ino, size, zero);
            }
            self.transno = self.transno.max(transno);
            session.note_change(transno);
        }
        for ino in effects.relinked {
            server.orphans.relinked(ino);
        }
        for (ino, returns) in effects.orphaned {
            server.orphans.orphaned(returns, ino);
        }
        server.runtime.event_ended();
    }

    /// A store's result as the client sees it; logs failures.
    fn store<T>(&self, result: Result<T, StoreError>) -> Result<T, Fault> {
        result.map_err(|error| {
            self.server.runtime.note_failure(&error, "executing a request");
            error.fault()
        })
    }

    /// Says what the client may do with the objects in the answer, by the rights that it holds now.
    fn fill_in_capabilities(&mut self) {
        let (server, client) = (&self.server, self.session.client);
        let leases = server.leases.table();
        for (op, result) in self.request.ops.iter().zip(&mut self.results) {
            let (ino, object) = match (op, result) {
                (_, Ok(OpReply::Created { leased, object, .. })) => (leased.attr.ino, object),
                (_, Ok(OpReply::Acquired { leased, layout: Some(slice), .. })) => {
                    (leased.attr.ino, &mut slice.object)
                }
                (Op::Layout { ino, .. }, Ok(OpReply::Layout { slice })) => {
                    (*ino, &mut slice.object)
                }
                _ => continue,
            };
            if let Some(layout) = object {
                let rights = leases.rights(client, ino);
                layout.may = server.targets.capability(layout.object, client, rights);
            }
        }
    }

    /// Waits in the reply gate, then sends the answer.
    async fn answer(mut self) {
        if self.request.ops.iter().any(|op| matches!(op, Op::ReturnSpace { .. })) {
            self.server.space.pool_returned(&self.session);
        }
        let sync = self.sync && !planted(Bug::SyncNotDurable);
        let own = if sync { self.session.last_transno() } else { Transno::ZERO };
        let target = self.dependency.max(own);
        let durable = self.server.runtime.wait_durable(target).await;
        if durable.is_err() || self.server.runtime.failure().is_some() {
            // The request stays unacknowledged: the client sends it again after the restart.
            return;
        }
        if self.session.is_over() && !self.leave {
            return;
        }
        fill_in_leases(&self.server, &self.session, &mut self.results);
        self.fill_in_capabilities();
        let last_committed = self.server.runtime.mfs.last_committed();
        let (slot, seq, transno) = (self.request.slot, self.request.seq, self.transno);
        let waited = self.worker.waited().as_micros().try_into().unwrap_or(u32::MAX);
        let (load, results) = (self.server.workers.load(), self.results);
        let reply = Reply { slot, seq, transno, last_committed, waited, load, results };
        // A reply that was rebuilt from a kept outcome has no transaction of this server, and yet
        // the request would execute again.
        let executed =
            transno != Transno::ZERO || !self.kept.is_empty() && !planted(Bug::RepeatedAnswerLost);
        // A failed operation may succeed on a second execution, and the client may have acted on
        // the first answer by then.
        let may_execute = self.request.ops.iter().any(|op| op.spec().repeat == Repeat::Never);
        self.session.answered(&reply, executed || may_execute);
        self.session.note_durable(last_committed);
        if let Some(observer) = &self.server.runtime.config.observer {
            observer.answers(self.session.client, &reply, self.sync);
        }
        self.server.sessions.note_answer();
        self.session.push(Message::Reply { reply });
        self.session.unmark_granting(slot);
        if self.leave {
            self.session.unbind();
        }
        self.server.runtime.event_ended();
    }
}

/// Executes an operation, or rebuilds the reply of one that was executed before a restart.
fn run_op(cx: &mut OpContext<'_>, txn: &mut Txn<'_>, nth: usize, op: &Op) -> Result<OpReply, Stop> {
    let kept = cx.kept.iter().find(|(at, _)| usize::from(*at) == nth);
    match kept {
        Some((_, outcome)) => repeat::reply(op, outcome, cx, txn),
        None => {
            // The server checks the callers of a squashed node itself.
            if cx.squashed {
                permission::check(op, cx, txn)?;
            }
            ops::execute(op, cx, txn)
        }
    }
}
