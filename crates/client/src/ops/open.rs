//! Opening and closing files.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use proto::mds::{LAYOUT_SWAPS, NewNode, Op, OpReply, Reply};
use proto::wire::{Appended, Bytes};
use types::{Attr, Fault, FileKind, Ino, Rights};

use super::setattr::ATTR_TTL_NONE;
use crate::api::{Caller, Entry, Handle, LockOwner, LockRequest, OpenFlags, Opened, Place};
use crate::boundary::FileContent;
use crate::client::Client;
use crate::core::Core;
use crate::data_lease::Service;
use crate::handles::OpenFile;
use crate::inode::{Inode, InodePin};
use crate::rpc::{Call, result};
use crate::waits::Wait;

/// Rights to acquire with a file that is created and opened.
pub(crate) const WANT_NEW: Rights = Rights::ATTR.union(Rights::OPEN).union(Rights::DATA_X);

/// How often a create is retried whose name existed, and was removed before it was looked up.
const CREATE_RETRIES: u32 = 64;

/// Counts an open; if the open fails or is given up, counts it back, like a close.
struct OpenCount {
    core: Weak<Core>,
    inode: Rc<Inode>,
    kept: bool,
}

impl OpenCount {
    fn new(core: &Core, inode: &Rc<Inode>) -> OpenCount {
        inode.count_open(1);
        OpenCount { core: core.me.clone(), inode: inode.clone(), kept: false }
    }
}

impl Drop for OpenCount {
    /// The operation that opened it may have been abandoned while `OPEN` is held here: nothing else
    /// would return it.
    fn drop(&mut self) {
        if self.kept || self.inode.count_open(-1) > 0 {
            return;
        }
        let Some(core) = self.core.upgrade() else { return };
        let inode = self.inode.clone();
        if !inode.is_lost() && inode.server_attr().nlink == 0 {
            inode.owe_open();
        }
        core.schedule_open_return(&inode);
    }
}

/// Does the kernel bypass its page cache? A buffered write shows its bytes to local readers before
/// this client has the right. So only O_RDWR, which takes the right at open and may be mapped, is
/// buffered, and not even that while several clients write the file.
fn is_direct(flags: OpenFlags) -> bool {
    flags.has(OpenFlags::DIRECT | OpenFlags::APPEND) || flags.writes() && !flags.read_write()
}

