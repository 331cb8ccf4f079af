//! The label and the superblock: FORMAT.md 1, 3.2 and 3.3.

use std::fs::File;
use std::path::Path;

use crate::device::{
    BLOCK, Block, CONTENT, CONTENT_1024, CONTENT_2048, CONTENT_4096, Error, SUPERBLOCK, check,
    damaged, is_zero, raw, u16_at, u32_at, u64_at,
};

/// Needed features, by bit (3.3).
const UNFINISHED_LOAD: u8 = 0;
const SLOTS: [(u8, u8); 3] = [(1, CONTENT_1024), (2, CONTENT_2048), (3, CONTENT_4096)];
pub const INLINE_DATA: u8 = 4;
pub const LAYOUT_BLOCKS: u8 = 5;
const EXTERNAL_LOG: u8 = 6;
pub const OBJECT_FILES: u8 = 7;
pub const SHARDS: u8 = 8;
pub const LENT_SPACE: u8 = 9;
pub const MOVED_DIRECTORIES: u8 = 10;
pub const FOLLOWED_OBJECTS: u8 = 11;
const KNOWN: u64 = 0xfff;

#[derive(Debug)]
pub struct Superblock {
    pub name: String,
    /// The shard that issues numbers here.
    pub shard: u8,
    pub uuid: [u8; 16],
    pub blocks: u64,
    pub log_first: u64,
    pub log_bytes: u64,
    pub bitmap_first: u64,
    pub roots: u64,
    pub tail: u64,
    pub epoch: u32,
    /// Epochs and where they began, oldest first.
    pub epochs: Vec<(u32, u64)>,
    /// The copy of the roots; all zero: none.
    pub roots_copy: [u64; 64],
    /// UUIDs of the metadata and of the external log, which is zero if the log is internal.
    pub metadata: [u8; 16],
    pub journal: [u8; 16],
    pub log_generation: u64,
    generation: u64,
    needed: u64,
}

impl Superblock {
    /// The number of the shard's root directory (6).
    pub fn root(&self) -> u64 {
        u64::from(self.shard) << 56 | 1
    }

    /// The number of the orphan directory, which is hidden (6).
    pub fn orphan_directory(&self) -> u64 {
        u64::from(self.shard) << 56 | 2
    }

    /// The superblock of the file system on `file`: the newer of two whole copies, or the only
    /// whole one.
    pub fn find(file: &File) -> Result<Superblock, Error> {
        let label = Label::find(file)?;
        let (uuid, blocks) =
            (label.uuid, label.metadata.map_err(|why| Error::Refused(why.into()))?);
        let first = decode(&*raw(file, 1)?, 1, uuid);
        let second = raw(file, blocks - 1).and_then(|data| decode(&data, blocks - 1, uuid));
        let chosen = match (first, second) {
            // The meaning of a newer format is unknown, whatever the other copy says.
            (Err(Error::Refused(why)), _) | (_, Err(Error::Refused(why))) => {
                return Err(Error::Refused(why));
            }
            (Ok(a), Ok(b)) => {
                if b.generation > a.generation {
                    b
                } else {
                    a
                }
            }
            (Ok(one), Err(_)) | (Err(_), Ok(one)) => one,
            (Err(error), Err(_)) => return Err(error),
        };
        if chosen.has(UNFINISHED_LOAD) {
            return Err(Error::Refused("a load has not ended".to_owned()));
        }
        Ok(chosen)
    }

    pub fn has(&self, feature: u8) -> bool {
        self.needed & 1 << feature != 0
    }

    /// Is the log in a journal?
    pub fn is_external(&self) -> bool {
        self.has(EXTERNAL_LOG)
    }

    /// Type of the blocks of directory content, which gives the slot size (7.2).
    pub fn content_type(&self) -> u8 {
        SLOTS.iter().find(|(bit, _)| self.has(*bit)).map_or(CONTENT, |&(_, kind)| kind)
    }
}

