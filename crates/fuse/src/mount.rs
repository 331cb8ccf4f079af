//! Mounting and unmounting: mount(2) as root, `fusermount3` otherwise.
//!
//! Invariants:
//! - nothing here waits for a FUSE request, so it may run on the thread that will
//!   serve the mount; [`unmount`] may wait for one and belongs on another thread;
//! - the kernel checks permissions (`default_permissions`), always.
#![allow(clippy::disallowed_methods, reason = "the mount helper lies above the seam")]

use std::ffi::{CString, OsStr};
use std::fmt::Write;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use types::limits::IO_MAX;

/// Readahead of a mount, in KiB, if root sets it.
const READ_AHEAD_KIB: u32 = 16_384;
/// `PR_SET_IO_FLUSHER`.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// The options of a mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountOptions {
    /// What `df` and `mount` show as the source.
    pub source: String,
    /// Other users may use the mount.
    pub allow_other: bool,
    flags: libc::c_ulong,
}

impl MountOptions {
    /// The defaults: read-write, open to other users if root mounts.
    pub fn new(source: &str) -> MountOptions {
        MountOptions { source: source.to_owned(), allow_other: is_root(), flags: 0 }
    }

    /// Applies one of mount(8)'s options; false if it is unknown here.
    pub fn apply(&mut self, option: &str) -> bool {
        let (set, clear) = match option {
            "rw" => (0, libc::MS_RDONLY),
            "ro" => (libc::MS_RDONLY, 0),
            "suid" => (0, libc::MS_NOSUID),
            "nosuid" => (libc::MS_NOSUID, 0),
            "dev" => (0, libc::MS_NODEV),
            "nodev" => (libc::MS_NODEV, 0),
            "exec" => (0, libc::MS_NOEXEC),
            "noexec" => (libc::MS_NOEXEC, 0),
            "async" => (0, libc::MS_SYNCHRONOUS),
            "sync" => (libc::MS_SYNCHRONOUS, 0),
            "dirsync" => (libc::MS_DIRSYNC, 0),
            "atime" => (0, libc::MS_NOATIME),
            "noatime" => (libc::MS_NOATIME, 0),
            "diratime" => (0, libc::MS_NODIRATIME),
            "nodiratime" => (libc::MS_NODIRATIME, 0),
            "relatime" => (libc::MS_RELATIME, libc::MS_STRICTATIME),
            "strictatime" => (libc::MS_STRICTATIME, libc::MS_RELATIME),
            "allow_other" => {
                self.allow_other = true;
                (0, 0)
            }
            "defaults" | "default_permissions" => (0, 0),
            _ => return false,
        };
        self.flags = (self.flags & !clear) | set;
        true
    }

    /// Is the mount read-only?
    pub fn read_only(&self) -> bool {
        self.flags & libc::MS_RDONLY != 0
    }

    /// The options in the syntax of `fusermount3`.
    fn helper_text(&self) -> String {
        let mut text = format!("default_permissions,max_read={IO_MAX},subtype=redbud,fsname=");
        for letter in self.source.chars() {
            if matches!(letter, ',' | '\\') {
                text.push('\\');
            }
            text.push(letter);
        }
        let words = [
            (libc::MS_RDONLY, "ro"),
            (libc::MS_NOSUID, "nosuid"),
            (libc::MS_NODEV, "nodev"),
            (libc::MS_NOEXEC, "noexec"),
            (libc::MS_SYNCHRONOUS, "sync"),
            (libc::MS_DIRSYNC, "dirsync"),
            (libc::MS_NOATIME, "noatime"),
        ];
        for (_, word) in words.iter().filter(|(flag, _)| self.flags & flag != 0) {
            // Writing to a string cannot fail.
            let _ = write!(text, ",{word}");
        }
        if self.allow_other {
            text.push_str(",allow_other");
        }
        text
    }
}

fn is_root() -> bool {
    // SAFETY: takes no arguments and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Mounts on `target`; returns the descriptor by which the kernel sends requests.
///
/// # Errors
/// The failed step, with the path and the remedy.
pub fn mount(target: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    let shown = target.display();
    let target = target.canonicalize().map_err(|error| {
        let hint = if error.raw_os_error() == Some(libc::ENOTCONN) {
            format!(" (a dead mount is in the way: umount {shown})")
        } else {
            String::new()
        };
        io::Error::new(error.kind(), format!("mount point {shown}: {error}{hint}"))
    })?;
    if !target.is_dir() {
        let text = format!("mount point {shown} is not a directory");
        return Err(io::Error::new(ErrorKind::NotADirectory, text));
    }
    if is_root() { mount_as_root(&target, options) } else { mount_by_helper(&target, options) }
}

fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes)
        .map_err(|_| io::Error::new(ErrorKind::InvalidInput, "a NUL in a path or option"))
}

