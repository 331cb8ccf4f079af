//! The session with another metadata server, through which this one says what concerns both.
//!
//! Invariants:
//! - a letter is lost only with its session: the machine says again what has no answer. A refusal
//!   it does not say again by itself, so that waits here until the other server is reached;
//! - the machine hears of each start of the other server before a letter goes to it.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use env::sync::Notify;
use proto::mds::{Letter, Mds, Op, Push, PushReply};
use proto::message::{METADATA_SERVER, Principal, Reply, Request};
use proto::slots::SlotClass;
use session::client::{Call, Config, ConnectError, Events, ReplayEntry, Session, Shared};
use types::{ClientId, Duration, Epoch, ServerId, ShardId};

use super::{drive, letter};
use crate::runtime::Runtime;
use crate::server::Server;

/// How long a greeting may take.
const GREETING: Duration = Duration::from_secs(1);
/// Pause between two attempts to reach the other server.
const PAUSE: Duration = Duration::from_millis(200);

/// Refusals that wait at most; of others the machine asks again.
const UNSENT_MAX: usize = 64;

/// See the module.
pub struct Peer {
    shard: ShardId,
    addresses: Vec<String>,
    pub(super) session: RefCell<Option<Rc<Session<Mds>>>>,
    /// It has not answered what it was asked about free space.
    pub(super) is_asked: Cell<bool>,
    stopping: Cell<bool>,
    wake: Notify,
    /// Refusals that could not be sent.
    unsent: RefCell<Vec<Letter>>,
    /// Why it is not reached, as it was last written to the log.
    trouble: RefCell<String>,
}

/// Tells the machine when the other server has started anew.
struct Watch {
    server: Weak<Server>,
    session: RefCell<Weak<Session<Mds>>>,
    shard: ShardId,
}

impl Events<Mds> for Watch {
    fn absorb(&self, _: ServerId, _: &Request<Mds>, _: &Reply<Mds>, _: u64) {}

    fn push(&self, _: ServerId, _: Push) -> Option<PushReply> {
        None
    }

    fn connected(&self, _: ServerId) {
        if let (Some(server), Some(session)) =
            (self.server.upgrade(), self.session.borrow().upgrade())
        {
            drive::reached(&server, self.shard, session.epoch());
        }
    }

    fn reclaim(&self, _: ServerId, _: Epoch) -> Vec<Op> {
        Vec::new()
    }

    fn names_lost(&self, _: &Op) -> bool {
        false
    }

    fn evicted(&self, _: ServerId, _: ClientId, _: &[ReplayEntry<Mds>]) {}
}

impl Peer {
    pub fn new(shard: ShardId, addresses: Vec<String>) -> Peer {
        Peer {
            shard,
            addresses,
            session: RefCell::default(),
            is_asked: Cell::new(false),
            stopping: Cell::new(false),
            wake: Notify::new(),
            unsent: RefCell::default(),
            trouble: RefCell::default(),
        }
    }

    /// Its shard.
    pub fn shard(&self) -> ShardId {
        self.shard
    }

    /// Can the other server be reached, as far as this one knows?
    pub fn is_reached(&self) -> bool {
        self.session.borrow().as_ref().is_some_and(|session| session.is_connected())
    }

    /// Does the server that is reached know this version of the protocol?
    pub fn knows(&self, version: u32) -> bool {
        self.session.borrow().as_ref().is_some_and(|session| session.agreed().0 >= version)
    }

    pub fn stop(&self) {
        self.stopping.set(true);
        if let Some(session) = self.session.borrow_mut().take() {
            session.abandon();
        }
        self.wake.notify_all();
    }

    /// Sends a letter, if the other server can be reached.
    pub fn send(&self, runtime: &Runtime, letter: Letter) {
        let session = self.session.borrow().clone().filter(|session| session.is_connected());
        let Some(session) = session else {
            let mut unsent = self.unsent.borrow_mut();
            if letter::is_refusal(&letter) && unsent.len() < UNSENT_MAX {
                unsent.push(letter);
            }
            return;
        };
        runtime.env.spawn(async move {
            let principal = Principal { uid: 0, gid: 0, groups: Vec::new() };
            let ops = vec![Op::Tell { letters: vec![letter] }];
            let call = Call { ops, principal, sync: false, class: SlotClass::Ordinary };
            // The machine says again what has no answer.
            drop(session.call(call).await);
        });
    }

    /// The server of this epoch is reached: it hears what it has waited for.
    pub fn send_again(&self, runtime: &Runtime, epoch: Epoch) {
        let unsent = self.unsent.take();
        for letter in unsent.into_iter().filter(|letter| letter.to_epoch == epoch) {
            self.send(runtime, letter);
        }
    }

    fn note_trouble(&self, runtime: &Runtime, text: String) {
        if *self.trouble.borrow() != text {
            runtime.log(&format!(
                "metadata server of shard {} ({}) is not reached: {text}",
                self.shard,
                self.addresses.join(", ")
            ));
            *self.trouble.borrow_mut() = text;
        }
    }

    /// Keeps a session with the other server until this one stops.
    async fn keep(&self, server: &Rc<Server>) {
        let runtime = &server.runtime;
        while !self.stopping.get() && !runtime.is_stopping() {
            match open(runtime, self.shard, &self.addresses).await {
                Ok(session) => {
                    self.trouble.borrow_mut().clear();
                    let watch = Rc::new(Watch {
                        server: Rc::downgrade(server),
                        session: RefCell::new(Rc::downgrade(&session)),
                        shard: self.shard,
                    });
                    let events: Weak<dyn Events<Mds>> = Rc::downgrade(&watch) as _;
                    session.set_events(events);
                    *self.session.borrow_mut() = Some(session.clone());
                    drive::reached(server, self.shard, session.epoch());
                    // It connects again by itself; `watch` hears of that.
                    loop {
                        let woken = self.wake.notified();
                        if self.stopping.get() {
                            return session.abandon();
                        }
                        woken.await;
                    }
                }
                Err(ConnectError { text }) => self.note_trouble(runtime, text),
            }
            let woken = self.wake.notified();
            let _ = runtime.env.timeout(PAUSE, woken).await;
        }
    }
}

async fn open(
    runtime: &Runtime,
    shard: ShardId,
    addresses: &[String],
) -> Result<Rc<Session<Mds>>, ConnectError> {
    let mut config = Config::new::<Mds>(addresses.to_vec(), &runtime.identity.name);
    config.role = METADATA_SERVER;
    config.description =
        format!("metadata server of shard {}, epoch {}", runtime.shard, runtime.identity.epoch);
    config.expected.server = ServerId(u16::from(shard.0));
    config.expected.fs_uuid = runtime.identity.uuid;
    config.connect_timeout = GREETING;
    config.keys = runtime.config.target_keys.clone();
    let log = runtime.config.log.clone();
    config.log = Rc::new(move |text| log(&format!("shard {shard}: {text}")));
    Session::open(runtime.env.clone(), config, Rc::new(Shared::default())).await
}

/// Keeps sessions with all other servers until this one stops, and asks the machine what to do
/// with operations that have waited for too long.
pub fn run(server: &Rc<Server>) {
    for peer in server.joint.peers.values() {
        let (peer, server) = (peer.clone(), server.clone());
        server.runtime.env.clone().spawn(async move { peer.keep(&server).await });
    }
    if !server.joint.peers.is_empty() {
        server.runtime.env.spawn(drive::remind(server.clone()));
    }
}
