//! Changes of a sorted list of segments, as pure functions.
//!
//! Invariants: a list is sorted by file block, has no overlaps, and adjacent segments that continue
//! each other are joined.

use types::{Segment, SegmentState};

/// Longest segment: its length has 46 bits on disk.
pub const SEGMENT_LEN_MAX: u64 = (1 << 46) - 1;

/// Replaces what `list` maps in file blocks `[from, to)` by `new` (sorted, inside the range).
/// Returns the new list and the segments that were removed.
pub fn splice(
    list: &[Segment],
    from: u64,
    to: u64,
    new: &[Segment],
) -> (Vec<Segment>, Vec<Segment>) {
    let mut out = Vec::with_capacity(list.len() + new.len() + 1);
    let mut freed = Vec::new();
    let mut inserted = false;
    for segment in list {
        if !inserted && segment.end() > from {
            if let Some(before) = segment.slice(0, from) {
                push(&mut out, before);
            }
            new.iter().for_each(|&segment| push(&mut out, segment));
            inserted = true;
        } else if segment.end() <= from {
            push(&mut out, *segment);
            continue;
        }
        freed.extend(segment.slice(from, to));
        if let Some(behind) = segment.slice(to, u64::MAX) {
            push(&mut out, behind);
        }
    }
    if !inserted {
        new.iter().for_each(|&segment| push(&mut out, segment));
    }
    (out, freed)
}

/// The parts of `list` inside `[from, to)`, as written segments.
pub fn written(list: &[Segment], from: u64, to: u64) -> Vec<Segment> {
    let inside = list.iter().filter_map(|segment| segment.slice(from, to));
    inside.map(|segment| Segment { state: SegmentState::Written, ..segment }).collect()
}

/// Appends `next`, joined with the last segment if it continues that.
pub fn push(list: &mut Vec<Segment>, next: Segment) {
    if let Some(last) = list.last_mut()
        && last.joins(&next)
        && last.len + next.len <= SEGMENT_LEN_MAX
    {
        last.len += next.len;
        return;
    }
    list.push(next);
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{FileBlock, PagBlock, PagId};

    fn segment(file: u64, len: u64, addr: u64, written: bool) -> Segment {
        let state = if written { SegmentState::Written } else { SegmentState::Unwritten };
        Segment { file: FileBlock(file), len, pag: PagId(1), addr: PagBlock(addr), state }
    }

    /// The model: one entry per file block.
    type Model = Vec<Option<(u64, bool)>>;

    fn expand(list: &[Segment]) -> Model {
        let mut out = vec![None; 64];
        for segment in list {
            for n in 0..segment.len {
                let block = (segment.file.0 + n) as usize;
                assert!(out[block].is_none(), "two segments map one block");
                out[block] = Some((segment.addr.0 + n, segment.state == SegmentState::Written));
            }
        }
        out
    }

    #[test]
    fn splice_equals_a_map_of_blocks_and_joins_segments() {
        let mut seed = 42u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        let (mut list, mut model): (Vec<Segment>, Model) = (Vec::new(), vec![None; 64]);
        for round in 0..5000 {
            let from = random(60);
            let to = from + 1 + random(64 - from - 1);
            let new = match random(3) {
                0 => vec![],
                1 => vec![segment(from, to - from, 1 + from + random(3) * 100, random(2) == 0)],
                _ => written(&list, from, to),
            };
            let before = expand(&list);
            let (after, freed) = splice(&list, from, to, &new);
            let taken = expand(&freed);
            for block in from..to {
                let block = block as usize;
                assert_eq!(taken[block], before[block], "round {round}");
                model[block] = None;
            }
            for (block, entry) in expand(&new).into_iter().enumerate() {
                model[block] = entry.or(model[block]);
            }
            assert_eq!(expand(&after), model, "round {round}");
            for pair in after.windows(2) {
                assert!(
                    pair[0].end() <= pair[1].file.0 && !pair[0].joins(&pair[1]),
                    "round {round}"
                );
            }
            list = after;
        }
    }
}
