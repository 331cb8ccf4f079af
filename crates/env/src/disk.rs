//! Block devices and files, read and written directly.
//!
//! Invariants:
//! - offsets, lengths and buffers are multiples of 4096, asserted here;
//! - an operation returns its buffer with its result;
//! - clones share one open file, whose locks end when the last request on it has ended.

use std::io;
use std::rc::Rc;

use crate::buffer::{ALIGNMENT, IoBuf};
use crate::driver::{ByteLock, Handle, LockScope, Op, OpenedDisk, Payload};
use crate::env::Env;

/// A block device or file, opened with O_DIRECT. Offsets, lengths and buffers of
/// reads and writes are multiples of 4096. Many may be in flight. Clones share the open file.
#[derive(Clone)]
pub struct Disk(Rc<Inner>);

struct Inner {
    env: Env,
    handle: Handle,
    path: String,
    size: u64,
    write_through: bool,
    rotational: bool,
    lock_scope: Option<LockScope>,
}

/// Most buffers of [`Disk::write_parts`]: that of the operating system.
pub const PARTS_MAX: usize = 1024;

fn buf_of(payload: Payload) -> IoBuf {
    match payload {
        Payload::Buf(buf) => buf,
        _ => unreachable!("a disk operation returns its buffer"),
    }
}

impl Disk {
    pub(crate) fn new(env: Env, path: &str, opened: OpenedDisk) -> Disk {
        let OpenedDisk { handle, size, write_through, rotational, lock_scope } = opened;
        let path = path.to_owned();
        Disk(Rc::new(Inner { env, handle, path, size, write_through, rotational, lock_scope }))
    }

    fn handle(&self) -> Handle {
        self.0.handle.clone()
    }

    fn failed(&self, what: &str, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: {what}: {error}", self.path()))
    }

    /// Fills `buf`, repeating short reads. Reading past the end of the device is an error.
    pub async fn read(&self, offset: u64, mut buf: IoBuf) -> (io::Result<()>, IoBuf) {
        assert_aligned(offset, buf.len());
        let mut start = 0;
        while start < buf.len() {
            let (result, payload) =
                self.0.env.submit(Op::Read { disk: self.handle(), offset, buf, start }).await;
            buf = buf_of(payload);
            let at = || format!("read {} bytes at {offset}", buf.len());
            match result {
                Ok(0) => {
                    return (Err(self.failed(&at(), &io::ErrorKind::UnexpectedEof.into())), buf);
                }
                // A direct read that ends inside a block has reached the end of the file.
                Ok(read) if start + read < buf.len() && !read.is_multiple_of(512) => {
                    return (Err(self.failed(&at(), &io::ErrorKind::UnexpectedEof.into())), buf);
                }
                Ok(read) => start += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (Err(self.failed(&at(), &error)), buf),
            }
        }
        (Ok(()), buf)
    }

    /// Writes all of `buf`. It is stable only after a flush that starts after this ends.
    pub async fn write(&self, offset: u64, mut buf: IoBuf) -> (io::Result<()>, IoBuf) {
        assert_aligned(offset, buf.len());
        let mut start = 0;
        while start < buf.len() {
            let (result, payload) =
                self.0.env.submit(Op::Write { disk: self.handle(), offset, buf, start }).await;
            buf = buf_of(payload);
            let at = || format!("write {} bytes at {offset}", buf.len());
            match result {
                Ok(0) => return (Err(self.failed(&at(), &io::ErrorKind::WriteZero.into())), buf),
                Ok(written) => start += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (Err(self.failed(&at(), &error)), buf),
            }
        }
        (Ok(()), buf)
    }

