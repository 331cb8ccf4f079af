//! The metadata servers that a cluster's file names: one, or several of one namespace.
//!
//!     [[mds]]
//!     path   = "/dev/disk/by-id/…"
//!     listen = "10.0.0.1:10821"
//!
//!     [[mds]]
//!     path   = "/dev/disk/by-id/…"
//!     listen = "10.0.0.2:10821"
//!     take_over = ["10.0.0.2:10823"]
//!
//! Invariants:
//! - the first table is server 0, which has the root directory, and the next ones follow;
//! - a server's number is that of its shard;
//! - every address and every device is one server's alone. With a membership, a server may be found
//!   at each of the addresses: the process there has taken over.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use commitment::Protocol;
use mds::BATCH_MAX;
use serde::Deserialize;
use toml::Spanned;
use types::ShardId;

use super::zones::{Home, RawMetadata};
use super::{Cluster, ConfigError, RawCluster, Reader, read_file};
use crate::address::check_address;

/// Most servers of one namespace.
pub const SERVERS_MAX: usize = 64;
/// Most servers that one takes over at a time.
const TAKE_OVER_MAX: usize = 4;
/// Most addresses at which servers take over.
const TAKE_OVER_ALL_MAX: usize = 64;

/// A checked cluster file: the cluster as each of its servers sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterFile {
    /// By the servers' numbers; at least one.
    pub servers: Vec<Cluster>,
}

/// A table of a server among several.
#[derive(Deserialize)]
#[serde(from = "RawTable")]
pub(super) struct RawMds {
    listen: Spanned<String>,
    take_over: Vec<Spanned<String>>,
    metadata: RawMetadata,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTable {
    path: Spanned<PathBuf>,
    size: Option<Spanned<String>>,
    log: Option<Spanned<String>>,
    journal: Option<Spanned<PathBuf>>,
    journal_size: Option<Spanned<String>>,
    listen: Spanned<String>,
    #[serde(default)]
    take_over: Vec<Spanned<String>>,
}

impl From<RawTable> for RawMds {
    fn from(table: RawTable) -> RawMds {
        let RawTable { path, size, log, journal, journal_size, listen, take_over } = table;
        let metadata = RawMetadata { path, size, log, journal, journal_size };
        RawMds { listen, take_over, metadata }
    }
}

impl ClusterFile {
    /// Reads and checks the file at `path`.
    pub fn read(path: &Path) -> Result<ClusterFile, ConfigError> {
        ClusterFile::parse(path, &read_file(path)?)
    }

    /// Checks `text`, which came from `file`; relative paths in it start at the file's directory.
    pub fn parse(file: &Path, text: &str) -> Result<ClusterFile, ConfigError> {
        let reader = Reader { file, text };
        let raw: RawCluster = toml::from_str(text).map_err(|error| reader.syntax(&error))?;
        Ok(ClusterFile { servers: reader.clusters(raw)? })
    }

    /// The cluster as its first server sees it, for what all of them share.
    pub fn any(&self) -> &Cluster {
        &self.servers[0]
    }

    /// Are there several servers?
    pub fn is_several(&self) -> bool {
        self.servers.len() > 1
    }

    /// The cluster as the server `asked` sees it; without `asked`, as the only one does.
    ///
    /// # Errors
    /// What to write instead.
    pub fn server(self, asked: Option<u16>) -> Result<Cluster, String> {
        let (count, file) = (self.servers.len(), self.any().file.display().to_string());
        let last = count - 1;
        let Some(number) = asked.or((count == 1).then_some(0)) else {
            return Err(format!(
                "{file}: the file has {count} metadata servers: name one with --server 0 to \
                 --server {last}"
            ));
        };
        let found = self.servers.into_iter().nth(usize::from(number));
        found.ok_or_else(|| match last {
            0 => format!("{file}: there is no server {number}: the file has only server 0"),
            _ => format!("{file}: there is no server {number}: the file has servers 0 to {last}"),
        })
    }
}

impl Cluster {
    /// Is it one of several servers?
    pub fn is_of_several(&self) -> bool {
        !self.namespace.is_empty()
    }

