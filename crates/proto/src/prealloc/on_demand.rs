//! On-demand preallocation: 002 §4.2 Algorithm 1, 004 §III.
//!
//! A stream has a *current* window, out of which it writes, and a *sequential* window behind it, in
//! which the next writes are expected. A write in the sequential window makes it the current one,
//! and a larger one is reserved behind it (*pre_alloc_layout*). A write in neither is a *miss*: the
//! windows move to the write, and shrink.
//!
//! Where the papers leave a choice, or print what cannot be meant:
//! - Algorithm 1 counts a stream's first write as a miss. Then no stream would begin with the first
//!   window; so it is none here.
//! - Algorithm 1 sets up no window after a miss, and §4.2 names the miss as a trigger of one. Here
//!   it is one, unless the stream is turned off.
//! - 002 begins the first window at the write itself, 004 behind it: [`FirstWindow`].
//! - A stream is off with windows of size 0 in 002, of a fixed size in 004: [`WhileOff`].
//! - Neither says when a stream is armed again. Here a sequential run does it, and it also clears
//!   the count of misses, which would otherwise turn off every long stream in the end.
//! - A request may reach over the end of the windows: its head decides what it is.
//! - A write into another stream's window of the same file takes the blocks that wait there for
//!   just this part of the file, and counts as that stream's: threads of one program that share a
//!   sequential file are one stream. 002 only forbids that other streams take such blocks for
//!   *other* parts.
//! - So two streams need no blocks for the same part of a file: a window ends where another
//!   stream's begins, and what is written there goes into that one. Processes that write small
//!   pieces side by side, as BTIO does, share a few windows then: the pieces lie side by side.
//!
//! The first blocks of a file get a place without a window: most files are written once, and small
//! files are to lie side by side.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use types::limits::GRANT_BLOCKS;
use types::{Ino, PagBlock, PagId};

use super::window::Window;
use super::{Placed, Preallocator, Request, Space, Stream, plain, room};
use crate::mds::PagRun;

#[cfg(test)]
mod tests;

/// A stream is idle when the others have made so many requests each since its last.
const IDLE_ROUNDS: u64 = 8;
/// Streams that are remembered; the one that was silent longest makes room.
const STREAMS_MAX: usize = 4096;

/// Where a stream's first window begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FirstWindow {
    /// At the write itself, which takes its first blocks (002 Algorithm 1).
    AtWrite,
    /// Behind it (004 §III.B).
    BehindWrite,
}

/// What a stream gets that is turned off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WhileOff {
    /// No window (002).
    NoWindow,
    /// Windows of so many blocks (004).
    Fixed(u64),
}

/// Parameters of on-demand preallocation; sizes in blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OdOptions {
    /// A window is so many times as large as the write, or as the window before; at least 2.
    pub scale: u64,
    /// Where the first window begins.
    pub first: FirstWindow,
    /// Largest window.
    pub window_max: u64,
    /// A stream with more misses than this is turned off.
    pub misses_max: u32,
    /// What it gets then.
    pub while_off: WhileOff,
    /// So many sequential requests in a row arm it again, and clear its misses.
    pub rearm: u32,
    /// Do the first blocks of an empty file get a window?
    pub for_empty_files: bool,
}

impl Default for OdOptions {
    fn default() -> OdOptions {
        OdOptions {
            scale: 4,
            first: FirstWindow::AtWrite,
            window_max: GRANT_BLOCKS,
            misses_max: 8,
            while_off: WhileOff::NoWindow,
            rearm: 4,
            for_empty_files: false,
        }
    }
}

/// One stream's windows and history.
#[derive(Default)]
struct StreamState {
    current: Option<Window>,
    sequential: Option<Window>,
    /// `sw_size`: length of the next window.
    size: u64,
    misses: u32,
    off: bool,
    /// One past the last block written.
    next: u64,
    /// Sequential requests in a row.
    in_row: u32,
    /// [`OnDemand::requests`] at its last one.
    used: u64,
}

impl StreamState {
    fn windows(&mut self) -> impl Iterator<Item = &mut Window> {
        self.current.iter_mut().chain(&mut self.sequential)
    }

