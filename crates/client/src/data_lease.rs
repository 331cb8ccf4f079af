//! The DATA rights of a file: I/O guards for requests, and blocking requests while a right drains.
//!
//! The states, the events that change them, and the combinations that are illegal are in
//! [`state`]. This module adds what waits and what concerns others: the file, the kernel's pages,
//! the server. In a debug build [`State::validate`] runs after each event.
//!
//! Invariants:
//! - a right serves requests only when the size and layout that come with it are here: another
//!   reply may name the right before;
//! - a request in service holds an [`IoGuard`]; the client gives the whole right up only when no
//!   guard is left, and a range only when no guard has a block of it;
//! - ranges serve only requests that bypass the kernel's pages. A request that waits for a range
//!   locks no folio. While ranges are held the kernel has no pages of the file, so giving one up
//!   invalidates nothing;
//! - a request that changes the size is never blocked while `DATA_X` is held, nor is the kernel's
//!   write-back: the kernel may hold locks that an invalidation waits for;
//! - while the right drains, all pages that may be up to date are invalidated before the right
//!   goes. An invalidation leaves out the pages of blocked READs: they are locked and not up to
//!   date. Pages that a served READ fills, and pages that a WRITE covers, are noted: they may have
//!   come after an invalidation passed there. A WRITE into a part of a page never makes it up to
//!   date, so it is not noted;
//! - while an invalidation waits for a locked page, requests on its range are served: those that
//!   fill a page once they have been blocked for as long as that may take, WRITEs of a part of a
//!   page at once. Of the others only READs of a page that is being stored into are served. A READ
//!   of a page that was just dropped stays blocked until the end of the invalidation is known. So
//!   the rounds of a drain end, however busy the file is, and however slow its device;
//! - while a handle may map the file writable the kernel has pages under `DATA_X` only. So the
//!   right that page-filling READs need is held as long as there is something to invalidate;
//! - a write-back of pages from before a loss of the session is refused. A page that the kernel has
//!   filled since then was not there before, so its write-back is accepted;
//! - a request never waits for a second right while it holds a guard;
//! - content changes only while the file has no `security.capability`: a client that sets one takes
//!   the right to write first, and a client that changes content afterwards removes it before.

mod requests;
mod state;

use std::cell::{Ref, RefCell};
use std::rc::Rc;

use env::sync::{AsyncMutex, Notify};
use proto::mds::LayoutSlice;
use types::limits::BLOCK_U64;
use types::{Attr, BlockRange, Bug, Duration, HeldRange, Instant, Rights, planted};

pub(crate) use self::state::IDLE_GAP;
use self::state::{State, WholeGrant};
use crate::api::Filling;
use crate::boundary::FileContent;
use crate::data::File;

use crate::pages::{KernelPages, Reading, Storing};
use crate::ranges::{pages_covered, pages_touched};

/// Pause between two requests for a right while the server recalls what it had granted.
const RETRY: Duration = Duration::from_millis(2);

/// The kind of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Service {
    /// A read whose answer fills the kernel's pages.
    PageRead,
    /// A write through the kernel's pages.
    PageWrite,
    /// Any other request that may be blocked.
    Plain,
    /// A change of size; never blocked.
    Resize,
    /// The kernel writes back what was stored into a mapping. Never blocked; refused if the store
    /// was made under rights of a lost session.
    WriteBack,
}

impl Service {
    /// Does the kernel have pages of the range when the request is answered, some of them locked
    /// until then?
    fn locks_pages(self) -> bool {
        matches!(self, Service::PageRead | Service::PageWrite)
    }

    /// The pages that the request makes up to date. A WRITE of a part leaves a page as it is.
    fn filled(self, range: (u64, u64)) -> Option<(u64, u64)> {
        match self {
            Service::PageRead => Some(pages_touched(range)),
            Service::PageWrite => pages_covered(range),
            Service::Plain | Service::Resize | Service::WriteBack => None,
        }
    }

    /// Is the request served while a recall waits for it?
    fn overtakes_recalls(self) -> bool {
        matches!(self, Service::Resize | Service::WriteBack)
    }
}

/// The outcome of a request for rights on content.
struct AcquireOutcome {
    /// The file is not contended: the server grants the whole right, or nothing.
    uncontended: bool,
}

/// The blocks that bytes `[range.0, range.1)` touch.
fn blocks_of(range: (u64, u64)) -> BlockRange {
    BlockRange::new(range.0 / BLOCK_U64, range.1.div_ceil(BLOCK_U64))
}

