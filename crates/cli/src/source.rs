//! What is mounted: `host[:port][,host[:port]…]:/fsname`, and addresses in general.

use std::fmt;

use types::check_fs_name;

use crate::config::DEFAULT_PORT;

/// A file system and the addresses of its metadata server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source {
    /// Addresses "host:port", at least one, in the order to try them.
    pub servers: Vec<String>,
    /// Name of the file system.
    pub fs_name: String,
}

impl Source {
    /// Reads a mount source. IPv6 addresses stand in brackets; the default port may be left out.
    pub fn parse(text: &str) -> Result<Source, String> {
        let shape =
            || format!("`{text}` is no mount source: write host[:port][,host[:port]]:/fsname");
        let (servers, fs_name) = text.rsplit_once(":/").ok_or_else(shape)?;
        if let Some((name, _)) = fs_name.split_once('/') {
            return Err(format!(
                "`{text}`: subdirectories cannot be mounted; mount :/{name} and use the path"
            ));
        }
        if !check_fs_name(fs_name) {
            return Err(shape());
        }
        let servers = servers.split(',').map(check_address).collect::<Result<Vec<_>, _>>()?;
        Ok(Source { servers, fs_name: fs_name.to_owned() })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:/{}", self.servers.join(","), self.fs_name)
    }
}

/// Checks "host", "host:port", "`[v6]`" or "`[v6]`:port"; gives it with its port.
pub fn check_address(text: &str) -> Result<String, String> {
    let wrong = || format!("`{text}` is no address: write host, host:port or [ipv6]:port");
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(wrong)?;
            host.parse::<std::net::Ipv6Addr>().map_err(|_| wrong())?;
            (&text[..host.len() + 2], port.strip_prefix(':').or(port.is_empty().then_some("")))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port).filter(|port| !port.is_empty())),
            None => (text, Some("")),
        },
    };
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    if host.is_empty() || !(host.starts_with('[') || host.bytes().all(legal)) {
        return Err(wrong());
    }
    let port = match port.ok_or_else(wrong)? {
        "" => DEFAULT_PORT,
        port => port.parse::<u16>().map_err(|_| wrong())?,
    };
    Ok(format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_read_with_and_without_ports() {
        let source = Source::parse("mds1,10.0.0.2:9000,[::1]:7,[fe80::2]:/home").unwrap();
        assert_eq!(source.servers, ["mds1:10821", "10.0.0.2:9000", "[::1]:7", "[fe80::2]:10821"]);
        assert_eq!(source.fs_name, "home");
        assert_eq!(source.to_string(), "mds1:10821,10.0.0.2:9000,[::1]:7,[fe80::2]:10821:/home");
        assert_eq!(Source::parse(&source.to_string()), Ok(source));
    }

    #[test]
    fn what_is_no_source_is_refused_with_the_right_shape() {
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
        assert!(Source::parse("host:/home/sub").unwrap_err().contains("mount :/home"));
    }
}
