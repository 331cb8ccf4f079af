//! Reading, writing, and making durable.

use std::rc::Rc;

use env::IoBuf;
use types::limits::{FILE_SIZE_MAX, IO_MAX};
use types::{Fault, Rights};

use crate::api::{Caller, Handle, LockOwner, LockRequest, OpenFlags, ReadData, Whence, WriteFlags};
use crate::client::Client;
use crate::core::Core;
use crate::handles::OpenFile;
use crate::inode::Inode;
use crate::uses::Service;

/// Bytes that one `copy_range` copies at most: the caller asks again for more.
const COPY_MAX: u64 = 16 << 20;

impl OpenFile {
    /// `Stale` if the file's making was lost.
    fn stands(&self) -> Result<(), Fault> {
        if self.inode.is_lost() { Err(Fault::Stale) } else { Ok(()) }
    }

    /// `Io` once for every failure of write-behind since the handle was opened.
    fn report(&self) -> Result<(), Fault> {
        let Some(content) = self.inode.content() else { return Ok(()) };
        let failures = content.file.error_seq();
        if failures > self.reported.replace(failures) { Err(Fault::Io) } else { Ok(()) }
    }
}

impl Client {
    /// Reads; `page_filling`: the kernel fills its page cache with the answer. Shorter than
    /// asked only at the end of the file.
    pub async fn read(
        &self,
        handle: Handle,
        offset: u64,
        len: u32,
        page_filling: bool,
    ) -> Result<ReadData, Fault> {
        let core = &self.core;
        let file = core.handles.file(handle)?;
        // A mapping of a file that is open for writing gets dirty without a request.
        let exclusive = page_filling && file.inode.has_buffered_writer() && !core.config.read_only;
        let need = if exclusive { Rights::DATA_X } else { Rights::DATA_S };
        let service = if page_filling { Service::PageRead } else { Service::Plain };
        let range = (offset, offset.saturating_add(u64::from(len)));
        let in_use = if page_filling {
            core.use_data(&file.inode, need, service, range).await?
        } else {
            core.use_part(&file.inode, need, range).await?
        };
        let data = in_use.file().read(offset, len as usize).await?;
        core.locks.stand(&file)?;
        Ok(data)
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
        self.core.writable()?;
        let file = self.core.handles.any_file(handle)?;
        if !flags.write_back_cache {
            file.report()?;
            return self.write_to(&file, caller, offset, data, len, flags).await;
        }
        // The kernel writes back for whoever has stored, by any descriptor: all of them tell what is lost.
        match self.write_to(&file, caller, offset, data, len, flags).await {
            Err(Fault::Evicted | Fault::NotHeld | Fault::Stale) => {
                if let Some(content) = file.inode.content() {
                    content.refuse_pages();
                }
                Err(Fault::Io)
            }
            other => other,
        }
    }

    /// As [`Client::write`]. What it waits for may be lost with the session, and then so are the bytes.
    async fn write_to(
        &self,
        file: &OpenFile,
        caller: &Caller,
        offset: u64,
        data: IoBuf,
        len: usize,
        flags: WriteFlags,
    ) -> Result<u32, Fault> {
        let core = &self.core;
        let inode = &file.inode;
        file.stands()?;
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
        let (at, written) = {
            let in_use = if file.direct && !flags.write_back_cache {
                core.use_direct(inode, append, range).await?
            } else {
                core.use_data(inode, Rights::DATA_X, service, range).await?
            };
            // Pages that the kernel launders may be another descriptor's.
            if !flags.write_back_cache {
                core.locks.stand(file)?;
            }
            if !file.direct {
                inode.set_pages(true);
            }
            in_use.file().write((!append).then_some(offset), data, len).await?
        };
        if file.direct && !flags.write_back_cache && inode.has_pages() {
            core.kernel.void_pages(inode.ino, at, u64::from(written)).await;
        }
        core.content_changed(inode).await;
        let sync = flags.sync || file.flags.has(OpenFlags::DSYNC | OpenFlags::SYNC);
        if sync && !flags.write_back_cache {
            let durable = core.make_durable(inode, false).await;
            file.report()?;
            durable?;
        }
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
        file.report()
    }

    /// Everything of the file is durable when it ends.
    pub async fn fsync(&self, handle: Handle, datasync: bool) -> Result<(), Fault> {
        let file = self.core.handles.any_file(handle)?;
        if file.inode.is_lost() {
            file.report()?;
            return file.stands();
        }
        let durable = self.core.make_durable(&file.inode, datasync).await;
        file.report()?;
        self.core.locks.stand(&file)?;
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
        core.writable()?;
        let file = core.handles.any_file(handle)?;
        if len == 0 {
            return Err(Fault::Invalid);
        }
        let end = offset.checked_add(len).filter(|end| *end <= FILE_SIZE_MAX);
        let end = end.ok_or(Fault::FileTooBig)?;
        file.report()?;
        file.stands()?;
        if caller.uid != 0 {
            // The kernel looks at the mode that it has, which may be old.
            core.kill_setid(caller, &file.inode).await?;
        }
        let in_use =
            core.use_data(&file.inode, Rights::DATA_X, Service::Plain, (offset, end)).await?;
        core.locks.stand(&file)?;
        let done = in_use.file().fallocate(mode, offset, len).await;
        drop(in_use);
        if done.is_err() && done != Err(Fault::NotSupported) {
            // A part may be done. Where it succeeds the kernel forgets by itself what was before.
            core.kernel.inval_attr(file.inode.ino).await;
            core.void(&file.inode, (offset, end)).await;
        }
        core.content_changed(&file.inode).await;
        done
    }

    /// SEEK_DATA, SEEK_HOLE.
    pub async fn lseek(&self, handle: Handle, offset: u64, whence: Whence) -> Result<u64, Fault> {
        let core = &self.core;
        let file = core.handles.file(handle)?;
        if file.inode.has_buffered_writer() && file.inode.has_pages() {
            // What was stored into a mapping is data, too: the kernel does not say so of itself.
            core.kernel.void_pages(file.inode.ino, offset, 0).await;
        }
        let in_use = core.use_data(&file.inode, Rights::DATA_S, Service::Plain, (0, 0)).await?;
        in_use.file().seek(offset, whence).await
    }

    /// Copies a range from one open file to another; bytes copied, fewer than asked at the
    /// end of the source or for a long range.
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
            let flags = WriteFlags::default();
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

impl Core {
    /// Data, commit and names of a file are durable when it ends.
    pub async fn make_durable(&self, inode: &Rc<Inode>, datasync: bool) -> Result<(), Fault> {
        if let Some(content) = inode.content()
            && content.file.fsync(datasync).await?
        {
            return Ok(());
        }
        self.session.sync().await
    }
}
