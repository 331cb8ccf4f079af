//! F9: what age does to creating and deleting (004 §V.D.2, Fig. 9).
//!
//! Invariants:
//! - a store ages by random creations and deletions in many directories, two of the first for each
//!   of the second, until it is as full as wanted; then a batch of files is made in new directories
//!   and deleted again, and only that is measured;
//! - aging takes hardly any virtual time. A slot that a file gave up is used again when that is
//!   durable, so without pauses a directory's free slots would be those of all its deletions: on
//!   small devices, where that is much, the log is written often meanwhile;
//! - how full a store is says how many of the files that it has room for it has: as many for every
//!   layout. The traditional one's tables have an inode for each slot that the embedded one could
//!   have.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

use env::sim::SimRng;
use mfs::StoreError;
use serde::Serialize;
use types::Ino;

use crate::layouts::bed::{dir_name, file_name};
use crate::layouts::virtual_disk::Virtual;
use crate::layouts::{Caller, Contender, Measured, Settings, Workload};
use bench::{BenchError, Res};

/// Bytes of the device for each file that it has room for.
const BYTES_EACH: u64 = 512;
/// Directories that a process's files are spread over while the store ages, on a large device.
const DIRS: u64 = 50;

/// Sizes and counts of the works.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Processes.
    pub processes: u64,
    /// Files of a measured batch, of each process.
    pub batch: u64,
    /// Directories that a process's files are spread over while the store ages.
    pub dirs: u64,
    /// Everything is made durable after so many operations of a process while the store ages.
    pub durable_each: u64,
    /// How full, in per cent, in rising order; 0 is a fresh store.
    pub levels: Vec<u64>,
    /// The store.
    pub settings: Settings,
}

/// Bytes of the smallest device on which the figure can be made.
pub const DEVICE_MIN: u64 = 64 << 20;
/// On smaller ones all is made durable after each [`DURABLE_EACH`] operations while they age.
const DEVICE_SMALL: u64 = 256 << 20;
const DURABLE_EACH: u64 = 16;
/// A traditional layout divides what is beside the log into groups of at most so many bytes, and a
/// part of one is unused.
const GROUP: u64 = 16 << 20;
/// A device has room for so many batches of all processes, or more.
const BATCHES: u64 = 38;
/// Files of one aged directory of each process, all together, that a device has room for.
const DIR_FILES: u64 = 15_000;

impl Plan {
    /// The figure's, on a device of so many bytes: of a small one the log is a quarter or a bit
    /// more, there are fewer directories, and what is measured fits into what is free when it is
    /// fullest.
    ///
    /// # Errors
    /// The device is smaller than [`DEVICE_MIN`].
    pub fn on(device_bytes: u64, settings: Settings) -> Res<Plan> {
        if device_bytes < DEVICE_MIN {
            return Err(BenchError(format!(
                "F9 needs a metadata device of at least {} MiB, not {device_bytes} bytes",
                DEVICE_MIN >> 20
            )));
        }
        let rest = (device_bytes - device_bytes / 4) / GROUP * GROUP;
        let log_bytes = settings.log_bytes.min(device_bytes - rest);
        let (room, processes) = ((device_bytes - log_bytes) / BYTES_EACH, 40);
        // Just below a power of two, as directories grow in these.
        let most = (room / BATCHES / processes).min(512);
        let batch = (1 << most.ilog2()) * 125 / 128;
        let dirs = (room / DIR_FILES).clamp(1, DIRS);
        let settings = Settings { device_bytes, log_bytes, ..settings };
        let durable_each = if device_bytes < DEVICE_SMALL { DURABLE_EACH } else { u64::MAX };
        let levels = vec![0, 20, 40, 60, 80];
        Ok(Plan { processes, batch, dirs, durable_each, levels, settings })
    }
}

/// One point of the figure.
#[derive(Clone, Copy, Serialize, Debug)]
pub struct Point {
    /// The contender.
    pub contender: Contender,
    /// How full, in per cent.
    pub percent: u64,
    /// Making a batch.
    pub create: Measured,
    /// Deleting it.
    pub delete: Measured,
}

/// Every point of every layout, telling `progress` each.
///
/// # Errors
/// The step that failed and why.
pub fn measure(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Res<Vec<Point>> {
    let settings = Settings { inode_ratio: BYTES_EACH, ..plan.settings };
    let room = (settings.device_bytes - settings.log_bytes) / BYTES_EACH;
    let mut points = Vec::new();
    for contender in Contender::STORES {
        let store = Virtual::new(contender, settings, plan.processes)?;
        let aging = Aging {
            processes: plan.processes,
            batch: plan.batch,
            dirs: plan.dirs,
            durable_each: plan.durable_each,
            old: Rc::new(RefCell::new((0..plan.processes).map(Old::new).collect())),
        };
        for &percent in &plan.levels {
            let each = room * percent / 100 / plan.processes;
            store.stage(&aging, Stage::Age(each))?;
            let create = store.stage(&aging, Stage::Create(percent))?;
            let delete = store.stage(&aging, Stage::Delete(percent))?;
            progress(&format!(
                "{}, {percent} % full: create {:.0}/s ({}), delete {:.0}/s ({})",
                contender.text(),
                create.rate(),
                create.counts,
                delete.rate(),
                delete.counts
            ));
            points.push(Point { contender, percent, create, delete });
        }
    }
    Ok(points)
}

/// What is done.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Files are made and deleted until a process has so many.
    Age(u64),
    /// A batch is made in directories for this level.
    Create(u64),
    /// It is deleted.
    Delete(u64),
}

