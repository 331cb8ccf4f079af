//! Stores into shared mappings, and their write-back by a kernel without a write-back cache.
//!
//! Invariants:
//! - a page is dirtied under its lock while nobody writes it back, and is clean during write-back;
//! - a dirty page is dropped only after write-back, or truncated with the file;
//! - nothing is sent while a request that changes the size is under way (`fuse_set_nowrite`);
//! - every descriptor that was open at a failed write-back reports it, at `fsync` or `close`.

use std::future::poll_fn;
use std::rc::Rc;

use client::{Caller, Handle, WriteFlags};
use types::limits::BLOCK_U64;
use types::{Duration, Fault, Ino};

use super::Caches;
use super::pages::{self, Page, Pages, SENDERS_MAX};
use super::vfs::Vfs;
use env::sync::Permit;

/// Most pages that one request writes back.
const BATCH_MAX: u64 = 4;
/// The kernel writes a dirty page back within this time.
const FLUSH_WITHIN_US: u64 = 30_000;

/// Operation number of the kernel's own requests.
const THE_KERNEL: u64 = u64::MAX;

/// Neighbouring pages of one write-back request.
struct Batch {
    /// The first byte.
    first: u64,
    bytes: Vec<u8>,
    held: Vec<(Rc<Page>, Permit)>,
}

impl Caches {
    /// Drops all pages that bytes `[start, end)` touch, after writing dirty ones back.
    pub(crate) async fn invalidate(&self, ino: Ino, start: u64, end: u64) {
        let Some(pages) = self.known_pages(ino) else { return };
        for index in pages.numbers(start / BLOCK_U64, end.div_ceil(BLOCK_U64)) {
            let Some(page) = pages.get(index) else { continue };
            let Some(locked) = pages::lock(page.clone()).await else { continue };
            let writing = page.writing.lock().await;
            if page.set_dirty(false) {
                let bytes = page.copy(0, BLOCK_U64 as usize);
                let held = vec![(page, writing)];
                self.send(ino, &pages, Batch { first: index * BLOCK_U64, bytes, held }).await;
            }
            pages.drop_page(index, &locked);
        }
    }

    /// The pages of a file, if it has had any.
    pub(crate) fn known_pages(&self, ino: Ino) -> Option<Rc<Pages>> {
        self.0.pages.borrow().get(&ino).cloned()
    }

    /// Writes dirty pages of bytes `[start, end)` back, and waits for others' write-back of them.
    pub(crate) async fn write_back(&self, ino: Ino, start: u64, end: u64) {
        let Some(pages) = self.known_pages(ino) else { return };
        let mut left =
            pages.numbers(start / BLOCK_U64, end.div_ceil(BLOCK_U64)).into_iter().peekable();
        while let Some(index) = left.next() {
            let Some(held) = dirty(&pages, index).await else { continue };
            let mut batch = Batch { first: index * BLOCK_U64, bytes: Vec::new(), held: Vec::new() };
            batch.add(held);
            let most = index + 1 + self.chance(BATCH_MAX);
            for next in index + 1..most {
                if left.next_if_eq(&next).is_none() {
                    break;
                }
                match dirty(&pages, next).await {
                    Some(held) => batch.add(held),
                    None => break,
                }
            }
            self.send(ino, &pages, batch).await;
        }
    }

    /// Sends pages to the client, up to the end of the file.
    async fn send(&self, ino: Ino, pages: &Pages, batch: Batch) {
        let _sending = pages.sending.acquire(1).await;
        let size = self.0.cache.borrow().size(ino);
        let len = size.saturating_sub(batch.first).min(batch.bytes.len() as u64) as usize;
        let (client, handle) =
            (self.0.client.borrow().clone(), pages.mapped.borrow().last().copied());
        if len == 0 {
            return;
        }
        let (Some(client), Some(handle)) = (client, handle) else {
            return self.unwritten(ino, pages, &batch);
        };
        let mut buffer = self.0.env.buffer(len);
        buffer.copy_from_slice(&batch.bytes[..len]);
        let flags = WriteFlags { write_back_cache: true, ..WriteFlags::default() };
        let asked = client.clone();
        let mut written = Box::pin(async move {
            asked.write(&Caller::default(), handle, batch.first, buffer, len, flags).await
        });
        // Write-back is a request of its own: the caller's request may be abandoned.
        let answer = poll_fn(|cx| client.step(THE_KERNEL, || written.as_mut().poll(cx))).await;
        self.wake().await;
        self.0.cache.borrow_mut().changed(ino);
        if answer != Ok(len as u32) {
            self.unwritten(ino, pages, &batch);
        }
    }

    fn unwritten(&self, ino: Ino, pages: &Pages, batch: &Batch) {
        batch.held.iter().for_each(|(page, _)| page.set_up_to_date(false));
        self.lose_stores(ino, pages);
    }

