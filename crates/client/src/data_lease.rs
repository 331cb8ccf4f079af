//! Requests on the content of a file: uses of a DATA right, parking while it drains.
//!
//! Invariants:
//! - a right serves requests only when what came with it (size, layout) is here: another reply may
//!   tell of it before;
//! - a request in service holds a [`Use`]; the right is given back only at zero uses, a part only
//!   when no use has a block of it;
//! - parts serve only what bypasses the kernel's pages: whoever waits for a part locks no folio,
//!   and while parts are held the kernel has no pages of the file, so giving one up tells it
//!   nothing;
//! - a request that changes the size is never parked while `DATA_X` is held, nor is the
//!   kernel's write-back: the kernel may hold locks that an invalidation waits for;
//! - while the right drains, all pages that may be up to date are invalidated before the right
//!   goes. An invalidation leaves out the pages of waiting READs: these are locked and not up to
//!   date. Pages that a READ that is served fills, and those that a WRITE covers, are noted: they
//!   may have come after an invalidation passed there. A WRITE into a part of a page never makes it
//!   up to date, so it is not noted;
//! - an invalidation that waits for a locked page has the waiting requests on its range served, and
//!   no others (but READs of a page that is being stored into): so the rounds of a drain end,
//!   however busy the file is;
//! - while a handle may map the file writable the kernel has pages under `DATA_X` only, so what
//!   page-filling READs need is held as long as there is something to invalidate;
//! - what the kernel writes back of pages from before a loss is refused; a page that it has had
//!   filled since was not there before, so what is stored into that is written back;
//! - a request never waits for a second right while it holds a use;
//! - content changes only while the file has no `security.capability`: whoever sets one takes the
//!   right to write first, and whoever then changes content removes it before.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use env::sync::{AsyncMutex, Notify};
use proto::mds::{InoRef, Op, OpReply};
use proto::parts::Parts;
use proto::wire::Bytes;
use types::limits::{BLOCK_U64, PART_BLOCKS_MAX, PARTS_AHEAD_MAX, PARTS_MAX};
use types::{Ahead, BlockRange, Bug, Duration, Fault, FileBlock, Instant, Part, Rights, planted};

use crate::api::Caller;
use crate::core::Core;
use crate::data::File;
use crate::inode::{CAPABILITY, Inode, Xattrs};
use crate::pages::{KernelPages, Storing};
use crate::ranges::{append, overlap, pages_covered, pages_touched, subtract};
use crate::rpc::{Call, result};

/// Between two requests for a right while the server asks for what it had granted.
const RETRY: Duration = Duration::from_millis(2);

/// A client whose processes use a file without a pause keeps its right on the content for so long,
/// although another client waits for it.
const MIN_HOLD: Duration = Duration::from_millis(5);
/// A longer time without a request is a pause.
const IDLE_GAP: Duration = Duration::from_micros(200);

/// What kind of request wants to be served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Service {
    /// A read whose answer fills the kernel's pages.
    PageRead,
    /// A write through the kernel's pages.
    PageWrite,
    /// Any other that may be parked.
    Plain,
    /// Never parked: change of size.
    Resize,
    /// The kernel writes back what was stored into a mapping. Never parked, and refused if that was
    /// done under rights of a session that is lost.
    WriteBack,
}

/// Parts that are asked for ahead: the first time that a stride is repeated, the second …
const AHEAD_STEPS: [u8; 5] = [0, 1, 3, 7, PARTS_AHEAD_MAX as u8 - 1];

impl Service {
    /// Does the kernel have pages of the range when it is answered, of which it keeps some locked
    /// until then?
    fn fills_pages(self) -> bool {
        matches!(self, Service::PageRead | Service::PageWrite)
    }

    /// Is it served while a recall waits for it?
    fn overtakes_recalls(self) -> bool {
        matches!(self, Service::Resize | Service::WriteBack)
    }
}

/// What became of a request for rights on content.
struct AcquireOutcome {
    /// The whole right is to be had, or nothing.
    uncontended: bool,
}

/// The blocks that bytes `[range.0, range.1)` touch.
fn blocks_of(range: (u64, u64)) -> BlockRange {
    BlockRange::new(range.0 / BLOCK_U64, range.1.div_ceil(BLOCK_U64))
}

struct Drain {
    /// What goes.
    range: BlockRange,
    blocking: bool,
    /// Requests that touch pages of these ranges are served all the same.
    passing: Vec<(u64, u64)>,
    /// Pages that may have become up to date after an invalidation passed there.
    noted: Vec<(u64, u64)>,
}

