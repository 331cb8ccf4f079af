//! What a directory with a name map remembers of searches for free slots and of lookups.

use super::index::Position;

/// The search for free slots in a directory with a map.
#[derive(Clone, Copy, Default, Debug)]
pub struct FreeSlotScan {
    /// The free slots of the last block in use are known.
    pub tail_known: bool,
    /// Where the scan of the content goes on.
    pub next: Option<Position>,
    /// Idle slots that the last complete scan did not find.
    pub missed: u64,
    /// Read-ahead of lookups.
    pub ahead: DirReadahead,
}

/// Most content blocks of one piece.
const CONTENT_MAX: u32 = 128;
/// Most buckets of one piece.
const BUCKETS_MAX: u32 = 32;
/// Buckets that are read one by one before they are read in pieces.
const BUCKETS_ALONE: u32 = 16;

/// What was read of a directory most recently.
#[derive(Clone, Copy, Default, Debug)]
pub struct DirReadahead {
    /// Chunk, and the content block after the piece that was read last.
    next: (usize, u32),
    /// Its length.
    len: u32,
    /// Buckets that were not cached.
    pub buckets: u32,
}

impl DirReadahead {
    /// How many content blocks to read at `block` of the `chunk`-th chunk.
    pub(crate) fn content(&mut self, chunk: usize, block: u32) -> u32 {
        let (last, next) = self.next;
        let follows = last == chunk && (next..=next + self.len).contains(&block);
        self.len = if follows { (2 * self.len).clamp(1, CONTENT_MAX) } else { 1 };
        self.next = (chunk, block + self.len);
        self.len
    }

    /// How many buckets to read together.
    pub(crate) fn bucket(&mut self) -> u32 {
        self.buckets = self.buckets.saturating_add(1);
        match self.buckets.checked_sub(BUCKETS_ALONE) {
            Some(more) => (more + 1).next_power_of_two().min(BUCKETS_MAX),
            None => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readahead_doubles_in_slot_order_and_is_off_at_random() {
        let mut ahead = DirReadahead::default();
        let mut block = 7;
        let lens: Vec<u32> = (0..9)
            .map(|_| {
                let len = ahead.content(3, block);
                block += len;
                len
            })
            .collect();
        assert_eq!(lens, [1, 2, 4, 8, 16, 32, 64, 128, 128]);
        assert_eq!([5000, 90, 6000].map(|block| ahead.content(3, block)), [1; 3]);
        assert_eq!(ahead.content(4, 6001), 1, "another chunk");
        let pieces: Vec<u32> = (0..20).map(|_| ahead.bucket()).collect();
        assert_eq!(pieces[14..], [1, 1, 2, 4, 4, 8]);
        assert_eq!((0..40).map(|_| ahead.bucket()).max(), Some(BUCKETS_MAX));
    }
}
