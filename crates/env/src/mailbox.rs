//! What other threads leave for an executor: wake-ups, finished jobs, operations they dropped.
//!
//! Invariants:
//! - a task's wake-up from its own thread is a push to a thread-local queue: no
//!   lock, no system call, no allocation;
//! - an executor sleeps only after it has announced that (`sleeping`) and found
//!   its mailbox empty under the lock, so a letter that arrives later rings.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::task::Wake;

use crate::driver::{Completion, Token};
use crate::threads::{AtomicBool, Mutex, MutexGuard, Ordering};

/// Rings an executor that may be asleep.
pub(crate) type Bell = Box<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct Letters {
    wakes: Vec<u32>,
    done: Vec<Completion>,
    /// Operations that another thread has dropped.
    cancelled: Vec<Token>,
    sleeping: bool,
}

/// One executor's letter box.
pub(crate) struct Mailbox {
    letters: Mutex<Letters>,
    bell: Bell,
}

impl Mailbox {
    pub(crate) fn new(bell: Bell) -> Arc<Mailbox> {
        Arc::new(Mailbox { letters: Mutex::default(), bell })
    }

    fn lock(&self) -> MutexGuard<'_, Letters> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self, letter: impl FnOnce(&mut Letters)) {
        let mut letters = self.lock();
        letter(&mut letters);
        let ring = std::mem::take(&mut letters.sleeping);
        drop(letters);
        if ring {
            (self.bell)();
        }
    }

    /// A job that ran on another thread is finished.
    pub(crate) fn complete(&self, completion: Completion) {
        self.leave(|letters| letters.done.push(completion));
    }

    /// Another thread has dropped an operation.
    pub(crate) fn cancel(&self, token: Token) {
        self.leave(|letters| letters.cancelled.push(token));
    }

    /// Nothing but a look at the timers is asked for.
    pub(crate) fn ring(&self) {
        self.leave(|_| ());
    }

    /// Empties the box into the two lists; gives the operations that were dropped.
    pub(crate) fn collect(
        &self,
        wakes: &mut VecDeque<u32>,
        done: &mut Vec<Completion>,
    ) -> Vec<Token> {
        let mut letters = self.lock();
        letters.sleeping = false;
        wakes.extend(letters.wakes.drain(..));
        done.append(&mut letters.done);
        std::mem::take(&mut letters.cancelled)
    }

    /// Announces that the executor is about to sleep; `false` if letters are there.
    pub(crate) fn may_sleep(&self) -> bool {
        let mut letters = self.lock();
        letters.sleeping =
            letters.wakes.is_empty() && letters.done.is_empty() && letters.cancelled.is_empty();
        letters.sleeping
    }
}

/// The ready queue of the executor that this thread runs.
pub(crate) struct Local {
    /// Address of the executor's mailbox; 0 = none runs.
    owner: usize,
    pub(crate) ready: VecDeque<u32>,
}

thread_local! {
    static LOCAL: RefCell<Local> = const { RefCell::new(Local { owner: 0, ready: VecDeque::new() }) };
}

/// Access to this thread's ready queue.
pub(crate) fn with_local<R>(f: impl FnOnce(&mut Local) -> R) -> R {
    LOCAL.with(|local| f(&mut local.borrow_mut()))
}

/// Makes `mailbox`'s executor the one that this thread runs, until dropped.
pub(crate) struct Entered {
    outer: Local,
}

impl Entered {
    pub(crate) fn new(mailbox: &Arc<Mailbox>) -> Entered {
        let inner =
            Local { owner: Arc::as_ptr(mailbox) as usize, ready: VecDeque::with_capacity(64) };
        Entered { outer: LOCAL.with(|local| local.replace(inner)) }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let outer = Local { owner: self.outer.owner, ready: std::mem::take(&mut self.outer.ready) };
        LOCAL.with(|local| local.replace(outer));
    }
}

/// Wakes one task slot. It belongs to the slot, not to the task: a stale waker
/// polls the slot's next task once too often, which is harmless.
pub(crate) struct SlotWaker {
    slot: u32,
    queued: AtomicBool,
    mailbox: Arc<Mailbox>,
}

impl SlotWaker {
    pub(crate) fn new(slot: u32, mailbox: Arc<Mailbox>) -> Arc<SlotWaker> {
        Arc::new(SlotWaker { slot, queued: AtomicBool::new(false), mailbox })
    }

    /// The slot is about to be polled: wakes from here on queue it again, and the poll sees what
    /// was done before those that did not. (A store alone could reach the others after the poll
    /// has read.)
    pub(crate) fn begin_poll(&self) {
        self.queued.swap(false, Ordering::AcqRel);
    }
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let owner = Arc::as_ptr(&self.mailbox) as usize;
        let local = LOCAL.try_with(|local| match local.try_borrow_mut() {
            Ok(mut local) if local.owner == owner => {
                local.ready.push_back(self.slot);
                true
            }
            _ => false,
        });
        if !local.unwrap_or(false) {
            self.mailbox.leave(|letters| letters.wakes.push(self.slot));
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Notify;
    use loom::sync::atomic::AtomicUsize;
    use loom::thread;

    use super::*;

    /// An executor with one task that is over when `done`, woken from other threads.
    fn run(mailbox: &Mailbox, task: &SlotWaker, asleep: &Notify, done: impl Fn() -> bool) {
        let (mut wakes, mut completions) = (VecDeque::new(), Vec::new());
        loop {
            if mailbox.may_sleep() {
                asleep.wait();
            }
            mailbox.collect(&mut wakes, &mut completions);
            for slot in wakes.drain(..) {
                assert_eq!(slot, 3);
                task.begin_poll();
                if done() {
                    return;
                }
            }
        }
    }

    fn parts() -> (Arc<Mailbox>, Arc<SlotWaker>, Arc<Notify>) {
        let asleep = Arc::new(Notify::new());
        let bell = asleep.clone();
        let mailbox = Mailbox::new(Box::new(move || bell.notify()));
        let task = SlotWaker::new(3, mailbox.clone());
        (mailbox, task, asleep)
    }

    #[test]
    fn loom_a_wake_from_another_thread_is_never_slept_through() {
        loom::model(|| {
            let (mailbox, task, asleep) = parts();
            let waker = task.clone();
            let other = thread::spawn(move || waker.wake_by_ref());
            run(&mailbox, &task, &asleep, || true);
            other.join().unwrap();
        });
    }

    #[test]
    fn loom_a_poll_sees_what_was_done_before_every_wake_that_it_answers() {
        loom::model(|| {
            let (mailbox, task, asleep) = parts();
            let count = Arc::new(AtomicUsize::new(0));
            let others: Vec<_> = (0..2)
                .map(|_| {
                    let (waker, count) = (task.clone(), count.clone());
                    thread::spawn(move || {
                        count.fetch_add(1, Ordering::Relaxed);
                        waker.wake_by_ref();
                    })
                })
                .collect();
            run(&mailbox, &task, &asleep, || count.load(Ordering::Relaxed) == 2);
            others.into_iter().for_each(|other| other.join().unwrap());
        });
    }
}
