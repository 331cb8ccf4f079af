//! Does a client tell a server that is gone from one that is slow? Many requests behind a client
//! that is stopped, and then a server that is stopped or cut off.
//!
//! Invariants:
//! - the server and the stopped client are processes of their own, stopped by SIGSTOP; sockets and
//!   sessions are those that mounts use;
//! - a request counts as behind the stopped client only if the server says that it waited for half
//!   of the stop at least;
//! - nothing but a stopped server or a cut path may make a client connect again, and that counts.

mod relay;

use std::cell::{Cell, RefCell};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;

use env::sync::Notify;
use env::{DriverKind, Env};
use mfs::{Mfs, SlotSize};
use proto::mds::{DataAttr, Mds, NewNode, Op, OpReply, Push, PushReply};
use proto::message::{Principal, Reply, Request};
use proto::wire::Bytes;
use serde::Serialize;
use session::client::{Call, Config, Events, ReplayEntry, Session, Shared, Timing};
use types::{ClientId, Duration, Epoch, FileKind, Ino, Rights, ServerId, Timestamp};

use crate::alone::{Image, NAME};
use crate::greet::{Server, end_with_input};
use crate::layouts::bed::broken;
use crate::layouts::caller::name;
use bench::{BenchError, Res, failed};
use relay::Relay;

/// The server's lease: longer than every stop.
const LEASE: Duration = Duration::from_secs(30);
/// Requests of a session that wait at each stop.
const BEHIND: u64 = 48;
/// Requests of a busy session beside them, and the pause after each.
const BESIDE: u64 = 8;
const PAUSE_MS: u64 = 40;
/// A request in so many changes something and waits for the log.
const DURABLE: u64 = 16;
/// How long a stop lasts: most of them, and one in so many.
const STOP_MS: (u64, u64) = (300, 900);
const LONG_STOP_MS: (u64, u64) = (3_000, 8_000);
const LONG: u64 = 40;
/// How long clients work before the server is stopped.
const CALM: Duration = Duration::from_secs(2);
/// Sessions whose path is cut.
const RELAYED: u64 = 4;
/// A wait that no working server reaches.
const LONGEST: Duration = Duration::from_secs(60);
/// How soon a client has to notice.
const NOTICED: f64 = 2.5;

/// A measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where the file is made.
    pub dir: PathBuf,
    /// Requests, of which half wait.
    pub requests: u64,
    /// Sessions.
    pub sessions: u64,
    /// How often the server is stopped, and its path cut.
    pub rounds: u64,
    /// This program.
    pub program: PathBuf,
}

/// The result.
#[derive(Clone, Default, Serialize, Debug)]
pub struct Found {
    /// Requests answered while the client was stopped again and again.
    pub requests: u64,
    /// Of these, behind it.
    pub behind: u64,
    /// Requests whose time was over.
    pub timeouts: u64,
    /// Probes.
    pub probes: u64,
    /// Clients that connected again meanwhile.
    pub reconnections: u64,
    /// Of a hundred requests beside, one takes longer than so many seconds.
    pub p99: f64,
    /// Seconds until the last client had noticed that the server was stopped, in each round.
    pub stopped: Vec<f64>,
    /// The same, that its path was cut.
    pub cut: Vec<f64>,
}

impl Found {
    /// For programs.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// How soon they have to notice, in seconds.
    pub fn bound(&self) -> f64 {
        NOTICED.max(3.0 * self.p99)
    }

    /// For people.
    pub fn text(&self) -> String {
        let met = |good: bool| if good { "met" } else { "MISSED" };
        let list = |all: &[f64]| {
            let all: Vec<String> = all.iter().map(|seconds| format!("{seconds:.2}")).collect();
            all.join(", ")
        };
        let bound = self.bound();
        let soon = |all: &[f64]| met(all.iter().all(|seconds| *seconds <= bound));
        format!(
            "{} requests, {} of them behind a stopped client: {} over their time, {} probes, {} \
             reconnections (0: {})\na stopped server is noticed after {} s ({bound:.2}: {}), a cut \
             path after {} s ({}); p99 of a request {:.1} ms\n",
            self.requests,
            self.behind,
            self.timeouts,
            self.probes,
            self.reconnections,
            met(self.reconnections == 0),
            list(&self.stopped),
            soon(&self.stopped),
            list(&self.cut),
            soon(&self.cut),
            1000.0 * self.p99
        )
    }
}

