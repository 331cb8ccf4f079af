//! The errno of each fault; this is the only place that decides it.

use types::Fault;

/// A positive errno.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

impl From<Fault> for Errno {
    fn from(fault: Fault) -> Errno {
        Errno(match fault {
            Fault::NotFound => libc::ENOENT,
            Fault::Exists => libc::EEXIST,
            Fault::NotDirectory => libc::ENOTDIR,
            Fault::IsDirectory => libc::EISDIR,
            Fault::NotEmpty => libc::ENOTEMPTY,
            Fault::NoSpace => libc::ENOSPC,
            Fault::NotPermitted => libc::EPERM,
            Fault::AccessDenied => libc::EACCES,
            // The kernel walks the path again on ESTALE, so it finds a name that was replaced
            // under a cached entry at the second try.
            Fault::Stale => libc::ESTALE,
            Fault::Invalid => libc::EINVAL,
            Fault::NameTooLong => libc::ENAMETOOLONG,
            Fault::TooManyLinks => libc::EMLINK,
            Fault::CrossDevice => libc::EXDEV,
            Fault::ReadOnly => libc::EROFS,
            Fault::Io => libc::EIO,
            Fault::Busy => libc::EBUSY,
            Fault::NoAttribute => libc::ENODATA,
            Fault::Range => libc::ERANGE,
            Fault::FileTooBig => libc::EFBIG,
            Fault::NotSupported => libc::EOPNOTSUPP,
            Fault::WouldBlock => libc::EAGAIN,
            Fault::Deadlock => libc::EDEADLK,
            Fault::NoLocks => libc::ENOLCK,
            // Data of this client is lost: programs must see that at fsync and close.
            Fault::Evicted => libc::EIO,
            Fault::Interrupted => libc::EINTR,
            // As ext4 and XFS report damaged metadata (EFSCORRUPTED). EIO means a failing device.
            Fault::Corrupt => libc::EUCLEAN,
            // Only bounded waits return it; programs know EIO, not ETIMEDOUT.
            Fault::Unreachable => libc::EIO,
            Fault::Unsupported => libc::EOPNOTSUPP,
            // The peer sent nonsense: the program did nothing wrong.
            Fault::Protocol => libc::EIO,
            // An extended attribute that does not fit: ext4 returns ENOSPC.
            Fault::TooBig => libc::ENOSPC,
            Fault::NoData => libc::ENXIO,
            // A limit of ours. Not EAGAIN: a program would spin on it.
            Fault::Overloaded => libc::ENOMEM,
            // The two halves of a lease disagree: data written under it is lost.
            Fault::NotHeld => libc::EIO,
            // ext4 reports that it has no inode left by ENOSPC.
            Fault::NoNumbers => libc::ENOSPC,
            // A client goes to the other server itself; if it cannot, the kernel looks again.
            Fault::Moved => libc::ESTALE,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_has_an_errno_that_the_kernel_accepts() {
        for &fault in Fault::ALL {
            let Errno(errno) = Errno::from(fault);
            assert!((1..512).contains(&errno), "{fault:?} gives {errno}");
            assert_ne!(
                errno,
                libc::ENOSYS,
                "{fault:?}: ENOSYS disables an opcode for the whole mount"
            );
        }
    }

    #[test]
    fn only_lost_or_unreachable_storage_reads_as_eio() {
        let io: Vec<Fault> =
            Fault::ALL.iter().copied().filter(|&f| Errno::from(f) == Errno(libc::EIO)).collect();
        let expected =
            [Fault::Io, Fault::Evicted, Fault::Unreachable, Fault::Protocol, Fault::NotHeld];
        assert_eq!(io, expected);
    }
}