    fn held(&self) -> u64 {
        self.current.iter().chain(&self.sequential).map(Window::held).sum()
    }

    fn covers(&self, at: u64) -> bool {
        self.current.iter().chain(&self.sequential).any(|window| window.covers(at))
    }

    /// Is a block for file block `at` in a window?
    fn holds(&self, at: u64) -> bool {
        self.current.iter().chain(&self.sequential).any(|window| window.holds(at))
    }

    fn give_back(&mut self, space: &mut dyn Space) {
        let windows = [self.current.take(), self.sequential.take()];
        windows.into_iter().flatten().for_each(|window| window.give_back(space));
    }
}

/// The keys of all streams of a file.
fn streams_of(ino: Ino) -> RangeInclusive<(Ino, Stream)> {
    (ino, Stream::FIRST)..=(ino, Stream::LAST)
}

/// See [`super::Policy::OnDemand`].
pub(super) struct OnDemand {
    options: OdOptions,
    streams: BTreeMap<(Ino, Stream), StreamState>,
    /// Blocks in the windows of `streams`.
    held: u64,
    /// Requests of all streams so far.
    requests: u64,
}

impl OnDemand {
    pub fn new(options: OdOptions) -> OnDemand {
        let options = OdOptions {
            scale: options.scale.max(2),
            window_max: options.window_max.max(1),
            ..options
        };
        OnDemand { options, streams: BTreeMap::new(), held: 0, requests: 0 }
    }

    /// Length of a window after one of `size`.
    fn larger(&self, size: u64) -> u64 {
        size.max(1).saturating_mul(self.options.scale).min(self.options.window_max)
    }

    /// Reserves a window of up to `want` blocks for the file blocks from `from` on; `now` of them
    /// are handed out at once, and do not count against the limit. It ends at `end` at the latest.
    fn reserve(
        &mut self,
        space: &mut dyn Space,
        (from, want, now, end): (u64, u64, u64, u64),
        behind: Option<(PagId, PagBlock)>,
        own: u64,
    ) -> Option<Window> {
        let want = want.min(end.saturating_sub(from));
        if room(space, self.held + own) + now < want {
            self.retire_idle(space);
        }
        let len = want.min(room(space, self.held + own) + now);
        if len == 0 {
            return None;
        }
        // A rest of free space that is much too short would end the window at once.
        let enough = len / self.options.scale;
        let next = behind.and_then(|(pag, addr)| space.continue_at(pag, addr, len));
        let run = match next {
            Some(run) if run.len >= enough.max(1) => run,
            Some(short) => {
                space.give_back(short);
                space.cut_apart(len)?
            }
            None => space.cut_apart(len)?,
        };
        Some(Window::new(from, run))
    }

    /// Where a window ends at the latest that holds the blocks in front of `from`: where the part
    /// ends, or another stream's window begins.
    fn window_end(&self, request: &Request, from: u64) -> u64 {
        let others = self.streams.range(streams_of(request.ino)).map(|(_, state)| state);
        let windows = others.flat_map(|state| state.current.iter().chain(&state.sequential));
        let ahead = windows.filter(|window| window.to > from && window.held() > 0);
        let next = ahead.map(|window| window.from.max(from)).min();
        next.unwrap_or(u64::MAX).min(request.window_end())
    }

    /// Gives back the windows of streams that have been silent for long.
    fn retire_idle(&mut self, space: &mut dyn Space) {
        let rounds = IDLE_ROUNDS * (self.streams.len() as u64 + 1);
        let Some(since) = self.requests.checked_sub(rounds) else { return };
        for stream in self.streams.values_mut().filter(|stream| stream.used < since) {
            self.held -= stream.held();
            stream.give_back(space);
        }
    }

    /// The windows of a stream that begins at the request: the first, or the first after a miss.
    fn begin(
        &mut self,
        space: &mut dyn Space,
        stream: &mut StreamState,
        request: &Request,
        placed: &mut Placed,
    ) {
        let (from, len) = (request.block.0, request.len);
        let lead = match self.options.first {
            FirstWindow::BehindWrite => len,
            FirstWindow::AtWrite => 0,
        };
        let want = (lead + stream.size).max(len);
        let window = self.reserve(
            space,
            (from, want, len, self.window_end(request, from + len)),
            request.adjacent(),
            0,
        );
        let Some(mut window) = window else { return };
        while placed.blocks < len
            && let Some(run) = window.take(from + placed.blocks, len - placed.blocks)
        {
            placed.push(run);
        }
        window.begin_at((from + lead).min(window.to).max(window.from));
        stream.sequential = Some(window);
    }

