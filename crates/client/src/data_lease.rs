//! The DATA rights of a file: I/O guards for requests, and blocking requests while a right drains.
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
//! - while an invalidation waits for a locked page, blocked requests on its range are served, and
//!   no others (except for READs of a page that is being stored into). So the rounds of a drain
//!   end, however busy the file is;
//! - while a handle may map the file writable the kernel has pages under `DATA_X` only. So the
//!   right that page-filling READs need is held as long as there is something to invalidate;
//! - a write-back of pages from before a loss of the session is refused. A page that the kernel has
//!   filled since then was not there before, so its write-back is accepted;
//! - a request never waits for a second right while it holds a guard;
//! - content changes only while the file has no `security.capability`: a client that sets one takes
//!   the right to write first, and a client that changes content afterwards removes it before.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use env::sync::{AsyncMutex, Notify};
use proto::mds::{Op, OpReply};
use proto::ranges::HeldRanges;
use proto::wire::Bytes;
use types::limits::{BLOCK_U64, RANGE_BLOCKS_MAX, RANGES_AHEAD_MAX, RANGES_MAX};
use types::{
    Ahead, BlockRange, Bug, Duration, Fault, FileBlock, HeldRange, Instant, Rights, planted,
};

use crate::api::{Caller, Filling};
use crate::core::Core;
use crate::data::File;
use crate::inode::{CAPABILITY, Inode, Xattrs};
use crate::pages::{KernelPages, Reading, Storing};
use crate::ranges::{append, overlap, pages_covered, pages_touched, subtract};
use crate::rpc::{Call, result};

/// Pause between two requests for a right while the server recalls what it had granted.
const RETRY: Duration = Duration::from_millis(2);

/// How long a client whose processes use a file without a pause keeps its right on the content,
/// although another client waits for it.
const MIN_HOLD: Duration = Duration::from_millis(5);
/// A longer time without a request is a pause.
const IDLE_GAP: Duration = Duration::from_micros(200);

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

/// How many ranges are requested ahead after the first, second, … repetition of a stride.
const AHEAD_STEPS: [u8; 5] = [0, 1, 3, 7, RANGES_AHEAD_MAX as u8 - 1];

