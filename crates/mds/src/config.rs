//! What a server is told at its start.

use std::rc::Rc;

use proto::mds::Op;
use types::limits::LEASES_MAX;
use types::{ClientId, Duration, Extent, Ino, PagId, Uuid};

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

/// Is told of each operation of a client that took effect, at the instant it did. It waits for nothing.
pub type Witness = Rc<dyn Fn(ClientId, &Op)>;

/// What a commit lets the metadata point at.
#[derive(Clone, Copy, Debug)]
pub struct Pointed<'a> {
    /// Whose commit.
    pub client: ClientId,
    /// Of which file.
    pub ino: Ino,
    /// Blocks that become the file's, or hold its data from now on.
    pub extents: &'a [Extent],
    /// It was done before, by a server that died.
    pub replay: bool,
}

/// Is told of it within the transaction, which may begin anew: then it is told again.
pub type OnCommit = Rc<dyn Fn(&Pointed<'_>)>;

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
    /// Who is told what took effect, if anyone.
    pub witness: Option<Witness>,
    /// Who looks on as commits are executed, for tests.
    pub on_commit: Option<OnCommit>,
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
            witness: None,
            on_commit: None,
        }
    }
}
