//! A server among several: it stands by, takes over when the owner's death is proved, serves, and
//! hands over when it is asked to. Where the namespace has several servers it stands by for each of
//! them, and takes over the first whose owner has died.
//!
//! `membership::decide` has the table, `mds::standby` the looks, the fence and the claim; here are
//! the opening and the end. What a kill at each step leaves is in ARCHITECTURE.md.
//!
//! Invariants:
//! - the metadata are opened for writing only behind a claim, with its epoch or a higher one;
//! - an owner whose term may be over begins no write and sends no reply, not even when it was
//!   stopped meanwhile: [`Env::end_io_at`] refuses them until the process ends;
//! - the metadata are given up only when the store is closed;
//! - a station owns the metadata of one server at most, and stands by for no other one meanwhile;
//! - the end of a station's term does not end the process while another station owns.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::os::unix::process::CommandExt;
use std::pin::{Pin, pin};
use std::process::Command;
use std::rc::Rc;
use std::task::Poll;

use env::Env;
use env::sync::{Notified, Notify};
use mds::standby::{self, Courtesy, LOOK, Proven, Turn, Watcher};
use mds::{Control, MembershipReport};
use membership::{Member, Membership, PLANNED, RESCUER_STOPPED, STOPPED, Term, Trouble, Waiting};
use mfs::Mfs;
use proto::mds::Mds as MdsPeer;
use serde_json::{Value, json};
use session::server::{Door, turn_away};
use types::{Duration, Epoch, Instant};

use super::stations::{Owned, Station};
use super::{Done, Post, ended, failed, fences, register, start, stopping, store_failed};
use crate::args::MdsArgs;
use crate::commands::local::this_program;
use crate::commands::mount;
use crate::config::Cluster;
use crate::control::{Answer, Ask, Handler, of_mds};
use crate::devices::open_metadata;
use crate::exit::{Failure, Status};
use crate::source::Source;
use crate::{keys, log, notify};

/// How long a server that has handed over lets others claim first.
const HOLD_BACK: Duration = Duration::from_secs(5);
/// How long the status waits for the membership, twice.
const DESCRIBE: Duration = Duration::from_secs(1);
/// Pause after metadata that could not be read.
const UNREADABLE: Duration = Duration::from_secs(1);
/// Pause after an address that could not be listened on.
const LISTEN_PAUSE: Duration = Duration::from_secs(1);
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A signal that ends the server.
type StopSignal<'a> = Pin<&'a mut dyn Future<Output = i32>>;

/// State that the tasks and the control socket share.
struct Desk {
    env: Env,
    station: Rc<Station>,
    /// What it may come to own; once it owns something, only that.
    posts: RefCell<Vec<Rc<Watched>>>,
    /// By which it owns that one.
    owned: Owned,
    member: Member,
    fs_name: String,
    /// While it serves.
    serving: RefCell<Option<Control>>,
    /// It was asked to hand over.
    asked: Cell<bool>,
    handover: Notify,
    /// The server has reported that it is ready.
    is_ready: Cell<bool>,
}

/// Metadata that it may come to own.
struct Watched {
    post: Post,
    /// Why it does not own them; `None`: it has not looked yet.
    waiting: RefCell<Option<Waiting>>,
    /// They could not be read: when it looks again.
    retry_at: Cell<Instant>,
}

/// Metadata that it owns from now on.
struct Claimed {
    watched: Rc<Watched>,
    term: Term,
    /// Since when their last owner was known to have ended.
    since: Instant,
}

impl Watched {
    fn cluster(&self) -> &Cluster {
        &self.post.cluster
    }

    fn membership(&self) -> &Rc<dyn Membership> {
        &self.post.membership
    }

    /// "for server 1", if there are several.
    fn whose(&self) -> String {
        match self.cluster().is_of_several() {
            false => String::new(),
            true => format!(" for server {}", self.cluster().shard.0),
        }
    }

    fn waiting_text(&self) -> String {
        self.waiting.borrow().as_ref().map_or("it has not looked yet".into(), waiting_text)
    }

