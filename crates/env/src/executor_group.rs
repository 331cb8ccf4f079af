//! An executor group: executors of several threads that share state without locks.
//!
//! A mount's clients use `Rc` and `RefCell`, which only one thread at a time may touch. So a thread
//! of the group runs tasks only while it holds the group's run token. It releases the token during
//! system calls ([`without_token`]): while it sleeps, and while the kernel copies requests and
//! replies. Tasks of different threads interleave only at awaits and at these calls.
//!
//! Invariants:
//! - a thread of a group holds the run token from its first task to the drop of its last, except
//!   during closures passed to [`without_token`];
//! - a closure passed to [`without_token`] touches nothing that other threads of the group can
//!   reach: only a descriptor, and memory that is lent to it;
//! - waiting threads run between two turns of an executor, and while it is in such a call;
//! - a task runs on the executor it was started on; a group's [`Env`](crate::Env) refers to the
//!   executor of the thread that uses it, so an operation is submitted, and ends, where its task
//!   runs;
//! - the executor of seat 0 ends last.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use crate::executor::Core;
use crate::run_token::RunToken;
use crate::sync::Notify;

/// The executors of a group.
pub(crate) struct ExecutorGroup {
    /// By seat. Emptied at the end: each executor holds a reference to its group.
    cores: RefCell<Vec<Rc<Core>>>,
    over: Cell<bool>,
    /// The error of a driver that failed.
    error: RefCell<Option<io::Error>>,
    changed: Notify,
}

thread_local! {
    /// The run token and the seat of this thread, while it runs an executor of a group.
    static SEAT: RefCell<Option<(Arc<RunToken>, usize)>> = const { RefCell::new(None) };
}

/// Runs `call` without the run token, so that another thread of the group can run meanwhile. On a
/// thread that belongs to no group it just runs `call`.
pub(crate) fn without_token<T>(call: impl FnOnce() -> T) -> T {
    struct Back<'a>(&'a RunToken);
    impl Drop for Back<'_> {
        fn drop(&mut self) {
            self.0.acquire();
        }
    }
    SEAT.with_borrow(|seat| {
        let _back = seat.as_ref().map(|(token, _)| {
            token.release();
            Back(token)
        });
        call()
    })
}

/// Lets a waiting thread of the group run.
pub(crate) fn yield_token() {
    SEAT.with_borrow(|seat| {
        if let Some((token, _)) = seat
            && token.is_wanted()
        {
            token.release();
            token.acquire();
        }
    });
}

/// The seat of this thread in its group.
pub(crate) fn seat() -> usize {
    SEAT.with_borrow(|seat| seat.as_ref().map_or(0, |(_, seat)| *seat))
}

/// This thread's seat in the group, with the run token held.
pub(crate) struct Seated;

impl Seated {
    pub(crate) fn new(token: &Arc<RunToken>, seat: usize, seats: usize) -> Seated {
        crate::buffer::share_pool(seats);
        token.acquire();
        let before = SEAT.replace(Some((token.clone(), seat)));
        assert!(before.is_none(), "a thread has one seat");
        Seated
    }
}

impl Drop for Seated {
    fn drop(&mut self) {
        abort_in_panic();
        if let Some((token, _)) = SEAT.take() {
            token.release();
        }
    }
}

impl ExecutorGroup {
    pub(crate) fn new() -> Rc<ExecutorGroup> {
        Rc::new(ExecutorGroup {
            cores: RefCell::default(),
            over: Cell::new(false),
            error: RefCell::default(),
            changed: Notify::new(),
        })
    }

    /// Adds the executor of the next seat.
    pub(crate) fn join(self: &Rc<ExecutorGroup>, core: &Rc<Core>) {
        core.join_group(self);
        self.cores.borrow_mut().push(core.clone());
    }

    /// The number of executors.
    pub(crate) fn size(&self) -> usize {
        self.cores.borrow().len()
    }

    /// The executor of a seat.
    pub(crate) fn core(&self, seat: usize) -> Rc<Core> {
        self.cores.borrow()[seat].clone()
    }

    /// The executor of this thread.
    pub(crate) fn here(&self) -> Rc<Core> {
        self.core(seat())
    }

    /// Ends when the group ends.
    pub(crate) async fn over(&self) {
        while !self.over.get() {
            self.changed.notified().await;
        }
    }

    /// Ends when the driver of an executor other than the first failed; returns the error.
    pub(crate) async fn failure(&self) -> io::Error {
        loop {
            if let Some(error) = self.error.take() {
                return error;
            }
            self.changed.notified().await;
        }
    }

    /// Reports that the driver of an executor failed.
    pub(crate) fn report_failure(&self, error: io::Error) {
        *self.error.borrow_mut() = Some(error);
        self.changed.notify_all();
    }

    /// Lets all executors but the first end.
    pub(crate) fn end(&self) {
        self.over.set(true);
        self.changed.notify_all();
    }

    /// Breaks the reference cycle of the group and its executors, which have ended.
    pub(crate) fn dissolve(&self) {
        self.cores.take();
    }
}

/// A value of a group, on its way to another thread of it.
pub(crate) struct Carried<T>(T);

// SAFETY: only `Seated` threads open it, with the run token held, which orders their accesses:
// each sees those before it.
unsafe impl<T> Send for Carried<T> {}

impl<T> Carried<T> {
    pub(crate) fn new(value: T) -> Carried<T> {
        Carried(value)
    }

    /// The carried value; the seat proves that this thread may touch it.
    pub(crate) fn open(self, _: &Seated) -> T {
        self.0
    }
}

/// Aborts the process in a panic: the state that the threads of a group share may be inconsistent.
pub(crate) fn abort_in_panic() {
    if std::thread::panicking() {
        std::process::abort();
    }
}
