//! Files whose content lies in objects ([`super::striped`]).
//!
//! They use the same dirty runs, launches, flights and stamps as files of blocks; all writes are in
//! place. What differs is here: how writes, reads and holes reach a target, and which blocks are
//! holes that it does not know yet.
//!
//! A truncation or a punched hole is at first known only here: the blocks read as zeros, and they
//! are noted in `punches`. A write of such a block takes it out of there. Holes below the size go
//! to the targets with the dirty runs, so before a commit and before its flush. Those behind it go
//! when the server no longer counts the blocks: a crash between the two leaves no file whose old
//! size covers what a truncation has taken.
//!
//! Bytes behind the size may be left at a target by a client that died before it committed a
//! size, or between such a commit and its hole. So a client that lets the size pass blocks that
//! were not written makes them holes first.
//!
//! Invariants:
//! - a block of `punches` is `unwritten` in the layout, and no write to it is in flight;
//! - a hole and a write of one block are never in flight at once;
//! - a right on the content is returned only when no hole is left in `punches` or in flight, and
//!   all are durable at their targets: none can fall on what another client writes later, not even
//!   when a target starts again and holes are repeated;
//! - a commit has no edits.

use std::ops::Range;
use std::rc::Rc;

use env::IoBuf;
use types::limits::{BLOCK, BLOCK_U64};
use types::{
    BlockRange, Duration, Epoch, Fault, FileBlock, PagBlock, PagId, Segment, SegmentState,
    ServerId, ShardId,
};

use super::context::DataContext;
use super::disks::DataDisk;
use super::file::{File, FileState};
use super::striped::{Object, range};
use super::target_room::{Needs, Room};
use super::write::Unreserved;
use crate::api::Whence;
use crate::waits::Wait;

/// How long a writer waits for room that accepted bytes have at a full target.
const ROOM_PATIENCE: Duration = Duration::from_secs(5);

/// A piece of a launched run: successive blocks of an object, written with one request.
pub(super) struct ObjectPiece {
    pub pag: PagId,
    /// First block of the object.
    pub addr: u64,
    /// Where the blocks lie in the run's buffer, in order; several ranges if stripe units are
    /// smaller than the run. As many bytes as one request carries at most.
    pub bytes: Vec<Range<usize>>,
    /// For the blocks that the target may not have yet.
    pub room: Room,
}

impl ObjectPiece {
    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.bytes.iter().map(Range::len).sum()
    }

    /// One range of a buffer that holds all its bytes: of `buf`, or of a copy if they lie apart.
    fn contiguous(&self, buf: &Rc<IoBuf>) -> (Rc<IoBuf>, Range<usize>) {
        if let [one] = &self.bytes[..] {
            return (buf.clone(), one.clone());
        }
        let (mut joined, mut at) = (IoBuf::unspecified(self.len()), 0);
        for part in &self.bytes {
            joined[at..at + part.len()].copy_from_slice(&buf[part.clone()]);
            at += part.len();
        }
        (Rc::new(joined), 0..at)
    }
}

impl FileState {
    /// The object that the content lies in.
    pub(super) fn object(&self) -> Option<Rc<Object>> {
        self.layout.object().cloned()
    }

    /// Blocks `[from, to)` of an object file read as zeros from now on; the targets have to
    /// know.
    pub(super) fn declare_hole(&mut self, from: u64, to: u64) {
        self.layout.set_written(from, to, false);
        self.punches.insert(range(from, to));
    }

    /// The size of an object file passes all blocks below `first`, none of which is written with
    /// that: nothing of what a target may have there shows.
    pub(super) fn pass_blocks(&mut self, first: u64) {
        let behind = self.size.div_ceil(BLOCK_U64);
        if first <= behind {
            return;
        }
        let Some(striped) = self.layout.striped() else { return };
        for (from, to) in striped.unknown(behind, u64::MAX) {
            self.declare_hole(from, to);
        }
    }

