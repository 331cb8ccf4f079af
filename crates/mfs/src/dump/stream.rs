//! The stream of a dump: records, each with a checksum.
//!
//! Invariants:
//! - the first record is a head and the last an end; between them every directory comes before what
//!   is in it, and an inode before its content, further names and segments;
//! - inodes are numbered by the dump, from 1 (the root) up, in the order of their records: numbers
//!   of the file system are not in it;
//! - records carry a running number in their checksum: one that is missing, doubled or moved is
//!   noticed;
//! - nothing follows the end; nanoseconds are below 1,000,000,000;
//! - reading is total: any bytes give records or a [`StreamError`], and no record is larger than
//!   [`RECORD_MAX`].
//!
//! Integers are little-endian. A record: length of the body u32, kind u8, CRC32C u32 over the
//! record's number (u64, the first is 0), the kind and the body, then the body. *bytes* is a length
//! u32 and so many bytes.
//!
//! | kind | name | body |
//! |---|---|---|
//! | 1 | head | `"REDBUDDMP1"` · version u32 (1; 2 if there are object targets; 3 if there are several metadata servers) · content u8 (1 where the file system has the feature `inline-data`; else 0: there are no records of content) · name of the file system, bytes · only in version 3: metadata servers u8, at least two · zones u32, each ⟨server u8, only in version 3; pag u16, uuid 16, start on the device u64, blocks u64⟩ · only in versions 2 and 3: object targets u32, in version 2 at least one, each ⟨server u8, only in version 3; pag u16, uuid 16, blocks u64, address, bytes⟩ |
//! | 2 | inode | number u64 · parent u64 (0: this is the root) · name, bytes · kind u8 · mode u16 · uid u32 · gid u32 · rdev u32 · size u64 · atime, mtime, ctime, btime, each ⟨seconds i64, nanos u32⟩ · version u64 · target of a symlink, bytes · xattrs u32, each ⟨name, bytes; value, bytes⟩ |
//! | 8 | inode elsewhere | server u8, not 0 · as an inode; only in version 3. An inode of kind 2 lies with server 0 |
//! | 3 | link | parent u64 · name, bytes · number of the inode u64 |
//! | 4 | segments | number of the inode u64 · count u32 (1 to 1000), each a segment of 24 bytes as in a slot |
//! | 6 | content | number of the inode u64 · what its block 0 begins with, bytes; the rest of the block is zero |
//! | 7 | object | number of the inode u64 · its object record as in a slot; only with object targets |
//! | 5 | end | inodes u64 · links u64 · segments u64 |

use std::fmt;
use std::io::{Read, Write};

use types::limits::{SYMLINK_MAX, XATTR_TOTAL_MAX};
use types::{Attr, FileKind, Ino, PagId, Segment, ShardId, Timestamp, Uuid};

use crate::format::object::ObjectRecord;
use crate::format::segment::{SEGMENT, decode_segment, encode_segment};
use crate::format::xattr::{BLOB_MAX, Xattr};
use engine::format::block::{get_u32, get_u64};
use engine::stream::{RecordError, RecordReader, RecordWriter};

/// The version of a stream without object targets.
pub const STREAM_VERSION: u32 = 1;
/// The version of a stream with some.
pub const STREAM_VERSION_OBJECTS: u32 = 2;
/// The version of a stream of several metadata servers.
pub const STREAM_VERSION_SERVERS: u32 = 3;
/// Bytes of a record's body at most.
pub const RECORD_MAX: usize = BLOB_MAX + SYMLINK_MAX + 4096;
/// Segments of one record.
pub const SEGMENTS_MAX: usize = 1000;

const MAGIC: &[u8; 10] = b"REDBUDDMP1";
/// Nanoseconds of a second.
const NANOS: u32 = 1_000_000_000;
const _: () = assert!(SEGMENTS_MAX * SEGMENT + 12 < RECORD_MAX && XATTR_TOTAL_MAX < RECORD_MAX);

