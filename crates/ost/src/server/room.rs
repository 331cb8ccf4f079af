//! Room that a client asks for while others have some ahead of their writes.
//!
//! A target that cannot give what is needed asks the other clients for what no accepted bytes of
//! theirs need ([`Push::Short`]). It refuses when all of them have answered, or after a while.
//!
//! Invariant: a request for room ends within [`PATIENCE`], whatever other clients do.

use std::collections::BTreeMap;

use proto::message::Message;
use proto::ost::{Push, Statement};
use types::{ClientId, Duration, Fault};

use super::Server;

/// How long a target waits for the answers of clients that it asks for room.
const PATIENCE: Duration = Duration::from_millis(500);

impl Server {
    /// Keeps `wanted` more free blocks for a client, and `needed` at least. Returns how many.
    ///
    /// # Errors
    /// `NoSpace` if there are not so many as are needed, also when other clients have given back
    /// what they do not need.
    pub(super) async fn promise(
        &self,
        client: ClientId,
        said: Statement,
        (needed, wanted): (u64, u64),
    ) -> Result<u64, Fault> {
        let (store, env) = (&self.runtime.store, &self.runtime.env);
        let until = env.now() + PATIENCE;
        let mut asked = None;
        loop {
            let refused = match store.promise(client, said, needed, wanted) {
                Err(Fault::NoSpace) => Err(Fault::NoSpace),
                given => return given,
            };
            let asked = asked.get_or_insert_with(|| self.ask_for_room(client));
            // Those who have answered keep what they need.
            let now = store.promised();
            asked.retain(|other, holds| now.get(other) == Some(&*holds));
            let left = until.since(env.now());
            if asked.is_empty() || self.runtime.is_stopping() || left == Duration::ZERO {
                return refused;
            }
            // After the wait it looks a last time.
            let _ = env.timeout(left, store.promise_changed()).await;
        }
    }

    /// Asks all clients but this one for the room that they do not need. Yields those who have
    /// some, and how often each has given something back.
    fn ask_for_room(&self, client: ClientId) -> BTreeMap<ClientId, u64> {
        let mut asked = self.runtime.store.promised();
        asked.remove(&client);
        for other in asked.keys() {
            if let Some(session) = self.sessions.get(*other) {
                session.push(Message::Push { push: Push::Short {} });
            }
        }
        asked
    }
}
