//! Reading, writing, and fsync.

use std::cell::Cell;
use std::rc::Rc;

use env::IoBuf;
use proto::prealloc::Stream;
use types::limits::{BLOCK_U64, FILE_SIZE_MAX, IO_MAX};
use types::{Attr, Bug, Duration, Fault, Ino, Rights, planted};

use crate::api::{Caller, Handle, LockOwner, LockRequest, OpenFlags, ReadData, Whence, WriteFlags};
use crate::boundary::FileContent;
use crate::client::Client;
use crate::core::Core;
use crate::data_lease::{DataLease, IoGuard, Service};
use crate::handles::OpenFile;
use crate::inode::Inode;
use crate::pages::Overwrite;
use crate::ranges::{intersect, subtract};
use crate::waits::Wait;

/// Most bytes that one `copy_range` copies: the caller asks again for more.
const COPY_MAX: u64 = 16 << 20;
/// Where the kernel does not tell whether the last page of a WRITE lacks it, an invalidation that
/// takes longer waits for the WRITE itself, which keeps the page locked: then it lacks nothing.
const DROP_WITHIN: Duration = Duration::from_millis(100);
/// Any other page is unlocked, or a request in service has it. But kernels before 5.13 keep all
/// pages of a WRITE locked until it is answered: these have its bytes, and the answer ends it.
const UNLOCKED_WITHIN: Duration = Duration::from_secs(2);
/// So long a read waits until the file's last byte is stored into the kernel's pages.
const STORE_WITHIN: Duration = Duration::from_millis(100);

impl OpenFile {
    /// `Stale` if the file's creation was lost.
    fn check_not_lost(&self) -> Result<(), Fault> {
        if self.inode.is_lost() { Err(Fault::Stale) } else { Ok(()) }
    }

    /// `Io` once for each failure of write-back since the handle was opened.
    fn report_write_error(&self) -> Result<(), Fault> {
        let Some(data_lease) = self.inode.data_lease() else { return Ok(()) };
        let failures = data_lease.file.error_seq();
        if failures > self.reported.replace(failures) {
            data_lease.file.acknowledge_loss();
            return Err(Fault::Io);
        }
        Ok(())
    }
}

impl Client {
    /// Reads; `page_filling`: the kernel fills its page cache with the answer. Shorter than
    /// requested only at the end of the file.
    pub async fn read(
        &self,
        handle: Handle,
        offset: u64,
        len: u32,
        page_filling: bool,
    ) -> Result<ReadData, Fault> {
        let core = &self.core;
        let file = core.handles.file(handle)?;
        // A mapping of a file that is open for writing becomes dirty without a request.
        let exclusive = page_filling && file.inode.has_buffered_writer() && !core.config.read_only;
        let need = if exclusive { Rights::DATA_X } else { Rights::DATA_S };
        let service = if page_filling { Service::PageRead } else { Service::Plain };
        let range = (offset, offset.saturating_add(u64::from(len)));
        let mut guard = if page_filling {
            core.acquire_io(&file.inode, need, service, range).await?
        } else {
            core.acquire_range_io(&file.inode, need, range).await?
        };
        let mut data = guard.file().read(offset, len as usize).await?;
        data.filling = guard.filling();
        core.locks.check_not_lost(&file)?;
        Ok(data)
    }

    /// As [`Client::getattr`], for a process that reads, through an open file, beyond the size that
    /// the kernel has.
    ///
    /// A kernel ignores the size in an answer if anything else changed its view of the file since
    /// the request: an invalidation, or an answer to another thread. It would then end the read
    /// below a size that it has shown. So if the file has just changed elsewhere, its last byte is
    /// stored into the kernel's pages before the answer.
    pub async fn getattr_to_read(
        &self,
        ino: Ino,
        handle: Handle,
    ) -> Result<(Attr, Duration), Fault> {
        if let Ok(file) = self.core.handles.file(handle)
            && file.inode.ino == ino
            && !file.direct
        {
            // Without the right the answer has the server's attributes, or the reason for the
            // failure.
            let _ = self.core.raise_size(&file.inode).await;
        }
        self.getattr(ino).await
    }

