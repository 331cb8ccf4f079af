//! The label of a device, which lies in block 0 and again in the last block.
//!
//! Invariants:
//! - slices do not overlap, are sorted by their start, and lie before the second copy;
//! - [`Label::decode`] is total: any 4096 bytes are a label or a [`LabelError`];
//! - a label that [`Label::check`] accepts survives its encoding.
//!
//! All integers are little-endian. A copy has 4096 bytes:
//!
//! | offset | size | field | meaning |
//! |---|---|---|---|
//! | 0 | 8 | magic | `"REDBUDL1"` |
//! | 8 | 4 | crc32c | over the whole block with this field zero |
//! | 12 | 2 | version | format version, 1 |
//! | 14 | 2 | count | slices, 1..=60 |
//! | 16 | 16 | fs_uuid | the file system |
//! | 32 | 16 | device_uuid | this device |
//! | 48 | 8 | sequence | raised by each change; of two whole copies the higher one counts |
//! | 56 | 8 | blocks | 4 KiB blocks of the device, both copies of the label included |
//! | 64 | 4 | fencing_epoch | raised to the epoch of a server that takes over; an older server ends when it reads this, and a client of one writes nothing more |
//! | 68 | 4 | reserved | zero |
//! | 72 | 1 | name_len | bytes of the file system's name, 1..=63 |
//! | 73 | 63 | name | UTF-8, zero-padded |
//! | 136 | 32 | served_at | of the metadata's device: where the last server had it open (boot ID 16, device 8, inode 8, big-endian); else zero |
//! | 168 | 88 | reserved | zero |
//! | 256 | 3840 | slices | 60 records of 64 bytes; those from `count` on are zero |
//!
//! A record of a slice:
//!
//! | offset | size | field | meaning |
//! |---|---|---|---|
//! | 0 | 1 | kind | 1 data, 2 metadata, 3 journal, 4 target, 5 content |
//! | 1 | 1 | shard | the part of the metadata; 0 for data, target and content |
//! | 2 | 2 | number | PAG number of a data slice, else 0 |
//! | 4 | 4 | reserved | zero |
//! | 8 | 8 | start | its first block on the device |
//! | 16 | 8 | blocks | its blocks, the first one included |
//! | 24 | 16 | uuid | this slice |
//! | 40 | 16 | pair | metadata, target: UUID of the external journal, zero if the log is internal; journal: UUID of its metadata or target; content: UUID of its target; data: zero |
//! | 56 | 8 | reserved | zero |
//!
//! A slice is addressed in blocks from its own start. Its user leaves block 0 of the slice alone:
//! in the slice at the front of a device that block is the label. The last block of the device
//! belongs to no slice; it is the second copy. The journals of several owners of one file system
//! may share a device. A journal alone that ends before the last block leaves room for others.
//! Builds before this format wrote one block with the magic `"REDBUDLB"`: no release reads it.

use std::fmt;

use types::limits::{BLOCK, BLOCK_U64};
use types::{Epoch, FS_NAME_MAX, PagId, Uuid, check_fs_name, crc32c};

/// The first eight bytes of a label.
pub const LABEL_MAGIC: [u8; 8] = *b"REDBUDL1";
/// The first eight bytes of the labels of builds before this format.
pub const UNRELEASED_LABEL_MAGIC: [u8; 8] = *b"REDBUDLB";
/// The format version this code writes and reads.
pub const LABEL_VERSION: u16 = 1;
/// Most slices of a device.
pub const SLICES_MAX: usize = 60;

const CRC: usize = 8;
const VERSION: usize = 12;
const COUNT: usize = 14;
const FS_UUID: usize = 16;
const DEVICE_UUID: usize = 32;
const SEQUENCE: usize = 48;
const BLOCKS: usize = 56;
const EPOCH: usize = 64;
const NAME_LEN: usize = 72;
const NAME: usize = 73;
const NAME_END: usize = NAME + FS_NAME_MAX;
const SERVED_AT: usize = NAME_END;
const SERVED_AT_END: usize = SERVED_AT + 32;
const SLICES: usize = 256;
const SLICE: usize = 64;
/// Ranges of the block that must be zero.
const RESERVED: [(usize, usize); 2] = [(68, 72), (SERVED_AT_END, SLICES)];

