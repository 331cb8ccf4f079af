//! The interface between a mounted file system and the kernel adapter, in terms of the
//! client's interface.
//!
//! Invariants:
//! - each method answers one kind of request; numbers of the kernel's interface
//!   stay outside, except open flags and fallocate modes, which are Linux's own;
//! - a reply that contains an inode (`Entry`, and each listed entry with one)
//!   gives the kernel one reference to it, which the kernel returns by
//!   [`Filesystem::forget`];
//! - a method may wait for as long as it needs to; any number run concurrently;
//! - an operation always runs to its end; only a `setlk` that takes a lock may be dropped.

use std::future::Future;

pub use client::{
    Caller, Entry, Handle, Listed, LocalFuture, LockRequest, LookupResult, NodeSpec, OpenFlags,
    Opened, Place, ReadData, ReadPart, SetAttrRequest, Statfs, TimeSpec, Whence, WriteFlags,
};
use env::IoBuf;
use types::{Attr, Duration, Fault, Ino, LockOwner};

use crate::init::Negotiated;

/// A copy inside the file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyRange {
    /// Source.
    pub from: Handle,
    /// Offset in the source.
    pub from_offset: u64,
    /// Destination.
    pub to: Handle,
    /// Offset in the destination.
    pub to_offset: u64,
    /// Bytes.
    pub len: u64,
}

/// Data to be written.
pub struct WriteData {
    /// The body of the request; its memory is page-aligned.
    pub buffer: IoBuf,
    /// Bytes of it that are to be written.
    pub len: usize,
}

/// An extended attribute to be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetXattr<'a> {
    /// Name, prefix included.
    pub name: &'a [u8],
    /// Value.
    pub value: &'a [u8],
    /// As setxattr(2): 1 create, 2 replace.
    pub flags: u32,
    /// A caller outside the file's group sets an access ACL: clear set-gid.
    pub kill_setgid: bool,
}