/// A data zone, as the dump knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Zone {
    /// The metadata server whose zone it is; 0 in a dump of one.
    pub server: ShardId,
    /// Its number.
    pub id: PagId,
    /// The UUID of its slice.
    pub uuid: Uuid,
    /// Its first block on the device.
    pub start: u64,
    /// Its blocks, block 0 included.
    pub blocks: u64,
}

/// An object target, as the dump knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetZone {
    /// The metadata server that knows it by this number; 0 in a dump of one.
    pub server: ShardId,
    /// Its number.
    pub id: PagId,
    /// Its UUID.
    pub uuid: Uuid,
    /// Its blocks for content.
    pub blocks: u64,
    /// Where it was found.
    pub address: Vec<u8>,
}

/// An inode with its first name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inode {
    /// The metadata server with which it lies; 0 in a dump of one.
    pub server: ShardId,
    /// Number of its directory in the dump; 0: this is the root.
    pub parent: u64,
    /// Its name; empty for the root.
    pub name: Vec<u8>,
    /// Its attributes; `ino` is its number in the dump. Links and blocks are not dumped.
    pub attr: Attr,
    /// The target of a symlink, else empty.
    pub target: Vec<u8>,
    /// Its extended attributes, sorted.
    pub xattrs: Vec<Xattr>,
}

/// One record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// The first.
    Head {
        /// May there be records of inline data?
        content: bool,
        /// Name of the file system.
        name: Vec<u8>,
        /// Its metadata servers: those of the dump.
        servers: u8,
        /// Its data zones.
        zones: Vec<Zone>,
        /// Its object targets.
        targets: Vec<TargetZone>,
    },
    /// An inode.
    Inode(Box<Inode>),
    /// A further name.
    Link {
        /// The directory's number.
        parent: u64,
        /// The name.
        name: Vec<u8>,
        /// The inode's number.
        number: u64,
    },
    /// Segments of a file, in order.
    Segments {
        /// The inode's number.
        number: u64,
        /// The segments.
        list: Vec<Segment>,
    },
    /// Inline data of a file.
    Content {
        /// The inode's number.
        number: u64,
        /// What block 0 begins with.
        bytes: Vec<u8>,
    },
    /// Where a file lies that has an object.
    Object {
        /// The inode's number.
        number: u64,
        /// Its record.
        record: ObjectRecord,
    },
    /// The last.
    End {
        /// Inodes in the dump.
        inodes: u64,
        /// Further names.
        links: u64,
        /// Segments.
        segments: u64,
    },
}

