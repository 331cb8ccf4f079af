//! Locks on single bytes far beyond a disk's data, held by the open file (OFD locks). They end
//! when its last descriptor is closed, so no request on it is in flight then.

use std::fs;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt;

use super::sys;

/// The byte that `DiskOptions::exclusive` locks.
pub(crate) const EXCLUSIVE: u64 = 1 << 62;
/// The byte that index 0 of `Disk::lock_byte` locks.
pub(crate) const BYTES: u64 = 1 << 61;

fn flock(kind: i32, at: u64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: at as i64,
        l_len: 1,
        l_pid: 0,
    }
}

/// Locks byte `at`; `false` if another open file holds it.
pub(crate) fn take(fd: RawFd, at: u64, shared: bool) -> io::Result<bool> {
    let kind = if shared { libc::F_RDLCK } else { libc::F_WRLCK };
    let lock = flock(kind, at);
    // SAFETY: points to a live flock.
    match sys::check(unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &raw const lock) }) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Gives the lock on byte `at` back.
pub(crate) fn release(fd: RawFd, at: u64) -> io::Result<()> {
    let lock = flock(libc::F_UNLCK, at);
    // SAFETY: points to a live flock.
    sys::check(unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &raw const lock) }).map(drop)
}

/// Could byte `at` be locked now?
pub(crate) fn test(fd: RawFd, at: u64) -> io::Result<bool> {
    let mut lock = flock(libc::F_WRLCK, at);
    // SAFETY: points to a live flock that the kernel fills.
    sys::check(unsafe { libc::fcntl(fd, libc::F_OFD_GETLK, &raw mut lock) })?;
    Ok(i32::from(lock.l_type) == libc::F_UNLCK)
}

/// The process that holds byte `at` of the file behind `fd`, if /proc shows it. The
/// kernel reports no pid for OFD locks, so this searches every process's descriptors.
pub(crate) fn holder(fd: RawFd, at: u64) -> Option<u32> {
    let wanted = fs::metadata(format!("/proc/self/fd/{fd}")).ok()?;
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else { continue };
        for descriptor in descriptors.flatten() {
            // Check for the lock first: stat of an arbitrary open file may wait forever, namely for
            // a file system that itself waits for this process.
            let info = process.path().join("fdinfo").join(descriptor.file_name());
            let locks =
                fs::read_to_string(info).is_ok_and(|info| info.lines().any(|line| holds(line, at)));
            if locks
                && fs::metadata(descriptor.path())
                    .is_ok_and(|found| (found.dev(), found.ino()) == (wanted.dev(), wanted.ino()))
            {
                return Some(pid);
            }
        }
    }
    None
}

/// Is this line of fdinfo a lock on byte `at`? "lock:\t1: OFDLCK  ADVISORY  WRITE -1 fd:01:11 START
/// END".
fn holds(line: &str, at: u64) -> bool {
    line.starts_with("lock:")
        && line.contains("OFDLCK")
        && line.split_whitespace().rev().nth(1).is_some_and(|start| start.parse() == Ok(at))
}
