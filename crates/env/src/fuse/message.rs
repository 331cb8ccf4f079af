//! What travels on a FUSE channel: requests of the kernel, and notifications in lanes.

use crate::buffer::IoBuf;

/// Bytes of a request that are read apart from its body: fuse_in_header and fuse_write_in.
pub(crate) const HEAD: usize = 80;

/// Notifications of one lane are written in order; lanes do not wait for each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotifyLane {
    /// Entries: invalidation and deletion of names, epochs.
    Names,
    /// Page ranges that a recall waits for; may block for long behind locked pages.
    Pages,
    /// Attributes.
    Attrs,
    /// Page ranges that no recall waits for; may block behind requests that wait for recalls.
    Background,
    /// Page ranges that lack a WRITE which is about to be answered, and bytes that raise the size
    /// for a read.
    StalePages,
}

/// One request of the kernel.
pub struct FuseRequest {
    /// The first 80 bytes (fuse_in_header, and fuse_write_in of a WRITE), zero beyond `head_len`.
    pub head: [u8; HEAD],
    /// Bytes of `head` that belong to the request.
    pub head_len: usize,
    /// The bytes after the first 80, page-aligned.
    pub body: IoBuf,
}
