//! The pages that a kernel keeps of one file.
//!
//! Invariants:
//! - a page is filled, changed, zeroed and dropped under its lock, and believed only while it is
//!   up to date;
//! - who waits for a lock looks again whether the page is still of the file;
//! - nobody waits for one page while holding another, but for a reader, whose further pages are
//!   new, and for who writes pages back, who holds what he has taken from being stored into;
//! - a page that a mapping has dirtied is changed, zeroed and dropped only while nobody writes it
//!   back.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use client::Handle;
use env::sync::{AsyncMutex, Permit, Semaphore};
use types::limits::{BLOCK, BLOCK_U64};

/// One page.
pub struct Page {
    lock: AsyncMutex,
    bytes: RefCell<Vec<u8>>,
    up_to_date: Cell<bool>,
    /// A mapping has stored into it what the client does not have.
    dirty: Cell<bool>,
    /// Held by who writes it back, until that is answered.
    pub writing: AsyncMutex,
    /// It is of the file no more.
    dropped: Cell<bool>,
}

impl Page {
    /// Bytes from `from` on, as many as `into` takes.
    pub fn copy(&self, from: usize, len: usize) -> Vec<u8> {
        self.bytes.borrow()[from..from + len].to_vec()
    }

    /// Puts bytes in from `from` on.
    pub fn put(&self, from: usize, bytes: &[u8]) {
        self.bytes.borrow_mut()[from..from + bytes.len()].copy_from_slice(bytes);
    }

    /// Are its bytes those of the file?
    pub fn is_up_to_date(&self) -> bool {
        self.up_to_date.get()
    }

    /// Has a mapping stored into it since it was written back?
    pub fn is_dirty(&self) -> bool {
        self.dirty.get()
    }

    /// A mapping has stored into it, or (`false`) it is about to be written back. Was it dirty?
    pub fn set_dirty(&self, dirty: bool) -> bool {
        self.dirty.replace(dirty)
    }

    /// Its bytes are those of the file, or not.
    pub fn set_up_to_date(&self, up_to_date: bool) {
        self.up_to_date.set(up_to_date);
    }
}

/// A page that is locked.
pub struct Locked {
    /// The page.
    pub page: Rc<Page>,
    _permit: Permit,
}

/// Pages of a file that are sent back at a time, at most.
pub const SENDERS_MAX: usize = 1 << 16;

/// All pages of a file, by number.
pub struct Pages {
    pages: RefCell<BTreeMap<u64, Rc<Page>>>,
    /// A permit for each request that writes back; who changes the size has all of them.
    pub sending: Semaphore,
    /// Open files by which the file is mapped writable.
    pub mapped: RefCell<Vec<Handle>>,
    /// Stores into mappings so far.
    pub stores: Cell<u64>,
    /// How often write-back failed, and how many of these each open file has told.
    failures: Cell<u64>,
    reported: RefCell<BTreeMap<Handle, u64>>,
    /// Changes of the content by this kernel that are under way, and how many have begun.
    pub changing: Cell<(u32, u64)>,
    /// A size that an answer has told otherwise, which was not taken in.
    pub uncertain_size: Cell<Option<u64>>,
    /// How often an answer to a question for attributes, or to a change of them, has changed the
    /// size.
    pub size_updates: Cell<u64>,
}

impl Default for Pages {
    fn default() -> Pages {
        Pages {
            pages: RefCell::default(),
            sending: Semaphore::new(SENDERS_MAX),
            mapped: RefCell::default(),
            stores: Cell::new(0),
            failures: Cell::new(0),
            reported: RefCell::default(),
            changing: Cell::default(),
            uncertain_size: Cell::new(None),
            size_updates: Cell::new(0),
        }
    }
}

impl Pages {
    /// The file was opened: of what failed before, this descriptor tells nothing.
    pub fn opened(&self, handle: Handle) {
        self.reported.borrow_mut().insert(handle, self.failures.get());
    }

    /// A descriptor was closed.
    pub fn closed(&self, handle: Handle) {
        self.reported.borrow_mut().remove(&handle);
    }

    /// Write-back failed.
    pub fn failed(&self) {
        self.failures.set(self.failures.get() + 1);
    }

