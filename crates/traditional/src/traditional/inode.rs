//! Inodes in the blocks of a group's table.
//!
//! Invariant: `Record::decode` is total; other bytes give an error.
//!
//! | offset | size | field       | meaning                                       |
//! |-------:|-----:|-------------|-----------------------------------------------|
//! |      0 |    1 | kind        | `FileKind`, 0: free                           |
//! |      1 |    1 | flags       | 1: the directory's names are hashed           |
//! |      2 |    2 | mode        |                                               |
//! |      4 |    4 | nlink       |                                               |
//! |      8 |    4 | uid         |                                               |
//! |     12 |    4 | gid         |                                               |
//! |     16 |    4 | rdev        |                                               |
//! |     20 |    4 | next_orphan | 0: the last                                   |
//! |     24 |    8 | size        |                                               |
//! |     32 |    8 | blocks      |                                               |
//! |     40 |    8 | version     |                                               |
//! |     48 |   16 | nanos       | of atime, mtime, ctime, btime                 |
//! |     64 |   32 | seconds     | of the same                                   |
//! |     96 |  112 | pointers    | 12 blocks, one indirect, one doubly indirect  |
//! |    208 |   46 | reserved    |                                               |

use mfs::block::{HEADER, get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};
use mfs::{BlockType, Stop, Txn};
use types::limits::BLOCK;
use types::{Attr, Fault, FileKind, Ino, MetaBlock, Timestamp};

use super::Traditional;

/// Bytes of an inode.
pub const BYTES: usize = (BLOCK - HEADER) / EACH as usize;
/// Inodes of a block.
pub const EACH: u64 = 16;
/// Pointers of an inode: 12 to blocks, one to a block of pointers, one to a block of such.
pub const POINTERS: usize = 14;
/// The directory has an index.
pub const FLAG_HASHED: u8 = 1;
/// Blocks of a table that are read ahead, as ext4 does (`inode_readahead_blks`): those beside the
/// wanted one up to the next multiple of this, in requests of their own, which the kernel does not
/// join with it.
const READ_AHEAD: u64 = 32;

const _: () = assert!(BYTES >= 96 + 8 * POINTERS && HEADER + BYTES * EACH as usize == BLOCK);

/// An inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    pub kind: Option<FileKind>,
    pub flags: u8,
    pub mode: u16,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub next_orphan: Ino,
    pub size: u64,
    pub blocks: u64,
    pub version: u64,
    pub times: [Timestamp; 4],
    pub pointers: [u64; POINTERS],
}

impl Record {
    /// A directory made at `now`, without blocks.
    pub fn directory(now: Timestamp) -> Record {
        Record {
            kind: Some(FileKind::Directory),
            flags: 0,
            mode: 0o755,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            next_orphan: Ino::NONE,
            size: 0,
            blocks: 0,
            version: 1,
            times: [now; 4],
            pointers: [0; POINTERS],
        }
    }

    fn decode(bytes: &[u8]) -> Result<Record, &'static str> {
        let kind = match bytes[0] {
            0 => None,
            kind => Some(FileKind::from_u8(kind).ok_or("an inode of no kind")?),
        };
        let mut times = [Timestamp::default(); 4];
        for (n, time) in times.iter_mut().enumerate() {
            time.nanos = get_u32(bytes, 48 + 4 * n);
            time.seconds = get_u64(bytes, 64 + 8 * n) as i64;
        }
        let mut pointers = [0; POINTERS];
        for (n, pointer) in pointers.iter_mut().enumerate() {
            *pointer = get_u64(bytes, 96 + 8 * n);
        }
        Ok(Record {
            kind,
            flags: bytes[1],
            mode: get_u16(bytes, 2),
            nlink: get_u32(bytes, 4),
            uid: get_u32(bytes, 8),
            gid: get_u32(bytes, 12),
            rdev: get_u32(bytes, 16),
            next_orphan: Ino(u64::from(get_u32(bytes, 20))),
            size: get_u64(bytes, 24),
            blocks: get_u64(bytes, 32),
            version: get_u64(bytes, 40),
            times,
            pointers,
        })
    }

    fn encode(&self, bytes: &mut [u8]) {
        bytes[0] = self.kind.map_or(0, |kind| kind as u8);
        bytes[1] = self.flags;
        put_u16(bytes, 2, self.mode);
        put_u32(bytes, 4, self.nlink);
        put_u32(bytes, 8, self.uid);
        put_u32(bytes, 12, self.gid);
        put_u32(bytes, 16, self.rdev);
        put_u32(bytes, 20, self.next_orphan.0 as u32);
        put_u64(bytes, 24, self.size);
        put_u64(bytes, 32, self.blocks);
        put_u64(bytes, 40, self.version);
        for (n, time) in self.times.iter().enumerate() {
            put_u32(bytes, 48 + 4 * n, time.nanos);
            put_u64(bytes, 64 + 8 * n, time.seconds as u64);
        }
        for (n, pointer) in self.pointers.iter().enumerate() {
            put_u64(bytes, 96 + 8 * n, *pointer);
        }
    }

    /// Has the directory an index?
    pub fn is_hashed(&self) -> bool {
        self.flags & FLAG_HASHED != 0
    }

    /// Its attributes.
    pub fn attr(&self, ino: Ino) -> Attr {
        let [atime, mtime, ctime, btime] = self.times;
        Attr {
            ino,
            kind: self.kind.unwrap_or(FileKind::Regular),
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size: self.size,
            blocks: self.blocks,
            atime,
            mtime,
            ctime,
            btime,
            spread: false,
            version: self.version,
        }
    }

    /// Takes over what may be set.
    pub fn set(&mut self, attr: &Attr) {
        self.mode = attr.mode;
        self.nlink = attr.nlink;
        self.uid = attr.uid;
        self.gid = attr.gid;
        self.rdev = attr.rdev;
        self.version = attr.version;
        self.times = [attr.atime, attr.mtime, attr.ctime, attr.btime];
        if self.kind != Some(FileKind::Directory) {
            self.size = attr.size;
        }
    }
}

