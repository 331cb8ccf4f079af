//! From an operation to the file system and back to an answer.

use types::{Fault, Ino, LockOwner, Name};

use crate::abi::{CopyFileRangeOut, FileLock, GetxattrOut, LkIn, LseekOut, OpenOut, WriteOut};
use crate::counters::REQUESTS_XATTR;
use crate::decode::{Header, Operation};
use crate::errno::Errno;
use crate::executor_pool::EXECUTORS_XATTR;
use crate::fs::{
    Caller, Entry, Filesystem, Handle, LockRequest, Opened, Place, SetXattr, WriteData,
};
use crate::privileges::{Capability, may};
use crate::reply::{self, Answer};
use crate::session::Session;

const _: () = assert!(size_of::<LkIn>() == 24 + size_of::<FileLock>());

/// Serves one operation. `body`: the data of a WRITE.
pub(crate) async fn dispatch<F: Filesystem>(
    session: &Session<F>,
    header: &Header,
    operation: Operation,
    body: env::IoBuf,
) -> Answer {
    match serve(session, header, operation, body).await {
        Ok(answer) => answer,
        Err(fault) => Answer::Status(Err(Errno::from(fault))),
    }
}

fn place(dir: Ino, name: &Name) -> Place<'_> {
    Place { dir, name }
}

/// The caller as the file system is to see it for a change of content: set-id bits stay for who may
/// keep them.
fn keeping_setid(caller: &Caller) -> Caller {
    let privileged = !caller.is_known() && may(caller, Capability::Fsetid);
    if privileged { Caller { uid: 0, ..*caller } } else { *caller }
}