/// The DATA rights of a file, and its content in use.
pub(crate) struct DataLease {
    pub file: Rc<File>,
    /// What the kernel's pages may hold while WRITEs are in flight.
    pub pages: Rc<KernelPages>,
    /// Guards, drain or rights changed.
    pub changed: Notify,
    /// Held by the recall that drains.
    pub draining: AsyncMutex,
    /// Never borrowed across an await, nor while anything outside it runs.
    state: RefCell<State>,
}

impl DataLease {
    /// Rights of a file, none held yet; `reported_size` is the size that the kernel knows.
    pub fn new(file: Rc<File>, reported_size: u64) -> DataLease {
        DataLease {
            file,
            pages: Rc::new(KernelPages::new(reported_size)),
            changed: Notify::new(),
            draining: AsyncMutex::new(),
            state: RefCell::new(State::new()),
        }
    }

    /// The state, to look at.
    fn state(&self) -> Ref<'_, State> {
        self.state.borrow()
    }

    /// Applies an event to the state.
    fn apply<R>(&self, event: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.borrow_mut();
        let outcome = event(&mut state);
        if cfg!(debug_assertions) {
            state.validate();
        }
        outcome
    }

    /// As [`DataLease::apply`], for destructors, which must not panic: the next event validates.
    fn apply_in_drop<R>(&self, event: impl FnOnce(&mut State) -> R) -> R {
        event(&mut self.state.borrow_mut())
    }

    /// The file relies on no right that is not held.
    fn validate_file(&self) {
        if cfg!(debug_assertions) {
            let (whole, parts) = (self.is_loaded(), self.holds_ranges());
            assert!(
                whole || !self.file.holds(Rights::DATA_S),
                "the file relies on the whole right"
            );
            assert!(parts || !self.file.holds_ranges(), "the file relies on ranges");
        }
    }
}

/// What is held.
impl DataLease {
    /// Is a right on the whole content held, whose layout the file knows?
    pub fn is_loaded(&self) -> bool {
        self.state().is_whole()
    }

    /// Are ranges held?
    pub fn holds_ranges(&self) -> bool {
        self.state().ranges().is_some()
    }

    /// The ranges that are held.
    pub fn ranges(&self) -> Vec<HeldRange> {
        self.state().ranges().map_or_else(Vec::new, |ranges| ranges.iter().collect())
    }

    /// Is a block of `range` held under a range?
    pub fn holds_range_in(&self, range: BlockRange) -> bool {
        self.state().ranges().is_some_and(|ranges| ranges.within(range).next().is_some())
    }

    /// Are all ranges that are held within `range`?
    pub fn holds_ranges_only_in(&self, range: BlockRange) -> bool {
        let state = self.state();
        state.ranges().is_none_or(|ranges| ranges.iter().all(|part| range.contains(part.range)))
    }

    fn covers(&self, part: HeldRange) -> bool {
        self.state().ranges().is_some_and(|ranges| ranges.covers(part))
    }

    /// Is a right to write held?
    fn writes(&self) -> bool {
        self.file.holds(Rights::DATA_X) || self.holds_ranges()
    }

    /// May another client know the file?
    pub fn is_shared(&self) -> bool {
        self.state().is_shared()
    }

    /// Another client may know the file from now on.
    pub fn share(&self) {
        self.apply(State::share);
    }

    /// Rights `data` on the whole content were granted, with `attr` and `layout`. `order`: the
    /// number of the next request.
    pub fn whole_granted(
        &self,
        data: Rights,
        (attr, layout): (&Attr, LayoutSlice),
        order: u64,
        now: Instant,
    ) {
        let layout = (!self.is_loaded()).then_some(layout);
        let grant = match data.contains(Rights::DATA_X) {
            false => WholeGrant::Read,
            true if self.file.holds(Rights::DATA_X) => WholeGrant::WriteAgain,
            true => WholeGrant::Write,
        };
        self.apply(|state| state.whole_granted(grant, order, now));
        self.file.rights_acquired(data, attr, layout);
        self.validate_file();
        self.changed.notify_all();
    }

    /// This client created the file, and holds `DATA_X`. `order`: the number of the next request.
    pub fn created(&self, order: u64) {
        self.apply(|state| state.created(order));
    }

    /// Ranges `parts` were granted, with `attr` and `layout`. `order`: the number of the next
    /// request.
    pub fn ranges_granted(
        &self,
        parts: &[HeldRange],
        (attr, layout): (&Attr, Option<&LayoutSlice>),
        order: u64,
    ) {
        self.apply(|state| state.ranges_granted(parts, order));
        for part in parts {
            self.file.range_acquired(attr, part.range, layout);
        }
        self.validate_file();
        self.changed.notify_all();
    }

    /// A recall that has drained took rights on the whole content; `left` is still held.
    pub fn whole_given_up(&self, left: Rights) {
        self.apply(|state| state.whole_given_up(left));
        self.file.rights_lost(left & Rights::WHOLE);
        self.validate_file();
    }

