//! Redo: from the superblock's tail to the end of the log.
//!
//! Invariants:
//! - a group counts only as a whole. The first position without a whole group is the end of the
//!   log, because the store writes a group only when the one before it is durable;
//! - for the same reason a whole group after the end proves damage, which redo
//!   reports and never skips;
//! - redo of a block starts at an image. A change before any image
//!   is already home: the tail passes a block's image only when the block is stable at home;
//! - a sweep writes home all blocks that were dirty when it began. So the log has little more than
//!   the blocks dirty then and those dirtied since. Redo needs about as much memory as the store
//!   had, at most half as much again;
//! - redo changes only the cache until it has redone the whole log, so an interrupted redo may
//!   start again at any moment;
//! - a flush may have failed after the log was written, without a power cut of the device since. A
//!   later flush then need not make the log stable. So the opening rewrites the newest groups and
//!   the newest copy of the superblock unchanged, and flushes them. Only then does it write changed
//!   blocks home and the other copy of the superblock.
//!
//! Step by step:
//! 1. A whole group at position p has p and the file system's UUID in its header, and the right
//!    checksum. By its length it ends at most one lap (the bytes of the log) after the tail. Look
//!    for the first group at the tail. Look for each next one at the multiple of 4096 at or after
//!    the end of the group before it.
//! 2. From group to group epochs do not decrease, nor do they exceed the superblock's. `previous`
//!    is where the group before begins; that of the first group does not matter. A whole group that
//!    violates this is damage. But a whole group of an epoch below that which the superblock's
//!    `epochs` name for its position counts as none: a server wrote it that had been replaced.
//! 3. The log ends at the first position without a whole group. Look for a later whole group, at
//!    each multiple of 4096 less than a lap after the tail. If its `previous` is not before the
//!    end, the log is damaged (this release looks at 16 MiB).
//! 4. The items of each record, in order, change blocks between the two superblocks. An image
//!    creates the block: its own address, the type of the item, the file system's tag, and zeros
//!    that the runs change. The LSN of a changed block is where the record ends; its epoch is that
//!    of the group.
//! 5. Skip a change of a block that has no earlier image in the redone part of the log. If no image
//!    follows either, read the block from home. It is damaged if its LSN there is less than that of
//!    the change (a write of it was lost).

use std::collections::{BTreeMap, VecDeque};

use types::limits::BLOCK_U64;
use types::{Epoch, Lsn, MetaBlock, Uuid};

use crate::cache::Cache;
use crate::device::Device;
use crate::device::copies::refused;
use crate::device::log::LogDevice;
use crate::device::pairing::check_reached;
use crate::error::StoreError;
use crate::format::block::{self, lsn_of};
use crate::format::roots::{ROOTS, ROOTS_BLOCK};
use crate::format::superblock::Superblock;
use crate::log::reader::{GroupFound, LogEnd, LogReader};
use crate::log::salvage::salvage;
use crate::log::{Item, padded, read_group};

/// Bytes of the newest groups that an opening rewrites. A failed flush loses at most one group, as
/// only one is in flight at a time. The store wrote that group only after earlier flushes had made
/// the groups before it durable.
const REWRITE_BYTES: u64 = 16 << 20;
/// What redo does at a position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RedoStep {
    /// Apply the group and continue after it.
    Redo,
    /// The log ends here.
    End,
    /// Stop: the log is damaged.
    Refuse(&'static str),
}

/// Decides by a table. `beyond`: there is a whole group that follows this position.
///
/// | found   | beyond | step   | why                                                         |
/// |---------|--------|--------|-------------------------------------------------------------|
/// | whole   | any    | redo   | committed                                                   |
/// | wrong   | any    | refuse | the checksum is right, the content is not: no crash does it |
/// | torn    | no     | end    | a crash interrupted its write: never acknowledged           |
/// | nothing | no     | end    | no group was written here in this lap                       |
/// | stale   | no     | end    | a server wrote it that had been replaced: never acknowledged. What it may lie over is lost unseen: only a fence prevents that |
/// | torn    | yes    | refuse | it was durable before its successor was written: damaged    |
/// | nothing | yes    | refuse | the same                                                    |
/// | stale   | yes    | refuse | it lies over one that was durable: no fence has held        |
pub(crate) fn decide(found: GroupFound, beyond: bool) -> RedoStep {
    match (found, beyond) {
        (GroupFound::Whole, _) => RedoStep::Redo,
        (GroupFound::Wrong(what), _) => RedoStep::Refuse(what),
        (GroupFound::Torn | GroupFound::Nothing | GroupFound::Stale, false) => RedoStep::End,
        (GroupFound::Torn, true) => RedoStep::Refuse("a group is damaged and later ones are whole"),
        (GroupFound::Nothing, true) => {
            RedoStep::Refuse("a group is missing and later ones are whole")
        }
        (GroupFound::Stale, true) => {
            RedoStep::Refuse("a server that had been replaced has overwritten a group")
        }
    }
}

