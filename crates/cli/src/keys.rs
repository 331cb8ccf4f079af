//! The files with keys: a node's secret keys, a server's list of allowed keys, and what a cluster's
//! file says about both.
//!
//! Invariants:
//! - a secret key is written to a file that only its owner reads, and read from no other;
//! - the list is replaced as a whole: who reads it sees it before or after a change;
//! - changed files are read again without a restart: the server looks at each of its rounds and at
//!   each handshake, a client at each connection.

use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use channel::{Allowed, Mode, PublicKey, SecretKey, SecretKeys};
use serde::{Deserialize, Serialize};
use session::client::{ClientKeys, ReadClientKeys};
use session::server::{KeyFiles, ServerKeys};
use types::limits::HALF_OPEN_MAX;

use crate::config::{ClientView, Cluster};
use crate::exit::Failure;

/// Where clients look for the file of a cluster: `NAME.toml` here.
pub const CLUSTERS: &str = "/etc/redbud";
/// The key of this host as a client, if the cluster's file names no other.
pub const CLIENT_KEY: &str = "/etc/redbud/client.key";
/// Longest list: its entries, with comments.
const LIST_MAX: u64 = 64 << 20;
/// Longest file of secret keys.
const SECRETS_FILE_MAX: u64 = 64 << 10;

/// What a mount's options say about keys.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct KeyOptions {
    /// The cluster's file, if not the usual one.
    pub cluster: Option<PathBuf>,
    /// The file with this host's secret key, if not the one that the cluster's file names.
    pub key: Option<PathBuf>,
    /// Use no keys, whatever the cluster's file says.
    pub none: bool,
}

/// The keys of a client of the file system `name`; `None`: it uses none.
pub fn of_client(options: &KeyOptions, name: &str) -> Option<ReadClientKeys> {
    let usual = || Path::new(CLUSTERS).join(format!("{name}.toml"));
    let file = options.cluster.clone().unwrap_or_else(usual);
    let without = || ClientView::read(&file).is_ok_and(|view| view.security.is_none());
    if options.none || without() {
        return None;
    }
    let key = options.key.clone();
    Some(Rc::new(move || {
        let missing = !file.exists();
        let advice = "it names the server's public key (`redbud key show` on the server's host); \
                      without keys mount with -o security=none";
        if missing {
            return Err(format!("{} is missing: {advice}", file.display()));
        }
        let view = ClientView::read(&file).map_err(|error| error.to_string())?;
        let mode = view.security.ok_or("security is \"none\" now: mount again")?;
        if view.public_keys.is_empty() {
            return Err(format!("{} has no key `server.public_keys`: {advice}", file.display()));
        }
        let secret = read_secrets(key.as_ref().unwrap_or(&view.key))?.first().clone();
        Ok(ClientKeys { mode, secret, servers: view.public_keys })
    }))
}

/// How the cluster's metadata server proves its own key to object targets; `None`: they ask for
/// none. A target has one of the cluster's public keys, and allows the server's.
pub fn of_server_to_targets(cluster: &Cluster) -> Option<ReadClientKeys> {
    let (mode, key) = (cluster.security?, cluster.key.clone());
    let known = cluster.public_keys.clone();
    Some(Rc::new(move || {
        let secret = read_secrets(&key)?.first().clone();
        let servers = if known.is_empty() { vec![secret.public()] } else { known.clone() };
        Ok(ClientKeys { mode, secret, servers })
    }))
}

/// How the cluster's server asks for keys; `None`: it asks for none.
///
/// # Errors
/// Its key is missing, or not only its own.
pub fn of_server(cluster: &Cluster) -> Result<Option<ServerKeys>, Failure> {
    of_files(&cluster.file, cluster.security, (&cluster.key, &cluster.allowed))
}

/// How a server asks for keys: with the secret key and the list of allowed ones in these files, of
/// which the cluster's file `file` says what clients have to prove.
///
/// # Errors
/// As [`of_server`].
pub fn of_files(
    file: &Path,
    security: Option<Mode>,
    (key, allowed): (&Path, &Path),
) -> Result<Option<ServerKeys>, Failure> {
    let Some(least) = security else { return Ok(None) };
    if !key.exists() {
        let (key, file) = (key.display(), file.display());
        let text = format!(
            "{key}: the server has no key: make it by `redbud key new {file}`; or, if nobody else \
             reaches the server, write security = \"none\" in the table [server] of {file}"
        );
        return Err(Failure::failed("RB-KEY-MISSING", text));
    }
    let (key, allowed) = (key.to_owned(), allowed.to_owned());
    let last: RefCell<Option<[Stamp; 2]>> = RefCell::default();
    let had_list = Cell::new(false);
    let read = move || {
        let stamps = [stamp(&key), stamp(&allowed)];
        if last.borrow_mut().replace(stamps) == Some(stamps) {
            return None;
        }
        let list = match read_list(&allowed) {
            Ok(None) if had_list.get() => {
                Err(format!("{}: the list of allowed keys is missing", allowed.display()))
            }
            read => read.and_then(|text| parse_list(&allowed, &text.unwrap_or_default())),
        };
        had_list.set(had_list.get() || list.is_ok() && stamps[1].is_some());
        Some(KeyFiles { secrets: read_secrets(&key), allowed: list })
    };
    let half_open_max = half_open_max(env::raise_open_files());
    Ok(Some(ServerKeys { least, half_open_max, read: Rc::new(read) }))
}

