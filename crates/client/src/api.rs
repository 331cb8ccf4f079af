//! The types of the client's interface.

use std::rc::Rc;

use env::IoBuf;
use proto::commit::CommitPolicy;
use proto::prealloc::Allocation;
use types::{
    Attr, ClientId, Duration, Epoch, FileKind, Ino, Name, PagId, ServerId, Timestamp, Transno,
};

pub use crate::boundary::LocalFuture;
use crate::pages::Reading;
pub use session::client::{ConnectError, KeptLimits};
pub use types::LockOwner;

/// Notifications to the kernel when rights are recalled. Each future ends when the kernel has done
/// it. None may wait for a FUSE request, except those for pages.
pub trait Kernel {
    /// All cached names must be looked up again (FUSE_NOTIFY_INC_EPOCH).
    fn inc_epoch(&self) -> LocalFuture<'static, ()>;
    /// Cached attributes of `ino` are stale.
    fn inval_attr(&self, ino: Ino) -> LocalFuture<'static, ()>;
    /// The kernel must write back and drop its pages of `ino` in the range; `len` 0: to the end. A
    /// recall waits for this: nothing may delay it except the requests that keep these pages
    /// locked.
    fn inval_pages(&self, ino: Ino, offset: u64, len: u64) -> LocalFuture<'static, ()>;
    /// As [`Kernel::inval_pages`], where no recall waits. It may wait for a request that itself
    /// waits for recalls, and must delay no recall.
    fn inval_pages_outside_recall(
        &self,
        ino: Ino,
        offset: u64,
        len: u64,
    ) -> LocalFuture<'static, ()>;
    /// As [`Kernel::inval_pages`], for pages that lack a WRITE. That WRITE is not answered before
    /// this ends, or before a timeout. It may wait for a page that the WRITE has locked, and must
    /// not be delayed by what waits for recalls.
    fn drop_stale_pages(&self, ino: Ino, offset: u64, len: u64) -> LocalFuture<'static, ()>;
    /// What the kernel's pages hold of bytes `[offset, offset + len)` of one page: as many as it
    /// has, and not beyond the size that it has. This waits for no page (FUSE_NOTIFY_RETRIEVE).
    /// `None`: it does not tell.
    fn retrieve(&self, ino: Ino, offset: u64, len: u32) -> LocalFuture<'static, Option<Vec<u8>>> {
        let _ = (ino, offset, len);
        Box::pin(std::future::ready(None))
    }
    /// Stores the file's bytes at `offset` into the kernel's pages. If they end behind the size
    /// that the kernel has, their end is its size from now on.
    fn store(&self, ino: Ino, offset: u64, bytes: &[u8]) -> LocalFuture<'static, ()>;
    /// The user, the group and the supplementary groups of a caller; `None`: they cannot be found.
    /// Takes about as long as a few system calls.
    fn credentials(&self, caller: &Caller) -> Option<(u32, u32, Vec<u32>)> {
        caller.is_known().then(|| (caller.uid, caller.gid, Vec::new()))
    }
    /// Does [`Kernel::prune`] do something?
    fn prunes(&self) -> bool {
        false
    }
    /// The kernel must drop names of `ino` that nothing uses (FUSE_NOTIFY_PRUNE). It then forgets
    /// the inode, unless a process still uses it in some way. No recall waits long for this.
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

/// A change of a file's content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Edited {
    /// Bytes in this range.
    Bytes {
        /// First byte.
        from: u64,
        /// One past the last byte.
        to: u64,
    },
    /// The size, which is this now; what was behind it is gone.
    Size(u64),
}

/// An observer for tests: called when content changed, at the instant from which the client's
/// applications see the change. It must not wait or change anything.
pub type OnEdit = Rc<dyn Fn(Ino, Edited)>;

