//! The greeting: identifies the client, and finds or begins its session.
//!
//! Invariants:
//! - a client's number belongs to one process of one node;
//! - the number is durable before the client learns it.

use std::rc::Rc;

use engine::cost::Cost;
use engine::error::StoreError;
use proto::frame::Decoder;
use proto::message::{
    ADMINISTRATOR, Hello, METADATA_SERVER, NEW, Peer, RECOVERED, RESUMED, Refused,
};
use proto::ost::{Message, Ost, Welcome};
use proto::wire::{Appended, Wire};
use session::server::recovery::decision::{ClientState, Decision, decide};
use session::server::{
    Agreed, Connection, Identity, SessionIdentity, SessionState, Who, check, described,
    granted_lease, hello, refusal,
};
use types::limits::{SESSIONS_MAX, SLOTS};
use types::{ClientId, Fault, ServerId, Transno, Uuid};

use super::Server;
use super::sessions::{ClientInfo, Session};

/// What `Welcome` says of the session: how it goes on, and what has survived of what the client has
/// seen.
type Standing = (u8, Transno);

/// A hello, what was agreed with its sender, and who that is.
type Greeting<'a> = (&'a Hello, Agreed, &'a Who);

/// There is no cluster map yet.
const NO_MAP: u64 = 0;

/// A target's number as a server, made of its UUID: so a client does not go on with another target
/// that has got the address. Two targets may have one number; their UUIDs differ.
fn number_of(target: Uuid) -> ServerId {
    let number = u16::from_le_bytes([target.0[0], target.0[1]]);
    ServerId(number % ServerId::ANY.0)
}

impl Server {
    /// Answers the peer's hello. `None`: it was refused, or went away.
    pub(super) async fn welcome(
        &self,
        connection: &Rc<Connection>,
        decoder: &mut Decoder<Ost>,
    ) -> Option<Rc<Session>> {
        let runtime = &self.runtime;
        let first = hello(&runtime.env, connection, decoder, |text| runtime.log(text)).await;
        let result = match first? {
            Ok(hello) => self.admit(&hello, connection.who()).await,
            Err(refused) => Err(refused),
        };
        match result {
            Ok((session, (state, survived))) => {
                session.heard(runtime.env.now());
                let (identity, agreed) = (self.identity(), session.agreed());
                let welcome = Welcome {
                    version: agreed.version,
                    features: agreed.features,
                    server: identity.server,
                    role: identity.role,
                    map: identity.map,
                    fs_uuid: identity.fs_uuid,
                    client: session.client,
                    epoch: runtime.epoch,
                    state,
                    survived,
                    lease_ms: u32::try_from(session.lease.as_millis()).unwrap_or(u32::MAX),
                    slots: SLOTS,
                    offer: runtime.store.info(),
                    time: runtime.env.wall(),
                };
                connection.send(&Message::Welcome { welcome });
                session.bind(connection.clone());
                Some(session)
            }
            Err(refused) => {
                connection.send(&Message::Refused { refused });
                None
            }
        }
    }

    /// What this server is and can.
    fn identity(&self) -> Identity {
        Identity {
            versions: Ost::VERSIONS,
            features: Ost::FEATURES,
            server: number_of(self.runtime.store.info().uuid),
            role: Ost::ROLE,
            map: NO_MAP,
            fs_name: self.runtime.fs_name.clone(),
            fs_uuid: self.runtime.fs,
        }
    }

    async fn admit(&self, hello: &Hello, who: &Who) -> Result<(Rc<Session>, Standing), Refused> {
        let agreed = check(hello, &self.identity())?;
        if matches!(who, Who::Node(entry) if entry.role == channel::Role::Target) {
            let text = format!("{who} has no session with a target");
            return Err(refusal(Fault::AccessDenied, text));
        }
        if self.runtime.is_stopping() {
            return Err(refusal(Fault::Busy, "the target is stopping"));
        }
        let greeting = (hello, agreed, who);
        if hello.role == ADMINISTRATOR {
            let session = self.new_session(greeting, ClientId(0), SessionState::Live, false);
            return Ok((Rc::new(session), (NEW, Transno::ZERO)));
        }
        let (knowledge, process) = self.sessions.knowledge(hello.client);
        let shown = match process {
            _ if hello.client == ClientId(0) => ClientState::New,
            Some((nonce, node)) if nonce != hello.nonce || !who.may_go_on_as(&node) => {
                ClientState::OtherProcess
            }
            _ => ClientState::Returning,
        };
        match decide(shown, knowledge) {
            Decision::Enroll => self.enroll(greeting).await,
            Decision::Resume => self.resume(greeting),
            Decision::Recover => self.recover(greeting),
            Decision::RefuseTaken => {
                let text = format!("client number {} belongs to another process", hello.client);
                Err(refusal(Fault::NotPermitted, text))
            }
            // Only the first of these answers a greeting.
            Decision::RefuseEvicted
            | Decision::Wait
            | Decision::EvictAtOnce
            | Decision::EvictAtEnd
            | Decision::Nothing => Err(forgotten(hello.client)),
        }
    }

