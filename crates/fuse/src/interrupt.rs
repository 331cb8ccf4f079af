//! Requests that a signal to their caller ends: waits for locks.
//!
//! Invariant: an INTERRUPT is read after the request it names, so either the
//! request waits here, or it runs to its end, or it is answered already; the
//! last two need no answer.

use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::task::Poll;

use env::sync::{OneReceiver, OneSender, oneshot};
use types::{Fault, HashMap};

/// The waits that can be interrupted, by the request's unique number.
#[derive(Default)]
pub(crate) struct Interrupts {
    waiting: RefCell<HashMap<u64, OneSender<()>>>,
}

impl Interrupts {
    /// Ends the wait of request `unique`, if it waits.
    pub(crate) fn interrupt(&self, unique: u64) {
        let waiting = self.waiting.borrow_mut().remove(&unique);
        if let Some(sender) = waiting {
            sender.send(());
        }
    }

    /// The result of `future`, or [`Fault::Interrupted`] if request `unique` is
    /// interrupted first; `future` is then dropped.
    pub(crate) async fn run<T>(
        &self,
        unique: u64,
        future: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let (sender, receiver) = oneshot();
        self.waiting.borrow_mut().insert(unique, sender);
        let _registered = Registered { interrupts: self, unique };
        first(future, receiver).await
    }
}

/// Takes the registration away when the wait ends in any way.
struct Registered<'a> {
    interrupts: &'a Interrupts,
    unique: u64,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.interrupts.waiting.borrow_mut().remove(&self.unique);
    }
}

async fn first<T>(
    future: impl Future<Output = Result<T, Fault>>,
    interrupted: OneReceiver<()>,
) -> Result<T, Fault> {
    let mut future = pin!(future);
    let mut interrupted = pin!(interrupted);
    std::future::poll_fn(|cx| {
        if let Poll::Ready(result) = future.as_mut().poll(cx) {
            return Poll::Ready(result);
        }
        match interrupted.as_mut().poll(cx) {
            Poll::Ready(Some(())) => Poll::Ready(Err(Fault::Interrupted)),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    })
    .await
}
