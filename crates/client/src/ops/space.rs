//! Space, and making everything durable.

use proto::mds::{Op, OpReply, Reply};
use types::{Duration, Fault, Instant};

use crate::api::{Caller, Statfs};
use crate::client::Client;
use crate::core::Core;
use crate::rpc::{Call, result};

/// How long an answer about space is good enough.
const FRESH: Duration = Duration::from_millis(500);
/// How long is waited for what is under way and changes the numbers.
const PENDING: Duration = Duration::from_millis(500);
/// How often is asked while blocks come from the server or go back to it.
const TRIES: u32 = 4;

/// Space as the server told it.
#[derive(Clone, Copy)]
pub(crate) struct KnownSpace {
    /// Until when it is good enough.
    until: Instant,
    /// This client's changes before that.
    changes: u64,
    statfs: Statfs,
}

impl Client {
    /// Space. This client's own changes count at once, those of others after [`FRESH`] at the latest; what other
    /// clients keep for what they will write counts as taken. While the server is silent: as it was last known.
    pub async fn statfs(&self) -> Result<Statfs, Fault> {
        let session = &self.core.session;
        if let Some(told) = session.unless_silent(self.current_statfs()).await {
            return told;
        }
        match self.core.statfs.get() {
            Some(known) => Ok(self.with_pool(known.statfs)),
            None => self.current_statfs().await,
        }
    }

    async fn current_statfs(&self) -> Result<Statfs, Fault> {
        let core = &self.core;
        let data = core.data();
        data.commit_unmapped(PENDING).await;
        let mut tries = TRIES;
        loop {
            core.env.timeout(PENDING, data.pool_at_rest()).await;
            let moves = data.pool_moves();
            let statfs = self.statfs_of_server().await?;
            tries -= 1;
            // What the server gives to the pool is free no more there, and not yet free here.
            if data.pool_moves() == moves && data.is_pool_at_rest() || tries == 0 {
                return Ok(self.with_pool(statfs));
            }
        }
    }

    /// What lies unused in this client's pool is free for its processes.
    fn with_pool(&self, statfs: Statfs) -> Statfs {
        let free = statfs.blocks_free.saturating_add(self.core.data().unused_blocks());
        Statfs { blocks_free: free.min(statfs.blocks), ..statfs }
    }

    /// Space as the server has it: what is in pools is not free.
    async fn statfs_of_server(&self) -> Result<Statfs, Fault> {
        let core = &self.core;
        let (now, changes) = (core.env.now(), core.session.changes());
        if let Some(known) = core.statfs.get()
            && now < known.until
            && changes == known.changes
        {
            return Ok(known.statfs);
        }
        let reply = core.session.call(Call::one(&Caller::default(), Op::Statfs {})).await?;
        core.keep_statfs(&reply, changes)
    }

    /// Everything of this client is durable when it ends.
    pub async fn syncfs(&self) -> Result<(), Fault> {
        let data = self.core.data().sync_all().await;
        // One file that a device failed does not keep the others from being made durable.
        data.and(self.core.session.sync().await)
    }
}

impl Core {
    /// Keeps what the first operation of a request, which asked for space, was told. `changes`: the session's
    /// count before that.
    pub(super) fn keep_statfs(&self, reply: &Reply, changes: u64) -> Result<Statfs, Fault> {
        let OpReply::Statfs { statfs } = result(reply, 0)? else { return Err(Fault::Protocol) };
        let statfs = Statfs {
            blocks: statfs.blocks,
            blocks_free: statfs.blocks_free,
            inodes: statfs.inodes.saturating_add(statfs.inodes_free),
            inodes_free: statfs.inodes_free,
        };
        self.statfs.set(Some(KnownSpace { until: self.env.now() + FRESH, changes, statfs }));
        Ok(statfs)
    }
}
