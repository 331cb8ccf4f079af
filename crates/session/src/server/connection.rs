//! One connection: it receives and sends frames.
//!
//! Invariants:
//! - frames leave a connection in the order in which they were sent; all that are queued when the
//!   socket becomes ready leave in one write;
//! - the reader handles all frames of one read and then writes their answers together, before it
//!   reads on; it never waits in between. The writer task takes what the socket does not accept,
//!   and frames sent at other times;
//! - the server does not read from a connection whose peer does not read, so the output queue stays
//!   bounded.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use env::Env;
use env::sync::{Notify, Permit};
use proto::content::Content;
use proto::frame::{Decoder, Received};
use proto::message::{Message, Peer};
use types::{ClientId, Duration};

use super::Who;
use crate::arriving::{ArrivedContent, SHORT_READ, receive_content};
use crate::{Link, Outgoing};

/// Bytes of one read from the socket: at first, and at most. Most connections are idle most of the
/// time, and each has a read in flight.
const READ_MIN: usize = 4 << 10;
const READ_MAX: usize = 256 << 10;
/// The reader stops while more bytes than this wait to be written.
const OUT_MAX: usize = 8 << 20;
/// A write buffer of at most this capacity is reused.
const KEPT_BUFFER_MAX: usize = 64 << 10;

/// See the module.
pub struct Connection {
    link: Link,
    who: Who,
    /// The client; 0 before the greeting, and for an administrator's tool.
    client: Cell<ClientId>,
    out: RefCell<Outgoing>,
    ready: Notify,
    written: Notify,
    closed: Cell<bool>,
    finishing: Cell<bool>,
    /// Bytes of the next read.
    read_size: Cell<usize>,
    /// The reader is handling what it has read.
    reading: Cell<bool>,
    /// The writer is waiting for the socket.
    writing: Cell<bool>,
}

impl Connection {
    /// A connection of which nothing has been read.
    pub fn new(link: Link, who: Who) -> Connection {
        Connection {
            link,
            who,
            client: Cell::default(),
            out: RefCell::default(),
            ready: Notify::new(),
            written: Notify::new(),
            closed: Cell::new(false),
            finishing: Cell::new(false),
            read_size: Cell::new(READ_MIN),
            reading: Cell::new(false),
            writing: Cell::new(false),
        }
    }

    /// Queues a message.
    pub fn send<P: Peer>(&self, message: &Message<P>) {
        if self.closed.get() || self.finishing.get() {
            return;
        }
        let mut out = self.out.borrow_mut();
        let idle = out.is_empty();
        out.push(message);
        drop(out);
        if idle && !self.reading.get() {
            self.ready.notify_all();
        }
    }

    /// The reader begins to handle what it has read.
    pub fn begin_reading(&self) {
        self.reading.set(true);
    }

    /// Called when the reader has handled all input: writes what was queued meanwhile.
    fn flush(&self) {
        self.reading.set(false);
        let mut out = self.out.borrow_mut();
        if out.is_empty() || self.writing.get() || self.closed.get() {
            return;
        }
        let Some(frames) = out.frames() else {
            self.ready.notify_all();
            return;
        };
        if !self.link.write_now(frames) {
            self.ready.notify_all();
        } else if frames.capacity() > KEPT_BUFFER_MAX {
            *frames = Vec::new();
        }
    }

    /// Sets the client that this connection belongs to.
    pub fn set_client(&self, client: ClientId) {
        self.client.set(client);
    }

    /// Who is at the other end.
    pub fn who(&self) -> &Who {
        &self.who
    }

    /// Are its frames encrypted?
    pub fn is_encrypted(&self) -> bool {
        self.link.is_encrypted()
    }

    /// Address of the other end.
    pub fn peer(&self) -> String {
        self.link.peer()
    }

    /// Is it closed?
    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Closes it at once.
    pub fn close(&self) {
        self.closed.set(true);
        self.link.shutdown();
        self.ready.notify_all();
        self.written.notify_all();
    }

    /// Closes it once everything queued has been written.
    pub fn finish(&self) {
        self.finishing.set(true);
        self.ready.notify_all();
    }
}

