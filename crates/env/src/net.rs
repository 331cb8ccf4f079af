//! Streams and listeners: TCP, and Unix sockets between processes of one host.
//!
//! Invariants:
//! - arriving bytes are delivered once and in order, even if the future that read them was
//!   dropped: the next read returns them;
//! - at most one read and one write of a stream are in flight;
//! - an accepted connection is returned, even if the future that waited for it was dropped.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use crate::buffer::IoBuf;
use crate::driver::{Handle, Op, Part, Payload};
use crate::env::Env;
use crate::executor::OpFuture;

/// A connected stream. One read and one write may be in flight at the same time.
/// Clones are the same stream.
#[derive(Clone)]
pub struct Stream(Rc<Shared>);

struct Shared {
    env: Env,
    handle: Handle,
    peer: String,
    /// The read whose future was dropped before it ended, and where in its buffer the bytes go that
    /// arrive.
    orphan: RefCell<Option<(OpFuture, usize)>>,
    /// Bytes that a dropped read delivered beyond what the next read asked for.
    surplus: RefCell<Vec<u8>>,
}

/// Holds a read in flight; if dropped early, it leaves the read to the next one.
struct Reading<'a> {
    shared: &'a Shared,
    op: Option<(OpFuture, usize)>,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        if let Some(op) = self.op.take() {
            *self.shared.orphan.borrow_mut() = Some(op);
        }
    }
}

impl Shared {
    async fn finish(&self, op: OpFuture, old: usize) -> (io::Result<usize>, Payload) {
        let mut reading = Reading { shared: self, op: Some((op, old)) };
        let completed = (&mut reading.op.as_mut().expect("the read is in flight").0).await;
        reading.op = None;
        completed
    }

    /// Waits for the read whose future was dropped, if there is one, and keeps its bytes.
    ///
    /// # Errors
    /// How the stream has ended, as a read returns it.
    async fn finish_orphan(&self) -> Result<(), io::Result<usize>> {
        let orphan = self.orphan.borrow_mut().take();
        let Some((orphan, old)) = orphan else { return Ok(()) };
        let (result, payload) = self.finish(orphan, old).await;
        let Ok(arrived @ 1..) = result else { return Err(result) };
        let mut surplus = self.surplus.borrow_mut();
        match payload {
            Payload::Bytes(bytes) => surplus.extend_from_slice(&bytes[old..]),
            Payload::Buf(buf) => surplus.extend_from_slice(&buf[old..old + arrived]),
            _ => unreachable!("a read returns its buffer"),
        }
        Ok(())
    }
}

fn bytes_of(payload: Payload) -> Vec<u8> {
    match payload {
        Payload::Bytes(bytes) => bytes,
        _ => unreachable!("a socket operation returns its bytes"),
    }
}

impl Stream {
    pub(crate) fn new(env: Env, handle: Handle, peer: String) -> Stream {
        let (orphan, surplus) = Default::default();
        Stream(Rc::new(Shared { env, handle, peer, orphan, surplus }))
    }

    /// Appends what has arrived (at least one byte, at most `max`) to `into`; 0 bytes: the peer has
    /// closed the connection. A dropped read loses no bytes, only its buffer.
    pub async fn read(&self, mut into: Vec<u8>, max: usize) -> (io::Result<usize>, Vec<u8>) {
        assert!(max > 0, "a read of 0 bytes cannot detect the end of the stream");
        if let Err(end) = self.0.finish_orphan().await {
            return (end, into);
        }
        {
            let mut surplus = self.0.surplus.borrow_mut();
            if !surplus.is_empty() {
                let taken = surplus.len().min(max);
                into.extend(surplus.drain(..taken));
                return (Ok(taken), into);
            }
        }
        let old = into.len();
        let op = self.0.env.submit(Op::Recv { socket: self.0.handle.clone(), bytes: into, max });
        let (result, payload) = self.0.finish(op, old).await;
        (result, bytes_of(payload))
    }

    /// Receives into the bytes `range` of `buf`, at least one, without another copy; as
    /// [`Stream::read`]. It may wait until all of them have arrived.
    pub async fn read_into(
        &self,
        mut buf: IoBuf,
        range: Range<usize>,
    ) -> (io::Result<usize>, IoBuf) {
        assert!(!range.is_empty(), "a read of 0 bytes cannot detect the end of the stream");
        if let Err(end) = self.0.finish_orphan().await {
            return (end, buf);
        }
        {
            let mut surplus = self.0.surplus.borrow_mut();
            if !surplus.is_empty() {
                let taken = surplus.len().min(range.len());
                buf[range][..taken].copy_from_slice(&surplus[..taken]);
                surplus.drain(..taken);
                return (Ok(taken), buf);
            }
        }
        let (start, end) = (range.start, range.end);
        let op = Op::RecvInto { socket: self.0.handle.clone(), buf, start, end };
        match self.0.finish(self.0.env.submit(op), start).await {
            (result, Payload::Buf(buf)) => (result, buf),
            _ => unreachable!("a read returns its buffer"),
        }
    }

