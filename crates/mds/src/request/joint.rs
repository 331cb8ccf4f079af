//! Requests that concern other servers of the namespace.

use std::cell::Cell;

use proto::mds::{Op, OpReply, SHARDS};
use types::{Fault, Timestamp};

use super::Execution;
use crate::context::{Effects, Waited};
use crate::joint::{self, Coordinated, Planned};

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
}

impl Execution {
    /// The servers of the namespace, for a client that can use several.
    pub(super) fn servers(&self) -> Result<OpReply, Fault> {
        if self.session.agreed().features & SHARDS == 0 {
            return Err(Fault::Unsupported);
        }
        Ok(OpReply::Servers { list: self.server.runtime.config.servers.clone() })
    }

    /// Waits until it is decided what becomes of this request, if a restart has found it open.
    pub(super) async fn wait_until_settled(&self) {
        let joint = &self.server.joint;
        if joint.has_peers() {
            let (client, slot, seq) = (self.client(), self.request.slot, self.request.seq);
            self.worker.away(joint.settled(client, slot, seq)).await;
        }
    }

    /// The attempt has found that the operation is joint. Is this its plan? Only if it holds its
    /// gates: from then on nobody else changes what it has seen.
    pub(super) fn is_planned(
        &mut self,
        effects: &mut Effects,
        waited: &mut Waited,
        time: Timestamp,
    ) -> bool {
        let gates = effects.gates();
        let held = waited.gates.as_ref().is_some_and(|held| held.cover(&gates));
        if held {
            let parts = effects.joint.take().unwrap_or_default();
            self.joining.planned =
                Some(Planned { parts, time, waited: std::mem::take(waited), gates });
        }
        effects.missing = true;
        held
    }

    /// Coordinates the operation, if it is joint. Must it be tried again?
    pub(super) async fn is_to_go_on(
        &mut self,
        run: &mut Result<OpReply, Fault>,
        index: usize,
        op: &Op,
    ) -> bool {
        let Some(planned) = self.joining.planned.take() else {
            return self.joining.asked_in_vain.take();
        };
        let time = planned.time;
        *run = self.coordinate(index, op, planned).await;
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
        let (reply, outcome, transno) = self.worker.away(agreed).await?;
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