    /// The addresses at which the server `number` of several may be found, its own first. With a
    /// membership any process may have taken over.
    pub fn addresses_of(&self, number: usize) -> Vec<String> {
        let own = self.namespace.get(number);
        let taking_over = self.take_over.iter().flatten();
        let others = self.standbys.iter().chain(taking_over).chain(&self.namespace);
        let others = others.filter(|one| Some(*one) != own);
        let others = others.filter(|_| self.membership.is_some());
        own.into_iter().chain(others).cloned().collect()
    }
}

/// The address and the home of a server.
type Place = (String, Home);

impl Reader<'_> {
    /// The servers that the file names, in order.
    pub(super) fn places(
        &self,
        listen: Option<Spanned<String>>,
        metadata: Option<&RawMetadata>,
        several: Option<&[RawMds]>,
    ) -> Result<Vec<Place>, ConfigError> {
        match (metadata, several) {
            (None, None) => Err(self.anywhere(
                "no metadata zone: add a table [metadata] with a key `path`, or a table [[mds]] for \
                 each of several servers",
            )),
            (Some(one), None) => Ok(vec![(self.listen(listen)?, self.home("metadata", one)?)]),
            (Some(one), Some(_)) => Err(self.at(
                one.path.span(),
                "table [metadata]: it does not go with [[mds]]: each server's table names its \
                 metadata zone",
            )),
            (None, Some(several)) => self.several(listen.as_ref(), several),
        }
    }

    fn several(
        &self,
        listen: Option<&Spanned<String>>,
        tables: &[RawMds],
    ) -> Result<Vec<Place>, ConfigError> {
        if let Some(listen) = listen {
            let text = "key `server.listen`: with [[mds]] each server's table has its `listen`";
            return Err(self.at(listen.span(), text));
        }
        if let Some(more) = tables.get(SERVERS_MAX) {
            let text = format!("table [[mds]]: more than {SERVERS_MAX} servers");
            return Err(self.at(more.metadata.path.span(), text));
        }
        if tables.is_empty() {
            return Err(self.anywhere("table [[mds]]: there is none: name at least one server"));
        }
        let mut places: Vec<Place> = Vec::with_capacity(tables.len());
        for RawMds { listen, metadata, .. } in tables {
            let address = self.address_of_one("listen", listen)?;
            if places.iter().any(|(other, _)| *other == address) {
                let text = format!("key `mds.listen`: {address} is the address of two servers");
                return Err(self.at(listen.span(), text));
            }
            let home = self.home("mds", metadata)?;
            for (_, other) in &places {
                self.refuse_shared(metadata, &home, other)?;
            }
            places.push((address, home));
        }
        Ok(places)
    }

    /// The addresses at which each server takes over, by their numbers.
    pub(super) fn take_over(
        &self,
        tables: Option<&[RawMds]>,
        known: &[String],
        membership: bool,
    ) -> Result<Vec<Vec<String>>, ConfigError> {
        let (mut found, mut all) = (Vec::new(), 0);
        let mut taken: Vec<String> = known.to_vec();
        let tables = tables.unwrap_or_default();
        for table in tables {
            let mut own = Vec::new();
            for value in &table.take_over {
                let wrong =
                    |text: &str| self.at(value.span(), format!("key `mds.take_over`: {text}"));
                if tables.len() < 2 {
                    return Err(wrong("there is no other server"));
                }
                if !membership {
                    let text = "it needs a table [membership], where the servers agree on who has \
                                the metadata of each";
                    return Err(wrong(text));
                }
                let address = self.address_of_one("take_over", value)?;
                if taken.contains(&address) {
                    return Err(wrong(&format!("{address} is named twice")));
                }
                all += 1;
                if own.len() == TAKE_OVER_MAX || all > TAKE_OVER_ALL_MAX {
                    return Err(wrong(&format!(
                        "more than {TAKE_OVER_MAX} addresses, or {TAKE_OVER_ALL_MAX} of all servers"
                    )));
                }
                taken.push(address.clone());
                own.push(address);
            }
            found.push(own);
        }
        Ok(found)
    }

    /// The address at which clients and the other servers find a server.
    fn address_of_one(&self, key: &str, listen: &Spanned<String>) -> Result<String, ConfigError> {
        let wrong = |text: &str| self.at(listen.span(), format!("key `mds.{key}`: {text}"));
        let address = check_address(listen.get_ref()).map_err(|text| wrong(&text))?;
        let (host, port) = address.rsplit_once(':').unwrap_or((&address, ""));
        let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        if port == "0" || ip.is_ok_and(|ip| ip.is_unspecified()) {
            return Err(wrong(&format!(
                "{address}: clients and the other servers look for the server there: write the \
                 address and port of its host"
            )));
        }
        Ok(address)
    }

