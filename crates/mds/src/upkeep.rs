//! The periodic work of the server.

use std::rc::Rc;

use types::Duration;

use crate::leases::Evictor;
use crate::server::Server;

/// Pause between two rounds.
const TICK: Duration = Duration::from_millis(250);

/// Runs until the server stops.
pub async fn run(server: Rc<Server>) {
    let runtime = &server.runtime;
    let mut round: u64 = 0;
    let mut keys_seen = 0;
    loop {
        runtime.env.sleep(TICK.min(runtime.config.lease / 4)).await;
        if runtime.is_stopping() {
            return;
        }
        enforce_keys(&server, &mut keys_seen).await;
        let durable = runtime.mfs.last_committed();
        server.uncommitted.forget(durable);
        server.sessions.push_committed(durable);
        if server.recovery.is_over() {
            server.space.release_freed().await;
        }
        server.space.look_at_devices();
        server.leases.relieve_pressure();
        let awaited = server.locks.awaited();
        server.evictions.evict_unresponsive(&awaited).await;
        server.evictions.detect_local_clients(round.is_multiple_of(4)).await;
        server.evictions.end_quarantines().await;
        server.evictions.remove_unused().await;
        round += 1;
        if round.is_multiple_of(16) {
            server.sessions.forget_ended_connections();
        }
        runtime.event_ended();
    }
}

/// Cuts off the nodes whose keys the list revokes, if it changed since `seen`. Clients whose keys
/// are not in it any more stay: a list that is lost, or half written, must not end all sessions.
async fn enforce_keys(server: &Server, seen: &mut u64) {
    match server.door.refresh() {
        Ok(changes) if changes == *seen => return,
        Ok(changes) => *seen = changes,
        Err(text) => return server.runtime.log(&text),
    }
    let absent = server.sessions.all().iter().filter(|it| !server.door.lists(&it.who())).count();
    if absent > 0 {
        server.runtime.log(&format!(
            "the keys of {absent} clients are no longer in the list of allowed keys: they stay \
             until their connections end; `redbud key revoke` cuts them off"
        ));
    }
    // A node with another key, or with other rights than before, comes again.
    server.sessions.close_if(|connection| !server.door.admits(connection.who()));
    let revoked = server.sessions.all().into_iter();
    let revoked = revoked.filter(|session| !server.door.admits_node(&session.who()));
    let clients: Vec<_> = revoked.map(|session| session.client).collect();
    if !clients.is_empty() {
        server.evictions.evict_all(&clients, "its node's keys are revoked").await;
    }
}
