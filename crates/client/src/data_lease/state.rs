//! The state machine of a file's DATA rights: what is held, what is in service, what drains.
//!
//! It waits for nothing and calls nobody. Every change is a method of [`State`], and
//! [`State::validate`] holds after each. In a debug build an illegal change panics.
//!
//! **What is held** ([`Held`]):
//!
//! | event | `Nothing` | `Whole` | `Ranges` |
//! |---|---|---|---|
//! | [`State::whole_granted`] | `Whole` | `Whole` | `Whole` |
//! | [`State::ranges_granted`] | `Ranges` | `Ranges` | `Ranges` |
//! | [`State::whole_given_up`], `DATA_S` stays | `Nothing` | `Whole` | illegal |
//! | [`State::whole_given_up`], nothing stays | `Nothing` | `Nothing` | illegal |
//! | [`State::ranges_given_up`], some stay | `Nothing` | illegal | `Ranges` |
//! | [`State::ranges_given_up`], none stays | `Nothing` | illegal | `Nothing` |
//! | [`State::forgotten`]: session or file is gone | `Nothing` | `Nothing` | `Nothing` |
//!
//! **What a recall drains** ([`Drain`]); the recall holds `DataLease::draining` meanwhile:
//!
//! | event | `Idle` | `Whole`, `Round::First` | `Whole`, `Round::Blocking` | `Ranges` |
//! |---|---|---|---|---|
//! | [`State::whole_drain_begun`] | `Whole`, `First` | illegal | illegal | illegal |
//! | [`State::range_drain_begun`] | `Ranges` | illegal | illegal | illegal |
//! | [`State::new_requests_blocked`] | illegal | `Blocking` | `Blocking` | illegal |
//! | [`State::whole_given_up`] | illegal | illegal | `Blocking` | illegal |
//! | [`State::ranges_given_up`] | illegal | illegal | illegal | `Ranges` |
//! | [`State::drain_ended`] | illegal | illegal | `Idle` | `Idle` |
//!
//! **Combinations.** `Nothing` may drain: the session was lost meanwhile, or a reply named the
//! right before the one that brings its layout.
//!
//! | held | `Idle` | drains `Whole` | drains `Ranges` |
//! |---|---|---|---|
//! | `Nothing` | yes | yes | yes |
//! | `Whole` | yes | yes | illegal |
//! | `Ranges` | yes | illegal | yes |
//!
//! **Pages of a lost session** ([`StalePages`]): [`State::pages_are_stale`] leads to `Kept` and
//! counts one loss more. [`State::pages_dropped`] counts one less, and leads to `Dropped` with the
//! last.
//!
//! Every other fact is independent of these: any value is legal in any state.

use std::collections::BTreeMap;

use proto::ranges::HeldRanges;
use types::limits::RANGES_AHEAD_MAX;
use types::{Ahead, BlockRange, Duration, HeldRange, Instant, Rights};

use crate::ranges::{Bytes, append, overlap, pages_touched, subtract};

/// How long a client whose processes use a file without a pause keeps its right on the content,
/// although another client waits for it.
const MIN_HOLD: Duration = Duration::from_millis(5);
/// A longer time without a request is a pause.
pub const IDLE_GAP: Duration = Duration::from_micros(200);

/// How many ranges are requested ahead after the first, second, … repetition of a stride.
const AHEAD_STEPS: [u8; 5] = [0, 1, 3, 7, RANGES_AHEAD_MAX as u8 - 1];

/// What is known of `security.capability` since a right to write was granted.
#[derive(Clone, Copy, Debug)]
struct Capability {
    /// The file is known to have none. A client that sets one takes the right to write first.
    absent: bool,
    /// Number of the first request made under the right.
    since: u64,
}

/// The right on content under which requests may be served: its size and layout are here.
#[derive(Debug)]
enum Held {
    /// None.
    Nothing,
    /// The whole content.
    Whole {
        /// `None`: the right is one to read.
        capability: Option<Capability>,
    },
    /// `DATA_P`.
    Ranges {
        /// At least one.
        ranges: HeldRanges,
        capability: Capability,
    },
}

