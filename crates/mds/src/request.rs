//! A request from its arrival to its answer.
//!
//! Invariants:
//! - the transaction that changes something also keeps the operation's outcome under the request's
//!   number; a request that is sent again goes on after the kept outcomes;
//! - an operation grants leases when it succeeds; an answer reports them as of when it leaves;
//! - an answer leaves when its dependencies are durable (the reply gate).

mod locks;

use std::rc::Rc;

use mfs::{Cost, Reserve, Stop, StoreError, Txn};
use proto::mds::{HeldLease, Leased, Message, Op, OpReply, Reply, Request};
use types::limits::COMPOUND_OPS_MAX;
use types::{BlockRange, Bug, ClientId, Duration, Fault, Ino, Rights, Timestamp, Transno, planted};

use crate::context::{Effects, OpContext, Waited};
use crate::glimpse::{Glimpsed, glimpse};
use crate::observer::Executed;
use crate::ops::{self, READ, commit, repeat, space};
use crate::recall::{open_recalled, recall};
use crate::record::{self, Outcome, OutcomeRecord};
use crate::server::Server;
use crate::session::{Session, SessionState};
use crate::uncommitted::MetaItem;
use crate::{evict, pool_reclaim, scrub, status, unacknowledged};

/// How often a request tries to make room before it fails with `NoSpace`.
const SPACE_ROUNDS: usize = 3;
/// How long `statfs` waits for orphans that are being freed.
const STATFS_WAIT: Duration = Duration::from_secs(1);

/// Executes a request and sends its answer.
pub async fn serve(server: Rc<Server>, session: Rc<Session>, request: Request, fresh: bool) {
    if !may_pass(&server, &session, &request) {
        server.grace.ended().await;
    }
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
        server,
        session,
        request,
    };
    match work.look_up_kept(fresh).await {
        Ok(false) => work.execute().await,
        Ok(true) => work.answer_surviving_replay(),
        Err(fault) => work.results.push(Err(fault)),
    }
    work.answer().await;
}

/// During the grace only recovery passes.
fn may_pass(server: &Server, session: &Session, request: &Request) -> bool {
    let harmless = |op: &Op| matches!(op, Op::Renew {} | Op::Status {});
    let recovery = |op: &Op| matches!(op, Op::Reclaim { .. } | Op::ReclaimDone {});
    let recovering = session.state() == SessionState::Recovering;
    server.grace.is_over()
        || planted(Bug::GraceSkipped)
        || (recovering && request.replay.is_some())
        || request.ops.iter().all(|op| harmless(op) || (recovering && recovery(op)))
}

/// Rights that let the client cache attributes and names that a reply carries in passing.
const CACHE: Rights = Rights::ATTR.union(Rights::NAMES);

/// Fills in the leases of `session` as they are now. A cache right that the client did not hold at
/// the read is left out, even if it was granted since: the value may have changed in between. The
/// same goes for a right that was granted again since the read.
pub fn fill_in_leases(server: &Server, session: &Session, results: &mut [Result<OpReply, Fault>]) {
    let leases = server.leases.borrow();
    for reply in results.iter_mut().flatten() {
        if let OpReply::Acquired { leased, ranges: parts, .. } = reply {
            // Ranges that the client lost meanwhile, or that are being recalled, are left out.
            parts.retain(|&part| leases.keeps_range(session.client, leased.attr.ino, part));
        }
        each_leased(reply, &mut |leased| {
            let held = leases.held(session.client, leased.attr.ino);
            let same = leased.seq == held.seq;
            let believed = if same { held.rights & leased.rights & CACHE } else { Rights::empty() };
            (leased.rights, leased.seq) = ((held.rights - CACHE) | believed, held.seq);
        });
    }
}