/// The content of a file in use.
pub(crate) struct DataLease {
    pub file: Rc<File>,
    /// The file knows its layout under the right that is held.
    loaded: Cell<bool>,
    /// Another client may know the file. Not so for a file that this client made and has held
    /// `DATA_X` on ever since, without a glimpse: whoever finds it has its size glimpsed.
    pub shared: Cell<bool>,
    /// Under `DATA_P`: what is held.
    pub ranges: RefCell<Parts>,
    /// Where a part was asked for last, how far from the one before, and how often so.
    last_range: Cell<(u64, u64, u8)>,
    /// The server did not know what lies behind the size.
    tail_unknown: Cell<bool>,
    /// Under a right to write: the file is known to have no `security.capability`. Whoever sets one
    /// takes that right first.
    no_capability: Cell<bool>,
    /// Number of the first request made under the right to write.
    writes_from: Cell<u64>,
    /// Number of the first request made since this client was told that it set the attribute.
    capability_set: Cell<u64>,
    guards: Cell<u32>,
    /// When a right on the whole content came, and when a request was served under it last.
    granted_at: Cell<Instant>,
    served_at: Cell<Instant>,
    /// Uses of parts, by number.
    range_guards: RefCell<BTreeMap<u64, BlockRange>>,
    drain: RefCell<Option<Drain>>,
    /// Waiting requests, by number, and the pages of each that are locked and not up to date for
    /// certain.
    blocked: RefCell<BTreeMap<u64, (u64, u64)>>,
    next_id: Cell<u64>,
    acquiring: Cell<bool>,
    /// So many times the kernel has yet to drop its pages of lost sessions.
    stale_pages: Cell<u32>,
    /// Of what was to be written back of them nothing was refused yet.
    stale_unreported: Cell<bool>,
    /// Bytes whose pages the kernel has had filled since the last loss, until it has dropped those
    /// from before.
    refilled: RefCell<Vec<(u64, u64)>>,
    /// What the kernel's pages may hold while WRITEs are on their way.
    pub pages: Rc<KernelPages>,
    /// Uses, drain or rights changed.
    pub changed: Notify,
    /// Held by the recall that drains.
    pub draining: AsyncMutex,
    /// Waits in the queue of contents to be dropped.
    pub queued: Cell<bool>,
}

impl DataLease {
    /// Content that holds nothing yet, of a file whose size the kernel was told last.
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

    /// A right on the whole content came.
    pub fn whole_granted(&self, now: Instant) {
        self.granted_at.set(now);
        self.set_loaded(true);
    }

    /// Until when a recall lets requests be served before it drains: [`LEAST_USE`] after the right
    /// came, as long as they follow each other within [`PAUSE`]. `None`: no longer.
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

    /// May requests under `need` on the whole content be served, `need` being held?
    fn is_ready(&self, need: Rights) -> bool {
        self.loaded.get() && self.file.holds(need)
    }

    /// A DATA right came or went.
    pub fn set_loaded(&self, loaded: bool) {
        self.loaded.set(loaded);
    }

    /// A right to write came; `order`: the number of the next request. `plain`: the file is new.
    pub fn write_granted(&self, order: u64, is_new: bool) {
        self.no_capability.set(is_new);
        self.writes_from.set(order);
    }

    /// The right to write went.
    pub fn write_given_up(&self) {
        self.no_capability.set(false);
    }

    /// The answer to request number `order` tells whether there is no `security.capability`.
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

    /// The kernel's pages are of a session that is lost: nothing of them is written back any more.
    /// Until [`Content::pages_dropped`].
    pub fn pages_are_stale(&self) {
        self.stale_pages.set(self.stale_pages.get() + 1);
        self.stale_unreported.set(true);
        self.refilled.take();
    }

    /// Would what the kernel writes back of bytes `range` be of a session that is lost?
    fn is_stale(&self, range: (u64, u64)) -> bool {
        self.stale_pages.get() > 0 && !subtract(&[range], &self.refilled.borrow()).is_empty()
    }

    /// The kernel has pages of bytes `range` filled, which it did not have.
    fn refill(&self, range: (u64, u64)) {
        if self.stale_pages.get() > 0 {
            append(&mut self.refilled.borrow_mut(), range);
        }
    }

    /// What the kernel writes back is refused, since a session was lost. That is told once for each
    /// loss.
    pub fn refuse_write_back(&self) {
        if self.stale_unreported.take() || self.stale_pages.get() == 0 {
            self.file.lose_pages();
        }
    }