impl Service {
    /// Does the kernel have pages of the range when the request is answered, some of them locked
    /// until then?
    fn fills_pages(self) -> bool {
        matches!(self, Service::PageRead | Service::PageWrite)
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

struct Drain {
    /// The range to be given up.
    range: BlockRange,
    blocking: bool,
    /// Requests that touch pages of these ranges are served nevertheless.
    passing: Vec<(u64, u64)>,
    /// Pages that may have become up to date after an invalidation passed there.
    noted: Vec<(u64, u64)>,
}

/// The DATA rights of a file, and its content in use.
pub(crate) struct DataLease {
    pub file: Rc<File>,
    /// The file knows its layout under the right that is held.
    loaded: Cell<bool>,
    /// Another client may know the file. False only for a file that this client created and has
    /// held `DATA_X` on ever since, without a glimpse: a client that finds the file has its size
    /// glimpsed.
    pub shared: Cell<bool>,
    /// Under `DATA_P`: the ranges that are held.
    pub ranges: RefCell<HeldRanges>,
    /// Where the last requested range began, its distance from the one before, and how often that
    /// distance was repeated.
    last_range: Cell<(u64, u64, u8)>,
    /// The server did not know what lies behind the size in the last block.
    tail_unknown: Cell<bool>,
    /// Under a right to write: the file is known to have no `security.capability`. A client that
    /// sets one takes that right first.
    no_capability: Cell<bool>,
    /// Number of the first request made under the right to write.
    writes_from: Cell<u64>,
    /// Number of the first request made since the server acknowledged that this client set the
    /// attribute.
    capability_set: Cell<u64>,
    guards: Cell<u32>,
    /// When a right on the whole content was granted, and when a request was last served under it.
    granted_at: Cell<Instant>,
    served_at: Cell<Instant>,
    /// Guards of ranges, by number.
    range_guards: RefCell<BTreeMap<u64, BlockRange>>,
    drain: RefCell<Option<Drain>>,
    /// Blocked requests, by number, and the pages of each that are certainly locked and not up to
    /// date.
    blocked: RefCell<BTreeMap<u64, (u64, u64)>>,
    next_id: Cell<u64>,
    acquiring: Cell<bool>,
    /// How many losses of a session the kernel has yet to drop its pages for.
    stale_pages: Cell<u32>,
    /// No write-back of these pages was refused yet.
    stale_unreported: Cell<bool>,
    /// Bytes whose pages the kernel has filled since the last loss, until it has dropped the pages
    /// from before.
    refilled: RefCell<Vec<(u64, u64)>>,
    /// What the kernel's pages may hold while WRITEs are in flight.
    pub pages: Rc<KernelPages>,
    /// Guards, drain or rights changed.
    pub changed: Notify,
    /// Held by the recall that drains.
    pub draining: AsyncMutex,
    /// The inode is in the queue of closed files.
    pub queued: Cell<bool>,
}

impl DataLease {
    /// Rights of a file, none held yet; `reported_size` is the size that the kernel knows.
    pub fn new(file: Rc<File>, reported_size: u64) -> DataLease {
        DataLease {
            file,
            pages: Rc::new(KernelPages::new(reported_size)),
            loaded: Cell::new(false),
            shared: Cell::new(true),
            ranges: RefCell::default(),
            last_range: Cell::default(),
            tail_unknown: Cell::new(false),
            no_capability: Cell::new(false),
            writes_from: Cell::new(0),
            capability_set: Cell::new(0),
            guards: Cell::new(0),
            granted_at: Cell::default(),
            served_at: Cell::default(),
            range_guards: RefCell::default(),
            drain: RefCell::new(None),
            blocked: RefCell::new(BTreeMap::new()),
            next_id: Cell::new(0),
            acquiring: Cell::new(false),
            stale_pages: Cell::new(0),
            stale_unreported: Cell::new(false),
            refilled: RefCell::default(),
            changed: Notify::new(),
            draining: AsyncMutex::new(),
            queued: Cell::new(false),
        }
    }

    /// A right on the whole content was granted.
    pub fn whole_granted(&self, now: Instant) {
        self.granted_at.set(now);
        self.set_loaded(true);
    }

    /// Until when a recall lets requests be served before it drains: [`MIN_HOLD`] after the grant,
    /// as long as the requests follow each other within [`IDLE_GAP`]. `None`: no longer.
    pub fn keep_until(&self, now: Instant) -> Option<Instant> {
        let busy = self.guards.get() > 0 || !self.blocked.borrow().is_empty();
        let pause = if busy { now + IDLE_GAP } else { self.served_at.get() + IDLE_GAP };
        let until = pause.min(self.granted_at.get() + MIN_HOLD);
        (now < until).then_some(until)
    }

    /// Does the file know its layout?
    pub fn is_loaded(&self) -> bool {
        self.loaded.get()
    }

    /// May requests under `need` on the whole content be served, given that `need` is held?
    fn is_ready(&self, need: Rights) -> bool {
        self.loaded.get() && self.file.holds(need)
    }

    /// Sets whether the file knows its layout.
    pub fn set_loaded(&self, loaded: bool) {
        self.loaded.set(loaded);
    }

    /// A right to write was granted; `order`: the number of the next request. `is_new`: the file
    /// was just created.
    pub fn write_granted(&self, order: u64, is_new: bool) {
        self.no_capability.set(is_new);
        self.writes_from.set(order);
    }

    /// The right to write was given up.
    pub fn write_given_up(&self) {
        self.no_capability.set(false);
    }

    /// The reply to request number `order` says whether the file has no `security.capability`.
    /// `acquired`: the request was executed under the right to write that it acquired.
    pub fn capability_reply(&self, absent: bool, order: u64, acquired: bool) {
        let current =
            (acquired || order >= self.writes_from.get()) && order >= self.capability_set.get();
        self.no_capability.set(absent && current && self.writes());
    }

    /// This client set `security.capability`. `order`: the number of the next request.
    pub fn set_capability(&self, order: u64) {
        self.no_capability.set(false);
        self.capability_set.set(order);
    }

    /// Is a right to write held?
    fn writes(&self) -> bool {
        self.file.holds(Rights::DATA_X) || self.holds_ranges()
    }

    /// Nothing is held any more.
    pub fn forget(&self) {
        self.write_given_up();
        self.loaded.set(false);
        self.ranges.borrow_mut().clear();
    }

    /// The kernel's pages are of a lost session: their write-back is refused until
    /// [`DataLease::pages_dropped`].
    pub fn pages_are_stale(&self) {
        self.stale_pages.set(self.stale_pages.get() + 1);
        self.stale_unreported.set(true);
        self.refilled.take();
    }

    /// Would a write-back of bytes `range` come from pages of a lost session?
    fn is_stale(&self, range: (u64, u64)) -> bool {
        self.stale_pages.get() > 0 && !subtract(&[range], &self.refilled.borrow()).is_empty()
    }

    /// The kernel fills pages of bytes `range`, which it did not have.
    fn refill(&self, range: (u64, u64)) {
        if self.stale_pages.get() > 0 {
            append(&mut self.refilled.borrow_mut(), range);
        }
    }

    /// A write-back is refused, because a session was lost. Reports an error once for each loss.
    pub fn refuse_write_back(&self) {
        if self.stale_unreported.take() || self.stale_pages.get() == 0 {
            self.file.report_lost_pages();
        }
    }

    /// The kernel has dropped the pages that it had at [`DataLease::pages_are_stale`].
    pub fn pages_dropped(&self) {
        self.stale_pages.set(self.stale_pages.get() - 1);
        if self.stale_pages.get() == 0 {
            self.refilled.take();
        }
    }

    /// Are ranges held?
    pub fn holds_ranges(&self) -> bool {
        !self.ranges.borrow().is_empty()
    }

    /// Is a recall draining it?
    pub fn is_draining(&self) -> bool {
        self.drain.borrow().is_some()
    }

    /// Is nothing in service, blocked or dirty?
    pub fn is_idle(&self) -> bool {
        self.guards.get() == 0
            && self.stale_pages.get() == 0
            && !self.acquiring.get()
            && !self.is_draining()
            && self.blocked.borrow().is_empty()
            && self.file.is_settled()
    }

    /// The number of requests in service.
    pub fn io_guards(&self) -> u32 {
        self.guards.get()
    }

    /// Is a request on a block of `range` in service under a range?
    pub fn has_io_in(&self, range: BlockRange) -> bool {
        self.range_guards.borrow().values().any(|used| used.overlaps(range))
    }

    /// A recall of `range` begins to drain.
    pub fn begin_drain(&self, range: BlockRange) {
        *self.drain.borrow_mut() =
            Some(Drain { range, blocking: false, passing: Vec::new(), noted: Vec::new() });
    }

    /// A range is being requested. What will be requested next, if the stride continues?
    fn ahead(&self, part: BlockRange) -> Ahead {
        let (last, stride, times) = self.last_range.get();
        let from = part.from.0;
        let given = stride.saturating_mul(u64::from(AHEAD_STEPS[usize::from(times)]) + 1);
        if stride == 0 || last.checked_add(given) != Some(from) {
            self.last_range.set((from, from.saturating_sub(last), 0));
            return Ahead::default();
        }
        let times = (times + 1).min(AHEAD_STEPS.len() as u8 - 1);
        self.last_range.set((from, stride, times));
        Ahead { stride, count: AHEAD_STEPS[usize::from(times)] }
    }

    fn blocks(&self, range: BlockRange) -> bool {
        let drain = self.drain.borrow();
        drain.as_ref().is_some_and(|drain| drain.blocking && drain.range.overlaps(range))
    }

    /// May an invalidation be waiting for this request to be answered?
    fn is_passing(&self, service: Service, range: (u64, u64)) -> bool {
        let drain = self.drain.borrow();
        let Some(drain) = drain.as_ref().filter(|_| service.fills_pages()) else { return false };
        self.pages.is_stored_into(range)
            || drain.passing.iter().any(|&passing| overlap(passing, pages_touched(range)))
    }

    fn guard_whole(self: &Rc<Self>, now: Instant) -> IoGuard {
        self.served_at.set(now);
        self.guards.set(self.guards.get() + 1);
        IoGuard { data_lease: self.clone(), part: None, reading: None }
    }

    fn guard_range(self: &Rc<Self>, range: BlockRange) -> IoGuard {
        self.guards.set(self.guards.get() + 1);
        let number = self.next_id.replace(self.next_id.get() + 1);
        self.range_guards.borrow_mut().insert(number, range);
        IoGuard { data_lease: self.clone(), part: Some(number), reading: None }
    }

    /// The recall ended: blocked requests acquire the right again.
    pub fn end_drain(&self) {
        *self.drain.borrow_mut() = None;
        self.changed.notify_all();
    }

    /// Blocks new requests from now on.
    pub fn block_new_requests(&self) {
        if let Some(drain) = self.drain.borrow_mut().as_mut() {
            drain.blocking = true;
        }
    }

    /// Requests that touch pages of `ranges` are served while others are blocked.
    pub fn set_passing(&self, ranges: &[(u64, u64)]) {
        if let Some(drain) = self.drain.borrow_mut().as_mut() {
            drain.passing = ranges.to_vec();
            drain.blocking &= !planted(Bug::DrainServesAll);
        }
        self.changed.notify_all();
    }

    /// Takes the pages that were noted, without those of blocked READs. `None`: nothing was noted.
    pub fn take_noted(&self) -> Option<Vec<(u64, u64)>> {
        let mut drain = self.drain.borrow_mut();
        let noted = std::mem::take(&mut drain.as_mut()?.noted);
        if noted.is_empty() {
            return None;
        }
        Some(self.unlocked(&noted))
    }

    /// Everything but the pages of blocked READs.
    pub fn all_unlocked(&self) -> Vec<(u64, u64)> {
        self.unlocked(&[(0, u64::MAX)])
    }

    /// `ranges` without the pages of blocked READs, which are locked and not up to date. The page
    /// that a blocked WRITE changes in part may be up to date, with other bytes that become stale,
    /// so it is not left out.
    pub fn unlocked(&self, ranges: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let blocked: Vec<_> = self.blocked.borrow().values().copied().collect();
        subtract(ranges, &blocked)
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
        let filled = match service {
            Service::PageRead => Some(pages_touched(range)),
            Service::PageWrite if planted(Bug::DrainServesAll) => Some(pages_touched(range)),
            Service::PageWrite => pages_covered(range),
            Service::Plain | Service::Resize | Service::WriteBack => None,
        };
        if let Some(filled) = filled
            && let Some(drain) = self.drain.borrow_mut().as_mut()
        {
            append(&mut drain.noted, filled);
        }
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
        let guards = self.data_lease.guards.get() - 1;
        self.data_lease.guards.set(guards);
        if let Some(number) = self.part {
            self.data_lease.range_guards.borrow_mut().remove(&number);
        }
        if guards == 0 || self.part.is_some() && self.data_lease.is_draining() {
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
        let id = data_lease.next_id.get();
        data_lease.next_id.set(id + 1);
        data_lease.blocked.borrow_mut().insert(id, range);
        Blocked { data_lease, id }
    }
}

impl Drop for Blocked<'_> {
    fn drop(&mut self) {
        self.data_lease.blocked.borrow_mut().remove(&self.id);
    }
}

struct Acquiring<'a>(&'a DataLease);

impl Drop for Acquiring<'_> {
    fn drop(&mut self) {
        self.0.acquiring.set(false);
        self.0.changed.notify_all();
    }
}

