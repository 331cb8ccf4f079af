//! What happened: every step with its beginning and its end, in one order of events.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use env::sim::SimRng;

use crate::call::{Call, Op, Outcome};

/// What an application waits for.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// Client.
    pub client: usize,
    /// Position of the beginning.
    pub begun: u64,
    /// What it asked for.
    pub op: Op,
}

#[derive(Default)]
struct Inner {
    events: u64,
    calls: Vec<Call>,
    waiting: BTreeMap<u64, Waiting>,
    hash: u64,
    count: u64,
}

/// See the module. Clones are the same history.
#[derive(Clone, Default)]
pub struct History(Rc<RefCell<Inner>>);

impl History {
    /// An application asks; gives the number by which [`History::end`] knows it.
    pub fn begin(&self, client: usize, op: Op) -> u64 {
        let mut inner = self.0.borrow_mut();
        inner.events += 1;
        let begun = inner.events;
        inner.waiting.insert(begun, Waiting { client, begun, op });
        begun
    }

    /// The answer is there; it tells of several steps, each somewhere between then and now.
    pub fn end(&self, begun: u64, steps: Vec<(Op, Outcome)>) {
        let mut inner = self.0.borrow_mut();
        let Some(waiting) = inner.waiting.remove(&begun) else { return };
        inner.events += 1;
        inner.count += 1;
        let ended = inner.events;
        for (op, outcome) in steps {
            let call = Call { client: waiting.client, op, outcome: Some(outcome), begun, ended };
            for byte in format!("{call:?}").bytes() {
                inner.hash = (inner.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
            inner.calls.push(call);
        }
    }

    /// What waits for an answer.
    pub fn waiting(&self) -> Vec<Waiting> {
        self.0.borrow().waiting.values().cloned().collect()
    }

    /// Takes all that has ended, in the order of the ends, and what this client's end cut short.
    pub fn take(&self) -> Vec<Call> {
        std::mem::take(&mut self.0.borrow_mut().calls)
    }

    /// Operations that have ended.
    pub fn count(&self) -> u64 {
        self.0.borrow().count
    }

    /// A hash of all that was seen.
    pub fn hash(&self) -> u64 {
        SimRng::new(self.0.borrow().hash).next_u64()
    }
}
