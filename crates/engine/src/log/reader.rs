//! Reads the groups of the log.

use std::collections::VecDeque;

use env::{IoBuf, Join};
use types::limits::BLOCK_U64;
use types::{Bug, Epoch, Lsn, planted};

use crate::device::log::LogDevice;
use crate::error::StoreError;
use crate::format::superblock::Superblock;
use crate::log::{GROUP_HEADER, GroupHeader, padded};

/// Largest group; the search after the end of the log covers two of them.
pub(crate) const GROUP_BYTES_MAX: u64 = 8 << 20;
const CHUNK: u64 = 1 << 20;
/// Pieces of the log that redo reads ahead, once it reads sequentially.
const READ_AHEAD: usize = 4;

/// The group at a position of the log where a group may begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GroupFound {
    /// No header with this position.
    Nothing,
    /// A header whose group is not whole.
    Torn,
    /// A whole group of a server that had been replaced when another one began an epoch here.
    Stale,
    /// A whole group that does not follow the one before it, or cannot be decoded.
    Wrong(&'static str),
    /// A whole group.
    Whole,
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

/// Reads the log in large pieces.
pub(crate) struct LogReader<'a> {
    log: &'a LogDevice,
    superblock: &'a Superblock,
    /// The oldest position that the reader needs.
    oldest: Lsn,
    /// The current piece, and its offset in the log.
    piece: Option<(u64, IoBuf)>,
    /// The pieces after it that are being read.
    ahead: VecDeque<(u64, Join<Result<IoBuf, StoreError>>)>,
}

impl<'a> LogReader<'a> {
    pub(super) fn new(log: &'a LogDevice, superblock: &'a Superblock) -> LogReader<'a> {
        LogReader::starting_at(log, superblock, superblock.tail)
    }

    /// A reader from `oldest` on, which may be before the tail.
    pub(crate) fn starting_at(
        log: &'a LogDevice,
        superblock: &'a Superblock,
        oldest: Lsn,
    ) -> LogReader<'a> {
        LogReader { log, superblock, oldest, piece: None, ahead: VecDeque::new() }
    }

    /// The whole group at `lsn`, if there is one.
    pub(crate) async fn whole_group(&mut self, lsn: Lsn) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(header) = self.header(lsn).await? else { return Ok(None) };
        let mut bytes = Vec::new();
        self.read(lsn, header.len as usize, &mut bytes).await?;
        let counts = header.epoch >= self.superblock.epoch_at(lsn);
        Ok((counts && header.is_whole(&bytes)).then_some(bytes))
    }

    /// Appends the `len` bytes at position `lsn` to `out`.
    async fn read(&mut self, lsn: Lsn, len: usize, out: &mut Vec<u8>) -> Result<(), StoreError> {
        let (mut at, mut left) = (lsn.0, len);
        while left > 0 {
            let offset = at % self.log.bytes();
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
        let all = self.log.bytes().div_ceil(CHUNK) as usize;
        let mut next = self.ahead.back().map_or(start, |(last, _)| self.next_piece(*last));
        while self.ahead.len() < (READ_AHEAD + 1).min(all) {
            let reading = Box::pin(self.piece_at(next));
            self.ahead.push_back((next, self.log.device().env.spawn_join(reading)));
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
        if next < self.log.bytes() { next } else { 0 }
    }

    fn piece_at(&self, start: u64) -> impl Future<Output = Result<IoBuf, StoreError>> + use<> {
        let len = CHUNK.min(self.log.bytes() - start) as usize;
        let log = self.log.clone();
        async move { log.read(start, len).await }
    }

    /// Bytes of the log from `lsn` on that are not from an earlier lap.
    fn room(&self, lsn: Lsn) -> u64 {
        (self.oldest.0 + self.log.bytes()).saturating_sub(lsn.0)
    }

    async fn header(&mut self, lsn: Lsn) -> Result<Option<GroupHeader>, StoreError> {
        if self.room(lsn) < BLOCK_U64 {
            return Ok(None);
        }
        let mut bytes = Vec::with_capacity(GROUP_HEADER);
        self.read(lsn, GROUP_HEADER, &mut bytes).await?;
        let log_bytes = self.log.bytes();
        let header = GroupHeader::decode(&bytes, lsn, self.superblock.uuid, log_bytes);
        Ok(header.filter(|header| padded(u64::from(header.len)) <= self.room(lsn)))
    }

    /// The group at the end so far, and its bytes if it is whole.
    pub(super) async fn group(
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
        } else if header.epoch < self.superblock.epoch_at(end.lsn) && !planted(Bug::OldLapAccepted)
        {
            GroupFound::Stale
        } else if header.epoch < epoch || header.epoch > self.superblock.epoch {
            GroupFound::Wrong("a group has an impossible epoch")
        } else if end.previous != Lsn(0) && header.previous != end.previous {
            GroupFound::Wrong("a group does not follow the one before it")
        } else {
            GroupFound::Whole
        };
        Ok((found, bytes))
    }

    /// Is there a whole group that was written after the one at `lsn`, by a server that had not
    /// been replaced?
    pub(super) async fn is_group_beyond(&mut self, lsn: Lsn) -> Result<bool, StoreError> {
        let window = self.room(lsn).min(2 * GROUP_BYTES_MAX);
        let mut at = lsn.0 + BLOCK_U64;
        while at < lsn.0 + window {
            if let Some(header) = self.header(Lsn(at)).await?
                && header.previous >= lsn
                && header.previous < Lsn(at)
                && header.epoch >= self.superblock.epoch_at(Lsn(at))
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