    /// Blocks `[from, to)` are launched: those of them that were zeros. None if the file has no
    /// object.
    pub(super) fn begin_object_write(&mut self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let Some(striped) = self.layout.striped() else { return Vec::new() };
        let fresh = striped.zeros(from, to);
        self.punches.remove(BlockRange::new(from, to));
        self.layout.set_written(from, to, true);
        fresh
    }

    /// The room at targets that a write of `[from, to)` takes and that no dirty run has.
    pub(super) fn unreserved_room(&self, from: u64, to: u64) -> Needs {
        let mut needs = self.layout.room_needed(from, to);
        let mut at = from;
        while at < to
            && !needs.is_empty()
            && let Some((start, run)) = self.dirty_from(at, to)
        {
            let end = start + run.blocks();
            needs.remove_all(&self.layout.room_needed(start.max(from), end.min(to)));
            at = end;
        }
        needs
    }

    /// The hole that goes to the targets next.
    fn next_punch(&self) -> Option<(u64, u64)> {
        // Blocks between the size and that at the server have to wait.
        let kept = self.size.div_ceil(BLOCK_U64);
        let counted = self.server_size.div_ceil(BLOCK_U64).max(kept);
        let holes = self.punches.iter().map(|hole| hole.range);
        let parts = holes.flat_map(|hole| {
            let below = BlockRange::new(0, kept).common(hole);
            [below, BlockRange::new(counted, u64::MAX).common(hole)]
        });
        let mut open = parts.filter(|part| !part.is_empty() && !self.paused);
        let free = open.find(|part| !self.is_writing(part.from.0, part.to.0));
        free.map(|part| (part.from.0, part.to.0))
    }

    /// Are there holes that the targets have to know before the file is committed with its size?
    pub(super) fn has_punches_to_launch(&self) -> bool {
        let kept = self.size.div_ceil(BLOCK_U64);
        self.punches.iter().next().is_some_and(|hole| hole.range.from.0 < kept)
    }
}

impl File {
    /// Sends the holes that may go to the targets now.
    pub(super) fn launch_punches(self: &Rc<Self>, state: &mut FileState) {
        let Some(object) = state.object() else { return };
        while let Some((from, to)) = state.next_punch() {
            state.punches.remove(BlockRange::new(from, to));
            state.punching.push((from, to));
            let id = state.next_flight;
            state.next_flight += 1;
            let runs = object.runs(from, to);
            let targets = runs.iter().map(|(nth, ..)| object.targets[*nth]).collect();
            state.flights.insert(id, targets);
            // Behind the size nobody relies on it.
            let counts = from < state.size.div_ceil(BLOCK_U64);
            let (generation, session) = (state.generation, self.ctx.sessions.of(self.server()));
            self.ctx.flights.set(self.ctx.flights.get() + 1);
            let (this, object) = (self.clone(), object.clone());
            self.ctx.env.spawn(async move {
                let mut punches = Vec::with_capacity(runs.len());
                for (nth, first, end) in runs {
                    let (file, object) = (this.clone(), object.clone());
                    punches.push(this.ctx.env.spawn_join(async move {
                        let blocks = (first, end);
                        let pag = object.targets[nth];
                        let stamp = file.change_object(session, pag, &object, blocks, None).await?;
                        Ok((pag, stamp))
                    }));
                }
                let (mut stamps, mut all) = (Vec::new(), Ok(()));
                for punch in punches {
                    match punch.await {
                        Ok(stamp) => stamps.push(stamp),
                        Err(fault) => all = all.and(Err(fault)),
                    }
                }
                this.punch_ended((from, to), (id, generation, counts), stamps, all);
            });
        }
    }

