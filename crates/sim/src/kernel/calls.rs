//! Requests of processes that are killed, or get a signal, while they wait for the answer.
//!
//! Invariants:
//! - a killed process waits no longer, and asks for nothing any more: its request runs to its end
//!   without it, as far as `fuse` has it done, and gives back what its answer would have given to
//!   the kernel;
//! - a request that nobody has taken from the kernel's queue goes with its process: it is never
//!   done;
//! - what a killed process asked for may be done at any moment until that end;
//! - a signal that a process handles ends only waits for locks. A lock that was granted all the
//!   same is taken back.

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

/// A request stays in the kernel's queue for so long at most, where processes are killed: one in
/// [`QUEUED`].
const QUEUED_US: u64 = 300;
const QUEUED: u64 = 8;
/// Within this time `fuse` sees that who closes a file is at its end.
const LOOK_US: u64 = 100_000;

/// What a process waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Given up when the process is killed.
    Usual,
    /// A lock that is freed: it is freed also without the process.
    Unlock,
    /// Pages that the kernel reads ahead: it waits for them itself.
    ReadAhead,
    /// What is sent for every descriptor that is closed, by dead processes too.
    Flush,
    /// A lock that is taken.
    Lock,
}

/// What ends a wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Signal {
    Kills,
    IsHandled,
}

struct Waiting {
    kind: Kind,
    end: OneSender<Signal>,
}

/// The requests of one mount that wait for their answers, and those that nobody waits for any more.
#[derive(Default)]
pub(crate) struct Calls {
    last: Cell<u64>,
    waiting: RefCell<BTreeMap<u64, Waiting>>,
    /// Requests stay in the queue for a while: where no process is killed nobody could tell.
    queues: Cell<bool>,
    /// The next wait for a lock gets a signal when it has lasted so long.
    armed: Cell<Option<Duration>>,
    /// Reading ahead by open files that has not ended.
    reading: RefCell<BTreeMap<Handle, u32>>,
    /// Requests without a process that have not ended.
    left: Cell<usize>,
    ended: Notify,
}

impl Calls {
    fn begin(&self, kind: Kind) -> (u64, OneReceiver<Signal>) {
        let operation = self.last.get() + 1;
        self.last.set(operation);
        let (end, ended) = oneshot();
        self.waiting.borrow_mut().insert(operation, Waiting { kind, end });
        (operation, ended)
    }

    fn end(&self, operation: u64) {
        self.waiting.borrow_mut().remove(&operation);
    }

    fn one_more_left(&self) {
        self.left.set(self.left.get() + 1);
    }

    fn one_less_left(&self) {
        self.left.set(self.left.get() - 1);
        self.ended.notify_all();
    }
}

/// Reading ahead by an open file, which is not released before.
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

/// A request that goes on without its process; `None`: it was never taken from the queue.
pub struct GoesOn(Option<OneReceiver<()>>);

impl GoesOn {
    /// Ends with it. `false`: it was never done.
    pub async fn over(self) -> bool {
        match self.0 {
            Some(over) => {
                over.await;
                true
            }
            None => false,
        }
    }
}

/// What an answer gives to the kernel, and a killed process gives back.
pub(super) enum Given {
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

impl Given {
    pub fn entry(entry: &Entry) -> Given {
        Given::Entry(entry.attr.ino)
    }

    pub fn listed(part: &[Listed]) -> Given {
        let entries = part.iter().filter_map(|listed| listed.entry.as_ref());
        Given::Listed(entries.map(|entry| entry.attr.ino).collect())
    }

    pub fn made((entry, opened): &(Entry, Opened)) -> Given {
        Given::Made(entry.attr.ino, opened.handle)
    }

    async fn back(self, client: &Client) {
        match self {
            Given::Nothing => {}
            Given::Entry(ino) => client.forget(ino, 1),
            Given::Open(handle) => client.release(handle, None).await,
            Given::Made(ino, handle) => {
                client.release(handle, None).await;
                client.forget(ino, 1);
            }
            Given::Dir(handle) => client.releasedir(handle),
            Given::Listed(inos) => inos.into_iter().for_each(|ino| client.forget(ino, 1)),
        }
    }
}

impl Vfs {
    fn calls(&self) -> &Calls {
        &self.caches.0.calls
    }

    /// Asks the client for `work`, which gives the kernel what `given` says. `held` is held until
    /// that has ended, also without the process.
    ///
    /// # Errors
    /// Those of `work`; `Interrupted` if the process is killed before the answer, or was before.
    pub(super) async fn call<T: 'static, H: 'static>(
        &self,
        work: impl Future<Output = Result<T, Fault>> + 'static,
        given: fn(&T) -> Given,
        held: &Rc<H>,
    ) -> Result<T, Fault> {
        self.ask_for(Kind::Usual, work, given, held).await
    }

    /// Asks for pages, and takes them in.
    ///
    /// # Errors
    /// As [`Vfs::call`].
    pub(super) async fn read_ahead(
        &self,
        filled: impl Future<Output = Result<(), Fault>> + 'static,
    ) -> Result<(), Fault> {
        self.ask_for(Kind::ReadAhead, filled, |()| Given::Nothing, &Rc::new(())).await
    }

