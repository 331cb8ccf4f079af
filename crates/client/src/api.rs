//! The words of the client's interface.

use std::rc::Rc;

use env::IoBuf;
use types::{Attr, Duration, FileKind, Ino, Name, Timestamp};

pub use crate::boundary::LocalFuture;
pub use types::LockOwner;

/// What the kernel is told when rights are recalled. Each ends when the kernel
/// has done it; none may wait for a FUSE request, except those for pages.
pub trait Kernel {
    /// All cached names are to be looked up anew (FUSE_NOTIFY_INC_EPOCH).
    fn inc_epoch(&self) -> LocalFuture<'static, ()>;
    /// Cached attributes of `ino` are stale.
    fn inval_attr(&self, ino: Ino) -> LocalFuture<'static, ()>;
    /// Cached pages of `ino` in the range are to be written back and dropped; `len` 0: to the end.
    /// A recall waits for that: nothing may hold it up but the requests that keep these pages
    /// locked.
    fn inval_pages(&self, ino: Ino, offset: u64, len: u64) -> LocalFuture<'static, ()>;
    /// The same where no recall waits for it. It may wait for a request that itself waits for
    /// recalls, and must hold up none of these.
    fn inval_pages_outside_recall(
        &self,
        ino: Ino,
        offset: u64,
        len: u64,
    ) -> LocalFuture<'static, ()>;
    /// The same, of pages that lack a WRITE which is not answered before this ends, or takes long:
    /// it may wait for a page that the WRITE has locked, and must not be held up by what waits for
    /// recalls.
    fn drop_stale_pages(&self, ino: Ino, offset: u64, len: u64) -> LocalFuture<'static, ()>;
    /// The file has these bytes there: if they end behind the size that the kernel has, that is its
    /// size from now on.
    fn store(&self, ino: Ino, offset: u64, bytes: &[u8]) -> LocalFuture<'static, ()>;
    /// Does [`Kernel::prune`] do something?
    fn prunes(&self) -> bool {
        false
    }
    /// Names of `ino` that nothing uses are to be dropped (FUSE_NOTIFY_PRUNE). The kernel then
    /// forgets the inode, unless a process still has it in some way. No recall waits for this for
    /// long.
    fn prune(&self, ino: Ino) -> LocalFuture<'static, ()> {
        let _ = ino;
        Box::pin(std::future::ready(()))
    }
}

/// A kernel that caches nothing: for tests and embedding.
#[derive(Clone, Copy, Default, Debug)]
pub struct NoKernel;

impl Kernel for NoKernel {
    fn inc_epoch(&self) -> LocalFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
    fn inval_attr(&self, _: Ino) -> LocalFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
    fn inval_pages(&self, _: Ino, _: u64, _: u64) -> LocalFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
    fn inval_pages_outside_recall(&self, _: Ino, _: u64, _: u64) -> LocalFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
    fn drop_stale_pages(&self, _: Ino, _: u64, _: u64) -> LocalFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
    fn store(&self, _: Ino, _: u64, _: &[u8]) -> LocalFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// What changed of a file's content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Edited {
    /// Bytes of this range.
    Bytes {
        /// First byte.
        from: u64,
        /// The byte behind the last.
        to: u64,
    },
    /// The size, which is this now; what lies behind it is gone.
    Size(u64),
}

/// Is told, for tests, that content changed, at the instant from which on the client's applications
/// see it. It waits for nothing and changes nothing.
pub type OnEdit = fn(Ino, Edited);