    /// Writes the first `len` bytes of `data`; answers when the client owns them.
    pub async fn write(
        &self,
        caller: &Caller,
        handle: Handle,
        offset: u64,
        data: IoBuf,
        len: usize,
        flags: WriteFlags,
    ) -> Result<u32, Fault> {
        self.core.check_writable()?;
        let file = self.core.handles.any_file(handle)?;
        let client = self.core.rpc.of(file.inode.ino).client();
        let stream = Some(Stream { client, handle: handle.0, process: caller.pid });
        if !flags.write_back_cache {
            file.report_write_error()?;
            return self.write_to((&file, stream), caller, offset, data, len, flags).await;
        }
        // The kernel writes back for every process that stored, through any descriptor: all
        // descriptors report what is lost.
        match self.write_to((&file, stream), caller, offset, data, len, flags).await {
            Err(Fault::Evicted | Fault::NotHeld | Fault::Stale) => {
                if let Some(data_lease) = file.inode.data_lease() {
                    data_lease.refuse_write_back();
                }
                Err(Fault::Io)
            }
            other => other,
        }
    }

    /// As [`Client::write`]. If the session is lost during a wait, so are the bytes.
    async fn write_to(
        &self,
        (file, stream): (&OpenFile, Option<Stream>),
        caller: &Caller,
        offset: u64,
        data: IoBuf,
        len: usize,
        flags: WriteFlags,
    ) -> Result<u32, Fault> {
        let core = &self.core;
        let inode = &file.inode;
        file.check_not_lost()?;
        if len == 0 {
            return Ok(0);
        }
        if offset.checked_add(len as u64).is_none_or(|end| end > FILE_SIZE_MAX) {
            return Err(Fault::FileTooBig);
        }
        if flags.kill_suidgid {
            core.kill_setid(caller, inode).await?;
        }
        let append = (flags.append || file.flags.has(OpenFlags::APPEND)) && !flags.write_back_cache;
        let service = if flags.write_back_cache { Service::WriteBack } else { Service::PageWrite };
        let range = (offset, offset + len as u64);
        let mut overwrite = None;
        let through = !file.direct && !flags.write_back_cache;
        let data_lease = inode.data_lease().filter(|_| through);
        let may_lack = data_lease.is_none_or(|data| data.pages.may_lack(core.env.now()));
        let copy = (through && may_lack).then(|| data[..len].to_vec());
        let (at, written) = {
            let bypasses_pages = file.direct && !flags.write_back_cache;
            let (service, whole) =
                if bypasses_pages { (Service::Plain, append) } else { (service, true) };
            let guard = core.acquire_write_io(inode, service, whole, range).await?;
            // Pages that the kernel writes back may be of another descriptor.
            if !flags.write_back_cache {
                core.locks.check_not_lost(file)?;
            }
            if !file.direct {
                inode.set_pages(true);
            }
            if flags.write_back_cache {
                (offset, guard.write_back(offset, data, len, stream).await?)
            } else {
                let place = (!append).then_some(offset);
                let from = place.unwrap_or_else(|| guard.file().size());
                let end = place.map_or(u64::MAX, |_| range.1);
                let _changing = guard.pages().change((from, end)).await;
                overwrite = guard.overwrite(inode, place, len).await;
                guard.file().write(place, data, len, stream).await?
            }
        };
        if !flags.write_back_cache {
            let end = at + u64::from(written);
            core.drop_stale_pages(inode, file.direct, (at, end), (copy, overwrite)).await;
        }
        core.inval_content_for_abandoned_caller(inode).await;
        let sync = flags.sync || file.flags.has(OpenFlags::DSYNC | OpenFlags::SYNC);
        if flags.write_back_cache || !(sync || core.config.commit.sync) {
            return Ok(written);
        }
        let done = match sync {
            true => core.make_durable(inode, false).await,
            false => core.commit_now(inode).await,
        };
        file.report_write_error()?;
        done?;
        Ok(written)
    }

    /// A descriptor was closed: reports failed writes, frees the owner's POSIX locks.
    pub async fn flush(&self, handle: Handle, owner: LockOwner) -> Result<(), Fault> {
        let core = &self.core;
        let Ok(file) = core.handles.any_file(handle) else { return Ok(()) };
        let ino = file.inode.ino;
        if !file.inode.is_lost() && core.locks.holds(ino, false, owner) {
            let lock = LockRequest {
                flock: false,
                owner,
                pid: 0,
                exclusive: None,
                start: 0,
                end: u64::MAX,
            };
            core.unlock(ino, lock).await?;
        }
        core.locks.closed(&file, false, owner);
        file.report_write_error()
    }

