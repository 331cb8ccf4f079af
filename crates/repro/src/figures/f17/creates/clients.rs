//! Clients that make files, and cache nothing.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use env::Env;
use proto::mds::{Mds, NewNode, Op, OpReply, Push, PushReply, Reply, Request};
use proto::message::Principal;
use proto::placement::shard_of_name;
use session::client::{Call, Config, Events, ReplayEntry, Session, Shared};
use types::{ClientId, Epoch, FileKind, Ino, Name, Rights, ServerId, ShardId};

use crate::shards::{FS, address};
use bench::{Res, failed};

/// What a client wants of a file that it makes and opens.
const OPENED: Rights = Rights::ATTR.union(Rights::OPEN).union(Rights::DATA_X);

/// It gives up what is recalled.
struct Ear {
    env: Env,
    session: RefCell<Weak<Session<Mds>>>,
}

impl Events<Mds> for Ear {
    fn absorb(&self, _: ServerId, _: &Request, _: &Reply, _: u64) {}

    fn push(&self, _: ServerId, push: Push) -> Option<PushReply> {
        let session = self.session.borrow().upgrade();
        if let (Push::Recall { ino, seq, take, .. }, Some(session)) = (push, session) {
            let back = Op::Return { ino, seq, give: take, still_open: false, range: None };
            self.env.spawn(async move { drop(session.call(Call::reserved(vec![back])).await) });
        }
        None
    }

    fn reclaim(&self, _: ServerId, _: Epoch) -> Vec<Op> {
        Vec::new()
    }

    fn names_lost(&self, _: &Op) -> bool {
        false
    }

    fn evicted(&self, _: ServerId, _: ClientId, _: &[ReplayEntry<Mds>]) {}
}

/// One client's sessions with all servers, in the order of their shards.
#[derive(Clone)]
pub struct Sessions(Rc<Vec<AtServer>>);

struct AtServer {
    session: Rc<Session<Mds>>,
    _ear: Rc<Ear>,
}

/// The `nth` file of a client.
///
/// # Errors
/// It is no name.
pub fn name(client: usize, nth: usize) -> Res<Name> {
    let text = format!("out.{client}.{nth}");
    Name::new(text.as_bytes()).or_else(|error| failed("naming a file", format!("{error:?}")))
}

impl Sessions {
    /// Opens those of a client.
    ///
    /// # Errors
    /// A server does not take it.
    pub async fn open(env: Env, servers: u8, number: usize) -> Res<Sessions> {
        let mut all = Vec::new();
        for shard in 0..servers {
            let mut config = Config::new::<Mds>(vec![address(shard)], FS);
            config.description = format!("client {number}");
            let opened = Session::open(env.clone(), config, Rc::<Shared>::default()).await;
            let session = opened.or_else(|error| failed("opening a session", error.text))?;
            let weak = RefCell::new(Rc::downgrade(&session));
            let ear = Rc::new(Ear { env: env.clone(), session: weak });
            let events: Weak<dyn Events<Mds>> = Rc::downgrade(&ear) as _;
            session.set_events(events);
            all.push(AtServer { session, _ear: ear });
        }
        Ok(Sessions(Rc::new(all)))
    }

    /// Makes a file, and opens it.
    ///
    /// # Errors
    /// It is not made.
    pub async fn create(&self, dir: Ino, name: Name) -> Res<()> {
        let shards: Vec<ShardId> = (0..self.0.len() as u8).map(ShardId).collect();
        let chosen = shard_of_name(&name, &shards);
        let node = NewNode::plain(FileKind::Regular, 0o666, 0o022);
        let op = Op::Create { dir, name, node, want: OPENED };
        let caller = Principal { uid: 1000, gid: 1000, groups: Vec::new() };
        let AtServer { session, .. } = &self.0[usize::from(chosen.0)];
        match session.call(Call::one(caller, op)).await.map(|reply| reply.results[0].clone()) {
            Ok(Ok(OpReply::Created { .. })) => Ok(()),
            other => failed("creating", format!("{other:?}")),
        }
    }
}
