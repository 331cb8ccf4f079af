//! The kernel's pages of one file.
//!
//! Invariants:
//! - a page is filled, changed, zeroed and dropped under its lock, and read only while it is up to
//!   date;
//! - after waiting for a lock, the holder checks whether the page still belongs to the file;
//! - nobody waits for a page while holding another, with two exceptions. A reader's further pages
//!   are new, and write-back protects the pages that it holds from stores;
//! - a page with stores of a mapping is changed, zeroed and dropped only while nobody writes it
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
    /// A mapping stored bytes that the client does not have.
    dirty: Cell<bool>,
    /// How often it was clean again: sent for write-back, or lost.
    cleaned: Cell<u64>,
    /// Held during write-back, until the answer.
    pub writing: AsyncMutex,
    /// It no longer belongs to the file.
    dropped: Cell<bool>,
}

impl Page {
    /// A copy of `len` bytes from `from` on.
    pub fn copy(&self, from: usize, len: usize) -> Vec<u8> {
        self.bytes.borrow()[from..from + len].to_vec()
    }

    /// Replaces bytes from `from` on.
    pub fn put(&self, from: usize, bytes: &[u8]) {
        self.bytes.borrow_mut()[from..from + bytes.len()].copy_from_slice(bytes);
    }

    /// Does it hold the file's bytes?
    pub fn is_up_to_date(&self) -> bool {
        self.up_to_date.get()
    }

    /// Has a mapping stored into it since its last write-back?
    pub fn is_dirty(&self) -> bool {
        self.dirty.get()
    }

    /// Sets it dirty after a store, or clean before write-back; returns whether it was dirty.
    pub fn set_dirty(&self, dirty: bool) -> bool {
        let before = self.dirty.replace(dirty);
        self.cleaned.set(self.cleaned.get() + u64::from(before && !dirty));
        before
    }

    /// How often it was clean again after a store.
    pub fn times_cleaned(&self) -> u64 {
        self.cleaned.get()
    }

    /// Sets whether it holds the file's bytes.
    pub fn set_up_to_date(&self, up_to_date: bool) {
        self.up_to_date.set(up_to_date);
    }
}

/// A locked page.
pub struct Locked {
    /// The page.
    pub page: Rc<Page>,
    _permit: Permit,
}

/// Most requests that write back at a time.
pub const SENDERS_MAX: usize = 1 << 16;

/// All pages of a file, by number.
pub struct Pages {
    pages: RefCell<BTreeMap<u64, Rc<Page>>>,
    /// A permit for each write-back request; a change of the size takes all.
    pub sending: Semaphore,
    /// Open files with writable mappings.
    pub mapped: RefCell<Vec<Handle>>,
    /// Stores into mappings so far.
    pub stores: Cell<u64>,
    /// Failed write-backs; `reported`: how many of these each open file has reported.
    failures: Cell<u64>,
    reported: RefCell<BTreeMap<Handle, u64>>,
    /// This kernel's content changes under way, and how many have begun.
    pub changing: Cell<(u32, u64)>,
    /// A size that an answer contradicted without being applied.
    pub uncertain_size: Cell<Option<u64>>,
    /// How often an answer about attributes has changed the size.
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
    /// The file was opened: this descriptor does not report earlier failures.
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

    /// Reports a failure that this descriptor has not reported yet, if there is one.
    pub fn report_failure(&self, handle: Handle) -> bool {
        let mut reported = self.reported.borrow_mut();
        let reported = reported.entry(handle).or_insert(self.failures.get());
        std::mem::replace(reported, self.failures.get()) < self.failures.get()
    }

    /// Describes the locked pages, and those being written back.
    pub fn held(&self) -> (Vec<u64>, Vec<u64>) {
        let pages = self.pages.borrow();
        let of = |held: fn(&Page) -> &AsyncMutex| {
            let held = pages.iter().filter(|(_, page)| held(page).try_lock().is_none());
            held.map(|(number, _)| *number).collect()
        };
        (of(|page| &page.lock), of(|page| &page.writing))
    }

    /// An existing page.
    pub fn get(&self, index: u64) -> Option<Rc<Page>> {
        self.pages.borrow().get(&index).cloned()
    }

    /// A new page, empty and locked; `None` if it exists.
    pub fn add(&self, index: u64) -> Option<Locked> {
        if self.pages.borrow().contains_key(&index) {
            return None;
        }
        let page = Rc::new(Page {
            lock: AsyncMutex::new(),
            bytes: RefCell::new(vec![0; BLOCK]),
            up_to_date: Cell::new(false),
            dirty: Cell::new(false),
            cleaned: Cell::new(0),
            writing: AsyncMutex::new(),
            dropped: Cell::new(false),
        });
        let permit = page.lock.try_lock()?;
        self.pages.borrow_mut().insert(index, page.clone());
        Some(Locked { page, _permit: permit })
    }

    /// A locked page, new if there was none.
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

    /// Truncates `[start, end)`: drops whole pages, zeroes parts of others.
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

    /// Drops pages selected by `takes` that nobody has locked or referenced: a write under way
    /// keeps its pages.
    pub fn shrink(&self, mut takes: impl FnMut() -> bool) {
        for index in self.numbers(0, u64::MAX) {
            let Some(page) = self.get(index) else { continue };
            // The references of the table, and this one.
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

    /// A locked page leaves the file.
    pub(super) fn drop_page(&self, index: u64, locked: &Locked) {
        locked.page.dropped.set(true);
        self.pages.borrow_mut().remove(&index);
    }

    /// The existing pages of `[from, to)`.
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

/// Locks a page. `None`: it was dropped meanwhile.
pub(super) async fn lock(page: Rc<Page>) -> Option<Locked> {
    let permit = page.lock.lock().await;
    let dropped = page.dropped.get();
    (!dropped).then_some(Locked { page, _permit: permit })
}