/// A right on the whole content that a reply grants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WholeGrant {
    /// To read.
    Read,
    /// To write; it was not held before.
    Write,
    /// To write; it was held before.
    WriteAgain,
}

/// The requests that a recall of the whole content lets in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Round {
    /// Every request: the kernel drops its pages for the first time.
    First,
    /// Only requests that never block, and those that an invalidation may wait for.
    Blocking,
}

/// What a recall drains.
#[derive(Debug)]
enum Drain {
    /// Nothing.
    Idle,
    /// The whole content.
    Whole {
        round: Round,
        /// Requests that touch pages of these ranges are served nevertheless. Those that fill a
        /// page must have been blocked with a number below this.
        passing: (Vec<Bytes>, u64),
        /// Pages that may have become up to date after an invalidation passed there.
        noted: Vec<Bytes>,
    },
    /// The ranges within these blocks; new requests there are blocked from the start.
    Ranges(BlockRange),
}

/// What the kernel has of pages from before a loss of the session.
#[derive(Debug)]
enum StalePages {
    /// Nothing.
    Dropped,
    /// It has not dropped all of them.
    Kept {
        /// For so many losses.
        losses: u32,
        /// A write-back of these pages was refused since the last loss, and an error reported.
        reported: bool,
        /// Bytes whose pages the kernel has filled since the last loss.
        refilled: Vec<Bytes>,
    },
}

/// The ranges that were requested last.
#[derive(Clone, Copy, Default, Debug)]
struct Stride {
    /// Where the last one began.
    last: u64,
    /// Its distance from the one before.
    distance: u64,
    /// How often that distance was repeated.
    repeated: u8,
}

/// See the module.
#[derive(Debug)]
pub(super) struct State {
    held: Held,
    drain: Drain,
    stale_pages: StalePages,
    /// Requests in service under the whole right.
    whole_guards: u32,
    /// Requests in service under a range, by number.
    range_guards: BTreeMap<u64, BlockRange>,
    /// Blocked requests, by number, and the pages of each that are certainly locked and not up to
    /// date.
    blocked: BTreeMap<u64, Bytes>,
    next_id: u64,
    /// A request for rights on the content is on its way.
    acquiring: bool,
    /// Another client may know the file. False only for a file that this client created and has
    /// held `DATA_X` on ever since, without a glimpse: a client that finds the file has its size
    /// glimpsed.
    shared: bool,
    /// The server did not know what lies behind the size in the last block when it last granted
    /// rights, and nobody has zeroed it since.
    tail_unknown: bool,
    /// Number of the first request made since the server acknowledged that this client set
    /// `security.capability`.
    capability_set: u64,
    stride: Stride,
    /// When a right on the whole content was granted, and when a request was last served under it.
    granted_at: Instant,
    served_at: Instant,
    /// A request under it has ended since.
    has_been_used: bool,
    /// The inode is in the queue of closed files.
    pub queued: bool,
}

impl State {
    /// Nothing is held, and the file is shared.
    pub fn new() -> State {
        State {
            held: Held::Nothing,
            drain: Drain::Idle,
            stale_pages: StalePages::Dropped,
            whole_guards: 0,
            range_guards: BTreeMap::new(),
            blocked: BTreeMap::new(),
            next_id: 0,
            acquiring: false,
            shared: true,
            tail_unknown: false,
            capability_set: 0,
            stride: Stride::default(),
            granted_at: Instant::default(),
            served_at: Instant::default(),
            has_been_used: false,
            queued: false,
        }
    }

    fn number(&mut self) -> u64 {
        let number = self.next_id;
        self.next_id += 1;
        number
    }
}

/// What is held.
impl State {
    /// Is a right on the whole content held, with its layout?
    pub fn is_whole(&self) -> bool {
        matches!(self.held, Held::Whole { .. })
    }

    /// The ranges that are held, if any.
    pub fn ranges(&self) -> Option<&HeldRanges> {
        match &self.held {
            Held::Ranges { ranges, .. } => Some(ranges),
            Held::Nothing | Held::Whole { .. } => None,
        }
    }

