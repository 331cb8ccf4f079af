//! Means to cut an evicted client off from the data devices.
//!
//! Invariants:
//! - a means says [`Answer::Yes`] to a cut only if nothing that the client sent before can reach a
//!   device later. It says so to a check only if it asked, and the client is cut off;
//! - an action that is dropped ends: no process of it goes on.

use std::future::Future;
use std::pin::Pin;

use types::{ClientId, Duration};

/// Longest name of a host.
const HOST_MAX: usize = 253;

/// The client to be fenced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FenceTarget {
    /// Its number.
    pub client: ClientId,
    /// Its host, as the client named it in its greeting.
    pub host: String,
}

/// What a means shall do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FenceAction {
    /// Cut the client off from the data devices.
    Cut,
    /// Is it cut off?
    Check,
    /// Give its access back.
    Restore,
}

/// How an action ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Done; to a check: it is cut off.
    Yes,
    /// Not done, or not cut off, and why.
    No(String),
    /// It has not ended in its time.
    Late,
}

/// The answer to an action, later.
pub type Acting<'a> = Pin<Box<dyn Future<Output = Answer> + 'a>>;

/// A means to cut clients off.
pub trait Fence {
    /// Its name, for messages.
    fn name(&self) -> String;

    /// Is it meant for this client?
    fn covers(&self, target: &FenceTarget) -> bool;

    /// How long one action may take. An action that takes longer is dropped.
    fn patience(&self) -> Duration;

    /// Begins an action.
    fn act<'a>(&'a self, action: FenceAction, target: &'a FenceTarget) -> Acting<'a>;
}

/// The host in a client's description of itself, "host, pid …"; `None`: it names none that could
/// be given to a means of fencing.
pub fn host_of(description: &str) -> Option<&str> {
    let host = description.split(',').next().unwrap_or_default();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let begins = host.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    (begins && host.len() <= HOST_MAX && host.bytes().all(plain)).then_some(host)
}

/// Does a host's name match a pattern, in which each `*` stands for any characters?
pub fn matches_host(pattern: &str, host: &str) -> bool {
    let Some((before, rest)) = pattern.split_once('*') else { return pattern == host };
    let Some(host) = host.strip_prefix(before) else { return false };
    let starts = (0..=host.len()).filter(|&at| host.is_char_boundary(at));
    starts.into_iter().any(|at| matches_host(rest, &host[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_is_a_plain_name_before_the_first_comma() {
        assert_eq!(host_of("node-1.example, pid 7, /mnt"), Some("node-1.example"));
        for bad in ["", ", pid 7", "a b, x", "a\nplug=2, x", "-o, x", "ä, x", "a=b"] {
            assert_eq!(host_of(bad), None, "{bad:?}");
        }
        assert_eq!(host_of(&"a".repeat(254)), None);
    }

    #[test]
    fn pattern_of_hosts_has_stars() {
        let cases = [
            ("node1", "node1", true),
            ("node1", "node12", false),
            ("node*", "node12", true),
            ("*", "anything", true),
            ("*.rack2", "a.rack2", true),
            ("*.rack2", "a.rack2.b", false),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxcyyb", false),
            ("", "a", false),
        ];
        for (pattern, host, matches) in cases {
            assert_eq!(matches_host(pattern, host), matches, "{pattern} {host}");
        }
    }
}
