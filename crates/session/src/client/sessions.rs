//! All sessions of one client, each with a server of its own.
//!
//! Invariants:
//! - each session has its own slots, transaction numbers and replay list: what one server answered
//!   is replayed to that server, and to no other;
//! - requests are numbered in one order over all sessions;
//! - what concerns the whole client (durability, barriers, the lease, its end) asks every session.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::{Future, pending, poll_fn};
use std::rc::Rc;
use std::task::Poll;

use env::LocalFuture;
use env::sync::first;
use proto::message::Peer;
use types::{Duration, Epoch, Fault, Instant, ServerId, Timestamp};

use super::{Session, SessionStatus, Shared, Timing};

/// See the module.
pub struct Sessions<P: Peer> {
    shared: Rc<Shared>,
    /// The session with the server that the client met first.
    home: Rc<Session<P>>,
    all: RefCell<BTreeMap<ServerId, Rc<Session<P>>>>,
}

impl<P: Peer> Sessions<P> {
    /// A client with one session. `shared` is what that was opened with.
    pub fn new(home: Rc<Session<P>>, shared: Rc<Shared>) -> Sessions<P> {
        let all = RefCell::new(BTreeMap::from([(home.server(), home.clone())]));
        Sessions { shared, home, all }
    }

    /// What further sessions have to be opened with.
    pub fn shared(&self) -> &Rc<Shared> {
        &self.shared
    }

    /// Adds a session with another server.
    ///
    /// # Errors
    /// `Exists`: there is one with this server already.
    pub fn add(&self, session: Rc<Session<P>>) -> Result<(), Fault> {
        let mut all = self.all.borrow_mut();
        if all.contains_key(&session.server()) {
            return Err(Fault::Exists);
        }
        all.insert(session.server(), session);
        Ok(())
    }

    /// The session with the server that the client met first.
    pub fn home(&self) -> &Rc<Session<P>> {
        &self.home
    }

    /// The session with `server`, if there is one.
    pub fn get(&self, server: ServerId) -> Option<Rc<Session<P>>> {
        match self.home.server() == server {
            true => Some(self.home.clone()),
            false => self.all.borrow().get(&server).cloned(),
        }
    }

    /// All sessions, in the order of their servers' numbers.
    pub fn all(&self) -> Vec<Rc<Session<P>>> {
        self.all.borrow().values().cloned().collect()
    }

    /// Is there one session only?
    pub fn is_single(&self) -> bool {
        self.all.borrow().len() == 1
    }

    fn any(&self, holds: impl Fn(&Session<P>) -> bool) -> bool {
        self.all.borrow().values().any(|session| holds(session))
    }

