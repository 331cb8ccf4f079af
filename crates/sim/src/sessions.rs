//! What the fleet knows of the sessions of its clients, one with the server of each shard.

use client::ServerSession;
use types::{Instant, ShardId};

use crate::across::shard_of;
use crate::undurable::UndurableChanges;

/// A session as the server of a shard keeps it.
#[derive(Clone, Default)]
pub(crate) struct MemberSession {
    pub(crate) shard: ShardId,
    /// When its client last finished a replay there, or mounted. If the server died after that, the
    /// client may still have to replay its changes.
    pub(crate) replayed: Instant,
    /// The same for the session that has replaced this one.
    pub(crate) next_replayed: Option<Instant>,
    /// Changes that were not known to be durable when the server died.
    pub(crate) undurable: UndurableChanges,
    /// Number of the client at the server.
    pub(crate) client: u64,
    /// Since which position it may be lost.
    pub(crate) since: Option<u64>,
    /// The server began to evict it while its client was held up.
    pub(crate) expected: bool,
    /// Before the eviction a server had died whose changes the client may still have to replay.
    pub(crate) restarted: bool,
    /// A device was stalled at the eviction: it may carry out the client's writes later.
    pub(crate) late: bool,
    /// The history records its loss.
    pub(crate) loss_recorded: bool,
    /// Evictions that its client has noticed.
    pub(crate) evictions: u64,
}

/// A client that has ended; a server may still keep its session.
pub(crate) struct DeadClient {
    pub(crate) index: usize,
    pub(crate) session: MemberSession,
    pub(crate) since: u64,
    pub(crate) undurable: u32,
}

impl MemberSession {
    /// A session that begins, as the client has it.
    pub(crate) fn begins(session: &ServerSession, replayed: Instant) -> MemberSession {
        let (client, evictions, shard) = (session.client.0, session.evictions, shard_of(session));
        MemberSession { client, evictions, shard, replayed, ..MemberSession::default() }
    }

    /// Most changes that are lost with the lost session.
    pub(crate) fn undurable_at_loss(&self) -> u32 {
        if self.restarted { self.undurable.of(self.evictions) } else { 0 }
    }
}
