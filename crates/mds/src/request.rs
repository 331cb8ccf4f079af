//! A request from its arrival to its answer.
//!
//! Invariants:
//! - an operation that changes something is kept, with the request's number, in the
//!   transaction that changes it; a request sent again goes on after what is kept;
//! - leases are granted at the instant an operation succeeded, and told as they are
//!   when the answer leaves;
//! - an answer leaves when what it rests on is durable (the reply gate).

mod locks;

use std::rc::Rc;

use proto::mds::{HeldLease, Leased, Message, Op, OpReply, Reply, Request};
use store::{Cost, Reserve, Stop, StoreError, Txn};
use types::limits::COMPOUND_OPS_MAX;
use types::{BlockRange, Bug, ClientId, Duration, Fault, Ino, Rights, Timestamp, Transno, planted};

use crate::cx::{Cx, Effects, Waited};
use crate::glimpse::{Glimpsed, glimpse};
use crate::onlooker::Executed;
use crate::ops::{self, READ, commit, repeat, space};
use crate::recall::{asked_about_open, recall};
use crate::recent::Unit;
use crate::record::{self, Outcome, Record};
use crate::server::Server;
use crate::session::{Session, State};
use crate::{evict, scrub, spare, status, unheard};

/// How often space is looked for before there is none.
const SPACE_ROUNDS: usize = 3;
/// How long who asks for space waits for what is being freed.
const FREEING: Duration = Duration::from_secs(1);

/// Executes a request and sends its answer.
pub async fn serve(server: Rc<Server>, session: Rc<Session>, request: Request, fresh: bool) {
    if !may_pass(&server, &session, &request) {
        server.grace.ended().await;
    }
    if session.is_over() {
        return;
    }
    let mut work = Work {
        results: Vec::with_capacity(request.ops.len()),
        record: Record::new(),
        kept: Record::new(),
        wait: Transno::ZERO,
        last: Transno::ZERO,
        sync: request.sync,
        leave: false,
        server,
        session,
        request,
    };
    match work.look_up_kept(fresh).await {
        Ok(false) => work.execute().await,
        Ok(true) => work.repeat_replay(),
        Err(fault) => work.results.push(Err(fault)),
    }
    work.answer().await;
}

/// During the grace only recovery passes.
fn may_pass(server: &Server, session: &Session, request: &Request) -> bool {
    let harmless = |op: &Op| matches!(op, Op::Renew {} | Op::Status {});
    let recovery = |op: &Op| matches!(op, Op::Reclaim { .. } | Op::ReclaimDone {});
    let recovering = session.state() == State::Recovering;
    server.grace.is_over()
        || planted(Bug::GraceSkipped)
        || (recovering && request.replay.is_some())
        || request.ops.iter().all(|op| harmless(op) || (recovering && recovery(op)))
}

/// Rights to believe what a reply tells in passing.
const SOFT: Rights = Rights::ATTR.union(Rights::NAMES);

/// Fills in the leases of `session` as they are now. What was read without a right to believe it is
/// told without it, though that was granted since: it may have changed in between. So is what was
/// read under another grant of that right, which went meanwhile.
pub fn tell_leases(server: &Server, session: &Session, results: &mut [Result<OpReply, Fault>]) {
    let leases = server.leases.borrow();
    for reply in results.iter_mut().flatten() {
        if let OpReply::Acquired { leased, ranges: parts, .. } = reply {
            // What went meanwhile, or is asked back, is not told.
            parts.retain(|&part| leases.keeps_range(session.client, leased.attr.ino, part));
        }
        each_leased(reply, &mut |leased| {
            let held = leases.held(session.client, leased.attr.ino);
            let same = leased.seq == held.seq;
            let believed = if same { held.rights & leased.rights & SOFT } else { Rights::empty() };
            (leased.rights, leased.seq) = ((held.rights - SOFT) | believed, held.seq);
        });
    }
}

/// All attributes with leases that a reply tells.
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

