//! Redo: from the superblock's tail to the end of the log.
//!
//! Invariants:
//! - a group counts only as a whole; the first position without a whole group
//!   is the end, because a group is written only when the one before it is durable;
//! - for the same reason a whole group beyond the end proves damage, which is
//!   reported and never skipped;
//! - redo of a block starts at an image. A change that comes before any image
//!   is already at home: the tail passes a block's image only when the block is stable at home;
//! - blocks go home in sweeps that pass all that was dirty when they began, so the log holds little
//!   more than what was dirty then and what is since: redo needs about as much memory as the store
//!   had, at most half as much again;
//! - redo changes only the cache until all of it has been done, so it may be
//!   interrupted and begun again at any moment;
//! - what it read may never become stable by a flush, if one has failed for it since it was written
//!   and the device has not lost power: the newest groups and the newest copy of the superblock are
//!   written again, as they are, and flushed, before anything that they changed goes home, and
//!   before the other copy is written.
//!
//! Step by step:
//! 1. A whole group at position p has p and the file system's UUID in its header, a length that
//!    ends at most one lap (the bytes of the log) behind the tail, and the right checksum. The
//!    first one is sought at the tail, the next one at the multiple of 4096 at or behind the end of
//!    the one before it.
//! 2. Epochs do not fall from group to group, nor exceed the superblock's, and `previous` is where
//!    the group before it begins; what the first one says there does not matter. A whole group of
//!    which this is not so is damage.
//! 3. The log ends where there is none. If behind its end, at a multiple of 4096 less than a lap
//!    behind the tail, there is a whole one whose `previous` is not before the end, that is damage
//!    (this release looks 16 MiB far).
//! 4. The items of each record change blocks, in their order, of those between the two superblocks.
//!    An image makes the block anew: its own address, the type of the item, the file system's tag,
//!    and zeros that the runs change. The LSN of a changed block is where the record ends, its
//!    epoch the group's.
//! 5. A change of a block that has no image before it in what is redone is left out. If no image
//!    follows either, the block is read from home, and damaged if its LSN there is less than that
//!    of the change (a write of it was lost).

use std::collections::{BTreeMap, VecDeque};

use types::limits::BLOCK_U64;
use types::{Bug, Epoch, Lsn, MetaBlock, Uuid, planted};

use env::{IoBuf, Join};

use crate::block::{self, lsn_of};
use crate::cache::Cache;
use crate::device::Device;
use crate::error::StoreError;
use crate::fsck::salvage::salvage;
use crate::journal::{GROUP_HEADER, GroupHeader, Item, padded, read_group};
use crate::roots::{ROOTS, ROOTS_BLOCK};
use crate::superblock::{SuperError, Superblock};

/// Bytes of a group that is still searched for behind the end of the log.
pub(crate) const GROUP_BYTES_MAX: u64 = 8 << 20;
/// Bytes of the newest groups that are written again. A flush that fails takes one group with it at
/// most, for one is on its way at a time; those behind it were made durable by others before the
/// store had its answer.
const AGAIN: u64 = 16 << 20;
const CHUNK: u64 = 1 << 20;
/// Pieces of the log that are asked of the device before redo comes to them, once it reads one
/// after the other.
const AHEAD: usize = 4;

/// What a copy of the superblock turned out to be.
pub(crate) type Copy = Result<Superblock, SuperError>;

/// How an opening goes on after reading both copies of the superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Choice {
    /// Use this copy, 0 or 1.
    Use(usize),
    /// Both are foreign.
    Foreign,
    /// At least one is damaged and none is whole.
    Damaged(&'static str),
    /// A newer release wrote here.
    Version(u32),
    /// Unknown features, by name.
    Features(String),
    /// Whole copies of two file systems.
    Contradiction,
}

