//! Sparse disk content that is cheap to copy.
//!
//! Invariant: a page in neither layer is zero; copies share `base` and never change it in place
//! while it is shared.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

pub(crate) const PAGE: usize = 4096;
/// The unit at which a write may be torn.
pub(crate) const SECTOR: usize = 512;

/// Private pages that a copy may have before they are merged into the shared layer.
const TOP_PAGES_MAX: usize = 512;
/// Up to this many private pages are copied; more are merged and shared.
const COPIED_PAGES_MAX: usize = 64;

pub(crate) type Page = Arc<[u8; PAGE]>;

static ZERO: LazyLock<Page> = LazyLock::new(|| Arc::new([0; PAGE]));

/// The page of zeros.
pub(crate) fn zero_page() -> Page {
    ZERO.clone()
}

/// `bytes`, which fill whole pages, as pages. All pages of zeros are one page in memory.
pub(crate) fn pages_of(bytes: &[u8]) -> Vec<Page> {
    let page = |page: &[u8; PAGE]| if *page == **ZERO { zero_page() } else { Arc::new(*page) };
    bytes.as_chunks::<PAGE>().0.iter().map(page).collect()
}

/// See the module.
#[derive(Clone, Default)]
pub(crate) struct Image {
    base: Arc<BTreeMap<u64, Page>>,
    /// Pages of this copy alone; they override those of `base`.
    top: BTreeMap<u64, Page>,
}

impl Image {
    pub(crate) fn page(&self, index: u64) -> Option<&Page> {
        self.top.get(&index).or_else(|| self.base.get(&index))
    }

    pub(crate) fn set(&mut self, index: u64, page: Page) {
        if let Some(base) = Arc::get_mut(&mut self.base) {
            self.top.remove(&index);
            base.insert(index, page);
            return;
        }
        self.top.insert(index, page);
        if self.top.len() > TOP_PAGES_MAX {
            self.merge();
        }
    }

    /// A copy; cheap, because large private layers are merged first.
    pub(crate) fn copy(&mut self) -> Image {
        if self.top.len() > COPIED_PAGES_MAX {
            self.merge();
        }
        self.clone()
    }

    fn merge(&mut self) {
        let top = std::mem::take(&mut self.top);
        Arc::make_mut(&mut self.base).extend(top);
    }

    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) {
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            let within = (at % PAGE as u64) as usize;
            let len = (PAGE - within).min(into.len() - done);
            let piece = &mut into[done..done + len];
            match self.page(at / PAGE as u64) {
                Some(page) => piece.copy_from_slice(&page[within..within + len]),
                None => piece.fill(0),
            }
            done += len;
        }
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let within = (at % PAGE as u64) as usize;
            let len = (PAGE - within).min(bytes.len() - done);
            let index = at / PAGE as u64;
            let mut page = self.page(index).map_or([0; PAGE], |page| **page);
            page[within..within + len].copy_from_slice(&bytes[done..done + len]);
            self.set(index, Arc::new(page));
            done += len;
        }
    }

    /// Pages that were ever written.
    pub(crate) fn pages(&self) -> usize {
        self.base.len() + self.top.keys().filter(|index| !self.base.contains_key(index)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_zeros_share_their_memory() {
        let mut bytes = vec![0; 3 * PAGE];
        bytes[PAGE + 5] = 1;
        let pages = pages_of(&bytes);
        assert!(Arc::ptr_eq(&pages[0], &pages[2]) && !Arc::ptr_eq(&pages[0], &pages[1]));
        let mut image = Image::default();
        for (index, page) in (0..).zip(pages) {
            image.set(index, page);
        }
        image.write(1, &[7]);
        let mut read = vec![9; 3 * PAGE];
        image.read(0, &mut read);
        bytes[1] = 7;
        assert_eq!(read, bytes, "and a change of one leaves the others");
    }
}
