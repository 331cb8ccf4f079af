//! The superblock: two copies, either of which suffices to open the file system.
//!
//! Invariants:
//! - the copies are in block 1 and in the last block of the slice; block 0 is not used, as it is
//!   the label if the slice begins at the front of the device;
//! - the store writes a new tail to the copies in turn, with a flush between two
//!   writes, so at any moment one copy is whole;
//! - the store overwrites no byte of the log at or after the older copy's tail: recovery may start
//!   from either copy;
//! - the store raises the epoch in both copies before the first transaction of that epoch.
//!
//! | offset | size | field        | meaning                                           |
//! |-------:|-----:|--------------|---------------------------------------------------|
//! |      0 |   32 | header       | block header, type superblock                     |
//! |     32 |    8 | magic        | "REDBUDM1"                                        |
//! |     40 |    4 | version      | format version, 1                                 |
//! |     44 |    1 | shard        | the shard that issues numbers here (6, 11)        |
//! |     45 |    3 | reserved     | zero                                              |
//! |     48 |    8 | features     | bits that a reader must know                      |
//! |     56 |   16 | uuid         | the file system                                   |
//! |     72 |    8 | blocks       | blocks of the slice, block 0 included             |
//! |     80 |    8 | log_first    | first block of the internal log                   |
//! |     88 |    8 | log_blocks   | blocks of the internal log                        |
//! |     96 |    8 | bitmap_first | first block of the allocation bitmap              |
//! |    104 |    8 | roots        | block of the roots                                |
//! |    112 |    8 | generation   | raised by each write of a copy                    |
//! |    120 |    8 | tail         | position where redo starts                        |
//! |    128 |    4 | epoch        | epoch of the newest opening for writing           |
//! |    132 |    2 | name_len     | bytes of the name, 1..=63                         |
//! |    134 |    2 | epochs_len   | entries of `epochs`, at most 128                  |
//! |    136 |   64 | name         | UTF-8, zero-padded                                |
//! |    200 |    8 | to_write     | bits that a writer must know                      |
//! |    208 |   16 | reserved     | zero                                              |
//! |    224 | 1536 | epochs       | epoch u32 and where it began u64, oldest first    |
//! |   1760 |  512 | roots        | copy of the roots as they are at home; all zero: none |
//! |   2272 |    2 | feature_len  | bytes of `feature_names`, at most 1022            |
//! |   2274 | 1022 | feature_names | names of the features that it has (3.3)          |
//! |   3296 |   16 | metadata     | UUID of the metadata slice                        |
//! |   3312 |   16 | journal      | UUID of the external log (4.2); zero: it is internal |
//! |   3328 |    8 | log_generation | generation of the journal's header that the copy knows |
//! |   3336 |    8 | journal_blocks | blocks of the external log; zero: it is internal |
//! |   3344 |  752 | reserved     | zero                                              |
//!
//! Of two whole copies, the one with the higher generation counts. If either whole copy has a
//! version or a needed feature that the reader does not know, the reader refuses the device,
//! whatever the other copy says. Builds before version 1 wrote the magic "REDBUDMD": no release
//! reads what they made.
//!
//! The tail is a multiple of 4096. An epoch begins at the position where its log continues after
//! redo. From this a client learns whether results that it got in an older epoch survived. A reader
//! needs `epochs` only to skip groups of servers that had been replaced (4.1, step 2).
//!
//! A reader uses the copy of the roots only if the log has no image of the roots block (4.1), and
//! in two cases. Either the block at home is damaged or older than the log says; or its words
//! differ from the copy, it is not newer than the tail, and the log has no change of it: then a
//! write of the block was lost. Any change of the roots after the copy was made is in the log after
//! the tail, and begins there with an image.

use types::limits::{BLOCK, BLOCK_U64};
use types::{Epoch, Lsn, MetaBlock, ShardId, Uuid, check_fs_name};