impl Core {
    /// The kernel drops all pages that bytes `[from, to)` touch. May wait until they are unlocked.
    pub async fn inval_pages(&self, inode: &Inode, (from, to): (u64, u64)) {
        let range = vec![(from, to)];
        let _dropping = inode.data_lease().map(|data| data.pages.dropping(range));
        let len = if to == u64::MAX { 0 } else { to - from };
        self.kernel.inval_pages_outside_recall(inode.ino, from, len).await;
    }

    /// The DATA rights of a regular file, created if there are none.
    pub fn data_lease(&self, inode: &Inode) -> Rc<DataLease> {
        if let Some(data_lease) = inode.data_lease() {
            return data_lease;
        }
        let file = File::new(self.data(), inode.ino, &inode.server_attr());
        let data_lease = Rc::new(DataLease::new(file, inode.server_attr().size));
        inode.set_data_lease(Some(data_lease.clone()));
        data_lease
    }

    /// Waits until a request on bytes `range` may be served under `need` (`DATA_S` or `DATA_X`) on
    /// the whole content.
    pub async fn acquire_io(
        &self,
        inode: &Rc<Inode>,
        need: Rights,
        service: Service,
        range: (u64, u64),
    ) -> Result<IoGuard, Fault> {
        self.acquire_guard(inode, need, service, range, true).await
    }