const _: () = assert!(SLICES + SLICES_MAX * SLICE == BLOCK);

/// What a slice holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SliceKind {
    /// A data zone: clients read and write it directly.
    Data {
        /// Its number.
        pag: PagId,
    },
    /// A part of the metadata: only metadata servers open it.
    Metadata {
        /// Which part.
        shard: u8,
        /// The slice with its log; `None`: the log is inside.
        journal: Option<Uuid>,
    },
    /// The log of a part of the metadata, or of an object target.
    Journal {
        /// Which part; 0 for a target.
        shard: u8,
        /// The slice with that part, or with the target.
        metadata: Uuid,
    },
    /// What an object target knows of its objects: only the target opens it.
    Target {
        /// The slice with its log; `None`: the log is inside.
        journal: Option<Uuid>,
    },
    /// The content of an object target's objects: only the target opens it.
    Content {
        /// The slice that says what lies where.
        target: Uuid,
    },
}

/// A part of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slice {
    /// What it holds.
    pub kind: SliceKind,
    /// Its first block on the device.
    pub start: u64,
    /// Its blocks; the user leaves the first one alone.
    pub blocks: u64,
    /// Its UUID.
    pub uuid: Uuid,
}

impl Slice {
    /// One past its last block on the device.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.blocks)
    }

    /// Its number, if it holds data.
    pub fn pag(&self) -> Option<PagId> {
        match self.kind {
            SliceKind::Data { pag } => Some(pag),
            SliceKind::Metadata { .. }
            | SliceKind::Journal { .. }
            | SliceKind::Target { .. }
            | SliceKind::Content { .. } => None,
        }
    }
}

/// What the slices of a device hold together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contents {
    /// Data only: clients open the device.
    Data,
    /// Metadata only.
    Metadata,
    /// Logs only.
    Journal,
    /// Metadata and logs.
    MetadataAndJournal,
    /// An object target, its content, or both; perhaps with its log.
    Target,
    /// Data beside metadata or logs, or an object target beside data or metadata: nobody opens the
    /// device.
    Mixture,
}

impl fmt::Display for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Contents::Data => "data",
            Contents::Metadata => "metadata",
            Contents::Journal => "a metadata log",
            Contents::MetadataAndJournal => "metadata and their log",
            Contents::Target => "an object target",
            Contents::Mixture => {
                "data beside metadata or a metadata log, or an object target beside either"
            }
        })
    }
}

/// The identity of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Label {
    /// The file system that it belongs to.
    pub fs_uuid: Uuid,
    /// That file system's name; passes [`check_fs_name`].
    pub fs_name: String,
    /// UUID of the device.
    pub device_uuid: Uuid,
    /// Raised by each change.
    pub sequence: u64,
    /// Blocks of the device, both copies of the label included.
    pub blocks: u64,
    /// Raised to the epoch of each server that takes over. A server of an earlier epoch that reads
    /// it ends. A client of one that reads it writes no more; one whose devices are sound reads it
    /// only when it mounts.
    pub fencing_epoch: Epoch,
    /// On the device with the metadata: where the last server had it open (`env::LockScope`). Zero:
    /// unknown, or another device.
    pub served_at: [u8; 32],
    /// Its slices, by their start.
    pub slices: Vec<Slice>,
}

/// Why a block is not a usable copy of a label.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LabelError {
    /// No magic: the device was never formatted, or another program formatted it.
    Foreign,
    /// A build from before this format wrote it.
    Unreleased,
    /// Fewer bytes than a block.
    Short,
    /// Redbud's magic, but the checksum does not match.
    Checksum,
    /// Written by a version that this code does not know.
    Version(u16),
    /// A field holds a value that no writer writes.
    Field(&'static str),
}

