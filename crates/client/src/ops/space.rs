//! Space, and syncfs.

use proto::mds::{Op, OpReply, Reply};
use types::{Duration, Fault};

use crate::api::{Caller, Statfs};
use crate::boundary::DataHalf;
use crate::client::Client;
use crate::core::Core;
use crate::rpc::{Call, result};

/// How long to wait for operations in progress that change the numbers.
const PENDING: Duration = Duration::from_millis(500);
/// How often to ask while blocks come from the server or go back to it.
const TRIES: u32 = 4;

impl Client {
    /// Space as it is now; the pools of other clients count as used. While the server is silent: as
    /// it was last known.
    pub async fn statfs(&self) -> Result<Statfs, Fault> {
        if let Some(answer) = self.core.rpc.unless_silent(self.current_statfs()).await {
            return answer;
        }
        match self.core.statfs.get() {
            Some(known) => Ok(self.with_pool(known)),
            None => self.current_statfs().await,
        }
    }

    async fn current_statfs(&self) -> Result<Statfs, Fault> {
        let core = &self.core;
        let data = core.data();
        data.commit_unmapped(PENDING).await;
        let mut tries = TRIES;
        loop {
            core.env.timeout(PENDING, data.pool_idle()).await;
            let moves = data.pool_transfers();
            let statfs = self.statfs_of_server().await?;
            tries -= 1;
            // Blocks on their way to the pool are no longer free at the server, and not yet free
            // here.
            if data.pool_transfers() == moves && data.is_pool_idle() || tries == 0 {
                return Ok(self.with_pool(statfs));
            }
        }
    }

    /// Unused blocks in this client's pool are free for its processes.
    fn with_pool(&self, statfs: Statfs) -> Statfs {
        let free = statfs.blocks_free.saturating_add(self.core.data().unused_blocks());
        Statfs { blocks_free: free.min(statfs.blocks), ..statfs }
    }

    /// Space as the server counts it: blocks in pools are not free.
    async fn statfs_of_server(&self) -> Result<Statfs, Fault> {
        let asked = Call::one(&Caller::default(), Op::Statfs {});
        let reply = self.core.rpc.call(asked).await?;
        self.core.keep_statfs(&reply)
    }

    /// Makes everything of this client durable.
    pub async fn syncfs(&self) -> Result<(), Fault> {
        let data = self.core.data().sync_all().await;
        // A file that a device failed must not keep the others from becoming durable.
        data.and(self.core.rpc.sync().await)
    }

    /// As [`Client::syncfs`]; `None`: not all is durable after `limit`.
    pub async fn sync_within(&self, limit: Duration) -> Option<Result<(), Fault>> {
        self.core.env.timeout(limit, self.syncfs()).await
    }
}

impl Core {
    /// Keeps the result of the first operation of a request, which is STATFS: it answers while the
    /// server is silent.
    pub(super) fn keep_statfs(&self, reply: &Reply) -> Result<Statfs, Fault> {
        let OpReply::Statfs { statfs } = result(reply, 0)? else { return Err(Fault::Protocol) };
        let statfs = Statfs {
            blocks: statfs.blocks,
            blocks_free: statfs.blocks_free,
            inodes: statfs.inodes.saturating_add(statfs.inodes_free),
            inodes_free: statfs.inodes_free,
        };
        self.statfs.set(Some(statfs));
        Ok(statfs)
    }
}