    /// Asks all sessions at the same time; the outputs, in the order of the servers' numbers.
    async fn ask_all<T: 'static>(
        &self,
        ask: impl Fn(Rc<Session<P>>) -> LocalFuture<'static, T>,
    ) -> Vec<T> {
        let mut asked: Vec<(LocalFuture<'static, T>, Option<T>)> =
            self.all().into_iter().map(|session| (ask(session), None)).collect();
        poll_fn(|cx| {
            let mut ready = true;
            for (future, output) in asked.iter_mut().filter(|(_, output)| output.is_none()) {
                match future.as_mut().poll(cx) {
                    Poll::Ready(value) => *output = Some(value),
                    Poll::Pending => ready = false,
                }
            }
            if ready { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        asked.into_iter().filter_map(|(_, output)| output).collect()
    }

    /// Makes everything that the client has done in any session durable.
    ///
    /// # Errors
    /// As [`Session::sync`], the first of any session.
    pub async fn sync(&self) -> Result<(), Fault> {
        if self.is_single() {
            return self.home.sync().await;
        }
        let done = self.ask_all(|session| Box::pin(async move { session.sync().await })).await;
        done.into_iter().collect()
    }

    /// Waits until every request that is unanswered now in any session has its reply.
    pub async fn barrier(&self) {
        if self.is_single() {
            return self.home.barrier().await;
        }
        self.ask_all(|session| Box::pin(async move { session.barrier().await })).await;
    }

    /// Is there an unanswered operation for which `holds` is true?
    pub fn has_unanswered(&self, holds: impl Fn(&P::Op) -> bool) -> bool {
        self.any(|session| session.has_unanswered(&holds))
    }

    /// Is no request unanswered?
    pub fn is_idle(&self) -> bool {
        !self.any(|session| !session.is_idle())
    }

    /// Number of the next request.
    pub fn order(&self) -> u64 {
        self.shared.order()
    }

    /// Rises whenever a session is lost with changes that were answered but not known to be
    /// durable.
    pub fn losses(&self) -> u64 {
        self.all.borrow().values().map(|session| session.losses()).sum()
    }

    /// Until when caches may be used: until the first lease ends.
    pub fn lease_ends(&self) -> Instant {
        let all = self.all.borrow();
        all.values().map(|session| session.lease_ends()).min().unwrap_or_default()
    }

    /// As [`Session::require_epoch`], of the first server.
    pub fn require_epoch(&self, epoch: Epoch) {
        self.home.require_epoch(epoch);
    }

    /// What is left of the lease.
    pub fn lease_left(&self) -> Duration {
        self.lease_ends().since(self.home.env.now())
    }

    /// The longest lease.
    pub fn lease(&self) -> Duration {
        let all = self.all.borrow();
        all.values().map(|session| session.lease()).max().unwrap_or_default()
    }

    /// Waits until all leases are good; usually they are.
    ///
    /// # Errors
    /// As [`Session::wait_for_lease`].
    pub async fn wait_for_lease(&self) -> Result<(), Fault> {
        if self.is_single() {
            return self.home.wait_for_lease().await;
        }
        loop {
            for session in self.all() {
                session.wait_for_lease().await?;
            }
            if self.lease_ends() > self.home.env.now() {
                return Ok(());
            }
        }
    }

    /// The clock of the first server, estimated; never goes back.
    pub fn time(&self) -> Timestamp {
        self.home.time()
    }

    /// Writes one line to the log.
    pub fn log(&self, text: &str) {
        self.home.log(text);
    }

    /// The output of `ask`; `None` if a server is silent, or becomes silent before that.
    pub async fn unless_silent<T>(&self, ask: impl Future<Output = T>) -> Option<T> {
        if self.is_single() {
            return self.home.unless_silent(ask).await;
        }
        let others = self.all().into_iter().filter(|session| !Rc::ptr_eq(session, &self.home));
        let mut asked: LocalFuture<'_, Option<T>> = Box::pin(self.home.unless_silent(ask));
        for session in others {
            let before = asked;
            asked = Box::pin(async move { session.unless_silent(before).await.flatten() });
        }
        asked.await
    }

    /// Ends when a server has been away for `patience`; see [`Session::away`].
    pub async fn away(&self, patience: Duration) {
        if self.is_single() {
            return self.home.away(patience).await;
        }
        let mut away: LocalFuture<'_, ()> = Box::pin(pending());
        for session in self.all() {
            let before = away;
            away = Box::pin(async move {
                let _ = first(before, session.away(patience)).await;
            });
        }
        away.await;
    }

    /// Is there a connection in every session?
    pub fn is_connected(&self) -> bool {
        !self.any(|session| !session.is_connected())
    }

    /// Are the sessions closed?
    pub fn is_closed(&self) -> bool {
        self.home.is_closed()
    }

    /// The number of requests that may not survive a crash of a server.
    pub fn unconfirmed(&self) -> usize {
        self.all.borrow().values().map(|session| session.unconfirmed()).sum()
    }

    /// Polls a future of `operation`, which is not 0.
    pub fn step<T>(&self, operation: u64, poll: impl FnOnce() -> T) -> T {
        self.shared.step(operation, poll)
    }

    /// Is the caller of the current operation gone?
    pub fn caller_is_gone(&self) -> bool {
        self.shared.caller_is_gone()
    }

    /// The caller of `operation` is gone, and waits for nothing any more.
    pub fn give_up(&self, operation: u64) {
        self.shared.note_gone(operation);
        self.all().iter().for_each(|session| session.withdraw_unsent(operation));
    }

    /// `operation`, whose caller is gone, has ended.
    pub fn operation_ended(&self, operation: u64) {
        self.shared.operation_ended(operation);
    }

    /// Ends all sessions: the servers free what this client held.
    pub async fn close(&self) {
        if self.is_single() {
            return self.home.close().await;
        }
        self.ask_all(|session| Box::pin(async move { session.close().await })).await;
    }

    /// Ends the client without a goodbye.
    pub fn abandon(&self) {
        self.all().iter().for_each(|session| session.abandon());
    }

    /// How fast each server is, and how often it was doubted.
    pub fn timings(&self) -> Vec<(ServerId, Timing)> {
        self.all().iter().map(|session| (session.server(), session.timing())).collect()
    }

    /// What the sessions are doing, added up; number and epoch are those of the first.
    pub fn status(&self) -> SessionStatus {
        let mut sum = self.home.status();
        for session in self.all().iter().filter(|session| !Rc::ptr_eq(session, &self.home)) {
            let status = session.status();
            sum.connected &= status.connected;
            sum.in_flight += status.in_flight;
            sum.replay += status.replay;
            sum.evictions += status.evictions;
        }
        sum
    }
}
