//! The grace period: after a restart, the known clients reclaim and replay.
//!
//! Invariants:
//! - until grace ends, the server executes only what recovering clients reclaim and replay;
//! - it ends when every known client has said that it is done, or when those that have not have
//!   been silent for a lease. The server evicts these, but no client that it has heard of since;
//! - nobody knows what an absent client held, so until its quarantine ends all files count as
//!   frozen.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use env::sync::Notify;
use types::{ClientId, Duration, Instant};

use crate::hello::ClientInfo;
use crate::ops::READ;
use crate::server::Server;
use crate::session::SessionState;
use crate::{evict, reaper, unacknowledged};

/// How often the server checks whether grace can end.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Default)]
pub struct Grace {
    /// Known clients that have not connected yet.
    absent: RefCell<BTreeMap<ClientId, ClientInfo>>,
    over: Cell<bool>,
    changed: Notify,
}

impl Grace {
    /// Sets the clients known at the start.
    pub fn set_known(&self, known: BTreeMap<ClientId, ClientInfo>) {
        *self.absent.borrow_mut() = known;
    }

    /// A known client has connected: it is no longer absent.
    pub fn claim(&self, client: ClientId) -> Option<ClientInfo> {
        self.absent.borrow_mut().remove(&client)
    }

    /// Takes those of `clients` that are still absent from the absent ones.
    fn claim_all(&self, clients: &[ClientId]) -> Vec<(ClientId, ClientInfo)> {
        clients.iter().filter_map(|&client| Some((client, self.claim(client)?))).collect()
    }

    /// Takes back [`Grace::claim`]: it was not the client that connected.
    pub fn unclaim(&self, client: ClientId, info: ClientInfo) {
        self.absent.borrow_mut().insert(client, info);
    }

    /// Is it over?
    pub fn is_over(&self) -> bool {
        self.over.get()
    }

    /// Waits for the end.
    pub async fn ended(&self) {
        while !self.over.get() {
            let changed = self.changed.notified();
            if self.over.get() {
                return;
            }
            changed.await;
        }
    }

    /// A client is done or gone: the end may have come.
    pub fn progress(&self) {
        self.changed.notify_all();
    }

    fn absent_local(&self) -> Vec<ClientId> {
        let absent = self.absent.borrow();
        absent.iter().filter(|(_, info)| info.local).map(|(client, _)| *client).collect()
    }

    fn absent(&self) -> Vec<ClientId> {
        self.absent.borrow().keys().copied().collect()
    }
}

/// Waits for the end of grace, evicts the absent clients, and begins the service.
pub async fn run(server: Rc<Server>) {
    let begun = server.env.now();
    loop {
        let changed = server.grace.changed.notified();
        evict_dead_local(&server).await;
        if must_wait(&server, begun) {
            server.env.timeout(CHECK_INTERVAL.min(server.config.lease / 4), changed).await;
            if server.is_stopping() {
                return;
            }
            continue;
        }
        let absent = server.grace.claim_all(&server.grace.absent());
        if absent.is_empty() {
            break;
        }
        // This lasts as long as a device takes to flush. Other clients may be heard of meanwhile,
        // and then their leases are good.
        evict::evict_absent(&server, &absent).await;
    }
    let late: Vec<ClientId> = {
        let sessions = server.sessions.borrow();
        let recovering = sessions.values().filter(|s| s.state() == SessionState::Recovering);
        recovering.map(|session| session.client).collect()
    };
    evict::evict_all(&server, &late, "it did not finish its recovery in time").await;
    let ended = server.mfs.run(READ, |txn| {
        txn.end_replays();
        Ok(())
    });
    server.checked(ended.await, "ending the grace");
    server.grace.over.set(true);
    server.grace.changed.notify_all();
    unacknowledged::recall_presumed(&server);
    reaper::begin(&server).await;
}

/// Evicts absent clients of this host whose process has ended: nobody need wait for them.
async fn evict_dead_local(server: &Rc<Server>) {
    let mut dead = Vec::new();
    for client in server.grace.absent_local() {
        if evict::is_lock_free(server, client).await {
            dead.push(client);
        }
    }
    evict::evict_absent(server, &server.grace.claim_all(&dead)).await;
}

fn must_wait(server: &Server, begun: Instant) -> bool {
    let now = server.env.now();
    let recovering = server.sessions.borrow().values().any(|session| {
        session.state() == SessionState::Recovering && server.silence(session) < server.config.lease
    });
    let absent = !server.grace.absent.borrow().is_empty();
    recovering || (absent && now.since(begun.max(server.awake_since())) < server.config.lease)
}
