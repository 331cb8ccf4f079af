//! Requests that concern other servers of the namespace.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use proto::mds::{MOVING, Op, OpReply, SHARDS};
use types::{ClientId, Fault, ShardId, Timestamp};

use super::Execution;
use crate::context::{Effects, Waited};
use crate::joint::{self, Candidate, Coordinated, Ending, Planned, Seat};
use crate::leases::{HeldGates, NO_CLIENT, recall};
use crate::recovery::kept_results;

/// What an operation has to do with other shards.
#[derive(Default)]
pub(super) struct Joining {
    /// It is joint, and this is its plan.
    pub(super) planned: Option<Planned>,
    /// When it was planned first.
    pub(super) first_try: Option<Timestamp>,
    /// How often it was tried again.
    pub(super) tries: Cell<u32>,
    /// Another shard could not be asked: it begins anew.
    pub(super) asked_in_vain: Cell<bool>,
    /// All shards have agreed on it.
    pub(super) was_joint: Cell<bool>,
    /// The operation and its index, if another one that waits at its gate may take it with it.
    gathered: Option<(u8, Rc<Op>)>,
    /// The same, once it has waited.
    candidate: RefCell<Option<Rc<Candidate>>>,
    /// Another operation has taken it.
    seat: RefCell<Option<Seat>>,
}

impl Execution {
    /// The servers of the namespace, for a client that can use several.
    pub(super) fn servers(&self) -> Result<OpReply, Fault> {
        if self.session.agreed().features & SHARDS == 0 {
            return Err(Fault::Unsupported);
        }
        Ok(OpReply::Servers { list: self.server.runtime.config.servers.clone() })
    }

    /// The fault of a client's request, if one of its operations needs an inode that lives at
    /// another server. A request that was executed before the server restarted, or in part, goes
    /// on as it began.
    pub(super) fn refusal_as_misdirected(&self) -> Option<Fault> {
        if self.client() == ClientId::NONE || self.request.replay.is_some() || !self.kept.is_empty()
        {
            return None;
        }
        let is_misdirected = self.request.ops.iter().any(|op| self.server.is_misdirected(op));
        let knows = self.session.agreed().version >= MOVING;
        is_misdirected.then_some(if knows { Fault::Moved } else { Fault::Stale })
    }

    /// What a client hears of a fault. An inode may have moved while its operation waited. Only
    /// then, with nothing of the request executed, does the client ask the other server. A creation
    /// that only the directory's own server can do may come from a client that believes this one to
    /// be that: it finds out which one is.
    pub(super) fn or_stale(&self, index: usize, fault: Fault) -> Fault {
        let knows = index == 0 && self.session.agreed().version >= MOVING;
        let creates = matches!(self.request.ops.get(index), Some(Op::Create { .. }));
        match fault {
            Fault::CrossDevice if knows && creates => Fault::Moved,
            Fault::Moved if !knows => Fault::Stale,
            fault => fault,
        }
    }

    /// Lends free space to the server of a shard, whose session this is.
    pub(super) async fn lend(&self, op: &Op) -> Result<OpReply, Fault> {
        let Op::Lend { shard, sequence, blocks } = *op else { return Err(Fault::Protocol) };
        let to = ShardId(shard);
        if !self.server.joint.is_peer(to) || !self.session.speaks_for(to) {
            return Err(Fault::Protocol);
        }
        let joint = &self.server.joint;
        joint.none_goes_back(&self.server.runtime.env).await;
        let lent = self.server.space.lend(to, (sequence, blocks), || joint.takes_back()).await;
        let (zone, start, runs) = lent?;
        Ok(OpReply::Lent { zone, start, runs })
    }

    /// Waits until it is decided what becomes of this request, if a restart has found it open.
    pub(super) async fn wait_until_settled(&self) {
        let joint = &self.server.joint;
        if joint.has_peers() {
            let (client, slot, seq) = (self.client(), self.request.slot, self.request.seq);
            self.worker.away(joint.settled(client, slot, seq)).await;
        }
    }

    /// Has the attempt found that the operation is joint, and is this its plan? Only if it holds
    /// its gates: from then on nobody else changes what it has seen.
    fn is_planned(&mut self, effects: &mut Effects, waited: &mut Waited, time: Timestamp) -> bool {
        if effects.joint.is_none() {
            return false;
        }
        let (gates, needs) = (effects.gates(), std::mem::take(&mut effects.needs));
        let held = waited.gates.as_ref().is_some_and(|held| held.cover(&gates));
        if held {
            let parts = effects.joint.take().unwrap_or_default();
            let (waited, is_alone) = (std::mem::take(waited), self.joining.first_try.is_some());
            self.joining.planned = Some(Planned { parts, time, waited, gates, needs, is_alone });
        } else {
            effects.needs = needs;
        }
        effects.missing = true;
        held
    }