    /// A recall that has drained took the ranges within `range`.
    pub fn ranges_given_up(&self, range: BlockRange) {
        if self.apply(|state| state.ranges_given_up(range)) {
            self.file.range_lost(range);
        } else {
            self.file.rights_lost(Rights::empty());
        }
        self.validate_file();
    }

    /// The session is lost (`lost`), or the file is gone: nothing is held any more, and everything
    /// dirty is dropped.
    pub fn forget(&self, lost: bool) {
        self.apply(State::forgotten);
        self.file.drop_all(lost);
        self.file.rights_lost(Rights::empty());
        self.validate_file();
    }
}

/// `security.capability`.
impl DataLease {
    /// The reply to request number `order` says whether the file has no `security.capability`.
    /// `acquired`: the request was executed under the right to write that it acquired.
    pub fn capability_reply(&self, absent: bool, order: u64, acquired: bool) {
        self.apply(|state| state.capability_reply(absent, order, acquired));
    }

    /// This client set `security.capability`. `order`: the number of the next request.
    pub fn set_capability(&self, order: u64) {
        self.apply(|state| state.capability_was_set(order));
    }
}

/// The kernel's pages from before a loss of the session.
impl DataLease {
    /// The kernel's pages are of a lost session: their write-back is refused until
    /// [`DataLease::pages_dropped`].
    pub fn pages_are_stale(&self) {
        self.apply(State::pages_are_stale);
    }

    /// A write-back is refused, because a session was lost. Reports an error once for each loss.
    pub fn refuse_write_back(&self) {
        if self.apply(State::write_back_refused) {
            self.file.report_lost_pages();
        }
    }

    /// The kernel has dropped the pages that it had at [`DataLease::pages_are_stale`].
    pub fn pages_dropped(&self) {
        self.apply(State::pages_dropped);
    }
}

/// Requests.
impl DataLease {
    /// Is nothing in service, blocked or dirty?
    pub fn is_idle(&self) -> bool {
        self.state().is_idle() && self.file.is_settled() && !self.file.has_given_up()
    }

    /// The inode enters the queue of closed files, or leaves it (`false`); returns whether it was
    /// there.
    pub fn set_queued(&self, queued: bool) -> bool {
        self.apply(|state| std::mem::replace(&mut state.queued, queued))
    }

    /// Until when a recall lets requests be served before it drains. `None`: no longer.
    pub fn keep_until(&self, now: Instant) -> Option<Instant> {
        self.state().keep_until(now)
    }

    /// Is the first request in service under a right on the whole content?
    pub fn waits_for_first_use(&self) -> bool {
        self.state().waits_for_first_use()
    }

    /// Is a request in service?
    pub fn has_io(&self) -> bool {
        self.state().guards() > 0
    }

    /// Is a request on a block of `range` in service under a range?
    pub fn has_io_in(&self, range: BlockRange) -> bool {
        self.state().has_io_in(range)
    }

    /// May requests under `need` on the whole content be served, given that `need` is held?
    fn is_ready(&self, need: Rights) -> bool {
        self.is_loaded() && self.file.holds(need)
    }

    /// May a request under the whole right be served now? `blocked`: its number, if it is blocked.
    fn admits(&self, service: Service, range: (u64, u64), blocked: Option<u64>) -> bool {
        !self.state().blocks(BlockRange::ALL)
            || service.overtakes_recalls()
            || self.is_passing(service, range, blocked)
    }

    /// May an invalidation be waiting for this request to be answered? One that fills a page has to
    /// wait first: the invalidation may have passed its page just before.
    fn is_passing(&self, service: Service, range: (u64, u64), blocked: Option<u64>) -> bool {
        let waits = service.filled(range).is_some() || planted(Bug::PartWaits);
        let passes = || match blocked {
            _ if !waits => self.state().is_passing(None, range),
            Some(number) => self.state().is_passing(Some(number), range),
            None => false,
        };
        service.locks_pages() && (self.pages.is_stored_into(range) || passes())
    }

    fn guard_whole(self: &Rc<Self>, now: Instant) -> IoGuard {
        self.apply(|state| state.whole_io_begun(now));
        IoGuard { data_lease: self.clone(), part: None, reading: None }
    }

    fn guard_range(self: &Rc<Self>, range: BlockRange) -> IoGuard {
        let number = self.apply(|state| state.range_io_begun(range));
        IoGuard { data_lease: self.clone(), part: Some(number), reading: None }
    }

    /// May a request for rights be sent? There is at most one, and none while a recall drains.
    fn may_acquire(&self) -> bool {
        let state = self.state();
        !state.is_draining() && !state.is_acquiring()
    }

