//! Creating, linking, removing and renaming names.

use std::rc::Rc;

use env::sync::Notify;
use proto::mds::{LEAVE_WHITEOUT, NewNode, Op, OpReply};
use proto::wire::Bytes;
use types::limits::SYMLINK_MAX;
use types::{Attr, Fault, FileKind, Ino, Rights};

use super::lookup::{WANT_DIR, WANT_FOUND};
use super::setattr::ATTR_TTL_NONE;
use crate::api::{Caller, Entry, NodeSpec, Place};
use crate::boundary::{DataHalf, FileContent};
use crate::client::Client;
use crate::core::{Core, Removing};
use crate::inode::Inode;
use crate::names::CachedName;
use crate::rpc::{Call, result};

const NO_REPLACE: u32 = 1;
const EXCHANGE: u32 = 2;
const WHITEOUT: u32 = 4;

impl Client {
    /// Creates any node that is not a symbolic link, without opening it.
    pub async fn mknod(
        &self,
        caller: &Caller,
        place: Place<'_>,
        node: NodeSpec,
    ) -> Result<Entry, Fault> {
        let node = NewNode {
            kind: node.kind,
            mode: node.mode,
            umask: node.umask,
            rdev: node.rdev,
            symlink: Bytes::default(),
        };
        let want = match node.kind {
            FileKind::Directory => Rights::ATTR | Rights::NAMES,
            FileKind::Regular => WANT_FOUND,
            _ => Rights::ATTR,
        };
        let inode = self.core.create_node(caller, place, node, want).await?;
        Ok(self.core.entry_from_reply(&inode, place.dir, place.name))
    }

    /// Creates a symbolic link.
    pub async fn symlink(
        &self,
        caller: &Caller,
        place: Place<'_>,
        target: &[u8],
    ) -> Result<Entry, Fault> {
        if target.is_empty() {
            return Err(Fault::NotFound);
        }
        if target.len() > SYMLINK_MAX {
            return Err(Fault::NameTooLong);
        }
        let node = NewNode {
            kind: FileKind::Symlink,
            mode: 0o777,
            umask: 0,
            rdev: 0,
            symlink: Bytes(target.to_vec()),
        };
        let inode = self.core.create_node(caller, place, node, Rights::ATTR).await?;
        inode.set_target(target);
        Ok(self.core.entry_from_reply(&inode, place.dir, place.name))
    }

    /// Adds a name to an inode.
    pub async fn link(&self, caller: &Caller, ino: Ino, place: Place<'_>) -> Result<Entry, Fault> {
        self.core.check_writable()?;
        let tmpfile = self.core.inodes.get(ino).is_some_and(|inode| inode.is_tmpfile());
        let op = Op::Link { ino, dir: place.dir, name: place.name.clone(), tmpfile };
        let reply = self.core.send_change(caller, op).await?;
        let leased = match result(&reply, 0) {
            Ok(OpReply::Linked { leased, .. }) => leased,
            Ok(_) => return Err(Fault::Protocol),
            // Which of the two is gone? If the file is, the kernel may find another one under its
            // name.
            Err(Fault::Stale) => match self.core.fetch_attr(place.dir).await {
                Err(fault) => return Err(self.core.dir_fault(place.dir, fault)),
                Ok(_) => return Err(Fault::Stale),
            },
            Err(fault) => return Err(fault),
        };
        let (inode, attr) = self.core.found(place.dir, leased, Rights::ATTR).await?;
        inode.set_tmpfile(false);
        let entry = self.core.entry_with_attr(&inode, place.dir, place.name, &attr);
        self.core.invalidate_for_abandoned_caller(&reply).await;
        Ok(Entry { attr_ttl: ATTR_TTL_NONE, ..entry })
    }

    /// Removes a name.
    pub async fn unlink(&self, caller: &Caller, place: Place<'_>) -> Result<(), Fault> {
        self.core.check_writable()?;
        let kernel_target = self.core.kernel_target(place);
        let removal = self.core.prepare_removal(place, caller.pid).await;
        let op = Op::Unlink {
            dir: place.dir,
            name: place.name.clone(),
            unused: removal.as_ref().map(|removal| removal.inode.ino),
        };
        let reply = self.core.send_change(caller, op).await?;
        let removed = result(&reply, 0).map_err(|fault| self.core.dir_fault(place.dir, fault))?;
        let &OpReply::Removed { ref attr, kept, .. } = removed else {
            return Err(Fault::Protocol);
        };
        match removal {
            Some(removal) if removal.inode.ino == attr.ino => removal.complete(attr, kept),
            _ => self.core.name_removed(place.dir, attr).await,
        }
        self.core.inval_after_removal(kernel_target, (place.dir, attr.ino)).await;
        self.core.invalidate_for_abandoned_caller(&reply).await;
        Ok(())
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, caller: &Caller, place: Place<'_>) -> Result<(), Fault> {
        self.core.check_writable()?;
        let kernel_target = self.core.kernel_target(place);
        let op = Op::Rmdir { dir: place.dir, name: place.name.clone() };
        let reply = self.core.send_change(caller, op).await?;
        if let Ok(OpReply::Removed { attr, .. }) = result(&reply, 0) {
            self.core.inval_after_removal(kernel_target, (place.dir, attr.ino)).await;
        }
        self.core.invalidate_for_abandoned_caller(&reply).await;
        result(&reply, 0).map(|_| ()).map_err(|fault| self.core.dir_fault(place.dir, fault))
    }

