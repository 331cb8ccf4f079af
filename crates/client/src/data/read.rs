//! Reading: dirty runs come from memory, holes and unwritten blocks are zeros, and the devices fill
//! everything else, straight into the returned buffers.
//!
//! Invariants: a read sees every write that was acknowledged before it began; it registers its
//! blocks (`reading`), so that none leaves the file while a device reads it.

use std::ops::Range;
use std::rc::Rc;

use env::IoBuf;
use types::Fault;
use types::limits::{BLOCK, BLOCK_U64};

use super::file::{File, FileState, blocks_of};
use super::striped::Object;
use crate::api::{LocalFuture, ReadData, ReadPart, Whence};
use crate::waits::Wait;

/// Registers a range of blocks for as long as a device reads them.
pub(super) struct ReadGuard {
    file: Rc<File>,
    number: u64,
}

impl Drop for ReadGuard {
    fn drop(&mut self) {
        {
            let mut state = self.file.state.borrow_mut();
            if let Some((from, to)) = state.reading.remove(&self.number) {
                self.file.launch_wanted(&mut state, from, to);
            }
        }
        self.file.changed.notify_all();
    }
}

/// Registers a range of blocks for as long as it is zeroed in several steps.
pub(super) struct ZeroGuard {
    file: Rc<File>,
    range: (u64, u64),
}

impl Drop for ZeroGuard {
    fn drop(&mut self) {
        let mut state = self.file.state.borrow_mut();
        if let Some(nth) = state.zeroing.iter().position(|range| *range == self.range) {
            state.zeroing.swap_remove(nth);
        }
        drop(state);
        self.file.changed.notify_all();
    }
}

/// Where a stretch of blocks comes from.
pub(super) enum Source {
    /// Copied out of memory, or zeros.
    Memory(IoBuf),
    /// To be read from a device.
    Device { pag: types::PagId, addr: u64, blocks: u64 },
    /// To be read from a target.
    Target { object: Rc<Object>, pag: types::PagId, addr: u64, blocks: u64 },
}

impl Source {
    /// The zone that it is read from.
    fn pag(&self) -> Option<types::PagId> {
        match self {
            Source::Memory(_) => None,
            Source::Device { pag, .. } | Source::Target { pag, .. } => Some(*pag),
        }
    }

    /// Blocks to be read.
    fn blocks(&self) -> u64 {
        match self {
            Source::Memory(_) => 0,
            Source::Device { blocks, .. } | Source::Target { blocks, .. } => *blocks,
        }
    }
}

/// Sources that are read at once.
struct Joined {
    source: Source,
    /// For each of them: which one it was, and its bytes in the buffer.
    places: Vec<(usize, Range<usize>)>,
}

/// Joins those of the sources that are adjacent in an object, as with stripe units that are
/// smaller than what is read.
fn joined(parts: Vec<Source>) -> Vec<Joined> {
    let mut out: Vec<Joined> = Vec::with_capacity(parts.len());
    for (index, part) in parts.into_iter().enumerate() {
        if let Source::Target { pag, addr, blocks, .. } = part {
            let same = |one: &&mut Joined| one.source.pag() == Some(pag);
            if let Some(Joined { source: Source::Target { addr: begin, blocks: len, .. }, places }) =
                out.iter_mut().rev().find(same)
                && *begin + *len == addr
            {
                let from = *len as usize * BLOCK;
                *len += blocks;
                places.push((index, from..*len as usize * BLOCK));
                continue;
            }
        }
        let bytes = match &part {
            Source::Memory(buf) => buf.len(),
            other => other.blocks() as usize * BLOCK,
        };
        out.push(Joined { source: part, places: vec![(index, 0..bytes)] });
    }
    out
}

/// Blocks of a file that were read: part of a buffer.
struct Filled {
    buffer: Rc<IoBuf>,
    bytes: Range<usize>,
}

impl File {
    /// Registers a device read of `[from, to)`.
    pub(super) fn begin_read(
        self: &Rc<Self>,
        state: &mut FileState,
        from: u64,
        to: u64,
    ) -> ReadGuard {
        let number = state.next_read;
        state.next_read += 1;
        state.reading.insert(number, (from, to));
        ReadGuard { file: self.clone(), number }
    }

    /// Makes reads of blocks `[from, to)` wait until the guard is dropped.
    pub(super) fn begin_zeroing(self: &Rc<Self>, from: u64, to: u64) -> ZeroGuard {
        self.state.borrow_mut().zeroing.push((from, to));
        ZeroGuard { file: self.clone(), range: (from, to) }
    }

