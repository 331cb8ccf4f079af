//! Open files and directories.
//!
//! Invariants:
//! - a handle's number is not reused while its old holder could still use it: numbers only grow;
//! - an open file is counted in its inode.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use env::Join;
use proto::mds::Reply;
use types::{Fault, HashMap, Ino, LockOwner};

use crate::api::{Handle, OpenFlags};
use crate::inode::Inode;

/// An open file.
pub(crate) struct OpenFile {
    pub inode: Rc<Inode>,
    pub flags: OpenFlags,
    /// The kernel bypasses its page cache.
    pub direct: bool,
    /// How many failures of write-back this handle has reported.
    pub reported: Cell<u64>,
    /// Owners that took locks through it (with `flock`?), and may rely on them.
    pub lockers: RefCell<Vec<(bool, LockOwner)>>,
}

impl OpenFile {
    /// `owner` is about to take a lock through it.
    pub fn note_locker(&self, flock: bool, owner: LockOwner) {
        let mut lockers = self.lockers.borrow_mut();
        if !lockers.contains(&(flock, owner)) {
            lockers.push((flock, owner));
        }
    }
}

/// An open directory, with the part of the listing that was fetched last.
pub(crate) struct OpenDir {
    pub inode: Rc<Inode>,
    /// How many losses of sessions this handle has reported.
    pub reported: Cell<u64>,
    pub fetched: RefCell<Option<FetchedListing>>,
    /// The next part, while it is read ahead.
    pub ahead: RefCell<Option<ListingAhead>>,
}

/// A part of a listing that is fetched before the kernel asks for it.
pub(crate) struct ListingAhead {
    /// Entries after this cookie.
    pub from: u64,
    /// With attributes?
    pub plus: bool,
    pub answer: Join<Result<FetchedListing, Fault>>,
}

impl ListingAhead {
    /// Does it hold the entries after `after`?
    pub fn matches(&self, after: u64, plus: bool) -> bool {
        self.from == after && self.plus == plus
    }
}

impl OpenDir {
    /// If the part after `after` has arrived, makes it the current part.
    pub fn advance(&self, after: u64, plus: bool) -> bool {
        let ready =
            |ahead: &mut ListingAhead| ahead.matches(after, plus) && ahead.answer.is_ready();
        let ahead = self.ahead.borrow_mut().take_if(ready);
        let Some(Ok(fetched)) = ahead.and_then(|ahead| ahead.answer.take()) else { return false };
        *self.fetched.borrow_mut() = Some(fetched);
        true
    }
}

/// A fetched part of a listing.
#[derive(Clone)]
pub(crate) struct FetchedListing {
    /// The listing after this cookie …
    pub from: u64,
    /// … is what this reply's first result says.
    pub reply: Rc<Reply>,
    /// The inodes of its entries, if they were looked up during read-ahead.
    pub inodes: Option<Rc<EntryInodes>>,
}

/// The inodes of the entries of a part at one moment.
pub(crate) struct EntryInodes {
    /// [`Names::change_count`] of the directory at that moment.
    ///
    /// [`Names::change_count`]: crate::names::Names::change_count
    pub change_count: u64,
    /// For each entry its inode, if its name led there.
    pub each: Vec<Option<Rc<Inode>>>,
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

    /// Adds an open file.
    pub fn add_file(&self, file: OpenFile) -> Handle {
        self.add(Open::File(Rc::new(file)))
    }

    /// Adds an open directory; `losses`: how many sessions had been lost with changes by then.
    pub fn add_dir(&self, inode: Rc<Inode>, losses: u64) -> Handle {
        let reported = Cell::new(losses);
        let (fetched, ahead) = (RefCell::new(None), RefCell::new(None));
        self.add(Open::Dir(Rc::new(OpenDir { inode, reported, fetched, ahead })))
    }

    /// The directory lives at another server from now on, whose sessions were lost `to` times with
    /// changes, those of the former one `from` times. What a handle has still to report it reports.
    pub fn rehome(&self, ino: Ino, from: u64, to: u64) {
        for open in self.map.borrow().values() {
            if let Open::Dir(dir) = open
                && dir.inode.ino == ino
            {
                dir.reported.update(|reported| to.wrapping_sub(from.wrapping_sub(reported)));
            }
        }
    }

    /// The open file.
    ///
    /// # Errors
    /// `Stale` if its creation was lost.
    pub fn file(&self, handle: Handle) -> Result<Rc<OpenFile>, Fault> {
        let file = self.any_file(handle)?;
        if file.inode.is_lost() { Err(Fault::Stale) } else { Ok(file) }
    }

    /// The open file, even if its creation was lost.
    pub fn any_file(&self, handle: Handle) -> Result<Rc<OpenFile>, Fault> {
        match self.map.borrow().get(&handle.0) {
            Some(Open::File(file)) => Ok(file.clone()),
            _ => Err(Fault::Invalid),
        }
    }

    /// The open directory.
    ///
    /// # Errors
    /// As [`Handles::file`].
    pub fn dir(&self, handle: Handle) -> Result<Rc<OpenDir>, Fault> {
        match self.map.borrow().get(&handle.0) {
            Some(Open::Dir(dir)) if dir.inode.is_lost() => Err(Fault::Stale),
            Some(Open::Dir(dir)) => Ok(dir.clone()),
            _ => Err(Fault::NotDirectory),
        }
    }

    /// The inode behind any handle.
    ///
    /// # Errors
    /// As [`Handles::file`].
    pub fn ino(&self, handle: Handle) -> Result<Ino, Fault> {
        let map = self.map.borrow();
        let inode = match map.get(&handle.0) {
            Some(Open::File(file)) => &file.inode,
            Some(Open::Dir(dir)) => &dir.inode,
            None => return Err(Fault::Invalid),
        };
        if inode.is_lost() { Err(Fault::Stale) } else { Ok(inode.ino) }
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

    /// May there be a mapping that a process stores into?
    pub fn may_be_mapped_writable(&self) -> bool {
        self.map.borrow().values().any(|open| match open {
            Open::File(file) => file.flags.read_write() && file.inode.has_pages(),
            Open::Dir(_) => false,
        })
    }

    /// The number of open handles.
    pub fn len(&self) -> usize {
        self.map.borrow().len()
    }
}