    fn punch_ended(
        self: &Rc<Self>,
        (from, to): (u64, u64),
        (id, generation, counts): (u64, u64, bool),
        stamps: Vec<(PagId, u64)>,
        result: Result<(), Fault>,
    ) {
        {
            let mut state = self.state.borrow_mut();
            let at = state.punching.iter().position(|hole| *hole == (from, to));
            state.punching.swap_remove(at.expect("it was in flight"));
            state.flights.remove(&id);
            if state.generation == generation {
                // Also behind the size: a size that grows again relies on it without another punch.
                // And a hole that is not durable would be repeated to a restarted target, perhaps
                // after what another client has written there since.
                state.add_stamps(self.ctx.env.now(), stamps);
                let counts = counts || from < state.size.div_ceil(BLOCK_U64);
                match result {
                    Ok(()) | Err(Fault::Evicted) => {}
                    Err(fault) if counts => {
                        self.report_loss(from, to, &format!("no hole was made: {}", fault.text()));
                    }
                    Err(fault) => self.ctx.rpc.log(&format!(
                        "{}: what was cut off still takes room at its targets: {}",
                        self.ctx.rpc.describe(self.ino),
                        fault.text()
                    )),
                }
            }
            self.launch_wanted(&mut state, from, to);
            self.launch_punches(&mut state);
        }
        self.ctx.flights.set(self.ctx.flights.get() - 1);
        self.notify();
        self.enqueue_unless_settled();
    }

    /// What is left to do is committed in its time.
    fn enqueue_unless_settled(self: &Rc<Self>) {
        if !self.is_settled() && !self.detached.get() {
            self.enqueue();
        }
    }

    /// Writes all pieces of a run. Returns the stamps of those that completed, and the first error.
    pub(super) async fn write_object_pieces(
        self: &Rc<Self>,
        session: u64,
        object: Rc<Object>,
        pieces: Vec<ObjectPiece>,
        buf: IoBuf,
    ) -> (Vec<(PagId, u64)>, Result<(), Fault>) {
        let buf = Rc::new(buf);
        let mut writes = Vec::new();
        for piece in pieces {
            let (buf, bytes) = piece.contiguous(&buf);
            let ObjectPiece { pag, addr, room, .. } = piece;
            let end = addr + (bytes.len() / BLOCK) as u64;
            let (this, object) = (self.clone(), object.clone());
            writes.push(self.ctx.env.spawn_join(async move {
                let data = Some((buf, bytes, room.at(pag)));
                let blocks = (addr, end);
                let stamp = this.change_object(session, pag, &object, blocks, data).await;
                room.spend();
                Ok((pag, stamp?))
            }));
        }
        let (mut stamps, mut all) = (Vec::new(), Ok(()));
        for write in writes {
            match write.await {
                Ok(stamp) => stamps.push(stamp),
                Err(fault) => all = all.and(Err(fault)),
            }
        }
        (stamps, all)
    }

    /// Writes blocks `[addr, end)` of the object, or makes them holes without `data`, provided that
    /// at submission the lease is valid and the session is still that of the launch. `data` says
    /// how many of the blocks take room. A capability that the target refuses is fetched anew.
    async fn change_object(
        self: &Rc<Self>,
        session: u64,
        pag: PagId,
        object: &Rc<Object>,
        (addr, end): (u64, u64),
        data: Option<(Rc<IoBuf>, Range<usize>, u64)>,
    ) -> Result<u64, Fault> {
        let ctx = &self.ctx;
        let disk = ctx.target_of(self.server(), pag).await?;
        let _held = disk.device.hold(data.as_ref().map_or(0, |(_, bytes, _)| bytes.len()));
        let place = (object.number.0, addr);
        let mut newest = None;
        loop {
            ctx.wait_for_lease(session).await?;
            disk.earlier_writes_done(session, place, end).await;
            if !ctx.sessions.is_current(session) {
                return Err(Fault::Evicted);
            }
            if disk.is_lost() {
                return Err(Fault::Io);
            }
            if ctx.expired(session) || disk.is_written_earlier(session, place, end) {
                continue;
            }
            let (device, may, data) = (disk.device.clone(), object.may.get(), data.clone());
            let change = async move {
                match data {
                    Some(data) => device.write_object(may, addr, data).await,
                    None => device.punch_object(may, addr, end).await,
                }
            };
            let blocks = (object.number.0, addr, end);
            match disk.change_object(session, blocks, change, &self.given_up).await {
                Err(Fault::AccessDenied) if !ctx.sessions.is_current(session) => {
                    return Err(Fault::Evicted);
                }
                Err(Fault::AccessDenied) => self.renew(object, pag, &mut newest).await?,
                changed => return changed,
            }
        }
    }

