//! Exclusive opening of metadata and data devices.

use std::io::ErrorKind;
use std::time::Duration;

use env::{Disk, DiskOptions, Env};
use mfs::{StoreError, ZoneDevice};
use ost::store::shared;
use types::PagId;

use crate::config::Cluster;

/// How long to retry a device that is in use: a killed process releases its devices only when
/// its last request has ended, a moment after its death.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// Opens the device or file at `path` exclusively. For writing, no other process may have it
/// open at all.
///
/// # Errors
/// They name the path, and the process that holds the device.
pub async fn open_exclusive(env: &Env, path: &str, write: bool) -> std::io::Result<Disk> {
    let until = env.now() + PATIENCE;
    loop {
        match env.open_disk(path, DiskOptions { write, exclusive: true }).await {
            Err(error) if error.kind() == ErrorKind::ResourceBusy && env.now() < until => {
                env.sleep(PAUSE).await;
            }
            opened => return opened,
        }
    }
}

/// Opens the device of the journal of the target on `home`, for writing. A device with journals of
/// several, or with room for them, is shared: each user locks its own slice. Another one is opened
/// as [`open_exclusive`] does.
///
/// # Errors
/// As [`open_exclusive`]; also if another process uses the slice.
pub async fn open_journal(env: &Env, path: &str, home: &Disk) -> std::io::Result<Disk> {
    if !is_shared(env, path).await {
        return open_exclusive(env, path, true).await;
    }
    let disk = open_shared(env, path).await?;
    let Some(target) = ost::store::target_on(home).await else { return Ok(disk) };
    let found = label::read(&disk).await.ok();
    // The opening of the store says why there is none.
    let slice = found.and_then(|found| shared::slice_of(&found.label, target).copied());
    let Some(slice) = slice else { return Ok(disk) };
    let until = env.now() + PATIENCE;
    loop {
        match disk.lock_byte(shared::lock_of(&slice)).await {
            Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                if env.now() >= until {
                    let text =
                        format!("{path}: another process uses the journal of target {target}");
                    return Err(std::io::Error::new(ErrorKind::ResourceBusy, text));
                }
                env.sleep(PAUSE).await;
            }
            locked => return locked.map(|()| disk),
        }
    }
}

/// Does the label at `path` say that journals share the device? The opening that follows reports
/// what cannot be read.
pub async fn is_shared(env: &Env, path: &str) -> bool {
    let options = DiskOptions { write: false, exclusive: false };
    let Ok(disk) = env.open_disk(path, options).await else { return false };
    label::read(&disk).await.is_ok_and(|found| found.label.is_shared())
}

/// Opens the device or file at `path` for writing, shared with others who do the same. Nobody opens
/// it with [`open_exclusive`] meanwhile.
///
/// # Errors
/// As [`open_exclusive`].
pub async fn open_shared(env: &Env, path: &str) -> std::io::Result<Disk> {
    let disk = env.open_disk(path, DiskOptions { write: true, exclusive: false }).await?;
    let until = env.now() + PATIENCE;
    loop {
        match disk.share().await {
            Err(error) if error.kind() == ErrorKind::ResourceBusy && env.now() < until => {
                env.sleep(PAUSE).await;
            }
            shared => return shared.map(|()| disk),
        }
    }
}

pub use mfs::journal::Disks as MetadataDisks;

/// Opens the metadata device of `cluster`, and that of its journal, as [`open_exclusive`] does.
///
/// # Errors
/// As [`open_exclusive`].
pub async fn open_metadata(
    env: &Env,
    cluster: &Cluster,
    write: bool,
) -> std::io::Result<MetadataDisks> {
    let home = open_exclusive(env, &cluster.metadata.path.display().to_string(), write).await?;
    let log = match &cluster.journal {
        Some(zone) => Some(open_exclusive(env, &zone.path.display().to_string(), write).await?),
        None => None,
    };
    Ok(MetadataDisks { home, log })
}

/// The text of an error of opening a device; if the device is in use, with the `advice`.
pub fn open_error(error: &std::io::Error, advice: &str) -> String {
    match error.kind() {
        ErrorKind::ResourceBusy => format!("{error}; {advice}"),
        _ => error.to_string(),
    }
}

/// The data zones at these paths, in the form that the store takes.
pub fn zone_devices(paths: &[(PagId, String)]) -> Vec<ZoneDevice<'_>> {
    paths.iter().map(|(id, path)| ZoneDevice { id: *id, path }).collect()
}

/// The text of an error of the metadata device at `path`; it names the path once.
pub fn with_path(path: &str, error: &StoreError) -> String {
    match error {
        StoreError::Io { .. } | StoreError::Refused(_) => error.to_string(),
        _ => format!("{path}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use types::MetaBlock;

    use super::*;

    #[test]
    fn store_errors_name_their_device_once() {
        let refused = StoreError::Refused("/dev/sdz: is a data device".into());
        let io = StoreError::io("reading", "/dev/sdz", &ErrorKind::TimedOut.into());
        let corrupt = StoreError::corrupt(MetaBlock(7), "checksum");
        let log = StoreError::DamagedLog { lsn: 7, what: "hole" };
        for error in [refused, io, corrupt, log, StoreError::Poisoned("why".into())] {
            let text = with_path("/dev/sdz", &error);
            assert_eq!(text.matches("/dev/sdz").count(), 1, "{text}");
        }
    }
}
