//! From the bytes of a request to an operation.
//!
//! Invariants:
//! - decoding is total: any bytes give an operation or an errno, never a panic,
//!   and nothing larger than the request is allocated;
//! - names are checked here, so the file system sees only legal ones.

use types::name::NameError;
use types::{FileKind, Ino, LockOwner, Name, Timestamp};

use crate::abi::{self, Abi, InHeader, Opcode, Reader};
use crate::errno::Errno;
use crate::fs::{
    Caller, CopyRange, Handle, LockRequest, NodeSpec, OpenFlags, SetAttrRequest, TimeSpec, Whence,
    WriteFlags,
};

/// The header of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The request's number, which its reply and an INTERRUPT name.
    pub unique: u64,
    /// The kernel's opcode.
    pub opcode: u32,
    /// The inode of the request.
    pub ino: Ino,
    /// The calling thread and its user.
    pub caller: Caller,
}

impl Header {
    /// Reads the first bytes of a request; `None` if there are too few.
    pub fn decode(bytes: &[u8]) -> Option<Header> {
        let raw = Reader::new(bytes).take::<InHeader>()?;
        Some(Header {
            unique: raw.unique,
            opcode: raw.opcode,
            ino: Ino(raw.nodeid),
            caller: Caller { uid: raw.uid, gid: raw.gid, pid: raw.pid },
        })
    }
}

/// The operation of a request. Its inode is the header's.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the fields are those of the operation in `Filesystem`")]
pub enum Operation {
    Lookup {
        name: Name,
    },
    Forget {
        count: u64,
    },
    BatchForget {
        inodes: Vec<(Ino, u64)>,
    },
    Getattr {
        /// The open file through which a process is about to read beyond the known size.
        handle: Option<Handle>,
    },
    Statx,
    Setattr {
        set: SetAttrRequest,
    },
    Readlink,
    Mknod {
        name: Name,
        node: NodeSpec,
    },
    Symlink {
        name: Name,
        target: Vec<u8>,
    },
    Unlink {
        name: Name,
    },
    Rmdir {
        name: Name,
    },
    Rename {
        name: Name,
        to: Ino,
        new_name: Name,
        flags: u32,
    },
    /// The header's inode is the directory.
    Link {
        ino: Ino,
        name: Name,
    },
    Open {
        flags: OpenFlags,
    },
    Create {
        name: Name,
        mode: u16,
        umask: u16,
        flags: OpenFlags,
    },
    Tmpfile {
        mode: u16,
        umask: u16,
        flags: OpenFlags,
    },
    Read {
        handle: Handle,
        offset: u64,
        len: u32,
        page_filling: bool,
    },
    Write {
        handle: Handle,
        offset: u64,
        len: u32,
        flags: WriteFlags,
    },
    Statfs,
    Release {
        handle: Handle,
        flock_owner: Option<LockOwner>,
    },
    Fsync {
        handle: Handle,
        datasync: bool,
    },
    Setxattr {
        name: Vec<u8>,
        value: Vec<u8>,
        flags: u32,
        kill_setgid: bool,
    },
    Getxattr {
        name: Vec<u8>,
        size: u32,
    },
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: Vec<u8>,
    },
    Flush {
        handle: Handle,
        owner: LockOwner,
    },
    Init,
    Opendir,
    Readdir {
        handle: Handle,
        cookie: u64,
        size: u32,
        plus: bool,
    },
    Releasedir {
        handle: Handle,
    },
    Fsyncdir {
        handle: Handle,
    },
    Getlk {
        handle: Handle,
        lock: LockRequest,
    },
    Setlk {
        handle: Handle,
        lock: LockRequest,
        wait: bool,
    },
    Interrupt {
        unique: u64,
    },
    Fallocate {
        handle: Handle,
        mode: u32,
        offset: u64,
        len: u64,
    },
    Lseek {
        handle: Handle,
        offset: u64,
        whence: Whence,
    },
    /// `wide`: the reply has a length of 64 bits.
    CopyRange {
        range: CopyRange,
        wide: bool,
    },
    Syncfs,
    Destroy,
}

const EINVAL: Errno = Errno(libc::EINVAL);