async fn serve<F: Filesystem>(
    session: &Session<F>,
    header: &Header,
    operation: Operation,
    body: env::IoBuf,
) -> Result<Answer, Fault> {
    let fs = &session.fs;
    let names = session.caches_names();
    let (ino, caller) = (header.ino, &header.caller);
    // If the caller was killed, the request undoes what its answer would have given the kernel.
    let caller_gone = || session.interrupts.is_released(header.unique);
    let entry = |entry: Entry| {
        if caller_gone() {
            fs.forget(entry.attr.ino, 1);
            return DONE;
        }
        session.notifier.answered(caller.pid, entry.attr.ino);
        Answer::fixed(&reply::entry_out(&entry, names))
    };
    Ok(match operation {
        Operation::Lookup { name } => match fs.lookup(caller, place(ino, &name)).await? {
            Ok(found) => entry(found),
            Err(ttl) if names && !ttl.is_zero() => Answer::fixed(&reply::missing_out(ttl)),
            Err(_) => return Err(Fault::NotFound),
        },
        Operation::Getattr { handle } => {
            let (attr, ttl) = match handle {
                Some(handle) => fs.getattr_to_read(ino, handle).await?,
                None => fs.getattr(ino).await?,
            };
            Answer::fixed(&reply::attr_out(&attr, ttl))
        }
        Operation::Statx => {
            let (attr, ttl) = fs.getattr(ino).await?;
            Answer::fixed(&reply::statx_out(&attr, ttl))
        }
        Operation::Setattr { set } => {
            let (attr, ttl) = match fs.setattr(caller, ino, set).await {
                // The kernel checked against an earlier owner; a caller with CAP_FOWNER may do it
                // all the same.
                Err(Fault::NotPermitted)
                    if !caller.is_known() && may(caller, Capability::Fowner) =>
                {
                    fs.setattr(&Caller { uid: 0, ..*caller }, ino, set).await?
                }
                done => done?,
            };
            Answer::fixed(&reply::attr_out(&attr, ttl))
        }
        Operation::Readlink => Answer::Bytes(fs.readlink(ino).await?),
        Operation::Mknod { name, node } => entry(fs.mknod(caller, place(ino, &name), node).await?),
        Operation::Symlink { name, target } => {
            entry(fs.symlink(caller, place(ino, &name), &target).await?)
        }
        Operation::Link { ino: target, name } => {
            entry(fs.link(caller, target, place(ino, &name)).await?)
        }
        Operation::Unlink { name } => {
            fs.unlink(caller, place(ino, &name)).await?;
            DONE
        }
        Operation::Rmdir { name } => {
            fs.rmdir(caller, place(ino, &name)).await?;
            DONE
        }
        Operation::Rename { name, to, new_name, flags } => {
            fs.rename(caller, place(ino, &name), place(to, &new_name), flags).await?;
            DONE
        }
        Operation::Open { flags } => {
            let opened = fs.open(caller, ino, flags).await?;
            session.notifier.opening(ino).await;
            if caller_gone() {
                fs.release(opened.handle, None).await;
                return Ok(DONE);
            }
            Answer::fixed(&reply::open_out(&opened))
        }
        Operation::Create { name, mode, umask, flags } => {
            let created = fs.create(caller, place(ino, &name), mode, umask, flags).await?;
            if caller_gone() {
                return Ok(return_created(fs, created).await);
            }
            session.notifier.answered(caller.pid, created.0.attr.ino);
            Answer::pair(&reply::entry_out(&created.0, names), &reply::open_out(&created.1))
        }
        Operation::Tmpfile { mode, umask, flags } => {
            let created = fs.tmpfile(caller, ino, mode, umask, flags).await?;
            if caller_gone() {
                return Ok(return_created(fs, created).await);
            }
            session.notifier.answered(caller.pid, created.0.attr.ino);
            Answer::pair(&reply::entry_out(&created.0, names), &reply::open_out(&created.1))
        }
        Operation::Read { handle, offset, len, page_filling } => {
            Answer::Data(fs.read(handle, offset, len, page_filling).await?)
        }
        Operation::Write { handle, offset, len, flags } => {
            let len = len as usize;
            if body.len() < len {
                return Err(Fault::Invalid);
            }
            let data = WriteData { buffer: body, len };
            let size = fs.write(caller, handle, offset, data, flags).await?;
            Answer::fixed(&WriteOut { size, padding: 0 })
        }
        Operation::Statfs => Answer::fixed(&reply::statfs_out(&fs.statfs().await?)),
        Operation::Release { handle, flock_owner } => {
            for owner in session.range_owners.released(ino, handle) {
                // The kernel ignores a failure of a release.
                let _ = fs.setlk(handle, unlock_all_of(owner), false).await;
            }
            fs.release(handle, flock_owner).await;
            DONE
        }
        Operation::Fsync { handle, datasync } => {
            fs.fsync(handle, datasync).await?;
            DONE
        }
        Operation::Flush { handle, owner } => {
            session.range_owners.flushed(ino, owner);
            fs.flush(handle, owner).await?;
            DONE
        }
        Operation::Setxattr { name, value, flags, kill_setgid } => {
            let set = SetXattr { name: &name, value: &value, flags, kill_setgid };
            fs.setxattr(caller, ino, set).await?;
            DONE
        }
        Operation::Getxattr { name, size } => {
            if ino == fs.root() && name == REQUESTS_XATTR {
                sized(session.counters.json().into_bytes(), size)?
            } else if ino == fs.root() && name == EXECUTORS_XATTR {
                sized(session.pool.json().into_bytes(), size)?
            } else {
                sized(fs.getxattr(ino, &name).await?, size)?
            }
        }
        Operation::Listxattr { size } => sized(visible(caller, fs.listxattr(ino).await?), size)?,
        Operation::Removexattr { name } => {
            fs.removexattr(caller, ino, &name).await?;
            DONE
        }
        Operation::Opendir => {
            let Handle(fh) = fs.opendir(ino).await?;
            session.notifier.opening(ino).await;
            if caller_gone() {
                fs.releasedir(Handle(fh));
                return Ok(DONE);
            }
            Answer::fixed(&OpenOut { fh, ..OpenOut::default() })
        }
        Operation::Readdir { handle, cookie, size, plus } => {
            let size = size as usize;
            let listed = fs.readdir(handle, cookie, size, plus).await?;
            if caller_gone() {
                let given = listed.iter().filter_map(|listed| listed.entry);
                given.for_each(|entry| fs.forget(entry.attr.ino, 1));
                return Ok(DONE);
            }
            let bytes = reply::entries(&listed, size, plus, names, |ino| fs.forget(ino, 1));
            if plus && !bytes.is_empty() {
                session.notifier.listed(caller.pid);
            }
            Answer::Bytes(bytes)
        }
        Operation::Releasedir { handle } => {
            fs.releasedir(handle);
            DONE
        }
        Operation::Fsyncdir { handle } => {
            fs.fsyncdir(handle).await?;
            DONE
        }
        Operation::Getlk { handle, lock } => {
            let held = fs.getlk(handle, lock).await?;
            Answer::fixed(&file_lock(held.unwrap_or(LockRequest { exclusive: None, ..lock })))
        }
        Operation::Setlk { handle, lock, wait } => {
            let done = fs.setlk(handle, lock, wait);
            if lock.exclusive.is_none() {
                done.await?;
                return Ok(DONE);
            }
            session.interrupts.take(header, wait, done).await?;
            if !lock.flock {
                session.range_owners.took(ino, handle, lock.owner);
            }
            DONE
        }
        Operation::Fallocate { handle, mode, offset, len } => {
            fs.fallocate(&keeping_setid(caller), handle, mode, offset, len).await?;
            DONE
        }
        Operation::Lseek { handle, offset, whence } => {
            Answer::fixed(&LseekOut { offset: fs.lseek(handle, offset, whence).await? })
        }
        Operation::CopyRange { range, wide } => {
            let copied = fs.copy_range(&keeping_setid(caller), range).await?;
            if wide {
                Answer::fixed(&CopyFileRangeOut { bytes_copied: copied })
            } else {
                let size = u32::try_from(copied).unwrap_or(u32::MAX);
                Answer::fixed(&WriteOut { size, padding: 0 })
            }
        }
        Operation::Syncfs => {
            fs.syncfs().await?;
            DONE
        }
        Operation::Destroy => DONE,
        // The session deals with these before it starts a task.
        Operation::Forget { .. }
        | Operation::BatchForget { .. }
        | Operation::Interrupt { .. }
        | Operation::Init => Answer::None,
    })
}

