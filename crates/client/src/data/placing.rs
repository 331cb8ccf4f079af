//! Places that the server chooses, for a client that keeps no blocks of its own (`delegation=off`).
//!
//! Invariants:
//! - a write asks for exactly the blocks that have no place, and nothing is asked for in advance;
//! - the pool keeps the answer for these blocks of the file until the write takes it; what no write
//!   takes is free, and goes back;
//! - an answer that arrives is kept even if the write that asked for it is gone;
//! - the server learns when a file, or a handle, for which places were asked for is closed.

use std::rc::Rc;

use proto::mds::{PagRun, UnplacedPiece};
use proto::prealloc::Stream;
use types::limits::PLACE_PIECES_MAX;
use types::{Fault, FileBlock, PagId, ServerId};

use super::class::Class;
use super::context::DataContext;
use super::file::{File, FileState};
use super::pool::Reservation;
use super::transfers::Transfer;
use super::write::Unreserved;
use crate::boundary::{Granted, PlaceRequest};
use crate::waits::Wait;

impl File {
    /// Acquires places for the first of the blocks that a write needs, of which it has reserved
    /// `done` before. Fails as [`DataContext::reserve`].
    pub(super) async fn ask_places(
        self: &Rc<Self>,
        needed: Unreserved,
        stream: Option<Stream>,
        done: u64,
    ) -> Result<Reservation, Fault> {
        let class = self.class();
        let _named = self.ctx.waits.begin(&self.ctx.env, Wait::Space);
        let mut tries = 0;
        loop {
            let asked = {
                let mut state = self.state.borrow_mut();
                let stream = stream.filter(|_| self.ctx.rpc.is_open(self.ino));
                self.place_request(&mut state, &class, &needed, stream, done)
            };
            let Some(asked) = asked else { return self.ctx.reserve(&class, 1, None).await };
            let (this, of) = (self.clone(), class.clone());
            let placed =
                self.ctx.env.spawn_join(async move { this.ask_for(&of, asked).await }).await;
            match placed {
                Err(Fault::NoSpace) => self.ctx.found_no_space(&class, &mut tries).await?,
                // Its zone is avoided since: the blocks are set aside.
                Ok((blocks, None)) => return self.ctx.reserve(&class, blocks, None).await,
                Ok((_, Some(reserved))) => return Ok(reserved),
                Err(fault) => return Err(fault),
            }
        }
    }

    /// The request for the blocks, without the first `done`, as far as they go to one zone.
    fn place_request(
        &self,
        state: &mut FileState,
        class: &Class,
        needed: &Unreserved,
        stream: Option<Stream>,
        mut done: u64,
    ) -> Option<PlaceRequest> {
        let mut asked: Option<PlaceRequest> = None;
        for (mut from, to) in state.unreserved_pieces(needed) {
            let skip = done.min(to - from);
            (from, done) = (from + skip, done - skip);
            if from == to {
                continue;
            }
            let place = self.place(state, class, from, to - from);
            let piece = UnplacedPiece {
                block: FileBlock(from),
                len: to.min(place.to) - from,
                before: state.layout.end_before(from),
                part: place.part(),
            };
            match &mut asked {
                None => {
                    let (ino, policy) = (self.ino, self.ctx.allocation.how);
                    let (hint, unreachable) = (place.zone, Vec::new());
                    let pieces = vec![piece];
                    asked = Some(PlaceRequest { ino, pieces, stream, policy, hint, unreachable });
                }
                Some(asked) if asked.hint == place.zone => asked.pieces.push(piece),
                Some(_) => break,
            }
            let pieces = asked.as_ref().map_or(0, |asked| asked.pieces.len());
            if place.to < to || pieces == PLACE_PIECES_MAX {
                break;
            }
        }
        asked
    }

    /// Sends a request, and puts the answer into the pool. Returns how many blocks have a place
    /// now, and reserves them.
    async fn ask_for(
        self: &Rc<Self>,
        class: &Rc<Class>,
        mut asked: PlaceRequest,
    ) -> Result<(u64, Option<Reservation>), Fault> {
        let ctx = &self.ctx;
        let turn = ctx.transfers.asked.turns.acquire(1).await;
        let _transfer = Transfer::begin(&ctx.transfers);
        let (wanted, pieces) = (asked.hint, asked.pieces.clone());
        (asked.hint, asked.unreachable) = ctx.grant_zones(class, wanted);
        let stream = asked.stream;
        ctx.transfers.asked.note(self.ino, stream);
        let placed = match ctx.has_no_device(class) {
            Some(fault) => Err(fault),
            None => ctx.rpc.place(asked).await,
        };
        let result = placed.map(|Granted { runs, left }| {
            self.keep_places(class, &pieces, &runs);
            ctx.note_granted(class, wanted, &runs, left);
            let blocks = runs.iter().map(|run| run.len).sum();
            (blocks, class.pool.reserve(blocks))
        });
        if matches!(result, Err(Fault::NoSpace | Fault::Io)) {
            ctx.disks.ask_for_absent();
        }
        if !ctx.rpc.is_open(self.ino) {
            // Nobody closes it again, and what was sent at its close may have come first.
            ctx.transfers.asked.note(self.ino, stream);
            self.end_placing(None);
        }
        drop(turn);
        // The return of the pools waits for the last request, of whichever class.
        ctx.each_class().iter().for_each(|class| class.grants.granted.notify_all());
        match result {
            Ok((0, _)) => Err(Fault::NoSpace),
            other => other,
        }
    }

