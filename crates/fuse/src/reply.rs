//! From results to the bytes of replies.
//!
//! Invariants:
//! - fixed parts are built on the stack; data read is sent from where it lies;
//! - every request that expects an answer gets exactly one: if the kernel refuses
//!   it, EIO replaces it.

use std::io;

use env::FuseChannel;
use types::limits::NAME_MAX;
use types::{Attr, Duration, FileKind, Ino};

use crate::abi::{
    Abi, AttrOut, DIRENT_ALIGN, Dirent, EntryOut, FOPEN_DIRECT_IO, FOPEN_KEEP_CACHE,
    FOPEN_PARALLEL_DIRECT_WRITES, FuseAttr, FuseStatx, Kstatfs, OpenOut, OutHeader, STATX_MASK,
    Sink, StatxOut, SxTime,
};
use crate::errno::Errno;
use crate::fs::{Entry, Listed, Opened, ReadData, Statfs};

/// Bytes of a reply's fixed part, header included.
const HEAD_MAX: usize = OutHeader::SIZE + StatxOut::SIZE;
const _: () = assert!(EntryOut::SIZE + OpenOut::SIZE <= StatxOut::SIZE);

/// Unit of `st_blocks`, relative to blocks of 4 KiB.
const SECTORS_PER_BLOCK: u64 = 8;
/// `st_blksize`.
const BLKSIZE: u32 = 4096;

/// The fixed part of a reply.
pub(crate) struct Head {
    bytes: [u8; HEAD_MAX],
    len: usize,
}

impl Sink for Head {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

impl Head {
    fn new() -> Head {
        Head { bytes: [0; HEAD_MAX], len: OutHeader::SIZE }
    }

    /// Writes the header in front of the parts, for a reply with `body` further bytes.
    fn seal(&mut self, unique: u64, error: i32, body: usize) -> &[u8] {
        let end = std::mem::take(&mut self.len);
        OutHeader { len: (end + body) as u32, error, unique }.write(self);
        self.len = end;
        &self.bytes[..end]
    }
}

/// The answer to a request.
pub(crate) enum Answer {
    /// No answer is sent.
    None,
    /// Success without content, or a failure.
    Status(Result<(), Errno>),
    /// A structure or two.
    Fixed(Box<Head>),
    /// Bytes.
    Bytes(Vec<u8>),
    /// Data of a file.
    Data(ReadData),
}

impl Answer {
    pub(crate) fn fixed<T: Abi>(part: &T) -> Answer {
        let mut head = Box::new(Head::new());
        part.write(&mut *head);
        Answer::Fixed(head)
    }

    pub(crate) fn pair<T: Abi, U: Abi>(first: &T, second: &U) -> Answer {
        let mut head = Box::new(Head::new());
        first.write(&mut *head);
        second.write(&mut *head);
        Answer::Fixed(head)
    }

    /// Sends the answer to request `unique`.
    pub(crate) fn send(self, channel: &FuseChannel, unique: u64) -> io::Result<()> {
        let sent = match self {
            Answer::None => return Ok(()),
            Answer::Status(status) => {
                let error = status.err().map_or(0, |Errno(errno)| -errno);
                channel.reply(Head::new().seal(unique, error, 0), &[])
            }
            Answer::Fixed(mut head) => channel.reply(head.seal(unique, 0, 0), &[]),
            Answer::Bytes(bytes) => channel.reply(Head::new().seal(unique, 0, bytes.len()), &bytes),
            Answer::Data(data) => send_data(channel, unique, &data),
        };
        match sent {
            // The kernel found the reply malformed and still waits.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                channel.reply(Head::new().seal(unique, -libc::EIO, 0), &[])
            }
            sent => sent,
        }
    }
}

fn send_data(channel: &FuseChannel, unique: u64, data: &ReadData) -> io::Result<()> {
    let mut head = Head::new();
    match data.parts.as_slice() {
        [] => channel.reply(head.seal(unique, 0, 0), &[]),
        [part] => channel.reply(head.seal(unique, 0, part.bytes().len()), part.bytes()),
        _ => {
            let bytes = data.to_vec();
            channel.reply(head.seal(unique, 0, bytes.len()), &bytes)
        }
    }
}

