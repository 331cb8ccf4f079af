//! The log, redo and journals: FORMAT.md 4, 4.1 and 4.2. Redo changes only blocks in memory.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::device::{BLOCK, Block, Error, HEADER, is_zero, raw, u16_at, u32_at, u64_at};
use crate::superblock::Superblock;

const GROUP_HEADER: usize = 64;
const IMAGE: u8 = 1;
const CHANGE: u8 = 2;

/// The result of redo.
#[derive(Default)]
pub struct Redone {
    /// Blocks that have an image in the log, with all later changes applied.
    pub images: BTreeMap<u64, Box<Block>>,
    /// Blocks with changes but no image, and the least LSN that they must have at home.
    pub at_home: BTreeMap<u64, u64>,
    /// Number of whole groups, where the last one begins, and the position after it.
    pub groups: u64,
    pub last: u64,
    pub end: u64,
}

/// Checks that a file is the journal of this superblock (4.2). Returns the position up to which it
/// was durable.
pub fn check_journal(file: &File, superblock: &Superblock) -> Result<u64, Error> {
    let copies = [1, 2].map(|block| raw(file, block).ok().and_then(|data| header(&data)));
    let newest = copies.into_iter().flatten().max_by_key(|header| header.generation);
    let refused = |why: &str| Err(Error::Refused(why.to_owned()));
    let Some(header) = newest else { return refused("no journal") };
    let known = superblock.log_generation;
    match () {
        () if (header.uuid, header.metadata) != (superblock.uuid, superblock.metadata) => {
            refused("the journal of other metadata")
        }
        () if header.journal != superblock.journal => refused("another journal"),
        () if header.retired => refused("the log has moved elsewhere"),
        () if header.generation < known => refused("an older copy of the journal"),
        () if header.generation > known + 1 => refused("an older copy of the metadata"),
        () if header.blocks * BLOCK as u64 != superblock.log_bytes => refused("another size"),
        () => Ok(header.durable),
    }
}

/// The header of a journal.
struct Header {
    uuid: [u8; 16],
    journal: [u8; 16],
    metadata: [u8; 16],
    generation: u64,
    blocks: u64,
    durable: u64,
    retired: bool,
}

/// A copy of the header, if it is whole.
fn header(data: &Block) -> Option<Header> {
    let uuid = |at: usize| data[at..at + 16].try_into().expect("16 bytes");
    let is_one = &data[8..16] == b"REDBUDJ1"
        && crc32c::crc32c(&data[4..]) == u32_at(data, 0)
        && u32_at(data, 4) == 1
        && matches!(data[88], 1 | 2)
        && is_zero(&data[89..]);
    is_one.then(|| Header {
        uuid: uuid(16),
        journal: uuid(32),
        metadata: uuid(48),
        generation: u64_at(data, 64),
        blocks: u64_at(data, 72),
        durable: u64_at(data, 80),
        retired: data[88] == 2,
    })
}

/// Redoes the log from the tail on. `file` has it: the metadata, or the journal.
pub fn redo(file: &File, superblock: &Superblock) -> Result<Redone, Error> {
    let log = Log { file, superblock };
    let mut redone = Redone::default();
    let (mut lsn, mut previous, mut epoch) = (superblock.tail, None, 0);
    while let Some(group) = log.group(lsn)?.filter(|group| !log.is_stale(lsn, group)) {
        if u32_at(&group, 20) < epoch || u32_at(&group, 20) > superblock.epoch {
            return Err(Error::Log { lsn, what: "a group has an impossible epoch" });
        }
        if previous.is_some_and(|previous| previous != u64_at(&group, 40)) {
            return Err(Error::Log { lsn, what: "a group that does not follow the one before it" });
        }
        redone.apply(&group, lsn).ok_or(Error::Log { lsn, what: "a group is malformed" })?;
        redone.groups += 1;
        epoch = u32_at(&group, 20);
        previous = Some(lsn);
        redone.last = lsn;
        lsn += (group.len() as u64).next_multiple_of(BLOCK as u64);
    }
    redone.end = lsn;
    if log.is_group_beyond(lsn)? {
        return Err(Error::Log { lsn, what: "a group is missing and later ones are whole" });
    }
    Ok(redone)
}

