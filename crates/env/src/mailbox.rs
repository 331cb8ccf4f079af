//! What other threads send to an executor: wake-ups, finished jobs, dropped operations.
//!
//! Invariants:
//! - a task's wake-up from its own thread is a push to a thread-local queue: no
//!   lock, no system call, no allocation;
//! - an executor sleeps only after it has announced that (`sleeping`) and found
//!   its mailbox empty under the lock, so a message that arrives later wakes it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::task::Wake;

use crate::driver::{Completion, Token};
use crate::threads::{AtomicBool, Mutex, MutexGuard, Ordering};

/// Wakes an executor that may be asleep.
pub(crate) type Bell = Box<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct Messages {
    wakes: Vec<u32>,
    done: Vec<Completion>,
    /// Operations that another thread has dropped.
    cancelled: Vec<Token>,
    sleeping: bool,
}

/// The mailbox of one executor.
pub(crate) struct Mailbox {
    messages: Mutex<Messages>,
    bell: Bell,
}

impl Mailbox {
    pub(crate) fn new(bell: Bell) -> Arc<Mailbox> {
        Arc::new(Mailbox { messages: Mutex::default(), bell })
    }

    fn lock(&self) -> MutexGuard<'_, Messages> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post(&self, message: impl FnOnce(&mut Messages)) {
        let mut messages = self.lock();
        message(&mut messages);
        let ring = std::mem::take(&mut messages.sleeping);
        drop(messages);
        if ring {
            (self.bell)();
        }
    }

    /// A job that ran on another thread has finished.
    pub(crate) fn complete(&self, completion: Completion) {
        self.post(|messages| messages.done.push(completion));
    }

    /// Another thread has dropped an operation.
    pub(crate) fn cancel(&self, token: Token) {
        self.post(|messages| messages.cancelled.push(token));
    }

    /// Wakes the executor so that it checks its timers.
    pub(crate) fn ring(&self) {
        self.post(|_| ());
    }

    /// Moves the messages into the two lists; returns the operations that were dropped.
    pub(crate) fn collect(
        &self,
        wakes: &mut VecDeque<u32>,
        done: &mut Vec<Completion>,
    ) -> Vec<Token> {
        let mut messages = self.lock();
        messages.sleeping = false;
        wakes.extend(messages.wakes.drain(..));
        done.append(&mut messages.done);
        std::mem::take(&mut messages.cancelled)
    }

    /// Announces that the executor is about to sleep; `false` if messages are there.
    pub(crate) fn may_sleep(&self) -> bool {
        let mut messages = self.lock();
        messages.sleeping =
            messages.wakes.is_empty() && messages.done.is_empty() && messages.cancelled.is_empty();
        messages.sleeping
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
/// causes one spurious poll of the slot's next task, which is harmless.
pub(crate) struct SlotWaker {
    slot: u32,
    queued: AtomicBool,
    mailbox: Arc<Mailbox>,
}

impl SlotWaker {
    pub(crate) fn new(slot: u32, mailbox: Arc<Mailbox>) -> Arc<SlotWaker> {
        Arc::new(SlotWaker { slot, queued: AtomicBool::new(false), mailbox })
    }

    /// The slot is about to be polled: later wakes queue it again, and the poll sees everything
    /// that happened before the wakes it answers. (With a plain store, a wake could find the flag
    /// still set after the poll has read its data.)
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
            self.mailbox.post(|messages| messages.wakes.push(self.slot));
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Notify;
    use loom::sync::atomic::AtomicUsize;
    use loom::thread;

    use super::*;

    /// An executor with one task, which ends when `done`, woken from other threads.
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
    fn loom_executor_never_sleeps_through_a_wake_from_another_thread() {
        loom::model(|| {
            let (mailbox, task, asleep) = parts();
            let waker = task.clone();
            let other = thread::spawn(move || waker.wake_by_ref());
            run(&mailbox, &task, &asleep, || true);
            other.join().unwrap();
        });
    }

    #[test]
    fn loom_poll_sees_what_happened_before_every_wake_that_it_answers() {
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