/// Why a stream cannot be read on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StreamError {
    /// It is no dump.
    Foreign,
    /// A newer version.
    Version(u32),
    /// It ends before its end record, in the record with this number.
    Truncated(u64),
    /// A record is damaged: its number, and what is wrong.
    Damaged(u64, &'static str),
    /// Reading or writing failed.
    Io(String),
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StreamError::Foreign => {
                f.write_str("this is no dump of Redbud, or one from before version 1")
            }
            StreamError::Version(version) => write!(
                f,
                "the dump has version {version}, this release knows {STREAM_VERSION_SERVERS}; use a newer \
                 release of redbud"
            ),
            StreamError::Truncated(number) => {
                write!(f, "the dump ends too early, in record {number}; copy it again")
            }
            StreamError::Damaged(number, what) => {
                write!(f, "record {number} of the dump is damaged ({what}); copy it again")
            }
            StreamError::Io(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for StreamError {}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

impl Record {
    fn kind(&self) -> u8 {
        match self {
            Record::Head { .. } => 1,
            Record::Inode(inode) if inode.server == ShardId(0) => 2,
            Record::Inode(_) => 8,
            Record::Link { .. } => 3,
            Record::Segments { .. } => 4,
            Record::End { .. } => 5,
            Record::Content { .. } => 6,
            Record::Object { .. } => 7,
        }
    }

    fn encode_head(&self, out: &mut Vec<u8>) {
        let Record::Head { content, name, servers, zones, targets } = self else { return };
        let several = *servers > 1;
        let version = match (several, targets.is_empty()) {
            (true, _) => STREAM_VERSION_SERVERS,
            (false, false) => STREAM_VERSION_OBJECTS,
            (false, true) => STREAM_VERSION,
        };
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&version.to_le_bytes());
        out.push(u8::from(*content));
        put_bytes(out, name);
        out.extend(several.then_some(*servers));
        out.extend_from_slice(&(zones.len() as u32).to_le_bytes());
        for zone in zones {
            out.extend(several.then_some(zone.server.0));
            out.extend_from_slice(&zone.id.0.to_le_bytes());
            out.extend_from_slice(&zone.uuid.0);
            out.extend_from_slice(&zone.start.to_le_bytes());
            out.extend_from_slice(&zone.blocks.to_le_bytes());
        }
        if version == STREAM_VERSION {
            return;
        }
        out.extend_from_slice(&(targets.len() as u32).to_le_bytes());
        for target in targets {
            out.extend(several.then_some(target.server.0));
            out.extend_from_slice(&target.id.0.to_le_bytes());
            out.extend_from_slice(&target.uuid.0);
            out.extend_from_slice(&target.blocks.to_le_bytes());
            put_bytes(out, &target.address);
        }
    }

    fn decode_head(body: &mut Body<'_>) -> Option<Record> {
        body.take(MAGIC.len())?;
        let version = body.u32()?;
        let content = body.flag()?;
        let name = body.bytes()?.to_vec();
        let several = version == STREAM_VERSION_SERVERS;
        let servers = if several { body.u8()? } else { 1 };
        let server = |body: &mut Body<'_>| match several {
            true => body.u8().filter(|&server| server < servers).map(ShardId),
            false => Some(ShardId(0)),
        };
        let mut zones = Vec::new();
        for _ in 0..body.u32()? {
            let (server, id) = (server(body)?, PagId(body.u16()?));
            let uuid = Uuid(body.take(16)?.try_into().ok()?);
            zones.push(Zone { server, id, uuid, start: body.u64()?, blocks: body.u64()? });
        }
        let mut targets = Vec::new();
        let count = if version == STREAM_VERSION { 0 } else { body.u32()? };
        for _ in 0..count {
            let (server, id) = (server(body)?, PagId(body.u16()?));
            let uuid = Uuid(body.take(16)?.try_into().ok()?);
            let (blocks, address) = (body.u64()?, body.bytes()?.to_vec());
            targets.push(TargetZone { server, id, uuid, blocks, address });
        }
        let sound = match version {
            STREAM_VERSION_SERVERS => servers > 1,
            STREAM_VERSION_OBJECTS => !targets.is_empty(),
            _ => true,
        };
        sound.then_some(Record::Head { content, name, servers, zones, targets })
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Record::Head { .. } => self.encode_head(&mut out),
            Record::Inode(inode) => {
                if inode.server != ShardId(0) {
                    out.push(inode.server.0);
                }
                inode.encode(&mut out);
            }
            Record::Link { parent, name, number } => {
                out.extend_from_slice(&parent.to_le_bytes());
                put_bytes(&mut out, name);
                out.extend_from_slice(&number.to_le_bytes());
            }
            Record::Segments { number, list } => {
                out.extend_from_slice(&number.to_le_bytes());
                out.extend_from_slice(&(list.len() as u32).to_le_bytes());
                list.iter().for_each(|segment| out.extend_from_slice(&encode_segment(segment)));
            }
            Record::Content { number, bytes } => {
                out.extend_from_slice(&number.to_le_bytes());
                put_bytes(&mut out, bytes);
            }
            Record::Object { number, record } => {
                out.extend_from_slice(&number.to_le_bytes());
                out.extend_from_slice(&record.encode());
            }
            Record::End { inodes, links, segments } => {
                [inodes, links, segments]
                    .iter()
                    .for_each(|count| out.extend_from_slice(&count.to_le_bytes()));
            }
        }
        out
    }

    fn decode(kind: u8, body: &[u8]) -> Option<Record> {
        let mut body = Body(body);
        let record = match kind {
            1 => Record::decode_head(&mut body)?,
            2 => Record::Inode(Box::new(Inode::decode(ShardId(0), &mut body)?)),
            8 => {
                let server = ShardId(body.u8().filter(|&server| server > 0)?);
                Record::Inode(Box::new(Inode::decode(server, &mut body)?))
            }
            3 => {
                let (parent, name) = (body.u64()?, body.bytes()?.to_vec());
                Record::Link { parent, name, number: body.u64()? }
            }
            4 => {
                let (number, count) = (body.u64()?, body.u32()? as usize);
                if count == 0 || count > SEGMENTS_MAX {
                    return None;
                }
                let mut list = Vec::new();
                for _ in 0..count {
                    list.push(decode_segment(body.take(SEGMENT)?)?);
                }
                Record::Segments { number, list }
            }
            5 => Record::End { inodes: body.u64()?, links: body.u64()?, segments: body.u64()? },
            7 => {
                let number = body.u64()?;
                let record = ObjectRecord::decode(std::mem::take(&mut body.0))?;
                Record::Object { number, record }
            }
            6 => Record::Content { number: body.u64()?, bytes: body.bytes()?.to_vec() },
            _ => return None,
        };
        body.0.is_empty().then_some(record)
    }
}

