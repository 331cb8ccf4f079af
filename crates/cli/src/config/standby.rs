//! The keys for servers that stand by: where else clients find a server, and where the servers
//! agree on who of them serves.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;
use types::Duration;
use types::units::parse_duration;

use super::{Cluster, ConfigError, Reader};
use crate::address::check_address;

/// Most addresses beside `listen`.
const STANDBYS_MAX: usize = 15;

/// Most members of an etcd cluster.
const ETCD_MAX: usize = 9;
/// Their port, by default.
const ETCD_PORT: u16 = 2379;
/// The owner's lease at etcd, by default.
const DEFAULT_LEASE: Duration = Duration::from_secs(6);
/// Bounds of that lease, in seconds.
const LEASE_RANGE: RangeInclusive<u64> = 3..=60;

/// Where servers agree on who of them serves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MembershipConfig {
    /// A lock and a file in this directory, for servers of one host.
    Directory(PathBuf),
    /// Keys of an etcd cluster.
    Etcd(EtcdConfig),
}

/// An etcd cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdConfig {
    /// The URLs of its members, each with a port and without a path.
    pub members: Vec<String>,
    /// The file with the certificates that members' certificates must come from; `None`: no member
    /// has TLS.
    pub ca: Option<PathBuf>,
    /// The user, and the file with the password.
    pub user: Option<(String, PathBuf)>,
    /// How long an owner may be silent: whole seconds.
    pub lease: Duration,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMembership {
    directory: Option<Spanned<PathBuf>>,
    etcd: Option<Spanned<Vec<Spanned<String>>>>,
    ca: Option<Spanned<PathBuf>>,
    user: Option<Spanned<String>>,
    password_file: Option<Spanned<PathBuf>>,
    lease: Option<Spanned<String>>,
}

