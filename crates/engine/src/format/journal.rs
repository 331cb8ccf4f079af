//! The header of a journal: a log that lies on another device, or in another slice, than the rest
//! of the metadata.
//!
//! Invariants:
//! - block 0 of the slice belongs to the device's label; the two copies of the header are in blocks
//!   1 and 2, and the log begins in block 3;
//! - the store writes both copies with the next generation, one after the other and each with a
//!   flush. Only then does it write that generation to the superblocks, before each new tail and
//!   at each opening;
//! - so the newest whole copy has the generation of any whole superblock, or the next one. A lower
//!   one is an older copy of the journal; a higher one shows an older copy of the metadata;
//! - the log was durable up to `durable` when the header was written, and the store reuses nothing
//!   of it before both superblocks have the next tail. So redo reaches `durable`, or the metadata
//!   are an older copy whose log is partly overwritten.
//!
//! | offset | size | field      | meaning                                              |
//! |-------:|-----:|------------|------------------------------------------------------|
//! |      0 |    4 | crc        | CRC32C of bytes 4..4096                              |
//! |      4 |    4 | version    | format version of the header, 1                      |
//! |      8 |    8 | magic      | "REDBUDJ1"                                           |
//! |     16 |   16 | uuid       | the file system                                      |
//! |     32 |   16 | journal    | the journal                                          |
//! |     48 |   16 | metadata   | the metadata slice whose log it is                   |
//! |     64 |    8 | generation | raised by each write of the header                   |
//! |     72 |    8 | blocks     | blocks of the log, which begins in block 3           |
//! |     80 |    8 | durable    | position up to which the log was durable             |
//! |     88 |    1 | state      | 1 in use; 2 retired: the log has moved elsewhere     |
//! |     89 | 4007 | reserved   | zero                                                 |

use types::limits::BLOCK;
use types::{Lsn, MetaBlock, Uuid, crc32c};

use crate::format::block::{get_u32, get_u64, put_u32, put_u64};

/// Blocks of the two copies, in the slice.
pub const COPIES: [MetaBlock; 2] = [MetaBlock(1), MetaBlock(2)];
/// Block of the slice where the log begins.
pub const LOG_FIRST: MetaBlock = MetaBlock(3);

const MAGIC: [u8; 8] = *b"REDBUDJ1";
const VERSION: u32 = 1;
const STATE: usize = 88;
const END: usize = STATE + 1;

/// The content of one copy of the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JournalHeader {
    /// The file system.
    pub uuid: Uuid,
    /// The journal.
    pub journal: Uuid,
    /// The metadata slice whose log it is.
    pub metadata: Uuid,
    /// Raised by each write.
    pub generation: u64,
    /// Blocks of the log.
    pub blocks: u64,
    /// The log was durable up to here when the header was written.
    pub durable: Lsn,
    /// The log has moved elsewhere.
    pub retired: bool,
}

/// Why a block cannot be used as a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JournalError {
    /// No magic: it never was a header.
    Foreign,
    /// It was a header; the text says what is wrong with it.
    Damaged(&'static str),
    /// A version that this release does not know.
    Version(u32),
}

impl JournalHeader {
    /// Encodes and seals the header into `block`.
    pub fn encode(&self, block: &mut [u8]) {
        block.fill(0);
        put_u32(block, 4, VERSION);
        block[8..16].copy_from_slice(&MAGIC);
        block[16..32].copy_from_slice(&self.uuid.0);
        block[32..48].copy_from_slice(&self.journal.0);
        block[48..64].copy_from_slice(&self.metadata.0);
        put_u64(block, 64, self.generation);
        put_u64(block, 72, self.blocks);
        put_u64(block, 80, self.durable.0);
        block[STATE] = if self.retired { 2 } else { 1 };
        let crc = crc32c(&block[4..]);
        put_u32(block, 0, crc);
    }

    /// Reads a copy.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn decode(block: &[u8]) -> Result<JournalHeader, JournalError> {
        if block.len() != BLOCK || block[8..16] != MAGIC {
            return Err(JournalError::Foreign);
        }
        if crc32c(&block[4..]) != get_u32(block, 0) {
            return Err(JournalError::Damaged("wrong checksum"));
        }
        if get_u32(block, 4) != VERSION {
            return Err(JournalError::Version(get_u32(block, 4)));
        }
        if block[END..].iter().any(|&byte| byte != 0) {
            return Err(JournalError::Damaged("reserved bytes are not zero"));
        }
        let uuid = |at: usize| {
            let mut uuid = Uuid::default();
            uuid.0.copy_from_slice(&block[at..at + 16]);
            uuid
        };
        let retired = match block[STATE] {
            1 => false,
            2 => true,
            _ => return Err(JournalError::Damaged("impossible state")),
        };
        Ok(JournalHeader {
            uuid: uuid(16),
            journal: uuid(32),
            metadata: uuid(48),
            generation: get_u64(block, 64),
            blocks: get_u64(block, 72),
            durable: Lsn(get_u64(block, 80)),
            retired,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> JournalHeader {
        JournalHeader {
            uuid: Uuid([1; 16]),
            journal: Uuid([2; 16]),
            metadata: Uuid([3; 16]),
            generation: 7,
            blocks: 1024,
            durable: Lsn(4096),
            retired: false,
        }
    }

    #[test]
    fn journal_header_survives_its_encoding() {
        for header in [header(), JournalHeader { retired: true, ..header() }] {
            let mut block = [0x5a; BLOCK];
            header.encode(&mut block);
            assert_eq!(JournalHeader::decode(&block), Ok(header));
        }
    }

    #[test]
    fn journal_header_with_any_damaged_byte_is_refused() {
        let mut block = [0; BLOCK];
        header().encode(&mut block);
        for at in 0..BLOCK {
            let mut block = block;
            block[at] ^= 0x11;
            assert!(JournalHeader::decode(&block).is_err(), "byte {at}");
        }
    }

    #[test]
    fn sealed_journal_header_with_an_unknown_value_is_refused() {
        let cases = [
            (4, 9, JournalError::Version(9)),
            (STATE, 3, JournalError::Damaged("impossible state")),
            (END, 1, JournalError::Damaged("reserved bytes are not zero")),
            (BLOCK - 1, 1, JournalError::Damaged("reserved bytes are not zero")),
        ];
        for (at, value, error) in cases {
            let mut block = [0; BLOCK];
            header().encode(&mut block);
            block[at] = value;
            let crc = crc32c(&block[4..]);
            put_u32(&mut block, 0, crc);
            assert_eq!(JournalHeader::decode(&block), Err(error), "byte {at}");
        }
        assert_eq!(JournalHeader::decode(&[0; BLOCK]), Err(JournalError::Foreign));
        assert_eq!(JournalHeader::decode(&[]), Err(JournalError::Foreign));
    }
}