    /// A right on the whole content was granted. `order`: the number of the next request.
    pub fn whole_granted(&mut self, grant: WholeGrant, order: u64, now: Instant) {
        let before = match self.held {
            Held::Whole { capability } => capability,
            Held::Nothing | Held::Ranges { .. } => None,
        };
        let unknown = Capability { absent: false, since: order };
        let capability = match grant {
            WholeGrant::Read => None,
            WholeGrant::Write => Some(unknown),
            WholeGrant::WriteAgain => Some(before.unwrap_or(unknown)),
        };
        self.held = Held::Whole { capability };
        self.granted_at = now;
        self.has_been_used = false;
    }

    /// This client created the file: no other client knows it. `order`: as above.
    pub fn created(&mut self, order: u64) {
        self.shared = false;
        if let Some(capability) = self.capability() {
            *capability = Capability { absent: true, since: order };
        }
    }

    /// Ranges were granted. `order`: as above.
    pub fn ranges_granted(&mut self, parts: &[HeldRange], order: u64) {
        self.shared = true;
        if self.ranges().is_none() {
            let capability = Capability { absent: false, since: order };
            self.held = Held::Ranges { ranges: HeldRanges::default(), capability };
        }
        if let Held::Ranges { ranges, .. } = &mut self.held {
            for &part in parts {
                ranges.insert(part);
            }
            if ranges.is_empty() {
                self.held = Held::Nothing;
            }
        }
    }

    /// A recall took rights on the whole content; `left` is still held.
    pub fn whole_given_up(&mut self, left: Rights) {
        debug_assert!(self.is_whole_drained(), "not drained: {self:?}");
        if !left.contains(Rights::DATA_S) {
            self.held = Held::Nothing;
        } else if let Held::Whole { capability } = &mut self.held
            && !left.contains(Rights::DATA_X)
        {
            *capability = None;
        }
    }

    /// A recall took the ranges within `range`. True if others are still held.
    pub fn ranges_given_up(&mut self, range: BlockRange) -> bool {
        debug_assert!(self.is_range_drained(range), "not drained: {self:?}");
        if let Held::Ranges { ranges, .. } = &mut self.held {
            ranges.remove(range);
            if !ranges.is_empty() {
                return true;
            }
        }
        self.held = Held::Nothing;
        false
    }

    /// The session is lost, or the file is gone: nothing is held any more.
    pub fn forgotten(&mut self) {
        self.held = Held::Nothing;
    }

    /// See [`State::shared`].
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// Another client may know the file from now on.
    pub fn share(&mut self) {
        self.shared = true;
    }
}

/// `security.capability`, and the bytes behind the size.
impl State {
    fn capability(&mut self) -> Option<&mut Capability> {
        match &mut self.held {
            Held::Nothing => None,
            Held::Whole { capability } => capability.as_mut(),
            Held::Ranges { capability, .. } => Some(capability),
        }
    }

    /// Under a right to write: is the file known to have no `security.capability`?
    pub fn lacks_capability(&self) -> bool {
        match &self.held {
            Held::Nothing => false,
            Held::Whole { capability } => capability.is_some_and(|known| known.absent),
            Held::Ranges { capability, .. } => capability.absent,
        }
    }

    /// The file has no `security.capability`, as its other attributes say.
    pub fn capability_is_absent(&mut self) {
        if let Some(capability) = self.capability() {
            capability.absent = true;
        }
    }

    /// The reply to request number `order` says whether the file has no `security.capability`.
    /// `acquired`: the request was executed under the right to write that it acquired.
    pub fn capability_reply(&mut self, absent: bool, order: u64, acquired: bool) {
        let set = self.capability_set;
        if let Some(capability) = self.capability() {
            let current = (acquired || order >= capability.since) && order >= set;
            capability.absent = absent && current;
        }
    }

