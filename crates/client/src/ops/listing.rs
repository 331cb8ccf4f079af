//! Listing directories.
//!
//! The kernel's offsets are the server's cookies plus two: 1 follows ".", 2 follows "..".
//!
//! Invariants:
//! - an entry that this client knows to be gone is not listed, whenever it was fetched;
//! - a listing that starts over uses nothing that was fetched before;
//! - whatever was prepared, lookups are counted and TTLs computed when entries are returned.

use std::rc::Rc;

use proto::mds::{DirEntry, Op, OpReply, Reply};
use types::limits::READDIR_MAX;
use types::{Bug, Fault, FileKind, Ino, Rights, planted};

use super::lookup::{WANT_DIR, WANT_FOUND};
use crate::api::{Caller, Entry, Handle, Listed};
use crate::client::Client;
use crate::core::{Core, Lifetimes};
use crate::handles::{EntryInodes, FetchedListing, ListingAhead, OpenDir};
use crate::inode::Inode;
use crate::names::CachedName;
use crate::rpc::{Call, result};

/// Offset after "." and "..".
const DOTS: u64 = 2;
/// Entries of a part. If a listing continues, the next part is fetched while this one is returned.
const PART: u32 = 1024;
const _: () = assert!(PART as usize <= READDIR_MAX);
/// Bytes of a FUSE directory entry before its name, and of what READDIRPLUS adds.
const DIRENT: usize = 24;
const ENTRY_OUT: usize = 128;

fn dirent_bytes(name: &[u8], plus: bool) -> usize {
    (DIRENT + name.len()).next_multiple_of(8) + if plus { ENTRY_OUT } else { 0 }
}

impl Client {
    /// Opens a directory.
    pub async fn opendir(&self, ino: Ino) -> Result<Handle, Fault> {
        self.or_last_known(ino, self.opendir_online(ino), |root| {
            // `df` opens the mounted directory before it asks for space.
            Some(Ok(self.core.handles.add_dir(root.clone(), self.core.rpc.of(ino).losses())))
        })
        .await
    }

    async fn opendir_online(&self, ino: Ino) -> Result<Handle, Fault> {
        let core = &self.core;
        core.wait_for_lease(ino).await?;
        let inode = core.inode(ino).await?;
        if inode.kind() != FileKind::Directory {
            return Err(Fault::NotDirectory);
        }
        Ok(core.handles.add_dir(inode, core.rpc.of(ino).losses()))
    }

    /// Entries after `cookie` (0: from the start), up to about `bytes` of FUSE directory entries;
    /// none: the end.
    pub async fn readdir(
        &self,
        handle: Handle,
        cookie: u64,
        bytes: usize,
        plus: bool,
    ) -> Result<Vec<Listed>, Fault> {
        let core = &self.core;
        let dir = core.handles.dir(handle)?;
        core.wait_for_lease(dir.inode.ino).await?;
        if dir.inode.is_removed_directory() {
            return Ok(Vec::new());
        }
        let times = core.lifetimes(&dir.inode);
        let mut page = Page { listed: Vec::new(), room: bytes, plus, times };
        if cookie == 0 {
            dir.fetched.borrow_mut().take();
            dir.ahead.borrow_mut().take();
        }
        let parent = dir.inode.names(|names| names.parent).filter(|_| dir.inode.ino != self.root());
        let parent = parent.unwrap_or(self.root());
        for (offset, name, ino) in [(1, &b"."[..], dir.inode.ino), (2, b"..", parent)] {
            if cookie < offset {
                page.put(name, ino, FileKind::Directory, offset, || None);
            }
        }
        let mut after = cookie.saturating_sub(DOTS);
        loop {
            let part = match self.listing_after(&dir, after, plus).await {
                // Another client removed it: it is empty, like one that was removed here.
                Err(fault) if core.note_if_removed(dir.inode.ino, fault) => break,
                part => part?,
            };
            let Some((fetched, index)) = part else { break };
            let OpReply::Entries { entries, end, .. } = result(&fetched.reply, 0)? else {
                return Err(Fault::Protocol);
            };
            if index > 0
                && !end
                && let Some(last) = entries.last()
            {
                self.read_ahead(&dir, last.cookie, plus);
            }
            page.times = core.lifetimes(&dir.inode);
            let inodes = fetched.inodes.as_ref().filter(|inodes| {
                dir.inode.holds(Rights::NAMES)
                    && dir.inode.names(|n| n.change_count()) == inodes.change_count
            });
            for (index, entry) in entries.iter().enumerate().skip(index) {
                let inode = inodes.and_then(|inodes| inodes.each.get(index)?.as_ref());
                if !self.put(&mut page, &dir, entry, inode) {
                    return Ok(page.listed);
                }
                after = entry.cookie;
            }
            // Entries that need no wait are returned first: an entry must not get old in the page.
            if *end || (!page.listed.is_empty() && !dir.advance(after, plus)) {
                break;
            }
        }
        Ok(page.listed)
    }

    /// Adds an entry if there is room, or skips it if it is known to be gone. `inode`: where its
    /// name leads, if that is certain.
    fn put(
        &self,
        page: &mut Page,
        dir: &OpenDir,
        entry: &DirEntry,
        inode: Option<&Rc<Inode>>,
    ) -> bool {
        let (name, times) = (entry.name.as_bytes(), page.times);
        let cookie = entry.cookie + DOTS;
        if let Some(inode) = inode {
            let found = || self.core.attr_cache_valid(inode).then(|| times.entry(inode));
            return page.put(name, entry.ino, entry.kind, cookie, found);
        }
        let known = dir.inode.cached_name(&entry.name);
        if known == CachedName::Absent {
            return true;
        }
        let found = || {
            let same = known == CachedName::Present(entry.ino);
            let inode = self
                .core
                .inodes
                .get(entry.ino)
                .filter(|inode| same && self.core.attr_cache_valid(inode));
            inode.map(|inode| times.entry(&inode))
        };
        page.put(name, entry.ino, entry.kind, cookie, found)
    }

