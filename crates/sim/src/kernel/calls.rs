//! Requests of processes that are killed, or get a signal, while they wait for the answer.
//!
//! Invariants:
//! - a killed process stops waiting and sends nothing more. Its request completes without it, as
//!   far as `fuse` lets it, and returns the references that its answer would have given to the
//!   kernel;
//! - a request that nobody has taken from the kernel's queue is dropped with its process: it is
//!   never executed;
//! - a killed process's request may take effect at any moment until it ends;
//! - a signal that a process handles ends only waits for locks. A lock that was granted all the
//!   same is released.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use client::{Client, Entry, Handle, Listed, LockRequest, Opened};
use env::sync::{Notify, OneReceiver, OneSender, oneshot};
use types::{Duration, Fault, Ino, LockOwner};

use crate::kernel::Caches;
use crate::kernel::vfs::Vfs;

/// If processes are killed, one request in [`QUEUED`] stays in the kernel's queue for up to this
/// long.
const QUEUED_US: u64 = 300;
const QUEUED: u64 = 8;
/// Within this time `fuse` notices that a process closing a file is exiting.
const LOOK_US: u64 = 100_000;

/// The kind of request that a process waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Given up when the process is killed.
    Usual,
    /// A lock is freed, even without the process.
    Unlock,
    /// Pages are read ahead: the kernel itself waits for them.
    ReadAhead,
    /// Sent for every close of a descriptor, by dead processes too.
    Flush,
    /// A lock is taken.
    Lock,
}

/// The signal that ends a wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Signal {
    Kills,
    IsHandled,
}

struct WaitingProcess {
    kind: Kind,
    end: OneSender<Signal>,
}

/// The pending requests of one mount, and the abandoned ones.
#[derive(Default)]
pub(crate) struct PendingRequests {
    last: Cell<u64>,
    waiting: RefCell<BTreeMap<u64, WaitingProcess>>,
    /// Requests stay in the queue for a while. Without kills nobody could observe that.
    queues: Cell<bool>,
    /// The next wait for a lock gets a signal after this long.
    armed: Cell<Option<Duration>>,
    /// Read-ahead under way, by open file.
    reading: RefCell<BTreeMap<Handle, u32>>,
    /// Abandoned requests that have not ended.
    abandoned: Cell<usize>,
    ended: Notify,
}

impl PendingRequests {
    fn begin(&self, kind: Kind) -> (u64, OneReceiver<Signal>) {
        let operation = self.last.get() + 1;
        self.last.set(operation);
        let (end, ended) = oneshot();
        self.waiting.borrow_mut().insert(operation, WaitingProcess { kind, end });
        (operation, ended)
    }

    fn end(&self, operation: u64) {
        self.waiting.borrow_mut().remove(&operation);
    }

    fn one_more_abandoned(&self) {
        self.abandoned.set(self.abandoned.get() + 1);
    }

    fn one_less_abandoned(&self) {
        self.abandoned.set(self.abandoned.get() - 1);
        self.ended.notify_all();
    }
}

/// Read-ahead by an open file; the file is released only after it.
pub(super) struct ReadingAhead {
    caches: Caches,
    handle: Handle,
}

impl ReadingAhead {
    pub fn new(caches: &Caches, handle: Handle) -> ReadingAhead {
        *caches.0.calls.reading.borrow_mut().entry(handle).or_default() += 1;
        ReadingAhead { caches: caches.clone(), handle }
    }
}

impl Drop for ReadingAhead {
    fn drop(&mut self) {
        let calls = &self.caches.0.calls;
        let mut reading = calls.reading.borrow_mut();
        if let Some(count) = reading.get_mut(&self.handle) {
            *count -= 1;
            if *count == 0 {
                reading.remove(&self.handle);
            }
        }
        drop(reading);
        calls.ended.notify_all();
    }
}

/// A request whose process no longer waits; `None`: it was never taken from the queue.
pub struct AbandonedRequest(Option<OneReceiver<()>>);

impl AbandonedRequest {
    /// Waits for its end. `false`: it was never executed.
    pub async fn ended(self) -> bool {
        match self.0 {
            Some(over) => {
                over.await;
                true
            }
            None => false,
        }
    }
}

/// The references that an answer gives to the kernel, and that a killed process returns.
pub(super) enum Refs {
    Nothing,
    /// A lookup of an inode.
    Entry(Ino),
    /// An open file.
    Open(Handle),
    /// Both.
    Made(Ino, Handle),
    /// An open directory.
    Dir(Handle),
    /// A lookup of each of these.
    Listed(Vec<Ino>),
}

impl Refs {
    pub fn entry(entry: &Entry) -> Refs {
        Refs::Entry(entry.attr.ino)
    }

