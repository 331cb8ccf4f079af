//! Opening a metadata or data device for oneself.

use std::io::ErrorKind;
use std::time::Duration;

use env::{Disk, DiskOptions, Env};

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
