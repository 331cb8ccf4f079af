//! Why an operation of the file system failed, in domain words. `fuse::errno` maps each to
//! its errno.

use std::fmt;

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        /// The failure of a file system operation. The numbers are the wire's.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Fault {
            $($(#[$doc])* $name = $value,)*
        }

        impl Fault {
            /// Every fault.
            pub const ALL: &'static [Fault] = &[$(Fault::$name,)*];

            /// The fault with this number on the wire.
            pub fn from_u16(value: u16) -> Option<Fault> {
                match value { $($value => Some(Fault::$name),)* _ => None }
            }

            /// A one-line description.
            pub fn text(self) -> &'static str {
                match self { $(Fault::$name => $text,)* }
            }
        }
    };
}

faults! {
    /// No such name or inode.
    NotFound = 1, "no such file or directory";
    /// The name already exists.
    Exists = 2, "the name exists already";
    /// The operation needs a directory.
    NotDirectory = 3, "not a directory";
    /// The operation needs something other than a directory.
    IsDirectory = 4, "is a directory";
    /// The directory has entries.
    NotEmpty = 5, "the directory is not empty";
    /// No data space, no metadata space.
    NoSpace = 6, "no space left";
    /// The user may not do this at all (EPERM).
    NotPermitted = 7, "operation not permitted";
    /// The permission bits forbid it (EACCES).
    AccessDenied = 8, "permission denied";
    /// The inode no longer exists.
    Stale = 9, "the file is gone";
    /// An argument is invalid.
    Invalid = 10, "invalid argument";
    /// A name is longer than 255 bytes.
    NameTooLong = 11, "the name is too long";
    /// More than `LINK_MAX` links.
    TooManyLinks = 12, "too many links";
    /// A hard link or rename between file systems or of a mount point.
    CrossDevice = 13, "crosses file systems";
    /// The file system is read-only.
    ReadOnly = 14, "read-only file system";
    /// A device or a server failed.
    Io = 15, "input/output error";
    /// In use.
    Busy = 16, "in use";
    /// No such extended attribute.
    NoAttribute = 17, "no such extended attribute";
    /// The caller's buffer is too small.
    Range = 18, "result too large for the buffer";
    /// The file would exceed the maximum file size.
    FileTooBig = 19, "the file would be too large";
    /// The operation is not supported.
    NotSupported = 20, "not supported";
    /// Another owner holds the lock.
    WouldBlock = 21, "held by another";
    /// Waiting for the lock would deadlock.
    Deadlock = 22, "would deadlock";
    /// No more locks.
    NoLocks = 23, "no locks available";
    /// The client lost its session; what it had not committed is lost.
    Evicted = 24, "this client was evicted";
    /// A signal interrupted the operation before it changed anything.
    Interrupted = 25, "interrupted";
    /// The metadata is damaged.
    Corrupt = 26, "damaged metadata";
    /// The server did not answer in time.
    Unreachable = 27, "the metadata server cannot be reached";
    /// An unknown message or feature.
    Unsupported = 28, "unknown request";
    /// A malformed or out-of-sequence message.
    Protocol = 29, "protocol error";
    /// An extended attribute is too large for the inode.
    TooBig = 30, "too large";
    /// Out of range for a seek (ENXIO).
    NoData = 31, "no data in that range";
    /// A resource limit of the server or client is reached; try again later.
    Overloaded = 32, "too many requests or objects";
    /// The client used a right that, by the server's record, it does not hold.
    NotHeld = 33, "the server does not count the right to it as held";
    /// The shard has issued all its numbers of this kind; nothing that is freed helps (ENOSPC).
    NoNumbers = 34, "the shard's numbers are used up";
    /// The inode lives at another metadata server than the one asked. A client asks that one.
    Moved = 35, "the inode lives at another metadata server";
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for Fault {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_survives_the_wire() {
        for &fault in Fault::ALL {
            assert_eq!(Fault::from_u16(fault as u16), Some(fault));
        }
        assert_eq!(Fault::from_u16(0), None);
    }
}
