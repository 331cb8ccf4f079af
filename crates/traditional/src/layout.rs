//! What a layout of names and inodes does.
//!
//! Invariants:
//! - each call is the body of a transaction or part of one: it may be made again, and then only the
//!   last call counts;
//! - what a metadata server adds to a change (times of the directory, links of its parent) is done
//!   here, so that a transaction writes what the server's would.

use mfs::{DirEntry, NewInode, Stop, Txn};
use types::{Attr, ClientId, FileKind, Ino, Name, Segment, Timestamp};

/// How a directory is listed.
#[derive(Clone, Copy, Debug)]
pub struct Listing {
    /// Cookie of the entry after which to go on; 0: from the beginning.
    pub after: u64,
    /// Entries at most, about.
    pub max: usize,
    /// Are the attributes wanted?
    pub attrs: bool,
}

/// A layout on a store.
pub trait Layout {
    /// A word for tables.
    fn text(&self) -> &'static str;

    /// Makes an inode, not a directory, under a new name.
    ///
    /// # Errors
    /// `Exists`, `NotDirectory`, `NotFound` if `dir` is gone, `NoSpace`.
    fn create(
        &self,
        txn: &mut Txn<'_>,
        dir: Ino,
        name: &Name,
        new: &NewInode<'_>,
    ) -> Result<Ino, Stop>;

    /// Makes a directory.
    ///
    /// # Errors
    /// As [`Layout::create`].
    fn mkdir(
        &self,
        txn: &mut Txn<'_>,
        dir: Ino,
        name: &Name,
        new: &NewInode<'_>,
    ) -> Result<Ino, Stop>;

    /// The inode that a name leads to.
    ///
    /// # Errors
    /// `NotDirectory`, `NotFound` if `dir` is gone.
    fn lookup(&self, txn: &mut Txn<'_>, dir: Ino, name: &Name) -> Result<Option<Ino>, Stop>;

    /// The attributes of an inode; `None` if there is none of that number.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    fn attr(&self, txn: &mut Txn<'_>, ino: Ino) -> Result<Option<Attr>, Stop>;

    /// Sets the attributes of `attr.ino`, but for kind and blocks, and the size of a directory.
    ///
    /// # Errors
    /// `Stale` if there is no such inode.
    fn set_attr(&self, txn: &mut Txn<'_>, attr: &Attr) -> Result<(), Stop>;

    /// Maps `segment`, whose blocks are in the pool of `client`, behind the end of what a file
    /// maps.
    ///
    /// # Errors `Stale`; `Invalid` if the blocks are not in the pool or the segment does not lie
    /// behind the end; `NoSpace`.
    fn map(
        &self,
        txn: &mut Txn<'_>,
        ino: Ino,
        client: ClientId,
        segment: Segment,
    ) -> Result<(), Stop>;

    /// What a file maps, sorted.
    ///
    /// # Errors
    /// `Stale`.
    fn segments(&self, txn: &mut Txn<'_>, ino: Ino) -> Result<Vec<Segment>, Stop>;

    /// Takes away a name that leads to no directory; gives the inode. If that was its last name it
    /// is an orphan now, or, if it is small, it has gone with it.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`.
    fn unlink(&self, txn: &mut Txn<'_>, dir: Ino, name: &Name, now: Timestamp)
    -> Result<Ino, Stop>;

    /// Takes away an empty directory, which is an orphan then.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NotEmpty`.
    fn rmdir(&self, txn: &mut Txn<'_>, dir: Ino, name: &Name, now: Timestamp) -> Result<Ino, Stop>;

    /// Frees part of an orphan; `true` when nothing of it is left. Does nothing to an inode with
    /// links.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    fn reclaim(&self, txn: &mut Txn<'_>, ino: Ino) -> Result<bool, Stop>;

    /// Gives what `name` leads to another name, which must be free.
    ///
    /// # Errors
    /// `NotFound`, `Exists`, `Invalid` if a directory would come to lie in itself.
    fn rename(
        &self,
        txn: &mut Txn<'_>,
        from: (Ino, &Name),
        to: (Ino, &Name),
        now: Timestamp,
    ) -> Result<(), Stop>;

    /// Entries of a directory in the layout's order; none: the end is reached.
    ///
    /// # Errors
    /// `NotDirectory`, `NotFound` if `dir` is gone.
    fn readdir(&self, txn: &mut Txn<'_>, dir: Ino, listing: Listing)
    -> Result<Vec<DirEntry>, Stop>;
}

/// `attr` after a change of the directory at `now` that added `links`.
pub(crate) fn touched(attr: &Attr, now: Timestamp, links: i32) -> Attr {
    let nlink = attr.nlink.saturating_add_signed(links);
    Attr { nlink, mtime: now, ctime: now, version: attr.version + 1, ..*attr }
}

/// `attr` of an inode that lost a name at `now`.
pub(crate) fn unlinked(attr: &Attr, now: Timestamp) -> Attr {
    let directory = attr.kind == FileKind::Directory;
    let nlink = if directory { 0 } else { attr.nlink.saturating_sub(1) };
    Attr { nlink, ctime: now, version: attr.version + 1, ..*attr }
}