    /// Makes everything of the file durable.
    pub async fn fsync(&self, handle: Handle, datasync: bool) -> Result<(), Fault> {
        let file = self.core.handles.any_file(handle)?;
        if file.inode.is_lost() {
            file.report_write_error()?;
            return file.check_not_lost();
        }
        let durable = self.core.make_durable(&file.inode, datasync).await;
        file.report_write_error()?;
        self.core.locks.check_not_lost(&file)?;
        durable
    }

    /// fallocate(2) with its mode bits.
    pub async fn fallocate(
        &self,
        caller: &Caller,
        handle: Handle,
        mode: u32,
        offset: u64,
        len: u64,
    ) -> Result<(), Fault> {
        let core = &self.core;
        core.check_writable()?;
        let file = core.handles.any_file(handle)?;
        if len == 0 {
            return Err(Fault::Invalid);
        }
        let end = offset.checked_add(len).filter(|end| *end <= FILE_SIZE_MAX);
        let end = end.ok_or(Fault::FileTooBig)?;
        file.report_write_error()?;
        file.check_not_lost()?;
        if caller.uid != 0 {
            // The kernel checks the mode that it has, which may be outdated.
            core.kill_setid(caller, &file.inode).await?;
        }
        let guard = core.acquire_write_io(&file.inode, Service::Plain, true, (offset, end)).await?;
        core.locks.check_not_lost(&file)?;
        let changing = guard.pages().change((offset, u64::MAX)).await;
        let done = guard.file().fallocate(mode, offset, len).await;
        drop(changing);
        drop(guard);
        if done.is_err() && done != Err(Fault::NotSupported) {
            // A part may be done. On success the kernel drops the old content by itself.
            core.kernel.inval_attr(file.inode.ino).await;
            core.inval_unlocked_pages(&file.inode, (offset, end)).await;
        }
        core.inval_content_for_abandoned_caller(&file.inode).await;
        done
    }

    /// SEEK_DATA, SEEK_HOLE.
    pub async fn lseek(&self, handle: Handle, offset: u64, whence: Whence) -> Result<u64, Fault> {
        let core = &self.core;
        let file = core.handles.file(handle)?;
        if file.inode.has_buffered_writer() && file.inode.has_pages() {
            // Stores into a mapping are data, too, but the kernel does not report them by itself.
            core.inval_pages(&file.inode, (offset, u64::MAX)).await;
        }
        let guard = core.acquire_io(&file.inode, Rights::DATA_S, Service::Plain, (0, 0)).await?;
        guard.file().seek(offset, whence).await
    }

    /// Copies a range from one open file to another. Returns the bytes copied: fewer than requested
    /// at the end of the source or for a long range.
    pub async fn copy_range(
        &self,
        caller: &Caller,
        from: Handle,
        from_offset: u64,
        to: Handle,
        to_offset: u64,
        len: u64,
    ) -> Result<u64, Fault> {
        let len = len.min(COPY_MAX);
        let mut copied = 0;
        while copied < len {
            let step = (len - copied).min(IO_MAX as u64);
            let data = match self.read(from, from_offset + copied, step as u32, false).await {
                Ok(data) => data,
                Err(_) if copied > 0 => break,
                Err(fault) => return Err(fault),
            };
            if data.is_empty() {
                break;
            }
            let mut buffer = self.core.env.buffer(data.len());
            let mut at = 0;
            for part in &data.parts {
                let bytes = part.bytes();
                buffer[at..at + bytes.len()].copy_from_slice(bytes);
                at += bytes.len();
            }
            drop(data);
            // The kernel checks the mode that it has, which may be outdated.
            let flags = WriteFlags { kill_suidgid: caller.uid != 0, ..WriteFlags::default() };
            match self.write(caller, to, to_offset + copied, buffer, at, flags).await {
                Ok(written) => copied += u64::from(written),
                Err(_) if copied > 0 => break,
                Err(fault) => return Err(fault),
            }
            if (at as u64) < step {
                break;
            }
        }
        Ok(copied)
    }
}

