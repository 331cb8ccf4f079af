//! Object storage targets of a cluster: real servers, each on a host and a device of its own.
//!
//! Invariants:
//! - a run without targets draws nothing, starts nothing and logs nothing here;
//! - a process that ends without a kill is a violation, unless the device failed a request since it
//!   started. It is started again until the device works.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};

use env::sim::{SimDisk, SimRng, SimWorld};
use env::{Disk, DiskOptions, Env, IoBuf};
use ost::server::{Config, Ost};
use ost::store::{Asked, FormatOptions, ObjectStore, Options, Room};
use session::client::ReadClientKeys;
use types::limits::{BLOCK, BLOCK_U64};
use types::{ClientId, Duration, PagId, Uuid, crc32c};

use crate::cluster::{Cluster, FS, fs_uuid};
use crate::drain_state::ADMINISTRATOR;
use crate::events::Event;
use crate::invariant::Invariant;
use crate::keys::Keys;
use crate::mover::Asker;
use crate::target_space::{self, FILLER};
use crate::target_state::node_name;

/// Most targets of a run.
pub const TARGETS_MAX: usize = 4;
/// Bytes of a target's device: more than the files of a run need.
const DEVICE: u64 = 96 << 20;
/// Content blocks of a small target, the least that a format accepts, and the others of its device.
const SMALL_CONTENT: u64 = 256;
const SMALL_OTHERS: u64 = 4097;
/// Those of them that only writes over others may take, and the first, which is never used.
const SMALL_UNUSABLE: u64 = SMALL_CONTENT / 16 + 1;
const LOG_BYTES: u64 = 8 << 20;
const CACHE_BYTES: usize = 8 << 20;
/// Age at which a target commits what nobody waits for.
const COMMIT: Duration = Duration::from_secs(1);
/// The key that the metadata servers and the targets share.
const KEY: [u8; 32] = [3; 32];
/// After this time a target that ended by itself is started again.
const RESTART_DELAY: Duration = Duration::from_millis(100);
/// Separates random numbers about targets from others.
const ASIDE: u64 = 0x7461_7267_6574_0000;

/// Where the target with this index listens.
fn address(nth: usize) -> String {
    format!("{}:7100", node_name(nth))
}

fn uuid(nth: usize) -> Uuid {
    let mut bytes = [0x54; 16];
    bytes[0] = nth as u8;
    Uuid(bytes)
}

/// How a target's store is opened.
pub(crate) fn opening() -> Options {
    Options { cache_bytes: CACHE_BYTES, commit_interval: COMMIT }
}

/// A freshly formatted device of the target with this index; a small one with so much room.
fn formatted(nth: usize, room: Option<u64>) -> SimDisk {
    static FORMATTED: Mutex<BTreeMap<(usize, Option<u64>), SimDisk>> = Mutex::new(BTreeMap::new());
    let mut all = FORMATTED.lock().unwrap_or_else(PoisonError::into_inner);
    all.entry((nth, room)).or_insert_with(|| format(nth, room)).fork()
}

fn format(nth: usize, room: Option<u64>) -> SimDisk {
    let (world, name) = (SimWorld::new(1), node_name(nth));
    let small = (SMALL_CONTENT + SMALL_OTHERS) * BLOCK_U64;
    let disk = world.disk(&name, if room.is_some() { small } else { DEVICE });
    let options = FormatOptions {
        fs_name: FS,
        fs: fs_uuid(),
        target: uuid(nth),
        log_bytes: LOG_BYTES,
        checksums: true,
        force: false,
    };
    world.run(|env| async move {
        let access = DiskOptions { write: true, exclusive: true };
        let device = env.open_disk(&name, access).await.expect("the disk is there");
        let made = ObjectStore::format(&env, &device, None, &options).await;
        made.expect("an empty disk can be formatted");
        if let Some(room) = room {
            fill(&env, &device, SMALL_CONTENT - SMALL_UNUSABLE - room).await;
        }
    });
    disk
}

/// Fills so many blocks of a target, for no file.
async fn fill(env: &Env, device: &Disk, blocks: u64) {
    let store = ObjectStore::open(env, device, None, opening()).await.expect("it is formatted");
    let data = IoBuf::zeroed(blocks as usize * BLOCK);
    let sums: Vec<u32> = data.chunks_exact(BLOCK).map(crc32c).collect();
    let nobody = Asked { client: ClientId::NONE, slot: 0, seq: 0 };
    let written = store.write(nobody, (FILLER, 0), data, &sums, Room::Repeated).await;
    written.expect("it has room");
    store.close().await.expect("its device works");
}

/// What a line of a target's log says of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Says<'a> {
    /// This client, which described itself so, has got its number.
    Connected(u64, &'a str),
    /// The target has forgotten this client and what it had not made durable.
    Forgotten(u64),
}