    /// Takes the room at targets that a write lacks. A target that has none is asked which of the
    /// blocks it has: to write them again takes no room.
    pub(super) async fn take_room(self: &Rc<Self>, needed: &Unreserved) -> Result<Room, Fault> {
        let object = self.state.borrow().object().ok_or(Fault::Evicted)?;
        let _named = self.ctx.waits.begin(&self.ctx.env, Wait::Space);
        let mut room = Room::default();
        for &(pag, blocks) in &needed.room.0 {
            let disk = self.ctx.target_of(self.server(), pag).await?;
            let take = async || disk.device.take_room(object.may.get(), pag, blocks).await;
            match self.asking(&disk, &object, take).await {
                Ok(more) => room.merge(more),
                Err(Fault::NoSpace) if self.learn_placed(&object, pag, needed).await? => {}
                Err(Fault::NoSpace) if room.is_empty() && self.ctx.spend_room(&disk).await => {}
                Err(fault) => return Err(fault),
            }
        }
        Ok(room)
    }

    /// Asks a target which of the blocks in `needed` it has. Returns whether that is news.
    async fn learn_placed(
        self: &Rc<Self>,
        object: &Rc<Object>,
        pag: PagId,
        needed: &Unreserved,
    ) -> Result<bool, Fault> {
        let nth = object.targets.iter().position(|at| *at == pag).ok_or(Fault::Evicted)?;
        let tail = needed.tail.map(|block| (block, block + 1));
        let mut news = false;
        for (from, to) in tail.into_iter().chain([needed.range]) {
            let on_target = object.runs(from, to).into_iter().find(|run| run.0 == nth);
            let Some((_, first, end)) = on_target else { continue };
            let (mut at, mut found) = (first, Found::new(object));
            while at < end
                && let Some((begin, behind)) = found.run_from(self, object, nth, at).await?
                && begin < end
            {
                let mut state = self.state.borrow_mut();
                if state.object().is_none_or(|now| !Rc::ptr_eq(&now, object)) {
                    return Err(Fault::Evicted);
                }
                let before = state.layout.room_needed(from, to);
                for block in begin.max(at)..behind.min(end) {
                    let block = object.file_block(nth, block);
                    state.layout.set_placed(block, block + 1);
                }
                news |= state.layout.room_needed(from, to) != before;
                at = behind;
            }
        }
        Ok(news)
    }

    /// Reads whole blocks of the object.
    pub(super) async fn read_object(
        self: &Rc<Self>,
        pag: PagId,
        object: &Rc<Object>,
        addr: u64,
        mut buf: IoBuf,
    ) -> (Result<(), Fault>, IoBuf) {
        let result = self.try_read_object(pag, object, addr, &mut buf).await;
        (result, buf)
    }

    async fn try_read_object(
        self: &Rc<Self>,
        pag: PagId,
        object: &Rc<Object>,
        addr: u64,
        buf: &mut [u8],
    ) -> Result<(), Fault> {
        let disk = self.ctx.target_of(self.server(), pag).await?;
        let read = async || disk.device.read_object(object.may.get(), addr, &mut *buf).await;
        self.asking(&disk, object, read).await
    }

    /// The answer of a target to `ask`, again with a new capability if it refuses the old one.
    async fn asking<T>(
        self: &Rc<Self>,
        disk: &Rc<DataDisk>,
        object: &Rc<Object>,
        mut ask: impl AsyncFnMut() -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let mut newest = None;
        loop {
            let lost = disk.device.lost();
            if disk.is_lost() {
                return Err(Fault::Io);
            }
            match env::sync::first(ask(), lost).await.unwrap_or(Err(Fault::Io)) {
                Err(Fault::AccessDenied) => {
                    self.renew(object, disk.info().id, &mut newest).await?;
                }
                answer => return answer,
            }
        }
    }