impl IoGuard {
    /// A WRITE of `len` bytes at `offset`, or at the end, is about to be applied: stores of
    /// mappings into old pages must not overwrite it. `None`: no page of the file can be mapped
    /// writable.
    async fn overwrite(&self, inode: &Inode, offset: Option<u64>, len: usize) -> Option<Overwrite> {
        if !inode.has_buffered_writer() {
            return None;
        }
        let range = match offset {
            Some(offset) => (offset, offset + len as u64),
            None => (self.file().size(), u64::MAX),
        };
        let overwrite = self.pages().overwrite(range);
        self.pages().written_back(range).await;
        Some(overwrite)
    }

    /// Applies a write-back of the kernel's pages, except for bytes of WRITEs that these pages may
    /// lack.
    async fn write_back(
        &self,
        offset: u64,
        data: IoBuf,
        len: usize,
        stream: Option<Stream>,
    ) -> Result<u32, Fault> {
        let range = (offset, offset + len as u64);
        let (_writing, parts) = self.pages().write_back(range);
        if parts == [range] {
            return Ok(self.file().write(Some(offset), data, len, stream).await?.1);
        }
        for (from, to) in parts {
            let part = IoBuf::copy_of(&data[(from - offset) as usize..(to - offset) as usize]);
            let len = part.len();
            self.file().write(Some(from), part, len, stream).await?;
        }
        Ok(len as u32)
    }
}

impl Core {
    /// Makes the kernel aware of at least the file's current size, if it may not be.
    ///
    /// Does nothing if a process of this host may write through the kernel's pages. The kernel may
    /// have copied a WRITE into the last page and not yet sent it, and the stored byte would
    /// replace a byte of that WRITE.
    async fn raise_size(&self, inode: &Rc<Inode>) -> Result<(), Fault> {
        let data_lease = self.data_lease(inode);
        if !data_lease.pages.may_lack_size(self.env.now()) || inode.has_buffered_writer() {
            return Ok(());
        }
        // While the guard is held other clients do not change the size, and this one does not
        // change what is being stored. No page is locked while this waits for the right.
        let guard = self.acquire_io(inode, Rights::DATA_S, Service::Plain, (0, 0)).await?;
        let size = guard.file().size();
        let Some(last) = size.checked_sub(1) else { return Ok(()) };
        let range = (last, size);
        let Some(storing) = data_lease.store(range).filter(|_| !inode.has_buffered_writer()) else {
            return Ok(());
        };
        let data = guard.file().read(last, 1).await?.to_vec();
        if data.len() != 1 {
            return Ok(());
        }
        // A drain that begins from here on finds pages, and notices after the store that it filled
        // one.
        inode.set_pages(true);
        let (core, file, late) = (self.me.clone(), inode.clone(), Rc::new(Cell::new(false)));
        let (kernel, is_late) = (self.kernel.clone(), late.clone());
        let mut stored = self.env.spawn_join(async move {
            kernel.store(file.ino, last, &data).await;
            drop(storing);
            // Bytes that were stored without the right may be old.
            if is_late.get()
                && let Some(core) = core.upgrade()
            {
                core.inval_pages(&file, range).await;
            }
        });
        late.set(self.env.timeout(STORE_WITHIN, &mut stored).await.is_none());
        data_lease.stored(range);
        drop(guard);
        Ok(())
    }

    /// The kernel drops pages that lack bytes `range` of a WRITE that was just applied, before the
    /// WRITE is answered. `copy`: these bytes, if pages were dropped before the WRITE came.
    async fn drop_stale_pages(
        &self,
        inode: &Rc<Inode>,
        direct: bool,
        range: (u64, u64),
        (copy, overwrite): (Option<Vec<u8>>, Option<Overwrite>),
    ) {
        let Some(data_lease) = inode.data_lease() else { return };
        if direct {
            if inode.has_pages() {
                self.inval_pages(inode, range).await;
            }
            return;
        }
        data_lease.pages.grew(range.1);
        let lacking = data_lease.unlocked(&data_lease.pages.lacking(range, self.env.now()));
        if !lacking.is_empty() && !planted(Bug::LackingPageKept) {
            let last = (range.1 - 1) / BLOCK_U64 * BLOCK_U64;
            let partial = range.0 > last || !range.1.is_multiple_of(BLOCK_U64);
            let kept = (last, if partial { last + BLOCK_U64 } else { last });
            let overwrite = Rc::new(overwrite);
            // None of these is locked by the WRITE itself.
            let others = subtract(&lacking, &[kept]);
            self.drop_from_kernel(inode, &data_lease, (others, overwrite.clone()), false).await;
            if !intersect(&lacking, kept).is_empty() {
                let lacks = self.lacks(inode, &data_lease, (last.max(range.0), range), copy).await;
                if lacks != Some(false) {
                    let dropped = (vec![kept], overwrite);
                    self.drop_from_kernel(inode, &data_lease, dropped, lacks.is_none()).await;
                }
            }
        }
        // If the caller is gone, the kernel continues without the answer.
        if !self.rpc.caller_is_gone() {
            data_lease.pages.answered();
        }
    }

