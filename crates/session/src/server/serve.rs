//! A connection from its greeting to its end: reads frames and starts the requests in them.
//!
//! Invariant: the reader waits only for frames, for the peer to read, and for memory for content; a
//! request that has to wait goes on as a task of its own.

use std::future::Future;
use std::ops::Deref;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Waker};

use env::sync::{Permit, first};
use env::{Env, Listener, Stream};
use proto::frame::{Decoder, Received};
use proto::message::{Message, Peer, Reply, Request};
use types::{Bug, Duration, Fault, Transno, planted};

use super::connection::{receive_within, write};
use super::{Admission, Connection, Door, Session};

/// What a server does in its sessions.
pub trait Service: Sized + 'static {
    /// The protocol that it speaks.
    type Peer: Peer;
    /// A session, with what the server keeps there beside.
    type Session: Deref<Target = Session<Self::Peer>> + 'static;

    /// Clock, network and tasks.
    fn env(&self) -> &Env;
    /// Writes a line to the log.
    fn log(&self, text: &str);
    /// Who may come in.
    fn door(&self) -> &Door;
    /// Remembers a new connection, so that the server's end closes it.
    fn connected(&self, connection: &Rc<Connection>);
    /// Everything up to this number is durable.
    fn last_committed(&self) -> Transno;
    /// Requests that it has to work on, without those that wait for other clients.
    fn load(&self) -> u16;
    /// Answers the peer's hello. `None`: it was refused, or went away.
    fn greet(
        &self,
        connection: &Rc<Connection>,
        decoder: &mut Decoder<Self::Peer>,
    ) -> impl Future<Output = Option<Rc<Self::Session>>>;
    /// Sets memory apart for content of so many bytes, which is about to be received in `session`;
    /// `None`: it is not counted. What it waits for must not depend on the peer.
    fn room_for_content(
        &self,
        _session: &Self::Session,
        _bytes: usize,
    ) -> impl Future<Output = Option<Permit>> {
        async { None }
    }
    /// Sends something that changes nothing: the peer's content waits for memory, and nothing
    /// behind it is read, so no probe is answered.
    fn say_alive(&self, _connection: &Connection) {}
    /// Executes a request and sends its answer. `fresh`: its slot has seen none since the server
    /// started.
    fn execute(
        self: &Rc<Self>,
        session: &Rc<Self::Session>,
        request: Request<Self::Peer>,
        fresh: bool,
    ) -> impl Future<Output = ()> + 'static;
    /// An answer that was given before leaves again: brings it up to date.
    fn refresh(&self, session: &Self::Session, reply: &mut Reply<Self::Peer>);
    /// The client has answered a push.
    fn push_answered(&self, session: &Self::Session, reply: <Self::Peer as Peer>::PushReply);
}

/// Pause after a failed accept (too many files, for example).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How often a client whose content waits for memory counts as heard: less than the shortest lease.
const ROOM_PAUSE: Duration = Duration::from_millis(25);
/// How often such a client hears that the server is alive, unless its lease is short: often enough
/// to leave no probe without a sign for its time (`proto::liveness`).
const ALIVE_PAUSE: Duration = Duration::from_millis(250);
/// Of a short lease it is such a part.
const ALIVE_PART: u32 = 16;

/// Takes connections until `stop` ends, and serves each. `clients`: how many there are, for the
/// log.
pub async fn accept<S: Service>(
    service: Rc<S>,
    listener: Rc<Listener>,
    clients: impl Fn() -> usize,
    stop: impl Future<Output = ()>,
) {
    let (mut stop, mut fails) = (pin!(stop), false);
    while let Some(accepted) = first(listener.accept(), stop.as_mut()).await {
        match accepted {
            Ok(stream) => {
                fails = false;
                service.env().spawn(serve(service.clone(), stream));
            }
            Err(error) => {
                if !std::mem::replace(&mut fails, true) {
                    let count = clients();
                    service.log(&format!(
                        "cannot accept a connection ({error}), with {count} clients; it tries again until it can"
                    ));
                }
                if first(service.env().sleep(ACCEPT_PAUSE), stop.as_mut()).await.is_none() {
                    return;
                }
            }
        }
    }
}