    fn is_odd(&self) -> bool {
        use Waiting::{Alive, Deferring, HoldingBack};
        !matches!(*self.waiting.borrow(), None | Some(Alive(None) | HoldingBack | Deferring(_)))
    }
}

/// Runs until a signal, or until it has handed over.
pub async fn run(
    env: Env,
    (posts, owned): (Vec<Post>, Owned),
    station: Rc<Station>,
    args: &MdsArgs,
) -> Result<Done, Failure> {
    let cluster = posts[0].cluster.clone();
    let watched = |post: Post| {
        let (waiting, retry_at) = (RefCell::default(), Cell::new(env.now()));
        Rc::new(Watched { post, waiting, retry_at })
    };
    let member = Member {
        host: mount::host_name(),
        pid: std::process::id(),
        nonce: env.random_u64(),
        address: cluster.listen.clone(),
    };
    let desk = Rc::new(Desk {
        env: env.clone(),
        station: station.clone(),
        posts: RefCell::new(posts.into_iter().map(watched).collect()),
        owned,
        member,
        fs_name: cluster.name.clone(),
        serving: RefCell::default(),
        asked: Cell::new(false),
        handover: Notify::new(),
        is_ready: Cell::new(!station.is_awaited),
    });
    let own = std::iter::once(cluster.listen.clone());
    let others = cluster.servers().into_iter().filter(|address| *address != cluster.listen);
    let source = Source {
        servers: own.chain(others).collect(),
        fs_name: cluster.name.clone(),
        dir: Vec::new(),
        cluster: None,
        server: None,
    };
    let place = (station.index, station.control.clone());
    let registered = register(&env, (source, None), place, handler(&desk));
    let done = desk.act(&cluster, args).await;
    // A server that cannot remove its registration leaves one that counts as stale.
    drop(registered.map(|registered| registered.end(None)));
    done
}

/// Begins anew as a server that stands by, with the same arguments; returns only why it cannot.
pub fn begin_anew() -> Failure {
    let mut arguments: Vec<_> = std::env::args_os().skip(1).collect();
    for option in ["--standby", "--hold-back"] {
        if !arguments.iter().any(|argument| argument == option) {
            arguments.push(option.into());
        }
    }
    let error = Command::new(this_program()).args(arguments).exec();
    failed(format!("cannot start again to stand by: {error}"))
}

/// The owner, the servers that stand by, and the history of takeovers, for the status, which does
/// not wait for long.
async fn describe(env: &Env, membership: &dyn Membership) -> Value {
    let (owner, history, trouble) = match env.timeout(DESCRIBE, membership.look()).await {
        Some(Ok(seen)) => (json!(seen.record.owner), json!(seen.record.history), Value::Null),
        Some(Err(trouble)) => (Value::Null, json!([]), json!(trouble.to_string())),
        None => (Value::Null, json!([]), json!(format!("{} does not answer", membership.name()))),
    };
    let standbys = env.timeout(DESCRIBE, membership.standbys()).await;
    let standbys = standbys.and_then(Result::ok).unwrap_or_default();
    json!({
        "name": membership.name(),
        "owner": owner,
        "standbys": standbys,
        "history": history,
        "trouble": trouble,
    })
}

fn report(env: &Env, membership: &Rc<dyn Membership>) -> MembershipReport {
    let (env, membership) = (env.clone(), membership.clone());
    Rc::new(move || {
        let (env, membership) = (env.clone(), membership.clone());
        Box::pin(async move { describe(&env, &*membership).await.to_string() })
    })
}

fn handler(desk: &Rc<Desk>) -> Handler {
    let desk = desk.clone();
    Rc::new(move |ask| {
        let desk = desk.clone();
        Box::pin(async move { desk.answer(ask).await })
    })
}

/// Why a server that stands by does nothing.
fn waiting_text(waiting: &Waiting) -> String {
    match waiting {
        Waiting::Alive(None) => "the owner lives".into(),
        Waiting::Alive(Some(note)) => format!("the owner lives, but {note}: slow is not dead"),
        Waiting::Unproved(missing) => {
            format!("the owner shows no life, and nothing proves its death: {missing}")
        }
        Waiting::HoldingBack => "it has handed over, and lets another server go first".into(),
        Waiting::Deferring(why) => format!("nobody owns them, but {why}"),
        Waiting::Trouble(trouble) => trouble.to_string(),
    }
}

