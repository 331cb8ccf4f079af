//! Fencing of evicted clients: at their hosts or at the data devices, by the means that the
//! configuration names.
//!
//! Invariants:
//! - a client is cut off only after its eviction is durable, and counts as fenced only after a
//!   means that cut it off has confirmed that ([`fence_plan`]);
//! - one task at a time acts on a host. What it proves counts for the clients whose fencing it had
//!   begun with, and for no client that was evicted later;
//! - nobody is cut off before grace has ended: until then it is unknown which other clients live;
//! - a host with another client that is not silent is not cut off: it lives, and would lose more
//!   than one mount. That is asked before each step, and no client of the host comes in meanwhile.
//!   Nor is the server's own host.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use types::{ClientId, Duration, Instant};

use super::fence_plan::{self, Step};
use crate::fence::{Answer, Fence, FenceAction, FenceTarget, host_of};
use crate::runtime::Runtime;
use crate::sessions::Sessions;

/// How far the fencing of a client is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FenceState {
    /// It has been cut off: by this means.
    Proven(String),
    /// It is being cut off.
    Begun,
    /// It will be, after what is being done at its host.
    Due,
    /// It is not cut off, and why.
    Failed(String),
}

/// See the module.
pub struct Fencing {
    runtime: Rc<Runtime>,
    sessions: Rc<Sessions>,
    clients: RefCell<BTreeMap<ClientId, (FenceTarget, FenceState)>>,
    /// Since when it is proven.
    proven: RefCell<BTreeMap<ClientId, Instant>>,
    /// Grace is over: it is known which other clients live.
    may_begin: Cell<bool>,
    /// Hosts with a task.
    busy: RefCell<BTreeSet<String>>,
}

impl Fencing {
    /// Nobody is fenced.
    pub fn new(runtime: Rc<Runtime>, sessions: Rc<Sessions>) -> Rc<Fencing> {
        let (clients, proven, may_begin, busy) = Default::default();
        Rc::new(Fencing { runtime, sessions, clients, proven, may_begin, busy })
    }

    /// How far a client's fencing is; `None`: no means is configured for it.
    pub fn state(&self, client: ClientId) -> Option<FenceState> {
        self.clients.borrow().get(&client).map(|(_, state)| state.clone())
    }

    /// For how long it has been proven that the client is cut off; `None`: it is not.
    pub fn proven_for(&self, client: ClientId) -> Option<Duration> {
        let proven = self.proven.borrow().get(&client).copied();
        proven.map(|at| self.runtime.env.now().since(at))
    }

    /// The client's quarantine has ended.
    pub fn forget(&self, client: ClientId) {
        self.clients.borrow_mut().remove(&client);
        self.proven.borrow_mut().remove(&client);
    }

    /// Begins to fence a client whose eviction is durable, if a means is configured for it.
    pub fn begin(self: &Rc<Fencing>, client: ClientId, description: &str) {
        if self.runtime.config.fences.is_empty() {
            return;
        }
        let Some(host) = host_of(description).map(str::to_owned) else {
            let text = format!("client {client} is not fenced: it names no host ({description:?})");
            self.runtime.log(&text);
            return;
        };
        let target = FenceTarget { client, host: host.clone() };
        if self.means(&target).is_empty() {
            return;
        }
        self.clients.borrow_mut().insert(client, (target, FenceState::Due));
        if self.may_begin.get() {
            self.begin_host(host);
        }
    }

    /// Grace is over: begins what is due.
    pub fn begin_due(self: &Rc<Fencing>) {
        self.may_begin.set(true);
        let clients = self.clients.borrow();
        let hosts: BTreeSet<_> = clients.values().map(|(target, _)| target.host.clone()).collect();
        drop(clients);
        for host in hosts {
            self.begin_host(host);
        }
    }

    fn begin_host(self: &Rc<Fencing>, host: String) {
        if self.busy.borrow_mut().insert(host.clone()) {
            let this = self.clone();
            self.runtime.env.spawn(async move {
                while this.fence_host(&host).await {}
                this.busy.borrow_mut().remove(&host);
            });
        }
    }

