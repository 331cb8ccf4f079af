//! Space that clients hold and do not use, asked back when there is none left.
//!
//! Invariants:
//! - a client is asked once until it has answered, and not again at once after that;
//! - the answer comes in a reserved slot of the asked client and waits for nobody for more than a
//!   moment, and the wait for it is bounded: whoever does not answer in time is passed over.

use std::rc::Rc;

use proto::mds::{Message, Push};
use types::{ClientId, Duration, Rights};

use crate::ops::READ;
use crate::server::Server;
use crate::session::{Session, State};

/// How long answers are waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// A client that has answered is left alone for so long.
const REST: Duration = Duration::from_millis(50);

/// Asks all other clients that have blocks in their pools, or removed files open, for what they do
/// not need, and waits for their answers.
pub async fn gather(server: &Rc<Server>, client: ClientId) {
    let sessions: Vec<Rc<Session>> = server.sessions.borrow().values().cloned().collect();
    let mut asked = Vec::new();
    for session in sessions {
        let now = server.env.now();
        let usable = session.client != client && session.state() == State::Live;
        if !usable || !session.is_connected() || now < session.space_asked_until.get() {
            continue;
        }
        let pool = server.mfs.run(READ, |txn| txn.pool(session.client)).await;
        let Some((pool, _)) = server.checked(pool, "reading a pool") else { continue };
        // Who has a removed file open may be about to give it back.
        let keeps = |ino| server.leases.borrow().rights(session.client, ino).contains(Rights::OPEN);
        if pool.is_empty() && !server.freer.is_any_nameless(keeps) {
            continue;
        }
        if !session.space_asked.replace(true) {
            session.push(Message::Push { push: Push::SpaceWanted {} });
        }
        asked.push((session.connection_number(), session));
    }
    let until = server.env.now() + PATIENCE.min(server.config.lease / 4);
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
        // Its answer was lost, or comes too late for this time.
        session.space_asked.set(false);
    }
}

/// The client has given back what it does not need.
pub fn answered(server: &Server, session: &Session) {
    if session.space_asked.replace(false) {
        session.space_asked_until.set(server.env.now() + REST);
    }
    server.space_events.notify_all();
}
