//! A request that turns out to be joint: it waits here until all shards agree.

use std::collections::BTreeMap;
use std::rc::Rc;

use mfs::format::intent::OPERATION_MAX;
use mfs::{Cost, Reserve, Stop, StoreError, Txn};
use proto::mds::{Op, OpReply, Principal};
use proto::wire::{Bytes, Wire};
use types::{ClientId, Fault, Ino, ShardId, Timestamp, Transno};

use super::drive::{apply, perform};
use super::job::{Coordination, Ending, Job, Open, Share};
use super::part::{Answer, Part};
use crate::context::{Effects, OpContext, Waited};
use crate::leases::{Glimpsed, glimpse};
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

/// Has all shards do their parts, or none.
pub async fn coordinate(server: &Rc<Server>, asked: Coordinated<'_>, planned: Planned) -> Ending {
    let mut shares: BTreeMap<ShardId, Vec<Part>> = BTreeMap::new();
    for (shard, part) in planned.parts {
        shares.entry(shard).or_default().push(part);
    }
    let workers: Vec<ShardId> = shares.keys().copied().collect();
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
        shares: shares.into_iter().map(|(shard, parts)| Share { shard: shard.0, parts }).collect(),
        gates: planned.gates,
    };
    let (now, gates) = (server.runtime.env.now(), it.gates.clone());
    let job = Job::Coordinates { it };
    if job.to_bytes().len() > OPERATION_MAX {
        return Err(Fault::TooBig);
    }
    let open = Rc::new(Open::new(job, planned.waited, now));
    let mut actions = Vec::new();
    let joint = &server.joint;
    let begun = joint.site.borrow_mut().begin(joint.protocol, workers, &mut actions);
    let Some(id) = begun else { return Err(Fault::Protocol) };
    joint.open.borrow_mut().insert(id, open.clone());
    joint.close(&open, &gates);
    let ended = open.ended.notified();
    perform(server, actions);
    ended.await;
    let ending = open.ending.borrow_mut().take();
    ending.unwrap_or(Err(Fault::Io))
}

/// The operation without what its execution does not use.
fn lean(op: &Op) -> Op {
    let mut op = op.clone();
    if let Op::Create { node, .. } = &mut op {
        // Only directories are made on other shards.
        node.symlink = Bytes::default();
    }
    op
}

/// COMMITTED of a coordinator: the operation's ordinary transaction.
pub async fn commit(
    server: &Rc<Server>,
    open: &Open,
    it: &Coordination,
    mut keep: impl FnMut(&mut Txn<'_>) -> Result<(), Stop>,
) -> Result<Transno, StoreError> {
    let earlier = kept_results::decode(&it.record.0).unwrap_or_default();
    let cost = ops::cost(&it.op).unwrap_or(Cost::STEP);
    let cost = Cost { reserve: Reserve::Replay, ..cost };
    let (mut effects, nothing) = (Effects::default(), OutcomeRecord::new());
    let (waited, answers) = (open.waited.take(), open.answers.borrow().clone());
    let ran = server.runtime.mfs.run(cost, |txn| {
        let mut cx = OpContext {
            server,
            client: it.client,
            principal: &it.principal,
            now: it.time,
            kept: &nothing,
            replayed: None,
            // Its needs are met: it holds the gates.
            replay: true,
            squashed: false,
            waited: &waited,
            joint: Some(Answers { of: &answers, shares: &it.shares }),
            effects: Effects::default(),
        };
        let reply = ops::execute(&it.op, &mut cx, txn);
        effects = cx.effects;
        let reply = reply?;
        if let Some(outcome) = &effects.outcome {
            let mut record = earlier.clone();
            record.push((it.index, outcome.clone()));
            let bytes = kept_results::encode(&record);
            // The client may have been evicted, or have left.
            let known = txn.clients_from(it.client, 1)?;
            if known.first().is_some_and(|(client, _)| *client == it.client) {
                txn.set_reply(it.client, u32::from(it.slot), it.seq, &bytes)?;
            }
        }
        keep(txn)?;
        Ok(reply)
    });
    let ran: Result<(OpReply, Transno), StoreError> = ran.await;
    open.waited.replace(waited);
    let (reply, transno) = ran?;
    effects.grant_nothing();
    let outcome = effects.outcome.take();
    apply(server, it.client, effects, transno);
    *open.ending.borrow_mut() = Some(Ok((reply, outcome, transno)));
    open.is_decided.set(true);
    Ok(transno)
}

/// Asks writers for size and times of the files that a plan wants to know.
pub async fn glimpse_all(server: &Server, effects: &Effects, waited: &mut Waited) {
    for &attr in &effects.glimpse {
        let tries = waited.glimpsed.get(&attr.ino).map_or(0, Glimpsed::tries);
        let glimpsed = glimpse(&server.leases, &server.evictions, attr, tries).await;
        waited.glimpsed.insert(attr.ino, glimpsed);
    }
}
