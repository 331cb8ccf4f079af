//! Thin, safe wrappers of the system calls that the drivers need.

use std::io;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ops::Deref;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use types::{Instant, Timestamp};

use crate::buffer::IoBuf;
use crate::driver::{Part, rest_of};

/// The value of a system call that reports errors in errno.
pub(crate) fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The value of a system call that counts bytes.
pub(crate) fn check_len(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// A count or a negated errno, as completions carry it.
pub(crate) fn check_result(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}

fn clock(id: libc::clockid_t) -> libc::timespec {
    let mut time = MaybeUninit::uninit();
    // SAFETY: the kernel fills the timespec; these clocks always exist.
    unsafe {
        libc::clock_gettime(id, time.as_mut_ptr());
        time.assume_init()
    }
}

/// CLOCK_BOOTTIME.
pub(crate) fn now() -> Instant {
    let time = clock(libc::CLOCK_BOOTTIME);
    Instant(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// CLOCK_REALTIME.
pub(crate) fn wall() -> Timestamp {
    let time = clock(libc::CLOCK_REALTIME);
    Timestamp { seconds: time.tv_sec, nanos: time.tv_nsec as u32 }
}

/// Random words from the kernel, drawn in batches.
#[derive(Default)]
pub(crate) struct Entropy {
    words: [u64; 32],
    left: usize,
}

impl Entropy {
    pub(crate) fn next(&mut self) -> u64 {
        if self.left == 0 {
            let len = size_of_val(&self.words);
            // SAFETY: the kernel writes `len` bytes into the array; up to 256 bytes never come
            // short.
            let got = unsafe { libc::getrandom(self.words.as_mut_ptr().cast(), len, 0) };
            assert_eq!(got, len as isize, "getrandom: {}", io::Error::last_os_error());
            self.left = self.words.len();
        }
        self.left -= 1;
        self.words[self.left]
    }
}

/// Takes over a descriptor that a system call returned.
pub(crate) fn owned(fd: i32) -> io::Result<OwnedFd> {
    let fd = check(fd)?;
    // SAFETY: the call that returned it opened it for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Raises the limit of open files of this process as far as it may, and returns it.
pub(crate) fn raise_open_files() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls read or write one live rlimit.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) != 0 {
            return 0;
        }
        let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
        if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) == 0 {
            limit = raised;
        }
    }
    limit.rlim_cur
}

/// A counter that wakes its poller.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) })
}

/// Adds 1 to an eventfd.
pub(crate) fn ring_bell(bell: &OwnedFd) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: writes 8 bytes from a live array. It blocks only after 2^64 - 2 unread rings.
    unsafe { libc::write(bell.as_raw_fd(), one.as_ptr().cast(), one.len()) };
}

/// An address in the form the kernel takes.
pub(crate) struct RawAddress {
    pub(crate) storage: libc::sockaddr_storage,
    pub(crate) len: libc::socklen_t,
}

impl RawAddress {
    pub(crate) fn empty() -> RawAddress {
        // SAFETY: all-zero is a valid sockaddr_storage.
        let storage = unsafe { MaybeUninit::zeroed().assume_init() };
        RawAddress { storage, len: size_of::<libc::sockaddr_storage>() as libc::socklen_t }
    }

    pub(crate) fn new(address: &SocketAddr) -> RawAddress {
        let mut raw = RawAddress::empty();
        match address {
            SocketAddr::V4(v4) => {
                let inner = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                    sin_zero: [0; 8],
                };
                raw.len = size_of_val(&inner) as libc::socklen_t;
                // SAFETY: sockaddr_storage is large enough and aligned for every address.
                unsafe { (&raw mut raw.storage).cast::<libc::sockaddr_in>().write(inner) };
            }
            SocketAddr::V6(v6) => {
                let inner = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                };
                raw.len = size_of_val(&inner) as libc::socklen_t;
                // SAFETY: as above.
                unsafe { (&raw mut raw.storage).cast::<libc::sockaddr_in6>().write(inner) };
            }
        }
        raw
    }

    pub(crate) fn decode(&self) -> Option<SocketAddr> {
        match i32::from(self.storage.ss_family) {
            libc::AF_INET => {
                // SAFETY: the family says which type the storage holds.
                let v4 = unsafe { &*(&raw const self.storage).cast::<libc::sockaddr_in>() };
                let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let v6 = unsafe { &*(&raw const self.storage).cast::<libc::sockaddr_in6>() };
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
            }
            _ => None,
        }
    }

    pub(crate) fn pointer(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }
}

/// A TCP socket of the address's family.
pub(crate) fn tcp_socket(address: &SocketAddr, nonblocking: bool) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let flags = if nonblocking { libc::SOCK_NONBLOCK } else { 0 };
    // SAFETY: takes no pointers.
    owned(unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | flags, 0) })
}