impl fmt::Display for LabelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LabelError::Foreign => f.write_str("it carries no Redbud label"),
            LabelError::Unreleased => f.write_str(
                "its label was made by a build from before this format, which no release reads; \
                 make the file system anew with `redbud mkfs --force`",
            ),
            LabelError::Short => f.write_str("it is smaller than a label"),
            LabelError::Checksum => f.write_str("its Redbud label is damaged (checksum)"),
            LabelError::Version(version) => write!(
                f,
                "its label has format version {version}, this program knows version {LABEL_VERSION}; \
                 use a newer release of redbud"
            ),
            LabelError::Field(field) => write!(f, "its label has an impossible value in `{field}`"),
        }
    }
}

impl std::error::Error for LabelError {}

impl Label {
    /// The first label of a device of `blocks` blocks.
    pub fn new(
        fs_uuid: Uuid,
        fs_name: &str,
        device_uuid: Uuid,
        blocks: u64,
        slices: Vec<Slice>,
    ) -> Label {
        Label {
            fs_uuid,
            fs_name: fs_name.to_owned(),
            device_uuid,
            sequence: 1,
            blocks,
            fencing_epoch: Epoch(0),
            served_at: [0; 32],
            slices,
        }
    }

    /// The first label of a device of `blocks` blocks with one slice, which takes all blocks but
    /// the last and has the device's UUID.
    pub fn single(fs_uuid: Uuid, fs_name: &str, uuid: Uuid, blocks: u64, kind: SliceKind) -> Label {
        let slice = Slice { kind, start: 0, blocks: blocks.saturating_sub(1), uuid };
        Label::new(fs_uuid, fs_name, uuid, blocks, vec![slice])
    }

    /// Refuses a label that no device can have.
    ///
    /// # Errors
    /// `Field` with the first impossible one.
    pub fn check(&self) -> Result<(), LabelError> {
        if !check_fs_name(&self.fs_name) {
            return Err(LabelError::Field("name"));
        }
        if self.blocks < 3 || self.blocks > u64::MAX / BLOCK_U64 {
            return Err(LabelError::Field("blocks"));
        }
        if self.slices.is_empty() || self.slices.len() > SLICES_MAX {
            return Err(LabelError::Field("count"));
        }
        let mut from = 0;
        for (index, slice) in self.slices.iter().enumerate() {
            if slice.start < from {
                return Err(LabelError::Field("start"));
            }
            // The first block is not used, so a slice of one block would hold nothing.
            let end = slice.start.checked_add(slice.blocks).filter(|end| *end < self.blocks);
            from = end.filter(|_| slice.blocks >= 2).ok_or(LabelError::Field("slice blocks"))?;
            let earlier = &self.slices[..index];
            if earlier.iter().any(|other| other.uuid == slice.uuid) {
                return Err(LabelError::Field("slice uuid"));
            }
            if earlier.iter().any(|other| other.pag().is_some() && other.pag() == slice.pag()) {
                return Err(LabelError::Field("number"));
            }
        }
        Ok(())
    }

    /// The label as a block. Panics if [`Label::check`] refuses it.
    pub fn encode(&self) -> [u8; BLOCK] {
        assert_eq!(self.check(), Ok(()), "check a label before encoding it: {self:?}");
        let mut block = [0u8; BLOCK];
        block[..8].copy_from_slice(&LABEL_MAGIC);
        put(&mut block, VERSION, &LABEL_VERSION.to_le_bytes());
        put(&mut block, COUNT, &(self.slices.len() as u16).to_le_bytes());
        put(&mut block, FS_UUID, &self.fs_uuid.0);
        put(&mut block, DEVICE_UUID, &self.device_uuid.0);
        put(&mut block, SEQUENCE, &self.sequence.to_le_bytes());
        put(&mut block, BLOCKS, &self.blocks.to_le_bytes());
        put(&mut block, EPOCH, &self.fencing_epoch.0.to_le_bytes());
        put(&mut block, SERVED_AT, &self.served_at);
        block[NAME_LEN] = self.fs_name.len() as u8;
        put(&mut block, NAME, self.fs_name.as_bytes());
        for (slice, record) in self.slices.iter().zip(block[SLICES..].chunks_exact_mut(SLICE)) {
            encode_slice(slice, record);
        }
        seal(&mut block);
        block
    }

