//! Mount sources: `host[:port][,host[:port]…]:/fsname[/subdir]`.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};

use types::{Name, check_fs_name};

use crate::address::check_address;

/// A file system and the addresses of its metadata server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source {
    /// Addresses "host:port", at least one, in the order to try them.
    pub servers: Vec<String>,
    /// Name of the file system.
    pub fs_name: String,
    /// The directory to mount; empty: the root.
    pub dir: Vec<Name>,
    /// The cluster's file, if the source comes from one.
    pub cluster: Option<std::path::PathBuf>,
    /// The only server of several that is meant; `None`: any.
    pub server: Option<u16>,
}

impl Source {
    /// Reads a mount source. IPv6 addresses are in brackets; the port is optional.
    pub fn parse(text: &str) -> Result<Source, String> {
        let shape = || {
            format!(
                "`{text}` is not a mount source: write host[:port][,host[:port]]:/fsname[/subdir]"
            )
        };
        // An address has no slash; a directory may have any character.
        let (servers, path) = text.split_once(":/").ok_or_else(shape)?;
        let (fs_name, dir) = path.split_once('/').unwrap_or((path, ""));
        if !check_fs_name(fs_name) {
            return Err(shape());
        }
        let names = dir.split('/').filter(|name| !name.is_empty() && *name != ".");
        let dir = names
            .map(|name| match Name::new(name.as_bytes()) {
                Ok(name) if name.as_bytes() != b".." => Ok(name),
                _ => Err(format!("`{text}`: `{name}` cannot be the name of a directory")),
            })
            .collect::<Result<Vec<_>, _>>()?;
        let servers = servers.split(',').map(check_address).collect::<Result<Vec<_>, _>>()?;
        Ok(Source { servers, fs_name: fs_name.to_owned(), dir, cluster: None, server: None })
    }

    /// Is it the same file system: the same name and a common server?
    pub fn is_same_as(&self, other: &Source) -> bool {
        let meets = |one: &String| other.servers.iter().any(|another| is_same_server(one, another));
        self.fs_name == other.fs_name && self.servers.iter().any(meets)
    }

    /// The same file system from its root.
    pub fn whole(self) -> Source {
        Source { dir: Vec::new(), ..self }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:/{}", self.servers.join(","), self.fs_name)?;
        self.dir.iter().try_for_each(|name| write!(f, "/{name}"))
    }
}

/// Are two addresses of one server? An unspecified address equals each with its port.
fn is_same_server(one: &str, another: &str) -> bool {
    let resolve = |text: &str| -> Vec<SocketAddr> {
        text.to_socket_addrs().map(Iterator::collect).unwrap_or_default()
    };
    if one == another {
        return true;
    }
    let others = resolve(another);
    resolve(one).iter().any(|one| {
        others.iter().any(|another| {
            let anywhere = one.ip().is_unspecified() || another.ip().is_unspecified();
            one == another || (anywhere && one.port() == another.port())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_differ_by_name_and_server() {
        let same = |one: &str, another: &str| {
            Source::parse(one).unwrap().is_same_as(&Source::parse(another).unwrap())
        };
        assert!(same("127.0.0.1:7:/home/a", "127.0.0.1:7:/home"));
        assert!(same("0.0.0.0:7:/home", "127.0.0.1:7:/home"));
        assert!(same("10.0.0.1:7,10.0.0.2:7:/home", "10.0.0.2:7:/home"));
        assert!(!same("127.0.0.1:7:/home", "127.0.0.1:7:/work"));
        assert!(!same("127.0.0.1:7:/home", "127.0.0.1:8:/home"));
        assert!(!same("0.0.0.0:7:/home", "127.0.0.1:8:/home"));
    }

    #[test]
    fn sources_parse_with_and_without_ports() {
        let source = Source::parse("mds1,10.0.0.2:9000,[::1]:7,[fe80::2]:/home").unwrap();
        assert_eq!(source.servers, ["mds1:10821", "10.0.0.2:9000", "[::1]:7", "[fe80::2]:10821"]);
        assert_eq!(source.fs_name, "home");
        assert_eq!(source.to_string(), "mds1:10821,10.0.0.2:9000,[::1]:7,[fe80::2]:10821:/home");
        assert_eq!(Source::parse(&source.to_string()), Ok(source));
    }

    #[test]
    fn source_may_name_a_subdirectory() {
        let source = Source::parse("[::1]:7:/home//a:/b/./c d/").unwrap();
        assert_eq!(source.servers, ["[::1]:7"]);
        assert_eq!(source.to_string(), "[::1]:7:/home/a:/b/c d");
        assert_eq!(Source::parse(&source.to_string()), Ok(source.clone()));
        assert_eq!(source.whole().to_string(), "[::1]:7:/home");
    }

    #[test]
    fn invalid_source_is_refused_with_the_right_form() {
        for bad in [
            "",
            "home",
            "/home",
            "host:home",
            ":/home",
            "host:/",
            "host:/a b",
            "a:x:/home",
            "a:70000:/h",
            "[::1:/h",
        ] {
            assert!(Source::parse(bad).is_err(), "{bad}");
        }
        for bad in ["host:/home/../x", "host:/home/a/..", "host:/../home"] {
            assert!(Source::parse(bad).is_err(), "{bad}");
        }
    }
}
