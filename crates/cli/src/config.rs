//! The cluster's file: TOML that names the file system, its zones, its server and the keys.
//!
//! Invariants:
//! - a [`Cluster`] is valid: names, sizes and numbers were checked, and no path appears twice;
//! - every error names file, line and key, and states what to write instead;
//! - clients read only the keys in it ([`ClientView`]): the server sends them the paths of the data
//!   zones;
//! - a host with targets reads only what concerns these ([`TargetsView`]).

mod standby;
mod targets;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

pub use standby::{EtcdConfig, MembershipConfig};
pub use targets::{OstConfig, TargetsView};

use channel::{Mode, PublicKey, SECRETS_MAX};
use label::SLICES_MAX;
use mfs::LayoutAhead;
use serde::Deserialize;
use toml::Spanned;
use types::limits::{BLOCK_U64, PAGS_MAX};
use types::{Duration, PagId, check_fs_name};

use crate::address::{DEFAULT_PORT, check_address};
use crate::keys::{CLIENT_KEY, parse_security};
use types::units::{parse_duration, parse_size};

/// Smallest data zone.
pub const DATA_MIN: u64 = mfs::new_device::ZONE_MIN;
/// Smallest device of a journal: the smallest log, and the blocks before and after it.
pub const JOURNAL_MIN: u64 = (4 << 20) + 4 * BLOCK_U64;
/// Smallest metadata zone.
pub const METADATA_MIN: u64 = 64 << 20;
/// Lease of clients, by default.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(30);
/// Bounds of a lease.
pub const LEASE_RANGE: Range<Duration> = Duration::from_secs(1)..Duration::from_secs(3601);
/// The metadata server's buffer cache, by default.
pub const DEFAULT_CACHE: u64 = 256 << 20;
/// Pause between two scrubs, by default.
const DEFAULT_SCRUB_INTERVAL: Duration = Duration::from_secs(7 * 24 * 3600);
/// Shortest pause between two scrubs.
const SCRUB_INTERVAL_MIN: Duration = Duration::from_secs(1);
/// More requests at once than a server may have.
const SERVE_MAX: usize = 1 << 20;
/// Slowest scrub.
const SCRUB_RATE_MIN: u64 = 64 << 10;
/// Smallest buffer cache.
pub const CACHE_MIN: u64 = 8 << 20;

/// How long an action of a fence agent may take, by default.
const DEFAULT_FENCE_TIMEOUT: Duration = Duration::from_secs(60);
/// Bounds of that time.
const FENCE_TIMEOUT_RANGE: Range<Duration> = Duration::from_secs(1)..Duration::from_secs(601);
/// Most bytes of a fence agent's options.
const FENCE_OPTIONS_MAX: usize = 4096;

/// Checks the size of a cache.
///
/// # Errors
/// The sizes that are allowed.
pub fn check_cache(bytes: u64) -> Result<u64, String> {
    match bytes >= CACHE_MIN && bytes.is_multiple_of(BLOCK_U64) {
        true => Ok(bytes),
        false => Err(must_be(CACHE_MIN)),
    }
}

fn must_be(least: u64) -> String {
    format!("it must be a multiple of 4K, at least {}", types::units::human_size(least))
}

/// A checked cluster file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cluster {
    /// The file that it was read from.
    pub file: PathBuf,
    /// Name of the file system.
    pub name: String,
    /// Address that the metadata server listens on.
    pub listen: String,
    /// The addresses of the other servers, which stand by or serve in its place.
    pub standbys: Vec<String>,
    /// Where the servers agree on who of them serves; `None`: there is one server.
    pub membership: Option<MembershipConfig>,
    /// What clients have to prove; `None`: nothing.
    pub security: Option<Mode>,
    /// The file with the server's secret keys.
    pub key: PathBuf,
    /// The file with the keys that the server allows.
    pub allowed: PathBuf,
    /// The server's public keys, for clients.
    pub public_keys: Vec<PublicKey>,
    /// Lease of clients.
    pub lease: Duration,
    /// Requests that the server works on at once; `None`: all that there are.
    pub serve: Option<usize>,
    /// Bytes of the metadata server's buffer cache.
    pub cache: u64,
    /// Pause between two scrubs of the metadata zone; zero: only on request.
    pub scrub_interval: Duration,
    /// Maximum of bytes that such a scrub reads in a second; 0: no limit.
    pub scrub_rate: u64,
    /// Fragmentation of a directory from which on new files in it get a layout block at creation.
    pub layout_ahead: LayoutAhead,
    /// The metadata zone.
    pub metadata: Zone,
    /// Bytes of its internal log; by default a share of the zone.
    pub log: Option<u64>,
    /// The device of its journal; `None`: the log is internal.
    pub journal: Option<Zone>,
    /// The data zones. Those of one device follow each other, in the order of their places on it.
    pub data: Vec<(PagId, Zone)>,
    /// Agents that fence evicted clients, in the order in which they are tried.
    pub fences: Vec<FenceConfig>,
    /// The file with the key that the server shares with object targets; `None`: it can use none.
    pub target_key: Option<PathBuf>,
}

