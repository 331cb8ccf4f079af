//! The label: block 0 of every device that belongs to a Redbud file system.
//!
//! Invariants:
//! - everything that opens a device reads its label before anything else and refuses a
//!   device that is not meant for it: a client refuses metadata, a server refuses data;
//! - mkfs writes a label; only a raise of the fencing epoch changes it; `fsck` rewrites a
//!   damaged one;
//! - [`Label::decode`] is total: any 4096 bytes are a label or a [`LabelError`].
//!
//! All integers are little-endian. The block is 4096 bytes:
//!
//! | offset | size | field | meaning |
//! |---|---|---|---|
//! | 0 | 8 | magic | `"REDBUDLB"` |
//! | 8 | 4 | crc32c | over the whole block with this field zero |
//! | 12 | 2 | version | format version, 1 |
//! | 14 | 1 | kind | 1 data zone, 2 metadata zone |
//! | 15 | 1 | reserved | zero |
//! | 16 | 16 | fs_uuid | the file system |
//! | 32 | 16 | pag_uuid | this zone |
//! | 48 | 2 | pag_id | number of the data zone; 0 on metadata |
//! | 50 | 2 | reserved | zero |
//! | 52 | 4 | fencing_epoch | writes of an older epoch are refused |
//! | 56 | 8 | blocks | 4 KiB blocks of the zone, the label included |
//! | 64 | 1 | name_len | bytes of the file system's name, 1..=63 |
//! | 65 | 63 | name | UTF-8, zero-padded |
//! | 128 | 3968 | reserved | zero |

use std::fmt;

use crate::limits::{BLOCK, BLOCK_U64};
use crate::{Epoch, PagId, Uuid, crc32c};

/// The first eight bytes of a label.
pub const LABEL_MAGIC: [u8; 8] = *b"REDBUDLB";
/// The format version this code writes and reads.
pub const LABEL_VERSION: u16 = 1;
/// Longest name of a file system, in bytes.
pub const FS_NAME_MAX: usize = 63;

const CRC: usize = 8;
const VERSION: usize = 12;
const KIND: usize = 14;
const FS_UUID: usize = 16;
const PAG_UUID: usize = 32;
const PAG_ID: usize = 48;
const EPOCH: usize = 52;
const BLOCKS: usize = 56;
const NAME_LEN: usize = 64;
const NAME: usize = 65;
const END: usize = 128;
/// Ranges that must be zero.
const RESERVED: [(usize, usize); 3] = [(15, 16), (50, 52), (END, BLOCK)];

const _: () = assert!(NAME + FS_NAME_MAX == END);

/// What a labelled device holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum LabelKind {
    /// A data zone: clients read and write it directly.
    Data = 1,
    /// The metadata zone: only metadata servers open it.
    Metadata = 2,
}

impl fmt::Display for LabelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LabelKind::Data => "data",
            LabelKind::Metadata => "metadata",
        })
    }
}

/// The identity of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Label {
    /// What it holds.
    pub kind: LabelKind,
    /// The file system that it belongs to.
    pub fs_uuid: Uuid,
    /// That file system's name; passes [`check_fs_name`].
    pub fs_name: String,
    /// Number of the data zone; 0 on a metadata device.
    pub pag: PagId,
    /// UUID of this zone.
    pub pag_uuid: Uuid,
    /// Blocks of the zone, the label included.
    pub blocks: u64,
    /// Raised by each fencing of a client; older writers are refused.
    pub fencing_epoch: Epoch,
}

/// Why a block is not a usable label.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LabelError {
    /// No magic: the device was never formatted, or another program formatted it.
    Foreign,
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
            LabelError::Short => f.write_str("it is smaller than a label"),
            LabelError::Checksum => f.write_str("its Redbud label is damaged (checksum)"),
            LabelError::Version(version) => write!(
                f,
                "its label has format version {version}, this program knows version {LABEL_VERSION}"
            ),
            LabelError::Field(field) => write!(f, "its label has an impossible value in `{field}`"),
        }
    }
}

impl std::error::Error for LabelError {}

/// Is `name` fit for a file system: 1..=63 ASCII letters, digits, '-', '_' or '.',
/// beginning with a letter or digit? (It appears in `host:/name` and in fstab.)
pub fn check_fs_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    (1..=FS_NAME_MAX).contains(&bytes.len())
        && bytes[0].is_ascii_alphanumeric()
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
}

impl Label {
    /// The label as a block. Panics if [`check_fs_name`] rejects the name.
    pub fn encode(&self) -> [u8; BLOCK] {
        assert!(
            check_fs_name(&self.fs_name),
            "check the name before encoding a label: {:?}",
            self.fs_name
        );
        let mut block = [0u8; BLOCK];
        block[..8].copy_from_slice(&LABEL_MAGIC);
        block[VERSION..][..2].copy_from_slice(&LABEL_VERSION.to_le_bytes());
        block[KIND] = self.kind as u8;
        block[FS_UUID..][..16].copy_from_slice(&self.fs_uuid.0);
        block[PAG_UUID..][..16].copy_from_slice(&self.pag_uuid.0);
        block[PAG_ID..][..2].copy_from_slice(&self.pag.0.to_le_bytes());
        block[EPOCH..][..4].copy_from_slice(&self.fencing_epoch.0.to_le_bytes());
        block[BLOCKS..][..8].copy_from_slice(&self.blocks.to_le_bytes());
        block[NAME_LEN] = self.fs_name.len() as u8;
        block[NAME..][..self.fs_name.len()].copy_from_slice(self.fs_name.as_bytes());
        let crc = crc32c(&block);
        block[CRC..][..4].copy_from_slice(&crc.to_le_bytes());
        block
    }