    /// Does the kernel's page with the last bytes of a WRITE lack these, from byte `from` on?
    /// `None`: that cannot be told. A page that is not there lacks nothing.
    async fn lacks(
        &self,
        inode: &Inode,
        data_lease: &DataLease,
        (from, range): (u64, (u64, u64)),
        copy: Option<Vec<u8>>,
    ) -> Option<bool> {
        if data_lease.pages.is_reading(range) {
            // A READ keeps the page locked, which may have been answered before the WRITE came. So
            // it is not the WRITE that does, whatever the page holds until the READ has filled it.
            return Some(true);
        }
        let wanted = copy?.split_off((from - range.0) as usize);
        let len = u32::try_from(range.1 - from).ok()?;
        let found = self.kernel.retrieve(inode.ino, from, len).await?;
        let same = wanted.get(..found.len())? == found;
        let whole = found.len() == wanted.len();
        if same && !whole && !(found.is_empty() && data_lease.pages.has_size(range.1)) {
            // What lies behind the size that the kernel has it does not tell.
            return None;
        }
        Some(!same)
    }

    /// The kernel drops the pages of `ranges`, which may lack a WRITE. One file after the other:
    /// how long an invalidation of another one takes says nothing about this one. `may_block`: the
    /// WRITE itself may keep one locked.
    async fn drop_from_kernel(
        &self,
        inode: &Rc<Inode>,
        data_lease: &Rc<DataLease>,
        (ranges, overwrite): (Vec<(u64, u64)>, Rc<Option<Overwrite>>),
        may_block: bool,
    ) {
        if ranges.is_empty() {
            return;
        }
        let (kernel, ino, turns) = (self.kernel.clone(), inode.ino, self.dropping.clone());
        let (pages, env, dropped) = (data_lease.pages.clone(), self.env.clone(), ranges.clone());
        let begun = Rc::new(Cell::new(None));
        let begins = begun.clone();
        let mut dropping = self.env.spawn_join(async move {
            let _turn = turns.lock().await;
            begins.set(Some(env.now()));
            let dropping = pages.dropping(dropped.clone());
            for (from, to) in dropped {
                kernel.drop_stale_pages(ino, from, to - from).await;
            }
            drop((dropping, overwrite));
        });
        let within = if may_block { DROP_WITHIN } else { UNLOCKED_WITHIN };
        while self.env.timeout(DROP_WITHIN, &mut dropping).await.is_none() {
            let long = begun.get().is_some_and(|begun| self.env.now() >= begun + within);
            if long && !ranges.iter().any(|&range| data_lease.pages.is_in_service(range)) {
                return;
            }
        }
    }

    /// Makes data, commit and names of a file durable.
    pub async fn make_durable(&self, inode: &Rc<Inode>, datasync: bool) -> Result<(), Fault> {
        let durable = self.now_durable(inode, datasync);
        self.waits.named(&self.env, Wait::Sync(inode.ino), durable).await
    }

    /// Waits until the data of a file is stable, and the server has its commit (paper 000 §III.A).
    async fn commit_now(&self, inode: &Rc<Inode>) -> Result<(), Fault> {
        let Some(data_lease) = inode.data_lease() else { return Ok(()) };
        let committed = data_lease.file.commit_accepted();
        self.waits.named(&self.env, Wait::Sync(inode.ino), committed).await
    }

    async fn now_durable(&self, inode: &Rc<Inode>, datasync: bool) -> Result<(), Fault> {
        if let Some(data_lease) = inode.data_lease()
            && data_lease.file.fsync(datasync).await?
        {
            return Ok(());
        }
        self.rpc.of(inode.ino).sync().await
    }
}
