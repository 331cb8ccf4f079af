//! The newest versions of damaged blocks, from what the log still holds.
//!
//! Invariants:
//! - behind its tail the log still holds whole groups, as far back as they are not overwritten.
//!   Every change of a block is in a group, and the change that made it dirty is a full image;
//! - so a block's last image, with the changes after it, is its newest version, if no group between
//!   that image and the end of the log is missing. Salvage returns nothing else.

use std::collections::{BTreeMap, BTreeSet};

use types::{Lsn, MetaBlock, Uuid};

use crate::device::log::LogDevice;
use crate::error::StoreError;
use crate::format::block::{self, Block};
use crate::format::superblock::Superblock;
use crate::log::reader::LogReader;
use crate::log::{GROUP_HEADER, Item, padded, read_group};
use types::limits::{BLOCK, BLOCK_U64};

/// Blocks of the log that are searched.
struct Salvage<'a> {
    wanted: &'a BTreeSet<MetaBlock>,
    uuid: Uuid,
    found: BTreeMap<MetaBlock, Box<Block>>,
}

/// The newest versions of the blocks `wanted` in the log, which ends at `end`.
///
/// # Errors
/// `Io`.
pub(crate) async fn salvage(
    log: &LogDevice,
    superblock: &Superblock,
    end: Lsn,
    wanted: &BTreeSet<MetaBlock>,
) -> Result<BTreeMap<MetaBlock, Box<Block>>, StoreError> {
    let mut salvage = Salvage { wanted, uuid: superblock.uuid, found: BTreeMap::new() };
    each_group(log, superblock, end, |group| match group {
        Some((group, lsn)) => salvage.group(group, lsn),
        // A gap: what came before it may not be the newest.
        None => {
            salvage.found.clear();
            true
        }
    })
    .await?;
    Ok(salvage.found)
}

/// The blocks of which the log, which ends at `end`, has any change.
///
/// # Errors
/// `Io`.
pub(crate) async fn changed(
    log: &LogDevice,
    superblock: &Superblock,
    end: Lsn,
) -> Result<BTreeSet<MetaBlock>, StoreError> {
    let mut blocks = BTreeSet::new();
    each_group(log, superblock, end, |group| match group {
        Some((group, lsn)) => {
            let note = |item: Item<'_>| blocks.extend([item.block]);
            read_group(group, lsn, note).is_ok()
        }
        None => true,
    })
    .await?;
    Ok(blocks)
}

/// Calls `each` with the whole groups of the log, which ends at `end`, in order. It gets `None` for
/// each block where no group begins, or where it cannot use the group.
async fn each_group(
    log: &LogDevice,
    superblock: &Superblock,
    end: Lsn,
    mut each: impl FnMut(Option<(&[u8], Lsn)>) -> bool,
) -> Result<(), StoreError> {
    let oldest = end.0.saturating_sub(log.bytes()).max(BLOCK_U64);
    let mut at = Lsn(oldest.next_multiple_of(BLOCK_U64));
    let mut reader = LogReader::starting_at(log, superblock, at);
    while at < end {
        let group = reader.whole_group(at).await?.filter(|group| {
            at.0 + padded(group.len() as u64) <= end.0 && group.len() >= GROUP_HEADER
        });
        match group {
            Some(group) if each(Some((&group, at))) => at.0 += padded(group.len() as u64),
            _ => {
                each(None);
                at.0 += BLOCK_U64;
            }
        }
    }
    Ok(())
}

impl Salvage<'_> {
    fn group(&mut self, group: &[u8], lsn: Lsn) -> bool {
        let epoch = types::Epoch(block::get_u32(group, 20));
        read_group(group, lsn, |item| self.item(&item, epoch)).is_ok()
    }

    fn item(&mut self, item: &Item<'_>, epoch: types::Epoch) {
        if !self.wanted.contains(&item.block) {
            return;
        }
        if item.image {
            let tag = block::tag_of(self.uuid);
            let data = self.found.entry(item.block).or_insert_with(|| Box::new([0; BLOCK]));
            block::initialise(data, item.block, item.kind, tag);
        }
        if let Some(data) = self.found.get_mut(&item.block) {
            item.apply(data);
            block::stamp(data, item.lsn, epoch);
        }
    }
}
