//! The kernel's FUSE channel: /dev/fuse, and beside it, if started, FUSE over io_uring. The
//! latter then carries everything but FORGET and INTERRUPT.
//!
//! Invariants:
//! - reading never blocks a thread, and a reader lets other tasks run after
//!   [`BURST`] requests;
//! - a request holds a body buffer of full size only if it has at least [`BODY_KEPT`]
//!   bytes of body: smaller ones are copied out of it;
//! - a thread of its lane writes each notification, so one that blocks in
//!   the kernel delays nothing but its lane.

pub(crate) mod message;
mod uring;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

pub use message::{FuseRequest, NotifyLane};
pub use uring::UringOptions;

use message::HEAD;

use crate::buffer::IoBuf;
use crate::driver::{Handle, Op};
use crate::env::Env;
use crate::executor::OpFuture;
use crate::os::fuse_dev::{self, Lanes};

/// The body of the largest request, a WRITE of 1 MiB. The kernel sends no request longer than
/// `max_write` plus the fixed parts of a WRITE.
const BODY_MAX: usize = 1 << 20;
/// From this size on, a body stays in the buffer that it was read into.
const BODY_KEPT: usize = 64 << 10;
/// Requests read in a row before other tasks get their turn.
const BURST: u32 = 8;
/// After every such number of requests, `recv` tries to read another even if that has not paid.
const PROBE_EVERY: u64 = 16;

/// The kernel's FUSE channel. Reading never blocks a thread; dedicated threads write
/// notifications, one per lane.
#[derive(Clone)]
pub struct FuseChannel(Rc<Inner>);

struct Inner {
    env: Env,
    fd: Arc<OwnedFd>,
    /// An unused body buffer of full size.
    spare: RefCell<Option<IoBuf>>,
    /// Requests taken since other tasks last had a turn.
    burst: Cell<u32>,
    /// Requests read from the device since `recv` last waited for it.
    in_a_row: Cell<u32>,
    /// Did the last attempt to read right after a request find another one?
    busy: Cell<bool>,
    /// Requests read from the device.
    served: Cell<u64>,
    /// The descriptor was reported readable and has not been read since.
    ready: Cell<bool>,
    /// The lanes that all channels of the mount share.
    lanes: Rc<Lanes>,
    /// Does it wait for the device when it is idle? Of several channels of a mount, one does.
    waits_for_device: bool,
    uring: RefCell<uring::Uring>,
    /// Waits until the device can be read; kept between calls of `recv`.
    polling: RefCell<Option<OpFuture>>,
}

impl FuseChannel {
    /// Takes over an open, mounted /dev/fuse descriptor.
    ///
    /// # Errors
    /// The descriptor cannot be made non-blocking.
    pub fn new(env: &Env, fd: OwnedFd) -> io::Result<FuseChannel> {
        fuse_dev::prepare(&fd)?;
        let fd = Arc::new(fd);
        let lanes = Rc::new(Lanes::new(fd.clone()));
        Ok(FuseChannel(Rc::new(Inner::new(env, fd, lanes, true))))
    }

    /// A further channel of the same mount (FUSE_DEV_IOC_CLONE), for another executor. Its `recv`
    /// returns requests over io_uring, if that is started; only [`FuseChannel::try_recv`] returns
    /// requests of the device. A request is answered on the channel that it came by.
    ///
    /// # Errors
    /// /dev/fuse cannot be opened, or the channel is not mounted.
    pub fn clone_channel(&self) -> io::Result<FuseChannel> {
        let fd = Arc::new(fuse_dev::clone(&self.0.fd)?);
        let inner = Inner::new(&self.0.env, fd, self.0.lanes.clone(), false);
        Ok(FuseChannel(Rc::new(inner)))
    }

    /// Requests that have come by this channel.
    pub fn requests(&self) -> u64 {
        self.0.served.get() + self.requests_by_uring()
    }

    /// Requests read since the device was last found empty.
    pub fn in_a_row(&self) -> u32 {
        self.0.in_a_row.get()
    }

    /// The next request of the device, if there is one: `WouldBlock` if not.
    ///
    /// # Errors
    /// There is none, the file system was unmounted, or the channel is broken.
    pub fn try_recv(&self) -> io::Result<FuseRequest> {
        loop {
            match self.0.read() {
                // The request was interrupted, or we were.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => {}
                result => return result,
            }
        }
    }

    /// Can [`FuseChannel::start_uring`] work on this executor, if the kernel offers it?
    pub fn can_start_uring(&self) -> bool {
        self.0.env.core().with_driver(|driver| driver.is_ring())
    }

