//! What the kernel's pages of one file may hold while a WRITE is in flight.
//!
//! The kernel copies a WRITE into a page that is up to date, unlocks the page, and only then sends
//! the request. In between, the page can be dropped, and filled again by a READ that the client
//! serves before the WRITE. The new page then lacks the bytes of the WRITE, and nothing drops it
//! later. So the client asks the kernel to drop such a page before it answers the WRITE.
//!
//! Invariants:
//! - a kernel sends one WRITE through the pages of an inode at a time: it copies the next one in
//!   only after it has received the answer to the last one;
//! - a page that lacks a WRITE was filled by a READ that was served after a drop of pages, between
//!   the answers to the WRITE before and to this one, and was not dropped again since;
//! - a WRITE keeps at most one page locked until it is answered: the last one, if it changes a part
//!   of it and that page was not up to date. Such a page has the bytes of the WRITE, so the kernel
//!   is asked what its last page holds before it is told to drop that;
//! - what a mapping stored into a page that lacks a WRITE is written back without the bytes of
//!   that WRITE, which are newer;
//! - a WRITE is applied only when no write-back of the same bytes is in service that began before;
//! - a byte is stored into the kernel's pages only while nothing changes it, and the size it ends
//!   with.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use env::sync::Notify;
use types::{Duration, Instant};

use crate::ranges::{Bytes, append, intersect, overlap, pages_touched, subtract};

/// How long after an answer that makes the kernel drop pages it may still be about to drop them.
const INVALIDATION_DELAY: Duration = Duration::from_secs(2);
/// Ranges of refilled pages that are tracked separately.
const REFILLED_MAX: usize = 1024;
/// A WRITE that the kernel had copied into its pages before this time has arrived, or the lease of
/// this client has run out.
const ARRIVED: Duration = Duration::from_secs(10);

/// Pages that READs filled while the same number of invalidations had begun.
struct Refilled {
    begun: u64,
    /// When the last READ of them was served.
    last: Instant,
    ranges: Vec<Bytes>,
}

/// See the module.
pub(crate) struct KernelPages {
    /// Invalidations under way, and how many have begun.
    dropping: Cell<u32>,
    begun: Cell<u64>,
    /// Pages were dropped since the last WRITE through pages was answered.
    dropped: Cell<bool>,
    /// Until when the kernel may drop pages because of an answer that it got.
    drops_until: Cell<Instant>,
    /// The size that the kernel has, as far as known.
    size: Cell<u64>,
    /// Pages that READs have filled since pages were dropped.
    refilled: RefCell<Vec<Refilled>>,
    /// READs of pages in service.
    reads: RefCell<Vec<Bytes>>,
    /// Until when an invalidation of the inode, or a size other than the kernel had, may keep it
    /// from accepting a size.
    invalidated_until: Cell<Instant>,
    /// Recalls that are invalidating something of the inode in the kernel.
    recalls: Cell<u32>,
    /// Bytes that are being stored into its pages, and the number of opens in progress that allow
    /// writing into pages.
    storing: RefCell<Vec<Bytes>>,
    opening: Cell<u32>,
    next: Cell<u64>,
    /// Ranges of the content that this client is changing.
    changes: RefCell<Vec<Bytes>>,
    /// Ranges of WRITEs that are being applied, and whose pages may not hold them yet.
    overwrites: RefCell<BTreeMap<u64, Bytes>>,
    /// Ranges that the kernel is writing back.
    write_backs: RefCell<BTreeMap<u64, Bytes>>,
    /// A write-back, a store or a recall ended.
    ended: Notify,
}

impl KernelPages {
    /// The pages of a file of which the kernel has `size`.
    pub fn new(size: u64) -> KernelPages {
        KernelPages {
            dropping: Cell::new(0),
            begun: Cell::new(0),
            dropped: Cell::new(false),
            drops_until: Cell::default(),
            size: Cell::new(size),
            refilled: RefCell::default(),
            reads: RefCell::default(),
            invalidated_until: Cell::default(),
            recalls: Cell::new(0),
            storing: RefCell::default(),
            opening: Cell::new(0),
            next: Cell::new(0),
            changes: RefCell::default(),
            overwrites: RefCell::default(),
            write_backs: RefCell::default(),
            ended: Notify::new(),
        }
    }