fn set_option(fd: &OwnedFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    let len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: points to a live integer of the length given.
    check(unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const value).cast(), len)
    })?;
    Ok(())
}

/// Bytes that a Unix socket takes before its peer reads: with the kernel's 200 KiB, sender and
/// receiver of 1 MiB take turns five times.
const UNIX_SEND_BUFFER: i32 = 1 << 20;

/// Lets a Unix socket take a large request at once; without privileges, what the kernel allows.
pub(crate) fn enlarge(fd: &OwnedFd) {
    let set = |option| set_option(fd, libc::SOL_SOCKET, option, UNIX_SEND_BUFFER);
    _ = set(libc::SO_SNDBUFFORCE).or_else(|_| set(libc::SO_SNDBUF));
}

/// Disables Nagle's algorithm. Sockets other than TCP do not have it, and are enlarged.
pub(crate) fn set_nodelay(fd: &OwnedFd) -> io::Result<()> {
    match set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            enlarge(fd);
            Ok(())
        }
        result => result,
    }
}

/// A Unix stream socket.
pub(crate) fn unix_socket(nonblocking: bool) -> io::Result<OwnedFd> {
    let flags = if nonblocking { libc::SOCK_NONBLOCK } else { 0 };
    // SAFETY: takes no pointers.
    owned(unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | flags, 0) })
}

/// The name of a Unix socket, in the form the kernel takes.
pub(crate) struct UnixName {
    address: libc::sockaddr_un,
    pub(crate) len: libc::socklen_t,
}

impl UnixName {
    /// A name in the abstract namespace.
    pub(crate) fn hidden(name: &str) -> io::Result<UnixName> {
        // The first byte is zero: that makes it abstract.
        UnixName::new(1, name.as_bytes())
    }

    /// A path of the file system.
    pub(crate) fn at(path: &Path) -> io::Result<UnixName> {
        UnixName::new(0, path.as_os_str().as_bytes())
    }

    fn new(start: usize, name: &[u8]) -> io::Result<UnixName> {
        // SAFETY: all-zero is a valid sockaddr_un.
        let mut address: libc::sockaddr_un = unsafe { MaybeUninit::zeroed().assume_init() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let end = start + name.len();
        let place = address.sun_path.get_mut(start..end);
        let place = place.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        for (to, from) in place.iter_mut().zip(name) {
            *to = *from as libc::c_char;
        }
        let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + end;
        Ok(UnixName { address, len: len as libc::socklen_t })
    }

    pub(crate) fn pointer(&self) -> *const libc::sockaddr {
        (&raw const self.address).cast()
    }
}

/// The process at the other end of a Unix socket, as it was when it connected or began to listen.
pub(crate) fn peer_process(socket: &OwnedFd) -> Option<libc::ucred> {
    credentials(socket.as_raw_fd())
}

/// The user of the process at the other end of a Unix socket; `None`: it is another socket.
pub(crate) fn peer_user(socket: RawFd) -> Option<u32> {
    credentials(socket).map(|peer| peer.uid)
}

/// The effective user of this process.
pub(crate) fn own_user() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

fn credentials(socket: RawFd) -> Option<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of_val(&peer) as libc::socklen_t;
    // SAFETY: both pointers are to live memory of the length given.
    let got = unsafe {
        libc::getsockopt(
            socket,
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    // Sockets of other families report no peer.
    (got == 0 && peer.uid != libc::uid_t::MAX).then_some(peer)
}

/// Sends what the socket takes at once.
pub(crate) fn send_now(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: reads a live slice.
    check_len(unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags) })
}