/// Calls `f` for all attributes with leases in a reply.
fn each_leased(reply: &mut OpReply, f: &mut dyn FnMut(&mut Leased)) {
    match reply {
        OpReply::Entry { entry, dir } => {
            entry.iter_mut().for_each(&mut *f);
            f(dir);
        }
        OpReply::Attr { leased } | OpReply::Acquired { leased, .. } => f(leased),
        OpReply::Entries { entries, dir, .. } => {
            entries.iter_mut().filter_map(|entry| entry.leased.as_mut()).for_each(&mut *f);
            f(dir);
        }
        OpReply::Created { leased, dir, .. } | OpReply::Linked { leased, dir } => {
            f(leased);
            f(dir);
        }
        OpReply::Removed { dir, .. } => f(dir),
        OpReply::Renamed { moved, from, to, whiteout, .. } => {
            f(moved);
            f(from);
            f(to);
            whiteout.0.iter_mut().for_each(f);
        }
        OpReply::Bytes { leased, .. } => leased.iter_mut().for_each(f),
        OpReply::Done {}
        | OpReply::Layout { .. }
        | OpReply::Space { .. }
        | OpReply::Statfs { .. }
        | OpReply::Locked { .. }
        | OpReply::Text { .. }
        | OpReply::Partial { .. }
        | OpReply::StaleReturn { .. } => {}
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
}

impl Execution {
    fn client(&self) -> ClientId {
        self.session.client
    }

    /// Looks up whether the request was executed before the server restarted. True: it is a replay
    /// whose changes have all survived.
    async fn look_up_kept(&mut self, fresh: bool) -> Result<bool, Fault> {
        if !fresh || !self.session.known {
            return Ok(false);
        }
        let (client, slot) = (self.client(), u32::from(self.request.slot));
        let found = self.server.mfs.run(READ, |txn| txn.reply(client, slot)).await;
        let Some((seq, bytes)) = self.store(found)?.0 else { return Ok(false) };
        let ahead = self.request.seq.wrapping_sub(seq).cast_signed();
        if ahead < 0 {
            return if self.request.replay.is_some() { Ok(true) } else { Err(Fault::Protocol) };
        }
        if ahead == 0 {
            self.kept = record::decode(&bytes).map_err(|_| Fault::Corrupt)?;
            if self.is_replay_done() {
                return Ok(true);
            }
            self.record.clone_from(&self.kept);
        }
        Ok(false)
    }

    /// Has everything that the replayed request changed survived? Each of its operations is a
    /// transaction of its own, and a large commit is several: some of them may be lost.
    fn is_replay_done(&self) -> bool {
        let Some(replay) = &self.request.replay else { return false };
        let changes = |op: &Op| {
            matches!(op, Op::Commit { .. } | Op::Space { .. })
                || ops::cost(op).is_some_and(|cost| cost != READ)
        };
        let mut done = self.request.ops.iter().zip(&replay.results).enumerate();
        done.all(|(index, (op, result))| match (self.kept_outcome(index), result) {
            (Some(Outcome::Edits(kept)), Ok(OpReply::Partial { done, .. })) => kept >= done,
            (Some(outcome), _) => !matches!(outcome, Outcome::Edits(_)),
            (None, result) => result.is_err() || !changes(op),
        })
    }

    /// Answers a replay whose changes have survived with the results that it had.
    fn answer_surviving_replay(&mut self) {
        if let Some(replay) = &self.request.replay {
            self.results.clone_from(&replay.results);
            // It must be durable before the answer: several such answers carry the same number.
            self.transno = self.session.last_transno.get();
            self.dependency = self.transno;
        }
    }

    async fn execute(&mut self) {
        let count = self.request.ops.len();
        if count > COMPOUND_OPS_MAX {
            self.results.push(Err(Fault::TooBig));
            return;
        }
        if self.request.atomic && count > 1 {
            match self.execute_atomically().await {
                Ok(mut replies) => {
                    for (index, reply) in replies.iter_mut().enumerate() {
                        self.took_effect(index, &self.request.ops[index], Transno::ZERO);
                        self.note_leases(index, reply);
                    }
                    self.results.extend(replies.into_iter().map(Ok));
                }
                Err(fault) => self.results.push(Err(fault)),
            }
            return;
        }
        for index in 0..count {
            let mut result = self.execute_one(index).await;
            if let Ok(reply) = &mut result {
                self.note_leases(index, reply);
            }
            let failed = matches!(result, Err(_) | Ok(OpReply::Partial { .. }));
            self.results.push(result);
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
        let leases = self.server.leases.borrow();
        each_leased(reply, &mut |leased| {
            let held = leases.held(self.client(), leased.attr.ino);
            // Another answer may have granted the right, and may be waiting until the change that
            // this one reports in passing is durable.
            (leased.rights, leased.seq) = (self.cacheable(leased.attr.ino, held.rights), held.seq);
        });
    }

    /// Executes all operations in one transaction.
    async fn execute_atomically(&mut self) -> Result<Vec<OpReply>, Fault> {
        let ops = self.request.ops.clone();
        if !ops.iter().all(|op| ops::cost(op).is_some()) {
            return Err(Fault::Invalid);
        }
        self.attempt(Cost::STEP, 0, |cx, txn| {
            for (index, op) in ops.iter().enumerate() {
                let reply = run_op(cx, txn, index, op)?;
                cx.same_txn.push(Ok(reply));
            }
            Ok(cx.same_txn.drain(..).flatten().collect())
        })
        .await
    }

    async fn execute_one(&mut self, index: usize) -> Result<OpReply, Fault> {
        if let Some(Err(fault)) = self.replayed(index) {
            // It changed nothing then, and the client has acted on that failure.
            return Err(*fault);
        }
        let op = std::mem::replace(&mut self.request.ops[index], Op::Renew {});
        let before = self.transno;
        let result = match ops::cost(&op) {
            Some(cost) if self.client() != ClientId(0) => {
                let mut run =
                    self.attempt(cost, index, |cx, txn| run_op(cx, txn, index, &op)).await;
                if self.waited_for_room(&run).await {
                    run = self.attempt(cost, index, |cx, txn| run_op(cx, txn, index, &op)).await;
                }
                run
            }
            _ => self.other(index, &op).await,
        };
        if result.is_ok() {
            self.took_effect(index, &op, before);
        }
        self.request.ops[index] = op;
        result
    }

    /// Reports to the observer that an operation took effect, unless that was before the server
    /// restarted. `before`: the request's last transaction until then.
    fn took_effect(&self, index: usize, op: &Op, before: Transno) {
        if let Some(observer) = &self.server.config.observer
            && self.kept_outcome(index).is_none()
        {
            let transno = (self.transno > before).then_some(self.transno);
            observer.took_effect(self.client(), op, transno);
        }
    }

    /// Reports to the observer what a transaction did of which operations.
    fn executed(&self, outcomes: &OutcomeRecord, transno: Transno) {
        let Some(observer) = &self.server.config.observer else { return };
        for (index, outcome) in outcomes {
            let edits = match outcome {
                Outcome::Edits(done) => Some(*done),
                _ => None,
            };
            let (client, request) = (self.client(), (self.request.slot, self.request.seq));
            observer.executed(Executed { client, request, index: *index, edits, transno });
        }
    }

    /// Executes operations that are not a single transaction.
    async fn other(&mut self, index: usize, op: &Op) -> Result<OpReply, Fault> {
        let administrator = self.client() == ClientId(0);
        match op {
            Op::Renew {} => return Ok(OpReply::Done {}),
            Op::Statfs {} => return self.statfs().await,
            Op::Status {} => {
                let text = status::collect(&self.server).await.to_json();
                return Ok(OpReply::Text { text });
            }
            Op::Evict { client } if administrator => {
                if self.server.session(*client).is_none() {
                    return Err(Fault::NotFound);
                }
                evict::evict(&self.server, *client, "by the administrator").await;
                return Ok(OpReply::Done {});
            }
            Op::Scrub { rate } if administrator => {
                match rate {
                    Some(rate) => scrub::request(&self.server, *rate),
                    None => self.server.scrubber.cancel(),
                }
                return Ok(OpReply::Done {});
            }
            _ if administrator => return Err(Fault::NotPermitted),
            _ => {}
        }
        match op {
            Op::Commit { ino, edits, size, mtime, ctime, merge, tail_zero } => {
                let commit = commit::Commit {
                    ino: *ino,
                    edits,
                    size: *size,
                    mtime: *mtime,
                    ctime: *ctime,
                    merge: *merge,
                    tail_zero: *tail_zero,
                };
                self.commit(index, op, commit).await
            }
            Op::Space { hint, blocks } => self.space(index, op, *hint, *blocks).await,
            Op::Sync {} => {
                self.sync = true;
                Ok(OpReply::Done {})
            }
            Op::Lock { ino, lock, .. } | Op::TestLock { ino, lock } => {
                self.evict_unresponsive_holders(*ino, lock).await;
                if matches!(op, Op::Lock { .. }) {
                    self.give_way(*ino, lock).await;
                }
                if self.session.is_over() {
                    return Err(Fault::Evicted);
                }
                self.lock(op)
            }
            Op::Unlock { .. } | Op::CancelLock { .. } => self.lock(op),
            Op::Return { ino, seq, give, still_open, range: part } => {
                let unknown = self.server.leases.borrow().newer_seq(self.client(), *ino, *seq);
                self.give_back((*ino, *seq), *give, *still_open, *part);
                Ok(unknown.map_or(OpReply::Done {}, |seq| OpReply::StaleReturn { seq }))
            }
            Op::Reclaim { leases, locks } => {
                if self.session.state() != SessionState::Recovering {
                    return Err(Fault::Protocol);
                }
                for held in leases {
                    self.reclaim(held);
                }
                for (ino, lock) in locks {
                    self.reclaim_lock(*ino, lock);
                }
                Ok(OpReply::Done {})
            }
            Op::ReclaimDone {} => {
                let presumed = unacknowledged::presume_open(&self.server, &self.session).await;
                self.store(presumed)?;
                self.session.set_state(SessionState::Live);
                self.server.grace.progress();
                Ok(OpReply::Done {})
            }
            Op::Goodbye {} => {
                let left = evict::goodbye(&self.server, &self.session).await;
                let transno = self.store(left)?;
                self.dependency = self.dependency.max(transno);
                self.leave = true;
                Ok(OpReply::Done {})
            }
            Op::Evict { .. } | Op::Scrub { .. } => Err(Fault::NotPermitted),
            _ => Err(Fault::Unsupported),
        }
    }

    /// Waits a moment for the reaper, so that space of files removed before counts as free. It does
    /// not wait for all of it: the reaper may be waiting for another client.
    async fn statfs(&mut self) -> Result<OpReply, Fault> {
        let reaper = &self.server.reaper;
        if reaper.counts().1 > 0 {
            self.server.env.timeout(STATFS_WAIT, reaper.drained()).await;
        }
        let statfs = self.server.mfs.run(READ, space::statfs).await;
        Ok(OpReply::Statfs { statfs: self.store(statfs)?.0 })
    }

    async fn commit(
        &mut self,
        index: usize,
        op: &Op,
        commit: commit::Commit<'_>,
    ) -> Result<OpReply, Fault> {
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
            let step = self.attempt(Cost::STEP, index, |cx, txn| {
                let step = commit::step(cx, txn, commit, done..until)?;
                cx.finish(index);
                Ok(step)
            });
            match step.await {
                Ok((Some(reply), _)) => return Ok(reply),
                Ok((None, at)) => done = at,
                Err(Fault::Evicted) => return Err(Fault::Evicted),
                Err(fault) if done > 0 => return Ok(OpReply::Partial { done: done as u32, fault }),
                Err(fault) => return Err(fault),
            }
        }
    }

    async fn space(
        &mut self,
        index: usize,
        op: &Op,
        hint: Option<types::PagId>,
        blocks: u64,
    ) -> Result<OpReply, Fault> {
        let mut round = 0;
        loop {
            round += 1;
            let kept = self.kept_outcome(index).is_some();
            let granted = self.attempt(Cost::SMALL, index, |cx, txn| {
                if kept {
                    return run_op(cx, txn, index, op);
                }
                let reply = space::grant(cx, txn, hint, blocks)?;
                cx.finish(index);
                Ok(reply)
            });
            match granted.await {
                Err(Fault::NoSpace) if round < SPACE_ROUNDS => self.make_room().await,
                other => {
                    self.dependency = self.dependency.max(self.transno);
                    return other;
                }
            }
        }
    }

    /// Did it fail for lack of metadata blocks, and has this waited for the reaper? A commit does
    /// not wait: the reaper may wait for a recall that waits for the commit.
    async fn waited_for_room<T>(&self, ran: &Result<T, Fault>) -> bool {
        let short = matches!(ran, Err(Fault::NoSpace)) && self.server.metadata_is_short();
        short && self.wait_for_reaper().await
    }

    /// Waits until the orphans being freed are freed; `false` if there were none.
    async fn wait_for_reaper(&self) -> bool {
        let server = &self.server;
        let waits = server.reaper.counts().1 > 0;
        if waits {
            server.env.timeout(server.config.lease, server.reaper.drained()).await;
        }
        waits
    }

    /// Waits until blocks that are being freed can be granted.
    async fn make_room(&self) {
        let server = &self.server;
        self.wait_for_reaper().await;
        let synced = server.mfs.sync().await;
        server.checked(synced, "waiting for the log");
        if server.release_freed().await > 0 {
            return;
        }
        pool_reclaim::reclaim(server, self.client()).await;
        let full = server.mfs.run(READ, space::is_full).await.is_ok_and(|(full, _)| full);
        if full && !planted(Bug::HoarderKept) {
            evict::evict_hoarders(server).await;
        }
    }

    fn give_back(
        &self,
        (ino, seq): (Ino, u64),
        give: Rights,
        still_open: bool,
        part: Option<BlockRange>,
    ) {
        let mut leases = self.server.leases.borrow_mut();
        let changed = leases.give_back(self.client(), ino, seq, give, still_open, part);
        drop(leases);
        if changed {
            self.server.lease_events.notify_all();
            if give.contains(Rights::OPEN) && !still_open {
                self.server.reaper.free_if_closed(&self.server, ino);
            }
        }
    }

    fn reclaim(&self, held: &HeldLease) {
        let (client, ino) = (self.client(), held.ino);
        let open = if held.open { Rights::OPEN } else { Rights::empty() };
        let mut leases = self.server.leases.borrow_mut();
        let refused = leases.reclaim(client, ino, held.rights | open);
        let parts = leases.reclaim_ranges(client, ino, &held.ranges);
        drop(leases);
        if !refused.is_empty() || !parts.is_empty() {
            let text = format!(
                "client {client} reclaims {refused:?} {parts:?} of inode {ino}, which another client holds"
            );
            self.server.log(&text);
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

    /// The time of operation `index`: now, or for a replay the time it had. An atomic request has
    /// one time, that of an operation that changes something.
    fn time(&self, index: usize, results: &[Result<OpReply, Fault>]) -> Timestamp {
        let together = self.request.atomic && self.request.ops.len() > 1;
        let ops = self.request.ops.iter().zip(results).enumerate();
        let mut ops = ops.filter(|(at, (op, _))| match together {
            true => ops::cost(op).is_some_and(|cost| cost != READ),
            false => *at == index,
        });
        let then = ops.find_map(|(_, (_, result))| match result.as_ref().ok()? {
            OpReply::Created { leased, .. }
            | OpReply::Linked { leased, .. }
            | OpReply::Attr { leased } => Some(leased.attr.ctime),
            OpReply::Removed { dir, .. } => Some(dir.attr.ctime),
            OpReply::Renamed { moved, .. } => Some(moved.attr.ctime),
            _ => None,
        });
        then.unwrap_or_else(|| self.server.stamp())
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
            let now = self.time(index, results);
            let mut effects = Effects::default();
            let mut record = OutcomeRecord::new();
            let ran = self.server.mfs.run(cost, |txn| {
                if self.session.is_over() {
                    return Err(Fault::Evicted.into());
                }
                let mut cx = OpContext {
                    server: &self.server,
                    client: self.session.client,
                    principal: &self.request.principal,
                    now,
                    earlier: &self.results,
                    same_txn: Vec::new(),
                    kept: &self.kept,
                    replayed,
                    replay_results: replay.as_ref().map_or(&[], |replay| &replay.results),
                    replay: replay.is_some(),
                    waited: &waited,
                    effects: Effects::default(),
                };
                let value = body(&mut cx, txn);
                effects = cx.effects;
                let value = value?;
                if !effects.outcomes.is_empty() {
                    record.clone_from(&self.record);
                    for (index, outcome) in &effects.outcomes {
                        record.retain(|(at, _)| at != index);
                        record.push((*index, outcome.clone()));
                    }
                    let slot = u32::from(self.request.slot);
                    let bytes = record::encode(&record);
                    if !planted(Bug::ResultNotKept) {
                        txn.set_reply(self.session.client, slot, self.request.seq, &bytes)?;
                    }
                }
                Ok(value)
            });
            match ran.await {
                Ok((value, transno)) => {
                    if !effects.outcomes.is_empty() {
                        self.record = record;
                        self.executed(&effects.outcomes, transno);
                    }
                    if replay.is_some() {
                        // The client has reclaimed what it holds: this answer grants nothing.
                        effects.grants.clear();
                        effects.wants.clear();
                        effects.found.clear();
                    }
                    self.apply(effects, transno, &waited);
                    break Ok(value);
                }
                Err(StoreError::Fault(Fault::Busy))
                    if effects.missing || !effects.glimpse.is_empty() =>
                {
                    self.wait_for(&effects, &mut waited).await;
                }
                Err(error) => {
                    self.depend_on(&effects.reads);
                    self.server.note_failure(&error, "executing a request");
                    break Err(error.fault());
                }
            }
        };
        self.request.replay = replay;
        result
    }

    /// Waits for rights, or for glimpses of writers. Recalls of what this request was granted need
    /// not wait for its answer meanwhile.
    async fn wait_for(&self, effects: &Effects, waited: &mut Waited) {
        self.session.unmark_granting(self.request.slot);
        if effects.missing {
            waited.gates = None;
            let (client, session) = (self.client(), Some(&*self.session));
            waited.gates = Some(recall(&self.server, client, &effects.needs, session).await);
            waited.open_asked.extend(open_recalled(&effects.needs));
            return;
        }
        for &attr in &effects.glimpse {
            let tries = waited.glimpsed.get(&attr.ino).map_or(0, Glimpsed::tries);
            let glimpsed = glimpse(&self.server, attr, tries).await;
            waited.glimpsed.insert(attr.ino, glimpsed);
        }
    }

    /// Will others' changes of `ino`'s attributes be durable when the reply leaves? If not, the
    /// client must not cache attributes that the reply carries in passing.
    fn attr_will_be_durable(&self, ino: Ino) -> bool {
        let uncommitted = self.server.uncommitted.borrow();
        if uncommitted.is_empty() {
            return true;
        }
        let changed = uncommitted.awaited(&MetaItem::Attr(ino), self.session.client);
        changed <= self.dependency.max(self.server.mfs.last_committed())
    }

    /// `rights` without `ATTR`, if the client must not cache the attributes.
    fn cacheable(&self, ino: Ino, rights: Rights) -> Rights {
        match rights.contains(Rights::ATTR) && !self.attr_will_be_durable(ino) {
            true => rights - Rights::ATTR,
            false => rights,
        }
    }

    fn depend_on(&mut self, reads: &[MetaItem]) {
        let uncommitted = self.server.uncommitted.borrow();
        if uncommitted.is_empty() || planted(Bug::ReplyGateSkipped) {
            return;
        }
        for item in reads {
            self.dependency = self.dependency.max(uncommitted.awaited(item, self.session.client));
        }
    }

    /// Applies what a transaction decided, at the instant it succeeded.
    fn apply(&mut self, effects: Effects, transno: Transno, waited: &Waited) {
        self.depend_on(&effects.reads);
        let (server, session, client) = (&self.server, &self.session, self.session.client);
        let mut granted = false;
        let mut opened = Vec::new();
        let mut recalls = Vec::new();
        {
            let mut leases = server.leases.borrow_mut();
            if !effects.drops.is_empty() {
                // Someone may be waiting for these.
                server.lease_events.notify_all();
            }
            for (client, ino) in effects.drops {
                leases.drop_lease(client, ino);
            }
            for (ino, rights) in effects.grants {
                let rights = leases.grantable(client, ino, rights);
                if (rights - leases.rights(client, ino)).contains(Rights::OPEN) {
                    opened.push(ino);
                }
                if rights.intersects(Rights::WHOLE) {
                    granted = true;
                    leases.grant_requested(client, ino, rights);
                    server.contention.borrow_mut().granted_whole(ino, server.env.now());
                } else {
                    granted |= !leases.rights(client, ino).contains(rights);
                    leases.grant(client, ino, rights);
                }
            }
            for (ino, part) in effects.ranges {
                if leases.is_range_grantable(client, ino, part) {
                    granted |= leases.grant_range(client, ino, part);
                }
            }
            for ino in effects.found {
                if leases.len() >= server.config.leases_max {
                    continue;
                }
                let (new, recall) = leases.grant_open_on_lookup(client, ino);
                if new {
                    opened.push(ino);
                    granted = true;
                }
                recalls.extend(recall);
            }
            for (ino, rights) in effects.wants {
                if leases.len() >= server.config.leases_max
                    || server.gates.is_closed(ino, waited.gates.as_ref())
                {
                    continue;
                }
                let rights = self.cacheable(ino, leases.grantable(client, ino, rights));
                if (rights - leases.rights(client, ino)).contains(Rights::OPEN) {
                    opened.push(ino);
                }
                granted |= !leases.rights(client, ino).contains(rights);
                leases.grant(client, ino, rights);
            }
        }
        if granted {
            session.mark_granting(self.request.slot);
        }
        recalls.into_iter().for_each(|recall| server.push_recall(recall));
        for ino in opened {
            server.reaper.open_granted(server, client, ino);
        }
        if transno != Transno::ZERO {
            let mut uncommitted = server.uncommitted.borrow_mut();
            let durable = server.mfs.last_committed();
            uncommitted.forget(durable);
            // Otherwise the answer waits in the reply gate, or for later operations of the request.
            let alone = self.request.ops.len() == 1 || self.request.atomic;
            let answered = alone && !self.sync && self.dependency <= durable;
            for item in effects.changes {
                uncommitted.note(item, client, transno, answered);
            }
            if let Some((ino, size, zero)) = effects.tail {
                server.contention.borrow_mut().note_tail(ino, size, zero);
            }
            self.transno = self.transno.max(transno);
            session.last_transno.set(session.last_transno.get().max(transno));
        }
        for ino in effects.relinked {
            server.reaper.relinked(ino);
        }
        for (ino, returns) in effects.orphaned {
            server.reaper.orphaned(server, returns, ino);
        }
    }

    /// A store's result as the client sees it; logs failures.
    fn store<T>(&self, result: Result<T, StoreError>) -> Result<T, Fault> {
        result.map_err(|error| {
            self.server.note_failure(&error, "executing a request");
            error.fault()
        })
    }

    /// Waits in the reply gate, then sends the answer.
    async fn answer(mut self) {
        if self.request.ops.iter().any(|op| matches!(op, Op::ReturnSpace { .. })) {
            pool_reclaim::answered(&self.server, &self.session);
        }
        let sync = self.sync && !planted(Bug::SyncNotDurable);
        let own = if sync { self.session.last_transno.get() } else { Transno::ZERO };
        let target = self.dependency.max(own);
        let durable = self.server.wait_durable(target).await;
        if durable.is_err() || self.server.failure().is_some() {
            // The request stays unacknowledged: the client sends it again after the restart.
            return;
        }
        if self.session.is_over() && !self.leave {
            return;
        }
        fill_in_leases(&self.server, &self.session, &mut self.results);
        let last_committed = self.server.mfs.last_committed();
        let (slot, seq, transno) = (self.request.slot, self.request.seq, self.transno);
        let reply = Reply { slot, seq, transno, last_committed, results: self.results };
        // A reply that was rebuilt from a kept outcome has no transaction of this server, and yet
        // the request would execute again.
        let executed =
            transno != Transno::ZERO || !self.kept.is_empty() && !planted(Bug::RepeatedAnswerLost);
        // A failed operation may succeed on a second execution, and the client may have acted on
        // the first answer by then.
        let may_execute = !self.request.ops.iter().all(is_idempotent);
        self.session.answered(&reply, executed || may_execute);
        self.session.known_durable.set(last_committed);
        if let Some(observer) = &self.server.config.observer {
            observer.answers(self.session.client, &reply, self.sync);
        }
        self.server.requests.set(self.server.requests.get() + 1);
        self.session.push(Message::Reply { reply });
        self.session.unmark_granting(slot);
        if self.leave {
            self.session.unbind();
        }
    }
}

/// May the operation be executed any number of times?
fn is_idempotent(op: &Op) -> bool {
    match op {
        Op::Renew {} | Op::Status {} | Op::Statfs {} | Op::Sync {} => true,
        Op::Acquire { .. } | Op::TestLock { .. } => true,
        op => ops::cost(op) == Some(READ),
    }
}

/// Executes an operation, or rebuilds the reply of one that was executed before a restart.
fn run_op(cx: &mut OpContext<'_>, txn: &mut Txn<'_>, nth: usize, op: &Op) -> Result<OpReply, Stop> {
    let kept = cx.kept.iter().find(|(at, _)| usize::from(*at) == nth);
    if let Some((_, outcome)) = kept {
        return repeat::reply(op, outcome, cx, txn);
    }
    cx.replayed = cx.replay_results.get(nth).and_then(|result| result.as_ref().ok());
    let reply = ops::execute(op, cx, txn)?;
    cx.finish(nth);
    Ok(reply)
}
