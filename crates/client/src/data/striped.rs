//! The layout of an object file: its content lies in an object, which has the same number on each
//! of its targets (paper 001, section 3.1).
//!
//! Every block has a place from the beginning: the server gives no blocks, and a commit has no
//! edits. A block that nobody has written is a hole of the object, and the target reads it as
//! zeros. What this client knows to be zeros it does not read at all (`unwritten`). A block that
//! the target is known to have (`placed`) takes no room there when it is written again.

use std::cell::Cell;
use std::rc::Rc;

use proto::capability::Capability;
use proto::mds::ObjectLayout;
use proto::placement::object_place;
use proto::ranges::HeldRanges;
use types::{BlockRange, HeldRange, ObjectId, PagId};

use super::segments::{Mapped, Piece};
use super::target_room::Needs;

/// Ranges of blocks that are known to be at their targets, at most; others take room again.
const PLACED_MAX: usize = 4096;

/// The object of a file, and what this client may do with it.
#[derive(Debug)]
pub(super) struct Object {
    pub number: ObjectId,
    /// Blocks of a stripe unit.
    part: u64,
    /// In the order of the units.
    pub targets: Vec<PagId>,
    /// Shown to the targets; each layout brings a new one.
    pub may: Cell<Capability>,
}

/// A range of blocks, as [`HeldRanges`] has it.
pub(super) fn range(from: u64, to: u64) -> HeldRange {
    HeldRange { range: BlockRange::new(from, to), exclusive: true }
}

impl Object {
    /// The object as the server describes it; `None`: no client could use it.
    pub fn new(layout: &ObjectLayout) -> Option<Object> {
        let ObjectLayout { object, part, ref targets, may } = *layout;
        let sound = part > 0 && !targets.is_empty();
        sound.then(|| Object {
            number: object,
            part,
            targets: targets.clone(),
            may: Cell::new(may),
        })
    }

    /// Blocks of a stripe unit.
    pub fn part(&self) -> u64 {
        self.part
    }

    /// Where block `at` of the file lies: the index of the target, the block of the object there,
    /// and the block of the file where the next unit begins.
    pub fn place(&self, at: u64) -> (usize, u64, u64) {
        match self.targets.len() {
            1 => (0, at, u64::MAX),
            targets => object_place(at, self.part, targets),
        }
    }

    /// The first block of the object on the target with this index that holds block `at` of the
    /// file, or a later one.
    pub fn first_on(&self, nth: usize, at: u64) -> u64 {
        if at == u64::MAX || self.targets.len() == 1 {
            return at;
        }
        let (unit, targets, nth) = (at / self.part, self.targets.len() as u64, nth as u64);
        let row = unit / targets;
        match (unit % targets).cmp(&nth) {
            std::cmp::Ordering::Less => row * self.part,
            std::cmp::Ordering::Equal => row * self.part + at % self.part,
            std::cmp::Ordering::Greater => (row + 1) * self.part,
        }
    }

    /// The block of the file that is `block` of the object on the target with this index.
    pub fn file_block(&self, nth: usize, block: u64) -> u64 {
        if self.targets.len() == 1 {
            return block;
        }
        let unit = (block / self.part)
            .saturating_mul(self.targets.len() as u64)
            .saturating_add(nth as u64);
        unit.saturating_mul(self.part).saturating_add(block % self.part)
    }

