//! `redbud umount`: unmounts, and waits until the client has written everything.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::args::UmountArgs;
use crate::exit::{Ended, Failure, Status};
use crate::{busy, lockfile, mountinfo, registry};

/// How long a client may take to write what it holds.
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
    // Opened now: it is removed at the client's end, after it has said there what is lost.
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
                "{}: unmounted, but its client, pid {}, has not written everything after {} s",
                path.display(),
                client.pid,
                PATIENCE.as_secs()
            );
            Err(Failure::new(Status::Timeout, "RB-CLIENT-SLOW", text))
        }
        Err(error) => Err(failed(error.to_string())),
    }
}

/// The whole path. Nothing is asked of a mount that lies there, which may be dead, or its server
/// away.
pub fn resolve(path: &Path) -> std::io::Result<PathBuf> {
    // Without a slash at its end, which would have a link followed.
    let whole: PathBuf = std::path::absolute(path)?.components().collect();
    // The table has resolved paths: what is in it needs no look at what lies above.
    if mountinfo::mount_at(&whole)?.is_some() {
        return Ok(whole);
    }
    match (whole.parent(), whole.file_name()) {
        // Reading a link that is none asks its file system nothing, other than `lstat`.
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
