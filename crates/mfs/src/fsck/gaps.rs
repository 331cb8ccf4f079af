//! Where files lost segments.
//!
//! Invariants:
//! - the count in a file's slot, which lies elsewhere, shows how many blocks it lost: so a repair
//!   that continues an interrupted one reports the loss, too;
//! - where they were follows from the keys around a lost node, and from the segments before a lost
//!   layout block. Where the counts contradict that, repair reports the whole file. They may do so
//!   where no check has met the gap;
//! - a range that is reported to the byte was mapped completely, and is not mapped now.

use types::limits::BLOCK_U64;
use types::{Ino, Segment};

use super::lost::Loss;
use super::repair::LINES_MAX;
use crate::format::segment::{SEGMENT_KEY, segment_key};

/// Ranges of one file that are reported one by one.
const RANGES_MAX: usize = 16;

/// The ranges that damaged nodes and layout blocks of one check held.
#[derive(Default)]
pub(super) struct Gaps(Vec<Gap>);

enum Gap {
    /// The tree of segments from one key on, up to another if there is one.
    Keys([u8; SEGMENT_KEY], Option<[u8; SEGMENT_KEY]>),
    /// From a block of the file on, up to the next segment that is there.
    Behind(Ino, u64),
}

/// File blocks from one up to another.
type Range = (u64, u64);

impl Gaps {
    /// A node of the tree of segments is lost.
    pub(super) fn node(&mut self, low: Option<&[u8]>, high: Option<&[u8]>) {
        let key = |key: &[u8]| <[u8; SEGMENT_KEY]>::try_from(key).ok();
        self.add(Gap::Keys(low.and_then(key).unwrap_or_default(), high.and_then(key)));
    }

    /// A layout block is lost, of a file that has segments up to `from`.
    pub(super) fn layout(&mut self, ino: Ino, from: u64) {
        self.add(Gap::Behind(ino, from));
    }

    fn add(&mut self, gap: Gap) {
        if self.0.len() < LINES_MAX {
            self.0.push(gap);
        }
    }

    pub(super) fn append(&mut self, mut other: Gaps) {
        self.0.append(&mut other.0);
        self.0.truncate(LINES_MAX);
    }

    /// Where segments of `ino`, which still has the sorted ones of `there`, may be lost.
    fn of(&self, ino: Ino, there: &[Segment]) -> Vec<Range> {
        let (first, end) = (segment_key(ino, 0), segment_key(Ino(ino.0.saturating_add(1)), 0));
        let block =
            |key: &[u8; SEGMENT_KEY]| u64::from_be_bytes(key[8..].try_into().expect("eight bytes"));
        let within = |gap: &Gap| match gap {
            Gap::Behind(of, from) if *of == ino => {
                let next = there.iter().find(|segment| segment.file.0 >= *from);
                Some((*from, next.map_or(u64::MAX, |segment| segment.file.0)))
            }
            Gap::Behind(..) => None,
            Gap::Keys(low, high) => {
                let from = if *low <= first { 0 } else { block(low) };
                let to = high.filter(|high| *high < end).map_or(u64::MAX, |high| block(&high));
                let mine = *low < end && high.is_none_or(|high| high > first);
                mine.then_some((from, to))
            }
        };
        let mut out: Vec<Range> = self.0.iter().filter_map(within).collect();
        out.sort_unstable();
        out
    }

    /// The losses of a file that has only the sorted segments `there`, and counts `missing` more
    /// blocks.
    pub(super) fn losses(&self, ino: Ino, size: u64, there: &[Segment], missing: u64) -> Vec<Loss> {
        let gaps = without(&self.of(ino, there), there);
        let whole = || without(&[(0, u64::MAX)], there);
        let holes = if sum(&gaps) < missing { whole() } else { gaps };
        let end = size.div_ceil(BLOCK_U64);
        let clipped =
            holes.iter().filter(|hole| hole.0 < end).map(|&(from, to)| (from, to.min(end)));
        let clipped: Vec<Range> = clipped.collect();
        // Blocks behind the end of the file count, too.
        let holes = if sum(&clipped) < missing { holes } else { clipped };
        if sum(&holes) == missing && holes.len() <= RANGES_MAX {
            return bytes(ino, size, &holes);
        }
        let (from, to) = (holes.first().map_or(0, |hole| hole.0), holes.last().map(|hole| hole.1));
        let to = to.filter(|to| *to < u64::MAX / BLOCK_U64).map(|to| to * BLOCK_U64);
        let (bytes, from) = (missing.saturating_mul(BLOCK_U64), from.saturating_mul(BLOCK_U64));
        vec![Loss::Holes { ino, bytes, from, to }]
    }
}

fn sum(ranges: &[Range]) -> u64 {
    ranges.iter().fold(0, |sum, (from, to)| sum.saturating_add(to - from))
}

/// These ranges, as losses of a file of `size` bytes.
fn bytes(ino: Ino, size: u64, ranges: &[Range]) -> Vec<Loss> {
    let each = |&(from, to): &Range| {
        let (from, to) = (from.saturating_mul(BLOCK_U64), to.saturating_mul(BLOCK_U64));
        // A range behind the end of the file is reported, too, if no part of it lies before the
        // end.
        let to = if from < size { to.min(size) } else { to };
        Loss::Bytes { ino, from, to }
    };
    ranges.iter().map(each).collect()
}