    /// Keeps the places that the server chose, for the blocks of the pieces in their order.
    fn keep_places(&self, class: &Class, pieces: &[UnplacedPiece], runs: &[PagRun]) {
        let mut runs = runs.iter().cloned();
        let mut run = runs.next();
        for piece in pieces {
            let (mut at, end) = (piece.block.0, piece.block.0 + piece.len);
            while let Some(PagRun { pag, addr, len }) = run.take_if(|_| at < end) {
                let now = len.min(end - at);
                class.pool.assign(self.ino, FileBlock(at), PagRun { pag, addr, len: now });
                at += now;
                let rest = PagRun { pag, addr: types::PagBlock(addr.0 + now), len: len - now };
                run = if rest.len > 0 { Some(rest) } else { runs.next() };
            }
        }
        // The server never grants more: if it did, the rest would be free.
        class.pool.grant(&run.into_iter().chain(runs).collect::<Vec<_>>());
    }

    /// The blocks `[from, to)` of the run at `start` were accepted. They get a place now, if the
    /// mount wants it so; what waits for blocks that have one is free.
    pub(super) fn place_accepted(&self, state: &mut FileState, start: u64, (from, to): (u64, u64)) {
        if self.ctx.allocation.is_at_write() {
            self.place_at_write(state, start, (from, to));
        }
        if self.ctx.allocation.delegated {
            return;
        }
        let pool = self.pool();
        for piece in state.layout.pieces(from, to) {
            if piece.mapped.is_some_and(|mapped| mapped.in_place()) {
                pool.unassign(self.ino, FileBlock(piece.from), FileBlock(piece.to));
            }
        }
    }

    /// The file, or a handle of it, is closed: what waits for its blocks goes back, here and at the
    /// server.
    pub(super) fn end_placing(&self, handle: Option<u64>) {
        let ctx = &self.ctx;
        let known = match handle {
            Some(handle) => {
                ctx.transfers.asked.close_handle(self.ino, handle) && ctx.rpc.is_open(self.ino)
            }
            None => ctx.transfers.asked.close(self.ino),
        };
        if !known {
            return;
        }
        let (ctx, ino, server) = (ctx.clone(), self.ino, self.server());
        ctx.env.clone().spawn(async move {
            if handle.is_none() {
                ctx.return_free(server).await;
            }
            // The server also learns it when the session ends.
            let _ = ctx.rpc.end_placing(ino, handle).await;
        });
    }
}

impl DataContext {
    /// The zone to ask for blocks of, if `wanted` is not to be used, and those to ask for none of.
    pub(super) fn grant_zones(
        &self,
        class: &Class,
        wanted: Option<PagId>,
    ) -> (Option<PagId>, Vec<PagId>) {
        let hint = wanted.filter(|&zone| self.is_usable(class, zone));
        let hint = hint.or_else(|| class.current()).or_else(|| self.first_zone(class));
        let mut without = class.pool.avoided();
        // The server itself grants nothing of zones that drain.
        let shunned = self.disks.arrivals.shunned.borrow().clone();
        let is_out = |zone: &PagId| !class.allows(*zone) || shunned.contains(zone);
        without.extend(self.disks.numbers(class.server).into_iter().filter(is_out));
        (hint, without)
    }

    /// The server granted these blocks of one zone, and has `left` there. Those of `hint` were
    /// wanted.
    fn note_granted(&self, class: &Class, hint: Option<PagId>, runs: &[PagRun], left: u64) {
        let zone = runs.first().map(|run| run.pag);
        if let Some(zone) = zone {
            class.grants.note_left(zone, left);
        }
        if let Some(hint) = hint
            && zone != Some(hint)
        {
            class.grants.note_full(hint, self.env.now());
        }
    }

    /// Returns the server's blocks that nothing accepted needs, and that wait for no file.
    pub(super) async fn return_free(&self, server: ServerId) {
        let classes = self.classes_of(server);
        let runs = classes.iter().flat_map(|class| {
            let runs = class.pool.drain_free();
            class.grants.note_returned(&runs);
            runs
        });
        self.return_runs(server, runs.collect()).await;
    }
}