    /// The kernel has dropped the pages that it had when [`Content::pages_outdated`] was told.
    pub fn pages_dropped(&self) {
        self.stale_pages.set(self.stale_pages.get() - 1);
        if self.stale_pages.get() == 0 {
            self.refilled.take();
        }
    }

    /// Are parts held?
    pub fn holds_ranges(&self) -> bool {
        !self.ranges.borrow().is_empty()
    }

    /// Is a recall draining it?
    pub fn is_draining(&self) -> bool {
        self.drain.borrow().is_some()
    }

    /// Nothing in service, nothing dirty?
    pub fn is_idle(&self) -> bool {
        self.guards.get() == 0
            && self.stale_pages.get() == 0
            && !self.acquiring.get()
            && !self.is_draining()
            && self.blocked.borrow().is_empty()
            && self.file.is_settled()
    }

    /// Requests in service.
    pub fn io_guards(&self) -> u32 {
        self.guards.get()
    }

    /// Is a request on a block of `range` in service under a part?
    pub fn has_io_in(&self, range: BlockRange) -> bool {
        self.range_guards.borrow().values().any(|used| used.overlaps(range))
    }

    /// A recall of `range` begins to drain.
    pub fn begin_drain(&self, range: BlockRange) {
        *self.drain.borrow_mut() =
            Some(Drain { range, blocking: false, passing: Vec::new(), noted: Vec::new() });
    }

    /// A part is asked for. What will be asked for next, if it goes on as before?
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

    /// Does an invalidation wait, perhaps, for this request to be answered?
    fn is_passing(&self, service: Service, range: (u64, u64)) -> bool {
        let drain = self.drain.borrow();
        let Some(drain) = drain.as_ref().filter(|_| service.fills_pages()) else { return false };
        self.pages.is_stored_into(range)
            || drain.passing.iter().any(|&passing| overlap(passing, pages_touched(range)))
    }

    fn guard_whole(self: &Rc<Self>, now: Instant) -> IoGuard {
        self.served_at.set(now);
        self.guards.set(self.guards.get() + 1);
        IoGuard { data_lease: self.clone(), part: None }
    }

    fn guard_range(self: &Rc<Self>, range: BlockRange) -> IoGuard {
        self.guards.set(self.guards.get() + 1);
        let number = self.next_id.replace(self.next_id.get() + 1);
        self.range_guards.borrow_mut().insert(number, range);
        IoGuard { data_lease: self.clone(), part: Some(number) }
    }

    /// The recall ended: parked requests ask anew.
    pub fn end_drain(&self) {
        *self.drain.borrow_mut() = None;
        self.changed.notify_all();
    }

    /// From now on new requests are parked.
    pub fn block_new_requests(&self) {
        if let Some(drain) = self.drain.borrow_mut().as_mut() {
            drain.blocking = true;
        }
    }

    /// Requests that touch pages of `ranges` are served while others are parked.
    pub fn set_passing(&self, ranges: &[(u64, u64)]) {
        if let Some(drain) = self.drain.borrow_mut().as_mut() {
            drain.passing = ranges.to_vec();
            drain.blocking &= !planted(Bug::DrainServesAll);
        }
        self.changed.notify_all();
    }

    /// Takes the pages that were noted, without those of waiting READs. `None`: nothing was noted.
    pub fn take_noted(&self) -> Option<Vec<(u64, u64)>> {
        let mut drain = self.drain.borrow_mut();
        let noted = std::mem::take(&mut drain.as_mut()?.noted);
        if noted.is_empty() {
            return None;
        }
        Some(self.unlocked(&noted))
    }

    /// Everything but the pages of waiting READs.
    pub fn all_unlocked(&self) -> Vec<(u64, u64)> {
        self.unlocked(&[(0, u64::MAX)])
    }

    /// `ranges` without the pages of waiting READs, which are locked and not up to date. The page
    /// that a waiting WRITE changes in part may be up to date, with other bytes that become stale,
    /// so it is not left out.
    pub fn unlocked(&self, ranges: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let blocked: Vec<_> = self.blocked.borrow().values().copied().collect();
        subtract(ranges, &blocked)
    }

    /// The kernel's pages of `range` are being stored into, which may wait for a READ that has one
    /// locked: it is served, also while the right drains.
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

