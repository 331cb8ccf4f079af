//! The client's requests to the metadata servers.
//!
//! A session with one server is the crate `session`'s. Here is what is the client's own: which
//! server a request goes to.
//!
//! Invariants:
//! - a request goes to the server of the inode at which its operation is executed: that of the
//!   shard where the inode is believed to live ([`Homes`]). One without an inode goes to the server
//!   of the root;
//! - a request that a server refuses as [`Fault::Moved`] was not executed. It goes to the server
//!   that has the inode, as a new request;
//! - operations of one request concern one inode, or files, which do not move. So they have one
//!   server after a move, too;
//! - a return goes to the server that has granted what is returned, wherever the inode lives now;
//! - of a new file in a spread directory that is the server that its name chooses. Any other one is
//!   as good: which server makes it is a preference;
//! - all operations of one request are executed by one server. What one of them changes at other
//!   servers, these servers settle among themselves.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::rc::{Rc, Weak};

use env::Env;
use proto::mds::{Mds, Op, OpReply, Principal, Reply};
use proto::placement::shard_of_name;
use proto::slots::SlotClass;
use session::client::{ReplayEntry, Session, Sessions};
use types::{Duration, Fault, Ino, Name, ServerId, ShardId};

use crate::api::{Caller, ClientConfig, ClientStatus, ConnectError};
use crate::boundary::Offer;
use crate::homes::{Homes, Rehomed};
use crate::servers::{self, ByShard};
pub(crate) use session::client::{Events, done, result};

/// How long a request waits, at first, that each of two servers refuses because the other one has
/// the inode: it is just moving. Each further wait is twice as long.
const MOVE_WAIT: Duration = Duration::from_millis(10);

/// A request to a metadata server.
pub(crate) type Call = session::client::Call<Mds>;

impl From<&Caller> for Principal {
    fn from(caller: &Caller) -> Principal {
        Principal { uid: caller.uid, gid: caller.gid, groups: Vec::new() }
    }
}

/// The sessions of a client, by the server that each is with. See the module.
pub(crate) struct Rpc {
    env: Env,
    sessions: Sessions<Mds>,
    by_shard: ByShard,
    homes: Homes,
    /// Who hears of inodes that live elsewhere since.
    rehomed: OnceCell<Weak<dyn Rehomed>>,
}

/// The servers that have refused a request because an inode lives elsewhere, in order.
#[derive(Default)]
pub(crate) struct Refusals(Vec<ServerId>);

impl Deref for Rpc {
    type Target = Sessions<Mds>;

    fn deref(&self) -> &Sessions<Mds> {
        &self.sessions
    }
}

impl Rpc {
    /// Opens the sessions with all servers of the namespace.
    pub async fn open(env: Env, config: &ClientConfig) -> Result<Rc<Rpc>, ConnectError> {
        let (sessions, by_shard) = servers::meet(env.clone(), config).await?;
        let (homes, rehomed) = (Homes::default(), OnceCell::new());
        Ok(Rc::new(Rpc { env, sessions, by_shard, homes, rehomed }))
    }

    /// Sets who hears of inodes that live elsewhere; once.
    pub fn set_rehomed(&self, rehomed: Weak<dyn Rehomed>) {
        let first = self.rehomed.set(rehomed).is_ok();
        assert!(first, "there is one keeper of what was granted");
    }

    /// Sets where replies and pushes of all servers go.
    pub fn set_events(&self, events: &Rc<dyn Events<Mds>>) {
        self.all().iter().for_each(|session| session.set_events(Rc::downgrade(events)));
    }

    /// Makes a request and waits for its reply; see [`Session::call`]. It goes after an inode that
    /// has moved. `Stale`: no server has it.
    pub async fn call(&self, call: Call) -> Result<Rc<Reply>, Fault> {
        if self.is_single() || call.ops.is_empty() {
            return self.home().call(call).await;
        }
        let mut refusals = Refusals::default();
        loop {
            let session = self.executing(&call.ops[0]);
            let reply = session.call(call.clone()).await?;
            if !self.goes_on(&session, &call, &reply, &mut refusals).await? {
                return Ok(reply);
            }
        }
    }

