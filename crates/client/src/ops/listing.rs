//! Listing directories.
//!
//! The kernel's offsets are the server's cookies plus two: 1 follows ".", 2 follows "..".

use std::rc::Rc;

use proto::mds::{DirEntry, InoRef, Op, OpReply};
use types::limits::READDIR_MAX;
use types::{Bug, Fault, FileKind, Ino, Rights, planted};

use super::lookup::{WANT, WANT_DIR};
use crate::api::{Caller, Entry, Handle, Listed};
use crate::client::Client;
use crate::handles::{Fetched, OpenDir};
use crate::names::Known;
use crate::rpc::{Call, result};

/// Offset after "." and "..".
const DOTS: u64 = 2;
/// Entries of the first part: many listings are short, or end early.
const FIRST: u32 = 1024;
/// Bytes of a FUSE directory entry before its name, and of what READDIRPLUS adds.
const DIRENT: usize = 24;
const ENTRY_OUT: usize = 128;

fn dirent_bytes(name: &[u8], plus: bool) -> usize {
    (DIRENT + name.len()).next_multiple_of(8) + if plus { ENTRY_OUT } else { 0 }
}

impl Client {
    /// Opens a directory.
    pub async fn opendir(&self, ino: Ino) -> Result<Handle, Fault> {
        let core = &self.core;
        core.live().await?;
        let inode = core.inode(ino).await?;
        if inode.kind() != FileKind::Directory {
            return Err(Fault::NotDirectory);
        }
        Ok(core.handles.add_dir(inode, core.session.losses()))
    }

    /// Entries after `cookie` (0: from the start) until about `bytes` of FUSE directory
    /// entries; none: the end.
    pub async fn readdir(
        &self,
        handle: Handle,
        cookie: u64,
        bytes: usize,
        plus: bool,
    ) -> Result<Vec<Listed>, Fault> {
        let core = &self.core;
        core.live().await?;
        let dir = core.handles.dir(handle)?;
        if dir.inode.is_removed_directory() {
            return Ok(Vec::new());
        }
        let mut page = Page { listed: Vec::new(), room: bytes, plus };
        if cookie == 0 {
            dir.fetched.borrow_mut().take();
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
            let Some((fetched, index)) = self.fetched(&dir, after, plus).await? else { break };
            let OpReply::Entries { entries, end, .. } = result(&fetched.reply, 0)? else {
                return Err(Fault::Protocol);
            };
            for entry in &entries[index..] {
                if !self.put(&mut page, &dir, entry) {
                    return Ok(page.listed);
                }
                after = entry.cookie;
            }
            // What does not need another request is told first.
            if *end || !page.listed.is_empty() {
                break;
            }
        }
        Ok(page.listed)
    }

    /// Puts an entry if there is room, or passes over it if it is known to be gone.
    fn put(&self, page: &mut Page, dir: &OpenDir, entry: &DirEntry) -> bool {
        let core = &self.core;
        let held = dir.inode.holds(Rights::NAMES);
        let known =
            if held { dir.inode.names(|names| names.find(&entry.name)) } else { Known::Nothing };
        if known == Known::Missing {
            return true;
        }
        let same = known == Known::Leads(entry.ino);
        let found = || -> Option<Entry> {
            let inode = core.inodes.get(entry.ino).filter(|inode| same && inode.attr_holds())?;
            Some(core.entry(&inode, dir.inode.ino))
        };
        page.put(entry.name.as_bytes(), entry.ino, entry.kind, entry.cookie + DOTS, found)
    }

    /// The part of the listing that holds what follows `after`, and where in it. `None`: the end.
    async fn fetched(
        &self,
        dir: &Rc<OpenDir>,
        after: u64,
        plus: bool,
    ) -> Result<Option<(Fetched, usize)>, Fault> {
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
            };
            match index {
                Some(index) if index < entries.len() => return Ok(Some((fetched, index))),
                Some(_) if *end => return Ok(None),
                _ => {}
            }
        }
        let op = Op::ReadDir {
            dir: InoRef::Is { ino: dir.inode.ino },
            cookie: after,
            max: if after == 0 { FIRST } else { READDIR_MAX as u32 },
            plus,
            want: WANT,
            want_dir: WANT_DIR,
        };
        let reply = self.core.session.call(Call::one(&Caller::default(), op)).await?;
        result(&reply, 0)?;
        let fetched = Fetched { from: after, reply };
        *dir.fetched.borrow_mut() = Some(fetched.clone());
        Ok(Some((fetched, 0)))
    }

    /// Closes a directory.
    pub fn releasedir(&self, handle: Handle) {
        self.core.handles.remove_dir(handle);
    }

    /// The directory's changes are durable when it ends.
    ///
    /// # Errors
    /// `Io`, once for each handle, if changes were lost with a session since it was opened: of
    /// this directory, or of others.
    pub async fn fsyncdir(&self, handle: Handle) -> Result<(), Fault> {
        let dir = self.core.handles.dir(handle)?;
        let session = &self.core.session;
        let synced = session.sync().await;
        let losses = session.losses();
        if dir.reported.replace(losses) != losses {
            return Err(Fault::Io);
        }
        synced
    }
}

/// An answer that fills up.
struct Page {
    listed: Vec<Listed>,
    room: usize,
    plus: bool,
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