    /// Notes what pages a request makes up to date that is being served.
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

/// A request in service.
pub(crate) struct IoGuard {
    data_lease: Rc<DataLease>,
    /// Its number among the uses of parts.
    part: Option<u64>,
}

impl IoGuard {
    /// The file.
    pub fn file(&self) -> &Rc<File> {
        &self.data_lease.file
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
    /// The content of a regular file, made if there is none.
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

    /// As [`Core::use_data`], for what bypasses the kernel's pages: a part that covers `range` will
    /// do.
    pub async fn acquire_range_io(
        &self,
        inode: &Rc<Inode>,
        need: Rights,
        range: (u64, u64),
    ) -> Result<IoGuard, Fault> {
        let large = blocks_of(range).len() > PART_BLOCKS_MAX / 2;
        self.acquire_guard(inode, need, Service::Plain, range, large).await
    }

    /// As [`Core::use_data`] under `DATA_X` if `whole`, else as [`Core::use_part`], for whoever
    /// changes content: `security.capability` is gone when this ends. The kernel removes it only
    /// where it knows of it, and of one that another client set it may not.
    ///
    /// The removal happens while the right is in use. The server executes it at once for a client
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

    /// Removes `security.capability` under a right to write that is in use.
    async fn remove_capability(&self, inode: &Inode) -> Result<(), Fault> {
        let name = Bytes(CAPABILITY.to_vec());
        let op = Op::RemoveXattr { ino: InoRef::Is { ino: inode.ino }, name };
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
        let part = Part { range: blocks_of(range), exclusive: writes };
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
                    if service == Service::PageRead {
                        inode.set_pages(true);
                        data_lease.refill(range);
                        data_lease.pages.read(range, self.env.now());
                    }
                    let guard = data_lease.guard_whole(self.env.now());
                    drop(blocked);
                    if writes && data_lease.tail_unknown.take() {
                        guard.file().zero_tail().await?;
                    }
                    return Ok(guard);
                }
            } else if !whole && data_lease.ranges.borrow().covers(part) {
                // What lies beyond the size that is known here may have been written elsewhere.
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
                // Others may ask for the file before this is answered: its folios are locked
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

    /// Gets `OPEN`, and with it `need` on the whole content if no other client stands in the way of
    /// writing. Do several write the file at this time? While the server asks this client for
    /// rights it grants it nothing: then again. What a file that counts as open was granted stays,
    /// however often others ask for it, so this ends.
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
                let asked = self.acquire(inode, &data_lease, need, part).await?;
                if inode.holds(Rights::OPEN) {
                    return Ok(writes && !asked.uncontended && !inode.holds(need));
                }
                self.env.sleep(RETRY).await;
                continue;
            }
            changed.await;
        }
    }

    /// At most one at a time for an inode: what a reply says of a DATA right and of the
    /// layout belongs together. Without `part` the parts held are given up for the whole.
    async fn acquire(
        &self,
        inode: &Rc<Inode>,
        data_lease: &Rc<DataLease>,
        need: Rights,
        part: Option<BlockRange>,
    ) -> Result<AcquireOutcome, Fault> {
        data_lease.acquiring.set(true);
        let _acquiring = Acquiring(data_lease);
        // Who holds the whole right to read has pages, and gives it up first.
        let part = part.filter(|_| !inode.holds(Rights::DATA_S));
        let many = data_lease.ranges.borrow().len() + PARTS_AHEAD_MAX >= PARTS_MAX;
        let part = part.filter(|_| !many);
        if part.is_none() {
            self.give_up_ranges(inode, data_lease).await;
        }
        if inode.is_lost() {
            return Err(Fault::Stale);
        }
        let ino = InoRef::Is { ino: inode.ino };
        let rights = need | Rights::ATTR | Rights::OPEN;
        let ahead = part.map_or_else(Ahead::default, |part| data_lease.ahead(part));
        let from = FileBlock(0);
        let mut ops = vec![Op::Acquire { ino: ino.clone(), rights, from, part, ahead }];
        // Before the first write it is asked for `security.capability`.
        let first = !data_lease.holds_ranges();
        if first && need.contains(Rights::DATA_X) && inode.xattrs() == Xattrs::Unknown {
            ops.push(Op::ListXattr { ino, want: Rights::ATTR });
        }
        let reply = self.session.call(Call::ops(&Caller::default(), ops)).await?;
        match result(&reply, 0)? {
            OpReply::Acquired { calm, untold_tail, .. } => {
                data_lease.tail_unknown.set(*untold_tail);
                Ok(AcquireOutcome { uncontended: *calm })
            }
            _ => Err(Fault::Protocol),
        }
    }
}
