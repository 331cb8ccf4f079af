//! The handshake: identifies the client and finds or begins its session.
//!
//! Invariants:
//! - a client number is bound to one process of one client: another process cannot take it over;
//! - a client number is durable before the client learns it.

use std::rc::Rc;

use mfs::{Cost, StoreError};
use proto::frame::{Decoder, Received};
use proto::mds::{self, Hello, Message, Refused, Welcome};
use proto::{Reader, Wire};
use types::limits::{BLOCK_U64, SESSIONS_MAX, SLOTS};
use types::{Bug, ClientId, Duration, Fault, Transno, planted};

use crate::connection::{Connection, receive};
use crate::server::Server;
use crate::session::{Session, SessionIdentity, SessionState};

/// How long a peer may take to send its hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Shortest lease that a client may request.
const LEASE_MIN: Duration = Duration::from_millis(100);
/// Longest description that the server keeps.
const DESCRIPTION_MAX: usize = 1024;
/// [`Hello::role`] of an administrator's tool.
const ADMINISTRATOR: u8 = 1;

/// What the store keeps of a client.
pub struct ClientInfo {
    /// Random number of the client's process.
    pub nonce: u64,
    /// See [`Session::local`].
    pub local: bool,
    /// Description of the client for administrators.
    pub description: String,
}

impl ClientInfo {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.nonce.put(&mut out);
        self.local.put(&mut out);
        self.description.put(&mut out);
        out
    }

    /// Decodes the bytes; yields an empty description and nonce 0 if they are malformed.
    pub fn decode(bytes: &[u8]) -> ClientInfo {
        let mut reader = Reader::new(bytes);
        let mut read = || -> Result<ClientInfo, proto::Malformed> {
            Ok(ClientInfo {
                nonce: Wire::get(&mut reader)?,
                local: Wire::get(&mut reader)?,
                description: Wire::get(&mut reader)?,
            })
        };
        read().unwrap_or(ClientInfo { nonce: 0, local: false, description: String::new() })
    }
}

fn refusal(fault: Fault, text: impl Into<String>) -> Refused {
    Refused { fault, text: text.into() }
}

/// Answers the peer's hello. `None`: it was refused, or went away.
pub async fn handshake(
    server: &Rc<Server>,
    connection: &Rc<Connection>,
    decoder: &mut Decoder,
) -> Option<Rc<Session>> {
    let Some(first) = server.env.timeout(HELLO_TIMEOUT, receive(connection, decoder)).await else {
        let (peer, secs) = (connection.peer(), HELLO_TIMEOUT.as_secs());
        server.log(&format!("{peer} has sent no hello for {secs} s; connection closed"));
        return None;
    };
    let result = match first {
        Ok(Some(Received::Message(Message::Hello { hello }))) => admit(server, hello).await,
        Ok(None) => return None,
        Ok(Some(_)) => Err(refusal(Fault::Protocol, "the first message must be a hello")),
        Err(text) => Err(refusal(Fault::Protocol, text)),
    };
    match result {
        Ok((session, state)) => {
            session.last_heard.set(server.env.now());
            session.forget_held_back();
            connection.send(&Message::Welcome { welcome: welcome(server, &session, state) });
            session.bind(connection.clone());
            if !planted(Bug::RecallNotRepeated) {
                for recall in server.leases.borrow().unanswered(session.client) {
                    session.push_recall(recall);
                }
            }
            Some(session)
        }
        Err(refused) => {
            connection.send(&Message::Refused { refused });
            None
        }
    }
}

fn welcome(server: &Server, session: &Session, state: (u8, Transno)) -> Welcome {
    Welcome {
        version: mds::VERSION,
        features: 0,
        fs_uuid: server.identity.uuid,
        client: session.client,
        epoch: server.identity.epoch,
        state: state.0,
        survived: state.1,
        lease_ms: u32::try_from(session.lease.as_millis()).unwrap_or(u32::MAX),
        slots: SLOTS,
        pags: server.pags.borrow().clone(),
        time: server.env.wall(),
    }
}

