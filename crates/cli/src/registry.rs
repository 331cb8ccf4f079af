//! The clients and servers that run on this host: a locked file for each process in a runtime
//! directory, which names its control socket.
//!
//! `umount` finds the process behind a mount here, so that it can wait until everything is
//! flushed. `status` and its kin find the sockets to ask. A process holds the file's lock as long
//! as it lives. Files without a lock are stale: readers ignore them, and every start and every
//! reader removes them, with the socket beside them.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use crate::exit::Failure;
use crate::keys::KeyOptions;
use crate::lockfile::{self, LockError, LockFile};

/// What a process does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// It is the client of a mount.
    #[default]
    Mount,
    /// It is a metadata server.
    Mds,
    /// It serves object targets.
    Ost,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Mount => "client",
            Kind::Mds => "mds",
            Kind::Ost => "ost",
        }
    }
}

/// A process, and what it serves.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Registration {
    /// What it is.
    #[serde(default)]
    pub kind: Kind,
    /// The process.
    pub pid: u32,
    /// Which of its addresses, of a metadata server that may serve several shards; 0: the first.
    #[serde(default)]
    pub station: usize,
    /// Mount source; of a server the one by which its host can mount.
    pub source: String,
    /// The number of a metadata server of several, whose own address is the source's first.
    #[serde(default)]
    pub server: Option<u8>,
    /// Mount point; empty for a server.
    pub mount: PathBuf,
    /// Its control socket; none: it cannot be asked.
    pub socket: Option<PathBuf>,
    /// Its log file; none: standard error.
    pub log: Option<PathBuf>,
    /// The keys that it uses.
    #[serde(default)]
    pub keys: KeyOptions,
    /// Written at its end: the data that it lost.
    #[serde(default)]
    pub lost: Option<String>,
}

/// A registration that holds while the value lives.
#[derive(Debug)]
pub struct Registered {
    lock: LockFile,
    registration: Registration,
    made: MadeSocket,
}

/// The control socket that this process has made, once it has.
#[derive(Clone, Debug, Default)]
pub struct MadeSocket(Arc<OnceLock<(u64, u64)>>);

impl MadeSocket {
    /// This process has made the socket at `path`.
    pub fn note(&self, path: &Path) {
        if let Ok(made) = fs::symlink_metadata(path) {
            self.0.get_or_init(|| (made.dev(), made.ino()));
        }
    }

    /// Removes the socket at `path` if it is the one that was made.
    fn remove(&self, path: &Path) {
        let is_own = |there: fs::Metadata| self.0.get() == Some(&(there.dev(), there.ino()));
        if fs::symlink_metadata(path).is_ok_and(is_own) {
            drop(fs::remove_file(path));
        }
    }
}

impl Registered {
    /// To note the control socket.
    pub fn made_socket(&self) -> MadeSocket {
        self.made.clone()
    }

    /// Ends the registration. A process that has the file open can still read what was lost.
    pub fn end(mut self, lost: Option<String>) -> std::io::Result<()> {
        if let Some(socket) = &self.registration.socket {
            self.made.remove(socket);
        }
        if lost.is_some() {
            self.registration.lost = lost;
            self.lock.rewrite(&serde_json::to_string(&self.registration)?)?;
        }
        self.lock.remove()
    }
}

/// Where the control socket of a process is, unless it was given another place. `station`: as in
/// [`Registration`].
pub fn usual_socket(kind: Kind, pid: u32, station: usize) -> PathBuf {
    directory().join(format!("{}.sock", stem(kind, pid, station)))
}

fn stem(kind: Kind, pid: u32, station: usize) -> String {
    match station {
        0 => format!("{}-{pid}", kind.name()),
        _ => format!("{}-{pid}-{station}", kind.name()),
    }
}

