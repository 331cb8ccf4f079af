//! The events of a run: what applications, clients, the server and the devices do. Beside them the
//! stream keeps the log lines, and what checkers find broken.
//!
//! Invariants:
//! - a run owns one stream and passes it to its parts when it makes them; two runs share nothing;
//! - every consumer gets each event at the moment at which it happens, before the run goes on. The
//!   world or the history may be locked at that moment;
//! - a consumer may emit further events, but subscribes no other consumer;
//! - each line of the log begins with the position that the history had then;
//! - after [`Events::end`] there are no consumers, so what these hold is freed.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use client::Edited;
use env::sim::DiskEvent;
use mds::{CommittedBlocks, Executed};
use proto::mds::{Op as Asked, Reply};
use types::{ClientId, Ino, PagId, ShardId, Transno};

use crate::call::{Call, Op};
use crate::invariant::Invariant;

/// Most lines kept.
const LINES: usize = 1000;
/// Most violations kept.
const KEPT: usize = 100;

/// What happens in a run.
#[derive(Clone, Copy)]
pub enum Event<'a> {
    /// The history moves to its next position: an application's call begins or ends, or something
    /// else happens that the history records.
    Moved,
    /// A step of the history has ended.
    Ended(&'a Call),
    /// The attached metadata device of a shard takes, completes or fails a request.
    Meta(ShardId, DiskEvent<'a>),
    /// The attached device of a data zone does.
    Data(PagId, DiskEvent<'a>),
    /// Another metadata device of a shard was attached; its content is stable.
    MetaReplaced(ShardId),
    /// The device of a zone (`None`: of the metadata) stalls or is dead for some host, or (`false`)
    /// no longer.
    Troubled(Option<PagId>, bool),
    /// A client says that it lost what was written to a file.
    LostWrites {
        /// The client, as the history numbers it.
        client: usize,
        /// The file.
        ino: Ino,
    },
    /// The target that is this zone has forgotten a client: this run of a node.
    Forgets(PagId, (&'a str, u32)),
    /// The drain of a zone is at this stage.
    Drains(PagId, DrainStage),
    /// Other data devices were attached; their content is stable.
    DataReplaced,
    /// The server with this number of a run of its node is about to open the metadata of a shard.
    Owns(ShardId, u32),
    /// A server has opened the metadata of a shard; its log continues here.
    Opened(ShardId, Transno),
    /// A transaction executed an operation of a client, or a part of it.
    Executed(Executed),
    /// A commit makes the metadata point at blocks.
    Commits(CommittedBlocks<'a>),
    /// The server answers.
    Answers {
        /// Its shard.
        shard: ShardId,
        /// The answer.
        reply: &'a Reply,
        /// Its transaction is to be durable.
        durable: bool,
    },
    /// An operation that the server executes for a client takes effect.
    TookEffect {
        /// The client, as the server numbers it.
        client: ClientId,
        /// The operation.
        asked: &'a Asked,
        /// The transaction, if it changes the metadata.
        transno: Option<Transno>,
    },
    /// The same, for a client of the history.
    Applied {
        /// The client, as the history numbers it.
        client: usize,
        /// The operation.
        asked: &'a Asked,
        /// Where the history has it.
        applied: &'a Applied,
    },
    /// The server evicts a client.
    Evicts(ClientId, Eviction),
    /// The server could not flush an evicted client's writes to a zone: a power cut may lose them.
    Unflushed(ClientId, PagId),
    /// The server of a shard is about to be killed.
    ServerKilled(ShardId),
    /// A client of the history has mounted on this node.
    Mounted {
        /// The client, as the history numbers it.
        client: usize,
        /// The name of the node.
        node: &'a str,
    },
    /// A client of the history has noticed that it lost its session with the server of a shard.
    SessionLost(usize, ShardId),
    /// The running client logs a line.
    ClientLine(&'a str),
    /// The running client edits content.
    Edited(Ino, Edited),
}

/// A stage of a drain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DrainStage {
    /// The administrator is about to set the state of the zone.
    Begins,
    /// A server has called the zone empty; so many servers had started then.
    CalledEmpty(u64),
    /// The empty zone is about to be in service again.
    Resumes,
    /// The zone is in service.
    Ended,
}

/// A stage of an eviction, as the server logs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Eviction {
    /// It begins.
    Begins,
    /// A data device stalls: it may carry out the client's writes later.
    Unflushed,
    /// What the client held is free.
    Completed,
}

/// An operation that the server applied for a client.
pub struct Applied {
    /// Position.
    pub at: u64,
    /// The step that requested it, if one is known.
    pub step: Option<Op>,
    /// The transaction, if it changed the metadata.
    pub transno: Option<Transno>,
    /// The shard whose server did.
    pub shard: ShardId,
}

/// How often checkers read the store of the running server.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Looks {
    /// Successful reads.
    pub seen: u64,
    /// Failed reads, because a block was not cached or was corrupted: then nobody is accused.
    pub unseen: u64,
}

/// A broken invariant, and what broke it.
pub type Broken = (Invariant, String);

/// Takes every event.
pub type Consumer = Box<dyn Fn(Event<'_>)>;

#[derive(Default)]
struct Inner {
    consumers: RefCell<Vec<Consumer>>,
    position: Cell<u64>,
    lines: RefCell<VecDeque<String>>,
    violations: RefCell<Vec<Broken>>,
    looks: Cell<Looks>,
}

/// See the module. Clones are the same stream.
#[derive(Clone, Default)]
pub struct Events(Rc<Inner>);

impl Events {
    /// From here on `consumer` gets every event.
    pub fn subscribe(&self, consumer: Consumer) {
        self.0.consumers.borrow_mut().push(consumer);
    }

    /// This happens now.
    pub fn emit(&self, event: Event<'_>) {
        for consumer in &*self.0.consumers.borrow() {
            consumer(event);
        }
    }

    /// The run has ended: drops all consumers.
    pub fn end(&self) {
        let consumers = self.0.consumers.take();
        drop(consumers);
    }

    /// The history moves to this position.
    pub fn at(&self, position: u64) {
        self.0.position.set(position);
        self.emit(Event::Moved);
    }

    /// The current position of the history.
    pub fn position(&self) -> u64 {
        self.0.position.get()
    }

    /// Logs one line.
    pub fn line(&self, text: &str) {
        let mut lines = self.0.lines.borrow_mut();
        if lines.len() == LINES {
            lines.pop_front();
        }
        lines.push_back(format!("[{}] {text}", self.position()));
    }

    /// Logs one line of the running client.
    pub fn client_line(&self, text: &str) {
        self.line(text);
        self.emit(Event::ClientLine(text));
    }

    /// The newest lines.
    pub fn lines(&self) -> Vec<String> {
        self.0.lines.borrow().iter().cloned().collect()
    }

    /// Records a broken invariant. A repeated text is ignored, so that the log keeps what led to
    /// the first.
    pub fn broken(&self, invariant: Invariant, text: &str) {
        let mut violations = self.0.violations.borrow_mut();
        if violations.len() < KEPT && violations.iter().all(|(_, known)| known != text) {
            violations.push((invariant, text.to_owned()));
            self.line(&format!("violation of {}: {text}", invariant.name()));
        }
    }

    /// The first recorded violation.
    pub fn first_violation(&self) -> Option<Broken> {
        self.0.violations.borrow().first().cloned()
    }

    /// A checker read the store of the running server; `saw`: successfully.
    pub(crate) fn count_look(&self, saw: bool) {
        let Looks { seen, unseen } = self.0.looks.get();
        self.0.looks.set(Looks { seen: seen + u64::from(saw), unseen: unseen + u64::from(!saw) });
    }

    /// How often checkers did.
    pub(crate) fn looks(&self) -> Looks {
        self.0.looks.get()
    }
}