    /// The kernel is being told to drop the pages of `ranges`; all of them are dropped when the
    /// guard is.
    pub fn dropping(self: &Rc<Self>, ranges: Vec<Bytes>) -> Dropping {
        self.dropping.set(self.dropping.get() + 1);
        self.dropped.set(true);
        self.begun.set(self.begun.get() + 1);
        Dropping { pages: self.clone(), begun: self.begun.get(), ranges }
    }

    /// An answer that is sent now makes the kernel drop pages.
    pub fn drops_by_answer(&self, now: Instant) {
        self.drops_until.set(now + INVALIDATION_DELAY);
    }

    /// An answer that is sent now tells the kernel the size: if it has another one it drops all
    /// pages.
    pub fn size_reported(&self, size: u64, now: Instant) {
        if self.size.replace(size) != size {
            self.drops_by_answer(now);
        }
    }

    /// The kernel itself sets the size, while no WRITE is in flight.
    pub fn resized(&self, size: u64) {
        self.size.set(size);
    }

    /// The kernel itself moved the end of the file, by a WRITE that ends at `end`.
    pub fn grew(&self, end: u64) {
        self.size.set(self.size.get().max(end));
    }

    /// A recall has the kernel drop attributes or pages of the inode, until the guard is dropped.
    pub fn recall(self: &Rc<Self>, now: Instant) -> Recalling {
        self.invalidated_until.set(now + INVALIDATION_DELAY);
        self.recalls.set(self.recalls.get() + 1);
        Recalling(self.clone())
    }

    /// Waits until no recall is invalidating anything of the inode in the kernel.
    pub async fn wait_recalls(&self) {
        loop {
            let ended = self.ended.notified();
            if self.recalls.get() == 0 {
                return;
            }
            ended.await;
        }
    }

    /// May the kernel have ignored a size that it got?
    pub fn may_lack_size(&self, now: Instant) -> bool {
        now < self.invalidated_until.get().max(self.drops_until.get())
    }

    /// Begins a store of `range` into the kernel's pages, which lasts until the guard is dropped.
    /// `None`: this client is changing the range, or an open in progress allows processes to write
    /// into the pages.
    pub fn store(self: &Rc<Self>, range: Bytes) -> Option<Storing> {
        let changing = self.changes.borrow().iter().any(|&change| overlap(change, range));
        (self.opening.get() == 0 && !changing).then(|| {
            let range = pages_touched(range);
            self.storing.borrow_mut().push(range);
            Storing(self.clone(), range)
        })
    }

    /// This client changes `range`, until the guard is dropped. Waits until nothing of it is being
    /// stored into the kernel's pages.
    pub async fn change(self: &Rc<Self>, range: Bytes) -> Changing {
        self.changes.borrow_mut().push(range);
        let changing = Changing(self.clone(), range);
        loop {
            let ended = self.ended.notified();
            if !self.storing.borrow().iter().any(|&storing| overlap(storing, range)) {
                return changing;
            }
            ended.await;
        }
    }

    /// May a store in progress wait for a page that a request on `range` has locked?
    pub fn is_stored_into(&self, range: Bytes) -> bool {
        self.storing.borrow().iter().any(|&storing| overlap(storing, pages_touched(range)))
    }

    /// The file is being opened so that processes may write into its pages, until the guard is
    /// dropped. Waits until no store into them is in progress.
    pub async fn open_to_write(self: &Rc<Self>) -> Opening {
        self.opening.set(self.opening.get() + 1);
        let opening = Opening(self.clone());
        loop {
            let ended = self.ended.notified();
            if self.storing.borrow().is_empty() {
                return opening;
            }
            ended.await;
        }
    }

