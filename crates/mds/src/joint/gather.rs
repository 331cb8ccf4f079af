//! Gathers operations of one directory that wait for its gate into one batch (003 §VI).
//!
//! An operation that holds the gate of its directory, and has its plan, looks who waits behind it.
//! It plans for those that change another name of the directory, and takes those whose parts have
//! the same single worker. They leave the gate, and all are one joint operation. New files of a
//! spread directory wait at a gate of its number at their coordinator, where nothing else does.
//! They wait until STARTED of the one before is durable, and behind a full batch not at all.
//!
//! Invariants:
//! - nobody waits for a batch to fill: only an operation that waits at the gate already is taken;
//! - operations of a batch change different names, and each was planned as if it were alone. So
//!   the order among them makes no difference;
//! - all clients have given up what the operations need, as for each of them alone: also the one
//!   whose operation gathers;
//! - an operation that is not taken keeps its place at the gate;
//! - an operation that was refused as busy goes alone after that: what is in its way is in nobody
//!   else's.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use channel::Squash;
use env::sync::{OneSender, oneshot};
use mfs::Stop;
use proto::mds::{Op, Principal};
use proto::wire::{Bytes, Wire};
use types::{Duration, Fault, Ino, Name, ShardId, Timestamp};

use super::coordinate::{Planned, kept_gates, lean, shares_of};
use super::job::{Coordination, Ending, Open, Share};
use super::{Joint, bounds};
use crate::context::{Effects, OpContext, Waited};
use crate::leases::{NO_CLIENT, recall_behind};
use crate::ops::{self, permission};
use crate::recovery::kept_results::OutcomeRecord;
use crate::server::Server;
use crate::sessions::Session;

/// How long the client whose operation gathers may take to give up what the others need. If it
/// takes longer the operation goes alone.
const PATIENCE: Duration = Duration::from_millis(10);

/// An operation that waits for the gate of its directory, and may be taken into a batch.
pub struct Candidate {
    pub session: Rc<Session>,
    pub slot: u16,
    pub seq: u32,
    pub index: u8,
    /// Outcomes of the request's earlier operations, as a kept reply has them.
    pub record: Vec<u8>,
    pub principal: Principal,
    pub op: Rc<Op>,
    /// The shard whose turn it is to get its new directory: see [`Waited::home`].
    pub home: Cell<Option<Option<ShardId>>>,
    /// It was planned for, and is no joint operation, or fails.
    declined: Cell<bool>,
    /// How it hears that it was taken; `None`: it was.
    taken: RefCell<Option<OneSender<Seat>>>,
}

/// The place of an operation in a batch.
pub struct Seat {
    open: Rc<Open>,
    nth: usize,
    /// When it was planned.
    pub time: Timestamp,
}

impl Seat {
    /// How the operation ends.
    pub async fn ending(&self, server: &Rc<Server>) -> Ending {
        super::coordinate::ending(server, &self.open, self.nth).await
    }
}

/// Operations that wait, by directory, in the order of their coming.
#[derive(Default)]
pub struct Candidates {
    of: RefCell<BTreeMap<Ino, BTreeMap<u64, Rc<Candidate>>>>,
    came: Cell<u64>,
}

/// The name that an operation changes, if it is one of one directory.
pub fn place(op: &Op) -> Option<(Ino, &Name)> {
    match op {
        Op::Create { dir, name, .. }
        | Op::Link { dir, name, tmpfile: false, .. }
        | Op::Unlink { dir, name, .. }
        | Op::Rmdir { dir, name } => Some((*dir, name)),
        _ => None,
    }
}

impl Candidate {
    /// An operation of a request.
    pub fn new(
        session: Rc<Session>,
        (slot, seq, index): (u16, u32, u8),
        record: Vec<u8>,
        principal: Principal,
        op: Rc<Op>,
    ) -> Candidate {
        let (home, declined, taken) = (Cell::new(None), Cell::new(false), RefCell::default());
        Candidate { session, slot, seq, index, record, principal, op, home, declined, taken }
    }
}

