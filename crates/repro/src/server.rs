//! The metadata server by itself, without a network to speak of: what a create costs its processor.
//!
//! Invariants:
//! - the server is the one that users run: sessions, leases, the reply gate, the results that it
//!   keeps, a store on its production disk; what that and its file are, [`alone`](crate::alone)
//!   says;
//! - its clients live in this process, on its thread. They send what a mount sends for each file,
//!   and keep many requests under way, so that a message on the socket between them carries many of
//!   these;
//! - what the clients do is counted with the server: the figure is rather too high than too low.

use std::path::PathBuf;

use env::sync::oneshot;
use env::{Disk, Env, Stream};
use mds::{Config, Mds};
use mfs::{FormatOptions, Mfs, OpenOptions, SlotSize, StoreError};
use proto::frame::{Decoder, Received, encode};
use proto::mds::{
    CLIENT, Hello, Message, NewNode, Op, OpReply, Principal, Push, Reply, Request, Welcome,
};
use serde::Serialize;
use types::{FileKind, Ino, Rights};

use crate::alone::{Clocks, Image, NAME, Took, directories};
use crate::layouts::bed::broken;
use crate::layouts::caller::name;
use bench::{BenchError, Res, failed};

/// Bytes that a client asks of its socket at once.
const READ: usize = 256 << 10;

/// A measurement of the server alone.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where the file is made.
    pub dir: PathBuf,
    /// Files that are made.
    pub files: u64,
    /// Clients that share them, each in a directory of its own.
    pub clients: u64,
    /// Requests that each keeps in flight; as many as a session has slots at most.
    pub in_flight: u16,
    /// Each is durable before it is answered.
    pub durable: bool,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Bytes of the store's cache.
    pub cache_bytes: usize,
    /// Size of directory slots.
    pub slots: SlotSize,
}

/// The result.
#[derive(Clone, Copy, Serialize, Debug)]
pub struct Found {
    /// Files that were made.
    pub files: u64,
    /// By so many clients.
    pub clients: u64,
    /// With so many requests of each under way.
    pub in_flight: u16,
    /// Each was durable before it was answered.
    pub durable: bool,
    /// Making them, until all are durable.
    pub create: Took,
    /// Bytes of the log for each, those of the clients' results included.
    pub log_bytes_each: f64,
}

/// Makes the files.
///
/// # Errors
/// The file, the store or the server.
pub fn measure(plan: &Plan) -> Res<Found> {
    let image = Image::make(&plan.dir, "mds", plan.log_bytes, plan.files, plan.slots)?;
    image.staged(|env, disks| served(env, disks.home, image.format(), plan.clone()))
}

async fn served(env: Env, disk: Disk, format: FormatOptions, plan: Plan) -> Res<Found> {
    let wrong = |error: StoreError| broken("making files", &error);
    Mfs::format(&env, &disk, &format).await.map_err(wrong)?;
    let options = OpenOptions { cache_bytes: plan.cache_bytes, ..OpenOptions::default() };
    let mfs = Mfs::open(&env, &disk, options).await.map_err(wrong)?;
    let dirs = directories(&env, &mfs, plan.clients).await?;
    let stopped = |error: mds::ServeError| BenchError(format!("the metadata server: {error}"));
    let config = Config::new(NAME, "127.0.0.1:0");
    let server = Mds::start(env.clone(), mfs.clone(), config).await.map_err(stopped)?;
    let address = server.address();
    let (stop, stop_requested) = oneshot();
    let serving = env.spawn_join(server.run(async move {
        let _: Option<()> = stop_requested.await;
    }));
    let mut clients = Vec::new();
    for (n, dir) in (0..).zip(dirs) {
        let files = plan.files / plan.clients + u64::from(n < plan.files % plan.clients);
        clients.push(Client::connect(&env, &address, dir, files, &plan).await?);
    }
    let in_flight = clients.iter().map(|client| client.in_flight).min().unwrap_or(0);
    let before = mfs.last_committed().lsn.0;
    let clocks = Clocks::begin(&env);
    let tasks: Vec<_> = clients.into_iter().map(|client| env.spawn_join(client.run())).collect();
    for task in tasks {
        task.await?;
    }
    mfs.sync().await.map_err(wrong)?;
    let create = clocks.took();
    let log = mfs.last_committed().lsn.0 - before;
    stop.send(());
    serving.await.map_err(stopped)?;
    let Plan { files, clients, durable, .. } = plan;
    Ok(Found {
        files,
        clients,
        in_flight,
        durable,
        create,
        log_bytes_each: log as f64 / files as f64,
    })
}

/// A client that makes files in a directory.
struct Client {
    stream: Stream,
    decoder: Decoder,
    dir: Ino,
    durable: bool,
    in_flight: u16,
    /// Files that it is to make, that it asked for, and that were made.
    files: u64,
    asked: u64,
    made: u64,
}