impl Client {
    /// Opens a regular file.
    pub async fn open(
        &self,
        _caller: &Caller,
        ino: Ino,
        flags: OpenFlags,
    ) -> Result<Opened, Fault> {
        let core = &self.core;
        if flags.writes() || flags.has(OpenFlags::TRUNCATE) {
            core.check_writable()?;
        }
        core.wait_for_lease(ino).await?;
        let inode = core.inode(ino).await?;
        inode.mark_opened();
        match inode.kind() {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Fault::IsDirectory),
            _ => return Err(Fault::NotSupported),
        }
        core.open_inode(&inode, flags).await
    }

    /// Creates and opens a regular file, or opens it if it exists and `O_EXCL` is not set.
    ///
    /// # Errors
    /// `Stale` if it exists and only the kernel, which believed that the name did not exist, can
    /// say whether the caller may open it: the kernel then looks the name up again. Also if others
    /// created and removed it too often in between.
    pub async fn create(
        &self,
        caller: &Caller,
        place: Place<'_>,
        mode: u16,
        umask: u16,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened), Fault> {
        let core = &self.core;
        core.check_writable()?;
        let mut retries = CREATE_RETRIES;
        loop {
            let node = NewNode::plain(FileKind::Regular, mode, umask);
            let reply = core.send_create(caller, place, node, WANT_NEW).await?;
            let exists = matches!(result(&reply, 0), Err(Fault::Exists));
            if !exists || flags.has(OpenFlags::EXCLUSIVE) {
                return self.created(&reply, place, flags).await;
            }
            let Ok(entry) = self.lookup(caller, place.dir, place.name).await? else {
                // It was removed since.
                retries = retries.checked_sub(1).ok_or(Fault::Stale)?;
                continue;
            };
            if !may_open(caller, &entry.attr, flags) {
                self.forget(entry.attr.ino, 1);
                return Err(Fault::Stale);
            }
            return self.open_found(caller, entry, flags).await;
        }
    }

    /// Opens the existing file that a create found.
    async fn open_found(
        &self,
        caller: &Caller,
        entry: Entry,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened), Fault> {
        let core = &self.core;
        let opened = self.open(caller, entry.attr.ino, flags).await;
        if opened.is_err() {
            self.forget(entry.attr.ino, 1);
        }
        let opened = opened?;
        if flags.has(OpenFlags::TRUNCATE) {
            let inode = core.handles.file(opened.handle)?.inode.clone();
            let mut done = core.truncate(&inode, 0, None).await;
            if done.is_ok() && caller.uid != 0 {
                done = core.kill_setid(caller, &inode).await;
            }
            if let Err(fault) = done {
                self.release(opened.handle, None).await;
                self.forget(entry.attr.ino, 1);
                return Err(fault);
            }
        }
        Ok((Entry { attr_ttl: ATTR_TTL_NONE, ..entry }, opened))
    }

    /// Handles the reply to a create that also opens the file.
    async fn created(
        &self,
        reply: &Reply,
        place: Place<'_>,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened), Fault> {
        let core = &self.core;
        match result(reply, 0) {
            Ok(OpReply::Created { leased, .. }) if core.is_made_there(place, leased.attr.ino) => {
                let inode = core.inodes.get_or_insert(&leased.attr);
                core.path_hints.note(inode.ino, place.dir, place.name);
                let opened = core.opened(&inode, flags);
                let entry = core.entry_from_reply(&inode, place.dir, place.name);
                core.invalidate_for_abandoned_caller(reply).await;
                Ok((entry, opened))
            }
            Ok(_) => Err(Fault::Protocol),
            Err(fault) => Err(core.dir_fault(place.dir, fault)),
        }
    }

    /// Creates and opens a regular file without a name (`O_TMPFILE`).
    pub async fn tmpfile(
        &self,
        caller: &Caller,
        dir: Ino,
        mode: u16,
        umask: u16,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened), Fault> {
        let core = &self.core;
        core.check_writable()?;
        let op = Op::CreateTmpfile {
            dir,
            node: NewNode::plain(FileKind::Regular, mode, umask),
            want: WANT_NEW,
            placement: Appended(None),
        };
        let reply = core.send_change(caller, op).await?;
        let created = result(&reply, 0).map_err(|fault| core.dir_fault(dir, fault))?;
        let OpReply::Created { leased, .. } = created else { return Err(Fault::Protocol) };
        if !core.rpc.is_together(dir, leased.attr.ino) {
            return Err(Fault::Protocol);
        }
        let inode = core.inodes.get_or_insert(&leased.attr);
        inode.set_tmpfile(true);
        let opened = core.opened(&inode, flags);
        let entry = core.entry(&inode, dir);
        core.invalidate_for_abandoned_caller(&reply).await;
        Ok((entry, opened))
    }

    /// Creates and opens a file without a name that has this placement (empty: the default), for
    /// a copy of the content of the file `of`, at the same server.
    ///
    /// # Errors
    /// `Unsupported`: the server is of an older release. `NoSpace`: no object target takes it.
    /// `Invalid`: the placement names a data zone that there is not.
    pub(crate) async fn spare(&self, of: Ino, placement: Vec<u8>) -> Result<Handle, Fault> {
        let core = &self.core;
        core.check_writable()?;
        if core.rpc.of(of).agreed().0 < LAYOUT_SWAPS {
            return Err(Fault::Unsupported);
        }
        let op = Op::CreateTmpfile {
            // The root directory of the shard that has the file: its server executes it.
            dir: Ino(u64::from(core.rpc.shard_of(of).0) << 56 | Ino::ROOT.0),
            node: NewNode::plain(FileKind::Regular, 0o600, 0),
            want: WANT_NEW,
            placement: Appended(Some(Bytes(placement))),
        };
        let reply = core.send_change(&Caller::default(), op).await?;
        let OpReply::Created { leased, .. } = result(&reply, 0)? else {
            return Err(Fault::Protocol);
        };
        let inode = core.inodes.get_or_insert(&leased.attr);
        Ok(core.opened(&inode, OpenFlags(OpenFlags::WRITE_ONLY)).handle)
    }

    /// The last descriptor is closed; frees the owner's flock if given.
    pub async fn release(&self, handle: Handle, flock_owner: Option<LockOwner>) {
        let core = &self.core;
        let Some(file) = core.handles.remove_file(handle) else { return };
        let inode = file.inode.clone();
        if let Some(owner) = flock_owner
            && !inode.is_lost()
            && core.locks.holds(inode.ino, true, owner)
        {
            let lock = LockRequest {
                flock: true,
                owner,
                pid: 0,
                exclusive: None,
                start: 0,
                end: u64::MAX,
            };
            let _ = core.unlock(inode.ino, lock).await;
        }
        core.locks.closed_by_all(&file);
        if file.flags.read_write() {
            inode.count_writer(-1);
        }
        let left = inode.count_open(-1);
        drop(file);
        if let Some(data_lease) = inode.data_lease() {
            data_lease.file.handle_closed(handle.0);
        }
        if left > 0 || inode.is_lost() {
            return;
        }
        core.last_handle_closed(&inode).await;
        core.data_lease_closed(&inode);
        core.inodes.became_idle(&inode);
    }
}