    /// Refuses a server that has a device of another one.
    fn refuse_shared(
        &self,
        raw: &RawMetadata,
        own: &Home,
        other: &Home,
    ) -> Result<(), ConfigError> {
        let others = [Some(&other.metadata), other.journal.as_ref()];
        let taken = |path: &Path| others.iter().flatten().any(|zone| zone.path == *path);
        let journal = raw.journal.as_ref().zip(own.journal.as_ref());
        let own = [
            Some(("path", raw.path.span(), &own.metadata.path)),
            journal.map(|(raw, zone)| ("journal", raw.span(), &zone.path)),
        ];
        match own.into_iter().flatten().find(|(_, _, path)| taken(path)) {
            None => Ok(()),
            Some((key, span, path)) => {
                let text = format!("key `mds.{key}`: {} is named twice", path.display());
                Err(self.at(span, text))
            }
        }
    }

    /// Refuses what only one server can have.
    pub(super) fn refuse_with_several(&self, raw: &RawCluster) -> Result<(), ConfigError> {
        if raw.mds.as_ref().is_none_or(|several| several.len() < 2) {
            return Ok(());
        }
        let standbys = raw.server.standbys.as_ref().and_then(|standbys| standbys.first());
        if let Some(first) = standbys.filter(|_| raw.membership.is_none()) {
            let text = "key `server.standbys`: with [[mds]] it needs a table [membership], where the \
                        servers agree on who has the metadata of each";
            return Err(self.at(first.span(), text));
        }
        Ok(())
    }

    pub(super) fn protocol(
        &self,
        value: Option<&Spanned<String>>,
    ) -> Result<Protocol, ConfigError> {
        let Some(value) = value else { return Ok(Protocol::OnePhase) };
        let named = Protocol::ALL.into_iter().find(|one| one.name() == value.get_ref());
        named.ok_or_else(|| {
            let text = "key `server.commit_protocol`: write \"1PC\", \"EP\", \"PrC\" or \"PrN\"";
            self.at(value.span(), text)
        })
    }

    /// How many operations of a directory servers agree on together; 1: each goes alone.
    pub(super) fn batch(&self, value: Option<&Spanned<u64>>) -> Result<usize, ConfigError> {
        let Some(value) = value else { return Ok(BATCH_MAX) };
        match usize::try_from(*value.get_ref()) {
            Ok(count) if (1..=BATCH_MAX).contains(&count) => Ok(count),
            _ => {
                let text = format!("key `server.commit_batch`: write 1 to {BATCH_MAX}");
                Err(self.at(value.span(), text))
            }
        }
    }

    /// From how many names on a directory is spread over the servers.
    pub(super) fn spread_at(&self, value: Option<&Spanned<u64>>) -> Result<u64, ConfigError> {
        let Some(value) = value else { return Ok(mds::SPREAD_AT) };
        match *value.get_ref() {
            0 => Err(self.at(value.span(), "key `server.spread_at`: write 1 or more names")),
            names => Ok(names),
        }
    }

    /// Refuses a server without a place for content; `targets`: there are object targets.
    pub(super) fn refuse_without_zones(
        &self,
        clusters: &[Cluster],
        targets: bool,
    ) -> Result<(), ConfigError> {
        let empty = clusters.iter().find(|cluster| cluster.data.is_empty() && !targets);
        let Some(cluster) = empty else { return Ok(()) };
        Err(self.anywhere(match cluster.is_of_several() {
            false => "no data zone: add a table [[data]] with a key `path`, or a table [targets] \
                      with the `key` of object targets"
                .to_owned(),
            true => format!(
                "server {0} has no data zone: add a table [[data]] with a key `path` and \
                 `mds = {0}`, or a table [targets] with the `key` of object targets",
                cluster.shard.0
            ),
        }))
    }
}

