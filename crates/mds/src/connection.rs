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
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Waker};

use env::Stream;
use env::sync::Notify;
use proto::frame::{Decoder, Received, encode};
use proto::mds::{Message, Reply};
use types::{Bug, ClientId, Duration, Fault, Transno, planted};

use crate::hello;
use crate::request;
use crate::server::Server;
use crate::session::{Admission, Session};

/// Bytes of one read from the socket.
const READ: usize = 256 << 10;
/// The reader stops while more bytes than this wait to be written.
const OUT_MAX: usize = 8 << 20;
/// A write buffer of at most this capacity is reused.
const KEPT_BUFFER_MAX: usize = 1 << 20;

/// See the module.
pub struct Connection {
    stream: Stream,
    /// The client; 0 before the handshake, and for an administrator's tool.
    client: Cell<ClientId>,
    out: RefCell<Vec<u8>>,
    ready: Notify,
    written: Notify,
    closed: Cell<bool>,
    finishing: Cell<bool>,
    /// The reader is handling what it has read.
    reading: Cell<bool>,
    /// The writer is waiting for the socket.
    writing: Cell<bool>,
}

impl Connection {
    fn new(stream: Stream) -> Connection {
        Connection {
            stream,
            client: Cell::default(),
            out: RefCell::default(),
            ready: Notify::new(),
            written: Notify::new(),
            closed: Cell::new(false),
            finishing: Cell::new(false),
            reading: Cell::new(false),
            writing: Cell::new(false),
        }
    }

    /// Queues a message.
    pub fn send(&self, message: &Message) {
        if self.closed.get() || self.finishing.get() {
            return;
        }
        let mut out = self.out.borrow_mut();
        let idle = out.is_empty();
        encode(message, &mut out);
        drop(out);
        if idle && !self.reading.get() {
            self.ready.notify_all();
        }
    }

    /// Called when the reader has handled all input: writes what was queued meanwhile.
    fn flush(&self) {
        self.reading.set(false);
        let mut out = self.out.borrow_mut();
        if out.is_empty() || self.writing.get() || self.closed.get() {
            return;
        }
        let written = self.stream.write_now(&out);
        if written < out.len() {
            out.drain(..written);
            drop(out);
            self.ready.notify_all();
        } else if out.capacity() > KEPT_BUFFER_MAX {
            *out = Vec::new();
        } else {
            out.clear();
        }
    }

    /// Sets the client that this connection belongs to.
    pub fn set_client(&self, client: ClientId) {
        self.client.set(client);
    }

    /// Address of the other end.
    pub fn peer(&self) -> String {
        self.stream.peer()
    }

    /// Is it closed?
    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Closes it at once.
    pub fn close(&self) {
        self.closed.set(true);
        self.stream.shutdown();
        self.ready.notify_all();
        self.written.notify_all();
    }

    /// Closes it once everything queued has been written.
    pub fn finish(&self) {
        self.finishing.set(true);
        self.ready.notify_all();
    }
}

/// Serves a connection until it ends.
pub async fn serve(server: Rc<Server>, stream: Stream) {
    let connection = Rc::new(Connection::new(stream));
    server.connections.borrow_mut().push(Rc::downgrade(&connection));
    server.env.spawn(write(server.clone(), connection.clone()));
    let mut decoder = Decoder::new();
    if let Some(session) = hello::handshake(&server, &connection, &mut decoder).await {
        let end = read(&server, &session, &connection, &mut decoder).await;
        if let Some(text) = end {
            server.log(&format!("client {}: {text}; connection closed", session.client));
        }
    }
    connection.finish();
}

