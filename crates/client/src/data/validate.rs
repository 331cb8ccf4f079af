//! What holds of a file's dirty runs, flights and layout between two steps.

use types::limits::{BLOCK, BLOCK_U64};

use super::file::{File, FileState};
use super::segments::{Mapped, SegmentMap, joins};

/// Larger states are looked at in part, so that tests with large files end.
const LOOKED_AT: usize = 256;

impl File {
    /// In builds with assertions: panics if the state contradicts itself.
    pub(super) fn validate(&self) {
        if cfg!(debug_assertions) {
            self.state.borrow().validate();
        }
    }

    /// Something ended that others wait for.
    pub(super) fn notify(&self) {
        self.validate();
        self.changed.notify_all();
    }
}

impl FileState {
    /// Panics if the state contradicts itself.
    fn validate(&self) {
        self.layout.validate();
        self.replaced.validate();
        self.validate_dirty();
        let mut end = 0;
        for (&from, &to) in self.writing.iter().take(LOOKED_AT) {
            assert!(from >= end && to > from, "flights overlap at block {from}");
            end = to;
        }
        assert!(
            self.edits.iter().is_sorted_by(|one, next| one.seq <= next.seq),
            "edits are out of order"
        );
        let last = self.edits.back().map_or(0, |pending| pending.seq + 1);
        assert!(last <= self.next_edit && self.sealed_below <= self.next_edit, "unknown edits");
        assert!(self.sealed_flights <= self.next_flight, "unknown flights");
        assert!(self.unsaved_since.is_some() || self.dirty.is_empty(), "changes without an age");
    }

    /// Dirty runs do not overlap, and each block of them has a place or is reserved.
    fn validate_dirty(&self) {
        let mut end = 0;
        for (&start, run) in self.dirty.iter().take(LOOKED_AT) {
            assert!(start >= end, "dirty runs overlap at block {start}");
            assert!(
                !run.buf.is_empty() && run.buf.len().is_multiple_of(BLOCK),
                "{}",
                run.buf.len()
            );
            end = start + run.blocks();
            let unplaced = self.layout.unplaced(start, end);
            let reserved = run.reserved.blocks();
            assert!(
                reserved >= unplaced || !run.reserved.is_valid(),
                "{unplaced} blocks from {start} on have no place, {reserved} are reserved"
            );
            assert!(run.seq < self.next_seq, "a run from the future");
        }
        let all = self.dirty.len() <= LOOKED_AT;
        assert!(
            !all || self.holds_ranges() || end <= self.size.div_ceil(BLOCK_U64),
            "dirty blocks up to {end} beyond the size {}",
            self.size
        );
    }
}

impl SegmentMap {
    /// Panics if segments overlap, are empty or could be one, or are counted wrongly.
    pub(super) fn validate(&self) {
        let mut before: Option<(u64, Mapped)> = None;
        let (mut sum, mut seen) = (0, 0);
        for (start, mapped) in self.segments_from(0).take(LOOKED_AT) {
            assert!(mapped.len > 0, "an empty segment at block {start}");
            if let Some((left, last)) = before {
                assert!(left + last.len <= start, "segments overlap at block {start}");
                assert!(!joins(left, &last, start, &mapped), "two segments for one at {start}");
            }
            before = Some((start, mapped));
            (sum, seen) = (sum + mapped.len, seen + 1);
        }
        assert!(seen == LOOKED_AT || sum == self.blocks(), "{sum} blocks of {}", self.blocks());
    }
}
