//! The driver over io_uring.
//!
//! Invariants:
//! - a buffer whose address the kernel has stays in `ops` until its completion;
//! - at most one `io_uring_enter` per call of `wait`, none if there is nothing
//!   to submit and completions are there;
//! - only the thread that created the ring uses it.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, cqueue, opcode, squeue};
use types::{Duration, Instant, Timestamp};

use super::fuse_ring::FuseEntry;
use super::sys::RawAddress;
use super::{device, near, pool, raw, sys};
use crate::buffer::IoBuf;
use crate::driver::{
    ByteLock, Completion, DiskOptions, Driver, Handle, NodeId, Op, OpenedDisk, Part, Payload,
    Target, Token,
};
use crate::executor_group::without_token;
use crate::mailbox::Mailbox;

/// Submissions collected in one turn; more need a second system call.
const ENTRIES: u32 = 256;
/// Completions that fit before the kernel uses an overflow list.
const COMPLETIONS: u32 = 4096;
/// The read of the bell.
const BELL: u64 = u64::MAX;
/// Cancellations, whose own completions are ignored.
const CANCEL: u64 = u64::MAX - 1;
/// How long `close` waits for the kernel to release buffers before it leaks them.
const CLOSE_PATIENCE: Duration = Duration::from_secs(30);

type Uring = IoUring<squeue::Entry128, cqueue::Entry>;

/// The objects that an operation in flight keeps alive.
enum InFlight {
    Disk { _disk: Handle, buf: IoBuf },
    Parts { _disk: Handle, bufs: Vec<IoBuf>, vector: Vec<libc::iovec> },
    Flush { _disk: Handle },
    Recv { _socket: Handle, bytes: Vec<u8> },
    Send { _socket: Handle, bytes: Vec<u8> },
    RecvInto { _socket: Handle, buf: IoBuf },
    SendParts { _socket: Handle, parts: Vec<Part>, message: Box<Vectored> },
    Accept { _listener: Handle },
    Connect { socket: OwnedFd, target: Box<RawAddress> },
    Poll { _file: Handle },
    Fuse { _file: Handle, entry: Box<FuseEntry> },
}

/// A message to send, at a place that does not move.
struct Vectored {
    _vector: Vec<libc::iovec>,
    message: libc::msghdr,
}

impl InFlight {
    /// Leaks the memory that the kernel may still use.
    fn leak_buffer(self) {
        match self {
            InFlight::Disk { buf, .. } | InFlight::RecvInto { buf, .. } => std::mem::forget(buf),
            InFlight::SendParts { parts, message, .. } => std::mem::forget((parts, message)),
            InFlight::Parts { bufs, vector, .. } => std::mem::forget((bufs, vector)),
            InFlight::Recv { bytes, .. } | InFlight::Send { bytes, .. } => std::mem::forget(bytes),
            InFlight::Connect { target, .. } => std::mem::forget(target),
            InFlight::Fuse { entry, .. } => std::mem::forget(entry),
            InFlight::Flush { .. } | InFlight::Accept { .. } | InFlight::Poll { .. } => {}
        }
    }
}

/// See the module.
pub(crate) struct Ring {
    ring: Uring,
    ops: Vec<Option<InFlight>>,
    in_flight: usize,
    /// Entries that did not fit into the submission queue.
    backlog: VecDeque<squeue::Entry128>,
    /// Operations that ended without the kernel.
    ended: Vec<Completion>,
    mailbox: Arc<Mailbox>,
    bell: Arc<OwnedFd>,
    /// The kernel writes the bell's count here.
    rung: Box<u64>,
    bell_armed: bool,
    entropy: sys::Entropy,
}

fn make_ring() -> io::Result<Uring> {
    let mut modern = IoUring::builder();
    modern.setup_single_issuer().setup_defer_taskrun().setup_coop_taskrun().setup_taskrun_flag();
    modern.setup_cqsize(COMPLETIONS).dontfork();
    modern
        .build(ENTRIES)
        .or_else(|_| IoUring::builder().setup_cqsize(COMPLETIONS).dontfork().build(ENTRIES))
}

