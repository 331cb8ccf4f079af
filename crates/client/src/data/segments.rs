//! The layout of one file in memory: sorted segments that do not overlap.
//!
//! Invariants: keys are the segments' first blocks; segments are never empty, never overlap, and
//! adjacent ones that are contiguous on the device are joined; `blocks` is the sum of their
//! lengths. The map of an object file has no segments: it computes where the blocks lie.

use std::collections::BTreeMap;
use std::rc::Rc;

use proto::prealloc::Behind;
use types::{FileBlock, PagBlock, PagId, Segment, SegmentState};

use super::striped::{Object, Striped};
use super::target_room::Needs;
use super::why::Reasons;

/// The place of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mapped {
    /// Length in blocks.
    pub len: u64,
    /// Data zone.
    pub pag: PagId,
    /// First block in the zone.
    pub addr: u64,
    /// Does it hold data?
    pub written: bool,
    /// An evicted client may still write there, so this client never writes there in place.
    pub frozen: bool,
}

impl Mapped {
    /// May new data overwrite these blocks?
    pub fn in_place(&self) -> bool {
        !self.frozen
    }
}

/// A piece of a range: one segment's part of it, or a hole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    /// First block of the file.
    pub from: u64,
    /// One past the last.
    pub to: u64,
    /// Its place, of length `to - from`; `None`: a hole.
    pub mapped: Option<Mapped>,
}

/// The segments, by their first block.
#[derive(Clone, Default, Debug)]
pub(super) struct SegmentMap {
    map: BTreeMap<u64, Mapped>,
    blocks: u64,
    /// The content lies in an object.
    striped: Option<Striped>,
    /// Why the places were chosen, as far as it is known.
    pub reasons: Reasons,
}

fn slice(start: u64, mapped: Mapped, from: u64, to: u64) -> Option<(u64, Mapped)> {
    let first = start.max(from);
    let end = (start + mapped.len).min(to);
    (first < end).then(|| {
        (first, Mapped { len: end - first, addr: mapped.addr + (first - start), ..mapped })
    })
}

impl SegmentMap {
    /// Mapped blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The object that the content lies in.
    pub fn object(&self) -> Option<&Rc<Object>> {
        self.striped.as_ref().map(|striped| &striped.object)
    }

    /// The content lies in this object, of which nothing else is known.
    pub fn set_object(&mut self, object: Rc<Object>) {
        self.clear();
        self.striped = Some(Striped::new(object));
    }

    /// See [`Striped`].
    pub fn striped(&self) -> Option<&Striped> {
        self.striped.as_ref()
    }

    /// Removes all segments.
    pub fn clear(&mut self) {
        self.map.clear();
        self.striped = None;
        self.blocks = 0;
        self.reasons = Reasons::default();
    }

    /// The pieces of `[from, to)` in order, including holes.
    pub fn pieces(&self, from: u64, to: u64) -> Vec<Piece> {
        let mut out = Vec::new();
        let mut at = from;
        if let Some(striped) = &self.striped {
            while at < to {
                let piece = striped.piece_at(at, to);
                at = piece.to;
                out.push(piece);
            }
            return out;
        }
        let before = self.map.range(..from).next_back().map(|(&start, &mapped)| (start, mapped));
        let inside = self.map.range(from..to.max(from)).map(|(&start, &mapped)| (start, mapped));
        for (start, mapped) in before.into_iter().chain(inside) {
            let Some((start, mapped)) = slice(start, mapped, from, to) else { continue };
            if start > at {
                out.push(Piece { from: at, to: start, mapped: None });
            }
            at = start + mapped.len;
            out.push(Piece { from: start, to: at, mapped: Some(mapped) });
        }
        if at < to {
            out.push(Piece { from: at, to, mapped: None });
        }
        out
    }

    /// The segments from block `from` on; the first is cut off there.
    pub fn segments_from(&self, from: u64) -> impl Iterator<Item = (u64, Mapped)> {
        let before = self.map.range(..from).next_back();
        let all = before.into_iter().chain(self.map.range(from..));
        all.filter_map(move |(&start, &mapped)| slice(start, mapped, from, u64::MAX))
    }

