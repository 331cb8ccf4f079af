//! The client's requests to the metadata servers.
//!
//! A session with one server is the crate `session`'s. Here is what is the client's own: which
//! server a request goes to.
//!
//! Invariants:
//! - a request goes to the server of the inode at which its operation is executed: that of the
//!   shard that the inode was born in. One without an inode goes to the server of the root;
//! - of a new file in a spread directory that is the server that its name chooses. Any other one is
//!   as good: which server makes it is a preference;
//! - all operations of one request are executed by one server. What one of them changes at other
//!   servers, these servers settle among themselves.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::rc::Rc;

use proto::mds::{Mds, Op, OpReply, Principal, Reply};
use proto::placement::shard_of_name;
use session::client::{ReplayEntry, Session, Sessions};
use types::{Fault, Ino, Name, ServerId, ShardId};

use crate::api::{Caller, ClientConfig, ClientStatus, ConnectError};
use crate::boundary::Offer;
use crate::servers::{self, ByShard};
pub(crate) use session::client::{Events, done, result};

/// A request to a metadata server.
pub(crate) type Call = session::client::Call<Mds>;

impl From<&Caller> for Principal {
    fn from(caller: &Caller) -> Principal {
        Principal { uid: caller.uid, gid: caller.gid, groups: Vec::new() }
    }
}

/// The sessions of a client, by the server that each is with. See the module.
pub(crate) struct Rpc {
    sessions: Sessions<Mds>,
    by_shard: ByShard,
}

impl Deref for Rpc {
    type Target = Sessions<Mds>;

    fn deref(&self) -> &Sessions<Mds> {
        &self.sessions
    }
}

impl Rpc {
    /// Opens the sessions with all servers of the namespace.
    pub async fn open(env: env::Env, config: &ClientConfig) -> Result<Rc<Rpc>, ConnectError> {
        let (sessions, by_shard) = servers::meet(env, config).await?;
        Ok(Rc::new(Rpc { sessions, by_shard }))
    }

    /// Sets where replies and pushes of all servers go.
    pub fn set_events(&self, events: &Rc<dyn Events<Mds>>) {
        self.all().iter().for_each(|session| session.set_events(Rc::downgrade(events)));
    }

    /// Makes a request and waits for its reply; see [`Session::call`].
    pub async fn call(&self, call: Call) -> Result<Rc<Reply>, Fault> {
        match call.ops.first() {
            Some(op) => self.executing(op).call(call).await,
            None => self.home().call(call).await,
        }
    }

    /// As [`Rpc::call`], of a server that the operations do not name. `Unreachable`: the client has
    /// no session with it.
    pub async fn call_at(&self, server: ServerId, call: Call) -> Result<Rc<Reply>, Fault> {
        self.get(server).ok_or(Fault::Unreachable)?.call(call).await
    }

    /// Makes requests of the client itself, one to each server that the operations concern.
    ///
    /// # Errors
    /// As [`Session::call`], the first.
    pub async fn give_back(&self, ops: Vec<Op>) -> Result<(), Fault> {
        let mut parts: BTreeMap<ServerId, Vec<Op>> = BTreeMap::new();
        for op in ops {
            parts.entry(self.executing(&op).server()).or_default().push(op);
        }
        for ops in parts.into_values() {
            self.call(Call::reserved(ops)).await?;
        }
        Ok(())
    }

    /// The session with the server that executes `op`.
    pub fn executing(&self, op: &Op) -> Rc<Session<Mds>> {
        op.executed_at().map_or_else(|| self.home().clone(), |ino| self.of(ino))
    }

    /// The session in which the inode's requests are made.
    pub fn of(&self, ino: Ino) -> Rc<Session<Mds>> {
        // If no server has the shard, the one of the root says what the inode's number means.
        let server = self.by_shard.get(&ino.shard());
        let session = server.and_then(|server| self.get(*server));
        session.unwrap_or_else(|| self.home().clone())
    }

    /// The session with the server to which this name goes in a spread directory.
    pub fn of_name(&self, name: &Name) -> Rc<Session<Mds>> {
        let shards: Vec<ShardId> = self.by_shard.keys().copied().collect();
        let server = self.by_shard.get(&shard_of_name(name, &shards));
        let session = server.and_then(|server| self.get(*server));
        session.unwrap_or_else(|| self.home().clone())
    }

    /// The server to which the inode's requests are sent.
    pub fn server_of(&self, ino: Ino) -> ServerId {
        match self.by_shard.get(&ino.shard()) {
            Some(server) => *server,
            None => self.home().server(),
        }
    }

    /// Does one server have both inodes?
    pub fn is_together(&self, one: Ino, other: Ino) -> bool {
        self.server_of(one) == self.server_of(other)
    }

    /// What the servers offer beside their sessions.
    pub fn offers(&self) -> Vec<Offer> {
        let offer = |session: &Rc<Session<Mds>>| Offer {
            server: session.server(),
            client: session.client(),
            zones: session.offer().1.unwrap_or_default(),
        };
        self.all().iter().map(offer).collect()
    }

    /// Fills in what the sessions know.
    pub fn fill_in(&self, status: &mut ClientStatus) {
        let of_sessions = self.status();
        status.client = of_sessions.client.0;
        status.epoch = of_sessions.epoch.0;
        status.connected = of_sessions.connected;
        status.requests = self.order();
        status.in_flight = of_sessions.in_flight;
        status.replay = of_sessions.replay;
        status.evictions = of_sessions.evictions;
    }
}

/// Changes that were answered, and were lost with the session and the server that had answered
/// them.
#[derive(Default)]
pub(crate) struct LostChanges {
    /// Files with lost commits.
    pub committed: Vec<Ino>,
    /// Inodes whose creation was lost.
    pub created: Vec<Ino>,
}

impl LostChanges {
    /// What these entries had changed.
    pub fn of(entries: &[ReplayEntry<Mds>]) -> LostChanges {
        let mut lost = LostChanges::default();
        for entry in entries {
            for (op, result) in entry.request.ops.iter().zip(&entry.reply.results) {
                if let Op::Commit { ino, .. } = op {
                    lost.committed.push(*ino);
                }
                if let Ok(reply) = result {
                    lost.created.extend(OpReply::changed(reply).created);
                }
            }
        }
        lost
    }
}
