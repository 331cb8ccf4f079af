//! Which shard has an inode, if it is not the shard that its number names.
//!
//! Invariants:
//! - [`crate::format::home`] describes what is on the device;
//! - memory has the same as the tree, as of the committed transactions, from
//!   [`Mfs::load_homes`] on.

use std::collections::BTreeMap;

use types::{Fault, Ino, ShardId};

use super::view::Names;
use crate::format::home::{decode, encode};
use crate::handle::Mfs;
use crate::trees::{HOMES, insert_zero_entry_of_homes};
use engine::cost::Cost;
use engine::error::{Stop, StoreError};
use engine::format::features::Feature;

/// With so many entries, which are kept in memory, a shard takes part in no further moves. Those
/// that are on their way are completed.
pub const HOMES_MAX: usize = 1 << 20;
/// So many are read at most.
const READ_MAX: usize = 2 * HOMES_MAX;
/// Entries that are read at once.
const PIECE: usize = 512;

impl Names<'_, '_> {
    /// The shard that has the inode, as far as this shard knows: that of its number, if it never
    /// had another one here.
    ///
    /// # Errors
    /// `Corrupt` if the entry makes no sense.
    pub fn home(&mut self, ino: Ino) -> Result<ShardId, Stop> {
        if ino == Ino::NONE || !self.txn.has_feature(Feature::MOVED_DIRECTORIES) {
            return Ok(ino.shard());
        }
        match HOMES.get(self.txn, &ino.0.to_be_bytes())? {
            Some(value) => decode(&value)
                .ok_or_else(|| HOMES.corrupt(self.txn, "the home of an inode makes no sense")),
            None => Ok(ino.shard()),
        }
    }

    /// Does this shard have the inode, if there is one of that number?
    ///
    /// # Errors
    /// As [`Names::home`].
    pub(crate) fn is_here(&mut self, ino: Ino) -> Result<bool, Stop> {
        Ok(self.home(ino)? == self.txn.shard())
    }

    /// At most `max` inodes with another home than their numbers say, in order, after `after`.
    ///
    /// # Errors
    /// `Corrupt` if an entry makes no sense.
    pub fn homes(&mut self, after: Ino, max: usize) -> Result<Vec<(Ino, ShardId)>, Stop> {
        let Some(from) = after.0.checked_add(1) else { return Ok(Vec::new()) };
        if !self.txn.has_feature(Feature::MOVED_DIRECTORIES) {
            return Ok(Vec::new());
        }
        let found = HOMES.range(self.txn, &from.to_be_bytes(), max)?;
        let decode = |(key, value)| Some((Ino(u64::from_be_bytes(key)), decode(&value)?));
        found
            .into_iter()
            .map(decode)
            .collect::<Option<_>>()
            .ok_or_else(|| HOMES.corrupt(self.txn, "the home of an inode makes no sense"))
    }

    /// From now on this shard believes that `home` has the inode.
    ///
    /// # Errors
    /// `Invalid` without the feature `moved-directories`.
    pub(super) fn set_home(&mut self, ino: Ino, home: ShardId) -> Result<(), Stop> {
        if !self.txn.has_feature(Feature::MOVED_DIRECTORIES) {
            return Err(Fault::Invalid.into());
        }
        if home == ino.shard() {
            HOMES.remove(self.txn, &ino.0.to_be_bytes())?;
            self.txn.on_commit(move |volatile, _| {
                volatile.homes.borrow_mut().remove(&ino);
            });
        } else {
            HOMES.insert(self.txn, &ino.0.to_be_bytes(), &encode(home))?;
            self.txn.on_commit(move |volatile, _| {
                volatile.homes.borrow_mut().insert(ino, home);
            });
        }
        Ok(())
    }
}

impl Names<'_, '_> {
    /// Repairs an entry that makes no sense: it goes, or says that the inode is here if it is.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub(crate) fn repair_home(&mut self, ino: Ino) -> Result<(), Stop> {
        let key = ino.0.to_be_bytes();
        HOMES.remove(self.txn, &key)?;
        let lives =
            self.attr(ino)?.is_some_and(|attr| attr.nlink > 0 && ino.shard() != self.txn.shard());
        if lives {
            let here = encode(self.txn.shard());
            HOMES.insert(self.txn, &key, &here)?;
        }
        Ok(())
    }
}

impl Mfs {
    /// Reads into memory which inodes have another home than their numbers say.
    ///
    /// # Errors
    /// As [`Mfs::run`]; `Corrupt` if there are too many, or one makes no sense.
    pub async fn load_homes(&self) -> Result<(), StoreError> {
        let (mut all, mut after) = (BTreeMap::new(), Ino::NONE);
        loop {
            let (piece, _) = self.run(Cost::READ, |txn| txn.names().homes(after, PIECE)).await?;
            let Some(&(last, _)) = piece.last() else { break };
            after = last;
            all.extend(piece);
            if all.len() > READ_MAX {
                return Err(StoreError::Fault(Fault::Corrupt));
            }
        }
        *self.known_homes().borrow_mut() = all;
        Ok(())
    }

    /// The shard that has the inode, as far as this shard knows: see [`Names::home`].
    pub fn home(&self, ino: Ino) -> ShardId {
        self.known_homes().borrow().get(&ino).copied().unwrap_or(ino.shard())
    }

    /// How many inodes have another home than their numbers say, as far as this shard knows.
    pub fn moved_inodes(&self) -> usize {
        self.known_homes().borrow().len()
    }

    /// Gives the file system the feature `moved-directories`, if it does not have it. The
    /// superblocks say so before any directory moves.
    ///
    /// # Errors
    /// As [`Mfs::run`].
    pub async fn add_moved_directories(&self) -> Result<(), StoreError> {
        let features = self.superblock().features;
        let is_new = !features.has(Feature::MOVED_DIRECTORIES);
        self.set_features(features.with(Feature::MOVED_DIRECTORIES));
        if is_new {
            // A crash may have left the entry without the feature.
            self.touch_homes().await?;
        }
        // Before the first move each call waits, also if another one has begun that.
        if is_new || self.moved_inodes() == 0 {
            self.settle().await?;
        }
        Ok(())
    }

    /// Changes something: what changes nothing would have no superblock written.
    pub(crate) async fn touch_homes(&self) -> Result<(), StoreError> {
        self.run(Cost::SMALL, |txn| HOMES.remove(txn, &[0; 8]).map(drop)).await?;
        self.run(Cost::SMALL, insert_zero_entry_of_homes).await?;
        Ok(())
    }
}