    /// This client set `security.capability`. `order`: the number of the next request.
    pub fn capability_was_set(&mut self, order: u64) {
        if let Some(capability) = self.capability() {
            capability.absent = false;
        }
        self.capability_set = order;
    }

    /// The reply to a request for rights says whether the bytes behind the size are unknown.
    pub fn tail_reply(&mut self, unknown: bool) {
        self.tail_unknown = unknown;
    }

    /// Must this writer zero the bytes behind the size? Only the first one that asks must.
    pub fn take_tail_unknown(&mut self) -> bool {
        std::mem::take(&mut self.tail_unknown)
    }
}

/// Requests in service, blocked requests, and the request for rights.
impl State {
    /// A request is served under the whole right.
    pub fn whole_io_begun(&mut self, now: Instant) {
        debug_assert!(self.is_whole(), "nothing to serve from: {self:?}");
        self.served_at = now;
        self.whole_guards += 1;
    }

    fn serves_range(&self, range: BlockRange) -> bool {
        let shared = HeldRange { range, exclusive: false };
        !self.blocks(range) && self.ranges().is_some_and(|held| held.covers(shared))
    }

    /// A request on `range` is served under ranges; returns its number.
    pub fn range_io_begun(&mut self, range: BlockRange) -> u64 {
        debug_assert!(self.serves_range(range), "nothing to serve from: {self:?}");
        let number = self.number();
        self.range_guards.insert(number, range);
        number
    }

    /// A request ended; `part`: its number, if it used a range. True if a drain may wait for that.
    pub fn io_ended(&mut self, part: Option<u64>) -> bool {
        let ends_wait = part.is_none() && self.waits_for_first_use();
        match part {
            Some(number) => _ = self.range_guards.remove(&number),
            None => (self.whole_guards, self.has_been_used) = (self.whole_guards - 1, true),
        }
        self.guards() == 0 || part.is_some() && self.is_draining() || ends_wait
    }

    /// The number of requests in service.
    pub fn guards(&self) -> usize {
        self.whole_guards as usize + self.range_guards.len()
    }

    /// Is a request on a block of `range` in service under a range?
    pub fn has_io_in(&self, range: BlockRange) -> bool {
        self.range_guards.values().any(|used| used.overlaps(range))
    }

    /// A request is blocked whose pages of `locked` are locked and not up to date; returns its
    /// number.
    pub fn blocked(&mut self, locked: Bytes) -> u64 {
        let number = self.number();
        self.blocked.insert(number, locked);
        number
    }

    /// The request is not blocked any more.
    pub fn unblocked(&mut self, number: u64) {
        self.blocked.remove(&number);
    }

    /// `ranges` without the pages of blocked READs, which are locked and not up to date. The page
    /// that a blocked WRITE changes in part may be up to date, with other bytes that become stale,
    /// so it is not left out.
    pub fn unlocked(&self, ranges: &[Bytes]) -> Vec<Bytes> {
        let blocked: Vec<_> = self.blocked.values().copied().collect();
        subtract(ranges, &blocked)
    }

    /// Is a request for rights on its way?
    pub fn is_acquiring(&self) -> bool {
        self.acquiring
    }

    /// A request for rights begins: the only one.
    pub fn acquire_begun(&mut self) {
        debug_assert!(!self.acquiring && !self.is_draining(), "{self:?}");
        self.acquiring = true;
    }

    /// The request for rights was answered.
    pub fn acquire_ended(&mut self) {
        self.acquiring = false;
    }

    /// The range that begins at block `from` is being requested. What will be requested next, if
    /// the stride continues?
    pub fn ahead(&mut self, from: u64) -> Ahead {
        let Stride { last, distance, repeated } = self.stride;
        let given = distance.saturating_mul(u64::from(AHEAD_STEPS[usize::from(repeated)]) + 1);
        if distance == 0 || last.checked_add(given) != Some(from) {
            let distance = from.saturating_sub(last);
            self.stride = Stride { last: from, distance, repeated: 0 };
            return Ahead::default();
        }
        let repeated = (repeated + 1).min(AHEAD_STEPS.len() as u8 - 1);
        self.stride = Stride { last: from, distance, repeated };
        Ahead { stride: distance, count: AHEAD_STEPS[usize::from(repeated)] }
    }

