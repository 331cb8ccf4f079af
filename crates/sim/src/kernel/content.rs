//! Content through the kernel's page cache, as FUSE handles it without a write-back cache.
//!
//! Invariants:
//! - a page that is not up to date is locked until the answer to its request is applied. An
//!   up-to-date page shows a process's write before the client has it;
//! - a different size in an answer truncates the pages and drops them;
//! - a read at the end of the file known to the kernel requests the size first.

use std::rc::Rc;

use client::{Handle, ReadData, WriteFlags};
use types::limits::BLOCK_U64;
use types::{Fault, Ino};

use crate::kernel::Caches;
use crate::kernel::cache::Snapshot;
use crate::kernel::calls::{ReadingAhead, Refs};
use crate::kernel::pages::{Locked, Page, Pages};
use crate::kernel::vfs::{AttrReply, Vfs};

/// Most pages that one request fills.
const AHEAD_MAX: u64 = 4;

/// The result of a read.
pub struct Bytes {
    /// The bytes; fewer than requested only at the end of the file.
    pub bytes: Vec<u8>,
    /// Another process of this kernel changed the file meanwhile, or the kernel may have old
    /// content: the bytes may be of any time.
    pub racy: bool,
}

impl Vfs {
    /// read(2) through pages.
    ///
    /// # Errors
    /// Those of the client.
    pub async fn read_pages(
        &self,
        (ino, handle): (Ino, Handle),
        offset: u64,
        len: u64,
    ) -> Result<Bytes, Fault> {
        let pages = self.pages(ino);
        let before = pages.changing.get();
        // Pages may be old after the lease ended, until the kernel is notified.
        let leased = !self.client().lease_left().is_zero();
        let lost_shown = self.caches.may_show_lost_data(ino);
        let end = offset + len;
        // Linux ignores a size that it does not apply: it reads up to the old end.
        let sized = end <= self.size(ino) || {
            let AttrReply { attr, kept, .. } = self.getattr_to_read(ino, handle).await?;
            kept && attr.size == self.size(ino)
        };
        // Another process may have requested attributes, or changed them, before this read, with
        // the answer now.
        let updates = pages.size_updates.get();
        let mut read = self.copy_out((ino, handle), &pages, offset, end).await?;
        // After forgetting the inode, the kernel may also have a size from before its own change.
        let sized = sized
            && !self.cache(|cache| cache.is_older(ino))
            && pages.uncertain_size.get() != Some(self.size(ino))
            && pages.size_updates.get() == updates;
        let changed = before.0 > 0 || before != pages.changing.get();
        read.racy |= changed || !leased || lost_shown || !sized;
        Ok(read)
    }

    async fn copy_out(
        &self,
        (ino, handle): (Ino, Handle),
        pages: &Rc<Pages>,
        offset: u64,
        end: u64,
    ) -> Result<Bytes, Fault> {
        let (mut at, mut out) = (offset, Bytes { bytes: Vec::new(), racy: false });
        while at < end && at < self.size(ino) {
            let index = at / BLOCK_U64;
            let Some(page) = pages.get(index).filter(|page| page.is_up_to_date()) else {
                self.fill((ino, handle), pages, index).await?;
                continue;
            };
            let first = index * BLOCK_U64;
            let to = end.min(first + BLOCK_U64).min(self.size(ino));
            if to <= at {
                break;
            }
            // Further fills may change it.
            out.racy |= pages.uncertain_size.get() == Some(self.size(ino));
            out.bytes.extend(page.copy((at - first) as usize, (to - at) as usize));
            at = to;
            if at % BLOCK_U64 != 0 {
                break;
            }
        }
        Ok(out)
    }

    /// Fills a page, and perhaps missing ones after it. The answer may show the size. If an
    /// invalidation overtook it, Linux keeps the old size and shows zeros up to it.
    pub(super) async fn fill(
        &self,
        (ino, handle): (Ino, Handle),
        pages: &Rc<Pages>,
        index: u64,
    ) -> Result<(), Fault> {
        let mut locked = vec![pages.lock(index).await];
        if locked[0].page.is_up_to_date() {
            return Ok(());
        }
        let known = self.size(ino).div_ceil(BLOCK_U64);
        let ahead = 1 + self.chance(AHEAD_MAX);
        for next in (index + 1..index + ahead).take_while(|next| *next < known) {
            match pages.add(next) {
                Some(page) => locked.push(page),
                None => break,
            }
        }
        let asked = self.ask();
        let (from, len) = (index * BLOCK_U64, locked.len() as u64 * BLOCK_U64);
        let client = self.client().clone();
        let read = async move { client.read(handle, from, len as u32, true).await };
        if locked.len() == 1 {
            let answer = self.call(read, |_| Refs::Nothing, &Rc::new(())).await;
            return self.filled((ino, pages), (from, len), &locked, (asked, answer)).await;
        }
        // The kernel itself waits for these, and they stay locked.
        let (this, pages) = (self.clone(), pages.clone());
        let reading = ReadingAhead::new(&self.caches, handle);
        self.read_ahead(async move {
            let _reading = reading;
            let answer = read.await;
            this.filled((ino, &pages), (from, len), &locked, (asked, answer)).await
        })
        .await
    }