fn serves_all(ring: &Uring) -> io::Result<bool> {
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let needed = [
        opcode::Read::CODE,
        opcode::Write::CODE,
        opcode::Writev::CODE,
        opcode::Fsync::CODE,
        opcode::Send::CODE,
        opcode::Recv::CODE,
        opcode::SendMsg::CODE,
        opcode::Accept::CODE,
        opcode::Connect::CODE,
        opcode::PollAdd::CODE,
        opcode::AsyncCancel::CODE,
    ];
    Ok(ring.params().is_feature_ext_arg() && needed.iter().all(|&code| probe.is_supported(code)))
}

impl Ring {
    /// A ring of this thread; an error if the kernel has none that suffices.
    pub(crate) fn new(bell: &Arc<OwnedFd>, mailbox: Arc<Mailbox>) -> io::Result<Ring> {
        let ring = make_ring()?;
        if !serves_all(&ring)? {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this kernel's io_uring lacks operations",
            ));
        }
        Ok(Ring {
            ring,
            ops: Vec::new(),
            in_flight: 0,
            backlog: VecDeque::new(),
            ended: Vec::new(),
            mailbox,
            bell: bell.clone(),
            rung: Box::new(0),
            bell_armed: false,
            entropy: sys::Entropy::default(),
        })
    }

    fn push(&mut self, entry: impl Into<squeue::Entry128>, user_data: u64) {
        self.backlog.push_back(entry.into().user_data(user_data));
        self.drain_backlog();
    }

    fn drain_backlog(&mut self) {
        let mut queue = self.ring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: the addresses in the entry point into `ops` or `rung`, which outlive the
            // operation.
            if unsafe { queue.push(entry) }.is_err() {
                return;
            }
            self.backlog.pop_front();
        }
    }

    fn start(&mut self, token: Token, entry: impl Into<squeue::Entry128>, op: InFlight) {
        let index = token as usize;
        if self.ops.len() <= index {
            self.ops.resize_with(index + 1, || None);
        }
        debug_assert!(self.ops[index].is_none(), "token {token} is in flight already");
        self.ops[index] = Some(op);
        self.in_flight += 1;
        self.push(entry, u64::from(token));
    }

    fn arm_bell(&mut self) {
        if !self.bell_armed {
            self.bell_armed = true;
            let entry =
                opcode::Read::new(Fd(self.bell.as_raw_fd()), (&raw mut *self.rung).cast(), 8)
                    .build();
            self.push(entry, BELL);
        }
    }

    fn connect(&mut self, token: Token, target: Target) -> io::Result<()> {
        let Target::Ip(address) = target else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the name was not resolved"));
        };
        let socket = sys::tcp_socket(&address, false)?;
        sys::set_nodelay(&socket)?;
        let target = Box::new(RawAddress::new(&address));
        let entry =
            opcode::Connect::new(Fd(socket.as_raw_fd()), target.pointer(), target.len).build();
        self.start(token, entry, InFlight::Connect { socket, target });
        Ok(())
    }

    /// The operation ends without the kernel.
    fn refuse(&mut self, token: Token, error: io::Error) {
        self.ended.push(Completion::new(token, Err(error), Payload::None));
    }

    fn write_parts(
        &mut self,
        token: Token,
        disk: Handle,
        offset: u64,
        bufs: Vec<IoBuf>,
        start: usize,
    ) {
        // Its memory stays where it is when the vector moves.
        let vector = sys::vector(&bufs, start);
        let count = vector.len() as u32;
        let entry = opcode::Writev::new(Fd(raw(&disk)), vector.as_ptr(), count)
            .offset(offset + start as u64)
            .build();
        self.start(token, entry, InFlight::Parts { _disk: disk, bufs, vector });
    }

    fn recv(&mut self, token: Token, socket: Handle, mut bytes: Vec<u8>, max: usize) {
        bytes.reserve(max);
        let room = bytes.spare_capacity_mut().as_mut_ptr().cast();
        let entry = opcode::Recv::new(Fd(raw(&socket)), room, clamp(max)).build();
        self.start(token, entry, InFlight::Recv { _socket: socket, bytes });
    }

    fn recv_into(&mut self, token: Token, socket: Handle, mut buf: IoBuf, range: Range<usize>) {
        let room = &mut buf[range];
        let (at, len) = (room.as_mut_ptr(), clamp(room.len()));
        // It may end early all the same.
        let entry = opcode::Recv::new(Fd(raw(&socket)), at, len).flags(libc::MSG_WAITALL).build();
        self.start(token, entry, InFlight::RecvInto { _socket: socket, buf });
    }

    fn send_parts(&mut self, token: Token, socket: Handle, parts: Vec<Part>, start: usize) {
        let mut vector = sys::vector(&parts, start);
        let message = sys::message(&mut vector);
        let message = Box::new(Vectored { _vector: vector, message });
        let entry = opcode::SendMsg::new(Fd(raw(&socket)), &raw const message.message)
            .flags((libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32)
            .build();
        self.start(token, entry, InFlight::SendParts { _socket: socket, parts, message });
    }

    /// Moves completions of the kernel to `done`.
    fn reap(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.ended);
        loop {
            let Some(entry) = self.ring.completion().next() else { return };
            match entry.user_data() {
                CANCEL => {}
                BELL => self.bell_armed = false,
                token => done.push(self.complete(token as Token, entry.result())),
            }
        }
    }

    fn complete(&mut self, token: Token, result: i32) -> Completion {
        let op = self.ops[token as usize].take().expect("a completion of a submitted operation");
        self.in_flight -= 1;
        let result = sys::check_result(result);
        let payload = match op {
            InFlight::Disk { buf, .. } | InFlight::RecvInto { buf, .. } => Payload::Buf(buf),
            InFlight::Parts { bufs, .. } => Payload::Bufs(bufs),
            InFlight::Flush { .. } | InFlight::Poll { .. } | InFlight::SendParts { .. } => {
                Payload::None
            }
            InFlight::Send { bytes, .. } => Payload::Bytes(bytes),
            InFlight::Recv { mut bytes, .. } => {
                if let Ok(received) = result {
                    // SAFETY: the kernel has written that many bytes behind the old length, within
                    // the capacity.
                    unsafe { bytes.set_len(bytes.len() + received) };
                }
                Payload::Bytes(bytes)
            }
            InFlight::Fuse { entry, .. } => Payload::Fuse(entry),
            InFlight::Accept { .. } => match result {
                Ok(fd) => return accepted(token, fd),
                Err(_) => Payload::None,
            },
            InFlight::Connect { socket, target } => match (&result, target.decode()) {
                (Ok(_), Some(peer)) => {
                    Payload::Socket(Handle::Fd(Arc::new(socket)), peer.to_string())
                }
                _ => Payload::None,
            },
        };
        Completion::new(token, result, payload)
    }

    fn enter(&mut self, wait: bool, timeout: Option<Duration>) -> io::Result<()> {
        let submitter = self.ring.submitter();
        let entered = without_token(|| match timeout {
            _ if !wait => submitter.submit(),
            None => submitter.submit_and_wait(1),
            Some(timeout) => {
                let time = Timespec::new().sec(timeout.as_secs()).nsec(timeout.subsec_nanos());
                submitter.submit_with_args(1, &SubmitArgs::new().timespec(&time))
            }
        });
        match entered {
            Ok(_) => Ok(()),
            // A timeout, a signal, or a completion overflow: the next turn handles it.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN)
                ) =>
            {
                Ok(())
            }
            Err(error) => Err(io::Error::new(error.kind(), format!("io_uring_enter: {error}"))),
        }
    }

    fn must_enter(&mut self) -> bool {
        let queue = self.ring.submission();
        !queue.is_empty() || queue.taskrun() || queue.cq_overflow()
    }
}

