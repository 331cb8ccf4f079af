//! The driver over epoll and threads, for kernels without io_uring.
//!
//! Invariants:
//! - a socket is registered once, edge-triggered; every operation tries the system call at once
//!   and parks only on EAGAIN, so no edge is missed;
//! - operations of one direction of a descriptor end in the order of their submission.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::{Arc, Weak};

use types::{HashMap, Instant, Timestamp};

use super::sys::RawAddress;
use super::{device, near, pool, raw, sys};
use crate::buffer::IoBuf;
use crate::driver::{
    ByteLock, Completion, DiskOptions, Driver, Handle, NodeId, Op, OpenedDisk, Part, Payload,
    Target, Token,
};
use crate::executor_group::without_token;
use crate::mailbox::Mailbox;

/// Events taken from the kernel at once.
const EVENTS: usize = 128;

/// An operation that waits for its descriptor.
enum Parked {
    Recv { bytes: Vec<u8>, max: usize },
    Send { bytes: Vec<u8>, start: usize },
    RecvInto { buf: IoBuf, start: usize, end: usize },
    SendParts { parts: Vec<Part>, start: usize },
    Accept,
    Connect { peer: String },
    Readable,
}

impl Parked {
    fn reads(&self) -> bool {
        matches!(
            self,
            Parked::Recv { .. } | Parked::RecvInto { .. } | Parked::Accept | Parked::Readable
        )
    }

    /// Tries the system call; returns itself if it would block.
    fn attempt(self, handle: &Handle) -> Result<(io::Result<usize>, Payload), Parked> {
        let fd = raw(handle);
        match self {
            Parked::Recv { mut bytes, max } => {
                bytes.reserve(max);
                let room = bytes.spare_capacity_mut();
                // SAFETY: there is room for `max` bytes behind the length.
                let got =
                    unsafe { libc::recv(fd, room.as_mut_ptr().cast(), max, libc::MSG_DONTWAIT) };
                match sys::check_len(got) {
                    Err(error) if would_block(&error) => Err(Parked::Recv { bytes, max }),
                    result => {
                        if let Ok(received) = result {
                            // SAFETY: the kernel has written that many bytes behind the old length.
                            unsafe { bytes.set_len(bytes.len() + received) };
                        }
                        Ok((result, Payload::Bytes(bytes)))
                    }
                }
            }
            Parked::Send { bytes, start } => match sys::send_now(fd, &bytes[start..]) {
                Err(error) if would_block(&error) => Err(Parked::Send { bytes, start }),
                result => Ok((result, Payload::Bytes(bytes))),
            },
            Parked::RecvInto { mut buf, start, end } => {
                match sys::recv_now(fd, &mut buf[start..end]) {
                    Err(error) if would_block(&error) => Err(Parked::RecvInto { buf, start, end }),
                    result => Ok((result, Payload::Buf(buf))),
                }
            }
            Parked::SendParts { parts, start } => match sys::send_parts_now(fd, &parts, start) {
                Err(error) if would_block(&error) => Err(Parked::SendParts { parts, start }),
                result => Ok((result, Payload::None)),
            },
            Parked::Accept => {
                let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
                // SAFETY: null pointers ask for no address.
                let taken =
                    unsafe { libc::accept4(fd, std::ptr::null_mut(), std::ptr::null_mut(), flags) };
                match sys::owned(taken) {
                    Err(error) if would_block(&error) => Err(Parked::Accept),
                    Err(error) => Ok((Err(error), Payload::None)),
                    Ok(socket) => {
                        let peer = sys::peer_name(&socket);
                        let result = sys::set_nodelay(&socket).map(|()| 0);
                        Ok((result, Payload::Socket(Handle::Fd(Arc::new(socket)), peer)))
                    }
                }
            }
            Parked::Connect { peer } => match sys::socket_error(fd) {
                Ok(()) => Ok((Ok(0), Payload::Socket(handle.clone(), peer))),
                Err(error) => Ok((Err(error), Payload::None)),
            },
            Parked::Readable if sys::is_readable(fd) => Ok((Ok(0), Payload::None)),
            Parked::Readable => Err(Parked::Readable),
        }
    }
}

fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// A registered descriptor. Parked operations hold it open.
struct Source {
    open: Weak<OwnedFd>,
    readers: VecDeque<(Token, Handle, Parked)>,
    writers: VecDeque<(Token, Handle, Parked)>,
}

/// See the module.
pub(crate) struct Fallback {
    epoll: OwnedFd,
    bell: Arc<OwnedFd>,
    sources: HashMap<RawFd, Source>,
    /// The descriptors of the parked operations.
    parked: HashMap<Token, RawFd>,
    ended: Vec<Completion>,
    mailbox: Arc<Mailbox>,
    entropy: sys::Entropy,
}