    /// A target refuses the capability: fetches it anew. `newest` is of the one that this request
    /// fetched last: the server, and its epoch. The server may have been restarted again since
    /// then, so only a capability of that epoch is the last one.
    async fn renew(
        &self,
        object: &Rc<Object>,
        pag: PagId,
        newest: &mut Option<(ShardId, Epoch)>,
    ) -> Result<(), Fault> {
        self.refresh_capability(object).await?;
        let may = object.may.get();
        let (shard, epoch) = (may.shard(), may.epoch);
        // Epochs of two servers cannot be compared: the file has moved then.
        let is_older = |(of, before)| of == shard && epoch <= before;
        if newest.replace((shard, epoch)).is_some_and(is_older) {
            return Err(self.refused_by(pag));
        }
        Ok(())
    }

    /// A target refuses what the server has just allowed.
    fn refused_by(&self, pag: PagId) -> Fault {
        self.ctx.rpc.log(&format!(
            "{}: data zone {pag} refuses the capability that the metadata server gave: do both \
             have the same key?",
            self.ctx.rpc.describe(self.ino)
        ));
        Fault::Io
    }

    /// Fetches what this client may do with the object.
    async fn refresh_capability(&self, object: &Rc<Object>) -> Result<(), Fault> {
        let asked = self.ctx.rpc.layout(self.ino, FileBlock(0));
        let part = self.ctx.waits.named(&self.ctx.env, Wait::Layout(self.ino), asked).await;
        let part = part.map_err(|fault| match fault {
            Fault::NotHeld => Fault::Evicted,
            fault => fault,
        })?;
        let same = part.object.filter(|layout| layout.object == object.number);
        object.may.set(same.ok_or(Fault::Stale)?.may);
        Ok(())
    }

    /// The segments of an object file below its size.
    pub(super) fn object_segments(&self) -> Option<Vec<Segment>> {
        let state = self.state.borrow();
        state.object()?;
        let mut out: Vec<Segment> = Vec::new();
        for piece in state.layout.pieces(0, state.size.div_ceil(BLOCK_U64)) {
            let Some(mapped) = piece.mapped else { continue };
            let segment = Segment {
                file: FileBlock(piece.from),
                len: mapped.len,
                pag: mapped.pag,
                addr: PagBlock(mapped.addr),
                state: SegmentState::Written,
            };
            match out.last_mut() {
                Some(last) if last.joins(&segment) => last.len += segment.len,
                _ => out.push(segment),
            }
        }
        Some(out)
    }

    /// As [`File::seek`], of an object file: the targets say what are holes.
    pub(super) async fn seek_object(
        self: &Rc<Self>,
        object: Rc<Object>,
        offset: u64,
        whence: Whence,
    ) -> Result<u64, Fault> {
        let mut found = Found::new(&object);
        let mut at = offset / BLOCK_U64;
        loop {
            let changed = self.changed.notified();
            let (last, known) = {
                let state = self.state.borrow();
                if state.object().is_none_or(|now| now.number != object.number) {
                    return Err(Fault::Evicted);
                }
                if offset >= state.size {
                    return Err(Fault::NoData);
                }
                let last = state.size.div_ceil(BLOCK_U64);
                if at >= last {
                    return match whence {
                        Whence::Data => Err(Fault::NoData),
                        Whence::Hole => Ok(state.size),
                    };
                }
                let (data, to) = state.data_at(at, last);
                // Blocks that no write or hole is about to change, the targets know.
                let asks = data && state.dirty_at(at).is_none();
                if asks && state.is_writing(at, at + 1) {
                    (last, None)
                } else {
                    (last, Some((asks, data, to)))
                }
            };
            let Some((asks, data, to)) = known else {
                changed.await;
                continue;
            };
            let (data, to) = match asks {
                true => found.at(self, &object, at, to.min(last)).await?,
                false => (data, to),
            };
            if data == matches!(whence, Whence::Data) {
                return Ok(offset.max(at * BLOCK_U64));
            }
            at = to;
        }
    }
}

