//! The handshake: what the mount and the kernel agree on.
//!
//! Invariants:
//! - a flag is answered only if the kernel offered it;
//! - never WRITEBACK_CACHE (the kernel would own size and mtime), never a
//!   no-flush mode (FLUSH carries errors of unlock and close), never ATOMIC_O_TRUNC;
//! - without INC_EPOCH, names can only be recalled from the kernel under a lock,
//!   so every name then has a lifetime of zero.

use types::limits::IO_MAX;

use crate::abi::{self, Abi, InitCompatIn, InitIn, InitOut, Reader};
use crate::errno::Errno;

/// Bytes of a page of the kernel.
const PAGE: u32 = 4096;
/// Upper bound of the readahead requested; a device's own setting applies below it.
const READAHEAD_MAX: u32 = 64 << 20;
/// Requests without a waiting caller (readahead, asynchronous direct I/O) in flight.
const BACKGROUND_MAX: u16 = 256;

/// The flags that every mount requests.
const WANTED: u64 = abi::ASYNC_READ
    | abi::POSIX_LOCKS
    | abi::BIG_WRITES
    | abi::DONT_MASK
    | abi::FLOCK_LOCKS
    | abi::DO_READDIRPLUS
    | abi::READDIRPLUS_AUTO
    | abi::ASYNC_DIO
    | abi::PARALLEL_DIROPS
    | abi::POSIX_ACL
    | abi::MAX_PAGES
    | abi::CACHE_SYMLINKS
    | abi::HANDLE_KILLPRIV_V2
    | abi::SETXATTR_EXT
    | abi::INIT_EXT
    | abi::DIRECT_IO_ALLOW_MMAP
    | abi::ALLOW_IDMAP;

/// The options of a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InitOptions {
    /// The kernel also drops pages when size or mtime changed, not only on notification.
    pub strict: bool,
    /// Requests travel over io_uring; `None`: by reads and writes of /dev/fuse.
    pub uring: Option<UringEntries>,
}

/// Entries of each of the kernel's queues, one queue for each possible CPU. An entry
/// holds 1 MiB, and a request occupies one until it is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UringEntries {
    /// Initial number.
    pub first: usize,
    /// Upper bound; more entries are registered while few are free.
    pub most: usize,
}

impl Default for UringEntries {
    fn default() -> UringEntries {
        UringEntries { first: 8, most: 64 }
    }
}

/// The result of the negotiation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Negotiated {
    /// Minor version of the kernel's interface.
    pub minor: u32,
    /// Flags that both sides know.
    pub flags: u64,
    /// Upper bound of the bytes of a READ or WRITE.
    pub io_max: u32,
}

impl Negotiated {
    /// Can all cached names be invalidated at once, without a lock?
    pub fn inc_epoch(&self) -> bool {
        self.minor >= abi::MINOR_INC_EPOCH
    }

    /// Does the kernel support dropping the unused names of an inode on request?
    pub fn prunes(&self) -> bool {
        self.minor >= abi::MINOR_PRUNE
    }

    /// Does SETXATTR have its long form?
    pub fn setxattr_ext(&self) -> bool {
        self.flags & abi::SETXATTR_EXT != 0
    }

    /// Do requests travel over io_uring?
    pub fn over_io_uring(&self) -> bool {
        self.flags & abi::OVER_IO_URING != 0
    }
}

/// Answers an INIT.
///
/// # Errors
/// EPROTO for a kernel that is too old or speaks another major version.
pub fn negotiate(args: &[u8], options: InitOptions) -> Result<(InitOut, Negotiated), Errno> {
    let compat = Reader::new(args).take::<InitCompatIn>().ok_or(Errno(libc::EPROTO))?;
    if compat.major != abi::KERNEL_VERSION || compat.minor < abi::KERNEL_MINOR_MIN {
        return Err(Errno(libc::EPROTO));
    }
    let mut offered = u64::from(compat.flags);
    if offered & abi::INIT_EXT != 0
        && let Some(full) = Reader::new(args).take::<InitIn>()
    {
        offered |= u64::from(full.flags2) << 32;
    }
    // Not EXPLICIT_INVAL_DATA: with it, a kernel that learns another size truncates its pages
    // there and keeps the others. An answer may carry a size from between two changes of another
    // client, and arrive after a page was filled with both changes: the zeros behind that size
    // would stay. Without the flag, the kernel drops all pages of a file whose size changed.
    let data = if options.strict { abi::AUTO_INVAL_DATA } else { 0 };
    let transport = if options.uring.is_some() { abi::OVER_IO_URING } else { 0 };
    let flags = offered & (WANTED | data | transport);
    let pages = IO_MAX as u32 / PAGE;
    // Without MAX_PAGES a request holds 32 pages.
    let io_max = if flags & abi::MAX_PAGES != 0 { IO_MAX as u32 } else { 32 * PAGE };
    let out = InitOut {
        major: abi::KERNEL_VERSION,
        minor: abi::KERNEL_MINOR,
        max_readahead: compat.max_readahead.clamp(io_max, READAHEAD_MAX),
        flags: flags as u32,
        max_background: BACKGROUND_MAX,
        congestion_threshold: BACKGROUND_MAX / 4 * 3,
        max_write: io_max,
        time_gran: 1,
        max_pages: if flags & abi::MAX_PAGES != 0 { pages as u16 } else { 0 },
        flags2: (flags >> 32) as u32,
        ..InitOut::default()
    };
    Ok((out, Negotiated { minor: compat.minor.min(abi::KERNEL_MINOR), flags, io_max }))
}

