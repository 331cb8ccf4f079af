//! On the virtual disk: the papers' hard disk with its queue and elevator, in virtual time.
//!
//! Invariant: computing costs nothing there, so what is measured is the disk (and the messages of
//! [`super::Shape`]); the same run gives the same figures on any machine.

use env::sim::{DiskModel, HardDisk, SimDisk, SimWorld};

use super::library::Library;
use super::{Contender, Counts, Phase, Place, Run, Shape, Work};
use crate::Res;

const DEVICE: &str = "metadata";

/// All phases of one layout.
pub fn run(contender: Contender, shape: Shape, progress: &mut dyn FnMut(&str)) -> Res<Run> {
    let world = SimWorld::new(1);
    let disk = world.disk(DEVICE, shape.device_bytes);
    disk.set_model(DiskModel::Hard(HardDisk::fibre_channel()));
    let library = Library { path: DEVICE.to_owned(), contender, shape };
    let prepared = library.clone();
    let log = world.run(|env| async move {
        prepared.prepare(&env).await?;
        prepared.log_range(&env).await
    })?;
    disk.count_apart(log);
    let mut phases = Vec::new();
    for work in Work::ALL {
        let (library, device) = (library.clone(), disk.clone());
        let (done, before) = world.run(|env| async move {
            let mut before = Counts::default();
            let done = library.phase(&env, work, || before = counts(&device)).await;
            done.map(|done| (done, before))
        })?;
        let phase = Phase {
            work,
            ops: done.ops,
            answered: done.answered.as_nanos() as u64,
            settled: done.settled.as_nanos() as u64,
            counts: counts(&disk).since(&before),
        };
        progress(&format!(
            "virtual disk, {} files, {}: {} {:.0}/s, {:?}",
            shape.files,
            contender.text(),
            work.text(),
            phase.rate(),
            phase.counts
        ));
        phases.push(phase);
    }
    Ok(Run { contender, place: Place::Virtual, shape, phases, redo: None })
}

fn counts(disk: &SimDisk) -> Counts {
    let report = disk.report().unwrap_or_default();
    Counts {
        reads: report.reads,
        read_bytes: report.read,
        home: report.writes - report.apart.writes,
        home_bytes: report.written - report.apart.written,
        log: report.apart.writes,
        log_bytes: report.apart.written,
        flushes: report.flushes,
    }
}
