//! Open files and directories.
//!
//! Invariants:
//! - a handle's number is not given out again while its old holder could still use it:
//!   numbers only grow;
//! - an open file's inode counts it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use proto::mds::Reply;
use types::{Fault, HashMap, Ino};

use crate::api::{Handle, OpenFlags};
use crate::inode::Inode;

/// An open file.
pub(crate) struct OpenFile {
    pub inode: Rc<Inode>,
    pub flags: OpenFlags,
    /// The kernel bypasses its page cache.
    pub direct: bool,
    /// Failures of write-behind that this handle has reported.
    pub reported: Cell<u64>,
}

/// An open directory: the part of the listing that was fetched last.
pub(crate) struct OpenDir {
    pub inode: Rc<Inode>,
    /// Losses of sessions that this handle has reported.
    pub reported: Cell<u64>,
    pub fetched: RefCell<Option<Fetched>>,
}

/// A fetched part of a listing.
#[derive(Clone)]
pub(crate) struct Fetched {
    /// The listing after this cookie …
    pub from: u64,
    /// … is what this reply's first result says.
    pub reply: Rc<Reply>,
}

enum Open {
    File(Rc<OpenFile>),
    Dir(Rc<OpenDir>),
}

/// All open handles.
#[derive(Default)]
pub(crate) struct Handles {
    map: RefCell<HashMap<u64, Open>>,
    last: Cell<u64>,
}

impl Handles {
    fn add(&self, open: Open) -> Handle {
        self.last.set(self.last.get() + 1);
        self.map.borrow_mut().insert(self.last.get(), open);
        Handle(self.last.get())
    }

    /// A file was opened.
    pub fn add_file(&self, file: OpenFile) -> Handle {
        self.add(Open::File(Rc::new(file)))
    }

    /// A directory was opened, when `losses` sessions had been lost with changes.
    pub fn add_dir(&self, inode: Rc<Inode>, losses: u64) -> Handle {
        let (reported, fetched) = (Cell::new(losses), RefCell::new(None));
        self.add(Open::Dir(Rc::new(OpenDir { inode, reported, fetched })))
    }

    /// The open file.
    pub fn file(&self, handle: Handle) -> Result<Rc<OpenFile>, Fault> {
        match self.map.borrow().get(&handle.0) {
            Some(Open::File(file)) => Ok(file.clone()),
            _ => Err(Fault::Invalid),
        }
    }

    /// The open directory.
    pub fn dir(&self, handle: Handle) -> Result<Rc<OpenDir>, Fault> {
        match self.map.borrow().get(&handle.0) {
            Some(Open::Dir(dir)) => Ok(dir.clone()),
            _ => Err(Fault::NotDirectory),
        }
    }

    /// The inode behind any handle.
    pub fn ino(&self, handle: Handle) -> Result<Ino, Fault> {
        match self.map.borrow().get(&handle.0) {
            Some(Open::File(file)) => Ok(file.inode.ino),
            Some(Open::Dir(dir)) => Ok(dir.inode.ino),
            None => Err(Fault::Invalid),
        }
    }

    /// Closes a file.
    pub fn remove_file(&self, handle: Handle) -> Option<Rc<OpenFile>> {
        match self.map.borrow_mut().remove(&handle.0) {
            Some(Open::File(file)) => Some(file),
            _ => None,
        }
    }

    /// Closes a directory.
    pub fn remove_dir(&self, handle: Handle) {
        self.map.borrow_mut().remove(&handle.0);
    }

    /// How many are open.
    pub fn len(&self) -> usize {
        self.map.borrow().len()
    }
}
