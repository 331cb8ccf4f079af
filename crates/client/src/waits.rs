//! Named waits: for what, and since when, the operations in progress wait inside this client.
//!
//! Invariants:
//! - an operation that waits for anything but the answer to a request of its own has an entry here,
//!   or waits for a moment only. What a request waits for, its session knows;
//! - an operation that need not wait costs nothing here: an entry is made, and the clock is read,
//!   only when a future is pending after its first poll;
//! - an entry goes when the wait ends, also if its future is dropped.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use env::Env;
use session::client::Shared;
use types::{Ino, Instant, PagId};

use crate::api::LockRequest;

/// What an operation waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// A lock that another owner holds.
    Lock(Ino, LockRequest),
    /// A right on the content of a file: the server grants it, or a recall ends.
    Content(Ino),
    /// The layout of a file.
    Layout(Ino),
    /// The lease: the server has not been heard for so long that nothing cached may be used.
    Lease,
    /// Room for dirty bytes: writes to the devices have to end.
    DirtyRoom,
    /// Writes of this file that its device does not end.
    Stuck(Ino),
    /// Blocks of the data space.
    Space,
    /// A read of a data device.
    Read(PagId),
    /// The file's data becomes stable, and its changes durable.
    Sync(Ino),
    /// A removal in progress of the inode's last name.
    Removal(Ino),
}

struct Entry {
    operation: u64,
    wait: Wait,
    since: Instant,
}

/// All named waits of a client.
#[derive(Default)]
pub struct Waits {
    shared: Rc<Shared>,
    entries: RefCell<Vec<Option<Entry>>>,
}

impl std::fmt::Debug for Waits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waits").finish_non_exhaustive()
    }
}

impl Waits {
    /// No waits. `shared` knows which operation is being polled.
    pub fn new(shared: Rc<Shared>) -> Waits {
        Waits { shared, entries: RefCell::default() }
    }

    /// What the sessions of the client share.
    pub fn shared(&self) -> &Rc<Shared> {
        &self.shared
    }

    /// The output of `future`; while it is pending, the operation waits for `wait`.
    pub async fn named<T>(&self, env: &Env, wait: Wait, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let mut named = None;
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(output),
            Poll::Pending => {
                named.get_or_insert_with(|| self.begin(env, wait));
                Poll::Pending
            }
        })
        .await
    }

    /// The operation that is being polled waits for `wait` until the value is dropped.
    pub fn begin(&self, env: &Env, wait: Wait) -> Named<'_> {
        let entry = Entry { operation: self.shared.current(), wait, since: env.now() };
        let mut entries = self.entries.borrow_mut();
        let place = entries.iter().position(Option::is_none).unwrap_or(entries.len());
        match entries.get_mut(place) {
            Some(free) => *free = Some(entry),
            None => entries.push(Some(entry)),
        }
        Named { waits: self, place }
    }

    /// The waits of an operation, the outermost first.
    pub fn of(&self, operation: u64) -> Vec<(Wait, Instant)> {
        let entries = self.entries.borrow();
        let own = entries.iter().flatten().filter(|entry| entry.operation == operation);
        let mut own: Vec<_> = own.map(|entry| (entry.wait, entry.since)).collect();
        own.sort_by_key(|(_, since)| *since);
        own
    }

    /// Who waits now: how many, and since when the first.
    pub fn count(&self) -> (usize, Option<Instant>) {
        let entries = self.entries.borrow();
        let all = || entries.iter().flatten();
        (all().count(), all().map(|entry| entry.since).min())
    }
}

/// A wait in progress; ends when dropped.
pub struct Named<'a> {
    waits: &'a Waits,
    place: usize,
}

impl Drop for Named<'_> {
    fn drop(&mut self) {
        let mut entries = self.waits.entries.borrow_mut();
        entries[self.place] = None;
        while entries.last().is_some_and(Option::is_none) {
            entries.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use env::sim::SimWorld;
    use env::sync::Notify;

    use super::*;

    #[test]
    fn wait_is_named_only_while_it_lasts() {
        SimWorld::new(1).run(|env| async move {
            let (waits, freed) = (Rc::new(Waits::default()), Notify::new());
            waits.named(&env, Wait::Space, std::future::ready(())).await;
            assert_eq!(waits.count(), (0, None));
            let (inner, handle, notify) = (waits.clone(), env.clone(), freed.clone());
            let task = env.spawn_join(async move {
                inner.named(&handle, Wait::DirtyRoom, notify.notified()).await;
            });
            while waits.count().0 == 0 {
                env.yield_now().await;
            }
            assert_eq!(waits.of(0), [(Wait::DirtyRoom, waits.count().1.unwrap())]);
            freed.notify_all();
            task.await;
            assert_eq!(waits.count(), (0, None));
        });
    }
}
