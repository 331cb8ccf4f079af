//! A file system full of files, and what damage to its zones leaves whole (002, section 6.2.2).
//!
//! Invariants:
//! - clients, as many as there are zones, make the files at the same time through the whole file
//!   system, so that the product's placement decides where every block lies;
//! - sizes follow a lognormal distribution with a median of 16 KiB and a mean of 1 MiB, cut at
//!   4 GiB: the paper names its source, but not the distribution; 10^6 files have 1 TB, as there;
//! - a file is *whole* as long as all its content can be read and is what was written;
//! - files above [`WRITTEN`] are sparse on the disk, not in the file system: all their blocks are
//!   allocated, and one is written in each part of a striped file, and the last.

use std::collections::BTreeSet;
use std::rc::Rc;

use client::Handle;
use env::sim::SimRng;
use mfs::{Cost, Mfs, StoreError, ZoneWalk};
use proto::placement::{Layout, PART};
use serde::Serialize;
use types::limits::{BLOCK, BLOCK_U64};
use types::{FileBlock, Ino, PagId};

use crate::cluster::{Cluster, Mount, Served, Shape, refused};
use crate::layouts::bed::broken;
use crate::switches::Switches;
use bench::{Res, failed};

/// Files up to this size are written as a whole.
const WRITTEN: u64 = 128 << 10;
/// Median of the sizes, and the deviation of their logarithm for a mean of 1 MiB.
const MEDIAN: f64 = 16384.0;
const DEVIATION: f64 = 2.884;
const SIZE_MAX: u64 = 4 << 30;
/// Files of a directory.
const DIRECTORY: u64 = 1000;
/// Bytes of a data zone: 256 GiB.
const ZONE_BYTES: u64 = 256 << 30;
const DIRTY: usize = 16 << 20;
/// Segments that are read at once.
const SEGMENTS: usize = 256;

/// Files that are made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Data zones, and clients.
    pub zones: u16,
    /// Files of all clients.
    pub files: u64,
    /// Where their blocks go.
    pub layout: Layout,
    /// Every file is at most so large and written as a whole, with content that no two blocks
    /// share; `None`: sizes up to the largest, and zeros.
    pub whole: Option<u64>,
}

/// A file that was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Made {
    ino: Ino,
    size: u64,
}

/// A file system with files, which nobody uses.
pub struct Snapshot {
    plan: Plan,
    cluster: Cluster,
    files: Vec<Made>,
    /// Where each file's blocks lie.
    runs: Vec<Vec<Run>>,
}

/// Blocks of a zone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Run {
    /// The zone.
    pub zone: PagId,
    /// The first block, and the block behind the last.
    pub from: u64,
    /// See `from`.
    pub to: u64,
}

/// What is left when so many zones are lost.
#[derive(Clone, Copy, PartialEq, Serialize, Debug)]
pub struct Lost {
    /// Lost zones.
    pub lost: u16,
    /// Share of whole files, on average over every choice of the lost zones.
    pub average: f64,
    /// The same when the zones with most files are lost.
    pub fullest: f64,
    /// Files that a client read with zones 0 to `lost` - 1 dead.
    pub read: u64,
    /// Those that it could not read as a whole, though their blocks say so, or the other way round.
    pub surprises: u64,
}

/// What is left when so much of the data is overwritten.
#[derive(Clone, Copy, PartialEq, Serialize, Debug)]
pub struct Overwritten {
    /// Share of the files' blocks that was overwritten.
    pub blocks: f64,
    /// Share of whole files, read by a client.
    pub whole: f64,
    /// Files whose content is not what was written.
    pub hurt: u64,
    /// Files with overwritten blocks, by `redbud pag files`.
    pub named: u64,
    /// Files that are hurt and not named, or named and not hurt.
    pub surprises: u64,
}

