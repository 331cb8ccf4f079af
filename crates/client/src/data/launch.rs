//! From dirty runs to writes on the devices.
//!
//! Invariants: a run is launched only when no write to one of its blocks is in flight; launching
//! allocates its place in the same step, so that pending edits are in the order of the launches; a
//! launched write always ends, and then wakes those who wait for it.

use std::rc::Rc;

use env::IoBuf;
use proto::mds::Edit;
use proto::ost::IO_BLOCKS_MAX;
use types::limits::{BLOCK, BLOCK_U64};
use types::{Fault, FileBlock, Instant, PagId, ServerId};

use super::budget::Claim;
use super::context::DataContext;
use super::device_writes::Written;
use super::file::{DirtyRun, File, FileState};
use super::objects::ObjectPiece;
use super::segments::{Mapped, Piece, to_wire_segment};

/// A run of at least so many blocks is launched without waiting for more.
pub(super) const RUN_BLOCKS: u64 = (1 << 20) / BLOCK_U64;

/// A piece of a run and its place on a device.
struct PlacedPiece {
    pag: PagId,
    addr: u64,
    /// Byte range in the run's buffer.
    from: usize,
    to: usize,
}

impl File {
    /// Requests the launch of every dirty run, and launches those that can be. Returns a sequence
    /// number; nothing below it is dirty once all these runs are launched.
    pub(super) fn launch_all(self: &Rc<Self>) -> u64 {
        let mut state = self.state.borrow_mut();
        for run in state.dirty.values_mut() {
            run.wanted = true;
        }
        self.launch_wanted(&mut state, 0, u64::MAX);
        self.launch_punches(&mut state);
        state.next_seq
    }

    /// Launches the wanted runs that touch `[from, to)`, if nothing blocks them.
    pub(super) fn launch_wanted(self: &Rc<Self>, state: &mut FileState, from: u64, to: u64) {
        let mut at = from;
        while let Some((start, run)) = state.dirty_from(at, to) {
            let end = start + run.blocks();
            at = end;
            if run.wanted {
                if run.blocks() < RUN_BLOCKS / 2 {
                    self.join_next(state, start);
                }
                self.launch(state, start);
            }
        }
    }

    /// Joins small wanted runs that are adjacent into one write.
    fn join_next(&self, state: &mut FileState, start: u64) {
        let mut len = state.dirty[&start].blocks();
        let first = len;
        let mut parts = Vec::new();
        while let Some(next) = state.dirty.get(&(start + len)) {
            if !next.wanted || len + next.blocks() > RUN_BLOCKS {
                break;
            }
            parts.push(start + len);
            len += next.blocks();
        }
        if parts.is_empty() {
            return;
        }
        let mut buf = IoBuf::unspecified(len as usize * BLOCK);
        let run = state.dirty.get_mut(&start).expect("given");
        buf[..first as usize * BLOCK].copy_from_slice(&run.buf);
        run.buf = buf;
        for part in parts {
            let next = state.dirty.remove(&part).expect("listed");
            let run = state.dirty.get_mut(&start).expect("given");
            let at = (part - start) as usize * BLOCK;
            run.buf[at..at + next.buf.len()].copy_from_slice(&next.buf);
            run.seq = run.seq.min(next.seq);
            run.claim.merge(next.claim);
            run.reserved.merge(next.reserved);
        }
    }

