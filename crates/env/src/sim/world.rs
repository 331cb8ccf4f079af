//! A simulated world and the interface by which tests control it.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use types::{Duration, Instant};

use super::disk::SimDisk;
use super::price::Processors;
use super::state::{SharedState, SimDriver, SimOptions, State, lock};
use crate::driver::NodeId;
use crate::env::Env;
use crate::executor::Core;
use crate::mailbox::Mailbox;

/// A world of virtual time with nodes, disks and connections. Clones are the same
/// world, so tasks can hold one to cut connections or kill nodes.
#[derive(Clone)]
pub struct SimWorld(Rc<Shared>);

struct Shared {
    state: SharedState,
    running: RefCell<Option<Rc<Core>>>,
    /// The current run of each node that was requested, with its name.
    living: RefCell<Vec<(String, NodeId)>>,
}

impl SimWorld {
    /// The world of `seed`.
    pub fn new(seed: u64) -> SimWorld {
        SimWorld::with_options(seed, SimOptions::default())
    }

    /// The world of `seed` with these options.
    pub fn with_options(seed: u64, options: SimOptions) -> SimWorld {
        let state = Arc::new(Mutex::new(State::new(seed, options)));
        SimWorld(Rc::new(Shared { state, running: RefCell::new(None), living: RefCell::default() }))
    }

    /// Creates a disk of `size` zero bytes that `Env::open_disk(name)` opens.
    pub fn disk(&self, name: &str, size: u64) -> SimDisk {
        let disk = SimDisk::new(size);
        self.attach(name, &disk);
        disk
    }

    /// Lets `Env::open_disk(name)` open this disk.
    pub fn attach(&self, name: &str, disk: &SimDisk) {
        lock(&self.0.state).disks.insert(name.to_owned(), disk.clone());
    }

    /// Runs `main`, on the node "main", to its end; remaining tasks are dropped. The
    /// world can be run again: time goes on, disks stay, connections are gone.
    ///
    /// # Panics
    /// Every task waits and nothing is due, or the time limit is reached.
    pub fn run<T, F: Future<Output = T>>(&self, main: impl FnOnce(Env) -> F) -> T {
        let core = self.start();
        let _ended = Ended(&self.0);
        core.block_on(main(Env::new(core.clone(), 0))).expect("the simulated driver does not fail")
    }

    fn start(&self) -> Rc<Core> {
        assert!(self.0.running.borrow().is_none(), "a world runs once at a time");
        let driver = SimDriver(self.0.state.clone());
        let core = Core::new(Box::new(driver), Mailbox::new(Box::new(|| ())));
        *self.0.running.borrow_mut() = Some(core.clone());
        core
    }

    /// The running node `name`; it is created, or restarted after a kill, if it does not run.
    ///
    /// # Panics
    /// The world does not run.
    pub fn node(&self, name: &str) -> Env {
        let core = self.core();
        let mut living = self.0.living.borrow_mut();
        if let Some((_, node)) = living.iter().find(|(living, _)| living == name) {
            return Env::new(core, *node);
        }
        let mut state = lock(&self.0.state);
        state.nodes.push(name.to_owned());
        let node = (state.nodes.len() - 1) as NodeId;
        living.push((name.to_owned(), node));
        Env::new(core, node)
    }

    /// The number of the current run of node `name`, if it runs; no other run has this number.
    pub fn run_of(&self, name: &str) -> Option<NodeId> {
        self.living(name)
    }

    fn core(&self) -> Rc<Core> {
        self.0.running.borrow().clone().expect("the world runs")
    }

    /// Ends the node as SIGKILL does: its tasks are dropped, its connections and files
    /// closed; writes in flight still reach their disks.
    pub fn kill(&self, name: &str) {
        let node = {
            let mut living = self.0.living.borrow_mut();
            let found = living.iter().position(|(living, _)| living == name);
            found.map(|at| living.remove(at).1)
        };
        if let Some(node) = node {
            self.held_up(name, false);
            self.core().kill(Some(node));
        }
    }

    fn held_up(&self, name: &str, stopped: bool) {
        let mut state = lock(&self.0.state);
        let now = state.now;
        state.held_up.stop(name, stopped, now);
    }

    /// Could two nodes not hear of each other, now or a moment ago: is one stopped or the path
    /// between them blocked, or did that change for one of them within `recent`?
    pub fn were_held_up(&self, a: &str, b: &str, recent: Duration) -> bool {
        let state = lock(&self.0.state);
        let held_up = |node: &str| {
            state.held_up.is_held_up(node, state.now, recent) || state.net.mute.contains(node)
        };
        let cut =
            |from: &str, to: &str| state.net.partitions.contains(&(from.to_owned(), to.to_owned()));
        held_up(a) || held_up(b) || cut(a, b) || cut(b, a)
    }

    /// Stops the node as SIGSTOP does, until [`SimWorld::resume`]: its operations on disks and
    /// connections continue, and their results wait.
    pub fn pause(&self, name: &str) {
        if let Some(node) = self.living(name) {
            self.held_up(name, true);
            self.core().pause(node);
        }
    }

