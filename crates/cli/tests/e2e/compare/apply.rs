//! Runs a script's steps on one file system, and records the results.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{
    self, Access, AtFlags, CWD, FallocateFlags, FileType, FlockOperation, Gid, Mode, OFlags,
    RawMode, RenameFlags, Stat, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::{self, Errno};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::step::{Act, Node, OpenHow, SLOTS, Step};
use crate::harness::{as_user, pattern};

/// Times set on purpose lie before this one (2001); the others are "now".
const LONG_AGO: i64 = 1_000_000_000;

const XATTRS: [&str; 5] = ["user.one", "user.two", "trusted.three", "security.four", "system.five"];

/// A file system, by the roots of all its mounts, and the script's open files in it.
pub struct Place {
    roots: Vec<PathBuf>,
    slots: [Option<Open>; SLOTS],
}

/// An open file, and the root of the mount through which it was opened.
struct Open {
    fd: OwnedFd,
    root: PathBuf,
}

type Answer = io::Result<String>;

fn ok(done: io::Result<()>) -> Answer {
    done.map(|()| "ok".to_owned())
}

impl Place {
    /// Makes the script's root directory, one for all mounts.
    pub fn new(roots: &[PathBuf]) -> Place {
        std::fs::create_dir_all(&roots[0]).unwrap();
        fs::chmod(&roots[0], Mode::from_raw_mode(0o777)).unwrap();
        Place { roots: roots.to_vec(), slots: Default::default() }
    }

    /// The result of the step, in words.
    pub fn apply(&mut self, step: &Step) -> String {
        let root = self.roots[step.mount % self.roots.len()].clone();
        let answer = as_user(step.uid, || self.act(&root, &step.act));
        if let Act::Chown { path, .. } | Act::Chmod { path, .. } = &step.act {
            // SEMANTICS.md: until then another mount's kernel judges by what it knew.
            for root in &self.roots {
                let _ = fs::lstat(root.join(path));
            }
        }
        answer.unwrap_or_else(|errno| format!("{errno:?}"))
    }

    fn act(&mut self, root: &Path, act: &Act) -> Answer {
        match act {
            Act::Open { slot, path, how, mode } => {
                // Only then may another open learn that the file is gone.
                self.slots[*slot] = None;
                let path = root.join(path);
                let kind = fs::stat(&path).map(|stat| FileType::from_raw_mode(stat.st_mode));
                if kind == Ok(FileType::Fifo) {
                    // Its ends meet in one kernel's inode: in one mount.
                    return Ok("a FIFO".to_owned());
                }
                let fd = fs::open(&path, flags(how), Mode::from_raw_mode(mode & 0o7777))?;
                let attributes = describe(&fs::fstat(&fd)?);
                self.slots[*slot] = Some(Open { fd, root: root.to_owned() });
                Ok(attributes)
            }
            Act::Tmpfile { slot, path, mode } => {
                self.slots[*slot] = None;
                let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
                let fd = fs::open(root.join(path), flags, Mode::from_raw_mode(mode & 0o7777))?;
                self.slots[*slot] = Some(Open { fd, root: root.to_owned() });
                Ok("ok".to_owned())
            }
            Act::Close { slot } => {
                self.slots[*slot] = None;
                Ok("ok".to_owned())
            }
            Act::Publish { slot, .. }
            | Act::Fstat { slot }
            | Act::Fchmod { slot, .. }
            | Act::Ftruncate { slot, .. }
            | Act::Read { slot, .. }
            | Act::Write { slot, .. }
            | Act::Store { slot, .. }
            | Act::Allocate { slot, .. }
            | Act::Fsync { slot, .. }
            | Act::Flock { slot, .. } => match &self.slots[*slot] {
                Some(open) => on_file(open, act),
                None => Ok("no file".to_owned()),
            },
            Act::Copy { from, to, offset, to_offset, len } => {
                let (Some(from), Some(to)) = (&self.slots[*from], &self.slots[*to]) else {
                    return Ok("no file".to_owned());
                };
                copy(&from.fd, &to.fd, (*offset, *to_offset), *len)
            }
            _ => on_name(root, act),
        }
    }

    /// Every path with what can be known of it, through one of the mounts.
    pub fn tree(&self, mount: usize) -> BTreeMap<String, String> {
        let root = &self.roots[mount];
        let mut found = BTreeMap::new();
        let mut pending = vec![root.clone()];
        while let Some(dir) = pending.pop() {
            for entry in std::fs::read_dir(&dir).unwrap() {
                let path = entry.unwrap().path();
                let stat = fs::lstat(&path).unwrap();
                let mut text = describe(&stat);
                match FileType::from_raw_mode(stat.st_mode) {
                    FileType::Directory => pending.push(path.clone()),
                    FileType::RegularFile => text += &sum(&std::fs::read(&path).unwrap()),
                    FileType::Symlink => text += &format!("{:?}", std::fs::read_link(&path)),
                    _ => {}
                }
                found.insert(path.strip_prefix(root).unwrap().display().to_string(), text);
            }
        }
        found
    }
}

