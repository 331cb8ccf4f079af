//! Errors of the store.
//!
//! Three classes, never mixed: the store returns operating errors and faults of an operation;
//! it reports damage with the damaged block's address; a failed write or flush poisons it,
//! because the content of the device is then unknown.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::rc::Rc;

use types::{Fault, MetaBlock, Transno};

use crate::format::blob::BlobOwner;

/// Why the body of a transaction stopped before its end. Then the transaction changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The body needs blocks `[first, first + count)`, and some are not cached: the store fetches
    /// them and runs the body again.
    Miss(MetaBlock, u32),
    /// As `Miss`, for blocks that the body reads once: the cache may evict them when the body needs
    /// others, so that a scan of any length needs little memory.
    Scan(MetaBlock, u32),
    /// As `Miss`, with read-ahead: the body is likely to need these blocks around them next. The
    /// store reads them with the others and ignores those that it cannot read.
    MissWithReadahead(MetaBlock, u32, Readahead),
    /// There is no free slot, but slots become reusable when this transaction is durable: the store
    /// waits for that and runs the body again.
    WaitDurable(Transno),
    /// The operation fails with a fault of the file system.
    Fault(Fault),
    /// The block's content is invalid.
    Corrupt(MetaBlock, &'static str),
    /// The block belongs to another blob than the one that refers to it.
    OwnerMismatch(MetaBlock, OwnerMismatch),
}

/// The owner that a blob block should have, and the one that it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnerMismatch {
    /// The owner of the reference to the block.
    pub expected: BlobOwner,
    /// The owner in the block itself.
    pub found: BlobOwner,
}

impl fmt::Display for OwnerMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it has the {}, where the {} should be", self.found, self.expected)
    }
}

/// How many blocks before and after the needed ones the store reads with them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Readahead {
    /// Blocks before.
    pub before: u32,
    /// Blocks after.
    pub behind: u32,
}

impl Readahead {
    /// No read-ahead.
    pub const NONE: Readahead = Readahead { before: 0, behind: 0 };

    /// Read-ahead of this many blocks after the needed ones.
    pub fn behind(behind: u32) -> Readahead {
        Readahead { before: 0, behind }
    }
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Stop {
        Stop::Fault(fault)
    }
}

/// Why a call of the store failed.
#[derive(Clone, Debug)]
pub enum StoreError {
    /// The operation failed; nothing changed.
    Fault(Fault),
    /// A metadata block is damaged.
    Corrupt {
        /// Which one.
        block: MetaBlock,
        /// What is wrong with it.
        what: Cow<'static, str>,
    },
    /// The log is damaged before its end.
    DamagedLog {
        /// Position of the damage, in bytes since mkfs.
        lsn: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// The device failed; the store continues (after reads) or never started (open, format).
    Io {
        /// The attempted action.
        what: &'static str,
        /// Path of the device.
        path: Rc<str>,
        /// Kind of the failure.
        kind: io::ErrorKind,
        /// The system's error text.
        error: Rc<str>,
    },
    /// An earlier write or flush failed, so the store can guarantee nothing any more. Restart it.
    Poisoned(Rc<str>),
    /// The device cannot be used as requested; the text names the path and what to do.
    Refused(Rc<str>),
    /// The caller tried to change a store that was opened read-only.
    ReadOnly,
}

impl StoreError {
    /// An I/O error of the action `what` on `path`.
    pub fn io(what: &'static str, path: &str, error: &io::Error) -> StoreError {
        let (kind, error) = (error.kind(), Rc::from(error.to_string()));
        StoreError::Io { what, path: path.into(), kind, error }
    }

    /// A damaged block.
    pub fn corrupt(block: MetaBlock, what: impl Into<Cow<'static, str>>) -> StoreError {
        StoreError::Corrupt { block, what: what.into() }
    }

    /// The fault that the server reports to a client.
    pub fn fault(&self) -> Fault {
        match self {
            StoreError::Fault(fault) => *fault,
            StoreError::Corrupt { .. } | StoreError::DamagedLog { .. } => Fault::Corrupt,
            StoreError::Io { .. } | StoreError::Poisoned(_) | StoreError::Refused(_) => Fault::Io,
            StoreError::ReadOnly => Fault::ReadOnly,
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Fault(fault) => write!(f, "{fault}"),
            StoreError::Corrupt { block, what } => {
                write!(f, "metadata block {block} is damaged: {what}; run `redbud fsck`")
            }
            StoreError::DamagedLog { lsn, what } => {
                write!(
                    f,
                    "the log is damaged at position {lsn}: {what}; nothing was changed: restore the \
                     metadata device from a backup"
                )
            }
            StoreError::Io { what, path, error, .. } => write!(f, "{path}: {what}: {error}"),
            StoreError::Poisoned(why) => {
                write!(f, "the metadata store stopped after a failed write ({why}); restart it")
            }
            StoreError::Refused(text) => f.write_str(text),
            StoreError::ReadOnly => f.write_str("the metadata store is open read-only"),
        }
    }
}

impl std::error::Error for StoreError {}