struct Work {
    server: Rc<Server>,
    session: Rc<Session>,
    request: Request,
    results: Vec<Result<OpReply, Fault>>,
    /// What of this request has taken effect so far.
    record: Record,
    /// What had taken effect before the server restarted.
    kept: Record,
    /// What must be durable before the answer.
    wait: Transno,
    /// The last transaction of the request.
    last: Transno,
    sync: bool,
    leave: bool,
}

impl Work {
    fn client(&self) -> ClientId {
        self.session.client
    }

    /// Looks whether the request was executed before the server restarted. True: it is a
    /// replay that has been done.
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

    /// Has everything that the replayed request changed survived? Its operations are transactions
    /// of their own, a large commit is several: a part of them may be lost.
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

    /// The answer to a replay that has taken effect: the results that it had.
    fn repeat_replay(&mut self) {
        if let Some(replay) = &self.request.replay {
            self.results.clone_from(&replay.results);
            // Durable before it is told: several such answers have one number.
            self.last = self.session.last.get();
            self.wait = self.last;
        }
    }

    async fn execute(&mut self) {
        let count = self.request.ops.len();
        if count > COMPOUND_OPS_MAX {
            self.results.push(Err(Fault::TooBig));
            return;
        }
        if self.request.atomic && count > 1 {
            match self.atomically().await {
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
            let mut result = self.one(index).await;
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

    /// Notes what rights the client has on what was just read, and as of which grant or recall.
    /// What is told again was read at another time: no right goes with it.
    fn note_leases(&self, index: usize, reply: &mut OpReply) {
        if self.request.replay.is_some() || self.kept_outcome(index).is_some() {
            return;
        }
        let leases = self.server.leases.borrow();
        each_leased(reply, &mut |leased| {
            let held = leases.held(self.client(), leased.attr.ino);
            // The right may be there by another answer, which waits for what this one tells in
            // passing.
            (leased.rights, leased.seq) = (self.believable(leased.attr.ino, held.rights), held.seq);
        });
    }

    /// All operations in one transaction.
    async fn atomically(&mut self) -> Result<Vec<OpReply>, Fault> {
        let ops = self.request.ops.clone();
        if !ops.iter().all(|op| ops::cost(op).is_some()) {
            return Err(Fault::Invalid);
        }
        self.attempt(Cost::STEP, 0, |cx, txn| {
            for (index, op) in ops.iter().enumerate() {
                let reply = run_op(cx, txn, index, op)?;
                cx.here.push(Ok(reply));
            }
            Ok(cx.here.drain(..).flatten().collect())
        })
        .await
    }

    async fn one(&mut self, index: usize) -> Result<OpReply, Fault> {
        if let Some(Err(fault)) = self.replayed(index) {
            // It changed nothing then: the client went on from there.
            return Err(*fault);
        }
        let op = std::mem::replace(&mut self.request.ops[index], Op::Renew {});
        let before = self.last;
        let result = match ops::cost(&op) {
            Some(cost) if self.client() != ClientId(0) => {
                let mut run =
                    self.attempt(cost, index, |cx, txn| run_op(cx, txn, index, &op)).await;
                if self.has_room_now(&run).await {
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

    /// Tells who looks on, unless it took effect before the server restarted. The request's last
    /// transaction was `before` until then.
    fn took_effect(&self, index: usize, op: &Op, before: Transno) {
        if let Some(onlooker) = &self.server.config.onlooker
            && self.kept_outcome(index).is_none()
        {
            let transno = (self.last > before).then_some(self.last);
            onlooker.took_effect(self.client(), op, transno);
        }
    }

    /// Tells who looks on what a transaction did of which operations.
    fn executed(&self, outcomes: &Record, transno: Transno) {
        let Some(onlooker) = &self.server.config.onlooker else { return };
        for (index, outcome) in outcomes {
            let edits = match outcome {
                Outcome::Edits(done) => Some(*done),
                _ => None,
            };
            let (client, request) = (self.client(), (self.request.slot, self.request.seq));
            onlooker.executed(Executed { client, request, index: *index, edits, transno });
        }
    }

    /// Operations that are no single transaction.
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
                    Some(rate) => scrub::ask(&self.server, *rate),
                    None => self.server.scrubber.break_off(),
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
                self.end_late_holders(*ino, lock).await;
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
                if self.session.state() != State::Recovering {
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
                let presumed = unheard::presume_open(&self.server, &self.session).await;
                self.store(presumed)?;
                self.session.set_state(State::Live);
                self.server.grace.progress();
                Ok(OpReply::Done {})
            }
            Op::Goodbye {} => {
                let left = evict::goodbye(&self.server, &self.session).await;
                let transno = self.store(left)?;
                self.wait = self.wait.max(transno);
                self.leave = true;
                Ok(OpReply::Done {})
            }
            Op::Evict { .. } | Op::Scrub { .. } => Err(Fault::NotPermitted),
            _ => Err(Fault::Unsupported),
        }
    }

    /// What was removed before counts as free, also where it is freed in steps; those may wait for
    /// another client.
    async fn statfs(&mut self) -> Result<OpReply, Fault> {
        let freer = &self.server.freer;
        if freer.counts().1 > 0 {
            self.server.env.timeout(FREEING, freer.drained()).await;
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
        // A replay takes effect as far as it did then, and no further: the rest came anew.
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
                    self.wait = self.wait.max(self.last);
                    return other;
                }
            }
        }
    }

    /// Lacked what ran metadata blocks, and was it waited for those that are being freed? A commit
    /// does not wait: the freeing may wait for a recall that waits for it.
    async fn has_room_now<T>(&self, ran: &Result<T, Fault>) -> bool {
        let short = matches!(ran, Err(Fault::NoSpace)) && self.server.metadata_is_short();
        short && self.removed_is_freed().await
    }

    /// Waits until what was removed before is freed; `false` if nothing was to be.
    async fn removed_is_freed(&self) -> bool {
        let server = &self.server;
        let waits = server.freer.counts().1 > 0;
        if waits {
            server.env.timeout(server.config.lease, server.freer.drained()).await;
        }
        waits
    }

    /// Waits until what is being freed can be granted.
    async fn make_room(&self) {
        let server = &self.server;
        self.removed_is_freed().await;
        let synced = server.mfs.sync().await;
        server.checked(synced, "waiting for the log");
        if server.release_freed().await > 0 {
            return;
        }
        spare::gather(server, self.client()).await;
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
                self.server.freer.consider(&self.server, ino);
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
                "client {client} claims {refused:?} {parts:?} of inode {ino}, another has it"
            );
            self.server.log(&text);
        }
    }

    /// The result that an operation of a replay had.
    fn replayed(&self, index: usize) -> Option<&Result<OpReply, Fault>> {
        self.request.replay.as_ref().and_then(|replay| replay.results.get(index))
    }

    fn kept_outcome(&self, index: usize) -> Option<&Outcome> {
        let kept = self.kept.iter().find(|(at, _)| usize::from(*at) == index);
        kept.map(|(_, outcome)| outcome)
    }

    /// The time of the transaction of operation `index`: now, or of a replay when it was. The
    /// operations of an atomic request have one; those that only read tell the times of others.
    fn time(&self, index: usize, given: &[Result<OpReply, Fault>]) -> Timestamp {
        let together = self.request.atomic && self.request.ops.len() > 1;
        let given = self.request.ops.iter().zip(given).enumerate();
        let mut given = given.filter(|(at, (op, _))| match together {
            true => ops::cost(op).is_some_and(|cost| cost != READ),
            false => *at == index,
        });
        let then = given.find_map(|(_, (_, result))| match result.as_ref().ok()? {
            OpReply::Created { leased, .. }
            | OpReply::Linked { leased, .. }
            | OpReply::Attr { leased } => Some(leased.attr.ctime),
            OpReply::Removed { dir, .. } => Some(dir.attr.ctime),
            OpReply::Renamed { moved, .. } => Some(moved.attr.ctime),
            _ => None,
        });
        then.unwrap_or_else(|| self.server.stamp())
    }

    /// Runs `body` as a transaction as often as it takes, waiting in between for what it needs.
    async fn attempt<T>(
        &mut self,
        cost: Cost,
        index: usize,
        mut body: impl FnMut(&mut Cx<'_>, &mut Txn<'_>) -> Result<T, Stop>,
    ) -> Result<T, Fault> {
        let mut waited = Waited::default();
        let replay = self.request.replay.take();
        // What was done before has room again, whatever else took some since.
        let reserve = if replay.is_some() { Reserve::Replay } else { cost.reserve };
        let cost = Cost { reserve, ..cost };
        let result = loop {
            let results = replay.as_ref().map_or(&[][..], |replay| &replay.results);
            let given = results.get(index).and_then(|result| result.as_ref().ok());
            let now = self.time(index, results);
            let mut effects = Effects::default();
            let mut record = Record::new();
            let ran = self.server.mfs.run(cost, |txn| {
                if self.session.is_over() {
                    return Err(Fault::Evicted.into());
                }
                let mut cx = Cx {
                    server: &self.server,
                    client: self.session.client,
                    principal: &self.request.principal,
                    now,
                    earlier: &self.results,
                    here: Vec::new(),
                    kept: &self.kept,
                    given,
                    results: replay.as_ref().map_or(&[], |replay| &replay.results),
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
                        // What the client has was reclaimed; it takes nothing from this answer.
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
                    self.rest_on(&effects.reads);
                    self.server.failed(&error, "executing a request");
                    break Err(error.fault());
                }
            }
        };
        self.request.replay = replay;
        result
    }

    /// Waits for rights, or for what writers know. Recalls of what this request was granted
    /// need not wait for its answer meanwhile.
    async fn wait_for(&self, effects: &Effects, waited: &mut Waited) {
        self.session.unmark_granting(self.request.slot);
        if effects.missing {
            waited.gates = None;
            let (client, session) = (self.client(), Some(&*self.session));
            waited.gates = Some(recall(&self.server, client, &effects.needs, session).await);
            waited.open_asked.extend(asked_about_open(&effects.needs));
            return;
        }
        for &attr in &effects.glimpse {
            let tries = waited.glimpsed.get(&attr.ino).map_or(0, Glimpsed::tries);
            let glimpsed = glimpse(&self.server, attr, tries).await;
            waited.glimpsed.insert(attr.ino, glimpsed);
        }
    }

    /// Are the attributes of `ino` durable when the reply leaves, as far as others changed them? If
    /// not, what is told of them, beside what was asked for, is nothing to keep.
    fn waits_for_attr(&self, ino: Ino) -> bool {
        let recent = self.server.recent.borrow();
        if recent.is_empty() {
            return true;
        }
        let changed = recent.rests_on(&Unit::Attr(ino), self.session.client);
        changed <= self.wait.max(self.server.mfs.last_committed())
    }

    /// These rights, without the one to attributes if that is nothing to keep.
    fn believable(&self, ino: Ino, rights: Rights) -> Rights {
        match rights.contains(Rights::ATTR) && !self.waits_for_attr(ino) {
            true => rights - Rights::ATTR,
            false => rights,
        }
    }

    fn rest_on(&mut self, reads: &[Unit]) {
        let recent = self.server.recent.borrow();
        if recent.is_empty() || planted(Bug::ReplyGateSkipped) {
            return;
        }
        for unit in reads {
            self.wait = self.wait.max(recent.rests_on(unit, self.session.client));
        }
    }

    /// Takes over what a transaction decided, at the instant it succeeded.
    fn apply(&mut self, effects: Effects, transno: Transno, waited: &Waited) {
        self.rest_on(&effects.reads);
        let (server, session, client) = (&self.server, &self.session, self.session.client);
        let mut granted = false;
        let mut opened = Vec::new();
        let mut again = Vec::new();
        {
            let mut leases = server.leases.borrow_mut();
            if !effects.drops.is_empty() {
                // Someone may wait for just these.
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
                    server.contention.borrow_mut().given(ino, server.env.now());
                } else {
                    granted |= !leases.rights(client, ino).contains(rights);
                    leases.grant(client, ino, rights);
                }
            }
            for (ino, part) in effects.parts {
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
                again.extend(recall);
            }
            for (ino, rights) in effects.wants {
                if leases.len() >= server.config.leases_max
                    || server.gates.closed(ino, waited.gates.as_ref())
                {
                    continue;
                }
                let rights = self.believable(ino, leases.grantable(client, ino, rights));
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
        again.into_iter().for_each(|recall| server.push_recall(recall));
        for ino in opened {
            server.freer.opened(server, client, ino);
        }
        if transno != Transno::ZERO {
            let mut recent = server.recent.borrow_mut();
            let durable = server.mfs.last_committed();
            recent.forget(durable);
            // Else the answer waits in the reply gate, or for what follows in the request.
            let alone = self.request.ops.len() == 1 || self.request.atomic;
            let answered = alone && !self.sync && self.wait <= durable;
            for unit in effects.changes {
                recent.note(unit, client, transno, answered);
            }
            if let Some((ino, size, zero)) = effects.tail {
                server.contention.borrow_mut().note_tail(ino, size, zero);
            }
            self.last = self.last.max(transno);
            session.last.set(session.last.get().max(transno));
        }
        for ino in effects.named {
            server.freer.named(ino);
        }
        for (ino, returns) in effects.nameless {
            server.freer.nameless(server, returns, ino);
        }
    }

    /// A store's result as the client is told it.
    fn store<T>(&self, result: Result<T, StoreError>) -> Result<T, Fault> {
        result.map_err(|error| {
            self.server.failed(&error, "executing a request");
            error.fault()
        })
    }

    /// The reply gate, then the answer.
    async fn answer(mut self) {
        if self.request.ops.iter().any(|op| matches!(op, Op::ReturnSpace { .. })) {
            spare::answered(&self.server, &self.session);
        }
        let sync = self.sync && !planted(Bug::SyncNotDurable);
        let target = if sync { self.wait.max(self.session.last.get()) } else { self.wait };
        let durable = self.server.wait_durable(target).await;
        if durable.is_err() || self.server.failure().is_some() {
            // Never acknowledged: the client asks again after the restart.
            return;
        }
        if self.session.is_over() && !self.leave {
            return;
        }
        tell_leases(&self.server, &self.session, &mut self.results);
        let last_committed = self.server.mfs.last_committed();
        let (slot, seq) = (self.request.slot, self.request.seq);
        let reply = Reply { slot, seq, transno: self.last, last_committed, results: self.results };
        // What was made anew from a kept outcome is no transaction of now, and yet would execute
        // again.
        let executed = self.last != Transno::ZERO
            || !self.kept.is_empty() && !planted(Bug::RepeatedAnswerLost);
        // What failed may succeed when it is executed once more, and the client has the first
        // answer by then.
        let may_execute = !self.request.ops.iter().all(only_asks);
        self.session.answered(&reply, executed || may_execute);
        self.session.told.set(last_committed);
        if let Some(onlooker) = &self.server.config.onlooker {
            onlooker.answers(self.session.client, &reply, self.sync);
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
fn only_asks(op: &Op) -> bool {
    match op {
        Op::Renew {} | Op::Status {} | Op::Statfs {} | Op::Sync {} => true,
        Op::Acquire { .. } | Op::TestLock { .. } => true,
        op => ops::cost(op) == Some(READ),
    }
}

/// Executes an operation, or makes the reply of one that was executed before a restart.
fn run_op(cx: &mut Cx<'_>, txn: &mut Txn<'_>, index: usize, op: &Op) -> Result<OpReply, Stop> {
    let kept = cx.kept.iter().find(|(at, _)| usize::from(*at) == index);
    if let Some((_, outcome)) = kept {
        return repeat::reply(op, outcome, cx, txn);
    }
    cx.given = cx.results.get(index).and_then(|result| result.as_ref().ok());
    let reply = ops::execute(op, cx, txn)?;
    cx.finish(index);
    Ok(reply)
}