    /// The UUID of the zone in a block that may no longer be a valid label.
    pub fn pag_uuid_in(bytes: &[u8]) -> Option<Uuid> {
        Some(Uuid(bytes.get(PAG_UUID..PAG_UUID + 16)?.try_into().ok()?))
    }

    /// Reads the label in the first block of a device.
    pub fn decode(bytes: &[u8]) -> Result<Label, LabelError> {
        let block: &[u8; BLOCK] =
            bytes.get(..BLOCK).and_then(|b| b.try_into().ok()).ok_or(LabelError::Short)?;
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
        let kind = match block[KIND] {
            1 => LabelKind::Data,
            2 => LabelKind::Metadata,
            _ => return Err(LabelError::Field("kind")),
        };
        if RESERVED.iter().any(|&(from, to)| block[from..to].iter().any(|&b| b != 0)) {
            return Err(LabelError::Field("reserved"));
        }
        let blocks = u64::from_le_bytes(field(block, BLOCKS));
        if blocks == 0 || blocks > u64::MAX / BLOCK_U64 {
            return Err(LabelError::Field("blocks"));
        }
        let (name, padding) =
            block[NAME..END].split_at(usize::from(block[NAME_LEN]).min(END - NAME));
        let fs_name = std::str::from_utf8(name).ok().filter(|name| check_fs_name(name));
        if padding.iter().any(|&b| b != 0) {
            return Err(LabelError::Field("name"));
        }
        Ok(Label {
            kind,
            fs_uuid: Uuid(field(block, FS_UUID)),
            fs_name: fs_name.ok_or(LabelError::Field("name"))?.to_owned(),
            pag: PagId(u16_at(block, PAG_ID)),
            pag_uuid: Uuid(field(block, PAG_UUID)),
            blocks,
            fencing_epoch: Epoch(u32_at(block, EPOCH)),
        })
    }

    /// Does the device belong to Redbud at all, even with a damaged or newer label?
    /// mkfs checks this before it overwrites anything.
    pub fn is_ours(bytes: &[u8]) -> bool {
        bytes.starts_with(&LABEL_MAGIC)
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks * BLOCK_U64
    }
}

fn field<const N: usize>(block: &[u8; BLOCK], offset: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&block[offset..offset + N]);
    out
}

fn u16_at(block: &[u8; BLOCK], offset: usize) -> u16 {
    u16::from_le_bytes(field(block, offset))
}

fn u32_at(block: &[u8; BLOCK], offset: usize) -> u32 {
    u32::from_le_bytes(field(block, offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label() -> Label {
        Label {
            kind: LabelKind::Data,
            fs_uuid: Uuid([1; 16]),
            fs_name: "home-1".into(),
            pag: PagId(7),
            pag_uuid: Uuid([2; 16]),
            blocks: 4096,
            fencing_epoch: Epoch(3),
        }
    }

    fn reseal(block: &mut [u8; BLOCK]) {
        block[CRC..][..4].fill(0);
        let crc = crc32c(block);
        block[CRC..][..4].copy_from_slice(&crc.to_le_bytes());
    }

    #[test]
    fn label_survives_its_encoding() {
        assert_eq!(Label::decode(&label().encode()), Ok(label()));
        let metadata =
            Label { kind: LabelKind::Metadata, fs_name: "x".repeat(FS_NAME_MAX), ..label() };
        assert_eq!(Label::decode(&metadata.encode()), Ok(metadata));
    }

    #[test]
    fn label_bytes_are_those_of_format_version_1() {
        let block = label().encode();
        assert_eq!(&block[..8], b"REDBUDLB");
        assert_eq!(block[12..16], [1, 0, 1, 0]);
        assert_eq!(block[48..56], [7, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!(block[56..64], 4096u64.to_le_bytes());
        assert_eq!(&block[64..72], b"\x06home-1\0");
        assert_eq!(u32_at(&block, CRC), 0xc6ba_9744);
    }

    #[test]
    fn label_with_any_flipped_bit_is_refused() {
        let block = label().encode();
        for bit in 0..BLOCK * 8 {
            let mut damaged = block;
            damaged[bit / 8] ^= 1 << (bit % 8);
            let expected = if bit < 64 { LabelError::Foreign } else { LabelError::Checksum };
            assert_eq!(Label::decode(&damaged), Err(expected), "bit {bit}");
        }
    }

    #[test]
    fn label_error_names_the_field_that_is_wrong() {
        let cases: [(usize, u8, LabelError); 7] = [
            (VERSION, 9, LabelError::Version(9)),
            (KIND, 3, LabelError::Field("kind")),
            (15, 1, LabelError::Field("reserved")),
            (BLOCK - 1, 1, LabelError::Field("reserved")),
            (BLOCKS + 1, 0, LabelError::Field("blocks")),
            (NAME_LEN, 0, LabelError::Field("name")),
            (NAME, b'/', LabelError::Field("name")),
        ];
        for (offset, value, error) in cases {
            let mut block = label().encode();
            block[offset] = value;
            reseal(&mut block);
            assert_eq!(Label::decode(&block), Err(error), "offset {offset}");
        }
        assert_eq!(Label::decode(&[0; 100]), Err(LabelError::Short));
        assert_eq!(Label::decode(&[0; BLOCK]), Err(LabelError::Foreign));
    }

    #[test]
    fn file_system_name_fits_a_mount_source() {
        for good in ["a", "home", "R2-d2_x.y", "0"] {
            assert!(check_fs_name(good), "{good}");
        }
        for bad in ["", "-a", ".", "a/b", "a b", "ä", &"x".repeat(64)] {
            assert!(!check_fs_name(bad), "{bad}");
        }
    }
}