/// A number of a lognormal distribution with this median, and this deviation of the logarithm.
pub fn lognormal(rng: &mut SimRng, median: f64, deviation: f64) -> f64 {
    let mut unit = || (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    // Box and Muller; 1 - u is above 0.
    let (radius, angle) = ((-2.0 * (1.0 - unit()).ln()).sqrt(), std::f64::consts::TAU * unit());
    median * (deviation * radius * angle.cos()).exp()
}

fn size(rng: &mut SimRng, most: u64) -> u64 {
    (lognormal(rng, MEDIAN, DEVIATION) as u64).clamp(1, most)
}

/// Byte `at` of a file is one of the block's, which no other block has.
fn content(ino: Ino, block: u64) -> [u8; BLOCK] {
    let mut bytes = [0; BLOCK];
    let mut rng = SimRng::new(ino.0.rotate_left(32) ^ block);
    for word in bytes.as_chunks_mut::<8>().0 {
        *word = rng.next_u64().to_le_bytes();
    }
    bytes
}

/// Offsets of the blocks of a sparse file that are written.
fn written_blocks(size: u64) -> impl Iterator<Item = u64> {
    let last = (size - 1) / BLOCK_U64;
    (0..last).step_by(PART as usize).chain([last])
}

impl Snapshot {
    /// Makes the files.
    ///
    /// # Errors
    /// Those of the cluster and its clients.
    pub fn make(plan: Plan) -> Res<Snapshot> {
        let cluster = Cluster::new(Shape {
            zones: plan.zones,
            zone_bytes: ZONE_BYTES,
            clients: plan.zones.into(),
            dirty_bytes: DIRTY,
            switches: Switches::default(),
        })?;
        let made = plan.clone();
        let (files, runs) = cluster.run(|served| async move {
            let shared = Rc::new(made);
            let work = |number, mount| fill(shared.clone(), number as u64, mount);
            let (each, _) = served.each(work).await?;
            let files = each.concat();
            let mut runs = Vec::new();
            for file in &files {
                runs.push(runs_of(&served.mfs, file.ino).await?);
            }
            Ok((files, runs))
        })?;
        Ok(Snapshot { plan, cluster, files, runs })
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    fn zones_of(&self, file: usize) -> BTreeSet<PagId> {
        self.runs[file].iter().map(|run| run.zone).collect()
    }

    /// Loses one zone after the other, and lets a client read about `sample` files each time.
    ///
    /// # Errors
    /// Those of the cluster and its clients; not that a lost file cannot be read.
    pub fn lose(&self, sample: usize) -> Res<Vec<Lost>> {
        let count = self.plan.zones;
        let zones: Vec<BTreeSet<PagId>> = (0..self.files.len()).map(|n| self.zones_of(n)).collect();
        let share = |whole: f64| whole / zones.len().max(1) as f64;
        // Files by the number of their zones: only that number matters on average.
        let mut by_width = vec![0u64; usize::from(count) + 1];
        let mut on = vec![0u64; usize::from(count)];
        for zones in &zones {
            by_width[zones.len()] += 1;
            zones.iter().for_each(|zone| on[usize::from(zone.0)] += 1);
        }
        let mut fullest: Vec<PagId> = (0..count).map(PagId).collect();
        fullest.sort_by_key(|zone| std::cmp::Reverse(on[usize::from(zone.0)]));
        let read = self.read_lost(&zones, sample)?;
        let of = |(lost, (read, surprises)): (u16, (u64, u64))| {
            let average = (0..=count).zip(&by_width);
            let average =
                average.map(|(width, &files)| survival(count, lost, width) * files as f64);
            let gone = &fullest[..usize::from(lost)];
            let left = zones.iter().filter(|zones| gone.iter().all(|zone| !zones.contains(zone)));
            let (average, fullest) = (share(average.sum()), share(left.count() as f64));
            Lost { lost, average, fullest, read, surprises }
        };
        Ok((1..count).zip(read).map(of).collect())
    }

    /// Reads files while one zone after the other dies: how many, and how many of them were not as
    /// their zones say.
    fn read_lost(&self, zones: &[BTreeSet<PagId>], sample: usize) -> Res<Vec<(u64, u64)>> {
        let step = (self.files.len() / sample.max(1)).max(1);
        let sampled: Vec<(Made, BTreeSet<PagId>)> = (0..self.files.len())
            .step_by(step)
            .map(|n| (self.files[n], zones[n].clone()))
            .collect();
        let count = self.plan.zones;
        let whole = self.plan.whole.is_some();
        let found = self.cluster.run(|served| async move {
            let mut found = Vec::new();
            for lost in 1..count {
                served.data[usize::from(lost) - 1].set_dead_for(None, true);
                let mount = &served.mounts[0];
                let mut surprises = 0;
                for (file, zones) in &sampled {
                    let expected = zones.iter().all(|zone| zone.0 >= lost);
                    let is_there = is_readable(mount, *file, whole).await?;
                    surprises += u64::from(is_there != expected);
                }
                found.push((sampled.len() as u64, surprises));
            }
            for disk in &served.data {
                disk.set_dead_for(None, false);
            }
            Ok(found)
        })?;
        Ok(found)
    }

    /// Overwrites random runs of `len` blocks on the zones, bypassing the file system, until each
    /// of these levels is reached, in per cent of the files' blocks. Then reads every file.
    ///
    /// # Errors
    /// Those of the cluster and its clients.
    pub fn overwrite(&self, levels: &[u32], len: u64) -> Res<Vec<Overwritten>> {
        let all: Vec<Run> = self.runs.iter().flatten().copied().collect();
        let used: u64 = all.iter().map(|run| run.to - run.from).sum();
        let mut rng = SimRng::new(5);
        let mut hit: BTreeSet<(PagId, u64)> = BTreeSet::new();
        let mut found = Vec::new();
        let mut damaged: Vec<Run> = Vec::new();
        for &level in levels {
            let mut new = Vec::new();
            while (hit.len() as u64) * 100 < used * u64::from(level) {
                let run = place(&all, rng.below(used), len);
                let of_files = all.iter().filter(|other| other.zone == run.zone);
                for other in of_files {
                    let (from, to) = (run.from.max(other.from), run.to.min(other.to));
                    hit.extend((from..to).map(|block| (run.zone, block)));
                }
                new.push(run);
            }
            let noise: Vec<u64> = new.iter().map(|_| rng.next_u64()).collect();
            damaged.extend(&new);
            let (files, damaged) = (self.files.clone(), damaged.clone());
            let (hurt, named) = self.cluster.run(|served| async move {
                for (run, seed) in new.iter().zip(noise) {
                    overwrite_run(&served, *run, seed);
                }
                let named = named(&served.mfs, &damaged).await?;
                Ok((hurt(&served, files).await?, named))
            })?;
            let whole = 1.0 - hurt.len() as f64 / self.files.len().max(1) as f64;
            found.push(Overwritten {
                blocks: hit.len() as f64 / used.max(1) as f64,
                whole,
                hurt: hurt.len() as u64,
                named: named.len() as u64,
                surprises: hurt.symmetric_difference(&named).count() as u64,
            });
        }
        Ok(found)
    }
}

/// The share of choices of `lost` of `count` zones that spare all of `width` zones.
fn survival(count: u16, lost: u16, width: u16) -> f64 {
    (0..width).map(|n| f64::from((count - n).saturating_sub(lost)) / f64::from(count - n)).product()
}

/// The run of `len` blocks around block `nth` of all.
fn place(all: &[Run], nth: u64, len: u64) -> Run {
    let mut left = nth;
    for run in all {
        let blocks = run.to - run.from;
        if left < blocks {
            // Block 0 is the label's.
            let begin = (run.from + left) / len * len;
            return Run { zone: run.zone, from: begin.max(1), to: begin + len };
        }
        left -= blocks;
    }
    unreachable!("`nth` is below the number of all blocks")
}

fn overwrite_run(served: &Served, run: Run, seed: u64) {
    let mut rng = SimRng::new(seed);
    let disk = &served.data[usize::from(run.zone.0)];
    for block in run.from..run.to {
        let words: Vec<u8> = (0..BLOCK / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
        disk.poke(block * BLOCK_U64, &words);
    }
}

/// Makes the files of one client.
async fn fill(plan: Rc<Plan>, number: u64, mount: Mount) -> Res<Vec<Made>> {
    let clients = u64::from(plan.zones);
    let files = plan.files / clients + u64::from(number < plan.files % clients);
    let mut rng = SimRng::new(number + 1);
    let top = mount.mkdir(Ino::ROOT, &format!("client{number}")).await?;
    mount.set_layout(top, &plan.layout).await?;
    // What is made in it inherits the layout once the server has it.
    mount.sync().await?;
    let mut dir = top;
    let mut made = Vec::new();
    for n in 0..files {
        if n % DIRECTORY == 0 {
            dir = mount.mkdir(top, &format!("dir{}", n / DIRECTORY)).await?;
        }
        let size = size(&mut rng, plan.whole.unwrap_or(SIZE_MAX));
        let (entry, handle) = mount.create(dir, &format!("file{n}")).await?;
        let file = Made { ino: entry.attr.ino, size };
        write(&mount, handle, file, plan.whole.is_some()).await?;
        mount.close(handle).await?;
        mount.client.forget(file.ino, 1);
        made.push(file);
    }
    mount.sync().await?;
    Ok(made)
}

async fn write(mount: &Mount, handle: Handle, file: Made, whole: bool) -> Res<()> {
    if !whole && file.size > WRITTEN {
        mount.allocate(file.ino, handle, file.size).await?;
        for block in written_blocks(file.size) {
            let len = (file.size - block * BLOCK_U64).min(BLOCK_U64);
            mount.write(handle, block * BLOCK_U64, mount.env.buffer(len as usize)).await?;
        }
        return Ok(());
    }
    let mut at = 0;
    while at < file.size {
        let len = WRITTEN.min(file.size - at);
        let mut data = mount.env.buffer(len as usize);
        if whole {
            for (block, part) in (at / BLOCK_U64..).zip(data.chunks_mut(BLOCK)) {
                part.copy_from_slice(&content(file.ino, block)[..part.len()]);
            }
        }
        mount.write(handle, at, data).await?;
        at += len;
    }
    Ok(())
}

/// Where the blocks of a file lie.
pub async fn runs_of(mfs: &Mfs, ino: Ino) -> Res<Vec<Run>> {
    let (mut from, mut runs) = (FileBlock(0), Vec::new());
    loop {
        let read = mfs.run(Cost::READ, |txn| txn.layouts().layout(ino, from, SEGMENTS)).await;
        let wrong = |error: StoreError| broken("reading a layout", &error);
        let (segments, _) = read.map_err(wrong)?;
        for segment in &segments {
            let (zone, start) = (segment.pag, segment.addr.0);
            runs.push(Run { zone, from: start, to: start + segment.len });
        }
        match segments.last() {
            Some(last) if segments.len() == SEGMENTS => from = FileBlock(last.file.0 + last.len),
            _ => return Ok(runs),
        }
    }
}

/// Can a client read all that was written of this file?
async fn is_readable(mount: &Mount, file: Made, whole: bool) -> Res<bool> {
    let handle = mount.open(file.ino, 0).await?;
    let ranges: Vec<(u64, u64)> = if whole || file.size <= WRITTEN {
        vec![(0, file.size)]
    } else {
        let block = |block| (block * BLOCK_U64, BLOCK_U64.min(file.size - block * BLOCK_U64));
        written_blocks(file.size).map(block).collect()
    };
    let mut is_there = true;
    for (at, len) in ranges {
        match mount.client.read(handle, at, len as u32, false).await {
            Ok(read) if read.len() as u64 == len => {}
            Ok(read) => return failed("reading", format!("{} of {len} bytes", read.len())),
            Err(types::Fault::Io) => is_there = false,
            Err(fault) => return Err(refused("reading", fault)),
        }
    }
    mount.client.release(handle, None).await;
    mount.client.forget(file.ino, 1);
    Ok(is_there)
}

/// The files whose content is not what was written.
async fn hurt(served: &Served, files: Vec<Made>) -> Res<BTreeSet<Ino>> {
    let files = Rc::new(files);
    let clients = served.mounts.len();
    let work = |number: usize, mount: Mount| {
        let files = files.clone();
        async move {
            let mut hurt = BTreeSet::new();
            for file in files.iter().skip(number).step_by(clients) {
                if !is_as_written(&mount, *file).await? {
                    hurt.insert(file.ino);
                }
            }
            Ok(hurt)
        }
    };
    Ok(served.each(work).await?.0.into_iter().flatten().collect())
}

async fn is_as_written(mount: &Mount, file: Made) -> Res<bool> {
    let handle = mount.open(file.ino, 0).await?;
    let read = mount.client.read(handle, 0, file.size as u32, false).await;
    let read = read.map_err(|fault| refused("reading", fault))?.to_vec();
    mount.client.release(handle, None).await;
    let expected = (0..).flat_map(|block| content(file.ino, block));
    Ok(read.len() as u64 == file.size && read.iter().copied().eq(expected.take(read.len())))
}

/// The files that `redbud pag files` names for these runs.
async fn named(mfs: &Mfs, runs: &[Run]) -> Res<BTreeSet<Ino>> {
    let mut named = BTreeSet::new();
    for run in runs {
        let mut at = Some(ZoneWalk::BEGIN);
        while let Some(from) = at {
            let step = mfs.zone_files(run.zone, &(run.from..run.to), from).await;
            let wrong = |error: StoreError| broken("naming files", &error);
            let (files, next) = step.map_err(wrong)?;
            named.extend(files);
            at = next;
        }
    }
    Ok(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_that_spare_some_zones_are_counted() {
        assert_eq!([survival(12, 3, 0), survival(12, 0, 5), survival(12, 12, 1)], [1.0, 1.0, 0.0]);
        assert!((survival(12, 3, 1) - 0.75).abs() < 1e-12);
        // Of the 66 choices of 2 zones, 45 spare both of 2.
        assert!((survival(12, 2, 2) - 45.0 / 66.0).abs() < 1e-12);
        assert_eq!(survival(3, 2, 2), 0.0);
    }

    #[test]
    fn sizes_have_their_median_and_their_mean() {
        let mut rng = SimRng::new(1);
        let mut sizes: Vec<u64> = (0..200_000).map(|_| size(&mut rng, SIZE_MAX)).collect();
        sizes.sort_unstable();
        let median = sizes[sizes.len() / 2] as f64 / MEDIAN;
        let mean = sizes.iter().sum::<u64>() as f64 / sizes.len() as f64 / f64::from(1 << 20);
        assert!((0.95..1.05).contains(&median) && (0.7..1.1).contains(&mean), "{median} {mean}");
    }

    #[test]
    fn lost_zones_take_their_files_and_no_others() {
        let plan = Plan { zones: 3, files: 90, layout: Layout::default(), whole: None };
        let lost = Snapshot::make(plan).unwrap().lose(90).unwrap();
        assert_eq!(lost.iter().map(|lost| lost.lost).collect::<Vec<_>>(), [1, 2]);
        for lost in lost {
            assert!(lost.read == 90 && lost.surprises == 0, "{lost:?}");
            assert!(lost.fullest < lost.average && lost.average < 1.0, "{lost:?}");
        }
    }

    #[test]
    fn overwritten_blocks_hurt_the_files_that_are_named() {
        let plan = Plan { zones: 2, files: 60, layout: Layout::default(), whole: Some(1 << 18) };
        let found = Snapshot::make(plan).unwrap().overwrite(&[5, 40], 16).unwrap();
        for level in &found {
            assert!(level.hurt > 0 && level.hurt < 60 && level.surprises == 0, "{level:?}");
        }
        assert!(found[1].whole < found[0].whole && found[1].blocks >= 0.4, "{found:?}");
    }
}
