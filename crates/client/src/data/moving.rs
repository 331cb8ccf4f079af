//! Moves blocks of a file out of zones: the core of `redbud pag drain` and `redbud rebalance`.
//!
//! A step runs under `DATA_X`. It copies some segments to fresh blocks of the pool, flushes their
//! devices, and sends one commit with a *map* for each copied piece. The server frees the old
//! blocks in the transaction that maps the new ones.
//!
//! Invariants:
//! - a *map* is sent only when its content is stable, as that of every other edit;
//! - a *map* replaces blocks of one segment, so the server applies it in one transaction: the file
//!   has the old blocks or the new ones after a crash at any moment, and never a hole;
//! - content, size, times and what the server knows of the last block stay as they are;
//! - fresh blocks that became part of no file go back to the pool, or are tainted if a write may
//!   still reach them. Those of a lost session are the server's.
//!
//! | the mover dies … | blocks of the file | fresh blocks |
//! |---|---|---|
//! | before the commit arrives | the old ones | in its pool, which its eviction frees after the quarantine |
//! | after the commit, before it is durable, and so does the server | the old ones, by the redone log | in its pool, as above |
//! | later | the new ones; the old ones are freed | – |

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use env::IoBuf;
use proto::mds::Edit;
use types::limits::{BLOCK, COMMIT_EDITS_MAX};
use types::{Bug, Fault, PagId, ServerId, planted};

use super::context::DataContext;
use super::device::Stability;
use super::file::{File, FileState};
use super::pool::{PoolRun, Reservation};
use super::segments::{Mapped, to_wire_segment};
use crate::boundary::{Commit, Refusal};

/// Pieces of one step.
const PIECES_MAX: usize = 64;
/// Largest device request: 1 MiB.
const REQUEST_BLOCKS: u64 = 256;

/// What a step has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MoveStep {
    /// It has moved so many blocks; the next step begins at this block of the file.
    Moved {
        /// Blocks that lie elsewhere now.
        blocks: u64,
        /// Where the next step begins.
        next: u64,
    },
    /// No block from there on lies in these zones.
    Done,
    /// It needs blocks first: [`crate::boundary::FileContent::find_room`] gets them, while other
    /// clients may have the file.
    NeedsRoom,
}

/// Blocks for the next step, and what is missing.
#[derive(Default)]
pub struct Room {
    reserved: Option<Reservation>,
    missing: u64,
    lacking: Option<(PagId, u64)>,
}

/// Blocks of a file that are to move, all of one segment.
#[derive(Clone, Copy, Debug)]
struct Piece {
    from: u64,
    old: Mapped,
}

/// A piece and its new place.
#[derive(Clone, Copy, Debug)]
struct Copy {
    file: u64,
    old: Mapped,
    new: Mapped,
}

impl FileState {
    /// Pieces in these zones from block `at` on, at most `most` blocks, and where they end. `None`:
    /// there are none.
    fn pieces_in(&self, zones: &BTreeSet<PagId>, at: u64, most: u64) -> Option<(Vec<Piece>, u64)> {
        let (mut pieces, mut blocks, mut next) = (Vec::new(), 0, at);
        for (start, mapped) in self.layout.segments_from(at) {
            if !zones.contains(&mapped.pag) {
                continue;
            }
            let len = mapped.len.min(most - blocks);
            pieces.push(Piece { from: start, old: Mapped { len, ..mapped } });
            (blocks, next) = (blocks + len, start + len);
            if blocks == most || pieces.len() == PIECES_MAX {
                break;
            }
        }
        (!pieces.is_empty()).then_some((pieces, next))
    }
}