    /// The place of `block`.
    pub fn at(&self, block: u64) -> Option<Mapped> {
        if let Some(striped) = &self.striped {
            return striped.piece_at(block, block + 1).mapped;
        }
        let (&start, &mapped) = self.map.range(..=block).next_back()?;
        slice(start, mapped, block, block + 1).map(|(_, mapped)| mapped)
    }

    /// The piece that starts at `block`: up to the next segment or hole, at most to `to`.
    pub fn piece_at(&self, block: u64, to: u64) -> Piece {
        if let Some(striped) = &self.striped {
            return striped.piece_at(block, to);
        }
        if let Some((&start, &mapped)) = self.map.range(..=block).next_back()
            && let Some((from, mapped)) = slice(start, mapped, block, to)
        {
            return Piece { from, to: from + mapped.len, mapped: Some(mapped) };
        }
        let end = self.map.range(block..).next().map_or(to, |(&start, _)| start.min(to));
        Piece { from: block, to: end, mapped: None }
    }

    /// The place right behind the last mapped block below `block`: the file would best continue
    /// there.
    pub fn end_before(&self, block: u64) -> Option<Behind> {
        let (&start, &mapped) = self.map.range(..block).next_back()?;
        let len = mapped.len.min(block - start);
        Some(Behind {
            block: FileBlock(start + len),
            pag: mapped.pag,
            addr: PagBlock(mapped.addr + len),
        })
    }

    /// The place of the first mapped block.
    pub fn first(&self) -> Option<Behind> {
        let (&start, mapped) = self.map.first_key_value()?;
        let addr = PagBlock(mapped.addr);
        Some(Behind { block: FileBlock(start), pag: mapped.pag, addr })
    }

    /// Number of blocks in `[from, to)` that have no place which a write may use.
    pub fn unplaced(&self, from: u64, to: u64) -> u64 {
        if self.striped.is_some() {
            return 0;
        }
        self.pieces(from, to)
            .iter()
            .filter(|piece| !piece.mapped.is_some_and(|mapped| mapped.in_place()))
            .map(|piece| piece.to - piece.from)
            .sum()
    }

    /// The room at targets that a write of `[from, to)` takes; none unless it is an object file.
    pub fn room_needed(&self, from: u64, to: u64) -> Needs {
        self.striped.as_ref().map_or_else(Needs::default, |striped| striped.needs(from, to))
    }

    /// The targets have the blocks `[from, to)`, if it is an object file.
    pub fn set_placed(&mut self, from: u64, to: u64) {
        if let Some(striped) = &mut self.striped {
            striped.set_placed(from, to);
        }
    }

    /// Unmaps `[from, to)`; returns what was mapped there.
    pub fn remove(&mut self, from: u64, to: u64) -> Vec<(u64, Mapped)> {
        let mut removed = Vec::new();
        if from >= to {
            return removed;
        }
        let mut starts: Vec<u64> = self.map.range(from..to).map(|(&start, _)| start).collect();
        if let Some((&start, mapped)) = self.map.range(..from).next_back()
            && start + mapped.len > from
        {
            starts.insert(0, start);
        }
        for start in starts {
            let mapped = self.map.remove(&start).expect("listed above");
            if let Some((first, head)) = slice(start, mapped, 0, from) {
                self.map.insert(first, head);
            }
            if let Some((first, tail)) = slice(start, mapped, to, u64::MAX) {
                self.map.insert(first, tail);
            }
            let middle = slice(start, mapped, from, to).expect("it overlaps");
            self.blocks -= middle.1.len;
            removed.push(middle);
        }
        removed
    }

    /// Maps `[from, from + mapped.len)`, replacing what was there.
    pub fn insert(&mut self, from: u64, mapped: Mapped) {
        debug_assert!(self.striped.is_none(), "a segment of an object file, at block {from}");
        if mapped.len == 0 {
            return;
        }
        self.remove(from, from + mapped.len);
        self.blocks += mapped.len;
        let (mut start, mut joined) = (from, mapped);
        if let Some((&left, &other)) = self.map.range(..from).next_back()
            && joins(left, &other, start, &joined)
        {
            self.map.remove(&left);
            joined = Mapped { len: other.len + joined.len, ..other };
            start = left;
        }
        let end = start + joined.len;
        if let Some(&other) = self.map.get(&end)
            && joins(start, &joined, end, &other)
        {
            self.map.remove(&end);
            joined.len += other.len;
        }
        self.map.insert(start, joined);
    }