fn flags(how: &OpenHow) -> OFlags {
    let mut flags = match (how.read, how.write) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        _ => OFlags::RDONLY,
    };
    // Processes of other tests must not hold a script's files.
    flags |= OFlags::CLOEXEC;
    for (wanted, flag) in [
        (how.create, OFlags::CREATE),
        (how.exclusive, OFlags::EXCL),
        (how.truncate, OFlags::TRUNC),
        (how.append, OFlags::APPEND),
        (how.nofollow, OFlags::NOFOLLOW),
        (how.directory, OFlags::DIRECTORY),
        (how.sync, OFlags::SYNC),
    ] {
        if wanted {
            flags |= flag;
        }
    }
    flags
}

fn on_name(root: &Path, act: &Act) -> Answer {
    let mode = |mode: &u32| Mode::from_raw_mode(*mode as RawMode & 0o7777);
    match act {
        Act::Mkdir { path, mode: bits } => ok(fs::mkdir(root.join(path), mode(bits))),
        Act::Rmdir { path } => ok(fs::rmdir(root.join(path))),
        Act::Unlink { path } => ok(fs::unlink(root.join(path))),
        Act::Link { from, to, follow } => {
            let flags = if *follow { AtFlags::SYMLINK_FOLLOW } else { AtFlags::empty() };
            ok(fs::linkat(CWD, root.join(from), CWD, root.join(to), flags))
        }
        Act::Symlink { target, path } => ok(fs::symlink(target.as_str(), root.join(path))),
        Act::Readlink { path } => {
            fs::readlink(root.join(path), Vec::new()).map(|target| format!("{target:?}"))
        }
        Act::Rename { from, to, flags } => {
            let flags = RenameFlags::from_bits_retain(*flags);
            ok(fs::renameat_with(CWD, root.join(from), CWD, root.join(to), flags))
        }
        Act::Mknod { path, node, mode: bits } => {
            let (kind, device) = match node {
                Node::File => (FileType::RegularFile, 0),
                Node::Fifo => (FileType::Fifo, 0),
                Node::Socket => (FileType::Socket, 0),
                Node::Device => (FileType::CharacterDevice, fs::makedev(1, 3)),
            };
            ok(fs::mknodat(CWD, root.join(path), kind, mode(bits), device))
        }
        Act::Stat { path, follow } => {
            let path = root.join(path);
            let stat = if *follow { fs::stat(path) } else { fs::lstat(path) };
            stat.map(|stat| describe(&stat))
        }
        Act::Chmod { path, mode: bits } => ok(fs::chmod(root.join(path), mode(bits))),
        Act::Chown { path, uid, gid } => {
            let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
            ok(fs::chownat(CWD, root.join(path), uid, gid, AtFlags::SYMLINK_NOFOLLOW))
        }
        Act::Utimens { path, seconds } => {
            let time = Timespec { tv_sec: *seconds, tv_nsec: 5 };
            let times = Timestamps { last_access: time, last_modification: time };
            ok(fs::utimensat(CWD, root.join(path), &times, AtFlags::SYMLINK_NOFOLLOW))
        }
        Act::Access { path, mode } => {
            let access = Access::from_bits_retain(*mode);
            ok(fs::accessat(CWD, root.join(path), access, AtFlags::EACCESS))
        }
        Act::Truncate { path, len } => truncate(&root.join(path), *len),
        Act::List { path } => list(&root.join(path)),
        _ => on_xattr(root, act),
    }
}

fn truncate(path: &Path, len: u64) -> Answer {
    // Without O_TRUNC, so that the size is set by a call of its own.
    let fd = fs::open(path, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    ok(fs::ftruncate(&fd, len))
}

fn list(path: &Path) -> Answer {
    let read = |error: std::io::Error| Errno::from_io_error(&error).expect("an errno");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path).map_err(read)? {
        let entry = entry.map_err(read)?;
        names.push(format!("{:?} {:?}", entry.file_name(), entry.file_type().map_err(read)?));
    }
    names.sort();
    Ok(names.join(", "))
}

fn on_xattr(root: &Path, act: &Act) -> Answer {
    match act {
        Act::SetXattr { path, name, len, flags } => {
            let flags = XattrFlags::from_bits_retain(*flags);
            let value = pattern(*len as u64, *len);
            ok(fs::lsetxattr(root.join(path), XATTRS[*name], &value, flags))
        }
        Act::GetXattr { path, name } => {
            let mut value = Vec::with_capacity(4096);
            let into = rustix::buffer::spare_capacity(&mut value);
            fs::lgetxattr(root.join(path), XATTRS[*name], into)?;
            Ok(sum(&value))
        }
        Act::RemoveXattr { path, name } => ok(fs::lremovexattr(root.join(path), XATTRS[*name])),
        Act::ListXattr { path } => {
            let mut names = Vec::with_capacity(4096);
            fs::llistxattr(root.join(path), rustix::buffer::spare_capacity(&mut names))?;
            let mut names: Vec<&[u8]> = names.split(|&byte| byte == 0).collect();
            names.sort();
            Ok(names.iter().map(|name| format!("{} ", String::from_utf8_lossy(name))).collect())
        }
        other => unreachable!("{other:?} works on a file"),
    }
}