impl Inode {
    fn encode(&self, out: &mut Vec<u8>) {
        let attr = &self.attr;
        out.extend_from_slice(&attr.ino.0.to_le_bytes());
        out.extend_from_slice(&self.parent.to_le_bytes());
        put_bytes(out, &self.name);
        out.push(attr.kind as u8);
        out.extend_from_slice(&attr.mode.to_le_bytes());
        for word in [attr.uid, attr.gid, attr.rdev] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&attr.size.to_le_bytes());
        for time in [attr.atime, attr.mtime, attr.ctime, attr.btime] {
            out.extend_from_slice(&time.seconds.to_le_bytes());
            out.extend_from_slice(&time.nanos.to_le_bytes());
        }
        out.extend_from_slice(&attr.version.to_le_bytes());
        put_bytes(out, &self.target);
        out.extend_from_slice(&(self.xattrs.len() as u32).to_le_bytes());
        for (name, value) in &self.xattrs {
            put_bytes(out, name);
            put_bytes(out, value);
        }
    }

    fn decode(server: ShardId, body: &mut Body<'_>) -> Option<Inode> {
        let (ino, parent, name) = (Ino(body.u64()?), body.u64()?, body.bytes()?.to_vec());
        let kind = FileKind::from_u8(body.u8()?)?;
        let (mode, uid, gid, rdev) = (body.u16()?, body.u32()?, body.u32()?, body.u32()?);
        let size = body.u64()?;
        let mut times = [Timestamp::default(); 4];
        for time in &mut times {
            let (seconds, nanos) = (body.u64()? as i64, body.u32()?);
            if nanos >= NANOS {
                return None;
            }
            *time = Timestamp { seconds, nanos };
        }
        let [atime, mtime, ctime, btime] = times;
        let version = body.u64()?;
        let target = body.bytes()?.to_vec();
        let mut xattrs = Vec::new();
        for _ in 0..body.u32()? {
            xattrs.push((body.bytes()?.to_vec(), body.bytes()?.to_vec()));
        }
        let attr = Attr {
            ino,
            kind,
            mode,
            nlink: 0,
            uid,
            gid,
            rdev,
            size,
            blocks: 0,
            atime,
            mtime,
            ctime,
            btime,
            // Loading it again decides that anew.
            spread: false,
            version,
        };
        Some(Inode { server, parent, name, attr, target, xattrs })
    }
}

/// The unread remainder of a body.
struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn u8(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn u16(&mut self) -> Option<u16> {
        Some(engine::format::block::get_u16(self.take(2)?, 0))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(get_u32(self.take(4)?, 0))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(get_u64(self.take(8)?, 0))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        self.take(len)
    }
}