impl Desk {
    fn posts(&self) -> Vec<Rc<Watched>> {
        self.posts.borrow().clone()
    }

    /// Why this server does nothing, for each that it stands by for.
    fn waiting_text(&self) -> String {
        let posts = self.posts();
        let text = |one: &Rc<Watched>| match &posts[..] {
            [_] => one.waiting_text(),
            _ => format!("server {}: {}", one.cluster().shard.0, one.waiting_text()),
        };
        posts.iter().map(text).collect::<Vec<_>>().join("; ")
    }

    async fn answer(&self, ask: Ask) -> Answer {
        let control = self.serving.borrow().clone();
        match (ask, control) {
            (Ask::Failover, Some(control)) => self.hand_over(&control).await,
            (ask, Some(control)) => of_mds::answer(&control, ask).await,
            (Ask::Status, None) => Ok(self.status().await.to_string()),
            (_, None) => {
                let waiting = self.waiting_text();
                Err(format!("this server stands by ({waiting}): ask the one that serves"))
            }
        }
    }

    async fn status(&self) -> Value {
        let posts = self.posts();
        // At once: each may wait for its membership.
        let described: Vec<_> = posts
            .iter()
            .map(|one| {
                let (env, membership) = (self.env.clone(), one.membership().clone());
                self.env.spawn_join(async move { describe(&env, &*membership).await })
            })
            .collect();
        let mut stands_by_for = Vec::new();
        for (one, described) in posts.iter().zip(described) {
            stands_by_for.push(json!({
                "server": one.cluster().is_of_several().then_some(one.cluster().shard.0),
                "waits": one.waiting_text(),
                "odd": one.is_odd(),
                "membership": described.await,
            }));
        }
        json!({
            "state": "standby",
            "fs_name": self.fs_name,
            "address": self.member.address,
            "pid": self.member.pid,
            "stands_by_for": stands_by_for,
        })
    }

    /// Prepares a handover while the server goes on, and begins it.
    async fn hand_over(&self, control: &Control) -> Answer {
        let Some(owned) = self.posts().pop() else { return Err("this server ends".into()) };
        let standbys = owned.membership().standbys().await;
        let standbys = standbys.map_err(|trouble| trouble.to_string())?;
        if standbys.is_empty() {
            return Err("no server stands by: start one with `redbud mds --standby`".into());
        }
        // The second round has only what came during the first.
        for _ in 0..2 {
            control.settle().await.map_err(|fault| fault.text().to_owned())?;
        }
        self.asked.set(true);
        self.handover.notify_all();
        Ok(json!({ "standbys": standbys }).to_string())
    }

    async fn act(&self, cluster: &Cluster, args: &MdsArgs) -> Result<Done, Failure> {
        let mut signal = pin!(self.env.stop_signal());
        let door = Door::new(self.env.clone(), keys::of_server(cluster)?, Rc::new(log::line));
        door.refresh().map_err(failed)?;
        let closing = Notify::new();
        let refusing = self.env.spawn_join(refuse(
            self.env.clone(),
            Rc::new(door),
            cluster.listen.clone(),
            // From now on: the task may begin to run when the server has claimed already.
            closing.notified(),
        ));
        for post in self.posts().iter().filter(|_| self.station.stands_by) {
            if let Err(trouble) = post.membership().stand_by(&self.member).await {
                let whose = post.whose();
                log::line(&format!(
                    "other servers do not see that this one stands by{whose}: {trouble}"
                ));
            }
        }
        let claimed = self.watch(signal.as_mut()).await;
        closing.notify_all();
        refusing.await;
        match claimed? {
            Some(claimed) => {
                // From now on it stands by for no other server.
                self.posts.borrow_mut().retain(|one| Rc::ptr_eq(one, &claimed.watched));
                *self.owned.borrow_mut() = Some(claimed.watched.membership().clone());
                self.serve(args, claimed, signal).await
            }
            None => Ok(Done::Ended(0)),
        }
    }