impl File {
    /// See [`crate::boundary::FileContent::move_blocks`].
    pub(super) async fn move_blocks(
        self: &Rc<Self>,
        zones: &BTreeSet<PagId>,
        (at, most): (u64, u64),
        room: &mut Room,
    ) -> Result<MoveStep, Fault> {
        if !self.is_settled() {
            self.flush().await?;
        }
        self.ensure_loaded(u64::MAX).await?;
        let (copies, next, session) = {
            let state = &mut *self.state.borrow_mut();
            if !state.is_settled() {
                return Err(Fault::Busy);
            }
            let Some((pieces, next)) = state.pieces_in(zones, at, most.max(1)) else {
                return Ok(MoveStep::Done);
            };
            if !self.has_room(state, &pieces, room) {
                return Ok(MoveStep::NeedsRoom);
            }
            let reserved = room.reserved.as_mut().expect("there is room");
            (self.place_copies(state, &pieces, reserved), next, self.ctx.sessions.of(self.server()))
        };
        let blocks = copies.iter().map(|copy| copy.new.len).sum();
        if copies.iter().any(|copy| zones.contains(&copy.new.pag)) {
            self.give_up_copies(session, &copies, false);
            return Err(Fault::NoSpace);
        }
        if let Err(fault) = self.copy_all(session, &copies).await {
            self.give_up_copies(session, &copies, true);
            return Err(fault);
        }
        self.commit_copies(session, copies).await?;
        Ok(MoveStep::Moved { blocks, next })
    }

    /// See [`crate::boundary::FileContent::find_room`].
    pub(super) async fn find_room(self: &Rc<Self>, room: &mut Room) -> Result<(), Fault> {
        let class = self.class();
        if room.missing > 0 {
            let more = self.ctx.reserve(&class, room.missing, self.zone_hint()).await?;
            match &mut room.reserved {
                Some(reserved) if reserved.is_valid() => reserved.merge(more),
                reserved => *reserved = Some(more),
            }
            room.missing = 0;
        } else if let Some(wanted) = room.lacking.take() {
            self.ctx.fill_zone(&class, wanted).await?;
        } else {
            self.ctx.fill_shortage(&class).await?;
        }
        Ok(())
    }

    /// The zones that the layout of the file allows; empty: all.
    pub(super) fn zones_allowed(&self) -> Vec<PagId> {
        self.class().zones.clone()
    }

    /// Are blocks for all pieces there? Else notes what is missing.
    fn has_room(&self, state: &mut FileState, pieces: &[Piece], room: &mut Room) -> bool {
        let class = self.class();
        let need: u64 = pieces.iter().map(|piece| piece.old.len).sum();
        room.reserved.take_if(|reserved| !reserved.is_valid());
        let have = room.reserved.as_ref().map_or(0, Reservation::blocks);
        room.missing = need.saturating_sub(have);
        if room.missing == 0 {
            let each = pieces.iter().map(|piece| (piece.from, piece.from + piece.old.len));
            room.lacking = self.lacking_for(state, &class, each);
        }
        room.missing == 0 && room.lacking.is_none() && class.pool.can_place(need)
    }

    /// Takes fresh blocks for the pieces.
    fn place_copies(
        &self,
        state: &mut FileState,
        pieces: &[Piece],
        reserved: &mut Reservation,
    ) -> Vec<Copy> {
        let mut copies = Vec::new();
        for &Piece { from, old } in pieces {
            let mut file = from;
            for run in self.allocate_blocks(state, None, (from, from + old.len), reserved) {
                let PoolRun { pag, addr, len } = run;
                let old = Mapped { len, addr: old.addr + (file - from), ..old };
                let new = Mapped { len, pag, addr, written: old.written, frozen: false };
                copies.push(Copy { file, old, new });
                file += len;
            }
        }
        copies
    }

    /// The copies became part of no file. `written`: something may have been written there, and no
    /// write is in flight any more.
    fn give_up_copies(&self, session: u64, copies: &[Copy], written: bool) {
        if !self.ctx.sessions.is_current(session) {
            return;
        }
        for Copy { new: Mapped { pag, addr, len, .. }, .. } in copies {
            let run = PoolRun { pag: *pag, addr: *addr, len: *len };
            if written {
                self.pool().add_tainted(run);
            } else {
                self.pool().give_back(run);
            }
        }
    }