    /// Submits the run at `start` to the devices, unless a write to one of its blocks is in flight.
    pub(super) fn launch(self: &Rc<Self>, state: &mut FileState, start: u64) -> bool {
        let end = start + state.dirty[&start].blocks();
        if state.paused || state.is_writing(start, end) {
            return false;
        }
        // The launch replaces frozen blocks: reads of them must end first.
        let frozen = |piece: &Piece| piece.mapped.is_some_and(|mapped| mapped.frozen);
        if state.is_reading(start, end) && state.layout.pieces(start, end).iter().any(frozen) {
            return false;
        }
        if self.launch_inline(state, start, end) {
            return true;
        }
        // A file in an object needs no block of the pool, however short that is.
        let (class, object) = (self.class(), state.object());
        if object.is_none()
            && class.pool.missing_for(0) > 0
            && !class.pool.can_place(state.layout.unplaced(start, end))
        {
            self.ctx.starve(&class, self);
            return false;
        }
        if let Some(wanted) = self.lacking(state, start, end) {
            state.dirty.get_mut(&start).expect("given").wanted = true;
            self.ctx.starve_for(&class, self, wanted);
            return false;
        }
        let mut run = state.dirty.remove(&start).expect("given");
        let fresh = state.begin_object_write(start, end);
        let placed = self.place_run(state, start, end, &mut run);
        state.disk_size = state.disk_size.max(state.size.min(end * BLOCK_U64));
        self.keep_tail(state, start, end, &run);
        let id = state.next_flight;
        state.next_flight += 1;
        state.writing.insert(start, end);
        state.flights.insert(id, placed.iter().map(|piece| piece.pag).collect());
        let mut pieces = Vec::new();
        if object.is_some() {
            placed.iter().for_each(|one| one.of_object(state, start, &mut run, &mut pieces));
        }
        let DirtyRun { buf, claim, .. } = run;
        let generation = state.generation;
        let session = self.ctx.sessions.of(self.server());
        self.ctx.flights.set(self.ctx.flights.get() + 1);
        let this = self.clone();
        self.ctx.env.spawn(async move {
            let result = match object {
                Some(object) => this.write_object_pieces(session, object, pieces, buf).await,
                None => write_placed(&this.ctx, session, placed, buf).await,
            };
            this.write_ended((start, end, fresh), id, generation, result, claim);
        });
        true
    }

    /// Launches the runs that waited for blocks of another zone. If there are none (`filled`), the
    /// runs are lost.
    pub(super) fn relieved(self: &Rc<Self>, filled: Result<(), Fault>) {
        {
            let mut state = self.state.borrow_mut();
            let placeless = |state: &FileState, start: u64, run: &DirtyRun| {
                run.wanted && state.layout.unplaced(start, start + run.blocks()) > 0
            };
            let lost: Vec<u64> = match filled {
                Err(Fault::NoSpace | Fault::Io) => {
                    let runs = state.dirty.iter();
                    runs.filter(|(start, run)| placeless(&state, **start, run))
                        .map(|(&start, _)| start)
                        .collect()
                }
                // The eviction itself reports what it loses.
                _ => Vec::new(),
            };
            for start in lost {
                if let Some(run) = state.dirty.remove(&start) {
                    let end = start + run.blocks();
                    drop(run);
                    self.fail_range(
                        &mut state,
                        start,
                        end,
                        "its data zone has failed, and no other has room",
                    );
                }
            }
            self.launch_wanted(&mut state, 0, u64::MAX);
        }
        self.notify();
    }

    /// See [`crate::boundary::FileContent::last_handle_closed`].
    pub(super) fn last_handle_closed(&self) {
        self.state.borrow_mut().stillness.closed();
        self.pool().release_windows(self.ino, None);
        self.end_placing(None);
    }

    /// See [`crate::boundary::FileContent::handle_closed`].
    pub(super) fn handle_closed(&self, handle: u64) {
        for run in self.state.borrow_mut().dirty.values_mut() {
            run.stream.take_if(|stream| stream.handle == handle);
        }
        if self.ctx.allocation.delegated {
            self.pool().release_windows(self.ino, Some(handle));
        } else {
            self.end_placing(Some(handle));
        }
    }

