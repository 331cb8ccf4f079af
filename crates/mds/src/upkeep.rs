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
    loop {
        runtime.env.sleep(TICK.min(runtime.config.lease / 4)).await;
        if runtime.is_stopping() {
            return;
        }
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