    /// The blocks of the object on each target that hold blocks `[from, to)` of the file: they are
    /// in one run there.
    pub fn runs(&self, from: u64, to: u64) -> Vec<(usize, u64, u64)> {
        let run = |nth| (nth, self.first_on(nth, from), self.first_on(nth, to));
        (0..self.targets.len()).map(run).filter(|(_, from, to)| from < to).collect()
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Striped {
    pub object: Rc<Object>,
    /// Blocks that read as zeros, whatever the targets have.
    unwritten: HeldRanges,
    /// Blocks that the targets have.
    placed: HeldRanges,
}

impl Striped {
    /// The layout of this object, of which nothing else is known.
    pub fn new(object: Rc<Object>) -> Striped {
        Striped { object, unwritten: HeldRanges::default(), placed: HeldRanges::default() }
    }

    /// As [`super::segments::SegmentMap::piece_at`].
    pub fn piece_at(&self, from: u64, to: u64) -> Piece {
        let (nth, addr, unit_end) = self.object.place(from);
        let pag = self.object.targets[nth];
        let mut to = to.min(unit_end);
        let zeros = self.unwritten.within(BlockRange::new(from, to)).next();
        let written = match zeros {
            Some(zeros) if zeros.range.from.0 <= from => {
                to = to.min(zeros.range.to.0);
                false
            }
            Some(zeros) => {
                to = zeros.range.from.0;
                true
            }
            None => true,
        };
        let mapped = Mapped { len: to - from, pag, addr, written, frozen: false };
        Piece { from, to, mapped: Some(mapped) }
    }

    /// See [`super::segments::SegmentMap::set_written`].
    pub fn set_written(&mut self, from: u64, to: u64, written: bool) {
        if written {
            self.unwritten.remove(BlockRange::new(from, to));
        } else {
            self.unwritten.insert(range(from, to));
            self.placed.remove(BlockRange::new(from, to));
        }
    }

    /// The targets have blocks `[from, to)`, but for those that are to be holes.
    pub fn set_placed(&mut self, from: u64, to: u64) {
        for part in self.unwritten.missing(BlockRange::new(from, to)) {
            if self.placed.len() < PLACED_MAX {
                self.placed.insert(range(part.from.0, part.to.0));
            }
        }
    }

    /// The room that a write of blocks `[from, to)` takes.
    pub fn needs(&self, from: u64, to: u64) -> Needs {
        let mut needs = Needs::default();
        for part in self.placed.missing(BlockRange::new(from, to)) {
            for (nth, first, end) in self.object.runs(part.from.0, part.to.0) {
                needs.add(self.object.targets[nth], end - first);
            }
        }
        needs
    }

    /// The blocks of `[from, to)` that are known to be zeros.
    pub fn zeros(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let whole = BlockRange::new(from, to);
        let parts = self.unwritten.within(whole).map(|held| held.range.common(whole));
        parts.map(|part| (part.from.0, part.to.0)).collect()
    }

    /// The blocks of `[from, to)` that a target may have something of.
    pub fn unknown(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let missing = self.unwritten.missing(BlockRange::new(from, to));
        missing.into_iter().map(|part| (part.from.0, part.to.0)).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use types::{ClientId, Epoch};

    use super::*;

    pub(in crate::data) fn object(part: u64, targets: u16) -> Rc<Object> {
        let may = Capability {
            object: ObjectId(7),
            client: ClientId(1),
            rights: 3,
            epoch: Epoch(1),
            mac: [0; 16],
        };
        let targets = (1..=targets).map(PagId).collect();
        Rc::new(Object::new(&ObjectLayout { object: ObjectId(7), part, targets, may }).unwrap())
    }

    #[test]
    fn runs_on_the_targets_are_the_blocks_of_the_file_and_no_others() {
        for (part, targets) in [(1, 1), (4, 1), (1, 3), (4, 3), (3, 2)] {
            let object = object(part, targets);
            for from in 0..40 {
                for to in from..40 {
                    let mut here = Vec::new();
                    for (nth, first, end) in object.runs(from, to) {
                        here.extend((first..end).map(|block| object.file_block(nth, block)));
                    }
                    here.sort_unstable();
                    assert_eq!(here, (from..to).collect::<Vec<_>>(), "{part} {targets}");
                }
                let to_end = object.runs(from, u64::MAX);
                assert_eq!(to_end.len(), usize::from(targets));
                assert!(to_end.iter().all(|(_, _, end)| *end == u64::MAX));
                let (nth, block, _) = object.place(from);
                assert_eq!(object.file_block(nth, block), from);
            }
        }
    }

    #[test]
    fn pieces_end_with_their_unit_and_where_zeros_begin_or_end() {
        let mut striped = Striped::new(object(4, 3));
        striped.set_written(6, 14, false);
        striped.set_written(9, 10, true);
        let mut at = 0;
        let mut pieces = Vec::new();
        while at < 16 {
            let piece = striped.piece_at(at, 16);
            let mapped = piece.mapped.unwrap();
            pieces.push((piece.from, piece.to, mapped.pag.0, mapped.addr, mapped.written));
            at = piece.to;
        }
        assert_eq!(
            pieces,
            [
                (0, 4, 1, 0, true),
                (4, 6, 2, 0, true),
                (6, 8, 2, 2, false),
                (8, 9, 3, 0, false),
                (9, 10, 3, 1, true),
                (10, 12, 3, 2, false),
                (12, 14, 1, 4, false),
                (14, 16, 1, 6, true),
            ]
        );
        assert_eq!(striped.zeros(7, 12), [(7, 9), (10, 12)]);
        assert_eq!(striped.unknown(5, 20), [(5, 6), (9, 10), (14, 20)]);
    }
}
