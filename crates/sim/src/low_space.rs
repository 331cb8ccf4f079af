//! Which space ran low during a call, and what may then fail with ENOSPC.

use crate::call::Op;

/// The kinds of space that ran low.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LowSpace {
    /// Data blocks.
    pub data: bool,
    /// Metadata blocks.
    pub meta: bool,
}

impl LowSpace {
    /// Both together.
    pub fn or(self, other: LowSpace) -> LowSpace {
        LowSpace { data: self.data || other.data, meta: self.meta || other.meta }
    }

    /// May `op` fail with ENOSPC because of it?
    pub fn refuses(self, op: &Op) -> bool {
        match op {
            Op::Write { .. } | Op::Truncate(..) | Op::Allocate { .. } => self.data || self.meta,
            Op::Make(..)
            | Op::Symlink(..)
            | Op::Create { .. }
            | Op::TmpFile(..)
            | Op::Link(..)
            | Op::Rename { .. }
            | Op::SetXattr(_, Some(_)) => self.meta,
            _ => false,
        }
    }
}