    /// Applies the answer to locked pages.
    async fn filled(
        &self,
        (ino, pages): (Ino, &Rc<Pages>),
        (from, len): (u64, u64),
        locked: &[Locked],
        (asked, answer): (Snapshot, Result<ReadData, Fault>),
    ) -> Result<(), Fault> {
        self.wake().await;
        let bytes = answer?.to_vec();
        let end = from + bytes.len() as u64;
        let ends = end < from + len && end < self.size(ino);
        if ends && self.cache(|cache| cache.is_newer(ino, asked)) {
            pages.uncertain_size.set(Some(self.size(ino)));
        } else if ends {
            // An empty answer shows only that the end is not behind it.
            let uncertain = bytes.is_empty() && pages.uncertain_size.get() == Some(self.size(ino));
            self.cache(|cache| cache.set_size(ino, end));
            pages.uncertain_size.set(uncertain.then_some(end));
        }
        for (nth, Locked { page, .. }) in locked.iter().enumerate() {
            let from = (nth as u64 * BLOCK_U64) as usize;
            let part = bytes.get(from..).unwrap_or_default();
            page.put(0, &[0; BLOCK_U64 as usize]);
            page.put(0, &part[..part.len().min(BLOCK_U64 as usize)]);
            page.set_up_to_date(true);
        }
        Ok(())
    }

    /// One request of a write(2) through pages, under the inode's lock, from `offset` on. Returns
    /// how far it went, whether write-back of a mapping's stores may have carried its bytes
    /// meanwhile, and the result.
    pub async fn write_pages(
        &self,
        (ino, handle): (Ino, Handle),
        offset: u64,
        data: &[u8],
    ) -> (u64, bool, Result<(), Fault>) {
        let pages = self.pages(ino);
        let end = offset + data.len() as u64;
        let grows = end > self.size(ino);
        if grows {
            self.cache(|cache| cache.size_changing(ino, 1));
        }
        let changing = Rc::new((self.changes(ino), Pages::change(&pages)));
        let (touched, held, to) = copy_in(&pages, offset, data).await;
        let len = (to - offset) as usize;
        let mut buffer = self.buffer(len);
        buffer.copy_from_slice(&data[..len]);
        self.ask();
        let flags = WriteFlags::default();
        let written = self.send_write(handle, (offset, buffer, len), flags, &changing).await;
        self.wake().await;
        let carried = touched.iter().any(|(page, before)| page.times_cleaned() > *before);
        let touched: Vec<Rc<Page>> = touched.into_iter().map(|(page, _)| page).collect();
        if written.is_err() {
            touched.iter().for_each(|page| page.set_up_to_date(false));
            // Stores of mappings in these pages are lost with it.
            if touched.iter().filter(|page| page.set_dirty(false)).count() > 0 {
                self.caches.lose_stores(ino, &pages);
            }
        }
        drop(held);
        self.cache(|cache| match written {
            Ok(()) if to > cache.size(ino) => cache.set_size(ino, to),
            _ => _ = cache.invalidate(ino),
        });
        self.cache(|cache| cache.changed(ino));
        if grows {
            self.cache(|cache| cache.size_changing(ino, -1));
        }
        (to, carried, written)
    }

    /// An answer changed the size of a file from `old`. Linux truncates its pages and drops the
    /// others, as Redbud does not ask for EXPLICIT_INVAL_DATA. It does so after applying the size.
    /// So later writes may be truncated too, and look so until the pages are dropped.
    pub async fn resized(&self, ino: Ino, old: u64) {
        let size = self.size(ino);
        if let Some(pages) = self.known_pages(ino)
            && size != old
        {
            pages.size_updates.set(pages.size_updates.get() + 1);
            let _cutting = Pages::change(&pages);
            pages.truncate(size, u64::MAX).await;
            self.invalidate(ino, 0, u64::MAX).await;
        }
    }
}

impl Caches {
    /// FUSE_NOTIFY_STORE of bytes within one page: the size grows at once. The page becomes up to
    /// date if they begin it and the file ends in it. `false`: the kernel does not know the inode.
    pub(super) async fn apply_store(&self, ino: Ino, offset: u64, bytes: &[u8]) -> bool {
        if self.0.cache.borrow().kind(ino).is_none() {
            return false;
        }
        let end = offset + bytes.len() as u64;
        let ends = end >= self.0.cache.borrow().size(ino);
        if end > self.0.cache.borrow().size(ino) {
            self.0.cache.borrow_mut().set_size(ino, end);
        }
        let Some(pages) = self.known_pages(ino) else { return true };
        if pages.uncertain_size.get().is_some_and(|size| size < end) {
            pages.uncertain_size.set(None);
        }
        let (index, at) = (offset / BLOCK_U64, (offset % BLOCK_U64) as usize);
        let locked = pages.lock(index).await;
        locked.page.put(at, bytes);
        if at == 0 && ends && !locked.page.is_up_to_date() {
            locked.page.set_up_to_date(true);
        }
        true
    }
}

/// Copies one request's bytes into pages: up to a page that is not up to date, which stays locked.
/// Returns the pages, and how often each had been cleaned; the locked one; how far it went.
async fn copy_in(
    pages: &Pages,
    offset: u64,
    data: &[u8],
) -> (Vec<(Rc<Page>, u64)>, Option<Locked>, u64) {
    let end = offset + data.len() as u64;
    let (mut at, mut touched) = (offset, Vec::new());
    while at < end {
        let first = at / BLOCK_U64 * BLOCK_U64;
        let to = end.min(first + BLOCK_U64);
        let locked = pages.lock(at / BLOCK_U64).await;
        let page = locked.page.clone();
        drop(page.writing.lock().await);
        page.put((at - first) as usize, &data[(at - offset) as usize..(to - offset) as usize]);
        if to - at == BLOCK_U64 {
            page.set_up_to_date(true);
        }
        touched.push((page.clone(), page.times_cleaned()));
        at = to;
        if !page.is_up_to_date() {
            return (touched, Some(locked), at);
        }
        // The next page begins another request, unless this one was written to its end.
        if at % BLOCK_U64 != 0 {
            break;
        }
    }
    (touched, None, at)
}
