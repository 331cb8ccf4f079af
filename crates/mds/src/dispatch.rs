//! The metadata server as the service of sessions: greets, executes, repeats.

use std::future::Future;
use std::rc::Rc;

use env::Env;
use proto::frame::Decoder;
use proto::mds::{Mds, PushReply, Reply, Request};
use session::server::{Door, Service};
use types::Transno;

use crate::request;
use crate::server::Server;
use crate::sessions::{Connection, Session};

impl Service for Server {
    type Peer = Mds;
    type Session = Session;

    fn env(&self) -> &Env {
        &self.runtime.env
    }

    fn log(&self, text: &str) {
        self.runtime.log(text);
    }

    fn door(&self) -> &Door {
        &self.door
    }

    fn connected(&self, connection: &Rc<Connection>) {
        self.sessions.add_connection(connection);
    }

    fn last_committed(&self) -> Transno {
        self.runtime.mfs.last_committed()
    }

    fn load(&self) -> u16 {
        self.workers.load()
    }

    async fn greet(
        &self,
        connection: &Rc<Connection>,
        decoder: &mut Decoder<Mds>,
    ) -> Option<Rc<Session>> {
        self.recovery.greet(connection, decoder).await
    }

    fn execute(
        self: &Rc<Self>,
        session: &Rc<Session>,
        request: Request,
        fresh: bool,
    ) -> impl Future<Output = ()> + 'static {
        request::serve(self.clone(), session.clone(), request, fresh)
    }

    fn refresh(&self, session: &Session, reply: &mut Reply) {
        request::fill_in_leases(self, session, &mut reply.results);
    }

    fn push_answered(&self, session: &Session, reply: PushReply) {
        session.glimpse_answered(reply.id, reply.data);
    }
}