    /// Takes requests over io_uring too. Call it once per channel, after the INIT reply that
    /// accepted the offer (FUSE_OVER_IO_URING). Requests come by the device until the channels of
    /// all `options.executors` have called it. If the kernel refuses, `recv` fails.
    ///
    /// # Errors
    /// This executor does not run on io_uring, or the CPUs cannot be counted.
    pub fn start_uring(&self, options: UringOptions) -> io::Result<()> {
        if !self.can_start_uring() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this executor does not run on io_uring",
            ));
        }
        uring::start(&self.0, options)
    }

    /// Requests that have come over io_uring.
    pub fn requests_by_uring(&self) -> u64 {
        self.0.uring.borrow().taken
    }

    /// The next request; `None` when the file system was unmounted, even by force. `head` holds the
    /// first 80 bytes (fuse_in_header and fuse_write_in of a WRITE). `body` holds the other bytes,
    /// page-aligned, so that write data needs no copy. Only one task may wait here at a time.
    ///
    /// # Errors
    /// The channel is broken.
    pub async fn recv(&self) -> io::Result<Option<FuseRequest>> {
        let inner = &self.0;
        loop {
            if inner.burst.get() >= BURST {
                inner.burst.set(0);
                inner.env.yield_now().await;
            }
            if let Some(arrived) = inner.uring.borrow_mut().next() {
                inner.burst.set(inner.burst.get() + 1);
                return arrived.map(Some);
            }
            // Tries to read right after a request only if that has paid lately (or from time to
            // time): otherwise waiting costs no extra system call.
            let try_another = inner.in_a_row.get() > 0
                && (inner.busy.get() || inner.served.get().is_multiple_of(PROBE_EVERY));
            if inner.ready.take() || try_another {
                match inner.read() {
                    Ok(request) => {
                        inner.busy.set(inner.busy.get() || inner.in_a_row.get() > 0);
                        inner.in_a_row.set(inner.in_a_row.get() + 1);
                        inner.burst.set(inner.burst.get() + 1);
                        return Ok(Some(request));
                    }
                    Err(error) => match error.raw_os_error() {
                        Some(libc::EAGAIN) => inner.busy.set(false),
                        // The request was interrupted, or we were.
                        Some(libc::ENOENT | libc::EINTR) => {
                            inner.ready.set(true);
                            continue;
                        }
                        _ if fuse_dev::is_end(&error) => return Ok(None),
                        _ => return Err(error),
                    },
                }
            }
            inner.in_a_row.set(0);
            inner.wait().await?;
        }
    }

    /// Writes one reply: `head` (fuse_out_header and fixed parts) then `body`. An interrupted
    /// request or an unmounted file system is not an error.
    ///
    /// # Errors
    /// The kernel finds the reply malformed.
    pub fn reply(&self, head: &[u8], body: &[u8]) -> io::Result<()> {
        let by_ring = self.0.uring.borrow_mut().reply(head, body);
        by_ring.unwrap_or_else(|| fuse_dev::reply(&self.0.fd, head, body))
    }

    /// Writes one notification on its lane; ends when the kernel has processed it. `false`: the
    /// kernel does not know the inode or name (ENOENT), or the file system was unmounted.
    ///
    /// # Errors
    /// The kernel does not know the notification, or finds it malformed.
    pub async fn notify(&self, lane: NotifyLane, message: Vec<u8>) -> io::Result<bool> {
        self.0.lanes.write(lane, message).await
    }
}

impl Inner {
    fn new(env: &Env, fd: Arc<OwnedFd>, lanes: Rc<Lanes>, waits_for_device: bool) -> Inner {
        Inner {
            env: env.clone(),
            fd,
            spare: RefCell::new(None),
            burst: Cell::new(0),
            in_a_row: Cell::new(0),
            busy: Cell::new(false),
            served: Cell::new(0),
            ready: Cell::new(false),
            lanes,
            waits_for_device,
            uring: RefCell::default(),
            polling: RefCell::new(None),
        }
    }

    /// Waits until the device is readable (and records that) or a request has come over io_uring.
    async fn wait(&self) -> io::Result<()> {
        poll_fn(|cx| {
            if self.waits_for_device {
                let mut polling = self.polling.borrow_mut();
                let op = polling.get_or_insert_with(|| {
                    let file = Handle::Fd(self.fd.clone());
                    self.env.submit(Op::Readable { file })
                });
                if let Poll::Ready((result, _)) = Pin::new(op).poll(cx) {
                    *polling = None;
                    self.ready.set(true);
                    return Poll::Ready(result.map(drop));
                }
            }
            let mut uring = self.uring.borrow_mut();
            uring.receiver = Some(cx.waker().clone());
            if uring.has_arrivals() { Poll::Ready(Ok(())) } else { Poll::Pending }
        })
        .await
    }

    fn read(&self) -> io::Result<FuseRequest> {
        let spare = self.spare.borrow_mut().take();
        let mut body = spare.unwrap_or_else(|| IoBuf::unspecified(BODY_MAX));
        body.set_len(BODY_MAX);
        let mut head = [0; HEAD];
        let len = match fuse_dev::read(&self.fd, &mut head, &mut body) {
            Ok(len) => len,
            Err(error) => {
                *self.spare.borrow_mut() = Some(body);
                return Err(error);
            }
        };
        self.served.set(self.served.get() + 1);
        let head_len = len.min(HEAD);
        body.set_len(len - head_len);
        if body.len() < BODY_KEPT {
            let small = IoBuf::copy_of(&body);
            *self.spare.borrow_mut() = Some(std::mem::replace(&mut body, small));
        }
        Ok(FuseRequest { head, head_len, body })
    }
}
