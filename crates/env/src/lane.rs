//! A queue of messages that one thread handles, each of which may block it.
//!
//! Invariants:
//! - the thread handles messages one after the other, in the order in which they were posted;
//! - a poster never waits for a message being handled, nor for the thread's end: the thread holds
//!   no lock meanwhile;
//! - a task that waits for a message is woken when it is handled, even if that happened before the
//!   wait began. This holds after the lane's end, too: the thread still handles all messages that
//!   were posted before it;
//! - the memory of a lane is bounded by the messages that tasks wait for, and those that were
//!   abandoned.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::threads::{Condvar, Mutex, MutexGuard};

struct Outcome<R> {
    result: Option<R>,
    waker: Option<Waker>,
}

struct PostedMessage<M, R> {
    message: M,
    outcome: Arc<Mutex<Outcome<R>>>,
}

struct LaneState<M, R> {
    queue: VecDeque<PostedMessage<M, R>>,
    ended: bool,
}

/// See the module.
pub(crate) struct Lane<M, R> {
    state: Mutex<LaneState<M, R>>,
    arrived: Condvar,
}

/// A posted message: ready when it is handled.
pub(crate) struct Posted<R>(Arc<Mutex<Outcome<R>>>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<R> Future for Posted<R> {
    type Output = R;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<R> {
        let mut outcome = lock(&self.0);
        match outcome.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                outcome.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<M, R> Lane<M, R> {
    pub(crate) fn new() -> Lane<M, R> {
        let state = LaneState { queue: VecDeque::new(), ended: false };
        Lane { state: Mutex::new(state), arrived: Condvar::new() }
    }

    /// Posts a message for the thread. `None`: the lane has ended.
    pub(crate) fn post(&self, message: M) -> Option<Posted<R>> {
        let outcome = Arc::new(Mutex::new(Outcome { result: None, waker: None }));
        let mut state = lock(&self.state);
        if state.ended {
            return None;
        }
        state.queue.push_back(PostedMessage { message, outcome: outcome.clone() });
        drop(state);
        self.arrived.notify_one();
        Some(Posted(outcome))
    }

    /// Ends the lane: the thread ends after the messages that were posted.
    pub(crate) fn end(&self) {
        lock(&self.state).ended = true;
        self.arrived.notify_one();
    }

    /// The thread's loop, until the lane has ended.
    pub(crate) fn serve(&self, mut handle: impl FnMut(M) -> R) {
        while let Some(PostedMessage { message, outcome }) = self.next() {
            let result = handle(message);
            let waker = {
                let mut outcome = lock(&outcome);
                outcome.result = Some(result);
                outcome.waker.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    fn next(&self) -> Option<PostedMessage<M, R>> {
        let mut state = lock(&self.state);
        loop {
            match state.queue.pop_front() {
                Some(posted) => return Some(posted),
                None if state.ended => return None,
                None => state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::task::Wake;

    use loom::sync::Notify;
    use loom::sync::atomic::{AtomicUsize, Ordering};
    use loom::thread;

    use super::*;

    /// Wakes a thread.
    struct Bell(Notify);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.notify();
        }
    }

    /// Waits for a message as an executor does. Loom fails a run in which the wake-up is lost.
    fn wait<R>(mut posted: Posted<R>) -> R {
        let bell = Arc::new(Bell(Notify::new()));
        let waker = Waker::from(bell.clone());
        loop {
            match Pin::new(&mut posted).poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(result) => return result,
                Poll::Pending => bell.0.wait(),
            }
        }
    }

    type Numbers = Lane<usize, usize>;

    fn post(lane: &Numbers, message: usize) -> Posted<usize> {
        lane.post(message).expect("the lane has not ended")
    }

    #[test]
    fn loom_lane_wakes_waiters_and_keeps_message_order() {
        loom::model(|| {
            let lane = Arc::new(Numbers::new());
            let server = {
                let lane = lane.clone();
                thread::spawn(move || {
                    let mut last = 0;
                    lane.serve(|message| {
                        assert!(message > last, "{message} after {last}");
                        last = message;
                        10 * message
                    });
                    last
                })
            };
            let (first, second) = (post(&lane, 1), post(&lane, 2));
            assert_eq!(wait(second), 20);
            assert_eq!(wait(first), 10, "it was handled before");
            lane.end();
            assert_eq!(server.join().unwrap(), 2);
        });
    }

    #[test]
    fn loom_lane_gives_each_posting_thread_its_own_answer() {
        // Three threads: every order with up to three preemptions.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let lane = Arc::new(Numbers::new());
            let server = {
                let lane = lane.clone();
                thread::spawn(move || lane.serve(|message| 10 * message))
            };
            let other = {
                let lane = lane.clone();
                thread::spawn(move || assert_eq!(wait(post(&lane, 2)), 20))
            };
            assert_eq!(wait(post(&lane, 1)), 10);
            other.join().unwrap();
            lane.end();
            server.join().unwrap();
        });
    }

    #[test]
    fn loom_lane_end_neither_waits_for_nor_loses_a_blocked_message() {
        loom::model(|| {
            let lane = Arc::new(Numbers::new());
            let (unblocked, handled) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
            let server = {
                let (lane, unblocked, handled) = (lane.clone(), unblocked.clone(), handled.clone());
                thread::spawn(move || {
                    lane.serve(|message| {
                        // The kernel accepts the first one only after the lane's end.
                        if message == 1 {
                            unblocked.wait();
                        }
                        handled.fetch_add(1, Ordering::Relaxed);
                        message
                    });
                })
            };
            let (blocked, behind) = (post(&lane, 1), post(&lane, 2));
            // Nobody waits for this one.
            drop(post(&lane, 3));
            lane.end();
            assert!(lane.post(4).is_none());
            unblocked.notify();
            assert_eq!((wait(blocked), wait(behind)), (1, 2));
            server.join().unwrap();
            assert_eq!(handled.load(Ordering::Relaxed), 3);
        });
    }
}