/// The table of the copies. The first row that fits decides.
///
/// | first      | second     | choice        | why                                            |
/// |------------|------------|---------------|------------------------------------------------|
/// | newer      | any        | version       | what a newer release meant is unknown          |
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
pub(crate) fn choose(first: &Copy, second: &Copy) -> Choice {
    use SuperError::{Damaged, Features, Foreign, Version};
    match (first, second) {
        (Err(Version(version)), _) | (_, Err(Version(version))) => Choice::Version(*version),
        (Err(Features(names)), _) | (_, Err(Features(names))) => Choice::Features(names.clone()),
        (Ok(a), Ok(b)) if a.uuid != b.uuid => Choice::Contradiction,
        (Ok(a), Ok(b)) => Choice::Use(usize::from(b.generation > a.generation)),
        (Ok(_), Err(Damaged(_) | Foreign)) => Choice::Use(0),
        (Err(Damaged(_) | Foreign), Ok(_)) => Choice::Use(1),
        (Err(Damaged(what)), Err(_)) | (Err(Foreign), Err(Damaged(what))) => Choice::Damaged(what),
        (Err(Foreign), Err(Foreign)) => Choice::Foreign,
    }
}

/// What lies at a position of the log where a group may begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// No header with this position.
    Nothing,
    /// A header whose group is not whole.
    Torn,
    /// A whole group that does not follow the one before it, or cannot be decoded.
    Wrong(&'static str),
    /// A whole group.
    Whole,
}

/// What redo does there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Apply it and go on behind it.
    Redo,
    /// The log ends here.
    End,
    /// Stop: the log is damaged.
    Refuse(&'static str),
}

/// The table of a position. `beyond`: a whole group that follows this position exists.
///
/// | found   | beyond | step   | why                                                         |
/// |---------|--------|--------|-------------------------------------------------------------|
/// | whole   | any    | redo   | committed                                                   |
/// | wrong   | any    | refuse | a checksum over nonsense: not a crash                       |
/// | torn    | no     | end    | the crash came while it was written: never acknowledged     |
/// | nothing | no     | end    | nothing was written here in this lap                        |
/// | torn    | yes    | refuse | it was durable before its successor was written: damaged    |
/// | nothing | yes    | refuse | the same                                                    |
pub(crate) fn decide(found: Found, beyond: bool) -> Step {
    match (found, beyond) {
        (Found::Whole, _) => Step::Redo,
        (Found::Wrong(what), _) => Step::Refuse(what),
        (Found::Torn | Found::Nothing, false) => Step::End,
        (Found::Torn, true) => Step::Refuse("a group is damaged and later ones are whole"),
        (Found::Nothing, true) => Step::Refuse("a group is missing and later ones are whole"),
    }
}

/// Where the log ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct End {
    /// Where the next group begins.
    pub(crate) lsn: Lsn,
    /// Where the last group begins, 0 if there was none.
    pub(crate) previous: Lsn,
    /// Groups that were redone.
    pub(crate) groups: u64,
}

/// What was done about a block that is damaged at home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Remedy {
    /// The superblock's copy was taken.
    Copy,
    /// It came back from the log.
    Log,
    /// Nothing: what was changed in it is lost.
    Left,
}

/// A block that is damaged at home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Damaged {
    pub(crate) block: MetaBlock,
    /// What is wrong with it.
    pub(crate) what: &'static str,
    pub(crate) remedy: Remedy,
}

/// What redo has found besides what it put into the cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Redone {
    /// Where the log ended.
    pub(crate) end: End,
    /// Where its newest groups begin, the last one last.
    pub(crate) newest: VecDeque<Lsn>,
    /// Only with `repair`.
    pub(crate) damage: Vec<Damaged>,
    /// The last change of the roots behind the tail, if it has no image there.
    pub(crate) roots: Option<Lsn>,
}