    pub fn listed(part: &[Listed]) -> Refs {
        let entries = part.iter().filter_map(|listed| listed.entry.as_ref());
        Refs::Listed(entries.map(|entry| entry.attr.ino).collect())
    }

    pub fn made((entry, opened): &(Entry, Opened)) -> Refs {
        Refs::Made(entry.attr.ino, opened.handle)
    }

    async fn back(self, client: &Client) {
        match self {
            Refs::Nothing => {}
            Refs::Entry(ino) => client.forget(ino, 1),
            Refs::Open(handle) => client.release(handle, None).await,
            Refs::Made(ino, handle) => {
                client.release(handle, None).await;
                client.forget(ino, 1);
            }
            Refs::Dir(handle) => client.releasedir(handle),
            Refs::Listed(inos) => inos.into_iter().for_each(|ino| client.forget(ino, 1)),
        }
    }
}

impl Vfs {
    fn calls(&self) -> &PendingRequests {
        &self.caches.0.calls
    }

    /// Asks the client for `work`, whose answer gives the kernel the references `given`. `held` is
    /// kept until the end of the request, even without the process.
    ///
    /// # Errors
    /// Those of `work`; `Interrupted` if the process is killed before the answer, or was before.
    pub(super) async fn call<T: 'static, H: 'static>(
        &self,
        work: impl Future<Output = Result<T, Fault>> + 'static,
        given: fn(&T) -> Refs,
        held: &Rc<H>,
    ) -> Result<T, Fault> {
        self.ask_for(Kind::Usual, work, given, held).await
    }

    /// Requests pages, and fills them.
    ///
    /// # Errors
    /// As [`Vfs::call`].
    pub(super) async fn read_ahead(
        &self,
        filled: impl Future<Output = Result<(), Fault>> + 'static,
    ) -> Result<(), Fault> {
        self.ask_for(Kind::ReadAhead, filled, |()| Refs::Nothing, &Rc::new(())).await
    }

    /// The request of close(2), also at the exit of a process.
    ///
    /// # Errors
    /// As [`Vfs::call`].
    pub async fn flush(&self, handle: Handle, owner: LockOwner) -> Result<(), Fault> {
        let client = self.client().clone();
        let flush = async move { client.flush(handle, owner).await };
        self.ask_for(Kind::Flush, flush, |()| Refs::Nothing, &Rc::new(())).await
    }

    /// Frees a lock.
    ///
    /// # Errors
    /// As [`Vfs::call`].
    pub async fn free_lock(&self, handle: Handle, lock: LockRequest) -> Result<(), Fault> {
        let client = self.client().clone();
        let free = async move { client.setlk(handle, lock, false).await };
        self.ask_for(Kind::Unlock, free, |()| Refs::Nothing, &Rc::new(())).await
    }

    async fn ask_for<T: 'static, H: 'static>(
        &self,
        kind: Kind,
        work: impl Future<Output = Result<T, Fault>> + 'static,
        given: fn(&T) -> Refs,
        held: &Rc<H>,
    ) -> Result<T, Fault> {
        if self.is_dead() && kind != Kind::Flush {
            return Err(Fault::Interrupted);
        }
        let (operation, mut killed) = self.calls().begin(kind);
        if self.dies_in_queue(kind, operation, &mut killed).await {
            return Err(Fault::Interrupted);
        }
        let client = self.client().clone();
        let mut work = Box::pin(work);
        let mut seen = Box::pin(self.exit_noticed());
        let answer = poll_fn(|cx| {
            let killed = Pin::new(&mut killed).poll(cx).is_ready();
            if killed || self.is_dead() && seen.as_mut().poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            client.step(operation, || work.as_mut().poll(cx)).map(Some)
        })
        .await;
        self.calls().end(operation);
        if let Some(answer) = answer {
            return answer;
        }
        let giving = client.clone();
        let mut remainder = Box::pin(async move {
            if let Ok(answer) = work.await {
                given(&answer).back(&giving).await;
            }
        });
        let held = held.clone();
        self.continue_abandoned(async move {
            poll_fn(|cx| client.step(operation, || remainder.as_mut().poll(cx))).await;
            client.operation_ended(operation);
            drop(held);
        });
        self.dies();
        Err(Fault::Interrupted)
    }

    /// Completes `remainder` without its process.
    fn continue_abandoned(&self, remainder: impl Future<Output = ()> + 'static) {
        let (over, goes_on) = oneshot();
        let caches = self.caches.clone();
        caches.0.calls.one_more_abandoned();
        self.caches.0.env.spawn(async move {
            remainder.await;
            over.send(());
            caches.0.calls.one_less_abandoned();
        });
        self.set_abandoned(AbandonedRequest(Some(goes_on)));
    }

