//! Metadata servers that stand by for each other: processes of hosts of their own that reach the
//! same metadata device. They look, fence, claim and keep their terms by `mds::standby`; etcd is a
//! model (`etcd.rs`).
//!
//! A process is always there, or comes soon: when it ends, for any reason, its supervisor
//! starts it again. One that owns ends when its term may be over.
//!
//! Invariants:
//! - for the checkers a server owns from its claim on; at that moment the one before has ended;
//! - a fence says that it has cut a host off only when none of its requests is in flight. It cuts
//!   the power, or the host's paths to the metadata device;
//! - a host gets its paths back when the process that was cut off has ended.

use std::rc::Rc;

use env::sync::Notify;
use env::{DiskOptions, Env};
use mds::fence::{Acting, Answer, Fence, FenceAction, FenceTarget};
use mds::standby::{self, LOOK, Proven, Turn, Watcher};
use membership::{Member, Membership, Term};
use mfs::Mfs;
use proto::mds::Mds as MdsPeer;
use session::server::{Door, turn_away};
use types::{Duration, Epoch, Instant, ShardId};

use crate::cluster::{Cluster, META, address};
use crate::etcd::Seat;
use crate::invariant::Invariant;
use crate::keys::Keys;
use crate::servers::{Means, Process, Standing};

/// Most time until a process that has ended is started again.
const AGAIN: Duration = Duration::from_millis(300);
/// How long a server that has handed over lets others claim.
const HOLD_BACK: Duration = Duration::from_secs(5);
/// Pause after metadata that could not be read.
const UNREADABLE: Duration = Duration::from_secs(1);
/// How long an action of a fence may take.
const PATIENCE: Duration = Duration::from_secs(2);

impl Cluster {
    /// From here on `standbys` servers stand by for each other and the first one.
    pub(crate) fn stand_by(&mut self, standbys: usize, seed: u64) {
        if standbys == 0 {
            return;
        }
        let standing = Rc::new(Standing::new(&self.env, standbys, seed));
        for node in standing.nodes() {
            self.world.set_host(&node, &node);
        }
        self.standing = Some(standing);
    }

    /// The node of the server that owns the first shard's metadata, or that did last.
    pub(crate) fn server(&self) -> String {
        self.server_of(ShardId(0))
    }

    /// The nodes of all servers.
    pub(crate) fn servers(&self) -> Vec<String> {
        match &self.standing {
            None => self.all_shards().map(|shard| self.server_of(shard)).collect(),
            Some(standing) => standing.nodes().collect(),
        }
    }

    /// Starts every server that does not run.
    pub(crate) fn start_standing(&self, standing: &Rc<Standing>) {
        for node in standing.nodes().filter(|node| self.world.run_of(node).is_none()) {
            self.start_process(standing, &node);
        }
    }

    fn start_process(&self, standing: &Rc<Standing>, node: &str) {
        self.node_begins(node);
        let env = self.world.node(node);
        let Some(run) = self.world.run_of(node) else { return };
        let process = StandingServer {
            cluster: self.clone(),
            standing: standing.clone(),
            env: env.clone(),
            process: (node.to_owned(), run),
        };
        env.spawn(async move {
            let text = process.live().await;
            process.end(&text);
        });
    }

    /// Kills a process of a server; its supervisor starts it again after `downtime`.
    pub(crate) fn kill_process(&self, node: &str, downtime: Duration) {
        let Some(standing) = self.standing.clone() else { return };
        let Some(run) = self.world.run_of(node) else { return };
        let owns = standing.owner.borrow().as_ref() == Some(&(node.to_owned(), run));
        if owns {
            self.server_ends(ShardId(0));
        }
        self.world.kill(node);
        if standing.cut.borrow_mut().remove(node) {
            self.meta().set_dead_for(Some(node), false);
        }
        let (this, node) = (self.clone(), node.to_owned());
        self.env.spawn(async move {
            this.env.sleep(downtime).await;
            if this.world.run_of(&node).is_none() {
                this.start_process(&standing, &node);
            }
        });
    }
}

/// A process of a server.
struct StandingServer {
    cluster: Cluster,
    standing: Rc<Standing>,
    env: Env,
    process: Process,
}

impl StandingServer {
    fn node(&self) -> &str {
        &self.process.0
    }

    fn line(&self, text: &str) {
        self.cluster.events.line(&format!("{}: {text}", self.node()));
    }

    /// The process ends, and is started again.
    fn end(&self, text: &str) {
        self.line(&format!("ends: {text}"));
        let downtime = Duration::from_micros(self.standing.below(AGAIN.as_micros() as u64));
        self.cluster.kill_process(self.node(), downtime);
    }