    /// Is there a failure of which this descriptor has not told? It does now.
    pub fn report_failure(&self, handle: Handle) -> bool {
        let mut reported = self.reported.borrow_mut();
        let reported = reported.entry(handle).or_insert(self.failures.get());
        std::mem::replace(reported, self.failures.get()) < self.failures.get()
    }

    /// The pages that are locked, and those that are being written back; for people.
    pub fn held(&self) -> (Vec<u64>, Vec<u64>) {
        let pages = self.pages.borrow();
        let of = |held: fn(&Page) -> &AsyncMutex| {
            let held = pages.iter().filter(|(_, page)| held(page).try_lock().is_none());
            held.map(|(number, _)| *number).collect()
        };
        (of(|page| &page.lock), of(|page| &page.writing))
    }

    /// A page that is there.
    pub fn get(&self, index: u64) -> Option<Rc<Page>> {
        self.pages.borrow().get(&index).cloned()
    }

    /// A page that was not there, empty and locked.
    pub fn add(&self, index: u64) -> Option<Locked> {
        if self.pages.borrow().contains_key(&index) {
            return None;
        }
        let page = Rc::new(Page {
            lock: AsyncMutex::new(),
            bytes: RefCell::new(vec![0; BLOCK]),
            up_to_date: Cell::new(false),
            dirty: Cell::new(false),
            writing: AsyncMutex::new(),
            dropped: Cell::new(false),
        });
        let permit = page.lock.try_lock()?;
        self.pages.borrow_mut().insert(index, page.clone());
        Some(Locked { page, _permit: permit })
    }

    /// A page, locked; made if it is not there.
    pub async fn lock(&self, index: u64) -> Locked {
        loop {
            if let Some(locked) = self.add(index) {
                return locked;
            }
            if let Some(page) = self.get(index)
                && let Some(locked) = lock(page).await
            {
                return locked;
            }
        }
    }

    /// The bytes `[start, end)` are zero or no more: whole pages go, of others a part is zeroed.
    pub async fn truncate(&self, start: u64, end: u64) {
        for index in self.numbers(start / BLOCK_U64, end.div_ceil(BLOCK_U64)) {
            let Some(page) = self.get(index) else { continue };
            let Some(locked) = lock(page).await else { continue };
            let _written = locked.page.writing.lock().await;
            let first = index * BLOCK_U64;
            let from = start.saturating_sub(first) as usize;
            let to = (end - first).min(BLOCK_U64) as usize;
            if to - from == BLOCK {
                self.drop_page(index, &locked);
            } else {
                locked.page.put(from, &vec![0; to - from]);
            }
        }
    }

    /// Drops what `takes`, and nobody has locked or at hand: what a write under way carries stays.
    pub fn shrink(&self, mut takes: impl FnMut() -> bool) {
        for index in self.numbers(0, u64::MAX) {
            let Some(page) = self.get(index) else { continue };
            // That of the table, and this one.
            let at_hand = Rc::strong_count(&page) > 2;
            if !at_hand
                && let Some(permit) = page.lock.try_lock()
                && !page.is_dirty()
                && page.writing.try_lock().is_some()
                && takes()
            {
                self.drop_page(index, &Locked { page: page.clone(), _permit: permit });
            }
        }
    }

    /// A locked page is of the file no more.
    pub(super) fn drop_page(&self, index: u64, locked: &Locked) {
        locked.page.dropped.set(true);
        self.pages.borrow_mut().remove(&index);
    }

    /// The pages that are there, of `[from, to)`.
    pub(super) fn numbers(&self, from: u64, to: u64) -> Vec<u64> {
        self.pages.borrow().range(from..to).map(|(index, _)| *index).collect()
    }

    /// This kernel begins to change the content, until the guard is dropped.
    pub fn change(this: &Rc<Pages>) -> Change {
        let (under_way, begun) = this.changing.get();
        this.changing.set((under_way + 1, begun + 1));
        Change(this.clone())
    }
}

/// A change of content under way.
pub struct Change(Rc<Pages>);

impl Drop for Change {
    fn drop(&mut self) {
        let (under_way, begun) = self.0.changing.get();
        self.0.changing.set((under_way - 1, begun));
    }
}

/// A page, locked. `None`: while this was waited for the page was dropped.
pub(super) async fn lock(page: Rc<Page>) -> Option<Locked> {
    let permit = page.lock.lock().await;
    let dropped = page.dropped.get();
    (!dropped).then_some(Locked { page, _permit: permit })
}
