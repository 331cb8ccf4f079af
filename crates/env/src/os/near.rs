//! Unix sockets for peers on the same host: beside TCP ones, and at paths.
//!
//! Invariants:
//! - the name of a socket beside a TCP one contains the address that its listener has by TCP; it is
//!   in the abstract namespace, which ends with the network namespace and with the process;
//! - a client uses such a peer only if it runs as root or as the user of this process. Any process
//!   may take the name, as it may take a port;
//! - on any error here, the connection uses TCP.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use super::sys;

/// Connections that wait to be accepted: all clients of a server that restarts come at once. The
/// kernel has a bound of its own, `net.core.somaxconn`.
pub(crate) const BACKLOG: i32 = 32_768;

/// Listens beside the TCP address `local`, as the kernel wrote it.
pub(crate) fn listen(local: &str, nonblocking: bool) -> io::Result<OwnedFd> {
    let socket = sys::unix_socket(nonblocking)?;
    let name = sys::UnixName::hidden(&name_of(local))?;
    // SAFETY: the name lives across the call and has the length given.
    sys::check(unsafe { libc::bind(socket.as_raw_fd(), name.pointer(), name.len) })?;
    // SAFETY: takes no pointers.
    sys::check(unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) })?;
    Ok(socket)
}

/// A connection to the process that listens on the TCP address `target`, if that is on this host
/// and listens here too. Never waits.
pub(crate) fn connect(target: &SocketAddr, nonblocking: bool) -> Option<OwnedFd> {
    names(target).iter().find_map(|name| {
        let socket = sys::unix_socket(true).ok()?;
        let name = sys::UnixName::hidden(name).ok()?;
        // SAFETY: the name lives across the call and has the length given.
        sys::check(unsafe { libc::connect(socket.as_raw_fd(), name.pointer(), name.len) }).ok()?;
        let peer = sys::peer_process(&socket)?;
        if peer.uid != 0 && peer.uid != sys::own_user() {
            return None;
        }
        sys::set_nonblocking(socket.as_raw_fd(), nonblocking).ok()?;
        sys::enlarge(&socket);
        Some(socket)
    })
}

/// Listens at `path` of the file system, in place of whatever is there, for processes of the user
/// of this one and of root. Nobody ever finds the name without a listener behind it.
pub(crate) fn listen_at(path: &Path, nonblocking: bool) -> io::Result<OwnedFd> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // The name of a socket has few bytes: the directory is named by its descriptor.
    let dir = std::fs::File::open(dir)?;
    let place = Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string());
    let mut new = name.to_owned();
    new.push(".new");
    let (path, new) = (place.join(name), place.join(new));
    for name in [&path, &new] {
        let there = std::fs::symlink_metadata(name);
        if there.is_ok_and(|there| !there.file_type().is_socket()) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is there, and no socket"));
        }
    }
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = sys::unix_socket(nonblocking)?;
    // SAFETY: takes no pointers. The mode of the socket becomes that of its name.
    sys::check(unsafe { libc::fchmod(socket.as_raw_fd(), 0o600) })?;
    let name = sys::UnixName::at(&new)?;
    // SAFETY: the name lives across the call and has the length given.
    sys::check(unsafe { libc::bind(socket.as_raw_fd(), name.pointer(), name.len) })?;
    // SAFETY: takes no pointers.
    sys::check(unsafe { libc::listen(socket.as_raw_fd(), 16) })?;
    std::fs::rename(&new, &path)?;
    Ok(socket)
}

fn name_of(address: &str) -> String {
    format!("redbud/{address}")
}

/// The names that `target` may have: its own, and those of the wildcard addresses if it is local.
fn names(target: &SocketAddr) -> Vec<String> {
    let mut names = vec![name_of(&target.to_string())];
    if is_of_this_host(target.ip()) {
        let all: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        // A listener on all IPv6 addresses usually accepts IPv4 too.
        let all = all.into_iter().filter(|all| target.is_ipv4() || all.is_ipv6());
        names.extend(all.map(|all| name_of(&SocketAddr::new(all, target.port()).to_string())));
    }
    names
}

/// Only an address of this host (in this network namespace) can be bound.
fn is_of_this_host(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_socket_is_replaced_by_a_socket() {
        let path = std::env::temp_dir().join(format!("redbud-near-{}", std::process::id()));
        std::fs::write(&path, "a file").unwrap();
        assert_eq!(listen_at(&path, true).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).unwrap(), b"a file");
        std::fs::remove_file(&path).unwrap();
        drop(listen_at(&path, true).unwrap());
        drop(listen_at(&path, true).unwrap());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn local_addresses_are_also_tried_as_wildcard_addresses() {
        let own = names(&"127.0.0.1:7".parse().unwrap());
        assert_eq!(own, ["redbud/127.0.0.1:7", "redbud/0.0.0.0:7", "redbud/[::]:7"]);
        // An address for documentation, which no host has.
        let other = names(&"192.0.2.1:7".parse().unwrap());
        assert_eq!(other, ["redbud/192.0.2.1:7"]);
    }

    #[test]
    fn socket_name_is_exclusive_until_its_socket_is_closed() {
        let address = format!("127.0.0.1:near-{}", std::process::id());
        let first = listen(&address, true).unwrap();
        assert_eq!(listen(&address, true).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        listen(&address, true).unwrap();
    }
}