fn mount_as_root(target: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    // SAFETY: the path is a NUL-terminated constant.
    let fd = unsafe { libc::open(c"/dev/fuse".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if fd < 0 {
        let error = io::Error::last_os_error();
        let text = format!("/dev/fuse: {error} (is the fuse module loaded? try: modprobe fuse)");
        return Err(io::Error::new(error.kind(), text));
    }
    // SAFETY: `fd` was just opened and has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut data = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,max_read={IO_MAX}",
        fd.as_raw_fd()
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let source = c_string(options.source.as_bytes())?;
    let path = c_string(target.as_os_str().as_bytes())?;
    let data = c_string(data.as_bytes())?;
    // SAFETY: all pointers are to NUL-terminated strings that outlive the call.
    let status = unsafe {
        libc::mount(
            source.as_ptr(),
            path.as_ptr(),
            c"fuse.redbud".as_ptr(),
            options.flags,
            data.as_ptr().cast(),
        )
    };
    if status != 0 {
        let error = io::Error::last_os_error();
        let text = format!("mounting on {}: {error}", target.display());
        return Err(io::Error::new(error.kind(), text));
    }
    Ok(fd)
}

fn helper(error: &io::Error) -> io::Error {
    let text = if error.kind() == ErrorKind::NotFound {
        "fusermount3 is missing, which mounts for users other than root: install the package fuse3"
            .to_owned()
    } else {
        format!("fusermount3: {error}")
    };
    io::Error::new(error.kind(), text)
}

fn mount_by_helper(target: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    // SAFETY: `theirs` is open; clearing its flags only lets the child inherit it.
    if unsafe { libc::fcntl(theirs.as_raw_fd(), libc::F_SETFD, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let child = Command::new("fusermount3")
        .args(["-o", &options.helper_text(), "--"])
        .arg(target)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| helper(&error))?;
    drop(theirs);
    let fd = receive_descriptor(&ours);
    let output = child.wait_with_output()?;
    match fd {
        Ok(fd) if output.status.success() => Ok(fd),
        _ => {
            let said = String::from_utf8_lossy(&output.stderr);
            let (said, hint) = (said.trim(), helper_hint(&said));
            Err(io::Error::other(format!("mounting on {}: {said}{hint}", target.display())))
        }
    }
}

/// The remedy for an error message of `fusermount3`.
fn helper_hint(said: &str) -> &'static str {
    if said.contains("/dev/fuse") && said.contains("ermission") {
        " (users may mount only where /dev/fuse is open to them, as root: chmod 0666 /dev/fuse)"
    } else if said.contains("user_allow_other") {
        " (or mount with -o noallow_other)"
    } else {
        ""
    }
}

/// Receives the descriptor sent over `stream`.
fn receive_descriptor(stream: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0u8; 1];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // Room for one descriptor, aligned as a control message is.
    let mut control = [0u64; 8];
    // SAFETY: all-zero bytes are a valid `msghdr`.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    loop {
        // SAFETY: the message points to live buffers of the lengths it states.
        let got =
            unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        if got >= 0 {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != ErrorKind::Interrupted {
            return Err(error);
        }
    }
    // SAFETY: the kernel has filled in the control buffer and its length.
    let first = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    if first.is_null() {
        return Err(io::Error::new(ErrorKind::UnexpectedEof, "fusermount3 sent no descriptor"));
    }
    // SAFETY: `first` is not null, so it points to a whole header in `control`.
    let (level, kind) = unsafe { ((*first).cmsg_level, (*first).cmsg_type) };
    if (level, kind) != (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
        return Err(io::Error::new(ErrorKind::InvalidData, "fusermount3 sent no descriptor"));
    }
    // SAFETY: a message of this kind holds at least one descriptor, which is now ours.
    Ok(unsafe {
        OwnedFd::from_raw_fd(libc::CMSG_DATA(first).cast::<libc::c_int>().read_unaligned())
    })
}

/// Unmounts `target`. Waits until the kernel has written back its cache, so
/// never call it on the thread that serves the mount. `lazy`: detaches it even if it is
/// in use; it ends when the last user is gone.
///
/// # Errors
/// `ResourceBusy` if it is in use, or another failure, with the path.
pub fn unmount(target: &Path, lazy: bool) -> io::Result<()> {
    if !is_root() {
        return unmount_by_helper(target, lazy);
    }
    let path = c_string(target.as_os_str().as_bytes())?;
    let flags = libc::UMOUNT_NOFOLLOW | if lazy { libc::MNT_DETACH } else { 0 };
    // SAFETY: the path is NUL-terminated and outlives the call.
    if unsafe { libc::umount2(path.as_ptr(), flags) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(io::Error::new(error.kind(), format!("unmounting {}: {error}", target.display())))
}

fn unmount_by_helper(target: &Path, lazy: bool) -> io::Result<()> {
    let output = Command::new("fusermount3")
        .arg(if lazy { "-uz" } else { "-u" })
        .arg("--")
        .arg(target)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| helper(&error))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let kind = if said.contains("busy") { ErrorKind::ResourceBusy } else { ErrorKind::Other };
    Err(io::Error::new(kind, format!("unmounting {}: {}", target.display(), said.trim())))
}

/// Lets readahead and write-back of the mount on `target` use the whole machine, if this
/// process may. Call it after the negotiation: INIT resets readahead.
pub fn tune(target: &Path) {
    let Some(device) = device_number(target) else {
        return;
    };
    let folder = PathBuf::from(format!("/sys/class/bdi/{device}"));
    let settings = [("read_ahead_kb", READ_AHEAD_KIB), ("strict_limit", 0), ("max_ratio", 100)];
    for (file, value) in settings {
        // Not every user may, and not every kernel has all of them: the mount works without.
        let _ = std::fs::write(folder.join(file), value.to_string());
    }
}

/// "major:minor" of the mount on `target`, without asking the mount itself.
pub fn device_number(target: &Path) -> Option<String> {
    let target = target.canonicalize().ok()?;
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    find_device(&table, &target)
}

fn find_device(table: &str, target: &Path) -> Option<String> {
    let mut found = None;
    for line in table.lines() {
        let mut fields = line.split(' ');
        let device = fields.nth(2);
        let point = fields.nth(1).map(unescape);
        if point.is_some_and(|point| OsStr::from_bytes(&point) == target.as_os_str()) {
            found = device.map(str::to_owned);
        }
    }
    found
}

/// Decodes octal escapes: mount tables write spaces and some other bytes as three octal digits.
fn unescape(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte == b'\\'
            && let Some(digits) = tail.get(..3)
            && let Ok(digits) = std::str::from_utf8(digits)
            && let Ok(value) = u8::from_str_radix(digits, 8)
        {
            out.push(value);
            rest = &tail[3..];
        } else {
            out.push(byte);
        }
    }
    out
}

