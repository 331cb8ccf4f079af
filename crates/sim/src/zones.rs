//! The devices of a cluster: one with the metadata, and a data zone on each of the others.
//!
//! Invariants:
//! - sizes, models and format follow from [`Drawn`] alone, so runs with equal ones share them;
//! - a data block is named by its zone and its number there: no checker looks at a number alone.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use env::sim::{DiskModel, Flash, HardDisk, SimDisk, SimRng};
use label::{Label, SliceKind};
use types::limits::BLOCK_U64;
use types::{Duration, PagId, ShardId, Uuid};

use crate::cluster::{FS, Format, fs_uuid};
use crate::space;

/// Most data zones.
pub const ZONES_MAX: usize = 8;
/// Formatted devices that are kept; seeds that follow each other mostly need the same.
const KEPT: usize = 12;
/// Blocks of data zones that do not fill up, and of those that do.
const AMPLE: [u64; 4] = [131_072, 65_536, 24_576, 40_960];
const SCANT: [u64; 4] = [24, 48, 96, 160];
/// Blocks of a zone that is almost full from the beginning.
const TINY: u64 = 9;
/// Blocks of the metadata zone.
const META: u64 = 64 * (1 << 20) / BLOCK_U64;

/// A block of a data zone.
pub(crate) type Place = (PagId, u64);

/// The data zones of a cluster with this many.
pub(crate) fn zones(count: usize) -> impl Iterator<Item = PagId> {
    (0..count as u16).map(PagId)
}

/// The shards of a cluster with this many.
pub(crate) fn shards(count: usize) -> impl Iterator<Item = ShardId> + use<> {
    (0..count as u8).map(ShardId)
}

/// The data zones of a shard, if each has this many.
pub(crate) fn of_shard(shard: ShardId, each: usize) -> impl Iterator<Item = PagId> + use<> {
    let first = usize::from(shard.0) * each;
    (first..first + each).map(|zone| PagId(zone as u16))
}

/// The name of a zone's device.
pub(crate) fn name(zone: PagId) -> String {
    format!("data{}", zone.0)
}

/// The UUID of a zone.
pub(crate) fn uuid(zone: PagId) -> Uuid {
    Uuid([8 + zone.0 as u8; 16])
}

/// Sizes of the devices.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Sizes {
    /// Blocks of each data zone, block 0 included.
    pub data: Vec<u64>,
    /// Blocks of the metadata zone.
    pub meta: u64,
}

impl Default for Sizes {
    /// One data zone; both are large enough not to fill up.
    fn default() -> Sizes {
        Sizes { data: vec![AMPLE[0]], meta: META }
    }
}

impl Sizes {
    /// Is the metadata zone small enough to fill up?
    pub fn is_short_of_metadata(&self) -> bool {
        self.meta != META
    }

    /// Is some data zone almost full from the beginning? When the others are absent, writes fail.
    pub fn has_a_tiny_zone(&self) -> bool {
        self.data.contains(&TINY)
    }

    /// Blocks of all data zones without block 0.
    pub fn room(&self) -> u64 {
        self.data.iter().map(|blocks| blocks - 1).sum()
    }
}

/// What the devices of a run follow from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drawn {
    /// Everything random follows from it.
    pub seed: u64,
    /// Data zones.
    pub zones: usize,
    /// Some device is small enough to fill up.
    pub short: bool,
    /// Clients, for which a small metadata zone reserves room.
    pub clients: usize,
}

impl Drawn {
    /// The sizes. Several zones differ in size, and one in three clusters has a tiny one.
    pub fn sizes(self) -> Sizes {
        let usual = Sizes::default();
        let small = self.short.then(|| space::small_devices(self.seed, self.clients));
        let Some(zones) = Some(self.zones).filter(|zones| *zones > 1) else {
            return small.unwrap_or(usual);
        };
        let meta = small.as_ref().map_or(usual.meta, |small| small.meta);
        let scant = small.is_some_and(|small| small.data != usual.data);
        let table = if scant { SCANT } else { AMPLE };
        let mut rng = SimRng::new(self.seed ^ 0x007a_6f6e_6573);
        let first = rng.below(4) as usize;
        let mut data: Vec<u64> = (0..zones).map(|nth| table[(first + nth) % 4]).collect();
        if rng.one_in(3) {
            data[rng.below(zones as u64) as usize] = TINY;
        }
        Sizes { data, meta }
    }