/// An agent that fences clients.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FenceConfig {
    /// Pattern of the hosts that it fences.
    pub host: String,
    /// The program.
    pub agent: PathBuf,
    /// How long one action of it may take.
    pub timeout: Duration,
    /// Its options, at most [`FENCE_OPTIONS_MAX`] bytes; `{host}` in a value is the host's name.
    pub options: BTreeMap<String, String>,
}

/// A device or file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Zone {
    /// Its path.
    pub path: PathBuf,
    /// For a file: mkfs creates it (sparse) with this size if it does not exist.
    pub size: Option<u64>,
}

/// An error in a cluster's file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigError {
    /// The file.
    pub file: PathBuf,
    /// Line of the error, counted from 1, if known.
    pub line: Option<usize>,
    /// What is wrong and what to do.
    pub text: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        write!(f, " {}", self.text)
    }
}

impl std::error::Error for ConfigError {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCluster {
    name: Spanned<String>,
    #[serde(default)]
    server: RawServer,
    metadata: RawMetadata,
    #[serde(default)]
    data: Vec<RawData>,
    #[serde(default)]
    fence: Vec<RawFence>,
    membership: Option<standby::RawMembership>,
    /// Also for targets: see [`TargetsView`].
    #[serde(default)]
    targets: targets::RawTargets,
    #[serde(default, rename = "ost")]
    _ost: Vec<targets::RawOst>,
    /// For clients: see [`ClientView`].
    #[serde(default, rename = "client")]
    _client: RawClient,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct RawClient {
    key: Option<Spanned<PathBuf>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct RawServer {
    listen: Option<Spanned<String>>,
    standbys: Option<Vec<Spanned<String>>>,
    security: Option<Spanned<String>>,
    key: Option<Spanned<PathBuf>>,
    allowed: Option<Spanned<PathBuf>>,
    public_keys: Option<Vec<Spanned<String>>>,
    lease: Option<Spanned<String>>,
    cache: Option<Spanned<String>>,
    serve: Option<Spanned<u64>>,
    scrub_interval: Option<Spanned<String>>,
    scrub_rate: Option<Spanned<String>>,
    layout_ahead: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMetadata {
    path: Spanned<PathBuf>,
    size: Option<Spanned<String>>,
    log: Option<Spanned<String>>,
    journal: Option<Spanned<PathBuf>>,
    journal_size: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawData {
    path: Spanned<PathBuf>,
    size: Option<Spanned<String>>,
    id: Option<Spanned<u16>>,
    slices: Option<Spanned<u16>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFence {
    host: Spanned<String>,
    agent: Spanned<PathBuf>,
    timeout: Option<Spanned<String>>,
    #[serde(default)]
    options: BTreeMap<String, Spanned<String>>,
}

/// Maximum size of a cluster's file.
const FILE_MAX: u64 = 1 << 20;

/// The text of a file; `None` if it is longer.
fn read_at_most(path: &Path, most: u64) -> std::io::Result<Option<String>> {
    let mut text = String::new();
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Ok(None);
    }
    bytes.as_slice().read_to_string(&mut text)?;
    Ok(Some(text))
}

/// The text of a cluster's file.
fn read_file(path: &Path) -> Result<String, ConfigError> {
    let wrong = |text| ConfigError { file: path.to_owned(), line: None, text };
    let text =
        read_at_most(path, FILE_MAX).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    text.ok_or_else(|| {
        wrong(format!("is not a cluster's file: it has more than {} MiB", FILE_MAX >> 20))
    })
}

impl Cluster {
    /// Reads and checks the file at `path`.
    pub fn read(path: &Path) -> Result<Cluster, ConfigError> {
        Cluster::parse(path, &read_file(path)?)
    }

    /// Checks `text`, which came from `file`; relative paths in it start at the file's directory.
    pub fn parse(file: &Path, text: &str) -> Result<Cluster, ConfigError> {
        let reader = Reader { file, text };
        let raw: RawCluster = toml::from_str(text).map_err(|error| reader.syntax(&error))?;
        let name = raw.name.get_ref().clone();
        if !check_fs_name(&name) {
            let text = format!(
                "key `name`: `{name}` is not a name of a file system: write 1 to 63 letters, digits, '-', '_' or '.', beginning with a letter or digit"
            );
            return Err(reader.at(raw.name.span(), text));
        }
        if raw.data.is_empty() && raw.targets.key.is_none() {
            return Err(reader.anywhere(
                "no data zone: add a table [[data]] with a key `path`, or a table [targets] with the \
                 `key` of object targets",
            ));
        }
        if raw.data.len() > PAGS_MAX {
            return Err(reader.anywhere(format!("more than {PAGS_MAX} data zones")));
        }
        let listen = reader.listen(raw.server.listen)?;
        let cluster = Cluster {
            file: file.to_owned(),
            name,
            standbys: reader.standbys(&listen, raw.server.standbys.as_ref())?,
            listen,
            membership: reader.membership(raw.membership.as_ref())?,
            security: reader.security(raw.server.security.as_ref())?,
            key: reader.beside(raw.server.key.as_ref(), "key"),
            allowed: reader.beside(raw.server.allowed.as_ref(), "allowed"),
            public_keys: reader.public_keys(raw.server.public_keys.as_ref())?,
            lease: reader.lease(raw.server.lease)?,
            serve: reader.serve(raw.server.serve)?,
            scrub_interval: reader.scrub_interval(raw.server.scrub_interval)?,
            scrub_rate: reader.scrub_rate(raw.server.scrub_rate)?,
            layout_ahead: reader.layout_ahead(raw.server.layout_ahead)?,
            cache: reader
                .size("server.cache", raw.server.cache, CACHE_MIN)?
                .unwrap_or(DEFAULT_CACHE),
            log: reader.size("metadata.log", raw.metadata.log.clone(), 4 << 20)?,
            metadata: Zone {
                path: reader.path(raw.metadata.path.get_ref()),
                size: reader.size("metadata.size", raw.metadata.size.clone(), METADATA_MIN)?,
            },
            journal: reader.journal(&raw.metadata)?,
            data: reader.zones(raw.data, &raw.metadata)?,
            fences: reader.fences(raw.fence)?,
            target_key: raw.targets.key.map(|key| reader.path(key.get_ref())),
        };
        Ok(cluster)
    }
}

impl Cluster {
    /// The data devices, and the zones on each.
    pub fn data_devices(&self) -> Vec<(&Zone, Vec<PagId>)> {
        let of_one = self.data.chunk_by(|(_, one), (_, next)| one.path == next.path);
        of_one.map(|zones| (&zones[0].1, zones.iter().map(|(id, _)| *id).collect())).collect()
    }

    /// The paths of the data zones, relative to the current directory.
    pub fn zone_paths(&self) -> Vec<(PagId, String)> {
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let place = |(id, zone): &(PagId, Zone)| (*id, absolute(&zone.path).display().to_string());
        self.data.iter().map(place).collect()
    }
}

/// What a client reads in a cluster's file; the rest of the file may be missing there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientView {
    /// What it has to prove; `None`: nothing.
    pub security: Option<Mode>,
    /// The server's public keys.
    pub public_keys: Vec<PublicKey>,
    /// The file with the client's own secret key.
    pub key: PathBuf,
}

#[derive(Deserialize)]
struct RawView {
    #[serde(default)]
    server: RawServerView,
    #[serde(default)]
    client: RawClient,
}

#[derive(Deserialize, Default)]
struct RawServerView {
    security: Option<Spanned<String>>,
    public_keys: Option<Vec<Spanned<String>>>,
}

impl ClientView {
    /// Reads the file at `path`.
    pub fn read(path: &Path) -> Result<ClientView, ConfigError> {
        let text = read_file(path)?;
        let reader = Reader { file: path, text: &text };
        let raw: RawView = toml::from_str(&text).map_err(|error| reader.syntax(&error))?;
        let key = raw.client.key.as_ref().map(|key| reader.path(key.get_ref()));
        Ok(ClientView {
            security: reader.security(raw.server.security.as_ref())?,
            public_keys: reader.public_keys(raw.server.public_keys.as_ref())?,
            key: key.unwrap_or_else(|| PathBuf::from(CLIENT_KEY)),
        })
    }
}

struct Reader<'a> {
    file: &'a Path,
    text: &'a str,
}

impl Reader<'_> {
    fn anywhere(&self, text: impl Into<String>) -> ConfigError {
        ConfigError { file: self.file.to_owned(), line: None, text: text.into() }
    }

    fn at(&self, span: Range<usize>, text: impl Into<String>) -> ConfigError {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let line = before.bytes().filter(|&byte| byte == b'\n').count() + 1;
        ConfigError { line: Some(line), ..self.anywhere(text) }
    }

    fn syntax(&self, error: &toml::de::Error) -> ConfigError {
        let text = error.message().trim().replace('\n', " ");
        match error.span() {
            Some(span) => self.at(span, text),
            None => self.anywhere(text),
        }
    }

    fn path(&self, path: &Path) -> PathBuf {
        self.file.parent().unwrap_or(Path::new("")).join(path)
    }

    fn size(
        &self,
        key: &str,
        value: Option<Spanned<String>>,
        least: u64,
    ) -> Result<Option<u64>, ConfigError> {
        let Some(value) = value else { return Ok(None) };
        let size = parse_size(value.get_ref())
            .map_err(|text| self.at(value.span(), format!("key `{key}`: {text}")))?;
        if size < least || size % BLOCK_U64 != 0 {
            let text = format!("key `{key}`: `{}`: {}", value.get_ref(), must_be(least));
            return Err(self.at(value.span(), text));
        }
        Ok(Some(size))
    }

    fn listen(&self, value: Option<Spanned<String>>) -> Result<String, ConfigError> {
        let Some(value) = value else { return Ok(format!("127.0.0.1:{DEFAULT_PORT}")) };
        check_address(value.get_ref())
            .map_err(|text| self.at(value.span(), format!("key `server.listen`: {text}")))
    }

    fn security(&self, value: Option<&Spanned<String>>) -> Result<Option<Mode>, ConfigError> {
        let Some(value) = value else { return Ok(Some(Mode::Encrypted)) };
        parse_security(value.get_ref())
            .map_err(|text| self.at(value.span(), format!("key `server.security`: {text}")))
    }

    /// The path of `value`, or the one beside the file that ends with `extension`.
    fn beside(&self, value: Option<&Spanned<PathBuf>>, extension: &str) -> PathBuf {
        match value {
            Some(path) => self.path(path.get_ref()),
            None => self.file.with_extension(extension),
        }
    }

    fn public_keys(
        &self,
        values: Option<&Vec<Spanned<String>>>,
    ) -> Result<Vec<PublicKey>, ConfigError> {
        let values = values.map_or(&[][..], Vec::as_slice);
        if let Some(more) = values.get(SECRETS_MAX) {
            let text = format!("key `server.public_keys`: more than {SECRETS_MAX} keys");
            return Err(self.at(more.span(), text));
        }
        let key = |value: &Spanned<String>| {
            value.get_ref().parse().map_err(|error| {
                self.at(value.span(), format!("key `server.public_keys`: {error}"))
            })
        };
        values.iter().map(key).collect()
    }

    fn lease(&self, value: Option<Spanned<String>>) -> Result<Duration, ConfigError> {
        let Some(value) = value else { return Ok(DEFAULT_LEASE) };
        let lease = parse_duration(value.get_ref())
            .map_err(|text| self.at(value.span(), format!("key `server.lease`: {text}")))?;
        if LEASE_RANGE.contains(&lease) {
            return Ok(lease);
        }
        Err(self.at(value.span(), "key `server.lease`: write a time from 1s to 1h"))
    }

    fn serve(&self, value: Option<Spanned<u64>>) -> Result<Option<usize>, ConfigError> {
        let Some(value) = value else { return Ok(None) };
        match usize::try_from(*value.get_ref()) {
            Ok(count) if (1..=SERVE_MAX).contains(&count) => Ok(Some(count)),
            _ => {
                let text = format!("key `server.serve`: write 1 to {SERVE_MAX}");
                Err(self.at(value.span(), text))
            }
        }
    }

    fn scrub_interval(&self, value: Option<Spanned<String>>) -> Result<Duration, ConfigError> {
        let Some(value) = value else { return Ok(DEFAULT_SCRUB_INTERVAL) };
        if value.get_ref() == "never" {
            return Ok(Duration::ZERO);
        }
        let interval = parse_duration(value.get_ref()).map_err(|text| {
            self.at(value.span(), format!("key `server.scrub_interval`: {text}"))
        })?;
        if interval >= SCRUB_INTERVAL_MIN {
            return Ok(interval);
        }
        let text = "key `server.scrub_interval`: write a time of 1s or more, or never";
        Err(self.at(value.span(), text))
    }

    fn scrub_rate(&self, value: Option<Spanned<String>>) -> Result<u64, ConfigError> {
        let is_zero = value.as_ref().is_some_and(|value| value.get_ref() == "0");
        if is_zero {
            return Ok(0);
        }
        Ok(self.size("server.scrub_rate", value, SCRUB_RATE_MIN)?.unwrap_or(mds::SCRUB_RATE))
    }

    fn layout_ahead(&self, value: Option<Spanned<String>>) -> Result<LayoutAhead, ConfigError> {
        let Some(value) = value else { return Ok(LayoutAhead::Usual) };
        if value.get_ref() == "never" {
            return Ok(LayoutAhead::Never);
        }
        value.get_ref().parse().map(LayoutAhead::Above).map_err(|_| {
            let text =
                "key `server.layout_ahead`: write a number of segments for each name, or never";
            self.at(value.span(), text)
        })
    }

    fn fences(&self, raw: Vec<RawFence>) -> Result<Vec<FenceConfig>, ConfigError> {
        raw.into_iter().map(|raw| self.fence(raw)).collect()
    }

    fn fence(&self, raw: RawFence) -> Result<FenceConfig, ConfigError> {
        let timeout = match &raw.timeout {
            None => DEFAULT_FENCE_TIMEOUT,
            Some(value) => parse_duration(value.get_ref())
                .ok()
                .filter(|time| FENCE_TIMEOUT_RANGE.contains(time))
                .ok_or_else(|| {
                    self.at(value.span(), "key `fence.timeout`: write a time from 1s to 10m")
                })?,
        };
        if raw.host.get_ref().is_empty() {
            let text = "key `fence.host`: write a host's name; a `*` stands for any characters";
            return Err(self.at(raw.host.span(), text));
        }
        let (mut options, mut bytes) = (BTreeMap::new(), 0);
        for (name, value) in raw.options {
            let reserved = ["action", "nodename"].contains(&name.as_str());
            let (span, value) = (value.span(), value.into_inner());
            bytes += name.len() + value.len() + 2;
            if reserved || name.contains(['=', '\n']) || value.contains('\n') {
                let text = format!(
                    "key `fence.options`: `{name}` is set by Redbud, or it or its value has a line break: leave it out"
                );
                return Err(self.at(span, text));
            }
            if bytes > FENCE_OPTIONS_MAX {
                let text = format!("key `fence.options`: more than {FENCE_OPTIONS_MAX} bytes");
                return Err(self.at(span, text));
            }
            options.insert(name, value);
        }
        let agent = self.path(raw.agent.get_ref());
        Ok(FenceConfig { host: raw.host.into_inner(), agent, timeout, options })
    }

    fn journal(&self, raw: &RawMetadata) -> Result<Option<Zone>, ConfigError> {
        let Some(place) = &raw.journal else {
            let Some(size) = &raw.journal_size else { return Ok(None) };
            let text = "key `metadata.journal_size`: it needs a key `journal`, the file's path";
            return Err(self.at(size.span(), text));
        };
        let path = self.path(place.get_ref());
        if path == self.path(raw.path.get_ref()) {
            let text = format!("key `metadata.journal`: {} is named twice", path.display());
            return Err(self.at(place.span(), text));
        }
        let size = self.size("metadata.journal_size", raw.journal_size.clone(), JOURNAL_MIN)?;
        Ok(Some(Zone { path, size }))
    }

    fn zones(
        &self,
        raw: Vec<RawData>,
        metadata: &RawMetadata,
    ) -> Result<Vec<(PagId, Zone)>, ConfigError> {
        let mut paths = BTreeSet::new();
        paths.extend(metadata.journal.as_ref().map(|journal| self.path(journal.get_ref())));
        let metadata = self.path(metadata.path.get_ref());
        let mut ids = BTreeSet::new();
        let mut zones = Vec::with_capacity(raw.len());
        let mut next = 0;
        for zone in raw {
            let path = self.path(zone.path.get_ref());
            if path == metadata {
                let text = format!(
                    "key `data.path`: {} holds the metadata: clients open data devices, so give the \
                     metadata a device of their own",
                    path.display()
                );
                return Err(self.at(zone.path.span(), text));
            }
            if !paths.insert(path.clone()) {
                let text = format!("key `data.path`: {} is named twice", path.display());
                return Err(self.at(zone.path.span(), text));
            }
            let id = match &zone.id {
                Some(id) => *id.get_ref(),
                None => next,
            };
            let slices = self.slices(zone.slices)?;
            next = id.saturating_add(slices);
            let span = zone.id.as_ref().map_or(zone.path.span(), Spanned::span);
            let size = self.size("data.size", zone.size, DATA_MIN * u64::from(slices))?;
            for id in id..next.max(id.saturating_add(1)) {
                if !ids.insert(id) || usize::from(id) >= PAGS_MAX {
                    let text = format!(
                        "key `data.id`: {id} is used twice or not below {PAGS_MAX}: give each zone its own number"
                    );
                    return Err(self.at(span, text));
                }
                zones.push((PagId(id), Zone { path: path.clone(), size }));
            }
        }
        Ok(zones)
    }

    fn slices(&self, value: Option<Spanned<u16>>) -> Result<u16, ConfigError> {
        let Some(value) = value else { return Ok(1) };
        if (1..=SLICES_MAX).contains(&usize::from(*value.get_ref())) {
            return Ok(*value.get_ref());
        }
        let text = format!("key `data.slices`: a device has 1 to {SLICES_MAX} slices");
        Err(self.at(value.span(), text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
name = \"home\"

[server]
listen = \"0.0.0.0:10821\"
lease = \"5s\"
cache = \"64M\"

[metadata]
path = \"meta.img\"
size = \"1G\"

[[data]]
path = \"/dev/sdb\"

[[data]]
path = \"data1.img\"
size = \"16G\"
";

    fn parse(text: &str) -> Result<Cluster, ConfigError> {
        Cluster::parse(Path::new("/etc/redbud/home.toml"), text)
    }

    fn error(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn config_paths_are_relative_to_the_file() {
        let cluster = parse(GOOD).unwrap();
        assert_eq!((cluster.name.as_str(), cluster.listen.as_str()), ("home", "0.0.0.0:10821"));
        assert_eq!((cluster.lease, cluster.cache), (Duration::from_secs(5), 64 << 20));
        assert_eq!(cluster.metadata.path, Path::new("/etc/redbud/meta.img"));
        let data = [
            (PagId(0), Zone { path: "/dev/sdb".into(), size: None }),
            (PagId(1), Zone { path: "/etc/redbud/data1.img".into(), size: Some(16 << 30) }),
        ];
        assert_eq!(cluster.data, data);
    }

    #[test]
    fn slices_of_a_device_have_consecutive_numbers() {
        let text =
            GOOD.replacen("path = \"/dev/sdb\"", "path = \"/dev/sdb\"\nslices = 3\nid = 5", 1);
        let cluster = parse(&text).unwrap();
        let devices = cluster.data_devices();
        let ids = |index: usize| devices[index].1.iter().map(|id| id.0).collect::<Vec<_>>();
        assert_eq!((devices.len(), ids(0), ids(1)), (2, vec![5, 6, 7], vec![8]));
        assert_eq!(devices[0].0.path, Path::new("/dev/sdb"));
    }

    #[test]
    fn omitted_keys_have_defaults() {
        let cluster = parse("name='a'\nmetadata={path='m'}\ndata=[{path='d'}]\n").unwrap();
        assert_eq!(cluster.listen, format!("127.0.0.1:{DEFAULT_PORT}"));
        assert_eq!(
            (cluster.lease, cluster.cache, cluster.log),
            (DEFAULT_LEASE, DEFAULT_CACHE, None)
        );
        assert_eq!(cluster.layout_ahead, LayoutAhead::Usual);
    }

    #[test]
    fn journal_is_a_zone_of_its_own() {
        let with = |keys: &str| parse(&GOOD.replacen("size = \"1G\"", keys, 1));
        let cluster = with("journal = \"log.img\"\njournal_size = \"64M\"").unwrap();
        let path = PathBuf::from("/etc/redbud/log.img");
        assert_eq!(cluster.journal, Some(Zone { path, size: Some(64 << 20) }));
        assert_eq!(parse(GOOD).unwrap().journal, None);
        let cases = [
            ("journal = \"meta.img\"", "home.toml:10: key `metadata.journal`"),
            ("journal = \"/dev/sdb\"", "home.toml:13: key `data.path`"),
            ("journal_size = \"64M\"", "home.toml:10: key `metadata.journal_size`"),
            ("journal = \"l\"\njournal_size = \"4M\"", "home.toml:11: key `metadata.journal_size`"),
        ];
        for (keys, expected) in cases {
            let text = with(keys).unwrap_err().to_string();
            assert!(text.contains(expected), "{keys}: {text}");
        }
    }

    #[test]
    fn fence_is_an_agent_with_options() {
        let with = |table: &str| parse(&format!("{GOOD}\n[[fence]]\n{table}"));
        let table = "host = \"n*\"\nagent = \"/sbin/fence_x\"\noptions = { ip = \"{host}\" }";
        let fence = FenceConfig {
            host: "n*".into(),
            agent: "/sbin/fence_x".into(),
            timeout: Duration::from_secs(60),
            options: BTreeMap::from([("ip".into(), "{host}".into())]),
        };
        assert_eq!(with(table).unwrap().fences, [fence]);
        assert_eq!(parse(GOOD).unwrap().fences, []);
        let cases = [
            ("host = \"\"\nagent = \"a\"", "home.toml:20: key `fence.host`"),
            ("host = \"n\"", "home.toml:19: missing field `agent`"),
            ("host = \"n\"\nagent = \"a\"\ntimeout = \"0s\"", "22: key `fence.timeout`"),
            ("host = \"n\"\nagent = \"a\"\noptions = { action = \"on\" }", "22: key `fence.opt"),
            ("host = \"n\"\nagent = \"a\"\noptions = { a = \"1\\n2\" }", "22: key `fence.opt"),
        ];
        for (table, expected) in cases {
            let text = with(table).unwrap_err().to_string();
            assert!(text.contains(expected), "{table}: {text}");
        }
    }

    #[test]
    fn layout_ahead_is_a_number_or_never() {
        let with = |value: &str| {
            parse(&GOOD.replacen("lease = \"5s\"", &format!("layout_ahead = \"{value}\""), 1))
        };
        assert_eq!(with("never").unwrap().layout_ahead, LayoutAhead::Never);
        assert_eq!(with("20").unwrap().layout_ahead, LayoutAhead::Above(20));
        let error = with("-1").unwrap_err().to_string();
        assert!(error.contains("home.toml:5: key `server.layout_ahead`"), "{error}");
    }

    #[test]
    fn errors_name_file_line_and_key() {
        let cases = [
            ("name = \"home\"", "name = \"ho me\"", "home.toml:1: key `name`"),
            ("lease = \"5s\"", "lease = \"5d\"", "home.toml:5: key `server.lease`"),
            ("lease = \"5s\"", "lease = \"9h\"", "home.toml:5: key `server.lease`"),
            ("cache = \"64M\"", "cache = \"1\"", "home.toml:6: key `server.cache`"),
            ("10821", "108210", "home.toml:4: key `server.listen`"),
            ("size = \"16G\"", "size = \"16X\"", "home.toml:17: key `data.size`"),
            (
                "data1.img",
                "meta.img",
                "home.toml:16: key `data.path`: /etc/redbud/meta.img holds the",
            ),
            ("data1.img", "/dev/sdb", "home.toml:16: key `data.path`"),
            ("size = \"16G\"", "slices = 0", "home.toml:17: key `data.slices`"),
            ("size = \"16G\"", "slices = 61", "home.toml:17: key `data.slices`"),
            ("size = \"16G\"", "slices = 3\nid = 1022", "home.toml:18: key `data.id`: 1024"),
            ("size = \"16G\"", "id = 0", "home.toml:17: key `data.id`"),
            ("size = \"16G\"", "sise = \"16G\"", "home.toml:17: unknown field `sise`"),
            ("[metadata]", "[metadata", "home.toml:8: "),
        ];
        for (from, to, expected) in cases {
            let text = error(&GOOD.replacen(from, to, 1));
            assert!(text.contains(expected), "{to}: {text}");
        }
        assert!(error("name='a'\nmetadata={path='m'}\n").contains("[[data]]"));
        assert!(error("metadata={path='m'}\n").contains("name"));
    }
}
