//! What a commit of a file has sealed.

use types::{Instant, Timestamp};

/// A file's state when it was sealed.
pub(super) struct Sealed {
    pub(super) edits_below: u64,
    pub(super) size: Option<u64>,
    pub(super) shrinks: bool,
    pub(super) tail_zero: bool,
    pub(super) mtime: Option<Timestamp>,
    pub(super) ctime: Option<Timestamp>,
    pub(super) generation: u64,
    /// The batch in which it was sealed. A file that is in another one by now has left.
    pub(super) batch: Option<u64>,
    pub(super) errors: u64,
    /// Changes that came before it are sealed.
    pub(super) begun: Instant,
}
