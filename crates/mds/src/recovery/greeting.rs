//! The greeting: identifies the client and finds or begins its session.
//!
//! Invariants:
//! - a client number is bound to one process of one node: no other process and no other node
//!   can take it over;
//! - a client number is durable before the client learns it.

use std::rc::Rc;

use channel::Squash;
use mfs::{Cost, StoreError};
use proto::frame::Decoder;
use proto::mds::{
    self, ADMINISTRATOR, Hello, METADATA_SERVER, Mds, Message, NAMED_CALLERS, Refused, SHARDS,
    Welcome,
};
use proto::message::Peer;
use session::server::{Agreed, Identity, Who, check, described, granted_lease, hello, refusal};
use types::limits::{SESSIONS_MAX, SLOTS};
use types::{Bug, ClientId, Fault, Transno, planted};

use super::Recovery;
use crate::fence::host_of;
use crate::sessions::{ClientInfo, Connection, Session, SessionIdentity, SessionState};
use session::server::recovery::decision::{ClientState, Decision, decide};

/// What `Welcome` says of the session: how it goes on, and what has survived of what the client has
/// seen.
type Standing = (u8, Transno);

/// A hello, what was agreed with its sender, and who that is.
type Greeting<'a> = (&'a Hello, Agreed, &'a Who);

/// Version of the cluster map: there is none yet.
const NO_MAP: u64 = 0;

impl Recovery {
    /// Answers the peer's hello. `None`: it was refused, or went away.
    pub async fn greet(
        &self,
        connection: &Rc<Connection>,
        decoder: &mut Decoder,
    ) -> Option<Rc<Session>> {
        let runtime = &self.runtime;
        let first = hello(&runtime.env, connection, decoder, |text| runtime.log(text)).await;
        let result = match first? {
            Ok(hello) => self.admit(hello, connection.who()).await,
            Err(refused) => Err(refused),
        };
        match result {
            Ok((session, standing)) => {
                session.heard(runtime.env.now());
                session.forget_held_back();
                let welcome = self.welcome(&session, standing);
                connection.send(&Message::Welcome { welcome });
                session.bind(connection.clone());
                self.space.tell_states(&session);
                if !planted(Bug::RecallNotRepeated) {
                    self.leases.push_unanswered(&session);
                }
                runtime.event_ended();
                Some(session)
            }
            Err(refused) => {
                connection.send(&Message::Refused { refused });
                None
            }
        }
    }

    fn welcome(&self, session: &Session, (state, survived): Standing) -> Welcome {
        let (agreed, zones) = (session.agreed(), self.space.zones_for(session.agreed()));
        session.set_zones_named(self.space.zones().len());
        Welcome {
            version: agreed.version,
            features: agreed.features,
            server: self.runtime.server_id(),
            role: Mds::ROLE,
            map: NO_MAP,
            fs_uuid: self.runtime.identity.uuid,
            client: session.client,
            epoch: self.runtime.identity.epoch,
            state,
            survived,
            lease_ms: u32::try_from(session.lease.as_millis()).unwrap_or(u32::MAX),
            slots: SLOTS,
            offer: zones,
            time: self.runtime.env.wall(),
        }
    }

    /// What this server is and can.
    fn identity(&self) -> Identity {
        Identity {
            versions: self.runtime.config.versions,
            features: self.features(),
            server: self.runtime.server_id(),
            role: Mds::ROLE,
            map: NO_MAP,
            fs_name: self.runtime.config.fs_name.clone(),
            fs_uuid: self.runtime.identity.uuid,
        }
    }

    /// With one server there is nothing to ask about others.
    fn features(&self) -> u64 {
        let config = &self.runtime.config;
        if config.servers.is_empty() { config.features & !SHARDS } else { config.features }
    }

    async fn admit(&self, hello: Hello, who: &Who) -> Result<(Rc<Session>, Standing), Refused> {
        let runtime = &self.runtime;
        let mut agreed = check(&hello, &self.identity())?;
        if who.squash() == Squash::Off {
            agreed.features &= !NAMED_CALLERS;
        }
        if hello.role == METADATA_SERVER && runtime.config.servers.is_empty() {
            let text = format!("this server is alone, and knows no role {METADATA_SERVER}");
            return Err(refusal(Fault::Unsupported, text));
        }
        let may = if hello.role == METADATA_SERVER { who.serves() } else { who.may_mount() };
        if !may {
            let text = format!("{who} has no session with a metadata server");
            return Err(refusal(Fault::AccessDenied, text));
        }
        let greeting = (&hello, agreed, who);
        if runtime.is_stopping() {
            return Err(refusal(Fault::Busy, "the server is stopping"));
        }
        if matches!(hello.role, ADMINISTRATOR | METADATA_SERVER) {
            let session = self.new_session(greeting, ClientId(0), SessionState::Live, false);
            return Ok((Rc::new(session), (mds::NEW, Transno::ZERO)));
        }
        if !runtime.config.servers.is_empty() && agreed.features & SHARDS == 0 {
            let text = "the file system has several metadata servers, and this client knows only \
                        one: update it";
            return Err(refusal(Fault::Unsupported, text));
        }
        if planted(Bug::NewcomerRefused) && hello.client == ClientId(0) && !self.is_over() {
            return Err(refusal(Fault::NotPermitted, "the server waits for its clients"));
        }
        let (knowledge, process) = self.knowledge(hello.client);
        let shown = match process {
            _ if hello.client == ClientId(0) => ClientState::New,
            Some((nonce, node)) if nonce != hello.nonce || !who.may_go_on_as(&node) => {
                ClientState::OtherProcess
            }
            _ => ClientState::Returning,
        };
        let decision = decide(shown, knowledge);
        if matches!(decision, Decision::Enroll | Decision::Resume | Decision::Recover) {
            self.check_host(&described(&hello, who))?;
        }
        match decision {
            Decision::Enroll => self.enroll(greeting).await,
            Decision::Resume => self.resume(greeting),
            Decision::Recover => self.recover(greeting),
            Decision::RefuseTaken => Err(taken(hello.client)),
            // Only the first of these answers a greeting.
            Decision::RefuseEvicted
            | Decision::Wait
            | Decision::EvictAtOnce
            | Decision::EvictAtEnd
            | Decision::Nothing => Err(evicted(hello.client)),
        }
    }

