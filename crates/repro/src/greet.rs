//! Many clients at one metadata server: what a session takes, and what it costs to greet all of
//! them after a restart.
//!
//! Invariants:
//! - the server is a process of its own, the one that users run: sessions, leases, a store on its
//!   production disk, and real sockets. The clients live in this process;
//! - each client makes files and holds them, as mounts hold what they work on; the server is
//!   killed, and its successor hears of each client what it holds, and what may be lost;
//! - before that it may make files that nobody holds, which fill the log that the successor reads;
//! - processor time is all that the successor's process used from its start until the last client
//!   is done, kernel included: opening the store, redo of the log, reading the known clients;
//! - a process may have fewer open files than clients; then the others greet, make their file and
//!   part: a session outlives its connection.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;

use channel::{Allowed, Entry, Mode, Role, SecretKey, SecretKeys, Squash};
use env::sync::Semaphore;
use env::{DriverKind, Env};
use mds::{Config, Mds};
use mfs::{Mfs, OpenOptions, SlotSize};
use proto::frame::{Decoder, Received, encode};
use proto::mds::{
    CLIENT, HeldLease, Hello, Message, NewNode, Op, OpReply, Principal, Push, RECOVERED, Replay,
    Reply, Request, Welcome,
};
use serde::Serialize;
use session::Link;
use session::client::{ClientKeys, secure};
use session::server::{KeyFiles, ServerKeys};
use types::limits::RESERVED_SLOTS;
use types::{ClientId, Duration, FileKind, Ino, Rights, Transno};

use crate::alone::{Image, NAME, directories};
use crate::layouts::bed::broken;
use crate::layouts::caller::name;
use bench::{BenchError, Res, failed};

/// Bytes that a client asks of its socket at once.
const READ: usize = 4 << 10;
/// Greetings under way.
const AT_ONCE: usize = 256;
/// Descriptors of a process for other things than clients.
const OTHER_FILES: u64 = 200;
/// Bytes of the usual log.
const LOG: u64 = 64 << 20;
/// Operations of a request that fills the log.
const FILL_AT_ONCE: u64 = 16;
/// Lease of the clients: nobody renews it, so it has to last.
const LEASE: Duration = Duration::from_secs(600);
/// What each client wants to hold of its file.
const WANT: Rights = Rights::ATTR.union(Rights::OPEN).union(Rights::DATA_X);

/// A measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where the file is made.
    pub dir: PathBuf,
    /// Clients.
    pub clients: u64,
    /// This program.
    pub program: PathBuf,
    /// They connect by TCP, prove a key, and encrypt.
    pub keys: bool,
    /// Files that each holds open.
    pub files: u64,
    /// Files that are made before, by all clients together, and held by nobody.
    pub fill: u64,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Bytes of the server's cache. When it is full of changes, the log is read no more.
    pub cache_bytes: u64,
}

impl Plan {
    /// A measurement with one file for each client, and a log that stays nearly empty.
    pub fn usual(dir: &Path, program: &Path, clients: u64) -> Plan {
        Plan {
            dir: dir.to_owned(),
            clients,
            program: program.to_owned(),
            keys: false,
            files: 1,
            fill: 0,
            log_bytes: LOG,
            cache_bytes: OpenOptions::default().cache_bytes as u64,
        }
    }

    fn made(&self) -> u64 {
        self.clients * self.files + self.fill
    }
}

/// The result.
#[derive(Clone, Copy, Default, Serialize, Debug)]
pub struct Found {
    /// Clients with a session at once.
    pub clients: u64,
    /// Of these, with a connection.
    pub connected: u64,
    /// Resident bytes of the server without clients.
    pub empty_bytes: u64,
    /// With all of them.
    pub full_bytes: u64,
    /// Seconds of processor time in which the first server enrolled all clients.
    pub enrolled: f64,
    /// Clients that greeted the second server, and were connected at once.
    pub greeted: u64,
    /// Seconds of processor time of the second server, from its start until grace was over.
    pub processor: f64,
    /// Of these, until it listened.
    pub started: f64,
    /// Seconds by the clock from the first greeting until grace was over.
    pub seconds: f64,
    /// Files that are held open.
    pub held: u64,
    /// Bytes of the log in use when the first server was killed.
    pub log_used: u64,
    /// Seconds by the clock from the start of the second server until grace was over.
    pub takeover: f64,
}

