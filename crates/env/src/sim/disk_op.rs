//! The requests that a world passes on to simulated disks.

use super::disk::DiskAction;
use super::mechanics::DiskRequest;
use crate::buffer::IoBuf;

/// A disk operation with its file's id in place of the handle.
pub(super) enum DiskOp {
    Read { file: u64, offset: u64, buf: IoBuf, start: usize },
    Write { file: u64, offset: u64, buf: IoBuf, start: usize },
    Discard { file: u64, offset: u64, len: u64 },
    Flush { file: u64 },
}

impl DiskOp {
    /// The request for a disk's queue.
    pub(super) fn request(&self) -> DiskRequest {
        let (action, offset, len) = match self {
            DiskOp::Read { offset, buf, start, .. } => {
                (DiskAction::Read, offset + *start as u64, buf.len() - start)
            }
            DiskOp::Write { offset, buf, start, .. } => {
                (DiskAction::Write, offset + *start as u64, buf.len() - start)
            }
            DiskOp::Discard { offset, len, .. } => (DiskAction::Discard, *offset, *len as usize),
            DiskOp::Flush { .. } => (DiskAction::Flush, 0, 0),
        };
        DiskRequest { id: 0, action, offset, len: len as u64 }
    }

    /// The file, and whether the operation needs it open for writing.
    pub(super) fn target(&self) -> (u64, bool) {
        match self {
            DiskOp::Read { file, .. } => (*file, false),
            DiskOp::Flush { file } => (*file, false),
            DiskOp::Write { file, .. } | DiskOp::Discard { file, .. } => (*file, true),
        }
    }
}
