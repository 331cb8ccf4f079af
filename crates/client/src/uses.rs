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

/// Between two requests for a right while the server asks for what it had granted.
const AGAIN: Duration = Duration::from_millis(2);

/// A client whose processes use a file without a pause keeps its right on the content for so long,
/// although another client waits for it.
const LEAST_USE: Duration = Duration::from_millis(5);
/// A longer time without a request is a pause.
const PAUSE: Duration = Duration::from_micros(200);

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
    Always,
    /// The kernel writes back what was stored into a mapping. Never parked, and refused if that was
    /// done under rights of a session that is lost.
    WriteBack,
}

/// Parts that are asked for ahead: the first time that a stride is repeated, the second …
const AHEAD_STEPS: [u8; 5] = [0, 1, 3, 7, RANGES_AHEAD_MAX as u8 - 1];

impl Service {
    /// Does the kernel have pages of the range when it is answered, of which it keeps some locked
    /// until then?
    fn fills_pages(self) -> bool {
        matches!(self, Service::PageRead | Service::PageWrite)
    }

    /// Is it served while a recall waits for it?
    fn overtakes_recalls(self) -> bool {
        matches!(self, Service::Always | Service::WriteBack)
    }
}

/// What became of a request for rights on content.
struct Asked {
    /// The whole right is to be had, or nothing.
    calm: bool,
}

/// The blocks that bytes `[range.0, range.1)` touch.
fn blocks_of(range: (u64, u64)) -> BlockRange {
    BlockRange::new(range.0 / BLOCK_U64, range.1.div_ceil(BLOCK_U64))
}

struct Drain {
    /// What goes.
    range: BlockRange,
    parking: bool,
    /// Requests that touch pages of these ranges are served all the same.
    passing: Vec<(u64, u64)>,
    /// Pages that may have become up to date after an invalidation passed there.
    noted: Vec<(u64, u64)>,
}

/// The content of a file in use.
pub(crate) struct Content {
    pub file: Rc<File>,
    /// The file knows its layout under the right that is held.
    loaded: Cell<bool>,
    /// Another client may know the file. Not so for a file that this client made and has held
    /// `DATA_X` on ever since, without a glimpse: whoever finds it has its size glimpsed.
    pub shared: Cell<bool>,
    /// Under `DATA_P`: what is held.
    pub parts: RefCell<HeldRanges>,
    /// Where a part was asked for last, how far from the one before, and how often so.
    asked: Cell<(u64, u64, u8)>,
    /// The server did not know what lies behind the size.
    tail_unknown: Cell<bool>,
    /// Under a right to write: the file is known to have no `security.capability`. Whoever sets one
    /// takes that right first.
    plain: Cell<bool>,
    /// Number of the first request made under the right to write.
    writes_from: Cell<u64>,
    /// Number of the first request made since this client was told that it set the attribute.
    capability_set: Cell<u64>,
    uses: Cell<u32>,
    /// When a right on the whole content came, and when a request was served under it last.
    granted: Cell<Instant>,
    served: Cell<Instant>,
    /// Uses of parts, by number.
    part_uses: RefCell<BTreeMap<u64, BlockRange>>,
    drain: RefCell<Option<Drain>>,
    /// Waiting requests, by number, and the pages of each that are locked and not up to date for
    /// certain.
    parked: RefCell<BTreeMap<u64, (u64, u64)>>,
    parked_next: Cell<u64>,
    acquiring: Cell<bool>,
    /// So many times the kernel has yet to drop its pages of lost sessions.
    outdated: Cell<u32>,
    /// Of what was to be written back of them nothing was refused yet.
    outdated_untold: Cell<bool>,
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

impl Content {
    /// Content that holds nothing yet, of a file whose size the kernel was told last.
    pub fn new(file: Rc<File>, size_told: u64) -> Content {
        Content {
            file,
            pages: Rc::new(KernelPages::new(size_told)),
            loaded: Cell::new(false),
            shared: Cell::new(true),
            parts: RefCell::default(),
            asked: Cell::default(),
            tail_unknown: Cell::new(false),
            plain: Cell::new(false),
            writes_from: Cell::new(0),
            capability_set: Cell::new(0),
            uses: Cell::new(0),
            granted: Cell::default(),
            served: Cell::default(),
            part_uses: RefCell::default(),
            drain: RefCell::new(None),
            parked: RefCell::new(BTreeMap::new()),
            parked_next: Cell::new(0),
            acquiring: Cell::new(false),
            outdated: Cell::new(0),
            outdated_untold: Cell::new(false),
            refilled: RefCell::default(),
            changed: Notify::new(),
            draining: AsyncMutex::new(),
            queued: Cell::new(false),
        }
    }

