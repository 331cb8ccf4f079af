//! Injection of device errors.
//!
//! Invariants:
//! - every failing device works again in the end;
//! - while a device may fail, and until all failed requests are answered, the history and the
//!   cluster know it. Then the server may end by itself, and applications may get EIO.

use env::sim::{DiskAction, DiskFault, SimDisk, SimRng};
use types::Duration;

use crate::faults::Injector;
use crate::mount::Mount;

/// Within this time everybody knows of a failed request.
pub(crate) const SETTLING: Duration = Duration::from_millis(20);

/// Within this time a client that runs looks at a device for which nobody asks.
const RETURN: Duration = Duration::from_secs(15);

/// Fails the `nth` action of a kind, several from it on, or all from it on.
fn fail(disk: &SimDisk, action: DiskAction, rng: &mut SimRng) {
    let first = rng.between(1, 8);
    match rng.below(4) {
        0 => disk.fail(action, first, DiskFault::Io),
        1 => {
            for nth in first..first + rng.between(2, 6) {
                disk.fail(action, nth, DiskFault::Io);
            }
        }
        _ => disk.fail_from(action, first, DiskFault::Io),
    }
}

impl Injector {
    /// The metadata device fails: the server ends, and restarts on a working device.
    pub(crate) async fn fail_meta(&mut self) {
        self.cluster.devices_fail(true);
        let disk = self.cluster.meta();
        match self.rng.below(3) {
            0 => fail(&disk, DiskAction::Write, &mut self.rng),
            1 => fail(&disk, DiskAction::Flush, &mut self.rng),
            _ => {
                self.cluster.kill_server();
                disk.fail(DiskAction::Read, self.rng.between(1, 6), DiskFault::Io);
                self.cluster.start_server();
            }
        }
        self.pause(1_000).await;
        disk.clear_faults();
        self.cluster.env.sleep(SETTLING).await;
        self.cluster.devices_fail(false);
    }

    /// Waits until every client that took the data device for dead has looked at it again.
    async fn device_is_back(&self) {
        let until = self.cluster.env.now() + RETURN;
        let is_absent = |mount: &Mount| mount.client.devices().iter().any(|d| d.state == "absent");
        while self.cluster.env.now() < until && self.fleet.mounts().iter().any(is_absent) {
            self.cluster.env.sleep(SETTLING).await;
        }
    }

    /// The data device fails requests for a while.
    pub(crate) async fn fail_data(&mut self) {
        let disk = self.cluster.data();
        let actions = [DiskAction::Write, DiskAction::Flush, DiskAction::Read];
        self.history.devices_fail(true);
        self.cluster.devices_fail(true);
        let first = self.rng.below(3) as usize;
        fail(&disk, actions[first], &mut self.rng);
        if self.rng.one_in(3) {
            fail(&disk, actions[(first + 1) % 3], &mut self.rng);
        }
        let most = [50, 1_000, 5_000][self.rng.below(3) as usize];
        self.pause(most).await;
        disk.clear_faults();
        self.cluster.env.sleep(SETTLING).await;
        self.device_is_back().await;
        self.cluster.devices_fail(false);
        self.history.devices_fail(false);
    }
}