    /// Places a request in the windows or just behind them, and moves these on.
    fn advance(
        &mut self,
        space: &mut dyn Space,
        stream: &mut StreamState,
        request: &Request,
        placed: &mut Placed,
    ) {
        let mut grown = false;
        while placed.blocks < request.len {
            let at = request.block.0 + placed.blocks;
            let left = request.len - placed.blocks;
            if let Some(window) = stream.current.as_mut().filter(|window| window.covers(at)) {
                if let Some(run) = window.take(at, left) {
                    placed.push(run);
                    continue;
                }
                // These blocks were handed out before, and are not the file's any more.
                let (before, len) = (placed.blocks, left.min(window.hole_end(at) - at));
                plain::place(space, None, len, placed);
                if placed.blocks < before + len {
                    return;
                }
                continue;
            }
            let behind = placed.end().or_else(|| request.adjacent());
            if stream.sequential.as_ref().is_some_and(|window| window.covers(at)) {
                let before = std::mem::replace(&mut stream.current, stream.sequential.take());
                before.into_iter().for_each(|window| window.give_back(space));
                let current = stream.current.as_ref().expect("it was the sequential window");
                let (from, end, own) = (current.to, current.end(), current.held());
                stream.size = self.larger(stream.size);
                grown = true;
                let ahead = (from, stream.size, 0, self.window_end(request, from));
                stream.sequential = self.reserve(space, ahead, Some(end), own);
                continue;
            }
            // The stream goes on where its windows end.
            stream.give_back(space);
            if !std::mem::replace(&mut grown, true) {
                stream.size = self.larger(stream.size);
            }
            let ahead = (at, stream.size.max(left), left, self.window_end(request, at + left));
            stream.current = self.reserve(space, ahead, behind, 0);
            if stream.current.is_none() {
                return;
            }
        }
    }

    /// A stream that is turned off.
    fn serve_off(
        &mut self,
        space: &mut dyn Space,
        stream: &mut StreamState,
        request: &Request,
        placed: &mut Placed,
    ) {
        let WhileOff::Fixed(size) = self.options.while_off else { return };
        stream.size = size.min(self.options.window_max);
        if stream.covers(request.block.0) {
            while placed.blocks < request.len
                && let Some(run) = stream.windows().find_map(|window| {
                    window.take(request.block.0 + placed.blocks, request.len - placed.blocks)
                })
            {
                placed.push(run);
            }
            return;
        }
        stream.give_back(space);
        self.begin(space, stream, request, placed);
    }

    fn serve(
        &mut self,
        space: &mut dyn Space,
        stream: &mut StreamState,
        request: &Request,
        placed: &mut Placed,
    ) {
        let first = stream.used == 0;
        let follows = !first && request.block.0 == stream.next;
        stream.used = self.requests;
        stream.next = request.end();
        stream.in_row = if follows { stream.in_row.saturating_add(1) } else { 0 };
        if first {
            stream.size = self.larger(request.len);
            return self.begin(space, stream, request, placed);
        }
        if stream.in_row >= self.options.rearm {
            stream.misses = 0;
            if std::mem::take(&mut stream.off) {
                stream.give_back(space);
                stream.size = self.larger(request.len);
                return self.begin(space, stream, request, placed);
            }
        }
        if stream.off {
            return self.serve_off(space, stream, request, placed);
        }
        if follows || stream.covers(request.block.0) {
            return self.advance(space, stream, request, placed);
        }
        stream.misses = stream.misses.saturating_add(1);
        stream.size /= self.options.scale;
        stream.give_back(space);
        if stream.misses > self.options.misses_max {
            stream.off = true;
            return self.serve_off(space, stream, request, placed);
        }
        self.begin(space, stream, request, placed);
    }