    /// Is nothing in service, blocked, requested or drained, and has the kernel no stale page?
    pub fn is_idle(&self) -> bool {
        self.guards() == 0
            && matches!(self.stale_pages, StalePages::Dropped)
            && !self.acquiring
            && !self.is_draining()
            && self.blocked.is_empty()
    }

    /// Is the first request under the whole right in service? A recall lets it end before it
    /// drains: where storage takes longer than [`MIN_HOLD`], no process would get on otherwise.
    pub fn waits_for_first_use(&self) -> bool {
        self.whole_guards > 0 && !self.has_been_used
    }

    /// Until when a recall lets requests be served before it drains: [`MIN_HOLD`] after the grant,
    /// as long as the requests follow each other within [`IDLE_GAP`]. `None`: no longer.
    pub fn keep_until(&self, now: Instant) -> Option<Instant> {
        let busy = self.guards() > 0 || !self.blocked.is_empty();
        let pause = if busy { now + IDLE_GAP } else { self.served_at + IDLE_GAP };
        let until = pause.min(self.granted_at + MIN_HOLD);
        (now < until).then_some(until)
    }
}

/// The drain.
impl State {
    /// Is a recall draining?
    pub fn is_draining(&self) -> bool {
        !matches!(self.drain, Drain::Idle)
    }

    /// Is a request on a block of `range` blocked, unless something else lets it pass?
    pub fn blocks(&self, range: BlockRange) -> bool {
        match &self.drain {
            Drain::Idle | Drain::Whole { round: Round::First, .. } => false,
            Drain::Whole { round: Round::Blocking, .. } => BlockRange::ALL.overlaps(range),
            Drain::Ranges(drained) => drained.overlaps(range),
        }
    }

    /// May an invalidation wait for a request that touches pages of `range`? `number`: that of a
    /// blocked request that fills a page, `None` if it fills none.
    pub fn is_passing(&self, number: Option<u64>, range: Bytes) -> bool {
        match &self.drain {
            Drain::Whole { passing: (ranges, before), .. } => {
                let touched = pages_touched(range);
                let waited = number.is_none_or(|number| number < *before);
                waited && ranges.iter().any(|&passing| overlap(passing, touched))
            }
            Drain::Idle | Drain::Ranges(_) => false,
        }
    }

    /// The number of the next request that is blocked, or a higher one.
    pub fn next_number(&self) -> u64 {
        self.next_id
    }

    /// May the right on the whole content be given up?
    fn is_whole_drained(&self) -> bool {
        let drained = match &self.drain {
            Drain::Whole { round, noted, .. } => *round == Round::Blocking && noted.is_empty(),
            Drain::Idle | Drain::Ranges(_) => false,
        };
        drained && self.guards() == 0
    }

    /// May the ranges within `range` be given up?
    fn is_range_drained(&self, range: BlockRange) -> bool {
        let drains = matches!(self.drain, Drain::Ranges(drained) if drained == range);
        drains && !self.has_io_in(range)
    }

    /// A recall of the whole content begins to drain. Other clients know the file from now on.
    pub fn whole_drain_begun(&mut self) {
        debug_assert!(!self.is_draining(), "one recall drains at a time: {self:?}");
        let (passing, noted) = ((Vec::new(), 0), Vec::new());
        self.drain = Drain::Whole { round: Round::First, passing, noted };
        self.shared = true;
    }

    /// A recall of `range` begins to drain, and blocks new requests there.
    pub fn range_drain_begun(&mut self, range: BlockRange) {
        debug_assert!(!self.is_draining(), "one recall drains at a time: {self:?}");
        self.drain = Drain::Ranges(range);
    }

    /// New requests are blocked from now on.
    pub fn new_requests_blocked(&mut self) {
        match &mut self.drain {
            Drain::Whole { round, .. } => *round = Round::Blocking,
            Drain::Idle | Drain::Ranges(_) => debug_assert!(false, "nothing to block: {self:?}"),
        }
    }