    /// The request waits in the kernel's queue. `true`: its process was killed meanwhile, and the
    /// request dropped.
    async fn dies_in_queue(
        &self,
        kind: Kind,
        operation: u64,
        killed: &mut OneReceiver<Signal>,
    ) -> bool {
        let forced = matches!(kind, Kind::Flush | Kind::ReadAhead);
        if forced || !self.calls().queues.get() || self.chance(QUEUED) != 0 {
            return false;
        }
        let queued = Duration::from_micros(self.chance(QUEUED_US));
        let mut queued = pin!(self.caches.0.env.sleep(queued));
        let gone = poll_fn(|cx| {
            if Pin::new(&mut *killed).poll(cx).is_ready() {
                return Poll::Ready(true);
            }
            queued.as_mut().poll(cx).map(|()| false)
        })
        .await;
        if gone {
            self.client().operation_ended(operation);
            self.set_abandoned(AbandonedRequest(None));
            self.dies();
        }
        gone
    }

    /// Waits until `fuse` notices that the process is exiting; ends at once if it is not.
    async fn exit_noticed(&self) {
        if self.is_dead() {
            let look = Duration::from_micros(self.chance(LOOK_US));
            self.caches.0.env.sleep(look).await;
        }
    }

    /// Takes a lock; `wait`: waits until it is free.
    ///
    /// # Errors
    /// Those of the client; `Interrupted` if a signal ends the wait, whether it kills the process
    /// or not. The lock may have been held until the abandoned request ends.
    pub async fn take_lock(
        &self,
        (ino, handle): (Ino, Handle),
        lock: LockRequest,
        wait: bool,
    ) -> Result<(), Fault> {
        if self.is_dead() {
            return Err(Fault::Interrupted);
        }
        let (operation, mut signal) = self.calls().begin(Kind::Lock);
        if self.dies_in_queue(Kind::Lock, operation, &mut signal).await {
            return Err(Fault::Interrupted);
        }
        if wait {
            self.signal_if_due(operation);
        }
        let client = self.client().clone();
        let asked = client.clone();
        let mut taking = Box::pin(async move { asked.setlk(handle, lock, wait).await });
        let taken = poll_fn(|cx| {
            if let Poll::Ready(taken) = client.step(operation, || taking.as_mut().poll(cx)) {
                return Poll::Ready(Ok(taken));
            }
            Pin::new(&mut signal).poll(cx).map(Err)
        })
        .await;
        self.calls().end(operation);
        let signal = match taken {
            Ok(taken) => return taken,
            Err(signal) => signal,
        };
        client.step(operation, || drop(taking));
        self.continue_abandoned(
            async move { client.locks_settled(ino, lock.flock, lock.owner).await },
        );
        if signal == Some(Signal::Kills) {
            self.dies();
        }
        Err(Fault::Interrupted)
    }

    /// If a signal is due, it comes during this wait, or another one for a lock.
    fn signal_if_due(&self, operation: u64) {
        let Some(after) = self.calls().armed.take() else { return };
        let caches = self.caches.clone();
        self.caches.0.env.spawn(async move {
            caches.0.env.sleep(after).await;
            let calls = &caches.0.calls;
            let signalled = calls.waiting.borrow_mut().remove(&operation);
            match signalled {
                Some(waiting) => waiting.end.send(Signal::IsHandled),
                None => calls.armed.set(Some(after)),
            }
        });
    }

    /// A process gets a signal once its next wait for a lock has lasted this long.
    pub fn signal_next_lock_wait(&self, after: Duration) {
        self.calls().armed.set(Some(after));
    }

    /// From here on processes may be killed.
    pub fn may_kill(&self) {
        self.calls().queues.set(true);
    }

    /// Kills one of the waiting processes, selected by `chance`. `false`: none waits.
    pub fn kill_one(&self, chance: u64) -> bool {
        let mut waiting = self.calls().waiting.borrow_mut();
        let Some(nth) = chance.checked_rem(waiting.len() as u64) else { return false };
        let operation = waiting.keys().copied().nth(nth as usize);
        let killed = operation.and_then(|operation| waiting.remove_entry(&operation));
        drop(waiting);
        let Some((operation, waiting)) = killed else { return false };
        if waiting.kind == Kind::Usual {
            self.client().give_up(operation);
        }
        waiting.end.send(Signal::Kills);
        true
    }

    /// Waits for the end of read-ahead by this open file.
    pub(super) async fn read_ahead_ended(&self, handle: Handle) {
        while self.calls().reading.borrow().contains_key(&handle) {
            self.calls().ended.notified().await;
        }
    }

    /// The number of abandoned requests.
    pub(super) fn abandoned_requests(&self) -> usize {
        self.calls().abandoned.get()
    }

    /// Waits for the end of all abandoned requests.
    pub async fn abandoned_requests_ended(&self) {
        while self.calls().abandoned.get() > 0 {
            self.calls().ended.notified().await;
        }
    }
}
