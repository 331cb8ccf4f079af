//! A model of an etcd cluster, as the membership of the servers.
//!
//! A request travels, waits while the cluster has no leader, is carried out at one instant, and its
//! answer travels back. A server waits for a quarter of a lease; a request that has timed out
//! may be carried out later. Leases end by the cluster's own clock. They do not end without a
//! leader, and a new leader gives each its full time again. What a claim needs, a lease proves and
//! an owner may rely on, `membership` says, as for the real one (`cli/src/etcd/seat.rs`).
//!
//! Invariants:
//! - the record and the owner's key change together, and only if both are as they were read;
//! - a write that is bound to a lease is refused when that has ended.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use env::Env;
use env::sim::SimRng;
use env::sync::Notify;
use membership::{
    Claim, Later, Life, Member, Membership, Record, Refusal, Renewal, Seen, Term, Trouble,
    is_silent, life_without_lease, may_claim, term_end,
};
use types::{Duration, Epoch, Instant};

/// Most time of one way of a request.
const WAY: Duration = Duration::from_millis(3);
/// Pause between two looks for a leader.
const LOOK: Duration = Duration::from_millis(10);
/// Tries to learn how a transaction ended.
const TRIES: usize = 4;

/// The key of the owner.
#[derive(Clone, PartialEq, Eq)]
struct OwnerKey {
    epoch: Epoch,
    lease: u64,
    revision: u64,
}

struct State {
    /// As text, as at etcd.
    record: String,
    owner: Option<OwnerKey>,
    /// When leases end.
    leases: BTreeMap<u64, Instant>,
    standbys: BTreeMap<u64, Member>,
    /// Changes so far.
    revision: u64,
    rng: SimRng,
    /// Without a leader until then.
    leaderless_until: Instant,
    /// Slow until then.
    slow_until: Instant,
    /// Nodes whose requests do not arrive, and nodes that get no answers.
    blocked: (BTreeSet<String>, BTreeSet<String>),
}

/// The cluster.
#[derive(Clone)]
pub(crate) struct Etcd {
    env: Env,
    lease: Duration,
    state: Rc<RefCell<State>>,
}

/// What a read shows.
struct Shown {
    record: Record,
    owner: Option<OwnerKey>,
    /// What is left of the owner's lease.
    left: Duration,
}

/// Changes record and owner's key, if they are as they were read.
struct Change {
    read: Option<OwnerKey>,
    recorded: String,
    next: Record,
    /// The epoch and the lease of the new owner's key; `None`: there is none.
    owner: Option<(Epoch, u64)>,
    /// Stands by no more.
    member: Option<u64>,
}

impl State {
    fn pass(&mut self, now: Instant) {
        if now >= self.leaderless_until {
            self.leases.retain(|_, ends| *ends > now);
            let lasts = |owner: &OwnerKey| self.leases.contains_key(&owner.lease);
            if !self.owner.as_ref().is_none_or(lasts) {
                self.owner = None;
            }
        }
    }

    fn show(&self, now: Instant) -> Shown {
        let ends = self.owner.as_ref().and_then(|owner| self.leases.get(&owner.lease));
        Shown {
            // Nothing damages it.
            record: Record::decode(&self.record).unwrap_or_default(),
            owner: self.owner.clone(),
            left: ends.map_or(Duration::ZERO, |ends| ends.since(now)),
        }
    }

    /// Yields the revision, if the change was made.
    fn change(&mut self, change: &Change) -> Option<u64> {
        let lasts = change.owner.is_none_or(|(_, lease)| self.leases.contains_key(&lease));
        if self.owner != change.read || self.record != change.recorded || !lasts {
            return None;
        }
        self.revision += 1;
        let revision = self.revision;
        self.record = change.next.encode();
        self.owner = change.owner.map(|(epoch, lease)| OwnerKey { epoch, lease, revision });
        if let Some(nonce) = change.member {
            self.standbys.remove(&nonce);
        }
        Some(revision)
    }
}

impl Etcd {
    /// A cluster that is asked from nodes of the world of `env`.
    pub(crate) fn new(env: &Env, lease: Duration, seed: u64) -> Etcd {
        let state = State {
            record: Record::default().encode(),
            owner: None,
            leases: BTreeMap::new(),
            standbys: BTreeMap::new(),
            revision: 0,
            rng: SimRng::new(seed),
            leaderless_until: Instant(0),
            slow_until: Instant(0),
            blocked: Default::default(),
        };
        Etcd { env: env.clone(), lease, state: Rc::new(RefCell::new(state)) }
    }

    /// The length of a server's lease.
    pub(crate) fn lease(&self) -> Duration {
        self.lease
    }

    /// The record as it is.
    pub(crate) fn record(&self) -> Record {
        Record::decode(&self.state.borrow().record).unwrap_or_default()
    }

    /// The leader, or the quorum, is lost for this long. The next leader gives leases their time.
    pub(crate) fn lose_leader(&self, time: Duration) {
        self.pass();
        let back = self.env.now() + time;
        let mut state = self.state.borrow_mut();
        state.leaderless_until = state.leaderless_until.max(back);
        for ends in state.leases.values_mut() {
            *ends = (*ends).max(back + self.lease);
        }
    }

