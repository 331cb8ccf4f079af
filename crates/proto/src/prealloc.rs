//! Where the blocks of growing files go: four ways to choose, over any space that blocks can be cut
//! from. A client uses them over its pool; a server that delegates no space, over a data zone.
//!
//! Invariants:
//! - every block that was cut from the space is in one window, or was handed out once;
//! - windows hold at most half of what they and the free space hold together, but for what is
//!   announced to a static preallocator;
//! - blocks in windows are never a reason for `NoSpace`: a request that finds no free block takes
//!   them from windows;
//! - closing a file gives back all windows of the file.
//!
//! *On-demand* is Algorithm 1 of paper 002 (§4.2; also 004 §III). *Reservation* and *vanilla* are
//! what the papers measure it against, and *static* is their upper bound.

use types::limits::GRANT_BLOCKS;
use types::{ClientId, FileBlock, Ino, PagBlock, PagId};

pub use self::free_runs::{FreeRuns, SHORT};
use self::on_demand::OnDemand;
pub use self::on_demand::{FirstWindow, OdOptions, WhileOff};
use self::plain::Vanilla;
use self::reservation::PerInode;
use self::r#static::Announced;
use crate::mds::PagRun;

mod coding;
mod free_runs;
mod on_demand;
mod plain;
mod reservation;
mod r#static;
mod window;

#[cfg(test)]
mod tests;

/// Largest window that a mount can have, in blocks: what the server grants at a time.
pub const WINDOW_MAX: u64 = 4 * GRANT_BLOCKS;
/// Largest [`OdOptions::scale`] that a mount can have.
pub const SCALE_MAX: u64 = 64;

/// Free blocks that runs can be cut from.
pub trait Space {
    /// Number of free blocks.
    fn free(&self) -> u64;

    /// Cuts up to `len` blocks that begin at this block; `None` if it is not free.
    fn continue_at(&mut self, pag: PagId, addr: PagBlock, len: u64) -> Option<PagRun>;

    /// Cuts a contiguous run of up to `len` blocks, as near to `len` as there is one; `None` only
    /// if nothing is free.
    fn cut(&mut self, len: u64) -> Option<PagRun>;

    /// As [`Space::cut`], for blocks that will be continued: away from other windows, if there is
    /// room.
    fn cut_apart(&mut self, len: u64) -> Option<PagRun> {
        self.cut(len)
    }

    /// Takes back blocks that were cut.
    fn give_back(&mut self, run: PagRun);
}

/// Who writes: one process through one handle on one client (002 §4.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Stream {
    /// The client.
    pub client: ClientId,
    /// Its handle of the file.
    pub handle: u64,
    /// Process or thread on the client's host; 0 if unknown.
    pub process: u32,
}

impl Stream {
    const FIRST: Stream = Stream { client: ClientId(0), handle: 0, process: 0 };
    const LAST: Stream = Stream { client: ClientId(u64::MAX), handle: u64::MAX, process: u32::MAX };
}

/// The end of what a file has on the devices in front of some block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Behind {
    /// One past the last mapped block in front of it.
    pub block: FileBlock,
    /// Where that one would lie if it continued.
    pub pag: PagId,
    /// See `pag`.
    pub addr: PagBlock,
}

/// The part of a striped file that blocks lie in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Where it lies.
    pub zone: PagId,
    /// One past its last block.
    pub end: FileBlock,
}

/// Blocks of a file that need a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The file.
    pub ino: Ino,
    /// Who wrote them; `None` if they belong to no stream and get no window.
    pub stream: Option<Stream>,
    /// The first block.
    pub block: FileBlock,
    /// Blocks.
    pub len: u64,
    /// The last blocks in front of it that have a place.
    pub before: Option<Behind>,
    /// The part that all of them lie in; `None`: the file is not striped.
    pub part: Option<Part>,
}

impl Request {
    /// One past the last block.
    fn end(&self) -> u64 {
        self.block.0 + self.len
    }

    /// No window reaches over this block: what follows lies elsewhere.
    fn window_end(&self) -> u64 {
        self.part.map_or(u64::MAX, |part| part.end.0)
    }

    /// The place behind the block just in front of the first, if that is mapped.
    fn adjacent(&self) -> Option<(PagId, PagBlock)> {
        let before = self.before.filter(|before| before.block == self.block)?;
        Some((before.pag, before.addr))
    }
}

/// How places are chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// A current and a sequential window for each stream.
    OnDemand(OdOptions),
    /// One window for each file, and for each zone of a striped one: the next write takes from it,
    /// at whatever offset.
    Reservation,
    /// Block by block, in the order of the requests.
    Vanilla,
    /// Ranges that were announced before they are written ([`Preallocator::announce`]); others as
    /// `Vanilla`.
    Static,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy::OnDemand(OdOptions::default())
    }
}