    /// An operation begins.
    pub(super) fn begin_joining(&mut self, index: usize, op: &Op) {
        let may = self.server.joint.gathers()
            && self.request.replay.is_none()
            && self.kept_outcome(index).is_none()
            && joint::place(op).is_some();
        let gathered = may.then(|| (index as u8, Rc::new(op.clone())));
        self.joining = Joining { gathered, ..Joining::default() };
    }

    /// An attempt has ended because something must be waited for. Is the operation joint, and
    /// planned, or taken by another one? If not, what it waits for is there now.
    pub(super) async fn goes_with_others(
        &mut self,
        effects: &mut Effects,
        waited: &mut Waited,
        time: Timestamp,
    ) -> bool {
        if self.is_planned(effects, waited, time) {
            return true;
        }
        self.worker.away(self.wait_for(effects, waited)).await;
        self.joining.seat.borrow().is_some()
    }

    /// Takes the gates of the needs and has other clients give way; `None`: meanwhile the operation
    /// was taken into a batch.
    pub(super) async fn enter(&self, effects: &Effects, waited: &Waited) -> Option<HeldGates> {
        let client = if effects.asker_gives_up { NO_CLIENT } else { self.client() };
        let session = Some(&*self.session);
        let (leases, evictions) = (&self.server.leases, &*self.server.evictions);
        let entered = recall(leases, evictions, client, &effects.needs, session);
        let Some(candidate) = self.candidate(effects) else { return Some(entered.await) };
        candidate.home.set(waited.home.get());
        let waits = self.server.joint.candidates().wait(&candidate, entered).await;
        waited.home.set(candidate.home.get());
        match waits {
            Ok(gates) => Some(gates),
            Err(seat) => {
                *self.joining.seat.borrow_mut() = Some(seat);
                None
            }
        }
    }

    /// The operation, if it may be taken. It was not refused before, and waits for one gate only.
    fn candidate(&self, effects: &Effects) -> Option<Rc<Candidate>> {
        let (index, op) = self.joining.gathered.as_ref()?;
        let (dir, _) = joint::place(op)?;
        if self.joining.first_try.is_some() || effects.needs.iter().any(|need| need.ino != dir) {
            return None;
        }
        let mut known = self.joining.candidate.borrow_mut();
        let candidate = known.get_or_insert_with(|| {
            let record = kept_results::encode(&self.record);
            let of = (self.request.slot, self.request.seq, *index);
            let principal = self.request.principal.clone();
            Rc::new(Candidate::new(self.session.clone(), of, record, principal, op.clone()))
        });
        Some(candidate.clone())
    }

    /// Coordinates the operation, if it is joint. Must it be tried again?
    pub(super) async fn is_to_go_on(
        &mut self,
        run: &mut Result<OpReply, Fault>,
        index: usize,
        op: &Op,
    ) -> bool {
        let seat = self.joining.seat.take();
        let time = match (self.joining.planned.take(), seat) {
            (Some(planned), _) => {
                let time = planned.time;
                *run = self.coordinate(index, op, planned).await;
                time
            }
            (None, Some(seat)) => {
                let ending = self.worker.away(seat.ending(&self.server)).await;
                *run = self.joined(index, ending);
                seat.time
            }
            (None, None) => return self.joining.asked_in_vain.take(),
        };
        self.joining.was_joint.set(run.is_ok());
        // The next try is as old as this one.
        self.joining.first_try.get_or_insert(time);
        matches!(run, Err(Fault::Busy))
    }

    /// Another shard was busy: it may hold what this operation waits for, and wait for what this
    /// operation has held.
    pub(super) async fn pause_before_another_try(&self) {
        let env = &self.server.runtime.env;
        let tries = self.joining.tries.get();
        self.joining.tries.set(tries + 1);
        self.worker.away(env.sleep(self.server.joint.pause(env, tries))).await;
    }

    /// Has all shards do what they have to of a joint operation.
    pub(super) async fn coordinate(
        &mut self,
        index: usize,
        op: &Op,
        planned: Planned,
    ) -> Result<OpReply, Fault> {
        self.session.unmark_granting(self.request.slot);
        let asked = Coordinated {
            client: self.session.client,
            slot: self.request.slot,
            seq: self.request.seq,
            index: index as u8,
            age: self.joining.first_try,
            record: &self.record,
            principal: &self.request.principal,
            op,
        };
        let agreed = joint::coordinate(&self.server, asked, planned);
        let ending = self.worker.away(agreed).await;
        self.joined(index, ending)
    }

    /// A joint operation has ended.
    fn joined(&mut self, index: usize, ending: Ending) -> Result<OpReply, Fault> {
        let (reply, outcome, transno) = ending?;
        if let Some(outcome) = outcome {
            self.executed(index, &outcome, transno);
            self.record.push((index as u8, outcome));
        }
        self.transno = self.transno.max(transno);
        // All shards have agreed, and nothing of it can be lost.
        self.session.note_change(transno);
        Ok(reply)
    }
}