use crate::format::bitmap::bitmap_blocks;
use crate::format::block::{
    self, Block, BlockType, get_u16, get_u32, get_u64, put_u16, put_u32, put_u64, tag_of,
};
use crate::format::features::{Feature, Features};
use crate::format::roots::{ROOTS, ROOTS_BLOCK, RootWords, get_words, put_words};

/// Block of the first copy; the second is the last block.
pub const FIRST_COPY: MetaBlock = MetaBlock(1);
/// The newest format version.
pub const FORMAT_VERSION: u32 = 1;
/// Number of epochs whose start the superblock keeps.
pub const EPOCHS_MAX: usize = 128;
/// Smallest log. Unit tests wrap around shorter logs, with smaller transactions.
pub const LOG_BYTES_MIN: u64 =
    if cfg!(any(test, feature = "testing")) { 64 << 10 } else { 4 << 20 };
/// Largest log.
pub const LOG_BYTES_MAX: u64 = 1 << 40;
/// Position of the first record of a new file system.
pub const FIRST_LSN: Lsn = Lsn(BLOCK_U64);

const MAGIC: [u8; 8] = *b"REDBUDM1";
/// The magic of builds before version 1, whose forms no release reads.
const UNRELEASED_MAGIC: [u8; 8] = *b"REDBUDMD";
const SHARD: usize = 44;
const NAME: usize = 136;
const NAME_FIELD: usize = 64;
const EPOCHS: usize = 224;
const EPOCH_ENTRY: usize = 12;
const ROOTS_COPY: usize = EPOCHS + EPOCHS_MAX * EPOCH_ENTRY;
const FEATURE_NAMES: usize = ROOTS_COPY + 8 * ROOTS as usize;
const FEATURE_NAMES_MAX: usize = 1022;
const METADATA: usize = FEATURE_NAMES + 2 + FEATURE_NAMES_MAX;
const JOURNAL: usize = METADATA + 16;
const LOG_GENERATION: usize = JOURNAL + 16;
const JOURNAL_BLOCKS: usize = LOG_GENERATION + 8;
const END: usize = JOURNAL_BLOCKS + 8;
/// Bytes that must be zero.
const RESERVED: [std::ops::Range<usize>; 3] = [45..48, 208..EPOCHS, END..BLOCK];

const _: () = assert!(END <= BLOCK);

/// The content of one copy of the superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// The file system.
    pub uuid: Uuid,
    /// Its name.
    pub name: String,
    /// The shard that issues numbers here.
    pub shard: ShardId,
    /// Blocks of the slice.
    pub blocks: u64,
    /// First block of the internal log.
    pub log_first: MetaBlock,
    /// Blocks of the internal log; they stay set aside while the log is external.
    pub log_blocks: u64,
    /// First block of the bitmap.
    pub bitmap_first: MetaBlock,
    /// Raised by each write of a copy.
    pub generation: u64,
    /// Where redo starts.
    pub tail: Lsn,
    /// Features of its format.
    pub features: Features,
    /// Names of the features that a writer must know and this release does not; empty: none.
    pub unknown_to_write: String,
    /// Epoch of the newest opening for writing.
    pub epoch: Epoch,
    /// When the newest epochs began, oldest first.
    pub epochs: Vec<(Epoch, Lsn)>,
    /// The roots as at home; newer ones may be in the log after the tail. All zero: not known.
    pub roots: RootWords,
    /// UUID of the metadata slice.
    pub metadata: Uuid,
    /// The external log; `None`: it is internal.
    pub journal: Option<Journal>,
    /// The generation of the newest header of a journal that this copy knows; it never falls.
    pub log_generation: u64,
}

/// An external log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Journal {
    /// Its UUID.
    pub uuid: Uuid,
    /// Blocks of the log.
    pub blocks: u64,
}

/// Why a block cannot be used as a superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SuperError {
    /// No magic: it never was a superblock.
    Foreign,
    /// It was a superblock; the text says what is wrong with it.
    Damaged(&'static str),
    /// Another version than [`FORMAT_VERSION`]; 0: a form of before version 1.
    Version(u32),
    /// Features this release does not know, by name.
    Features(String),
}