impl Fallback {
    /// A driver that `bell` wakes.
    pub(crate) fn new(bell: &Arc<OwnedFd>, mailbox: Arc<Mailbox>) -> io::Result<Fallback> {
        // SAFETY: takes no pointers.
        let epoll = sys::owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        let driver = Fallback {
            epoll,
            bell: bell.clone(),
            sources: HashMap::default(),
            parked: HashMap::default(),
            ended: Vec::new(),
            mailbox,
            entropy: sys::Entropy::default(),
        };
        driver.control(libc::EPOLL_CTL_ADD, bell.as_raw_fd())?;
        Ok(driver)
    }

    fn control(&self, what: i32, fd: RawFd) -> io::Result<()> {
        let events = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
        let mut event = libc::epoll_event { events: events as u32, u64: fd as u64 };
        // SAFETY: points to a live event.
        sys::check(unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), what, fd, &raw mut event) })?;
        Ok(())
    }

    /// Registers the descriptor with epoll, unless it already is.
    fn register(&mut self, handle: &Handle) -> io::Result<()> {
        let Handle::Fd(open) = handle else { return Err(io::ErrorKind::InvalidInput.into()) };
        let fd = open.as_raw_fd();
        if self.sources.get(&fd).is_some_and(|source| source.open.as_ptr() == Arc::as_ptr(open)) {
            return Ok(());
        }
        match self.control(libc::EPOLL_CTL_ADD, fd) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                self.control(libc::EPOLL_CTL_MOD, fd)?
            }
            result => result?,
        }
        let source = Source {
            open: Arc::downgrade(open),
            readers: VecDeque::new(),
            writers: VecDeque::new(),
        };
        self.sources.insert(fd, source);
        Ok(())
    }

    fn attempt(&mut self, token: Token, handle: Handle, op: Parked) {
        if let Err(error) = self.register(&handle) {
            let payload = match op {
                Parked::Recv { bytes, .. } | Parked::Send { bytes, .. } => Payload::Bytes(bytes),
                Parked::RecvInto { buf, .. } => Payload::Buf(buf),
                _ => Payload::None,
            };
            self.ended.push(Completion::new(token, Err(error), payload));
            return;
        }
        let fd = raw(&handle);
        let source = self.sources.get_mut(&fd).expect("it was registered");
        let queue = if op.reads() { &mut source.readers } else { &mut source.writers };
        // A connect was tried before.
        let tries = queue.is_empty() && !matches!(op, Parked::Connect { .. });
        let op = match if tries { op.attempt(&handle) } else { Err(op) } {
            Ok((result, payload)) => {
                self.ended.push(Completion::new(token, result, payload));
                return;
            }
            Err(op) => op,
        };
        queue.push_back((token, handle, op));
        self.parked.insert(token, fd);
    }

    fn connect(&mut self, token: Token, target: Target) -> io::Result<()> {
        let Target::Ip(address) = target else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the name was not resolved"));
        };
        let socket = sys::tcp_socket(&address, true)?;
        sys::set_nodelay(&socket)?;
        let raw = RawAddress::new(&address);
        // SAFETY: the address lives across the call and has the length given.
        let started =
            sys::check(unsafe { libc::connect(socket.as_raw_fd(), raw.pointer(), raw.len) });
        let handle = Handle::Fd(Arc::new(socket));
        let peer = address.to_string();
        match started {
            Ok(_) => self.ended.push(Completion::new(token, Ok(0), Payload::Socket(handle, peer))),
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {
                self.attempt(token, handle, Parked::Connect { peer });
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn serve(&mut self, fd: RawFd, events: u32) {
        let Some(source) = self.sources.get_mut(&fd) else { return };
        let broken = events & (libc::EPOLLERR | libc::EPOLLHUP) as u32 != 0;
        let reads = broken || events & (libc::EPOLLIN | libc::EPOLLRDHUP) as u32 != 0;
        let writes = broken || events & libc::EPOLLOUT as u32 != 0;
        for (ready, queue) in [(reads, &mut source.readers), (writes, &mut source.writers)] {
            while ready && let Some((token, handle, op)) = queue.pop_front() {
                match op.attempt(&handle) {
                    Ok((result, payload)) => {
                        self.parked.remove(&token);
                        self.ended.push(Completion::new(token, result, payload));
                    }
                    Err(op) => {
                        queue.push_front((token, handle, op));
                        break;
                    }
                }
            }
        }
    }

    fn poll(&mut self, timeout: i32) -> io::Result<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        let epoll = self.epoll.as_raw_fd();
        // SAFETY: the kernel fills at most EVENTS live entries.
        let got = without_token(|| unsafe {
            libc::epoll_wait(epoll, events.as_mut_ptr(), EVENTS as i32, timeout)
        });
        let got = match sys::check(got) {
            Ok(got) => got as usize,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(io::Error::new(error.kind(), format!("epoll_wait: {error}"))),
        };
        for event in &events[..got] {
            let (fd, flags) = (event.u64 as RawFd, event.events);
            // The bell is edge-triggered: it need not be read.
            if fd != self.bell.as_raw_fd() {
                self.serve(fd, flags);
            }
        }
        Ok(())
    }
}

