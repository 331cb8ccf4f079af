//! The bound on dirty bytes. Every accepted byte is covered by a claim until its write has ended;
//! writers beyond the bound wait, first come, first served. They are slowed before (`pace.rs`).
//! What a silent device holds is *excused*: so much more may be dirty, up to the bound once more.
//! So writers to other devices go on.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use env::sync::{AsyncMutex, Notify};
use types::{Duration, Instant};

use super::pace::Pace;

/// The budget of dirty bytes.
pub(super) struct Budget {
    used: Cell<u64>,
    excused: Cell<u64>,
    max: u64,
    waiting: Cell<usize>,
    fifo: AsyncMutex,
    freed: Notify,
    pace: RefCell<Pace>,
    held: Cell<usize>,
}

/// A share of the budget; returned when dropped.
pub(super) struct Claim {
    budget: Rc<Budget>,
    bytes: u64,
}

/// Counts a writer that waits, or is held, until it is dropped.
pub(super) struct Waiter<'a>(&'a Cell<usize>);

impl<'a> Waiter<'a> {
    fn new(count: &'a Cell<usize>) -> Waiter<'a> {
        count.set(count.get() + 1);
        Waiter(count)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Budget {
    /// A budget of `max` bytes.
    pub fn new(max: u64) -> Rc<Budget> {
        Rc::new(Budget {
            used: Cell::new(0),
            excused: Cell::new(0),
            max: max.max(1),
            waiting: Cell::new(0),
            fifo: AsyncMutex::new(),
            freed: Notify::new(),
            pace: RefCell::default(),
            held: Cell::new(0),
        })
    }

    /// Bytes claimed.
    pub fn used(&self) -> u64 {
        self.used.get()
    }

    /// Does a writer wait?
    pub fn has_waiters(&self) -> bool {
        self.waiting.get() > 0
    }

    /// Bytes claimed, without those that are excused.
    fn counted(&self) -> u64 {
        self.used.get().saturating_sub(self.excused.get())
    }

    /// How long a writer is to be held that has claimed `bytes` at `now`, and what counts it until
    /// then; `None`: not at all.
    pub fn hold(&self, now: Instant, bytes: u64) -> Option<(Duration, Waiter<'_>)> {
        let dirty = (self.counted(), self.max);
        let hold = self.pace.borrow_mut().hold(now, bytes, self.held.get(), dirty);
        (!hold.is_zero()).then(|| (hold, Waiter::new(&self.held)))
    }

    fn fits(&self, bytes: u64) -> bool {
        let used = self.counted();
        used == 0 || used + bytes <= self.max
    }

    /// Devices that do not answer hold `bytes`.
    pub fn excuse(&self, bytes: u64) {
        let bytes = bytes.min(self.max);
        if self.excused.replace(bytes) < bytes {
            self.freed.notify_all();
        }
    }

    /// Bytes that one silent device may hold before writers to files on it wait for it.
    pub fn silent_share(&self) -> u64 {
        self.max / 4
    }

    /// Claims `bytes` without waiting, even beyond the bound.
    pub fn force(self: &Rc<Self>, bytes: u64) -> Claim {
        self.used.set(self.used.get() + bytes);
        Claim { budget: self.clone(), bytes }
    }

    /// Claims `bytes` as soon as there is room; calls `make_room` before it waits.
    pub async fn claim(self: &Rc<Self>, bytes: u64, make_room: impl Fn()) -> Claim {
        if self.waiting.get() == 0 && self.fits(bytes) {
            return self.force(bytes);
        }
        let _waiter = Waiter::new(&self.waiting);
        let _turn = self.fifo.lock().await;
        loop {
            let freed = self.freed.notified();
            if self.fits(bytes) {
                return self.force(bytes);
            }
            make_room();
            freed.await;
        }
    }
}

impl Claim {
    /// Splits off up to `bytes`.
    pub fn split(&mut self, bytes: u64) -> Claim {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Claim { budget: self.budget.clone(), bytes }
    }

    /// Adds `other`.
    pub fn merge(&mut self, mut other: Claim) {
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let budget = &self.budget;
            budget.used.set(budget.used.get() - self.bytes);
            budget.pace.borrow_mut().returned(self.bytes, budget.counted(), budget.max);
            budget.freed.notify_all();
        }
    }
}
