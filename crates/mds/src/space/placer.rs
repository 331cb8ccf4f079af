//! The places of one zone that the server chooses itself, for clients that keep no blocks.
//!
//! A placer knows a part of the zone's free blocks, from a cursor on. It cuts runs and windows from
//! them in the order of addresses. It is memory only: the store knows its blocks as free until a
//! transaction takes those that it has chosen, and may give them to others before.
//!
//! Invariants:
//! - every block that it knows is in one free run or in one window;
//! - the windows of a file end with its last writer; files are remembered up to a limit, and the
//!   one that was silent longest makes room;
//! - windows never keep a request from a block: those of all ways give back what it needs.

use std::collections::{BTreeMap, BTreeSet};

use proto::mds::{PagRun, UnplacedPiece};
use proto::prealloc::{
    Behind, FreeRuns, Part, Policy, Preallocator, Request, Space, Stream, WINDOW_MAX,
};
use types::{ClientId, FileBlock, Ino, PagBlock, PagId};

/// The placer gets to know more free blocks when it knows fewer: two of the largest windows.
const KNOWN_MIN: u64 = 2 * WINDOW_MAX;
/// Ways to choose that are remembered; the one that was unused longest makes room.
const WAYS_MAX: usize = 8;
/// Files whose writers are remembered.
const FILES_MAX: usize = 4096;

/// Pieces of a file for which places are wanted.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// The client.
    pub client: ClientId,
    /// The file.
    pub ino: Ino,
    /// Its blocks.
    pub pieces: &'a [UnplacedPiece],
    /// Handle and process that wrote them.
    pub writer: Option<(u64, u32)>,
    /// How places are chosen.
    pub policy: Policy,
}

impl Asked<'_> {
    /// Blocks.
    pub fn blocks(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len).sum()
    }

    fn request(&self, piece: &UnplacedPiece, skip: u64, before: Option<Behind>) -> Request {
        let client = self.client;
        Request {
            ino: self.ino,
            stream: self.writer.map(|(handle, process)| Stream { client, handle, process }),
            block: FileBlock(piece.block.0 + skip),
            len: piece.len - skip,
            before,
            // All places are of the placer's zone, whichever one the client named.
            part: piece.part.map(|part| Part { zone: PagId(0), ..part }),
        }
    }
}

/// A way to choose, and when it was last used.
struct Way {
    policy: Policy,
    preallocator: Box<dyn Preallocator>,
    used: u64,
}

/// Who extends a file, and when somebody last did.
#[derive(Default)]
struct Writers {
    clients: BTreeSet<ClientId>,
    used: u64,
}

/// Free runs in the order of addresses: windows lie where the cursor is, as in paper 002.
struct InOrder<'a> {
    free: &'a mut FreeRuns,
    /// The end of the run that was cut last.
    end: &'a mut u64,
}

impl InOrder<'_> {
    fn cut_run(&mut self, run: Option<PagRun>) -> Option<PagRun> {
        let run = run?;
        *self.end = run.addr.0 + run.len;
        Some(run)
    }
}

impl Space for InOrder<'_> {
    fn free(&self) -> u64 {
        self.free.free()
    }

    fn continue_at(&mut self, pag: PagId, addr: PagBlock, len: u64) -> Option<PagRun> {
        let run = self.free.continue_at(pag, addr, len);
        self.cut_run(run)
    }

    fn cut(&mut self, len: u64) -> Option<PagRun> {
        let run = self.free.cut(len);
        self.cut_run(run)
    }

    fn give_back(&mut self, run: PagRun) {
        self.free.give_back(run);
    }
}

/// See the module.
pub struct Placer {
    free: FreeRuns,
    ways: Vec<Way>,
    files: BTreeMap<Ino, Writers>,
    /// The ranges of blocks that it does not know yet, in the order in which it will.
    unknown: Vec<(u64, u64)>,
    /// The end of the run that was cut last.
    end: u64,
    requests: u64,
}

impl Placer {
    /// A placer that knows no block yet, and will from `cursor` on.
    pub fn new(cursor: u64) -> Placer {
        Placer {
            free: FreeRuns::default(),
            ways: Vec::new(),
            files: BTreeMap::new(),
            unknown: vec![(cursor, u64::MAX), (0, cursor)],
            end: cursor,
            requests: 0,
        }
    }

    /// The range whose first free blocks it should get to know before it serves `blocks`.
    pub fn wants(&self, blocks: u64) -> Option<(u64, u64)> {
        let enough = self.free.free() >= KNOWN_MIN.max(blocks);
        self.unknown.first().copied().filter(|_| !enough)
    }

    /// Gets to know the first free runs of the range that it wanted. If there are `most`, there may
    /// be more.
    pub fn learn(&mut self, runs: &[(PagId, PagBlock, u64)], most: usize) {
        if self.unknown.is_empty() {
            return;
        }
        match runs.last() {
            Some((_, start, len)) if runs.len() >= most => self.unknown[0].0 = start.0 + len,
            _ => drop(self.unknown.remove(0)),
        }
        self.unknown.retain(|(from, to)| from < to);
        for &(pag, addr, len) in runs {
            self.free.put(PagRun { pag, addr, len });
        }
    }