    /// See [`crate::boundary::FileContent::read`].
    pub(super) async fn read(self: &Rc<Self>, offset: u64, len: usize) -> Result<ReadData, Fault> {
        let (parts, guard, end) = loop {
            let end = offset.saturating_add(len as u64).min(self.size());
            if offset >= end {
                return Ok(ReadData::default());
            }
            let (first, last) = blocks_of(offset, end);
            self.ensure_known(first, last).await?;
            let changed = self.changed.notified();
            {
                let mut state = self.state.borrow_mut();
                let end = end.min(state.size);
                if offset >= end {
                    return Ok(ReadData::default());
                }
                let (_, last) = blocks_of(offset, end);
                if !state.is_zeroing(first, last)
                    && let Some(parts) = self.plan(&state, first, last)
                {
                    let guard = self.begin_read(&mut state, first, last);
                    break (parts, guard, end);
                }
            }
            changed.await;
        };
        let (first, _) = blocks_of(offset, end);
        let filled = self.read_sources(parts).await?;
        drop(guard);
        let mut out = ReadData { parts: Vec::with_capacity(filled.len()), filling: None };
        let mut at = first * BLOCK_U64;
        for Filled { buffer, bytes } in filled {
            let next = at + bytes.len() as u64;
            let (from, to) = (offset.max(at), end.min(next));
            let part = ReadPart {
                start: bytes.start + (from - at) as usize,
                end: bytes.start + (to - at) as usize,
                buffer,
            };
            out.parts.push(part);
            at = next;
        }
        Ok(out)
    }

    /// The sources of blocks `[first, last)`; `None` if a write in flight has to end first.
    fn plan(&self, state: &FileState, first: u64, last: u64) -> Option<Vec<Source>> {
        let env = &self.ctx.env;
        let mut parts: Vec<Source> = Vec::new();
        let mut at = first;
        while at < last {
            if let Some((start, run)) = state.dirty_at(at) {
                let to = (start + run.blocks()).min(last);
                let from = (at - start) as usize * BLOCK;
                let bytes = (to - at) as usize * BLOCK;
                parts.push(Source::Memory(IoBuf::copy_of(&run.buf[from..from + bytes])));
                at = to;
                continue;
            }
            if state.is_inline(at) {
                parts.push(Source::Memory(state.inline_block(env)));
                at += 1;
                continue;
            }
            let to = state.dirty_from(at, last).map_or(last, |(start, _)| start);
            if state.is_writing(at, to) {
                return None;
            }
            let piece = state.layout.piece_at(at, to);
            let blocks = piece.to - at;
            match piece.mapped {
                Some(mapped) if mapped.written => {
                    let (pag, addr) = (mapped.pag, mapped.addr);
                    parts.push(match state.object() {
                        Some(object) => Source::Target { object, pag, addr, blocks },
                        None => Source::Device { pag, addr, blocks },
                    });
                }
                _ => parts.push(Source::Memory(env.buffer(blocks as usize * BLOCK))),
            }
            at = piece.to;
        }
        Some(parts)
    }

    /// Reads from all devices at once, and with one read what is adjacent in an object.
    async fn read_sources(self: &Rc<Self>, parts: Vec<Source>) -> Result<Vec<Filled>, Fault> {
        let env = &self.ctx.env;
        let reads = joined(parts);
        let devices = reads.iter().filter(|read| read.source.pag().is_some()).count();
        if devices > 0 {
            self.ctx.wait_for_lease(self.ctx.sessions.of(self.server())).await?;
        }
        let mut out: Vec<Option<Filled>> = Vec::new();
        out.resize_with(reads.iter().map(|read| read.places.len()).sum(), || None);
        let mut give = |buf: IoBuf, places: Vec<(usize, Range<usize>)>| {
            let buffer = Rc::new(buf);
            for (index, bytes) in places {
                out[index] = Some(Filled { buffer: buffer.clone(), bytes });
            }
        };
        let mut running = Vec::new();
        for Joined { source, places } in reads {
            let buf = IoBuf::unspecified(source.blocks() as usize * BLOCK);
            let (Some(pag), 2..) = (source.pag(), devices) else {
                give(self.read_source(source, buf).await?, places);
                continue;
            };
            let this = self.clone();
            let read = env.spawn_join(async move { this.read_source(source, buf).await });
            running.push((places, pag, read));
        }
        let mut failed = None;
        for (places, pag, read) in running {
            match self.ctx.waits.named(env, Wait::Read(pag), read).await {
                Ok(buf) => give(buf, places),
                Err(fault) => failed = failed.or(Some(fault)),
            }
        }
        match failed {
            Some(fault) => Err(fault),
            None => Ok(out.into_iter().flatten().collect()),
        }
    }