    /// Copies all pieces that have content, and makes the copies stable. Returns when nothing is in
    /// flight.
    async fn copy_all(self: &Rc<Self>, session: u64, copies: &[Copy]) -> Result<(), Fault> {
        self.ctx.wait_for_lease(session).await?;
        self.ctx.flights.set(self.ctx.flights.get() + 1);
        let mut parts = Vec::new();
        for copy in copies.iter().filter(|copy| copy.old.written) {
            for at in (0..copy.old.len).step_by(REQUEST_BLOCKS as usize) {
                let len = (copy.old.len - at).min(REQUEST_BLOCKS);
                let (ctx, copy, server) = (self.ctx.clone(), *copy, self.server());
                parts.push(self.ctx.env.spawn_join(async move {
                    let old = (copy.old.pag, copy.old.addr + at);
                    let buf = ctx.read_blocks(server, old, len).await?;
                    let (pag, addr) = (copy.new.pag, copy.new.addr + at);
                    Ok((pag, ctx.write_blocks(session, pag, addr, buf).await?))
                }));
            }
        }
        let (mut stamps, mut all) = (BTreeMap::<PagId, (u64, u64)>::new(), Ok(()));
        for part in parts {
            match part.await {
                Ok((pag, stamp)) => {
                    let known = stamps.entry(pag).or_insert((stamp, stamp));
                    *known = (known.0.min(stamp), known.1.max(stamp));
                }
                Err(fault) => all = all.and(Err(fault)),
            }
        }
        self.ctx.flights.set(self.ctx.flights.get() - 1);
        all?;
        if planted(Bug::MoveNotFlushed) {
            return Ok(());
        }
        self.ctx.flush_past(std::slice::from_ref(self), &stamps).await;
        for (pag, stamps) in stamps {
            let disk = self.ctx.disks.get(self.server(), pag)?;
            if disk.device.stability(stamps, self.server()) != Stability::Yes {
                return Err(Fault::Io);
            }
        }
        Ok(())
    }

    /// Tells the server where the blocks are now.
    async fn commit_copies(&self, session: u64, copies: Vec<Copy>) -> Result<(), Fault> {
        for part in copies.chunks(COMMIT_EDITS_MAX) {
            let edits = part
                .iter()
                .map(|copy| Edit::Map { segment: to_wire_segment(copy.file, &copy.new) })
                .collect();
            let (size, mtime, ctime) = (None, None, None);
            // Merged, because this says nothing of size, times and the end of the last block.
            let (ino, merge, tail_zero) = (self.ino, true, false);
            let commit = Commit { ino, edits, size, mtime, ctime, merge, tail_zero };
            let answer = self.ctx.rpc.commit(vec![commit], false).await.pop();
            let (fault, done) = match answer {
                Some(Ok(_)) => (None, part.len()),
                Some(Err(Refusal { fault, done })) => (Some(fault), done.min(part.len())),
                None => (Some(Fault::Protocol), 0),
            };
            if !self.ctx.sessions.is_current(session) {
                return Err(Fault::Evicted);
            }
            let state = &mut *self.state.borrow_mut();
            for copy in &part[..done] {
                state.layout.insert(copy.file, copy.new);
                state.mark_stale(copy.file, copy.file + copy.new.len);
            }
            if let Some(fault) = fault {
                let from = part[done..].first().map_or(u64::MAX, |copy| copy.file);
                let rest: Vec<Copy> = copies.iter().filter(|c| c.file >= from).copied().collect();
                self.give_up_copies(session, &rest, true);
                return Err(if fault == Fault::NotHeld { Fault::Evicted } else { fault });
            }
        }
        Ok(())
    }
}

impl DataContext {
    /// Reads whole blocks.
    async fn read_blocks(
        self: &Rc<Self>,
        server: ServerId,
        (pag, addr): (PagId, u64),
        blocks: u64,
    ) -> Result<IoBuf, Fault> {
        let disk = self.zone(server, pag).await?;
        let (result, buf) = disk.read(addr, IoBuf::unspecified(blocks as usize * BLOCK)).await;
        result.map(|()| buf)
    }
}