/// Checks the URL of a member; the result has its port, and says whether it has TLS.
fn check_member(text: &str) -> Result<(String, bool), String> {
    let wrong = || format!("`{text}` is no URL of an etcd member: write https://host:2379");
    let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
    let tls = match scheme {
        "https" => true,
        "http" => false,
        _ => return Err(wrong()),
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (host, _) = rest.rsplit_once(':').unwrap_or((rest, ""));
    let has_port = match rest.strip_prefix('[') {
        Some(_) => !rest.ends_with(']'),
        None => rest.contains(':'),
    };
    let host = if has_port { host } else { rest };
    // It supplies its own port where there is none.
    let address = check_address(rest).map_err(|_| wrong())?;
    if !tls {
        let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        if !literal.is_ok_and(|ip| ip.is_loopback()) {
            return Err(format!(
                "`{text}` is in the clear: http:// is only for loopback addresses such as \
                 127.0.0.1; write https:// and the key `ca`"
            ));
        }
    }
    let url = match has_port {
        true => format!("{scheme}://{address}"),
        false => format!("{scheme}://{host}:{ETCD_PORT}"),
    };
    Ok((url, tls))
}

impl Reader<'_> {
    pub(super) fn membership(
        &self,
        raw: Option<&RawMembership>,
    ) -> Result<Option<MembershipConfig>, ConfigError> {
        let Some(raw) = raw else { return Ok(None) };
        let (directory, urls) = match (&raw.directory, &raw.etcd) {
            (Some(directory), None) => (directory, None),
            (None, Some(urls)) => return self.etcd(raw, urls).map(Some),
            (Some(directory), Some(urls)) => (directory, Some(urls.span())),
            (None, None) => {
                return Err(self.anywhere(
                    "table [membership]: write the key `etcd`, or `directory` for servers of one \
                     host",
                ));
            }
        };
        let others = [
            urls.map(|span| ("etcd", span)),
            raw.ca.as_ref().map(|ca| ("ca", ca.span())),
            raw.user.as_ref().map(|user| ("user", user.span())),
            raw.password_file.as_ref().map(|file| ("password_file", file.span())),
            raw.lease.as_ref().map(|lease| ("lease", lease.span())),
        ];
        if let Some((name, span)) = others.into_iter().flatten().next() {
            let text = format!("key `membership.{name}`: it does not go with `directory`");
            return Err(self.at(span, text));
        }
        Ok(Some(MembershipConfig::Directory(self.path(directory.get_ref()))))
    }

    fn etcd(
        &self,
        raw: &RawMembership,
        urls: &Spanned<Vec<Spanned<String>>>,
    ) -> Result<MembershipConfig, ConfigError> {
        let (mut members, mut clear, mut tls) = (Vec::new(), None, None);
        for url in urls.get_ref() {
            let at = |text: &str| self.at(url.span(), format!("key `membership.etcd`: {text}"));
            let (member, secure) = check_member(url.get_ref()).map_err(|text| at(&text))?;
            if members.contains(&member) {
                return Err(at(&format!("{member} is named twice")));
            }
            members.push(member);
            let kind = if secure { &mut tls } else { &mut clear };
            kind.get_or_insert(url.span());
        }
        if members.is_empty() || members.len() > ETCD_MAX {
            let text = format!("key `membership.etcd`: write 1 to {ETCD_MAX} URLs, usually 3");
            return Err(self.at(urls.span(), text));
        }
        match (&tls, &clear, &raw.ca) {
            (Some(_), Some(clear), _) => {
                let text = "key `membership.etcd`: write https:// for all members, or for none";
                return Err(self.at(clear.clone(), text));
            }
            (Some(tls), _, None) => {
                let text = "key `membership.ca`: it is missing: https:// needs the file with the \
                            certificates of the cluster's CA";
                return Err(self.at(tls.clone(), text));
            }
            (None, _, Some(ca)) => {
                let text = "key `membership.ca`: it needs members with https://";
                return Err(self.at(ca.span(), text));
            }
            _ => {}
        }
        Ok(MembershipConfig::Etcd(EtcdConfig {
            members,
            ca: raw.ca.as_ref().map(|ca| self.path(ca.get_ref())),
            user: self.etcd_user(raw)?,
            lease: self.etcd_lease(raw.lease.as_ref())?,
        }))
    }

    fn etcd_user(&self, raw: &RawMembership) -> Result<Option<(String, PathBuf)>, ConfigError> {
        match (&raw.user, &raw.password_file) {
            (None, None) => Ok(None),
            (Some(user), Some(file)) if !user.get_ref().is_empty() => {
                Ok(Some((user.get_ref().clone(), self.path(file.get_ref()))))
            }
            (Some(user), _) => {
                let text = "key `membership.user`: write a user, and its `password_file`";
                Err(self.at(user.span(), text))
            }
            (None, Some(file)) => {
                let text = "key `membership.password_file`: it needs a key `user`";
                Err(self.at(file.span(), text))
            }
        }
    }

    fn etcd_lease(&self, value: Option<&Spanned<String>>) -> Result<Duration, ConfigError> {
        let Some(value) = value else { return Ok(DEFAULT_LEASE) };
        let lease = parse_duration(value.get_ref()).ok();
        let whole = lease.filter(|lease| lease.subsec_nanos() == 0);
        whole.filter(|lease| LEASE_RANGE.contains(&lease.as_secs())).ok_or_else(|| {
            let (least, most) = (LEASE_RANGE.start(), LEASE_RANGE.end());
            let text = format!("key `membership.lease`: write {least}s to {most}s");
            self.at(value.span(), text)
        })
    }

    pub(super) fn standbys(
        &self,
        listen: &str,
        values: Option<&Vec<Spanned<String>>>,
    ) -> Result<Vec<String>, ConfigError> {
        let mut found: Vec<String> = Vec::new();
        for value in values.into_iter().flatten() {
            let at = |text: &str| self.at(value.span(), format!("key `server.standbys`: {text}"));
            let address = check_address(value.get_ref()).map_err(|text| at(&text))?;
            if address == listen || found.contains(&address) {
                return Err(at(&format!("{address} is named twice")));
            }
            if found.len() == STANDBYS_MAX {
                return Err(at(&format!("more than {STANDBYS_MAX} addresses")));
            }
            found.push(address);
        }
        Ok(found)
    }
}

impl Cluster {
    /// Makes `listen` the address of this server; the file's one stays an address of another
    /// server.
    pub fn listen_at(&mut self, listen: String) {
        if self.membership.is_some() && !self.is_of_several() {
            self.standbys.retain(|address| *address != listen);
            if self.listen != listen {
                self.standbys.insert(0, self.listen.clone());
            }
        }
        self.listen = listen;
    }