struct Log<'a> {
    file: &'a File,
    superblock: &'a Superblock,
}

impl Log<'_> {
    /// `len` bytes at a position; they wrap around at the end of the log.
    fn bytes(&self, lsn: u64, len: usize) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; len];
        let offset = lsn % self.superblock.log_bytes;
        let straight = len.min((self.superblock.log_bytes - offset) as usize);
        let start = self.superblock.log_first * BLOCK as u64;
        self.file.read_exact_at(&mut bytes[..straight], start + offset)?;
        self.file.read_exact_at(&mut bytes[straight..], start)?;
        Ok(bytes)
    }

    /// The whole group that begins at a position.
    fn group(&self, lsn: u64) -> Result<Option<Vec<u8>>, Error> {
        let room = self.superblock.tail + self.superblock.log_bytes - lsn;
        if room < BLOCK as u64 {
            return Ok(None);
        }
        let header = self.bytes(lsn, GROUP_HEADER)?;
        let len = u32_at(&header, 16) as usize;
        let is_one = &header[4..8] == b"RBLG"
            && u64_at(&header, 8) == lsn
            && header[24..40] == self.superblock.uuid
            && is_zero(&header[48..64])
            && (GROUP_HEADER..=room as usize).contains(&len);
        if !is_one {
            return Ok(None);
        }
        let group = self.bytes(lsn, len)?;
        Ok((crc32c::crc32c(&group[4..]) == u32_at(&group, 0)).then_some(group))
    }

    /// Was the server that wrote this group replaced before (4.1, step 2)?
    fn is_stale(&self, lsn: u64, group: &[u8]) -> bool {
        let begun = self.superblock.epochs.iter().rfind(|(_, begin)| *begin <= lsn);
        begun.is_some_and(|(epoch, _)| u32_at(group, 20) < *epoch)
    }

    /// Is there a whole group after the end `lsn` that does not precede it in the log?
    fn is_group_beyond(&self, lsn: u64) -> Result<bool, Error> {
        let end = self.superblock.tail + self.superblock.log_bytes;
        for at in (lsn + BLOCK as u64..end).step_by(BLOCK) {
            let follows = |group: Vec<u8>| {
                (lsn..at).contains(&u64_at(&group, 40)) && !self.is_stale(at, &group)
            };
            if self.group(at)?.is_some_and(follows) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Redone {
    /// Applies the records of a group.
    fn apply(&mut self, group: &[u8], lsn: u64) -> Option<()> {
        let mut at = GROUP_HEADER;
        while at < group.len() {
            let head = group.get(at..at + 8)?;
            let (len, items) = (u32_at(head, 0) as usize, u16_at(head, 6));
            let record = group.get(at..at.checked_add(len)?).filter(|_| &head[4..6] == b"TR")?;
            at += len;
            let mut rest = record.get(8..)?;
            for _ in 0..items {
                rest = self.item(rest, lsn + at as u64)?;
            }
            rest.is_empty().then_some(())?;
        }
        Some(())
    }

    /// Applies one item of the record that ends at `lsn`; returns the bytes after it.
    fn item<'a>(&mut self, bytes: &'a [u8], lsn: u64) -> Option<&'a [u8]> {
        let (head, mut rest) = bytes.split_at_checked(12)?;
        let (block, what, kind) = (u64_at(head, 0), head[8], head[9]);
        if !matches!(what, IMAGE | CHANGE) {
            return None;
        }
        if what == IMAGE {
            let mut data = Box::new([0; BLOCK]);
            data[4] = kind;
            self.images.insert(block, data);
            self.at_home.remove(&block);
        }
        let mut image = self.images.get_mut(&block);
        if image.is_none() {
            self.at_home.insert(block, lsn);
        }
        for _ in 0..u16_at(head, 10) {
            let (run, after) = rest.split_at_checked(4)?;
            let (offset, len) = (usize::from(u16_at(run, 0)), usize::from(u16_at(run, 2)));
            let (new, after) = after.split_at_checked(len)?;
            if offset < HEADER || offset + len > BLOCK {
                return None;
            }
            if let Some(image) = &mut image {
                image[offset..offset + len].copy_from_slice(new);
            }
            rest = after;
        }
        Some(rest)
    }
}
