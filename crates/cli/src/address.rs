//! Parsing of server addresses.

/// The metadata server's port unless the file says otherwise.
pub const DEFAULT_PORT: u16 = 10821;
/// The port of an object target, unless something else is said.
pub const OST_PORT: u16 = 10822;

/// Checks "host", "host:port", "`[v6]`" or "`[v6]`:port"; returns it with its port.
pub fn check_address(text: &str) -> Result<String, String> {
    check_address_or(text, DEFAULT_PORT)
}

/// As [`check_address`], with another port where none is given.
pub fn check_address_or(text: &str, usual: u16) -> Result<String, String> {
    let wrong = || format!("`{text}` is not an address: write host, host:port or [ipv6]:port");
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
        "" => usual,
        port => port.parse::<u16>().map_err(|_| wrong())?,
    };
    Ok(format!("{host}:{port}"))
}