/// Writes records.
pub struct Writer<'a>(RecordWriter<'a>);

impl<'a> Writer<'a> {
    /// Writes to `out`, which should be buffered.
    pub fn new(out: &'a mut dyn Write) -> Writer<'a> {
        Writer(RecordWriter::new(out))
    }

    /// Writes the next record.
    ///
    /// # Errors
    /// `Io`.
    pub fn put(&mut self, record: &Record) -> Result<(), StreamError> {
        let written = self.0.put(record.kind(), &record.encode());
        written.map_err(|error| StreamError::Io(format!("writing the dump: {error}")))
    }
}

/// Reads records.
pub struct Reader<'a> {
    records: RecordReader<'a>,
    /// Records of content may come.
    content: bool,
    /// Records of objects may come.
    objects: bool,
    /// Metadata servers with which inodes may lie.
    servers: u8,
}

impl<'a> Reader<'a> {
    /// Reads from `input`, which should be buffered.
    pub fn new(input: &'a mut dyn Read) -> Reader<'a> {
        Reader { records: RecordReader::new(input), content: false, objects: false, servers: 1 }
    }

    /// Number of the next record.
    pub fn number(&self) -> u64 {
        self.records.number()
    }

    fn unread(&self, error: RecordError) -> StreamError {
        match error {
            RecordError::Truncated => StreamError::Truncated(self.number()),
            RecordError::Io(error) => StreamError::Io(format!("reading the dump: {error}")),
        }
    }

    /// Checks that nothing follows the last record.
    ///
    /// # Errors
    /// `Damaged` if something does; `Io`.
    pub fn end(&mut self) -> Result<(), StreamError> {
        match self.records.is_at_end() {
            Ok(true) => Ok(()),
            Ok(false) => Err(StreamError::Damaged(self.number(), "bytes behind the end")),
            Err(error) => Err(StreamError::Io(format!("reading the dump: {error}"))),
        }
    }

    /// Reads the next record.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub fn take(&mut self) -> Result<Record, StreamError> {
        let number = self.number();
        let damaged = |what| StreamError::Damaged(number, what);
        let prefix = self.records.prefix().map_err(|error| self.unread(error))?;
        let (len, kind) = (prefix.len, prefix.kind);
        if number == 0 && (kind != 1 || len < MAGIC.len() + 4 || len > RECORD_MAX) {
            return Err(StreamError::Foreign);
        }
        if len > RECORD_MAX {
            return Err(damaged("impossible length"));
        }
        let body = self.records.body(&prefix).map_err(|error| self.unread(error))?;
        if number == 0 && !body.starts_with(MAGIC) {
            return Err(StreamError::Foreign);
        }
        if !self.records.is_whole(&prefix, &body) {
            return Err(damaged("wrong checksum"));
        }
        // The version decides whether the remainder can be understood.
        let known = [STREAM_VERSION, STREAM_VERSION_OBJECTS, STREAM_VERSION_SERVERS];
        if number == 0 && !known.contains(&get_u32(&body, MAGIC.len())) {
            return Err(StreamError::Version(get_u32(&body, MAGIC.len())));
        }
        self.records.advance();
        let record = Record::decode(kind, &body).ok_or(damaged("it makes no sense"))?;
        match record {
            Record::Head { content, servers, ref targets, .. } if number == 0 => {
                (self.content, self.objects) = (content, !targets.is_empty());
                self.servers = servers;
            }
            Record::Inode(ref inode) if inode.server.0 >= self.servers => {
                return Err(damaged("an inode of a server that the head does not have"));
            }
            Record::Content { .. } if !self.content => {
                return Err(damaged("content, though the head says that there is none"));
            }
            Record::Object { .. } if !self.objects => {
                return Err(damaged("an object, though the head has no object target"));
            }
            _ => {}
        }
        Ok(record)
    }
}