    /// Reads a copy of a label.
    ///
    /// # Errors
    /// Why it is none.
    pub fn decode(bytes: &[u8]) -> Result<Label, LabelError> {
        let block: &[u8; BLOCK] =
            bytes.get(..BLOCK).and_then(|b| b.try_into().ok()).ok_or(LabelError::Short)?;
        if block[..8] == UNRELEASED_LABEL_MAGIC {
            return Err(LabelError::Unreleased);
        }
        if block[..8] != LABEL_MAGIC {
            return Err(LabelError::Foreign);
        }
        let mut unsealed = *block;
        unsealed[CRC..][..4].fill(0);
        if crc32c(&unsealed) != u32_at(block, CRC) {
            return Err(LabelError::Checksum);
        }
        let version = u16_at(block, VERSION);
        if version != LABEL_VERSION {
            return Err(LabelError::Version(version));
        }
        if RESERVED.iter().any(|&(from, to)| !is_zero(&block[from..to])) {
            return Err(LabelError::Field("reserved"));
        }
        let count = usize::from(u16_at(block, COUNT));
        let (used, unused) = block[SLICES..]
            .split_at_checked(count.saturating_mul(SLICE))
            .ok_or(LabelError::Field("count"))?;
        if !is_zero(unused) {
            return Err(LabelError::Field("slices"));
        }
        let slices = used.chunks_exact(SLICE).map(decode_slice).collect::<Result<_, _>>()?;
        let label = Label {
            fs_uuid: Uuid(field(block, FS_UUID)),
            fs_name: name_in(block).ok_or(LabelError::Field("name"))?.to_owned(),
            device_uuid: Uuid(field(block, DEVICE_UUID)),
            sequence: u64_at(block, SEQUENCE),
            blocks: u64_at(block, BLOCKS),
            fencing_epoch: Epoch(u32_at(block, EPOCH)),
            served_at: field(block, SERVED_AT),
            slices,
        };
        label.check()?;
        Ok(label)
    }

    /// The UUID of the device in a block that may no longer be a valid label.
    pub fn device_uuid_in(bytes: &[u8]) -> Option<Uuid> {
        Some(Uuid(bytes.get(DEVICE_UUID..DEVICE_UUID + 16)?.try_into().ok()?))
    }

    /// Does this block belong to a label of Redbud at all, even a damaged, newer or older one?
    pub fn is_ours(bytes: &[u8]) -> bool {
        bytes.starts_with(&LABEL_MAGIC) || bytes.starts_with(&UNRELEASED_LABEL_MAGIC)
    }

    /// What the slices hold together.
    pub fn contents(&self) -> Contents {
        let has = |of: fn(&SliceKind) -> bool| self.slices.iter().any(|slice| of(&slice.kind));
        let data = has(|kind| matches!(kind, SliceKind::Data { .. }));
        let metadata = has(|kind| matches!(kind, SliceKind::Metadata { .. }));
        let journal = has(|kind| matches!(kind, SliceKind::Journal { .. }));
        let target =
            has(|kind| matches!(kind, SliceKind::Target { .. } | SliceKind::Content { .. }));
        match (data, metadata, journal) {
            (false, false, _) if target => Contents::Target,
            _ if target => Contents::Mixture,
            (true, false, false) => Contents::Data,
            (true, _, _) => Contents::Mixture,
            (false, true, false) => Contents::Metadata,
            (false, true, true) => Contents::MetadataAndJournal,
            (false, false, _) => Contents::Journal,
        }
    }

    /// Is it a device of journals that several may share: does it name several, or has it room
    /// beside the one? A journal that was made without a size fills its device.
    pub fn is_shared(&self) -> bool {
        let fills = |slice: &Slice| slice.start == 0 && slice.end() == self.blocks - 1;
        self.contents() == Contents::Journal && !matches!(&self.slices[..], [one] if fills(one))
    }