    /// Looks until it owns some metadata. `None`: a signal came.
    async fn watch(&self, mut signal: StopSignal<'_>) -> Result<Option<Claimed>, Failure> {
        let posts = self.posts();
        let watchers: Vec<(&Rc<Watched>, Watcher)> =
            posts.iter().map(|post| (post, self.watcher(post))).collect();
        // A server with a number of its own looks for its own metadata first.
        let is_own =
            |post: &Watched| self.station.wanted == Some(u16::from(post.cluster().shard.0));
        let own = watchers.iter().filter(|(post, _)| watchers.len() > 1 && is_own(post));
        for (post, watcher) in own {
            if let Some(claimed) = self.look(post, watcher).await? {
                return Ok(Some(claimed));
            }
        }
        loop {
            for (post, watcher) in &watchers {
                if let Some(claimed) = self.look(post, watcher).await? {
                    return Ok(Some(claimed));
                }
            }
            if !self.is_ready.replace(true) {
                let address = &self.member.address;
                notify::send(&format!("READY=1\nSTATUS=standing by at {address}\n"));
            }
            let station = &self.station;
            if station.beside.is_some_and(|own| !station.stations.first_owns(own)) {
                return Ok(None);
            }
            if let Some(number) = self.env.timeout(LOOK, signal.as_mut()).await {
                stopping(number);
                return Ok(None);
            }
        }
    }

    fn watcher(&self, post: &Watched) -> Watcher {
        let fences = fences(&self.env, post.cluster());
        let (env, membership) = (self.env.clone(), post.membership().clone());
        let log: mds::Log = Rc::new(log::line);
        let mut watcher = Watcher::new((env, log), membership, self.member.clone(), fences);
        let (env, own) = (self.env.clone(), Rc::new(post.cluster().clone()));
        watcher.readable = Some(Rc::new(move || {
            let (env, own) = (env.clone(), own.clone());
            Box::pin(async move {
                let read = stored_epoch(&env, &own).await;
                read.map(drop).map_err(|failure| unreadable(&failure))
            })
        }));
        if self.station.beside.is_some() {
            let equals = post.cluster().take_over.concat();
            watcher.courtesy = Some(Courtesy::to_all_but(equals));
        }
        if self.station.hold_back {
            watcher.held_until = self.env.now() + HOLD_BACK;
        }
        watcher
    }

    /// Looks once whether it may own these metadata, and claims them then.
    async fn look(
        &self,
        post: &Rc<Watched>,
        watcher: &Watcher,
    ) -> Result<Option<Claimed>, Failure> {
        if self.env.now() < post.retry_at.get() {
            return Ok(None);
        }
        loop {
            let waiting = match watcher.look().await {
                Turn::Waits(waiting) => waiting,
                Turn::Again => continue,
                Turn::Proved(proven) => {
                    let since = proven.since;
                    match self.claim(post, watcher, proven).await {
                        Ok(Some(term)) => {
                            return Ok(Some(Claimed { watched: post.clone(), term, since }));
                        }
                        // The process ends, or another station of it is quicker.
                        Ok(None) if !self.may_claim(post) => return Ok(None),
                        Ok(None) => continue,
                        Err(failure) if self.is_ready.get() || self.posts().len() > 1 => {
                            post.retry_at.set(self.env.now() + UNREADABLE);
                            Waiting::Trouble(Trouble::Away(unreadable(&failure)))
                        }
                        Err(failure) => return Err(failure),
                    }
                }
            };
            self.wait(post, waiting)?;
            return Ok(None);
        }
    }

    /// Notes why the server does nothing, and logs that if it is new.
    fn wait(&self, post: &Watched, waiting: Waiting) -> Result<(), Failure> {
        let text = waiting_text(&waiting);
        if !self.station.stands_by && waiting != Waiting::HoldingBack {
            let text = format!(
                "{}: {text}; with --standby this server would wait for its turn",
                post.membership().name()
            );
            let is_trouble = matches!(waiting, Waiting::Trouble(_));
            let code = if is_trouble { "RB-MEMBERSHIP" } else { "RB-MDS-OWNED" };
            return Err(Failure::failed(code, text));
        }
        if post.waiting.borrow().as_ref() != Some(&waiting) {
            let (address, whose) = (&self.member.address, post.whose());
            log::line(&format!("standing by at {address}{whose}: {text}"));
            *post.waiting.borrow_mut() = Some(waiting);
        }
        Ok(())
    }

