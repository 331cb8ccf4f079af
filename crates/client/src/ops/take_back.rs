//! Data blocks that metadata servers have lent to each other go back, for `redbud pag drain`.

use proto::mds::{MOVING, Op, OpReply};
use types::{Fault, Ino, PagId, ShardId};

use crate::api::Caller;
use crate::client::Client;
use crate::rpc::result;

impl Client {
    /// Has the server of `owner` take back some of the blocks of its zone `pag` that are free at
    /// the server of `from`. Nothing changes if none are.
    ///
    /// # Errors
    /// `Busy`: one of the two does not answer, or the blocks were just used. `NotSupported`: one is
    /// of an older release. `Invalid`: there is no such server, or it is not that one's zone.
    pub async fn take_back(&self, owner: ShardId, pag: PagId, from: ShardId) -> Result<(), Fault> {
        let core = &self.core;
        let servers = [owner, from].map(|shard| core.rpc.of_shard(shard));
        for server in servers {
            if server.ok_or(Fault::Invalid)?.agreed().0 < MOVING {
                return Err(Fault::NotSupported);
            }
        }
        let at = Ino(u64::from(owner.0) << 56 | Ino::ROOT.0);
        let op = Op::TakeBack { at, pag, shard: from.0 };
        let reply = core.send_change(&Caller::default(), op).await?;
        match result(&reply, 0)? {
            OpReply::Done {} => Ok(()),
            _ => Err(Fault::Protocol),
        }
    }
}