/// Bytes of an INIT's arguments in their longest form.
pub const INIT_ARGS_MAX: usize = InitIn::SIZE;

#[cfg(test)]
mod tests {
    use super::*;

    fn init(minor: u32, flags: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        InitIn {
            major: 7,
            minor,
            max_readahead: 128 << 10,
            flags: flags as u32,
            flags2: (flags >> 32) as u32,
            unused: [0; 11],
        }
        .write(&mut bytes);
        bytes
    }

    #[test]
    fn init_answers_only_flags_that_the_kernel_offers() {
        let offer = abi::INIT_EXT | abi::ASYNC_READ;
        let (out, agreed) = negotiate(&init(45, offer), InitOptions::default()).unwrap();
        assert_eq!(agreed.flags, offer);
        assert_eq!(u64::from(out.flags) | u64::from(out.flags2) << 32, offer);
        assert_eq!((out.max_write, out.max_pages), (128 << 10, 0));
        assert!(agreed.inc_epoch() && !agreed.setxattr_ext());
    }

    #[test]
    fn init_takes_every_wanted_flag_and_no_other() {
        let (out, agreed) = negotiate(&init(45, u64::MAX), InitOptions::default()).unwrap();
        assert_eq!(agreed.flags, WANTED);
        assert_eq!((out.max_write, out.max_pages), (1 << 20, 256));
        assert_eq!(agreed.flags & (1 << 16), 0, "write-back cache");
        assert_eq!(agreed.flags & (1 << 3), 0, "atomic truncation");
        assert_eq!(agreed.flags & abi::EXPLICIT_INVAL_DATA, 0, "pages of another size are dropped");
    }

    #[test]
    fn io_uring_is_used_only_if_requested_and_offered() {
        let asked = InitOptions { uring: Some(UringEntries::default()), ..InitOptions::default() };
        let agreed = |offer, options| negotiate(&init(45, offer), options).unwrap().1;
        assert!(agreed(u64::MAX, asked).over_io_uring());
        assert!(!agreed(u64::MAX, InitOptions::default()).over_io_uring());
        assert!(!agreed(abi::INIT_EXT, asked).over_io_uring());
    }

    #[test]
    fn strict_mount_lets_the_kernel_drop_pages_too() {
        let (_, agreed) =
            negotiate(&init(45, u64::MAX), InitOptions { strict: true, ..InitOptions::default() })
                .unwrap();
        assert_eq!(agreed.flags & abi::EXPLICIT_INVAL_DATA, 0);
        assert_ne!(agreed.flags & abi::AUTO_INVAL_DATA, 0);
    }

    #[test]
    fn init_flags_of_the_upper_half_need_the_extension() {
        let offer = abi::DIRECT_IO_ALLOW_MMAP | abi::ASYNC_READ;
        let (_, agreed) = negotiate(&init(45, offer), InitOptions::default()).unwrap();
        assert_eq!(agreed.flags, abi::ASYNC_READ);
    }

    #[test]
    fn init_refuses_old_and_foreign_kernels() {
        assert!(negotiate(&init(30, u64::MAX), InitOptions::default()).is_err());
        assert!(negotiate(&[0; 64], InitOptions::default()).is_err());
        assert!(negotiate(&[7, 0, 0], InitOptions::default()).is_err());
        let (_, agreed) = negotiate(&init(43, u64::MAX), InitOptions::default()).unwrap();
        assert!(!agreed.inc_epoch());
    }
}
