//! A request that turns out to be joint: it waits here until all shards agree.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use mfs::format::intent::OPERATION_MAX;
use mfs::{Cost, Reserve, Stop, StoreError, Txn};
use proto::mds::{Op, OpReply, Principal};
use proto::wire::{Bytes, Wire};
use types::{ClientId, Fault, Ino, ShardId, Timestamp, Transno};

use super::ask::find_home;
use super::bounds;
use super::drive::{apply, perform};
use super::gather::{gather, place};
use super::guest;
use super::job::{Answered, Coordination, Ending, Job, Open, Refusal, Share};
use super::part::{Answer, Part};
use crate::context::{Effects, OpContext, Waited};
use crate::leases::{Glimpsed, Need, glimpse};
use crate::ops;
use crate::recovery::kept_results::{self, OutcomeRecord};
use crate::server::Server;

/// What an operation does elsewhere, as its plan says.
pub struct Planned {
    /// Each part with the shard that has it.
    pub parts: Vec<(ShardId, Part)>,
    /// The time of the operation.
    pub time: Timestamp,
    /// The gates that it holds, and the clients that have given way.
    pub waited: Waited,
    /// Inodes of this shard that it concerns.
    pub gates: Vec<Ino>,
    /// What other clients have given up.
    pub needs: Vec<Need>,
    /// It goes without others.
    pub is_alone: bool,
}

/// Whose request it is, and which operation of it.
pub struct Coordinated<'a> {
    pub client: ClientId,
    pub slot: u16,
    pub seq: u32,
    pub index: u8,
    /// When it was tried first; `None`: this is the first time.
    pub age: Option<Timestamp>,
    /// Outcomes of the request's earlier operations.
    pub record: &'a OutcomeRecord,
    pub principal: &'a Principal,
    pub op: &'a Op,
}

/// The answers that a joint operation has when it is applied.
pub struct Answers<'a> {
    of: &'a BTreeMap<ShardId, Result<Vec<Answer>, Fault>>,
    shares: &'a [Share],
}

impl Answers<'_> {
    /// What a shard has answered to the first of its parts.
    pub fn first_of(&self, shard: ShardId) -> Option<&Answer> {
        self.of.get(&shard)?.as_ref().ok()?.first()
    }

    /// The first answer at all.
    pub fn first(&self) -> Option<&Answer> {
        self.first_of(*self.of.keys().next()?)
    }

    /// All answers.
    pub fn all(&self) -> impl Iterator<Item = &Answer> {
        self.of.values().flatten().flatten()
    }

    /// The first part of another shard, as it was planned.
    pub fn part(&self) -> Option<&Part> {
        self.shares.first()?.parts.first()
    }
}

/// Has all shards do their parts, or none. Others that wait for the same gate may go with it.
pub async fn coordinate(
    server: &Rc<Server>,
    asked: Coordinated<'_>,
    mut planned: Planned,
) -> Ending {
    let shares = shares_of(std::mem::take(&mut planned.parts));
    let workers: Vec<ShardId> = shares.iter().map(|share| ShardId(share.shard)).collect();
    // An operation that cannot begin holds no gates: its directory is open to all others meanwhile.
    let reached = |worker| server.joint.peers.get(worker).is_some_and(|peer| peer.is_reached());
    if !workers.iter().all(reached) {
        return Err(Fault::Busy);
    }
    let Coordinated { client, slot, seq, index, age, record, principal, op } = asked;
    let it = Coordination {
        client,
        slot,
        seq,
        index,
        record: Bytes(kept_results::encode(record)),
        principal: principal.clone(),
        time: planned.time,
        age: age.unwrap_or(planned.time),
        op: lean(op),
        shares,
        gates: kept_gates(server, op, &planned.gates),
        made: None,
    };
    let gathered = gather(server, it, &mut planned).await;
    let kept = kept_gates(server, op, &planned.gates);
    let mut turn = planned.waited.gates.take_if(|_| kept.is_empty());
    // Behind a full batch nobody gains by waiting longer.
    drop(turn.take_if(|_| gathered.is_full));
    let job = Job::Coordinates { batch: gathered.batch.clone() };
    if job.to_bytes().len() > OPERATION_MAX {
        return Err(Fault::TooBig);
    }
    let open = Rc::new(Open::new(job, planned.waited, server.runtime.env.now()));
    open.is_asked.set(true);
    *open.turn.borrow_mut() = turn;
    let mut actions = Vec::new();
    let joint = &server.joint;
    let begun = joint.site.borrow_mut().begin(joint.protocol, workers, &mut actions);
    let Some(id) = begun else { return Err(Fault::Protocol) };
    joint.open.borrow_mut().insert(id, open.clone());
    joint.close(&open, &kept);
    gathered.seat(&open);
    perform(server, actions);
    ending(server, &open, 0).await
}

/// How an operation of a batch ended. If a worker did not have what it was asked for, this server
/// asks where that is, and the operation is tried again.
pub async fn ending(server: &Rc<Server>, open: &Open, nth: usize) -> Ending {
    let ending = open.ending(nth).await;
    if !matches!(ending, Err(Fault::Moved)) {
        return ending;
    }
    let inodes: BTreeSet<Ino> = open.job.borrow().inodes();
    for ino in inodes {
        find_home(server, ino).await;
    }
    Err(Fault::Busy)
}

impl Coordination {
    /// The worst case of the transaction that applies it.
    fn cost(&self) -> Cost {
        let parts = self.shares.iter().flat_map(|share| &share.parts);
        let large = parts.into_iter().find_map(Part::cost);
        large.or(ops::cost(&self.op)).unwrap_or(Cost::STEP)
    }
}

