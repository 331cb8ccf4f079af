//! Both sides of a session, with a small protocol in a simulated world.
#![allow(missing_docs, reason = "a test program has no users")]

mod bounded;
mod greeting;
mod keys;
mod peer;
mod server;
mod several;
mod timing;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use env::Env;
use env::sim::SimWorld;
use proto::message::{Principal, Reply, Request};
use proto::slots::SlotClass;
use redbud_session::client::{
    Call, Config, ConnectError, Events, ReplayEntry, Session, Shared, result,
};
use types::{ClientId, Duration, Epoch, Fault, ServerId};

use peer::{Ledger, Op, OpReply, Push, PushReply};
use server::Controls;

/// What the client's sessions have reported.
#[derive(Default)]
pub struct Reports {
    pub orders: RefCell<Vec<u64>>,
    pub lost: RefCell<Vec<(ServerId, usize)>>,
    pub reclaims: Cell<u64>,
}

impl Events<Ledger> for Reports {
    fn absorb(&self, _: ServerId, _: &Request<Ledger>, _: &Reply<Ledger>, order: u64) {
        self.orders.borrow_mut().push(order);
    }

    fn push(&self, _: ServerId, push: Push) -> Option<PushReply> {
        match push {
            Push::Ask { id } => Some(PushReply { id }),
            _ => None,
        }
    }

    fn reclaim(&self, server: ServerId, epoch: Epoch) -> Vec<Op> {
        self.reclaims.set(self.reclaims.get() + 1);
        vec![Op::Reclaim { text: format!("of server {server} in epoch {epoch}") }]
    }

    fn names_lost(&self, _: &Op) -> bool {
        false
    }

    fn evicted(&self, server: ServerId, _: ClientId, lost: &[ReplayEntry<Ledger>]) {
        self.lost.borrow_mut().push((server, lost.len()));
    }
}

/// A simulated world, and a client's end in it.
#[derive(Clone)]
pub struct Bed {
    pub world: SimWorld,
    pub env: Env,
    pub log: Rc<RefCell<Vec<String>>>,
    pub reports: Rc<Reports>,
    pub shared: Rc<Shared>,
}

/// Runs a test in the world of `seed`.
pub fn run<F: Future<Output = ()>>(seed: u64, test: impl FnOnce(Bed) -> F) {
    let world = SimWorld::new(seed);
    let inner = world.clone();
    world.run(|_| async move {
        let env = inner.node("client");
        let (log, reports, shared) = (Rc::default(), Rc::default(), Rc::default());
        test(Bed { world: inner, env, log, reports, shared }).await;
    });
}

impl Bed {
    /// The usual configuration of a session with this server.
    pub fn config(&self, server: &Controls) -> Config {
        let log = self.log.clone();
        Config {
            log: Rc::new(move |line| log.borrow_mut().push(line.to_owned())),
            ..Config::new::<Ledger>(vec![server.address()], "books")
        }
    }

    /// Opens a session.
    pub async fn try_open(&self, config: Config) -> Result<Rc<Session<Ledger>>, ConnectError> {
        let session = Session::open(self.env.clone(), config, self.shared.clone()).await?;
        let events: Rc<dyn Events<Ledger>> = self.reports.clone();
        session.set_events(Rc::downgrade(&events));
        Ok(session)
    }

    /// Opens a session with the usual configuration.
    pub async fn open(&self, server: &Controls) -> Rc<Session<Ledger>> {
        self.try_open(self.config(server)).await.unwrap()
    }

    /// Lets time pass.
    pub async fn wait(&self, millis: u64) {
        self.env.sleep(Duration::from_millis(millis)).await;
    }

    /// Has a line of the log these words?
    pub fn has_logged(&self, words: &[&str]) -> bool {
        self.log.borrow().iter().any(|line| words.iter().all(|word| line.contains(word)))
    }
}

/// A request with one operation.
pub fn call(class: SlotClass, op: Op) -> Call<Ledger> {
    let principal = Principal { uid: 0, gid: 0, groups: Vec::new() };
    Call { ops: vec![op], principal, sync: false, class }
}

/// Adds a number; returns its position.
pub async fn add(session: &Session<Ledger>, number: u64) -> Result<u64, Fault> {
    let reply = session.call(call(SlotClass::Ordinary, Op::Add { number })).await?;
    match result(&reply, 0)? {
        OpReply::Position { position } => Ok(*position),
        OpReply::Done {} => Err(Fault::Protocol),
    }
}