/// Measures.
///
/// # Errors
/// The file, the store, the processes or a connection.
pub fn measure(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Res<Found> {
    let files = 8 * plan.sessions;
    let image = Image::make(&plan.dir, "timeouts", 64 << 20, files, SlotSize::default())?;
    let format = image.format();
    image.staged(|env, disk| async move {
        let wrong = |error| broken("making the file system", &error);
        Mfs::format(&env, &disk, &format).await.map_err(wrong)
    })?;
    let server = Server::start(&plan.program, image.path(), "127.0.0.1:0", (LEASE, false, None))?;
    let holder = Holder::start(&plan.program, &server.address)?;
    let (plan, address) = (plan.clone(), server.address.clone());
    let said = RefCell::new(progress);
    let (server, holder, said) = (&server, &holder, &said);
    let ran = env::run(DriverKind::Auto, |env| async move {
        let mut bed = Bed::new(env, plan, address, holder.ino).await?;
        let mut found = bed.behind(holder, said).await?;
        (found.p99, found.stopped) = bed.stopped(server).await?;
        found.cut = bed.cut().await?;
        Ok(found)
    });
    ran.map_err(|error| BenchError(format!("running the clients: {error}"))).flatten()
}

/// What the workers share.
#[derive(Default)]
struct Load {
    /// Rises when the holder has been stopped.
    stops: Cell<u64>,
    stopped: Notify,
    ended: Cell<bool>,
    /// Requests at the stopped client that are unanswered.
    waiting: Cell<u64>,
    behind: Cell<u64>,
    beside: Cell<u64>,
    /// Length of the current stop.
    stop: Cell<Duration>,
    /// Seconds of the latest requests beside.
    took: RefCell<Vec<f64>>,
    failure: RefCell<Option<String>>,
}

struct Bed {
    env: Env,
    plan: Plan,
    address: String,
    held: Ino,
    load: Rc<Load>,
    sessions: Vec<Rc<Session<Mds>>>,
}

type Said<'a, 'b> = RefCell<&'a mut (dyn FnMut(&str) + 'b)>;

impl Bed {
    async fn new(env: Env, plan: Plan, address: String, held: Ino) -> Res<Bed> {
        let mut sessions = Vec::new();
        for _ in 0..plan.sessions {
            sessions.push(open(&env, &address, Rc::new(Quiet)).await?);
        }
        Ok(Bed { env, plan, address, held, load: Rc::default(), sessions })
    }

    fn check(&self) -> Res<()> {
        match self.load.failure.borrow().clone() {
            Some(text) => failed("making requests", text),
            None => Ok(()),
        }
    }

    fn sums(&self) -> Timing {
        let mut sum = Timing::default();
        for timing in self.sessions.iter().map(|session| session.timing()) {
            sum.timeouts += timing.timeouts;
            sum.probes += timing.probes;
            sum.reconnections += timing.reconnections;
        }
        sum
    }