    fn means(&self, target: &FenceTarget) -> Vec<Rc<dyn Fence>> {
        let all = self.runtime.config.fences.iter();
        all.filter(|fence| fence.covers(target)).cloned().collect()
    }

    /// Fences the clients of a host that are due, all together; `false`: there are none.
    async fn fence_host(&self, host: &str) -> bool {
        let mut due = Vec::new();
        for (client, (target, state)) in &mut *self.clients.borrow_mut() {
            if target.host == host && *state == FenceState::Due {
                *state = FenceState::Begun;
                due.push(*client);
            }
        }
        let Some(&client) = due.first() else { return false };
        let state = if host == self.runtime.config.own_host {
            FenceState::Failed("it is the server's own host".into())
        } else {
            self.fence(&FenceTarget { client, host: host.to_owned() }).await
        };
        for client in due {
            self.announce(client, host, &state);
            if let Some((_, known)) = self.clients.borrow_mut().get_mut(&client) {
                *known = state.clone();
                if matches!(state, FenceState::Proven(_)) {
                    self.proven.borrow_mut().insert(client, self.runtime.env.now());
                }
            }
        }
        true
    }

    /// Is something being done at this host? Then none of its clients is let in: it would be cut
    /// off, or wake while the others are.
    pub fn acts_on(&self, host: &str) -> bool {
        self.busy.borrow().contains(host)
    }

    /// A client of this host that lives, connected or not.
    fn lives(&self, host: &str) -> Option<ClientId> {
        let all = self.sessions.all();
        let lives = |session: &&Rc<crate::sessions::Session>| {
            !session.is_over()
                && !self.sessions.is_silent(session)
                && host_of(&session.description) == Some(host)
        };
        all.iter().find(lives).map(|session| session.client)
    }

    async fn fence(&self, target: &FenceTarget) -> FenceState {
        let (env, begun) = (&self.runtime.env, self.runtime.env.now());
        let means = self.means(target);
        let mut step = fence_plan::first(means.len());
        let mut reasons = Vec::new();
        loop {
            let (at, action) = match step {
                Step::Cut(at) => (at, FenceAction::Cut),
                Step::Check(at) => (at, FenceAction::Check),
                Step::Proven(at) => {
                    let ms = env.now().since(begun).as_millis();
                    return FenceState::Proven(format!("{}, in {ms} ms", means[at].name()));
                }
                Step::Failed => return FenceState::Failed(reasons.join("; ")),
            };
            if let Some(other) = self.lives(&target.host) {
                reasons.push(format!("its host {} has client {other}, which lives", target.host));
                return FenceState::Failed(reasons.join("; "));
            }
            let (fence, doing) = (&means[at], doing(action));
            let host = &target.host;
            self.runtime.log(&format!("fence {}: {doing} host {host}", fence.name()));
            let answer = env.timeout(fence.patience(), fence.act(action, target)).await;
            let answer = answer.unwrap_or(Answer::Late);
            match &answer {
                Answer::Yes => {}
                Answer::No(why) => reasons.push(format!("{}, {doing}: {why}", fence.name())),
                Answer::Late => reasons.push(format!(
                    "{}, {doing}: not done within {} ms",
                    fence.name(),
                    fence.patience().as_millis()
                )),
            }
            step = fence_plan::next(means.len(), step, &answer);
        }
    }

    fn announce(&self, client: ClientId, host: &str, state: &FenceState) {
        let text = match state {
            FenceState::Proven(how) => {
                format!("client {client} at host {host} has been fenced by {how}")
            }
            FenceState::Failed(why) => format!(
                "client {client} at host {host} has NOT been fenced ({why}): its blocks stay in \
                 quarantine until its time is over"
            ),
            FenceState::Begun | FenceState::Due => return,
        };
        self.runtime.log(&text);
    }
}

fn doing(action: FenceAction) -> &'static str {
    match action {
        FenceAction::Cut => "cutting off",
        FenceAction::Check => "checking",
        FenceAction::Restore => "giving back",
    }
}