    /// A right on the whole content came.
    pub fn came(&self, now: Instant) {
        self.granted.set(now);
        self.set_loaded(true);
    }

    /// Until when a recall lets requests be served before it drains: [`LEAST_USE`] after the right
    /// came, as long as they follow each other within [`PAUSE`]. `None`: no longer.
    pub fn used_until(&self, now: Instant) -> Option<Instant> {
        let busy = self.uses.get() > 0 || !self.parked.borrow().is_empty();
        let pause = if busy { now + PAUSE } else { self.served.get() + PAUSE };
        let until = pause.min(self.granted.get() + LEAST_USE);
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
    pub fn may_write(&self, order: u64, plain: bool) {
        self.plain.set(plain);
        self.writes_from.set(order);
    }

    /// The right to write went.
    pub fn may_not_write(&self) {
        self.plain.set(false);
    }

    /// The answer to request number `order` tells whether there is no `security.capability`.
    /// `acquired`: the request was executed under the right to write that it acquired.
    pub fn told_plain(&self, plain: bool, order: u64, acquired: bool) {
        let since =
            (acquired || order >= self.writes_from.get()) && order >= self.capability_set.get();
        self.plain.set(plain && since && self.writes());
    }

    /// This client set `security.capability`. `order`: the number of the next request.
    pub fn set_capability(&self, order: u64) {
        self.plain.set(false);
        self.capability_set.set(order);
    }

    /// Is a right to write held?
    fn writes(&self) -> bool {
        self.file.holds(Rights::DATA_X) || self.holds_parts()
    }

    /// Nothing is held any more.
    pub fn forget(&self) {
        self.may_not_write();
        self.loaded.set(false);
        self.parts.borrow_mut().clear();
    }

    /// The kernel's pages are of a session that is lost: nothing of them is written back any more.
    /// Until [`Content::pages_dropped`].
    pub fn pages_outdated(&self) {
        self.outdated.set(self.outdated.get() + 1);
        self.outdated_untold.set(true);
        self.refilled.take();
    }

    /// Would what the kernel writes back of bytes `range` be of a session that is lost?
    fn is_outdated(&self, range: (u64, u64)) -> bool {
        self.outdated.get() > 0 && !subtract(&[range], &self.refilled.borrow()).is_empty()
    }

    /// The kernel has pages of bytes `range` filled, which it did not have.
    fn refill(&self, range: (u64, u64)) {
        if self.outdated.get() > 0 {
            append(&mut self.refilled.borrow_mut(), range);
        }
    }

    /// What the kernel writes back is refused, since a session was lost. That is told once for each
    /// loss.
    pub fn refuse_pages(&self) {
        if self.outdated_untold.take() || self.outdated.get() == 0 {
            self.file.report_lost_pages();
        }
    }

    /// The kernel has dropped the pages that it had when [`Content::pages_outdated`] was told.
    pub fn pages_dropped(&self) {
        self.outdated.set(self.outdated.get() - 1);
        if self.outdated.get() == 0 {
            self.refilled.take();
        }
    }

    /// Are parts held?
    pub fn holds_parts(&self) -> bool {
        !self.parts.borrow().is_empty()
    }

    /// Is a recall draining it?
    pub fn is_draining(&self) -> bool {
        self.drain.borrow().is_some()
    }

    /// Nothing in service, nothing dirty?
    pub fn is_idle(&self) -> bool {
        self.uses.get() == 0
            && self.outdated.get() == 0
            && !self.acquiring.get()
            && !self.is_draining()
            && self.parked.borrow().is_empty()
            && self.file.is_settled()
    }

    /// Requests in service.
    pub fn uses(&self) -> u32 {
        self.uses.get()
    }

    /// Is a request on a block of `range` in service under a part?
    pub fn is_used_in(&self, range: BlockRange) -> bool {
        self.part_uses.borrow().values().any(|used| used.overlaps(range))
    }

    /// A recall of `range` begins to drain.
    pub fn begin_drain(&self, range: BlockRange) {
        *self.drain.borrow_mut() =
            Some(Drain { range, parking: false, passing: Vec::new(), noted: Vec::new() });
    }

    /// A part is asked for. What will be asked for next, if it goes on as before?
    fn ahead(&self, part: BlockRange) -> Ahead {
        let (last, stride, times) = self.asked.get();
        let from = part.from.0;
        let given = stride.saturating_mul(u64::from(AHEAD_STEPS[usize::from(times)]) + 1);
        if stride == 0 || last.checked_add(given) != Some(from) {
            self.asked.set((from, from.saturating_sub(last), 0));
            return Ahead::default();
        }
        let times = (times + 1).min(AHEAD_STEPS.len() as u8 - 1);
        self.asked.set((from, stride, times));
        Ahead { stride, count: AHEAD_STEPS[usize::from(times)] }
    }

    fn is_parking(&self, range: BlockRange) -> bool {
        let drain = self.drain.borrow();
        drain.as_ref().is_some_and(|drain| drain.parking && drain.range.overlaps(range))
    }

    /// Does an invalidation wait, perhaps, for this request to be answered?
    fn is_passing(&self, service: Service, range: (u64, u64)) -> bool {
        let drain = self.drain.borrow();
        let Some(drain) = drain.as_ref().filter(|_| service.fills_pages()) else { return false };
        self.pages.is_stored_into(range)
            || drain.passing.iter().any(|&passing| overlap(passing, pages_touched(range)))
    }

    fn use_whole(self: &Rc<Self>, now: Instant) -> Use {
        self.served.set(now);
        self.uses.set(self.uses.get() + 1);
        Use { content: self.clone(), part: None, reading: None }
    }

    fn use_part(self: &Rc<Self>, range: BlockRange) -> Use {
        self.uses.set(self.uses.get() + 1);
        let number = self.parked_next.replace(self.parked_next.get() + 1);
        self.part_uses.borrow_mut().insert(number, range);
        Use { content: self.clone(), part: Some(number), reading: None }
    }

    /// The recall ended: parked requests ask anew.
    pub fn end_drain(&self) {
        *self.drain.borrow_mut() = None;
        self.changed.notify_all();
    }

    /// From now on new requests are parked.
    pub fn park(&self) {
        if let Some(drain) = self.drain.borrow_mut().as_mut() {
            drain.parking = true;
        }
    }

    /// Requests that touch pages of `ranges` are served while others are parked.
    pub fn let_pass(&self, ranges: &[(u64, u64)]) {
        if let Some(drain) = self.drain.borrow_mut().as_mut() {
            drain.passing = ranges.to_vec();
            drain.parking &= !planted(Bug::DrainServesAll);
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
        let parked: Vec<_> = self.parked.borrow().values().copied().collect();
        subtract(ranges, &parked)
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
            Service::Plain | Service::Always | Service::WriteBack => None,
        };
        if let Some(filled) = filled
            && let Some(drain) = self.drain.borrow_mut().as_mut()
        {
            append(&mut drain.noted, filled);
        }
    }
}

/// A request in service.
pub(crate) struct Use {
    content: Rc<Content>,
    /// Its number among the uses of parts.
    part: Option<u64>,
    /// It fills pages of the kernel.
    reading: Option<Reading>,
}

impl Use {
    /// The file.
    pub fn file(&self) -> &Rc<File> {
        &self.content.file
    }