/// The ranges that the segments `before` map and those of `after` do not; both are sorted and
/// disjoint.
pub(super) fn unmapped(ino: Ino, size: u64, before: &[Segment], after: &[Segment]) -> Vec<Loss> {
    let mut ranges: Vec<Range> =
        before.iter().map(|segment| (segment.file.0, segment.end())).collect();
    ranges.sort_unstable();
    let gone = without(&ranges, after);
    if gone.len() <= RANGES_MAX {
        return bytes(ino, size, &gone);
    }
    let (from, to) = (gone[0].0, gone[gone.len() - 1].1);
    let (bytes, from) = (sum(&gone).saturating_mul(BLOCK_U64), from.saturating_mul(BLOCK_U64));
    vec![Loss::Holes { ino, bytes, from, to: Some(to.saturating_mul(BLOCK_U64)) }]
}

/// The parts of the sorted ranges that the sorted segments do not cover; joined.
fn without(ranges: &[Range], segments: &[Segment]) -> Vec<Range> {
    let mut out: Vec<Range> = Vec::new();
    let mut put = |from: u64, to: u64| match out.last_mut() {
        _ if from >= to => {}
        Some(last) if last.1 >= from => last.1 = last.1.max(to),
        _ => out.push((from, to)),
    };
    for &(from, to) in ranges {
        let mut at = from;
        let first = segments.partition_point(|segment| segment.end() <= from);
        for segment in segments[first..].iter().take_while(|segment| segment.file.0 < to) {
            put(at, segment.file.0);
            at = at.max(segment.end());
        }
        put(at, to);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{FileBlock, PagBlock, PagId, SegmentState};

    fn segments(list: &[(u64, u64)]) -> Vec<Segment> {
        let state = SegmentState::Written;
        let each = |&(file, len): &(u64, u64)| {
            let (file, pag, addr) = (FileBlock(file), PagId(1), PagBlock(1 + file));
            Segment { file, len, pag, addr, state }
        };
        list.iter().map(each).collect()
    }

    const INO: Ino = Ino(7);

    #[test]
    fn lost_node_is_reported_to_the_byte_where_holes_match_the_missing() {
        let mut gaps = Gaps::default();
        gaps.node(Some(&segment_key(INO, 10)), Some(&segment_key(INO, 30)));
        let there = segments(&[(0, 5), (15, 5), (30, 2)]);
        let told = gaps.losses(INO, 32 * 4096, &there, 15);
        let bytes = |from: u64, to: u64| Loss::Bytes { ino: INO, from: from * 4096, to: to * 4096 };
        assert_eq!(told, [bytes(10, 15), bytes(20, 30)]);
        // The file was sparse there.
        let told = gaps.losses(INO, 32 * 4096, &there, 6);
        let (from, to) = (10 * 4096, Some(30 * 4096));
        assert_eq!(told, [Loss::Holes { ino: INO, bytes: 6 * 4096, from, to }]);
        // More is missing than was in the node: anything may be.
        let told = gaps.losses(INO, 32 * 4096, &there, 16);
        assert_eq!(told, [Loss::Holes { ino: INO, bytes: 16 * 4096, from: 5 * 4096, to }]);
    }

    #[test]
    fn file_size_bounds_the_loss_behind_the_last_segment() {
        let mut gaps = Gaps::default();
        gaps.node(Some(&segment_key(Ino(6), 3)), None);
        let there = segments(&[(0, 5)]);
        let told = gaps.losses(INO, 9 * 4096 - 1, &there, 4);
        assert_eq!(told, [Loss::Bytes { ino: INO, from: 5 * 4096, to: 9 * 4096 - 1 }]);
        // It has more blocks than its size needs.
        let told = gaps.losses(INO, 0, &there, 4);
        assert_eq!(told, [Loss::Holes { ino: INO, bytes: 4 * 4096, from: 5 * 4096, to: None }]);
    }

    #[test]
    fn lost_layout_block_held_the_range_before_the_next_segment() {
        let mut gaps = Gaps::default();
        gaps.layout(INO, 5);
        let there = segments(&[(0, 5), (9, 1), (12, 1)]);
        let told = gaps.losses(INO, 13 * 4096, &there, 4);
        assert_eq!(told, [Loss::Bytes { ino: INO, from: 5 * 4096, to: 9 * 4096 }]);
    }

    #[test]
    fn unmapped_ranges_are_reported_one_by_one() {
        let (before, after) = (segments(&[(0, 10), (20, 5)]), segments(&[(2, 3), (20, 5)]));
        let told = unmapped(INO, 1 << 20, &before, &after);
        let bytes = |from: u64, to: u64| Loss::Bytes { ino: INO, from: from * 4096, to: to * 4096 };
        assert_eq!(told, [bytes(0, 2), bytes(5, 10)]);
        assert_eq!(unmapped(INO, 1 << 20, &after, &after), []);
    }
}