    /// The slice with this UUID.
    pub fn slice(&self, uuid: Uuid) -> Option<&Slice> {
        self.slices.iter().find(|slice| slice.uuid == uuid)
    }

    /// The slice of this data zone.
    pub fn data_slice(&self, pag: PagId) -> Option<&Slice> {
        self.slices.iter().find(|slice| slice.pag() == Some(pag))
    }

    /// The slice of data zone `pag` of the file system `fs`, with this UUID if it is known.
    ///
    /// # Errors
    /// What the device is instead; a device with anything but data is refused.
    pub fn expect_data(&self, fs: Uuid, pag: PagId, uuid: Option<Uuid>) -> Result<&Slice, String> {
        let contents = self.contents();
        if contents == Contents::Mixture {
            return Err(format!(
                "its label says that it holds {contents}: clients open devices with data alone; \
                 give the data zones a device of their own"
            ));
        }
        if contents != Contents::Data {
            return Err(format!("its label says that it holds {contents}, clients open data only"));
        }
        if self.fs_uuid != fs {
            let (name, other) = (&self.fs_name, self.fs_uuid);
            return Err(format!("it belongs to the file system `{name}` ({other}), not to {fs}"));
        }
        match self.data_slice(pag) {
            Some(slice) if uuid.is_none_or(|uuid| uuid == slice.uuid) => Ok(slice),
            Some(slice) => Err(format!(
                "its label says that data zone {pag} is {}, expected zone {}",
                slice.uuid,
                uuid.unwrap_or(slice.uuid)
            )),
            None => Err(format!(
                "its label says that it is data zone {}, expected zone {pag}",
                self.pags()
            )),
        }
    }

    /// The numbers of its data zones, for messages.
    pub fn pags(&self) -> String {
        let all: Vec<String> =
            self.slices.iter().filter_map(|slice| slice.pag()).map(|pag| pag.to_string()).collect();
        all.join(", ")
    }
}

fn encode_slice(slice: &Slice, record: &mut [u8]) {
    let (kind, shard, number, pair) = match slice.kind {
        SliceKind::Data { pag } => (1, 0, pag.0, Uuid([0; 16])),
        SliceKind::Metadata { shard, journal } => (2, shard, 0, journal.unwrap_or(Uuid([0; 16]))),
        SliceKind::Journal { shard, metadata } => (3, shard, 0, metadata),
        SliceKind::Target { journal } => (4, 0, 0, journal.unwrap_or(Uuid([0; 16]))),
        SliceKind::Content { target } => (5, 0, 0, target),
    };
    record[..2].copy_from_slice(&[kind, shard]);
    record[2..4].copy_from_slice(&number.to_le_bytes());
    record[8..16].copy_from_slice(&slice.start.to_le_bytes());
    record[16..24].copy_from_slice(&slice.blocks.to_le_bytes());
    record[24..40].copy_from_slice(&slice.uuid.0);
    record[40..56].copy_from_slice(&pair.0);
}

fn decode_slice(record: &[u8]) -> Result<Slice, LabelError> {
    let record: &[u8; SLICE] = record.try_into().map_err(|_| LabelError::Short)?;
    if !is_zero(&record[4..8]) || !is_zero(&record[56..]) {
        return Err(LabelError::Field("reserved"));
    }
    let (shard, number, pair) = (record[1], u16_at(record, 2), Uuid(field(record, 40)));
    let paired = (pair.0 != [0; 16]).then_some(pair);
    let kind = match record[0] {
        1 | 4 | 5 if shard != 0 => return Err(LabelError::Field("shard")),
        1 if paired.is_some() => return Err(LabelError::Field("pair")),
        1 => SliceKind::Data { pag: PagId(number) },
        2..=5 if number != 0 => return Err(LabelError::Field("number")),
        2 => SliceKind::Metadata { shard, journal: paired },
        3 => SliceKind::Journal { shard, metadata: paired.ok_or(LabelError::Field("pair"))? },
        4 => SliceKind::Target { journal: paired },
        5 => SliceKind::Content { target: paired.ok_or(LabelError::Field("pair"))? },
        _ => return Err(LabelError::Field("kind")),
    };
    let (start, blocks) = (u64_at(record, 8), u64_at(record, 16));
    Ok(Slice { kind, start, blocks, uuid: Uuid(field(record, 24)) })
}

