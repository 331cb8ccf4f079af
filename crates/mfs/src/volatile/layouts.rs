//! How layout blocks are used, and which files do not use theirs.

use std::collections::BTreeMap;

use types::{HashMap, Ino};

use crate::format::layout;
use crate::format::slot::SlotSize;

/// Most files that are known.
const KNOWN_MAX: usize = 1 << 16;

/// From which degree of its directory on a new file gets a layout block at once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum LayoutAhead {
    /// Above as many segments per name as a slot holds: 15 to 163, by the size of slots.
    #[default]
    Usual,
    /// Above so many segments per name.
    Above(u32),
    /// At no degree.
    Never,
}

impl LayoutAhead {
    /// The threshold, in segments per name.
    pub fn threshold(self, slots: SlotSize) -> Option<u32> {
        match self {
            LayoutAhead::Usual => Some(slots.segments_max() as u32),
            LayoutAhead::Above(segments) => Some(segments),
            LayoutAhead::Never => None,
        }
    }
}

/// How layout blocks are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayoutLimits {
    /// Most segments of a block.
    pub capacity: usize,
    /// From which degree of its directory on a new file gets one at once.
    pub ahead: LayoutAhead,
}

impl Default for LayoutLimits {
    fn default() -> LayoutLimits {
        LayoutLimits::USUAL
    }
}

impl LayoutLimits {
    /// The limits of servers.
    pub const USUAL: LayoutLimits =
        LayoutLimits { capacity: layout::CAPACITY, ahead: LayoutAhead::Usual };
    /// For tests: small files have everything that large ones have.
    pub const TINY: LayoutLimits = LayoutLimits { capacity: 3, ahead: LayoutAhead::Above(1) };
}

/// Files with a layout block that they do not use, in the order in which they were noted; hints.
#[derive(Default, Debug)]
pub(crate) struct UnusedLayoutBlocks {
    order: BTreeMap<u64, Ino>,
    files: HashMap<Ino, u64>,
    next: u64,
}

impl UnusedLayoutBlocks {
    /// Notes a file with an unused block.
    pub(crate) fn note(&mut self, ino: Ino) {
        if self.files.len() < KNOWN_MAX && !self.files.contains_key(&ino) {
            self.order.insert(self.next, ino);
            self.files.insert(ino, self.next);
            self.next += 1;
        }
    }

    /// Drops a file that has no such block any more, or uses it.
    pub(crate) fn forget(&mut self, ino: Ino) {
        if let Some(at) = self.files.remove(&ino) {
            self.order.remove(&at);
        }
    }

    /// How many are known.
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// At most `max` of the oldest, so that `keep` are left.
    pub(crate) fn oldest(&self, max: usize, keep: usize) -> Vec<Ino> {
        let many = self.len().saturating_sub(keep).min(max);
        self.order.values().take(many).copied().collect()
    }
}
