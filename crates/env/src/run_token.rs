//! A token that lets one thread of an executor group run at a time.
//!
//! Invariants:
//! - [`RunToken::acquire`] returns on one thread only, until that thread's [`RunToken::release`];
//!   a thread that acquires the token sees everything that earlier holders did before they
//!   released it;
//! - a thread that releases the token may take it again before a woken thread runs, which saves a
//!   thread switch; but a thread that lost this race [`LOSSES`] times gets the token next;
//! - acquiring and releasing costs no system call unless a thread waits.

use std::sync::PoisonError;

use crate::threads::{Condvar, Mutex, MutexGuard};

/// How often a waiting thread may find the token taken again before others must let it pass.
const LOSSES: u32 = if cfg!(loom) { 1 } else { 16 };

#[derive(Default)]
struct TokenState {
    held: bool,
    waiting: u32,
    /// Waiting threads that get the token next. While there are some, other threads do not take it.
    claims: u32,
}

/// See the module.
#[derive(Default)]
pub(crate) struct RunToken {
    state: Mutex<TokenState>,
    free: Condvar,
}

impl RunToken {
    fn lock(&self) -> MutexGuard<'_, TokenState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no thread holds the token, and acquires it.
    pub(crate) fn acquire(&self) {
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

    /// Releases the token to the next thread. Only for the thread that holds it.
    pub(crate) fn release(&self) {
        let mut state = self.lock();
        debug_assert!(state.held, "a thread released the run token without holding it");
        state.held = false;
        let (wanted, claimed) = (state.waiting > 0, state.claims > 0);
        drop(state);
        if claimed {
            // The thread that is next must be among the woken ones.
            self.free.notify_all();
        } else if wanted {
            self.free.notify_one();
        }
    }

    /// Does a thread wait for the token?
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
        token: RunToken,
        /// Loom fails a run in which two threads access it at the same time.
        count: UnsafeCell<u32>,
    }

    // SAFETY: only the holder of the token touches `count`, which the test verifies.
    unsafe impl Sync for Guarded {}

    fn increment_twice(guarded: &Guarded) {
        for _ in 0..2 {
            guarded.token.acquire();
            // SAFETY: see above.
            guarded.count.with_mut(|count| unsafe { *count += 1 });
            guarded.token.release();
        }
    }

    #[test]
    fn loom_run_token_is_exclusive_and_every_thread_gets_it() {
        loom::model(|| {
            let guarded =
                Arc::new(Guarded { token: RunToken::default(), count: UnsafeCell::new(0) });
            let other = {
                let guarded = guarded.clone();
                thread::spawn(move || increment_twice(&guarded))
            };
            increment_twice(&guarded);
            other.join().unwrap();
            guarded.token.acquire();
            // SAFETY: see above.
            assert_eq!(guarded.count.with(|count| unsafe { *count }), 4);
        });
    }
}
