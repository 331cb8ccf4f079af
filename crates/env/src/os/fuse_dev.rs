//! System calls on /dev/fuse, and the threads that write notifications.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use super::sys;
use crate::executor_group::without_token;
use crate::fuse::message::NotifyLane;
use crate::lane::Lane;

/// `_IOR(229, 0, u32)`: makes a descriptor a further channel of a mount.
const FUSE_DEV_IOC_CLONE: libc::Ioctl = 0x8004_e500_u32 as libc::Ioctl;

/// Makes reads of the channel non-blocking.
pub(crate) fn prepare(fd: &OwnedFd) -> io::Result<()> {
    sys::set_nonblocking(fd.as_raw_fd(), true)
}

/// A further channel of the same mount.
pub(crate) fn clone(fd: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: the path is a C string.
    let new = sys::owned(unsafe { libc::open(c"/dev/fuse".as_ptr(), flags) })
        .map_err(|error| io::Error::new(error.kind(), format!("/dev/fuse: open: {error}")))?;
    let source = fd.as_raw_fd() as u32;
    // SAFETY: the kernel reads a live u32.
    sys::check(unsafe { libc::ioctl(new.as_raw_fd(), FUSE_DEV_IOC_CLONE, &raw const source) })
        .map_err(|error| {
            io::Error::new(error.kind(), format!("/dev/fuse: clone the channel: {error}"))
        })?;
    Ok(new)
}

/// Does this error mean that the file system was unmounted? ENODEV does, and ECONNABORTED if the
/// call was handling a request at that moment.
pub(crate) fn is_end(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ECONNABORTED))
}

/// Reads one request into the two buffers; returns its length.
pub(crate) fn read(fd: &OwnedFd, head: &mut [u8], body: &mut [u8]) -> io::Result<usize> {
    let parts = [
        libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: head.len() },
        libc::iovec { iov_base: body.as_mut_ptr().cast(), iov_len: body.len() },
    ];
    // SAFETY: the parts are live, exclusively borrowed slices.
    match sys::check_len(without_token(|| unsafe {
        libc::readv(fd.as_raw_fd(), parts.as_ptr(), 2)
    })) {
        // Only a channel without a mount returns an end of file.
        Ok(0) => Err(io::Error::from_raw_os_error(libc::ENODEV)),
        result => result,
    }
}

/// Writes one reply.
pub(crate) fn reply(fd: &OwnedFd, head: &[u8], body: &[u8]) -> io::Result<()> {
    let parts = [
        libc::iovec { iov_base: head.as_ptr().cast_mut().cast(), iov_len: head.len() },
        libc::iovec { iov_base: body.as_ptr().cast_mut().cast(), iov_len: body.len() },
    ];
    let (fd, count) = (fd.as_raw_fd(), if body.is_empty() { 1 } else { 2 });
    loop {
        // SAFETY: the kernel only reads the parts, which are live slices.
        let written = without_token(|| unsafe { libc::writev(fd, parts.as_ptr(), count) });
        match sys::check_len(written) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) || is_end(&error) => {
                return Ok(());
            }
            result => return result.map(drop),
        }
    }
}

/// Writes one notification; may block. `false`: the kernel does not know the inode or name.
fn notify(fd: &OwnedFd, message: &[u8]) -> io::Result<bool> {
    loop {
        // SAFETY: reads a live slice.
        let written =
            unsafe { libc::write(fd.as_raw_fd(), message.as_ptr().cast(), message.len()) };
        match sys::check_len(written) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) || is_end(&error) => {
                return Ok(false);
            }
            result => return result.map(|_| true),
        }
    }
}

/// A lane's queue, with the result of each notification.
type Queue = Lane<Vec<u8>, io::Result<bool>>;

/// One thread per lane, started at its first notification; it ends with the channel.
pub(crate) struct Lanes {
    fd: Arc<OwnedFd>,
    queues: [OnceLock<Arc<Queue>>; 5],
}

impl Lanes {
    pub(crate) fn new(fd: Arc<OwnedFd>) -> Lanes {
        Lanes { fd, queues: Default::default() }
    }

    fn queue(&self, lane: NotifyLane) -> io::Result<&Arc<Queue>> {
        let (index, name) = match lane {
            NotifyLane::Names => (0, "redbud-names"),
            NotifyLane::Pages => (1, "redbud-pages"),
            NotifyLane::Attrs => (2, "redbud-attrs"),
            NotifyLane::Background => (3, "redbud-bg-pages"),
            NotifyLane::StalePages => (4, "redbud-stale"),
        };
        if let Some(queue) = self.queues[index].get() {
            return Ok(queue);
        }
        let queue = Arc::new(Queue::new());
        let (served, fd) = (queue.clone(), self.fd.clone());
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || served.serve(|message| notify(&fd, &message)))?;
        Ok(self.queues[index].get_or_init(|| queue))
    }

    pub(crate) async fn write(&self, lane: NotifyLane, message: Vec<u8>) -> io::Result<bool> {
        match self.queue(lane)?.post(message) {
            Some(written) => written.await,
            None => Err(io::Error::other("the lane's thread has ended")),
        }
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.queues.iter().filter_map(OnceLock::get).for_each(|queue| queue.end());
    }
}