    /// How long requests of a device take: one in three is a hard disk, one in three is flash, the
    /// others have the latencies of the world.
    fn model(self, nth: u64) -> Option<DiskModel> {
        match SimRng::new(self.seed ^ 0x6d6f_6465_6c73 ^ nth << 40).below(3) {
            0 => Some(DiskModel::Hard(HardDisk::fibre_channel())),
            1 => Some(DiskModel::Flash(Flash::nvme())),
            _ => None,
        }
    }

    /// The longest time that the disks need to hand one page from one client to another, if each
    /// has the time of its model. The client that gives it up writes and flushes it, the metadata
    /// device writes and flushes the log, and the other client reads it. Each of these requests
    /// waits for one other that the device serves already.
    pub fn hand_over(self) -> Duration {
        let sizes = self.sizes();
        let longest = |nth: u64, blocks: u64| {
            let model = self.model(nth);
            model
                .map_or_else(Default::default, |model| model.longest(blocks * BLOCK_U64, BLOCK_U64))
        };
        let (log, log_flush) = longest(0, sizes.meta);
        let data = (1..).zip(&sizes.data).map(|(nth, blocks)| longest(nth, *blocks));
        let data = data.map(|(request, flush)| request + request + flush).max();
        (data.unwrap_or_default() + log + log_flush) * 2
    }
}

/// The attached disks.
pub struct Disks {
    /// The metadata zones, one for each shard.
    pub metas: Vec<SimDisk>,
    /// The data zones, of one shard after the other.
    pub data: Vec<SimDisk>,
}

impl Disks {
    /// Freshly formatted disks; `format` makes a metadata zone, of a shard if there are several.
    pub fn new(
        sizes: &Sizes,
        made: Format,
        count: usize,
        format: impl Fn(Option<ShardId>) -> SimDisk,
    ) -> Disks {
        let each = sizes.data.len();
        let data = |shard| of_shard(shard, each).zip(&sizes.data);
        let data = shards(count.max(1)).flat_map(data);
        let data = data.map(|(zone, blocks)| labelled(zone, *blocks)).collect();
        let of = |shard| Some(shard).filter(|_| count > 1);
        let meta = |shard| kept((sizes.clone(), made, of(shard)), || format(of(shard)));
        Disks { metas: shards(count.max(1)).map(meta).collect(), data }
    }

    /// Gives the devices models, so that each takes its time.
    pub fn take_time(&self, drawn: Drawn) {
        for (nth, disk) in (0..).zip(self.metas.iter().chain(&self.data)) {
            if let Some(model) = drawn.model(nth) {
                disk.set_model(model);
            }
        }
    }
}

/// What a formatted metadata zone follows from; the last is its shard, if there are several.
type Kind = (Sizes, Format, Option<ShardId>);

/// A fork of the metadata zone of these sizes and this format, which never differs.
fn kept(of: Kind, format: impl FnOnce() -> SimDisk) -> SimDisk {
    type Formatted = (BTreeMap<Kind, SimDisk>, VecDeque<Kind>);
    static FORMATTED: Mutex<Formatted> = Mutex::new((BTreeMap::new(), VecDeque::new()));
    let mut all = FORMATTED.lock().unwrap_or_else(PoisonError::into_inner);
    let (disks, order) = &mut *all;
    if !disks.contains_key(&of) {
        // Those of one zone are few, and every run with the usual devices needs them.
        if of.0.data.len() > 1 || of.2.is_some() {
            order.push_back(of.clone());
        }
        if order.len() > KEPT
            && let Some(oldest) = order.pop_front()
        {
            disks.remove(&oldest);
        }
    }
    disks.entry(of).or_insert_with(format).fork()
}

fn labelled(zone: PagId, blocks: u64) -> SimDisk {
    // The last block holds the label's second copy.
    let device = blocks + 1;
    let disk = SimDisk::new(device * BLOCK_U64);
    let kind = SliceKind::Data { pag: zone };
    label::put(&disk, &Label::single(fs_uuid(), FS, uuid(zone), device, kind));
    disk
}