    /// Sets whether the mapped blocks of `[from, to)` hold data.
    pub fn set_written(&mut self, from: u64, to: u64, written: bool) {
        if let Some(striped) = &mut self.striped {
            return striped.set_written(from, to, written);
        }
        for piece in self.pieces(from, to) {
            if let Some(mapped) = piece.mapped
                && mapped.written != written
            {
                self.insert(piece.from, Mapped { written, ..mapped });
            }
        }
    }

    /// Why the segment at `start` lies there, if this client has chosen it.
    pub fn why(&self, start: u64) -> Option<String> {
        let mapped = self.map.get(&start)?;
        self.reasons.at(start, mapped.pag, mapped.addr).map(|why| why.to_string())
    }

    /// All segments, as the wire has them.
    pub fn to_segments(&self) -> Vec<Segment> {
        self.map.iter().map(|(&start, mapped)| to_wire_segment(start, mapped)).collect()
    }
}

/// Converts to the wire's form.
pub(super) fn to_wire_segment(start: u64, mapped: &Mapped) -> Segment {
    Segment {
        file: FileBlock(start),
        len: mapped.len,
        pag: mapped.pag,
        addr: PagBlock(mapped.addr),
        state: if mapped.written { SegmentState::Written } else { SegmentState::Unwritten },
    }
}

/// Converts from the wire's form.
pub(super) fn from_wire_segment(segment: &Segment, frozen: bool) -> Mapped {
    Mapped {
        len: segment.len,
        pag: segment.pag,
        addr: segment.addr.0,
        written: segment.state == SegmentState::Written,
        frozen,
    }
}

/// Are two segments, at these blocks of the file, one?
pub(super) fn joins(left: u64, a: &Mapped, right: u64, b: &Mapped) -> bool {
    left + a.len == right
        && a.pag == b.pag
        && a.addr + a.len == b.addr
        && a.written == b.written
        && a.frozen == b.frozen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(len: u64, addr: u64, written: bool) -> Mapped {
        Mapped { len, pag: PagId(1), addr, written, frozen: false }
    }

    #[test]
    fn segment_map_agrees_with_an_array_over_random_changes() {
        const N: u64 = 64;
        let mut map = SegmentMap::default();
        let mut model: Vec<Option<(u64, bool)>> = vec![None; N as usize];
        let mut random = 7u64;
        let mut next = |bound: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) % bound
        };
        for step in 0..20_000u64 {
            let from = next(N);
            let to = from + 1 + next(N - from);
            match next(3) {
                0 => {
                    let addr = if next(2) == 0 { 1000 + from } else { step * 100 };
                    let written = next(2) == 0;
                    map.insert(from, mapped(to - from, addr, written));
                    for b in from..to {
                        model[b as usize] = Some((addr + b - from, written));
                    }
                }
                1 => {
                    map.remove(from, to);
                    model[from as usize..to as usize].fill(None);
                }
                _ => {
                    map.set_written(from, to, true);
                    for slot in model[from as usize..to as usize].iter_mut().flatten() {
                        slot.1 = true;
                    }
                }
            }
            let mut seen = vec![None; N as usize];
            let mut at = 0;
            for piece in map.pieces(0, N) {
                assert_eq!(piece.from, at);
                at = piece.to;
                if let Some(m) = piece.mapped {
                    assert_eq!(m.len, piece.to - piece.from);
                    for b in piece.from..piece.to {
                        seen[b as usize] = Some((m.addr + b - piece.from, m.written));
                    }
                }
            }
            assert_eq!(at, N);
            assert_eq!(seen, model);
            assert_eq!(map.blocks(), model.iter().flatten().count() as u64);
            let block = next(N);
            assert_eq!(map.at(block).map(|m| (m.addr, m.written)), model[block as usize]);
            let piece = map.piece_at(block, N);
            assert_eq!(piece.mapped.map(|m| (m.addr, m.written)), model[block as usize]);
        }
    }
}
