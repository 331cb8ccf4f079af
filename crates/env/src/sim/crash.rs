//! The images that a power cut may leave, at every point of a recording.
//!
//! Invariants:
//! - every image contains everything stable; of the other writes any subset may be in it, each
//!   whole or torn at 512 bytes;
//! - images of several disks that were recorded together show the same moment; each disk loses its
//!   unstable writes independently, and at every moment also one disk all of them and another none.

use super::disk::{SimDisk, Write, apply, make_stable};
use super::image::{Image, PAGE, Page, SECTOR};
use super::rng::SimRng;
use std::sync::Arc;

/// An event of a recorded disk.
#[derive(Clone)]
pub(crate) enum Event {
    /// A write was submitted: from here on it may survive.
    Begin(Write),
    /// It took effect for readers.
    Complete(u64),
    /// These writes are stable.
    Stable(Vec<u64>),
}

/// The events of a disk since [`SimDisk::record`].
#[derive(Clone)]
pub struct Recording {
    size: u64,
    stable: Image,
    unstable: Vec<Write>,
    events: Vec<(u64, Event)>,
}

impl Recording {
    pub(crate) fn new(size: u64, stable: Image, unstable: Vec<Write>) -> Recording {
        Recording { size, stable, unstable, events: Vec::new() }
    }

    pub(crate) fn push(&mut self, time: u64, event: Event) {
        self.events.push((time, event));
    }

    /// Number of events recorded.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Are there no events?
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The images of this disk alone; see [`crash_images`].
    pub fn crash_images(self, options: CrashOptions) -> CrashImages {
        crash_images(vec![self], options)
    }
}

/// The images to generate.
#[derive(Clone, Copy, Debug)]
pub struct CrashOptions {
    /// Chooses the subsets, and where writes are torn.
    pub seed: u64,
    /// Random subsets at each point, besides "nothing", "everything" and "the last one torn".
    pub subsets: usize,
}

impl Default for CrashOptions {
    fn default() -> CrashOptions {
        CrashOptions { seed: 0, subsets: 2 }
    }
}

/// One state that a power cut may leave.
pub struct CrashPoint {
    /// The point and the choice, for the failure message: it identifies the image exactly.
    pub description: String,
    /// The disks, in the order of the recordings.
    pub disks: Vec<SimDisk>,
}

impl CrashPoint {
    /// The first disk.
    pub fn disk(&self) -> &SimDisk {
        &self.disks[0]
    }
}

/// The unstable writes that survive.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Surviving {
    Nothing,
    Everything,
    /// All; of the last one only the first sectors.
    TornLast,
    /// Any, whole or in part.
    Some,
    /// All of the disk with this index, and nothing of the others.
    Only(usize),
}

impl Surviving {
    /// The choice for the disk with this index.
    fn of(self, index: usize) -> Surviving {
        match self {
            Surviving::Only(only) if only == index => Surviving::Everything,
            Surviving::Only(_) => Surviving::Nothing,
            other => other,
        }
    }

    pub(crate) fn choose(self, unstable: &[Write], rng: &mut SimRng, image: &mut Image) {
        for (index, write) in unstable.iter().enumerate() {
            let last = index + 1 == unstable.len();
            match self {
                Surviving::Nothing | Surviving::Only(_) => {}
                Surviving::TornLast if last => {
                    let sectors = write.pages.len() * PAGE / SECTOR;
                    let kept = rng.below(sectors as u64) as usize;
                    tear(image, write, |sector| sector < kept);
                }
                Surviving::Everything | Surviving::TornLast => apply(image, write),
                Surviving::Some => match rng.below(8) {
                    0..4 => {}
                    4..7 => apply(image, write),
                    _ => {
                        let mut coin = rng.clone();
                        tear(image, write, |_| coin.one_in(2));
                        *rng = coin;
                    }
                },
            }
        }
    }
}

/// Writes only the kept sectors of a write.
fn tear(image: &mut Image, write: &Write, mut kept: impl FnMut(usize) -> bool) {
    let per_page = PAGE / SECTOR;
    for (nth, new) in write.pages.iter().enumerate() {
        let index = write.first_page + nth as u64;
        let mut page = image.page(index).map_or([0; PAGE], |page| **page);
        for sector in 0..per_page {
            if kept(nth * per_page + sector) {
                let bytes = sector * SECTOR..(sector + 1) * SECTOR;
                page[bytes.clone()].copy_from_slice(&new[bytes]);
            }
        }
        image.set(index, Page::from(Arc::new(page)));
    }
}

