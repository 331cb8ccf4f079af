//! The bound on dirty bytes. A claim is held by every accepted byte until its
//! write has ended; writers beyond the bound wait in turn.

use std::cell::Cell;
use std::rc::Rc;

use env::sync::{AsyncMutex, Notify};

/// The bytes.
pub(super) struct Budget {
    used: Cell<u64>,
    max: u64,
    waiting: Cell<usize>,
    turn: AsyncMutex,
    freed: Notify,
}

/// A part of the bytes; given back when dropped.
pub(super) struct Claim {
    budget: Rc<Budget>,
    bytes: u64,
}

/// Counts a waiter for as long as it lives.
struct Waiting<'a>(&'a Cell<usize>);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Budget {
    /// A budget of `max` bytes.
    pub fn new(max: u64) -> Rc<Budget> {
        Rc::new(Budget {
            used: Cell::new(0),
            max: max.max(1),
            waiting: Cell::new(0),
            turn: AsyncMutex::new(),
            freed: Notify::new(),
        })
    }

    /// Bytes claimed.
    pub fn used(&self) -> u64 {
        self.used.get()
    }

    /// Does a writer wait?
    pub fn pressed(&self) -> bool {
        self.waiting.get() > 0
    }

    fn fits(&self, bytes: u64) -> bool {
        self.used.get() == 0 || self.used.get() + bytes <= self.max
    }

    /// Claims `bytes` without waiting, beyond the bound if need be.
    pub fn force(self: &Rc<Self>, bytes: u64) -> Claim {
        self.used.set(self.used.get() + bytes);
        Claim { budget: self.clone(), bytes }
    }

    /// Claims `bytes` as soon as there is room; `press` is called before waiting.
    pub async fn claim(self: &Rc<Self>, bytes: u64, press: impl Fn()) -> Claim {
        if self.waiting.get() == 0 && self.fits(bytes) {
            return self.force(bytes);
        }
        self.waiting.set(self.waiting.get() + 1);
        let _waiting = Waiting(&self.waiting);
        let _turn = self.turn.lock().await;
        loop {
            let freed = self.freed.notified();
            if self.fits(bytes) {
                return self.force(bytes);
            }
            press();
            freed.await;
        }
    }
}

impl Claim {
    /// Takes up to `bytes` out of it.
    pub fn split(&mut self, bytes: u64) -> Claim {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Claim { budget: self.budget.clone(), bytes }
    }

    /// Adds `other` to it.
    pub fn merge(&mut self, mut other: Claim) {
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.used.set(self.budget.used.get() - self.bytes);
            self.budget.freed.notify_all();
        }
    }
}