/// How an opening repaired a block that is damaged at home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remedy {
    /// It used the superblock's copy.
    Copy,
    /// It restored the block from the log.
    Log,
    /// Not at all: the changes of the block are lost.
    None,
}

/// A block that is damaged at home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DamagedBlock {
    /// Which one.
    pub block: MetaBlock,
    /// What is wrong with the block.
    pub what: &'static str,
    /// How the opening repaired it.
    pub remedy: Remedy,
}

/// The result of redo, besides the blocks in the cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Redone {
    /// Where the log ended.
    pub(crate) end: LogEnd,
    /// Where the newest groups begin, the last group last.
    pub(crate) newest: VecDeque<Lsn>,
    /// Damaged blocks; only with `repair`.
    pub(crate) damage: Vec<DamagedBlock>,
    /// The last change of the roots after the tail, if it has no image there.
    pub(crate) roots: Option<Lsn>,
}

/// Redoes the log into `cache`, which must be empty. With `repair`, restores blocks that are
/// damaged at home from the log before the tail where possible, and reports all of them.
///
/// # Errors
/// `Io`; `DamagedLog`; `Corrupt` for a block at home that is older than the log says; `Refused` if
/// the journal was durable beyond the log's end.
pub(crate) async fn redo(
    device: &Device,
    log: &LogDevice,
    superblock: &Superblock,
    cache: &mut Cache,
    repair: bool,
) -> Result<Redone, StoreError> {
    let mut reader = LogReader::new(log, superblock);
    let mut redo = Redo { superblock, cache, at_home: BTreeMap::new(), error: None };
    let mut end = LogEnd { lsn: superblock.tail, previous: Lsn(0), groups: 0 };
    let mut epoch = Epoch(0);
    let mut newest = VecDeque::new();
    loop {
        let (found, group) = reader.group(end, epoch).await?;
        let beyond = match found {
            GroupFound::Nothing | GroupFound::Torn | GroupFound::Stale => {
                reader.is_group_beyond(end.lsn).await?
            }
            GroupFound::Whole | GroupFound::Wrong(_) => false,
        };
        match decide(found, beyond) {
            RedoStep::End => break,
            RedoStep::Refuse(what) => {
                // A header that the superblock knows is of no other copy: then it is damage.
                let known = superblock.log_generation;
                if log.header().is_some_and(|header| header.generation != known) {
                    refuse_overwritten(device, log, superblock, end.lsn)?;
                }
                return Err(StoreError::DamagedLog { lsn: end.lsn.0, what });
            }
            RedoStep::Redo => {}
        }
        epoch = Epoch(block::get_u32(&group, 20));
        redo.apply_group(&group, end.lsn, epoch)?;
        end.previous = end.lsn;
        end.lsn.0 += padded(group.len() as u64);
        end.groups += 1;
        newest.push_back(end.previous);
        while newest.len() > 1 && newest[0].0 + REWRITE_BYTES < end.lsn.0 {
            newest.pop_front();
        }
    }
    refuse_overwritten(device, log, superblock, end.lsn)?;
    let mut at_home = redo.at_home;
    let roots = at_home.get(&ROOTS_BLOCK).copied();
    if superblock.roots != [0; ROOTS as usize] {
        // The superblock has a copy of the roots: the opening compares the two.
        at_home.remove(&ROOTS_BLOCK);
    }
    let damaged = check_at_home(device, superblock.uuid, at_home).await?;
    let damage = match damaged.last() {
        Some(&(block, what)) if !repair => return Err(StoreError::corrupt(block, what)),
        Some(_) => restore_from_log(log, superblock, cache, end.lsn, &damaged).await?,
        None => Vec::new(),
    };
    Ok(Redone { end, newest, damage, roots })
}

/// Refuses metadata whose log was durable beyond `reached`, where redo ended.
fn refuse_overwritten(
    device: &Device,
    log: &LogDevice,
    superblock: &Superblock,
    reached: Lsn,
) -> Result<(), StoreError> {
    let checked = check_reached(superblock, log.header(), reached);
    checked.map_err(|mismatch| refused(device, &mismatch.to_string()))
}

