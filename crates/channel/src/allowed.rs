//! The list of allowed keys: who may open sessions, as what, and whose rights are squashed.
//!
//! One key a line, as in `authorized_keys`; `#` begins a comment:
//!
//! | word | meaning |
//! |---|---|
//! | 1 | the public key, `redbud-key-…` |
//! | 2 | name of its node; two keys with one name are two keys of one node |
//! | 3 | role: `client`, `administrator`, `server` or `target` |
//! | others | `squash=root` or `squash=all`; `revoked` |
//!
//! A revoked line stays, so that the server can name the node that it refuses.
//!
//! Invariants:
//! - a key is in the list once;
//! - all keys of a node that are not revoked have one role and one squash;
//! - an error names the line, counted from 1.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::str::FromStr;

use crate::PublicKey;

/// Most lines with keys: two for each client that a server may have, and as many revoked ones.
pub const ENTRIES_MAX: usize = 131_072;
/// Longest name of a node: that of a host.
const NAME_MAX: usize = 253;

/// What the owner of a key may be.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    /// Mounts; sees its own state at the server, and nobody else's.
    Client,
    /// The same, and evicts, scrubs, and reads everybody's state.
    Administrator,
    /// A metadata server.
    Server,
    /// A server of data.
    Target,
}

const ROLES: [(Role, &str); 4] = [
    (Role::Client, "client"),
    (Role::Administrator, "administrator"),
    (Role::Server, "server"),
    (Role::Target, "target"),
];

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = ROLES.iter().find(|(role, _)| role == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Role, String> {
        let found = ROLES.iter().find(|(_, name)| *name == text);
        found.map(|(role, _)| *role).ok_or_else(|| {
            format!("`{text}` is no role: write client, administrator, server or target")
        })
    }
}

/// Whose requests from a node count as nobody's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Squash {
    /// Nobody's.
    #[default]
    Off,
    /// Those of user 0 and group 0.
    Root,
    /// All.
    All,
}

impl FromStr for Squash {
    type Err = String;

    fn from_str(text: &str) -> Result<Squash, String> {
        match text {
            "off" => Ok(Squash::Off),
            "root" => Ok(Squash::Root),
            "all" => Ok(Squash::All),
            _ => Err(format!("`squash={text}`: write squash=root, squash=all or squash=off")),
        }
    }
}

impl fmt::Display for Squash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Squash::Off => "off",
            Squash::Root => "root",
            Squash::All => "all",
        })
    }
}

/// One line of the list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The key.
    pub key: PublicKey,
    /// Its node.
    pub name: String,
    /// As what it may come.
    pub role: Role,
    /// Whose requests count as nobody's.
    pub squash: Squash,
    /// It is refused.
    pub revoked: bool,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.key, self.name, self.role)?;
        if self.squash != Squash::Off {
            write!(f, " squash={}", self.squash)?;
        }
        if self.revoked {
            f.write_str(" revoked")?;
        }
        Ok(())
    }
}

impl Entry {
    /// A server of the cluster, which proves the key that all of them have.
    pub fn of_server(key: PublicKey) -> Entry {
        let (name, role, squash) = ("server".to_owned(), Role::Server, Squash::Off);
        Entry { key, name, role, squash, revoked: false }
    }

    /// Reads the words of a line.
    fn read(line: &str) -> Result<Entry, String> {
        let mut words = line.split_whitespace();
        let mut next = |what: &str| words.next().ok_or_else(|| format!("{what} is missing"));
        let key = next("the key")?.parse::<PublicKey>().map_err(|error| error.0)?;
        let name = next("the name of the node")?.to_owned();
        check_name(&name)?;
        let role = next("the role")?.parse()?;
        let mut entry = Entry { key, name, role, squash: Squash::Off, revoked: false };
        for word in words {
            match word.split_once('=') {
                Some(("squash", value)) => entry.squash = value.parse()?,
                None if word == "revoked" => entry.revoked = true,
                _ => return Err(format!("`{word}` is neither squash=root|all nor revoked")),
            }
        }
        Ok(entry)
    }
}

