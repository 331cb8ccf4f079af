//! `redbud local DIR --mount MNT`: a whole cluster on this machine.
//!
//! Invariants:
//! - DIR belongs to one process at a time: the holder of the lock on DIR/lock;
//! - the servers and the client are separate processes, so each can die alone;
//! - however this process ends, the client unmounts and the server stops after it:
//!   the client gets SIGTERM with its parent's death, and the servers stop when both
//!   holders of a pipe, this process and the client, are gone.

pub mod files;
mod making;
mod opening;
mod parts;
mod stop;
mod supervisor;

pub use parts::{log_since, this_program};

use std::path::{Path, PathBuf};

use crate::args::LocalArgs;
use crate::commands::umount;
use crate::config::ClusterFile;
use crate::exit::{Ended, Failure};
use crate::lockfile::{LockError, LockFile};
use crate::mountinfo;
use crate::source::Source;

/// The name of the file system in DIR.
const FS_NAME: &str = "local";

/// Runs the cluster until it is stopped, or the command has ended.
pub fn run(args: &LocalArgs) -> Ended {
    let failed = |text: String| Failure::failed("RB-LOCAL", text);
    let io = |path: &Path, error: std::io::Error| failed(format!("{}: {error}", path.display()));
    making::check_options(&args.dir, args)?;
    std::fs::create_dir_all(&args.dir).map_err(|error| io(&args.dir, error))?;
    let dir = args.dir.canonicalize().map_err(|error| io(&args.dir, error))?;
    // Before the lock, which creates a file: a foreign directory stays unchanged.
    making::check(&dir)?;
    let mut lock = lock(&dir)?;
    let mount = mount_point(&args.mount, &dir)?;
    lock.rewrite(&format!("pid {}, mounted at {}", std::process::id(), mount.display()))
        .map_err(|error| io(&dir, error))?;
    let (file, targets) = opening::open_or_make(&dir, args)?;
    let servers = servers(&file);
    let cluster = file.any();
    let source = Source {
        servers: cluster.servers(),
        fs_name: cluster.name.clone(),
        dir: Vec::new(),
        cluster: Some(cluster.file.clone()),
        server: None,
    };
    supervisor::run(parts::Plan {
        servers,
        cluster: cluster.file.clone(),
        source,
        targets: targets.osts.into_iter().map(|ost| ost.address).collect(),
        dir,
        mount,
        options: args.options.clone(),
        exec: args.exec.clone(),
    })
}

/// How the metadata servers are run: each of several, or one, and the standbys of all.
fn servers(file: &ClusterFile) -> Vec<parts::Server> {
    let cluster = file.any();
    let (several, standing) = (file.is_several(), cluster.membership.is_some());
    let addresses = cluster.servers();
    let count = if several || standing { addresses.len() } else { 1 };
    let server = |(index, address): (usize, &String)| {
        let numbered = several && index < cluster.namespace.len();
        let (which, mut options) = match (numbered, standing) {
            (true, _) => (format!(" {index}"), vec!["--server".to_owned(), index.to_string()]),
            (_, true) => (format!(" at {address}"), vec!["--listen".to_owned(), address.clone()]),
            _ => (String::new(), Vec::new()),
        };
        if standing {
            options.push("--standby".to_owned());
        }
        parts::Server { name: files::numbered("mds", index), which, options }
    };
    addresses.iter().take(count).enumerate().map(server).collect()
}

fn lock(dir: &Path) -> Result<LockFile, Failure> {
    let text = format!("pid {}", std::process::id());
    LockFile::take(&dir.join("lock"), &text).map_err(|error| match error {
        LockError::Held(holder) => {
            let text = format!(
                "{} is in use by another `redbud local` ({holder}); stop it first",
                dir.display()
            );
            Failure::failed("RB-LOCAL-IN-USE", text)
        }
        LockError::Io(error) => {
            Failure::failed("RB-LOCAL", format!("{}: {error}", dir.join("lock").display()))
        }
    })
}

/// The mount point, without a dead mount that a killed client left.
fn mount_point(path: &Path, dir: &Path) -> Result<PathBuf, Failure> {
    let failed =
        |text: String| Failure::failed("RB-MOUNT-POINT", format!("{}: {text}", path.display()));
    // First of all: below a dead mount even creating a directory fails.
    if let Ok(whole) = umount::resolve(path) {
        clear(&whole)?;
    }
    let inside = || failed("is in the cluster's own directory: choose another mount point".into());
    // Before creating it: a refusal leaves nothing.
    if existing_ancestor(path).is_some_and(|part| part.starts_with(dir)) {
        return Err(inside());
    }
    std::fs::create_dir_all(path).map_err(|error| failed(error.to_string()))?;
    let whole = umount::resolve(path).map_err(|error| failed(error.to_string()))?;
    if whole.starts_with(dir) {
        return Err(inside());
    }
    Ok(whole)
}

/// The resolved path of the deepest directory on the way to `path` that exists.
fn existing_ancestor(path: &Path) -> Option<PathBuf> {
    let whole = std::path::absolute(path).ok()?;
    whole.ancestors().find_map(|part| part.canonicalize().ok())
}

/// Unmounts a mount without a client from `path`; refuses one with a client.
fn clear(path: &Path) -> Result<(), Failure> {
    let mounted = || mountinfo::mount_at(path).ok().flatten();
    while let Some(mount) = mounted() {
        let dead = std::fs::metadata(path).is_err_and(|error| {
            error.raw_os_error() == Some(rustix::io::Errno::NOTCONN.raw_os_error())
        });
        if !dead {
            let text = format!(
                "{}: {} is mounted there: redbud umount it first",
                path.display(),
                mount.source
            );
            return Err(Failure::failed("RB-MOUNT-POINT", text));
        }
        fuse::unmount(path, true).map_err(|error| {
            Failure::failed("RB-MOUNT-POINT", format!("cannot unmount a dead mount: {error}"))
        })?;
    }
    Ok(())
}
