//! What an administrator says of a data zone: in service, draining, drain paused, or lost.
//!
//! Invariants:
//! - the state is durable before anybody learns of it;
//! - a request that names the states that it changes changes no other one, so that a mover that
//!   repeats itself undoes nothing that an administrator has said since;
//! - a zone that is not in service grants nothing, from the transaction on that says so; what is in
//!   pools then, a draining zone gets back from clients that do not need it.

use std::rc::Rc;

use mfs::{Cost, PagUse, StoreError};
use types::plant::planted;
use types::{Bug, ClientId, Fault, PagId, Transno};

use super::Space;

/// States that a request may name: as many as there are.
const STATES_MAX: usize = 4;

/// What became of a request to set a zone's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StateChange {
    /// The state is as asked for.
    Set {
        /// What it was before.
        before: PagUse,
    },
    /// The zone keeps this state, which the request does not change.
    Kept(PagUse),
}

impl Space {
    /// Sets the state of a zone, if it is one of `only_from` until then, or if that is empty. The
    /// checks and the change are one transaction. `goes_back`: are blocks of it just given back to
    /// the server that has lent them? Then the zone goes on to grant none.
    ///
    /// # Errors
    /// There is no such zone or state; more states than [`STATES_MAX`]; the store's.
    pub async fn set_state(
        self: &Rc<Self>,
        id: PagId,
        state: PagUse,
        only_from: &[PagUse],
        goes_back: impl Fn() -> bool,
    ) -> Result<StateChange, String> {
        if let PagUse::Unknown(number) = state {
            return Err(format!("a data zone has no state {number}: use a newer server"));
        }
        if only_from.len() > STATES_MAX {
            return Err(format!("a request names at most {STATES_MAX} states of a data zone"));
        }
        let runtime = &self.runtime;
        let set = runtime.mfs.run(Cost::DELETE, |txn| {
            let before = txn.space().pag_use(id)?;
            let is_meant = only_from.is_empty() || only_from.contains(&before);
            if !is_meant && !planted(Bug::ZoneStateForced) {
                return Ok(StateChange::Kept(before));
            }
            // The server must not grant blocks that it has promised to give back.
            if before.is_leaving() && !state.is_leaving() && goes_back() {
                return Err(Fault::WouldBlock.into());
            }
            txn.space().set_pag_use(id, state)?;
            Ok(StateChange::Set { before })
        });
        let (change, transno) = set.await.map_err(|error| {
            runtime.note_failure(&error, "setting the state of a data zone");
            match error {
                StoreError::Fault(Fault::NotFound) => {
                    format!("the file system has no data zone {id}: `redbud pag list` shows them")
                }
                StoreError::Fault(Fault::WouldBlock) => format!(
                    "blocks of data zone {id} are on their way back to the server that has lent \
                     them: run the same command again"
                ),
                error => error.to_string(),
            }
        })?;
        runtime.wait_durable(transno).await.map_err(|error| error.to_string())?;
        let StateChange::Set { before } = change else { return Ok(change) };
        if before != state {
            self.changed(id, state, transno);
            let (was, now) = (before.name(), state.name());
            runtime
                .log(&format!("data zone {id} is {now}, as the administrator says; it was {was}"));
        }
        self.placing.reset(id);
        if state.is_leaving() {
            let space = self.clone();
            runtime.env.spawn(async move { space.reclaim_pools(ClientId(0)).await });
        }
        Ok(change)
    }

    /// A change of a zone's state is durable. Of two that wait at the same time, the later one may
    /// hear so first.
    pub(super) fn changed(&self, id: PagId, state: PagUse, transno: Transno) {
        let mut states = self.states.borrow_mut();
        if states.get(&id).is_none_or(|(_, last)| *last < transno) {
            states.insert(id, (state, transno));
            drop(states);
            self.announce_zones();
        }
    }

    /// Is the zone in service, as the store says?
    pub(super) async fn is_in_service(&self, id: PagId) -> bool {
        let state = self.runtime.mfs.run(Cost::READ, |txn| txn.space().pag_use(id)).await;
        state.is_ok_and(|(state, _)| state == PagUse::InService)
    }

    /// The zones whose devices are gone.
    pub(super) fn lost(&self) -> Vec<PagId> {
        self.in_state(|state| state == PagUse::Lost)
    }

    /// The zones that drain.
    pub(super) fn leaving(&self) -> Vec<PagId> {
        self.in_state(PagUse::is_leaving)
    }

    fn in_state(&self, wanted: impl Fn(PagUse) -> bool) -> Vec<PagId> {
        let states = self.states.borrow();
        states.iter().filter(|(_, (state, _))| wanted(*state)).map(|(id, _)| *id).collect()
    }
}