    /// The pages of the kernel that the answer fills, if it fills any.
    pub fn filling(&mut self) -> Option<Filling> {
        self.reading.take().map(Filling::new)
    }

    /// What the kernel's pages of the file may hold.
    pub fn pages(&self) -> &Rc<KernelPages> {
        &self.content.pages
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let uses = self.content.uses.get() - 1;
        self.content.uses.set(uses);
        if let Some(number) = self.part {
            self.content.part_uses.borrow_mut().remove(&number);
        }
        if uses == 0 || self.part.is_some() && self.content.is_draining() {
            self.content.changed.notify_all();
        }
    }
}

struct Parked<'a> {
    content: &'a Content,
    id: u64,
}

impl<'a> Parked<'a> {
    fn new(content: &'a Content, range: (u64, u64)) -> Parked<'a> {
        let id = content.parked_next.get();
        content.parked_next.set(id + 1);
        content.parked.borrow_mut().insert(id, range);
        Parked { content, id }
    }
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.content.parked.borrow_mut().remove(&self.id);
    }
}

struct Acquiring<'a>(&'a Content);

impl Drop for Acquiring<'_> {
    fn drop(&mut self) {
        self.0.acquiring.set(false);
        self.0.changed.notify_all();
    }
}

impl Core {
    /// The content of a regular file, made if there is none.
    pub fn content(&self, inode: &Inode) -> Rc<Content> {
        if let Some(content) = inode.content() {
            return content;
        }
        let file = File::new(self.data(), inode.ino, &inode.server_attr());
        let content = Rc::new(Content::new(file, inode.server_attr().size));
        inode.set_content(Some(content.clone()));
        content
    }