    /// Writes several buffers, one behind the other, by one request; as [`Disk::write`] else. There
    /// are at most [`PARTS_MAX`], each a multiple of 4096 long.
    pub async fn write_parts(&self, offset: u64, mut bufs: Vec<IoBuf>) -> io::Result<()> {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        assert!(bufs.len() <= PARTS_MAX, "{} parts of one write", bufs.len());
        bufs.iter().for_each(|buf| assert_aligned(offset, buf.len()));
        let at = || format!("write {len} bytes at {offset}");
        let mut start = 0;
        while start < len {
            let (result, payload) = self
                .0
                .env
                .submit(Op::WriteParts { disk: self.handle(), offset, bufs, start })
                .await;
            bufs = match payload {
                Payload::Bufs(bufs) => bufs,
                // A simulated disk has joined them.
                payload => vec![buf_of(payload)],
            };
            match result {
                Ok(0) => return Err(self.failed(&at(), &io::ErrorKind::WriteZero.into())),
                Ok(written) => start += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(&at(), &error)),
            }
        }
        Ok(())
    }

    /// Makes everything that completed before the call stable. Returns `Ok` at once for
    /// write-through devices.
    pub async fn flush(&self) -> io::Result<()> {
        if self.0.write_through {
            return Ok(());
        }
        let (result, _) = self.0.env.submit(Op::Flush { disk: self.handle() }).await;
        result.map(drop).map_err(|error| self.failed("flush", &error))
    }

    /// Tells the device that the range is no longer needed; its content is unspecified afterwards.
    /// Devices without discard keep it.
    pub async fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        assert!(offset.is_multiple_of(ALIGNMENT as u64) && len.is_multiple_of(ALIGNMENT as u64));
        if len == 0 {
            return Ok(());
        }
        let (result, _) = self.0.env.submit(Op::Discard { disk: self.handle(), offset, len }).await;
        result
            .map(drop)
            .map_err(|error| self.failed(&format!("discard {len} bytes at {offset}"), &error))
    }

    /// Bytes the device or file had when it was opened.
    pub fn size(&self) -> u64 {
        self.0.size
    }

    /// The path it was opened by.
    pub fn path(&self) -> &str {
        &self.0.path
    }

    /// Are completed writes stable without a flush?
    pub fn is_write_through(&self) -> bool {
        self.0.write_through
    }

    /// Is it, as far as the system knows, a disk with seek times, or a file on one? Then a request
    /// elsewhere costs as much time as many blocks.
    pub fn is_rotational(&self) -> bool {
        self.0.rotational
    }

    /// Locks byte `index` of a range beyond any data, exclusively, on this open file (OFD). The
    /// lock ends when the last descriptor of the open file is closed, so no request of this process
    /// is in flight any more.
    pub async fn lock_byte(&self, index: u64) -> io::Result<()> {
        match self.lock(ByteLock::Take(index))? {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                format!(
                    "{}: byte {index} of the lock range is held by another open file",
                    self.path()
                ),
            )),
        }
    }

    /// Gives back a byte of [`Disk::lock_byte`].
    pub async fn unlock_byte(&self, index: u64) -> io::Result<()> {
        self.lock(ByteLock::Release(index)).map(drop)
    }

    /// Shares the disk, which was opened for writing without `exclusive`, with others who call
    /// this. Until it is closed nobody opens it exclusively for writing. A block device can still
    /// be claimed by the kernel, as for a mount.
    ///
    /// # Errors
    /// `ResourceBusy` if somebody has it exclusively for writing.
    pub async fn share(&self) -> io::Result<()> {
        match self.lock(ByteLock::Share)? {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                format!("{}: share: another process has it to itself", self.path()),
            )),
        }
    }

    /// Where the byte locks of this open file are visible; `None` if the system does not say.
    pub fn lock_scope(&self) -> Option<LockScope> {
        self.0.lock_scope
    }

    /// Could `index` be locked now, that is, is its holder gone? Does not keep the lock.
    pub async fn byte_is_free(&self, index: u64) -> io::Result<bool> {
        self.lock(ByteLock::Test(index))
    }

    fn lock(&self, lock: ByteLock) -> io::Result<bool> {
        let env = &self.0.env;
        let result = env.core().with_driver(|driver| driver.lock(env.node(), &self.0.handle, lock));
        result.map_err(|error| self.failed(&format!("{lock:?} in the lock range"), &error))
    }
}

fn assert_aligned(offset: u64, len: usize) {
    assert!(
        offset.is_multiple_of(ALIGNMENT as u64) && len.is_multiple_of(ALIGNMENT),
        "direct I/O of {len} bytes at {offset} is not aligned"
    );
}