/// Attributes in the kernel's form.
pub(crate) fn attr(attr: &Attr) -> FuseAttr {
    FuseAttr {
        ino: attr.ino.0,
        size: attr.size,
        blocks: attr.blocks.saturating_mul(SECTORS_PER_BLOCK),
        atime: attr.atime.seconds as u64,
        mtime: attr.mtime.seconds as u64,
        ctime: attr.ctime.seconds as u64,
        atimensec: attr.atime.nanos,
        mtimensec: attr.mtime.nanos,
        ctimensec: attr.ctime.nanos,
        mode: mode(attr),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: BLKSIZE,
        flags: 0,
    }
}

fn mode(attr: &Attr) -> u32 {
    attr.kind.mode_bits() | u32::from(attr.mode & 0o7777)
}

pub(crate) fn attr_out(value: &Attr, ttl: Duration) -> AttrOut {
    AttrOut {
        attr_valid: ttl.as_secs(),
        attr_valid_nsec: ttl.subsec_nanos(),
        dummy: 0,
        attr: attr(value),
    }
}

pub(crate) fn statx_out(value: &Attr, ttl: Duration) -> StatxOut {
    let time = |t: types::Timestamp| SxTime { seconds: t.seconds, nanos: t.nanos, reserved: 0 };
    StatxOut {
        attr_valid: ttl.as_secs(),
        attr_valid_nsec: ttl.subsec_nanos(),
        stat: FuseStatx {
            mask: STATX_MASK,
            blksize: BLKSIZE,
            nlink: value.nlink,
            uid: value.uid,
            gid: value.gid,
            mode: mode(value) as u16,
            ino: value.ino.0,
            size: value.size,
            blocks: value.blocks.saturating_mul(SECTORS_PER_BLOCK),
            atime: time(value.atime),
            btime: time(value.btime),
            ctime: time(value.ctime),
            mtime: time(value.mtime),
            rdev_major: (value.rdev & 0xfff00) >> 8,
            rdev_minor: (value.rdev & 0xff) | ((value.rdev >> 12) & 0xfff00),
            ..FuseStatx::default()
        },
        ..StatxOut::default()
    }
}

/// An entry; `names`: may the kernel cache names at all?
pub(crate) fn entry_out(entry: &Entry, names: bool) -> EntryOut {
    let entry_ttl = if names { entry.entry_ttl } else { Duration::ZERO };
    EntryOut {
        nodeid: entry.attr.ino.0,
        generation: entry.generation,
        entry_valid: entry_ttl.as_secs(),
        attr_valid: entry.attr_ttl.as_secs(),
        entry_valid_nsec: entry_ttl.subsec_nanos(),
        attr_valid_nsec: entry.attr_ttl.subsec_nanos(),
        attr: attr(&entry.attr),
    }
}

/// A name that does not exist; valid for `ttl`.
pub(crate) fn missing_out(ttl: Duration) -> EntryOut {
    EntryOut {
        entry_valid: ttl.as_secs(),
        entry_valid_nsec: ttl.subsec_nanos(),
        ..EntryOut::default()
    }
}

pub(crate) fn open_out(opened: &Opened) -> OpenOut {
    let mut flags = 0;
    if opened.keep_cache {
        flags |= FOPEN_KEEP_CACHE;
    }
    if opened.direct_io {
        flags |= FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES;
    }
    OpenOut { fh: opened.handle.0, open_flags: flags, backing_id: 0 }
}

pub(crate) fn statfs_out(space: &Statfs) -> Kstatfs {
    Kstatfs {
        blocks: space.blocks,
        bfree: space.blocks_free,
        bavail: space.blocks_free,
        files: space.inodes,
        ffree: space.inodes_free,
        bsize: BLKSIZE,
        namelen: NAME_MAX as u32,
        frsize: BLKSIZE,
        ..Kstatfs::default()
    }
}

/// `DT_` number of a type.
fn dirent_kind(kind: FileKind) -> u32 {
    kind.mode_bits() >> 12
}