    /// As [`Core::acquire_io`], for a request that bypasses the kernel's pages: a range that covers
    /// `range` is enough.
    pub async fn acquire_range_io(
        &self,
        inode: &Rc<Inode>,
        need: Rights,
        range: (u64, u64),
    ) -> Result<IoGuard, Fault> {
        let large = blocks_of(range).len() > RANGE_BLOCKS_MAX / 2;
        self.acquire_guard(inode, need, Service::Plain, range, large).await
    }

    /// For a request that changes content: as [`Core::acquire_io`] under `DATA_X` if `whole`, else
    /// as [`Core::acquire_range_io`]. `security.capability` is gone when this ends. The kernel
    /// removes it only where it knows of it, and it may not know of one that another client set.
    ///
    /// The removal happens while the guard is held. The server executes it at once for a client
    /// that holds the right, so neither a recall nor a folio that the kernel has locked can block
    /// it.
    pub async fn acquire_write_io(
        &self,
        inode: &Rc<Inode>,
        service: Service,
        whole: bool,
        range: (u64, u64),
    ) -> Result<IoGuard, Fault> {
        let guard = if whole {
            self.acquire_io(inode, Rights::DATA_X, service, range).await?
        } else {
            self.acquire_range_io(inode, Rights::DATA_X, range).await?
        };
        let data_lease = &guard.data_lease;
        while !data_lease.no_capability.get() {
            if inode.xattrs().excludes(CAPABILITY) {
                data_lease.no_capability.set(true);
                break;
            }
            self.remove_capability(inode).await?;
            if !data_lease.writes() {
                // The session was lost, and the right with it.
                return Err(Fault::Evicted);
            }
        }
        Ok(guard)
    }