    /// Places for the pieces, in their order and in at most `most` runs: fewer blocks than asked
    /// for if that needs more runs, or if it knows no more.
    pub fn place(&mut self, asked: &Asked<'_>, most: usize) -> Vec<PagRun> {
        self.requests += 1;
        self.note_writer(asked);
        let at = self.way(asked.policy);
        let mut out = Vec::new();
        for piece in asked.pieces {
            let placed = self.place_piece(at, asked, piece);
            let blocks: u64 = placed.iter().map(|run| run.len).sum();
            out.extend(placed);
            if blocks < piece.len || out.len() >= most {
                break;
            }
        }
        for run in out.drain(out.len().min(most)..) {
            self.free.put(run);
        }
        out
    }

    fn place_piece(&mut self, at: usize, asked: &Asked<'_>, piece: &UnplacedPiece) -> Vec<PagRun> {
        let (mut out, mut done) = (Vec::<PagRun>::new(), 0);
        loop {
            let behind = out.last().map(|run| Behind {
                block: FileBlock(piece.block.0 + done),
                pag: run.pag,
                addr: PagBlock(run.addr.0 + run.len),
            });
            let request = asked.request(piece, done, behind.or(piece.before));
            let mut space = InOrder { free: &mut self.free, end: &mut self.end };
            let runs = self.ways[at].preallocator.place(&mut space, &request);
            done += runs.iter().map(|run| run.len).sum::<u64>();
            out.extend(runs);
            // The windows of the other ways hold the last blocks.
            if done >= piece.len || self.reclaim(piece.len - done) == 0 {
                return out;
            }
        }
    }

    /// Shrinks windows until `blocks` are free, or none is left. Returns how many they gave.
    fn reclaim(&mut self, blocks: u64) -> u64 {
        let before = self.held();
        for way in &mut self.ways {
            let missing = blocks.saturating_sub(self.free.free());
            way.preallocator.reclaim(&mut self.free, missing);
        }
        before - self.held()
    }

    /// Takes back places that did not become the client's.
    pub fn give_back(&mut self, runs: Vec<PagRun>) {
        runs.into_iter().for_each(|run| self.free.put(run));
    }

    /// Others have got these blocks. `false`: some of them are in windows, or handed out.
    pub fn granted(&mut self, run: &PagRun) -> bool {
        let (from, to) = (run.addr.0, run.addr.0 + run.len);
        let unknown = |&(first, end): &(u64, u64)| first <= from && to <= end;
        self.unknown.iter().any(unknown) || self.free.remove(run)
    }

    /// The client does not extend the file any more, or not through `handle`.
    pub fn close(&mut self, client: ClientId, ino: Ino, handle: Option<u64>) {
        for way in &mut self.ways {
            way.preallocator.close_streams(&mut self.free, ino, &|stream| {
                stream.client == client && handle.is_none_or(|handle| stream.handle == handle)
            });
        }
        let Some(writers) = self.files.get_mut(&ino).filter(|_| handle.is_none()) else { return };
        writers.clients.remove(&client);
        if writers.clients.is_empty() {
            self.forget(ino);
        }
    }

    /// The client's session has ended.
    pub fn end_client(&mut self, client: ClientId) {
        let of =
            |(&ino, writers): (&Ino, &Writers)| writers.clients.contains(&client).then_some(ino);
        let files: Vec<Ino> = self.files.iter().filter_map(of).collect();
        files.into_iter().for_each(|ino| self.close(client, ino, None));
    }

    /// Blocks in windows.
    pub fn held(&self) -> u64 {
        self.ways.iter().map(|way| way.preallocator.held()).sum()
    }

    /// The end of the run that was cut last: grants to others begin behind it.
    pub fn end(&self) -> u64 {
        self.end
    }

    fn note_writer(&mut self, asked: &Asked<'_>) {
        let writers = self.files.entry(asked.ino).or_default();
        writers.clients.insert(asked.client);
        writers.used = self.requests;
        if self.files.len() > FILES_MAX
            && let Some((&silent, _)) = self.files.iter().min_by_key(|(_, writers)| writers.used)
        {
            self.forget(silent);
        }
    }

    /// Gives up all windows of the file.
    fn forget(&mut self, ino: Ino) {
        self.files.remove(&ino);
        self.ways.iter_mut().for_each(|way| way.preallocator.close(&mut self.free, ino));
    }

    /// The way's place in the list.
    fn way(&mut self, policy: Policy) -> usize {
        if let Some(at) = self.ways.iter().position(|way| way.policy == policy) {
            self.ways[at].used = self.requests;
            return at;
        }
        if self.ways.len() >= WAYS_MAX {
            let ways = self.ways.iter().enumerate();
            let oldest = ways.min_by_key(|(_, way)| way.used).map_or(0, |(at, _)| at);
            self.ways.swap_remove(oldest).preallocator.reclaim(&mut self.free, u64::MAX);
        }
        let preallocator = policy.preallocator();
        self.ways.push(Way { policy, preallocator, used: self.requests });
        self.ways.len() - 1
    }
}

#[cfg(test)]
mod tests;