    /// Requests that touch pages of `ranges` are served while others are blocked. Those that fill a
    /// page must have been blocked with a number below `before`.
    pub fn passing_allowed(&mut self, ranges: &[Bytes], before: u64) {
        if let Drain::Whole { passing, .. } = &mut self.drain {
            *passing = (ranges.to_vec(), before);
        }
    }

    /// A request makes pages of `filled` up to date while it is being served.
    pub fn filled(&mut self, filled: Bytes) {
        if let Drain::Whole { noted, .. } = &mut self.drain {
            append(noted, filled);
        }
    }

    /// Takes the pages that were noted, without those of blocked READs. `None`: nothing was noted.
    pub fn take_noted(&mut self) -> Option<Vec<Bytes>> {
        let Drain::Whole { noted, .. } = &mut self.drain else { return None };
        let noted = std::mem::take(noted);
        (!noted.is_empty()).then(|| self.unlocked(&noted))
    }

    /// The recall has drained.
    pub fn drain_ended(&mut self) {
        debug_assert!(self.is_draining(), "{self:?}");
        self.drain = Drain::Idle;
    }
}

/// Pages of a lost session.
impl State {
    /// The kernel's pages are of a lost session: their write-back is refused until
    /// [`State::pages_dropped`].
    pub fn pages_are_stale(&mut self) {
        let before = match self.stale_pages {
            StalePages::Dropped => 0,
            StalePages::Kept { losses, .. } => losses,
        };
        let (reported, refilled) = (false, Vec::new());
        self.stale_pages = StalePages::Kept { losses: before + 1, reported, refilled };
    }

    /// The kernel has dropped the pages that it had at [`State::pages_are_stale`].
    pub fn pages_dropped(&mut self) {
        match &mut self.stale_pages {
            StalePages::Kept { losses, .. } if *losses > 1 => *losses -= 1,
            StalePages::Kept { .. } => self.stale_pages = StalePages::Dropped,
            StalePages::Dropped => debug_assert!(false, "no such pages: {self:?}"),
        }
    }

    /// Would a write-back of bytes `range` come from pages of a lost session?
    pub fn is_stale(&self, range: Bytes) -> bool {
        match &self.stale_pages {
            StalePages::Dropped => false,
            StalePages::Kept { refilled, .. } => !subtract(&[range], refilled).is_empty(),
        }
    }

    /// The kernel fills pages of bytes `range`, which it did not have.
    pub fn refilled(&mut self, range: Bytes) {
        if let StalePages::Kept { refilled, .. } = &mut self.stale_pages {
            append(refilled, range);
        }
    }

    /// A write-back is refused. Is an error to be reported for it? Once for each loss, while the
    /// kernel has pages from before.
    pub fn write_back_refused(&mut self) -> bool {
        match &mut self.stale_pages {
            StalePages::Dropped => true,
            StalePages::Kept { reported, .. } => !std::mem::replace(reported, true),
        }
    }
}

impl State {
    /// Panics if an invariant does not hold.
    pub fn validate(&self) {
        if let Held::Ranges { ranges, .. } = &self.held {
            assert!(!ranges.is_empty(), "ranges without a block: {self:?}");
            assert!(
                self.shared,
                "only a file that several clients use is held in ranges: {self:?}"
            );
            ranges.validate();
        }
        match (&self.held, &self.drain) {
            (Held::Whole { .. }, Drain::Ranges(_)) | (Held::Ranges { .. }, Drain::Whole { .. }) => {
                panic!("what drains is not what is held: {self:?}")
            }
            _ => {}
        }
        if let StalePages::Kept { losses, .. } = self.stale_pages {
            assert!(losses > 0, "stale pages without a loss: {self:?}");
        }
        let numbers = self.range_guards.keys().chain(self.blocked.keys());
        assert!(numbers.max().is_none_or(|&last| last < self.next_id), "{self:?}");
    }
}

#[cfg(test)]
mod tests;
