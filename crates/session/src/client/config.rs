//! What a session needs to know before it meets its server.

use std::rc::Rc;

use proto::message::{CLIENT, Expected, Hello, Peer, Versions};
use proto::wire::Appended;
use types::{Duration, ServerId, Uuid};

use super::{KeptLimits, ReadClientKeys};

/// See the module.
#[derive(Clone)]
pub struct Config {
    /// Addresses of the server, "host:port", tried in turn.
    pub addresses: Vec<String>,
    /// Name of the file system.
    pub fs_name: String,
    /// For people: "host, pid, mount point".
    pub description: String,
    /// What it is: [`CLIENT`], or a metadata server at a target.
    pub role: u8,
    /// Requested lease; `None`: the server's own.
    pub lease: Option<Duration>,
    /// How long the first greeting is tried before it fails with the reason.
    pub connect_timeout: Duration,
    /// Versions that the client speaks.
    pub versions: Versions,
    /// Abilities that it has, a bit each.
    pub features: u64,
    /// The server that it expects.
    pub expected: Expected,
    /// Reads the keys for connections by TCP; `None`: there are none, and frames are clear.
    pub keys: Option<ReadClientKeys>,
    /// How much it keeps for replay.
    pub kept: KeptLimits,
    /// How long after its last request a session asks what is durable that keeps something. `None`:
    /// it waits for the server's notice, or the next renewal of the lease.
    pub ping: Option<Duration>,
    /// Receives log lines.
    pub log: Rc<dyn Fn(&str)>,
}

impl Config {
    /// The session of a client that speaks what this code speaks, with any server of the kind.
    pub fn new<P: Peer>(addresses: Vec<String>, fs_name: &str) -> Config {
        let expected =
            Expected { server: ServerId::ANY, role: P::ROLE, fs_uuid: Uuid::default(), map: 0 };
        Config {
            addresses,
            fs_name: fs_name.to_owned(),
            description: String::new(),
            role: CLIENT,
            lease: None,
            connect_timeout: Duration::from_secs(10),
            versions: P::VERSIONS,
            features: P::FEATURES,
            expected,
            keys: None,
            kept: KeptLimits::default(),
            ping: None,
            log: Rc::new(|_| ()),
        }
    }

    /// The first greeting.
    pub(super) fn hello<P: Peer>(&self, nonce: u64) -> Hello {
        let lease_ms = self.lease.map_or(0, |lease| lease.as_millis().min(u128::from(u32::MAX)));
        Hello {
            version_min: self.versions.min,
            version_max: self.versions.max,
            features: self.features,
            nonce,
            lease_ms: lease_ms as u32,
            expected: Appended(Some(self.expected.clone())),
            ..Hello::new::<P>(self.role, &self.fs_name, &self.description)
        }
    }
}

/// Why there is no session: what failed, where, and what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectError {
    /// The text.
    pub text: String,
}

impl std::fmt::Display for ConnectError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for ConnectError {}