    /// The blocks of one source; those of a device or target are read into `buf`.
    pub(super) async fn read_source(
        self: &Rc<Self>,
        part: Source,
        buf: IoBuf,
    ) -> Result<IoBuf, Fault> {
        let (env, waits) = (&self.ctx.env, &self.ctx.waits);
        let (result, buf) = match part {
            Source::Memory(buf) => return Ok(buf),
            Source::Device { pag, addr, .. } => {
                let disk = self.ctx.zone(self.server(), pag).await?;
                waits.named(env, Wait::Read(pag), disk.read(addr, buf)).await
            }
            Source::Target { object, pag, addr, .. } => {
                // Boxed: those who read from devices need not know its type.
                let read: LocalFuture<'_, _> = Box::pin(self.read_object(pag, &object, addr, buf));
                waits.named(env, Wait::Read(pag), read).await
            }
        };
        result.map(|()| buf)
    }

    /// See [`crate::boundary::FileContent::seek`].
    pub(super) async fn seek(self: &Rc<Self>, offset: u64, whence: Whence) -> Result<u64, Fault> {
        self.ensure_loaded(self.size().div_ceil(BLOCK_U64)).await?;
        let object = self.state.borrow().object();
        if let Some(object) = object {
            let seek: LocalFuture<'_, _> = Box::pin(self.seek_object(object, offset, whence));
            return seek.await;
        }
        let state = self.state.borrow();
        if offset >= state.size {
            return Err(Fault::NoData);
        }
        let last = state.size.div_ceil(BLOCK_U64);
        let mut at = offset / BLOCK_U64;
        while at < last {
            let (data, to) = state.data_at(at, last);
            if data == matches!(whence, Whence::Data) {
                return Ok(offset.max(at * BLOCK_U64));
            }
            at = to;
        }
        match whence {
            Whence::Data => Err(Fault::NoData),
            Whence::Hole => Ok(state.size),
        }
    }
}

impl FileState {
    /// Does `block` hold data, and up to which block (at most `to`) is the answer known to be the
    /// same?
    pub(super) fn data_at(&self, block: u64, to: u64) -> (bool, u64) {
        if let Some((start, run)) = self.dirty_at(block) {
            return (true, (start + run.blocks()).min(to));
        }
        if self.is_inline(block) {
            return (true, 1);
        }
        let to = self.dirty_from(block, to).map_or(to, |(start, _)| start);
        let piece = self.layout.piece_at(block, to);
        (piece.mapped.is_some_and(|mapped| mapped.written), piece.to)
    }
}

#[cfg(test)]
mod tests {
    use types::PagId;

    use super::*;
    use crate::data::striped::tests::object;

    #[test]
    fn units_that_are_adjacent_in_an_object_are_read_at_once() {
        let object = object(4, 2);
        let target = |pag, addr, blocks| Source::Target {
            object: object.clone(),
            pag: PagId(pag),
            addr,
            blocks,
        };
        // Blocks 2..14 of the file; block 9 is in memory.
        let reads = joined(vec![
            target(1, 2, 2),
            target(2, 0, 4),
            target(1, 4, 1),
            Source::Memory(IoBuf::unspecified(BLOCK)),
            target(1, 6, 2),
            target(2, 4, 2),
        ]);
        let found: Vec<_> = reads
            .iter()
            .map(|read| {
                let addr = match read.source {
                    Source::Target { addr, .. } => addr,
                    _ => u64::MAX,
                };
                let places: Vec<_> = read
                    .places
                    .iter()
                    .map(|(index, bytes)| (*index, bytes.start / BLOCK, bytes.end / BLOCK))
                    .collect();
                (read.source.pag().map_or(0, |pag| pag.0), addr, read.source.blocks(), places)
            })
            .collect();
        assert_eq!(
            found,
            [
                (1, 2, 3, vec![(0, 0, 2), (2, 2, 3)]),
                (2, 0, 6, vec![(1, 0, 4), (5, 4, 6)]),
                (0, u64::MAX, 0, vec![(3, 0, 1)]),
                (1, 6, 2, vec![(4, 0, 2)]),
            ]
        );
    }
}