    /// Begins a store into the kernel's pages of `range`. The store may wait for a READ that has
    /// one of them locked: that READ is served, also while the right drains.
    pub fn store(&self, range: (u64, u64)) -> Option<Storing> {
        let storing = self.pages.store(range);
        self.changed.notify_all();
        storing
    }

    /// Bytes were stored into the kernel's pages of `range`: an invalidation may have passed there
    /// before.
    pub fn stored(&self, range: (u64, u64)) {
        self.note(Service::PageRead, range);
    }

    /// Notes which pages a request makes up to date while it is being served.
    fn note(&self, service: Service, range: (u64, u64)) {
        if let Some(filled) = service.filled(range) {
            self.apply(|state| state.filled(filled));
        }
    }
}

/// The drain.
impl DataLease {
    /// Is a recall draining it?
    pub fn is_draining(&self) -> bool {
        self.state().is_draining()
    }

    /// A recall of the whole content begins to drain.
    pub fn begin_drain(&self) {
        self.apply(State::whole_drain_begun);
    }

    /// A recall of `range` begins to drain: requests on a block of it are blocked.
    pub fn begin_range_drain(&self, range: BlockRange) {
        self.apply(|state| state.range_drain_begun(range));
    }

    /// The recall ended: blocked requests acquire the right again.
    pub fn end_drain(&self) {
        self.apply(State::drain_ended);
        self.changed.notify_all();
    }

    /// Blocks new requests from now on.
    pub fn block_new_requests(&self) {
        self.apply(State::new_requests_blocked);
    }

    /// Requests that touch pages of `ranges` are served while others are blocked. Those that fill a
    /// page must have been blocked before this number was the next. Returns the next number.
    pub fn set_passing(&self, ranges: &[(u64, u64)], before: u64) -> u64 {
        self.apply(|state| state.passing_allowed(ranges, before));
        self.changed.notify_all();
        self.next_number()
    }

    /// The number of the next request that is blocked, or a higher one.
    pub fn next_number(&self) -> u64 {
        self.state().next_number()
    }

    /// Takes the pages that were noted, without those of blocked READs. `None`: nothing was noted.
    pub fn take_noted(&self) -> Option<Vec<(u64, u64)>> {
        self.apply(State::take_noted)
    }

    /// Everything but the pages of blocked READs.
    pub fn all_unlocked(&self) -> Vec<(u64, u64)> {
        self.unlocked(&[(0, u64::MAX)])
    }

    /// `ranges` without the pages of blocked READs, which are locked and not up to date.
    pub fn unlocked(&self, ranges: &[(u64, u64)]) -> Vec<(u64, u64)> {
        self.state().unlocked(ranges)
    }
}

/// Held by a request in service while it uses a DATA right.
pub(crate) struct IoGuard {
    data_lease: Rc<DataLease>,
    /// The number of the guard, if it is of a range.
    part: Option<u64>,
    /// The pages of the kernel that the answer fills, if it fills any.
    reading: Option<Reading>,
}

impl IoGuard {
    /// The file.
    pub fn file(&self) -> &Rc<File> {
        &self.data_lease.file
    }

    /// The pages of the kernel that the answer fills, if it fills any.
    pub fn filling(&mut self) -> Option<Filling> {
        self.reading.take().map(Filling::new)
    }

    /// What the kernel's pages of the file may hold.
    pub fn pages(&self) -> &Rc<KernelPages> {
        &self.data_lease.pages
    }
}

impl Drop for IoGuard {
    fn drop(&mut self) {
        if self.data_lease.apply_in_drop(|state| state.io_ended(self.part)) {
            self.data_lease.changed.notify_all();
        }
    }
}

struct Blocked<'a> {
    data_lease: &'a DataLease,
    id: u64,
}

impl<'a> Blocked<'a> {
    fn new(data_lease: &'a DataLease, range: (u64, u64)) -> Blocked<'a> {
        let id = data_lease.apply(|state| state.blocked(range));
        Blocked { data_lease, id }
    }
}

impl Drop for Blocked<'_> {
    fn drop(&mut self) {
        self.data_lease.apply_in_drop(|state| state.unblocked(self.id));
    }
}

struct Acquiring<'a>(&'a DataLease);

impl<'a> Acquiring<'a> {
    fn new(data_lease: &'a DataLease) -> Acquiring<'a> {
        data_lease.apply(State::acquire_begun);
        Acquiring(data_lease)
    }
}

impl Drop for Acquiring<'_> {
    fn drop(&mut self) {
        self.0.apply_in_drop(State::acquire_ended);
        self.0.changed.notify_all();
    }
}