    /// Requests and answers take up to a tenth of a lease for this long.
    pub(crate) fn be_slow(&self, time: Duration) {
        self.state.borrow_mut().slow_until = self.env.now() + time;
    }

    /// A node's requests do not arrive, or (not `requests`) it gets no answers; or no longer.
    pub(crate) fn block(&self, node: &str, requests: bool, blocked: bool) {
        let mut state = self.state.borrow_mut();
        let nodes = if requests { &mut state.blocked.0 } else { &mut state.blocked.1 };
        match blocked {
            true => _ = nodes.insert(node.to_owned()),
            false => _ = nodes.remove(node),
        }
    }

    /// Everything works.
    pub(crate) fn heal(&self) {
        let mut state = self.state.borrow_mut();
        (state.slow_until, state.blocked) = Default::default();
    }

    /// Time of one way; and shall a request be lost if it has timed out?
    fn way(&self) -> (Duration, bool) {
        let mut state = self.state.borrow_mut();
        let slow = self.env.now() < state.slow_until;
        let most = if slow { self.lease / 10 } else { WAY };
        let way = Duration::from_micros(state.rng.below(most.as_micros() as u64 + 1));
        (way, state.rng.one_in(2))
    }

    fn is_blocked(&self, node: &str, request: bool) -> bool {
        let state = self.state.borrow();
        let nodes = if request { &state.blocked.0 } else { &state.blocked.1 };
        nodes.contains(node) || request && self.env.now() < state.leaderless_until
    }

    fn pass(&self) {
        self.state.borrow_mut().pass(self.env.now());
    }
}

/// What the owner holds.
#[derive(Clone, Copy)]
struct Held {
    epoch: Epoch,
    lease: u64,
    revision: u64,
}

/// The membership of one process, on a node.
pub(crate) struct Seat {
    etcd: Etcd,
    env: Env,
    node: String,
    held: Cell<Option<Held>>,
}

fn away() -> Trouble {
    Trouble::Away("etcd does not answer in time".into())
}

impl Seat {
    pub(crate) fn new(etcd: &Etcd, env: &Env, node: &str) -> Seat {
        Seat { etcd: etcd.clone(), env: env.clone(), node: node.to_owned(), held: Cell::default() }
    }