/// Configuration of a client.
#[derive(Clone)]
pub struct ClientConfig {
    /// Addresses of the metadata server, "host:port", tried in turn.
    pub server: Vec<String>,
    /// Name of the file system.
    pub fs_name: String,
    /// The directory to mount: names from the root of the file system on.
    pub dir: Vec<Name>,
    /// For people: "host, pid, mount point".
    pub description: String,
    /// Requested lease; `None`: the server's own.
    pub lease: Option<Duration>,
    /// Paths of data devices whose path here differs from the server's, by PAG number.
    pub devices: Vec<(PagId, String)>,
    /// Dirty bytes before writers wait.
    pub dirty_max: usize,
    /// How blocks for growing files are chosen.
    pub allocation: Allocation,
    /// How files are committed.
    pub commit: CommitPolicy,
    /// Cached inodes before the client returns those idle longest.
    pub inodes_max: usize,
    /// Reads the keys for connections by TCP; `None`: there are none.
    pub keys: Option<session::client::ReadClientKeys>,
    /// How much the client keeps until the server has made it durable, before changes wait.
    pub kept: KeptLimits,
    /// How long after its last request to a target, which has something that is not durable, the
    /// client asks it; `None`: it waits until the target says so.
    pub target_ping: Option<Duration>,
    /// The client changes nothing.
    pub read_only: bool,
    /// How long `connect` tries before it fails with the reason.
    pub connect_timeout: Duration,
    /// Receives log lines.
    pub log: Rc<dyn Fn(&str)>,
    /// The observer of content changes, if any.
    pub on_edit: Option<OnEdit>,
    /// Asked, with the UUID of the file system, before a data device is opened: an error ends
    /// `connect` with this text.
    pub admit: Option<Admit>,
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
            allocation: Allocation::default(),
            commit: CommitPolicy::default(),
            inodes_max: 1_200_000,
            keys: None,
            kept: KeptLimits::default(),
            target_ping: None,
            read_only: false,
            connect_timeout: Duration::from_secs(10),
            log: Rc::new(|_| ()),
            on_edit: None,
            admit: None,
        }
    }
}

/// See [`ClientConfig::admit`].
pub type Admit = Rc<dyn Fn(types::Uuid) -> Result<(), String>>;

/// On whose behalf an operation runs; the kernel has checked the caller's permissions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Thread, as FUSE reports it; 0 if unknown.
    pub pid: u32,
}

impl Caller {
    /// An unknown user or group. It owns nothing and has no right.
    pub const UNKNOWN: u32 = u32::MAX;

    /// Are user and group known?
    pub fn is_known(&self) -> bool {
        self.uid != Caller::UNKNOWN && self.gid != Caller::UNKNOWN
    }
}

/// An inode that was found or created, and how long the kernel may cache it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Attributes.
    pub attr: Attr,
    /// How long the attributes are valid.
    pub attr_ttl: Duration,
    /// How long the name is valid.
    pub entry_ttl: Duration,
    /// How many inodes of this number were lost under this mount. An entry with another generation
    /// describes another inode. 0 for nearly all.
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

/// A change of attributes, as SETATTR has it.
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
    /// The handle of ftruncate.
    pub handle: Option<Handle>,
    /// Clear set-id bits (FATTR_KILL_SUIDGID).
    pub kill_suidgid: bool,
}

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeSpec {
    /// The server's time.
    Now,
    /// This time.
    At(Timestamp),
}

/// Flags of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriteFlags {
    /// The kernel writes back pages (FUSE_WRITE_CACHE).
    pub write_back_cache: bool,
    /// Clear set-id bits (FUSE_WRITE_KILL_SUIDGID).
    pub kill_suidgid: bool,
    /// At the end of the file (the handle is O_APPEND).
    pub append: bool,
    /// Durable before the answer (O_SYNC, O_DSYNC).
    pub sync: bool,
}

/// A piece of the data that was read: bytes `start..end` of a buffer.
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

/// The data that was read, in order; shorter than requested only at the end of the file.
#[derive(Clone, Default)]
pub struct ReadData {
    /// The pieces.
    pub parts: Vec<ReadPart>,
    /// The kernel has pages locked until it has the answer: to be dropped when it is sent.
    pub filling: Option<Filling>,
}

/// Pages of the kernel that an answer fills.
#[derive(Clone)]
pub struct Filling {
    _pages: Rc<Reading>,
}

impl Filling {
    /// Until every clone is dropped.
    pub(crate) fn new(pages: Reading) -> Filling {
        Filling { _pages: Rc::new(pages) }
    }
}