    /// Removes `security.capability` while a guard of a right to write is held.
    async fn remove_capability(&self, inode: &Inode) -> Result<(), Fault> {
        let name = Bytes(CAPABILITY.to_vec());
        let op = Op::RemoveXattr { ino: inode.ino, name };
        let reply = self.session.call(Call::reserved(vec![op])).await?;
        match result(&reply, 0) {
            Ok(_) | Err(Fault::NoAttribute) => Ok(()),
            Err(fault) => Err(fault),
        }
    }

    async fn acquire_guard(
        &self,
        inode: &Rc<Inode>,
        need: Rights,
        service: Service,
        range: (u64, u64),
        mut whole: bool,
    ) -> Result<IoGuard, Fault> {
        let data_lease = self.data_lease(inode);
        let writes = need.contains(Rights::DATA_X);
        let part = HeldRange { range: blocks_of(range), exclusive: writes };
        let locked = if service == Service::PageRead { pages_touched(range) } else { (0, 0) };
        let mut blocked = None;
        loop {
            self.wait_for_lease().await?;
            if inode.is_lost() {
                return Err(Fault::Stale);
            }
            let changed = data_lease.changed.notified();
            let refused = service == Service::WriteBack && data_lease.is_stale(range);
            if refused && !planted(Bug::StaleWriteBack) {
                // Others may have written the file since. A recall may wait for this answer.
                data_lease.refuse_write_back();
                return Err(Fault::Io);
            }
            if data_lease.is_ready(need) && inode.holds(need) {
                let served = !data_lease.blocks(BlockRange::ALL)
                    || service.overtakes_recalls()
                    || data_lease.is_passing(service, range);
                if served {
                    data_lease.note(service, range);
                    let now = self.env.now();
                    let mut guard = data_lease.guard_whole(now);
                    if service == Service::PageRead {
                        inode.set_pages(true);
                        data_lease.refill(range);
                        guard.reading = Some(data_lease.pages.read(range, now));
                    }
                    drop(blocked);
                    if writes && data_lease.tail_unknown.take() {
                        guard.file().zero_tail().await?;
                    }
                    return Ok(guard);
                }
            } else if !whole && data_lease.ranges.borrow().covers(part) {
                // Another client may have written beyond the size that is known here.
                if !writes && range.1 > data_lease.file.size() {
                    whole = true;
                    continue;
                }
                if !data_lease.blocks(part.range) {
                    drop(blocked);
                    return Ok(data_lease.guard_range(part.range));
                }
            } else if !data_lease.is_draining() && !data_lease.acquiring.get() {
                drop(changed);
                // Others may ask for the file before the server answers: its folios are locked
                // meanwhile.
                blocked.get_or_insert_with(|| Blocked::new(&data_lease, locked));
                let part = (!whole).then_some(part.range);
                whole |= self.acquire(inode, &data_lease, need, part).await?.uncontended;
                continue;
            }
            blocked.get_or_insert_with(|| Blocked::new(&data_lease, locked));
            changed.await;
        }
    }