impl Found {
    /// For programs.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// For people.
    pub fn text(&self) -> String {
        let each = (self.full_bytes.saturating_sub(self.empty_bytes)) as f64 / self.clients as f64;
        format!(
            "{} sessions at once, {} of them connected: {:.1} KiB of the server each ({} MiB with all, {} MiB \
             without); {:.2} s of its processor to enrol them\n{} clients greet a restarted server and recover: \
             {:.2} s of its processor, {:.2} s of them before it listens; {:.2} s by the clock\n\
             from its start to service with {} open files and {} MiB of log: {:.2} s\n",
            self.clients,
            self.connected,
            each / 1024.0,
            self.full_bytes >> 20,
            self.empty_bytes >> 20,
            self.enrolled,
            self.greeted,
            self.processor,
            self.started,
            self.seconds,
            self.held,
            self.log_used >> 20,
            self.takeover
        )
    }
}

/// Measures.
///
/// # Errors
/// The file, the store, the server or a connection to it.
pub fn measure(plan: &Plan) -> Res<Found> {
    let files = 8 * plan.clients + 2 * plan.made();
    let image = Image::make(&plan.dir, "greet", plan.log_bytes, files, SlotSize::default())?;
    let (format, count) = (image.format(), plan.clients);
    let dirs = image.staged(|env, disk| async move {
        let wrong = |error| broken("making the file system", &error);
        Mfs::format(&env, &disk, &format).await.map_err(wrong)?;
        let mfs = Mfs::open(&env, &disk, OpenOptions::default()).await.map_err(wrong)?;
        let dirs = directories(&env, &mfs, count).await?;
        mfs.close().await.map_err(wrong)?;
        Ok(dirs)
    })?;
    let connected = env::raise_open_files().saturating_sub(OTHER_FILES).min(plan.clients);
    let (plan, path) = (plan.clone(), image.path().to_owned());
    let ran = env::run(DriverKind::Auto, |env| async move {
        run(&env, &plan, &path, (dirs, connected)).await
    });
    ran.map_err(|error| BenchError(format!("running the clients: {error}"))).flatten()
}

async fn run(
    env: &Env,
    plan: &Plan,
    image: &Path,
    (dirs, connected): (Vec<Ino>, u64),
) -> Res<Found> {
    let clients = dirs.len() as u64;
    let server = |listen: &str| {
        let shape = (LEASE, plan.keys, Some(plan.cache_bytes));
        Server::start(&plan.program, image, listen, shape)
    };
    let first = server("127.0.0.1:0")?;
    let address = Address { text: first.address.as_str().into(), keys: plan.keys };
    let (empty_bytes, begun) = (first.resident()?, first.processor()?);
    let files = (plan.fill / clients, plan.files);
    let enrol = dirs.into_iter().map(|dir| Peer::enrol(env.clone(), address.clone(), dir, files));
    let mut peers = together(env, enrol, connected).await?;
    let (full_bytes, enrolled) = (first.resident()?, first.processor()? - begun);
    let log_used = peers[0].log_used().await?;
    drop(first);
    let restarted = env.now();
    let second = server(&address.text)?;
    let (started, clock) = (second.processor()?, env.now());
    let recover = peers.into_iter().map(|peer| peer.recover(env.clone(), address.clone()));
    let mut peers = together(env, recover, connected).await?;
    // It is served when grace is over.
    let ino = peers[0].held[0].ino;
    peers[0].ask(0, vec![Op::GetAttr { ino, want: Rights::empty() }], None).await?;
    let (processor, seconds) = (second.processor()?, env.now().since(clock).as_secs_f64());
    let takeover = env.now().since(restarted).as_secs_f64();
    Ok(Found {
        clients,
        connected,
        empty_bytes,
        full_bytes,
        enrolled,
        greeted: peers.len() as u64,
        processor,
        started,
        seconds,
        held: peers.iter().map(|peer| peer.held.len() as u64).sum(),
        log_used,
        takeover,
    })
}

