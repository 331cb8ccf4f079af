//! The operations of [`Layout`].

use mfs::{DirEntry, NewInode, Stop, Txn};
use types::{Attr, ClientId, Fault, FileKind, Ino, Name, Segment, Timestamp};

use super::group::Wish;
use super::inode::Record;
use super::linear::{Found, hash_name};
use super::{ORPHANS, Traditional, dirent};
use crate::layout::{Layout, Listing, touched, unlinked};

/// Blocks of a directory that one step frees.
const CUT: u64 = 64;

impl Traditional {
    fn find(
        &self,
        txn: &mut Txn<'_>,
        dir: Ino,
        record: &Record,
        name: &[u8],
    ) -> Result<Option<Found>, Stop> {
        match record.is_hashed() {
            true => self.find_hashed(txn, record, name),
            false => self.find_linear(txn, dir, record, name),
        }
    }

    fn insert(
        &self,
        txn: &mut Txn<'_>,
        dir: Ino,
        record: &mut Record,
        name: &[u8],
        entry: (Ino, u8),
    ) -> Result<(), Stop> {
        match record.is_hashed() {
            true => self.insert_hashed(txn, dir, record, name, entry),
            false => self.insert_linear(txn, dir, record, name, entry),
        }
    }

    fn remove(
        &self,
        txn: &mut Txn<'_>,
        dir: Ino,
        record: &Record,
        found: &Found,
        name: &[u8],
    ) -> Result<(), Stop> {
        match record.is_hashed() {
            true => Traditional::remove_hashed(txn, found, name),
            false => self.remove_linear(txn, dir, found, name),
        }
    }

    pub(super) fn list(
        &self,
        txn: &mut Txn<'_>,
        dir: Ino,
        record: &Record,
        listing: Listing,
    ) -> Result<Vec<DirEntry>, Stop> {
        let mut entries = match record.is_hashed() {
            true => self.list_hashed(txn, record, listing)?,
            false => self.list_linear(txn, record, listing)?,
        };
        debug_assert!(dir != Ino::NONE);
        for entry in entries.iter_mut().filter(|_| listing.attrs) {
            entry.attr = Some(self.live(txn, entry.ino)?.attr(entry.ino));
        }
        Ok(entries)
    }

    /// Writes the directory with new times and `links` more links.
    fn touch(
        &self,
        txn: &mut Txn<'_>,
        dir: Ino,
        record: &mut Record,
        now: Timestamp,
        links: i32,
    ) -> Result<(), Stop> {
        record.set(&touched(&record.attr(dir), now, links));
        self.store(txn, dir, record)
    }

    fn found(
        &self,
        txn: &mut Txn<'_>,
        dir: Ino,
        record: &Record,
        name: &Name,
    ) -> Result<Found, Stop> {
        let found = self.find(txn, dir, record, name.as_bytes())?;
        found.ok_or(Stop::Fault(Fault::NotFound))
    }

    fn name_is_free(
        &self,
        txn: &mut Txn<'_>,
        dir: Ino,
        record: &Record,
        name: &Name,
    ) -> Result<(), Stop> {
        match self.find(txn, dir, record, name.as_bytes())? {
            Some(_) => Err(Fault::Exists.into()),
            None => Ok(()),
        }
    }

    /// Takes a name away; with its last one the inode becomes the first orphan.
    fn unname(
        &self,
        txn: &mut Txn<'_>,
        (dir, record): (Ino, &mut Record),
        name: &Name,
        found: &Found,
        now: Timestamp,
    ) -> Result<Ino, Stop> {
        let ino = found.ino;
        let mut inode = self.live(txn, ino)?;
        self.remove(txn, dir, record, found, name.as_bytes())?;
        inode.set(&unlinked(&inode.attr(ino), now));
        if inode.nlink == 0 {
            inode.next_orphan = Ino(txn.root(ORPHANS)?);
            txn.set_root(ORPHANS, ino.0)?;
        }
        self.store(txn, ino, &inode)?;
        let links = if inode.kind == Some(FileKind::Directory) { -1 } else { 0 };
        self.touch(txn, dir, record, now, links)?;
        Ok(ino)
    }

    /// Takes an inode out of the list of orphans.
    fn unlist(&self, txn: &mut Txn<'_>, ino: Ino, next: Ino) -> Result<(), Stop> {
        if txn.root(ORPHANS)? == ino.0 {
            return txn.set_root(ORPHANS, next.0);
        }
        let orphans = self.orphans(txn)?;
        let at = orphans.iter().position(|&orphan| orphan == ino).ok_or(Fault::Corrupt)?;
        let before = orphans[at - 1];
        let mut record = self.live(txn, before)?;
        record.next_orphan = next;
        self.store(txn, before, &record)
    }

