//! The cluster's file: TOML that names the file system, its zones, its server and the keys.
//!
//! Invariants:
//! - a [`ClusterFile`] is valid: names, sizes and numbers were checked, and no path appears twice;
//! - a [`Cluster`] is the cluster as one of its servers sees it: its own zones, and what all share;
//! - every error names file, line and key, and states what to write instead;
//! - clients read only the keys in it ([`ClientView`]): the server sends them the paths of the data
//!   zones;
//! - a host with targets reads only what concerns these ([`TargetsView`]).

mod servers;
mod standby;
mod targets;
mod zones;

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

pub use servers::{ClusterFile, SERVERS_MAX};
pub use standby::{EtcdConfig, MembershipConfig};
pub use targets::{OstConfig, TargetsView};

use channel::{Mode, PublicKey, SECRETS_MAX};
use commitment::Protocol;
use mfs::LayoutAhead;
use serde::Deserialize;
use toml::Spanned;
use types::limits::{BLOCK_U64, PAGS_MAX};
use types::{Duration, PagId, ShardId, check_fs_name};

use crate::address::{DEFAULT_PORT, check_address};
use crate::args::parse_scrub_interval;
use crate::keys::{CLIENT_KEY, parse_security};
use types::units::{parse_duration, parse_size};

use servers::RawMds;
use zones::{Home, RawData, RawMetadata};

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

/// A checked cluster file, as one of its servers sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cluster {
    /// The file that it was read from.
    pub file: PathBuf,
    /// Name of the file system.
    pub name: String,
    /// The shard of the server, which is its number.
    pub shard: ShardId,
    /// The addresses of all servers of several, by their numbers; empty: there is one.
    pub namespace: Vec<String>,
    /// The addresses at which each of them takes over others', by their numbers.
    pub take_over: Vec<Vec<String>>,
    /// How the servers agree on an operation of several of them.
    pub protocol: Protocol,
    /// Most operations of one directory that they agree on together.
    pub batch: usize,
    /// Names at which a directory is spread over the servers.
    pub spread_at: u64,
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
    /// Its data zones. Those of one device follow each other, in the order of their places on it.
    pub data: Vec<(PagId, Zone)>,
    /// The data zones of the other servers, which may lend this one blocks of them.
    pub elsewhere: Vec<(PagId, Zone)>,
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
    metadata: Option<RawMetadata>,
    mds: Option<Vec<RawMds>>,
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
    commit_protocol: Option<Spanned<String>>,
    commit_batch: Option<Spanned<u64>>,
    spread_at: Option<Spanned<u64>>,
    lease: Option<Spanned<String>>,
    cache: Option<Spanned<String>>,
    serve: Option<Spanned<u64>>,
    scrub_interval: Option<Spanned<String>>,
    scrub_rate: Option<Spanned<String>>,
    layout_ahead: Option<Spanned<String>>,
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

