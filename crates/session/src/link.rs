//! A stream after its handshake, clear or encrypted: what frames are written to and read from.
//!
//! Invariants:
//! - a link without encryption hands every byte on as it is, and copies nothing but what came or
//!   was left with its handshake;
//! - what is handed to an encrypted link leaves in this order: what the socket did not take
//!   waits in front of the next write;
//! - a link keeps less than one message of what has come, beside one read.

use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::rc::Rc;

use channel::Transport;
use env::{IoBuf, Part, Stream};

/// Bytes of parts that are handed to the socket at once, so that their progress shows.
const PARTS: usize = 1 << 20;
/// Bytes that an encrypted link takes at once.
const PIECE: usize = 128 << 10;
/// A buffer of at most this capacity is kept for the next write.
const KEPT_BUFFER_MAX: usize = 64 << 10;

/// See the module. Clones are the same link.
#[derive(Clone)]
pub struct Link {
    stream: Stream,
    /// `None`: there was no handshake.
    secured: Option<Rc<RefCell<Secured>>>,
}

struct Secured {
    /// `None`: frames are clear.
    transport: Option<Transport>,
    /// What has come and is not decrypted.
    received: Vec<u8>,
    /// What is encrypted and not written.
    unsent: Vec<u8>,
}

impl From<Stream> for Link {
    fn from(stream: Stream) -> Link {
        Link { stream, secured: None }
    }
}

impl Link {
    /// The link after a handshake. `received`: what has come behind its last message; `unsent`: its
    /// last message, if it is to leave together with the first frame.
    pub fn after_handshake(
        stream: Stream,
        transport: Option<Transport>,
        (received, unsent): (Vec<u8>, Vec<u8>),
    ) -> Link {
        let secured = Secured { transport, received, unsent };
        Link { stream, secured: Some(Rc::new(RefCell::new(secured))) }
    }

    /// Are frames encrypted?
    pub fn is_encrypted(&self) -> bool {
        self.secured.as_ref().is_some_and(|secured| secured.borrow().transport.is_some())
    }

    /// What stands between the stream and the frames, if anything does.
    fn secured(&self) -> Option<&Rc<RefCell<Secured>>> {
        self.secured.as_ref().filter(|secured| !secured.borrow().is_plain())
    }

    /// Appends what has arrived to `into`, and returns how many bytes came from the socket (about
    /// `max` at most); 0: the peer has closed the connection. As [`Stream::read`]; but if its
    /// future is dropped early, an encrypted link is unusable.
    pub async fn read(&self, mut into: Vec<u8>, max: usize) -> (io::Result<usize>, Vec<u8>) {
        let Some(secured) = self.secured() else {
            return self.stream.read(into, max).await;
        };
        let mut arrived = secured.borrow().received.len();
        loop {
            let before = into.len();
            if let Err(broken) = secured.borrow_mut().open(&mut into) {
                return (Err(io::Error::new(io::ErrorKind::InvalidData, broken)), into);
            }
            if into.len() > before {
                return (Ok(arrived.max(1)), into);
            }
            let buffer = std::mem::take(&mut secured.borrow_mut().received);
            let (result, buffer) = self.stream.read(buffer, max).await;
            secured.borrow_mut().received = buffer;
            match result {
                Ok(1..) => arrived = result.unwrap_or(1),
                end => return (end, into),
            }
        }
    }

    /// Writes all of `bytes`, behind what is left of earlier writes; returns the buffer, emptied,
    /// for reuse. If the future is dropped early, the link is unusable.
    pub async fn write_all(&self, mut bytes: Vec<u8>) -> (io::Result<()>, Vec<u8>) {
        let Some(secured) = self.secured() else {
            return self.stream.write_all(bytes).await;
        };
        let mut wire = match secured.borrow_mut().seal(&bytes) {
            Ok(wire) => wire,
            Err(error) => return (Err(error), bytes),
        };
        bytes.clear();
        let result;
        (result, wire) = self.stream.write_all(wire).await;
        if wire.capacity() <= KEPT_BUFFER_MAX {
            secured.borrow_mut().unsent = wire;
        }
        (result, bytes)
    }