    /// Stops the holder again and again, until enough requests have waited for it.
    async fn behind(&self, holder: &Holder, said: &Said<'_, '_>) -> Res<Found> {
        for (n, session) in self.sessions.iter().enumerate() {
            for _ in 0..BEHIND {
                self.env.spawn(wait_behind(session.clone(), self.held, self.load.clone()));
            }
            // The other half of the sessions hears nothing during a stop.
            if n % 2 == 0 {
                self.work(session).await?;
            }
        }
        let half = self.plan.requests / 2;
        let (mut reported, load) = (0, &self.load);
        while load.behind.get() < half || load.beside.get() < self.plan.requests - half {
            let stop = load.stops.get() + 1;
            let (least, most) = if stop % LONG == 0 { LONG_STOP_MS } else { STOP_MS };
            let time = Duration::from_millis(least + self.env.random_u64() % (most - least));
            signal(&holder.child, libc::SIGSTOP);
            wait_stopped(&holder.child)?;
            load.stop.set(time);
            load.stops.set(stop);
            load.stopped.notify_all();
            self.env.sleep(time).await;
            signal(&holder.child, libc::SIGCONT);
            let until = self.env.now() + LONGEST;
            while load.waiting.get() > 0 {
                self.check()?;
                if self.env.now() > until {
                    return failed("waiting for answers", "there were none within a minute");
                }
                self.env.sleep(Duration::from_millis(2)).await;
            }
            if load.behind.get() / 50_000 > reported {
                reported = load.behind.get() / 50_000;
                let counts = (load.behind.get(), load.beside.get());
                (said.borrow_mut())(&format!("{} behind, {} beside", counts.0, counts.1));
            }
        }
        let sums = self.sums();
        Ok(Found {
            requests: load.behind.get() + load.beside.get(),
            behind: load.behind.get(),
            timeouts: sums.timeouts,
            probes: sums.probes,
            reconnections: sums.reconnections,
            ..Found::default()
        })
    }

    /// Workers of a session beside those that wait.
    async fn work(&self, session: &Rc<Session<Mds>>) -> Res<()> {
        let own = make(session, &format!("own{}", session.client()), Rights::empty()).await?;
        for n in 0..BESIDE {
            self.env.spawn(work_beside(session.clone(), own, n, self.load.clone()));
        }
        Ok(())
    }

    /// Stops the server: p99 before that, and how long all sessions took to notice.
    async fn stopped(&mut self, server: &Server) -> Res<(f64, Vec<f64>)> {
        for session in self.sessions.iter().skip(1).step_by(2) {
            self.work(session).await?;
        }
        self.load.took.borrow_mut().clear();
        self.env.sleep(CALM).await;
        let p99 = {
            let mut took = self.load.took.borrow_mut();
            took.sort_by(f64::total_cmp);
            took.get(took.len() * 99 / 100).copied().unwrap_or_default()
        };
        let mut times = Vec::new();
        for _ in 0..self.plan.rounds {
            signal(server.child(), libc::SIGSTOP);
            let noticed = noticed(&self.env, &self.sessions).await;
            signal(server.child(), libc::SIGCONT);
            times.push(noticed?);
            settled(&self.env, &self.sessions).await?;
        }
        self.check()?;
        Ok((p99, times))
    }

    /// Cuts the path of further sessions: how long they took to notice.
    async fn cut(&mut self) -> Res<Vec<f64>> {
        let relay = Relay::start(&self.env, &self.address).await?;
        let mut sessions = Vec::new();
        for _ in 0..RELAYED {
            let session = open(&self.env, relay.address(), Rc::new(Quiet)).await?;
            self.work(&session).await?;
            sessions.push(session);
        }
        let mut times = Vec::new();
        for _ in 0..self.plan.rounds {
            self.env.sleep(CALM).await;
            relay.cut(true);
            let noticed = noticed(&self.env, &sessions).await;
            relay.cut(false);
            times.push(noticed?);
            settled(&self.env, &sessions).await?;
        }
        self.load.ended.set(true);
        self.check()?;
        Ok(times)
    }
}

