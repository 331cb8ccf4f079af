//! How many requests the server works on at once, as if it had so many daemons (paper 000 §V.E),
//! and how many it has to work on.
//!
//! By default there is no bound: one thread executes all requests, and what bounds them is the
//! store. A bound shows what a server with few daemons does to its clients.
//!
//! Invariants:
//! - a request has a worker while it is worked on, and none while it waits for other clients:
//!   what they wait for may be behind it;
//! - a request with an operation of the session (as `proto::operation::Class` has it: to renew,
//!   reclaim, return, lock, end) needs no worker, nor do replays and administrators.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use env::Env;
use env::sync::{Permit, Semaphore};
use types::Duration;

/// See the module.
pub struct Workers {
    env: Env,
    free: Option<Semaphore>,
    /// Requests that are worked on, or wait for a worker.
    load: Cell<usize>,
}

/// A request's worker, and how long it did without.
pub struct Worker {
    workers: Rc<Workers>,
    /// Its place among those that are bounded.
    place: RefCell<Option<Permit>>,
    is_bounded: bool,
    /// It is counted in the load.
    is_here: Cell<bool>,
    /// How long the request has waited for other clients. Its answer says so, since the client's
    /// estimate of the service time leaves that out (PROTOCOLS 3.12).
    waited: Cell<Duration>,
}

impl Workers {
    /// So many workers; `None`: one for each request.
    pub fn new(env: Env, count: Option<usize>) -> Rc<Workers> {
        let free = count.map(|count| Semaphore::new(count.max(1)));
        Rc::new(Workers { env, free, load: Cell::new(0) })
    }

    /// Requests that are worked on, or wait for a worker.
    pub fn load(&self) -> u16 {
        self.load.get().try_into().unwrap_or(u16::MAX)
    }

    /// Counts a request, which has no worker yet.
    pub fn admit(self: &Rc<Workers>, is_bounded: bool) -> Worker {
        let (workers, place, is_here, waited) =
            (self.clone(), RefCell::default(), Cell::new(false), Cell::default());
        let worker = Worker { workers, place, is_bounded, is_here, waited };
        worker.count(true);
        worker
    }
}

impl Worker {
    /// Waits for a worker, unless the request has one.
    pub async fn begin(&self) {
        let has_one = !self.is_bounded || self.place.borrow().is_some();
        if let Some(free) = self.workers.free.as_ref().filter(|_| !has_one) {
            let place = free.acquire(1).await;
            *self.place.borrow_mut() = Some(place);
        }
    }

    /// The output of `wait`, which waits for other clients: meanwhile the worker does other things.
    /// A wait that is over at once reads no clock.
    pub async fn away<T>(&self, wait: impl Future<Output = T>) -> T {
        let (workers, mut wait) = (&self.workers, pin!(wait));
        let mut begun = None;
        let output = poll_fn(|cx| {
            let polled = wait.as_mut().poll(cx);
            if matches!(polled, Poll::Pending) && begun.is_none() {
                begun = Some(workers.env.now());
                self.count(false);
                drop(self.place.take());
            }
            polled
        })
        .await;
        if let Some(begun) = begun {
            self.waited.set(self.waited.get() + workers.env.now().since(begun));
            self.count(true);
            self.begin().await;
        }
        output
    }

    fn count(&self, is_here: bool) {
        if self.is_here.replace(is_here) != is_here {
            let load = &self.workers.load;
            load.set(if is_here { load.get() + 1 } else { load.get() - 1 });
        }
    }

    /// How long the request has waited for other clients.
    pub fn waited(&self) -> Duration {
        self.waited.get()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.count(false);
    }
}
