//! On the virtual disk: the papers' hard disk with its queue and elevator, in virtual time.
//!
//! Invariant: computing costs nothing there, or the price of [`Settings`], so what is measured is
//! the disk (and the messages of [`Settings`]); the same run gives the same figures on any machine.

use env::sim::{DiskModel, HardDisk, SimDisk, SimWorld};

use super::bed::Bed;
use super::{Contender, Counts, Measured, Settings, Workload};
use bench::Res;

const DEVICE: &str = "metadata";

/// A store on a virtual disk of its own.
pub struct Virtual {
    world: SimWorld,
    disk: SimDisk,
    bed: Bed,
}

impl Virtual {
    /// Formats it, with a directory for each of so many processes.
    pub fn new(contender: Contender, settings: Settings, dirs: u64) -> Res<Virtual> {
        let world = SimWorld::new(1);
        let disk = world.disk(DEVICE, settings.device_bytes);
        disk.set_model(DiskModel::Hard(HardDisk::fibre_channel()));
        let bed = Bed { path: DEVICE.to_owned(), contender, settings };
        let prepared = bed.clone();
        let log = world.run(|env| async move {
            prepared.prepare(&env, dirs).await?;
            prepared.log_range(&env).await
        })?;
        disk.count_range(log);
        Ok(Virtual { world, disk, bed })
    }

    /// Does a stage and tells what it took.
    pub fn stage<W: Workload>(&self, workload: &W, stage: W::Stage) -> Res<Measured> {
        let (bed, device, workload) = (self.bed.clone(), self.disk.clone(), workload.clone());
        let (done, before) = self.world.run(|env| async move {
            let mut before = Counts::default();
            let done = bed.stage(&env, &workload, stage, || before = counts(&device)).await;
            done.map(|done| (done, before))
        })?;
        Ok(Measured {
            ops: done.ops,
            answered: done.answered.as_nanos() as u64,
            settled: done.settled.as_nanos() as u64,
            processor: done.processor.map(|busy| busy.as_nanos() as u64),
            counts: counts(&self.disk).since(&before),
        })
    }
}

fn counts(disk: &SimDisk) -> Counts {
    let report = disk.report().unwrap_or_default();
    Counts {
        reads: report.reads,
        read_bytes: report.read,
        home: report.writes - report.counted.writes,
        home_bytes: report.written - report.counted.written,
        log: report.counted.writes,
        log_bytes: report.counted.written,
        flushes: report.flushes,
        seeks: report.seeks,
        distance: report.distance,
        merged: report.merged,
    }
}