/// How a client is set up.
#[derive(Clone)]
pub struct ClientConfig {
    /// Addresses of the metadata server, "host:port", tried in turn.
    pub server: Vec<String>,
    /// Name of the file system.
    pub fs_name: String,
    /// The directory that is mounted: names from the root of the file system on.
    pub dir: Vec<Name>,
    /// For people: "host, pid, mount point".
    pub description: String,
    /// Asked lease; `None`: the server's own.
    pub lease: Option<Duration>,
    /// Paths of data devices that lie elsewhere here than the server says, by PAG number.
    pub devices: Vec<(types::PagId, String)>,
    /// Dirty bytes before writers wait.
    pub dirty_max: usize,
    /// Cached inodes before the coldest are given back.
    pub inodes_max: usize,
    /// Nothing is changed.
    pub read_only: bool,
    /// How long `connect` tries before it gives up with the reason.
    pub connect_timeout: Duration,
    /// Where lines for people go.
    pub log: fn(&str),
    /// Who looks on as content changes, if anyone.
    pub on_edit: Option<OnEdit>,
}

impl Default for ClientConfig {
    fn default() -> ClientConfig {
        ClientConfig {
            server: Vec::new(),
            fs_name: String::new(),
            dir: Vec::new(),
            description: String::new(),
            lease: None,
            devices: Vec::new(),
            dirty_max: types::limits::DIRTY_MAX,
            inodes_max: 1_200_000,
            read_only: false,
            connect_timeout: Duration::from_secs(10),
            log: |_| (),
            on_edit: None,
        }
    }
}

/// Why there is no session, for people: what failed, where, and what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectError {
    /// The text.
    pub text: String,
}

impl std::fmt::Display for ConnectError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for ConnectError {}

/// On whose behalf an operation runs; the kernel has checked its permissions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Thread, as FUSE tells it; 0 if unknown.
    pub pid: u32,
}

impl Caller {
    /// Stands for a user or group that was not told. It owns nothing and has no right.
    pub const UNKNOWN: u32 = u32::MAX;

    /// Are user and group told?
    pub fn is_known(&self) -> bool {
        self.uid != Caller::UNKNOWN && self.gid != Caller::UNKNOWN
    }
}

/// A found or made inode, and how long the kernel may believe it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Attributes.
    pub attr: Attr,
    /// Time for which the attributes hold.
    pub attr_ttl: Duration,
    /// Time for which the name leads there.
    pub entry_ttl: Duration,
    /// How many inodes of this number were lost under this mount: what was told of it before with
    /// another generation was another inode. 0 for nearly all.
    pub generation: u64,
}

/// An open file or directory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Handle(pub u64);

/// How a file is opened: the `O_` flags of open(2) as Linux numbers them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenFlags(pub u32);

impl OpenFlags {
    /// `O_ACCMODE`.
    pub const ACCESS: u32 = 0o3;
    /// `O_WRONLY`.
    pub const WRITE_ONLY: u32 = 0o1;
    /// `O_RDWR`.
    pub const READ_WRITE: u32 = 0o2;
    /// `O_EXCL`.
    pub const EXCLUSIVE: u32 = 0o200;
    /// `O_TRUNC`.
    pub const TRUNCATE: u32 = 0o1000;
    /// `O_APPEND`.
    pub const APPEND: u32 = 0o2000;
    /// `O_DSYNC`.
    pub const DSYNC: u32 = 0o10000;
    /// `O_DIRECT`.
    pub const DIRECT: u32 = 0o40000;
    /// `O_SYNC` without `O_DSYNC`.
    pub const SYNC: u32 = 0o4000000;

    /// Is `bit` set?
    pub fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }

    /// May the handle write?
    pub fn writes(self) -> bool {
        matches!(self.0 & Self::ACCESS, Self::WRITE_ONLY | Self::READ_WRITE)
    }

    /// `O_RDWR`?
    pub fn read_write(self) -> bool {
        self.0 & Self::ACCESS == Self::READ_WRITE
    }
}

/// An opened file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// The handle.
    pub handle: Handle,
    /// Pages that the kernel still has are good (FOPEN_KEEP_CACHE).
    pub keep_cache: bool,
    /// FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES.
    pub direct_io: bool,
}

/// A change of attributes, as SETATTR carries it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttrRequest {
    /// Permission bits.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<TimeSpec>,
    /// Modification time.
    pub mtime: Option<TimeSpec>,
    /// The handle that ftruncate came by.
    pub handle: Option<Handle>,
    /// Clear set-id bits (FATTR_KILL_SUIDGID).
    pub kill_suidgid: bool,
}

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeSpec {
    /// The server's clock.
    Now,
    /// This.
    At(Timestamp),
}