/// Runs all of these, some at once. All but the first `connected` part at the end.
async fn together<F: Future<Output = Res<Peer>> + 'static>(
    env: &Env,
    all: impl Iterator<Item = F>,
    connected: u64,
) -> Res<Vec<Peer>> {
    let permits = Semaphore::new(AT_ONCE);
    let mut tasks = Vec::new();
    for (n, one) in (0..).zip(all) {
        let permit = permits.acquire(1).await;
        tasks.push(env.spawn_join(async move {
            let mut peer = one.await?;
            if n >= connected {
                peer.line = None;
            }
            drop(permit);
            Ok(peer)
        }));
    }
    let mut peers = Vec::new();
    for task in tasks {
        peers.push(task.await?);
    }
    Ok(peers)
}

/// Where the server is, and whether it asks for keys.
#[derive(Clone)]
struct Address {
    text: Rc<str>,
    keys: bool,
}

/// The keys of the server and of all clients. They are those of nobody else.
fn secrets() -> [SecretKey; 2] {
    [SecretKey::new([1; 32]), SecretKey::new([2; 32])]
}

/// A client.
struct Peer {
    line: Option<(Link, Decoder)>,
    client: ClientId,
    nonce: u64,
    /// Its ordinary slots.
    slots: u16,
    /// The number of the next request in each slot that it uses.
    next: BTreeMap<u16, u32>,
    held: Vec<HeldLease>,
    /// Requests that may not be durable yet, and the answers.
    made: VecDeque<(Request, Reply)>,
    /// The newest change of its own.
    seen: Transno,
}

impl Peer {
    /// A new client makes files: some that it does not hold, and some that it does.
    async fn enrol(env: Env, address: Address, dir: Ino, (fill, files): (u64, u64)) -> Res<Peer> {
        let mut peer = Peer {
            line: None,
            client: ClientId(0),
            nonce: env.random_u64(),
            slots: 0,
            next: BTreeMap::new(),
            held: Vec::new(),
            made: VecDeque::new(),
            seen: Transno::ZERO,
        };
        peer.greet(&env, &address).await?;
        let create = |text: String, want| {
            let node = NewNode::plain(FileKind::Regular, 0o644, 0o022);
            Op::Create { dir, name: name(&text).expect("a valid name"), node, want }
        };
        for from in (0..fill).step_by(FILL_AT_ONCE as usize) {
            let numbers = from..fill.min(from + FILL_AT_ONCE);
            let ops = numbers.map(|n| create(format!("fill{n}"), Rights::empty())).collect();
            peer.change(ops).await?;
        }
        for n in 0..files {
            let reply = peer.change(vec![create(format!("file{n}"), WANT)]).await?;
            let [Ok(OpReply::Created { leased, .. })] = &reply.results[..] else {
                return failed("making a file", format!("the server answered {reply:?}"));
            };
            let (ino, rights) = (leased.attr.ino, leased.rights);
            peer.held.push(HeldLease { ino, rights, open: true, ranges: Vec::new() });
        }
        Ok(peer)
    }

    /// Asks for changes, and keeps the request until it is durable.
    async fn change(&mut self, ops: Vec<Op>) -> Res<Reply> {
        let (request, reply) = self.ask(0, ops, None).await?;
        self.seen = reply.transno;
        self.made.push_back((request, reply.clone()));
        self.forget(reply.last_committed);
        Ok(reply)
    }

    /// Changes up to `durable` need no replay.
    fn forget(&mut self, durable: Transno) {
        while self.made.front().is_some_and(|(_, reply)| reply.transno <= durable) {
            self.made.pop_front();
        }
    }

    /// The server has restarted: says what it holds, and what was not durable.
    async fn recover(mut self, env: Env, address: Address) -> Res<Peer> {
        let welcome = self.greet(&env, &address).await?;
        if welcome.state != RECOVERED {
            return failed("greeting the restarted server", format!("{welcome:?}"));
        }
        let last = self.slots + RESERVED_SLOTS - 1;
        let leases = self.held.clone();
        self.ask(last, vec![Op::Reclaim { leases, locks: Vec::new() }], None).await?;
        self.forget(welcome.survived);
        for (mut request, reply) in std::mem::take(&mut self.made) {
            request.replay = Some(Replay { transno: reply.transno, results: reply.results });
            self.send(&Message::Request { request }).await?;
            self.reply().await?;
        }
        self.ask(last, vec![Op::ReclaimDone {}], None).await?;
        Ok(self)
    }