    /// A READ that fills pages is served, until the guard is dropped.
    pub fn read(self: &Rc<Self>, range: Bytes, now: Instant) -> Reading {
        let pages = pages_touched(range);
        self.reads.borrow_mut().push(pages);
        if self.may_lack(now) {
            self.refill(pages, now);
        }
        Reading(self.clone(), pages)
    }

    fn refill(&self, pages: Bytes, now: Instant) {
        let (mut refilled, begun) = (self.refilled.borrow_mut(), self.begun.get());
        match refilled.last_mut() {
            Some(last) if last.begun == begun => {
                last.last = now;
                append(&mut last.ranges, pages);
            }
            _ => refilled.push(Refilled { begun, last: now, ranges: vec![pages] }),
        }
        let ranges: usize = refilled.iter().map(|filled| filled.ranges.len()).sum();
        if ranges > REFILLED_MAX {
            *refilled = vec![Refilled { begun, last: now, ranges: vec![(0, u64::MAX)] }];
        }
    }

    /// The pages of `ranges` that were filled before invalidation number `begun` are dropped.
    fn forget_filled(&self, begun: u64, ranges: &[Bytes]) {
        let mut refilled = self.refilled.borrow_mut();
        for filled in refilled.iter_mut().filter(|filled| filled.begun < begun) {
            filled.ranges = subtract(&filled.ranges, ranges);
        }
        refilled.retain(|filled| !filled.ranges.is_empty());
    }

    /// Pages that may lack a WRITE of `range` which has been put in.
    pub fn lacking(&self, range: Bytes, now: Instant) -> Vec<Bytes> {
        let refilled = self.refilled.borrow();
        let recent = refilled.iter().filter(|filled| now < filled.last + ARRIVED);
        recent.flat_map(|filled| intersect(&filled.ranges, pages_touched(range))).collect()
    }

    /// May pages lack a WRITE that comes now?
    pub fn may_lack(&self, now: Instant) -> bool {
        self.dropped.get() || self.dropping.get() > 0 || now < self.drops_until.get()
    }

    /// Does the kernel certainly have a size of at least `size`?
    pub fn has_size(&self, size: u64) -> bool {
        self.size.get() >= size
    }

    /// Is a READ of a page of `range` not yet answered?
    pub fn is_reading(&self, range: Bytes) -> bool {
        let pages = pages_touched(range);
        self.reads.borrow().iter().any(|&read| overlap(read, pages))
    }

    /// Is a request in service that keeps a page of `range` locked, and is none of its WRITEs?
    pub fn is_in_service(&self, range: Bytes) -> bool {
        let pages = pages_touched(range);
        let writes_back = self.write_backs.borrow().values().any(|&back| overlap(back, pages));
        writes_back || self.is_reading(range)
    }

    /// A WRITE through pages is about to be answered: the kernel copies the next one in after that.
    pub fn answered(&self) {
        self.dropped.set(false);
        self.refilled.borrow_mut().clear();
    }

    fn number(&self) -> u64 {
        let number = self.next.get();
        self.next.set(number + 1);
        number
    }

    /// A WRITE of `range` will be applied. Until the guard is dropped, write-backs of the kernel
    /// leave these bytes unchanged.
    pub fn overwrite(self: &Rc<Self>, range: Bytes) -> Overwrite {
        let number = self.number();
        self.overwrites.borrow_mut().insert(number, range);
        Overwrite { pages: self.clone(), number }
    }

    /// Waits until no write-back of `range` is in service that began before.
    pub async fn written_back(&self, range: Bytes) {
        let before = self.number();
        loop {
            let ended = self.ended.notified();
            let busy = self.write_backs.borrow().range(..before).any(|(_, &r)| overlap(r, range));
            if !busy {
                return;
            }
            ended.await;
        }
    }