/// Is it certain that the kernel would let `caller` open an existing file? The kernel checks
/// nothing when an answer to CREATE opens a file. If it is not certain, the kernel looks the name
/// up, and checks. User 0 has no more rights than others: behind an id-mapped mount it may be any
/// user.
fn may_open(caller: &Caller, attr: &Attr, flags: OpenFlags) -> bool {
    let writes = flags.writes() || flags.has(OpenFlags::TRUNCATE);
    let reads = flags.0 & OpenFlags::ACCESS != OpenFlags::WRITE_ONLY;
    let needed = if writes { 0o200 } else { 0 } | if reads { 0o400 } else { 0 };
    let owns = caller.uid == attr.uid && attr.mode & needed == needed;
    attr.kind == FileKind::Regular && caller.is_known() && owns
}

impl Core {
    /// Opens an existing inode.
    pub async fn open_inode(&self, inode: &Rc<Inode>, flags: OpenFlags) -> Result<Opened, Fault> {
        loop {
            let removing = self.removing.borrow().get(&inode.ino).map(|r| r.ended.notified());
            let Some(removing) = removing else { break };
            self.waits.named(&self.env, Wait::Removal(inode.ino), removing).await;
        }
        let mut count = OpenCount::new(self, inode);
        let _opening = if flags.read_write() && inode.kind() == FileKind::Regular {
            Some(self.data_lease(inode).pages.open_to_write().await)
        } else {
            None
        };
        let got = self.acquire_open_rights(inode, flags).await;
        count.kept = got.is_ok();
        drop(count);
        match got {
            Ok(direct) => {
                if flags.read_write() {
                    inode.count_writer(1);
                }
                Ok(self.new_handle(inode, flags, direct))
            }
            Err(fault) => Err(fault),
        }
    }

    /// Acquires the rights for opening. True if the kernel bypasses its page cache. If the handle
    /// may map pages writable, the kernel then has pages under `DATA_X` only, until something else
    /// is awaited: a page that exists becomes dirty without a request.
    async fn acquire_open_rights(
        &self,
        inode: &Rc<Inode>,
        flags: OpenFlags,
    ) -> Result<bool, Fault> {
        let mut direct = is_direct(flags);
        if flags.read_write() && !direct {
            direct = self.acquire_open(inode, Rights::DATA_X).await?;
        }
        // Usually a read or a write follows. A client that writes may still have `DATA_X` from
        // before `OPEN` was lost.
        if !inode.holds(Rights::OPEN) {
            let follows = if flags.writes() { Rights::DATA_X } else { Rights::DATA_S };
            self.acquire_open(inode, follows).await?;
        }
        if flags.read_write() && !direct {
            drop(self.acquire_io(inode, Rights::DATA_X, Service::Plain, (0, 0)).await?);
        } else if flags.read_write() && inode.has_pages() && !inode.holds(Rights::DATA_X) {
            self.give_up_whole(inode).await;
        }
        Ok(direct)
    }

