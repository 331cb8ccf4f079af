//! Clients on the server's host: the locks that they hold on the data devices show when their
//! processes have ended.

use std::rc::Rc;

use env::LockScope;
use mfs::Cost;
use types::{ClientId, Duration};

use super::Evictions;
use crate::sessions::{ClientInfo, Session, SessionState};

/// A session younger than this is checked for its local lock in every round.
const YOUNG: Duration = Duration::from_secs(10);

impl Evictions {
    /// Is it certain that no write of the client's process can be in flight? This is known only of
    /// clients on this host, by the lock that they hold on the data devices.
    pub async fn is_proven_dead(&self, session: &Session) -> bool {
        session.is_local() && self.space.is_lock_free(session.client).await
    }

    /// Would this server see whether the client's process lives?
    pub fn watches(&self, client: &ClientInfo) -> bool {
        self.space.watches(client)
    }

    /// Those of `clients`, all of this host, whose process has ended.
    pub async fn dead_of(&self, clients: Vec<ClientId>) -> Vec<ClientId> {
        let mut dead = Vec::new();
        for client in clients {
            if self.space.is_lock_free(client).await {
                dead.push(client);
            }
        }
        dead
    }

    /// Looks for clients whose lock shows that they run on this host: from then on the server can
    /// see when they die. With `all` it also checks sessions that are not young any more. Evicts
    /// those that have died.
    pub async fn detect_local_clients(&self, all: bool) {
        let sessions: Vec<Rc<Session>> = self.sessions.all();
        let now = self.runtime.env.now();
        let young = |session: &Session| now.since(session.begun) < YOUNG;
        for session in sessions.iter().filter(|s| !s.is_over() && !s.is_local()) {
            if !all && !young(session) {
                continue;
            }
            let seen_at = self.space.lock_held_at(session.client).await;
            if seen_at.is_some() && !session.is_over() {
                self.note_local(session, seen_at).await;
            }
        }
        for session in sessions {
            if !session.is_connected()
                && session.state() == SessionState::Live
                && self.is_proven_dead(&session).await
            {
                self.evict(session.client, "its process has ended").await;
            }
        }
    }

    async fn note_local(&self, session: &Session, seen_at: Option<LockScope>) {
        session.set_local(true);
        let (nonce, description) = (session.nonce, session.description.clone());
        let node = session.who().node().to_owned();
        let info = ClientInfo { nonce, seen_at, node, description }.encode();
        let client = session.client;
        let noted = self.runtime.mfs.run(Cost::DELETE, |txn| txn.set_client(client, &info)).await;
        self.runtime.checked(noted, "recording that a client is local");
    }
}