/// Closes and forgets a new file whose caller was killed.
async fn return_created<F: Filesystem>(fs: &F, (entry, opened): (Entry, Opened)) -> Answer {
    fs.release(opened.handle, None).await;
    fs.forget(entry.attr.ino, 1);
    DONE
}

const DONE: Answer = Answer::Status(Ok(()));

/// A request that releases all range locks of `owner`.
fn unlock_all_of(owner: LockOwner) -> LockRequest {
    LockRequest { flock: false, owner, pid: 0, exclusive: None, start: 0, end: i64::MAX as u64 }
}

/// The value of an extended attribute for a buffer of `size` bytes; 0 asks for the length.
fn sized(value: Vec<u8>, size: u32) -> Result<Answer, Fault> {
    if size == 0 {
        let size = u32::try_from(value.len()).map_err(|_| Fault::TooBig)?;
        return Ok(Answer::fixed(&GetxattrOut { size, padding: 0 }));
    }
    if value.len() > size as usize {
        return Err(Fault::Range);
    }
    Ok(Answer::Bytes(value))
}

fn file_lock(lock: LockRequest) -> FileLock {
    let kind = match lock.exclusive {
        Some(true) => libc::F_WRLCK,
        Some(false) => libc::F_RDLCK,
        None => libc::F_UNLCK,
    };
    FileLock { start: lock.start, end: lock.end, kind: kind as u32, pid: lock.pid }
}

/// The names, each terminated by NUL, that the caller may see: only administrators see `trusted.`
/// names. Other file systems filter in the kernel; FUSE leaves it to us.
fn visible(caller: &Caller, names: Vec<u8>) -> Vec<u8> {
    let each = || names.split_inclusive(|&byte| byte == 0);
    let is_trusted = |name: &[u8]| name.starts_with(b"trusted.");
    let known = caller.is_known();
    if known && caller.uid == 0
        || !each().any(is_trusted)
        || !known && may(caller, Capability::SysAdmin)
    {
        return names;
    }
    each().filter(|name| !is_trusted(name)).collect::<Vec<_>>().concat()
}

#[cfg(test)]
mod tests {
    use client::Caller;

    use super::visible;

    #[test]
    fn trusted_xattr_names_are_visible_to_root_only() {
        let names = b"user.a\0trusted.b\0security.c\0".to_vec();
        let caller = |uid, gid, pid| Caller { uid, gid, pid };
        assert_eq!(visible(&caller(0, 0, 0), names.clone()), names);
        assert_eq!(visible(&caller(1000, 0, 0), names.clone()), b"user.a\0security.c\0");
        // A caller that the kernel does not name, and that cannot be looked up.
        let unknown = caller(Caller::UNKNOWN, Caller::UNKNOWN, 0);
        assert_eq!(visible(&unknown, names), b"user.a\0security.c\0");
    }
}
