//! Ranges that are set aside before they are written, as fallocate(2) does: the bound that 002 §6.4
//! measures the others against. A client whose server chooses the places keeps these so, too, until
//! its writes take them.

use std::collections::BTreeMap;

use types::{FileBlock, Ino, PagId};

use super::window::Window;
use super::{Placed, Preallocator, Request, Space, plain};
use crate::mds::PagRun;

/// See [`super::Policy::Static`].
#[derive(Default)]
pub(super) struct Announced {
    windows: BTreeMap<Ino, Vec<Window>>,
}

impl Announced {
    fn all(&mut self) -> impl Iterator<Item = &mut Window> {
        self.windows.values_mut().flatten()
    }

    /// Forgets the windows of the file that hold nothing.
    fn forget_empty(&mut self, ino: Ino) {
        let Some(windows) = self.windows.get_mut(&ino) else { return };
        windows.retain(|window| window.held() > 0);
        if windows.is_empty() {
            self.windows.remove(&ino);
        }
    }
}

impl Preallocator for Announced {
    fn place(&mut self, space: &mut dyn Space, request: &Request) -> Vec<PagRun> {
        let mut placed = Placed::default();
        while placed.blocks < request.len {
            let (at, left) = (request.block.0 + placed.blocks, request.len - placed.blocks);
            let mut windows = self.windows.get_mut(&request.ino).into_iter().flatten();
            if let Some(run) = windows.find_map(|window| window.take(at, left)) {
                placed.push(run);
                self.forget_empty(request.ino);
                continue;
            }
            let windows = self.windows.get(&request.ino).into_iter().flatten();
            let next = windows
                .filter(|window| window.to > at)
                .map(|window| if window.covers(at) { window.hole_end(at) } else { window.from });
            let len = next.min().map_or(left, |next| (next - at).min(left));
            let (before, behind) = (placed.blocks, request.adjacent());
            plain::place(space, behind, len, &mut placed);
            if placed.blocks < before + len {
                if self.held() == 0 {
                    break;
                }
                self.reclaim(space, left);
            }
        }
        placed.runs
    }

    fn announce(&mut self, space: &mut dyn Space, ino: Ino, from: FileBlock, len: u64) -> u64 {
        let mut found = 0;
        let mut window: Option<Window> = None;
        while found < len {
            let behind = window.as_ref().map(Window::end);
            let next = behind.and_then(|(pag, addr)| space.continue_at(pag, addr, len - found));
            let Some(run) = next.or_else(|| space.cut(len - found)) else { break };
            found += run.len;
            match &mut window {
                Some(window) => window.extend(run),
                None => window = Some(Window::new(from.0, run)),
            }
        }
        self.windows.entry(ino).or_default().extend(window);
        found
    }

    fn assign(&mut self, _: &mut dyn Space, ino: Ino, from: FileBlock, run: PagRun) {
        self.windows.entry(ino).or_default().push(Window::new(from.0, run));
    }

    fn unassign(&mut self, space: &mut dyn Space, ino: Ino, from: FileBlock, to: FileBlock) {
        for window in self.windows.get_mut(&ino).into_iter().flatten() {
            window.give_back_between(space, from.0, to.0);
        }
        self.forget_empty(ino);
    }

    fn close(&mut self, space: &mut dyn Space, ino: Ino) {
        let windows = self.windows.remove(&ino).into_iter().flatten();
        windows.for_each(|window| window.give_back(space));
    }

    fn reclaim(&mut self, space: &mut dyn Space, mut blocks: u64) {
        while blocks > 0 {
            let Some(largest) = self.all().max_by_key(|window| window.held()) else { return };
            match largest.shrink(space, blocks) {
                0 => return,
                given => blocks -= given,
            }
        }
    }

    /// What was announced stays, however little else is free.
    fn trim(&mut self, _: &mut dyn Space) {}

    fn take_zone(&mut self, pag: PagId) -> Vec<PagRun> {
        let mut out = Vec::new();
        self.all().for_each(|window| window.take_zone(pag, &mut out));
        out
    }

    fn held(&self) -> u64 {
        self.windows.values().flatten().map(Window::held).sum()
    }
}