/// Tells the kernel that this thread serves write-back: its own allocations then
/// do not wait for pages that it would have to write itself.
pub fn become_io_flusher() {
    // SAFETY: this prctl reads plain integers. Without the privilege it fails, and the mount works.
    unsafe {
        libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fstab_options_become_mount_flags() {
        let mut options = MountOptions::new("a,b:/fs");
        for option in ["defaults", "ro", "nosuid", "noexec", "suid"] {
            assert!(options.apply(option), "{option}");
        }
        assert!(!options.apply("_netdev"));
        assert!(options.read_only());
        assert_eq!(options.flags, libc::MS_RDONLY | libc::MS_NOEXEC);
        assert!(options.apply("rw") && !options.read_only());
    }

    #[test]
    fn commas_of_the_source_are_escaped_for_fusermount() {
        let mut options = MountOptions::new("a,b:/fs");
        options.allow_other = false;
        options.apply("nodev");
        let text = options.helper_text();
        assert!(text.ends_with("fsname=a\\,b:/fs,nodev"), "{text}");
    }

    #[test]
    fn fusermount_errors_come_with_a_remedy() {
        let denied = "fusermount3: failed to open /dev/fuse: Permission denied";
        assert!(helper_hint(denied).contains("chmod 0666 /dev/fuse"));
        let others = "fusermount3: option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf";
        assert!(helper_hint(others).contains("noallow_other"));
        assert_eq!(helper_hint("fusermount3: bad mount point /x: No such file"), "");
    }

    #[test]
    fn last_mount_on_a_path_is_found() {
        let table = "36 35 98:0 / /mnt\\040a rw,noatime master:1 - ext3 /dev/root rw\n\
                     37 35 0:55 / /mnt\\040a rw - fuse.redbud x rw\n\
                     38 35 0:56 / /mnt rw - tmpfs x rw\n";
        assert_eq!(find_device(table, Path::new("/mnt a")).as_deref(), Some("0:55"));
        assert_eq!(find_device(table, Path::new("/none")), None);
    }
}
