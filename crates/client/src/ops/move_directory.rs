//! A directory moves to another metadata server, for `redbud migrate --mds`.

use proto::mds::{MOVING, Op, OpReply};
use types::{Duration, Fault, FileKind, Ino, ShardId};

use crate::api::Caller;
use crate::client::Client;
use crate::rpc::result;

/// What became of a directory that was to move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DirectoryMove {
    /// It lives there from now on, durably.
    Moved,
    /// It lived there already.
    There,
    /// It is the mounted directory, or the root of a server: these do not move.
    Root,
    /// The namespace has no such server.
    NoServer,
}

impl Client {
    /// Moves a directory with its names to the metadata server of `to`. What its names lead to
    /// stays. `None`: it has not moved after `limit`, and may still do so.
    ///
    /// # Errors
    /// `NotDirectory`. `TooBig`: it has too many names. `Busy`: the other server does not answer,
    /// or cannot take part now. `NotSupported`: one of the two servers is of an older release.
    /// `Stale`: it is gone. It lives where it did in all cases.
    pub async fn move_directory_within(
        &self,
        limit: Duration,
        dir: Ino,
        to: ShardId,
    ) -> Option<Result<DirectoryMove, Fault>> {
        self.core.env.timeout(limit, self.move_directory(dir, to)).await
    }

    /// As [`Client::move_directory_within`], however long it takes.
    ///
    /// # Errors
    /// As that.
    pub async fn move_directory(&self, dir: Ino, to: ShardId) -> Result<DirectoryMove, Fault> {
        let core = &self.core;
        core.check_writable()?;
        if dir == self.root() || is_root(dir) {
            return Ok(DirectoryMove::Root);
        }
        let Some(other) = core.rpc.of_shard(to) else { return Ok(DirectoryMove::NoServer) };
        // Its server answers this, so from here on the client knows which one that is.
        if core.fetch_attr(dir).await?.kind() != FileKind::Directory {
            return Err(Fault::NotDirectory);
        }
        if core.rpc.shard_of(dir) == to {
            return Ok(DirectoryMove::There);
        }
        if core.rpc.of(dir).agreed().0 < MOVING || other.agreed().0 < MOVING {
            return Err(Fault::NotSupported);
        }
        let op = Op::MoveDirectory { dir, shard: to.0 };
        let reply = core.send_change(&Caller::default(), op).await?;
        match result(&reply, 0) {
            Ok(OpReply::DirectoryMoved {}) => Ok(DirectoryMove::Moved),
            Ok(_) => Err(Fault::Protocol),
            // Another client was faster.
            Err(_) if core.rpc.shard_of(dir) == to => Ok(DirectoryMove::There),
            Err(fault) => Err(fault),
        }
    }
}

/// Is it the root directory of a shard?
fn is_root(ino: Ino) -> bool {
    ino.0 << 8 >> 8 == Ino::ROOT.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shard_has_one_root() {
        assert!(is_root(Ino::ROOT) && is_root(Ino(2 << 56 | 1)));
        assert!(!is_root(Ino(2)) && !is_root(Ino(2 << 56 | 3)));
    }
}