    async fn greet(&mut self, env: &Env, address: &Address) -> Res<Welcome> {
        let near = |_| !address.keys;
        let stream = env.connect_as(&address.text, near).await.map_err(|error| lost(&error))?;
        let link = match address.keys {
            false => stream.into(),
            true => {
                let [server, secret] = secrets();
                let servers = vec![server.public()];
                let keys = ClientKeys { mode: Mode::Encrypted, secret, servers };
                let secured = secure(env, stream, &keys).await;
                secured.map_err(|text| BenchError(format!("proving a key: {text}")))?
            }
        };
        self.line = Some((link, Decoder::new()));
        let hello = Hello {
            client: self.client,
            nonce: self.nonce,
            seen: self.seen,
            ..Hello::new::<proto::mds::Mds>(CLIENT, NAME, "repro greet")
        };
        self.send(&Message::Hello { hello }).await?;
        match self.next().await? {
            Message::Welcome { welcome } => {
                (self.client, self.slots) = (welcome.client, welcome.slots);
                Ok(welcome)
            }
            Message::Refused { refused } => failed("greeting the server", refused.text),
            other => failed("greeting the server", format!("it sent {other:?}")),
        }
    }

    /// Bytes of the log that are in use.
    async fn log_used(&mut self) -> Res<u64> {
        let last = self.slots + RESERVED_SLOTS - 1;
        let (_, reply) = self.ask(last, vec![Op::Status {}], None).await?;
        let [Ok(OpReply::Text { text })] = &reply.results[..] else {
            return failed("asking for the status", format!("the server answered {reply:?}"));
        };
        let status: serde_json::Value = serde_json::from_str(text)
            .map_err(|error| BenchError(format!("the server's status: {error}")))?;
        Ok(status["log_used"].as_u64().unwrap_or(0))
    }

    /// Asks for operations; returns the request, and its answer.
    async fn ask(
        &mut self,
        slot: u16,
        ops: Vec<Op>,
        replay: Option<Replay>,
    ) -> Res<(Request, Reply)> {
        let next = self.next.entry(slot).or_default();
        *next += 1;
        let request = Request {
            slot,
            seq: *next,
            principal: Principal { uid: 0, gid: 0, groups: Vec::new() },
            sync: false,
            replay,
            ops,
        };
        self.send(&Message::Request { request: request.clone() }).await?;
        Ok((request, self.reply().await?))
    }

    async fn reply(&mut self) -> Res<Reply> {
        loop {
            match self.next().await? {
                Message::Reply { reply } if reply.results.iter().all(Result::is_ok) => {
                    return Ok(reply);
                }
                Message::Push { push: Push::Committed { transno } } => self.forget(transno),
                other => return failed("asking the server", format!("it sent {other:?}")),
            }
        }
    }

    fn line(&mut self) -> Res<&mut (Link, Decoder)> {
        self.line.as_mut().ok_or_else(|| BenchError("a client has no connection".into()))
    }

    async fn send(&mut self, message: &Message) -> Res<()> {
        let mut bytes = Vec::new();
        encode(message, &mut bytes);
        let (sent, _) = self.line()?.0.write_all(bytes).await;
        sent.map_err(|error| lost(&error))
    }

