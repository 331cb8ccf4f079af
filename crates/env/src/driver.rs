//! The interface between an executor and the outside world.
//!
//! Invariants:
//! - every submitted operation completes exactly once, even a cancelled one;
//! - the driver owns an operation's buffer and holds its file open from
//!   `submit` to the completion, so dropping a future frees nothing in use.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use types::{Instant, Timestamp};

use crate::buffer::IoBuf;
use crate::os::fuse_ring::FuseEntry;

/// Identifies one operation in flight; chosen by the executor.
pub(crate) type Token = u32;

/// The simulated host that a task belongs to; 0 in production.
pub(crate) type NodeId = u32;

/// An open file, device or socket.
#[derive(Clone)]
pub(crate) enum Handle {
    /// A descriptor of this process.
    Fd(Arc<OwnedFd>),
    /// An object of a simulated world.
    Sim(crate::sim::SimHandle),
}

/// The address to connect to.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Ip(SocketAddr),
    Name(String),
}

impl Target {
    /// Its name in a simulated world.
    pub(crate) fn into_name(self) -> String {
        match self {
            Target::Name(name) => name,
            Target::Ip(address) => address.to_string(),
        }
    }
}

/// Bytes to send that others use, too. Its clones are the same bytes.
#[derive(Clone)]
pub struct Part {
    buffer: Rc<dyn AsRef<[u8]>>,
    range: Range<usize>,
}

impl Part {
    /// The bytes `range` of `buffer`. Panics if they are not in it.
    pub fn new(buffer: Rc<dyn AsRef<[u8]>>, range: Range<usize>) -> Part {
        assert!(range.start <= range.end && range.end <= (*buffer).as_ref().len());
        Part { buffer, range }
    }
}

impl From<Vec<u8>> for Part {
    fn from(bytes: Vec<u8>) -> Part {
        let range = 0..bytes.len();
        Part { buffer: Rc::new(bytes), range }
    }
}

impl std::ops::Deref for Part {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &(*self.buffer).as_ref()[self.range.clone()]
    }
}

/// What is left of `parts`, one behind the other, without their first `start` bytes.
pub(crate) fn rest_of<T: std::ops::Deref<Target = [u8]>>(
    parts: &[T],
    start: usize,
) -> impl Iterator<Item = &[u8]> {
    let mut skip = start;
    let rests = parts.iter().map(move |part| {
        let skipped = skip.min(part.len());
        skip -= skipped;
        &part[skipped..]
    });
    rests.filter(|rest| !rest.is_empty())
}

/// An operation with the buffer it works on.
pub(crate) enum Op {
    /// Reads into `buf[start..]` from `offset + start`.
    Read { disk: Handle, offset: u64, buf: IoBuf, start: usize },
    /// Writes `buf[start..]` to `offset + start`.
    Write { disk: Handle, offset: u64, buf: IoBuf, start: usize },
    /// Writes `bufs`, one behind the other and without their first `start` bytes, to
    /// `offset + start`.
    WriteParts { disk: Handle, offset: u64, bufs: Vec<IoBuf>, start: usize },
    /// Makes completed writes stable.
    Flush { disk: Handle },
    /// Discards the range; its content is unspecified afterwards.
    Discard { disk: Handle, offset: u64, len: u64 },
    /// Appends at most `max` bytes to `bytes`.
    Recv { socket: Handle, bytes: Vec<u8>, max: usize },
    /// Sends `bytes[start..]`, or a part of it.
    Send { socket: Handle, bytes: Vec<u8>, start: usize },
    /// Receives into `buf[start..end]`, at least one byte.
    RecvInto { socket: Handle, buf: IoBuf, start: usize, end: usize },
    /// Sends `parts`, one behind the other and without their first `start` bytes, or a part of
    /// that. The parts are dropped at the completion.
    SendParts { socket: Handle, parts: Vec<Part>, start: usize },
    /// Waits for a connection; completes with its handle and the peer's address.
    Accept { listener: Handle },
    /// Connects; completes with the handle and the peer's address.
    Connect { target: Target },
    /// Waits until the descriptor can be read.
    Readable { file: Handle },
    /// Registers a FUSE entry, or commits its reply; completes with the next request.
    Fuse { file: Handle, entry: Box<FuseEntry> },
    /// Waits until a simulated node gets a stop signal; completes with the signal's number.
    Stop,
    /// Runs on another thread (simulated: at once).
    Job(Box<dyn FnOnce() + Send>),
}

/// What an operation returns besides its result.
pub(crate) enum Payload {
    None,
    Buf(IoBuf),
    Bufs(Vec<IoBuf>),
    Bytes(Vec<u8>),
    Socket(Handle, String),
    Fuse(Box<FuseEntry>),
}

/// The completion of an operation.
pub(crate) struct Completion {
    pub(crate) token: Token,
    /// Bytes moved, where the operation moves any.
    pub(crate) result: io::Result<usize>,
    pub(crate) payload: Payload,
}