    /// Stores of mappings into pages of a file are lost.
    pub(super) fn lose_stores(&self, ino: Ino, pages: &Pages) {
        pages.failed();
        if let Some(unwritten) = &*self.0.unwritten.borrow() {
            unwritten(ino);
        }
    }
}

impl Batch {
    fn add(&mut self, held: (Rc<Page>, Permit)) {
        self.bytes.extend(held.0.copy(0, BLOCK_U64 as usize));
        self.held.push(held);
    }
}

/// A dirty page, about to be written back, after earlier write-back of it has ended.
async fn dirty(pages: &Pages, index: u64) -> Option<(Rc<Page>, Permit)> {
    let page = pages.get(index)?;
    let _locked = pages::lock(page.clone()).await?;
    let writing = page.writing.lock().await;
    page.set_dirty(false).then_some((page, writing))
}

impl Vfs {
    /// Writes dirty pages of bytes `[start, end)` back.
    pub async fn write_back(&self, ino: Ino, start: u64, end: u64) {
        self.caches.write_back(ino, start, end).await;
    }

    /// Drops pages, after writing dirty ones back.
    pub async fn invalidate(&self, ino: Ino, start: u64, end: u64) {
        self.caches.invalidate(ino, start, end).await;
    }

    /// Stores `bytes` at `offset`, within a page, into a mapping of the open file. `false`: not
    /// stored. The offset is behind the end known to the kernel (SIGBUS), the page cannot be read,
    /// or this kernel is changing the file.
    pub async fn store(&self, (ino, handle): (Ino, Handle), offset: u64, bytes: &[u8]) -> bool {
        let pages = self.pages(ino);
        let (index, at) = (offset / BLOCK_U64, (offset % BLOCK_U64) as usize);
        loop {
            let page = match pages.get(index).filter(|page| page.is_up_to_date()) {
                Some(page) => page,
                None if offset >= self.size(ino) => return false,
                None => match self.fill((ino, handle), &pages, index).await {
                    Ok(()) => continue,
                    Err(_) => return false,
                },
            };
            let Some(_locked) = pages::lock(page.clone()).await else { continue };
            let _written = page.writing.lock().await;
            if !page.is_up_to_date() {
                continue;
            }
            let known = pages.uncertain_size.get() != Some(self.size(ino));
            let within = offset + bytes.len() as u64 <= self.size(ino);
            if !within || !known || self.caches.is_changing(ino) {
                return false;
            }
            page.put(at, bytes);
            page.set_dirty(true);
            pages.stores.set(pages.stores.get() + 1);
            let mut mapped = pages.mapped.borrow_mut();
            if !mapped.contains(&handle) {
                mapped.push(handle);
            }
            return true;
        }
    }

    /// The number of stores into mappings of a file.
    pub fn stores(&self, ino: Ino) -> u64 {
        self.known_pages(ino).map_or(0, |pages| pages.stores.get())
    }

    /// A file was opened.
    pub(super) fn opened(&self, ino: Ino, handle: Handle) {
        if self.caches() {
            self.pages(ino).opened(handle);
        }
    }

    /// The kernel writes dirty pages of a file back some time later.
    pub fn write_back_later(&self, ino: Ino) {
        let (caches, wait) = (self.caches.clone(), self.chance(FLUSH_WITHIN_US));
        self.caches.0.env.spawn(async move {
            caches.0.env.sleep(Duration::from_micros(wait)).await;
            caches.write_back(ino, 0, u64::MAX).await;
        });
    }

    /// What `fsync` of a descriptor does before the client's request.
    ///
    /// # Errors
    /// `Io` if write-back failed since the descriptor's last report.
    pub async fn sync_pages(&self, ino: Ino, handle: Handle) -> Result<(), Fault> {
        let Some(pages) = self.known_pages(ino) else { return Ok(()) };
        self.write_back(ino, 0, u64::MAX).await;
        if pages.report_failure(handle) { Err(Fault::Io) } else { Ok(()) }
    }

    /// Writes all stores of mappings back.
    pub async fn write_back_all(&self) {
        let inos: Vec<Ino> = self.caches.0.pages.borrow().keys().copied().collect();
        for ino in inos {
            self.write_back(ino, 0, u64::MAX).await;
        }
    }

    /// A descriptor's last mapping is removed, and then the descriptor: its stores are written
    /// back.
    pub(super) async fn unmap(&self, ino: Ino, handle: Handle) {
        let Some(pages) = self.known_pages(ino) else { return };
        self.write_back(ino, 0, u64::MAX).await;
        pages.mapped.borrow_mut().retain(|other| *other != handle);
        // Requests by this descriptor end first.
        drop(pages.sending.acquire(SENDERS_MAX).await);
        pages.closed(handle);
    }
}
