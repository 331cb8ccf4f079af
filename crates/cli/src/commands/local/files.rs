//! The file of a local cluster, its keys, and helpers to create and open clusters.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use channel::{Allowed, Entry, PublicKey, Role, Squash};
use commitment::Protocol;

use types::PagId;

use super::FS_NAME;
use crate::address::DEFAULT_PORT;
use crate::args::TargetJournal;
use crate::config::{ClusterFile, ConfigError, OstConfig, TargetsView, Zone};
use crate::exit::Failure;
use crate::keys;

/// Ports of a local server: below the kernel's ephemeral range.
const PORTS: std::ops::Range<u16> = 10_000..31_000;

/// The server's key, this host's key as a client, and the list of allowed keys.
pub const KEYS: [&str; 3] = ["server.key", "client.key", "allowed"];
/// The name of this host in the list.
const NODE: &str = "this-host";

/// The key that the metadata server and the object targets share.
pub const TARGETS_KEY: &str = "targets.key";

/// What a cluster consists of.
pub struct Contents {
    /// The metadata servers that have a part of the directories each.
    pub servers: usize,
    /// Bytes of the metadata zone of each.
    pub metadata: u64,
    /// The data zones, by their numbers.
    pub data: Vec<Disk>,
    /// The object targets.
    pub targets: Vec<Target>,
}

/// A data zone.
#[derive(Clone, Copy)]
pub struct Disk {
    /// Its bytes.
    pub bytes: u64,
    /// The number of the metadata server that it belongs to.
    pub server: usize,
}

/// The name of what a server has: `stem` for server 0, with the number for others.
pub fn numbered(stem: &str, server: usize) -> String {
    if server == 0 { stem.to_owned() } else { format!("{stem}{server}") }
}

/// An object target, whose port is found anew at each start.
pub struct Target {
    /// The file with its journal, unless the journal is inside.
    pub journal: Option<String>,
}

/// The file that has the journals of all targets, each in a slice.
const SHARED_JOURNALS: &str = "ost-journals.img";

impl Target {
    /// The file with the objects of a target.
    pub fn device(index: usize) -> String {
        format!("ost{index}.img")
    }

    /// A new target, with its journal at this place.
    pub fn new(index: usize, journal: TargetJournal) -> Target {
        let journal = match journal {
            TargetJournal::Internal => None,
            TargetJournal::External => Some(format!("ost{index}-journal.img")),
            TargetJournal::Shared => Some(SHARED_JOURNALS.to_owned()),
        };
        Target { journal }
    }
}

/// What a cluster's file names.
pub fn contents(file: &ClusterFile, targets: &TargetsView) -> Contents {
    let name = |path: &PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let target = |ost: &OstConfig| Target { journal: ost.journal.as_ref().and_then(name) };
    let zones = file.servers.iter().enumerate().flat_map(|(server, cluster)| {
        let disk = move |zone: &Zone| Disk { bytes: zone.size.unwrap_or_default(), server };
        cluster.data.iter().map(move |(id, zone)| (*id, disk(zone)))
    });
    let zones: BTreeMap<PagId, Disk> = zones.collect();
    Contents {
        servers: file.servers.len(),
        metadata: file.any().metadata.size.unwrap_or_default(),
        data: zones.into_values().collect(),
        targets: targets.osts.iter().map(target).collect(),
    }
}

/// Makes the key of the targets, unless `dir` has it or there are no targets.
pub fn targets_key(dir: &Path, contents: &Contents) -> Result<(), Failure> {
    let path = dir.join(TARGETS_KEY);
    if contents.targets.is_empty() || path.exists() {
        return Ok(());
    }
    keys::make_target_key(&path).map_err(|text| Failure::failed("RB-LOCAL", text))
}

/// Makes the keys that `dir` does not have yet; gives the server's public key.
pub fn keys(dir: &Path) -> Result<PublicKey, Failure> {
    let failed = |text: String| Failure::failed("RB-LOCAL", text);
    let [server, client, list] = KEYS.map(|name| dir.join(name));
    let key = |path: &Path| match path.exists() {
        true => keys::read_secrets(path).map(|secrets| secrets.first().public()),
        false => keys::make(path, false),
    };
    let (server, client) = (key(&server).map_err(failed)?, key(&client).map_err(failed)?);
    if !list.exists() {
        let (role, squash) = (Role::Administrator, Squash::Off);
        let entry = Entry { key: client, name: NODE.to_owned(), role, squash, revoked: false };
        let text = Allowed::with("# Made by `redbud local`.\n", &entry);
        let text = text.map_err(|error| failed(format!("{}: {error}", list.display())))?;
        keys::replace(&list, &text, 0o644).map_err(failed)?;
    }
    Ok(server)
}

/// The end of the table of the server and the table of the client, which name the keys.
pub fn key_lines(server_key: PublicKey) -> String {
    let [server, client, list] = KEYS;
    format!(
        "key = \"{server}\"\nallowed = \"{list}\"\npublic_keys = [\"{server_key}\"]\n\n\
         [client]\nkey = \"{client}\"\n"
    )
}

/// What may change at each start.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Lease of clients.
    pub lease: types::Duration,
    /// Bytes of a metadata server's cache.
    pub cache: u64,
    /// How several metadata servers agree.
    pub protocol: Protocol,
    /// Whether they take over from each other.
    pub take_over: bool,
}

impl Settings {
    /// How many ports the metadata servers need beside their own: one each to take over another.
    pub fn further_ports(self, servers: usize) -> usize {
        if self.take_over { servers } else { 0 }
    }
}