impl Superblock {
    /// The layout of a new file system on a device of `blocks` blocks, or `None` if it is too
    /// small.
    pub fn plan(uuid: Uuid, name: &str, blocks: u64, log_bytes: u64) -> Option<Superblock> {
        let log_first = ROOTS_BLOCK.0 + 1;
        let log_blocks = log_bytes / BLOCK_U64;
        let bitmap_first = log_first.checked_add(log_blocks)?;
        let used = bitmap_first.checked_add(bitmap_blocks(blocks))?;
        // Some room for content besides the last copy.
        if used.checked_add(65)? > blocks {
            return None;
        }
        Some(Superblock::new(uuid, name, blocks, log_blocks))
    }

    /// As [`Superblock::plan`], without the check that everything fits.
    pub fn new(uuid: Uuid, name: &str, blocks: u64, log_blocks: u64) -> Superblock {
        let log_first = ROOTS_BLOCK.0 + 1;
        Superblock {
            uuid,
            name: name.to_owned(),
            shard: ShardId(0),
            blocks,
            log_first: MetaBlock(log_first),
            log_blocks,
            bitmap_first: MetaBlock(log_first + log_blocks),
            generation: 0,
            tail: FIRST_LSN,
            features: Features::NONE,
            unknown_to_write: String::new(),
            epoch: Epoch(0),
            epochs: Vec::new(),
            roots: [0; ROOTS as usize],
            metadata: uuid,
            journal: None,
            log_generation: 0,
        }
    }

    /// Blocks at the front of the device that are never free.
    pub fn reserved(&self) -> u64 {
        self.bitmap_first.0 + bitmap_blocks(self.blocks)
    }

    /// Capacity of the log in bytes, wherever it lies.
    pub fn log_bytes(&self) -> u64 {
        self.journal.map_or(self.log_blocks, |journal| journal.blocks) * BLOCK_U64
    }

    /// Byte offset on the metadata device of position `lsn` of an internal log.
    pub fn log_offset(&self, lsn: Lsn) -> u64 {
        self.log_first.0 * BLOCK_U64 + lsn.0 % (self.log_blocks * BLOCK_U64)
    }

    /// Puts the log into a journal, or with `None` back into its internal place.
    pub fn set_journal(&mut self, journal: Option<Journal>) {
        self.journal = journal;
        self.features = match journal {
            Some(_) => self.features.with(Feature::EXTERNAL_LOG),
            None => self.features.without(Feature::EXTERNAL_LOG),
        };
    }

    /// Block of copy `index` (0 or 1) on a device of `blocks` blocks.
    pub fn place(index: usize, blocks: u64) -> MetaBlock {
        if index == 0 { FIRST_COPY } else { MetaBlock(blocks - 1) }
    }

    /// Records that an epoch begins at `lsn`.
    pub fn begin_epoch(&mut self, epoch: Epoch, lsn: Lsn) {
        self.epoch = epoch;
        if self.epochs.len() == EPOCHS_MAX {
            self.epochs.remove(0);
        }
        self.epochs.push((epoch, lsn));
    }

    /// The epoch of the server that wrote the log at `lsn`, as far as the table reaches: groups
    /// there have this one or a higher one.
    pub fn epoch_at(&self, lsn: Lsn) -> Epoch {
        let begun = self.epochs.iter().rfind(|(_, begin)| *begin <= lsn);
        begun.map_or(Epoch(0), |(epoch, _)| *epoch)
    }