    /// The kernel writes back `range`, until the guard is dropped; returns which parts of it to
    /// apply.
    pub fn write_back(self: &Rc<Self>, range: Bytes) -> (WriteBack, Vec<Bytes>) {
        let newer: Vec<Bytes> = self.overwrites.borrow().values().copied().collect();
        let number = self.number();
        self.write_backs.borrow_mut().insert(number, range);
        (WriteBack { pages: self.clone(), number }, subtract(&[range], &newer))
    }
}

/// See [`KernelPages::dropping`].
pub(crate) struct Dropping {
    pages: Rc<KernelPages>,
    begun: u64,
    ranges: Vec<Bytes>,
}

impl Drop for Dropping {
    fn drop(&mut self) {
        self.pages.dropping.set(self.pages.dropping.get() - 1);
        self.pages.dropped.set(true);
        self.pages.forget_filled(self.begun, &self.ranges);
    }
}

/// See [`KernelPages::read`].
pub(crate) struct Reading(Rc<KernelPages>, Bytes);

impl Drop for Reading {
    fn drop(&mut self) {
        remove(&self.0.reads, self.1);
    }
}

/// See [`KernelPages::recall`].
pub(crate) struct Recalling(Rc<KernelPages>);

impl Drop for Recalling {
    fn drop(&mut self) {
        self.0.recalls.set(self.0.recalls.get() - 1);
        self.0.ended.notify_all();
    }
}

/// See [`KernelPages::store`].
pub(crate) struct Storing(Rc<KernelPages>, Bytes);

impl Drop for Storing {
    fn drop(&mut self) {
        remove(&self.0.storing, self.1);
        self.0.ended.notify_all();
    }
}

/// See [`KernelPages::change`].
pub(crate) struct Changing(Rc<KernelPages>, Bytes);

impl Drop for Changing {
    fn drop(&mut self) {
        remove(&self.0.changes, self.1);
    }
}

/// Removes one `range` from `ranges`.
fn remove(ranges: &RefCell<Vec<Bytes>>, range: Bytes) {
    let mut ranges = ranges.borrow_mut();
    let at = ranges.iter().position(|other| *other == range);
    at.map(|at| ranges.swap_remove(at));
}

/// See [`KernelPages::open_to_write`].
pub(crate) struct Opening(Rc<KernelPages>);

impl Drop for Opening {
    fn drop(&mut self) {
        self.0.opening.set(self.0.opening.get() - 1);
    }
}

/// See [`KernelPages::overwrite`].
pub(crate) struct Overwrite {
    pages: Rc<KernelPages>,
    number: u64,
}

impl Drop for Overwrite {
    fn drop(&mut self) {
        self.pages.overwrites.borrow_mut().remove(&self.number);
    }
}

/// See [`KernelPages::write_back`].
pub(crate) struct WriteBack {
    pages: Rc<KernelPages>,
    number: u64,
}

