//! Requests of processes that may be killed while they wait for the answer.
//!
//! Invariants:
//! - a killed process waits no longer: its request runs to its end without it, and gives back what its answer
//!   would have given to the kernel, as `fuse` has it done;
//! - what a killed process asked for may be done at any moment until that end.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use client::{Client, Entry, Handle, Opened};
use env::sync::{Notify, OneReceiver, OneSender, oneshot};
use types::{Fault, Ino};

use crate::kernel::vfs::Vfs;

/// The requests of one mount that wait for their answers, and those that nobody waits for any more.
#[derive(Default)]
pub(crate) struct Calls {
    last: Cell<u64>,
    waiting: RefCell<BTreeMap<u64, OneSender<()>>>,
    /// Requests of killed processes that have not ended.
    left: Cell<usize>,
    ended: Notify,
}

impl Calls {
    fn begin(&self) -> (u64, OneReceiver<()>) {
        let operation = self.last.get() + 1;
        self.last.set(operation);
        let (kill, killed) = oneshot();
        self.waiting.borrow_mut().insert(operation, kill);
        (operation, killed)
    }

    fn end(&self, operation: u64) {
        self.waiting.borrow_mut().remove(&operation);
    }
}

/// A request that goes on without its process.
pub struct GoesOn(OneReceiver<()>);

impl GoesOn {
    /// Ends with it.
    pub async fn over(self) {
        self.0.await;
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
}

impl Given {
    pub fn entry(entry: &Entry) -> Given {
        Given::Entry(entry.attr.ino)
    }

    pub fn made((entry, opened): &(Entry, Opened)) -> Given {
        Given::Made(entry.attr.ino, opened.handle)
    }

    async fn back(self, client: &Client) {
        let (ino, handle) = match self {
            Given::Nothing => (None, None),
            Given::Entry(ino) => (Some(ino), None),
            Given::Open(handle) => (None, Some(handle)),
            Given::Made(ino, handle) => (Some(ino), Some(handle)),
        };
        if let Some(handle) = handle {
            client.release(handle, None).await;
        }
        if let Some(ino) = ino {
            client.forget(ino, 1);
        }
    }
}

impl Vfs {
    /// Asks the client for `work`, which gives the kernel what `given` says. `held` is held until that has ended,
    /// also without the process.
    ///
    /// # Errors
    /// Those of `work`; `Interrupted` if the process is killed before the answer.
    pub(super) async fn call<T: 'static, H: 'static>(
        &self,
        work: impl Future<Output = Result<T, Fault>> + 'static,
        given: fn(&T) -> Given,
        held: &Rc<H>,
    ) -> Result<T, Fault> {
        let calls = &self.caches.0.calls;
        let (operation, mut killed) = calls.begin();
        let client = self.client().clone();
        let mut work = Box::pin(work);
        let answer = poll_fn(|cx| {
            if Pin::new(&mut killed).poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            client.step(operation, || work.as_mut().poll(cx)).map(Some)
        })
        .await;
        if let Some(answer) = answer {
            calls.end(operation);
            return answer;
        }
        let giving = client.clone();
        let mut rest = Box::pin(async move {
            if let Ok(answer) = work.await {
                given(&answer).back(&giving).await;
            }
        });
        let (over, goes_on) = oneshot();
        let (caches, held) = (self.caches.clone(), held.clone());
        calls.left.set(calls.left.get() + 1);
        self.caches.0.env.spawn(async move {
            poll_fn(|cx| client.step(operation, || rest.as_mut().poll(cx))).await;
            client.over(operation);
            drop(held);
            over.send(());
            let calls = &caches.0.calls;
            calls.left.set(calls.left.get() - 1);
            calls.ended.notify_all();
        });
        self.was_killed(GoesOn(goes_on));
        Err(Fault::Interrupted)
    }

    /// Kills one of the processes that wait for an answer, by `chance`. `false`: none does.
    pub fn kill_one(&self, chance: u64) -> bool {
        let calls = &self.caches.0.calls;
        let mut waiting = calls.waiting.borrow_mut();
        let Some(nth) = chance.checked_rem(waiting.len() as u64) else { return false };
        let operation = waiting.keys().copied().nth(nth as usize);
        let killed = operation.and_then(|operation| waiting.remove_entry(&operation));
        drop(waiting);
        let Some((operation, kill)) = killed else { return false };
        self.client().give_up(operation);
        kill.send(());
        true
    }

    /// Ends when no request goes on without its process.
    pub async fn nothing_goes_on(&self) {
        let calls = &self.caches.0.calls;
        while calls.left.get() > 0 {
            calls.ended.notified().await;
        }
    }
}
