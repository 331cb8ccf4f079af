//! Records and groups of the log, as bytes.
//!
//! Invariants:
//! - a transaction is one record; the records of a group become durable together;
//! - positions ([`Lsn`]) count bytes since mkfs; position `lsn` is at `lsn % log bytes` in the log.
//!   A group that reaches the end of the log continues at its beginning;
//! - a group begins at a multiple of 4096 with a header whose checksum covers the whole group. So
//!   one write and one flush commit it, and a reader can distinguish a torn group from a whole one;
//! - the header repeats the group's own position: a group from an earlier lap of the log
//!   has another position.
//!
//! Group header:
//!
//! | offset | size | field    | meaning                                    |
//! |-------:|-----:|----------|--------------------------------------------|
//! |      0 |    4 | crc      | CRC32C of bytes 4..length                  |
//! |      4 |    4 | magic    | "RBLG"                                     |
//! |      8 |    8 | lsn      | where the group begins                     |
//! |     16 |    4 | length   | bytes, header included, padding not        |
//! |     20 |    4 | epoch    | epoch of the server that wrote it          |
//! |     24 |   16 | uuid     | UUID of the file system                    |
//! |     40 |    8 | previous | where the group before it begins, 0: none  |
//! |     48 |   16 | reserved | zero                                       |
//!
//! Records follow the header, without gaps up to the group's length.
//! Record: length u32 (of the whole record), magic u16 "TR", items u16, then the items. Item: block
//! u64, kind u8 (1 image: the runs change a block of zeros; 2 change: the runs change the block as
//! it was), type u8 of the block, runs u16, then the runs.

pub(crate) mod delay;
pub mod diff;
pub(crate) mod reader;
pub mod recovery;
pub(crate) mod salvage;

use types::limits::BLOCK_U64;
use types::{Bug, Epoch, Instant, Lsn, MetaBlock, Uuid, crc32c, planted};

use crate::format::block::{
    Block, BlockType, get_u16, get_u32, get_u64, put_u16, put_u32, put_u64,
};
use crate::log::delay::CommitDelay;

/// Bytes of a group header.
pub const GROUP_HEADER: usize = 64;
const GROUP_MAGIC: u32 = u32::from_le_bytes(*b"RBLG");
const RECORD_MAGIC: u16 = u16::from_le_bytes(*b"TR");
const RECORD_HEADER: usize = 8;
const ITEM_HEADER: usize = 12;
const IMAGE: u8 = 1;
const CHANGE: u8 = 2;

/// `len` rounded up to whole blocks: the next group begins there.
pub fn padded(len: u64) -> u64 {
    len.div_ceil(BLOCK_U64) * BLOCK_U64
}

/// Collects the records of one group.
#[derive(Default)]
pub struct GroupBuilder {
    bytes: Vec<u8>,
    record: usize,
    items: u16,
}

impl GroupBuilder {
    /// Bytes so far, header included; 0 for an empty group.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Does the group have no record?
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Begins the record of a transaction.
    pub fn begin(&mut self) {
        if self.bytes.is_empty() {
            self.bytes.resize(GROUP_HEADER, 0);
        }
        self.record = self.bytes.len();
        self.items = 0;
        self.bytes.resize(self.record + RECORD_HEADER, 0);
    }

    /// Adds the change of a block, from `old` or as an image; returns whether it added an item.
    /// It always adds an image, but no change that is empty.
    pub fn add(&mut self, block: MetaBlock, old: Option<&Block>, new: &Block) -> bool {
        let item = self.bytes.len();
        self.bytes.extend_from_slice(&block.0.to_le_bytes());
        self.bytes.extend_from_slice(&[if old.is_some() { CHANGE } else { IMAGE }, new[4], 0, 0]);
        let runs = diff::encode(old, new, &mut self.bytes);
        if runs == 0 && old.is_some() {
            self.bytes.truncate(item);
            return false;
        }
        put_u16(&mut self.bytes, item + 10, runs);
        self.items += 1;
        true
    }

    /// Ends the record; returns the offset of its end in the group. Removes a record without items
    /// and returns `None`.
    pub fn finish(&mut self) -> Option<usize> {
        if self.items == 0 {
            let keep = if self.record == GROUP_HEADER { 0 } else { self.record };
            self.bytes.truncate(keep);
            return None;
        }
        let len = (self.bytes.len() - self.record) as u32;
        put_u32(&mut self.bytes, self.record, len);
        put_u16(&mut self.bytes, self.record + 4, RECORD_MAGIC);
        put_u16(&mut self.bytes, self.record + 6, self.items);
        Some(self.bytes.len())
    }

