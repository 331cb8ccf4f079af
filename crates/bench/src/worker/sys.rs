//! The system calls of the load generators, and nothing around them.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A system call's outcome; the error says which, on what and why.
pub type Os<T> = Result<T, String>;

/// Nanoseconds of the monotonic clock.
pub fn monotonic() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// `path` as the kernel takes it.
pub fn c_path(path: &Path) -> Os<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| format!("{}: a zero byte in the path", path.display()))
}

/// The last error, of `what`.
pub fn last<T>(what: &str, name: &CStr) -> Os<T> {
    Err(format!("{what} {}: {}", name.to_string_lossy(), std::io::Error::last_os_error()))
}

/// openat(2); `None` is the working directory.
pub fn open(dir: Option<&OwnedFd>, name: &CStr, flags: i32) -> Os<OwnedFd> {
    let dir = dir.map_or(libc::AT_FDCWD, AsRawFd::as_raw_fd);
    // SAFETY: `name` ends with a zero byte.
    let fd = unsafe { libc::openat(dir, name.as_ptr(), flags | libc::O_CLOEXEC, 0o644) };
    if fd < 0 {
        return last("open", name);
    }
    // SAFETY: the descriptor was made above and belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Opens a directory.
pub fn open_dir(path: &Path) -> Os<OwnedFd> {
    open(None, &c_path(path)?, libc::O_RDONLY | libc::O_DIRECTORY)
}

/// unlinkat(2).
pub fn unlink(dir: &OwnedFd, name: &CStr) -> Os<()> {
    unlink_at(dir.as_raw_fd(), name)
}

/// unlink(2).
pub fn unlink_path(path: &CStr) -> Os<()> {
    unlink_at(libc::AT_FDCWD, path)
}

fn unlink_at(dir: i32, name: &CStr) -> Os<()> {
    // SAFETY: `name` ends with a zero byte.
    match unsafe { libc::unlinkat(dir, name.as_ptr(), 0) } {
        0 => Ok(()),
        _ => last("unlink", name),
    }
}

/// fstatat(2), without following a link.
pub fn stat(dir: &OwnedFd, name: &CStr) -> Os<libc::stat> {
    stat_at(dir.as_raw_fd(), name, libc::AT_SYMLINK_NOFOLLOW)
}

/// lstat(2).
pub fn stat_path(path: &CStr) -> Os<libc::stat> {
    stat_at(libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW)
}

/// The size of an open file.
pub fn size(file: &OwnedFd) -> Os<u64> {
    Ok(stat_at(file.as_raw_fd(), c"", libc::AT_EMPTY_PATH)?.st_size as u64)
}

fn stat_at(dir: i32, name: &CStr, flags: i32) -> Os<libc::stat> {
    let mut out = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `name` ends with a zero byte, and `out` has room for a stat.
    match unsafe { libc::fstatat(dir, name.as_ptr(), out.as_mut_ptr(), flags) } {
        // SAFETY: the call filled it.
        0 => Ok(unsafe { out.assume_init() }),
        _ => last("stat", name),
    }
}

/// utimensat(2) with the present time.
pub fn utime(dir: &OwnedFd, name: &CStr) -> Os<()> {
    // SAFETY: `name` ends with a zero byte; no times are given.
    match unsafe { libc::utimensat(dir.as_raw_fd(), name.as_ptr(), std::ptr::null(), 0) } {
        0 => Ok(()),
        _ => last("utime", name),
    }
}

/// pwrite(2) of all bytes.
pub fn write_at(file: &OwnedFd, bytes: &[u8], offset: u64) -> Os<()> {
    // SAFETY: the pointer and length are of a live slice.
    let wrote = unsafe {
        libc::pwrite(file.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), offset as i64)
    };
    match usize::try_from(wrote) {
        Ok(wrote) if wrote == bytes.len() => Ok(()),
        Ok(wrote) => Err(format!("write at {offset}: {wrote} of {} bytes", bytes.len())),
        Err(_) => Err(format!("write at {offset}: {}", std::io::Error::last_os_error())),
    }
}

/// fallocate(2): space for so many bytes, which the file has from then on.
pub fn allocate(file: &OwnedFd, offset: u64, bytes: u64) -> Os<()> {
    // SAFETY: the descriptor is open.
    match unsafe { libc::fallocate(file.as_raw_fd(), 0, offset as i64, bytes as i64) } {
        0 => Ok(()),
        _ => Err(format!("fallocate at {offset}: {}", std::io::Error::last_os_error())),
    }
}

/// pread(2) of all bytes.
pub fn read_at(file: &OwnedFd, bytes: &mut [u8], offset: u64) -> Os<()> {
    // SAFETY: the pointer and length are of a live slice that may be written.
    let got = unsafe {
        libc::pread(file.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), offset as i64)
    };
    match usize::try_from(got) {
        Ok(got) if got == bytes.len() => Ok(()),
        Ok(got) => Err(format!("read at {offset}: {got} of {} bytes", bytes.len())),
        Err(_) => Err(format!("read at {offset}: {}", std::io::Error::last_os_error())),
    }
}

/// fsync(2).
pub fn fsync(file: &OwnedFd) -> Os<()> {
    // SAFETY: the descriptor is open.
    match unsafe { libc::fsync(file.as_raw_fd()) } {
        0 => Ok(()),
        _ => Err(format!("fsync: {}", std::io::Error::last_os_error())),
    }
}

/// close(2), whose error counts.
pub fn close(file: OwnedFd) -> Os<()> {
    let fd = std::os::fd::IntoRawFd::into_raw_fd(file);
    // SAFETY: the descriptor was owned, and nobody uses it after this.
    match unsafe { libc::close(fd) } {
        0 => Ok(()),
        _ => Err(format!("close: {}", std::io::Error::last_os_error())),
    }
}

/// syncfs(2) of the file system at `path`.
pub fn syncfs(path: &Path) -> Os<()> {
    let dir = open_dir(path)?;
    // SAFETY: the descriptor is open.
    match unsafe { libc::syncfs(dir.as_raw_fd()) } {
        0 => Ok(()),
        _ => Err(format!("syncfs {}: {}", path.display(), std::io::Error::last_os_error())),
    }
}

/// Linux has no longer attributes.
const ATTRIBUTE_MAX: usize = 64 << 10;

/// The counters of requests of the mount at `root`, as JSON.
pub fn requests(root: &Path) -> Os<String> {
    attribute(root, fuse::REQUESTS_XATTR)
}

/// An extended attribute that is text.
pub fn attribute(of: &Path, name: impl Into<Vec<u8>>) -> Os<String> {
    let path = c_path(of)?;
    let name = CString::new(name).map_err(|error| error.to_string())?;
    let mut value = vec![0u8; ATTRIBUTE_MAX];
    // SAFETY: both strings end with a zero byte; the buffer has the length that is said.
    let got = unsafe {
        libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len())
    };
    let Ok(got) = usize::try_from(got) else { return last("getxattr", &path) };
    value.truncate(got);
    String::from_utf8(value).map_err(|error| error.to_string())
}

/// Reads some entries of a directory into `buffer`; 0 bytes at its end.
pub fn getdents(dir: &OwnedFd, buffer: &mut [u64]) -> Os<usize> {
    let bytes = std::mem::size_of_val(buffer);
    // SAFETY: the pointer and length are of a live slice that may be written.
    let got =
        unsafe { libc::syscall(libc::SYS_getdents64, dir.as_raw_fd(), buffer.as_mut_ptr(), bytes) };
    usize::try_from(got).map_err(|_| format!("getdents: {}", std::io::Error::last_os_error()))
}
