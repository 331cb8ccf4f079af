//! Single-thread primitives for `!Send` tasks. All are cancel-safe and FIFO.
//!
//! Invariants:
//! - a waiter that is dropped after it was chosen passes its turn on, so no
//!   notification, permit or value is lost with it;
//! - waiters are served in order of arrival: small acquires do not overtake a large one.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Wakes waiting tasks; keeps no permit.
#[derive(Clone, Default)]
pub struct Notify(Rc<RefCell<Waiters>>);

#[derive(Default)]
struct Waiters {
    created: u64,
    /// By age; `Some` once polled.
    waiting: BTreeMap<u64, Option<Waker>>,
    /// Chosen by `notify_one`, not yet polled.
    chosen: BTreeSet<u64>,
}

impl Notify {
    /// A notification without waiters.
    pub fn new() -> Notify {
        Notify::default()
    }

    /// Ends every registered wait.
    pub fn notify_all(&self) {
        let woken = std::mem::take(&mut self.0.borrow_mut().waiting);
        for waker in woken.into_values().flatten() {
            waker.wake();
        }
    }

    /// Ends the oldest registered wait, if there is one.
    pub fn notify_one(&self) {
        let mut waiters = self.0.borrow_mut();
        if let Some((id, waker)) = waiters.waiting.pop_first() {
            waiters.chosen.insert(id);
            drop(waiters);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Registers at the call (not at the first poll): it misses nothing notified after the call.
    pub fn notified(&self) -> Notified {
        let mut waiters = self.0.borrow_mut();
        waiters.created += 1;
        let id = waiters.created;
        waiters.waiting.insert(id, None);
        drop(waiters);
        Notified { notify: self.clone(), id, done: false }
    }

    /// How many waits are registered.
    pub fn waiting(&self) -> usize {
        self.0.borrow().waiting.len()
    }
}

/// A wait for a notification.
pub struct Notified {
    notify: Notify,
    id: u64,
    done: bool,
}

impl Future for Notified {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut waiters = self.notify.0.borrow_mut();
        if let Some(slot) = waiters.waiting.get_mut(&self.id) {
            *slot = Some(cx.waker().clone());
            return Poll::Pending;
        }
        waiters.chosen.remove(&self.id);
        drop(waiters);
        self.done = true;
        Poll::Ready(())
    }
}

impl Drop for Notified {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let mut waiters = self.notify.0.borrow_mut();
        let waker = waiters.waiting.remove(&self.id);
        let passes_on = waiters.chosen.remove(&self.id);
        drop(waiters);
        drop(waker);
        if passes_on {
            self.notify.notify_one();
        }
    }
}

#[derive(Default)]
struct Permits {
    available: usize,
    created: u64,
    /// By age: the permits requested, and the waker.
    waiting: BTreeMap<u64, (usize, Option<Waker>)>,
    /// Granted to waiters that have not been polled since.
    granted: BTreeMap<u64, usize>,
}

/// FIFO semaphore.
#[derive(Clone)]
pub struct Semaphore(Rc<RefCell<Permits>>);

impl Semaphore {
    /// A semaphore with `permits` to give.
    pub fn new(permits: usize) -> Semaphore {
        Semaphore(Rc::new(RefCell::new(Permits { available: permits, ..Permits::default() })))
    }

    /// Waits for `n` permits, in order of arrival.
    pub async fn acquire(&self, n: usize) -> Permit {
        if let Some(permit) = self.try_acquire(n) {
            return permit;
        }
        let id = {
            let mut permits = self.0.borrow_mut();
            permits.created += 1;
            let id = permits.created;
            permits.waiting.insert(id, (n, None));
            id
        };
        Acquire { semaphore: self.clone(), id, n, done: false }.await
    }

    /// `n` permits if they are available and nobody waits.
    pub fn try_acquire(&self, n: usize) -> Option<Permit> {
        let mut permits = self.0.borrow_mut();
        if !permits.waiting.is_empty() || permits.available < n {
            return None;
        }
        permits.available -= n;
        Some(Permit { semaphore: self.clone(), n })
    }

    /// Permits that nobody holds.
    pub fn available(&self) -> usize {
        self.0.borrow().available
    }

    /// How many acquires wait.
    pub fn waiting(&self) -> usize {
        self.0.borrow().waiting.len()
    }

    /// Adds permits permanently.
    pub fn add_permits(&self, n: usize) {
        self.give_back(n);
    }

    fn give_back(&self, n: usize) {
        self.0.borrow_mut().available += n;
        self.serve();
    }