/// Redoes the log into `cache`, whose frames must be empty before. With `repair`, blocks that are
/// damaged at home come back from the log before the tail where it has them, and all of them are
/// told.
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
    let mut end = End { lsn: superblock.tail, previous: Lsn(0), groups: 0 };
    let mut epoch = Epoch(0);
    let mut newest = VecDeque::new();
    loop {
        let (found, group) = reader.group(end, epoch).await?;
        let beyond = match found {
            Found::Nothing | Found::Torn => reader.is_group_beyond(end.lsn).await?,
            Found::Whole | Found::Wrong(_) => false,
        };
        match decide(found, beyond) {
            Step::End => break,
            Step::Refuse(what) => return Err(StoreError::DamagedLog { lsn: end.lsn.0, what }),
            Step::Redo => {}
        }
        epoch = Epoch(block::get_u32(&group, 20));
        redo.apply_group(&group, end.lsn, epoch)?;
        end.previous = end.lsn;
        end.lsn.0 += padded(group.len() as u64);
        end.groups += 1;
        newest.push_back(end.previous);
        while newest.len() > 1 && newest[0].0 + AGAIN < end.lsn.0 {
            newest.pop_front();
        }
    }
    let mut at_home = redo.at_home;
    let roots = at_home.get(&ROOTS_BLOCK).copied();
    if superblock.roots != [0; ROOTS as usize] {
        // There is another copy of them: the opening compares the two.
        at_home.remove(&ROOTS_BLOCK);
    }
    let damaged = check_at_home(device, superblock.uuid, at_home).await?;
    let damage = match damaged.last() {
        Some(&(block, what)) if !repair => return Err(StoreError::corrupt(block, what)),
        Some(_) => put_back(device, superblock, cache, end.lsn, &damaged).await?,
        None => Vec::new(),
    };
    Ok(Redone { end, newest, damage, roots })
}

/// Writes the newest copy of the superblock and the newest groups of a log that was redone again,
/// each with the bytes that it has.
///
/// # Errors
/// `Io`; `DamagedLog` if one is not there any more.
pub(crate) async fn write_again(
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
        let lost = StoreError::DamagedLog { lsn: lsn.0, what: "a group is gone that was there" };
        let group = reader.whole_group(lsn).await?.ok_or(lost)?;
        device.write_log(superblock, lsn, &group).await?;
    }
    Ok(())
}