/// A mounted file system. Each method answers one kind of request.
pub trait Filesystem: 'static {
    /// The kernel and the mount have agreed; requests follow.
    fn start(&self, negotiated: &Negotiated) {
        let _ = negotiated;
    }

    /// The inode that the kernel knows as node 1. It is never forgotten.
    fn root(&self) -> Ino {
        Ino::ROOT
    }

    /// Polls request `unique`, by whose number [`Filesystem::give_up`] may name it.
    fn step<T>(&self, unique: u64, poll: impl FnOnce() -> T) -> T {
        let _ = unique;
        poll()
    }

    /// The caller of request `unique` was killed, and its answer was sent. The request runs to its
    /// end, or fails early if it has changed nothing yet.
    fn give_up(&self, unique: u64) {
        let _ = unique;
    }

    /// Ends when no answer can be expected in a time that is acceptable after an unmount.
    fn gone(&self) -> LocalFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    /// Request `unique`, which was given up, has ended.
    fn over(&self, unique: u64) {
        let _ = unique;
    }

    /// Finds a name.
    fn lookup(
        &self,
        caller: &Caller,
        place: Place<'_>,
    ) -> impl Future<Output = Result<LookupResult, Fault>>;

    /// The kernel drops `count` references to an inode.
    fn forget(&self, ino: Ino, count: u64);

    /// Attributes, and for how long they are valid.
    fn getattr(&self, ino: Ino) -> impl Future<Output = Result<(Attr, Duration), Fault>>;

    /// As [`Filesystem::getattr`], for a process that reads through an open file beyond the size
    /// that the kernel knows: it reads up to the size in the answer.
    fn getattr_to_read(
        &self,
        ino: Ino,
        handle: Handle,
    ) -> impl Future<Output = Result<(Attr, Duration), Fault>> {
        let _ = handle;
        self.getattr(ino)
    }

    /// Changes attributes.
    fn setattr(
        &self,
        caller: &Caller,
        ino: Ino,
        set: SetAttrRequest,
    ) -> impl Future<Output = Result<(Attr, Duration), Fault>>;

    /// Target of a symbolic link.
    fn readlink(&self, ino: Ino) -> impl Future<Output = Result<Vec<u8>, Fault>>;

    /// Creates a file, directory, device, pipe or socket.
    fn mknod(
        &self,
        caller: &Caller,
        place: Place<'_>,
        node: NodeSpec,
    ) -> impl Future<Output = Result<Entry, Fault>>;

    /// Creates a symbolic link.
    fn symlink(
        &self,
        caller: &Caller,
        place: Place<'_>,
        target: &[u8],
    ) -> impl Future<Output = Result<Entry, Fault>>;

    /// Adds a name to `ino`.
    fn link(
        &self,
        caller: &Caller,
        ino: Ino,
        place: Place<'_>,
    ) -> impl Future<Output = Result<Entry, Fault>>;

    /// Removes a name that is not a directory's.
    fn unlink(&self, caller: &Caller, place: Place<'_>) -> impl Future<Output = Result<(), Fault>>;

    /// Removes an empty directory.
    fn rmdir(&self, caller: &Caller, place: Place<'_>) -> impl Future<Output = Result<(), Fault>>;

    /// Renames; flags as renameat2(2).
    fn rename(
        &self,
        caller: &Caller,
        from: Place<'_>,
        to: Place<'_>,
        flags: u32,
    ) -> impl Future<Output = Result<(), Fault>>;

    /// Opens a file. The kernel handles O_CREAT and O_EXCL, and truncates by `setattr`.
    fn open(
        &self,
        caller: &Caller,
        ino: Ino,
        flags: OpenFlags,
    ) -> impl Future<Output = Result<Opened, Fault>>;

    /// Creates and opens a file. If the name exists: [`Fault::Exists`] with O_EXCL;
    /// without it, opens the file or fails [`Fault::Stale`], upon which the kernel
    /// looks the name up again.
    fn create(
        &self,
        caller: &Caller,
        place: Place<'_>,
        mode: u16,
        umask: u16,
        flags: OpenFlags,
    ) -> impl Future<Output = Result<(Entry, Opened), Fault>>;

    /// Creates and opens a file without a name (O_TMPFILE).
    fn tmpfile(
        &self,
        caller: &Caller,
        dir: Ino,
        mode: u16,
        umask: u16,
        flags: OpenFlags,
    ) -> impl Future<Output = Result<(Entry, Opened), Fault>>;

    /// Reads up to `len` bytes; fewer only at the end of the file. `page_filling`:
    /// the answer fills pages of the kernel's cache, else it serves one read(2).
    fn read(
        &self,
        handle: Handle,
        offset: u64,
        len: u32,
        page_filling: bool,
    ) -> impl Future<Output = Result<ReadData, Fault>>;

    /// Writes; returns the number of bytes written.
    fn write(
        &self,
        caller: &Caller,
        handle: Handle,
        offset: u64,
        data: WriteData,
        flags: WriteFlags,
    ) -> impl Future<Output = Result<u32, Fault>>;

    /// A descriptor was closed: POSIX locks of `owner` end, and errors of write-behind are
    /// returned.
    fn flush(&self, handle: Handle, owner: LockOwner) -> impl Future<Output = Result<(), Fault>>;

    /// The last descriptor of an open file was closed; flock locks of `flock_owner` end.
    fn release(&self, handle: Handle, flock_owner: Option<LockOwner>) -> impl Future<Output = ()>;

    /// Makes a file durable.
    fn fsync(&self, handle: Handle, datasync: bool) -> impl Future<Output = Result<(), Fault>>;

    /// Allocates, punches or zeroes, by the mode of fallocate(2).
    fn fallocate(
        &self,
        caller: &Caller,
        handle: Handle,
        mode: u32,
        offset: u64,
        len: u64,
    ) -> impl Future<Output = Result<(), Fault>>;

    /// Finds data or a hole from `offset` on. [`Fault::NoData`] past the end.
    fn lseek(
        &self,
        handle: Handle,
        offset: u64,
        whence: Whence,
    ) -> impl Future<Output = Result<u64, Fault>>;

    /// Copies a range; returns the number of bytes copied.
    fn copy_range(
        &self,
        caller: &Caller,
        range: CopyRange,
    ) -> impl Future<Output = Result<u64, Fault>>;

    /// Opens a directory.
    fn opendir(&self, ino: Ino) -> impl Future<Output = Result<Handle, Fault>>;

    /// Entries after `cookie` (0: from the start), "." and ".." included, of about
    /// `bytes` in the kernel's form; none: the end. `plus`: with their attributes.
    fn readdir(
        &self,
        handle: Handle,
        cookie: u64,
        bytes: usize,
        plus: bool,
    ) -> impl Future<Output = Result<Vec<Listed>, Fault>>;

    /// Closes a directory.
    fn releasedir(&self, handle: Handle);

    /// Makes the names of a directory durable.
    fn fsyncdir(&self, handle: Handle) -> impl Future<Output = Result<(), Fault>>;

    /// Makes everything durable.
    fn syncfs(&self) -> impl Future<Output = Result<(), Fault>>;

    /// An extended attribute.
    fn getxattr(&self, ino: Ino, name: &[u8]) -> impl Future<Output = Result<Vec<u8>, Fault>>;

    /// Sets an extended attribute.
    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        set: SetXattr<'_>,
    ) -> impl Future<Output = Result<(), Fault>>;

    /// The names of all, each terminated by NUL.
    fn listxattr(&self, ino: Ino) -> impl Future<Output = Result<Vec<u8>, Fault>>;

    /// Removes one.
    fn removexattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
    ) -> impl Future<Output = Result<(), Fault>>;

    /// Space.
    fn statfs(&self) -> impl Future<Output = Result<Statfs, Fault>>;

    /// The first lock that conflicts with `lock`.
    fn getlk(
        &self,
        handle: Handle,
        lock: LockRequest,
    ) -> impl Future<Output = Result<Option<LockRequest>, Fault>>;

    /// Takes or releases a lock. With `wait`, waits until it is free; without, fails
    /// [`Fault::WouldBlock`]. If the caller is interrupted, the future of a lock being taken is
    /// dropped; a lock that is granted nevertheless is freed.
    fn setlk(
        &self,
        handle: Handle,
        lock: LockRequest,
        wait: bool,
    ) -> impl Future<Output = Result<(), Fault>>;
}

/// How a mount opens regular files: do reads and writes through this handle bypass
/// the page cache? Handles that read, or may be mapped, use it; handles that only write or
/// append gain nothing from it.
pub fn bypasses_pages(flags: OpenFlags) -> bool {
    flags.has(OpenFlags::APPEND | OpenFlags::DIRECT)
        || flags.0 & OpenFlags::ACCESS == OpenFlags::WRITE_ONLY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_handles_that_never_read_pages_bypass_the_page_cache() {
        let bypasses = |bits: i32| bypasses_pages(OpenFlags(bits as u32));
        assert!(bypasses(libc::O_WRONLY));
        assert!(bypasses(libc::O_RDWR | libc::O_APPEND));
        assert!(bypasses(libc::O_RDONLY | libc::O_DIRECT));
        assert!(!bypasses(libc::O_RDWR));
        assert!(!bypasses(libc::O_RDONLY));
    }
}