impl Policy {
    /// A preallocator without windows that chooses in this way.
    pub fn preallocator(self) -> Box<dyn Preallocator> {
        match self {
            Policy::OnDemand(options) => Box::new(OnDemand::new(options)),
            Policy::Reservation => Box::new(PerInode::default()),
            Policy::Vanilla => Box::new(Vanilla),
            Policy::Static => Box::new(Announced::default()),
        }
    }
}

/// When the place of a write is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum When {
    /// When its bytes go to the device: writes that come in any order lie in the order of the file.
    #[default]
    Launch,
    /// When it is accepted: in the order of arrival, as in the papers.
    Write,
}

/// How a client comes by blocks, and chooses among them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// How places are chosen.
    pub how: Policy,
    /// When.
    pub when: When,
    /// Blocks that the client asks the server for at a time, at first (the chunk of paper 000).
    pub chunk: u64,
    /// Does it keep blocks of its own to choose among? If not, it asks the server for the place of
    /// each write, and `when` is [`When::Write`].
    pub delegated: bool,
}

impl Default for Allocation {
    fn default() -> Allocation {
        Allocation {
            how: Policy::default(),
            when: When::default(),
            chunk: GRANT_BLOCKS,
            delegated: true,
        }
    }
}

impl Allocation {
    /// Are places chosen when writes are accepted?
    pub fn is_at_write(&self) -> bool {
        self.when == When::Write || !self.delegated
    }

    /// How the client itself chooses: not at all, if the server does.
    pub fn own_policy(&self) -> Policy {
        if self.delegated { self.how } else { Policy::Static }
    }
}

/// Chooses places, and keeps the windows.
pub trait Preallocator {
    /// Places for the blocks of `request`, in the order of the file. Together shorter than the
    /// request only if neither the space nor any window holds a block more.
    fn place(&mut self, space: &mut dyn Space, request: &Request) -> Vec<PagRun>;

    /// The file will be written in these blocks: a static preallocator sets them aside. Returns for
    /// how many blocks it found a place.
    fn announce(&mut self, _: &mut dyn Space, _: Ino, _from: FileBlock, _len: u64) -> u64 {
        0
    }

    /// The server chose `run` for these blocks of the file: a static preallocator keeps it for
    /// them. The others put it back into the space.
    fn assign(&mut self, space: &mut dyn Space, _: Ino, _from: FileBlock, run: PagRun) {
        space.give_back(run);
    }

    /// The file's blocks `[from, to)` need no place any more: a static preallocator gives back what
    /// it keeps for them.
    fn unassign(&mut self, _: &mut dyn Space, _: Ino, _from: FileBlock, _to: FileBlock) {}

    /// The file is not written any more: gives back its windows.
    fn close(&mut self, space: &mut dyn Space, ino: Ino);

    /// These streams of the file have ended: gives back their windows.
    fn close_streams(&mut self, _: &mut dyn Space, _: Ino, _of: &dyn Fn(&Stream) -> bool) {}

    /// Shrinks windows, those for the future first, until `blocks` are given back or none is left.
    fn reclaim(&mut self, space: &mut dyn Space, blocks: u64);

    /// Shrinks windows until they hold no more than half. To be called when others have taken
    /// blocks out of the space.
    fn trim(&mut self, space: &mut dyn Space) {
        let excess = self.held().saturating_sub(space.free()).div_ceil(2);
        if excess > 0 {
            self.reclaim(space, excess);
        }
    }

    /// Takes what the windows hold in a zone out of them, for the caller.
    fn take_zone(&mut self, pag: PagId) -> Vec<PagRun>;

    /// Blocks in windows.
    fn held(&self) -> u64;
}

/// Runs in the order of a file, adjacent ones joined.
#[derive(Default)]
struct Placed {
    runs: Vec<PagRun>,
    blocks: u64,
}

impl Placed {
    fn push(&mut self, run: PagRun) {
        self.blocks += run.len;
        match self.runs.last_mut() {
            Some(last) if end_of(last) == (run.pag, run.addr) => last.len += run.len,
            _ => self.runs.push(run),
        }
    }

    /// Where the last run would continue.
    fn end(&self) -> Option<(PagId, PagBlock)> {
        self.runs.last().map(end_of)
    }
}

/// The place behind a run.
fn end_of(run: &PagRun) -> (PagId, PagBlock) {
    (run.pag, PagBlock(run.addr.0 + run.len))
}

/// How many blocks windows may take in addition, while they hold `held`.
fn room(space: &dyn Space, held: u64) -> u64 {
    ((space.free() + held) / 2).saturating_sub(held)
}