async fn admit(server: &Rc<Server>, hello: Hello) -> Result<(Rc<Session>, (u8, Transno)), Refused> {
    if hello.version_min > mds::VERSION || hello.version_max < mds::VERSION {
        let text = format!(
            "this server speaks protocol version {}, the client versions {} to {}",
            mds::VERSION,
            hello.version_min,
            hello.version_max
        );
        return Err(refusal(Fault::Unsupported, text));
    }
    if hello.fs_name != server.config.fs_name {
        let text = format!(
            "this server serves the file system {:?}, not {:?}",
            server.config.fs_name, hello.fs_name
        );
        return Err(refusal(Fault::NotFound, text));
    }
    if server.is_stopping() {
        return Err(refusal(Fault::Busy, "the server is stopping"));
    }
    if hello.role == ADMINISTRATOR {
        let session = Rc::new(new_session(server, &hello, ClientId(0), SessionState::Live, false));
        return Ok((session, (mds::NEW, Transno::ZERO)));
    }
    if planted(Bug::NewcomerRefused) && hello.client == ClientId(0) && !server.grace.is_over() {
        return Err(refusal(Fault::NotPermitted, "the server waits for its clients"));
    }
    if hello.client == ClientId(0) {
        return enroll(server, &hello).await;
    }
    resume(server, &hello)
}

fn new_session(
    server: &Server,
    hello: &Hello,
    client: ClientId,
    state: SessionState,
    known: bool,
) -> Session {
    let asked = Duration::from_millis(u64::from(hello.lease_ms));
    let lease = if hello.lease_ms == 0 {
        server.config.lease
    } else {
        asked.clamp(LEASE_MIN.min(server.config.lease), server.config.lease)
    };
    let description = shortened(&hello.description);
    let identity = SessionIdentity { client, nonce: hello.nonce, description, lease };
    Session::new(identity, state, known, server.env.now())
}

fn shortened(text: &str) -> String {
    let mut end = text.len().min(DESCRIPTION_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// A server that ends because its store failed will be restarted: the client may wait for that.
fn store_failed(server: &Server) -> Refused {
    let fault = if server.is_stopping() { Fault::Busy } else { Fault::Io };
    refusal(fault, "the metadata store failed; see the server's log")
}

/// Enrolls a new client: gives it a number.
async fn enroll(
    server: &Rc<Server>,
    hello: &Hello,
) -> Result<(Rc<Session>, (u8, Transno)), Refused> {
    if server.sessions.borrow().len() >= SESSIONS_MAX {
        return Err(refusal(Fault::Overloaded, "the server has its maximum number of clients"));
    }
    let description = shortened(&hello.description);
    let info = ClientInfo { nonce: hello.nonce, local: false, description }.encode();
    // Use the reserve: a client that cannot mount cannot remove anything. The store keeps enough
    // for the client's replies.
    let enrolled = server.mfs.run(Cost::DELETE, |txn| txn.new_client(&info)).await;
    if let Err(StoreError::Fault(Fault::NoSpace)) = enrolled {
        let text = format!(
            "the metadata zone has no room for another client, whose replies may take {} KiB; remove files by those \
             that are there, or evict some",
            (engine::alloc::reservation::BLOCKS_PER_CLIENT * BLOCK_U64) >> 10
        );
        return Err(refusal(Fault::NoSpace, text));
    }
    let (client, transno) =
        server.checked(enrolled, "enrolling a client").ok_or_else(|| store_failed(server))?;
    server.wait_durable(transno).await.map_err(|_| store_failed(server))?;
    let session = Rc::new(new_session(server, hello, client, SessionState::Live, false));
    server.sessions.borrow_mut().insert(client, session.clone());
    server.log(&format!("client {client} ({}) has connected", session.description));
    Ok((session, (mds::NEW, server.survived(hello.seen))))
}

/// Resumes or recovers the session of a client that has a number.
fn resume(server: &Rc<Server>, hello: &Hello) -> Result<(Rc<Session>, (u8, Transno)), Refused> {
    let client = hello.client;
    let taken = || {
        refusal(Fault::NotPermitted, format!("client number {client} belongs to another process"))
    };
    let evicted = || {
        let text = format!("client {client} was evicted: what it had not committed is lost");
        refusal(Fault::Evicted, text)
    };
    if let Some(session) = server.session(client) {
        if session.nonce != hello.nonce {
            return Err(taken());
        }
        if session.is_over() {
            return Err(evicted());
        }
        let state = match session.state() {
            SessionState::Recovering => (mds::RECOVERED, server.survived(hello.seen)),
            _ => (mds::RESUMED, Transno::ZERO),
        };
        return Ok((session, state));
    }
    let Some(info) = server.grace.claim(client) else { return Err(evicted()) };
    if info.nonce != hello.nonce {
        server.grace.unclaim(client, info);
        return Err(taken());
    }
    let session = Rc::new(new_session(server, hello, client, SessionState::Recovering, true));
    session.local.set(info.local);
    server.sessions.borrow_mut().insert(client, session.clone());
    Ok((session, (mds::RECOVERED, server.survived(hello.seen))))
}