    /// Is `ancestor` the directory `dir` or above it?
    fn is_within(&self, txn: &mut Txn<'_>, dir: Ino, ancestor: Ino) -> Result<bool, Stop> {
        let mut at = dir;
        loop {
            if at == ancestor || at == Ino::ROOT {
                return Ok(at == ancestor);
            }
            at = self.parent(txn, at)?;
        }
    }

    /// What ".." of a directory leads to.
    pub(super) fn parent(&self, txn: &mut Txn<'_>, dir: Ino) -> Result<Ino, Stop> {
        let record = self.live_dir(txn, dir)?;
        let block = self.block_at(txn, &record, 0)?;
        let data = txn.read_as(block, mfs::BlockType::Table)?;
        let wrong = |what| Stop::Corrupt(block, what);
        let found = dirent::find(data, b"..").map_err(wrong)?;
        Ok(found.ok_or(wrong("a directory has no parent"))?.ino)
    }

    fn set_parent(&self, txn: &mut Txn<'_>, dir: Ino, parent: Ino) -> Result<(), Stop> {
        let record = self.live_dir(txn, dir)?;
        let block = self.block_at(txn, &record, 0)?;
        let data = txn.write_as(block, mfs::BlockType::Table)?;
        dirent::redirect(data, b"..", parent).map_err(|what| Stop::Corrupt(block, what))
    }

    fn made(new: &NewInode<'_>) -> Record {
        Record {
            kind: Some(new.kind),
            mode: new.mode,
            nlink: 1,
            uid: new.uid,
            gid: new.gid,
            rdev: new.rdev,
            size: new.size,
            times: [new.atime, new.mtime, new.ctime, new.btime],
            ..Record::directory(new.mtime)
        }
    }
}