    fn new_session(
        &self,
        (hello, agreed, who): Greeting<'_>,
        client: ClientId,
        state: SessionState,
        known: bool,
    ) -> Session {
        let lease = granted_lease(hello, self.runtime.config.lease);
        let (nonce, description, who) = (hello.nonce, described(hello, who), who.clone());
        let identity = SessionIdentity { client, nonce, description, lease, agreed, who };
        let serves = hello.role == METADATA_SERVER;
        Session::new(identity, (state, known, serves), self.runtime.env.now())
    }

    /// Gives a new client a number.
    async fn enroll(&self, greeting: Greeting<'_>) -> Result<(Rc<Session>, Standing), Refused> {
        let runtime = &self.runtime;
        if self.sessions.len() >= SESSIONS_MAX {
            return Err(refusal(Fault::Overloaded, "the target has its maximum of clients"));
        }
        let (hello, _, who) = greeting;
        let (nonce, node, description) =
            (hello.nonce, who.node().to_owned(), described(hello, who));
        let serves = Appended(Some(hello.role == METADATA_SERVER));
        let info = ClientInfo { nonce, node, description, serves }.to_bytes();
        let enrolled = runtime.engine().run(Cost::DELETE, |txn| txn.new_client(&info)).await;
        let (client, transno) = match enrolled {
            Ok(enrolled) => enrolled,
            Err(StoreError::Fault(fault)) => {
                let text = format!("the target has no room for another client: {fault}");
                return Err(refusal(fault, text));
            }
            Err(error) => {
                runtime.fault_of(&error, "enrolling a client");
                return Err(self.store_failed());
            }
        };
        runtime.wait_durable(transno).await.map_err(|_| self.store_failed())?;
        let session = Rc::new(self.new_session(greeting, client, SessionState::Live, false));
        self.sessions.begin(session.clone());
        let as_who = match who {
            Who::Anybody => String::new(),
            who => format!(" as {who}"),
        };
        runtime.log(&format!("client {client} ({}) has connected{as_who}", session.description));
        Ok((session, (NEW, runtime.survived(hello.seen))))
    }

    /// Goes on with a session.
    fn resume(&self, (hello, agreed, _): Greeting<'_>) -> Result<(Rc<Session>, Standing), Refused> {
        let session = self.sessions.get(hello.client).ok_or_else(|| forgotten(hello.client))?;
        session.set_agreed(agreed);
        Ok((session, (RESUMED, Transno::ZERO)))
    }

    /// Lets a client repeat what was lost: one that has been absent, or whose recovery was cut off.
    fn recover(&self, greeting: Greeting<'_>) -> Result<(Rc<Session>, Standing), Refused> {
        let (hello, agreed, _) = greeting;
        let (client, survived) = (hello.client, self.runtime.survived(hello.seen));
        if let Some(session) = self.sessions.get(client) {
            session.set_agreed(agreed);
            return Ok((session, (RECOVERED, survived)));
        }
        if !self.sessions.has_come_back(client) {
            return Err(forgotten(client));
        }
        let session = Rc::new(self.new_session(greeting, client, SessionState::Recovering, true));
        self.sessions.begin(session.clone());
        Ok((session, (RECOVERED, survived)))
    }

    /// A target that ends because its store failed may be started again: the client waits for that.
    fn store_failed(&self) -> Refused {
        let fault = if self.runtime.is_stopping() { Fault::Busy } else { Fault::Io };
        refusal(fault, "the target's store failed; see its log")
    }
}

fn forgotten(client: ClientId) -> Refused {
    let text = format!("the target has forgotten client {client}");
    refusal(Fault::Evicted, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_a_target_is_never_that_of_any_server() {
        let numbers = [[0xff; 16], [0; 16], [7; 16]].map(|uuid| number_of(Uuid(uuid)));
        assert!(!numbers.contains(&ServerId::ANY), "{numbers:?}");
        assert_ne!(numbers[1], numbers[2]);
    }
}
