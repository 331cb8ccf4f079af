//! Which shard an inode lives at.
//!
//! Invariants:
//! - what the store says of its own shard holds: it has the inode, or it has not. Of other shards
//!   the store has the last that this shard knew, and memory what others have answered since;
//! - a client's request that needs an inode of another shard is refused before anything of it is
//!   executed. So is the part of a joint operation whose coordinator looked for an inode here that
//!   is elsewhere, or the other way round.

use std::cell::RefCell;
use std::collections::BTreeMap;

use proto::mds::Op;
use types::{Ino, ShardId};

use crate::server::Server;

/// Answers of other shards that are kept at most.
const LEARNED_MAX: usize = 4096;

/// Where other shards said that inodes live.
#[derive(Default)]
pub struct Learned(RefCell<BTreeMap<Ino, ShardId>>);

impl Learned {
    /// Another shard has said where an inode is.
    pub fn note(&self, ino: Ino, home: ShardId) {
        let mut all = self.0.borrow_mut();
        if all.len() >= LEARNED_MAX {
            all.clear();
        }
        all.insert(ino, home);
    }

    /// The inode goes to another shard, or comes from one: what was said before is old.
    pub fn forget(&self, ino: Ino) {
        self.0.borrow_mut().remove(&ino);
    }
}

impl Server {
    /// The shard where the inode lives, as far as this server knows. It may have none.
    pub fn home_of(&self, ino: Ino) -> ShardId {
        let (own, stored) = (self.runtime.shard, self.runtime.mfs.home(ino));
        match self.learned.0.borrow().get(&ino) {
            Some(&learned) if stored != own && learned != own => learned,
            _ => stored,
        }
    }

    /// Does the inode live here, if there is one?
    pub fn is_here(&self, ino: Ino) -> bool {
        self.runtime.mfs.home(ino) == self.runtime.shard
    }

    /// Does `op` need an inode that does not live here?
    pub fn is_misdirected(&self, op: &Op) -> bool {
        // It may come just now: the request waits until that is decided.
        let is_elsewhere = |ino: &Ino| !self.is_here(*ino) && !self.joint.is_closed(*ino);
        match op {
            // What it gives up at this server went when the inode moved. To give it up at the other
            // server would be wrong: the rights there are others.
            Op::Return { .. } => false,
            // Any server makes the files of a spread directory of another one.
            Op::Create { dir, .. } => dir.shard() == self.runtime.shard && is_elsewhere(dir),
            op => op.executed_at().as_ref().is_some_and(is_elsewhere),
        }
    }
}