    /// Writes what the socket takes of `bytes` without waiting, and removes what need not be handed
    /// over again. True: nothing is left here or in `bytes`. Not while [`Link::write_all`] is in
    /// progress.
    pub fn write_now(&self, bytes: &mut Vec<u8>) -> bool {
        let Some(secured) = self.secured() else {
            let written = self.stream.write_now(bytes);
            if written == bytes.len() {
                bytes.clear();
            } else {
                bytes.drain(..written);
            }
            return bytes.is_empty();
        };
        let mut secured = secured.borrow_mut();
        // A stream that has broken is found so by the next write that waits.
        let Ok(mut wire) = secured.seal(bytes) else { return false };
        bytes.clear();
        let written = self.stream.write_now(&wire);
        if written == wire.len() {
            wire.clear();
        } else {
            wire.drain(..written);
        }
        if !wire.is_empty() || wire.capacity() <= KEPT_BUFFER_MAX {
            secured.unsent = wire;
        }
        secured.unsent.is_empty()
    }

    /// Is every byte handed on as it is, so that [`Link::write_from`] may be used?
    pub fn is_plain(&self) -> bool {
        self.secured().is_none()
    }

    /// Writes some of `bytes` from `start` on, at least one, and returns how many. Only of a plain
    /// link.
    pub async fn write_from(&self, bytes: Vec<u8>, start: usize) -> (io::Result<usize>, Vec<u8>) {
        debug_assert!(self.is_plain());
        self.stream.write_from(bytes, start).await
    }

    /// Writes all of `parts`, behind what is left of earlier writes; `moved` is called whenever a
    /// part of it has left. A plain link copies nothing. If the future is dropped early, the link
    /// is unusable.
    ///
    /// # Errors
    /// Those of the stream.
    pub async fn write_parts(&self, parts: Vec<Part>, moved: impl Fn()) -> io::Result<()> {
        let mut parts = parts.into_iter().peekable();
        if self.is_plain() {
            while parts.peek().is_some() {
                let (mut batch, mut len) = (Vec::new(), 0);
                while len < PARTS
                    && let Some(part) = parts.next()
                {
                    len += part.len();
                    batch.push(part);
                }
                let mut start = 0;
                while start < len {
                    match self.stream.write_parts(batch.clone(), start).await? {
                        0 => return Err(io::ErrorKind::WriteZero.into()),
                        written => start += written,
                    }
                    moved();
                }
            }
            return Ok(());
        }
        let mut piece = Vec::with_capacity(PIECE);
        for part in parts {
            for next in part.chunks(PIECE) {
                piece.extend_from_slice(next);
                let result;
                (result, piece) = self.write_all(piece).await;
                result?;
                moved();
            }
        }
        Ok(())
    }

    /// Receives some of the bytes `range` of `buf`, at least one, and returns how many; 0: the peer
    /// has closed the connection. Only of a plain link.
    pub async fn read_into(&self, buf: IoBuf, range: Range<usize>) -> (io::Result<usize>, IoBuf) {
        debug_assert!(self.is_plain());
        self.stream.read_into(buf, range).await
    }

    /// Bytes that were handed over and that the socket has not taken.
    pub fn unsent(&self) -> usize {
        self.secured.as_ref().map_or(0, |secured| secured.borrow().unsent.len())
    }

    /// Ends reads and writes in flight, and closes.
    pub fn shutdown(&self) {
        self.stream.shutdown();
    }

    /// The address of the other end.
    pub fn peer(&self) -> String {
        self.stream.peer()
    }
}

impl Secured {
    /// Is there nothing to decrypt or encrypt, and nothing in front of what comes next?
    fn is_plain(&self) -> bool {
        self.transport.is_none() && self.received.is_empty() && self.unsent.is_empty()
    }

    /// Moves what can be read of what has come to `into`.
    fn open(&mut self, into: &mut Vec<u8>) -> Result<(), channel::Broken> {
        let Some(transport) = &mut self.transport else {
            into.append(&mut self.received);
            return Ok(());
        };
        let used = transport.open(&self.received, into)?;
        if used == self.received.len() {
            self.received.clear();
        } else {
            self.received.drain(..used);
        }
        Ok(())
    }

    /// What is to be written: what was left, and `bytes`.
    fn seal(&mut self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut wire = std::mem::take(&mut self.unsent);
        match &mut self.transport {
            None => wire.extend_from_slice(bytes),
            Some(transport) => {
                let sealed = transport.seal(bytes, &mut wire);
                sealed.map_err(|broken| io::Error::new(io::ErrorKind::InvalidData, broken))?;
            }
        }
        Ok(wire)
    }
}