    async fn next(&mut self) -> Res<Message> {
        let (stream, decoder) = self.line()?;
        loop {
            match decoder.next() {
                Ok(Some(Received::Message(message))) => return Ok(message),
                Ok(None) => {}
                other => return failed("reading an answer", format!("{other:?}")),
            }
            let (read, bytes) = stream.read(decoder.lend_within(READ), READ).await;
            decoder.restore(bytes);
            if read.map_err(|error| lost(&error))? == 0 {
                return Err(lost(&std::io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }
}

fn lost(error: &std::io::Error) -> BenchError {
    BenchError(format!("a connection to the server: {error}"))
}

/// A server in a process of its own, which is killed with this value.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
}

impl Server {
    pub(crate) fn start(
        program: &Path,
        image: &Path,
        listen: &str,
        (lease, keys, cache): (Duration, bool, Option<u64>),
    ) -> Res<Server> {
        let wrong = |error: std::io::Error| BenchError(format!("starting the server: {error}"));
        let mut command = Command::new(program);
        command.args(["bench", "server"]).arg(image).arg(listen).arg(lease.as_secs().to_string());
        command.args(keys.then_some("--keys"));
        command.args(cache.map(|bytes| format!("--cache={bytes}")));
        // It ends when this process has, and closed the pipe.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(wrong)?;
        let (mut said, out) = (String::new(), child.stdout.take());
        let mut server = Server { child, address: String::new() };
        let out = out.ok_or_else(|| BenchError("the server has no output".into()))?;
        BufReader::new(out).read_line(&mut said).map_err(wrong)?;
        if said.trim().is_empty() {
            return failed("starting the server", "it ended");
        }
        said.trim().clone_into(&mut server.address);
        Ok(server)
    }

    /// Its process.
    pub(crate) fn child(&self) -> &Child {
        &self.child
    }

    /// A file of `/proc` about it.
    fn about(&self, file: &str) -> Res<String> {
        let path = format!("/proc/{}/{file}", self.child.id());
        std::fs::read_to_string(&path).map_err(|error| BenchError(format!("{path}: {error}")))
    }

    /// Bytes in memory.
    fn resident(&self) -> Res<u64> {
        let status = self.about("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        kib.map(|kib| kib << 10).ok_or_else(|| BenchError("the server has no VmRSS".into()))
    }

    /// Seconds of processor time that its threads have used.
    fn processor(&self) -> Res<f64> {
        let stat = self.about("stat")?;
        // The name, in parentheses, may contain spaces.
        let rest = stat.rsplit(')').next().unwrap_or_default();
        let ticks = |at: usize| rest.split_whitespace().nth(at)?.parse::<u64>().ok();
        let both = ticks(11).zip(ticks(12));
        let (user, kernel) = both.ok_or_else(|| BenchError("the server has no times".into()))?;
        // SAFETY: takes no pointers.
        let each_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
        Ok((user + kernel) as f64 / each_second as f64)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        bench::process::kill(&mut self.child);
    }
}

/// From here on the process ends with its input.
pub(crate) fn end_with_input() {
    std::thread::spawn(|| {
        let mut byte = [0];
        while !matches!(std::io::stdin().read(&mut byte), Ok(0) | Err(_)) {}
        std::process::exit(0);
    });
}

/// Is the server of a measurement: serves the store in `image`, says where, and ends with its
/// input.
///
/// # Errors
/// Those of the store and the server.
pub fn serve(
    image: &Path,
    listen: &str,
    (lease, keys, cache): (Duration, bool, Option<usize>),
) -> Res<()> {
    env::raise_open_files();
    end_with_input();
    let (path, listen) = (image.display().to_string(), listen.to_owned());
    let ran = env::run(DriverKind::Auto, |env| async move {
        let options = env::DiskOptions { write: true, exclusive: false };
        let disk = env.open_disk(&path, options).await;
        let disk = disk.map_err(|error| BenchError(format!("{path}: {error}")))?;
        let usual = OpenOptions::default();
        let cache_bytes = cache.unwrap_or(usual.cache_bytes);
        let mfs = Mfs::open(&env, &disk, OpenOptions { cache_bytes, ..usual }).await;
        let mfs = mfs.map_err(|error| broken("opening the store", &error))?;
        let stopped = |error: mds::ServeError| BenchError(format!("the metadata server: {error}"));
        let log: mds::Log = Rc::new(bench::tell);
        let usual = Config { lease, validate: false, log, ..Config::new(NAME, &listen) };
        let config = Config { keys: keys.then(server_keys), ..usual };
        let server = Mds::start(env.clone(), mfs, config).await.map_err(stopped)?;
        let said = writeln!(std::io::stdout(), "{}", server.address());
        said.map_err(|error| BenchError(format!("saying the address: {error}")))?;
        server.run(std::future::pending()).await.map_err(stopped)
    });
    ran.map_err(|error| BenchError(format!("running the server: {error}"))).flatten()
}

/// The keys that a server of a measurement asks for.
fn server_keys() -> ServerKeys {
    let read = std::cell::Cell::new(false);
    let ring = || {
        let [server, client] = secrets();
        let (key, name, role) = (client.public(), "client".to_owned(), Role::Client);
        let line = Entry { key, name, role, squash: Squash::Off, revoked: false }.to_string();
        let allowed = Allowed::parse(&line).map_err(|error| error.to_string());
        KeyFiles { secrets: Ok(SecretKeys::only(server)), allowed }
    };
    let read = move || (!read.replace(true)).then(ring);
    let half_open_max = types::limits::HALF_OPEN_MAX;
    ServerKeys { least: Mode::Encrypted, half_open_max, read: Rc::new(read) }
}
