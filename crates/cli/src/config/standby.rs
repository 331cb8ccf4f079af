//! The keys for servers that stand by: where else clients find a server, and where the servers
//! agree on who of them serves.

use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;

use super::{Cluster, ConfigError, Reader};
use crate::address::check_address;

/// Most addresses beside `listen`.
const STANDBYS_MAX: usize = 15;

/// Where servers agree on who of them serves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MembershipConfig {
    /// A lock and a file in this directory, for servers of one host.
    Directory(PathBuf),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMembership {
    directory: Spanned<PathBuf>,
}

impl Reader<'_> {
    pub(super) fn membership(&self, raw: Option<&RawMembership>) -> Option<MembershipConfig> {
        raw.map(|raw| MembershipConfig::Directory(self.path(raw.directory.get_ref())))
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
        if self.membership.is_some() {
            self.standbys.retain(|address| *address != listen);
            if self.listen != listen {
                self.standbys.insert(0, self.listen.clone());
            }
        }
        self.listen = listen;
    }

    /// All addresses at which clients look for the server.
    pub fn servers(&self) -> Vec<String> {
        std::iter::once(&self.listen).chain(&self.standbys).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn parse(server: &str, rest: &str) -> Result<Cluster, ConfigError> {
        let text = format!(
            "name='a'\nmetadata={{path='m'}}\ndata=[{{path='d'}}]\n{rest}[server]\n{server}"
        );
        Cluster::parse(Path::new("/etc/redbud/a.toml"), &text)
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
}
