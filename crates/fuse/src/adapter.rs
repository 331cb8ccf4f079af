//! A client as the file system that is mounted.

use client::Client;
use types::{Attr, Duration, Fault, Ino, LockOwner};

use crate::fs::{
    Caller, CopyRange, Entry, Filesystem, Handle, Listed, LocalFuture, LockRequest, LookupResult,
    NodeSpec, OpenFlags, Opened, Place, ReadData, SetAttrRequest, SetXattr, Statfs, Whence,
    WriteData, WriteFlags,
};

impl Filesystem for Client {
    fn root(&self) -> Ino {
        Client::root(self)
    }
    fn step<T>(&self, unique: u64, poll: impl FnOnce() -> T) -> T {
        Client::step(self, unique, poll)
    }
    fn give_up(&self, unique: u64) {
        Client::give_up(self, unique);
    }
    fn gone(&self) -> LocalFuture<'static, ()> {
        Client::unmount_deadline(self)
    }
    fn over(&self, unique: u64) {
        Client::operation_ended(self, unique);
    }
    async fn lookup(&self, caller: &Caller, place: Place<'_>) -> Result<LookupResult, Fault> {
        Client::lookup(self, caller, place.dir, place.name).await
    }
    fn forget(&self, ino: Ino, count: u64) {
        Client::forget(self, ino, count);
    }
    async fn getattr(&self, ino: Ino) -> Result<(Attr, Duration), Fault> {
        Client::getattr(self, ino).await
    }
    async fn getattr_to_read(&self, ino: Ino, handle: Handle) -> Result<(Attr, Duration), Fault> {
        Client::getattr_to_read(self, ino, handle).await
    }
    async fn setattr(
        &self,
        caller: &Caller,
        ino: Ino,
        set: SetAttrRequest,
    ) -> Result<(Attr, Duration), Fault> {
        Client::setattr(self, caller, ino, set).await
    }
    async fn readlink(&self, ino: Ino) -> Result<Vec<u8>, Fault> {
        Client::readlink(self, ino).await
    }
    async fn mknod(
        &self,
        caller: &Caller,
        place: Place<'_>,
        node: NodeSpec,
    ) -> Result<Entry, Fault> {
        Client::mknod(self, caller, place, node).await
    }
    async fn symlink(
        &self,
        caller: &Caller,
        place: Place<'_>,
        target: &[u8],
    ) -> Result<Entry, Fault> {
        Client::symlink(self, caller, place, target).await
    }
    async fn link(&self, caller: &Caller, ino: Ino, place: Place<'_>) -> Result<Entry, Fault> {
        Client::link(self, caller, ino, place).await
    }
    async fn unlink(&self, caller: &Caller, place: Place<'_>) -> Result<(), Fault> {
        Client::unlink(self, caller, place).await
    }
    async fn rmdir(&self, caller: &Caller, place: Place<'_>) -> Result<(), Fault> {
        Client::rmdir(self, caller, place).await
    }
    async fn rename(
        &self,
        caller: &Caller,
        from: Place<'_>,
        to: Place<'_>,
        flags: u32,
    ) -> Result<(), Fault> {
        Client::rename(self, caller, from, to, flags).await
    }
    async fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Opened, Fault> {
        Client::open(self, caller, ino, flags).await
    }
    async fn create(
        &self,
        caller: &Caller,
        place: Place<'_>,
        mode: u16,
        umask: u16,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened), Fault> {
        Client::create(self, caller, place, mode, umask, flags).await
    }
    async fn tmpfile(
        &self,
        caller: &Caller,
        dir: Ino,
        mode: u16,
        umask: u16,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened), Fault> {
        Client::tmpfile(self, caller, dir, mode, umask, flags).await
    }
    async fn read(
        &self,
        handle: Handle,
        offset: u64,
        len: u32,
        page_filling: bool,
    ) -> Result<ReadData, Fault> {
        Client::read(self, handle, offset, len, page_filling).await
    }
    async fn write(
        &self,
        caller: &Caller,
        handle: Handle,
        offset: u64,
        data: WriteData,
        flags: WriteFlags,
    ) -> Result<u32, Fault> {
        Client::write(self, caller, handle, offset, data.buffer, data.len, flags).await
    }
    async fn flush(&self, handle: Handle, owner: LockOwner) -> Result<(), Fault> {
        Client::flush(self, handle, owner).await
    }
    async fn release(&self, handle: Handle, flock_owner: Option<LockOwner>) {
        Client::release(self, handle, flock_owner).await;
    }
    async fn fsync(&self, handle: Handle, datasync: bool) -> Result<(), Fault> {
        Client::fsync(self, handle, datasync).await
    }
    async fn fallocate(
        &self,
        caller: &Caller,
        handle: Handle,
        mode: u32,
        offset: u64,
        len: u64,
    ) -> Result<(), Fault> {
        Client::fallocate(self, caller, handle, mode, offset, len).await
    }
    async fn lseek(&self, handle: Handle, offset: u64, whence: Whence) -> Result<u64, Fault> {
        Client::lseek(self, handle, offset, whence).await
    }
    async fn copy_range(&self, caller: &Caller, range: CopyRange) -> Result<u64, Fault> {
        let CopyRange { from, from_offset, to, to_offset, len } = range;
        Client::copy_range(self, caller, from, from_offset, to, to_offset, len).await
    }
    async fn opendir(&self, ino: Ino) -> Result<Handle, Fault> {
        Client::opendir(self, ino).await
    }
    async fn readdir(
        &self,
        handle: Handle,
        cookie: u64,
        bytes: usize,
        plus: bool,
    ) -> Result<Vec<Listed>, Fault> {
        Client::readdir(self, handle, cookie, bytes, plus).await
    }
    fn releasedir(&self, handle: Handle) {
        Client::releasedir(self, handle);
    }
    async fn fsyncdir(&self, handle: Handle) -> Result<(), Fault> {
        Client::fsyncdir(self, handle).await
    }
    async fn syncfs(&self) -> Result<(), Fault> {
        Client::syncfs(self).await
    }
    async fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Fault> {
        Client::getxattr(self, ino, name).await
    }
    async fn setxattr(&self, caller: &Caller, ino: Ino, set: SetXattr<'_>) -> Result<(), Fault> {
        let SetXattr { name, value, flags, kill_setgid } = set;
        Client::setxattr(self, caller, ino, name, value, flags, kill_setgid).await
    }
    async fn listxattr(&self, ino: Ino) -> Result<Vec<u8>, Fault> {
        Client::listxattr(self, ino).await
    }
    async fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<(), Fault> {
        Client::removexattr(self, caller, ino, name).await
    }
    async fn statfs(&self) -> Result<Statfs, Fault> {
        Client::statfs(self).await
    }
    async fn getlk(&self, handle: Handle, lock: LockRequest) -> Result<Option<LockRequest>, Fault> {
        Client::getlk(self, handle, lock).await
    }
    async fn setlk(&self, handle: Handle, lock: LockRequest, wait: bool) -> Result<(), Fault> {
        Client::setlk(self, handle, lock, wait).await
    }
}