    /// Continues a stopped node.
    pub fn resume(&self, name: &str) {
        if let Some(node) = self.living(name) {
            self.held_up(name, false);
            self.core().resume(node);
        }
    }

    fn living(&self, name: &str) -> Option<NodeId> {
        let living = self.0.living.borrow();
        living.iter().find(|(living, _)| living == name).map(|(_, node)| *node)
    }

    /// Puts the node on this host: byte locks of its files are visible there only.
    /// Nodes without a host share one.
    pub fn set_host(&self, name: &str, host: &str) {
        lock(&self.0.state).hosts.insert(name.to_owned(), host.to_owned());
    }

    /// Gives a host `count` processors instead of one, for the price of messages
    /// ([`super::SimOptions::price`]).
    pub fn set_processors(&self, host: &str, count: usize) {
        lock(&self.0.state).processors.insert(host.to_owned(), Processors::new(count));
    }

    /// How long a host's processors were busy with messages. Nodes without a host are on the
    /// host "".
    pub fn busy(&self, host: &str) -> Duration {
        lock(&self.0.state).processors.get(host).map_or(Duration::ZERO, Processors::busy)
    }

    /// Measures from now on, by a clock in nanoseconds, what the tasks of each node take of real
    /// time, until the run ends.
    ///
    /// # Panics
    /// The world does not run.
    pub fn meter(&self, clock: fn() -> u64) {
        self.core().meter.start(clock);
    }

    /// How much real time the tasks of this node have taken, since that is measured; zero if the
    /// node does not run.
    ///
    /// # Panics
    /// The world does not run.
    pub fn metered(&self, name: &str) -> Duration {
        let spent = self.living(name).map_or(0, |node| self.core().meter.spent(node));
        Duration::from_nanos(spent)
    }

    /// Gives the node a group of several executors. The scheduler still draws the next task from
    /// those of all of them; only the executor that a task belongs to differs.
    pub fn set_executors(&self, name: &str, executors: usize) {
        lock(&self.0.state).executors.insert(name.to_owned(), executors);
    }

    /// Makes the clock of a node run faster by `drift` millionths than the world's time (slower if
    /// negative). Not for a node that already runs: its clock would jump.
    pub fn set_drift(&self, name: &str, drift: i64) {
        assert!((-500_000..=500_000).contains(&drift), "a clock drifts by at most a half");
        lock(&self.0.state).clocks.entry(name.to_owned()).or_default().drift = drift;
    }

    /// Makes the wall clock of a node jump.
    pub fn jump_wall(&self, name: &str, seconds: i64) {
        lock(&self.0.state).clocks.entry(name.to_owned()).or_default().wall_seconds += seconds;
    }

    /// Sends the node a signal that `Env::stop_signal` awaits.
    pub fn signal(&self, name: &str, signal: i32) {
        lock(&self.0.state).signal(name, signal);
    }

    /// Delays all traffic between two nodes until [`SimWorld::heal`].
    pub fn partition(&self, a: &str, b: &str) {
        self.block(a, b);
        self.block(b, a);
    }

    /// Delays all traffic from one node to another until [`SimWorld::heal`], not the opposite way.
    pub fn block(&self, from: &str, to: &str) {
        lock(&self.0.state).block(from, to);
    }

    /// Makes the node's listeners take connections that nobody answers, or ends that.
    pub fn mute(&self, name: &str, mute: bool) {
        let net = &mut lock(&self.0.state).net;
        if mute {
            net.mute.insert(name.to_owned())
        } else {
            net.mute.remove(name)
        };
    }

    /// Delays all traffic between this node and those that exist now.
    pub fn isolate(&self, name: &str) {
        let mut state = lock(&self.0.state);
        for other in state.nodes.clone() {
            if other != name {
                state.block(name, &other);
                state.block(&other, name);
            }
        }
    }

    /// Ends all partitions; delayed traffic is delivered.
    pub fn heal(&self) {
        lock(&self.0.state).heal();
    }

    /// Ends the partition between two nodes; delayed traffic is delivered.
    pub fn heal_between(&self, a: &str, b: &str) {
        lock(&self.0.state).heal_between(a, b);
    }

    /// Resets the connections between two nodes at both ends.
    pub fn cut(&self, a: &str, b: &str) {
        lock(&self.0.state).cut(a, b);
    }

    /// The name of the node whose task runs now, if one does.
    pub fn running(&self) -> Option<String> {
        let node = self.0.running.borrow().as_ref()?.running()?;
        Some(lock(&self.0.state).nodes[node as usize].clone())
    }

    /// The virtual time.
    pub fn now(&self) -> Instant {
        lock(&self.0.state).now
    }

    /// A hash of all events; equal for equal seeds and programs.
    pub fn trace(&self) -> u64 {
        lock(&self.0.state).trace
    }
}

/// Resets the world however `run` is left, so that it can run again.
struct Ended<'a>(&'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.living.borrow_mut().clear();
        let core = self.0.running.borrow_mut().take();
        drop(core);
    }
}