    /// Claims the metadata behind a proof; `None`: not now. A server that has claimed meanwhile
    /// holds the devices, so this one does not wait for them.
    async fn claim(
        &self,
        post: &Watched,
        watcher: &Watcher,
        proven: Proven,
    ) -> Result<Option<Term>, Failure> {
        let read = {
            let mut reading = pin!(stored_epoch(&self.env, post.cluster()));
            let mut replaced = pin!(self.replaced(post, proven.seen));
            poll_fn(|cx| match replaced.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(None),
                Poll::Pending => reading.as_mut().poll(cx).map(Some),
            })
            .await
        };
        let Some(above) = read.transpose()? else { return Ok(None) };
        let (station, shard) = (&self.station, post.cluster().shard);
        if !station.stations.begins(station.index, shard) {
            return Ok(None);
        }
        let claimed = watcher.claim(proven, above).await;
        if !matches!(claimed, Ok(Some(_))) {
            station.stations.ends(station.index);
        }
        claimed.map_err(|trouble| failed(trouble.to_string()))
    }

    fn may_claim(&self, post: &Watched) -> bool {
        self.station.stations.may_begin(self.station.index, post.cluster().shard)
    }

    /// Waits until an owner with another epoch than `seen` is there.
    async fn replaced(&self, post: &Watched, seen: Epoch) {
        loop {
            self.env.sleep(LOOK).await;
            let now = post.membership().look().await;
            if now.is_ok_and(|now| now.record.epoch() != seen) {
                return;
            }
        }
    }

    async fn serve(
        &self,
        args: &MdsArgs,
        claimed: Claimed,
        signal: StopSignal<'_>,
    ) -> Result<Done, Failure> {
        let membership = claimed.watched.membership().clone();
        let mut over = pin!(standby::keep(&self.env, membership, claimed.term));
        let mut serving = pin!(self.serve_until(args, claimed, signal));
        let ended = poll_fn(|cx| match over.as_mut().poll(cx) {
            Poll::Ready(text) => Poll::Ready(Err(text)),
            Poll::Pending => serving.as_mut().poll(cx).map(Ok),
        });
        match ended.await {
            Ok(done) => done,
            Err(text) => Ok(self.end_behind(&text)),
        }
    }

    /// The term may be over. The process ends, or begins anew if it stands by otherwise; if it
    /// serves something else, too, only this station ends.
    fn end_behind(&self, text: &str) -> Done {
        let (station, address) = (&self.station, &self.member.address);
        if station.beside.is_some() || station.stations.others_own(station.index) {
            log::line(&format!("{address}: it owns the metadata no longer ({text}): it stands by"));
            return Done::StandsBy;
        }
        log::line(&format!("this server owns the metadata no longer ({text}): it ends"));
        if station.stands_by {
            // The new program has no thread, no file and no request of this one.
            log::line(&begin_anew().to_string());
        }
        std::process::exit(i32::from(Status::Failed as u8));
    }

    /// Serves until a signal, a handover, or a failure.
    async fn serve_until(
        &self,
        args: &MdsArgs,
        Claimed { watched, term, since }: Claimed,
        mut signal: StopSignal<'_>,
    ) -> Result<Done, Failure> {
        let (cluster, membership) = (watched.cluster(), watched.membership());
        let above = Epoch(term.epoch.0.saturating_sub(1));
        let report = report(&self.env, membership);
        let started = start(&self.env, cluster, args, above, Some(report)).await;
        let server = match started {
            Ok(server) => server,
            Err(failure) => {
                // The store is closed, or another server's. What is left here begins nothing more.
                self.env.end_io_at(Some(self.env.now()));
                log::line(&failure.to_string());
                release(membership, term, &format!("it could not serve: {failure}")).await?;
                return match self.is_ready.get() && failure.code != Status::Superseded as u8 {
                    true => Ok(stands_by_unless(signal.as_mut()).await),
                    false => Err(failure),
                };
            }
        };
        let took = self.env.now().since(since);
        membership.serving(term, server.epoch(), took).await;
        *self.serving.borrow_mut() = Some(server.control());
        self.is_ready.set(true);
        if self.station.beside.is_none() {
            notify::send(&format!("READY=1\nSTATUS=serving at {}\n", server.address()));
        }
        let served = server.run(self.stop(signal.as_mut())).await;
        self.serving.borrow_mut().take();
        match served {
            // An operation met the end of the term before the task that keeps it did.
            Err(error) if self.env.io_has_ended() && self.station.stands_by => {
                log::line(&format!("{error}: this server owns the metadata no longer"));
                return Ok(Done::StandsBy);
            }
            served => served.map_err(|error| ended(&error))?,
        }
        let why = match self.asked.get() {
            true => PLANNED,
            false if self.station.beside.is_some() => RESCUER_STOPPED,
            false => STOPPED,
        };
        release(membership, term, why).await?;
        log::line("stopped; the checkpoint is complete");
        match self.asked.get() {
            true => Ok(stands_by_unless(signal).await),
            false => Ok(Done::Ended(0)),
        }
    }

    /// Waits for a signal, or until the server has to hand over.
    async fn stop(&self, mut signal: StopSignal<'_>) {
        let mut handover = pin!(self.handover.notified());
        poll_fn(|cx| {
            if let Poll::Ready(number) = signal.as_mut().poll(cx) {
                stopping(number);
                return Poll::Ready(());
            }
            if self.asked.get() || handover.as_mut().poll(cx).is_ready() {
                log::line("handing over to a server that stands by");
                return Poll::Ready(());
            }
            Poll::Pending
        })
        .await;
    }
}