    /// Acquires `OPEN`, and with it `need` on the whole content unless other clients also write the
    /// file. True if several clients write it at this time. While the server recalls rights from
    /// this client it grants nothing; then this asks again. A file that counts as open keeps what
    /// was granted, however often others ask for it, so this ends.
    pub async fn acquire_open(&self, inode: &Rc<Inode>, need: Rights) -> Result<bool, Fault> {
        let data_lease = self.data_lease(inode);
        let writes = need.contains(Rights::DATA_X);
        let part = writes.then(BlockRange::default);
        loop {
            if inode.is_lost() {
                return Err(Fault::Stale);
            }
            let changed = data_lease.changed.notified();
            let has = !writes || inode.holds(need) || data_lease.holds_ranges();
            if inode.holds(Rights::OPEN) && has {
                return Ok(writes && !inode.holds(need));
            }
            if !data_lease.acquiring.get() && !data_lease.is_draining() {
                drop(changed);
                let outcome = self.acquire(inode, &data_lease, need, part).await?;
                if inode.holds(Rights::OPEN) {
                    return Ok(writes && !outcome.uncontended && !inode.holds(need));
                }
                self.env.sleep(RETRY).await;
                continue;
            }
            changed.await;
        }
    }

    /// Acquires rights. At most one request at a time for an inode: a DATA right and the layout
    /// must come from the same reply. Without `part` the ranges that are held are given up for the
    /// whole.
    async fn acquire(
        &self,
        inode: &Rc<Inode>,
        data_lease: &Rc<DataLease>,
        need: Rights,
        part: Option<BlockRange>,
    ) -> Result<AcquireOutcome, Fault> {
        data_lease.acquiring.set(true);
        let _acquiring = Acquiring(data_lease);
        // A client that holds the whole right to read has pages, and gives that right up first.
        let part = part.filter(|_| !inode.holds(Rights::DATA_S));
        let many = data_lease.ranges.borrow().len() + RANGES_AHEAD_MAX >= RANGES_MAX;
        let part = part.filter(|_| !many);
        if part.is_none() {
            self.give_up_ranges(inode, data_lease).await;
        }
        if inode.is_lost() {
            return Err(Fault::Stale);
        }
        let ino = inode.ino;
        let rights = need | Rights::ATTR | Rights::OPEN;
        let ahead = part.map_or_else(Ahead::default, |part| data_lease.ahead(part));
        let from = FileBlock(0);
        let mut ops = vec![Op::Acquire { ino, rights, from, range: part, ahead }];
        // The list of attributes says, before the first write, whether there is a
        // `security.capability`.
        let first = !data_lease.holds_ranges();
        if first && need.contains(Rights::DATA_X) && inode.xattrs() == Xattrs::Unknown {
            ops.push(Op::ListXattr { ino, want: Rights::ATTR });
        }
        let reply = self.session.call(Call::ops(&Caller::default(), ops)).await?;
        match result(&reply, 0)? {
            OpReply::Acquired { uncontended: calm, tail_unknown, .. } => {
                data_lease.tail_unknown.set(*tail_unknown);
                Ok(AcquireOutcome { uncontended: *calm })
            }
            _ => Err(Fault::Protocol),
        }
    }
}