impl Drop for WriteBack {
    fn drop(&mut self) {
        self.pages.write_backs.borrow_mut().remove(&self.number);
        self.pages.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    const NOW: Instant = Instant(5_000_000_000);

    /// The output of the future, if it is ready.
    fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    fn pages() -> Rc<KernelPages> {
        Rc::new(KernelPages::new(0))
    }

    #[test]
    fn page_filled_after_a_drop_may_lack_a_write() {
        let pages = pages();
        drop(pages.read((0, 4096), NOW));
        assert_eq!(pages.lacking((0, 8), NOW), [], "nothing was dropped");
        let dropping = pages.dropping(vec![(0, u64::MAX)]);
        drop(pages.read((4096, 8192), NOW));
        drop(dropping);
        drop(pages.read((0, 4096), NOW));
        assert_eq!(pages.lacking((8, 16), NOW), [(0, 4096)]);
        assert_eq!(pages.lacking((8192, 8200), NOW), []);
        pages.answered();
        drop(pages.read((0, 4096), NOW));
        assert_eq!(pages.lacking((8, 16), NOW), [], "filled after the last WRITE was answered");
    }

    #[test]
    fn drop_in_progress_counts_after_the_answer_to_a_write() {
        let pages = pages();
        let dropping = pages.dropping(vec![(0, u64::MAX)]);
        pages.answered();
        drop(pages.read((0, 4096), NOW));
        assert_eq!(pages.lacking((0, 1), NOW), [(0, 4096)]);
        pages.answered();
        drop(dropping);
        drop(pages.read((0, 4096), NOW));
        assert_eq!(pages.lacking((0, 1), NOW), [(0, 4096)], "it ended after the answer");
    }

    #[test]
    fn answer_with_another_size_drops_pages_for_a_while() {
        let pages = pages();
        pages.size_reported(100, NOW);
        pages.answered();
        drop(pages.read((0, 100), NOW + Duration::from_secs(1)));
        assert_eq!(pages.lacking((0, 1), NOW), [(0, 4096)]);
        pages.answered();
        pages.grew(200);
        pages.size_reported(200, NOW + Duration::from_secs(3));
        drop(pages.read((0, 100), NOW + Duration::from_secs(3)));
        assert_eq!(pages.lacking((0, 1), NOW), [], "the kernel had that size");
    }

    #[test]
    fn page_that_was_dropped_again_lacks_no_write_and_one_filled_meanwhile_may() {
        let pages = pages();
        drop(pages.dropping(vec![(0, u64::MAX)]));
        drop(pages.read((0, 8192), NOW));
        let dropping = pages.dropping(vec![(0, 4096)]);
        assert_eq!(pages.lacking((0, 8), NOW), [(0, 4096)], "not yet dropped");
        drop(pages.read((8192, 8200), NOW));
        drop(dropping);
        assert_eq!(pages.lacking((0, 8), NOW), [], "a WRITE that comes now keeps its page locked");
        assert_eq!(pages.lacking((4096, 9000), NOW), [(4096, 8192), (8192, 12288)]);
        let dropping = pages.dropping(vec![(0, u64::MAX)]);
        drop(pages.read((0, 10), NOW));
        drop(dropping);
        assert_eq!(pages.lacking((0, 9000), NOW), [(0, 4096)], "filled behind the invalidation");
        assert_eq!(pages.lacking((0, 9000), NOW + ARRIVED), []);
    }

    #[test]
    fn requests_in_service_keep_their_pages_locked() {
        let pages = pages();
        let read = pages.read((10, 20), NOW);
        assert!(pages.is_in_service((4000, 4001)) && !pages.is_in_service((4096, 4097)));
        drop(read);
        assert!(!pages.is_in_service((0, 1)));
        let (_back, _) = pages.write_back((4096, 8192));
        assert!(pages.is_in_service((4096, 4097)));
    }

    #[test]
    fn store_is_refused_during_a_change_or_an_open_for_writing() {
        let pages = pages();
        let change = now(pages.change((4000, u64::MAX))).expect("nothing is stored");
        assert!(pages.store((4095, 4096)).is_none());
        drop(change);
        let opening = now(pages.open_to_write()).expect("nothing is stored");
        assert!(pages.store((4095, 4096)).is_none());
        drop(opening);
        let storing = pages.store((4095, 4096)).expect("nothing is in the way");
        assert!(pages.is_stored_into((0, 8)) && !pages.is_stored_into((4096, 8192)));
        assert!(now(pages.change((4095, 4096))).is_none(), "it waits for the store");
        drop(storing);
        assert!(now(pages.change((4095, 4096))).is_some());
    }

    #[test]
    fn write_back_leaves_newer_bytes_unchanged() {
        let pages = pages();
        let write = pages.overwrite((8, 16));
        let (_back, parts) = pages.write_back((0, 4096));
        assert_eq!(parts, [(0, 8), (16, 4096)]);
        drop(write);
        assert_eq!(pages.write_back((0, 4096)).1, [(0, 4096)]);
    }
}