/// Of its gates those that it holds to its end, and that an entry keeps. A new file in a directory
/// of another shard has none of these: the directory's gate here only tells its turn.
pub fn kept_gates(server: &Server, op: &Op, gates: &[Ino]) -> Vec<Ino> {
    let is_here = |(dir, _): (Ino, _)| server.is_here(dir);
    if place(op).is_none_or(is_here) { gates.to_vec() } else { Vec::new() }
}

/// The parts by their shards.
pub fn shares_of(parts: Vec<(ShardId, Part)>) -> Vec<Share> {
    let mut shares: BTreeMap<ShardId, Vec<Part>> = BTreeMap::new();
    for (shard, part) in parts {
        shares.entry(shard).or_default().push(part);
    }
    shares.into_iter().map(|(shard, parts)| Share { shard: shard.0, parts }).collect()
}

/// The operation without what its execution does not use.
pub fn lean(op: &Op) -> Op {
    let mut op = op.clone();
    if let Op::Create { node, .. } = &mut op {
        // Only directories are made on other shards.
        node.symlink = Bytes::default();
    }
    op
}

/// COMMITTED of a coordinator: one ordinary transaction of all operations of the batch, but for
/// those that the worker has refused.
pub async fn commit(
    server: &Rc<Server>,
    open: &Open,
    batch: &[Coordination],
    mut keep: impl FnMut(&mut Txn<'_>) -> Result<(), Stop>,
) -> Result<Transno, StoreError> {
    let cost = match batch {
        [it] => it.cost(),
        _ => bounds::cost(batch.len(), batch.iter().map(|it| it.to_bytes().len()).sum()),
    };
    let cost = Cost { reserve: Reserve::Replay, ..cost };
    let (waited, answers) = (open.waited.take(), open.answers.borrow().clone());
    let each: Vec<_> = (0..batch.len()).map(|nth| answers_to(&answers, nth)).collect();
    let mut all = Vec::new();
    let ran = server.runtime.mfs.run(cost, |txn| {
        all.clear();
        for (it, answers) in batch.iter().zip(&each) {
            all.push(match answers.values().find_map(|said| said.as_ref().err()) {
                Some(&fault) => Err(fault),
                None => Ok(apply_one(server, txn, (it, answers), &waited)?),
            });
        }
        keep(txn)
    });
    let ran = ran.await;
    if ran.is_ok() {
        for (it, applied) in batch.iter().zip(&mut all) {
            if let Ok((reply, effects)) = applied {
                guest::committed(server, open, (it, &waited), effects, reply);
            }
        }
    }
    open.waited.replace(waited);
    let ((), transno) = ran?;
    guest::settled(server, open, &all.iter().map(Result::is_ok).collect::<Vec<_>>());
    let mut endings = Vec::with_capacity(all.len());
    for (it, applied) in batch.iter().zip(all) {
        endings.push(Some(applied.map(|(reply, mut effects)| {
            let outcome = effects.outcome.take();
            apply(server, it.client, effects, transno);
            (reply, outcome, transno)
        })));
    }
    server.joint.count(endings.len());
    *open.endings.borrow_mut() = endings;
    open.is_decided.set(true);
    Ok(transno)
}

/// What the shards have answered to one operation of a batch.
fn answers_to(
    of: &BTreeMap<ShardId, Result<Vec<Answered>, Refusal>>,
    nth: usize,
) -> BTreeMap<ShardId, Answered> {
    let answered = |said: &Result<Vec<Answered>, Refusal>| match said {
        Ok(all) => all.get(nth).cloned().unwrap_or(Err(Fault::Protocol)),
        Err(refusal) => Err(refusal.of(nth)),
    };
    of.iter().map(|(&shard, said)| (shard, answered(said))).collect()
}

/// Applies an operation on which all shards have agreed, and keeps its client's answer.
fn apply_one(
    server: &Server,
    txn: &mut Txn<'_>,
    (it, answers): (&Coordination, &BTreeMap<ShardId, Answered>),
    waited: &Waited,
) -> Result<(OpReply, Effects), Stop> {
    const NOTHING_KEPT: &OutcomeRecord = &OutcomeRecord::new();
    let mut cx = OpContext {
        server,
        client: it.client,
        principal: &it.principal,
        now: it.time,
        kept: NOTHING_KEPT,
        replayed: None,
        // Its needs are met: it holds the gates.
        replay: true,
        squashed: false,
        waited,
        joint: Some(Answers { of: answers, shares: &it.shares }),
        effects: Effects::default(),
    };
    let reply = ops::execute(&it.op, &mut cx, txn)?;
    let effects = cx.effects;
    if let Some(outcome) = &effects.outcome {
        let mut record = kept_results::decode(&it.record.0).unwrap_or_default();
        record.push((it.index, outcome.clone()));
        let bytes = kept_results::encode(&record);
        // The client may have been evicted, or have left.
        let known = txn.clients_from(it.client, 1)?;
        if known.first().is_some_and(|(client, _)| *client == it.client) {
            txn.set_reply(it.client, u32::from(it.slot), it.seq, &bytes)?;
        }
    }
    Ok((reply, effects))
}

/// Asks writers for size and times of the files that a plan wants to know.
pub async fn glimpse_all(server: &Server, effects: &Effects, waited: &mut Waited) {
    for &attr in &effects.glimpse {
        let tries = waited.glimpsed.get(&attr.ino).map_or(0, Glimpsed::tries);
        let glimpsed = glimpse(&server.leases, &server.evictions, attr, tries).await;
        waited.glimpsed.insert(attr.ino, glimpsed);
    }
}