impl Traditional {
    /// The inode, allocated or not. Its block is read with those beside it.
    pub(super) fn load(&self, txn: &mut Txn<'_>, ino: Ino) -> Result<Record, Stop> {
        let (group, place) = self.place(ino).ok_or(Stop::Fault(Fault::Stale))?;
        let descriptor = self.descriptor(txn, group)?;
        let index = place / EACH;
        if index >= u64::from(descriptor.initialised) {
            return Err(Fault::Stale.into());
        }
        let block = MetaBlock(descriptor.table().0 + index);
        if let Err(missing @ Stop::Miss(..)) = txn.read(block) {
            let table = descriptor.table().0;
            let end = table + u64::from(descriptor.initialised);
            let from = (block.0 / READ_AHEAD * READ_AHEAD).max(table);
            let to = (block.0 / READ_AHEAD * READ_AHEAD + READ_AHEAD + 1).min(end);
            txn.require_cached(MetaBlock(from), (block.0 - from) as u32)?;
            self.ahead.borrow_mut().insert(block, (to - block.0 - 1) as u32);
            return Err(missing);
        }
        let ahead = self.ahead.borrow_mut().remove(&block);
        if let Some(count) = ahead {
            txn.require_cached(MetaBlock(block.0 + 1), count)?;
        }
        let data = txn.read_as(block, BlockType::Table)?;
        let at = HEADER + (place % EACH) as usize * BYTES;
        Record::decode(&data[at..at + BYTES]).map_err(|what| Stop::Corrupt(block, what))
    }

    /// The inode, which must be there.
    pub(super) fn live(&self, txn: &mut Txn<'_>, ino: Ino) -> Result<Record, Stop> {
        let record = self.load(txn, ino)?;
        if record.kind.is_none() { Err(Fault::Stale.into()) } else { Ok(record) }
    }

    /// The inode of a directory that has a name.
    pub(super) fn live_dir(&self, txn: &mut Txn<'_>, ino: Ino) -> Result<Record, Stop> {
        let record = match self.load(txn, ino) {
            Err(Stop::Fault(Fault::Stale)) => return Err(Fault::NotFound.into()),
            other => other?,
        };
        match record.kind {
            Some(FileKind::Directory) if record.nlink > 0 => Ok(record),
            Some(FileKind::Directory) | None => Err(Fault::NotFound.into()),
            Some(_) => Err(Fault::NotDirectory.into()),
        }
    }

    /// Writes the inode. Its block is in use.
    pub(super) fn store(&self, txn: &mut Txn<'_>, ino: Ino, record: &Record) -> Result<(), Stop> {
        let (group, place) = self.place(ino).ok_or(Stop::Fault(Fault::Stale))?;
        let block = MetaBlock(self.descriptor(txn, group)?.table().0 + place / EACH);
        let data = txn.write_as(block, BlockType::Table)?;
        let at = HEADER + (place % EACH) as usize * BYTES;
        record.encode(&mut data[at..at + BYTES]);
        Ok(())
    }
}