impl Driver for Fallback {
    fn now(&self) -> Instant {
        sys::now()
    }

    fn wall(&self, _: NodeId) -> Timestamp {
        sys::wall()
    }

    fn entropy(&mut self) -> u64 {
        self.entropy.next()
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
        let (socket, local) = sys::tcp_listen(address, true)?;
        Ok((Handle::Fd(Arc::new(socket)), local))
    }

    fn listen_near(&mut self, address: &str) -> io::Result<Option<Handle>> {
        near::listen(address, true).map(|socket| Some(Handle::Fd(Arc::new(socket))))
    }

    fn peer_user(&mut self, socket: &Handle) -> Option<u32> {
        sys::peer_user(raw(socket))
    }

    fn own_user(&self) -> u32 {
        sys::own_user()
    }

    fn connect_near(&mut self, target: &Target) -> Option<(Handle, String)> {
        let Target::Ip(address) = target else { return None };
        let socket = near::connect(address, true)?;
        let peer = sys::peer_name(&socket);
        Some((Handle::Fd(Arc::new(socket)), peer))
    }

    fn listen_at(&mut self, path: &Path) -> io::Result<Handle> {
        near::listen_at(path, true).map(|socket| Handle::Fd(Arc::new(socket)))
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
                pool::submit_io(&self.mailbox, token, move || {
                    let result = sys::read_at(raw(&disk), offset + start as u64, &mut buf[start..]);
                    (result, Payload::Buf(buf))
                })
            }
            Op::Write { disk, offset, buf, start } => {
                pool::submit_io(&self.mailbox, token, move || {
                    let result = sys::write_at(raw(&disk), offset + start as u64, &buf[start..]);
                    (result, Payload::Buf(buf))
                })
            }
            Op::WriteParts { disk, offset, bufs, start } => {
                pool::submit_io(&self.mailbox, token, move || {
                    let at = offset + start as u64;
                    (sys::write_parts_at(raw(&disk), at, &bufs, start), Payload::Bufs(bufs))
                })
            }
            Op::Flush { disk } => pool::submit_io(&self.mailbox, token, move || {
                (sys::datasync(raw(&disk)).map(|()| 0), Payload::None)
            }),
            Op::Discard { disk, offset, len } => pool::submit_io(&self.mailbox, token, move || {
                (device::discard(raw(&disk), offset, len).map(|()| 0), Payload::None)
            }),
            Op::Recv { socket, bytes, max } => {
                self.attempt(token, socket, Parked::Recv { bytes, max })
            }
            Op::Send { socket, bytes, start } => {
                self.attempt(token, socket, Parked::Send { bytes, start })
            }
            Op::RecvInto { socket, buf, start, end } => {
                self.attempt(token, socket, Parked::RecvInto { buf, start, end })
            }
            Op::SendParts { socket, parts, start } => {
                self.attempt(token, socket, Parked::SendParts { parts, start })
            }
            Op::Accept { listener } => self.attempt(token, listener, Parked::Accept),
            Op::Readable { file } => self.attempt(token, file, Parked::Readable),
            Op::Connect { target } => {
                if let Err(error) = self.connect(token, target) {
                    self.ended.push(Completion::new(token, Err(error), Payload::None));
                }
            }
            Op::Fuse { entry, .. } => {
                let error = io::Error::from(io::ErrorKind::Unsupported);
                self.ended.push(Completion::new(token, Err(error), Payload::Fuse(entry)));
            }
            Op::Stop => {
                let error = io::Error::from(io::ErrorKind::Unsupported);
                self.ended.push(Completion::new(token, Err(error), Payload::None));
            }
            Op::Job(job) => pool::submit(&self.mailbox, token, move || {
                job();
                (Ok(0), Payload::None)
            }),
        }
    }

    fn cancel(&mut self, token: Token) {
        let Some(fd) = self.parked.remove(&token) else { return };
        let Some(source) = self.sources.get_mut(&fd) else { return };
        for queue in [&mut source.readers, &mut source.writers] {
            queue.retain(|(parked, ..)| *parked != token);
        }
        let error = io::Error::from_raw_os_error(libc::ECANCELED);
        self.ended.push(Completion::new(token, Err(error), Payload::None));
    }

    fn wait(&mut self, until: Option<Instant>, done: &mut Vec<Completion>) -> io::Result<()> {
        let timeout = match until {
            _ if !self.ended.is_empty() => 0,
            None => -1,
            Some(Instant(0)) => 0,
            // Rounded up, so that a timer is due when the wait returns.
            Some(until) => {
                until.since(sys::now()).as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32
            }
        };
        self.poll(timeout)?;
        done.append(&mut self.ended);
        Ok(())
    }

    fn close(&mut self) {
        self.sources.clear();
        self.parked.clear();
        self.ended.clear();
        pool::end(&self.mailbox);
    }
}
