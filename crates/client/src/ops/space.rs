//! Space, and making everything durable.

use proto::mds::{Op, OpReply, Reply};
use types::{Duration, Fault};

use crate::api::{Caller, Statfs};
use crate::client::Client;
use crate::core::Core;
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
        let asked = Call::one(&Caller::default(), Op::Statfs {});
        match core.session.unless_silent(core.session.call(asked.clone())).await {
            Some(reply) => core.keep_statfs(&*reply?),
            // The server is away: as it was last known.
            None => match core.statfs.get() {
                Some((_, statfs)) => Ok(statfs),
                None => core.keep_statfs(&*core.session.call(asked).await?),
            },
        }
    }

    /// Everything of this client is durable when it ends.
    pub async fn syncfs(&self) -> Result<(), Fault> {
        let data = self.core.data().sync_all().await;
        // One file that a device failed does not keep the others from being made durable.
        data.and(self.core.session.sync().await)
    }
}

impl Core {
    /// Keeps what the first operation of a request, which asked for space, was told.
    pub(super) fn keep_statfs(&self, reply: &Reply) -> Result<Statfs, Fault> {
        let OpReply::Statfs { statfs } = result(reply, 0)? else { return Err(Fault::Protocol) };
        let statfs = Statfs {
            blocks: statfs.blocks,
            blocks_free: statfs.blocks_free,
            inodes: statfs.inodes.saturating_add(statfs.inodes_free),
            inodes_free: statfs.inodes_free,
        };
        self.statfs.set(Some((self.env.now() + FRESH, statfs)));
        Ok(statfs)
    }
}