/// The files that a process has left behind.
#[derive(Debug)]
struct Old {
    rng: SimRng,
    /// ⟨directory, file⟩
    live: Vec<(u64, u64)>,
    made: u64,
}

impl Old {
    fn new(number: u64) -> Old {
        Old { rng: SimRng::new(number), live: Vec::new(), made: 0 }
    }
}

#[derive(Clone)]
struct Aging {
    processes: u64,
    batch: u64,
    dirs: u64,
    durable_each: u64,
    old: Rc<RefCell<Vec<Old>>>,
}

impl Workload for Aging {
    type Stage = Stage;

    fn processes(&self) -> u64 {
        self.processes
    }

    fn work(
        &self,
        stage: Stage,
        caller: Caller,
    ) -> impl Future<Output = Result<u64, StoreError>> + 'static {
        let plan = self.clone();
        async move {
            let top = caller.lookup(Ino::ROOT, &dir_name(caller.number)).await?;
            match stage {
                Stage::Age(files) => plan.age(&caller.hurried(), top, files).await,
                Stage::Create(percent) => plan.create(&caller, top, percent).await,
                Stage::Delete(percent) => plan.delete(&caller, top, percent).await,
            }
        }
    }
}

/// What to do next to an old file.
enum Next {
    Create(u64, u64),
    Delete(u64, u64),
}

impl Aging {
    async fn age(&self, caller: &Caller, top: Ino, files: u64) -> Result<u64, StoreError> {
        let mut dirs = Vec::new();
        if files > 0 {
            for number in 0..self.dirs {
                dirs.push(caller.ensure_dir(top, &format!("old{number:02}")).await?);
            }
        }
        let mut ops = 0;
        while let Some(next) = self.next(caller.number as usize, files) {
            caller.message().await;
            match next {
                Next::Create(dir, file) => {
                    caller.create(dirs[dir as usize], &file_name(file)).await?;
                }
                Next::Delete(dir, file) => {
                    caller.delete(dirs[dir as usize], &file_name(file)).await?;
                }
            }
            ops += 1;
            if ops % self.durable_each == 0 {
                caller.sync().await?;
            }
        }
        Ok(ops)
    }

    /// `None` when the process has `files` files.
    fn next(&self, process: usize, files: u64) -> Option<Next> {
        let dirs = self.dirs;
        let old = &mut self.old.borrow_mut()[process];
        if old.live.len() as u64 >= files {
            return None;
        }
        if old.rng.below(3) < 2 || old.live.is_empty() {
            let (dir, file) = (old.rng.below(dirs), old.made);
            old.made += 1;
            old.live.push((dir, file));
            return Some(Next::Create(dir, file));
        }
        let at = old.rng.below(old.live.len() as u64) as usize;
        let (dir, file) = old.live.swap_remove(at);
        Some(Next::Delete(dir, file))
    }

    async fn create(&self, caller: &Caller, top: Ino, percent: u64) -> Result<u64, StoreError> {
        let dir = caller.mkdir(top, &format!("new{percent}")).await?;
        for file in 0..self.batch {
            caller.message().await;
            caller.create(dir, &file_name(file)).await?;
        }
        Ok(self.batch)
    }

    async fn delete(&self, caller: &Caller, top: Ino, percent: u64) -> Result<u64, StoreError> {
        let dir = caller.lookup(top, &format!("new{percent}")).await?;
        for file in 0..self.batch {
            caller.message().await;
            caller.delete(dir, &file_name(file)).await?;
        }
        Ok(self.batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figure_runs_on_small_devices_and_is_refused_on_smaller_ones() {
        let plan = |bytes| Plan::on(bytes, Settings { durable: false, ..Settings::PAPERS });
        let usual = plan(512 << 20).unwrap();
        assert_eq!((usual.batch, usual.dirs), (500, DIRS));
        assert!(plan(DEVICE_MIN - 1).unwrap_err().0.contains("at least 64 MiB"));
        for bytes in [DEVICE_MIN, 2 * DEVICE_MIN] {
            let points = measure(&plan(bytes).unwrap(), &mut |_| ());
            let points = points.unwrap_or_else(|error| panic!("{bytes} bytes: {}", error.0));
            assert_eq!(points.len(), 5 * Contender::STORES.len());
            let made = |point: &Point| point.create.rate() > 0.0 && point.delete.rate() > 0.0;
            assert!(points.iter().all(made));
        }
    }
}