/// The writer task: writes everything queued in one write. `log` receives why it ends early.
pub(super) async fn write(env: Env, connection: Rc<Connection>, log: impl Fn(&str)) {
    let mut buffer = Vec::new();
    loop {
        let ready = connection.ready.notified();
        let next = Outgoing::reusing(std::mem::take(&mut buffer));
        let taken = std::mem::replace(&mut *connection.out.borrow_mut(), next);
        if taken.is_empty() && connection.link.unsent() == 0 {
            buffer = taken.into_parts().unwrap_or_default();
            if connection.closed.get() || connection.finishing.get() {
                break;
            }
            ready.await;
            continue;
        }
        // A peer that reads nothing for this long counts as gone.
        let writing = async {
            match taken.into_parts() {
                Ok(frames) => connection.link.write_all(frames).await,
                Err(parts) => (connection.link.write_parts(parts, || ()).await, Vec::new()),
            }
        };
        connection.writing.set(true);
        let sent = env.timeout(WRITE_PATIENCE, writing).await;
        connection.writing.set(false);
        let Some((Ok(()), bytes)) = sent else {
            let why = match sent {
                Some((Err(error), _)) => format!("cannot write to it: {error}"),
                _ => format!("it has read nothing for {} s", WRITE_PATIENCE.as_secs()),
            };
            if !connection.closed.get() {
                let (client, peer) = (connection.client.get(), connection.peer());
                log(&format!("client {client} ({peer}): {why}; connection closed"));
            }
            break;
        };
        buffer = if bytes.capacity() > KEPT_BUFFER_MAX { Vec::new() } else { bytes };
        connection.written.notify_all();
    }
    connection.close();
    // Its session may have it for long, and the answers have memory that others wait for.
    connection.out.borrow_mut().clear();
}

const WRITE_PATIENCE: Duration = Duration::from_secs(60);

/// The size of the next read, after one of `size` bytes got `read`.
fn next_read_size(size: usize, read: usize) -> usize {
    if read == size {
        (size * 4).min(READ_MAX)
    } else if read < size / 16 {
        (size / 4).max(READ_MIN)
    } else {
        size
    }
}

/// The next whole frame; `None` when the connection has ended.
///
/// # Errors
/// The bytes are no frame, or the connection cannot be read, as text.
pub async fn receive<P: Peer>(
    connection: &Connection,
    decoder: &mut Decoder<P>,
) -> Result<Option<Received<P>>, String> {
    receive_within(connection, decoder, async |_| None).await
}

/// As [`receive`]; content behind a message is received when `room` has memory for it.
pub(super) async fn receive_within<P: Peer>(
    connection: &Connection,
    decoder: &mut Decoder<P>,
    room: impl AsyncFn(usize) -> Option<Permit>,
) -> Result<Option<Received<P>>, String> {
    let broken = |error: std::io::Error| match connection.closed.get() {
        true => Ok(None),
        false => Err(format!("cannot read from it: {error}")),
    };
    loop {
        match decoder.next() {
            Ok(Some(received)) => return Ok(Some(received)),
            Ok(None) => {}
            Err(malformed) => return Err(malformed.to_string()),
        }
        connection.flush();
        if let Some(len) = decoder.awaited() {
            let room = room(len).await;
            let bytes = match receive_content(&connection.link, decoder, (len, len), || ()).await {
                Ok(Some(bytes)) => bytes,
                Ok(None) => return Ok(None),
                Err(error) => return broken(error),
            };
            let content = Content::whole(ArrivedContent { bytes, room });
            let received = decoder.complete(content);
            return received.map(Some).map_err(|malformed| malformed.to_string());
        }
        loop {
            let written = connection.written.notified();
            if connection.closed.get() {
                return Ok(None);
            }
            if connection.out.borrow().len() + connection.link.unsent() < OUT_MAX {
                break;
            }
            written.await;
        }
        let apart = decoder.was_apart();
        let size = if apart { SHORT_READ } else { connection.read_size.get() };
        let (result, bytes) = connection.link.read(decoder.lend_within(2 * size), size).await;
        decoder.restore(bytes);
        if let Ok(read) = result
            && !apart
        {
            connection.read_size.set(next_read_size(size, read));
        }
        match result {
            Err(error) => return broken(error),
            Ok(0) => return Ok(None),
            Ok(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_grow_while_they_are_filled_and_shrink_while_they_are_not() {
        let mut size = READ_MIN;
        for _ in 0..9 {
            size = next_read_size(size, size);
            assert!(size <= READ_MAX);
        }
        assert_eq!((size, next_read_size(size, size / 16)), (READ_MAX, READ_MAX));
        for _ in 0..9 {
            size = next_read_size(size, 200);
        }
        assert_eq!(size, READ_MIN);
    }
}
