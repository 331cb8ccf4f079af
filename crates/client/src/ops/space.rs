//! Space, and syncfs.

use std::collections::BTreeMap;

use proto::mds::{Op, OpReply, Reply};
use types::{Duration, Fault, PagId};

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
            let statfs = core.statfs_of_servers().await?;
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
    /// Space as the servers count it, added up: blocks in pools are not free, and a target of
    /// several servers counts once. It is kept, to answer while a server is silent.
    pub(super) async fn statfs_of_servers(&self) -> Result<Statfs, Fault> {
        let (mut sum, mut zones) = (Statfs::default(), Zones::new());
        for session in self.rpc.all() {
            let reply = session.call(Call::one(&Caller::default(), Op::Statfs {})).await?;
            add_statfs(&mut sum, &mut zones, &reply)?;
        }
        self.statfs.set(Some(sum));
        Ok(sum)
    }

    /// Keeps what the only server said in the first operation of a request, which is STATFS.
    pub(super) fn keep_statfs(&self, reply: &Reply) -> Result<(), Fault> {
        let mut statfs = Statfs::default();
        add_statfs(&mut statfs, &mut Zones::new(), reply)?;
        self.statfs.set(Some(statfs));
        Ok(())
    }
}

/// Zones that are counted, with their blocks and free blocks.
type Zones = BTreeMap<PagId, (u64, u64)>;

/// Adds what a server said in the first operation of a request, which is STATFS.
fn add_statfs(sum: &mut Statfs, zones: &mut Zones, reply: &Reply) -> Result<(), Fault> {
    let OpReply::Statfs { statfs } = result(reply, 0)? else { return Err(Fault::Protocol) };
    for (zone, counts) in &statfs.pags {
        // A target that another server has, too: the servers may have asked it at other times.
        if let Some((blocks, free)) = zones.insert(*zone, *counts) {
            sum.blocks = sum.blocks.saturating_sub(blocks);
            sum.blocks_free = sum.blocks_free.saturating_sub(free);
        }
    }
    let inodes = statfs.inodes.saturating_add(statfs.inodes_free);
    sum.blocks = sum.blocks.saturating_add(statfs.blocks);
    sum.blocks_free = sum.blocks_free.saturating_add(statfs.blocks_free);
    sum.inodes = sum.inodes.saturating_add(inodes);
    sum.inodes_free = sum.inodes_free.saturating_add(statfs.inodes_free);
    Ok(())
}
