//! Operations whose callers are gone.
//!
//! Invariants:
//! - while an operation is polled it is the current one; tasks that it spawns belong to none;
//! - an operation whose caller is gone starts no request in an ordinary slot: requests that were
//!   not sent are withdrawn. Requests that were sent are executed once and answered, like any
//!   other;
//! - reserved slots have no callers: commits and returns belong to everybody.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use proto::slots::{SlotClass, Ticket};
use types::Fault;

use super::Session;

/// No operation.
const NO_OPERATION: u64 = 0;

#[derive(Default)]
pub(super) struct Callers {
    current: Cell<u64>,
    gone: RefCell<BTreeSet<u64>>,
}

impl Callers {
    /// The operation that is being polled, if its requests can be given up.
    pub fn current_for(&self, class: SlotClass) -> u64 {
        if class == SlotClass::Ordinary { self.current.get() } else { NO_OPERATION }
    }

    /// Is the caller of `operation` gone?
    pub fn is_gone(&self, operation: u64) -> bool {
        self.gone.borrow().contains(&operation)
    }
}

/// Restores the previous current operation, even after a panic.
struct Current<'a>(&'a Cell<u64>, u64);

impl Drop for Current<'_> {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

impl Session {
    /// Polls a future of `operation`, which is not 0.
    pub fn step<T>(&self, operation: u64, poll: impl FnOnce() -> T) -> T {
        let current = &self.callers.current;
        let _current = Current(current, current.replace(operation));
        poll()
    }

    /// Is the caller of the current operation gone?
    pub fn caller_is_gone(&self) -> bool {
        self.callers.is_gone(self.callers.current.get())
    }

    /// The caller of `operation` is gone, and waits for nothing any more.
    pub fn give_up(&self, operation: u64) {
        self.callers.gone.borrow_mut().insert(operation);
        let mut state = self.state.borrow_mut();
        let unsent = state
            .pending
            .extract_if(.., |_, pending| pending.operation == operation && !pending.submitted);
        let unsent: Vec<_> = unsent.collect();
        for (slot, pending) in &unsent {
            state.slots.withdraw(Ticket { slot: *slot, seq: pending.request.seq });
        }
        drop(state);
        for (_, pending) in unsent {
            pending.answer.send(Err(Fault::Interrupted));
        }
        self.changed.notify_all();
    }

    /// `operation`, whose caller is gone, has ended.
    pub fn operation_ended(&self, operation: u64) {
        self.callers.gone.borrow_mut().remove(&operation);
    }
}
