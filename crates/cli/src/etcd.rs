//! The membership of servers on several hosts: keys of an etcd cluster.
//!
//! etcd decides who owns; it cannot stop a server that writes late. That is what epochs on the
//! devices are for.
//!
//! Two threads wait for etcd, so that nothing delays a renewal: one renews, the other does the
//! rest.

mod link;
mod seat;
mod wire;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::task::{Context, Poll, Waker};

use membership::{Claim, Later, Member, Membership, Refusal, Renewal, Seen, Term, Trouble};
use types::Epoch;

use crate::config::EtcdConfig;
use link::Link;
use seat::{Holding, Seat};

/// Something to do at etcd.
type Job = Box<dyn FnOnce(&mut Seat<Link>) + Send>;

/// Why a call has no answer.
const ENDED: &str = "the thread that asks etcd has ended";

/// See the module.
pub struct EtcdMembership {
    name: String,
    renewals: Worker,
    others: Worker,
}

impl EtcdMembership {
    /// The membership of the file system `fs_name`.
    ///
    /// # Errors
    /// A file that `config` names cannot be read, or no thread can be started.
    pub fn new(config: &EtcdConfig, fs_name: &str) -> Result<EtcdMembership, String> {
        let holding = Holding::default();
        let worker = |name: &str| {
            let link = Link::new(config)?;
            let seat = Seat::new(link, fs_name, config.lease, holding.clone());
            Worker::start(name, seat).map_err(|error| format!("cannot start a thread: {error}"))
        };
        Ok(EtcdMembership {
            name: format!("etcd at {}", config.members.join(", ")),
            renewals: worker("redbud-renewals")?,
            others: worker("redbud-etcd")?,
        })
    }
}

/// A thread with a seat.
struct Worker(mpsc::Sender<Job>);

impl Worker {
    fn start(name: &str, mut seat: Seat<Link>) -> std::io::Result<Worker> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let work = move || queue.into_iter().for_each(|job| job(&mut seat));
        std::thread::Builder::new().name(name.to_owned()).spawn(work)?;
        Ok(Worker(jobs))
    }

    /// Has the thread do something, unless the reply is dropped before it begins; `None`: the
    /// thread has ended.
    fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Seat<Link>) -> T + Send + 'static,
    ) -> Reply<T> {
        let slot = Arc::new(Mutex::new(Slot { state: State::Open, waker: None }));
        let giver = Giver(slot.clone(), None);
        // A job that cannot be sent is dropped, which closes the slot.
        let _ = self.0.send(Box::new(move |seat| {
            let mut giver = giver;
            if Arc::strong_count(&giver.0) > 1 {
                giver.1 = Some(work(seat));
            }
        }));
        Reply(slot)
    }
}

enum State<T> {
    Open,
    Closed(Option<T>),
}

struct Slot<T> {
    state: State<T>,
    waker: Option<Waker>,
}

fn lock<T>(slot: &Mutex<Slot<T>>) -> MutexGuard<'_, Slot<T>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Closes a slot with its value when it is dropped.
struct Giver<T>(Arc<Mutex<Slot<T>>>, Option<T>);

impl<T> Drop for Giver<T> {
    fn drop(&mut self) {
        let mut slot = lock(&self.0);
        slot.state = State::Closed(self.1.take());
        if let Some(waker) = slot.waker.take() {
            waker.wake();
        }
    }
}

/// The value of a job, later.
struct Reply<T>(Arc<Mutex<Slot<T>>>);

impl<T> Future for Reply<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut slot = lock(&self.0);
        match &mut slot.state {
            State::Closed(value) => Poll::Ready(value.take()),
            State::Open => {
                slot.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

fn ended() -> Trouble {
    Trouble::Away(ENDED.into())
}

impl Membership for EtcdMembership {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn look(&self) -> Later<'_, Result<Seen, Trouble>> {
        let reply = self.others.ask(Seat::look);
        Box::pin(async { reply.await.unwrap_or_else(|| Err(ended())) })
    }

    fn claim<'a>(&'a self, claim: &'a Claim) -> Later<'a, Result<Term, Refusal>> {
        let claim = claim.clone();
        let reply = self.others.ask(move |seat| seat.claim(&claim));
        Box::pin(async { reply.await.unwrap_or_else(|| Err(Refusal::Trouble(ended()))) })
    }

    fn renew(&self, term: Term) -> Later<'_, Renewal> {
        let reply = self.renewals.ask(move |seat| seat.renew(term));
        Box::pin(async { reply.await.unwrap_or_else(|| Renewal::Late(ENDED.into())) })
    }

    fn serving(&self, term: Term, opened: Epoch, took: types::Duration) -> Later<'_, ()> {
        // Clients do not wait for it. A thread that has ended leaves a history without a number.
        let _ = self.others.0.send(Box::new(move |seat| seat.serving(term, opened, took)));
        Box::pin(async {})
    }

    fn release<'a>(&'a self, term: Term, why: &'a str) -> Later<'a, Result<(), Trouble>> {
        let why = why.to_owned();
        let reply = self.others.ask(move |seat| seat.release(term, &why));
        Box::pin(async { reply.await.unwrap_or_else(|| Err(ended())) })
    }

    fn stand_by<'a>(&'a self, member: &'a Member) -> Later<'a, Result<(), Trouble>> {
        let member = member.clone();
        let reply = self.others.ask(move |seat| seat.stand_by(&member));
        Box::pin(async { reply.await.unwrap_or_else(|| Err(ended())) })
    }

    fn standbys(&self) -> Later<'_, Result<Vec<Member>, Trouble>> {
        let reply = self.others.ask(Seat::standbys);
        Box::pin(async { reply.await.unwrap_or_else(|| Err(ended())) })
    }
}
