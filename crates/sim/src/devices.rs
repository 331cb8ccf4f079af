//! Devices that fail.
//!
//! Invariants:
//! - whatever fails works again in the end;
//! - as long as a device may fail, and until nothing that it failed is under way, the history and
//!   the cluster know: then the server may end by itself, and applications may get EIO.

use env::sim::{DiskAction, DiskFault, SimDisk, SimRng};
use types::Duration;

use crate::faults::Injector;

/// Within it everybody knows of what failed.
pub(crate) const SETTLING: Duration = Duration::from_millis(20);

/// The `nth` action of a kind fails, or several from it on, or all.
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
    /// The metadata device fails: the server ends, and is started on a device that works.
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

    /// The data device fails what it is asked for a while.
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
        self.cluster.devices_fail(false);
        self.history.devices_fail(false);
    }
}
