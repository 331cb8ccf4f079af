//! `redbud sync MOUNT`: makes everything durable that a mount has changed. sync(2) and syncfs(2) do
//! not reach a FUSE file system.

use crate::args::SyncArgs;
use crate::commands::umount::resolve;
use crate::control::{self, Ask};
use crate::exit::{Ended, Failure};

/// Asks each mount, as often as it takes.
pub fn run(args: &SyncArgs) -> Ended {
    for mount in &args.mounts {
        let failed =
            |text: String| Failure::failed("RB-SYNC", format!("{}: {text}", mount.display()));
        let mount = resolve(mount).map_err(|error| failed(error.to_string()))?;
        // A mount says at the end of each half minute that it is not done yet.
        while control::ask_mount(&mount, Ask::Sync)?["durable"] != true {}
    }
    Ok(0)
}