    /// Renames; flags as renameat2: 1 no replace, 2 exchange, 4 leave a whiteout. A replaced name
    /// leads to the old content or the new, even if this client dies at once: the new content is
    /// committed before.
    pub async fn rename(
        &self,
        caller: &Caller,
        from: Place<'_>,
        to: Place<'_>,
        flags: u32,
    ) -> Result<(), Fault> {
        self.core.check_writable()?;
        if flags & !(NO_REPLACE | EXCHANGE | WHITEOUT) != 0 {
            return Err(Fault::Invalid);
        }
        let exchanged = flags & EXCHANGE != 0;
        let leaves = if flags & WHITEOUT != 0 { LEAVE_WHITEOUT } else { 0 };
        let flags = flags & !WHITEOUT | leaves;
        let together = self.core.rpc.is_together(from.dir, to.dir);
        let (mut sent, committed) = self.core.prepare_replacement(from, to, flags).await?;
        let (reply, kernel_target, removal) = loop {
            let kernel_target = self.core.kernel_target(to);
            let replaces = sent & !LEAVE_WHITEOUT == 0 && !self.core.is_same(from, to);
            let removal = if replaces && together {
                self.core.prepare_removal(to, caller.pid).await
            } else {
                None
            };
            let op = Op::Rename {
                from: from.dir,
                name: from.name.clone(),
                to: to.dir,
                new_name: to.name.clone(),
                flags: sent,
                unused: removal.as_ref().map(|removal| removal.inode.ino),
            };
            let reply = self.core.send_change(caller, op).await?;
            if sent == flags || result(&reply, 0).err() != Some(Fault::Exists) {
                break (reply, kernel_target, removal);
            }
            // The name exists.
            committed?;
            self.core.commit_named(from).await?;
            sent = flags;
        };
        // The server does not say which of the two directories was removed.
        let lost = self.core.inodes.is_lost(from.dir) || self.core.inodes.is_lost(to.dir);
        let renamed = result(&reply, 0).map_err(|fault| match fault {
            Fault::Stale if !lost => Fault::NotFound,
            fault => fault,
        })?;
        let &OpReply::Renamed { ref moved, ref replaced, kept, ref whiteout, .. } = renamed else {
            return Err(Fault::Protocol);
        };
        self.core.path_hints.note(moved.attr.ino, to.dir, to.name);
        if let Some(whiteout) = &whiteout.0 {
            self.core.path_hints.note(whiteout.attr.ino, from.dir, from.name);
        }
        if let Some(attr) = replaced
            && !exchanged
        {
            match removal {
                Some(removal) if removal.inode.ino == attr.ino => removal.complete(attr, kept),
                _ => self.core.name_removed(from.dir, attr).await,
            }
            self.core.inval_after_removal(kernel_target, (from.dir, attr.ino)).await;
        }
        self.core.inval_after_move(from.dir, to.dir, moved.attr.ino).await;
        self.core.invalidate_for_abandoned_caller(&reply).await;
        Ok(())
    }
}

/// An inode that is given up with its last name. Until this is dropped, opens of the inode wait;
/// its dirty data stay where they are until the removal succeeds.
pub(super) struct Removal {
    core: Rc<Core>,
    inode: Rc<Inode>,
}

impl Removal {
    /// The name was removed; `attr`: the inode's attributes since. `kept`: another client has the
    /// file open, and must get what is dirty here.
    fn complete(self, attr: &Attr, kept: bool) {
        if kept {
            self.core.last_name_removed(attr);
        } else if attr.nlink == 0
            && let Some(data_lease) = self.inode.data_lease()
        {
            data_lease.forget(false);
        }
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        if let Some(data_lease) = self.inode.data_lease() {
            data_lease.file.resume();
        }
        let waiting = self.core.removing.borrow_mut().remove(&self.inode.ino);
        if let Some(waiting) = waiting {
            waiting.ended.notify_all();
        }
    }
}

