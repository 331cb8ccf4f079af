//! Places without windows.

use types::{Ino, PagBlock, PagId};

use super::{Placed, Preallocator, Request, Space};
use crate::mds::PagRun;

/// Finds places for up to `len` blocks: where `placed` ends, or else at `behind`, or else wherever
/// they fit best.
pub(super) fn place(
    space: &mut dyn Space,
    behind: Option<(PagId, PagBlock)>,
    mut len: u64,
    placed: &mut Placed,
) {
    let mut behind = placed.end().or(behind);
    while len > 0 {
        let next = behind.and_then(|(pag, addr)| space.continue_at(pag, addr, len));
        let Some(run) = next.or_else(|| space.cut(len)) else { return };
        len -= run.len;
        placed.push(run);
        behind = placed.end();
    }
}

/// See [`super::Policy::Vanilla`].
pub(super) struct Vanilla;

impl Preallocator for Vanilla {
    fn place(&mut self, space: &mut dyn Space, request: &Request) -> Vec<PagRun> {
        let mut placed = Placed::default();
        let behind = request.before.map(|before| (before.pag, before.addr));
        place(space, behind, request.len, &mut placed);
        placed.runs
    }

    fn close(&mut self, _: &mut dyn Space, _: Ino) {}

    fn reclaim(&mut self, _: &mut dyn Space, _: u64) {}

    fn take_zone(&mut self, _: PagId) -> Vec<PagRun> {
        Vec::new()
    }

    fn held(&self) -> u64 {
        0
    }
}