/// What a label says of a slice (1).
#[derive(PartialEq, Eq, Debug)]
pub struct Slice {
    pub kind: u8,
    pub shard: u8,
    pub uuid: [u8; 16],
    /// Of a slice of metadata its journal, of a journal its metadata.
    pub pair: [u8; 16],
}

/// The slices of the device in a file, by its label.
#[expect(clippy::disallowed_methods, reason = "a reader of plain files")]
pub fn slices(path: &Path) -> Result<Vec<Slice>, Error> {
    Ok(Label::find(&File::open(path)?)?.slices)
}

/// What a label says (1) that the reader needs.
#[derive(PartialEq)]
struct Label {
    uuid: [u8; 16],
    sequence: u64,
    /// Blocks of the device.
    device: u64,
    /// Blocks of the slice with the metadata, if it has the front of the device and its log.
    metadata: Result<u64, &'static str>,
    slices: Vec<Slice>,
}

impl Label {
    /// The newer of two whole copies, or the only whole one.
    fn find(file: &File) -> Result<Label, Error> {
        let first = raw(file, 0).and_then(|data| Label::decode(&data, 0));
        let place = match &first {
            Ok(label) => label.device,
            Err(_) => file.metadata()?.len() / BLOCK as u64,
        };
        let place = place.saturating_sub(1);
        let second = raw(file, place).and_then(|data| Label::decode(&data, place));
        let second = second.and_then(|label| match label.device - 1 == place {
            true => Ok(label),
            false => damaged(place, "the label of a device of another size"),
        });
        match (first, second) {
            (Err(Error::Refused(why)), _) | (_, Err(Error::Refused(why))) => {
                Err(Error::Refused(why))
            }
            (Ok(a), Ok(b)) if a.uuid != b.uuid || a.sequence == b.sequence && a != b => {
                Err(Error::Refused("two labels".to_owned()))
            }
            (Ok(a), Ok(b)) => Ok(if b.sequence > a.sequence { b } else { a }),
            (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok(one),
            (Err(error), Err(_)) => Err(error),
        }
    }

    /// The copy in block `place`.
    fn decode(label: &Block, place: u64) -> Result<Label, Error> {
        let mut summed = *label;
        summed[8..12].fill(0);
        let name_len = usize::from(label[72]).min(63);
        let count = usize::from(u16_at(label, 14));
        let device = u64_at(label, 56);
        match () {
            () if &label[..8] == b"REDBUDLB" => {
                return Err(Error::Refused("of before this format".to_owned()));
            }
            () if &label[..8] != b"REDBUDL1" => return damaged(place, "no label"),
            () if crc32c::crc32c(&summed) != u32_at(label, 8) => {
                return damaged(place, "wrong checksum");
            }
            () if u16_at(label, 12) != 1 => {
                return Err(Error::Refused("another version".to_owned()));
            }
            () if count == 0 || count > 60 || device < 3 => {
                return damaged(place, "an impossible size");
            }
            () => {}
        }
        let reserved = [68..72, 73 + name_len..136, 168..256, 256 + 64 * count..BLOCK];
        if reserved.into_iter().any(|range| !is_zero(&label[range])) {
            return damaged(place, "reserved bytes are not zero");
        }
        let (mut end, mut metadata) = (0, Err("not a metadata device"));
        let mut slices = Vec::new();
        let uuid_of = |bytes: &[u8]| bytes.try_into().expect("16 bytes");
        for slice in label[256..256 + 64 * count].chunks_exact(64) {
            let (start, blocks) = (u64_at(slice, 8), u64_at(slice, 16));
            if start < end || blocks < 2 || start.saturating_add(blocks) >= device {
                return damaged(place, "slices overlap or are outside");
            }
            if !is_zero(&slice[4..8]) || !is_zero(&slice[56..]) {
                return damaged(place, "reserved bytes are not zero");
            }
            end = start + blocks;
            let (uuid, pair) = (uuid_of(&slice[24..40]), uuid_of(&slice[40..56]));
            slices.push(Slice { kind: slice[0], shard: slice[1], uuid, pair });
            match slice[0] {
                1 if slice[1] != 0 || !is_zero(&slice[40..56]) => {
                    return damaged(place, "a slice of data with a shard or a pair");
                }
                1 => {}
                2 if start == 0 => metadata = Ok(blocks),
                2 | 3 => metadata = Err("metadata or a log elsewhere"),
                _ => return damaged(place, "an unknown kind of slice"),
            }
        }
        let uuid = uuid_of(&label[16..32]);
        Ok(Label { uuid, sequence: u64_at(label, 48), device, metadata, slices })
    }
}

/// Decodes the copy in block `place`.
fn decode(data: &Block, place: u64, uuid: [u8; 16]) -> Result<Superblock, Error> {
    check(data, place, SUPERBLOCK, crc32c::crc32c(&uuid))?;
    let needed = u64_at(data, 48);
    match () {
        () if &data[32..40] != b"REDBUDM1" || data[56..72] != uuid => {
            return damaged(place, "not the superblock of this file system");
        }
        () if u32_at(data, 40) != 1 => return Err(Error::Refused("another version".to_owned())),
        () if needed & !KNOWN != 0 => return Err(Error::Refused(unknown(data))),
        () => {}
    }
    let name_len = usize::from(u16_at(data, 132)).min(64);
    let reserved = [45..48, 136 + name_len..200, 208..224, 3344..BLOCK];
    if reserved.into_iter().any(|range| !is_zero(&data[range])) {
        return damaged(place, "reserved bytes are not zero");
    }
    let uuid_at = |at: usize| -> [u8; 16] { data[at..at + 16].try_into().expect("16 bytes") };
    let external = needed & 1 << EXTERNAL_LOG != 0;
    if external != (uuid_at(3312) != [0; 16]) || external != (u64_at(data, 3336) != 0) {
        return damaged(place, "an impossible external log");
    }
    // The log begins in block 3 of its journal (4.2).
    let (first, blocks) = match external {
        true => (3, u64_at(data, 3336)),
        false => (u64_at(data, 80), u64_at(data, 88)),
    };
    let superblock = Superblock {
        name: String::from_utf8_lossy(&data[136..136 + name_len]).into_owned(),
        shard: data[44],
        uuid,
        blocks: u64_at(data, 72),
        log_first: first,
        log_bytes: blocks.saturating_mul(BLOCK as u64),
        metadata: uuid_at(3296),
        journal: uuid_at(3312),
        log_generation: u64_at(data, 3328),
        bitmap_first: u64_at(data, 96),
        roots: u64_at(data, 104),
        tail: u64_at(data, 120),
        epoch: u32_at(data, 128),
        epochs: (0..usize::from(u16_at(data, 134)).min(128))
            .map(|n| (u32_at(data, 224 + 12 * n), u64_at(data, 228 + 12 * n)))
            .collect(),
        roots_copy: std::array::from_fn(|n| u64_at(data, 1760 + 8 * n)),
        generation: u64_at(data, 112),
        needed,
    };
    let log_end = u64_at(data, 80).saturating_add(u64_at(data, 88));
    let tail = superblock.tail;
    let possible = tail.is_multiple_of(BLOCK as u64) && tail < u64::MAX - superblock.log_bytes;
    if superblock.log_bytes == 0 || log_end >= superblock.blocks || !possible {
        return damaged(place, "an impossible log");
    }
    Ok(superblock)
}

/// The features that this reader does not know, by their names in the superblock (3.3).
fn unknown(data: &Block) -> String {
    let mut names = &data[2274..2274 + usize::from(u16_at(data, 2272)).min(1022)];
    let mut out = "features".to_owned();
    while let &[bit, len, ref rest @ ..] = names {
        let (name, after) = rest.split_at(rest.len().min(usize::from(len)));
        if bit < 64 && 1u64 << bit & !KNOWN != 0 {
            out += " ";
            out += &String::from_utf8_lossy(name);
        }
        names = after;
    }
    out
}
