//! Changing attributes.

use std::rc::Rc;

use proto::mds::{InoRef, Op, SetAttr, SetTime};
use types::limits::FILE_SIZE_MAX;
use types::{Attr, Duration, Fault, FileKind, Ino};

use crate::api::{Caller, SetAttrRequest, TimeSpec};
use crate::client::Client;
use crate::core::Core;
use crate::handles::OpenFile;
use crate::inode::Inode;
use crate::rpc::result;
use crate::uses::Service;

fn time(spec: TimeSpec) -> SetTime {
    match spec {
        TimeSpec::Now => SetTime::Now {},
        TimeSpec::At(time) => SetTime::At { time },
    }
}

/// For how long the kernel may believe attributes that it takes in also where they were invalidated
/// after the answer: those of SETATTR (before Linux 6.16), of LINK, and of CREATE for a file that
/// is there.
pub(super) const TAKEN_IN_WITHOUT_QUESTION: Duration = Duration::ZERO;

impl Client {
    /// Changes attributes. The size is changed under `DATA_X`, locally; the rest at the server.
    pub async fn setattr(
        &self,
        caller: &Caller,
        ino: Ino,
        set: SetAttrRequest,
    ) -> Result<(Attr, Duration), Fault> {
        let core = &self.core;
        core.writable()?;
        core.live().await?;
        let inode = core.inode(ino).await?;
        // A descriptor of what is lost does not reach what has its number now.
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
            judged_by: inode.owner_told(),
        };
        let explicit = set.mode.is_some() || owned || set.atime.is_some() || set.mtime.is_some();
        if explicit || kill_setid {
            core.set_attr(caller, &inode, change).await?;
        }
        let changed = set.size.is_some() || explicit || kill_setid;
        let attr = if core.attr_counts(&inode) {
            inode.attr()
        } else {
            match core.ask_attr(ino).await {
                Ok((_, attr)) => attr,
                // It was changed, and then removed: who changed it by its name must not try that
                // again with what has the name now.
                Err(Fault::Stale | Fault::NotFound) if changed => Attr { nlink: 0, ..inode.attr() },
                Err(fault) => return Err(fault),
            }
        };
        core.tell_attr(&inode, &attr);
        Ok((attr, TAKEN_IN_WITHOUT_QUESTION))
    }
}

/// Has it set-id bits that a write by an unprivileged caller clears?
pub(super) fn has_setid(attr: &Attr) -> bool {
    attr.mode & 0o4000 != 0 || attr.mode & 0o2010 == 0o2010
}

impl Core {
    /// Sets the size of a regular file; `by`: through this.
    pub async fn truncate(
        &self,
        inode: &Rc<Inode>,
        size: u64,
        by: Option<&OpenFile>,
    ) -> Result<(), Fault> {
        if size > FILE_SIZE_MAX {
            return Err(Fault::FileTooBig);
        }
        // An unlinked, closed file is no longer there; the kernel may still ask.
        let in_use = self.use_to_change(inode, Service::Always, true, (size, u64::MAX)).await?;
        by.map_or(Ok(()), |file| self.locks.stand(file))?;
        let _changing = in_use.pages().change((size, u64::MAX)).await;
        in_use.file().set_size(size).await?;
        // The kernel that asks for this changes the size that it has, and its pages, by itself.
        in_use.pages().resized(size);
        drop(in_use);
        self.content_changed(inode).await;
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
            && let Some(content) = inode.content()
        {
            // What was written before no longer sets the time, also not by a commit that is sent
            // again after a restart; what is written from now on does.
            content.file.before_times_set().await;
        }
        if inode.is_lost() {
            return Err(Fault::Stale);
        }
        let op = Op::SetAttr { ino: InoRef::Is { ino: inode.ino }, set };
        let reply = self.change(caller, op).await?;
        self.untold(&reply).await;
        result(&reply, 0).map(|_| ())
    }

    /// A write by an unprivileged caller clears set-id bits.
    pub async fn kill_setid(&self, caller: &Caller, inode: &Rc<Inode>) -> Result<(), Fault> {
        // Who holds a part gives it up before anyone changes the mode.
        let parts = inode.content().is_some_and(|content| content.holds_parts());
        if !inode.attr_holds() && !parts {
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
            judged_by: inode.owner_told(),
        };
        self.set_attr(caller, inode, set).await
    }
}
