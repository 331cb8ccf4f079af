//! What a client may lose with a server that dies.

use std::collections::BTreeMap;

use client::ServerSession;

/// Most changes that a client may lose with a server that dies.
pub const UNDURABLE_MAX: u32 = 64;

/// For each session of a client: how many changes it did not know to be durable when the session's
/// last server died, those in flight included. The key counts the evictions that the client had
/// noticed then.
#[derive(Clone, Default)]
pub struct UndurableChanges(BTreeMap<u64, u32>);

impl UndurableChanges {
    /// The server is about to die.
    pub fn note(&mut self, status: &ServerSession) {
        let undurable = (status.replay + status.in_flight) as u32;
        self.0.insert(status.evictions, undurable.min(UNDURABLE_MAX));
    }

    /// Most changes lost with that session. Later changes are safe: what is done after the start of
    /// its last server is durable before the eviction is.
    pub fn of(&self, evictions: u64) -> u32 {
        self.0.get(&evictions).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use types::{ClientId, Duration, Epoch, ServerId};

    use super::*;

    fn status(evictions: u64, replay: usize) -> ServerSession {
        ServerSession {
            server: ServerId(0),
            client: ClientId(1),
            epoch: Epoch(1),
            in_flight: 0,
            replay,
            evictions,
            lease_left: Duration::ZERO,
        }
    }

    #[test]
    fn lost_session_takes_only_changes_not_known_to_be_durable() {
        let mut undurable = UndurableChanges::default();
        assert_eq!(undurable.of(0), 0, "no server has died");
        undurable.note(&status(0, 9));
        assert_eq!(undurable.of(0), 9);
        undurable.note(&status(0, 2));
        assert_eq!(undurable.of(0), 2, "it has replayed nothing of what is durable since");
        undurable.note(&ServerSession { in_flight: 1, ..status(1, 3) });
        assert_eq!(
            (undurable.of(0), undurable.of(1), undurable.of(2)),
            (2, 4, 0),
            "each session has its own"
        );
        undurable.note(&status(1, 1000));
        assert_eq!(undurable.of(1), UNDURABLE_MAX);
    }
}
