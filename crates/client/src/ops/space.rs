//! Space, and making everything durable.

use proto::mds::{Op, OpReply};
use types::{Duration, Fault};

use crate::api::{Caller, Statfs};
use crate::client::Client;
use crate::rpc::{Call, result};

/// How long an answer about space is good enough.
const FRESH: Duration = Duration::from_millis(500);

impl Client {
    /// Space.
    pub async fn statfs(&self) -> Result<Statfs, Fault> {
        let core = &self.core;
        let now = core.env.now();
        if let Some((until, statfs)) = core.statfs.get()
            && now < until
        {
            return Ok(statfs);
        }
        let reply = core.session.call(Call::one(&Caller::default(), Op::Statfs {})).await?;
        let OpReply::Statfs { statfs } = result(&reply, 0)? else { return Err(Fault::Protocol) };
        let statfs = Statfs {
            blocks: statfs.blocks,
            blocks_free: statfs.blocks_free,
            inodes: statfs.inodes.saturating_add(statfs.inodes_free),
            inodes_free: statfs.inodes_free,
        };
        core.statfs.set(Some((now + FRESH, statfs)));
        Ok(statfs)
    }

    /// Everything of this client is durable when it ends.
    pub async fn syncfs(&self) -> Result<(), Fault> {
        let data = self.core.data().sync_all().await;
        // One file that a device failed does not keep the others from being made durable.
        data.and(self.core.session.sync().await)
    }
}