    /// Finds a place for every block of the run, and appends the edits for it.
    fn place_run(
        &self,
        state: &mut FileState,
        start: u64,
        end: u64,
        run: &mut DirtyRun,
    ) -> Vec<PlacedPiece> {
        let stream = self.open_stream(run);
        let mut placed: Vec<PlacedPiece> = Vec::new();
        let mut push = |pag: PagId, addr: u64, from: u64, to: u64| {
            let (from, to) = ((from - start) as usize * BLOCK, (to - start) as usize * BLOCK);
            match placed.last_mut() {
                Some(last)
                    if last.pag == pag
                        && last.addr + ((last.to - last.from) / BLOCK) as u64 == addr =>
                {
                    last.to = to;
                }
                _ => placed.push(PlacedPiece { pag, addr, from, to }),
            }
        };
        for piece in state.layout.pieces(start, end) {
            let len = piece.to - piece.from;
            match piece.mapped {
                Some(mapped) if mapped.in_place() => {
                    push(mapped.pag, mapped.addr, piece.from, piece.to);
                    if !mapped.written {
                        state.layout.set_written(piece.from, piece.to, true);
                        state.push_edit(Edit::Written { from: FileBlock(piece.from), len });
                    }
                }
                before => {
                    if piece.from == 0 {
                        state.replace_inline();
                    }
                    let blocks = (piece.from, piece.to);
                    let runs = self.allocate_blocks(state, stream, blocks, &mut run.reserved);
                    let mut at = piece.from;
                    for new in runs {
                        push(new.pag, new.addr, at, at + new.len);
                        let mapped = Mapped {
                            len: new.len,
                            pag: new.pag,
                            addr: new.addr,
                            written: true,
                            frozen: false,
                        };
                        state.layout.insert(at, mapped);
                        state.replaced.remove(at, at + new.len);
                        state.push_edit(Edit::Map { segment: to_wire_segment(at, &mapped) });
                        at += new.len;
                    }
                    match before {
                        Some(frozen) => state.replaced.insert(piece.from, frozen),
                        None => state.blocks += len,
                    }
                }
            }
        }
        placed
    }

    /// Keeps a copy of the last, partial block, so that an append needs no read.
    fn keep_tail(&self, state: &mut FileState, start: u64, end: u64, run: &DirtyRun) {
        let last = state.size / BLOCK_U64;
        if state.size.is_multiple_of(BLOCK_U64) || !(start..end).contains(&last) {
            return;
        }
        let at = (last - start) as usize * BLOCK;
        state.tail = Some((last, IoBuf::copy_of(&run.buf[at..at + BLOCK])));
    }

    /// A launched write ended.
    fn write_ended(
        self: &Rc<Self>,
        (start, end, fresh): (u64, u64, Vec<(u64, u64)>),
        id: u64,
        generation: u64,
        (stamps, result): WriteOutcome,
        claim: Claim,
    ) {
        {
            let mut state = self.state.borrow_mut();
            state.writing.remove(&start);
            state.flights.remove(&id);
            if state.generation == generation {
                // Pieces of a write that failed in part may have reached their device, perhaps in
                // place. They must become stable before other clients rely on them.
                state.add_stamps(self.ctx.env.now(), stamps);
                match result {
                    // The eviction itself reports what it loses.
                    Ok(()) => state.layout.set_placed(start, end),
                    Err(Fault::Evicted) => {}
                    Err(fault) => {
                        self.fail_range(&mut state, start, end, fault.text());
                        // What a target had there before a hole must not come back.
                        fresh.iter().for_each(|&(from, to)| state.declare_hole(from, to));
                    }
                }
            }
            self.launch_wanted(&mut state, start, end);
            self.launch_punches(&mut state);
            if state.writing.is_empty() {
                self.untaint(std::mem::take(&mut state.tainted));
            }
        }
        self.ctx.flights.set(self.ctx.flights.get() - 1);
        drop(claim);
        self.notify();
    }
}

impl PlacedPiece {
    /// As blocks of an object, with the room that they take of that of the run at `start`. Those
    /// that follow a piece in `out` on its target extend it, as far as one request goes: units of a
    /// stripe that are adjacent in the object are written at once.
    fn of_object(
        &self,
        state: &FileState,
        start: u64,
        run: &mut DirtyRun,
        out: &mut Vec<ObjectPiece>,
    ) {
        const MOST: usize = IO_BLOCKS_MAX as usize * BLOCK;
        let mut from = self.from;
        while from < self.to {
            let addr = self.addr + ((from - self.from) / BLOCK) as u64;
            let before = out.iter_mut().rev().find(|piece| piece.pag == self.pag).filter(|piece| {
                piece.addr + (piece.len() / BLOCK) as u64 == addr && piece.len() < MOST
            });
            let to = self.to.min(from + MOST - before.as_ref().map_or(0, |piece| piece.len()));
            let (first, last) = (start + (from / BLOCK) as u64, start + (to / BLOCK) as u64);
            let room = run.reserved.room.split(&state.layout.room_needed(first, last));
            match before {
                Some(piece) => {
                    piece.bytes.push(from..to);
                    piece.room.merge(room);
                }
                None => {
                    let bytes = std::iter::once(from..to).collect();
                    out.push(ObjectPiece { pag: self.pag, addr, bytes, room });
                }
            }
            from = to;
        }
    }
}

