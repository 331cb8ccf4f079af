//! Which zone the blocks of a file go to, by the file's layout and the turns of its class.
//!
//! Invariant: a file under `fileround` has one home zone from its first block on. It gets another
//! one only when that zone has no room or its device is not used; what lies there stays.

use std::collections::BTreeMap;
use std::rc::Rc;

use proto::mds::LayoutSlice;
use proto::placement::{Layout, Policy};
use proto::prealloc::{Behind, Part, Request, Stream};
use types::limits::BLOCK_U64;
use types::{Fault, FileBlock, PagBlock, PagId, Segment};

use super::class::Class;
use super::file::{DirtyRun, File, FileState};
use super::pool::{Pool, PoolRun, Reservation};
use super::why::{RunReason, Why, ZoneReason};
use super::write::DIRECT_MIN;

/// The best place for blocks of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    /// The zone; `None`: any.
    pub zone: Option<PagId>,
    /// It holds for the blocks below this one.
    pub to: u64,
}

/// A file that has fewer bytes when it gets its first place shares a zone with other small ones.
const SMALL: u64 = DIRECT_MIN as u64;

const ANYWHERE: Place = Place { zone: None, to: u64::MAX };

impl Place {
    /// The part of a striped file that it holds for. No window may reach into the next one, which
    /// lies on another zone.
    pub fn part(&self) -> Option<Part> {
        let zone = self.zone.filter(|_| self.to < u64::MAX);
        zone.map(|zone| Part { zone, end: FileBlock(self.to) })
    }
}

impl File {
    /// The class of the file.
    pub(super) fn class(&self) -> Rc<Class> {
        self.class.borrow().clone()
    }

    /// The pool that the file gets blocks of.
    pub(super) fn pool(&self) -> Rc<Pool> {
        self.class.borrow().pool.clone()
    }

    /// Takes the layout that the file has. It holds as long as the client holds a right on the
    /// content: reservations are of its class. Only an exchange of layouts changes it.
    pub(super) fn set_layout(&self, state: &mut FileState, part: &LayoutSlice) {
        let known = self.placement.borrow().as_ref() == Some(&part.placement.0);
        if known || !state.dirty.is_empty() {
            return;
        }
        if self.placement.replace(Some(part.placement.0.clone())).is_some() {
            state.home = None;
        }
        let layout = Layout::from_attribute(&part.placement.0).unwrap_or_else(|error| {
            let name = self.ctx.rpc.describe(self.ino);
            self.ctx.rpc.log(&format!("{name}: {error}; its blocks go where others go"));
            Layout::default()
        });
        // The zones of that policy are targets: files of blocks go where others go.
        let layout = match layout.policy {
            Policy::Objects { .. } => Layout::default(),
            Policy::FileRound | Policy::Striping { .. } => layout,
        };
        if layout.zones != self.class.borrow().zones {
            let class = self.ctx.class(self.server(), &layout.zones);
            self.class.replace(class);
        }
        state.policy = layout;
    }

    /// The best place for `need` blocks from `at` on.
    pub(super) fn place(&self, state: &mut FileState, class: &Class, at: u64, need: u64) -> Place {
        if self.ctx.is_only_zone(class) {
            return ANYWHERE;
        }
        let zones = self.ctx.zones_of(class);
        if let Some((nth, to)) = state.policy.stripe(self.ino, at, zones.len()) {
            let from_nth = zones[nth..].iter().chain(&zones[..nth]);
            let mut usable = from_nth.filter(|zone| self.ctx.is_usable(class, **zone));
            return Place { zone: usable.next().copied(), to };
        }
        let before = state.layout.end_before(at).or_else(|| state.layout.first());
        let home = state.home.or(before.map(|behind| behind.pag));
        let home = home.filter(|&zone| self.ctx.is_usable(class, zone)).or_else(|| {
            if state.size < SMALL {
                self.ctx.next_small_zone(class, need)
            } else {
                self.ctx.next_zone(class)
            }
        });
        state.home = home;
        Place { zone: home, to: u64::MAX }
    }