impl Reader<'_> {
    /// The cluster as each of its servers sees it.
    fn clusters(&self, raw: RawCluster) -> Result<Vec<Cluster>, ConfigError> {
        let name = raw.name.get_ref();
        if !check_fs_name(name) {
            let text = format!(
                "key `name`: `{name}` is not a name of a file system: write 1 to 63 letters, digits, '-', '_' or '.', beginning with a letter or digit"
            );
            return Err(self.at(raw.name.span(), text));
        }
        if raw.data.len() > PAGS_MAX {
            return Err(self.anywhere(format!("more than {PAGS_MAX} data zones")));
        }
        self.refuse_with_several(&raw)?;
        let targets = raw.targets.key.is_some();
        let RawCluster { server, metadata, mds, data, .. } = &raw;
        let places = self.places(server.listen.clone(), metadata.as_ref(), mds.as_deref())?;
        let homes: Vec<&Home> = places.iter().map(|(_, home)| home).collect();
        let zones = self.zones(data, &homes)?;
        let several = if places.len() > 1 { &places[..] } else { &[] };
        let namespace: Vec<String> = several.iter().map(|(listen, _)| listen.clone()).collect();
        let mut clusters = Vec::with_capacity(places.len());
        let all: Vec<(PagId, Zone)> = zones.iter().flatten().cloned().collect();
        for (number, (place, data)) in places.iter().zip(zones).enumerate() {
            let is_other = |(id, _): &&(PagId, Zone)| data.iter().all(|(own, _)| own != id);
            let elsewhere = all.iter().filter(is_other).cloned().collect();
            let own = self.cluster(&raw, place)?;
            let known = [&namespace[..], &own.standbys].concat();
            let take_over = self.take_over(mds.as_deref(), &known, own.membership.is_some())?;
            let (namespace, shard) = (namespace.clone(), servers::shard(number));
            clusters.push(Cluster { data, elsewhere, namespace, take_over, shard, ..own });
        }
        self.refuse_without_zones(&clusters, targets)?;
        Ok(clusters)
    }

    /// What the server at `place` sees, without data zones and other servers.
    fn cluster(
        &self,
        raw: &RawCluster,
        (listen, home): &(String, Home),
    ) -> Result<Cluster, ConfigError> {
        let server = &raw.server;
        Ok(Cluster {
            file: self.file.to_owned(),
            name: raw.name.get_ref().clone(),
            shard: ShardId(0),
            namespace: Vec::new(),
            take_over: Vec::new(),
            protocol: self.protocol(server.commit_protocol.as_ref())?,
            batch: self.batch(server.commit_batch.as_ref())?,
            spread_at: self.spread_at(server.spread_at.as_ref())?,
            standbys: self.standbys(listen, server.standbys.as_ref())?,
            listen: listen.clone(),
            membership: self.membership(raw.membership.as_ref())?,
            security: self.security(server.security.as_ref())?,
            key: self.beside(server.key.as_ref(), "key"),
            allowed: self.beside(server.allowed.as_ref(), "allowed"),
            public_keys: self.public_keys(server.public_keys.as_ref())?,
            lease: self.lease(server.lease.clone())?,
            serve: self.serve(server.serve.clone())?,
            scrub_interval: self.scrub_interval(server.scrub_interval.clone())?,
            scrub_rate: self.scrub_rate(server.scrub_rate.clone())?,
            layout_ahead: self.layout_ahead(server.layout_ahead.clone())?,
            cache: self
                .size("server.cache", server.cache.clone(), CACHE_MIN)?
                .unwrap_or(DEFAULT_CACHE),
            log: home.log,
            metadata: home.metadata.clone(),
            journal: home.journal.clone(),
            data: Vec::new(),
            elsewhere: Vec::new(),
            fences: self.fences(&raw.fence)?,
            target_key: raw.targets.key.as_ref().map(|key| self.path(key.get_ref())),
        })
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
        paths(&self.data)
    }

    /// The paths of the data zones of the other servers.
    pub fn paths_elsewhere(&self) -> Vec<(PagId, String)> {
        paths(&self.elsewhere)
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
        parse_scrub_interval(value.get_ref())
            .map_err(|text| self.at(value.span(), format!("key `server.scrub_interval`: {text}")))
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

    fn fences(&self, raw: &[RawFence]) -> Result<Vec<FenceConfig>, ConfigError> {
        raw.iter().map(|raw| self.fence(raw)).collect()
    }

    fn fence(&self, raw: &RawFence) -> Result<FenceConfig, ConfigError> {
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
        for (name, value) in &raw.options {
            let reserved = ["action", "nodename"].contains(&name.as_str());
            let (span, value) = (value.span(), value.get_ref().clone());
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
            options.insert(name.clone(), value);
        }
        let agent = self.path(raw.agent.get_ref());
        Ok(FenceConfig { host: raw.host.get_ref().clone(), agent, timeout, options })
    }
}

/// The paths of zones, relative to the current directory.
fn paths(zones: &[(PagId, Zone)]) -> Vec<(PagId, String)> {
    let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
    let place = |(id, zone): &(PagId, Zone)| (*id, absolute(&zone.path).display().to_string());
    zones.iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const GOOD: &str = "\
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

    /// The cluster as its only server sees it.
    pub(super) fn parse(text: &str) -> Result<Cluster, ConfigError> {
        let file = ClusterFile::parse(Path::new("/etc/redbud/home.toml"), text)?;
        Ok(file.any().clone())
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