impl FileState {
    /// Writes have completed with these stamps.
    pub(super) fn add_stamps(&mut self, now: Instant, stamps: Vec<(PagId, u64)>) {
        if self.stamps.is_empty() {
            self.stamped_since = now;
        }
        for (pag, stamp) in stamps {
            let known = self.stamps.entry(pag).or_insert((stamp, stamp));
            *known = (known.0.min(stamp), known.1.max(stamp));
        }
    }
}

/// The outcome of a launched write: the stamps of the pieces that completed, and the first error.
type WriteOutcome = (Vec<(PagId, u64)>, Result<(), Fault>);

/// Writes all pieces.
async fn write_placed(
    ctx: &Rc<DataContext>,
    session: u64,
    placed: Vec<PlacedPiece>,
    buf: IoBuf,
) -> WriteOutcome {
    if let [one] = &placed[..] {
        return match ctx.write_blocks(session, one.pag, one.addr, buf).await {
            Ok(stamp) => (vec![(one.pag, stamp)], Ok(())),
            Err(fault) => (Vec::new(), Err(fault)),
        };
    }
    let mut writes = Vec::with_capacity(placed.len());
    for piece in placed {
        let part = IoBuf::copy_of(&buf[piece.from..piece.to]);
        let this = ctx.clone();
        writes.push(ctx.env.spawn_join(async move {
            let stamp = this.write_blocks(session, piece.pag, piece.addr, part).await?;
            Ok((piece.pag, stamp))
        }));
    }
    // The run ends only when all pieces have ended, even if the first one fails.
    let (mut stamps, mut all) = (Vec::new(), Ok(()));
    for write in writes {
        match write.await {
            Ok(stamp) => stamps.push(stamp),
            Err(fault) => all = all.and(Err(fault)),
        }
    }
    (stamps, all)
}

impl DataContext {
    /// Writes whole blocks, provided that at submission the lease is valid and the session is still
    /// that of the launch.
    pub(super) async fn write_blocks(
        self: &Rc<Self>,
        session: u64,
        pag: PagId,
        addr: u64,
        mut buf: IoBuf,
    ) -> Result<u64, Fault> {
        let server = self.sessions.server(session).ok_or(Fault::Evicted)?;
        let disk = self.zone(server, pag).await?;
        let end = addr + (buf.len() / BLOCK) as u64;
        let _held = disk.device.hold(buf.len());
        loop {
            self.wait_for_lease(session).await?;
            disk.earlier_writes_done(session, (0, addr), end).await;
            if disk.is_lost() || disk.device.refuses() {
                return Err(Fault::Io);
            }
            if !self.sessions.is_current(session) {
                return Err(Fault::Evicted);
            }
            if self.expired(session) || disk.is_written_earlier(session, (0, addr), end) {
                continue;
            }
            let permits = |session| self.sessions.is_current(session) && !self.expired(session);
            match disk.write(session, addr, buf, permits).await? {
                Written::Done(stamp) => return Ok(stamp),
                Written::Again(back) => buf = back,
            }
        }
    }

    /// Waits until the session's lease permits using the devices.
    ///
    /// # Errors
    /// `Evicted`: the session is lost. `Unreachable`: the client has ended.
    pub(super) async fn wait_for_lease(&self, session: u64) -> Result<(), Fault> {
        while let Some(server) = self.sessions.server(session) {
            if !self.is_expired(server) {
                return Ok(());
            }
            self.rpc.wait_lease(server).await?;
        }
        Err(Fault::Evicted)
    }

    /// Has the session no lease, or is it lost?
    pub(super) fn expired(&self, session: u64) -> bool {
        self.sessions.server(session).is_none_or(|server| self.is_expired(server))
    }

    fn is_expired(&self, server: ServerId) -> bool {
        let ends: Instant = self.rpc.lease_ends(server);
        self.env.now() >= ends
    }
}
