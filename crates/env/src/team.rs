//! Executors of several threads that share state without locks: they take turns.
//!
//! A mount's clients lie in `Rc` and `RefCell`, which one thread at a time may touch. So a thread
//! of the team runs tasks only while it holds the team's baton, and is [`away`] from it
//! for system calls: while it sleeps, and while the kernel copies requests and replies. Tasks of
//! different threads then interleave at awaits only, and where one of them is away.
//!
//! Invariants:
//! - all that a thread of a team does is done with the baton held, from its first
//!   task to the drop of its last, but for what is given to [`away`];
//! - what is given to [`away`] touches nothing that other threads of the team reach: a
//!   descriptor, and memory that is lent to it;
//! - between two turns of an executor, and while it is away, others that wait run;
//! - a task runs on the executor it was started on; a team's [`Env`](crate::Env) is that of
//!   whichever thread uses it, so an operation is submitted, and ends, where its task runs;
//! - the executor of seat 0 ends last.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use crate::baton::Baton;
use crate::executor::Core;
use crate::sync::Notify;

/// The executors that take turns.
pub(crate) struct Team {
    /// By seat. Emptied at the end: each of them knows its team.
    cores: RefCell<Vec<Rc<Core>>>,
    over: Cell<bool>,
    /// What broke the driver of one of them.
    error: RefCell<Option<io::Error>>,
    changed: Notify,
}

thread_local! {
    /// What this thread holds, while it runs an executor of a team.
    static SEAT: RefCell<Option<(Arc<Baton>, usize)>> = const { RefCell::new(None) };
}

/// Runs `call` without the baton, so that another thread of the team can run meanwhile. On a
/// thread that belongs to no team it just runs it.
pub(crate) fn away<T>(call: impl FnOnce() -> T) -> T {
    struct Back<'a>(&'a Baton);
    impl Drop for Back<'_> {
        fn drop(&mut self) {
            self.0.take();
        }
    }
    SEAT.with_borrow(|seat| {
        let _back = seat.as_ref().map(|(baton, _)| {
            baton.give();
            Back(baton)
        });
        call()
    })
}

/// Lets another thread of the team run that waits for it.
pub(crate) fn pass() {
    SEAT.with_borrow(|seat| {
        if let Some((baton, _)) = seat
            && baton.is_wanted()
        {
            baton.give();
            baton.take();
        }
    });
}

/// The seat of this thread in its team.
pub(crate) fn seat() -> usize {
    SEAT.with_borrow(|seat| seat.as_ref().map_or(0, |(_, seat)| *seat))
}

/// This thread's place in the team, with the baton held.
pub(crate) struct Seated;

impl Seated {
    pub(crate) fn new(baton: &Arc<Baton>, seat: usize, seats: usize) -> Seated {
        crate::buffer::share_pool(seats);
        baton.take();
        let before = SEAT.replace(Some((baton.clone(), seat)));
        assert!(before.is_none(), "a thread has one seat");
        Seated
    }
}

impl Drop for Seated {
    fn drop(&mut self) {
        abort_in_panic();
        if let Some((baton, _)) = SEAT.take() {
            baton.give();
        }
    }
}

impl Team {
    pub(crate) fn new() -> Rc<Team> {
        Rc::new(Team {
            cores: RefCell::default(),
            over: Cell::new(false),
            error: RefCell::default(),
            changed: Notify::new(),
        })
    }

    /// Takes the executor of the next seat in.
    pub(crate) fn join(self: &Rc<Team>, core: &Rc<Core>) {
        core.set_team(self);
        self.cores.borrow_mut().push(core.clone());
    }

    /// How many there are.
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

    /// Ends when the team does.
    pub(crate) async fn over(&self) {
        while !self.over.get() {
            self.changed.notified().await;
        }
    }

    /// Ends when the driver of an executor other than the first broke: why.
    pub(crate) async fn broken(&self) -> io::Error {
        loop {
            if let Some(error) = self.error.take() {
                return error;
            }
            self.changed.notified().await;
        }
    }

    /// The driver of an executor broke.
    pub(crate) fn tell_broken(&self, error: io::Error) {
        *self.error.borrow_mut() = Some(error);
        self.changed.notify_all();
    }

    /// Lets all executors but the first end.
    pub(crate) fn end(&self) {
        self.over.set(true);
        self.changed.notify_all();
    }

    /// Breaks the circle of the team and its executors, which have ended.
    pub(crate) fn dissolve(&self) {
        self.cores.take();
    }
}

/// Something of a team, on its way to another thread of it.
pub(crate) struct Carried<T>(T);

// SAFETY: what is carried is opened by `Seated` threads only, with the baton held, which makes
// their accesses follow each other, each seeing those before it.
unsafe impl<T> Send for Carried<T> {}

impl<T> Carried<T> {
    pub(crate) fn new(value: T) -> Carried<T> {
        Carried(value)
    }

    /// What was carried; proof that this thread may touch it is its seat.
    pub(crate) fn open(self, _: &Seated) -> T {
        self.0
    }
}

/// Ends the process in a panic: what the threads of a team share may be in any state.
pub(crate) fn abort_in_panic() {
    if std::thread::panicking() {
        std::process::abort();
    }
}
