//! Pool reclaim: when data space runs out, the server asks clients for the space that they hold and
//! do not use.
//!
//! Invariants:
//! - a client is asked once until it has answered, and is then left alone for a while;
//! - the client answers in a reserved slot and waits for nobody for more than a moment; the
//!   server's wait for answers is bounded: it goes on without clients that do not answer in time.

use std::rc::Rc;

use proto::mds::{Message, Push};
use types::{ClientId, Duration, Rights};

use crate::ops::READ;
use crate::server::Server;
use crate::session::{Session, SessionState};

/// How long the server waits for answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The server leaves a client that has answered alone for this long.
const BACKOFF: Duration = Duration::from_millis(50);

/// Asks all other clients that have blocks in their pools, or orphans open, to return what they do
/// not need, and waits for their answers.
pub async fn reclaim(server: &Rc<Server>, client: ClientId) {
    let sessions: Vec<Rc<Session>> = server.sessions.borrow().values().cloned().collect();
    let mut asked = Vec::new();
    for session in sessions {
        let now = server.env.now();
        let usable = session.client != client && session.state() == SessionState::Live;
        if !usable || !session.is_connected() || now < session.space_asked_until.get() {
            continue;
        }
        let pool = server.mfs.run(READ, |txn| txn.pool(session.client)).await;
        let Some((pool, _)) = server.checked(pool, "reading a pool") else { continue };
        // A client that has an orphan open may be about to close it.
        let keeps = |ino| server.leases.borrow().rights(session.client, ino).contains(Rights::OPEN);
        if pool.is_empty() && !server.reaper.any_open_orphan(keeps) {
            continue;
        }
        if !session.space_asked.replace(true) {
            session.push(Message::Push { push: Push::SpaceWanted {} });
        }
        asked.push((session.connection_number(), session));
    }
    let until = server.env.now() + ANSWER_TIMEOUT.min(server.config.lease / 4);
    loop {
        let notified = server.space_events.notified();
        asked.retain(|(connection, session)| {
            let here = session.is_connected() && session.connection_number() == *connection;
            if session.is_over() || !here {
                session.space_asked.set(false);
            }
            session.space_asked.get()
        });
        let left = until.since(server.env.now());
        if asked.is_empty() || left == Duration::ZERO {
            break;
        }
        server.env.timeout(left, notified).await;
    }
    for (_, session) in asked {
        // Its answer was lost, or comes too late for this request.
        session.space_asked.set(false);
    }
}

/// The client has returned what it does not need.
pub fn answered(server: &Server, session: &Session) {
    if session.space_asked.replace(false) {
        session.space_asked_until.set(server.env.now() + BACKOFF);
    }
    server.space_events.notify_all();
}