/// Is `name` a name of a node?
///
/// # Errors
/// The names that are allowed.
pub fn check_name(name: &str) -> Result<(), String> {
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let begins_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    match begins_well && name.len() <= NAME_MAX && name.chars().all(good) {
        true => Ok(()),
        false => Err(format!(
            "`{name}` is no name of a node: write 1 to {NAME_MAX} letters, digits, '-', '_' or \
             '.', beginning with a letter or digit"
        )),
    }
}

/// An error in a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AllowedError {
    /// Line, counted from 1.
    pub line: usize,
    /// What is wrong there, and what to write.
    pub text: String,
}

impl fmt::Display for AllowedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.text)
    }
}

impl std::error::Error for AllowedError {}

/// The list.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Allowed {
    entries: Vec<Rc<Entry>>,
    by_key: BTreeMap<PublicKey, usize>,
    /// The nodes with keys that are not revoked, and the rights of each.
    by_node: BTreeMap<String, (Role, Squash)>,
}

impl Allowed {
    /// Reads a list.
    ///
    /// # Errors
    /// The first line that is wrong.
    pub fn parse(text: &str) -> Result<Allowed, AllowedError> {
        let mut allowed = Allowed::default();
        for (index, line) in text.lines().enumerate() {
            let wrong = |text: String| AllowedError { line: index + 1, text };
            let Some(words) = words(line) else { continue };
            let entry = Entry::read(words).map_err(wrong)?;
            if allowed.entries.len() == ENTRIES_MAX {
                return Err(wrong(format!("more than {ENTRIES_MAX} keys")));
            }
            if allowed.by_key.insert(entry.key, allowed.entries.len()).is_some() {
                return Err(wrong(format!("the key of `{}` is in the list twice", entry.name)));
            }
            let rights = (entry.role, entry.squash);
            let of_node = &mut allowed.by_node;
            if !entry.revoked && *of_node.entry(entry.name.clone()).or_insert(rights) != rights {
                return Err(wrong(format!(
                    "another key of `{}` has another role or squash: a node has one",
                    entry.name
                )));
            }
            allowed.entries.push(Rc::new(entry));
        }
        Ok(allowed)
    }

    /// The line of a key, revoked or not.
    pub fn find(&self, key: &PublicKey) -> Option<&Rc<Entry>> {
        self.entries.get(*self.by_key.get(key)?)
    }

    /// All lines, in their order.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().map(|entry| &**entry)
    }

    /// Has a node a key that is not revoked, and mounts?
    pub fn may_mount(&self, name: &str) -> bool {
        self.by_node.get(name).is_some_and(|(role, _)| role.may_mount())
    }

    /// `text` with `entry` as a line at its end. A line with the same key goes, whatever it says.
    ///
    /// # Errors
    /// `text` is no list, or would be none: another key of the node has another role or squash.
    pub fn with(text: &str, entry: &Entry) -> Result<String, AllowedError> {
        Allowed::parse(text)?;
        let is_old = |line: &&str| {
            let old = words(line).and_then(|words| Entry::read(words).ok());
            old.is_some_and(|old| old.key == entry.key)
        };
        let mut new = String::new();
        for line in text.lines().filter(|line| !is_old(line)) {
            new += line;
            new.push('\n');
        }
        new += &format!("{entry}\n");
        Allowed::parse(&new).map(|_| new)
    }

    /// `text` with every line revoked that `which` is true of, and how many these are.
    ///
    /// # Errors
    /// `text` is no list.
    pub fn without(
        text: &str,
        which: impl Fn(&Entry) -> bool,
    ) -> Result<(String, usize), AllowedError> {
        Allowed::parse(text)?;
        let (mut new, mut count) = (String::new(), 0);
        for line in text.lines() {
            let entry = words(line).and_then(|words| Entry::read(words).ok());
            match entry.filter(|entry| !entry.revoked && which(entry)) {
                Some(entry) => {
                    let comment = line.split_once('#').map_or("", |(_, comment)| comment).trim();
                    new += &Entry { revoked: true, ..entry }.to_string();
                    if !comment.is_empty() {
                        new += &format!(" # {comment}");
                    }
                    count += 1;
                }
                None => new += line,
            }
            new.push('\n');
        }
        Ok((new, count))
    }
}

impl Role {
    /// May its owner mount?
    pub fn may_mount(self) -> bool {
        matches!(self, Role::Client | Role::Administrator)
    }
}