    /// Encodes and seals copy `index` into `block`.
    pub fn encode(&self, index: usize, block: &mut [u8]) {
        let block: &mut Block = block.try_into().expect("a block");
        let place = Superblock::place(index, self.blocks);
        block::initialise(block, place, BlockType::Super, tag_of(self.uuid));
        block::stamp(block, self.tail, self.epoch);
        block[32..40].copy_from_slice(&MAGIC);
        put_u32(block, 40, FORMAT_VERSION);
        block[SHARD] = self.shard.0;
        put_u64(block, 48, self.features.needed);
        put_u64(block, 200, self.features.to_write);
        block[56..72].copy_from_slice(&self.uuid.0);
        let words = [
            self.blocks,
            self.log_first.0,
            self.log_blocks,
            self.bitmap_first.0,
            ROOTS_BLOCK.0,
            self.generation,
            self.tail.0,
        ];
        for (index, word) in words.into_iter().enumerate() {
            put_u64(block, 72 + 8 * index, word);
        }
        put_u32(block, 128, self.epoch.0);
        put_u16(block, 132, self.name.len() as u16);
        put_u16(block, 134, self.epochs.len() as u16);
        block[NAME..NAME + self.name.len()].copy_from_slice(self.name.as_bytes());
        for (index, &(epoch, lsn)) in self.epochs.iter().enumerate() {
            let at = EPOCHS + index * EPOCH_ENTRY;
            put_u32(block, at, epoch.0);
            put_u64(block, at + 4, lsn.0);
        }
        put_words(&self.roots, &mut block[ROOTS_COPY..]);
        let names = self.features.encode_names();
        put_u16(block, FEATURE_NAMES, names.len() as u16);
        block[FEATURE_NAMES + 2..][..names.len()].copy_from_slice(&names);
        block[METADATA..][..16].copy_from_slice(&self.metadata.0);
        if let Some(journal) = self.journal {
            block[JOURNAL..][..16].copy_from_slice(&journal.uuid.0);
            put_u64(block, JOURNAL_BLOCKS, journal.blocks);
        }
        put_u64(block, LOG_GENERATION, self.log_generation);
        block::seal(block);
    }

    /// Reads copy `index` of a device of `blocks` blocks.
    ///
    /// # Errors
    /// Why the copy cannot be used.
    pub fn decode(bytes: &[u8], index: usize, blocks: u64) -> Result<Superblock, SuperError> {
        let block: &Block = bytes.try_into().map_err(|_| SuperError::Foreign)?;
        let unreleased = block[32..40] == UNRELEASED_MAGIC;
        if block[32..40] != MAGIC && !unreleased {
            return Err(SuperError::Foreign);
        }
        let damaged = SuperError::Damaged;
        let uuid = uuid_at(block, 56);
        // Check the version first: it says whether the other fields mean what they mean here.
        if types::crc32c(&block[4..]) != get_u32(block, 0) {
            return Err(damaged("wrong checksum"));
        }
        let version = if unreleased { 0 } else { get_u32(block, 40) };
        if version != FORMAT_VERSION {
            return Err(SuperError::Version(version));
        }
        let features = Features { needed: get_u64(block, 48), to_write: get_u64(block, 200) };
        let unknown_to_write = features.check_known(feature_names(block))?;
        if RESERVED.iter().any(|range| block[range.clone()].iter().any(|&byte| byte != 0)) {
            return Err(damaged("reserved bytes are not zero"));
        }
        let sb = Superblock {
            uuid,
            name: decode_name(block).ok_or(damaged("impossible name"))?,
            shard: ShardId(block[SHARD]),
            blocks: get_u64(block, 72),
            log_first: MetaBlock(get_u64(block, 80)),
            log_blocks: get_u64(block, 88),
            bitmap_first: MetaBlock(get_u64(block, 96)),
            generation: get_u64(block, 112),
            tail: Lsn(get_u64(block, 120)),
            features,
            unknown_to_write,
            epoch: Epoch(get_u32(block, 128)),
            epochs: decode_epochs(block).ok_or(damaged("impossible table of epochs"))?,
            roots: get_words(&block[ROOTS_COPY..]),
            metadata: uuid_at(block, METADATA),
            journal: decode_journal(block).ok_or(damaged("impossible external log"))?,
            log_generation: get_u64(block, LOG_GENERATION),
        };
        if sb.journal.is_some() != features.has(Feature::EXTERNAL_LOG) {
            return Err(damaged("its features contradict the place of the log"));
        }
        let log_bytes = sb.log_blocks.checked_mul(BLOCK_U64).ok_or(damaged("impossible log"))?;
        let plan = Superblock::plan(uuid, &sb.name, sb.blocks, log_bytes);
        let place = Superblock::place(index, blocks);
        block::verify(block, place, tag_of(uuid)).map_err(damaged)?;
        let plan = plan.ok_or(damaged("impossible layout"))?;
        if log_bytes == 0
            || (plan.log_first, plan.bitmap_first) != (sb.log_first, sb.bitmap_first)
            || get_u64(block, 104) != ROOTS_BLOCK.0
            || !sb.tail.0.is_multiple_of(BLOCK_U64)
        {
            return Err(damaged("impossible layout"));
        }
        Ok(sb)
    }
}

