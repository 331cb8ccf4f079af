//! Changing attributes.

use std::rc::Rc;

use proto::mds::{Op, SetAttr, SetTime};
use types::limits::FILE_SIZE_MAX;
use types::{Attr, Duration, Fault, FileKind, Ino, Rights};

use crate::api::{Caller, SetAttrRequest, TimeSpec};
use crate::boundary::FileContent;
use crate::client::Client;
use crate::core::Core;
use crate::data_lease::Service;
use crate::handles::OpenFile;
use crate::inode::Inode;
use crate::rpc::result;

fn time(spec: TimeSpec) -> SetTime {
    match spec {
        TimeSpec::Now => SetTime::Now {},
        TimeSpec::At(time) => SetTime::At { time },
    }
}

/// TTL of attributes that the kernel accepts even if they were invalidated after the answer. These
/// are the answers to SETATTR (before Linux 6.16), to LINK, and to CREATE of an existing file. So
/// they must not be cached.
pub(super) const ATTR_TTL_NONE: Duration = Duration::ZERO;

impl Client {
    /// Changes attributes. The size is changed locally, under `DATA_X`; the rest at the server.
    pub async fn setattr(
        &self,
        caller: &Caller,
        ino: Ino,
        set: SetAttrRequest,
    ) -> Result<(Attr, Duration), Fault> {
        let core = &self.core;
        core.check_writable()?;
        core.wait_for_lease(ino).await?;
        let inode = core.inode(ino).await?;
        // A handle to a lost inode must not affect the inode that reuses its number.
        if let Some(handle) = set.handle {
            core.handles.ino(handle)?;
        }
        if let Some(size) = set.size {
            match inode.kind() {
                FileKind::Regular => {
                    let by = set.handle.and_then(|handle| core.handles.file(handle).ok());
                    core.truncate(&inode, size, by.as_deref()).await?;
                }
                FileKind::Directory => return Err(Fault::IsDirectory),
                _ => return Err(Fault::Invalid),
            }
        }
        let owned = set.uid.is_some() || set.gid.is_some();
        let kill_setid = set.kill_suidgid && has_setid(&inode.attr())
            || owned && inode.kind() != FileKind::Directory;
        let change = SetAttr {
            mode: set.mode,
            uid: set.uid,
            gid: set.gid,
            atime: set.atime.map(time),
            mtime: set.mtime.map(time),
            kill_setid,
            judged_by: inode.reported_owner(),
        };
        let explicit = set.mode.is_some() || owned || set.atime.is_some() || set.mtime.is_some();
        if explicit || kill_setid {
            core.set_attr(caller, &inode, change).await?;
        }
        let changed = set.size.is_some() || explicit || kill_setid;
        let attr = if core.attr_cache_valid(&inode) {
            inode.attr()
        } else {
            match core.fetch_attr_reply(ino, Rights::ATTR).await {
                Ok((_, attr)) => attr,
                // It was changed, and then removed. A caller that changed it by its name must not
                // repeat that with the inode that has the name now.
                Err(Fault::Stale | Fault::NotFound) if changed => Attr { nlink: 0, ..inode.attr() },
                Err(fault) => return Err(fault),
            }
        };
        core.report_attr(&inode, &attr);
        Ok((attr, ATTR_TTL_NONE))
    }
}

/// Has it set-id bits that a write by an unprivileged caller clears?
pub(super) fn has_setid(attr: &Attr) -> bool {
    attr.mode & 0o4000 != 0 || attr.mode & 0o2010 == 0o2010
}

impl Core {
    /// Sets the size of a regular file; `by`: through this open file.
    pub async fn truncate(
        &self,
        inode: &Rc<Inode>,
        size: u64,
        by: Option<&OpenFile>,
    ) -> Result<(), Fault> {
        if size > FILE_SIZE_MAX {
            return Err(Fault::FileTooBig);
        }
        // An unlinked, closed file no longer exists; the kernel may still ask.
        let guard = self.acquire_write_io(inode, Service::Resize, true, (size, u64::MAX)).await?;
        by.map_or(Ok(()), |file| self.locks.check_not_lost(file))?;
        let _changing = guard.pages().change((size, u64::MAX)).await;
        guard.file().set_size(size).await?;
        // The kernel that requested this adjusts its size and pages by itself.
        guard.pages().resized(size);
        drop(guard);
        self.inval_content_for_abandoned_caller(inode).await;
        Ok(())
    }

    /// Changes attributes at the server.
    pub async fn set_attr(
        &self,
        caller: &Caller,
        inode: &Rc<Inode>,
        set: SetAttr,
    ) -> Result<(), Fault> {
        if set.mtime.is_some()
            && let Some(data_lease) = inode.data_lease()
        {
            // Earlier writes must no longer set the time, not even by a commit that is replayed
            // after a restart; later writes do.
            data_lease.file.before_times_set().await;
        }
        if inode.is_lost() {
            return Err(Fault::Stale);
        }
        let op = Op::SetAttr { ino: inode.ino, set };
        let reply = self.send_change(caller, op).await?;
        self.invalidate_for_abandoned_caller(&reply).await;
        result(&reply, 0).map(|_| ())
    }

    /// A write by an unprivileged caller clears set-id bits.
    pub async fn kill_setid(&self, caller: &Caller, inode: &Rc<Inode>) -> Result<(), Fault> {
        // A client that holds a range gives it up before anyone changes the mode.
        let parts = inode.data_lease().is_some_and(|data| data.holds_ranges());
        if !inode.attr_is_valid() && !parts {
            self.fetch_attr(inode.ino).await?;
        }
        if !has_setid(&inode.attr()) {
            return Ok(());
        }
        let set = SetAttr {
            mode: None,
            uid: None,
            gid: None,
            atime: None,
            mtime: None,
            kill_setid: true,
            judged_by: inode.reported_owner(),
        };
        self.set_attr(caller, inode, set).await
    }
}
