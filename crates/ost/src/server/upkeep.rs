//! The periodic work of the server.

use std::rc::Rc;

use types::Duration;

use super::Server;

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
        runtime.look_at_store().await;
        // The silence of clients counts from here after the process was stopped.
        server.sessions.awake_since();
        enforce_keys(&server, &mut keys_seen);
        if runtime.config.notices {
            server.sessions.push_committed();
        }
        server.sessions.forget_absent().await;
        server.sessions.forget_silent().await;
        server.sessions.look_whether_settled();
        round += 1;
        if round.is_multiple_of(16) {
            server.sessions.forget_ended_connections();
        }
        server.event_ended();
    }
}

/// Closes the connections of nodes of which the list says something else than before, if it changed
/// since `seen`. One that is revoked is not let in again, and its session ends by its silence.
fn enforce_keys(server: &Server, seen: &mut u64) {
    match server.door.refresh() {
        Ok(changes) if changes == *seen => return,
        Ok(changes) => *seen = changes,
        Err(text) => return server.runtime.log(&text),
    }
    server.sessions.close_if(|connection| !server.door.admits(connection.who()));
}
