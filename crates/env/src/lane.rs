//! Messages that one thread carries out, which may block with any of them.
//!
//! Invariants:
//! - messages are carried out one after the other, in the order in which they were posted;
//! - nobody who posts waits for one that is carried out, nor for the thread's end: no lock is held
//!   meanwhile;
//! - whoever waits for a message is woken when it is done, also if that was before he began to
//!   wait, and also after the lane's end: what was posted before it is still carried out;
//! - a lane holds as many messages as are waited for, and those that nobody waits for any more.

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

struct Letter<M, R> {
    message: M,
    outcome: Arc<Mutex<Outcome<R>>>,
}

struct State<M, R> {
    letters: VecDeque<Letter<M, R>>,
    ended: bool,
}

/// See the module.
pub(crate) struct Lane<M, R> {
    state: Mutex<State<M, R>>,
    news: Condvar,
}

/// A message that was posted: ready when it is carried out.
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
        let state = State { letters: VecDeque::new(), ended: false };
        Lane { state: Mutex::new(state), news: Condvar::new() }
    }

    /// Leaves a message for the thread. `None`: the lane has ended.
    pub(crate) fn post(&self, message: M) -> Option<Posted<R>> {
        let outcome = Arc::new(Mutex::new(Outcome { result: None, waker: None }));
        let mut state = lock(&self.state);
        if state.ended {
            return None;
        }
        state.letters.push_back(Letter { message, outcome: outcome.clone() });
        drop(state);
        self.news.notify_one();
        Some(Posted(outcome))
    }

    /// Nothing more is posted: the thread ends after what was.
    pub(crate) fn end(&self) {
        lock(&self.state).ended = true;
        self.news.notify_one();
    }

    /// What the thread does, until the lane has ended.
    pub(crate) fn serve(&self, mut carry_out: impl FnMut(M) -> R) {
        while let Some(Letter { message, outcome }) = self.next() {
            let result = carry_out(message);
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

    fn next(&self) -> Option<Letter<M, R>> {
        let mut state = lock(&self.state);
        loop {
            match state.letters.pop_front() {
                Some(letter) => return Some(letter),
                None if state.ended => return None,
                None => state = self.news.wait(state).unwrap_or_else(PoisonError::into_inner),
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

    /// Waits for a message as an executor does. Loom fails a run in which nobody wakes it.
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
        lane.post(message).expect("it has not ended")
    }

    #[test]
    fn loom_who_waits_for_a_message_is_woken_and_each_lane_keeps_its_order() {
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
            assert_eq!(wait(first), 10, "it was done before");
            lane.end();
            assert_eq!(server.join().unwrap(), 2);
        });
    }

    #[test]
    fn loom_several_threads_post_and_each_has_its_own_answer() {
        // Three threads: every order with up to three switches away from one that could go on.
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
    fn loom_the_end_waits_for_no_message_that_blocks_and_loses_none() {
        loom::model(|| {
            let lane = Arc::new(Numbers::new());
            let (unblocked, carried) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
            let server = {
                let (lane, unblocked, carried) = (lane.clone(), unblocked.clone(), carried.clone());
                thread::spawn(move || {
                    lane.serve(|message| {
                        // The kernel takes the first one only after the lane's end.
                        if message == 1 {
                            unblocked.wait();
                        }
                        carried.fetch_add(1, Ordering::Relaxed);
                        message
                    });
                })
            };
            let (blocked, behind) = (post(&lane, 1), post(&lane, 2));
            // Nobody waits for this one any more.
            drop(post(&lane, 3));
            lane.end();
            assert!(lane.post(4).is_none());
            unblocked.notify();
            assert_eq!((wait(blocked), wait(behind)), (1, 2));
            server.join().unwrap();
            assert_eq!(carried.load(Ordering::Relaxed), 3);
        });
    }
}