/// The text of cluster.toml. `ports`: those of the metadata servers, those at which they take over
/// and those of their standbys; and of the targets.
pub fn text(
    (ports, osts, key): (&[u16], &[u16], PublicKey),
    settings: Settings,
    contents: &Contents,
) -> String {
    let (own, others) = ports.split_at(contents.servers.min(ports.len()));
    let (take_over, standbys) = others.split_at(settings.further_ports(contents.servers));
    let (mut listen, mut metadata) = match contents.servers {
        1 => one_server(own, contents.metadata),
        _ => several_servers((own, take_over), settings.protocol, contents.metadata),
    };
    if !standbys.is_empty() {
        let others: Vec<String> =
            standbys.iter().map(|port| format!("\"127.0.0.1:{port}\"")).collect();
        listen += &format!("standbys = [{}]\n", others.join(", "));
    }
    if !standbys.is_empty() || !take_over.is_empty() {
        metadata += "\n[membership]\ndirectory = \"membership\"\n";
    }
    let mut text = format!(
        "# Created by `redbud local`, which may change the port.\n\
         name = \"{FS_NAME}\"\n\n\
         [server]\n{listen}lease = \"{}ms\"\ncache = \"{}\"\n{}{metadata}",
        settings.lease.as_millis(),
        settings.cache,
        key_lines(key),
    );
    for (index, Disk { bytes, server }) in contents.data.iter().enumerate() {
        text += &format!("\n[[data]]\npath = \"data{index}.img\"\nsize = \"{bytes}\"\n");
        if contents.servers > 1 {
            text += &format!("mds = {server}\n");
        }
    }
    if !contents.targets.is_empty() {
        text += &format!("\n[targets]\nkey = \"{TARGETS_KEY}\"\n");
    }
    for (index, (target, port)) in contents.targets.iter().zip(osts).enumerate() {
        text += &format!("\n[[ost]]\ndevice = \"{}\"\n", Target::device(index));
        if let Some(journal) = &target.journal {
            text += &format!("journal = \"{journal}\"\n");
        }
        text += &format!("address = \"127.0.0.1:{port}\"\n");
    }
    text
}

/// The keys of the table of the server, and the table of its metadata.
fn one_server(ports: &[u16], metadata: u64) -> (String, String) {
    let port = ports.first().copied().unwrap_or(DEFAULT_PORT);
    (
        format!("listen = \"127.0.0.1:{port}\"\n"),
        format!("\n[metadata]\npath = \"metadata.img\"\nsize = \"{metadata}\"\n"),
    )
}

/// The keys of the table that all servers share, and the table of each.
fn several_servers(
    (ports, take_over): (&[u16], &[u16]),
    protocol: Protocol,
    metadata: u64,
) -> (String, String) {
    let table = |(server, port): (usize, &u16)| {
        let image = numbered("metadata", server);
        let also = take_over
            .get(server)
            .map_or_else(String::new, |port| format!("take_over = [\"127.0.0.1:{port}\"]\n"));
        format!(
            "\n[[mds]]\npath = \"{image}.img\"\nsize = \"{metadata}\"\n\
             listen = \"127.0.0.1:{port}\"\n{also}"
        )
    };
    let keys = format!("commit_protocol = \"{}\"\n", protocol.name());
    (keys, ports.iter().enumerate().map(table).collect())
}

/// Reads a cluster.toml.
pub fn read(file: &Path) -> Result<(ClusterFile, TargetsView), Failure> {
    let wrong = |error: ConfigError| Failure::usage(error.to_string());
    Ok((ClusterFile::read(file).map_err(wrong)?, TargetsView::read(file).map_err(wrong)?))
}

/// Replaces `file` atomically, also if the host fails.
pub fn replace(file: &Path, text: &str) -> Result<(), Failure> {
    let new = file.with_extension("toml.new");
    let written = File::create(&new).and_then(|mut out| {
        out.write_all(text.as_bytes())?;
        out.sync_all()
    });
    written.map_err(|error| io(&new, &error))?;
    std::fs::rename(&new, file).map_err(|error| io(file, &error))?;
    file.parent().map_or(Ok(()), sync)
}

/// Makes the names in `dir` survive a failure of the host.
pub fn sync(dir: &Path) -> Result<(), Failure> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|error| io(dir, &error))
}

/// The error that a file of the cluster cannot be created, read or changed.
pub fn io(path: &Path, error: &std::io::Error) -> Failure {
    Failure::failed("RB-LOCAL", format!("{}: {error}", path.display()))
}

/// Can a server listen there now?
fn is_free(address: &str) -> bool {
    TcpListener::bind(address).is_ok()
}

/// As many free ports as `wanted`: those of `kept` that are free, then others. Each process starts
/// its search at another port.
pub fn free_ports(kept: &[u16], wanted: usize) -> Result<Vec<u16>, Failure> {
    let is_free = |port: &u16| is_free(&format!("127.0.0.1:{port}"));
    let mut ports: Vec<u16> = kept.iter().copied().filter(is_free).take(wanted).collect();
    let count = u32::from(PORTS.end - PORTS.start);
    let start = std::process::id().wrapping_mul(2_654_435_761) % count;
    let candidates = (0..count).map(|step| PORTS.start + ((start + step) % count) as u16);
    let new: Vec<u16> = candidates
        .filter(|port| !ports.contains(port) && is_free(port))
        .take(wanted - ports.len())
        .collect();
    ports.extend(new);
    if ports.len() == wanted {
        return Ok(ports);
    }
    let text =
        format!("too few ports from {} to {} are free on 127.0.0.1", PORTS.start, PORTS.end - 1);
    Err(Failure::failed("RB-NO-PORT", text))
}