/// The shard of the server `number`, which is below [`SERVERS_MAX`].
pub(super) fn shard(number: usize) -> ShardId {
    ShardId(number as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "\
name = \"home\"
[server]
commit_protocol = \"EP\"
[[mds]]
path = \"meta0.img\"
listen = \"10.0.0.1\"
[[mds]]
path = \"meta1.img\"
journal = \"log1.img\"
listen = \"10.0.0.2:7\"
[[data]]
path = \"/dev/sdb\"
slices = 2
[[data]]
path = \"/dev/sdc\"
mds = 1
";

    fn parse(text: &str) -> Result<ClusterFile, ConfigError> {
        ClusterFile::parse(Path::new("/etc/redbud/home.toml"), text)
    }

    #[test]
    fn servers_have_their_own_zones_and_know_each_other() {
        let file = parse(TWO).unwrap();
        let addresses = ["10.0.0.1:10821", "10.0.0.2:7"];
        for (number, server) in file.servers.iter().enumerate() {
            assert_eq!((server.shard, &*server.listen), (shard(number), addresses[number]));
            assert_eq!(
                (&server.namespace[..], &server.servers()[..]),
                (&addresses.map(str::to_owned)[..], &addresses.map(str::to_owned)[..])
            );
            assert_eq!((server.protocol, server.batch), (Protocol::EarlyPrepare, BATCH_MAX));
            assert_eq!(server.spread_at, mds::SPREAD_AT);
        }
        let [zero, one] = &file.servers[..] else { panic!("{file:?}") };
        let ids = |server: &Cluster| server.data.iter().map(|(id, _)| id.0).collect::<Vec<_>>();
        assert_eq!((ids(zero), ids(one)), (vec![0, 1], vec![2]));
        assert_eq!(zero.metadata.path, Path::new("/etc/redbud/meta0.img"));
        assert_eq!((&zero.journal, one.journal.is_some()), (&None, true));
        let text = TWO.replacen("commit_protocol = \"EP\"", "spread_at = 1000", 1);
        assert_eq!(parse(&text).unwrap().any().spread_at, 1000);
    }

    #[test]
    fn server_with_standbys_may_be_at_every_address() {
        let more = "standbys = [\"10.0.0.3\"]\n[membership]\ndirectory = \"d\"\n[[mds]]";
        let file = parse(&TWO.replacen("[[mds]]", more, 1)).unwrap();
        let [first, second, third] = ["10.0.0.1:10821", "10.0.0.2:7", "10.0.0.3:10821"];
        for cluster in &file.servers {
            assert_eq!(cluster.servers(), [first, second, third]);
            assert_eq!(cluster.addresses_of(0), [first, third, second]);
            assert_eq!(cluster.addresses_of(1), [second, third, first]);
        }
        let alone = parse(TWO).unwrap();
        assert_eq!(alone.any().addresses_of(1), [second]);
    }

    #[test]
    fn server_that_takes_over_has_further_addresses() {
        let more = "[membership]\ndirectory = \"d\"\n[[mds]]";
        let text = TWO.replacen("[[mds]]", more, 1);
        let text = text.replacen("10.0.0.2:7\"", "10.0.0.2:7\"\ntake_over = [\"10.0.0.2\"]", 1);
        let file = parse(&text).unwrap();
        let [first, second, third] = ["10.0.0.1:10821", "10.0.0.2:7", "10.0.0.2:10821"];
        for cluster in &file.servers {
            assert_eq!(cluster.take_over, [vec![], vec![third.to_owned()]]);
            assert_eq!(cluster.servers(), [first, second]);
            assert_eq!(cluster.addresses_of(0), [first, third, second]);
            assert_eq!(cluster.addresses_of(1), [second, third, first]);
        }
        let many: Vec<String> = (0..5).map(|n| format!("\"h{n}\"")).collect();
        let many = many.join(", ");
        let cases = [
            (
                "[\"10.0.0.2\"]",
                "[\"10.0.0.2:7\"]",
                "key `mds.take_over`: 10.0.0.2:7 is named twice",
            ),
            ("[\"10.0.0.2\"]", "[\"a\", \"a\"]", "key `mds.take_over`: a:10821 is named twice"),
            ("[\"10.0.0.2\"]", "[\"0.0.0.0\"]", "key `mds.take_over`: 0.0.0.0:10821: clients"),
            ("\"10.0.0.2\"", &many, "key `mds.take_over`: more than 4 addresses"),
            ("[membership]\ndirectory = \"d\"", "", "key `mds.take_over`: it needs a table"),
        ];
        for (from, to, expected) in cases {
            let error = parse(&text.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(expected), "{to}: {error}");
        }
        let one = "name='a'\nmds=[{path='m', listen='h', take_over=['b']}]\ndata=[{path='d'}]\n";
        let error = parse(one).unwrap_err().to_string();
        assert!(error.contains("key `mds.take_over`: there is no other server"), "{error}");
    }

    #[test]
    fn server_is_chosen_by_its_number() {
        let chosen =
            |text: &str, asked| parse(text).unwrap().server(asked).map(|server| server.shard.0);
        assert_eq!((chosen(TWO, Some(0)), chosen(TWO, Some(1))), (Ok(0), Ok(1)));
        assert!(chosen(TWO, None).unwrap_err().contains("--server 0 to --server 1"));
        assert!(chosen(TWO, Some(2)).unwrap_err().contains("servers 0 to 1"));
        let one = "name='a'\nmetadata={path='m'}\ndata=[{path='d'}]\n";
        assert_eq!((chosen(one, None), chosen(one, Some(0))), (Ok(0), Ok(0)));
        assert!(chosen(one, Some(1)).unwrap_err().contains("only server 0"));
    }

    #[test]
    fn servers_share_targets_and_need_no_zones_beside_them() {
        let without = TWO.split("[[data]]").next().unwrap();
        let text = parse(without).unwrap_err().to_string();
        assert!(text.contains("server 0 has no data zone"), "{text}");
        let file = parse(&format!("{without}[targets]\nkey = \"k\"\n")).unwrap();
        let key = Some(PathBuf::from("/etc/redbud/k"));
        assert!(file.servers.iter().all(|one| one.target_key == key && one.data.is_empty()));
    }

    #[test]
    fn one_table_is_one_server() {
        let one = "name='a'\nmds=[{path='m', listen='h'}]\ndata=[{path='d'}]\n";
        let file = parse(one).unwrap();
        assert_eq!((file.is_several(), file.any().is_of_several()), (false, false));
        assert_eq!((&*file.any().listen, file.any().protocol), ("h:10821", Protocol::OnePhase));
        let alone = parse(&format!("{one}[server]\ncommit_batch=1\n"));
        assert_eq!(alone.unwrap().any().batch, 1);
    }

    #[test]
    fn wrong_servers_are_named() {
        let table = |n: usize| format!("[[mds]]\npath = \"x{n}\"\nlisten = \"h{n}\"\n");
        let many: String = (0..63).map(table).collect();
        let cases = [
            ("[[data]]", "[metadata]\npath = \"m\"\n[[data]]", "12: table [metadata]: it does not"),
            ("10.0.0.2:7", "10.0.0.1:10821", "10: key `mds.listen`: 10.0.0.1:10821 is the address"),
            ("10.0.0.2:7", "0.0.0.0", "10: key `mds.listen`: 0.0.0.0:10821: clients"),
            ("10.0.0.2:7", "[::]", "10: key `mds.listen`"),
            ("10.0.0.2:7", "10.0.0.2:0", "10: key `mds.listen`"),
            ("10.0.0.2:7", "a b", "10: key `mds.listen`"),
            ("meta1.img", "meta0.img", "8: key `mds.path`"),
            ("log1.img", "meta0.img", "9: key `mds.journal`"),
            ("log1.img", "meta1.img", "9: key `mds.journal`"),
            ("/dev/sdc", "meta1.img", "15: key `data.path`"),
            ("/dev/sdc", "log1.img", "15: key `data.path`"),
            ("mds = 1", "mds = 2", "16: key `data.mds`: there is no server 2"),
            ("mds = 1", "", " server 1 has no data zone: add a table [[data]]"),
            ("mds = 1", "mds = 1\nid = 1", "17: key `data.id`: 1 is used twice"),
            ("\"EP\"", "\"2PC\"", "3: key `server.commit_protocol`"),
            ("\"EP\"", "\"EP\"\ncommit_batch = 0", "4: key `server.commit_batch`: write 1 to 64"),
            ("\"EP\"", "\"EP\"\ncommit_batch = 65", "4: key `server.commit_batch`"),
            ("commit_protocol = \"EP\"", "spread_at = 0", "3: key `server.spread_at`"),
            ("[[mds]]", "listen = \"a\"\n[[mds]]", "4: key `server.listen`"),
            ("[[mds]]", "standbys = [\"a\"]\n[[mds]]", "4: key `server.standbys`: with [[mds]]"),
            (
                "[[mds]]",
                "standbys = [\"10.0.0.2:7\"]\n[membership]\ndirectory = \"d\"\n[[mds]]",
                "4: key `server.standbys`: 10.0.0.2:7 is named twice",
            ),
            ("[[data]]", &format!("{many}[[data]]"), ": table [[mds]]: more than 64 servers"),
        ];
        for (from, to, expected) in cases {
            let text = parse(&TWO.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(text.contains(expected), "{to}: {text}");
        }
        let no_server = parse("name='a'\ndata=[{path='d'}]\n").unwrap_err().to_string();
        assert!(no_server.contains("no metadata zone"), "{no_server}");
        let none = parse("name='a'\nmds=[]\ndata=[{path='d'}]\n").unwrap_err().to_string();
        assert!(none.contains("table [[mds]]: there is none"), "{none}");
    }
}
