//! The time after a restart in which the clients of before reclaim and replay.
//!
//! Invariants:
//! - until it ends only what recovering clients reclaim and replay is executed;
//! - it ends when every known client has said that it is done, or those that have
//!   not have been silent for a lease; these are evicted, and nobody who was heard of since;
//! - nobody knows what an absent client held, so until its quarantine ends all
//!   files count as frozen.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use env::sync::Notify;
use types::{ClientId, Duration, Instant};

use crate::hello::Info;
use crate::ops::READ;
use crate::server::Server;
use crate::session::State;
use crate::{evict, freer, unheard};

/// How often the end is looked for.
const LOOK: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Default)]
pub struct Grace {
    /// Known clients that have not called yet.
    absent: RefCell<BTreeMap<ClientId, Info>>,
    over: Cell<bool>,
    changed: Notify,
}

impl Grace {
    /// The clients known at the start.
    pub fn set_known(&self, known: BTreeMap<ClientId, Info>) {
        *self.absent.borrow_mut() = known;
    }

    /// A known client calls: it is no longer absent.
    pub fn claim(&self, client: ClientId) -> Option<Info> {
        self.absent.borrow_mut().remove(&client)
    }

    /// Those of `clients` that are absent still are not waited for any longer.
    fn claim_all(&self, clients: &[ClientId]) -> Vec<(ClientId, Info)> {
        clients.iter().filter_map(|&client| Some((client, self.claim(client)?))).collect()
    }

    /// It was not the client.
    pub fn unclaim(&self, client: ClientId, info: Info) {
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

    /// A client is done, or gone.
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

/// Waits for the end of the grace, evicts the absent, and begins the service.
pub async fn run(server: Rc<Server>) {
    let begun = server.env.now();
    loop {
        let changed = server.grace.changed.notified();
        evict_the_dead(&server).await;
        if still_waited_for(&server, begun) {
            server.env.timeout(LOOK.min(server.config.lease / 4), changed).await;
            if server.is_stopping() {
                return;
            }
            continue;
        }
        let absent = server.grace.claim_all(&server.grace.absent());
        if absent.is_empty() {
            break;
        }
        // That lasts as long as a device takes to flush: others may be heard of meanwhile, whose
        // leases are good then.
        evict::evict_absent(&server, &absent).await;
    }
    let late: Vec<ClientId> = {
        let sessions = server.sessions.borrow();
        let recovering = sessions.values().filter(|s| s.state() == State::Recovering);
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
    unheard::ask(&server);
    freer::begin(&server).await;
}

/// Those whose processes were on this host and have ended need not be waited for.
async fn evict_the_dead(server: &Rc<Server>) {
    let mut dead = Vec::new();
    for client in server.grace.absent_local() {
        if evict::is_lock_free(server, client).await {
            dead.push(client);
        }
    }
    evict::evict_absent(server, &server.grace.claim_all(&dead)).await;
}

fn still_waited_for(server: &Server, begun: Instant) -> bool {
    let now = server.env.now();
    let recovering = server.sessions.borrow().values().any(|session| {
        session.state() == State::Recovering && server.silence(session) < server.config.lease
    });
    let absent = !server.grace.absent.borrow().is_empty();
    recovering || (absent && now.since(begun.max(server.awake_since())) < server.config.lease)
}