impl Client {
    async fn connect(env: &Env, address: &str, dir: Ino, files: u64, plan: &Plan) -> Res<Client> {
        let stream = env.connect(address).await.map_err(|error| lost(&error))?;
        let (decoder, durable, in_flight) = (Decoder::new(), plan.durable, plan.in_flight);
        let mut client =
            Client { stream, decoder, dir, durable, in_flight, files, asked: 0, made: 0 };
        let hello = Hello {
            nonce: env.random_u64(),
            ..Hello::new::<proto::mds::Mds>(CLIENT, NAME, "repro")
        };
        let mut out = Vec::new();
        encode(&Message::Hello { hello }, &mut out);
        client.send(out).await?;
        match client.next().await? {
            Message::Welcome { welcome: Welcome { slots, .. } } => {
                client.in_flight = in_flight.min(slots);
                Ok(client)
            }
            Message::Refused { refused } => failed("greeting the server", refused.text),
            other => unexpected(&other),
        }
    }

    /// Makes its files.
    async fn run(mut self) -> Res<()> {
        let mut out = Vec::new();
        for slot in 0..self.in_flight {
            self.ask(slot, 1, &mut out);
        }
        while self.made < self.files {
            if !out.is_empty() {
                out = self.send(out).await?;
            }
            let mut next = Some(self.next().await?);
            while let Some(message) = next {
                match message {
                    Message::Reply { reply } => {
                        self.answered(&reply)?;
                        self.ask(reply.slot, reply.seq + 1, &mut out);
                    }
                    Message::Push { push: Push::Committed { .. } } => {}
                    other => return unexpected(&other),
                }
                next = self.there()?;
            }
        }
        Ok(())
    }

    /// Asks for the next file.
    fn ask(&mut self, slot: u16, seq: u32, out: &mut Vec<u8>) {
        if self.asked == self.files {
            return;
        }
        let node = NewNode::plain(FileKind::Regular, 0o644, 0o022);
        let op = Op::Create {
            dir: self.dir,
            name: name(&format!("file.{:08}", self.asked)).expect("a valid name"),
            node,
            want: Rights::ATTR | Rights::OPEN | Rights::DATA_X,
        };
        self.asked += 1;
        let request = Request {
            slot,
            seq,
            principal: Principal { uid: 0, gid: 0, groups: Vec::new() },
            sync: self.durable,
            replay: None,
            ops: vec![op],
        };
        encode(&Message::Request { request }, out);
    }

    fn answered(&mut self, reply: &Reply) -> Res<()> {
        match &reply.results[..] {
            [Ok(OpReply::Created { .. })] => {
                self.made += 1;
                Ok(())
            }
            other => failed("making a file", format!("the server answered {other:?}")),
        }
    }

    /// Sends, and gives the buffer back.
    async fn send(&self, bytes: Vec<u8>) -> Res<Vec<u8>> {
        let (sent, mut bytes) = self.stream.write_all(bytes).await;
        sent.map_err(|error| lost(&error))?;
        bytes.clear();
        Ok(bytes)
    }

    /// The next message.
    async fn next(&mut self) -> Res<Message> {
        loop {
            if let Some(message) = self.there()? {
                return Ok(message);
            }
            let (read, bytes) = self.stream.read(self.decoder.lend(), READ).await;
            self.decoder.restore(bytes);
            if read.map_err(|error| lost(&error))? == 0 {
                return Err(lost(&std::io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// One that was read already.
    fn there(&mut self) -> Res<Option<Message>> {
        match self.decoder.next() {
            Ok(Some(Received::Message(message))) => Ok(Some(message)),
            Ok(None) => Ok(None),
            Ok(Some(unknown)) => failed("reading an answer", format!("{unknown:?}")),
            Err(malformed) => failed("reading an answer", malformed),
        }
    }
}

fn lost(error: &std::io::Error) -> BenchError {
    BenchError(format!("a connection to the server in this process: {error}"))
}

fn unexpected<T>(message: &Message) -> Res<T> {
    failed("talking to the server", format!("it sent {message:?}"))
}

impl Found {
    /// For programs.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// For people.
    pub fn text(&self) -> String {
        let each = |seconds: f64| seconds * 1e6 / self.files as f64;
        format!(
            "{} files by {} clients with {} requests under way each, {}\n{:.2} us of processor for each, clients \
             included; {:.0} a second by the clock; {:.0} bytes of log each\n",
            self.files,
            self.clients,
            self.in_flight,
            if self.durable { "each durable before its answer" } else { "durable later" },
            each(self.create.processor),
            self.files as f64 / self.create.seconds.max(1e-9),
            self.log_bytes_each
        )
    }
}