impl Completion {
    pub(crate) fn new(token: Token, result: io::Result<usize>, payload: Payload) -> Completion {
        Completion { token, result, payload }
    }
}

/// How to open a disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskOptions {
    /// Open for writing.
    pub write: bool,
    /// Take an exclusive lock (OFD lock on byte 0 of the lock range; block devices also O_EXCL).
    /// If another open file holds it, opening fails with ErrorKind::ResourceBusy and names the
    /// holder's pid if it can be found. Without `write` the lock is shared by readers and excludes
    /// writers.
    pub exclusive: bool,
}

/// Where the byte locks of an open disk are visible: to all who have the same, because they opened
/// the same device node under the same start of the same kernel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LockScope(pub [u8; 32]);

impl LockScope {
    /// That of a simulated disk on a simulated host.
    pub(crate) fn of_names(host: &str, disk: &str) -> LockScope {
        let mut scope = [0; 32];
        scope[..4].copy_from_slice(&types::crc32c(host.as_bytes()).to_be_bytes());
        scope[4..8].copy_from_slice(&types::crc32c(disk.as_bytes()).to_be_bytes());
        LockScope(scope)
    }
}

/// A disk that was opened.
pub(crate) struct OpenedDisk {
    pub(crate) handle: Handle,
    pub(crate) size: u64,
    /// Completed writes are stable without a flush.
    pub(crate) write_through: bool,
    /// A disk with seek times.
    pub(crate) rotational: bool,
    /// `None`: unknown.
    pub(crate) lock_scope: Option<LockScope>,
}

/// A lock on one byte far beyond a disk's data, held by the open file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ByteLock {
    Take(u64),
    Test(u64),
    Release(u64),
    /// The byte of [`DiskOptions::exclusive`], shared with others.
    Share,
}

/// The world of one executor.
pub(crate) trait Driver {
    fn now(&self) -> Instant;
    fn wall(&self, node: NodeId) -> Timestamp;
    /// The time that a node's clock shows at the time `real` of `now`.
    fn node_time(&self, _node: NodeId, real: Instant) -> Instant {
        real
    }
    /// The first time of `now` at which a node's clock shows `shown`.
    fn world_time(&self, _node: NodeId, shown: Instant) -> Instant {
        shown
    }
    fn entropy(&mut self) -> u64;
    /// Picks which of `ready` waiting tasks runs next.
    fn choose(&mut self, _ready: usize) -> usize {
        0
    }
    /// Is this world simulated? Then names are resolved and stops are signalled by the driver.
    fn simulated(&self) -> bool {
        false
    }
    /// The number of executors in the group of a simulated node.
    fn executors(&self, _node: NodeId) -> usize {
        1
    }
    /// Does it run on io_uring?
    fn is_ring(&self) -> bool {
        false
    }
    fn open_disk(
        &mut self,
        node: NodeId,
        path: &str,
        options: DiskOptions,
    ) -> io::Result<OpenedDisk>;
    /// Takes or tests a lock; a test returns whether the lock could be taken.
    fn lock(&mut self, node: NodeId, disk: &Handle, lock: ByteLock) -> io::Result<bool>;
    fn listen(&mut self, node: NodeId, address: &str) -> io::Result<(Handle, String)>;
    /// Listens beside `address`, as `listen` returned it, for peers on the same host; `None` if the
    /// driver does not support that.
    fn listen_near(&mut self, _address: &str) -> io::Result<Option<Handle>> {
        Ok(None)
    }
    /// Connects to a listener of [`Driver::listen_near`]; at once or not at all.
    fn connect_near(&mut self, _target: &Target) -> Option<(Handle, String)> {
        None
    }
    /// Listens on a Unix socket at `path`, in place of what is there; see
    /// [`crate::Env::listen_at`].
    fn listen_at(&mut self, _path: &Path) -> io::Result<Handle> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// The user of the process at the other end of a connection within this host, as it was when it
    /// connected or began to listen; `None`: the connection is by TCP.
    fn peer_user(&mut self, _socket: &Handle) -> Option<u32> {
        None
    }
    /// The user of this process.
    fn own_user(&self) -> u32 {
        0
    }
    /// Sends what the socket takes without waiting; a driver that cannot know sends nothing.
    fn send_now(&mut self, _socket: &Handle, _bytes: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }
    /// Ends traffic in both directions.
    fn shutdown(&mut self, socket: &Handle);
    fn submit(&mut self, node: NodeId, token: Token, op: Op);
    /// Requests an early end; the completion still comes.
    fn cancel(&mut self, token: Token);
    /// Collects completions; if there are none, waits for some until `until` (`None`: without
    /// limit). `Instant(0)` never waits.
    fn wait(&mut self, until: Option<Instant>, done: &mut Vec<Completion>) -> io::Result<()>;
    /// Cancels everything in flight and waits until no buffer is in use any more.
    fn close(&mut self);
}
