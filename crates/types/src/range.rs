//! Ranges of a file's blocks, and how a client may hold one.

use crate::ids::FileBlock;

/// The blocks `from..to` of a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct BlockRange {
    /// First block.
    pub from: FileBlock,
    /// One past the last.
    pub to: FileBlock,
}

impl BlockRange {
    /// All blocks that a file can have.
    pub const ALL: BlockRange = BlockRange { from: FileBlock(0), to: FileBlock(u64::MAX) };

    /// The blocks `from..to`.
    pub fn new(from: u64, to: u64) -> BlockRange {
        BlockRange { from: FileBlock(from), to: FileBlock(to) }
    }

    /// Blocks in it.
    pub fn len(self) -> u64 {
        self.to.0.saturating_sub(self.from.0)
    }

    /// Is there no block in it?
    pub fn is_empty(self) -> bool {
        self.from >= self.to
    }

    /// Is every block of `other` in it?
    pub fn contains(self, other: BlockRange) -> bool {
        other.is_empty() || self.from <= other.from && other.to <= self.to
    }

    /// Is there a block in both?
    pub fn overlaps(self, other: BlockRange) -> bool {
        !self.is_empty() && !other.is_empty() && self.from < other.to && other.from < self.to
    }

    /// The blocks that are in both.
    pub fn common(self, other: BlockRange) -> BlockRange {
        BlockRange { from: self.from.max(other.from), to: self.to.min(other.to) }
    }

    /// The smallest range that contains both.
    pub fn hull(self, other: BlockRange) -> BlockRange {
        if self.is_empty() {
            return other;
        }
        if other.is_empty() {
            return self;
        }
        BlockRange { from: self.from.min(other.from), to: self.to.max(other.to) }
    }
}

/// Further ranges that a client is likely to ask for, at a fixed stride. Each is as long as the
/// requested one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Ahead {
    /// Blocks from the start of one range to the start of the next.
    pub stride: u64,
    /// Number of ranges.
    pub count: u8,
}

/// A range of a file as a client holds it, or requests it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HeldRange {
    /// The blocks.
    pub range: BlockRange,
    /// Held for writing, not only for reading.
    pub exclusive: bool,
}
