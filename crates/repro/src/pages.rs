//! The kernel's pages of a client in virtual time: which files they hold whole. Their content is
//! not kept: it is zeros.
//!
//! Invariant: a file is held only while the client has not asked for its pages back.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::{Future, ready};
use std::pin::Pin;

use client::Kernel;
use types::Ino;

/// See the module.
#[derive(Default)]
pub struct Pages(RefCell<BTreeSet<Ino>>);

type Local = Pin<Box<dyn Future<Output = ()>>>;

impl Pages {
    /// Are all pages of the file there?
    pub fn hold(&self, ino: Ino) -> bool {
        self.0.borrow().contains(&ino)
    }

    /// All pages of the file are there.
    pub fn keep(&self, ino: Ino) {
        self.0.borrow_mut().insert(ino);
    }

    /// No page of the file is there.
    pub fn drop_of(&self, ino: Ino) {
        self.0.borrow_mut().remove(&ino);
    }

    /// No page is there.
    pub fn drop_all(&self) {
        self.0.borrow_mut().clear();
    }

    fn dropped(&self, ino: Ino) -> Local {
        self.drop_of(ino);
        Box::pin(ready(()))
    }
}

impl Kernel for Pages {
    fn inc_epoch(&self) -> Local {
        Box::pin(ready(()))
    }
    fn inval_attr(&self, _: Ino) -> Local {
        Box::pin(ready(()))
    }
    fn inval_pages(&self, ino: Ino, _: u64, _: u64) -> Local {
        self.dropped(ino)
    }
    fn inval_pages_outside_recall(&self, ino: Ino, _: u64, _: u64) -> Local {
        self.dropped(ino)
    }
    fn drop_stale_pages(&self, ino: Ino, _: u64, _: u64) -> Local {
        self.dropped(ino)
    }
    fn store(&self, _: Ino, _: u64, _: &[u8]) -> Local {
        Box::pin(ready(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_the_client_asks_back_are_gone() {
        let (pages, [one, other]) = (Pages::default(), [Ino(7), Ino(8)]);
        pages.keep(one);
        pages.keep(other);
        drop(pages.inval_pages(one, 0, 4096));
        assert!(!pages.hold(one) && pages.hold(other));
        pages.drop_all();
        assert!(!pages.hold(other));
    }
}