    /// The handle of a newly created file, which counts as open since the reply came.
    fn opened(&self, inode: &Rc<Inode>, flags: OpenFlags) -> Opened {
        if flags.read_write() {
            inode.count_writer(1);
        }
        self.new_handle(inode, flags, is_direct(flags))
    }

    fn new_handle(&self, inode: &Rc<Inode>, flags: OpenFlags, direct: bool) -> Opened {
        let reported = inode.data_lease().map_or(0, |data| data.file.error_seq());
        let (reported, lockers) = (Cell::new(reported), RefCell::default());
        let file = OpenFile { inode: inode.clone(), flags, direct, reported, lockers };
        let keep_cache = inode.keep_pages();
        if let Some(data_lease) = inode.data_lease().filter(|_| !keep_cache) {
            data_lease.pages.drops_by_answer(self.env.now());
        }
        Opened { handle: self.handles.add_file(file), keep_cache, direct_io: direct }
    }

    /// Returns `OPEN` of an orphan, or of a file whose `OPEN` was recalled, after its last close.
    /// Runs in its own task: what is owed is returned even if the caller of the operation is gone.
    ///
    /// # Errors
    /// If the server could not be asked whether the file has a name: then `OPEN` is owed.
    pub async fn last_close(&self, inode: &Rc<Inode>) -> Result<(), Fault> {
        let Some(core) = self.me.upgrade() else { return Ok(()) };
        let inode = inode.clone();
        let returned = self.env.spawn_join(async move {
            while let Some(seq) = core.return_open(&inode).await? {
                // A grant was on its way when the return was sent: its reply says what is held.
                core.rpc.of(inode.ino).barrier().await;
                inode.lease(|lease| lease.recalled(seq, Rights::empty()));
            }
            Ok(())
        });
        returned.await
    }

    /// Returns `OPEN` if nothing is open. If the server did not accept the return: the sequence
    /// that it should have named.
    async fn return_open(&self, inode: &Rc<Inode>) -> Result<Option<u64>, Fault> {
        if inode.is_lost() {
            return Ok(None);
        }
        if inode.server_attr().nlink > 0
            && let Err(fault) = self.fetch_attr(inode.ino).await
        {
            inode.owe_open();
            return Err(fault);
        }
        if self.is_used(inode) {
            // Opened or found again in between: `OPEN` is owed at the next last close, or when the
            // kernel has forgotten the inode.
            inode.owe_open();
            return Ok(None);
        }
        let gone = inode.server_attr().nlink == 0;
        if gone && let Some(data_lease) = inode.data_lease() {
            if data_lease.is_shared() {
                // Another client may still have it open; the log reports what is lost.
                let _ = data_lease.file.flush().await;
            }
            data_lease.file.pause().await;
            if inode.opens() > 0 {
                // A process that found it by its name has opened it in between.
                data_lease.file.resume();
                inode.owe_open();
                return Ok(None);
            }
            data_lease.forget(false);
            data_lease.file.resume();
        }
        let (seq, held) = inode.lease(|lease| (lease.seq(), lease.rights().closed()));
        let give = if gone { held | Rights::OPEN } else { Rights::OPEN };
        inode.give_up(give, self.rpc.order());
        if gone {
            inode.set_pages(false);
        }
        let op = Op::Return { ino: inode.ino, seq, give, still_open: false, range: None };
        let pin = InodePin::new(inode);
        let reply = self.rpc.call(Call::reserved(vec![op])).await;
        self.inodes.unpin(pin);
        // After an eviction there is nothing left to return.
        let Ok(reply) = reply else { return Ok(None) };
        Ok(match result(&reply, 0) {
            Ok(OpReply::StaleReturn { seq }) => Some(*seq),
            _ => None,
        })
    }
}
