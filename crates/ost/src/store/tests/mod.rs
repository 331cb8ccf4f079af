//! Tests of the store in simulated worlds.

mod adopt;
mod costs;
mod crash;
mod faults;
mod model;
mod room;
mod shared;
mod space;

use std::collections::BTreeMap;
use std::rc::Rc;

use engine::cost::Cost;
use env::sim::{SimDisk, SimWorld};
use env::{DiskOptions, Env, IoBuf};
use proto::ost::Statement;
use types::limits::BLOCK;
use types::{ClientId, Duration, Fault, ObjectId, Uuid, crc32c};

use super::{Asked, FormatOptions, ObjectStore, Options, Room};

const OPEN: DiskOptions = DiskOptions { write: true, exclusive: false };
const OPTIONS: Options = Options { cache_bytes: 0, commit_interval: Duration::from_secs(1) };
/// Nobody, whose answers are not kept.
/// Nothing is kept for anybody.
const FREELY: Room = Room::Of(Statement { number: 0, blocks: 0, asked: 0 });
const NOBODY: Asked = Asked { client: ClientId::NONE, slot: 0, seq: 0 };
/// Blocks of the front slice besides the log.
const FRONT: u64 = 2048;

/// The disks of a target: the device, and that of the journal if it is external.
#[derive(Clone)]
struct Disks {
    device: SimDisk,
    journal: Option<SimDisk>,
}

impl Disks {
    /// A new target with `content` blocks of content and a log of `log_bytes`.
    fn formatted(content: u64, log_bytes: u64, external: bool, checksums: bool) -> Disks {
        let inside = if external { engine::format::superblock::LOG_BYTES_MIN } else { log_bytes };
        let blocks = inside / BLOCK as u64 + FRONT + content + 1;
        let disks = Disks {
            device: SimDisk::new(blocks * BLOCK as u64),
            journal: external.then(|| SimDisk::new(log_bytes + 4 * BLOCK as u64)),
        };
        disks.world(1).run(|env| async move {
            let (device, journal) = Disks::open(&env).await;
            let options = FormatOptions {
                fs_name: "home",
                fs: Uuid([1; 16]),
                target: Uuid([2; 16]),
                log_bytes,
                checksums,
                force: false,
            };
            ObjectStore::format(&env, &device, journal.as_ref().map(Into::into), &options)
                .await
                .unwrap();
        });
        disks
    }

    fn world(&self, seed: u64) -> SimWorld {
        let world = SimWorld::new(seed);
        world.attach("ost", &self.device);
        if let Some(journal) = &self.journal {
            world.attach("journal", journal);
        }
        world
    }

    async fn open(env: &Env) -> (env::Disk, Option<env::Disk>) {
        (env.open_disk("ost", OPEN).await.unwrap(), env.open_disk("journal", OPEN).await.ok())
    }

    fn fork(&self) -> Disks {
        Disks { device: self.device.fork(), journal: self.journal.as_ref().map(SimDisk::fork) }
    }

    /// All of them.
    fn all(&self) -> Vec<SimDisk> {
        [Some(self.device.clone()), self.journal.clone()].into_iter().flatten().collect()
    }
}

/// Opens the target of a world.
async fn open(env: &Env) -> Rc<ObjectStore> {
    let (device, journal) = Disks::open(env).await;
    ObjectStore::open(env, &device, journal.as_ref(), OPTIONS).await.unwrap()
}

/// The content of block `block` of an object after its `version`-th change.
fn bytes_of(object: u64, block: u64, version: u64) -> [u8; BLOCK] {
    let mut out = [0; BLOCK];
    for (at, word) in out.chunks_exact_mut(8).enumerate() {
        let mixed =
            (object << 48 ^ block.rotate_left(32) ^ version).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&mixed.wrapping_add(at as u64).to_le_bytes());
    }
    out
}

/// Blocks `block..block + len` of an object after its `version`-th change, and their checksums.
fn content(object: u64, block: u64, len: u64, version: u64) -> (IoBuf, Vec<u32>) {
    let mut data = IoBuf::unspecified(len as usize * BLOCK);
    for (at, out) in (0..).zip(data.chunks_exact_mut(BLOCK)) {
        out.copy_from_slice(&bytes_of(object, block.wrapping_add(at), version));
    }
    let sums = data.chunks_exact(BLOCK).map(crc32c).collect();
    (data, sums)
}

async fn write(
    store: &ObjectStore,
    object: u64,
    block: u64,
    len: u64,
    version: u64,
) -> Result<types::Transno, Fault> {
    let (data, sums) = content(object, block, len, version);
    store.write(NOBODY, (ObjectId(object), block), data, &sums, FREELY).await
}

/// What an object has: the version of each block that is no hole.
type Blocks = BTreeMap<u64, u64>;

/// As [`read_all`], of an object that nobody changes: its runs say the same.
async fn look(
    store: &ObjectStore,
    object: u64,
    end: u64,
    known: impl Fn(u64) -> Vec<u64>,
) -> Result<Blocks, String> {
    let out = read_all(store, object, end, known).await?;
    let runs = store.runs(ObjectId(object), 0, u32::MAX).await;
    let (runs, all) = runs.map_err(|fault| format!("object {object}: {fault}"))?;
    let blocks: Vec<u64> = runs.iter().flat_map(|run| run.block..run.block + run.len).collect();
    assert!(all && blocks.iter().eq(out.keys()), "object {object}");
    Ok(out)
}

/// Reads `0..end` of an object. A block that has none of the versions that `known` says it may have
/// is a failure.
async fn read_all(
    store: &ObjectStore,
    object: u64,
    end: u64,
    known: impl Fn(u64) -> Vec<u64>,
) -> Result<Blocks, String> {
    let failed = |fault: Fault| format!("object {object}: {fault}");
    let mut out = Blocks::new();
    let mut at = 0;
    while at < end {
        let len = (end - at).min(256);
        let found = store.read(ObjectId(object), at, len as u32).await.map_err(failed)?;
        let mut data = found.data.chunks_exact(BLOCK).zip(&found.sums);
        for run in &found.runs {
            for block in at + run.block..at + run.block + run.len {
                let (bytes, sum) = data.next().expect("as many blocks as the runs have");
                assert_eq!(crc32c(bytes), *sum);
                let same = |v: &u64| bytes_of(object, block, *v) == *bytes;
                let version = known(block).into_iter().find(same).ok_or_else(|| {
                    format!("object {object}, block {block} has bytes that nobody wrote there")
                })?;
                out.insert(block, version);
            }
        }
        assert!(data.next().is_none());
        at += len;
    }
    Ok(out)
}

/// A client of the target.
async fn new_client(store: &ObjectStore) -> ClientId {
    store.engine().run(Cost::SMALL, |txn| txn.new_client(b"test")).await.unwrap().0
}
