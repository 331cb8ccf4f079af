//! Lists of byte ranges `[from, to)`, and the kernel's pages that they touch.

use types::limits::BLOCK_U64;

/// Bytes `[from, to)`.
pub(crate) type Bytes = (u64, u64);

/// All pages that `range` touches.
pub(crate) fn pages_touched((from, to): Bytes) -> Bytes {
    let end = to.checked_next_multiple_of(BLOCK_U64).unwrap_or(u64::MAX);
    (from / BLOCK_U64 * BLOCK_U64, end)
}

/// The pages that `range` covers to the last byte, if there are any.
pub(crate) fn pages_covered((from, to): Bytes) -> Option<Bytes> {
    let first = from.checked_next_multiple_of(BLOCK_U64)?;
    let end = to / BLOCK_U64 * BLOCK_U64;
    (first < end).then_some((first, end))
}

/// Do two ranges share a byte?
pub(crate) fn overlap(one: Bytes, other: Bytes) -> bool {
    one.0 < other.1 && other.0 < one.1
}

/// Adds a range. A range that follows the last one, or touches it, extends it.
pub(crate) fn append(ranges: &mut Vec<Bytes>, (from, to): Bytes) {
    match ranges.last_mut() {
        Some(last) if from <= last.1 && last.0 <= to => *last = (last.0.min(from), last.1.max(to)),
        _ => ranges.push((from, to)),
    }
}

/// What `ranges` and `range` share.
pub(crate) fn intersect(ranges: &[Bytes], range: Bytes) -> Vec<Bytes> {
    let shared = ranges.iter().map(|&(from, to)| (from.max(range.0), to.min(range.1)));
    shared.filter(|(from, to)| from < to).collect()
}

/// `ranges` without what `holes` cover; empty ranges are left out.
pub(crate) fn subtract(ranges: &[Bytes], holes: &[Bytes]) -> Vec<Bytes> {
    let mut left = ranges.to_vec();
    for &(from, to) in holes {
        left = left
            .into_iter()
            .flat_map(|(start, end)| [(start, end.min(from)), (start.max(to), end)])
            .filter(|(start, end)| start < end)
            .collect();
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subtract_removes_what_holes_cover() {
        assert_eq!(subtract(&[(0, 100)], &[(20, 30), (90, 200)]), [(0, 20), (30, 90)]);
        assert_eq!(subtract(&[(0, 10), (50, 60)], &[(0, 60)]), []);
        assert_eq!(subtract(&[(5, 10)], &[]), [(5, 10)]);
    }

    #[test]
    fn append_merges_touching_ranges() {
        let mut ranges = vec![(0, 4096)];
        append(&mut ranges, (4096, 8192));
        append(&mut ranges, (0, 4096));
        assert_eq!(ranges, [(0, 8192)]);
        append(&mut ranges, (12288, 16384));
        assert_eq!(ranges, [(0, 8192), (12288, 16384)]);
        assert_eq!(intersect(&ranges, (4096, 13000)), [(4096, 8192), (12288, 13000)]);
    }

    #[test]
    fn ranges_touch_or_cover_whole_pages() {
        assert_eq!(pages_touched((1, 4097)), (0, 8192));
        assert_eq!(pages_touched((0, u64::MAX)), (0, u64::MAX));
        assert_eq!(pages_covered((1, 8192)), Some((4096, 8192)));
        assert_eq!(pages_covered((1, 8191)), None);
        assert_eq!(pages_covered((u64::MAX - 1, u64::MAX)), None);
        assert!(overlap((0, 10), (9, 20)) && !overlap((0, 10), (10, 20)));
    }
}
