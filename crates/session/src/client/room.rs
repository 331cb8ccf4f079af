//! Room in the replay list: who may send a request that is to be kept.
//!
//! | request | sent while the list, with what is in flight, is |
//! |---|---|
//! | changes nothing: renewal, return, read, *Sync* | of any length |
//! | in an ordinary slot | below three quarters of its limits |
//! | in a reserved slot: a commit, space | below its limits |
//! | replay | of any length: it is in the list |
//!
//! Above half of its limits the list is *long*, and the client asks the server to flush its log.
//!
//! Invariants:
//! - the list, with the requests in flight, keeps its limits, except for one request that exceeds
//!   them alone;
//! - what waits for room holds no slot, so that what changes nothing passes;
//! - a quarter of the list is left for reserved slots. What is kept there has been answered without
//!   waiting for other clients, and leaves when the server's log is durable, for which the server
//!   needs no client: so what completes a recall cannot wait for itself.

use proto::message::Peer;
use proto::slots::SlotClass;
use types::Fault;

use super::{Phase, Session};

impl<P: Peer> Session<P> {
    /// May a request be sent that takes `weight` in the list?
    pub(super) fn has_room(&self, class: SlotClass, weight: Option<usize>) -> bool {
        weight.is_none_or(|weight| self.state.borrow().replay.has_room(class, weight))
    }

    /// Waits until there is room; usually there is.
    pub(super) async fn wait_for_room(
        &self,
        class: SlotClass,
        weight: Option<usize>,
        operation: u64,
    ) -> Result<(), Fault> {
        loop {
            let more = {
                if self.has_room(class, weight) {
                    return Ok(());
                }
                self.room.notified()
            };
            let (phase, refused) = {
                let state = self.state.borrow();
                (state.phase, state.refused)
            };
            if phase == Phase::Closed {
                return Err(Fault::Unreachable);
            }
            if refused {
                return Err(Fault::NotPermitted);
            }
            if self.shared.is_gone(operation) {
                return Err(Fault::Interrupted);
            }
            self.force_sync();
            more.await;
        }
    }

    /// Something has left the list, or what is in flight: wakes those who wait for room.
    pub(super) fn announce_room(&self) {
        if self.room.waiting() > 0 {
            self.room.notify_all();
        }
    }

    /// Makes the server flush its log, one request at a time.
    pub(super) fn force_sync(&self) {
        {
            // If the list is empty, all that takes room is in flight: a flush would free nothing.
            let state = self.state.borrow();
            if state.forced.is_some() || state.replay.len() == 0 {
                return;
            }
        }
        // Without a permit others are in flight in all reserved slots: the next answer asks again.
        let Some(permit) = self.reserved.try_acquire(1) else { return };
        // The reply is not needed: its `last_committed` prunes the list.
        if let Ok((ticket, _)) = self.submit_own(P::sync(), permit) {
            self.state.borrow_mut().forced = Some(ticket);
        }
    }
}
