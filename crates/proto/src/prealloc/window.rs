//! A range of a file, and the blocks that wait for it.

use types::{PagBlock, PagId};

use super::{Space, end_of};
use crate::mds::PagRun;

/// Maps file blocks `[from, to)` to blocks that were cut from the space. Blocks that are handed out
/// leave it; the range stays.
pub(super) struct Window {
    pub from: u64,
    pub to: u64,
    /// The place behind the block for `to - 1`.
    end: (PagId, PagBlock),
    /// What is left, in the order of the file: the file block of each first block.
    pieces: Vec<(u64, PagRun)>,
}

impl Window {
    /// The window of a run for the file blocks from `from` on.
    pub fn new(from: u64, run: PagRun) -> Window {
        let (to, end) = (from + run.len, end_of(&run));
        Window { from, to, end, pieces: vec![(from, run)] }
    }

    /// Adds the blocks that follow in the file.
    pub fn extend(&mut self, run: PagRun) {
        self.end = end_of(&run);
        let at = self.to;
        self.to += run.len;
        self.pieces.push((at, run));
    }

    /// Does its range include file block `at`?
    pub fn covers(&self, at: u64) -> bool {
        (self.from..self.to).contains(&at)
    }

    /// Does it still have a block for file block `at`?
    pub fn holds(&self, at: u64) -> bool {
        let has = |(from, run): &(u64, PagRun)| (*from..*from + run.len).contains(&at);
        self.covers(at) && self.pieces.iter().any(has)
    }

    /// The place where a window behind it would continue it.
    pub fn end(&self) -> (PagId, PagBlock) {
        self.end
    }

    /// Blocks that it holds.
    pub fn held(&self) -> u64 {
        self.pieces.iter().map(|(_, run)| run.len).sum()
    }

    /// Hands out up to `len` blocks for the file blocks from `at` on.
    pub fn take(&mut self, at: u64, len: u64) -> Option<PagRun> {
        let within = |(from, run): &(u64, PagRun)| (*from..*from + run.len).contains(&at);
        let index = self.pieces.iter().position(within)?;
        let (from, run) = self.pieces.remove(index);
        let (head, rest) = (at - from, run.len - (at - from));
        let len = len.min(rest);
        let part =
            |skip: u64, len: u64| PagRun { addr: PagBlock(run.addr.0 + skip), len, pag: run.pag };
        let left = [(from, part(0, head)), (at + len, part(head + len, rest - len))];
        let kept = left.into_iter().filter(|(_, run)| run.len > 0);
        self.pieces.splice(index..index, kept);
        Some(part(head, len))
    }

    /// Up to which file block nothing is left for `at` and those behind it.
    pub fn hole_end(&self, at: u64) -> u64 {
        self.pieces.iter().map(|(from, _)| *from).find(|from| *from > at).unwrap_or(self.to)
    }

    /// The range begins at `at` from now on. What it holds in front must have been handed out.
    pub fn begin_at(&mut self, at: u64) {
        debug_assert!(self.pieces.iter().all(|(from, _)| *from >= at), "blocks would be lost");
        self.from = at;
    }

    /// Gives back up to `blocks`, from the end; returns how many. The range ends where they were.
    pub fn shrink(&mut self, space: &mut dyn Space, blocks: u64) -> u64 {
        let mut left = blocks;
        while left > 0
            && let Some((from, run)) = self.pieces.pop()
        {
            let len = left.min(run.len);
            let keep = run.len - len;
            let addr = PagBlock(run.addr.0 + keep);
            space.give_back(PagRun { addr, len, pag: run.pag });
            self.to = from + keep;
            self.end = (run.pag, addr);
            if keep > 0 {
                self.pieces.push((from, PagRun { len: keep, ..run }));
            }
            left -= len;
        }
        blocks - left
    }

    /// Gives back what it holds for the file blocks `[from, to)`.
    pub fn give_back_between(&mut self, space: &mut dyn Space, from: u64, to: u64) {
        while let Some(at) = self.pieces.iter().find_map(|(start, run)| {
            let at = from.max(*start);
            (at < to.min(start + run.len)).then_some(at)
        }) {
            if let Some(run) = self.take(at, to - at) {
                space.give_back(run);
            }
        }
    }

    /// Gives back all that it holds.
    pub fn give_back(self, space: &mut dyn Space) {
        self.pieces.into_iter().for_each(|(_, run)| space.give_back(run));
    }

    /// Takes what it holds in a zone out of it.
    pub fn take_zone(&mut self, pag: PagId, out: &mut Vec<PagRun>) {
        out.extend(self.pieces.extract_if(.., |(_, run)| run.pag == pag).map(|(_, run)| run));
    }
}