    /// Returns the finished group; afterwards the builder is empty and uses the memory of `reuse`.
    pub fn seal(
        &mut self,
        lsn: Lsn,
        previous: Lsn,
        epoch: Epoch,
        uuid: Uuid,
        reuse: Vec<u8>,
    ) -> Vec<u8> {
        let mut bytes = std::mem::replace(&mut self.bytes, reuse);
        self.bytes.clear();
        let len = bytes.len() as u32;
        put_u32(&mut bytes, 4, GROUP_MAGIC);
        put_u64(&mut bytes, 8, lsn.0);
        put_u32(&mut bytes, 16, len);
        put_u32(&mut bytes, 20, epoch.0);
        bytes[24..40].copy_from_slice(&uuid.0);
        put_u64(&mut bytes, 40, previous.0);
        let crc = crc32c(&bytes[4..]);
        put_u32(&mut bytes, 0, crc);
        bytes
    }
}

/// A possible group header: its position, magic and file system match.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupHeader {
    /// Bytes of the group without padding.
    pub len: u32,
    /// The epoch that wrote it.
    pub epoch: Epoch,
    /// Where the group before it begins.
    pub previous: Lsn,
    crc: u32,
}

impl GroupHeader {
    /// Decodes the header of the group at `lsn`, if there is one, without checking its checksum.
    pub fn decode(bytes: &[u8], lsn: Lsn, uuid: Uuid, log_bytes: u64) -> Option<GroupHeader> {
        if bytes.len() < GROUP_HEADER
            || get_u32(bytes, 4) != GROUP_MAGIC
            || get_u64(bytes, 8) != lsn.0 && !planted(Bug::OldLapAccepted)
            || bytes[24..40] != uuid.0
            || bytes[48..64] != [0; 16]
        {
            return None;
        }
        let len = get_u32(bytes, 16);
        if (len as usize) < GROUP_HEADER || u64::from(len) > log_bytes {
            return None;
        }
        let epoch = Epoch(get_u32(bytes, 20));
        let previous = Lsn(get_u64(bytes, 40));
        Some(GroupHeader { len, epoch, previous, crc: get_u32(bytes, 0) })
    }

    /// Does the checksum of `group` (`len` bytes) match?
    pub fn is_whole(&self, group: &[u8]) -> bool {
        group.len() == self.len as usize && crc32c(&group[4..]) == self.crc
    }
}

/// One change of one block in the log.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// The block.
    pub block: MetaBlock,
    /// An image: it starts from zeros, whatever the block was.
    pub image: bool,
    /// Type of the block.
    pub kind: BlockType,
    /// End of the record: the block's new LSN.
    pub lsn: Lsn,
    runs: u16,
    bytes: &'a [u8],
}

impl Item<'_> {
    /// Applies the change to the body of `block`.
    pub fn apply(&self, block: &mut Block) {
        diff::apply(block, self.runs, self.bytes)
            .expect("the runs were checked when the item was decoded");
    }
}

/// Calls `each` with the items of a whole group that begins at `lsn`, in order.
///
/// # Errors
/// The group is malformed.
pub fn read_group<'a>(
    group: &'a [u8],
    lsn: Lsn,
    mut each: impl FnMut(Item<'a>),
) -> Result<(), &'static str> {
    let mut at = GROUP_HEADER;
    while at < group.len() {
        let tail = &group[at..];
        if tail.len() < RECORD_HEADER || get_u16(tail, 4) != RECORD_MAGIC {
            return Err("a record has no header");
        }
        let len = get_u32(tail, 0) as usize;
        if len < RECORD_HEADER || len > tail.len() {
            return Err("a record is cut off");
        }
        let end = Lsn(lsn.0 + (at + len) as u64);
        read_record(&tail[RECORD_HEADER..len], get_u16(tail, 6), end, &mut each)?;
        at += len;
    }
    Ok(())
}

fn read_record<'a>(
    bytes: &'a [u8],
    items: u16,
    lsn: Lsn,
    each: &mut impl FnMut(Item<'a>),
) -> Result<(), &'static str> {
    let mut rest = bytes;
    for _ in 0..items {
        if rest.len() < ITEM_HEADER || !matches!(rest[8], IMAGE | CHANGE) {
            return Err("an item has no header");
        }
        let kind = BlockType::from_u8(rest[9]).ok_or("an item has an unknown block type")?;
        let (block, image, runs) =
            (MetaBlock(get_u64(rest, 0)), rest[8] == IMAGE, get_u16(rest, 10));
        let body = &rest[ITEM_HEADER..];
        let after = diff::skip(runs, body)?;
        let bytes = &body[..body.len() - after.len()];
        each(Item { block, image, kind, lsn, runs, bytes });
        rest = after;
    }
    if rest.is_empty() { Ok(()) } else { Err("a record is longer than its items") }
}