/// Decodes the arguments of a request, which follow its header. Of a WRITE it reads only
/// the fixed part; the data may lie elsewhere.
///
/// # Errors
/// The errno to answer: EINVAL for malformed bytes, ENAMETOOLONG, and ENOSYS for operations
/// that are not supported at all (the kernel then does not ask again).
pub fn decode(header: &Header, args: &[u8], setxattr_ext: bool) -> Result<Operation, Errno> {
    let Some(opcode) = Opcode::from_u32(header.opcode) else {
        return Err(Errno(libc::ENOSYS));
    };
    let mut reader = Reader::new(args);
    let r = &mut reader;
    let operation = match opcode {
        Opcode::Lookup => Operation::Lookup { name: name(r)? },
        Opcode::Forget => Operation::Forget { count: take::<abi::ForgetIn>(r)?.nlookup },
        Opcode::BatchForget => batch_forget(r)?,
        Opcode::Getattr => {
            let abi::GetattrIn { getattr_flags, fh, .. } = take(r)?;
            Operation::Getattr {
                handle: (getattr_flags & abi::GETATTR_FH != 0).then_some(Handle(fh)),
            }
        }
        Opcode::Statx => Operation::Statx,
        Opcode::Setattr => Operation::Setattr { set: set_attr(&take(r)?) },
        Opcode::Readlink => Operation::Readlink,
        Opcode::Symlink => {
            let name = name(r)?;
            let target = string(r)?;
            if target.is_empty() {
                return Err(Errno(libc::ENOENT));
            }
            Operation::Symlink { name, target: target.to_vec() }
        }
        Opcode::Mknod => {
            let raw: abi::MknodIn = take(r)?;
            let kind = FileKind::from_mode(raw.mode).ok_or(EINVAL)?;
            Operation::Mknod {
                name: name(r)?,
                node: NodeSpec {
                    kind,
                    mode: bits(raw.mode),
                    umask: bits(raw.umask),
                    rdev: raw.rdev,
                },
            }
        }
        Opcode::Mkdir => {
            let raw: abi::MkdirIn = take(r)?;
            let kind = FileKind::Directory;
            Operation::Mknod {
                name: name(r)?,
                node: NodeSpec { kind, mode: bits(raw.mode), umask: bits(raw.umask), rdev: 0 },
            }
        }
        Opcode::Unlink => Operation::Unlink { name: name(r)? },
        Opcode::Rmdir => Operation::Rmdir { name: name(r)? },
        Opcode::Rename => {
            let raw: abi::RenameIn = take(r)?;
            Operation::Rename { to: Ino(raw.newdir), name: name(r)?, new_name: name(r)?, flags: 0 }
        }
        Opcode::Rename2 => {
            let raw: abi::Rename2In = take(r)?;
            Operation::Rename {
                to: Ino(raw.newdir),
                name: name(r)?,
                new_name: name(r)?,
                flags: raw.flags,
            }
        }
        Opcode::Link => {
            let raw: abi::LinkIn = take(r)?;
            Operation::Link { ino: Ino(raw.oldnodeid), name: name(r)? }
        }
        Opcode::Open => Operation::Open { flags: OpenFlags(take::<abi::OpenIn>(r)?.flags) },
        Opcode::Create => {
            let raw: abi::CreateIn = take(r)?;
            Operation::Create {
                name: name(r)?,
                mode: bits(raw.mode),
                umask: bits(raw.umask),
                flags: OpenFlags(raw.flags),
            }
        }
        // The kernel sends a meaningless name ("/").
        Opcode::Tmpfile => {
            let raw: abi::CreateIn = take(r)?;
            Operation::Tmpfile {
                mode: bits(raw.mode),
                umask: bits(raw.umask),
                flags: OpenFlags(raw.flags),
            }
        }
        Opcode::Read => {
            let raw: abi::ReadIn = take(r)?;
            Operation::Read {
                handle: Handle(raw.fh),
                offset: raw.offset,
                len: raw.size,
                page_filling: raw.read_flags & abi::READ_LOCKOWNER == 0,
            }
        }
        Opcode::Write => {
            let raw: abi::WriteIn = take(r)?;
            let open = OpenFlags(raw.flags);
            let write_back_cache = raw.write_flags & abi::WRITE_CACHE != 0;
            Operation::Write {
                handle: Handle(raw.fh),
                offset: raw.offset,
                len: raw.size,
                flags: WriteFlags {
                    write_back_cache,
                    kill_suidgid: raw.write_flags & abi::WRITE_KILL_SUIDGID != 0,
                    // A page already has its offset, whatever the handle was opened with.
                    append: !write_back_cache && open.has(OpenFlags::APPEND),
                    sync: !write_back_cache && open.has(OpenFlags::DSYNC),
                },
            }
        }
        Opcode::Statfs => Operation::Statfs,
        Opcode::Release => {
            let raw: abi::ReleaseIn = take(r)?;
            let flock = raw.release_flags & abi::RELEASE_FLOCK_UNLOCK != 0;
            Operation::Release {
                handle: Handle(raw.fh),
                flock_owner: flock.then_some(LockOwner(raw.lock_owner)),
            }
        }
        Opcode::Fsync => {
            let raw: abi::FsyncIn = take(r)?;
            let datasync = raw.fsync_flags & abi::FSYNC_FDATASYNC != 0;
            Operation::Fsync { handle: Handle(raw.fh), datasync }
        }
        Opcode::Fsyncdir => Operation::Fsyncdir { handle: Handle(take::<abi::FsyncIn>(r)?.fh) },
        Opcode::Setxattr => set_xattr(r, setxattr_ext)?,
        Opcode::Getxattr => {
            let raw: abi::GetxattrIn = take(r)?;
            Operation::Getxattr { name: string(r)?.to_vec(), size: raw.size }
        }
        Opcode::Listxattr => Operation::Listxattr { size: take::<abi::GetxattrIn>(r)?.size },
        Opcode::Removexattr => Operation::Removexattr { name: string(r)?.to_vec() },
        Opcode::Flush => {
            let raw: abi::FlushIn = take(r)?;
            Operation::Flush { handle: Handle(raw.fh), owner: LockOwner(raw.lock_owner) }
        }
        Opcode::Init => Operation::Init,
        Opcode::Opendir => Operation::Opendir,
        Opcode::Readdir => read_dir(r, false)?,
        Opcode::Readdirplus => read_dir(r, true)?,
        Opcode::Releasedir => {
            Operation::Releasedir { handle: Handle(take::<abi::ReleaseIn>(r)?.fh) }
        }
        Opcode::Getlk => {
            let raw: abi::LkIn = take(r)?;
            Operation::Getlk { handle: Handle(raw.fh), lock: lock(&raw)? }
        }
        Opcode::Setlk | Opcode::Setlkw => {
            let raw: abi::LkIn = take(r)?;
            let wait = opcode == Opcode::Setlkw;
            Operation::Setlk { handle: Handle(raw.fh), lock: lock(&raw)?, wait }
        }
        Opcode::Interrupt => Operation::Interrupt { unique: take::<abi::InterruptIn>(r)?.unique },
        Opcode::Fallocate => {
            let raw: abi::FallocateIn = take(r)?;
            Operation::Fallocate {
                handle: Handle(raw.fh),
                mode: raw.mode,
                offset: raw.offset,
                len: raw.length,
            }
        }
        Opcode::Lseek => {
            let raw: abi::LseekIn = take(r)?;
            let whence = match raw.whence as i32 {
                libc::SEEK_DATA => Whence::Data,
                libc::SEEK_HOLE => Whence::Hole,
                _ => return Err(EINVAL),
            };
            Operation::Lseek { handle: Handle(raw.fh), offset: raw.offset, whence }
        }
        Opcode::CopyFileRange => copy_range(r, false)?,
        Opcode::CopyFileRange64 => copy_range(r, true)?,
        Opcode::Syncfs => Operation::Syncfs,
        Opcode::Destroy => Operation::Destroy,
        // With ENOSYS the kernel would let FITRIM and others pass; a file system without such
        // commands answers ENOTTY.
        Opcode::Ioctl => return Err(Errno(libc::ENOTTY)),
        Opcode::Access
        | Opcode::Bmap
        | Opcode::Poll
        | Opcode::NotifyReply
        | Opcode::Setupmapping
        | Opcode::Removemapping => return Err(Errno(libc::ENOSYS)),
    };
    if creates_inode(&operation) && !header.caller.is_known() {
        // A new inode needs an owner.
        return Err(Errno(libc::EOVERFLOW));
    }
    Ok(operation)
}

