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
//!    violates this is damage.
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
use types::{Bug, Epoch, Lsn, MetaBlock, Uuid, planted};

use env::{IoBuf, Join};

use crate::block::{self, lsn_of};
use crate::cache::Cache;
use crate::device::Device;
use crate::error::StoreError;
use crate::fsck::salvage::salvage;
use crate::log::{GROUP_HEADER, GroupHeader, Item, padded, read_group};
use crate::roots::{ROOTS, ROOTS_BLOCK};
use crate::superblock::{SuperError, Superblock};

/// Largest group; the search after the end of the log covers two of them.
pub(crate) const GROUP_BYTES_MAX: u64 = 8 << 20;
/// Bytes of the newest groups that an opening rewrites. A failed flush loses at most one group, as
/// only one is in flight at a time. The store wrote that group only after earlier flushes had made
/// the groups before it durable.
const REWRITE_BYTES: u64 = 16 << 20;
const CHUNK: u64 = 1 << 20;
/// Pieces of the log that redo reads ahead, once it reads sequentially.
const READ_AHEAD: usize = 4;

/// The result of decoding a copy of the superblock.
pub(crate) type CopyResult = Result<Superblock, SuperError>;

/// How an opening continues after it has read both copies of the superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum CopyChoice {
    /// Use this copy, 0 or 1.
    Use(usize),
    /// Both are foreign.
    Foreign,
    /// At least one is damaged and none is whole.
    Damaged(&'static str),
    /// A newer release wrote here, or (0) a build from before version 1.
    Version(u32),
    /// Unknown features, by name.
    Features(String),
    /// Whole copies of two file systems.
    Contradiction,
}

/// Decides by a table of the copies. The first row that matches decides.
///
/// | first      | second     | choice        | why                                            |
/// |------------|------------|---------------|------------------------------------------------|
/// | newer      | any        | version       | the meaning of a newer format is unknown       |
/// | any        | newer      | version       | the same                                       |
/// | features   | any        | features      | the same                                       |
/// | any        | features   | features      | the same                                       |
/// | whole      | whole, other UUID | contradiction | neither can be trusted                  |
/// | whole      | whole      | newer one     | the older one is its predecessor               |
/// | whole      | no         | first         | the second was being written, or is damaged    |
/// | no         | whole      | second        | the first was being written, or is damaged     |
/// | damaged    | no         | damaged       | nothing to start from                          |
/// | no         | damaged    | damaged       | the same                                       |
/// | foreign    | foreign    | foreign       | never was a Redbud device                      |
pub(crate) fn choose(first: &CopyResult, second: &CopyResult) -> CopyChoice {
    use SuperError::{Damaged, Features, Foreign, Version};
    match (first, second) {
        (Err(Version(version)), _) | (_, Err(Version(version))) => CopyChoice::Version(*version),
        (Err(Features(names)), _) | (_, Err(Features(names))) => {
            CopyChoice::Features(names.clone())
        }
        (Ok(a), Ok(b)) if a.uuid != b.uuid => CopyChoice::Contradiction,
        (Ok(a), Ok(b)) => CopyChoice::Use(usize::from(b.generation > a.generation)),
        (Ok(_), Err(Damaged(_) | Foreign)) => CopyChoice::Use(0),
        (Err(Damaged(_) | Foreign), Ok(_)) => CopyChoice::Use(1),
        (Err(Damaged(what)), Err(_)) | (Err(Foreign), Err(Damaged(what))) => {
            CopyChoice::Damaged(what)
        }
        (Err(Foreign), Err(Foreign)) => CopyChoice::Foreign,
    }
}

/// The group at a position of the log where a group may begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GroupFound {
    /// No header with this position.
    Nothing,
    /// A header whose group is not whole.
    Torn,
    /// A whole group that does not follow the one before it, or cannot be decoded.
    Wrong(&'static str),
    /// A whole group.
    Whole,
}

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
/// | torn    | yes    | refuse | it was durable before its successor was written: damaged    |
/// | nothing | yes    | refuse | the same                                                    |
pub(crate) fn decide(found: GroupFound, beyond: bool) -> RedoStep {
    match (found, beyond) {
        (GroupFound::Whole, _) => RedoStep::Redo,
        (GroupFound::Wrong(what), _) => RedoStep::Refuse(what),
        (GroupFound::Torn | GroupFound::Nothing, false) => RedoStep::End,
        (GroupFound::Torn, true) => RedoStep::Refuse("a group is damaged and later ones are whole"),
        (GroupFound::Nothing, true) => {
            RedoStep::Refuse("a group is missing and later ones are whole")
        }
    }
}