/// The names of features that a superblock carries.
fn feature_names(block: &Block) -> &[u8] {
    let len = usize::from(get_u16(block, FEATURE_NAMES)).min(FEATURE_NAMES_MAX);
    &block[FEATURE_NAMES + 2..][..len]
}

fn decode_name(block: &Block) -> Option<String> {
    let len = usize::from(get_u16(block, 132));
    if len > NAME_FIELD {
        return None;
    }
    let name = std::str::from_utf8(&block[NAME..NAME + len]).ok()?;
    check_fs_name(name).then(|| name.to_owned())
}

fn uuid_at(block: &Block, at: usize) -> Uuid {
    let mut uuid = Uuid::default();
    uuid.0.copy_from_slice(&block[at..at + 16]);
    uuid
}

/// The external log, `Some(None)` if the log is internal; `None` if the fields are impossible.
fn decode_journal(block: &Block) -> Option<Option<Journal>> {
    let journal = Journal { uuid: uuid_at(block, JOURNAL), blocks: get_u64(block, JOURNAL_BLOCKS) };
    if journal.uuid == Uuid::default() {
        return (journal.blocks == 0).then_some(None);
    }
    let bytes = journal.blocks.checked_mul(BLOCK_U64)?;
    (LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&bytes).then_some(Some(journal))
}