impl Layout for Traditional {
    fn text(&self) -> &'static str {
        if self.hashed { "traditional, hashed" } else { "traditional" }
    }

    fn create(
        &self,
        txn: &mut Txn<'_>,
        dir: Ino,
        name: &Name,
        new: &NewInode<'_>,
    ) -> Result<Ino, Stop> {
        if matches!(new.kind, FileKind::Directory | FileKind::Symlink) {
            return Err(Fault::Invalid.into());
        }
        let mut record = self.live_dir(txn, dir)?;
        self.name_is_free(txn, dir, &record, name)?;
        let ino = self.take_inode(txn, Wish::Beside(dir), false)?;
        self.store(txn, ino, &Traditional::made(new))?;
        self.insert(txn, dir, &mut record, name.as_bytes(), (ino, new.kind as u8))?;
        self.touch(txn, dir, &mut record, new.mtime, 0)?;
        Ok(ino)
    }

    fn mkdir(
        &self,
        txn: &mut Txn<'_>,
        dir: Ino,
        name: &Name,
        new: &NewInode<'_>,
    ) -> Result<Ino, Stop> {
        let kind = FileKind::Directory;
        let mut record = self.live_dir(txn, dir)?;
        self.name_is_free(txn, dir, &record, name)?;
        let wish = match dir {
            Ino::ROOT => Wish::Spread(hash_name(name.as_bytes()).0),
            _ => Wish::Near(dir),
        };
        let ino = self.take_inode(txn, wish, true)?;
        let made = Traditional::made(&NewInode { kind, size: 0, ..*new });
        self.new_directory(txn, ino, dir, &made)?;
        self.insert(txn, dir, &mut record, name.as_bytes(), (ino, kind as u8))?;
        self.touch(txn, dir, &mut record, new.mtime, 1)?;
        Ok(ino)
    }

    fn lookup(&self, txn: &mut Txn<'_>, dir: Ino, name: &Name) -> Result<Option<Ino>, Stop> {
        let record = self.live_dir(txn, dir)?;
        let found = self.find(txn, dir, &record, name.as_bytes())?;
        Ok(found.map(|found| found.ino))
    }

    fn attr(&self, txn: &mut Txn<'_>, ino: Ino) -> Result<Option<Attr>, Stop> {
        match self.live(txn, ino) {
            Ok(record) => Ok(Some(record.attr(ino))),
            Err(Stop::Fault(Fault::Stale)) => Ok(None),
            Err(other) => Err(other),
        }
    }

    fn set_attr(&self, txn: &mut Txn<'_>, attr: &Attr) -> Result<(), Stop> {
        let mut record = self.live(txn, attr.ino)?;
        record.set(attr);
        self.store(txn, attr.ino, &record)
    }

    fn map(
        &self,
        txn: &mut Txn<'_>,
        ino: Ino,
        client: ClientId,
        extent: Segment,
    ) -> Result<(), Stop> {
        let mut record = self.live(txn, ino)?;
        if record.kind != Some(FileKind::Regular) {
            return Err(Fault::Invalid.into());
        }
        self.append_extent(txn, ino, &mut record, client, extent)?;
        self.store(txn, ino, &record)
    }

    fn segments(&self, txn: &mut Txn<'_>, ino: Ino) -> Result<Vec<Segment>, Stop> {
        let record = self.live(txn, ino)?;
        self.file_extents(txn, &record)
    }

    fn unlink(
        &self,
        txn: &mut Txn<'_>,
        dir: Ino,
        name: &Name,
        now: Timestamp,
    ) -> Result<Ino, Stop> {
        let mut record = self.live_dir(txn, dir)?;
        let found = self.found(txn, dir, &record, name)?;
        if self.live(txn, found.ino)?.kind == Some(FileKind::Directory) {
            return Err(Fault::IsDirectory.into());
        }
        let ino = self.unname(txn, (dir, &mut record), name, &found, now)?;
        // All that an inode has are some extents: it goes at once, as a small one does in the
        // embedded layout.
        self.reclaim(txn, ino)?;
        Ok(ino)
    }

    fn rmdir(&self, txn: &mut Txn<'_>, dir: Ino, name: &Name, now: Timestamp) -> Result<Ino, Stop> {
        let mut record = self.live_dir(txn, dir)?;
        let found = self.found(txn, dir, &record, name)?;
        let inode = self.live(txn, found.ino)?;
        if inode.kind != Some(FileKind::Directory) {
            return Err(Fault::NotDirectory.into());
        }
        if !self.is_empty(txn, found.ino, &inode)? {
            return Err(Fault::NotEmpty.into());
        }
        self.unname(txn, (dir, &mut record), name, &found, now)
    }

    fn reclaim(&self, txn: &mut Txn<'_>, ino: Ino) -> Result<bool, Stop> {
        let mut record = match self.load(txn, ino) {
            Ok(record) if record.kind.is_some() && record.nlink == 0 => record,
            Ok(_) | Err(Stop::Fault(Fault::Stale)) => return Ok(true),
            Err(other) => return Err(other),
        };
        let directory = record.kind == Some(FileKind::Directory);
        if directory && record.count() > 0 {
            self.forget(txn, ino);
            self.cut_blocks(txn, &mut record, CUT)?;
            if record.count() > 0 {
                self.store(txn, ino, &record)?;
                return Ok(false);
            }
        }
        if record.kind == Some(FileKind::Regular) {
            self.free_extents(txn, ino, &record)?;
        }
        self.unlist(txn, ino, record.next_orphan)?;
        let empty =
            Record { kind: None, version: 0, mode: 0, ..Record::directory(record.times[2]) };
        self.store(txn, ino, &empty)?;
        self.give_inode(txn, ino, directory)?;
        Ok(true)
    }

    fn rename(
        &self,
        txn: &mut Txn<'_>,
        from: (Ino, &Name),
        to: (Ino, &Name),
        now: Timestamp,
    ) -> Result<(), Stop> {
        let mut source = self.live_dir(txn, from.0)?;
        let found = self.found(txn, from.0, &source, from.1)?;
        let mut target = self.live_dir(txn, to.0)?;
        self.name_is_free(txn, to.0, &target, to.1)?;
        let mut inode = self.live(txn, found.ino)?;
        let directory = inode.kind == Some(FileKind::Directory);
        if directory && self.is_within(txn, to.0, found.ino)? {
            return Err(Fault::Invalid.into());
        }
        let attr = inode.attr(found.ino);
        inode.set(&Attr { ctime: now, version: attr.version + 1, ..attr });
        self.store(txn, found.ino, &inode)?;
        let entry = (found.ino, attr.kind as u8);
        self.remove(txn, from.0, &source, &found, from.1.as_bytes())?;
        if from.0 == to.0 {
            self.insert(txn, from.0, &mut source, to.1.as_bytes(), entry)?;
            return self.touch(txn, from.0, &mut source, now, 0);
        }
        self.insert(txn, to.0, &mut target, to.1.as_bytes(), entry)?;
        if directory {
            self.set_parent(txn, found.ino, to.0)?;
        }
        let links = i32::from(directory);
        self.touch(txn, from.0, &mut source, now, -links)?;
        self.touch(txn, to.0, &mut target, now, links)
    }

    fn readdir(
        &self,
        txn: &mut Txn<'_>,
        dir: Ino,
        listing: Listing,
    ) -> Result<Vec<DirEntry>, Stop> {
        let record = self.live_dir(txn, dir)?;
        self.list(txn, dir, &record, listing)
    }
}
