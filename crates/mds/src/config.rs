//! What a server is told at its start.

use std::rc::Rc;

use types::limits::LEASES_MAX;
use types::{Duration, PagId, Uuid};

use crate::onlooker::Onlooker;

/// Bytes that a scrub reads in a second if nobody says: a disk hardly notices it.
pub const SCRUB_RATE: u64 = 16 << 20;

/// A data zone and where clients and the server find its device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PagPlace {
    /// Its number.
    pub id: PagId,
    /// UUID in its label.
    pub uuid: Uuid,
    /// Device or file.
    pub path: String,
}

/// Takes lines for the log.
pub type Log = Rc<dyn Fn(&str)>;

/// See the module.
#[derive(Clone)]
pub struct Config {
    /// Name of the file system that clients must ask for.
    pub fs_name: String,
    /// "host:port" to listen on; port 0: any.
    pub listen: String,
    /// How long a client may be silent before others need not wait for it.
    pub lease: Duration,
    /// Data zones; those of the store that are missing here are served without a path.
    pub pags: Vec<PagPlace>,
    /// Leases kept; beyond them the coldest are recalled.
    pub leases_max: usize,
    /// Pause between two scrubs of the metadata device; zero: only when one is asked for.
    pub scrub_interval: Duration,
    /// Bytes that such a scrub reads in a second at most; 0: no bound.
    pub scrub_rate: u64,
    /// Where log lines go.
    pub log: Log,
    /// Who looks on, if anyone.
    pub onlooker: Option<Rc<dyn Onlooker>>,
}

impl Config {
    /// A configuration with the default lease of 30 s, no log, and no scrub but those asked for.
    pub fn new(fs_name: &str, listen: &str) -> Config {
        Config {
            fs_name: fs_name.to_owned(),
            listen: listen.to_owned(),
            lease: Duration::from_secs(30),
            pags: Vec::new(),
            leases_max: LEASES_MAX,
            scrub_interval: Duration::ZERO,
            scrub_rate: SCRUB_RATE,
            log: Rc::new(|_| {}),
            onlooker: None,
        }
    }
}