    /// Did the server of `session` refuse the request because an inode lives elsewhere? Then this
    /// finds out where, and the request is to be sent again, to the server that is right now.
    ///
    /// # Errors
    /// `Stale`: so many servers have refused it that none has the inode. As [`Session::call`].
    pub async fn goes_on(
        &self,
        session: &Rc<Session<Mds>>,
        call: &Call,
        reply: &Reply,
        refusals: &mut Refusals,
    ) -> Result<bool, Fault> {
        if result(reply, 0).err() != Some(Fault::Moved) {
            return Ok(false);
        }
        refusals.0.push(session.server());
        if refusals.0.len() > self.all().len() + 2 {
            return Err(Fault::Stale);
        }
        for op in &call.ops {
            if let Some(ino) = op.executed_at() {
                let shard = self.ask_where(session, ino, call.class).await?;
                self.note_home(ino, shard)?;
            }
        }
        let next = call.ops.first().map(|op| self.executing(op).server());
        if next.is_some_and(|next| refusals.0.contains(&next)) {
            let doubled = refusals.0.len().min(8);
            self.env.sleep(MOVE_WAIT * (1 << doubled)).await;
        }
        Ok(true)
    }

    /// Where the server of `session` believes the inode to live.
    async fn ask_where(
        &self,
        session: &Rc<Session<Mds>>,
        ino: Ino,
        class: SlotClass,
    ) -> Result<ShardId, Fault> {
        let asked = Call { class, ..Call::reserved(vec![Op::Where { ino }]) };
        let reply = session.call(asked).await?;
        match result(&reply, 0)? {
            OpReply::Where { shard } => Ok(ShardId(*shard)),
            _ => Err(Fault::Protocol),
        }
    }

    /// The inode lives at `shard`.
    ///
    /// # Errors
    /// `Stale`: no server of the namespace has that shard.
    pub fn note_home(&self, ino: Ino, shard: ShardId) -> Result<(), Fault> {
        if !self.by_shard.contains_key(&shard) {
            return Err(Fault::Stale);
        }
        let rehomed = self.rehomed.get().and_then(Weak::upgrade);
        let is_in_use = |ino| rehomed.as_ref().is_some_and(|rehomed| rehomed.is_in_use(ino));
        let before = self.homes.note(ino, shard, is_in_use);
        if let (Some(before), Some(rehomed)) = (before, &rehomed) {
            rehomed.rehomed(ino, self.server_of_shard(before));
        }
        Ok(())
    }

    /// Makes a request of this server, which the operations do not name, or not any more.
    /// `Unreachable`: the client has no session with it.
    pub async fn call_at(&self, server: ServerId, call: Call) -> Result<Rc<Reply>, Fault> {
        self.get(server).ok_or(Fault::Unreachable)?.call(call).await
    }

    /// Returns rights, in one request to each server that has granted them.
    ///
    /// # Errors
    /// As [`Session::call`], the first.
    pub async fn give_back(&self, ops: Vec<Op>) -> Result<(), Fault> {
        let mut parts: BTreeMap<ServerId, Vec<Op>> = BTreeMap::new();
        for op in ops {
            parts.entry(self.executing(&op).server()).or_default().push(op);
        }
        for (server, ops) in parts {
            self.call_at(server, Call::reserved(ops)).await?;
        }
        Ok(())
    }

    /// The session with the server that executes `op`.
    pub fn executing(&self, op: &Op) -> Rc<Session<Mds>> {
        op.executed_at().map_or_else(|| self.home().clone(), |ino| self.of(ino))
    }

    /// The session in which the inode's requests are made.
    pub fn of(&self, ino: Ino) -> Rc<Session<Mds>> {
        self.get(self.server_of(ino)).unwrap_or_else(|| self.home().clone())
    }

    /// The session with the server of the shard, if there is one.
    pub fn of_shard(&self, shard: ShardId) -> Option<Rc<Session<Mds>>> {
        match self.by_shard.is_empty() {
            true => Some(self.home().clone()).filter(|_| shard == Ino::ROOT.shard()),
            false => self.get(*self.by_shard.get(&shard)?),
        }
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
        self.server_of_shard(self.shard_of(ino))
    }

    /// The shard where the inode is believed to live.
    pub fn shard_of(&self, ino: Ino) -> ShardId {
        self.homes.of(ino)
    }

    /// Has the inode moved between servers?
    pub fn has_moved(&self, ino: Ino) -> bool {
        self.homes.has_moved(ino)
    }

    /// The server that has the shard.
    fn server_of_shard(&self, shard: ShardId) -> ServerId {
        // If there is none, the one of the root says what an inode's number means.
        self.by_shard.get(&shard).copied().unwrap_or_else(|| self.home().server())
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