fn name_in(block: &[u8; BLOCK]) -> Option<&str> {
    let (name, padding) = block[NAME..NAME_END].split_at_checked(usize::from(block[NAME_LEN]))?;
    std::str::from_utf8(name).ok().filter(|_| is_zero(padding))
}

fn seal(block: &mut [u8; BLOCK]) {
    block[CRC..][..4].fill(0);
    let crc = crc32c(block);
    put(block, CRC, &crc.to_le_bytes());
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

fn put(block: &mut [u8; BLOCK], offset: usize, bytes: &[u8]) {
    block[offset..][..bytes.len()].copy_from_slice(bytes);
}

fn field<const N: usize>(block: &[u8], offset: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&block[offset..offset + N]);
    out
}

fn u16_at(block: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(field(block, offset))
}

fn u32_at(block: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(field(block, offset))
}

fn u64_at(block: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(field(block, offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(kind: SliceKind, start: u64, blocks: u64, byte: u8) -> Slice {
        Slice { kind, start, blocks, uuid: Uuid([byte; 16]) }
    }

    fn data(pag: u16, start: u64, blocks: u64) -> Slice {
        slice(SliceKind::Data { pag: PagId(pag) }, start, blocks, 10 + pag as u8)
    }

    fn label(slices: Vec<Slice>) -> Label {
        let label = Label::new(Uuid([1; 16]), "home-1", Uuid([2; 16]), 4096, slices);
        Label { fencing_epoch: Epoch(3), served_at: [4; 32], sequence: 5, ..label }
    }

    #[test]
    fn label_survives_its_encoding() {
        let metadata = SliceKind::Metadata { shard: 3, journal: None };
        let paired = SliceKind::Metadata { shard: 3, journal: Some(Uuid([9; 16])) };
        let journal = SliceKind::Journal { shard: 3, metadata: Uuid([8; 16]) };
        let full = (0..SLICES_MAX as u16).map(|n| data(n, u64::from(n) * 60, 50)).collect();
        let target = |journal| slice(SliceKind::Target { journal }, 0, 100, 20);
        let content = slice(SliceKind::Content { target: Uuid([20; 16]) }, 100, 3995, 21);
        let own = SliceKind::Journal { shard: 0, metadata: Uuid([20; 16]) };
        let inside = vec![target(Some(Uuid([9; 16]))), slice(own, 100, 9, 9)];
        let cases: [(Vec<Slice>, Contents); 12] = [
            (vec![data(7, 0, 4095)], Contents::Data),
            (full, Contents::Data),
            (vec![slice(metadata, 0, 4095, 8)], Contents::Metadata),
            (
                vec![slice(paired, 0, 100, 8), slice(journal, 200, 90, 9)],
                Contents::MetadataAndJournal,
            ),
            (vec![slice(journal, 17, 4078, 9)], Contents::Journal),
            (vec![data(7, 0, 9), slice(metadata, 9, 4, 8)], Contents::Mixture),
            (vec![slice(journal, 0, 9, 8), data(7, 9, 4)], Contents::Mixture),
            (vec![target(None), content], Contents::Target),
            (vec![content], Contents::Target),
            (inside, Contents::Target),
            (vec![target(None), data(7, 100, 50)], Contents::Mixture),
            (vec![target(None), slice(metadata, 100, 50, 8)], Contents::Mixture),
        ];
        for (slices, contents) in cases {
            let mut label = label(slices);
            label.fs_name = "x".repeat(FS_NAME_MAX);
            assert_eq!(Label::decode(&label.encode()).as_ref(), Ok(&label));
            assert_eq!(label.contents(), contents);
        }
    }

    #[test]
    fn label_bytes_are_those_of_format_version_1() {
        let journal = SliceKind::Journal { shard: 4, metadata: Uuid([8; 16]) };
        let block = label(vec![data(7, 0, 100), slice(journal, 100, 3995, 9)]).encode();
        assert_eq!(&block[..8], b"REDBUDL1");
        assert_eq!(block[12..16], [1, 0, 2, 0]);
        assert_eq!(block[16..48], [[1; 16], [2; 16]].concat());
        assert_eq!(block[48..56], 5u64.to_le_bytes());
        assert_eq!(block[56..64], 4096u64.to_le_bytes());
        assert_eq!(block[64..72], [3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&block[72..80], b"\x06home-1\0");
        assert_eq!(block[256..264], [1, 0, 7, 0, 0, 0, 0, 0]);
        assert_eq!(block[272..280], 100u64.to_le_bytes());
        assert_eq!(
            block[320..336],
            [[3, 4, 0, 0, 0, 0, 0, 0], [100, 0, 0, 0, 0, 0, 0, 0]].concat()
        );
        assert_eq!(block[344..376], [[9; 16], [8; 16]].concat());
        assert!(is_zero(&block[384..]));
    }

    #[test]
    fn label_with_any_flipped_bit_is_refused() {
        let block = label(vec![data(7, 0, 4095)]).encode();
        for bit in 0..BLOCK * 8 {
            let mut damaged = block;
            damaged[bit / 8] ^= 1 << (bit % 8);
            let expected = if bit < 64 { LabelError::Foreign } else { LabelError::Checksum };
            assert_eq!(Label::decode(&damaged), Err(expected), "bit {bit}");
        }
    }

    #[test]
    fn label_error_names_the_field_that_is_wrong() {
        let two = label(vec![data(7, 0, 100), data(8, 100, 3995)]);
        let second = SLICES + SLICE;
        let cases: [(usize, &[u8], LabelError); 22] = [
            (VERSION, &[9], LabelError::Version(9)),
            (COUNT, &[0], LabelError::Field("slices")),
            (COUNT, &[1], LabelError::Field("slices")),
            (COUNT, &[3], LabelError::Field("kind")),
            (COUNT, &[61], LabelError::Field("count")),
            (68, &[1], LabelError::Field("reserved")),
            (SERVED_AT_END, &[1], LabelError::Field("reserved")),
            (BLOCK - 1, &[1], LabelError::Field("slices")),
            (BLOCKS, &[0, 0], LabelError::Field("blocks")),
            (BLOCKS, &[0xff, 0xf], LabelError::Field("slice blocks")),
            (NAME_LEN, &[0], LabelError::Field("name")),
            (NAME_LEN, &[64], LabelError::Field("name")),
            (NAME, b"/", LabelError::Field("name")),
            (SLICES + 1, &[1], LabelError::Field("shard")),
            (SLICES + 40, &[1], LabelError::Field("pair")),
            (SLICES, &[3], LabelError::Field("number")),
            (SLICES, &[4, 0], LabelError::Field("number")),
            (SLICES, &[5, 0, 0, 0], LabelError::Field("pair")),
            (SLICES, &[6], LabelError::Field("kind")),
            (second + 2, &[7], LabelError::Field("number")),
            (second + 8, &[99], LabelError::Field("start")),
            (second + 24, &[17; 16], LabelError::Field("slice uuid")),
        ];
        for (offset, bytes, error) in cases {
            let mut block = two.encode();
            put(&mut block, offset, bytes);
            seal(&mut block);
            assert_eq!(Label::decode(&block), Err(error), "offset {offset} {bytes:?}");
        }
        assert_eq!(Label::decode(&[0; 100]), Err(LabelError::Short));
        assert_eq!(Label::decode(&[0; BLOCK]), Err(LabelError::Foreign));
        let mut older = two.encode();
        older[..8].copy_from_slice(&UNRELEASED_LABEL_MAGIC);
        assert_eq!(Label::decode(&older), Err(LabelError::Unreleased));
    }
}