    /// Did a writer get `NoSpace` recently, and is the file's pool empty?
    pub(super) fn is_scarce(&self) -> bool {
        self.ctx.is_scarce(&self.class.borrow())
    }

    /// The zone to ask for blocks, as far as it is clear before the file has a place.
    pub(super) fn zone_hint(&self) -> Option<PagId> {
        let (state, class) = (self.state.borrow(), self.class());
        if self.ctx.is_only_zone(&class) {
            return None;
        }
        let (at, zones) = (state.size / BLOCK_U64, self.ctx.zones_of(&class));
        let part = state.policy.stripe(self.ino, at, zones.len());
        part.and_then(|(nth, _)| zones.get(nth).copied()).or(state.home)
    }

    /// A zone in which the blocks `[from, to)`, as far as they have no place, want more blocks than
    /// the pool has there; and how many they want.
    pub(super) fn lacking(
        &self,
        state: &mut FileState,
        from: u64,
        to: u64,
    ) -> Option<(PagId, u64)> {
        let class = self.class();
        // Without delegation the server has chosen the zone, too.
        if self.ctx.is_only_zone(&class) || !self.ctx.allocation.delegated {
            return None;
        }
        let unplaced: Vec<(u64, u64)> = state
            .layout
            .pieces(from, to)
            .into_iter()
            .filter(|piece| !piece.mapped.is_some_and(|mapped| mapped.in_place()))
            .map(|piece| (piece.from, piece.to))
            .collect();
        self.lacking_for(state, &class, unplaced)
    }

    /// As [`File::lacking`], for fresh blocks in these ranges, wherever they lie now.
    pub(super) fn lacking_for(
        &self,
        state: &mut FileState,
        class: &Class,
        ranges: impl IntoIterator<Item = (u64, u64)>,
    ) -> Option<(PagId, u64)> {
        // Several parts of a striped file may lie on one zone.
        let mut wanted: BTreeMap<PagId, u64> = BTreeMap::new();
        for (mut at, end) in ranges {
            while at < end {
                let place = self.place(state, class, at, end - at);
                let need = place.to.min(end) - at;
                if let Some(zone) = place.zone {
                    *wanted.entry(zone).or_default() += need;
                }
                at += need;
            }
        }
        wanted.into_iter().find(|&(zone, need)| !class.pool.has(zone, need))
    }

    /// A write may have dirtied blocks again that had a place then and have lost it now: reserves
    /// new ones. Without space, these bytes are lost as well.
    pub(super) fn reserve_again(&self, state: &mut FileState, from: u64, to: u64) {
        let mut at = from;
        while let Some((start, run)) = state.dirty_from(at, to) {
            at = start + run.blocks();
            let missing = state.layout.unplaced(start, at).saturating_sub(run.reserved.blocks());
            if missing == 0 {
                continue;
            }
            match self.pool().reserve(missing) {
                Some(more) => {
                    let run = state.dirty.get_mut(&start).expect("found");
                    run.reserved.merge(more);
                }
                None => {
                    state.dirty.remove(&start);
                    state.mark_stale(start, at);
                    self.report_loss(start, at, "its place failed, and no block is left");
                }
            }
        }
    }

    /// Gives the blocks `[from, to)` of the run at `start` a place before it is launched, as far as
    /// they have none and the pool has one. Until they are written they read as zeros, as
    /// preallocated blocks do.
    pub(super) fn place_at_write(&self, state: &mut FileState, start: u64, (from, to): (u64, u64)) {
        let run = &state.dirty[&start];
        let (stream, unplaced) = (self.open_stream(run), state.layout.unplaced(from, to));
        // A small file may still become inline data.
        let is_inline = from == 0 && (state.is_inline(0) || state.fits_inline(state.size));
        if is_inline || !self.pool().can_place(unplaced) || self.lacking(state, from, to).is_some()
        {
            return;
        }
        let mut reserved = self.pool().no_blocks();
        std::mem::swap(&mut reserved, &mut state.dirty.get_mut(&start).expect("given").reserved);
        for piece in state.layout.pieces(from, to) {
            // A launch replaces frozen blocks.
            if piece.mapped.is_none() {
                self.map_unwritten(state, stream, (piece.from, piece.to), &mut reserved);
            }
        }
        state.dirty.get_mut(&start).expect("given").reserved = reserved;
    }