/// Does the operation create an inode that the caller will own?
fn creates_inode(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::Mknod { .. }
            | Operation::Symlink { .. }
            | Operation::Create { .. }
            | Operation::Tmpfile { .. }
    ) || matches!(operation, Operation::Rename { flags, .. } if flags & libc::RENAME_WHITEOUT != 0)
}

fn take<T: Abi>(reader: &mut Reader<'_>) -> Result<T, Errno> {
    reader.take().ok_or(EINVAL)
}

fn string<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Errno> {
    reader.string().ok_or(EINVAL)
}

fn name(reader: &mut Reader<'_>) -> Result<Name, Errno> {
    Name::new(string(reader)?).map_err(|error| match error {
        NameError::TooLong => Errno(libc::ENAMETOOLONG),
        NameError::Reserved | NameError::BadByte => EINVAL,
    })
}

/// The twelve permission bits of a mode.
fn bits(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

fn batch_forget(reader: &mut Reader<'_>) -> Result<Operation, Errno> {
    let raw: abi::BatchForgetIn = take(reader)?;
    let count = raw.count as usize;
    if count > reader.left() / abi::ForgetOne::SIZE {
        return Err(EINVAL);
    }
    let mut inodes = Vec::with_capacity(count);
    for _ in 0..count {
        let one: abi::ForgetOne = take(reader)?;
        inodes.push((Ino(one.nodeid), one.nlookup));
    }
    Ok(Operation::BatchForget { inodes })
}

fn time(seconds: u64, nanos: u32) -> TimeSpec {
    TimeSpec::At(Timestamp { seconds: seconds as i64, nanos: nanos.min(999_999_999) })
}

fn set_attr(raw: &abi::SetattrIn) -> SetAttrRequest {
    let has = |bit: u32| raw.valid & bit != 0;
    SetAttrRequest {
        mode: has(abi::FATTR_MODE).then(|| bits(raw.mode)),
        uid: has(abi::FATTR_UID).then_some(raw.uid),
        gid: has(abi::FATTR_GID).then_some(raw.gid),
        size: has(abi::FATTR_SIZE).then_some(raw.size),
        atime: has(abi::FATTR_ATIME).then(|| {
            if has(abi::FATTR_ATIME_NOW) { TimeSpec::Now } else { time(raw.atime, raw.atimensec) }
        }),
        mtime: has(abi::FATTR_MTIME).then(|| {
            if has(abi::FATTR_MTIME_NOW) { TimeSpec::Now } else { time(raw.mtime, raw.mtimensec) }
        }),
        handle: has(abi::FATTR_FH).then_some(Handle(raw.fh)),
        kill_suidgid: has(abi::FATTR_KILL_SUIDGID),
    }
}

fn set_xattr(reader: &mut Reader<'_>, ext: bool) -> Result<Operation, Errno> {
    let raw = if ext {
        take::<abi::SetxattrIn>(reader)?
    } else {
        let compat: abi::SetxattrCompatIn = take(reader)?;
        abi::SetxattrIn { size: compat.size, flags: compat.flags, ..Default::default() }
    };
    let name = string(reader)?.to_vec();
    let value = reader.bytes(raw.size as usize).ok_or(EINVAL)?.to_vec();
    Ok(Operation::Setxattr {
        name,
        value,
        flags: raw.flags,
        kill_setgid: raw.setxattr_flags & abi::SETXATTR_ACL_KILL_SGID != 0,
    })
}

fn read_dir(reader: &mut Reader<'_>, plus: bool) -> Result<Operation, Errno> {
    let raw: abi::ReadIn = take(reader)?;
    Ok(Operation::Readdir { handle: Handle(raw.fh), cookie: raw.offset, size: raw.size, plus })
}

fn lock(raw: &abi::LkIn) -> Result<LockRequest, Errno> {
    let exclusive = match raw.lk.kind as i32 {
        libc::F_RDLCK => Some(false),
        libc::F_WRLCK => Some(true),
        libc::F_UNLCK => None,
        _ => return Err(EINVAL),
    };
    if raw.lk.start > raw.lk.end {
        return Err(EINVAL);
    }
    Ok(LockRequest {
        flock: raw.lk_flags & abi::LK_FLOCK != 0,
        owner: LockOwner(raw.owner),
        pid: raw.lk.pid,
        exclusive,
        start: raw.lk.start,
        end: raw.lk.end,
    })
}

fn copy_range(reader: &mut Reader<'_>, wide: bool) -> Result<Operation, Errno> {
    let raw: abi::CopyFileRangeIn = take(reader)?;
    if raw.flags != 0 {
        return Err(EINVAL);
    }
    // The narrow reply has 32 bits for the length.
    let most = if wide { i64::MAX as u64 } else { u64::from(u32::MAX) & !4095 };
    let range = CopyRange {
        from: Handle(raw.fh_in),
        from_offset: raw.off_in,
        to: Handle(raw.fh_out),
        to_offset: raw.off_out,
        len: raw.len.min(most),
    };
    Ok(Operation::CopyRange { range, wide })
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
