//! Operations whose callers are gone.
//!
//! Invariants:
//! - while an operation is polled it is the current one; tasks that it spawns belong to none;
//! - an operation whose caller is gone starts no request in an ordinary slot: requests that were
//!   not sent are withdrawn. Requests that were sent are executed once and answered, like any
//!   other;
//! - reserved slots have no callers: commits and returns belong to everybody;
//! - a request that is *retracted* is never sent again. On a new connection an empty one takes its
//!   slot and number: so its answer says that the request has been executed, or never will be.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::pin::pin;

use env::sync::{Permit, Semaphore, first};
use proto::message::{Peer, Request};
use proto::slots::{SlotClass, Ticket};
use types::Fault;

use super::{PendingRequest, Phase, Session};

/// No operation.
pub(super) const NO_OPERATION: u64 = 0;

/// What the sessions of one client share: the order of its requests, and its operations.
#[derive(Default)]
pub struct Shared {
    order: Cell<u64>,
    current: Cell<u64>,
    /// Operations of the client itself, numbered downwards from the highest number.
    own: Cell<u64>,
    gone: RefCell<BTreeSet<u64>>,
}

impl Shared {
    /// Number of the next request, in the order in which requests are made.
    pub fn order(&self) -> u64 {
        self.order.get()
    }

    /// Numbers a request.
    pub(super) fn next_order(&self) -> u64 {
        self.order.replace(self.order.get() + 1)
    }

    /// The operation that is being polled, if its requests can be given up.
    pub(super) fn current_for(&self, class: SlotClass) -> u64 {
        if class == SlotClass::Ordinary { self.current.get() } else { NO_OPERATION }
    }

    /// The operation that is being polled; 0: none.
    pub fn current(&self) -> u64 {
        self.current.get()
    }

    /// Is the caller of `operation` gone?
    pub(super) fn is_gone(&self, operation: u64) -> bool {
        self.gone.borrow().contains(&operation)
    }

    /// Polls a future of `operation`, which is not 0.
    pub fn step<T>(&self, operation: u64, poll: impl FnOnce() -> T) -> T {
        let _current = Current(&self.current, self.current.replace(operation));
        poll()
    }

    /// Number of an operation of the client itself. No caller's has it: those count upwards.
    pub fn own_operation(&self) -> u64 {
        self.own.set(self.own.get() + 1);
        u64::MAX - self.own.get()
    }

    /// Is the caller of the current operation gone?
    pub fn caller_is_gone(&self) -> bool {
        self.is_gone(self.current.get())
    }

    /// The caller of `operation` is gone.
    pub fn note_gone(&self, operation: u64) {
        self.gone.borrow_mut().insert(operation);
    }

    /// `operation`, whose caller is gone, has ended.
    pub fn operation_ended(&self, operation: u64) {
        self.gone.borrow_mut().remove(&operation);
    }
}

/// Restores the previous current operation, even after a panic.
struct Current<'a>(&'a Cell<u64>, u64);

impl Drop for Current<'_> {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

impl<P: Peer> PendingRequest<P> {
    /// What goes to the server on a new connection.
    pub(super) fn to_send_again(&self) -> Request<P> {
        let request = &*self.request;
        if !self.retracted {
            return request.clone();
        }
        let (slot, seq, principal) = (request.slot, request.seq, request.principal.clone());
        Request { slot, seq, principal, sync: false, replay: None, ops: vec![P::sync()] }
    }
}

impl<P: Peer> Session<P> {
    /// A permit for a slot.
    ///
    /// # Errors
    /// `Interrupted`: the operation was given up.
    pub(super) async fn permit(
        &self,
        permits: &Semaphore,
        operation: u64,
    ) -> Result<Permit, Fault> {
        let mut permit = pin!(permits.acquire(1));
        loop {
            let given_up = self.given_up.notified();
            if self.shared.is_gone(operation) {
                return Err(Fault::Interrupted);
            }
            if let Some(permit) = first(permit.as_mut(), given_up).await {
                return Ok(permit);
            }
        }
    }

    /// The caller of `operation` is gone: withdraws what the operation has not sent.
    pub(super) fn withdraw_unsent(&self, operation: u64) {
        let mut state = self.state.borrow_mut();
        let unsent = state
            .pending
            .extract_if(.., |_, pending| pending.operation == operation && !pending.submitted);
        let unsent: Vec<_> = unsent.collect();
        for (slot, pending) in &unsent {
            state.slots.withdraw(Ticket { slot: *slot, seq: pending.request.seq });
            state.replay.expected_no_longer(pending.weight);
        }
        drop(state);
        for (_, pending) in unsent {
            pending.answer.send(Err(Fault::Interrupted));
        }
        self.changed.notify_all();
        self.room.notify_all();
        self.given_up.notify_all();
    }

    /// `operation` is not to change anything any more; [`Shared`] must know that its caller is
    /// gone.
    /// What it has not sent fails with `Interrupted`. What the server may have is not sent again:
    /// its answer comes when the server has executed it, or has none of it in flight.
    pub fn retract(&self, operation: u64) {
        self.withdraw_unsent(operation);
        let mut state = self.state.borrow_mut();
        let own = state.pending.values_mut().filter(|pending| pending.operation == operation);
        own.for_each(|pending| pending.retracted = true);
    }

    /// What was answered and is not known to be durable has been given up: a server that restarts
    /// does not get it again.
    pub fn forget_kept(&self) {
        let mut state = self.state.borrow_mut();
        state.replay.drop_kept();
        // A recovery in progress may be about to repeat it: it begins anew.
        if state.phase == Phase::Recovering
            && let Some(stream) = &state.stream
        {
            stream.shutdown();
        }
        drop(state);
        self.announce_room();
    }
}