/// Registers this process, and removes what killed ones have left.
pub fn register(registration: &Registration) -> Result<Registered, Failure> {
    let dir = directory();
    let failed = |text: String| Failure::failed("RB-RUNTIME-DIR", text);
    make_directory(&dir).map_err(|error| failed(format!("{}: {error}", dir.display())))?;
    drop(running());
    let stem = stem(registration.kind, registration.pid, registration.station);
    let path = dir.join(format!("{stem}.json"));
    let text = serde_json::to_string(registration).map_err(|error| failed(error.to_string()))?;
    match LockFile::take(&path, &text) {
        Ok(lock) => {
            Ok(Registered { lock, registration: registration.clone(), made: MadeSocket::default() })
        }
        Err(LockError::Held(holder)) => {
            Err(failed(format!("{} is held: {holder}", path.display())))
        }
        Err(LockError::Io(error)) => Err(failed(format!("{}: {error}", path.display()))),
    }
}

/// All running processes, each with its file.
pub fn running() -> Vec<(PathBuf, Registration)> {
    let dir = directory();
    if !is_trusted(&dir) {
        return Vec::new();
    }
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut found = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        match lockfile::holder(&path) {
            Ok(Some(text)) => {
                if let Ok(registration) = serde_json::from_str::<Registration>(&text) {
                    found.push((path, registration));
                }
            }
            // Stale, unless a process with this pid locks it just now.
            Ok(None) => {
                let socket = path.with_extension("sock");
                drop(lockfile::remove_stale(&path, || drop(fs::remove_file(socket))));
            }
            Err(_) => {}
        }
    }
    found.sort_by_key(|(_, registration)| registration.pid);
    found
}

/// The client behind the mount at `path`.
pub fn behind(path: &Path) -> Option<(PathBuf, Registration)> {
    running().into_iter().rfind(|(_, one)| one.kind == Kind::Mount && one.mount == path)
}

/// What the client of an open registration file lost at its end.
pub fn lost(mut file: fs::File) -> Option<String> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    serde_json::from_str::<Registration>(&text).ok()?.lost
}

/// Makes the directory of registrations, which no other user may change.
fn make_directory(dir: &Path) -> io::Result<()> {
    if !dir.exists() {
        let mut builder = fs::DirBuilder::new();
        // Others may find what root's processes have registered.
        let mode = if rustix::process::geteuid().is_root() { 0o755 } else { 0o700 };
        builder.recursive(true).mode(mode).create(dir)?;
    }
    match is_trusted(dir) {
        true => Ok(()),
        false => Err(io::Error::other(
            "another user can write there: remove it, or set XDG_RUNTIME_DIR to a directory of \
             your own",
        )),
    }
}

/// Beside the directories of the system, where nobody else makes names, only an own one is.
fn is_trusted(dir: &Path) -> bool {
    !dir.starts_with(std::env::temp_dir()) || is_own(dir)
}

/// Is it a directory of this user that no other one can change? Registrations in another's would
/// name processes and sockets of theirs.
fn is_own(dir: &Path) -> bool {
    fs::symlink_metadata(dir).is_ok_and(|found| {
        let own = found.uid() == rustix::process::geteuid().as_raw();
        found.is_dir() && own && found.mode() & 0o022 == 0
    })
}

fn directory() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return "/run/redbud".into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) => PathBuf::from(dir).join("redbud"),
        None => {
            std::env::temp_dir().join(format!("redbud-{}", rustix::process::geteuid().as_raw()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_own_socket_is_removed() {
        let path = std::env::temp_dir().join(format!("redbud-made-{}", std::process::id()));
        let made = MadeSocket::default();
        fs::write(&path, "another's").unwrap();
        made.remove(&path);
        assert!(path.exists(), "nothing was made");
        made.note(&path);
        made.remove(&path);
        assert!(!path.exists());
    }

    #[test]
    fn only_a_directory_of_this_user_that_no_other_can_change_is_trusted() {
        use std::os::unix::fs::PermissionsExt;
        let dir = std::env::temp_dir().join(format!("redbud-own-{}", std::process::id()));
        make_directory(&dir).unwrap();
        assert!(is_own(&dir));
        let link = dir.with_extension("link");
        std::os::unix::fs::symlink(&dir, &link).unwrap();
        assert!(!is_own(&link), "another one may have made the link");
        fs::remove_file(&link).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(!is_own(&dir) && make_directory(&dir).is_err());
        fs::remove_dir(&dir).unwrap();
    }
}
