//! The device: blocks as they are after redo of the log. The reader accepts a block only with a
//! right checksum, its own address and the tag of its file system (FORMAT.md 3.1).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::log::Redone;

pub const BLOCK: usize = 4096;
pub const HEADER: usize = 32;
/// Types of blocks (3.1).
pub const SUPERBLOCK: u8 = 1;
pub const ROOTS: u8 = 2;
pub const BITMAP: u8 = 3;
pub const TREE: u8 = 4;
pub const CONTENT: u8 = 5;
pub const BLOB: u8 = 6;
pub const REPLIES: u8 = 7;
pub const NAME_MAP: u8 = 9;
pub const CONTENT_1024: u8 = 10;
pub const CONTENT_2048: u8 = 11;
pub const CONTENT_4096: u8 = 12;
pub const LAYOUT: u8 = 13;

/// Reserved bytes, by block type.
const RESERVED: [(u8, Range<usize>); 6] = [
    (ROOTS, 544..BLOCK),
    (TREE, 38..48),
    (NAME_MAP, 34..40),
    (NAME_MAP, 4092..BLOCK),
    (LAYOUT, 42..64),
    (BLOB, 57..60),
];

pub type Block = [u8; BLOCK];

/// Why the reader refused something.
#[derive(Debug)]
pub enum Error {
    Io(std::io::Error),
    /// Not damaged, but not readable: no metadata device, another version, unknown features, or an
    /// unfinished load.
    Refused(String),
    /// This block is damaged.
    Damaged {
        block: u64,
        what: &'static str,
    },
    /// The log is damaged at this position.
    Log {
        lsn: u64,
        what: &'static str,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io(error) => write!(f, "{error}"),
            Error::Refused(why) => write!(f, "{why}"),
            Error::Damaged { block, what } => write!(f, "block {block}: {what}"),
            Error::Log { lsn, what } => write!(f, "log at {lsn}: {what}"),
        }
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Error {
        Error::Io(error)
    }
}

pub fn damaged<T>(block: u64, what: &'static str) -> Result<T, Error> {
    Err(Error::Damaged { block, what })
}

/// Integers are little-endian (rule 1).
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Tree keys are big-endian, so that they sort as bytes.
pub fn big(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |n, &byte| n << 8 | u64::from(byte))
}

pub fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// A block at home, unchecked.
pub fn raw(file: &File, block: u64) -> Result<Box<Block>, Error> {
    let mut data = Box::new([0; BLOCK]);
    let Some(place) = block.checked_mul(BLOCK as u64) else {
        return damaged(block, "outside the device");
    };
    file.read_exact_at(&mut data[..], place)?;
    Ok(data)
}

/// Checks the header of the block with this number.
pub fn check(data: &Block, block: u64, kind: u8, tag: u32) -> Result<(), Error> {
    let wrong = match () {
        () if u32_at(data, 0) != crc32c::crc32c(&data[4..]) => "wrong checksum",
        () if u64_at(data, 8) != block => "another block's address",
        () if u32_at(data, 28) != tag => "of another file system",
        () if data[4] != kind => "of another type",
        () if data[5] != 1 || u16_at(data, 6) != 0 => "of an unknown version",
        () => return Ok(()),
    };
    damaged(block, wrong)
}

pub struct Device {
    pub file: File,
    pub blocks: u64,
    pub tag: u32,
    pub redone: Redone,
    /// The blocks that the reader visited, with their types.
    pub visited: RefCell<BTreeMap<u64, u8>>,
}

impl Device {
    /// The block with this number, which must have this type: from the log, or from home if the log
    /// has no image of it.
    pub fn read(&self, block: u64, kind: u8) -> Result<Box<Block>, Error> {
        if block == 0 || block >= self.blocks {
            return damaged(block, "outside the device");
        }
        self.visited.borrow_mut().insert(block, kind);
        let data = match self.redone.images.get(&block) {
            Some(redone) if redone[4] == kind => redone.clone(),
            Some(_) => return damaged(block, "of another type"),
            None => self.at_home(block, kind)?,
        };
        let mut reserved = RESERVED.into_iter().filter(|(of, _)| *of == kind);
        if reserved.any(|(_, range)| !is_zero(&data[range])) {
            return damaged(block, "reserved bytes are not zero");
        }
        Ok(data)
    }

    /// The block at home, which must be as new as the log says if the log has changes of it without
    /// an image (4.1).
    fn at_home(&self, block: u64, kind: u8) -> Result<Box<Block>, Error> {
        let data = raw(&self.file, block)?;
        check(&data, block, kind, self.tag)?;
        let expected = self.redone.at_home.get(&block).copied().unwrap_or(0);
        match u64_at(&data[..], 16) < expected {
            true => damaged(block, "older than the log says"),
            false => Ok(data),
        }
    }
}