    /// A client of a host that is being fenced tries again later.
    fn check_host(&self, description: &str) -> Result<(), Refused> {
        match host_of(description) {
            Some(host) if self.evictions.is_being_fenced(host) => {
                Err(refusal(Fault::Busy, format!("host {host} is being fenced")))
            }
            _ => Ok(()),
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
        let description = described(hello, who);
        let (nonce, who) = (hello.nonce, who.clone());
        let identity = SessionIdentity { client, nonce, description, lease, agreed, who };
        Session::new(identity, state, known, self.runtime.env.now())
    }

    /// Enrolls a new client: gives it a number.
    async fn enroll(&self, greeting: Greeting<'_>) -> Result<(Rc<Session>, Standing), Refused> {
        let runtime = &self.runtime;
        if self.sessions.len() >= SESSIONS_MAX {
            let text = "the server has its maximum number of clients";
            return Err(refusal(Fault::Overloaded, text));
        }
        let (hello, _, who) = greeting;
        let (node, description) = (who.node().to_owned(), described(hello, who));
        let info = ClientInfo { nonce: hello.nonce, seen_at: None, node, description }.encode();
        // Use the reserve: a client that cannot mount cannot remove anything. The store keeps
        // enough for the client's replies.
        let enrolled = runtime.mfs.run(Cost::DELETE, |txn| txn.new_client(&info)).await;
        if let Err(StoreError::Fault(Fault::NoSpace)) = enrolled {
            let text = "the metadata zone has no room for another client; remove files by those \
                        that are there, or evict some";
            return Err(refusal(Fault::NoSpace, text));
        }
        if let Err(StoreError::Fault(fault @ Fault::NoNumbers)) = enrolled {
            return Err(refusal(fault, "the server has issued all its client numbers"));
        }
        let enrolled = runtime.checked(enrolled, "enrolling a client");
        let (client, transno) = enrolled.ok_or_else(|| self.store_failed())?;
        runtime.wait_durable(transno).await.map_err(|_| self.store_failed())?;
        let session = Rc::new(self.new_session(greeting, client, SessionState::Live, false));
        self.sessions.begin(session.clone());
        let as_who = match who {
            Who::Anybody => String::new(),
            who => format!(" as {who}"),
        };
        runtime.log(&format!("client {client} ({}) has connected{as_who}", session.description));
        Ok((session, (mds::NEW, runtime.survived(hello.seen))))
    }

    /// Goes on with a session.
    fn resume(&self, (hello, agreed, _): Greeting<'_>) -> Result<(Rc<Session>, Standing), Refused> {
        let session = self.sessions.get(hello.client).ok_or_else(|| evicted(hello.client))?;
        session.set_agreed(agreed);
        Ok((session, (mds::RESUMED, Transno::ZERO)))
    }

    /// Lets a client recover: one that has been absent, or whose recovery was cut off.
    fn recover(&self, greeting: Greeting<'_>) -> Result<(Rc<Session>, Standing), Refused> {
        let (hello, agreed, _) = greeting;
        let (client, survived) = (hello.client, self.runtime.survived(hello.seen));
        if let Some(session) = self.sessions.get(client) {
            session.set_agreed(agreed);
            return Ok((session, (mds::RECOVERED, survived)));
        }
        let info = self.absent.borrow_mut().remove(&client).ok_or_else(|| evicted(client))?;
        let session = Rc::new(self.new_session(greeting, client, SessionState::Recovering, true));
        session.set_local(self.evictions.watches(&info));
        self.recovering.borrow_mut().insert(client);
        self.sessions.begin(session.clone());
        Ok((session, (mds::RECOVERED, survived)))
    }

    /// A server that ends because its store failed will be restarted: the client may wait for that.
    fn store_failed(&self) -> Refused {
        let fault = if self.runtime.is_stopping() { Fault::Busy } else { Fault::Io };
        refusal(fault, "the metadata store failed; see the server's log")
    }
}

fn taken(client: ClientId) -> Refused {
    refusal(Fault::NotPermitted, format!("client number {client} belongs to another process"))
}

fn evicted(client: ClientId) -> Refused {
    let text = format!("client {client} was evicted: what it had not committed is lost");
    refusal(Fault::Evicted, text)
}
