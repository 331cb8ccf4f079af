//! One of several threads runs at a time: who holds the baton.
//!
//! Invariants:
//! - [`Baton::take`] comes back on one thread only until that thread's [`Baton::give`], and what a
//!   thread did before it gave the baton is seen by the one that takes it next;
//! - who gives it may take it again before a thread that was woken for it runs: that costs nobody a
//!   switch. But who has lost [`LOSSES`] times so is next;
//! - who does not wait costs no system call.

use std::sync::PoisonError;

use crate::threads::{Condvar, Mutex, MutexGuard};

/// So often a thread that waits finds the baton taken by others before they must let it pass.
const LOSSES: u32 = if cfg!(loom) { 1 } else { 16 };

#[derive(Default)]
struct State {
    held: bool,
    waiting: u32,
    /// Threads that are next. While there are some, others do not take it.
    claims: u32,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Baton {
    state: Mutex<State>,
    free: Condvar,
}

impl Baton {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody holds it, and takes it.
    pub(crate) fn take(&self) {
        let mut lost = 0;
        let mut state = self.lock();
        while state.held || state.claims > 0 && lost < LOSSES {
            state.waiting += 1;
            state = self.free.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
            if state.held && lost < LOSSES {
                lost += 1;
                state.claims += u32::from(lost == LOSSES);
            }
        }
        state.claims -= u32::from(lost == LOSSES);
        state.held = true;
    }

    /// Gives it to whoever takes it next. Only for the thread that holds it.
    pub(crate) fn give(&self) {
        let mut state = self.lock();
        debug_assert!(state.held, "who gives the baton holds it");
        state.held = false;
        let (wanted, claimed) = (state.waiting > 0, state.claims > 0);
        drop(state);
        if claimed {
            // Who is next must be among the woken.
            self.free.notify_all();
        } else if wanted {
            self.free.notify_one();
        }
    }

    /// Does a thread wait for it?
    pub(crate) fn is_wanted(&self) -> bool {
        self.lock().waiting > 0
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc;

    use loom::cell::UnsafeCell;
    use loom::thread;

    use super::*;

    struct Guarded {
        baton: Baton,
        /// Loom fails a run in which two threads are in here at a time.
        count: UnsafeCell<u32>,
    }

    // SAFETY: `count` is touched by the holder of the baton only, which is what the test shows.
    unsafe impl Sync for Guarded {}

    fn twice(guarded: &Guarded) {
        for _ in 0..2 {
            guarded.baton.take();
            // SAFETY: see above.
            guarded.count.with_mut(|count| unsafe { *count += 1 });
            guarded.baton.give();
        }
    }

    #[test]
    fn loom_one_thread_at_a_time_holds_the_baton_and_each_gets_it() {
        loom::model(|| {
            let guarded = Arc::new(Guarded { baton: Baton::default(), count: UnsafeCell::new(0) });
            let other = {
                let guarded = guarded.clone();
                thread::spawn(move || twice(&guarded))
            };
            twice(&guarded);
            other.join().unwrap();
            guarded.baton.take();
            // SAFETY: see above.
            assert_eq!(guarded.count.with(|count| unsafe { *count }), 4);
        });
    }
}