fn accepted(token: Token, fd: usize) -> Completion {
    match sys::owned(fd as i32).and_then(|socket| sys::set_nodelay(&socket).map(|()| socket)) {
        Ok(socket) => {
            let peer = sys::peer_name(&socket);
            Completion::new(token, Ok(0), Payload::Socket(Handle::Fd(Arc::new(socket)), peer))
        }
        Err(error) => Completion::new(token, Err(error), Payload::None),
    }
}

impl Driver for Ring {
    fn now(&self) -> Instant {
        sys::now()
    }

    fn wall(&self, _: NodeId) -> Timestamp {
        sys::wall()
    }

    fn entropy(&mut self) -> u64 {
        self.entropy.next()
    }

    fn is_ring(&self) -> bool {
        true
    }

    fn open_disk(
        &mut self,
        _node: NodeId,
        path: &str,
        options: DiskOptions,
    ) -> io::Result<OpenedDisk> {
        device::open(path, options)
    }

    fn lock(&mut self, _node: NodeId, disk: &Handle, lock: ByteLock) -> io::Result<bool> {
        device::lock_byte(raw(disk), lock)
    }

    fn listen(&mut self, _node: NodeId, address: &str) -> io::Result<(Handle, String)> {
        let (socket, local) = sys::tcp_listen(address, false)?;
        Ok((Handle::Fd(Arc::new(socket)), local))
    }