    /// What close(2) asks for, also at the end of a process.
    ///
    /// # Errors
    /// As [`Vfs::call`].
    pub async fn flush(&self, handle: Handle, owner: LockOwner) -> Result<(), Fault> {
        let client = self.client().clone();
        let flush = async move { client.flush(handle, owner).await };
        self.ask_for(Kind::Flush, flush, |()| Given::Nothing, &Rc::new(())).await
    }

    /// Frees a lock.
    ///
    /// # Errors
    /// As [`Vfs::call`].
    pub async fn free_lock(&self, handle: Handle, lock: LockRequest) -> Result<(), Fault> {
        let client = self.client().clone();
        let free = async move { client.setlk(handle, lock, false).await };
        self.ask_for(Kind::Unlock, free, |()| Given::Nothing, &Rc::new(())).await
    }

    async fn ask_for<T: 'static, H: 'static>(
        &self,
        kind: Kind,
        work: impl Future<Output = Result<T, Fault>> + 'static,
        given: fn(&T) -> Given,
        held: &Rc<H>,
    ) -> Result<T, Fault> {
        if self.is_dead() && kind != Kind::Flush {
            return Err(Fault::Interrupted);
        }
        let (operation, mut killed) = self.calls().begin(kind);
        if self.is_never_sent(kind, operation, &mut killed).await {
            return Err(Fault::Interrupted);
        }
        let client = self.client().clone();
        let mut work = Box::pin(work);
        let mut seen = Box::pin(self.seen_at_its_end());
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
        let mut rest = Box::pin(async move {
            if let Ok(answer) = work.await {
                given(&answer).back(&giving).await;
            }
        });
        let held = held.clone();
        self.goes_on(async move {
            poll_fn(|cx| client.step(operation, || rest.as_mut().poll(cx))).await;
            client.operation_ended(operation);
            drop(held);
        });
        self.dies();
        Err(Fault::Interrupted)
    }

    /// `rest` is left behind, and goes on.
    fn goes_on(&self, rest: impl Future<Output = ()> + 'static) {
        let (over, goes_on) = oneshot();
        let caches = self.caches.clone();
        caches.0.calls.one_more_left();
        self.caches.0.env.spawn(async move {
            rest.await;
            over.send(());
            caches.0.calls.one_less_left();
        });
        self.leaves(GoesOn(Some(goes_on)));
    }

    /// The request waits in the kernel's queue. `true`: its process was killed meanwhile, and it is
    /// gone.
    async fn is_never_sent(
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
            self.leaves(GoesOn(None));
            self.dies();
        }
        gone
    }

    /// Ends when `fuse` has seen that the process is at its end; at once if it is not.
    async fn seen_at_its_end(&self) {
        if self.is_dead() {
            let look = Duration::from_micros(self.chance(LOOK_US));
            self.caches.0.env.sleep(look).await;
        }
    }

    /// Takes a lock; `wait`: when it is free.
    ///
    /// # Errors Those of the client; `Interrupted` if a signal ends the wait, of which the process
    /// dies or not: until what is left behind is over the lock may have been held.
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
        if self.is_never_sent(Kind::Lock, operation, &mut signal).await {
            return Err(Fault::Interrupted);
        }
        if wait {
            self.disturb(operation);
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
        self.goes_on(async move { client.locks_settled(ino, lock.flock, lock.owner).await });
        if signal == Some(Signal::Kills) {
            self.dies();
        }
        Err(Fault::Interrupted)
    }

    /// If a signal is due it comes while this is waited for, or another lock.
    fn disturb(&self, operation: u64) {
        let Some(after) = self.calls().armed.take() else { return };
        let caches = self.caches.clone();
        self.caches.0.env.spawn(async move {
            caches.0.env.sleep(after).await;
            let calls = &caches.0.calls;
            let disturbed = calls.waiting.borrow_mut().remove(&operation);
            match disturbed {
                Some(waiting) => waiting.end.send(Signal::IsHandled),
                None => calls.armed.set(Some(after)),
            }
        });
    }

    /// A signal comes when the next wait for a lock has lasted so long.
    pub fn disturb_next(&self, after: Duration) {
        self.calls().armed.set(Some(after));
    }

    /// From here on processes may be killed.
    pub fn may_kill(&self) {
        self.calls().queues.set(true);
    }

    /// Kills one of the processes that wait for an answer, by `chance`. `false`: none does.
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

    /// Ends when nothing is read ahead by this open file.
    pub(super) async fn nothing_is_read_by(&self, handle: Handle) {
        while self.calls().reading.borrow().contains_key(&handle) {
            self.calls().ended.notified().await;
        }
    }

    /// Requests that go on without their processes.
    pub(super) fn left_behind(&self) -> usize {
        self.calls().left.get()
    }

    /// Ends when no request goes on without its process.
    pub async fn nothing_goes_on(&self) {
        while self.calls().left.get() > 0 {
            self.calls().ended.notified().await;
        }
    }
}