impl Candidates {
    /// The output of `wait`, or the operation's seat if it is taken into a batch before.
    pub async fn wait<T>(
        &self,
        candidate: &Rc<Candidate>,
        wait: impl Future<Output = T>,
    ) -> Result<T, Seat> {
        let Some((dir, _)) = place(&candidate.op) else { return Ok(wait.await) };
        let (send, mut taken) = oneshot();
        *candidate.taken.borrow_mut() = Some(send);
        let number = self.came.get();
        self.came.set(number + 1);
        self.of.borrow_mut().entry(dir).or_default().insert(number, candidate.clone());
        let _listed = Listed { candidates: self, dir, number };
        let mut wait = std::pin::pin!(wait);
        std::future::poll_fn(|cx| {
            use std::task::Poll;
            if let Poll::Ready(Some(seat)) = std::pin::Pin::new(&mut taken).poll(cx) {
                return Poll::Ready(Err(seat));
            }
            wait.as_mut().poll(cx).map(Ok)
        })
        .await
    }

    /// The first of a directory that came after number `after`, with its number.
    fn next(&self, dir: Ino, after: Option<u64>) -> Option<(u64, Rc<Candidate>)> {
        let of = self.of.borrow();
        let from = after.map_or(0, |number| number + 1);
        let mut waiting = of.get(&dir)?.range(from..);
        waiting.find(|(_, it)| !it.declined.get()).map(|(&number, it)| (number, it.clone()))
    }
}

/// An entry of the list, which goes when the wait is over.
struct Listed<'a> {
    candidates: &'a Candidates,
    dir: Ino,
    number: u64,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        let mut of = self.candidates.of.borrow_mut();
        if let Some(waiting) = of.get_mut(&self.dir) {
            waiting.remove(&self.number);
            if waiting.is_empty() {
                of.remove(&self.dir);
            }
        }
    }
}

/// A batch that is being gathered.
pub struct Gathered {
    /// All operations; the first is that which gathers.
    pub batch: Vec<Coordination>,
    /// Those that were taken: all but the first.
    taken: Vec<Rc<Candidate>>,
    /// More waited than it may have.
    pub is_full: bool,
}

impl Gathered {
    /// Tells those that were taken where they are.
    pub fn seat(self, open: &Rc<Open>) {
        for (nth, (it, candidate)) in (1..).zip(self.batch[1..].iter().zip(&self.taken)) {
            if let Some(send) = candidate.taken.borrow_mut().take() {
                send.send(Seat { open: open.clone(), nth, time: it.time });
            }
        }
    }
}

/// Gathers those that wait behind `first`, which holds its gates by `planned`.
pub async fn gather(server: &Rc<Server>, first: Coordination, planned: &mut Planned) -> Gathered {
    let mut gathered = Gathered { batch: vec![first], taken: Vec::new(), is_full: false };
    let Some((dir, worker)) = may_gather(&server.joint, &gathered.batch[0], planned) else {
        return gathered;
    };
    let waiting = &server.joint.candidates;
    if waiting.next(dir, None).is_none() || !clients_give_way(server, planned).await {
        return gathered;
    }
    let mut names: BTreeSet<Name> =
        place(&gathered.batch[0].op).map(|(_, name)| name.clone()).into_iter().collect();
    let mut bytes = gathered.batch[0].to_bytes().len();
    let mut after = None;
    while let Some((number, candidate)) = waiting.next(dir, after) {
        after = Some(number);
        let Some((_, name)) = place(&candidate.op).filter(|(_, name)| !names.contains(*name))
        else {
            continue;
        };
        let operations = gathered.batch.len() + 1;
        if operations > server.joint.batch || !bounds::fits(server, operations, bytes) {
            gathered.is_full = true;
            break;
        }
        let Some(it) = plan(server, &candidate, worker, planned).await else { continue };
        let size = it.to_bytes().len();
        if !bounds::fits(server, operations, bytes + size) {
            gathered.is_full = true;
            break;
        }
        bytes += size;
        names.insert(name.clone());
        gathered.batch.push(it);
        gathered.taken.push(candidate);
    }
    gathered
}