/// Puts entries into a reply of at most `size` bytes; calls `left_out` for the
/// inode of each entry with attributes that did not fit.
pub(crate) fn entries(
    listed: &[Listed],
    size: usize,
    plus: bool,
    names: bool,
    mut left_out: impl FnMut(Ino),
) -> Vec<u8> {
    let fixed = Dirent::SIZE + if plus { EntryOut::SIZE } else { 0 };
    let padded = |item: &Listed| (fixed + item.name.len()).next_multiple_of(DIRENT_ALIGN);
    let total: usize = listed.iter().map(padded).sum();
    let mut out = Vec::with_capacity(total.min(size));
    let mut full = false;
    for item in listed {
        full |= out.len() + padded(item) > size;
        if full {
            if let Some(entry) = &item.entry {
                left_out(entry.attr.ino);
            }
            continue;
        }
        let end = out.len() + padded(item);
        if plus {
            // Without a node number the kernel takes the name only.
            let entry = item.entry.as_ref().map_or_else(EntryOut::default, |e| entry_out(e, names));
            entry.write(&mut out);
        }
        Dirent {
            ino: item.ino.0,
            off: item.cookie,
            namelen: item.name.len() as u32,
            kind: dirent_kind(item.kind),
        }
        .write(&mut out);
        out.extend_from_slice(&item.name);
        out.resize(end, 0);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::Reader;
    use types::Timestamp;

    pub(crate) fn an_attr(ino: u64) -> Attr {
        let time = Timestamp { seconds: -5, nanos: 7 };
        Attr {
            ino: Ino(ino),
            kind: FileKind::Regular,
            mode: 0o4755,
            nlink: 2,
            uid: 10,
            gid: 20,
            rdev: 0,
            size: 5000,
            blocks: 2,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            spread: false,
            version: 1,
        }
    }

    fn listed(name: &[u8], cookie: u64, with: bool) -> Listed {
        let entry = Entry {
            attr: an_attr(cookie),
            attr_ttl: Duration::ZERO,
            entry_ttl: Duration::ZERO,
            generation: 0,
        };
        Listed {
            name: name.to_vec(),
            ino: Ino(cookie),
            kind: FileKind::Regular,
            cookie,
            entry: with.then_some(entry),
        }
    }

    #[test]
    fn attr_reports_blocks_in_sectors_and_the_type_in_the_mode() {
        let out = attr(&an_attr(9));
        assert_eq!((out.blocks, out.mode, out.mtime as i64), (16, 0o104755, -5));
        let out = statx_out(&Attr { rdev: 0x0030_05ff, ..an_attr(9) }, Duration::from_millis(1500));
        assert_eq!((out.attr_valid, out.attr_valid_nsec), (1, 500_000_000));
        assert_eq!((out.stat.rdev_major, out.stat.rdev_minor), (5, 0x3ff));
    }

    #[test]
    fn listing_stops_at_the_first_entry_that_does_not_fit() {
        let items = [listed(b".", 1, false), listed(b"abcdefghi", 2, true), listed(b"x", 3, true)];
        let all = entries(&items, 1 << 20, true, true, |_| panic!("there is room"));
        assert_eq!(all.len(), (152 + 8) + (152 + 16) + (152 + 8));
        let mut left = Vec::new();
        let some = entries(&items, all.len() - 161, true, true, |ino| left.push(ino.0));
        assert_eq!((some.len(), left), (160, vec![2, 3]));
        let plain = entries(&items, 1 << 20, false, true, |_| panic!("there is room"));
        assert_eq!(plain.len(), 32 + 40 + 32);
        let first: Dirent = Reader::new(&plain).take().unwrap();
        assert_eq!((first.ino, first.off, first.namelen, first.kind), (1, 1, 1, 8));
    }

    #[test]
    fn names_have_no_lifetime_if_they_cannot_be_recalled() {
        let entry = Entry {
            attr: an_attr(3),
            attr_ttl: Duration::from_secs(9),
            entry_ttl: Duration::from_secs(8),
            generation: 3,
        };
        let out = entry_out(&entry, false);
        assert_eq!((out.entry_valid, out.attr_valid), (0, 9));
        assert_eq!(entry_out(&entry, true).entry_valid, 8);
    }
}