/// Waits until each of these sessions drops a connection that it has now; the seconds of the last.
async fn noticed(env: &Env, sessions: &[Rc<Session<Mds>>]) -> Res<f64> {
    let begun = env.now();
    let count = |session: &Rc<Session<Mds>>| session.timing().reconnections;
    let before: Vec<u64> = sessions.iter().map(count).collect();
    loop {
        let gone = sessions.iter().zip(&before).all(|(session, before)| count(session) > *before);
        let took = env.now().since(begun);
        if gone {
            return Ok(took.as_secs_f64());
        }
        if took > LONGEST {
            return failed("stopping the server", "not all clients notice within a minute");
        }
        env.sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until all have a connection again, and work for a while.
async fn settled(env: &Env, sessions: &[Rc<Session<Mds>>]) -> Res<()> {
    let until = env.now() + LONGEST;
    while !sessions.iter().all(|session| session.is_connected()) {
        if env.now() > until {
            return failed("connecting again", "not all clients do within a minute");
        }
        env.sleep(Duration::from_millis(5)).await;
    }
    env.sleep(Duration::from_secs(1)).await;
    Ok(())
}

async fn wait_behind(session: Rc<Session<Mds>>, ino: Ino, load: Rc<Load>) {
    let mut seen = load.stops.get();
    while !load.ended.get() {
        let stopped = load.stopped.notified();
        if load.stops.get() == seen {
            stopped.await;
            continue;
        }
        seen = load.stops.get();
        load.waiting.set(load.waiting.get() + 1);
        let op = Op::GetAttr { ino, want: Rights::empty() };
        let answer = session.call(Call::one(root(), op)).await;
        load.waiting.set(load.waiting.get() - 1);
        match answer {
            Ok(reply) if reply.results.iter().all(Result::is_ok) => {
                let waited = Duration::from_micros(reply.waited.into());
                let count = if waited >= load.stop.get() / 2 { &load.behind } else { &load.beside };
                count.set(count.get() + 1);
            }
            other => return load.fail(format!("{other:?}")),
        }
    }
}

async fn work_beside(session: Rc<Session<Mds>>, ino: Ino, number: u64, load: Rc<Load>) {
    let mut n = number;
    while !load.ended.get() {
        n += 1;
        let durable = n.is_multiple_of(DURABLE);
        let op = match durable {
            true => Op::SetXattr {
                ino,
                name: Bytes(b"user.n".to_vec()),
                value: Bytes(n.to_string().into_bytes()),
                flags: 0,
                kill_setgid: false,
            },
            false => Op::GetAttr { ino, want: Rights::empty() },
        };
        let begun = session.env.now();
        match session.call(Call { sync: durable, ..Call::one(root(), op) }).await {
            Ok(reply) if reply.results.iter().all(Result::is_ok) => {}
            other => return load.fail(format!("{other:?}")),
        }
        load.beside.set(load.beside.get() + 1);
        load.took.borrow_mut().push(session.env.now().since(begun).as_secs_f64());
        let pause = PAUSE_MS / 2 + session.env.random_u64() % PAUSE_MS;
        session.env.sleep(Duration::from_millis(pause)).await;
    }
}

impl Load {
    fn fail(&self, text: String) {
        self.failure.borrow_mut().get_or_insert(text);
    }
}

fn root() -> Principal {
    Principal { uid: 0, gid: 0, groups: Vec::new() }
}

/// A client that holds nothing, and says nothing.
struct Quiet;

/// A client that holds a file's content: it answers what others ask about it.
struct Answering;

/// Its answer to a push.
trait Answers: 'static {
    fn answer(&self, push: Push) -> Option<PushReply>;
}

impl Answers for Quiet {
    fn answer(&self, _: Push) -> Option<PushReply> {
        None
    }
}

impl Answers for Answering {
    fn answer(&self, push: Push) -> Option<PushReply> {
        let Push::Glimpse { id, .. } = push else { return None };
        let (mtime, ctime) = (Timestamp::default(), Timestamp::default());
        Some(PushReply { id, data: Some(DataAttr { size: 0, blocks: 0, mtime, ctime }) })
    }
}

/// What a session reports goes here.
struct Reports(Rc<dyn Answers>);

impl Events<Mds> for Reports {
    fn absorb(&self, _: ServerId, _: &Request<Mds>, _: &Reply<Mds>, _: u64) {}

    fn push(&self, _: ServerId, push: Push) -> Option<PushReply> {
        self.0.answer(push)
    }

    fn reclaim(&self, _: ServerId, _: Epoch) -> Vec<Op> {
        Vec::new()
    }

    fn names_lost(&self, _: &Op) -> bool {
        false
    }

    fn evicted(&self, _: ServerId, client: ClientId, _: &[ReplayEntry<Mds>]) {
        bench::tell(&format!("repro: a session was lost; the client is {client} now"));
    }
}

/// Opens a session.
async fn open(env: &Env, address: &str, answers: Rc<dyn Answers>) -> Res<Rc<Session<Mds>>> {
    let config = Config {
        description: "repro timeouts".to_owned(),
        ..Config::new::<Mds>(vec![address.to_owned()], NAME)
    };
    let session = Session::open(env.clone(), config, Rc::new(Shared::default())).await;
    let session = session.map_err(|error| BenchError(error.text))?;
    let events: Rc<dyn Events<Mds>> = Rc::new(Reports(answers));
    session.set_events(Rc::downgrade(&events));
    // It lives as long as the process.
    std::mem::forget(events);
    Ok(session)
}

/// Makes a file in the root.
async fn make(session: &Session<Mds>, file: &str, want: Rights) -> Res<Ino> {
    let node = NewNode::plain(FileKind::Regular, 0o644, 0o022);
    let name = name(file).map_err(|_| BenchError(format!("{file} is no name")))?;
    let op = Op::Create { dir: Ino::ROOT, name, node, want };
    match session.call(Call::one(root(), op)).await {
        Ok(reply) => match &reply.results[..] {
            [Ok(OpReply::Created { leased, .. })] if leased.rights.contains(want) => {
                Ok(leased.attr.ino)
            }
            other => failed("making a file", format!("the server answered {other:?}")),
        },
        Err(fault) => failed("making a file", fault.text()),
    }
}

/// A client in a process of its own, which holds a file and is stopped.
struct Holder {
    child: Child,
    ino: Ino,
}

impl Holder {
    fn start(program: &Path, address: &str) -> Res<Holder> {
        let wrong = |error: std::io::Error| BenchError(format!("starting the holder: {error}"));
        let mut command = Command::new(program);
        command.args(["bench", "holder", address]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = Holder { child: command.spawn().map_err(wrong)?, ino: Ino::NONE };
        let out = holder.child.stdout.take();
        let out = out.ok_or_else(|| BenchError("the holder has no output".into()))?;
        let mut said = String::new();
        BufReader::new(out).read_line(&mut said).map_err(wrong)?;
        let Ok(ino) = said.trim().parse() else {
            return failed("starting the holder", "it ended");
        };
        holder.ino = Ino(ino);
        Ok(holder)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        bench::process::kill(&mut self.child);
    }
}

/// Is the client of a measurement that holds a file: says its number, and ends with its input.
///
/// # Errors
/// The server refuses, or it has no output.
pub fn hold(address: &str) -> Res<()> {
    end_with_input();
    let address = address.to_owned();
    let ran = env::run(DriverKind::Auto, |env| async move {
        let session = open(&env, &address, Rc::new(Answering)).await?;
        let ino = make(&session, "held", Rights::OPEN | Rights::DATA_X).await?;
        let said = std::io::Write::write_fmt(&mut std::io::stdout(), format_args!("{}\n", ino.0));
        said.map_err(|error| BenchError(format!("saying the number: {error}")))?;
        std::future::pending().await
    });
    ran.map_err(|error| BenchError(format!("running the holder: {error}"))).flatten()
}

fn signal(child: &Child, signal: libc::c_int) {
    // SAFETY: takes no pointers. The child has not been waited for, so its number is its own.
    unsafe { libc::kill(child.id() as libc::pid_t, signal) };
}

/// Waits until a process is stopped.
fn wait_stopped(child: &Child) -> Res<()> {
    let path = format!("/proc/{}/stat", child.id());
    for _ in 0..10_000 {
        let stat = std::fs::read_to_string(&path);
        let stat = stat.map_err(|error| BenchError(format!("{path}: {error}")))?;
        // The state stands behind the name in parentheses.
        if stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T')) {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    failed("stopping a process", "it goes on")
}
