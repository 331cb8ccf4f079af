//! A directory moves to another metadata server, and its files follow it, for
//! `redbud migrate --mds`.

use std::rc::Rc;

use proto::mds::{MOVING, Op, OpReply};
use session::client::Call;
use types::{Duration, Fault, FileKind, Ino, Name, Rights, ShardId};

use crate::api::Caller;
use crate::client::Client;
use crate::core::Core;
use crate::rpc::result;

/// Names of a directory that follow it at a time.
const FOLLOWING: u32 = 32;
/// Moves of a file that are tried.
const TRIES: u32 = 4;
/// Pause before another one.
const PAUSE: Duration = Duration::from_millis(40);

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

/// The outcome for some of the files of a directory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Followed {
    /// So many live at its server from now on, durably.
    pub moved: u32,
    /// So many lived there already.
    pub there: u32,
    /// The names of those that stay, and why.
    pub stayed: Vec<(Name, Fault)>,
    /// Where the names begin that come next; `None`: these were the last ones.
    pub next: Option<u64>,
}

impl Client {
    /// Moves a directory with its names to the metadata server of `to`. What its names lead to
    /// stays: see [`Client::files_follow_within`]. `None`: it has not moved after `limit`, and may
    /// still do so.
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
            Ok(OpReply::Moved { there: false }) => Ok(DirectoryMove::Moved),
            Ok(OpReply::Moved { there: true }) => Ok(DirectoryMove::There),
            Ok(_) => Err(Fault::Protocol),
            // Another client was faster.
            Err(_) if core.rpc.shard_of(dir) == to => Ok(DirectoryMove::There),
            Err(fault) => Err(fault),
        }
    }
}

impl Client {
    /// Moves some of the files of a directory to the metadata server of `to`, which has the
    /// directory: those after `after`, 0 at first. Of the same kind are symlinks and special files.
    /// `None`: not all have moved after `limit`, and they may still do so.
    ///
    /// # Errors
    /// `Busy`: the directory does not live there. `NotSupported`: it is of an older release.
    /// As [`Client::move_directory_within`].
    pub async fn files_follow_within(
        &self,
        limit: Duration,
        dir: Ino,
        to: ShardId,
        after: u64,
    ) -> Option<Result<Followed, Fault>> {
        self.core.env.timeout(limit, self.files_follow(dir, to, after)).await
    }

    /// As [`Client::files_follow_within`], however long it takes.
    ///
    /// # Errors
    /// As that.
    pub async fn files_follow(&self, dir: Ino, to: ShardId, from: u64) -> Result<Followed, Fault> {
        let core = &self.core;
        core.check_writable()?;
        let other = core.rpc.of_shard(to).ok_or(Fault::Busy)?;
        if other.agreed().0 < MOVING {
            return Err(Fault::NotSupported);
        }
        let (want, want_dir, plus) = (Rights::empty(), Rights::empty(), false);
        let op = Op::ReadDir { dir, cookie: from, max: FOLLOWING, plus, want, want_dir };
        let reply = core.rpc.call(Call::one(&Caller::default(), op)).await?;
        let OpReply::Entries { entries, end, .. } = result(&reply, 0)? else {
            return Err(Fault::Protocol);
        };
        if core.rpc.shard_of(dir) != to {
            return Err(Fault::Busy);
        }
        let mut out = Followed::default();
        let mut following = Vec::new();
        for entry in entries.iter().filter(|entry| entry.kind != FileKind::Directory) {
            if core.rpc.shard_of(entry.ino) == to {
                out.there += 1;
                continue;
            }
            let (core, name) = (core.clone(), entry.name.clone());
            let op = Op::MoveFile { ino: entry.ino, dir, name: name.clone(), shard: to.0 };
            let follows = core.clone().env.spawn_join(async move { core.follow(op).await });
            following.push((name, follows));
        }
        for (name, follows) in following {
            match follows.await {
                Ok(false) => out.moved += 1,
                Ok(true) => out.there += 1,
                // Its name is gone meanwhile.
                Err(Fault::Stale | Fault::NotFound) => {}
                Err(fault) => out.stayed.push((name, fault)),
            }
        }
        out.next = entries.last().filter(|_| !end).map(|entry| entry.cookie);
        Ok(out)
    }
}

impl Core {
    /// Has a file follow its directory. Yields whether it was there already.
    async fn follow(self: Rc<Core>, op: Op) -> Result<bool, Fault> {
        let mut tries = 1;
        loop {
            let reply = self.send_change(&Caller::default(), op.clone()).await?;
            match result(&reply, 0) {
                Ok(OpReply::Moved { there }) => return Ok(*there),
                Ok(_) => return Err(Fault::Protocol),
                // The other server has it still from the last time, or looks at the name just now;
                // or a kernel has not forgotten yet that it was open.
                Err(Fault::Busy | Fault::WouldBlock) if tries < TRIES => {
                    tries += 1;
                    self.env.sleep(PAUSE * tries).await;
                }
                Err(fault) => return Err(fault),
            }
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
