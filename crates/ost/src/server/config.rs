//! How a target serves.

use std::rc::Rc;

use session::server::ServerKeys;
use types::Duration;

/// Bytes of requests and answers that are worked on at once: three quarters for writes, the rest
/// for reads.
pub const MEMORY: usize = 256 << 20;
/// Least of these: one request of the largest size, and what it reads meanwhile.
pub const MEMORY_MIN: usize = 4 << 20;
/// Default rate of a scrub in bytes a second: low enough not to disturb who uses the device.
pub const SCRUB_RATE: u64 = 16 << 20;

/// See the module.
#[derive(Clone)]
pub struct Config {
    /// Address that it listens on, "host:port".
    pub listen: String,
    /// Longest silence of a client that is still known, and longest recovery after a restart.
    pub lease: Duration,
    /// The key that metadata server and targets share.
    pub key: [u8; 32],
    /// How it asks connections for keys; `None`: capabilities are all that it asks for.
    pub keys: Option<ServerKeys>,
    /// Bytes that requests carry, and reads fetch, of all clients at once. Further requests wait.
    pub memory: usize,
    /// Quiet clients hear by themselves what has become durable.
    pub notices: bool,
    /// Pause between two scrubs that nobody requested; zero: there are none.
    pub scrub_interval: Duration,
    /// Bytes a second that such a scrub reads at most; 0: no bound.
    pub scrub_rate: u64,
    /// Check the invariants after every request; for tests.
    pub validate: bool,
    /// Receives log lines.
    pub log: Rc<dyn Fn(&str)>,
}

impl Config {
    /// The usual lease of 30 s and memory, without keys for connections and without a log. Debug
    /// builds check invariants.
    pub fn new(listen: &str, key: [u8; 32]) -> Config {
        Config {
            listen: listen.to_owned(),
            lease: Duration::from_secs(30),
            key,
            keys: None,
            memory: MEMORY,
            notices: true,
            scrub_interval: Duration::ZERO,
            scrub_rate: SCRUB_RATE,
            validate: cfg!(debug_assertions),
            log: Rc::new(|_| ()),
        }
    }
}