/// Puts back what the log, which ends at `end`, has of damaged blocks; says what became of each.
async fn put_back(
    device: &Device,
    superblock: &Superblock,
    cache: &mut Cache,
    end: Lsn,
    damaged: &[(MetaBlock, &'static str)],
) -> Result<Vec<Damaged>, StoreError> {
    let wanted = damaged.iter().map(|&(block, _)| block).collect();
    let found = salvage(device, superblock, end, &wanted).await?;
    let tell = |&(block, what): &(MetaBlock, &'static str)| {
        let remedy = if found.contains_key(&block) { Remedy::Log } else { Remedy::Left };
        Damaged { block, what, remedy }
    };
    let damage = damaged.iter().map(tell).collect();
    for (block, data) in found {
        cache.insert(block, data);
        cache.mark_dirty(block, end);
    }
    Ok(damage)
}

/// What redo has learned so far.
struct Redo<'a> {
    superblock: &'a Superblock,
    cache: &'a mut Cache,
    /// Blocks with changes but no image, and the LSN they must have at home.
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

/// Checks that blocks are at home in the version that the log says, or a newer one; gives those
/// that are not.
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
    /// The oldest position that is read.
    oldest: Lsn,
    /// Offset in the log of the piece, and the piece.
    piece: Option<(u64, IoBuf)>,
    /// The pieces behind it that are being read.
    ahead: VecDeque<(u64, Join<Result<IoBuf, StoreError>>)>,
}

impl<'a> LogReader<'a> {
    fn new(device: &'a Device, superblock: &'a Superblock) -> LogReader<'a> {
        LogReader::whole(device, superblock, superblock.tail)
    }

    /// Reads from before the tail on.
    pub(crate) fn whole(
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

    /// The piece at offset `start`. If it is the next one, those behind it are asked for as well.
    async fn fetch(&mut self, start: u64) -> Result<IoBuf, StoreError> {
        if self.piece.as_ref().is_none_or(|(held, _)| self.behind(*held) != start) {
            self.ahead.clear();
            return self.piece_at(start).await;
        }
        let all = self.superblock.log_bytes().div_ceil(CHUNK) as usize;
        let mut next = self.ahead.back().map_or(start, |(last, _)| self.behind(*last));
        while self.ahead.len() < (AHEAD + 1).min(all) {
            let reading = Box::pin(self.piece_at(next));
            self.ahead.push_back((next, self.device.env.spawn_join(reading)));
            next = self.behind(next);
        }
        match self.ahead.pop_front() {
            Some((place, join)) if place == start => join.await,
            // What failed before is asked for again.
            _ => {
                self.ahead.clear();
                self.piece_at(start).await
            }
        }
    }

    /// Offset of the piece behind that at `start`.
    fn behind(&self, start: u64) -> u64 {
        let next = start + CHUNK;
        if next < self.superblock.log_bytes() { next } else { 0 }
    }

    fn piece_at(&self, start: u64) -> impl Future<Output = Result<IoBuf, StoreError>> + use<> {
        let len = CHUNK.min(self.superblock.log_bytes() - start) as usize;
        let place = self.superblock.log_first.0 * BLOCK_U64 + start;
        let device = self.device.clone();
        async move { device.read_bytes(place, len).await }
    }

    /// Bytes of the log from `lsn` on that were not written in an earlier lap.
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

    /// What lies at the end so far, and the bytes of a whole group.
    async fn group(&mut self, end: End, epoch: Epoch) -> Result<(Found, Vec<u8>), StoreError> {
        let mut bytes = Vec::new();
        let Some(header) = self.header(end.lsn).await? else { return Ok((Found::Nothing, bytes)) };
        self.read(end.lsn, header.len as usize, &mut bytes).await?;
        let found = if !header.is_whole(&bytes) && !planted(Bug::TornGroupAccepted) {
            Found::Torn
        } else if header.epoch < epoch || header.epoch > self.superblock.epoch {
            Found::Wrong("a group is of an impossible epoch")
        } else if end.previous != Lsn(0) && header.previous != end.previous {
            Found::Wrong("a group does not follow the one before it")
        } else {
            Found::Whole
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
    fn every_position_of_the_log_has_exactly_one_decision() {
        let refused = |step| matches!(step, Step::Refuse(_));
        for beyond in [false, true] {
            assert_eq!(decide(Found::Whole, beyond), Step::Redo);
            assert!(refused(decide(Found::Wrong("x"), beyond)));
            for found in [Found::Nothing, Found::Torn] {
                let step = decide(found, beyond);
                assert_eq!(refused(step), beyond);
                assert_eq!(step == Step::End, !beyond);
            }
        }
    }

    #[test]
    fn every_pair_of_superblock_copies_has_exactly_one_choice() {
        let whole = |byte, generation| {
            let mut sb = Superblock::plan(Uuid([byte; 16]), "a", 10_000, 4 << 20).unwrap();
            sb.generation = generation;
            Ok(sb)
        };
        let damaged = || Err(SuperError::Damaged("x"));
        let foreign = || Err(SuperError::Foreign);
        let version = || Err(SuperError::Version(9));
        let features = || Err(SuperError::Features("y".into()));
        let rows: Vec<(Copy, Copy, Choice)> = vec![
            (whole(1, 4), whole(1, 5), Choice::Use(1)),
            (whole(1, 6), whole(1, 5), Choice::Use(0)),
            (whole(1, 6), whole(2, 5), Choice::Contradiction),
            (whole(1, 6), damaged(), Choice::Use(0)),
            (whole(1, 6), foreign(), Choice::Use(0)),
            (damaged(), whole(1, 1), Choice::Use(1)),
            (foreign(), whole(1, 1), Choice::Use(1)),
            (damaged(), foreign(), Choice::Damaged("x")),
            (foreign(), damaged(), Choice::Damaged("x")),
            (damaged(), damaged(), Choice::Damaged("x")),
            (foreign(), foreign(), Choice::Foreign),
            (version(), whole(1, 1), Choice::Version(9)),
            (whole(1, 1), version(), Choice::Version(9)),
            (features(), foreign(), Choice::Features("y".into())),
            (whole(1, 1), features(), Choice::Features("y".into())),
        ];
        for (first, second, choice) in rows {
            assert_eq!(choose(&first, &second), choice, "{first:?} {second:?}");
        }
    }
}
