//! `redbud umount`: unmounts, and waits until the client has written everything.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::args::UmountArgs;
use crate::exit::{Ended, Failure, Status};
use crate::{busy, lockfile, mountinfo, registry};

/// How long a client may take to write its dirty data.
const PATIENCE: Duration = Duration::from_secs(300);

/// Unmounts.
pub fn run(args: &UmountArgs) -> Ended {
    let failed =
        |text: String| Failure::failed("RB-UMOUNT", format!("{}: {text}", args.mount.display()));
    let path = resolve(&args.mount).map_err(|error| failed(error.to_string()))?;
    let mounted = mountinfo::mount_at(&path).map_err(|error| failed(error.to_string()))?;
    if mounted.is_none() {
        return Err(failed("no Redbud file system is mounted there".into()));
    }
    let client = registry::behind(&path);
    // Opened now: the client removes it at its end, after writing there what is lost.
    let registered = client.as_ref().and_then(|(file, _)| File::open(file).ok());
    fuse::unmount(&path, args.lazy).map_err(|error| refusal(&path, &error))?;
    let Some((file, client)) = client.filter(|_| !args.lazy) else { return Ok(0) };
    match lockfile::wait_released(&file, PATIENCE) {
        Ok(true) => match registered.and_then(registry::lost) {
            None => Ok(0),
            Some(lost) => {
                let text = format!("{}: unmounted, but {lost}", path.display());
                Err(Failure::failed("RB-CLIENT-LOST", text))
            }
        },
        Ok(false) => {
            let text = format!(
                "{}: unmounted, but its client, pid {}, has not written all its data after {} s",
                path.display(),
                client.pid,
                PATIENCE.as_secs()
            );
            Err(Failure::new(Status::Timeout, "RB-CLIENT-SLOW", text))
        }
        Err(error) => Err(failed(error.to_string())),
    }
}

/// The resolved path, without a system call on a mount there: it may be dead, or its server away.
pub fn resolve(path: &Path) -> std::io::Result<PathBuf> {
    // Without a trailing slash, which would follow a link.
    let whole: PathBuf = std::path::absolute(path)?.components().collect();
    // The mount table has resolved paths: a path in it needs no resolving.
    if mountinfo::mount_at(&whole)?.is_some() {
        return Ok(whole);
    }
    match (whole.parent(), whole.file_name()) {
        // `readlink` of a non-link sends no request to its file system; `lstat` would.
        (Some(_), Some(_)) if whole.read_link().is_ok() => whole.canonicalize(),
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => Ok(whole),
    }
}

fn refusal(path: &Path, error: &std::io::Error) -> Failure {
    match error.kind() {
        ErrorKind::ResourceBusy => {
            let users = busy::describe(path);
            let text =
                format!("{}: in use{users}; leave it, or unmount with --lazy", path.display());
            Failure::failed("RB-MOUNT-BUSY", text)
        }
        ErrorKind::PermissionDenied => {
            Failure::new(Status::NotPermitted, "RB-UMOUNT", error.to_string())
        }
        _ => Failure::failed("RB-UMOUNT", error.to_string()),
    }
}