/// The state of the log.
pub(crate) struct Log {
    pub(crate) epoch: Epoch,
    /// The running group, which collects records.
    pub(crate) group: GroupBuilder,
    /// Where it begins.
    pub(crate) start: Lsn,
    /// Where the group before it begins.
    pub(crate) previous: Lsn,
    /// Every record before this position is durable.
    pub(crate) durable: Lsn,
    /// The tails of the two superblock copies: bytes at or after the older one must stay.
    pub(crate) tails: [Lsn; 2],
    /// Capacity of the log.
    pub(crate) bytes: u64,
    /// A caller waits until the log is durable up to here.
    pub(crate) wanted: Lsn,
    /// Callers that wait, or have waited, for the running group and for the group in flight.
    pub(crate) waiters: usize,
    pub(crate) waiters_in_flight: usize,
    /// Since when a caller waits for the running group while the closed one is being committed.
    pub(crate) closed_since: Option<Instant>,
    /// How long the running group waits for more callers.
    pub(crate) commit_delay: CommitDelay,
    /// When the running group got its first record.
    pub(crate) group_since: Instant,
    /// Memory for the next group.
    pub(crate) reuse: Vec<u8>,
    /// The store has no device: every transaction counts as durable.
    pub(crate) in_memory: bool,
}

impl Log {
    /// A log that continues at `start`.
    pub(crate) fn new(epoch: Epoch, start: Lsn, previous: Lsn, bytes: u64) -> Log {
        Log {
            epoch,
            group: GroupBuilder::default(),
            start,
            previous,
            durable: start,
            tails: [start; 2],
            bytes,
            wanted: Lsn(0),
            waiters: 0,
            waiters_in_flight: 0,
            closed_since: None,
            commit_delay: CommitDelay::NONE,
            group_since: Instant(0),
            reuse: Vec::new(),
            in_memory: false,
        }
    }

    /// The position after the last record.
    pub(crate) fn end(&self) -> Lsn {
        Lsn(self.start.0 + self.group.len() as u64)
    }

    /// Counts a caller that begins to wait until the log is durable up to `target`.
    pub(crate) fn add_waiter(&mut self, target: Lsn) {
        match target > self.start {
            true => self.waiters += 1,
            false => self.waiters_in_flight += 1,
        }
    }

    /// Bytes of the log that must not be overwritten yet, including the running group.
    pub(crate) fn used(&self) -> u64 {
        self.end().0 - self.tails[0].min(self.tails[1]).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::limits::BLOCK;

    const UUID: Uuid = Uuid([7; 16]);

    fn group() -> Vec<u8> {
        let mut new = Box::new([0; BLOCK]);
        crate::format::block::initialise(&mut new, MetaBlock(5), BlockType::Tree, 1);
        let old = new.clone();
        new[100..200].fill(3);
        let mut builder = GroupBuilder::default();
        builder.begin();
        assert!(builder.add(MetaBlock(5), None, &new));
        assert!(!builder.add(MetaBlock(6), Some(&old), &old));
        assert!(builder.add(MetaBlock(7), Some(&old), &new));
        assert!(builder.finish().is_some());
        builder.begin();
        assert!(builder.finish().is_none());
        builder.begin();
        assert!(builder.add(MetaBlock(8), None, &old));
        let end = builder.finish().unwrap();
        assert_eq!(end, builder.len());
        builder.seal(Lsn(8192), Lsn(4096), Epoch(3), UUID, Vec::new())
    }

    #[test]
    fn group_decodes_to_its_items_in_order() {
        let bytes = group();
        let header = GroupHeader::decode(&bytes, Lsn(8192), UUID, 1 << 20).unwrap();
        assert!(header.is_whole(&bytes));
        assert_eq!((header.epoch, header.previous), (Epoch(3), Lsn(4096)));
        let mut seen = Vec::new();
        read_group(&bytes, Lsn(8192), |item| seen.push((item.block.0, item.image, item.lsn)))
            .unwrap();
        assert_eq!(seen.len(), 3);
        assert_eq!(seen[0].2, seen[1].2);
        assert_eq!(seen[2], (8, true, Lsn(8192 + bytes.len() as u64)));
    }

    #[test]
    fn group_header_of_another_position_or_file_system_is_none() {
        let bytes = group();
        assert!(GroupHeader::decode(&bytes, Lsn(4096), UUID, 1 << 20).is_none());
        assert!(GroupHeader::decode(&bytes, Lsn(8192), Uuid([8; 16]), 1 << 20).is_none());
        assert!(GroupHeader::decode(&bytes, Lsn(8192), UUID, 100).is_none());
        assert!(GroupHeader::decode(&bytes[..63], Lsn(8192), UUID, 1 << 20).is_none());
    }

    #[test]
    fn damaged_group_decodes_without_a_panic() {
        let bytes = group();
        for at in 0..bytes.len() {
            for flip in [1, 0x80, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] ^= flip;
                if let Some(header) = GroupHeader::decode(&bytes, Lsn(8192), UUID, 1 << 20) {
                    assert!(!header.is_whole(&bytes));
                }
                let mut block = Box::new([0; BLOCK]);
                let _ = read_group(&bytes, Lsn(8192), |item| item.apply(&mut block));
            }
        }
    }
}