/// How many connections of strangers a process with this limit of open files takes at once: the
/// others are for clients.
pub fn half_open_max(open_files: u64) -> usize {
    HALF_OPEN_MAX.min((open_files / 4) as usize)
}

/// What tells two states of a file apart: device, inode, size and time of change; `None`: it is
/// missing.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

fn stamp(path: &Path) -> Stamp {
    let metadata = std::fs::metadata(path).ok()?;
    let (seconds, nanos) = (metadata.ctime(), metadata.ctime_nsec());
    Some((metadata.dev(), metadata.ino(), metadata.size(), seconds, nanos))
}

fn read_text(path: &Path, most: u64) -> Result<String, String> {
    let wrong = |text: &dyn std::fmt::Display| format!("{}: {text}", path.display());
    let file = std::fs::File::open(path).map_err(|error| wrong(&error))?;
    let mut text = String::new();
    file.take(most + 1).read_to_string(&mut text).map_err(|error| wrong(&error))?;
    match text.len() as u64 <= most {
        true => Ok(text),
        false => Err(wrong(&format!("it has more than {most} bytes"))),
    }
}

/// Reads a file of secret keys, which nobody but its owner may read.
pub fn read_secrets(path: &Path) -> Result<SecretKeys, String> {
    let wrong = |text: &dyn std::fmt::Display| format!("{}: {text}", path.display());
    let metadata = std::fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            wrong(&"this host has no key: make it by `redbud key new`, and allow it on the server")
        }
        _ => wrong(&error),
    })?;
    if metadata.is_file() && metadata.mode() & 0o077 != 0 {
        let mode = metadata.mode() & 0o777;
        let text = format!("others may read this secret key (mode {mode:o}): chmod 600 it");
        return Err(wrong(&text));
    }
    SecretKeys::parse(&read_text(path, SECRETS_FILE_MAX)?).map_err(|error| wrong(&error))
}

/// Reads a list of allowed keys; a missing one allows none.
pub fn read_allowed(path: &Path) -> Result<Allowed, String> {
    parse_list(path, &read_list(path)?.unwrap_or_default())
}

fn parse_list(path: &Path, text: &str) -> Result<Allowed, String> {
    Allowed::parse(text).map_err(|error| format!("{}: {error}", path.display()))
}

/// The text of a list; `None`: it is missing.
pub fn read_list(path: &Path) -> Result<Option<String>, String> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        _ => read_text(path, LIST_MAX).map(Some),
    }
}

/// The key that the metadata server and the targets of a file system share: 64 hex digits in a file
/// that nobody but its owner may read.
///
/// # Errors
/// There is no such key.
pub fn read_target_key(path: &Path) -> Result<[u8; 32], String> {
    let wrong = |text: &dyn std::fmt::Display| format!("{}: {text}", path.display());
    let metadata = std::fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => wrong(
            &"there is no key of the targets: make it once by `redbud ost key FILE`, and copy the \
              file to the metadata server and to each host with targets",
        ),
        _ => wrong(&error),
    })?;
    if metadata.is_file() && metadata.mode() & 0o077 != 0 {
        let mode = metadata.mode() & 0o777;
        let text = format!("others may read the key of the targets (mode {mode:o}): chmod 600 it");
        return Err(wrong(&text));
    }
    let text = read_text(path, SECRETS_FILE_MAX)?;
    let digits: Option<Vec<u8>> =
        text.trim().chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
    let digits = digits.filter(|digits| digits.len() == 64);
    let digits = digits.ok_or_else(|| wrong(&"it is no key of targets: 64 hex digits"))?;
    let mut key = [0; 32];
    for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    Ok(key)
}

/// Makes a key of targets in a new file.
///
/// # Errors
/// The file exists, or cannot be written.
pub fn make_target_key(path: &Path) -> Result<(), String> {
    let wrong = |text: &dyn std::fmt::Display| format!("{}: {text}", path.display());
    if path.symlink_metadata().is_ok() {
        return Err(wrong(&"it exists: all capabilities of a file system are made with one key"));
    }
    let key: String = secret()?.iter().map(|byte| format!("{byte:02x}")).collect();
    replace(path, &format!("{key}\n"), 0o600)
}