/// What the targets have said of an object's blocks, while somebody looks for data or a hole.
struct Found {
    targets: Vec<FoundOn>,
}

/// Blocks of the object on one target.
#[derive(Default)]
struct FoundOn {
    /// The runs that hold something below `known_to`.
    runs: Vec<(u64, u64)>,
    known_from: u64,
    known_to: u64,
}

impl Found {
    fn new(object: &Object) -> Found {
        let targets = object.targets.iter().map(|_| FoundOn::default()).collect();
        Found { targets }
    }

    /// The first run with a block at or behind `block` on the target with this index.
    async fn run_from(
        &mut self,
        file: &Rc<File>,
        object: &Rc<Object>,
        nth: usize,
        block: u64,
    ) -> Result<Option<(u64, u64)>, Fault> {
        let on = &mut self.targets[nth];
        let mut from = block;
        loop {
            if let Some(run) = on.runs.iter().find(|run| run.1 > block) {
                return Ok(Some(*run));
            }
            if (on.known_from..=on.known_to).contains(&from) {
                from = on.known_to;
            }
            if from == u64::MAX {
                return Ok(None);
            }
            let disk = file.ctx.target_of(file.server(), object.targets[nth]).await?;
            let ask = async || disk.device.object_runs(object.may.get(), from).await;
            let (runs, end) = file.asking(&disk, object, ask).await?;
            on.known_from = from;
            on.known_to = match runs.last() {
                Some(last) if !end => last.1.max(from + 1),
                _ => u64::MAX,
            };
            on.runs = runs;
        }
    }

    /// Is block `at` of the file in a run, and up to which block, at most `to`, is the answer known
    /// to be the same?
    async fn at(
        &mut self,
        file: &Rc<File>,
        object: &Rc<Object>,
        at: u64,
        to: u64,
    ) -> Result<(bool, u64), Fault> {
        let (nth, block, unit_end) = object.place(at);
        let to_unit = to.min(unit_end);
        if let Some((from, end)) = self.run_from(file, object, nth, block).await?
            && from <= block
        {
            return Ok((true, to_unit.min(at.saturating_add(end - block))));
        }
        // A hole ends where the next data of any target begins.
        let mut next = to;
        for nth in 0..self.targets.len() {
            let first = object.first_on(nth, at);
            if let Some((from, _)) = self.run_from(file, object, nth, first).await? {
                next = next.min(object.file_block(nth, from.max(first)));
            }
        }
        Ok((false, next))
    }
}

impl DataContext {
    /// Room at a target is short: launches what has some, and waits until some of it is spent.
    /// False if nothing of this client has any.
    async fn spend_room(self: &Rc<Self>, disk: &Rc<DataDisk>) -> bool {
        let freed = disk.device.room_freed();
        if !disk.device.has_room_taken() {
            return false;
        }
        self.launch_for_room();
        // Two writers may each have what the other one waits for.
        self.env.timeout(ROOM_PATIENCE, freed).await.is_some()
    }

    /// The target that is this zone.
    async fn target_of(
        self: &Rc<Self>,
        server: ServerId,
        pag: PagId,
    ) -> Result<Rc<DataDisk>, Fault> {
        let disk = self.zone(server, pag).await?;
        if disk.device.is_target() { Ok(disk) } else { Err(Fault::Corrupt) }
    }

    /// See [`crate::boundary::DataHalf::give_up`].
    pub(super) fn give_up(&self, operation: u64) {
        self.disks.devices().for_each(|device| device.give_up_operation(operation));
    }

    /// See [`crate::boundary::DataHalf::leave_targets`].
    pub(super) async fn leave_targets(&self) {
        let mut ends = Vec::new();
        for device in self.disks.devices() {
            ends.push(self.env.spawn_join(async move { device.leave_target().await }));
        }
        for end in ends {
            end.await;
        }
    }
}