    /// Grants permits to waiters, the oldest first.
    fn serve(&self) {
        loop {
            let mut permits = self.0.borrow_mut();
            let Some(first) = permits.waiting.first_entry() else { return };
            let n = first.get().0;
            if n > permits.available {
                return;
            }
            let Some((id, (_, waker))) = permits.waiting.pop_first() else { return };
            permits.available -= n;
            permits.granted.insert(id, n);
            drop(permits);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

struct Acquire {
    semaphore: Semaphore,
    id: u64,
    n: usize,
    done: bool,
}

impl Future for Acquire {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        let mut permits = self.semaphore.0.borrow_mut();
        if let Some((_, waker)) = permits.waiting.get_mut(&self.id) {
            *waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        permits.granted.remove(&self.id);
        drop(permits);
        self.done = true;
        Poll::Ready(Permit { semaphore: self.semaphore.clone(), n: self.n })
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let mut permits = self.semaphore.0.borrow_mut();
        let waker = permits.waiting.remove(&self.id);
        let granted = permits.granted.remove(&self.id).unwrap_or(0);
        drop(permits);
        drop(waker);
        self.semaphore.give_back(granted);
    }
}

/// Returns its permits when dropped.
pub struct Permit {
    semaphore: Semaphore,
    n: usize,
}

impl Permit {
    /// How many permits it holds.
    pub fn count(&self) -> usize {
        self.n
    }

    /// Removes its permits from the semaphore permanently.
    pub fn forget(mut self) {
        self.n = 0;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.n > 0 {
            self.semaphore.give_back(self.n);
        }
    }
}

/// FIFO mutex for a section that spans awaits.
#[derive(Clone)]
pub struct AsyncMutex(Semaphore);

impl Default for AsyncMutex {
    fn default() -> AsyncMutex {
        AsyncMutex(Semaphore::new(1))
    }
}

impl AsyncMutex {
    /// A free mutex.
    pub fn new() -> Self {
        AsyncMutex::default()
    }

    /// Waits until the mutex is free, and holds it until the permit is dropped.
    pub async fn lock(&self) -> Permit {
        self.0.acquire(1).await
    }

    /// The mutex, if it is free and nobody waits for it.
    pub fn try_lock(&self) -> Option<Permit> {
        self.0.try_acquire(1)
    }
}

struct One<T> {
    value: Option<T>,
    closed: bool,
    waker: Option<Waker>,
}

/// The output of `future`, unless `end` is ready first. Both are polled in this order.
pub async fn first<T>(future: impl Future<Output = T>, end: impl Future<Output = ()>) -> Option<T> {
    let (mut future, mut end) = (pin!(future), pin!(end));
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => end.as_mut().poll(cx).map(|()| None),
    })
    .await
}

/// A channel for one value, once.
pub fn oneshot<T>() -> (OneSender<T>, OneReceiver<T>) {
    let one = Rc::new(RefCell::new(One { value: None, closed: false, waker: None }));
    (OneSender(one.clone()), OneReceiver(one))
}

/// Sends the value of a [`oneshot`].
pub struct OneSender<T>(Rc<RefCell<One<T>>>);

impl<T> OneSender<T> {
    /// Delivers the value; lost if the receiver is gone.
    pub fn send(self, value: T) {
        self.0.borrow_mut().value = Some(value);
    }

    /// Is the receiver gone?
    pub fn is_closed(&self) -> bool {
        Rc::strong_count(&self.0) == 1
    }
}

impl<T> Drop for OneSender<T> {
    fn drop(&mut self) {
        let waker = {
            let mut one = self.0.borrow_mut();
            one.closed = true;
            one.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Waits for the value of a [`oneshot`]: `None` when the sender was dropped.
pub struct OneReceiver<T>(Rc<RefCell<One<T>>>);

impl<T> Future for OneReceiver<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut one = self.0.borrow_mut();
        if let Some(value) = one.value.take() {
            return Poll::Ready(Some(value));
        }
        if one.closed {
            return Poll::Ready(None);
        }
        one.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

struct Queue<T> {
    values: VecDeque<T>,
    senders: usize,
    received: bool,
    waker: Option<Waker>,
}

impl<T> Queue<T> {
    fn wake(queue: &RefCell<Queue<T>>) {
        let waker = queue.borrow_mut().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// An unbounded queue, whose users must bound it; `recv` returns `None` when all senders are
/// gone.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let queue = Queue { values: VecDeque::new(), senders: 1, received: true, waker: None };
    let queue = Rc::new(RefCell::new(queue));
    (Sender(queue.clone()), Receiver(queue))
}

/// Sends into a [`channel`].
pub struct Sender<T>(Rc<RefCell<Queue<T>>>);

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.borrow_mut().senders += 1;
        Sender(self.0.clone())
    }
}

impl<T> Sender<T> {
    /// Queues the value; dropped if the receiver is gone.
    pub fn send(&self, value: T) {
        let mut queue = self.0.borrow_mut();
        if queue.received {
            queue.values.push_back(value);
            drop(queue);
            Queue::wake(&self.0);
        } else {
            drop(queue);
            drop(value);
        }
    }

    /// Is the receiver gone?
    pub fn is_closed(&self) -> bool {
        !self.0.borrow().received
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut queue = self.0.borrow_mut();
        queue.senders -= 1;
        let last = queue.senders == 0;
        drop(queue);
        if last {
            Queue::wake(&self.0);
        }
    }
}

/// Receives from a [`channel`].
pub struct Receiver<T>(Rc<RefCell<Queue<T>>>);

impl<T> Receiver<T> {
    /// The next value; `None` when all senders are gone and nothing is left.
    pub async fn recv(&mut self) -> Option<T> {
        std::future::poll_fn(|cx| {
            let mut queue = self.0.borrow_mut();
            if let Some(value) = queue.values.pop_front() {
                return Poll::Ready(Some(value));
            }
            if queue.senders == 0 {
                return Poll::Ready(None);
            }
            queue.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// The next value, if one is there.
    pub fn try_recv(&mut self) -> Option<T> {
        self.0.borrow_mut().values.pop_front()
    }

    /// How many values wait.
    pub fn len(&self) -> usize {
        self.0.borrow().values.len()
    }

    /// Does no value wait?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let values = {
            let mut queue = self.0.borrow_mut();
            queue.received = false;
            std::mem::take(&mut queue.values)
        };
        drop(values);
    }
}