    fn listen_near(&mut self, address: &str) -> io::Result<Option<Handle>> {
        near::listen(address, false).map(|socket| Some(Handle::Fd(Arc::new(socket))))
    }

    fn peer_user(&mut self, socket: &Handle) -> Option<u32> {
        sys::peer_user(raw(socket))
    }

    fn own_user(&self) -> u32 {
        sys::own_user()
    }

    fn connect_near(&mut self, target: &Target) -> Option<(Handle, String)> {
        let Target::Ip(address) = target else { return None };
        let socket = near::connect(address, false)?;
        let peer = sys::peer_name(&socket);
        Some((Handle::Fd(Arc::new(socket)), peer))
    }

    fn listen_at(&mut self, path: &Path) -> io::Result<Handle> {
        near::listen_at(path, false).map(|socket| Handle::Fd(Arc::new(socket)))
    }

    fn send_now(&mut self, socket: &Handle, bytes: &[u8]) -> io::Result<usize> {
        sys::send_now(raw(socket), bytes)
    }

    fn shutdown(&mut self, socket: &Handle) {
        sys::shutdown(raw(socket));
    }

    fn submit(&mut self, _node: NodeId, token: Token, op: Op) {
        match op {
            Op::Read { disk, offset, mut buf, start } => {
                let rest = &mut buf[start..];
                let entry = opcode::Read::new(Fd(raw(&disk)), rest.as_mut_ptr(), clamp(rest.len()))
                    .offset(offset + start as u64)
                    .build();
                self.start(token, entry, InFlight::Disk { _disk: disk, buf });
            }
            Op::Write { disk, offset, buf, start } => {
                let rest = &buf[start..];
                let entry = opcode::Write::new(Fd(raw(&disk)), rest.as_ptr(), clamp(rest.len()))
                    .offset(offset + start as u64)
                    .build();
                self.start(token, entry, InFlight::Disk { _disk: disk, buf });
            }
            Op::WriteParts { disk, offset, bufs, start } => {
                self.write_parts(token, disk, offset, bufs, start);
            }
            Op::Flush { disk } => {
                let entry = opcode::Fsync::new(Fd(raw(&disk)))
                    .flags(io_uring::types::FsyncFlags::DATASYNC)
                    .build();
                self.start(token, entry, InFlight::Flush { _disk: disk });
            }
            Op::Discard { disk, offset, len } => pool::submit_io(&self.mailbox, token, move || {
                (device::discard(raw(&disk), offset, len).map(|()| 0), Payload::None)
            }),
            Op::Recv { socket, bytes, max } => self.recv(token, socket, bytes, max),
            Op::Send { socket, bytes, start } => {
                let rest = &bytes[start..];
                let entry = opcode::Send::new(Fd(raw(&socket)), rest.as_ptr(), clamp(rest.len()))
                    .flags(libc::MSG_NOSIGNAL | libc::MSG_WAITALL)
                    .build();
                self.start(token, entry, InFlight::Send { _socket: socket, bytes });
            }
            Op::RecvInto { socket, buf, start, end } => {
                self.recv_into(token, socket, buf, start..end);
            }
            Op::SendParts { socket, parts, start } => self.send_parts(token, socket, parts, start),
            Op::Accept { listener } => {
                let none = std::ptr::null_mut();
                let entry = opcode::Accept::new(Fd(raw(&listener)), none, std::ptr::null_mut())
                    .flags(libc::SOCK_CLOEXEC)
                    .build();
                self.start(token, entry, InFlight::Accept { _listener: listener });
            }
            Op::Connect { target } => {
                if let Err(error) = self.connect(token, target) {
                    self.refuse(token, error);
                }
            }
            Op::Readable { file } => {
                let entry = opcode::PollAdd::new(Fd(raw(&file)), libc::POLLIN as u32).build();
                self.start(token, entry, InFlight::Poll { _file: file });
            }
            Op::Fuse { file, entry } => {
                let submission = entry.submission(raw(&file));
                self.start(token, submission, InFlight::Fuse { _file: file, entry });
            }
            Op::Stop => self.refuse(token, io::ErrorKind::Unsupported.into()),
            Op::Job(job) => pool::submit(&self.mailbox, token, move || {
                job();
                (Ok(0), Payload::None)
            }),
        }
    }