/// How a write came.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriteFlags {
    /// The kernel launders pages (FUSE_WRITE_CACHE).
    pub write_back_cache: bool,
    /// Clear set-id bits (FUSE_WRITE_KILL_SUIDGID).
    pub kill_suidgid: bool,
    /// At the end of the file (the handle is O_APPEND).
    pub append: bool,
    /// Durable before the answer (O_SYNC, O_DSYNC).
    pub sync: bool,
}

/// A piece of what was read: bytes `start..end` of a buffer.
#[derive(Clone)]
pub struct ReadPart {
    /// The buffer.
    pub buffer: Rc<IoBuf>,
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl ReadPart {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }
}

/// What was read, in order; shorter than asked only at the end of the file.
#[derive(Clone, Default)]
pub struct ReadData {
    /// The pieces.
    pub parts: Vec<ReadPart>,
}

impl ReadData {
    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.end - part.start).sum()
    }

    /// Nothing was read?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All bytes in one piece.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len());
        for part in &self.parts {
            out.extend_from_slice(part.bytes());
        }
        out
    }
}

/// What lseek looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whence {
    /// SEEK_DATA.
    Data,
    /// SEEK_HOLE.
    Hole,
}

/// An entry of a directory listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// Name; "." and ".." are listed too, hence bytes.
    pub name: Vec<u8>,
    /// Inode.
    pub ino: Ino,
    /// Type.
    pub kind: FileKind,
    /// Offset at which the listing goes on after this entry.
    pub cookie: u64,
    /// With READDIRPLUS, and not for "." and "..": what LOOKUP would answer. Each counts as a
    /// lookup.
    pub entry: Option<Entry>,
}

/// A lock as fcntl or flock asks for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockRequest {
    /// flock(2), not fcntl(2).
    pub flock: bool,
    /// Owner.
    pub owner: LockOwner,
    /// Process, for F_GETLK.
    pub pid: u32,
    /// `None` unlocks; else exclusive or shared.
    pub exclusive: Option<bool>,
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
}

/// Space of the file system, in blocks of 4 KiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statfs {
    /// Data blocks.
    pub blocks: u64,
    /// Free data blocks.
    pub blocks_free: u64,
    /// Inodes, free ones included.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
}

/// What a client is doing, for `redbud status` and tests.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClientStatus {
    /// Its number.
    pub client: u64,
    /// The server's epoch.
    pub epoch: u32,
    /// Is the connection up?
    pub connected: bool,
    /// Requests sent so far, resends and replays left out.
    pub requests: u64,
    /// Requests without an answer.
    pub in_flight: usize,
    /// Answered requests kept for replay.
    pub replay: usize,
    /// Cached inodes.
    pub inodes: usize,
    /// Cached names.
    pub names: usize,
    /// Open handles.
    pub handles: usize,
    /// Dirty bytes.
    pub dirty_bytes: u64,
    /// Blocks that it keeps for what it will write: the server has given them to it, and no file
    /// has them.
    pub pool_blocks: u64,
    /// Blocks that it gives back when no write is under way that may still reach them.
    pub tainted_blocks: u64,
    /// Recalls answered.
    pub recalls: u64,
    /// Sessions lost by eviction.
    pub evictions: u64,
}

/// Result of a lookup: an entry, or for how long the name is known to be missing.
pub type LookupResult = Result<Entry, Duration>;

/// A name and the directory that it is in.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Directory.
    pub dir: Ino,
    /// Name.
    pub name: &'a Name,
}

/// What mknod, mkdir and create make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeSpec {
    /// Type; not a symbolic link.
    pub kind: FileKind,
    /// Permission bits, umask not applied.
    pub mode: u16,
    /// The caller's umask.
    pub umask: u16,
    /// Device number.
    pub rdev: u32,
}