/// Random bytes from the kernel.
fn secret() -> Result<[u8; 32], String> {
    let mut secret = [0; 32];
    let source =
        std::fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut secret));
    source.map_err(|error| format!("/dev/urandom: {error}"))?;
    Ok(secret)
}

/// Makes a secret key in a new file, or as the first one of a file that is there with `add`.
pub fn make(path: &Path, add: bool) -> Result<PublicKey, String> {
    let wrong = |text: &dyn std::fmt::Display| format!("{}: {text}", path.display());
    let key = SecretKey::new(secret()?);
    let mut text = format!("# A secret key of Redbud. Its public key is\n# {}\n", key.public());
    text += &format!("{}\n", key.reveal());
    if add {
        for old in read_secrets(path)?.all() {
            text += &format!("# Valid until it is removed: {}\n{}\n", old.public(), old.reveal());
        }
        SecretKeys::parse(&text).map_err(|error| wrong(&error))?;
    } else if path.symlink_metadata().is_ok() {
        let advice = "it exists; to change keys add one by `redbud key new --add`";
        return Err(wrong(&advice));
    }
    replace(path, &text, 0o600)?;
    Ok(key.public())
}

/// Replaces a file as a whole, also if the host fails meanwhile. It keeps its owner and its mode;
/// `mode`: that of a new one.
pub fn replace(path: &Path, text: &str, mode: u32) -> Result<(), String> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".new-{}", std::process::id()));
    let new = path.with_file_name(name);
    let wrong = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let old = std::fs::metadata(path).ok();
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true).mode(if old.is_some() { 0o600 } else { mode });
    let written = options.open(&new).and_then(|mut out| {
        if let Some(old) = &old {
            let now = out.metadata()?;
            if (now.uid(), now.gid()) != (old.uid(), old.gid()) {
                std::os::unix::fs::fchown(&out, Some(old.uid()), Some(old.gid()))?;
            }
            out.set_permissions(old.permissions())?;
        }
        out.write_all(text.as_bytes())?;
        out.sync_all()
    });
    let replaced = written
        .map_err(|error| wrong(&new, error))
        .and_then(|()| std::fs::rename(&new, path).map_err(|error| wrong(path, error)));
    if replaced.is_err() {
        // It holds a secret perhaps; the error has the reason.
        let _ = std::fs::remove_file(&new);
    }
    replaced?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = std::fs::File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(|error| wrong(dir, error))
}

/// What a client or a server has to prove, by its word in a file.
pub fn parse_security(text: &str) -> Result<Option<Mode>, String> {
    match text {
        "encrypted" => Ok(Some(Mode::Encrypted)),
        "greeting" => Ok(Some(Mode::Greeting)),
        "none" => Ok(None),
        _ => Err(format!(
            "`{text}`: write \"encrypted\", \"greeting\" (keys are proved, frames are clear) or \
             \"none\" (no keys: who reaches the server has everything)"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("redbud-keys-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn strangers_leave_most_open_files_to_clients() {
        assert_eq!([half_open_max(1024), half_open_max(41_000)], [256, HALF_OPEN_MAX]);
    }

    #[test]
    fn key_of_targets_is_made_once_and_read_only_if_nobody_else_can() {
        let dir = dir("targets");
        let file = dir.join("targets.key");
        assert!(read_target_key(&file).unwrap_err().contains("redbud ost key"));
        make_target_key(&file).unwrap();
        let key = read_target_key(&file).unwrap();
        assert_ne!(key, [0; 32]);
        assert!(make_target_key(&file).unwrap_err().contains("it exists"));
        assert_eq!(read_target_key(&file), Ok(key));
        let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        std::fs::set_permissions(&file, readable).unwrap();
        assert!(read_target_key(&file).unwrap_err().contains("chmod 600"));
        for bad in ["", "12", &"0".repeat(63), &"g".repeat(64)] {
            std::fs::remove_file(&file).unwrap();
            replace(&file, bad, 0o600).unwrap();
            assert!(read_target_key(&file).unwrap_err().contains("64 hex digits"), "{bad}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn replaced_file_keeps_its_mode() {
        let dir = dir("mode");
        let file = dir.join("list");
        replace(&file, "a", 0o644).unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o640))
            .unwrap();
        replace(&file, "b", 0o644).unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o640);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "b");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn missing_list_differs_from_one_that_cannot_be_read() {
        let dir = dir("missing");
        assert_eq!(read_list(&dir.join("none")), Ok(None));
        let link = dir.join("link");
        std::os::unix::fs::symlink(dir.join("none"), &link).unwrap();
        assert!(read_list(&link).is_err(), "what it should be is gone");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