fn on_file(open: &Open, act: &Act) -> Answer {
    let fd = &open.fd;
    match act {
        Act::Publish { path, .. } => {
            // A name in another mount would be one in another file system.
            let to = open.root.join(path);
            ok(fs::linkat(fd, c"" as &CStr, CWD, to, AtFlags::EMPTY_PATH))
        }
        Act::Fstat { .. } => fs::fstat(fd).map(|stat| describe(&stat)),
        Act::Fchmod { mode, .. } => ok(fs::fchmod(fd, Mode::from_raw_mode(mode & 0o7777))),
        Act::Ftruncate { len, .. } => ok(fs::ftruncate(fd, *len)),
        Act::Read { offset, len, .. } => {
            let mut bytes = vec![0; *len];
            let count = io::pread(fd, &mut bytes, *offset)?;
            Ok(sum(&bytes[..count]))
        }
        Act::Write { offset, len, seed, .. } => {
            let bytes = pattern(*seed, *len);
            let count = match offset {
                Some(offset) => io::pwrite(fd, &bytes, *offset)?,
                None => io::write(fd, &bytes)?,
            };
            Ok(format!("{count} bytes"))
        }
        Act::Store { offset, len, seed, .. } => store(fd, *offset, *len, *seed),
        Act::Allocate { mode, offset, len, .. } => {
            ok(fs::fallocate(fd, FallocateFlags::from_bits_retain(*mode), *offset, *len))
        }
        Act::Fsync { data, .. } => ok(if *data { fs::fdatasync(fd) } else { fs::fsync(fd) }),
        Act::Flock { kind, .. } => ok(fs::flock(
            fd,
            match kind {
                0 => FlockOperation::Unlock,
                1 => FlockOperation::NonBlockingLockShared,
                _ => FlockOperation::NonBlockingLockExclusive,
            },
        )),
        other => unreachable!("{other:?} works on a name"),
    }
}

/// Stores through a shared mapping, within the size that the file has now.
fn store(fd: &OwnedFd, offset: u64, len: usize, seed: u64) -> Answer {
    let stat = fs::fstat(fd)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok("not mapped".to_owned());
    }
    let size = stat.st_size as usize;
    let (start, end) = (offset as usize, (offset as usize + len).min(size));
    if start >= end {
        return Ok("beyond the end".to_owned());
    }
    let bytes = pattern(seed, end - start);
    // SAFETY: a fresh mapping of `size` bytes, of which only those inside are written; nobody
    // shortens the file meanwhile, and it is unmapped before the function ends.
    unsafe {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let map = mmap(std::ptr::null_mut(), size, protection, MapFlags::SHARED, fd, 0)?;
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), map.cast::<u8>().add(start), bytes.len());
        munmap(map, size)?;
    }
    Ok(format!("{} bytes", end - start))
}

fn copy(from: &OwnedFd, to: &OwnedFd, at: (u64, u64), len: usize) -> Answer {
    // SEMANTICS.md: a copy reaches as far as the size that the host last heard of.
    fs::fstat(from)?;
    // How much one call copies is the file system's choice.
    let (mut from_offset, mut to_offset) = at;
    let mut left = len;
    while left > 0 {
        let at = (Some(&mut from_offset), Some(&mut to_offset));
        match fs::copy_file_range(from, at.0, to, at.1, left)? {
            0 => break,
            count => left -= count,
        }
    }
    Ok(format!("{} bytes", len - left))
}

/// What every file system must say alike.
fn describe(stat: &Stat) -> String {
    let kind = FileType::from_raw_mode(stat.st_mode);
    let size = if kind == FileType::Directory { 0 } else { stat.st_size };
    let time = if stat.st_mtime < LONG_AGO {
        format!("{}.{:09}", stat.st_mtime, stat.st_mtime_nsec)
    } else {
        "now".to_owned()
    };
    format!(
        "{kind:?} {:o} {} links, {}:{}, size {size}, device {}, modified {time} ",
        stat.st_mode & 0o7777,
        stat.st_nlink,
        stat.st_uid,
        stat.st_gid,
        stat.st_rdev,
    )
}

/// Length and checksum of bytes, with where they stop being zero.
fn sum(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let first = bytes.iter().position(|&byte| byte != 0);
    format!("{} bytes, first not zero {first:?}, sum {hash:016x}", bytes.len())
}
