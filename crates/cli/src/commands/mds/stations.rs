//! The stations of a process: the addresses at each of which it stands by and serves one shard.
//!
//! The first station is what the process was started for. While it owns a shard, the others stand
//! by for all other shards, behind everybody who serves nothing (`mds::standby::Courtesy`). Each
//! has a thread with an executor of its own, its own memberships, devices, sessions and control
//! socket. A station is a standby as another process is one (`super::standby`): for the membership,
//! for clients, for other servers. So what concerns two shards of one process goes over the network
//! as between hosts, and nothing has to know that they are neighbours.
//!
//! Why an address for each, although a greeting names its shard: a listener would have to hand a
//! connection with its half-done greeting to another thread, and a shard that stops would stop the
//! doorman of the others.
//!
//! Invariants:
//! - a shard belongs to one station: the others of the process do not stand by for it;
//! - what ends at one station ends there only, while another one owns: a failed device, a lost
//!   lease, a handover. The first station then stands by in the same process;
//! - the membership by which a station owns outlives its executor, so that what proves its end to
//!   others is true;
//! - no station claims anything from the moment on at which the process ends.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use env::DriverKind;
use membership::Membership;
use types::ShardId;

use super::{Done, Post, failed, membership_of, standby};
use crate::args::MdsArgs;
use crate::config::Cluster;
use crate::exit::{Ended, Failure, Status};
use crate::log;

/// Pause after a station has failed.
const PAUSE: Duration = Duration::from_secs(1);

/// What the stations of a process know of each other.
#[derive(Default)]
pub struct Stations {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// What each station owns, or claims just now.
    owned: Vec<Option<ShardId>>,
    /// Threads of further stations that run.
    threads: usize,
    /// The process ends.
    is_over: bool,
}

impl State {
    fn may_begin(&self, station: usize, shard: ShardId) -> bool {
        let first = station == 0 || self.owned[0].is_some();
        first && !self.owned.contains(&Some(shard)) && !self.is_over && !env::asked_to_stop()
    }

    fn others_own(&self, station: usize) -> bool {
        self.owned.iter().enumerate().any(|(one, owned)| one != station && owned.is_some())
    }
}

impl Stations {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.lock());
        self.changed.notify_all();
        changed
    }

    /// The station is about to claim a shard; false: it must not.
    pub fn begins(&self, station: usize, shard: ShardId) -> bool {
        self.change(|state| {
            let begins = state.may_begin(station, shard);
            if begins {
                state.owned[station] = Some(shard);
            }
            begins
        })
    }

    /// May the station claim a shard?
    pub fn may_begin(&self, station: usize, shard: ShardId) -> bool {
        self.lock().may_begin(station, shard)
    }

    /// The station owns nothing any more.
    pub fn ends(&self, station: usize) {
        self.change(|state| state.owned[station] = None);
    }

    /// Does another station own something, or claim it just now?
    pub fn others_own(&self, station: usize) -> bool {
        self.lock().others_own(station)
    }

    /// The process ends, unless another station than this one owns something; true: it ends.
    fn ends_with(&self, station: usize) -> bool {
        self.change(|state| {
            state.is_over |= !state.others_own(station);
            state.is_over
        })
    }

    /// Does the first station own this shard, in a process that goes on?
    pub fn first_owns(&self, shard: ShardId) -> bool {
        let state = self.lock();
        state.owned[0] == Some(shard) && !state.is_over && !env::asked_to_stop()
    }

    /// Waits until the first station owns something; `None`: the process ends.
    fn wait_for_first(&self) -> Option<ShardId> {
        let waiting = |state: &mut State| state.owned[0].is_none() && !state.is_over;
        let state = self.changed.wait_while(self.lock(), waiting);
        let state = state.unwrap_or_else(PoisonError::into_inner);
        state.owned[0].filter(|_| !state.is_over)
    }

    /// Waits until no station but this one owns anything.
    fn wait_alone(&self, station: usize) {
        let state = self.changed.wait_while(self.lock(), |state| state.others_own(station));
        drop(state);
    }

    /// The process ends: waits until no other station owns anything, and for a moment until their
    /// threads have ended. One that waits for a device has nothing to finish.
    fn end(&self) {
        self.change(|state| state.is_over = true);
        self.wait_alone(0);
        let state = self.changed.wait_timeout_while(self.lock(), PAUSE, |state| state.threads > 0);
        drop(state);
    }

    /// Waits for a while, unless the process ends.
    fn pause(&self) {
        let state = self.changed.wait_timeout_while(self.lock(), PAUSE, |state| !state.is_over);
        drop(state);
    }
}

/// The membership by which a station owns what it owns.
pub type Owned = Rc<RefCell<Option<Rc<dyn Membership>>>>;