    /// The part of the listing with the entries after `after`, and their index in it. `None`: the
    /// end.
    async fn listing_after(
        &self,
        dir: &Rc<OpenDir>,
        after: u64,
        plus: bool,
    ) -> Result<Option<(FetchedListing, usize)>, Fault> {
        let here = dir.fetched.borrow().clone();
        if let Some(fetched) = here
            && let OpReply::Entries { entries, end, .. } = result(&fetched.reply, 0)?
        {
            let index = if fetched.from == after {
                Some(0)
            } else {
                entries
                    .iter()
                    .position(|entry| entry.cookie == after)
                    .map(|index| index + 1 + usize::from(planted(Bug::CookieSkips)))
                    .map(|index| match planted(Bug::CookieRepeats) && index < entries.len() {
                        true => index - 1,
                        false => index,
                    })
            };
            match index {
                Some(index) if index < entries.len() => return Ok(Some((fetched, index))),
                Some(_) if *end => return Ok(None),
                _ => {}
            }
        }
        let ahead = dir.ahead.borrow_mut().take_if(|ahead| ahead.matches(after, plus));
        let read = match ahead {
            Some(ahead) => ahead.answer.await.ok(),
            None => None,
        };
        let fetched = match read {
            Some(fetched) => fetched,
            None => self.core.list(dir.inode.ino, after, plus).await?,
        };
        *dir.fetched.borrow_mut() = Some(fetched.clone());
        Ok(Some((fetched, 0)))
    }

    /// Fetches the entries after `after`, unless that is in progress.
    fn read_ahead(&self, dir: &OpenDir, after: u64, plus: bool) {
        let mut ahead = dir.ahead.borrow_mut();
        if ahead.as_ref().is_none_or(|ahead| !ahead.matches(after, plus)) {
            let (core, ino) = (self.core.clone(), dir.inode.ino);
            let answer = self.core.env.spawn_join(async move {
                let fetched = core.list(ino, after, plus).await?;
                let inodes = core.entry_inodes(ino, &fetched.reply).map(Rc::new);
                Ok(FetchedListing { inodes, ..fetched })
            });
            *ahead = Some(ListingAhead { from: after, plus, answer });
        }
    }

    /// Closes a directory.
    pub fn releasedir(&self, handle: Handle) {
        self.core.handles.remove_dir(handle);
    }

    /// Makes the directory's changes durable.
    ///
    /// # Errors
    /// `Io`, once for each handle, if changes were lost with the session of its server since it was
    /// opened: of this directory, or of others.
    pub async fn fsyncdir(&self, handle: Handle) -> Result<(), Fault> {
        let dir = self.core.handles.dir(handle)?;
        let session = self.core.rpc.of(dir.inode.ino);
        let synced = session.sync().await;
        let losses = session.losses();
        if dir.reported.replace(losses) != losses {
            return Err(Fault::Io);
        }
        synced
    }
}

impl Core {
    /// Fetches a part of a listing from the server.
    async fn list(&self, dir: Ino, after: u64, plus: bool) -> Result<FetchedListing, Fault> {
        let op = Op::ReadDir {
            dir,
            cookie: after,
            max: PART,
            plus,
            want: WANT_FOUND,
            want_dir: WANT_DIR,
        };
        let reply = self.rpc.call(Call::one(&Caller::default(), op)).await?;
        match result(&reply, 0)? {
            // Repeating the request would return the same.
            OpReply::Entries { entries, end: false, .. } if entries.is_empty() => {
                Err(Fault::Protocol)
            }
            OpReply::Entries { .. } => Ok(FetchedListing { from: after, reply, inodes: None }),
            _ => Err(Fault::Protocol),
        }
    }

    /// Where the names of a part of a listing of `dir` lead, as far as that is certain.
    fn entry_inodes(&self, dir: Ino, part: &Reply) -> Option<EntryInodes> {
        let Ok(OpReply::Entries { entries, .. }) = result(part, 0) else { return None };
        let dir = self.inodes.get(dir).filter(|dir| dir.holds(Rights::NAMES))?;
        let inode = |entry: &DirEntry| {
            let same = dir.cached_name(&entry.name) == CachedName::Present(entry.ino);
            if same { self.inodes.get(entry.ino) } else { None }
        };
        let change_count = dir.names(|names| names.change_count());
        Some(EntryInodes { change_count, each: entries.iter().map(inode).collect() })
    }
}

/// An answer to READDIR that is being filled.
struct Page {
    listed: Vec<Listed>,
    room: usize,
    plus: bool,
    /// Computed when entries are added.
    times: Lifetimes,
}

impl Page {
    fn put(
        &mut self,
        name: &[u8],
        ino: Ino,
        kind: FileKind,
        cookie: u64,
        entry: impl FnOnce() -> Option<Entry>,
    ) -> bool {
        let bytes = dirent_bytes(name, self.plus);
        if bytes > self.room {
            // Nothing further fits either: the listing must not have gaps.
            self.room = 0;
            return false;
        }
        self.room -= bytes;
        let entry = if self.plus { entry() } else { None };
        self.listed.push(Listed { name: name.to_vec(), ino, kind, cookie, entry });
        true
    }
}
