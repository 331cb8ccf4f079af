//! A program that computes and writes checkpoints, as GTC does (001, section 5.3): its processes
//! compute, wait for each other, and write a file each, again and again.
//!
//! Invariants:
//! - all runs write the same bytes, however many processes there are: the problem is the same;
//! - a process has one record in flight, and goes on when its last record is answered. A checkpoint
//!   is over when all processes have written theirs;
//! - nobody asks for durability: with asynchronous commits the targets commit each 5 s, as the
//!   paper's did.

use std::collections::BTreeMap;
use std::rc::Rc;

use env::sim::{SimOptions, SimWorld};
use serde::Serialize;
use types::limits::BLOCK_U64;
use types::{Duration, ObjectId};

use bench::Res;

use crate::couplet::{Journal, Journals, RECORD, TARGETS, Target, refused};

/// A run's shape.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
pub struct Shape {
    /// Processes.
    pub processes: usize,
    /// Records of all processes in a checkpoint.
    pub records: u64,
    /// Checkpoints.
    pub checkpoints: u64,
}

/// What was measured.
#[derive(Clone, PartialEq, Serialize, Debug)]
pub struct Took {
    /// Until the last checkpoint was written.
    pub nanos: u64,
    /// The part of it in which checkpoints were written.
    pub io_nanos: u64,
    /// MB a second of each process's part of each checkpoint, in ascending order.
    pub rates: Vec<f64>,
    /// Requests of all devices until everything was durable: `requests[n]` counts those of
    /// `[2^n, 2^(n+1))` bytes.
    pub requests: BTreeMap<u32, u64>,
    /// Groups that were written to journals.
    pub journal_writes: u64,
}

impl Took {
    /// The mean of [`Took::rates`].
    pub fn mean(&self) -> f64 {
        self.rates.iter().sum::<f64>() / self.rates.len().max(1) as f64
    }

    /// The median of [`Took::rates`].
    pub fn median(&self) -> f64 {
        self.rates.get(self.rates.len() / 2).copied().unwrap_or(f64::NAN)
    }

    /// Percent of the requests that have `2^from` bytes or more, but fewer than `2^to`.
    pub fn share(&self, from: u32, to: u32) -> f64 {
        let all: u64 = self.requests.values().sum();
        let some: u64 = self.requests.range(from..to).map(|(_, count)| count).sum();
        100.0 * some as f64 / all.max(1) as f64
    }
}

/// Runs it, computing for `compute` before each checkpoint.
///
/// # Errors
/// A target fails.
pub fn run(shape: Shape, compute: Duration, asynchronous: bool) -> Res<Took> {
    let world = SimWorld::with_options(1, SimOptions::default());
    let inner = world.clone();
    world.run(|env| async move {
        let (mut targets, journals) = (Vec::new(), Journals::new(Journal::Internal));
        for number in 0..TARGETS.min(shape.processes) {
            targets.push(Rc::new(Target::make(&inner, number, &journals).await?));
        }
        let each = shape.records / shape.processes as u64;
        let begun = env.now();
        let (mut io_nanos, mut rates) = (0, Vec::new());
        for checkpoint in 0..shape.checkpoints {
            env.sleep(compute).await;
            let writes = env.now();
            let parts = (0..shape.processes).map(|process| {
                let target = targets[process % targets.len()].clone();
                let at = target.env.clone();
                at.spawn_join(part(target, (process as u64, checkpoint), each, asynchronous))
            });
            for part in parts.collect::<Vec<_>>() {
                let nanos = part.await?;
                rates.push((each * RECORD) as f64 * 1e3 / nanos.max(1) as f64);
            }
            io_nanos += env.now().since(writes).as_nanos() as u64;
        }
        let nanos = env.now().since(begun).as_nanos() as u64;
        rates.sort_by(f64::total_cmp);
        let (mut requests, mut journal_writes) = (BTreeMap::new(), 0);
        for target in targets {
            let synced = target.store.engine().sync().await;
            synced.map_err(|error| refused("committing", &error))?;
            journal_writes += target.store.counters().commit.groups;
            target.add_requests(&mut requests);
            let closed = target.store.close().await;
            closed.map_err(|error| refused("closing a target", &error))?;
        }
        Ok(Took { nanos, io_nanos, rates, requests, journal_writes })
    })
}

/// A process's part of a checkpoint, a file of its own. Returns its nanoseconds.
async fn part(
    target: Rc<Target>,
    (process, checkpoint): (u64, u64),
    records: u64,
    asynchronous: bool,
) -> Res<u64> {
    let begun = target.env.now();
    let object = ObjectId(1 + process + (checkpoint << 32));
    for record in 0..records {
        target.record(object, record * (RECORD / BLOCK_U64), asynchronous).await?;
    }
    Ok(target.env.now().since(begun).as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_writes_its_part_and_requests_are_counted() {
        let shape = Shape { processes: 4, records: 16, checkpoints: 2 };
        let compute = Duration::from_millis(100);
        let [slow, fast] = [false, true].map(|asynchronous| {
            let took = run(shape, compute, asynchronous).unwrap();
            assert_eq!(took.rates.len(), 8);
            assert!(took.nanos >= took.io_nanos + 200_000_000, "{took:?}");
            let large: u64 = took.requests.range(16..).map(|(_, count)| count).sum();
            assert!(large >= 32, "{took:?}");
            took
        });
        assert!(fast.journal_writes < slow.journal_writes / 2, "{fast:?} {slow:?}");
        assert!(fast.mean() > slow.mean() && fast.share(0, 17) < slow.share(0, 17));
    }
}