/// A line without its comment; `None`: it is empty.
fn words(line: &str) -> Option<&str> {
    let words = line.split('#').next().unwrap_or_default().trim();
    (!words.is_empty()).then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SecretKey;

    fn key(seed: u8) -> PublicKey {
        SecretKey::new([seed; 32]).public()
    }

    fn entry(seed: u8, name: &str, role: Role) -> Entry {
        let (squash, revoked) = (Squash::Off, false);
        Entry { key: key(seed), name: name.into(), role, squash, revoked }
    }

    #[test]
    fn list_says_who_may_come_as_what() {
        let text = format!(
            "# hosts\n{} alpha client squash=root # rack 1\n\n{} alpha client squash=root\n\
             {} ops administrator\n  {} old client revoked\n",
            key(1),
            key(2),
            key(3),
            key(4)
        );
        let list = Allowed::parse(&text).unwrap();
        let alpha = list.find(&key(2)).unwrap();
        assert_eq!(
            (alpha.name.as_str(), alpha.role, alpha.squash),
            ("alpha", Role::Client, Squash::Root)
        );
        assert_eq!(list.find(&key(3)).unwrap().role, Role::Administrator);
        assert!(list.find(&key(4)).unwrap().revoked && list.find(&key(5)).is_none());
        assert!(list.may_mount("alpha") && list.may_mount("ops") && !list.may_mount("old"));
        assert_eq!(list.entries().count(), 4);
    }

    #[test]
    fn errors_name_the_line() {
        let good = format!("{} a client", key(1));
        let cases = [
            (format!("{good}\nrubbish a client"), 2, "is no key"),
            (format!("{good}\n\n{}", key(2)), 3, "name of the node is missing"),
            (format!("{} a", key(2)), 1, "role is missing"),
            (format!("{} a king", key(2)), 1, "`king` is no role"),
            (format!("{} a/b client", key(2)), 1, "is no name of a node"),
            (format!("{good} squash=some"), 1, "write squash=root"),
            (format!("{good} fast"), 1, "`fast` is neither"),
            (format!("{good}\n{} b client", key(1)), 2, "twice"),
            (format!("{good}\n{} a administrator", key(2)), 2, "another role"),
            (format!("{good}\n{} a client squash=all", key(2)), 2, "another role or squash"),
        ];
        for (text, line, words) in cases {
            let error = Allowed::parse(&text).unwrap_err();
            assert!(error.line == line && error.text.contains(words), "{text}: {error}");
        }
        // What is revoked binds nobody.
        Allowed::parse(&format!("{good} revoked\n{} a administrator", key(2))).unwrap();
    }

    #[test]
    fn allowing_a_key_again_replaces_its_name_role_and_squash() {
        let text = Allowed::with("# hosts\n", &entry(1, "a", Role::Client)).unwrap();
        let again = Entry { squash: Squash::Root, ..entry(1, "b", Role::Administrator) };
        let text = Allowed::with(&text, &again).unwrap();
        assert_eq!(text, format!("# hosts\n{} b administrator squash=root\n", key(1)));
        let text = Allowed::with(&text, &entry(2, "b", Role::Client)).unwrap_err();
        assert!(text.text.contains("another role"), "{text}");
    }

    #[test]
    fn keys_are_allowed_and_revoked_and_comments_stay() {
        let text = Allowed::with("# hosts\n", &entry(1, "a", Role::Client)).unwrap();
        let text = Allowed::with(&text, &entry(2, "a", Role::Client)).unwrap();
        let text = text.replace("client\n", "client # rack\n");
        let (text, count) = Allowed::without(&text, |entry| entry.key == key(1)).unwrap();
        assert_eq!(count, 1);
        let expected =
            format!("# hosts\n{} a client revoked # rack\n{} a client # rack\n", key(1), key(2));
        assert_eq!(text, expected);
        let (text, count) = Allowed::without(&text, |entry| entry.name == "a").unwrap();
        assert_eq!(count, 1, "the other one is revoked already");
        assert!(!Allowed::parse(&text).unwrap().may_mount("a"));
        let text = Allowed::with(&text, &entry(1, "a", Role::Administrator)).unwrap();
        assert_eq!(Allowed::parse(&text).unwrap().find(&key(1)).unwrap().role, Role::Administrator);
    }
}