    /// Has etcd carry something out; `None`: it has not answered in time.
    async fn ask<T: 'static>(
        &self,
        request: impl FnOnce(&mut State, Instant) -> T + 'static,
    ) -> Option<T> {
        let answer = Rc::new((RefCell::new(None), Notify::new(), Cell::new(false)));
        let (etcd, node, there) = (self.etcd.clone(), self.node.clone(), answer.clone());
        self.etcd.env.spawn(async move {
            let (way, is_lost) = etcd.way();
            etcd.env.sleep(way).await;
            while etcd.is_blocked(&node, true) {
                etcd.env.sleep(LOOK).await;
            }
            if there.2.get() && is_lost {
                return;
            }
            etcd.pass();
            let done = request(&mut etcd.state.borrow_mut(), etcd.env.now());
            let (way, _) = etcd.way();
            etcd.env.sleep(way).await;
            while etcd.is_blocked(&node, false) {
                etcd.env.sleep(LOOK).await;
            }
            *there.0.borrow_mut() = Some(done);
            there.1.notify_all();
        });
        let waits = async {
            loop {
                let notified = answer.1.notified();
                if let Some(done) = answer.0.borrow_mut().take() {
                    return done;
                }
                notified.await;
            }
        };
        let done = self.env.timeout(self.etcd.lease / 4, waits).await;
        answer.2.set(true);
        done
    }

    async fn read(&self) -> Result<Shown, Trouble> {
        self.ask(|state, now| state.show(now)).await.ok_or_else(away)
    }

    async fn look_once(&self) -> Result<Seen, Trouble> {
        let shown = self.read().await?;
        let life = match &shown.owner {
            None => life_without_lease(&shown.record),
            Some(owner) => {
                let own = self.held.get().is_some_and(|held| held.revision == owner.revision);
                match !own && is_silent(shown.left, self.etcd.lease) {
                    false => Life::Alive { note: None },
                    true => Life::Unproved { missing: "its lease lasts".into() },
                }
            }
        };
        Ok(Seen { record: shown.record, life })
    }

    async fn claim_once(&self, claim: &Claim) -> Result<Term, Refusal> {
        let shown = self.read().await.map_err(Refusal::Trouble)?;
        let changed = |text: &str| Refusal::Changed(text.to_owned());
        let next = shown.record.after(claim).ok_or_else(|| changed("another one has claimed"))?;
        may_claim(&claim.proof, shown.owner.is_some()).map_err(changed)?;
        let (sent, lasts) = (self.env.now(), self.etcd.lease);
        let granted = self.ask(move |state, now| {
            state.revision += 1;
            state.leases.insert(state.revision, now + lasts);
            state.revision
        });
        let lease = granted.await.ok_or_else(|| Refusal::Trouble(away()))?;
        let epoch = next.epoch();
        let change = Change {
            recorded: shown.record.encode(),
            read: shown.owner,
            next,
            owner: Some((epoch, lease)),
            member: Some(claim.member.nonce),
        };
        let ends = term_end(sent, lasts);
        let revision = match self.ask(move |state, _| state.change(&change)).await {
            Some(Some(revision)) => revision,
            Some(None) => {
                self.revoke(lease).await;
                return Err(changed("another server was quicker"));
            }
            None => self.settle((epoch, lease), ends).await?,
        };
        self.held.set(Some(Held { epoch, lease, revision }));
        Ok(Term { epoch, ends: Some(ends) })
    }

    /// Learns how a claim has ended: the revision of its key.
    async fn settle(&self, (epoch, lease): (Epoch, u64), ends: Instant) -> Result<u64, Refusal> {
        for _ in 0..TRIES {
            let shown = self.read().await;
            if self.env.now() >= ends {
                break;
            }
            let Ok(shown) = shown else { continue };
            let own = |owner: &OwnerKey| (owner.epoch, owner.lease) == (epoch, lease);
            match shown.owner.filter(own) {
                Some(owner) => return Ok(owner.revision),
                None => break,
            }
        }
        self.revoke(lease).await;
        Err(Refusal::Unknown("nobody knows whether the claim has succeeded".into()))
    }

    async fn revoke(&self, lease: u64) {
        // Else it ends by itself.
        self.ask(move |state, now| {
            state.leases.remove(&lease);
            state.pass(now);
        })
        .await;
    }

    async fn renew_once(&self, term: Term) -> Renewal {
        let Some(held) = self.held.get().filter(|held| held.epoch == term.epoch) else {
            return Renewal::Until(None);
        };
        let (sent, lasts) = (self.env.now(), self.etcd.lease);
        let kept = self.ask(move |state, now| {
            let holds = state.owner.as_ref().is_some_and(|key| key.revision == held.revision);
            if holds && let Some(ends) = state.leases.get_mut(&held.lease) {
                *ends = (*ends).max(now + lasts);
            }
            holds
        });
        match kept.await {
            None => Renewal::Late(away().to_string()),
            Some(true) => Renewal::Until(Some(term_end(sent, lasts))),
            Some(false) if self.held.get().is_none() => Renewal::Until(None),
            Some(false) => Renewal::Lost("the key of the owner is not its own any more".into()),
        }
    }

    /// Changes the record as its owner, until it is done or another one owns.
    async fn amend(
        &self,
        held: Held,
        owns: bool,
        next: impl Fn(&Record) -> Option<Record>,
    ) -> Result<(), Trouble> {
        for _ in 0..TRIES {
            let Ok(shown) = self.read().await else { continue };
            let is_own = shown.owner.as_ref().is_some_and(|key| key.revision == held.revision);
            let Some(next) = next(&shown.record).filter(|_| is_own) else { return Ok(()) };
            let owner = owns.then_some((held.epoch, held.lease));
            let recorded = shown.record.encode();
            let change = Change { recorded, read: shown.owner, next, owner, member: None };
            let done = self.ask(move |state, _| {
                let before = state.owner.clone();
                let done = state.change(&change).is_some();
                if done && owns {
                    // Only the record was written.
                    state.owner = before;
                }
                done
            });
            if done.await == Some(true) {
                return Ok(());
            }
        }
        Err(away())
    }
}

impl Membership for Seat {
    fn name(&self) -> String {
        "etcd".into()
    }

    fn look(&self) -> Later<'_, Result<Seen, Trouble>> {
        Box::pin(self.look_once())
    }

    fn claim<'a>(&'a self, claim: &'a Claim) -> Later<'a, Result<Term, Refusal>> {
        Box::pin(self.claim_once(claim))
    }

    fn renew(&self, term: Term) -> Later<'_, Renewal> {
        Box::pin(self.renew_once(term))
    }

    fn serving(&self, term: Term, opened: Epoch, took: Duration) -> Later<'_, ()> {
        Box::pin(async move {
            let Some(held) = self.held.get() else { return };
            let took = took.as_millis() as u64;
            // Without it only the history would lack a number.
            let noted = self.amend(held, true, |record| record.serving(term.epoch, opened, took));
            let _ = noted.await;
        })
    }

    fn release<'a>(&'a self, term: Term, why: &'a str) -> Later<'a, Result<(), Trouble>> {
        Box::pin(async move {
            let Some(held) = self.held.take() else { return Ok(()) };
            let released = self.amend(held, false, |record| record.released(term.epoch, why)).await;
            self.revoke(held.lease).await;
            released
        })
    }

    fn stand_by<'a>(&'a self, member: &'a Member) -> Later<'a, Result<(), Trouble>> {
        let member = member.clone();
        Box::pin(async move {
            let stood = self.ask(move |state, _| state.standbys.insert(member.nonce, member));
            stood.await.map(drop).ok_or_else(away)
        })
    }

    fn standbys(&self) -> Later<'_, Result<Vec<Member>, Trouble>> {
        Box::pin(async move {
            let all = self.ask(|state, _| state.standbys.values().cloned().collect());
            all.await.ok_or_else(away)
        })
    }
}
