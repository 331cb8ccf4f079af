//! The journal's records and groups, as bytes.
//!
//! Invariants:
//! - a transaction is one record; the records of a group become durable together;
//! - positions ([`Lsn`]) count bytes since mkfs and lie in the log at `lsn % log bytes`; a group
//!   that reaches the end of the log goes on at its beginning;
//! - a group begins at a multiple of 4096 with a header whose checksum covers all of it, so
//!   one write and one flush commit it, and a torn group is told from a whole one;
//! - the header repeats the group's own position: what an earlier lap of the log
//!   left behind has another one.
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
//! Behind the header come records, without gaps up to the group's length.
//! Record: length u32 (of all), magic u16 "TR", items u16, then the items. Item: block u64,
//! kind u8 (1 image: the runs change a block of zeros; 2 change: they change the block as it was),
//! type u8 of the block, runs u16, then the runs.

use types::limits::BLOCK_U64;
use types::{Bug, Epoch, Instant, Lsn, MetaBlock, Uuid, crc32c, planted};

use crate::block::{Block, BlockType, get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};
use crate::commit::Gathering;
use crate::diff;

/// Bytes of a group header.
pub const GROUP_HEADER: usize = 64;
const GROUP_MAGIC: u32 = u32::from_le_bytes(*b"RBLG");
const RECORD_MAGIC: u16 = u16::from_le_bytes(*b"TR");
const RECORD_HEADER: usize = 8;
const ITEM_HEADER: usize = 12;
const IMAGE: u8 = 1;
const CHANGE: u8 = 2;

/// The end of a group of `len` bytes: where the next one begins.
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

    /// Has it no record?
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

    /// Adds the change of a block, from `old` or as an image; says whether there was one.
    /// An image is always added.
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

    /// Ends the record; returns the offset of its end in the group, or `None` if it has no item
    /// and was taken back.
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

    /// The finished group; the builder is empty after it, with the memory of `reuse`.
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

/// A group header that may be one: position, magic and file system fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupHeader {
    /// Bytes of the group without padding.
    pub len: u32,
    /// Who wrote it.
    pub epoch: Epoch,
    /// Where the group before it begins.
    pub previous: Lsn,
    crc: u32,
}

impl GroupHeader {
    /// Decodes the header of the group at `lsn`, if there is one. Its checksum is not yet checked.
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

    /// Is `group` (`len` bytes) what was written?
    pub fn is_whole(&self, group: &[u8]) -> bool {
        group.len() == self.len as usize && crc32c(&group[4..]) == self.crc
    }
}

/// One change of one block, as the log has it.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// Which block.
    pub block: MetaBlock,
    /// Starts from zeros, whatever the block was.
    pub image: bool,
    /// Type of the block.
    pub kind: BlockType,
    /// End of the record: the block's new LSN.
    pub lsn: Lsn,
    runs: u16,
    bytes: &'a [u8],
}

impl Item<'_> {
    /// Changes the body of `block`.
    pub fn apply(&self, block: &mut Block) {
        diff::apply(block, self.runs, self.bytes).expect("checked when decoded");
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
        let rest = &group[at..];
        if rest.len() < RECORD_HEADER || get_u16(rest, 4) != RECORD_MAGIC {
            return Err("a record has no header");
        }
        let len = get_u32(rest, 0) as usize;
        if len < RECORD_HEADER || len > rest.len() {
            return Err("a record is cut off");
        }
        let end = Lsn(lsn.0 + (at + len) as u64);
        read_record(&rest[RECORD_HEADER..len], get_u16(rest, 6), end, &mut each)?;
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

/// Where the log stands.
pub(crate) struct Log {
    pub(crate) epoch: Epoch,
    /// The group that collects records.
    pub(crate) group: GroupBuilder,
    /// Where it begins.
    pub(crate) start: Lsn,
    /// Where the group before it begins.
    pub(crate) previous: Lsn,
    /// Everything before is on stable storage.
    pub(crate) durable: Lsn,
    /// The tails of the two superblock copies: nothing at or behind the older may be overwritten.
    pub(crate) tails: [Lsn; 2],
    /// Capacity of the log.
    pub(crate) bytes: u64,
    /// Somebody waits for durability up to here.
    pub(crate) wanted: Lsn,
    /// So many wait for the running group, and for the one on its way, or did so once.
    pub(crate) joined: usize,
    pub(crate) on_way: usize,
    /// How long the running group gathers.
    pub(crate) gathering: Gathering,
    /// When the running group got its first record.
    pub(crate) group_since: Instant,
    /// Memory for the next group.
    pub(crate) reuse: Vec<u8>,
    /// There is no device: every transaction counts as durable.
    pub(crate) volatile: bool,
}

impl Log {
    /// A log that goes on at `start`.
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
            joined: 0,
            on_way: 0,
            gathering: Gathering::NOTHING,
            group_since: Instant(0),
            reuse: Vec::new(),
            volatile: false,
        }
    }

    /// The position after the last record.
    pub(crate) fn end(&self) -> Lsn {
        Lsn(self.start.0 + self.group.len() as u64)
    }

    /// Somebody begins to wait until the log is durable up to `target`.
    pub(crate) fn join(&mut self, target: Lsn) {
        match target > self.start {
            true => self.joined += 1,
            false => self.on_way += 1,
        }
    }

    /// Bytes of the log that cannot be overwritten yet, the running group included.
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
        crate::block::initialise(&mut new, MetaBlock(5), BlockType::Tree, 1);
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
    fn a_group_gives_back_its_items_in_order() {
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
    fn a_group_elsewhere_or_of_another_file_system_is_none() {
        let bytes = group();
        assert!(GroupHeader::decode(&bytes, Lsn(4096), UUID, 1 << 20).is_none());
        assert!(GroupHeader::decode(&bytes, Lsn(8192), Uuid([8; 16]), 1 << 20).is_none());
        assert!(GroupHeader::decode(&bytes, Lsn(8192), UUID, 100).is_none());
        assert!(GroupHeader::decode(&bytes[..63], Lsn(8192), UUID, 1 << 20).is_none());
    }

    #[test]
    fn damaged_groups_decode_without_a_panic() {
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