/// Is nothing of its content dirty, nor stored into a mapping?
fn is_settled(inode: &Inode) -> bool {
    let mapped = inode.has_buffered_writer() && inode.has_pages();
    !mapped
        && inode
            .data_lease()
            .is_none_or(|data| data.file.is_settled() && !data.file.has_unreported_loss())
}

impl Core {
    async fn create_node(
        &self,
        caller: &Caller,
        place: Place<'_>,
        node: NewNode,
        want: Rights,
    ) -> Result<Rc<Inode>, Fault> {
        self.check_writable()?;
        let reply = self.send_create(caller, place, node, want).await?;
        let created = result(&reply, 0).map_err(|fault| self.dir_fault(place.dir, fault))?;
        let OpReply::Created { leased, .. } = created else { return Err(Fault::Protocol) };
        self.path_hints.note(leased.attr.ino, place.dir, place.name);
        let found = self.found(place.dir, leased, want).await;
        self.invalidate_for_abandoned_caller(&reply).await;
        Ok(found?.0)
    }

    /// An inode lost a name in `dir`, or in another directory of the same server, but was not given
    /// up with it.
    async fn name_removed(self: &Rc<Self>, dir: Ino, attr: &Attr) {
        if let Some(attr) = self.attr_after_removal(dir, attr).await {
            self.last_name_removed(&attr);
        }
    }

    /// An inode lost a name, perhaps the last one. If so, and no handle is open here, the client
    /// returns it as soon as the kernel has forgotten it.
    fn last_name_removed(self: &Rc<Self>, attr: &Attr) {
        if attr.nlink > 0 || attr.kind == FileKind::Directory {
            return;
        }
        let Some(inode) = self.inodes.get(attr.ino) else { return };
        if inode.opens() == 0 && inode.holds(Rights::OPEN) {
            inode.owe_open();
            self.schedule_open_return(&inode);
        }
    }

    /// The inode that the kernel means by a name that it is about to change. The kernel holds the
    /// directory locked, so its view is the one cached here.
    fn kernel_target(&self, place: Place<'_>) -> Option<Ino> {
        self.cached_inode(place).map(|inode| inode.ino)
    }

    /// A name that leads to `ino` has moved from one directory to another.
    async fn inval_after_move(&self, from: Ino, to: Ino, ino: Ino) {
        self.inval_elsewhere(from, [ino, to]).await;
        // The kernel moves its cached name along, with its TTL: to a directory where nothing would
        // invalidate it.
        let holds = |dir| self.inodes.get(dir).is_some_and(|dir| dir.holds(Rights::NAMES));
        if holds(from) != holds(to) {
            self.kernel.inc_epoch().await;
        }
    }

    /// What this client held of those of these inodes that another server has than that of `dir`
    /// went with the reply to a rename.
    async fn inval_elsewhere(&self, dir: Ino, inodes: [Ino; 2]) {
        for ino in inodes.into_iter().filter(|ino| !self.rpc.is_together(dir, *ino)) {
            self.kernel.inval_attr(ino).await;
        }
    }

    /// An inode lost a name in a directory. If the kernel meant another inode, it decrements the
    /// link count of that one, and its attributes of this one are outdated. They are, too, if
    /// another server has the inode: what this client held of it there went with the reply.
    async fn inval_after_removal(&self, kernel_target: Option<Ino>, (dir, ino): (Ino, Ino)) {
        if kernel_target != Some(ino) || !self.rpc.is_together(dir, ino) {
            self.kernel.inval_attr(ino).await;
        }
    }

    /// The inode that a name leads to, if that is cached here.
    fn cached_inode(&self, place: Place<'_>) -> Option<Rc<Inode>> {
        let dir = self.inodes.get(place.dir).filter(|dir| dir.holds(Rights::NAMES))?;
        match dir.names(|names| names.find(place.name)) {
            CachedName::Present(ino) => self.inodes.get(ino),
            _ => None,
        }
    }

