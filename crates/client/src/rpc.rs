//! The client's requests to the metadata servers.
//!
//! A session with one server is the crate `session`'s. Here is what is the client's own: which
//! server a request goes to.
//!
//! Invariants:
//! - a request goes to the server of the shard that its first inode was born in, one without an
//!   inode to the server that the client met first;
//! - all inodes of one request belong to one server: an operation over two does not exist yet.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::rc::Rc;

use proto::mds::{Mds, Op, OpReply, Principal, Reply};
use session::client::{Config, ReplayEntry, Session, Sessions, Shared};
use types::{Fault, Ino, ServerId};

use crate::api::{Caller, ClientConfig, ClientStatus, ConnectError};
pub(crate) use session::client::{Events, done, result};

/// A request to a metadata server.
pub(crate) type Call = session::client::Call<Mds>;

impl From<&Caller> for Principal {
    fn from(caller: &Caller) -> Principal {
        Principal { uid: caller.uid, gid: caller.gid, groups: Vec::new() }
    }
}

/// The sessions of a client, by the server that each is with. See the module.
pub(crate) struct Rpc(Sessions<Mds>);

impl Deref for Rpc {
    type Target = Sessions<Mds>;

    fn deref(&self) -> &Sessions<Mds> {
        &self.0
    }
}

impl Rpc {
    /// Opens the session with the server that the client meets first.
    pub async fn open(env: env::Env, config: &ClientConfig) -> Result<Rc<Rpc>, ConnectError> {
        let shared = Rc::<Shared>::default();
        let session = Session::open(env, session_config(config), shared.clone()).await?;
        Ok(Rc::new(Rpc(Sessions::new(session, shared))))
    }

    /// Makes a request and waits for its reply; see [`Session::call`].
    pub async fn call(&self, call: Call) -> Result<Rc<Reply>, Fault> {
        match call.ops.first().and_then(Op::executed_at) {
            Some(ino) => self.of(ino).call(call).await,
            None => self.home().call(call).await,
        }
    }

    /// Makes requests of the client itself, one to each server that the operations concern.
    ///
    /// # Errors
    /// As [`Session::call`], the first.
    pub async fn give_back(&self, ops: Vec<Op>) -> Result<(), Fault> {
        let mut parts: BTreeMap<ServerId, Vec<Op>> = BTreeMap::new();
        for op in ops {
            let server = op.executed_at().map_or(self.home().server(), |ino| self.server_of(ino));
            parts.entry(server).or_default().push(op);
        }
        for ops in parts.into_values() {
            self.call(Call::reserved(ops)).await?;
        }
        Ok(())
    }

    /// The session in which the inode's requests are made.
    pub fn of(&self, ino: Ino) -> Rc<Session<Mds>> {
        // Without a cluster map each shard has the server of its own number. If the client has met
        // none of that number, the first one says what the inode's number means.
        let server = ServerId(u16::from(ino.shard().0));
        self.get(server).unwrap_or_else(|| self.home().clone())
    }

    /// The server to which the inode's requests are sent.
    pub fn server_of(&self, ino: Ino) -> ServerId {
        self.of(ino).server()
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

fn session_config(config: &ClientConfig) -> Config {
    Config {
        description: config.description.clone(),
        lease: config.lease,
        connect_timeout: config.connect_timeout,
        keys: config.keys.clone(),
        kept: config.kept,
        log: config.log.clone(),
        ..Config::new::<Mds>(config.server.clone(), &config.fs_name)
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
