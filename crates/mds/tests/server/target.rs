//! An object target in the simulated world that keeps a list of objects in memory, and of what it
//! was asked for.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use env::sim::SimWorld;
use env::sync::Notify;
use env::{Env, Stream};
use proto::capability::{Capability, SERVE, TargetKey};
use proto::frame::{Decoder, Received, encode};
use proto::message::{NEW, OBJECT_TARGET, RESUMED};
use proto::ost::{self, Message, Op, OpReply, Ost, Reply, Request, TargetInfo, Welcome};
use types::*;

pub const KEY: [u8; 32] = [3; 32];

/// See the module. What it has outlives its process.
pub struct Target {
    node: String,
    key: TargetKey,
    pub info: RefCell<TargetInfo>,
    clients: RefCell<BTreeMap<ClientId, u64>>,
    /// The last answer in each slot of each client.
    answers: RefCell<BTreeMap<(ClientId, u16), Reply>>,
    pub destroyed: RefCell<Vec<ObjectId>>,
    pub fenced: RefCell<Vec<ClientId>>,
    /// It answers nothing but greetings.
    held: Cell<bool>,
    changed: Notify,
    /// Requests that showed no capability of the metadata server.
    pub refused: Cell<u64>,
}

impl Target {
    /// A target of the file system of the beds, of so many blocks.
    pub fn new(number: u8, blocks: u64) -> Rc<Target> {
        Target::with_key(number, blocks, KEY)
    }

    /// As [`Target::new`], with this key.
    pub fn with_key(number: u8, blocks: u64, key: [u8; 32]) -> Rc<Target> {
        let uuid = Uuid([100 + number; 16]);
        Rc::new(Target {
            node: format!("ost{number}"),
            key: TargetKey::new(key, Uuid([9; 16])),
            info: RefCell::new(TargetInfo { uuid, blocks, free: blocks, checksums: true }),
            clients: RefCell::default(),
            answers: RefCell::default(),
            destroyed: RefCell::default(),
            fenced: RefCell::default(),
            held: Cell::new(false),
            changed: Notify::new(),
            refused: Cell::new(0),
        })
    }

    /// "HOST:PORT".
    pub fn address(&self) -> String {
        format!("{}:1", self.node)
    }

    /// As a data zone is named.
    pub fn path(&self) -> String {
        format!("ost:{}", self.address())
    }

    /// Starts its process.
    pub fn start(self: &Rc<Self>, world: &SimWorld) {
        self.start_at(world, &self.node.clone());
    }

    /// As [`Target::start`], on another node.
    pub fn start_at(self: &Rc<Self>, world: &SimWorld, node: &str) {
        let (env, target) = (world.node(node), self.clone());
        let address = format!("{node}:1");
        env.clone().spawn(async move {
            let listener = env.listen(&address).await.unwrap();
            while let Ok(stream) = listener.accept().await {
                env.spawn(target.clone().serve(env.clone(), stream));
            }
        });
    }

    /// Kills its process.
    pub fn kill(&self, world: &SimWorld) {
        world.kill(&self.node);
    }

    /// It answers nothing from now on, or everything that was asked.
    pub fn hold(&self, held: bool) {
        self.held.set(held);
        self.changed.notify_all();
    }

    /// Is the capability genuine?
    pub fn accepts(&self, may: &Capability) -> bool {
        self.key.is_genuine(may)
    }

    async fn serve(self: Rc<Self>, env: Env, stream: Stream) {
        let mut decoder = Decoder::<Ost>::new();
        let Some(Message::Hello { hello }) = receive(&stream, &mut decoder).await else { return };
        let known = self.clients.borrow().get(&hello.client) == Some(&hello.nonce);
        let client = match known {
            true => hello.client,
            false => ClientId(self.clients.borrow().len() as u64 + 1),
        };
        self.clients.borrow_mut().insert(client, hello.nonce);
        let welcome = Welcome {
            version: ost::VERSION,
            features: 0,
            server: ServerId(0),
            role: OBJECT_TARGET,
            map: 0,
            fs_uuid: Uuid([9; 16]),
            client,
            epoch: Epoch(1),
            state: if known { RESUMED } else { NEW },
            survived: Transno::ZERO,
            lease_ms: 30_000,
            slots: 8,
            offer: self.info.borrow().clone(),
            time: Timestamp::default(),
        };
        send(&stream, &Message::Welcome { welcome }).await;
        while let Some(message) = receive(&stream, &mut decoder).await {
            let Message::Request { request } = message else { return };
            env.spawn(self.clone().answer(stream.clone(), client, request));
        }
    }

    async fn answer(self: Rc<Self>, stream: Stream, client: ClientId, request: Request) {
        loop {
            let changed = self.changed.notified();
            if !self.held.get() || request.ops.iter().all(|op| matches!(op, Op::Renew {})) {
                break;
            }
            changed.await;
        }
        let (slot, seq) = (request.slot, request.seq);
        let before = self.answers.borrow().get(&(client, slot)).cloned();
        if let Some(reply) = before.filter(|reply| reply.seq == seq) {
            return send(&stream, &Message::Reply { reply }).await;
        }
        let results = request.ops.iter().map(|op| self.execute(op)).collect();
        let (transno, last_committed) = (Transno::ZERO, Transno::ZERO);
        let reply = Reply { slot, seq, transno, last_committed, waited: 0, load: 0, results };
        self.answers.borrow_mut().insert((client, slot), reply.clone());
        send(&stream, &Message::Reply { reply }).await;
    }

    fn execute(&self, op: &Op) -> Result<OpReply, Fault> {
        if let Some(may) = op.capability()
            && !(self.key.is_genuine(may) && may.rights == SERVE)
        {
            self.refused.set(self.refused.get() + 1);
            return Err(Fault::AccessDenied);
        }
        match op {
            Op::Destroy { objects, .. } => self.destroyed.borrow_mut().extend(objects),
            Op::Fence { client, .. } => self.fenced.borrow_mut().push(*client),
            Op::Statfs {} => return Ok(OpReply::Target { info: self.info.borrow().clone() }),
            Op::Renew {} | Op::Recovered {} | Op::Goodbye {} | Op::Sync {} | Op::Admit { .. } => {}
            _ => return Err(Fault::Unsupported),
        }
        Ok(OpReply::Done {})
    }
}

async fn send(stream: &Stream, message: &Message) {
    let mut bytes = Vec::new();
    encode(message, &mut bytes);
    let _ = stream.write_all(bytes).await;
}

async fn receive(stream: &Stream, decoder: &mut Decoder<Ost>) -> Option<Message> {
    loop {
        match decoder.next() {
            Ok(Some(Received::Message(message))) => return Some(message),
            Ok(Some(_)) | Err(_) => return None,
            Ok(None) => {}
        }
        let (read, bytes) = stream.read(decoder.lend(), 64 << 10).await;
        decoder.restore(bytes);
        read.ok().filter(|read| *read > 0)?;
    }
}