    /// Stands by, and serves once; yields why it ends.
    async fn live(&self) -> String {
        let seat: Rc<dyn Membership> =
            Rc::new(Seat::new(&self.standing.etcd, &self.env, self.node()));
        let member = Member {
            host: self.node().to_owned(),
            pid: self.process.1,
            nonce: self.env.random_u64(),
            address: address(self.node()),
        };
        let closing = Notify::new();
        let refusing = self.refuse(closing.notified());
        // If others do not see it, it can claim nevertheless.
        let _ = seat.stand_by(&member).await;
        let owning = match self.watch(&seat, member).await {
            Ok(owning) => owning,
            Err(text) => return text,
        };
        closing.notify_all();
        refusing.await;
        match self.serve(&seat, owning).await {
            Ok(()) => "it has handed over".into(),
            Err(text) => text,
        }
    }

    fn refuse(&self, mut closing: env::sync::Notified) -> impl Future<Output = ()> + use<> {
        let keys = self.cluster.keys.as_ref().map(Keys::of_server);
        let (env, at) = (self.env.clone(), address(self.node()));
        let door = Rc::new(Door::new(env.clone(), keys, Rc::new(|_: &str| ())));
        // Without keys there is nothing to be read; with them, nothing fails.
        let _ = door.refresh();
        self.env.spawn_join(async move {
            let Ok(listener) = env.listen(&at).await else { return };
            loop {
                let accepted = {
                    let mut accepting = std::pin::pin!(listener.accept());
                    std::future::poll_fn(|cx| {
                        use std::task::Poll;
                        let mut closing = std::pin::Pin::new(&mut closing);
                        match closing.as_mut().poll(cx) {
                            Poll::Ready(()) => Poll::Ready(None),
                            Poll::Pending => accepting.as_mut().poll(cx).map(Some),
                        }
                    })
                    .await
                };
                let Some(accepted) = accepted else { break };
                let Ok(stream) = accepted else { continue };
                let (env, door) = (env.clone(), door.clone());
                env.clone().spawn(async move {
                    turn_away::<MdsPeer>(&env, &door, stream, "this server stands by").await;
                });
            }
            door.close();
        })
    }

    fn fences(&self) -> Vec<Rc<dyn Fence>> {
        if self.standing.means == Means::None {
            return Vec::new();
        }
        let (cluster, standing, env) =
            (self.cluster.clone(), self.standing.clone(), self.env.clone());
        vec![Rc::new(HostFence { cluster, standing, env })]
    }

    /// Looks until it owns the metadata.
    ///
    /// # Errors
    /// The host is cut off, though its server does not own: it is restarted.
    async fn watch(
        &self,
        seat: &Rc<dyn Membership>,
        member: Member,
    ) -> Result<(Term, Instant), String> {
        let (events, node) = (self.cluster.events.clone(), self.node().to_owned());
        let log: mds::Log = Rc::new(move |text| events.line(&format!("{node}: {text}")));
        let mut watcher =
            Watcher::new((self.env.clone(), log), seat.clone(), member, self.fences());
        if self.standing.hold_back.borrow_mut().remove(self.node()) {
            watcher.held_until = self.env.now() + HOLD_BACK;
        }
        loop {
            let proven = match watcher.look().await {
                Turn::Waits(_) => {
                    self.env.sleep(LOOK).await;
                    continue;
                }
                Turn::Again => continue,
                Turn::Proved(proven) => proven,
            };
            let since = proven.since;
            match self.claim(&watcher, proven).await {
                Ok(Some(term)) => return Ok((term, since)),
                Ok(None) => {}
                Err(text) if self.standing.cut.borrow().contains(self.node()) => return Err(text),
                Err(text) => {
                    self.line(&format!("{text}; it goes on to stand by"));
                    self.env.sleep(UNREADABLE).await;
                }
            }
        }
    }

    async fn claim(&self, watcher: &Watcher, proven: Proven) -> Result<Option<Term>, String> {
        let options = DiskOptions { write: false, exclusive: false };
        let disk = self.env.open_disk(META, options).await.map_err(|error| error.to_string())?;
        let stored = Mfs::stored_epoch(&self.env, &disk).await;
        let (_, above) = stored.map_err(|error| error.to_string())?;
        watcher.claim(proven, above).await.map_err(|trouble| trouble.to_string())
    }

    async fn serve(
        &self,
        seat: &Rc<dyn Membership>,
        (term, since): (Term, Instant),
    ) -> Result<(), String> {
        self.owns();
        self.keep(seat.clone(), term);
        let above = Epoch(term.epoch.0.saturating_sub(1));
        let config = self.cluster.server_config(&self.env, self.node());
        let stop = async {
            // The task may begin to wait when it has been asked already.
            while !self.standing.hold_back.borrow().contains(self.node()) {
                self.standing.handover.notified().await;
            }
        };
        let (env, noted) = (self.env.clone(), seat.clone());
        let opened = move |epoch: Epoch| {
            let took = env.now().since(since);
            env.spawn(async move { noted.serving(term, epoch, took).await });
        };
        let server = (self.env.clone(), config);
        let served = self.cluster.serve(ShardId(0), server, above, opened, stop).await;
        self.cluster.owner_ends_if(&self.process);
        if let Err(error) = &served {
            self.judge(error);
            if !self.is_out() {
                let _ = seat.release(term, "it could not serve").await;
            }
        } else {
            let _ = seat.release(term, "a planned failover").await;
        }
        served
    }