/// Images at every point of the recordings, before the first event and after each, with every
/// choice of surviving writes. Recordings of several disks are cut at the same moment.
pub fn crash_images(recordings: Vec<Recording>, options: CrashOptions) -> CrashImages {
    let mut order: Vec<(u64, usize, Event)> = Vec::new();
    for (disk, recording) in recordings.iter().enumerate() {
        order.extend(recording.events.iter().map(|(time, event)| (*time, disk, event.clone())));
    }
    order.sort_by_key(|(time, ..)| *time);
    order.reverse();
    CrashImages {
        points: order.len(),
        disks: recordings,
        left: order,
        choices: Vec::new(),
        begun: false,
        rng: SimRng::new(options.seed),
        subsets: options.subsets,
    }
}

/// See [`crash_images`].
pub struct CrashImages {
    points: usize,
    disks: Vec<Recording>,
    /// Events to come, the next one last.
    left: Vec<(u64, usize, Event)>,
    /// Choices to make at the current point, the next one last.
    choices: Vec<(Surviving, usize)>,
    begun: bool,
    rng: SimRng,
    subsets: usize,
}

impl CrashImages {
    /// Advances to the next point at which the possible images differ; `false` at the end.
    fn advance(&mut self) -> bool {
        if !std::mem::replace(&mut self.begun, true) {
            return true;
        }
        while let Some((_, disk, event)) = self.left.pop() {
            let disk = &mut self.disks[disk];
            match event {
                Event::Begin(write) => {
                    disk.unstable.push(write);
                    return true;
                }
                Event::Complete(id) => disk.complete(id),
                Event::Stable(ids) => {
                    disk.make_stable(&ids);
                    return true;
                }
            }
        }
        false
    }

    fn image(&mut self, surviving: Surviving, nth: usize) -> CrashPoint {
        let point = self.points - self.left.len();
        let unstable: usize = self.disks.iter().map(|disk| disk.unstable.len()).sum();
        let description = format!(
            "after event {point} of {}: {unstable} unstable writes, surviving: {surviving:?} #{nth}",
            self.points
        );
        let rng = &mut self.rng;
        let disks = self.disks.iter_mut().enumerate().map(|(index, disk)| {
            let mut image = disk.stable.copy();
            surviving.of(index).choose(&disk.unstable, rng, &mut image);
            SimDisk::of(disk.size, image)
        });
        CrashPoint { description, disks: disks.collect() }
    }
}

impl Recording {
    /// Completed writes take effect before those in flight, in the order of completion.
    fn complete(&mut self, id: u64) {
        if let Some(at) = self.unstable.iter().rposition(|write| write.id == id) {
            let mut write = self.unstable.remove(at);
            write.completed = true;
            let place = self.unstable.partition_point(|write| write.completed);
            self.unstable.insert(place, write);
        }
    }

    fn make_stable(&mut self, ids: &[u64]) {
        make_stable(&mut self.unstable, &mut self.stable, &|write| {
            ids.binary_search(&write.id).is_ok() && !write.stuck
        });
    }
}

impl Iterator for CrashImages {
    type Item = CrashPoint;

    fn next(&mut self) -> Option<CrashPoint> {
        if self.choices.is_empty() {
            if !self.advance() {
                return None;
            }
            self.choices.push((Surviving::Nothing, 0));
            let unstable: usize = self.disks.iter().map(|disk| disk.unstable.len()).sum();
            if unstable > 0 {
                self.choices.push((Surviving::TornLast, 0));
                self.choices.push((Surviving::Everything, 0));
            }
            let unstable_on = |index: &usize| !self.disks[*index].unstable.is_empty();
            let several: Vec<_> = (0..self.disks.len()).filter(unstable_on).collect();
            if several.len() > 1 {
                self.choices.extend(several.into_iter().map(|disk| (Surviving::Only(disk), 0)));
            }
            if unstable > 1 {
                self.choices.extend((0..self.subsets).map(|nth| (Surviving::Some, nth)));
            }
        }
        let (surviving, nth) = self.choices.pop()?;
        Some(self.image(surviving, nth))
    }
}