fn decode_epochs(block: &Block) -> Option<Vec<(Epoch, Lsn)>> {
    let len = usize::from(get_u16(block, 134));
    if len > EPOCHS_MAX {
        return None;
    }
    let entry = |index: usize| {
        let at = EPOCHS + index * EPOCH_ENTRY;
        (Epoch(get_u32(block, at)), Lsn(get_u64(block, at + 4)))
    };
    let epochs: Vec<_> = (0..len).map(entry).collect();
    epochs.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1).then_some(epochs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock() -> Superblock {
        let mut sb = Superblock::plan(Uuid([3; 16]), "home", 10_000, 4 << 20).unwrap();
        sb.begin_epoch(Epoch(1), Lsn(4096));
        sb.begin_epoch(Epoch(2), Lsn(8192));
        sb.generation = 7;
        sb.shard = ShardId(9);
        sb.features = Features::NONE.with(Feature::INLINE_DATA);
        sb.roots[5] = 77;
        sb.roots[63] = u64::MAX;
        sb.log_generation = 9;
        sb
    }

    #[test]
    fn superblock_with_an_external_log_decodes_and_never_contradicts_itself() {
        let mut sb = superblock();
        sb.metadata = Uuid([4; 16]);
        sb.set_journal(Some(Journal { uuid: Uuid([5; 16]), blocks: 2048 }));
        assert_eq!(sb.log_bytes(), 2048 * BLOCK_U64);
        let mut block = [0; BLOCK];
        sb.encode(0, &mut block);
        assert_eq!(Superblock::decode(&block, 0, 10_000), Ok(sb.clone()));
        let impossible = SuperError::Damaged("impossible external log");
        for (uuid, blocks) in [(0, 2048), (5, 0), (5, u64::MAX)] {
            let mut strange = block;
            strange[JOURNAL..][..16].fill(uuid);
            put_u64(&mut strange, JOURNAL_BLOCKS, blocks);
            block::seal(&mut strange);
            assert_eq!(Superblock::decode(&strange, 0, 10_000), Err(impossible.clone()));
        }
        sb.set_journal(None);
        assert_eq!((sb.features, sb.log_bytes()), (superblock().features, 4 << 20));
        sb.features = sb.features.with(Feature::EXTERNAL_LOG);
        sb.encode(0, &mut block);
        let damaged = SuperError::Damaged("its features contradict the place of the log");
        assert_eq!(Superblock::decode(&block, 0, 10_000), Err(damaged));
    }

    #[test]
    fn superblock_copies_decode_to_what_was_encoded() {
        for index in 0..2 {
            let mut block = [0; BLOCK];
            superblock().encode(index, &mut block);
            assert_eq!(Superblock::decode(&block, index, 10_000), Ok(superblock()));
            assert!(Superblock::decode(&block, 1 - index, 10_000).is_err());
        }
    }

    #[test]
    fn superblock_with_any_damaged_byte_is_refused() {
        let mut block = [0; BLOCK];
        superblock().encode(0, &mut block);
        for at in 0..BLOCK {
            let mut block = block;
            block[at] ^= 0x11;
            assert!(Superblock::decode(&block, 0, 10_000).is_err(), "byte {at}");
        }
    }

    #[test]
    fn superblock_of_sealed_nonsense_is_refused_without_a_panic() {
        let mut block = [0; BLOCK];
        superblock().encode(0, &mut block);
        for at in
            (32..232).chain([1759, 2272, 2273, 2274, 2275, 3295, 3296, 3312, 3336, 3344, 4095])
        {
            for value in [0xff, 0x80, 0x7f, 0] {
                let mut block = block;
                block[at] = value;
                block::seal(&mut block);
                let _ = Superblock::decode(&block, 0, 10_000);
            }
        }
        let mut newer = block;
        newer[40] = 9;
        block::seal(&mut newer);
        assert_eq!(Superblock::decode(&newer, 0, 10_000), Err(SuperError::Version(9)));
        let mut unreleased = block;
        unreleased[32..40].copy_from_slice(&UNRELEASED_MAGIC);
        block::seal(&mut unreleased);
        assert_eq!(Superblock::decode(&unreleased, 0, 10_000), Err(SuperError::Version(0)));
        let mut featured = block;
        featured[52] = 5;
        block::seal(&mut featured);
        let unknown = SuperError::Features("bit 32, bit 34".into());
        assert_eq!(Superblock::decode(&featured, 0, 10_000), Err(unknown));
        for at in RESERVED.into_iter().flatten() {
            let mut strange = block;
            strange[at] = 1;
            block::seal(&mut strange);
            let damaged = SuperError::Damaged("reserved bytes are not zero");
            assert_eq!(Superblock::decode(&strange, 0, 10_000), Err(damaged), "byte {at}");
        }
    }

    #[test]
    fn epoch_table_keeps_the_newest_epochs() {
        let mut sb = superblock();
        for epoch in 3..400 {
            sb.begin_epoch(Epoch(epoch), Lsn(u64::from(epoch) * 4096));
        }
        assert_eq!(sb.epochs.len(), EPOCHS_MAX);
        let mut block = [0; BLOCK];
        sb.encode(1, &mut block);
        assert_eq!(Superblock::decode(&block, 1, 10_000), Ok(sb));
    }

    #[test]
    fn plan_refuses_a_device_that_is_too_small() {
        assert!(Superblock::plan(Uuid([3; 16]), "home", 1024, 4 << 20).is_none());
        assert!(Superblock::plan(Uuid([3; 16]), "home", 0, u64::MAX).is_none());
        assert!(Superblock::plan(Uuid([3; 16]), "home", 1200, 4 << 20).is_some());
    }
}