    fn cancel(&mut self, token: Token) {
        if self.ops.get(token as usize).is_some_and(Option::is_some) {
            self.push(opcode::AsyncCancel::new(u64::from(token)).build(), CANCEL);
        }
    }

    fn wait(&mut self, until: Option<Instant>, done: &mut Vec<Completion>) -> io::Result<()> {
        self.arm_bell();
        self.reap(done);
        self.drain_backlog();
        let timeout = match until {
            Some(Instant(0)) => Some(Duration::ZERO),
            Some(until) => Some(until.since(sys::now())),
            None => None,
        };
        let wait = done.is_empty() && timeout != Some(Duration::ZERO);
        if wait || self.must_enter() {
            // Entries that did not fit must reach the kernel before the thread sleeps.
            let wait = wait && self.backlog.is_empty();
            self.enter(wait, timeout)?;
            self.drain_backlog();
            self.reap(done);
        }
        Ok(())
    }

    fn close(&mut self) {
        let tokens: Vec<u64> = (0u64..)
            .zip(&self.ops)
            .filter(|(_, op)| op.is_some())
            .map(|(token, _)| token)
            .collect();
        for token in tokens {
            self.push(opcode::AsyncCancel::new(token).build(), CANCEL);
        }
        if self.bell_armed {
            self.push(opcode::AsyncCancel::new(BELL).build(), CANCEL);
        }
        // FUSE entries end with their mount or with the ring, not before.
        let fuse =
            self.ops.iter().flatten().filter(|op| matches!(op, InFlight::Fuse { .. })).count();
        let deadline = sys::now() + CLOSE_PATIENCE;
        let mut done = Vec::new();
        while (self.in_flight > fuse || self.bell_armed) && sys::now() < deadline {
            self.drain_backlog();
            let wait = self.backlog.is_empty();
            if self.enter(wait, Some(Duration::from_millis(100))).is_err() {
                break;
            }
            self.reap(&mut done);
        }
        if self.in_flight > 0 || self.bell_armed {
            // The kernel may still write into these buffers: they must never be freed. Closing the
            // files is safe: the kernel holds references to what it uses.
            for op in std::mem::take(&mut self.ops).into_iter().flatten() {
                op.leak_buffer();
            }
            std::mem::forget(std::mem::take(&mut self.rung));
        }
        pool::end(&self.mailbox);
    }
}

/// The kernel counts a transfer in 31 bits.
fn clamp(len: usize) -> u32 {
    len.min(1 << 30) as u32
}
