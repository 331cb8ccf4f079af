//! Segments of a file's layout.

use crate::{FileBlock, PagBlock, PagId};

/// Whether the blocks of a segment hold the file's bytes yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum SegmentState {
    /// The blocks hold the file's bytes.
    Written = 0,
    /// The blocks belong to the file, but read as zeros.
    Unwritten = 1,
}

/// A segment: a run of a file's blocks that lies contiguously in one PAG. Never empty.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Segment {
    /// First block of the file that it maps.
    pub file: FileBlock,
    /// Length in blocks, below 2^46.
    pub len: u64,
    /// The PAG that holds it.
    pub pag: PagId,
    /// First block inside the PAG.
    pub addr: PagBlock,
    /// Whether it holds data yet.
    pub state: SegmentState,
}

impl Segment {
    /// One past the last block of the file that it maps.
    pub fn end(&self) -> u64 {
        self.file.0 + self.len
    }

    /// Does it map `block`?
    pub fn contains(&self, block: FileBlock) -> bool {
        self.file <= block && block.0 < self.end()
    }

    /// The part of it that lies in file blocks `[from, to)`, if any.
    pub fn slice(&self, from: u64, to: u64) -> Option<Segment> {
        let start = self.file.0.max(from);
        let end = self.end().min(to);
        (start < end).then(|| Segment {
            file: FileBlock(start),
            len: end - start,
            addr: PagBlock(self.addr.0 + (start - self.file.0)),
            ..*self
        })
    }

    /// Does `next` continue it, in the file and on the device, in the same state?
    pub fn joins(&self, next: &Segment) -> bool {
        self.end() == next.file.0
            && self.pag == next.pag
            && self.addr.0 + self.len == next.addr.0
            && self.state == next.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment() -> Segment {
        Segment {
            file: FileBlock(10),
            len: 5,
            pag: PagId(1),
            addr: PagBlock(100),
            state: SegmentState::Written,
        }
    }

    #[test]
    fn slice_moves_the_address_with_the_offset() {
        let slice = segment().slice(12, 99).unwrap();
        assert_eq!((slice.file.0, slice.len, slice.addr.0), (12, 3, 102));
        assert_eq!(segment().slice(15, 20), None);
    }

    #[test]
    fn segments_join_only_if_contiguous_in_file_and_pag() {
        let next = Segment { file: FileBlock(15), addr: PagBlock(105), ..segment() };
        assert!(segment().joins(&next));
        assert!(!segment().joins(&Segment { addr: PagBlock(106), ..next }));
        assert!(!segment().joins(&Segment { state: SegmentState::Unwritten, ..next }));
    }
}