fn parse(text: &str) -> Option<Says<'_>> {
    let (number, rest) = text.strip_prefix("client ")?.split_once(" (")?;
    let (description, rest) = rest.split_once(')')?;
    let number = number.parse().ok()?;
    let rest = rest.trim_start();
    if rest.starts_with("has connected") {
        let node = description.split([',', ' ']).next().unwrap_or_default();
        return Some(Says::Connected(number, node));
    }
    let forgotten = ["is forgotten", "has not come back, and is forgotten"];
    forgotten.iter().any(|text| rest.starts_with(text)).then_some(Says::Forgotten(number))
}

impl Cluster {
    /// This many targets start, and their devices are attached. With a seed they have little room,
    /// which follows from it.
    pub(crate) fn begin_targets(&self, count: usize, small: Option<u64>) {
        self.targets.are_small.set(count > 0 && small.is_some());
        if count > 0 {
            let targets = self.targets.clone();
            self.events.subscribe(Box::new(move |event| targets.happened(event)));
        }
        for nth in 0..count {
            let disk = formatted(nth, small.map(|seed| target_space::drawn(seed, nth)));
            self.world.attach(&node_name(nth), &disk);
            self.targets.disks.borrow_mut().push(disk);
            self.start_target(nth);
        }
    }

    /// What metadata servers share with targets; `None` without targets.
    pub(crate) fn target_key(&self) -> Option<[u8; 32]> {
        (self.targets.count() > 0).then_some(KEY)
    }

    /// How the metadata server on this node proves its key to targets; `None` without targets.
    pub(crate) fn keys_for_targets(&self, node: &str) -> Option<ReadClientKeys> {
        let keys = self.keys.as_ref().filter(|_| self.targets.count() > 0);
        keys.map(|keys| keys.of_client(node))
    }

    /// The data zones that are targets, in the order of the targets.
    pub(crate) fn target_zones(&self) -> impl Iterator<Item = PagId> + use<> {
        let first = self.zones().count();
        (first..first + self.targets.count()).map(|zone| PagId(zone as u16))
    }

    /// The administrator makes the targets data zones, and object files of all that is made.
    ///
    /// # Errors
    /// A server does not take one.
    pub(crate) async fn enter_targets(&self, seed: u64) -> Result<(), String> {
        if self.targets.count() == 0 {
            return Ok(());
        }
        let asker = Asker::new(self, self.world.node(ADMINISTRATOR), ADMINISTRATOR);
        for (nth, zone) in self.target_zones().enumerate() {
            asker.add_zone(&format!("ost:{}", address(nth)), zone).await;
        }
        let spread = if self.has_several() { " mds=spread" } else { "" };
        self.set_layout(&format!("{}{spread}", layout(seed, self.targets.count()))).await
    }

    /// Starts a target on its node.
    pub(crate) fn start_target(&self, nth: usize) {
        let name = node_name(nth);
        let (cluster, env) = (self.clone(), self.world.node(&name));
        let run = self.world.run_of(&name);
        self.targets.note_start(nth);
        env.clone().spawn(async move {
            let ended = cluster.serve_target(&env, nth).await;
            cluster.events.line(&format!("{name} ended: {ended:?}"));
            if cluster.world.run_of(&name) != run {
                return;
            }
            match ended {
                Err(_) if cluster.targets.may_end(nth) => {
                    cluster.targets.note(|counts| counts.ends += 1);
                    cluster.start_target_again(nth, run);
                }
                Err(text) => cluster.events.broken(Invariant::Server, &format!("{name}: {text}")),
                Ok(()) => {}
            }
        });
    }

    /// A supervisor sees that a target has ended, and starts it, unless somebody killed it
    /// meanwhile.
    fn start_target_again(&self, nth: usize, run: Option<u32>) {
        let this = self.clone();
        self.env.spawn(async move {
            this.env.sleep(RESTART_DELAY).await;
            if this.world.run_of(&node_name(nth)) == run {
                this.kill_target(nth);
                this.start_target(nth);
            }
        });
    }

