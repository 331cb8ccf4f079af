//! Stops the mount, the client and the server, in this order.

use std::io::ErrorKind;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use super::parts::{Parts, end, terminate};
use crate::{busy, log, mountinfo};

/// How long users of the mount get to leave it.
const LEAVE: Duration = Duration::from_secs(3);
/// How long the client may take to write its dirty data.
const FLUSH: Duration = Duration::from_secs(120);
/// How long the server may take for its checkpoint.
const CHECKPOINT: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(10);

/// Stops everything; true if all processes ended without a kill.
pub fn stop(parts: &mut Parts, mount: &Path) -> bool {
    let client = stop_client(&mut parts.client, mount);
    parts.servers.iter().for_each(terminate);
    let mut stopped = client;
    for server in &mut parts.servers {
        stopped &= stop_server(server, "a metadata server, which did not stop in time; it");
    }
    // After the metadata server, which may still have objects destroyed.
    if let Some(osts) = &mut parts.osts {
        terminate(osts);
        stopped &= stop_server(osts, "the object targets, which did not stop in time; they");
    }
    stopped
}

/// Waits for a server that was asked to stop; true if it ended well.
fn stop_server(server: &mut Child, who: &str) -> bool {
    let ended = wait(server, CHECKPOINT);
    if ended.is_none() {
        log::line(&format!("killed {who} will recover at the next start"));
        end(server);
    }
    ended.is_some_and(|status| status.success())
}

fn stop_client(client: &mut Child, mount: &Path) -> bool {
    if let Ok(Some(status)) = client.try_wait() {
        detach(mount);
        return status.success();
    }
    let until = Instant::now() + LEAVE;
    while fuse::unmount(mount, false).is_err_and(|error| error.kind() == ErrorKind::ResourceBusy) {
        if Instant::now() >= until {
            let users = busy::describe(mount);
            log::line(&format!("{} is in use{users}: detaching it", mount.display()));
            detach(mount);
            // The first signal asks it to unmount, the second not to wait for users.
            terminate(client);
            std::thread::sleep(LEAVE);
            terminate(client);
            break;
        }
        std::thread::sleep(PAUSE);
    }
    let ended = wait(client, FLUSH);
    if ended.is_none() {
        log::line("killed the client, which did not stop in time; its unwritten data is lost");
        end(client);
        detach(mount);
    }
    ended.is_some_and(|status| status.success())
}

fn detach(mount: &Path) {
    let mounted = mountinfo::mount_at(mount).is_ok_and(|mounted| mounted.is_some());
    if mounted && let Err(error) = fuse::unmount(mount, true) {
        log::line(&format!("{}: cannot unmount: {error}", mount.display()));
    }
}

fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let until = Instant::now() + limit;
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if Instant::now() >= until {
            return None;
        }
        std::thread::sleep(PAUSE);
    }
}
