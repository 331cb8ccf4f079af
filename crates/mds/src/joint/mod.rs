//! Joint operations: those that change what several shards hold (003).
//!
//! The server that gets a request runs the operation as a plan, which changes nothing and says
//! which [`Part`]s other shards have. It takes its own gates, and `commitment` decides with the
//! workers. COMMITTED is then the operation's ordinary transaction, with the workers' answers.
//!
//! | file | what |
//! |---|---|
//! | `ask` | what a plan asks other shards |
//! | `borrow` | free space of other servers, for one that has none |
//! | `part` | what a worker does, and what it answers |
//! | `job` | an open operation, as it is kept and as the server has it |
//! | `coordinate` | a request that turns out to be joint |
//! | `gather` | others that wait at the same gate, and go with it as a batch |
//! | `bounds` | how much a batch may be |
//! | `guest` | the inode of a file whose name another shard gets |
//! | `drive` | carries out what the machine asks for |
//! | `peer` | the session with another server |
//! | `recover` | after a restart |
//! | `letter` | messages on the wire |
//!
//! Invariants:
//! - the actions of one operation are carried out one after the other, in the machine's order;
//! - before COMMITTED the store has nothing of an operation but its entry, and the orphans that
//!   PREPARED makes of new directories, and STARTED of new files;
//! - its gates are held until the machine frees them, whatever becomes of its request.

mod ask;
mod borrow;
mod bounds;
mod coordinate;
mod drive;
mod gather;
mod guest;
mod job;
mod letter;
mod part;
mod peer;
mod recover;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use commitment::{Counts, Protocol, Site, TxnId};
use env::Env;
use env::sync::{Notify, OneSender};
use types::{ClientId, Duration, HashMap, Ino, ShardId};

use self::ask::Said;
pub use self::ask::{Ask, Known, LenderZone, find_out};
pub use self::borrow::borrow;
pub use self::bounds::BATCH_MAX;
pub use self::coordinate::{Answers, Coordinated, Planned, coordinate};
pub use self::drive::hear;
use self::gather::Candidates;
pub use self::gather::{Candidate, Seat, place};
use self::job::Open;
pub use self::job::{Ending, changed_inodes};
pub use self::part::{
    Answer, Arriving, ArrivingFile, ArrivingName, ArrivingObject, GivenBack, Move, Moved,
    NewDirectory, NewFile, Part,
};
use self::peer::Peer;
pub use self::peer::run;
pub use self::recover::recover;
use crate::runtime::Runtime;

/// How long a part waits at a worker for gates and for clients, before it is refused.
const GATE_PATIENCE: Duration = Duration::from_secs(5);
/// How long a part waits at a gate for an operation that is older. They may wait for each other on
/// two shards: the older one gets both gates.
const OLDER_PATIENCE: Duration = Duration::from_millis(50);
/// How long an operation waits for an answer before the machine is asked what to do.
const ANSWER_PATIENCE: Duration = Duration::from_secs(7);