/// A station of a process.
#[derive(Clone)]
pub struct Station {
    /// Its place among the stations; 0: the first.
    pub index: usize,
    /// All of them.
    pub stations: Arc<Stations>,
    /// Whose metadata it may come to own, each as its server sees the cluster.
    pub clusters: Vec<Cluster>,
    /// The shard that the first station owns meanwhile; `None`: this is the first one.
    pub beside: Option<ShardId>,
    /// The server that it looks for first.
    pub wanted: Option<u16>,
    /// It waits for its turn, and is not refused if another server serves.
    pub stands_by: bool,
    /// It has handed over, and lets others claim first for some seconds.
    pub hold_back: bool,
    /// Somebody waits until the process is ready.
    pub is_awaited: bool,
    /// Its control socket, if not the usual one.
    pub control: Option<PathBuf>,
}

impl Station {
    /// Serves, or stands by and then serves, until it has ended.
    fn run(&self, args: &MdsArgs) -> Result<Done, Failure> {
        let post = |cluster: &Cluster| {
            Ok(Post { cluster: cluster.clone(), membership: membership_of(cluster)? })
        };
        let posts: Vec<Post> = self.clusters.iter().map(post).collect::<Result<_, Failure>>()?;
        let (station, owned) = (Rc::new(self.clone()), Owned::default());
        let held = owned.clone();
        let ended =
            env::run(DriverKind::Auto, |env| standby::run(env, (posts, held), station, args));
        // Only now nothing of the executor goes on that its lock or lease stands for.
        drop(owned);
        self.stations.ends(self.index);
        ended.map_err(|error| failed(format!("cannot start the I/O driver: {error}"))).flatten()
    }

    /// From now on it stands by, whatever it did.
    fn begins_anew(&mut self, ended: &Result<Done, Failure>) {
        self.stands_by = true;
        self.is_awaited = false;
        self.hold_back = matches!(ended, Ok(Done::StandsBy));
    }
}

/// Runs the stations of a process: the first for `clusters`, and one at each of the addresses
/// `take_over` for all servers but the one that the first is.
pub fn run(
    (clusters, all): (Vec<Cluster>, Vec<Cluster>),
    take_over: &[String],
    args: &MdsArgs,
) -> Ended {
    let stations = Arc::new(Stations::default());
    stations.lock().owned.resize(1 + take_over.len(), None);
    let first = Station {
        index: 0,
        stations: stations.clone(),
        clusters,
        beside: None,
        wanted: args.server,
        stands_by: args.standby,
        hold_back: args.hold_back,
        is_awaited: true,
        control: args.control.clone(),
    };
    for (index, address) in (1..).zip(take_over) {
        let mut clusters = all.clone();
        clusters.iter_mut().for_each(|cluster| cluster.listen_at(address.clone()));
        let control = args.control.as_deref().map(|path| {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            path.with_file_name(format!("{stem}-{index}.sock"))
        });
        let station =
            Station { index, clusters, wanted: None, stands_by: true, control, ..first.clone() };
        start(station, args)?;
    }
    let ended = run_first(first, args);
    stations.end();
    match ended? {
        Done::Ended(code) => Ok(code),
        // Nothing of the server that has served is left in the new one.
        Done::StandsBy => Err(standby::begin_anew()),
    }
}

/// Runs the first station until the process ends.
fn run_first(mut station: Station, args: &MdsArgs) -> Result<Done, Failure> {
    let stations = station.stations.clone();
    loop {
        let ended = station.run(args);
        if matches!(ended, Ok(Done::Ended(_))) || stations.ends_with(0) {
            return ended;
        }
        if let Err(failure) = &ended {
            log::line(&format!(
                "{failure}; this process goes on for what else it serves, and stands by for this"
            ));
            if failure.code == Status::Superseded as u8 {
                stations.wait_alone(0);
                return ended;
            }
            stations.pause();
        }
        if env::asked_to_stop() {
            return Ok(Done::Ended(0));
        }
        station.begins_anew(&ended);
    }
}

/// Starts the thread of a further station.
fn start(station: Station, args: &MdsArgs) -> Result<(), Failure> {
    let (args, stations) = (args.clone(), station.stations.clone());
    let name = format!("redbud-mds-{}", station.index);
    stations.change(|state| state.threads += 1);
    let run = move || {
        let _guard = EndsInPanic;
        let stations = station.stations.clone();
        run_beside(station, &args);
        stations.change(|state| state.threads -= 1);
    };
    let started = std::thread::Builder::new().name(name).spawn(run);
    started.map(drop).map_err(|error| failed(format!("cannot start a thread: {error}")))
}

/// Runs a further station as often as the first one owns something, until the process ends.
fn run_beside(mut station: Station, args: &MdsArgs) {
    let (stations, all) = (station.stations.clone(), station.clusters.clone());
    station.is_awaited = false;
    while let Some(own) = stations.wait_for_first() {
        station.beside = Some(own);
        station.clusters = all.iter().filter(|one| one.shard != own).cloned().collect();
        let ended = station.run(args);
        station.begins_anew(&ended);
        if env::asked_to_stop() {
            return;
        }
        if let Err(failure) = ended {
            let address = &station.clusters[0].listen;
            log::line(&format!("{address}: {failure}; what this process serves besides goes on"));
            if failure.code == Status::Superseded as u8 {
                return;
            }
            stations.pause();
        }
    }
}

/// Ends the process when a station's thread panics: an invariant is broken.
struct EndsInPanic;

impl Drop for EndsInPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}
