//! One window for each file, as local file systems reserve (002 §4.2, Fig. 3a): the next write of
//! any process gets the next block of it, at whatever offset. A window is twice the need, and twice
//! the one before it. A striped file has one in each of its zones, as if its parts there were a
//! file.

use std::collections::BTreeMap;

use types::limits::GRANT_BLOCKS;
use types::{Ino, PagBlock, PagId};

use super::{Placed, Preallocator, Request, Space, plain, room};
use crate::mds::PagRun;

/// Largest window.
const WINDOW_MAX: u64 = GRANT_BLOCKS;

/// A file, and the zone of a part if it is striped.
type Key = (Ino, Option<PagId>);

/// Blocks where the next blocks of one file go.
struct Window {
    run: PagRun,
    /// Length at its creation.
    size: u64,
}

/// See [`super::Policy::Reservation`].
#[derive(Default)]
pub(super) struct PerInode {
    windows: BTreeMap<Key, Window>,
    held: u64,
}

impl PerInode {
    /// Takes up to `len` blocks off the file's window.
    fn take(&mut self, key: Key, len: u64) -> Option<PagRun> {
        let window = self.windows.get_mut(&key).filter(|window| window.run.len > 0)?;
        let run = PagRun { len: len.min(window.run.len), ..window.run.clone() };
        window.run.addr.0 += run.len;
        window.run.len -= run.len;
        self.held -= run.len;
        Some(run)
    }

    /// The file's window is used up: cuts one that holds `need` blocks and more.
    fn renew(&mut self, space: &mut dyn Space, key: Key, need: u64, at: (PagId, PagBlock)) -> bool {
        let last = self.windows.get(&key).map_or(need, |window| window.size);
        let size = (last * 2).clamp(need.min(WINDOW_MAX), WINDOW_MAX).max(need);
        let size = size.min(room(space, self.held) + need);
        let run = space.continue_at(at.0, at.1, size).or_else(|| space.cut(size));
        let Some(run) = run else { return false };
        self.held += run.len;
        self.windows.insert(key, Window { run, size: size.min(WINDOW_MAX) });
        true
    }
}

impl Preallocator for PerInode {
    fn place(&mut self, space: &mut dyn Space, request: &Request) -> Vec<PagRun> {
        let mut placed = Placed::default();
        let key = (request.ino, request.part.map(|part| part.zone));
        while placed.blocks < request.len {
            let left = request.len - placed.blocks;
            if let Some(run) = self.take(key, left) {
                placed.push(run);
                continue;
            }
            match request.before {
                Some(before) => {
                    let behind = placed.end().unwrap_or((before.pag, before.addr));
                    if self.renew(space, key, left, behind) {
                        continue;
                    }
                }
                // The first blocks of a file lie next to those of the previous file.
                None => plain::place(space, None, left, &mut placed),
            }
            let left = request.len - placed.blocks;
            if left > 0 && self.held == 0 {
                break;
            }
            self.reclaim(space, left);
        }
        self.trim(space);
        placed.runs
    }

    fn close(&mut self, space: &mut dyn Space, ino: Ino) {
        for (_, window) in
            self.windows.extract_if((ino, None)..=(ino, Some(PagId(u16::MAX))), |_, _| true)
        {
            self.held -= window.run.len;
            if window.run.len > 0 {
                space.give_back(window.run);
            }
        }
    }

    fn reclaim(&mut self, space: &mut dyn Space, mut blocks: u64) {
        while blocks > 0 {
            let largest = self.windows.values_mut().max_by_key(|window| window.run.len);
            let Some(window) = largest.filter(|window| window.run.len > 0) else { return };
            let len = blocks.min(window.run.len);
            window.run.len -= len;
            let addr = PagBlock(window.run.addr.0 + window.run.len);
            space.give_back(PagRun { addr, len, ..window.run.clone() });
            self.held -= len;
            blocks -= len;
        }
    }

    fn take_zone(&mut self, pag: PagId) -> Vec<PagRun> {
        let of_zone = self.windows.extract_if(.., |_, window| window.run.pag == pag);
        let runs: Vec<PagRun> = of_zone.map(|(_, window)| window.run).collect();
        self.held -= runs.iter().map(|run| run.len).sum::<u64>();
        runs.into_iter().filter(|run| run.len > 0).collect()
    }

    fn held(&self) -> u64 {
        self.held
    }
}
