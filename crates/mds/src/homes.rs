//! Which shard an inode lives at.
//!
//! Invariants:
//! - an inode lives at the shard that its number names, where it was born;
//! - a client's request that needs an inode of another shard is refused before anything of it is
//!   executed.

use proto::mds::Op;
use types::{Ino, ShardId};

use crate::server::Server;

impl Server {
    /// The shard where the inode lives, as far as this server knows. It may have none.
    pub fn home_of(&self, ino: Ino) -> ShardId {
        ino.shard()
    }

    /// Does `op` need an inode that does not live here?
    pub fn is_misdirected(&self, op: &Op) -> bool {
        let here = self.runtime.shard;
        let is_elsewhere = |ino: &Ino| self.home_of(*ino) != here;
        match op {
            // What it gives up at this server went when the inode moved. To give it up at the other
            // server would be wrong: the rights there are others.
            Op::Return { .. } => false,
            // Any server makes the files of a spread directory of another one.
            Op::Create { dir, .. } => dir.shard() == here && is_elsewhere(dir),
            op => op.executed_at().as_ref().is_some_and(is_elsewhere),
        }
    }
}
