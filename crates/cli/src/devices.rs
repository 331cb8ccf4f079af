//! Opening a metadata or data device for oneself.

use std::io::ErrorKind;
use std::time::Duration;

use env::{Disk, DiskOptions, Env};
use store::{StoreError, ZoneDevice};
use types::PagId;

/// How long a device may stay in use before that is believed: a killed process lets
/// go of its devices only when its last request has ended, a moment after its death.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// Opens the device or file at `path`, which nobody else may have open this way; for
/// writing, nobody at all.
///
/// # Errors
/// They name the path, and a device's holder.
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

/// What failed as a device was opened; where somebody has it, with what to do then.
pub fn or_in_use(error: &std::io::Error, then: &str) -> String {
    match error.kind() {
        ErrorKind::ResourceBusy => format!("{error}; {then}"),
        _ => error.to_string(),
    }
}

/// The data zones at these paths, as a store takes them.
pub fn zone_places(paths: &[(PagId, String)]) -> Vec<ZoneDevice<'_>> {
    paths.iter().map(|(id, path)| ZoneDevice { id: *id, path }).collect()
}

/// What failed on the metadata device at `path`, which is named once.
pub fn naming(path: &str, error: &StoreError) -> String {
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
            let text = naming("/dev/sdz", &error);
            assert_eq!(text.matches("/dev/sdz").count(), 1, "{text}");
        }
    }
}