async fn release(membership: &Rc<dyn Membership>, term: Term, why: &str) -> Result<(), Failure> {
    let released = membership.release(term, why).await;
    released.map_err(|trouble| failed(trouble.to_string()))
}

/// The epoch of the metadata.
async fn stored_epoch(env: &Env, cluster: &Cluster) -> Result<Epoch, Failure> {
    let disks = open_metadata(env, cluster, false).await;
    let disks = disks.map_err(|error| failed(error.to_string()))?;
    let stored = Mfs::stored_epoch(env, &disks).await;
    let path = cluster.metadata.path.display().to_string();
    stored.map(|(_, above)| above).map_err(|error| store_failed(&path, &error))
}

/// Why this server does not take over.
fn unreadable(failure: &Failure) -> String {
    format!("no server serves, and this one cannot take over: {}", failure.text)
}

/// The server stands by from now on, unless a signal has come meanwhile.
async fn stands_by_unless(mut signal: StopSignal<'_>) -> Done {
    let came = poll_fn(|cx| Poll::Ready(signal.as_mut().poll(cx))).await;
    match came {
        Poll::Ready(number) => {
            stopping(number);
            Done::Ended(0)
        }
        Poll::Pending => Done::StandsBy,
    }
}

/// Refuses everybody who connects to a server that stands by, until `closing` is notified.
async fn refuse(env: Env, door: Rc<Door>, address: String, closing: Notified) {
    let mut closing = pin!(closing);
    let mut refusing = pin!(refuse_all(&env, &door, &address));
    poll_fn(|cx| match closing.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(()),
        Poll::Pending => refusing.as_mut().poll(cx),
    })
    .await;
    door.close();
}

async fn refuse_all(env: &Env, door: &Rc<Door>, address: &str) {
    let mut logged = false;
    let listener = loop {
        match env.listen(address).await {
            Ok(listener) => break listener,
            Err(error) if !std::mem::replace(&mut logged, true) => {
                log::line(&format!("cannot refuse clients yet: {error}"));
            }
            Err(_) => {}
        }
        env.sleep(LISTEN_PAUSE).await;
    };
    loop {
        let Ok(stream) = listener.accept().await else {
            env.sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let (handle, door) = (env.clone(), door.clone());
        env.spawn(async move {
            let text = "this server stands by: another one serves";
            turn_away::<MdsPeer>(&handle, &door, stream, text).await;
        });
    }
}