/// The error that ended an asynchronous connect.
pub(crate) fn socket_error(fd: RawFd) -> io::Result<()> {
    let mut error = 0i32;
    let mut len = size_of_val(&error) as libc::socklen_t;
    // SAFETY: both pointers are to live integers.
    check(unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_ERROR,
            (&raw mut error).cast(),
            &raw mut len,
        )
    })?;
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// A listening socket on the first address of "host:port" that can be bound, and that address.
pub(crate) fn tcp_listen(address: &str, nonblocking: bool) -> io::Result<(OwnedFd, String)> {
    use std::net::ToSocketAddrs;
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        match bind(&address, nonblocking) {
            Ok(bound) => return Ok(bound),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn bind(address: &SocketAddr, nonblocking: bool) -> io::Result<(OwnedFd, String)> {
    let socket = tcp_socket(address, nonblocking)?;
    set_option(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    let raw = RawAddress::new(address);
    // SAFETY: the address lives across the call and has the length given.
    check(unsafe { libc::bind(socket.as_raw_fd(), raw.pointer(), raw.len) })?;
    // SAFETY: takes no pointers.
    check(unsafe { libc::listen(socket.as_raw_fd(), super::near::BACKLOG) })?;
    let mut local = RawAddress::empty();
    // SAFETY: both pointers are to live memory of the length given.
    check(unsafe {
        libc::getsockname(socket.as_raw_fd(), (&raw mut local.storage).cast(), &raw mut local.len)
    })?;
    let local =
        local.decode().ok_or_else(|| io::Error::other("an address of an unknown family"))?;
    Ok((socket, local.to_string()))
}

/// The address of the other end, for messages.
pub(crate) fn peer_name(socket: &OwnedFd) -> String {
    let mut raw = RawAddress::empty();
    // SAFETY: both pointers are to live memory of the length given.
    let got = unsafe {
        libc::getpeername(socket.as_raw_fd(), (&raw mut raw.storage).cast(), &raw mut raw.len)
    };
    match (got, raw.decode()) {
        (0, Some(address)) => address.to_string(),
        _ => match peer_process(socket) {
            // The peer is in another PID namespace: it has no number here.
            Some(peer) if peer.pid == 0 => "a process of this host".to_owned(),
            Some(peer) => format!("process {} of this host", peer.pid),
            None => "unknown".to_owned(),
        },
    }
}

/// Ends traffic in both directions.
pub(crate) fn shutdown(fd: RawFd) {
    // SAFETY: takes no pointers; a socket that is not connected gives a harmless error.
    unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
}

/// Is `fd` readable (or broken) now?
pub(crate) fn is_readable(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one live pollfd.
    unsafe { libc::poll(&raw mut poll, 1, 0) > 0 }
}

/// Sets or clears O_NONBLOCK.
pub(crate) fn set_nonblocking(fd: RawFd, on: bool) -> io::Result<()> {
    // SAFETY: takes no pointers.
    let flags = check(unsafe { libc::fcntl(fd, libc::F_GETFL) })?;
    let flags = if on { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
    // SAFETY: takes no pointers.
    check(unsafe { libc::fcntl(fd, libc::F_SETFL, flags) })?;
    Ok(())
}

/// pread(2) into `buf`.
pub(crate) fn read_at(fd: RawFd, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
    // SAFETY: writes at most the length of a live slice.
    check_len(unsafe { libc::pread64(fd, buf.as_mut_ptr().cast(), buf.len(), offset as i64) })
}

/// pwrite(2) of `buf`.
pub(crate) fn write_at(fd: RawFd, offset: u64, buf: &[u8]) -> io::Result<usize> {
    // SAFETY: reads a live slice.
    check_len(unsafe { libc::pwrite64(fd, buf.as_ptr().cast(), buf.len(), offset as i64) })
}

/// The parts of `bufs`, one behind the other, without their first `start` bytes.
pub(crate) fn vector<T: Deref<Target = [u8]>>(bufs: &[T], start: usize) -> Vec<libc::iovec> {
    let entry = |rest: &[u8]| {
        let iov_base = rest.as_ptr().cast_mut().cast();
        libc::iovec { iov_base, iov_len: rest.len() }
    };
    rest_of(bufs, start).map(entry).collect()
}

/// A message of `vector`, which must outlive it.
pub(crate) fn message(vector: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: all zero is a message without address, parts and control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (vector.as_mut_ptr(), vector.len());
    message
}

/// Sends what the socket takes at once of `parts` without their first `start` bytes.
pub(crate) fn send_parts_now(fd: RawFd, parts: &[Part], start: usize) -> io::Result<usize> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    let mut vector = vector(parts, start);
    let message = message(&mut vector);
    // SAFETY: reads live slices.
    check_len(unsafe { libc::sendmsg(fd, &raw const message, flags) })
}

/// Receives what has arrived into `buf`.
pub(crate) fn recv_now(fd: RawFd, buf: &mut [u8]) -> io::Result<usize> {
    // SAFETY: writes at most the length of a live slice.
    check_len(unsafe { libc::recv(fd, buf.as_mut_ptr().cast(), buf.len(), libc::MSG_DONTWAIT) })
}

/// pwritev(2) of `bufs` without their first `start` bytes; `offset` is that of the first byte
/// written.
pub(crate) fn write_parts_at(
    fd: RawFd,
    offset: u64,
    bufs: &[IoBuf],
    start: usize,
) -> io::Result<usize> {
    let parts = vector(bufs, start);
    let count = parts.len() as i32;
    // SAFETY: reads live slices.
    check_len(unsafe { libc::pwritev64(fd, parts.as_ptr(), count, offset as i64) })
}

/// fdatasync(2).
pub(crate) fn datasync(fd: RawFd) -> io::Result<()> {
    // SAFETY: takes no pointers.
    check(unsafe { libc::fdatasync(fd) })?;
    Ok(())
}