/// Where the log ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LogEnd {
    /// Where the next group begins.
    pub(crate) lsn: Lsn,
    /// Where the last group begins, 0 if there was none.
    pub(crate) previous: Lsn,
    /// Number of groups redone.
    pub(crate) groups: u64,
}

/// How an opening repaired a block that is damaged at home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Remedy {
    /// It used the superblock's copy.
    Copy,
    /// It restored the block from the log.
    Log,
    /// Not at all: the changes of the block are lost.
    None,
}

/// A block that is damaged at home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DamagedBlock {
    pub(crate) block: MetaBlock,
    /// What is wrong with the block.
    pub(crate) what: &'static str,
    pub(crate) remedy: Remedy,
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
/// `Io`; `DamagedLog`; `Corrupt` for a block at home that is older than the log says.
pub(crate) async fn redo(
    device: &Device,
    superblock: &Superblock,
    cache: &mut Cache,
    repair: bool,
) -> Result<Redone, StoreError> {
    let mut reader = LogReader::new(device, superblock);
    let mut redo = Redo { superblock, cache, at_home: BTreeMap::new(), error: None };
    let mut end = LogEnd { lsn: superblock.tail, previous: Lsn(0), groups: 0 };
    let mut epoch = Epoch(0);
    let mut newest = VecDeque::new();
    loop {
        let (found, group) = reader.group(end, epoch).await?;
        let beyond = match found {
            GroupFound::Nothing | GroupFound::Torn => reader.is_group_beyond(end.lsn).await?,
            GroupFound::Whole | GroupFound::Wrong(_) => false,
        };
        match decide(found, beyond) {
            RedoStep::End => break,
            RedoStep::Refuse(what) => return Err(StoreError::DamagedLog { lsn: end.lsn.0, what }),
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
    let mut at_home = redo.at_home;
    let roots = at_home.get(&ROOTS_BLOCK).copied();
    if superblock.roots != [0; ROOTS as usize] {
        // The superblock has a copy of the roots: the opening compares the two.
        at_home.remove(&ROOTS_BLOCK);
    }
    let damaged = check_at_home(device, superblock.uuid, at_home).await?;
    let damage = match damaged.last() {
        Some(&(block, what)) if !repair => return Err(StoreError::corrupt(block, what)),
        Some(_) => restore_from_log(device, superblock, cache, end.lsn, &damaged).await?,
        None => Vec::new(),
    };
    Ok(Redone { end, newest, damage, roots })
}

/// Rewrites the newest copy of the superblock and the newest groups of a log that was redone,
/// unchanged.
///
/// # Errors
/// `Io`; `DamagedLog` if a group can no longer be read.
pub(crate) async fn rewrite_newest(
    device: &Device,
    superblock: &Superblock,
    newest_copy: usize,
    redone: &Redone,
) -> Result<(), StoreError> {
    let place = Superblock::place(newest_copy, superblock.blocks);
    let copy = device.read(place, 1).await?;
    device.write_bytes(place.0 * BLOCK_U64, copy).await?;
    let mut reader = LogReader::new(device, superblock);
    for &lsn in &redone.newest {
        let lost = StoreError::DamagedLog {
            lsn: lsn.0,
            what: "a group that was redone can no longer be read",
        };
        let group = reader.whole_group(lsn).await?.ok_or(lost)?;
        device.write_log(superblock, lsn, &group).await?;
    }
    Ok(())
}

/// Restores damaged blocks from the log, which ends at `end`; returns the remedy of each.
async fn restore_from_log(
    device: &Device,
    superblock: &Superblock,
    cache: &mut Cache,
    end: Lsn,
    damaged: &[(MetaBlock, &'static str)],
) -> Result<Vec<DamagedBlock>, StoreError> {
    let wanted = damaged.iter().map(|&(block, _)| block).collect();
    let found = salvage(device, superblock, end, &wanted).await?;
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

/// Reads the log in large pieces.
pub(crate) struct LogReader<'a> {
    device: &'a Device,
    superblock: &'a Superblock,
    /// The oldest position that the reader needs.
    oldest: Lsn,
    /// The current piece, and its offset in the log.
    piece: Option<(u64, IoBuf)>,
    /// The pieces after it that are being read.
    ahead: VecDeque<(u64, Join<Result<IoBuf, StoreError>>)>,
}

impl<'a> LogReader<'a> {
    fn new(device: &'a Device, superblock: &'a Superblock) -> LogReader<'a> {
        LogReader::starting_at(device, superblock, superblock.tail)
    }

    /// A reader from `oldest` on, which may be before the tail.
    pub(crate) fn starting_at(
        device: &'a Device,
        superblock: &'a Superblock,
        oldest: Lsn,
    ) -> LogReader<'a> {
        LogReader { device, superblock, oldest, piece: None, ahead: VecDeque::new() }
    }

    /// The whole group at `lsn`, if there is one.
    pub(crate) async fn whole_group(&mut self, lsn: Lsn) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(header) = self.header(lsn).await? else { return Ok(None) };
        let mut bytes = Vec::new();
        self.read(lsn, header.len as usize, &mut bytes).await?;
        Ok(header.is_whole(&bytes).then_some(bytes))
    }

    /// Appends the `len` bytes at position `lsn` to `out`.
    async fn read(&mut self, lsn: Lsn, len: usize, out: &mut Vec<u8>) -> Result<(), StoreError> {
        let (mut at, mut left) = (lsn.0, len);
        while left > 0 {
            let offset = at % self.superblock.log_bytes();
            let start = offset / CHUNK * CHUNK;
            if self.piece.as_ref().is_none_or(|(held, _)| *held != start) {
                self.piece = Some((start, self.fetch(start).await?));
            }
            let Some((_, piece)) = &self.piece else { continue };
            let from = (offset - start) as usize;
            let take = left.min(piece.len() - from);
            out.extend_from_slice(&piece[from..from + take]);
            at += take as u64;
            left -= take;
        }
        Ok(())
    }

    /// The piece at offset `start`. If it is the next one, this also reads ahead the pieces after
    /// it.
    async fn fetch(&mut self, start: u64) -> Result<IoBuf, StoreError> {
        if self.piece.as_ref().is_none_or(|(held, _)| self.next_piece(*held) != start) {
            self.ahead.clear();
            return self.piece_at(start).await;
        }
        let all = self.superblock.log_bytes().div_ceil(CHUNK) as usize;
        let mut next = self.ahead.back().map_or(start, |(last, _)| self.next_piece(*last));
        while self.ahead.len() < (READ_AHEAD + 1).min(all) {
            let reading = Box::pin(self.piece_at(next));
            self.ahead.push_back((next, self.device.env.spawn_join(reading)));
            next = self.next_piece(next);
        }
        match self.ahead.pop_front() {
            Some((place, join)) if place == start => join.await,
            // Retry a read that failed before.
            _ => {
                self.ahead.clear();
                self.piece_at(start).await
            }
        }
    }

    /// Offset of the piece after that at `start`.
    fn next_piece(&self, start: u64) -> u64 {
        let next = start + CHUNK;
        if next < self.superblock.log_bytes() { next } else { 0 }
    }

    fn piece_at(&self, start: u64) -> impl Future<Output = Result<IoBuf, StoreError>> + use<> {
        let len = CHUNK.min(self.superblock.log_bytes() - start) as usize;
        let place = self.superblock.log_first.0 * BLOCK_U64 + start;
        let device = self.device.clone();
        async move { device.read_bytes(place, len).await }
    }

    /// Bytes of the log from `lsn` on that are not from an earlier lap.
    fn room(&self, lsn: Lsn) -> u64 {
        (self.oldest.0 + self.superblock.log_bytes()).saturating_sub(lsn.0)
    }

    async fn header(&mut self, lsn: Lsn) -> Result<Option<GroupHeader>, StoreError> {
        if self.room(lsn) < BLOCK_U64 {
            return Ok(None);
        }
        let mut bytes = Vec::with_capacity(GROUP_HEADER);
        self.read(lsn, GROUP_HEADER, &mut bytes).await?;
        let log_bytes = self.superblock.log_bytes();
        let header = GroupHeader::decode(&bytes, lsn, self.superblock.uuid, log_bytes);
        Ok(header.filter(|header| padded(u64::from(header.len)) <= self.room(lsn)))
    }

    /// The group at the end so far, and its bytes if it is whole.
    async fn group(
        &mut self,
        end: LogEnd,
        epoch: Epoch,
    ) -> Result<(GroupFound, Vec<u8>), StoreError> {
        let mut bytes = Vec::new();
        let Some(header) = self.header(end.lsn).await? else {
            return Ok((GroupFound::Nothing, bytes));
        };
        self.read(end.lsn, header.len as usize, &mut bytes).await?;
        let found = if !header.is_whole(&bytes) && !planted(Bug::TornGroupAccepted) {
            GroupFound::Torn
        } else if header.epoch < epoch || header.epoch > self.superblock.epoch {
            GroupFound::Wrong("a group has an impossible epoch")
        } else if end.previous != Lsn(0) && header.previous != end.previous {
            GroupFound::Wrong("a group does not follow the one before it")
        } else {
            GroupFound::Whole
        };
        Ok((found, bytes))
    }

    /// Is there a whole group that was written after the one at `lsn`?
    async fn is_group_beyond(&mut self, lsn: Lsn) -> Result<bool, StoreError> {
        let window = self.room(lsn).min(2 * GROUP_BYTES_MAX);
        let mut at = lsn.0 + BLOCK_U64;
        while at < lsn.0 + window {
            if let Some(header) = self.header(Lsn(at)).await?
                && header.previous >= lsn
                && header.previous < Lsn(at)
            {
                let mut bytes = Vec::new();
                self.read(Lsn(at), header.len as usize, &mut bytes).await?;
                if header.is_whole(&bytes) {
                    return Ok(true);
                }
            }
            at += BLOCK_U64;
        }
        Ok(false)
    }
}

const _: () = assert!(CHUNK.is_multiple_of(BLOCK_U64));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redo_decision_is_unique_for_each_log_position() {
        let refused = |step| matches!(step, RedoStep::Refuse(_));
        for beyond in [false, true] {
            assert_eq!(decide(GroupFound::Whole, beyond), RedoStep::Redo);
            assert!(refused(decide(GroupFound::Wrong("x"), beyond)));
            for found in [GroupFound::Nothing, GroupFound::Torn] {
                let step = decide(found, beyond);
                assert_eq!(refused(step), beyond);
                assert_eq!(step == RedoStep::End, !beyond);
            }
        }
    }

    #[test]
    fn superblock_choice_is_unique_for_each_pair_of_copies() {
        let whole = |byte, generation| {
            let mut sb = Superblock::plan(Uuid([byte; 16]), "a", 10_000, 4 << 20).unwrap();
            sb.generation = generation;
            Ok(sb)
        };
        let damaged = || Err(SuperError::Damaged("x"));
        let foreign = || Err(SuperError::Foreign);
        let version = || Err(SuperError::Version(9));
        let features = || Err(SuperError::Features("y".into()));
        let rows: Vec<(CopyResult, CopyResult, CopyChoice)> = vec![
            (whole(1, 4), whole(1, 5), CopyChoice::Use(1)),
            (whole(1, 6), whole(1, 5), CopyChoice::Use(0)),
            (whole(1, 6), whole(2, 5), CopyChoice::Contradiction),
            (whole(1, 6), damaged(), CopyChoice::Use(0)),
            (whole(1, 6), foreign(), CopyChoice::Use(0)),
            (damaged(), whole(1, 1), CopyChoice::Use(1)),
            (foreign(), whole(1, 1), CopyChoice::Use(1)),
            (damaged(), foreign(), CopyChoice::Damaged("x")),
            (foreign(), damaged(), CopyChoice::Damaged("x")),
            (damaged(), damaged(), CopyChoice::Damaged("x")),
            (foreign(), foreign(), CopyChoice::Foreign),
            (version(), whole(1, 1), CopyChoice::Version(9)),
            (whole(1, 1), version(), CopyChoice::Version(9)),
            (features(), foreign(), CopyChoice::Features("y".into())),
            (whole(1, 1), features(), CopyChoice::Features("y".into())),
        ];
        for (first, second, choice) in rows {
            assert_eq!(choose(&first, &second), choice, "{first:?} {second:?}");
        }
    }
}
