//! Metadata blocks that are kept for the replies of clients.
//!
//! Invariants:
//! - free blocks that are promised go to nothing but replies and their tree: each client can have a
//!   reply kept in every slot of its, however full the device is;
//! - what is promised grows by [`EACH`] with each client, and shrinks by one with each reply block
//!   that is made;
//! - the counts are those of the trees of clients and replies, from where an opening takes them.
//!
//! A new client for which there is no room is refused. For as many as a device of its size may
//! expect ([`expected`]) there is room from the beginning, so that somebody can come and remove
//! files when it is full. Where less is free than is promised, which older releases could leave so,
//! nothing is promised that the reserve would lack, until it is free.

use types::limits::{RESERVED_SLOTS, SESSIONS_MAX, SLOTS};

use crate::btree::Tree;
use crate::error::StoreError;
use crate::format::reply::REPLIES_PER_BLOCK;
use crate::mfs::{Cost, Mfs};
use crate::trees::{CLIENTS, REPLIES};

/// Slots of a client for which replies are kept.
pub const REPLY_SLOTS: u32 = SLOTS as u32 + RESERVED_SLOTS as u32;
/// Reply blocks of a client at most.
pub const REPLY_BLOCKS: u64 = REPLY_SLOTS.div_ceil(REPLIES_PER_BLOCK) as u64;
/// Nodes of the tree of replies for each client, at most: a split leaves an eighth of the entries
/// in either half.
const NODES: u64 = 2;
/// Blocks that the replies of a client may take, with their tree.
pub const EACH: u64 = REPLY_BLOCKS + NODES;

/// Blocks of a device for each client that it expects,
const SHARE: u64 = 4096;
/// and for each of the first [`FEW`].
const SMALL_SHARE: u64 = 256;
const FEW: u64 = 4;
/// Entries that an opening counts at once.
const STEP: usize = 1024;

/// What may still be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Promise {
    /// Clients for which there is room whether they are known or not.
    pub expected: u64,
    /// Clients that are known.
    pub clients: u64,
    /// Reply blocks that they have.
    pub replies: u64,
    /// What was lacking at the opening, and still is.
    pub lacking: u64,
}

impl Promise {
    /// That of a device of `blocks` blocks.
    pub fn new(blocks: u64, clients: u64, replies: u64) -> Promise {
        Promise { expected: expected(blocks), clients, replies, lacking: 0 }
    }

    /// Free blocks that are promised.
    pub fn blocks(&self) -> u64 {
        self.wanted().saturating_sub(self.lacking)
    }

    fn wanted(&self) -> u64 {
        (self.clients.max(self.expected) * EACH).saturating_sub(self.replies)
    }

    /// There are more clients than were expected.
    pub fn is_crowded(&self) -> bool {
        self.clients > self.expected
    }

    /// So many blocks are free when it is opened, of which `reserve` shall be left for other
    /// things.
    pub fn begin(&mut self, free: u64, reserve: u64) {
        if free < self.wanted() {
            self.lacking = self.wanted() + reserve - free;
        }
    }

    /// So many are free now.
    pub fn go_on(&mut self, free: u64, reserve: u64) {
        if self.lacking > 0 {
            self.lacking = self.lacking.min((self.wanted() + reserve).saturating_sub(free));
        }
    }

    /// With so many clients and reply blocks more.
    pub fn with(self, clients: i64, replies: i64) -> Promise {
        Promise {
            clients: self.clients.saturating_add_signed(clients),
            replies: self.replies.saturating_add_signed(replies),
            ..self
        }
    }
}

/// Clients for which a device of `blocks` blocks has room from the beginning.
pub fn expected(blocks: u64) -> u64 {
    (blocks / SHARE).max(FEW.min(blocks / SMALL_SHARE)).min(SESSIONS_MAX as u64)
}

impl Mfs {
    /// Counts clients and their replies, and keeps what is promised from now on.
    ///
    /// # Errors
    /// `Io`, `Poisoned`.
    pub(crate) async fn count_promised(&self) -> Result<(), StoreError> {
        let (clients, replies) = (self.count(CLIENTS).await?, self.count(REPLIES).await?);
        let space = &mut self.inner.state.borrow_mut().space;
        space.promise = Promise::new(space.blocks, clients, replies);
        space.promise.begin(space.total_free(), space.reserve);
        Ok(())
    }

    /// Entries of a tree. Behind damage nothing is counted: of replies that are not counted more is
    /// kept than may be taken.
    async fn count<const K: usize, const V: usize>(
        &self,
        tree: Tree<K, V>,
    ) -> Result<u64, StoreError> {
        let (mut count, mut from) = (0, Some([0; K]));
        while let Some(key) = from {
            let found = match self.run(Cost::READ, |txn| tree.range(txn, &key, STEP)).await {
                Err(StoreError::Corrupt { .. }) => return Ok(count),
                found => found?.0,
            };
            count += found.len() as u64;
            from = found.last().and_then(|(last, _)| behind(*last));
        }
        Ok(count)
    }
}

/// The least key above `key`.
fn behind<const K: usize>(mut key: [u8; K]) -> Option<[u8; K]> {
    let at = key.iter().rposition(|&byte| byte < 0xff)?;
    key[at] += 1;
    key[at + 1..].fill(0);
    Some(key)
}

#[cfg(test)]
mod tests;