    /// Commits what is dirty here of files that a rename moves over existing names. The server
    /// recalls what is dirty at other clients. No request made here can block others: the commits
    /// wait for no gate.
    ///
    /// Returns the flags for the request to the server. If the name may not exist, and the file is
    /// not committed, the server is asked to replace nothing. The second value is then the answer
    /// if the name exists: the fault, if a commit was tried and failed.
    ///
    /// # Errors
    /// The content is lost, or cannot be committed now: then the old name must stay.
    async fn prepare_replacement(
        &self,
        from: Place<'_>,
        to: Place<'_>,
        flags: u32,
    ) -> Result<(u32, Result<(), Fault>), Fault> {
        if flags & NO_REPLACE != 0 || self.is_all_settled() || self.is_same(from, to) {
            return Ok((flags, Ok(())));
        }
        if flags & EXCHANGE != 0 {
            let both = match self.commit_named(to).await {
                Ok(()) => self.commit_named(from).await,
                failed => failed,
            };
            // If a name does not exist, nothing is exchanged, and the server will say so.
            if both.is_err() && self.find(to).await?.is_some() && self.find(from).await?.is_some() {
                both?;
            }
            return Ok((flags, Ok(())));
        }
        if self.cached_inode(to).is_some() {
            self.commit_named(from).await?;
            return Ok((flags, Ok(())));
        }
        match self.cached_inode(from) {
            Some(inode) if is_settled(&inode) => Ok((flags, Ok(()))),
            Some(_) => Ok((flags | NO_REPLACE, Ok(()))),
            None => match self.commit_named(from).await {
                Ok(()) => Ok((flags, Ok(()))),
                failed => Ok((flags | NO_REPLACE, failed)),
            },
        }
    }

    /// Is nothing of any file left to commit, possibly stored into a mapping, or lost without a
    /// report to any process?
    fn is_all_settled(&self) -> bool {
        let data = self.data();
        let settled = data.is_settled() && !data.has_unreported_loss();
        settled && !self.handles.may_be_mapped_writable()
    }

    /// Makes what this client has accepted of the content of the file at `place` stable and
    /// committed.
    async fn commit_named(&self, place: Place<'_>) -> Result<(), Fault> {
        if self.is_all_settled() {
            return Ok(());
        }
        let found = self.find(place).await?;
        let Some(inode) = found.and_then(|ino| self.inodes.get(ino)) else { return Ok(()) };
        if inode.has_buffered_writer() && inode.has_pages() {
            // Stores into a mapping are content, too.
            self.inval_pages(&inode, (0, u64::MAX)).await;
        }
        let Some(data_lease) = inode.data_lease() else { return Ok(()) };
        if data_lease.file.acknowledge_loss() {
            return Err(Fault::Io);
        }
        match data_lease.file.commit_accepted().await {
            // The file is gone, and the server will say so.
            Err(Fault::Stale) => Ok(()),
            outcome => outcome,
        }
    }

    /// The inode that a name leads to, looked up at the server if it is not cached. `None`: there
    /// is none, or the server returned a fault, which the operation will get as well.
    async fn find(&self, place: Place<'_>) -> Result<Option<Ino>, Fault> {
        if let Some(inode) = self.cached_inode(place) {
            return Ok(Some(inode.ino));
        }
        let op = Op::Lookup {
            dir: place.dir,
            name: place.name.clone(),
            want: Rights::empty(),
            want_dir: WANT_DIR,
        };
        let reply = self.rpc.call(Call::one(&Caller::default(), op)).await?;
        match result(&reply, 0) {
            Ok(OpReply::Entry { entry: Some(leased), .. }) => Ok(Some(leased.attr.ino)),
            _ => Ok(None),
        }
    }

    fn is_same(&self, from: Place<'_>, to: Place<'_>) -> bool {
        match (self.cached_inode(from), self.cached_inode(to)) {
            (Some(from), Some(to)) => from.ino == to.ino,
            _ => false,
        }
    }

    /// If `place` is the only name of a file that nothing here uses, its rights can be given up
    /// with the name: then nothing more is written to the devices for it. Not while a thread other
    /// than `pid` may still open it.
    async fn prepare_removal(self: &Rc<Self>, place: Place<'_>, pid: u32) -> Option<Removal> {
        let inode = self.cached_inode(place)?;
        let removable = |inode: &Inode| {
            inode.kind() != FileKind::Directory
                && self.rpc.is_together(place.dir, inode.ino)
                && inode.opens() == 0
                && inode.attr_is_valid()
                && inode.server_attr().nlink == 1
                && !self.may_be_opened_by_others(inode, place, pid)
                // A recall that drains waits for what the removal holds back.
                && inode.data_lease().is_none_or(|c| !c.has_io() && !c.is_draining())
        };
        if !removable(&inode) || self.removing.borrow().contains_key(&inode.ino) {
            return None;
        }
        let (dir, name) = (place.dir, place.name.clone());
        let removing = Removing { dir, name, ended: Notify::new() };
        self.removing.borrow_mut().insert(inode.ino, removing);
        let removal = Removal { core: self.clone(), inode };
        if let Some(data_lease) = removal.inode.data_lease()
            && !data_lease.file.is_clean()
        {
            if data_lease.is_shared() {
                // Another client may have it open, and continue reading.
                data_lease.file.flush().await.ok()?;
            }
            data_lease.file.pause().await;
        }
        removable(&removal.inode).then_some(removal)
    }
}