    /// All addresses at which clients look for a server: those of all servers, and of those that
    /// stand by.
    pub fn servers(&self) -> Vec<String> {
        match self.is_of_several() {
            true => self.namespace.iter().chain(&self.standbys).cloned().collect(),
            false => std::iter::once(&self.listen).chain(&self.standbys).cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::ClusterFile;
    use super::*;

    fn parse(server: &str, rest: &str) -> Result<Cluster, ConfigError> {
        let text = format!(
            "name='a'\nmetadata={{path='m'}}\ndata=[{{path='d'}}]\n{rest}[server]\n{server}"
        );
        let file = ClusterFile::parse(Path::new("/etc/redbud/a.toml"), &text)?;
        Ok(file.any().clone())
    }

    #[test]
    fn servers_that_stand_by_are_further_addresses() {
        let place = "membership={directory='who'}\n";
        let cluster = parse("listen='a:1'\nstandbys=['b', '[::1]:7']\n", place).unwrap();
        assert_eq!(cluster.servers(), ["a:1", "b:10821", "[::1]:7"]);
        let directory = MembershipConfig::Directory("/etc/redbud/who".into());
        assert_eq!(cluster.membership, Some(directory));
        let alone = parse("listen='a:1'\n", "").unwrap();
        assert_eq!((alone.servers(), alone.membership), (vec!["a:1".to_owned()], None));
        for wrong in ["['a:1']", "['b', 'b:10821']", "['b c']"] {
            let error = parse(&format!("listen='a:1'\nstandbys={wrong}\n"), "").unwrap_err();
            assert!(error.to_string().contains("key `server.standbys`"), "{error}");
        }
        assert!(parse("", "membership={path='x'}\n").is_err());
    }

    #[test]
    fn etcd_is_members_with_tls_and_a_user() {
        let table = "etcd=['https://a', 'https://[::1]:1', 'https://c:7/'], ca='ca.pem', \
                     user='redbud', password_file='/p', lease='4s'";
        let cluster = parse("", &format!("membership={{{table}}}\n")).unwrap();
        let members = ["https://a:2379", "https://[::1]:1", "https://c:7"].map(str::to_owned);
        let config = EtcdConfig {
            members: members.to_vec(),
            ca: Some("/etc/redbud/ca.pem".into()),
            user: Some(("redbud".into(), "/p".into())),
            lease: Duration::from_secs(4),
        };
        assert_eq!(cluster.membership, Some(MembershipConfig::Etcd(config)));
        let clear =
            "membership={etcd=['http://127.0.0.1:1', 'http://[::1]', 'http://127.8.0.1']}\n";
        let Some(MembershipConfig::Etcd(config)) = parse("", clear).unwrap().membership else {
            panic!("no etcd");
        };
        assert_eq!(
            config.members,
            ["http://127.0.0.1:1", "http://[::1]:2379", "http://127.8.0.1:2379"]
        );
        assert_eq!((config.ca, config.user, config.lease), (None, None, DEFAULT_LEASE));
    }

    #[test]
    fn wrong_keys_of_etcd_are_named() {
        let local = "etcd=['http://127.0.0.1:1']";
        let cases = [
            ("etcd=['http://10.0.0.1:2379']", "is in the clear: http:// is only for loopback"),
            ("etcd=['http://localhost:2379']", "is in the clear"),
            ("etcd=['http://127.0.0.1.evil.example']", "is in the clear"),
            ("etcd=['10.0.0.1:2379']", "is no URL of an etcd member"),
            ("etcd=['ftp://a']", "is no URL of an etcd member"),
            ("etcd=['https://a/path'], ca='c'", "is no URL of an etcd member"),
            ("etcd=['https://user@a'], ca='c'", "is no URL of an etcd member"),
            ("etcd=['https://'], ca='c'", "is no URL of an etcd member"),
            ("etcd=['https://a', 'https://a:2379/'], ca='c'", "is named twice"),
            ("etcd=['https://a', 'http://127.0.0.1'], ca='c'", "for all members, or for none"),
            ("etcd=['https://a']", "key `membership.ca`: it is missing"),
            ("etcd=[]", "key `membership.etcd`: write 1 to 9 URLs"),
            ("lease='5s'", "write the key `etcd`, or `directory`"),
            ("directory='x', etcd=['https://a']", "key `membership.etcd`: it does not go with"),
            ("directory='x', lease='5s'", "key `membership.lease`: it does not go with"),
            (&format!("{local}, ca='x'"), "key `membership.ca`: it needs"),
            (&format!("{local}, user='x'"), "key `membership.user`: write a user"),
            (&format!("{local}, password_file='x'"), "it needs a key `user`"),
            (&format!("{local}, lease='2s'"), "key `membership.lease`: write 3s to 60s"),
            (&format!("{local}, lease='3500ms'"), "key `membership.lease`: write"),
            (&format!("{local}, lease='x'"), "key `membership.lease`: write"),
        ];
        for (table, expected) in cases {
            let error = parse("", &format!("membership={{{table}}}\n")).unwrap_err().to_string();
            assert!(error.contains(expected), "{table}: {error}");
        }
    }
}
