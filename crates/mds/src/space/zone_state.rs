//! What an administrator says of a data zone: in service, draining, drain paused, or lost.
//!
//! Invariants:
//! - the state is durable before anybody learns of it;
//! - a zone that is not in service grants nothing, from the transaction on that says so; what is in
//!   pools then, a draining zone gets back from clients that do not need it.

use std::rc::Rc;

use mfs::{Cost, PagUse, StoreError};
use types::{ClientId, Fault, PagId};

use super::Space;

impl Space {
    /// Sets the state of a zone. Returns what it was.
    ///
    /// # Errors
    /// There is no such zone or state; the store's.
    pub async fn set_state(self: &Rc<Self>, id: PagId, state: PagUse) -> Result<PagUse, String> {
        if let PagUse::Unknown(number) = state {
            return Err(format!("a data zone has no state {number}: use a newer server"));
        }
        let runtime = &self.runtime;
        let set = runtime.mfs.run(Cost::DELETE, |txn| txn.space().set_pag_use(id, state)).await;
        let (before, transno) = set.map_err(|error| {
            runtime.note_failure(&error, "setting the state of a data zone");
            match error {
                StoreError::Fault(Fault::NotFound) => {
                    format!("the file system has no data zone {id}: `redbud pag list` shows them")
                }
                error => error.to_string(),
            }
        })?;
        runtime.wait_durable(transno).await.map_err(|error| error.to_string())?;
        self.states.borrow_mut().insert(id, state);
        self.placing.reset(id);
        if before != state {
            let (was, now) = (before.name(), state.name());
            runtime
                .log(&format!("data zone {id} is {now}, as the administrator says; it was {was}"));
            self.announce_zones();
        }
        if state.is_leaving() {
            let space = self.clone();
            runtime.env.spawn(async move { space.reclaim_pools(ClientId(0)).await });
        }
        Ok(before)
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
        states.iter().filter(|(_, state)| wanted(**state)).map(|(id, _)| *id).collect()
    }
}
