//! Opening, sizing and discarding files and block devices.
//!
//! Invariant: every error names the path and the operation.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::Arc;

use super::{lock, sys};
use crate::driver::{ByteLock, DiskOptions, Handle, LockScope, OpenedDisk};

/// `_IO(0x12, 119)`: discard a range of a block device.
const BLKDISCARD: libc::Ioctl = 0x1277;
/// `_IOR(0x12, 114, size_t)`: size of a block device in bytes.
const BLKGETSIZE64: libc::Ioctl = 0x8008_1272_u32 as libc::Ioctl;

fn failed(path: &str, what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{path}: {what}: {error}"))
}

/// Opens `path` as a disk.
pub(crate) fn open(path: &str, options: DiskOptions) -> io::Result<OpenedDisk> {
    let about = fs::metadata(path).map_err(|error| failed(path, "open", &error))?;
    let is_block = about.file_type().is_block_device();
    if !is_block && !about.file_type().is_file() {
        let error =
            io::Error::new(io::ErrorKind::InvalidInput, "neither a file nor a block device");
        return Err(failed(path, "open", &error));
    }
    let mut flags = libc::O_CLOEXEC | if options.write { libc::O_RDWR } else { libc::O_RDONLY };
    if options.exclusive && is_block {
        flags |= libc::O_EXCL;
    }
    let fd = match open_raw(path, flags | libc::O_DIRECT) {
        // Some file systems have no direct I/O.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => open_raw(path, flags),
        result => result,
    };
    let fd = fd.map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => busy(path, "open exclusively", holder_of(path)),
        _ => failed(
            path,
            if options.write { "open for writing" } else { "open for reading" },
            &error,
        ),
    })?;
    if options.exclusive {
        lock_whole(path, &fd, options.write)?;
    }
    let size = if is_block {
        block_size(fd.as_raw_fd()).map_err(|error| failed(path, "get the size of", &error))?
    } else {
        about.len()
    };
    let write_through = is_block && queue_says(about.rdev(), "write_cache", "write through");
    let device = if is_block { about.rdev() } else { about.dev() };
    let rotational = queue_says(device, "rotational", "1");
    let lock_scope = lock_scope(&about);
    Ok(OpenedDisk { handle: Handle::Fd(Arc::new(fd)), size, write_through, rotational, lock_scope })
}

/// The kernel keeps locks with the inode of the device node or file. Its boot has a random number.
fn lock_scope(about: &fs::Metadata) -> Option<LockScope> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let boot = u128::from_str_radix(&boot.trim().replace('-', ""), 16).ok()?;
    let mut scope = [0; 32];
    scope[..16].copy_from_slice(&boot.to_be_bytes());
    scope[16..24].copy_from_slice(&about.dev().to_be_bytes());
    scope[24..].copy_from_slice(&about.ino().to_be_bytes());
    Some(LockScope(scope))
}

fn open_raw(path: &str, flags: i32) -> io::Result<OwnedFd> {
    let path = CString::new(path).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: the path is a live C string.
    sys::owned(unsafe { libc::open(path.as_ptr(), flags) })
}

fn busy(path: &str, what: &str, holder: Option<u32>) -> io::Error {
    let by = match holder {
        Some(pid) => format!("process {pid}"),
        None => "the system (is it mounted?) or a process that cannot be seen".to_owned(),
    };
    io::Error::new(io::ErrorKind::ResourceBusy, format!("{path}: {what}: in use by {by}"))
}

/// The process that has `path` open exclusively, if it can be found.
fn holder_of(path: &str) -> Option<u32> {
    let fd = open_raw(path, libc::O_RDONLY | libc::O_CLOEXEC).ok()?;
    lock::holder(fd.as_raw_fd(), lock::EXCLUSIVE)
}

fn lock_whole(path: &str, fd: &OwnedFd, write: bool) -> io::Result<()> {
    let fd = fd.as_raw_fd();
    match lock::take(fd, lock::EXCLUSIVE, !write) {
        Ok(true) => Ok(()),
        Ok(false) => Err(busy(path, "lock", lock::holder(fd, lock::EXCLUSIVE))),
        Err(error) => Err(failed(path, "lock", &error)),
    }
}

/// Takes or tests a [`ByteLock`].
pub(crate) fn lock_byte(fd: RawFd, byte: ByteLock) -> io::Result<bool> {
    let at = |index: u64| {
        let index = if index < lock::EXCLUSIVE - lock::BYTES { Some(index) } else { None };
        index
            .map(|index| lock::BYTES + index)
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))
    };
    match byte {
        ByteLock::Take(index) => lock::take(fd, at(index)?, false),
        ByteLock::Test(index) => lock::test(fd, at(index)?),
        ByteLock::Release(index) => lock::release(fd, at(index)?).map(|()| true),
        ByteLock::Share => lock::take(fd, lock::EXCLUSIVE, true),
    }
}

fn block_size(fd: RawFd) -> io::Result<u64> {
    let mut size = 0u64;
    // SAFETY: the kernel writes 8 bytes into a live integer.
    sys::check(unsafe { libc::ioctl(fd, BLKGETSIZE64, &raw mut size) })?;
    Ok(size)
}

/// Does the kernel report `value` for this attribute of a block device's queue?
fn queue_says(device: u64, attribute: &str, value: &str) -> bool {
    let (major, minor) = (libc::major(device), libc::minor(device));
    let base = format!("/sys/dev/block/{major}:{minor}");
    // A partition uses the queue of its disk.
    [format!("{base}/queue/{attribute}"), format!("{base}/../queue/{attribute}")]
        .iter()
        .find_map(|path| fs::read_to_string(path).ok())
        .is_some_and(|said| said.trim() == value)
}

/// Discards a range. A device or file system without discard is not an error.
pub(crate) fn discard(fd: RawFd, offset: u64, len: u64) -> io::Result<()> {
    let range = [offset, len];
    // SAFETY: BLKDISCARD reads two u64 from a live array; anything but a block device
    // refuses it.
    let result = match sys::check(unsafe { libc::ioctl(fd, BLKDISCARD, range.as_ptr()) }) {
        Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: takes no pointers.
            sys::check(unsafe { libc::fallocate64(fd, mode, offset as i64, len as i64) })
        }
        result => result,
    };
    match result {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
        result => result.map(drop),
    }
}