/// Rewrites the newest copy of the superblock and the newest groups of a log that was redone,
/// unchanged.
///
/// # Errors
/// `Io`; `DamagedLog` if a group can no longer be read.
pub(crate) async fn rewrite_newest(
    device: &Device,
    log: &LogDevice,
    superblock: &Superblock,
    newest_copy: usize,
    redone: &Redone,
) -> Result<(), StoreError> {
    let place = Superblock::place(newest_copy, superblock.blocks);
    let copy = device.read(place, 1).await?;
    device.write_bytes(place.0 * BLOCK_U64, copy).await?;
    let mut reader = LogReader::new(log, superblock);
    for &lsn in &redone.newest {
        let lost = StoreError::DamagedLog {
            lsn: lsn.0,
            what: "a group that was redone can no longer be read",
        };
        let group = reader.whole_group(lsn).await?.ok_or(lost)?;
        log.write(lsn, &group).await?;
    }
    Ok(())
}

/// Restores damaged blocks from the log, which ends at `end`; returns the remedy of each.
async fn restore_from_log(
    log: &LogDevice,
    superblock: &Superblock,
    cache: &mut Cache,
    end: Lsn,
    damaged: &[(MetaBlock, &'static str)],
) -> Result<Vec<DamagedBlock>, StoreError> {
    let wanted = damaged.iter().map(|&(block, _)| block).collect();
    let found = salvage(log, superblock, end, &wanted).await?;
    let describe = |&(block, what): &(MetaBlock, &'static str)| {
        let remedy = if found.contains_key(&block) { Remedy::Log } else { Remedy::None };
        DamagedBlock { block, what, remedy }
    };
    let damage = damaged.iter().map(describe).collect();
    for (block, data) in found {
        cache.insert(block, data);
        cache.mark_dirty(block, end);
    }
    Ok(damage)
}

/// The state of redo.
struct Redo<'a> {
    superblock: &'a Superblock,
    cache: &'a mut Cache,
    /// Blocks with changes but no image, and the least LSN that they must have at home.
    at_home: BTreeMap<MetaBlock, Lsn>,
    error: Option<&'static str>,
}

impl Redo<'_> {
    fn apply_group(&mut self, group: &[u8], lsn: Lsn, epoch: Epoch) -> Result<(), StoreError> {
        let damaged = |what| StoreError::DamagedLog { lsn: lsn.0, what };
        read_group(group, lsn, |item| self.apply(item, lsn, epoch)).map_err(damaged)?;
        self.error.map_or(Ok(()), |what| Err(damaged(what)))
    }

    fn apply(&mut self, item: Item<'_>, since: Lsn, epoch: Epoch) {
        let block = item.block;
        if block.0 >= self.superblock.blocks - 1 || block < ROOTS_BLOCK {
            self.error = Some("a record changes a block outside the device");
            return;
        }
        if item.image && !self.cache.contains(block) {
            let data = self.cache.buffer();
            self.cache.insert(block, data);
            self.cache.mark_dirty(block, since);
            self.at_home.remove(&block);
        }
        let Some(frame) = self.cache.frame_mut(block) else {
            self.at_home.insert(block, item.lsn);
            return;
        };
        if item.image {
            let tag = block::tag_of(self.superblock.uuid);
            block::initialise(&mut frame.data, block, item.kind, tag);
        }
        item.apply(&mut frame.data);
        block::stamp(&mut frame.data, item.lsn, epoch);
    }
}

/// Checks that blocks at home are at least as new as the log says; returns those that are damaged
/// or older.
async fn check_at_home(
    device: &Device,
    uuid: Uuid,
    blocks: BTreeMap<MetaBlock, Lsn>,
) -> Result<Vec<(MetaBlock, &'static str)>, StoreError> {
    let mut damaged = Vec::new();
    let blocks: Vec<_> = blocks.into_iter().collect();
    for batch in blocks.chunks(32) {
        let reads = batch.iter().map(|&(block, lsn)| {
            let device = device.clone();
            let task = async move { device.read(block, 1).await };
            (block, lsn, Box::new(task))
        });
        let reads: Vec<_> = reads
            .map(|(block, lsn, task)| (block, lsn, device.env.spawn_join(Box::into_pin(task))))
            .collect();
        for (block, lsn, join) in reads {
            let buf = join.await?;
            let data = buf[..].try_into().expect("one block");
            if let Err(what) = block::verify(data, block, block::tag_of(uuid)) {
                damaged.push((block, what));
            } else if lsn_of(data) < lsn {
                damaged.push((block, "older than the log says: a write of it was lost"));
            }
        }
    }
    Ok(damaged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redo_decision_is_unique_for_each_log_position() {
        let refused = |step| matches!(step, RedoStep::Refuse(_));
        for beyond in [false, true] {
            assert_eq!(decide(GroupFound::Whole, beyond), RedoStep::Redo);
            assert!(refused(decide(GroupFound::Wrong("x"), beyond)));
            for found in [GroupFound::Nothing, GroupFound::Torn, GroupFound::Stale] {
                let step = decide(found, beyond);
                assert_eq!(refused(step), beyond);
                assert_eq!(step == RedoStep::End, !beyond);
            }
        }
    }
}
