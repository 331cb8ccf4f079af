//! The read-ahead of listings.

/// Blocks of read-ahead after a small directory, at first and at most; and the greatest gap after
/// the last listing at which the next one still continues it.
const AHEAD_FIRST: u32 = 8;
const AHEAD_MAX: u32 = 64;
const AHEAD_GAP: u64 = 8;

/// The read-ahead of listings.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct ListingReadahead {
    /// The block after the last read.
    pub(crate) end: u64,
    /// Length of the last read-ahead.
    len: u32,
}

impl ListingReadahead {
    /// How many blocks to read ahead after `first..end`.
    pub(crate) fn wanted(&mut self, first: u64, end: u64) -> u32 {
        let follows = (self.end..=self.end + AHEAD_GAP).contains(&first);
        let small = end - first < u64::from(AHEAD_MAX);
        self.len = if follows && small { (2 * self.len).clamp(AHEAD_FIRST, AHEAD_MAX) } else { 0 };
        self.len
    }
}
