//! The configuration of a server.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use commitment::{Guards, Protocol};
use proto::mds::{Mds, ServerInfo};
use proto::message::{Peer, Versions};
use session::client::ReadClientKeys;
use session::server::ServerKeys;
use types::limits::LEASES_MAX;
use types::{Duration, PagId, Uuid};

use crate::fence::Fence;
use crate::joint::BATCH_MAX;
use crate::observer::Observer;

/// Default rate of a scrub in bytes a second, low enough not to disturb a disk's other users.
pub const SCRUB_RATE: u64 = 16 << 20;

/// Default of [`Config::spread_at`]: 99.99 % of directories have fewer than 8,000 names (004
/// §IV.C), and need no other server.
pub const SPREAD_AT: u64 = 50_000;

/// A data zone, and the path under which clients and the server find its device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PagPlace {
    /// Its number.
    pub id: PagId,
    /// UUID in its label.
    pub uuid: Uuid,
    /// Device or file.
    pub path: String,
}

/// Yields JSON about the membership of the servers.
pub type MembershipReport = Rc<dyn Fn() -> Pin<Box<dyn Future<Output = String>>>>;

/// Takes lines for the log.
pub type Log = Rc<dyn Fn(&str)>;

/// See the module.
#[derive(Clone)]
pub struct Config {
    /// Name of the file system that clients must ask for.
    pub fs_name: String,
    /// "host:port" to listen on; port 0: any.
    pub listen: String,
    /// How long a client may be silent before other clients need not wait for it.
    pub lease: Duration,
    /// Data zones. Zones that the store knows and this list does not are served without a path.
    pub pags: Vec<PagPlace>,
    /// Paths on this host of data zones of other servers, which may lend this one blocks of them.
    pub elsewhere: Vec<(PagId, String)>,
    /// Number of leases that the server keeps; beyond it, the server recalls the coldest ones.
    pub leases_max: usize,
    /// Requests that the server works on at once; `None`: all that there are.
    pub serve: Option<usize>,
    /// Pause between two scrubs of the metadata device; zero: scrub only on request.
    pub scrub_interval: Duration,
    /// Upper bound of such a scrub's rate, in bytes a second; 0: no bound.
    pub scrub_rate: u64,
    /// Versions of the protocol that it speaks.
    pub versions: Versions,
    /// Optional abilities of the protocol that it has, a bit each.
    pub features: u64,
    /// How it asks for keys; `None`: everybody who reaches it may do everything.
    pub keys: Option<ServerKeys>,
    /// The key that it shares with object targets; `None`: it can use none.
    pub target_key: Option<[u8; 32]>,
    /// How it proves its own key to object targets; `None`: it has none to prove.
    pub target_keys: Option<ReadClientKeys>,
    /// Check the invariants of the server's state after every event, or less often while there are
    /// many leases; for tests and simulation.
    pub validate: bool,
    /// Means to fence evicted clients, in the order in which they are tried.
    pub fences: Vec<Rc<dyn Fence>>,
    /// The server's own host, which no fence may cut off; empty: unknown.
    pub own_host: String,
    /// All metadata servers of the namespace, this one included; empty: it is the only one.
    pub servers: Vec<ServerInfo>,
    /// Names at which a directory is spread over the shards, unless its layout says otherwise.
    pub spread_at: u64,
    /// How shards agree on an operation. One phase is for two of them: more agree by early
    /// prepare.
    pub protocol: Protocol,
    /// Most operations of one directory that several shards agree on together; 1: each goes alone.
    pub batch: usize,
    /// What protects operations of several shards; only a test that shows that each part is needed
    /// leaves any out.
    pub guards: Guards,
    /// What the status says of the servers that stand by; `None`: there are none.
    pub membership: Option<MembershipReport>,
    /// Receives the log lines.
    pub log: Log,
    /// A test's observer, if there is one.
    pub observer: Option<Rc<dyn Observer>>,
}

impl Config {
    /// A configuration with the default lease of 30 s, no log, and scrubs only on request.
    /// Debug builds check invariants.
    pub fn new(fs_name: &str, listen: &str) -> Config {
        Config {
            fs_name: fs_name.to_owned(),
            listen: listen.to_owned(),
            lease: Duration::from_secs(30),
            pags: Vec::new(),
            elsewhere: Vec::new(),
            leases_max: LEASES_MAX,
            serve: None,
            scrub_interval: Duration::ZERO,
            scrub_rate: SCRUB_RATE,
            versions: Mds::VERSIONS,
            features: Mds::FEATURES,
            keys: None,
            target_key: None,
            target_keys: None,
            validate: cfg!(debug_assertions),
            fences: Vec::new(),
            own_host: String::new(),
            servers: Vec::new(),
            spread_at: SPREAD_AT,
            protocol: Protocol::OnePhase,
            batch: BATCH_MAX,
            guards: Guards::ALL,
            membership: None,
            log: Rc::new(|_| {}),
            observer: None,
        }
    }
}
