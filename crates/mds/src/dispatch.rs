//! A connection from its greeting to its end: reads frames and starts the requests in them.
//!
//! Invariant: the reader waits only for frames and for the peer to read; a request that has to wait
//! goes on as a task of its own.

use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Waker};

use env::Stream;
use proto::frame::{Decoder, Received};
use proto::mds::{Message, Reply};
use types::{Bug, Fault, Transno, planted};

use crate::request;
use crate::server::Server;
use crate::sessions::{Admission, Connection, Session, receive, write};

/// Serves a connection until it ends.
pub async fn serve(server: Rc<Server>, stream: Stream) {
    let connection = Rc::new(Connection::new(stream));
    server.sessions.add_connection(&connection);
    server.runtime.env.spawn(write(server.runtime.clone(), connection.clone()));
    let mut decoder = Decoder::new();
    if let Some(session) = server.recovery.greet(&connection, &mut decoder).await {
        let end = read(&server, &session, &connection, &mut decoder).await;
        if let Some(text) = end {
            server.runtime.log(&format!("client {}: {text}; connection closed", session.client));
        }
    }
    connection.finish();
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
        connection.begin_reading();
        if !planted(Bug::RequestNotHeard) {
            session.heard(server.runtime.env.now());
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
                        reply.last_committed = server.runtime.mfs.last_committed();
                        connection.send(&Message::Reply { reply: *reply });
                    }
                    Admission::Ignore => {}
                    Admission::Protocol(text) => return Some(text.into()),
                }
            }
            Received::Unknown { slot, seq } => {
                if let Admission::New { .. } = session.admit(slot, seq) {
                    let (transno, last_committed) =
                        (Transno::ZERO, server.runtime.mfs.last_committed());
                    let results = vec![Err(Fault::Unsupported)];
                    let reply = Reply { slot, seq, transno, last_committed, results };
                    session.answered(&reply, false);
                    connection.send(&Message::Reply { reply });
                }
            }
            Received::Message(Message::PushReply { reply }) => {
                session.glimpse_answered(reply.id, reply.data);
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
        server.runtime.env.spawn(work);
    }
}