impl ReadData {
    /// Bytes in total.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.end - part.start).sum()
    }

    /// Was nothing read?
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
    /// Offset at which the listing continues after this entry.
    pub cookie: u64,
    /// With READDIRPLUS, except for "." and "..": the answer that LOOKUP would give. Each counts as
    /// a lookup.
    pub entry: Option<Entry>,
}

/// A lock as fcntl or flock requests it.
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

/// What a client is doing; for `redbud status` and tests.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClientStatus {
    /// Its number.
    pub client: u64,
    /// The server's epoch.
    pub epoch: u32,
    /// Is the connection up?
    pub connected: bool,
    /// Requests sent so far, without resends and replays.
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
    /// Blocks that the server gave to the client's pool and that belong to no file yet.
    pub pool_blocks: u64,
    /// Blocks that the client returns when no write that could still reach them is in flight.
    pub tainted_blocks: u64,
    /// Recalls answered.
    pub recalls: u64,
    /// Sessions lost by eviction.
    pub evictions: u64,
}

/// What a client's session with one metadata server is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerSession {
    /// The server.
    pub server: ServerId,
    /// The client's number there; 0 while it has no session.
    pub client: ClientId,
    /// The server's epoch.
    pub epoch: Epoch,
    /// Requests without an answer.
    pub in_flight: usize,
    /// Answered requests kept for replay.
    pub replay: usize,
    /// How often this session was lost by eviction.
    pub evictions: u64,
    /// What is left of its lease.
    pub lease_left: Duration,
}

/// A data device as a client sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceStatus {
    /// Its zone.
    pub zone: PagId,
    /// Its path on this host.
    pub path: String,
    /// "present"; "absent": what lies on it fails; "silent": it owes answers; "failing": it has
    /// failed to write or flush a short while ago. New files go to other zones in the last three.
    /// "away": a target without a connection; what lies there waits.
    pub state: &'static str,
    /// For how long it has been absent or silent.
    pub since: Duration,
    /// Why it is absent, or away.
    pub why: String,
    /// What is known of it, if it is a target.
    pub target: Option<TargetStatus>,
    /// What it has been asked to write. Zones on one device have this in common.
    pub load: DeviceLoad,
}

/// An object storage target as a client sees it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TargetStatus {
    /// Its address.
    pub address: String,
    /// There is a connection, and nothing is to be replayed.
    pub connected: bool,
    /// It refuses this client's key: what lies there fails.
    pub refused: bool,
    /// Why it has not been reached since the mount.
    pub why: String,
    /// For how long the connection has been lost.
    pub down: Duration,
    /// Requests without an answer, and the age of the oldest.
    pub unanswered: usize,
    /// See `unanswered`.
    pub oldest_unanswered: Duration,
    /// This client's number there.
    pub client: ClientId,
    /// The last transaction that it has answered.
    pub transno: Transno,
    /// It has everything up to this one durably.
    pub last_committed: Transno,
    /// Answered requests that it may lose in a restart: this client keeps them.
    pub pinned_requests: usize,
    /// Their bytes in memory.
    pub pinned_bytes: u64,
    /// Free blocks that the target keeps for this client.
    pub granted_blocks: u64,
    /// Those of them that accepted bytes need.
    pub taken_blocks: u64,
    /// Sessions lost.
    pub evictions: u64,
}

/// The writes that a client has sent to a device since the mount, and those that wait. Writes of
/// neighbouring blocks that wait go as one request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DeviceLoad {
    /// Writes that have gone to the device.
    pub writes: u64,
    /// Requests that they were: `writes / requests` is the merge ratio.
    pub requests: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Requests by size: of at most so many bytes, and more than the size before. The last one has
    /// no bound.
    pub sizes: Vec<(Option<u64>, u64)>,
    /// Requests that the device has not answered, now and at most.
    pub in_flight: u64,
    /// See `in_flight`.
    pub in_flight_max: u64,
    /// Writes that wait, now and at most.
    pub waiting: u64,
    /// See `waiting`.
    pub waiting_max: u64,
}

/// Result of a lookup: an entry, or how long the kernel may cache that the name does not exist.
pub type LookupResult = Result<Entry, Duration>;

/// A name in a directory.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Directory.
    pub dir: Ino,
    /// Name.
    pub name: &'a Name,
}

/// What mknod, mkdir and create create.
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