    /// Writes all of `bytes`; returns the buffer, emptied, for reuse. If the future is dropped
    /// early, a part may have been written: the stream is then unusable.
    pub async fn write_all(&self, mut bytes: Vec<u8>) -> (io::Result<()>, Vec<u8>) {
        let mut start = 0;
        while start < bytes.len() {
            // Usually the socket takes it at once, which costs no turn of the executor.
            let sent = self.write_now(&bytes[start..]);
            if sent > 0 {
                start += sent;
                continue;
            }
            let result;
            (result, bytes) = self.write_from(bytes, start).await;
            match result {
                Ok(0) => {
                    bytes.clear();
                    return (Err(io::ErrorKind::WriteZero.into()), bytes);
                }
                Ok(sent) => start += sent,
                Err(error) => {
                    bytes.clear();
                    return (Err(error), bytes);
                }
            }
        }
        bytes.clear();
        (Ok(()), bytes)
    }

    /// Writes some of `bytes` from `start` on, when the socket takes any; returns how many, and the
    /// buffer. Not while [`Stream::write_all`] is in progress.
    pub async fn write_from(&self, bytes: Vec<u8>, start: usize) -> (io::Result<usize>, Vec<u8>) {
        let op = self.0.env.submit(Op::Send { socket: self.0.handle.clone(), bytes, start });
        let (result, payload) = op.await;
        (result, bytes_of(payload))
    }

    /// Writes some of `parts`, one behind the other and without their first `start` bytes, when the
    /// socket takes any; returns how many. Nothing is copied but into the socket. As
    /// [`Stream::write_from`].
    pub async fn write_parts(&self, parts: Vec<Part>, start: usize) -> io::Result<usize> {
        self.0.env.submit(Op::SendParts { socket: self.0.handle.clone(), parts, start }).await.0
    }

    /// Writes what the socket takes without waiting, and returns how much that was: perhaps
    /// nothing, as with a broken connection. Not while [`Stream::write_all`] is in progress.
    pub fn write_now(&self, bytes: &[u8]) -> usize {
        if self.0.env.io_has_ended() {
            return 0;
        }
        let sent = self.0.env.core().with_driver(|driver| driver.send_now(&self.0.handle, bytes));
        sent.unwrap_or(0)
    }

    /// Ends reads and writes in flight, and closes.
    pub fn shutdown(&self) {
        self.0.env.core().with_driver(|driver| driver.shutdown(&self.0.handle));
    }

    /// The user of the process at the other end, if that is on this host and the connection is by a
    /// Unix socket; `None`: by TCP.
    pub fn peer_user(&self) -> Option<u32> {
        self.0.env.core().with_driver(|driver| driver.peer_user(&self.0.handle))
    }

    /// The address of the other end.
    pub fn peer(&self) -> String {
        self.0.peer.clone()
    }
}

/// Accepts connections.
pub struct Listener {
    env: Env,
    /// The TCP socket, and the one for peers of this host.
    sources: Vec<Source>,
    local: String,
}

struct Source {
    handle: Handle,
    /// The accept in flight; kept between calls of `accept`.
    accepting: RefCell<Option<OpFuture>>,
}

impl Listener {
    pub(crate) fn new(env: Env, tcp: Handle, near: Option<Handle>, local: String) -> Listener {
        let source = |handle| Source { handle, accepting: RefCell::new(None) };
        Listener {
            env,
            sources: [Some(tcp), near].into_iter().flatten().map(source).collect(),
            local,
        }
    }

    /// The next connection. Only one task may wait here at a time.
    pub async fn accept(&self) -> io::Result<Stream> {
        let (result, payload) = poll_fn(|cx| {
            for source in &self.sources {
                let mut accepting = source.accepting.borrow_mut();
                let op = accepting.get_or_insert_with(|| {
                    self.env.submit(Op::Accept { listener: source.handle.clone() })
                });
                if let Poll::Ready(accepted) = Pin::new(op).poll(cx) {
                    *accepting = None;
                    return Poll::Ready(accepted);
                }
            }
            Poll::Pending
        })
        .await;
        result?;
        match payload {
            Payload::Socket(handle, peer) => Ok(Stream::new(self.env.clone(), handle, peer)),
            _ => unreachable!("an accepted connection is a socket"),
        }
    }

    /// The address listened on, with the port that was taken.
    pub fn local_address(&self) -> String {
        self.local.clone()
    }
}