    /// The stream that may get windows for the run. Those of a closed file would stay: nobody
    /// closes it again.
    pub(super) fn open_stream(&self, run: &DirtyRun) -> Option<Stream> {
        run.stream.filter(|_| self.ctx.rpc.is_open(self.ino))
    }

    /// Allocates the blocks `[from, to)`, in order.
    pub(super) fn allocate_blocks(
        &self,
        state: &mut FileState,
        stream: Option<Stream>,
        (from, to): (u64, u64),
        reserved: &mut Reservation,
    ) -> Vec<PoolRun> {
        let class = self.class();
        let mut out = Vec::new();
        let mut at = from;
        while at < to {
            let place = self.place(state, &class, at, to - at);
            let end = place.to.min(to);
            let mut before = state.layout.end_before(at);
            if let Some(PoolRun { pag, addr, len }) = out.last().copied() {
                before = Some(Behind { block: FileBlock(at), pag, addr: PagBlock(addr + len) });
            }
            let request = Request {
                ino: self.ino,
                stream,
                block: FileBlock(at),
                len: end - at,
                before,
                part: place.part(),
            };
            let windows = class.pool.in_windows();
            let runs = class.pool.allocate(&request, place.zone, reserved);
            self.note_reasons(state, &request, &runs, class.pool.in_windows() < windows);
            out.extend(runs);
            if let Some(zone) = place.zone {
                class.grants.used_zones.borrow_mut().insert(zone);
            }
            at = end;
        }
        out
    }

    /// See [`crate::boundary::FileContent::layout`].
    pub(super) async fn explained_layout(
        self: &Rc<Self>,
    ) -> Result<Vec<(Segment, Option<String>)>, Fault> {
        let segments = self.layout().await?;
        let state = self.state.borrow();
        let why = |segment: &Segment| state.layout.why(segment.file.0);
        Ok(segments.into_iter().map(|segment| (segment, why(&segment))).collect())
    }

    /// Remembers why these runs were chosen. `kept`: some were in windows before.
    fn note_reasons(&self, state: &mut FileState, request: &Request, runs: &[PoolRun], kept: bool) {
        let (allocation, class) = (self.ctx.allocation, self.class());
        let (mut at, mut before) = (request.block.0, request.before);
        for run in runs {
            let zones = self.ctx.zones_of(&class);
            let part = state.policy.stripe(self.ino, at, zones.len());
            let zone = match (part, before.or_else(|| state.layout.first())) {
                _ if zones.len() < 2 => ZoneReason::Only,
                (Some((nth, end)), _) if zones.get(nth) == Some(&run.pag) => {
                    ZoneReason::Part(state.policy.part_before(end))
                }
                (None, None) => ZoneReason::Turn,
                (None, Some(other)) if other.pag == run.pag => ZoneReason::SameFile,
                _ => ZoneReason::Other,
            };
            let is_behind = before.is_some_and(|end| {
                end.block.0 == at && end.pag == run.pag && end.addr.0 == run.addr
            });
            let run_reason = match (is_behind, kept) {
                (true, _) => RunReason::Behind,
                (_, true) => RunReason::Window,
                _ => RunReason::Free,
            };
            let why = Why { zone, run: run_reason, allocation };
            state.layout.reasons.note(at, run, why);
            at += run.len;
            let (block, addr) = (FileBlock(at), PagBlock(run.addr + run.len));
            before = Some(Behind { block, pag: run.pag, addr });
        }
    }
}
