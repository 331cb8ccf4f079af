//! The grace period: after a restart, the known clients reclaim and replay.
//!
//! Invariants:
//! - until grace ends, the server executes only what recovering clients reclaim and replay;
//! - it ends when every known client has said that it is done, or when those that have not have
//!   been silent for a lease. The server evicts these, but no client that it has heard of since;
//! - nobody knows what an absent client held, so until its quarantine ends all files count as
//!   frozen.

use std::rc::Rc;

use mfs::Cost;
use types::{ClientId, Duration, Instant};

use super::Recovery;
use crate::sessions::ClientInfo;
use session::server::recovery::decision::{ClientState, Decision, decide};

/// How often the server checks whether grace can end.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

impl Recovery {
    /// Waits for the end of grace, evicts the absent clients, and begins the service.
    pub async fn run(self: Rc<Recovery>) {
        let (runtime, begun) = (&self.runtime, self.runtime.env.now());
        let late = loop {
            let changed = self.sessions.changed();
            self.evict_dead().await;
            let Some(late) = self.late(begun) else {
                let pause = CHECK_INTERVAL.min(runtime.config.lease / 4);
                runtime.env.timeout(pause, changed).await;
                if runtime.is_stopping() {
                    return;
                }
                continue;
            };
            let absent = self.claim_all(&late);
            if absent.is_empty() {
                break late;
            }
            // This lasts as long as a device takes to flush. Other clients may be heard of
            // meanwhile, and then their leases are good.
            self.evictions.evict_absent(&absent).await;
        };
        self.evictions.evict_all(&late, "it did not finish its recovery in time").await;
        let ended = runtime.mfs.run(Cost::DELETE, |txn| txn.names().end_replays());
        runtime.checked(ended.await, "ending the grace");
        self.recovering.borrow_mut().clear();
        self.over.set(true);
        self.evictions.begin_due_fences();
        self.ended.notify_all();
        self.recall_presumed();
        self.orphans.begin().await;
        runtime.event_ended();
    }

    /// Evicts absent clients of this host whose process has ended: nobody need wait for them.
    async fn evict_dead(&self) {
        let local: Vec<ClientId> = {
            let absent = self.absent.borrow();
            let watched = absent.iter().filter(|(_, info)| self.evictions.watches(info));
            watched.map(|(client, _)| *client).collect()
        };
        let mut dead = self.evictions.dead_of(local).await;
        dead.retain(|&client| {
            decide(ClientState::Dead, self.knowledge(client).0) == Decision::EvictAtOnce
        });
        self.evictions.evict_absent(&self.claim_all(&dead)).await;
    }

    /// The clients to evict at the end of grace; `None`: the server still waits for one.
    fn late(&self, begun: Instant) -> Option<Vec<ClientId>> {
        let now = self.runtime.env.now();
        let silence = now.since(begun.max(self.sessions.awake_since()));
        let none_came = silence >= self.runtime.config.lease;
        let (recovering, absent) = (self.recovering.borrow(), self.absent.borrow());
        let here = recovering.iter().filter_map(|client| self.sessions.get(*client));
        let here = here.map(|session| (session.client, self.sessions.is_silent(&session)));
        let mut late = Vec::new();
        for (client, silent) in here.chain(absent.keys().map(|client| (*client, none_came))) {
            let shown = if silent { ClientState::Silent } else { ClientState::Expected };
            match decide(shown, self.knowledge(client).0) {
                Decision::Wait => return None,
                Decision::EvictAtEnd => late.push(client),
                _ => {}
            }
        }
        Some(late)
    }

    /// Takes those of `clients` that are absent from the absent ones.
    fn claim_all(&self, clients: &[ClientId]) -> Vec<(ClientId, ClientInfo)> {
        let mut absent = self.absent.borrow_mut();
        clients.iter().filter_map(|&client| Some((client, absent.remove(&client)?))).collect()
    }
}
