//! Why an operation of the store ended.
//!
//! Three fates, never mixed: operating errors and domain faults are returned;
//! damage is reported with its address; a failed write or flush poisons the
//! store, because what is on the device is then unknown.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::rc::Rc;

use types::{Fault, MetaBlock, Transno};

use crate::format::blob::BlobOwner;

/// Why the body of a transaction stopped before its end. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// Blocks `[first, first + count)` are wanted and some are not cached;
    /// they are fetched and the body starts over.
    Miss(MetaBlock, u32),
    /// As `Miss`, but the blocks are read once: they may leave the cache when the
    /// body asks for others, so that a scan of any length needs little memory.
    Scan(MetaBlock, u32),
    /// As `Miss`; and these blocks around them are likely to be wanted next: they are read with
    /// them, and what cannot be read of these is passed over.
    Along(MetaBlock, u32, Around),
    /// There is no space, but slots that may be used when this transaction is durable: that is
    /// waited for and the body starts over.
    Resting(Transno),
    /// The operation fails in the words of the file system.
    Fault(Fault),
    /// The block's content makes no sense.
    Corrupt(MetaBlock, &'static str),
    /// The block is of another blob than the one that led to it.
    Foreign(MetaBlock, Misled),
}

/// Whose blob a block was to be of, and whose it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Misled {
    /// As what led to it says.
    pub expected: BlobOwner,
    /// As it says itself.
    pub found: BlobOwner,
}

impl fmt::Display for Misled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it has the {}, where the {} should be", self.found, self.expected)
    }
}

/// How many blocks before and behind others come along with them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Around {
    /// Before.
    pub before: u32,
    /// Behind.
    pub behind: u32,
}

impl Around {
    /// None.
    pub const NOTHING: Around = Around { before: 0, behind: 0 };

    /// So many behind.
    pub fn behind(behind: u32) -> Around {
        Around { before: 0, behind }
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
    /// The operation's own failure; nothing changed.
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
    /// The device failed; the store goes on (reads) or never started (open, format).
    Io {
        /// What was tried.
        what: &'static str,
        /// Path of the device.
        path: Rc<str>,
        /// Kind of the failure.
        kind: io::ErrorKind,
        /// The system's words.
        error: Rc<str>,
    },
    /// An earlier write or flush failed: nothing can be promised any more. Restart.
    Poisoned(Rc<str>),
    /// The device is not what was asked for; the text names the path and what to do.
    Refused(Rc<str>),
    /// A change was tried on a store that was opened read-only.
    ReadOnly,
}

impl StoreError {
    /// An I/O failure of `what` on `path`.
    pub fn io(what: &'static str, path: &str, error: &io::Error) -> StoreError {
        let (kind, error) = (error.kind(), Rc::from(error.to_string()));
        StoreError::Io { what, path: path.into(), kind, error }
    }

    /// A damaged block.
    pub fn corrupt(block: MetaBlock, what: impl Into<Cow<'static, str>>) -> StoreError {
        StoreError::Corrupt { block, what: what.into() }
    }

    /// The fault that a client is told.
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