/// Joint operations as the status shows them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct JointStatus {
    /// How two shards agree.
    pub protocol: &'static str,
    /// Joint operations that are not over for this shard, each a batch.
    pub open: u64,
    /// Operations of clients that it has coordinated to their end since the server started, with
    /// those that a worker has refused to a batch.
    pub operations: u64,
    /// Most operations in a batch.
    pub batch: u64,
    /// What each protocol has cost since the server started.
    pub counts: [(&'static str, Counts); Protocol::ALL.len()],
    /// The other shards, with the epoch of the server that is reached; 0: none is.
    pub peers: Vec<(u8, u32)>,
}

/// All joint operations of this shard. See the module.
pub struct Joint {
    site: RefCell<Site>,
    open: RefCell<BTreeMap<TxnId, Rc<Open>>>,
    peers: BTreeMap<ShardId, Rc<Peer>>,
    /// Notified when operations that a restart has found are decided, and when one is over.
    changed: Notify,
    /// Inodes that joint operations close to readers, and how many do.
    closed: RefCell<HashMap<Ino, usize>>,
    /// Questions to other shards that have no answer yet.
    questions: RefCell<BTreeMap<u64, OneSender<Said>>>,
    /// Questions that were asked.
    asked: Cell<u64>,
    /// Directories that were placed in turn.
    turns: Cell<usize>,
    /// Operations that a batch may take.
    candidates: Candidates,
    /// Operations that were applied, or refused in a batch.
    operations: Cell<u64>,
    protocol: Protocol,
    /// Most operations in a batch.
    batch: usize,
    /// Another server is asked for free space.
    borrowing: Cell<bool>,
    /// That has ended.
    borrowed: Notify,
}

impl Joint {
    /// Those of a server that has found none.
    pub fn new(runtime: &Runtime) -> Joint {
        let (shard, epoch) = (runtime.shard, runtime.identity.epoch);
        let others = runtime.config.servers.iter().flat_map(|server| {
            server.shards.iter().map(|&other| (ShardId(other), server.addresses.clone()))
        });
        let peers = others.filter(|(other, _)| *other != shard);
        Joint {
            site: RefCell::new(Site::new(shard, epoch, runtime.config.guards)),
            open: RefCell::default(),
            closed: RefCell::default(),
            peers: peers.map(|(other, at)| (other, Rc::new(Peer::new(other, at)))).collect(),
            changed: Notify::new(),
            questions: RefCell::default(),
            asked: Cell::new(0),
            turns: Cell::new(0),
            candidates: Candidates::default(),
            operations: Cell::new(0),
            protocol: runtime.config.protocol,
            batch: runtime.config.batch.min(BATCH_MAX),
            borrowing: Cell::new(false),
            borrowed: Notify::new(),
        }
    }

    /// Waits until it is decided what becomes of a joint operation of this request, if there is
    /// one. A restart may have found it, and the client sends the request again.
    pub async fn settled(&self, client: ClientId, slot: u16, seq: u32) {
        let is_of = |open: &Rc<Open>| open.job.borrow().is_of(client, slot, seq);
        loop {
            let changed = self.changed.notified();
            if !self.open.borrow().values().any(|open| is_of(open) && !open.is_decided.get()) {
                return;
            }
            changed.await;
        }
    }

    /// Would a reader see a joint operation half done?
    pub fn is_closed(&self, ino: Ino) -> bool {
        let closed = self.closed.borrow();
        !closed.is_empty() && closed.contains_key(&ino)
    }

    /// From now on nobody reads these inodes, whose gates the operation holds.
    fn close(&self, open: &Open, inos: &[Ino]) {
        let mut closed = self.closed.borrow_mut();
        for &ino in inos {
            *closed.entry(ino).or_default() += 1;
        }
        open.closed.borrow_mut().extend(inos);
    }

    /// Opens what the operation has closed, and its gates.
    fn unlock(&self, open: &Open) {
        let mut closed = self.closed.borrow_mut();
        for ino in open.closed.borrow_mut().drain(..) {
            if let Some(count) = closed.get_mut(&ino) {
                *count -= 1;
                if *count == 0 {
                    closed.remove(&ino);
                }
            }
        }
        open.waited.borrow_mut().gates = None;
        *open.turn.borrow_mut() = None;
        open.wants.borrow_mut().clear();
        *open.made.borrow_mut() = None;
    }

    /// Does an older operation hold the gate of one of these, or wait there?
    fn is_behind_an_older(&self, one: &Rc<Open>, inos: &[Ino]) -> bool {
        let Some(age) = one.job.borrow().age() else { return false };
        let meets = |of: &RefCell<Vec<Ino>>| of.borrow().iter().any(|ino| inos.contains(ino));
        self.open.borrow().values().filter(|it| !Rc::ptr_eq(it, one)).any(|it| {
            let older = it.job.borrow().age().is_some_and(|other| other < age);
            older && (meets(&it.wants) || meets(&it.closed))
        })
    }

    /// May operations that wait go together?
    pub fn gathers(&self) -> bool {
        self.has_peers() && self.batch > 1
    }

    /// Operations that wait for the gate of their directory.
    pub fn candidates(&self) -> &Candidates {
        &self.candidates
    }

    /// So many operations have ended.
    fn count(&self, operations: usize) {
        self.operations.set(self.operations.get() + operations as u64);
    }

    /// Has the namespace other shards?
    pub fn has_peers(&self) -> bool {
        !self.peers.is_empty()
    }

    /// How long a request waits before it asks again for what a shard has refused as busy. Each
    /// time is another one, so that two that refuse each other do not meet again. It grows with the
    /// tries: what is in the way may be waiting for a server that is away.
    pub fn pause(&self, env: &Env, tries: u32) -> Duration {
        Duration::from_millis((10 + env.random_u64() % 100) << tries.min(3))
    }

    /// Is it a shard of this namespace, another than this server's?
    pub fn is_peer(&self, shard: ShardId) -> bool {
        self.peers.contains_key(&shard)
    }

    /// The shard whose turn it is to get a directory; `None`: this server's own.
    pub fn next_in_turn(&self) -> Option<ShardId> {
        let turn = self.turns.get();
        self.turns.set(turn.wrapping_add(1));
        // This shard has the last turn of each round.
        self.peers.keys().nth(turn % (self.peers.len() + 1)).copied()
    }

    /// What the server's status says of it.
    pub fn status(&self) -> JointStatus {
        let site = self.site.borrow();
        JointStatus {
            protocol: self.protocol.name(),
            open: self.open.borrow().len() as u64,
            operations: self.operations.get(),
            batch: self.batch as u64,
            counts: Protocol::ALL.map(|protocol| (protocol.name(), site.counts(protocol))),
            // A server that is not reached has epoch 0.
            peers: self
                .peers
                .keys()
                .map(|&shard| (shard.0, site.reaches(shard).map_or(0, |epoch| epoch.0)))
                .collect(),
        }
    }

    /// The server stops.
    pub fn stop(&self) {
        for peer in self.peers.values() {
            peer.stop();
        }
        self.changed.notify_all();
    }
}