/// The directory and the worker, if an operation may have others beside it.
fn may_gather(joint: &Joint, it: &Coordination, planned: &Planned) -> Option<(Ino, ShardId)> {
    let (dir, _) = place(&it.op)?;
    let [Share { shard, .. }] = &it.shares[..] else { return None };
    let is_alone = planned.is_alone || joint.batch <= 1;
    (!is_alone && planned.gates.iter().all(|&gate| gate == dir)).then_some((dir, ShardId(*shard)))
}

/// Has the client whose operation gathers give up what the others need. Has it done so in time?
async fn clients_give_way(server: &Rc<Server>, planned: &Planned) -> bool {
    let holds = |leases: &crate::leases::Leases| {
        let table = leases.table();
        planned.needs.iter().any(|need| table.others(NO_CLIENT, need.ino).intersects(need.take))
    };
    if !holds(&server.leases) {
        return true;
    }
    let (needs, own) = (planned.needs.clone(), server.clone());
    let (send, given) = oneshot();
    server.runtime.env.spawn(async move {
        let asked = (NO_CLIENT, own.runtime.env.now());
        // It goes on to its end, since it may be evicting the client.
        recall_behind(&own.leases, &*own.evictions, asked, &needs, None).await;
        send.send(());
    });
    let _in_time = server.runtime.env.timeout(PATIENCE, given).await;
    !holds(&server.leases)
}

/// Plans for an operation that waits, under the gates of the one that gathers. `None`: it cannot be
/// taken.
async fn plan(
    server: &Rc<Server>,
    candidate: &Candidate,
    worker: ShardId,
    planned: &mut Planned,
) -> Option<Coordination> {
    let cost = ops::cost(&candidate.op)?;
    let (gates, home) = (planned.waited.gates.take(), candidate.home.clone());
    let own = Waited { gates, home, ..Waited::default() };
    let (session, nothing) = (&candidate.session, OutcomeRecord::new());
    let squashed = session.squash() != Squash::Off;
    let (now, mut effects) = (server.runtime.stamp(), Effects::default());
    let ran = server.runtime.mfs.run(cost, |txn| {
        if session.is_over() {
            return Err(Fault::Evicted.into());
        }
        let mut cx = OpContext {
            server,
            client: session.client,
            principal: &candidate.principal,
            now,
            kept: &nothing,
            replayed: None,
            replay: false,
            squashed,
            waited: &own,
            joint: None,
            effects: Effects::default(),
        };
        let may = if squashed { permission::check(&candidate.op, &mut cx, txn) } else { Ok(()) };
        let ran = may.and_then(|()| ops::execute(&candidate.op, &mut cx, txn));
        effects = cx.effects;
        ran?;
        // Nothing of it is kept.
        Err::<(), Stop>(Fault::Busy.into())
    });
    drop(ran.await);
    candidate.home.set(own.home.get());
    planned.waited.gates = own.gates;
    let gates = effects.gates();
    let Some(parts) = effects.joint else {
        // If others have to give way first, it is asked again by the next one.
        candidate.declined.set(!effects.missing && effects.glimpse.is_empty());
        return None;
    };
    let shares = shares_of(parts);
    let is_same = matches!(&shares[..], [Share { shard, .. }] if *shard == worker.0);
    (is_same && gates.iter().all(|gate| planned.gates.contains(gate))).then(|| Coordination {
        client: session.client,
        slot: candidate.slot,
        seq: candidate.seq,
        index: candidate.index,
        record: Bytes(candidate.record.clone()),
        principal: candidate.principal.clone(),
        time: now,
        age: now,
        op: lean(&candidate.op),
        shares,
        gates: kept_gates(server, &candidate.op, &gates),
        made: None,
    })
}