/// The writer task: writes everything queued in one write.
async fn write(server: Rc<Server>, connection: Rc<Connection>) {
    let mut buffer = Vec::new();
    loop {
        let ready = connection.ready.notified();
        let taken = std::mem::replace(&mut *connection.out.borrow_mut(), buffer);
        if taken.is_empty() {
            buffer = taken;
            if connection.closed.get() || connection.finishing.get() {
                break;
            }
            ready.await;
            continue;
        }
        // A peer that reads nothing for this long counts as gone.
        let writing = connection.stream.write_all(taken);
        connection.writing.set(true);
        let sent = server.env.timeout(WRITE_PATIENCE, writing).await;
        connection.writing.set(false);
        let Some((Ok(()), bytes)) = sent else {
            let why = match sent {
                Some((Err(error), _)) => format!("cannot write to it: {error}"),
                _ => format!("it has read nothing for {} s", WRITE_PATIENCE.as_secs()),
            };
            if !connection.closed.get() {
                let (client, peer) = (connection.client.get(), connection.peer());
                server.log(&format!("client {client} ({peer}): {why}; connection closed"));
            }
            break;
        };
        buffer = if bytes.capacity() > KEPT_BUFFER_MAX { Vec::new() } else { bytes };
        connection.written.notify_all();
    }
    connection.close();
}

const WRITE_PATIENCE: Duration = Duration::from_secs(60);

/// The next whole frame; `None` when the connection has ended.
pub async fn receive(
    connection: &Connection,
    decoder: &mut Decoder,
) -> Result<Option<Received>, String> {
    loop {
        match decoder.next() {
            Ok(Some(received)) => return Ok(Some(received)),
            Ok(None) => {}
            Err(malformed) => return Err(malformed.to_string()),
        }
        connection.flush();
        loop {
            let written = connection.written.notified();
            if connection.closed.get() {
                return Ok(None);
            }
            if connection.out.borrow().len() < OUT_MAX {
                break;
            }
            written.await;
        }
        let (result, bytes) = connection.stream.read(decoder.lend(), READ).await;
        decoder.restore(bytes);
        match result {
            Err(error) if !connection.closed.get() => {
                return Err(format!("cannot read from it: {error}"));
            }
            Ok(0) | Err(_) => return Ok(None),
            Ok(_) => {}
        }
    }
}

async fn read(
    server: &Rc<Server>,
    session: &Rc<Session>,
    connection: &Rc<Connection>,
    decoder: &mut Decoder,
) -> Option<String> {
    loop {
        let received = match receive(connection, decoder).await {
            Ok(Some(received)) => received,
            Ok(None) => return None,
            Err(text) => return Some(text),
        };
        connection.reading.set(true);
        if !planted(Bug::RequestNotHeard) {
            session.last_heard.set(server.env.now());
        }
        if session.is_over() {
            return None;
        }
        match received {
            Received::Message(Message::Request { request }) => {
                let (slot, seq) = (request.slot, request.seq);
                let admission = match &request.replay {
                    Some(_) => session.admit_replay(slot),
                    None => session.admit(slot, seq),
                };
                match admission {
                    Admission::New { fresh } => start(server, session, request, fresh),
                    Admission::Answered(mut reply) => {
                        request::fill_in_leases(server, session, &mut reply.results);
                        reply.last_committed = server.mfs.last_committed();
                        connection.send(&Message::Reply { reply: *reply });
                    }
                    Admission::Ignore => {}
                    Admission::Protocol(text) => return Some(text.into()),
                }
            }
            Received::Unknown { slot, seq } => {
                if let Admission::New { .. } = session.admit(slot, seq) {
                    let (transno, last_committed) = (Transno::ZERO, server.mfs.last_committed());
                    let results = vec![Err(Fault::Unsupported)];
                    let reply = Reply { slot, seq, transno, last_committed, results };
                    session.answered(&reply, false);
                    connection.send(&Message::Reply { reply });
                }
            }
            Received::Message(Message::PushReply { reply }) => {
                if let Some(waiting) = session.glimpses.borrow_mut().remove(&reply.id) {
                    waiting.send(reply.data);
                }
            }
            Received::Message(_) => return Some("it sent a message that only servers send".into()),
        }
    }
}

/// Polls a request once; if it has to wait, it goes on as a task of its own.
fn start(server: &Rc<Server>, session: &Rc<Session>, request: proto::mds::Request, fresh: bool) {
    let mut work = Box::pin(request::serve(server.clone(), session.clone(), request, fresh));
    let mut context = Context::from_waker(Waker::noop());
    if pin!(&mut work).poll(&mut context).is_pending() {
        server.env.spawn(work);
    }
}