    /// The stream that serves the request: another one of the file if that has blocks for just
    /// these in a window, and the writer has not.
    fn owner(&self, request: &Request, stream: Stream) -> (Ino, Stream) {
        let (key, at) = ((request.ino, stream), request.block.0);
        let own = self.streams.get(&key);
        if own.is_some_and(|state| state.covers(at)) {
            return key;
        }
        let mut others = self.streams.range(streams_of(request.ino));
        others.find(|(_, state)| state.holds(at)).map_or(key, |(other, _)| *other)
    }

    /// The state of the request's stream, taken out of the table.
    fn take_stream(&mut self, space: &mut dyn Space, key: (Ino, Stream)) -> StreamState {
        if let Some(stream) = self.streams.remove(&key) {
            self.held -= stream.held();
            return stream;
        }
        if self.streams.len() >= STREAMS_MAX
            && let Some((&oldest, _)) = self.streams.iter().min_by_key(|(_, stream)| stream.used)
        {
            self.forget_streams(space, oldest.0, |stream| *stream == oldest.1);
        }
        StreamState::default()
    }

    /// Forgets the streams of a file that are `of` some kind, and gives back their windows.
    fn forget_streams(&mut self, space: &mut dyn Space, ino: Ino, of: impl Fn(&Stream) -> bool) {
        for (_, mut stream) in self.streams.extract_if(streams_of(ino), |(_, stream), _| of(stream))
        {
            self.held -= stream.held();
            stream.give_back(space);
        }
    }
}

impl Preallocator for OnDemand {
    fn place(&mut self, space: &mut dyn Space, request: &Request) -> Vec<PagRun> {
        let mut placed = Placed::default();
        let is_first = request.block.0 == 0 && request.before.is_none();
        let stream = request.stream.filter(|_| !is_first || self.options.for_empty_files);
        if let Some(stream) = stream.filter(|_| request.len > 0) {
            let key = self.owner(request, stream);
            self.requests += 1;
            let mut state = self.take_stream(space, key);
            self.serve(space, &mut state, request, &mut placed);
            self.held += state.held();
            self.streams.insert(key, state);
        }
        // What no window has taken.
        plain::place(space, request.adjacent(), request.len - placed.blocks, &mut placed);
        while placed.blocks < request.len && self.held > 0 {
            let left = request.len - placed.blocks;
            self.reclaim(space, left);
            plain::place(space, request.adjacent(), left, &mut placed);
        }
        self.trim(space);
        placed.runs
    }

    fn close(&mut self, space: &mut dyn Space, ino: Ino) {
        self.forget_streams(space, ino, |_| true);
    }

    fn close_streams(&mut self, space: &mut dyn Space, ino: Ino, of: &dyn Fn(&Stream) -> bool) {
        self.forget_streams(space, ino, of);
    }

    fn reclaim(&mut self, space: &mut dyn Space, mut blocks: u64) {
        type Which = fn(&mut StreamState) -> &mut Option<Window>;
        let which: [Which; 2] = [|stream| &mut stream.sequential, |stream| &mut stream.current];
        for which in which {
            while blocks > 0 {
                let held =
                    |stream: &mut StreamState| which(stream).as_ref().map_or(0, Window::held);
                let largest = self.streams.values_mut().map(|stream| (held(stream), stream));
                let Some((1.., stream)) = largest.max_by_key(|(held, _)| *held) else { break };
                let Some(window) = which(stream) else { break };
                let given = window.shrink(space, blocks);
                let length = window.to - window.from;
                stream.size = stream.size.min(length.max(1));
                self.held -= given;
                blocks -= given;
            }
        }
    }

    fn take_zone(&mut self, pag: PagId) -> Vec<PagRun> {
        let mut out = Vec::new();
        for stream in self.streams.values_mut() {
            for window in [&mut stream.current, &mut stream.sequential] {
                window.iter_mut().for_each(|window| window.take_zone(pag, &mut out));
                window.take_if(|window| window.held() == 0);
            }
        }
        self.held -= out.iter().map(|run| run.len).sum::<u64>();
        out
    }

    fn held(&self) -> u64 {
        self.held
    }
}