    /// Waits until a request on bytes `range` may be served under `need` (`DATA_S` or `DATA_X`) on
    /// the whole content.
    pub async fn use_data(
        &self,
        inode: &Rc<Inode>,
        need: Rights,
        service: Service,
        range: (u64, u64),
    ) -> Result<Use, Fault> {
        self.serve(inode, need, service, range, true).await
    }

    /// As [`Core::use_data`], for what bypasses the kernel's pages: a part that covers `range` will
    /// do.
    pub async fn use_part(
        &self,
        inode: &Rc<Inode>,
        need: Rights,
        range: (u64, u64),
    ) -> Result<Use, Fault> {
        let large = blocks_of(range).len() > RANGE_BLOCKS_MAX / 2;
        self.serve(inode, need, Service::Plain, range, large).await
    }

    /// As [`Core::use_data`] under `DATA_X` if `whole`, else as [`Core::use_part`], for whoever
    /// changes content: `security.capability` is gone when this ends. The kernel removes it only
    /// where it knows of it, and of one that another client set it may not.
    ///
    /// The removal happens while the right is in use. The server executes it at once for a client
    /// that holds the right, so neither a recall nor a folio that the kernel has locked can block
    /// it.
    pub async fn use_to_change(
        &self,
        inode: &Rc<Inode>,
        service: Service,
        whole: bool,
        range: (u64, u64),
    ) -> Result<Use, Fault> {
        let in_use = if whole {
            self.use_data(inode, Rights::DATA_X, service, range).await?
        } else {
            self.use_part(inode, Rights::DATA_X, range).await?
        };
        let content = &in_use.content;
        while !content.plain.get() {
            if inode.xattrs().lack(CAPABILITY) {
                content.plain.set(true);
                break;
            }
            self.remove_capability(inode).await?;
            if !content.writes() {
                // The session was lost, and the right with it.
                return Err(Fault::Evicted);
            }
        }
        Ok(in_use)
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

    async fn serve(
        &self,
        inode: &Rc<Inode>,
        need: Rights,
        service: Service,
        range: (u64, u64),
        mut whole: bool,
    ) -> Result<Use, Fault> {
        let content = self.content(inode);
        let writes = need.contains(Rights::DATA_X);
        let part = HeldRange { range: blocks_of(range), exclusive: writes };
        let locked = if service == Service::PageRead { pages_touched(range) } else { (0, 0) };
        let mut parked = None;
        loop {
            self.live().await?;
            if inode.is_lost() {
                return Err(Fault::Stale);
            }
            let changed = content.changed.notified();
            let refused = service == Service::WriteBack && content.is_outdated(range);
            if refused && !planted(Bug::StaleWriteBack) {
                // Others may have written the file since. A recall may wait for this answer.
                content.refuse_pages();
                return Err(Fault::Io);
            }
            if content.is_ready(need) && inode.holds(need) {
                let served = !content.is_parking(BlockRange::ALL)
                    || service.overtakes_recalls()
                    || content.is_passing(service, range);
                if served {
                    content.note(service, range);
                    let now = self.env.now();
                    let mut in_use = content.use_whole(now);
                    if service == Service::PageRead {
                        inode.set_pages(true);
                        content.refill(range);
                        in_use.reading = Some(content.pages.read(range, now));
                    }
                    drop(parked);
                    if writes && content.tail_unknown.take() {
                        in_use.file().zero_tail().await?;
                    }
                    return Ok(in_use);
                }
            } else if !whole && content.parts.borrow().covers(part) {
                // What lies beyond the size that is known here may have been written elsewhere.
                if !writes && range.1 > content.file.size() {
                    whole = true;
                    continue;
                }
                if !content.is_parking(part.range) {
                    drop(parked);
                    return Ok(content.use_part(part.range));
                }
            } else if !content.is_draining() && !content.acquiring.get() {
                drop(changed);
                // Others may ask for the file before this is answered: its folios are locked
                // meanwhile.
                parked.get_or_insert_with(|| Parked::new(&content, locked));
                let part = (!whole).then_some(part.range);
                whole |= self.acquire(inode, &content, need, part).await?.calm;
                continue;
            }
            parked.get_or_insert_with(|| Parked::new(&content, locked));
            changed.await;
        }
    }

    /// Gets `OPEN`, and with it `need` on the whole content if no other client stands in the way of
    /// writing. Do several write the file at this time? While the server asks this client for
    /// rights it grants it nothing: then again. What a file that counts as open was granted stays,
    /// however often others ask for it, so this ends.
    pub async fn acquire_open(&self, inode: &Rc<Inode>, need: Rights) -> Result<bool, Fault> {
        let content = self.content(inode);
        let writes = need.contains(Rights::DATA_X);
        let part = writes.then(BlockRange::default);
        loop {
            if inode.is_lost() {
                return Err(Fault::Stale);
            }
            let changed = content.changed.notified();
            let has = !writes || inode.holds(need) || content.holds_parts();
            if inode.holds(Rights::OPEN) && has {
                return Ok(writes && !inode.holds(need));
            }
            if !content.acquiring.get() && !content.is_draining() {
                drop(changed);
                let asked = self.acquire(inode, &content, need, part).await?;
                if inode.holds(Rights::OPEN) {
                    return Ok(writes && !asked.calm && !inode.holds(need));
                }
                self.env.sleep(AGAIN).await;
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
        content: &Rc<Content>,
        need: Rights,
        part: Option<BlockRange>,
    ) -> Result<Asked, Fault> {
        content.acquiring.set(true);
        let _acquiring = Acquiring(content);
        // Who holds the whole right to read has pages, and gives it up first.
        let part = part.filter(|_| !inode.holds(Rights::DATA_S));
        let many = content.parts.borrow().len() + RANGES_AHEAD_MAX >= RANGES_MAX;
        let part = part.filter(|_| !many);
        if part.is_none() {
            self.leave_parts(inode, content).await;
        }
        if inode.is_lost() {
            return Err(Fault::Stale);
        }
        let ino = InoRef::Is { ino: inode.ino };
        let rights = need | Rights::ATTR | Rights::OPEN;
        let ahead = part.map_or_else(Ahead::default, |part| content.ahead(part));
        let from = FileBlock(0);
        let mut ops = vec![Op::Acquire { ino: ino.clone(), rights, from, range: part, ahead }];
        // Before the first write it is asked for `security.capability`.
        let first = !content.holds_parts();
        if first && need.contains(Rights::DATA_X) && inode.xattrs() == Xattrs::Unknown {
            ops.push(Op::ListXattr { ino, want: Rights::ATTR });
        }
        let reply = self.session.call(Call::ops(&Caller::default(), ops)).await?;
        match result(&reply, 0)? {
            OpReply::Acquired { uncontended: calm, tail_unknown, .. } => {
                content.tail_unknown.set(*tail_unknown);
                Ok(Asked { calm: *calm })
            }
            _ => Err(Fault::Protocol),
        }
    }
}
