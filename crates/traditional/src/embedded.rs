//! The embedded directories of MFS, by the calls that the metadata server makes.
//!
//! Invariant: nothing is decided here: each operation is what `mds::ops` does to the store.

use mfs::{DirEntry, NewInode, Stop, Txn, Within};
use types::{Attr, ClientId, Fault, FileBlock, FileKind, Ino, Name, Segment, Timestamp};

use crate::layout::{Layout, Listing, touched, unlinked};

/// Segments that one step of freeing takes, as in the server.
const SEGMENTS: usize = 64;

/// See the module.
#[derive(Clone, Copy, Default, Debug)]
pub struct Embedded;

fn existing(txn: &mut Txn<'_>, ino: Ino) -> Result<Attr, Stop> {
    txn.names().attr(ino)?.ok_or(Stop::Fault(Fault::Stale))
}

fn named(txn: &mut Txn<'_>, dir: Ino, name: &Name) -> Result<Attr, Stop> {
    let ino = txn.names().lookup(dir, name)?.ok_or(Stop::Fault(Fault::NotFound))?;
    existing(txn, ino)
}

fn touch(txn: &mut Txn<'_>, dir: Ino, now: Timestamp, links: i32) -> Result<(), Stop> {
    let attr = existing(txn, dir)?;
    txn.names().set_attr(&touched(&attr, now, links))
}

impl Embedded {
    fn make(
        txn: &mut Txn<'_>,
        dir: Ino,
        name: &Name,
        new: &NewInode<'_>,
        links: i32,
    ) -> Result<Ino, Stop> {
        let ino = txn.names().create(dir, name, new, None)?;
        touch(txn, dir, new.mtime, links)?;
        Ok(ino)
    }

    fn remove(
        txn: &mut Txn<'_>,
        dir: Ino,
        name: &Name,
        attr: &Attr,
        now: Timestamp,
    ) -> Result<Ino, Stop> {
        txn.names().remove_name(dir, name)?;
        txn.names().set_attr(&unlinked(attr, now))?;
        touch(txn, dir, now, if attr.kind == FileKind::Directory { -1 } else { 0 })?;
        Ok(attr.ino)
    }
}

impl Layout for Embedded {
    fn text(&self) -> &'static str {
        "embedded"
    }

    fn create(
        &self,
        txn: &mut Txn<'_>,
        dir: Ino,
        name: &Name,
        new: &NewInode<'_>,
    ) -> Result<Ino, Stop> {
        Embedded::make(txn, dir, name, new, 0)
    }

    fn mkdir(
        &self,
        txn: &mut Txn<'_>,
        dir: Ino,
        name: &Name,
        new: &NewInode<'_>,
    ) -> Result<Ino, Stop> {
        Embedded::make(txn, dir, name, &NewInode { kind: FileKind::Directory, ..*new }, 1)
    }

    fn lookup(&self, txn: &mut Txn<'_>, dir: Ino, name: &Name) -> Result<Option<Ino>, Stop> {
        txn.names().lookup(dir, name)
    }

    fn attr(&self, txn: &mut Txn<'_>, ino: Ino) -> Result<Option<Attr>, Stop> {
        txn.names().attr(ino)
    }

    fn set_attr(&self, txn: &mut Txn<'_>, attr: &Attr) -> Result<(), Stop> {
        txn.names().set_attr(attr)
    }

    fn map(
        &self,
        txn: &mut Txn<'_>,
        ino: Ino,
        client: ClientId,
        segment: Segment,
    ) -> Result<(), Stop> {
        txn.layouts().map(ino, client, segment)
    }

    fn segments(&self, txn: &mut Txn<'_>, ino: Ino) -> Result<Vec<Segment>, Stop> {
        txn.layouts().layout(ino, FileBlock(0), usize::MAX)
    }

    fn unlink(
        &self,
        txn: &mut Txn<'_>,
        dir: Ino,
        name: &Name,
        now: Timestamp,
    ) -> Result<Ino, Stop> {
        let attr = named(txn, dir, name)?;
        if attr.kind == FileKind::Directory {
            return Err(Fault::IsDirectory.into());
        }
        match txn.names().free_with_name(dir, name)? {
            Some(ino) => {
                touch(txn, dir, now, 0)?;
                Ok(ino)
            }
            None => Embedded::remove(txn, dir, name, &attr, now),
        }
    }

    fn rmdir(&self, txn: &mut Txn<'_>, dir: Ino, name: &Name, now: Timestamp) -> Result<Ino, Stop> {
        let attr = named(txn, dir, name)?;
        if attr.kind != FileKind::Directory {
            return Err(Fault::NotDirectory.into());
        }
        if !txn.names().is_empty(attr.ino)? {
            return Err(Fault::NotEmpty.into());
        }
        Embedded::remove(txn, dir, name, &attr, now)
    }

    fn reclaim(&self, txn: &mut Txn<'_>, ino: Ino) -> Result<bool, Stop> {
        match txn.names().attr(ino)? {
            Some(attr) if attr.nlink == 0 => txn.names().free_inode_step(ino, SEGMENTS),
            _ => Ok(true),
        }
    }

    fn rename(
        &self,
        txn: &mut Txn<'_>,
        from: (Ino, &Name),
        to: (Ino, &Name),
        now: Timestamp,
    ) -> Result<(), Stop> {
        let attr = named(txn, from.0, from.1)?;
        let directory = attr.kind == FileKind::Directory;
        if txn.names().lookup(to.0, to.1)?.is_some() {
            return Err(Fault::Exists.into());
        }
        if directory && txn.names().is_within(to.0, attr.ino)? == Within::Yes {
            return Err(Fault::Invalid.into());
        }
        txn.names().rename(from.0, from.1, to.0, to.1)?;
        txn.names().set_attr(&Attr { ctime: now, version: attr.version + 1, ..attr })?;
        let links = i32::from(directory && from.0 != to.0);
        touch(txn, from.0, now, -links)?;
        if from.0 != to.0 {
            touch(txn, to.0, now, links)?;
        }
        Ok(())
    }

    fn readdir(
        &self,
        txn: &mut Txn<'_>,
        dir: Ino,
        listing: Listing,
    ) -> Result<Vec<DirEntry>, Stop> {
        txn.names().readdir(dir, listing.after, listing.max)
    }
}