    async fn serve_target(&self, env: &Env, nth: usize) -> Result<(), String> {
        let name = node_name(nth);
        let device = loop {
            let access = DiskOptions { write: true, exclusive: true };
            match env.open_disk(&name, access).await {
                // Requests of an earlier run are under way.
                Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                    env.sleep(Duration::from_millis(1)).await;
                }
                opened => break opened.map_err(|error| error.to_string())?,
            }
        };
        let opened = ObjectStore::open(env, &device, None, opening()).await;
        let store = opened.map_err(|error| error.to_string())?;
        self.targets.serves(nth, &store);
        let this = self.clone();
        let config = Config {
            lease: self.lease,
            keys: self.keys.as_ref().map(Keys::of_server),
            validate: true,
            log: Rc::new(move |text| {
                this.events.line(&format!("{}: {text}", node_name(nth)));
                this.on_target_line(nth, text);
            }),
            ..Config::new(&address(nth), KEY)
        };
        let started = Ost::start(env.clone(), store, config).await;
        let server = started.map_err(|error| error.to_string())?;
        server.run(std::future::pending()).await.map_err(|error| error.to_string())
    }

    fn on_target_line(&self, nth: usize, text: &str) {
        match parse(text) {
            Some(Says::Connected(number, node)) => {
                if let Some(run) = self.world.run_of(node) {
                    let client = (node.to_owned(), run);
                    self.targets.clients.borrow_mut().insert((nth, number), client);
                }
            }
            Some(Says::Forgotten(number)) => {
                let client = self.targets.clients.borrow().get(&(nth, number)).cloned();
                if let Some(client) = client {
                    self.targets.forgotten.borrow_mut().insert(client.clone());
                    let zone = self.target_zones().nth(nth).unwrap_or_default();
                    self.events.emit(Event::Forgets(zone, (&client.0, client.1)));
                }
            }
            None => {}
        }
    }

    /// Has a target forgotten the present run of this node?
    pub(crate) fn was_forgotten(&self, node: &str) -> bool {
        let run = self.world.run_of(node);
        run.is_some_and(|run| self.targets.have_forgotten(&(node.to_owned(), run)))
    }

    /// The nodes that a host does not reach while it is cut off for this long: the metadata
    /// servers, in every second case the targets, too. Of several shards in every third case only
    /// the server of one.
    pub(crate) fn out_of_reach(&self, time: Duration) -> Vec<String> {
        let drawn = time.as_micros() / 3;
        if self.has_several() && time.as_micros().is_multiple_of(3) {
            let shard = self.all_shards().nth((drawn % self.shards.len() as u128) as usize);
            return shard.map(|shard| self.server_of(shard)).into_iter().collect();
        }
        let with_targets = time.as_micros().is_multiple_of(2);
        let targets = self.targets.nodes().filter(|_| with_targets);
        self.servers().into_iter().chain(targets).collect()
    }

    /// Kills the process of a target.
    pub(crate) fn kill_target(&self, nth: usize) {
        self.world.kill(&node_name(nth));
    }

    /// The host of a killed target loses power: its device keeps any part of what was not flushed.
    pub(crate) fn target_loses_power(&self, nth: usize, rng: &mut SimRng) {
        let disk = self.targets.disk(nth).after_power_cut(rng);
        self.world.attach(&node_name(nth), &disk);
        self.targets.disks.borrow_mut()[nth] = disk;
    }

    /// All hosts of targets lose power.
    pub(crate) fn targets_lose_power(&self, rng: &mut SimRng) {
        for nth in 0..self.targets.count() {
            self.kill_target(nth);
            self.target_loses_power(nth, rng);
        }
    }

    /// All targets start.
    pub(crate) fn start_targets(&self) {
        (0..self.targets.count()).for_each(|nth| self.start_target(nth));
    }
}

/// The layout of the root directory, by the seed: one target for each file, or parts of 8 or 64 KiB
/// on several.
pub(crate) fn layout(seed: u64, count: usize) -> String {
    let mut rng = SimRng::new(seed ^ ASIDE);
    let part = if rng.one_in(2) { " part=8K" } else { " part=64K" };
    match count > 1 && rng.one_in(2) {
        true => format!("policy=objects{part} width={}", rng.between(2, count as u64)),
        false => format!("policy=objects{part}"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proto::placement::Layout;

    use super::*;

    #[test]
    fn lines_of_a_target_say_which_client_it_knows_and_forgets() {
        assert_eq!(parse("client 4 (c0) has connected"), Some(Says::Connected(4, "c0")));
        assert_eq!(
            parse("client 4 (c0, key c0) has connected as c0"),
            Some(Says::Connected(4, "c0"))
        );
        let silent = "client 7 (c1) is forgotten: it was silent for 5 s";
        assert_eq!(parse(silent), Some(Says::Forgotten(7)));
        let absent = "client 7 (c1) has not come back, and is forgotten: what it had written and \
                      not made durable before the restart is lost";
        assert_eq!(parse(absent), Some(Says::Forgotten(7)));
        assert_eq!(parse("client 7 (c1) has left"), None);
        assert_eq!(parse("client 7 of metadata server 0 is fenced"), None);
    }

    #[test]
    fn drawn_layouts_of_targets_are_valid() {
        let all = (0..100).flat_map(|seed| (1..=TARGETS_MAX).map(move |n| layout(seed, n)));
        let all: BTreeSet<String> = all.collect();
        assert!(all.len() > 6, "{all:?}");
        for text in &all {
            assert!(text.parse::<Layout>().is_ok(), "{text}");
        }
    }
}
