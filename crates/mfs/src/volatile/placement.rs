//! What the placement of directories remembers.

use types::{DirNo, HashMap, Ino, MetaBlock};

/// Most parents of whose newest subdirectory the place is remembered.
const PARENTS_MAX: usize = 1 << 16;

/// Where directories begin. Chosen when a store is opened; content that exists stays where it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum DirPlacement {
    /// Near their siblings, and trees of several users apart (002 §3.2).
    #[default]
    Together,
    /// Each after the one that was created before it, by any user; for comparison.
    InOrder,
    /// Each in the group after that of the one created before it, as 004 §V.A leaves it to ext3's
    /// distribution ("rlow"); for comparison.
    Spread,
}

/// What placement remembers; hints.
#[derive(Default, Debug)]
pub struct Placement {
    /// How directories are placed.
    pub(crate) policy: DirPlacement,
    /// For each directory and user: the block after the content of the newest subdirectory that the
    /// user owns there. Only for those whose start is not in the namespace index.
    pub(crate) behind: HashMap<(Ino, u32), MetaBlock>,
    /// The block after the content of the newest directory of all.
    pub(crate) newest: Option<MetaBlock>,
    /// The end of the newest region.
    pub(crate) region: u64,
    /// The first chunk that trimming has not read.
    pub(crate) trim_from: DirNo,
    /// Trimming has read all chunks, and nothing was allocated ahead since.
    pub(crate) nothing_preallocated: bool,
}

impl Placement {
    pub(crate) fn note(&mut self, siblings: (Ino, u32), behind: MetaBlock, region: Option<u64>) {
        self.newest = Some(behind);
        if self.behind.len() >= PARENTS_MAX {
            self.behind.clear();
        }
        self.behind.insert(siblings, behind);
        self.region = region.unwrap_or(self.region);
    }

    /// Notes that a directory may have blocks allocated ahead.
    pub(crate) fn note_preallocated(&mut self) {
        self.nothing_preallocated = false;
    }
}