/// Serves a connection until it ends.
pub async fn serve<S: Service>(service: Rc<S>, stream: Stream) {
    let Some((link, who)) = service.door().admit::<S::Peer>(stream).await else { return };
    // In a box: until here a stranger's connection takes little room.
    Box::pin(serve_known(service.clone(), Connection::new(link, who))).await;
}

async fn serve_known<S: Service>(service: Rc<S>, connection: Connection) {
    let connection = Rc::new(connection);
    service.connected(&connection);
    let (env, log) = (service.env().clone(), service.clone());
    let writing = write(env.clone(), connection.clone(), move |text| log.log(text));
    env.spawn(writing);
    let mut decoder = Decoder::of_stranger();
    if let Some(session) = service.greet(&connection, &mut decoder).await {
        decoder.greeted();
        let end = read(&service, &session, &connection, &mut decoder).await;
        if let Some(text) = end {
            service.log(&format!("client {}: {text}; connection closed", session.client));
        }
    }
    connection.finish();
}

async fn read<S: Service>(
    service: &Rc<S>,
    session: &Rc<S::Session>,
    connection: &Rc<Connection>,
    decoder: &mut Decoder<S::Peer>,
) -> Option<String> {
    loop {
        let room = async |bytes| room_for(&**service, (session, connection), bytes).await;
        let received = match receive_within(connection, decoder, room).await {
            Ok(Some(received)) => received,
            Ok(None) => return None,
            Err(text) => return Some(text),
        };
        connection.begin_reading();
        if !planted(Bug::RequestNotHeard) {
            session.heard(service.env().now());
        }
        // What came on a connection that was closed meanwhile may have been sent again on another.
        if session.is_over() || connection.is_closed() {
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
                    Admission::New { fresh } => start(service, session, request, fresh),
                    Admission::Answered(mut reply) => {
                        service.refresh(session, &mut reply);
                        reply.last_committed = service.last_committed();
                        connection.send::<S::Peer>(&Message::Reply { reply: *reply });
                    }
                    Admission::Ignore => {}
                    Admission::Protocol(text) => return Some(text.into()),
                }
            }
            Received::Unknown { slot, seq } => {
                if let Admission::New { .. } = session.admit(slot, seq) {
                    let (transno, last_committed) = (Transno::ZERO, service.last_committed());
                    let results = vec![Err(Fault::Unsupported)];
                    let (waited, load) = (0, service.load());
                    let reply = Reply { slot, seq, transno, last_committed, waited, load, results };
                    session.answered(&reply, false);
                    connection.send::<S::Peer>(&Message::Reply { reply });
                }
            }
            Received::Message(Message::PushReply { reply }) => {
                service.push_answered(session, reply);
            }
            Received::Message(_) => return Some("it sent a message that only servers send".into()),
        }
    }
}

/// Waits for memory for content. Meanwhile nothing is read: the silence is not the client's, and
/// the client hears that the server is alive. If the connection is closed, it waits no longer: then
/// nothing can be received either.
async fn room_for<S: Service>(
    service: &S,
    (session, connection): (&S::Session, &Connection),
    bytes: usize,
) -> Option<Permit> {
    let mut room = pin!(service.room_for_content(session, bytes));
    let pause = ALIVE_PAUSE.min(session.lease / ALIVE_PART);
    let mut said = service.env().now();
    loop {
        if let Some(room) = service.env().timeout(ROOM_PAUSE, room.as_mut()).await {
            return room;
        }
        if connection.is_closed() {
            return None;
        }
        let now = service.env().now();
        session.heard(now);
        if now.since(said) >= pause {
            said = now;
            service.say_alive(connection);
        }
    }
}

/// Polls a request once; if it has to wait, it goes on as a task of its own.
fn start<S: Service>(
    service: &Rc<S>,
    session: &Rc<S::Session>,
    request: Request<S::Peer>,
    fresh: bool,
) {
    let mut work = Box::pin(service.execute(session, request, fresh));
    let mut context = Context::from_waker(Waker::noop());
    if pin!(&mut work).poll(&mut context).is_pending() {
        service.env().spawn(work);
    }
}