    /// It owns the metadata from here on.
    fn owns(&self) {
        if self.standing.has_owner() {
            self.cluster.server_ends(ShardId(0));
        }
        let (standing, (node, run)) = (&self.standing, &self.process);
        if self.cluster.starts.get() > 0 {
            standing.takeovers.set(standing.takeovers.get() + 1);
        }
        *standing.owner.borrow_mut() = Some(self.process.clone());
        standing.last.borrow_mut().clone_from(node);
        standing.owned.borrow_mut().push(*run);
        self.cluster.server_begins(node);
        self.line(&format!("owns the metadata: {:?}", standing.etcd.record().history.last()));
    }

    /// Renews the term; ends the process when it may be over.
    fn keep(&self, seat: Rc<dyn Membership>, term: Term) {
        let process = StandingServer {
            cluster: self.cluster.clone(),
            standing: self.standing.clone(),
            env: self.env.clone(),
            process: self.process.clone(),
        };
        let kept = standby::keep(&self.env, seat, term);
        self.env.spawn(async move {
            let text = kept.await;
            process.end(&format!("it owns the metadata no longer ({text})"));
        });
    }

    /// Is it replaced, or cut off?
    fn is_out(&self) -> bool {
        let is_newest = self.standing.owned.borrow().last() == Some(&self.process.1);
        self.standing.cut.borrow().contains(self.node()) || !is_newest
    }

    /// A server may fail if it is cut off, or its term is over.
    fn judge(&self, error: &str) {
        if error.contains(env::TERM_OVER) {
            self.standing.late_writes.set(self.standing.late_writes.get() + 1);
        } else if !self.is_out() {
            self.cluster.events.broken(Invariant::Server, error);
        }
    }
}

impl Cluster {
    /// If this process owns, it ends.
    fn owner_ends_if(&self, process: &Process) {
        let Some(standing) = &self.standing else { return };
        let owns = standing.owner.borrow().as_ref() == Some(process);
        if owns {
            self.server_ends(ShardId(0));
        }
    }
}

/// A fence of servers' hosts: it works, fails, says yes without effect, or is late.
struct HostFence {
    cluster: Cluster,
    standing: Rc<Standing>,
    /// That of the server that asks.
    env: Env,
}

impl HostFence {
    async fn cut(&self, node: &str) -> Answer {
        let roll = self.standing.below(5);
        self.env.sleep(Duration::from_millis(self.standing.below(400))).await;
        match roll {
            0 => return Answer::No("drawn".into()),
            // The check shows it.
            1 => return Answer::Yes,
            2 => self.env.sleep(PATIENCE * 2).await,
            _ => {}
        }
        let run = self.cluster.world.run_of(node);
        match self.standing.means {
            Means::None => return Answer::No("no fence".into()),
            Means::Power => {
                let downtime = Duration::from_millis(self.standing.below(3_000));
                self.cluster.events.line(&format!("{node} is switched off"));
                self.cluster.kill_process(node, downtime);
            }
            Means::Paths if run.is_some() => {
                self.cluster.events.line(&format!("{node} loses its paths"));
                self.standing.cut.borrow_mut().insert(node.to_owned());
                self.cluster.meta().set_dead_for(Some(node), true);
            }
            // Nothing is there to be cut off.
            Means::Paths => {}
        }
        while !self.standing.is_quiet(run) {
            self.env.sleep(LOOK / 5).await;
        }
        Answer::Yes
    }

    /// Has the host's owner ended, or is it cut off?
    async fn check(&self, node: &str) -> Answer {
        let roll = self.standing.below(12);
        let owner = self.standing.owner.borrow().clone();
        let owns = owner.is_some_and(|(of, _)| of == node);
        if roll == 0 || owns && !self.standing.cut.borrow().contains(node) {
            return Answer::No("drawn, or it is on".into());
        }
        let last = self.standing.owned.borrow().last().copied();
        if !self.standing.is_quiet(last) {
            return Answer::No("requests are in flight".into());
        }
        Answer::Yes
    }
}

impl Fence for HostFence {
    fn name(&self) -> String {
        "the hosts' fence".into()
    }

    fn covers(&self, _: &FenceTarget) -> bool {
        true
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }

    fn act<'a>(&'a self, action: FenceAction, target: &'a FenceTarget) -> Acting<'a> {
        match action {
            FenceAction::Cut => Box::pin(self.cut(&target.host)),
            FenceAction::Check => Box::pin(self.check(&target.host)),
            FenceAction::Restore => Box::pin(std::future::ready(Answer::Yes)),
        }
    }
}
