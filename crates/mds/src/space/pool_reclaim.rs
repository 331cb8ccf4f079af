//! Pool reclaim: when data space runs out, the server asks clients for the space that they hold and
//! do not use.
//!
//! Invariants:
//! - a client is asked once until it has answered, and is then left alone for a while;
//! - the client answers in a reserved slot and waits for nobody for more than a moment; the
//!   server's wait for answers is bounded: it goes on without clients that do not answer in time.

use mfs::Cost;
use types::{ClientId, Duration};

use super::Space;
use crate::sessions::{Session, SessionState};

/// How long the server waits for answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The server leaves a client that has answered alone for this long.
const BACKOFF: Duration = Duration::from_millis(50);

impl Space {
    /// Asks all other clients that have blocks in their pools, or orphans open, to return what they
    /// do not need, and waits for their answers.
    pub async fn reclaim_pools(&self, client: ClientId) {
        let (runtime, env) = (&self.runtime, &self.runtime.env);
        let mut asked = Vec::new();
        for session in self.sessions.all() {
            let usable = session.client != client && session.state() == SessionState::Live;
            if !usable || !session.is_connected() || !session.may_ask_space(env.now()) {
                continue;
            }
            let pool = runtime.mfs.run(Cost::READ, |txn| txn.space().pool(session.client)).await;
            let Some((pool, _)) = runtime.checked(pool, "reading a pool") else { continue };
            // A client that has an orphan open may be about to close it.
            if pool.is_empty() && !self.orphans.any_open_by(session.client) {
                continue;
            }
            session.ask_space();
            asked.push((session.connection_number(), session));
        }
        let until = env.now() + ANSWER_TIMEOUT.min(runtime.config.lease / 4);
        loop {
            let notified = self.returned.notified();
            asked.retain(|(connection, session)| still_owes(session, *connection));
            let left = until.since(env.now());
            if asked.is_empty() || left == Duration::ZERO {
                break;
            }
            env.timeout(left, notified).await;
        }
        for (_, session) in asked {
            // Its answer was lost, or comes too late for this request.
            session.forget_space_ask();
        }
    }

    /// The client has returned what it does not need.
    pub fn pool_returned(&self, session: &Session) {
        session.space_answered(self.runtime.env.now() + BACKOFF);
        self.returned.notify_all();
    }
}

/// Does the client still owe the answer for which it was asked on this connection?
fn still_owes(session: &Session, connection: u64) -> bool {
    let here = session.is_connected() && session.connection_number() == connection;
    if session.is_over() || !here {
        session.forget_space_ask();
    }
    session.owes_space_answer()
}
