//! TARGET: what targets keep is whole, and belongs to files.
//!
//! - An image of a target that a power cut or a kill may leave recovers: the check finds nothing,
//!   and the bytes of each block have their checksum.
//! - When all clients have left, the metadata server has the objects of files that are gone
//!   destroyed. Then each object is that of a file, or is still to be destroyed. Only the object of
//!   a file stays whose making was answered and then lost with the server and the client.

use std::collections::{BTreeSet, VecDeque};

use env::DiskOptions;
use env::sim::{SimDisk, SimWorld};
use mfs::{Cost, Mfs, StoreError};
use ost::store::ObjectStore;
use types::{Duration, FileKind, Ino, ObjectId, PagId, ShardId};

use crate::cluster::Cluster;
use crate::events::Broken;
use crate::invariant::Invariant;
use crate::media_corruption::open_copy;
use crate::target_space::FILLER;
use crate::targets::opening;

/// Entries that are read at once.
const MANY: usize = 1000;
/// So soon after the last client has left no object is left to destroy.
const PATIENCE: Duration = Duration::from_secs(300);
/// Pause between two looks at what is left.
const LOOK: Duration = Duration::from_millis(100);

/// Objects, and the targets that they lie on.
type Objects = BTreeSet<(PagId, ObjectId)>;

/// Recovers an image of a target in a world of its own, checks it, and returns its objects.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn check_image(image: SimDisk, seed: u64) -> Result<Vec<ObjectId>, String> {
    let world = SimWorld::new(seed);
    world.attach("ost", &image);
    world.run(|env| async move {
        let access = DiskOptions { write: true, exclusive: true };
        let disk = env.open_disk("ost", access).await.map_err(|error| error.to_string())?;
        let opened = ObjectStore::open(&env, &disk, None, opening()).await;
        let store = opened.map_err(|error| error.to_string())?;
        let findings = store.check().await.map_err(|error| error.to_string())?;
        if !findings.is_empty() {
            let lines: Vec<String> = findings.iter().take(8).map(ToString::to_string).collect();
            return Err(lines.join("\n  "));
        }
        let scrubbed = store.scrub(0).await.map_err(|fault| fault.text().to_owned())?;
        if scrubbed.damaged > 0 {
            return Err(format!("scrub: {:?}", scrubbed.findings));
        }
        let mut all: Vec<ObjectId> = Vec::new();
        loop {
            let from = all.last().map_or(ObjectId(0), |last| ObjectId(last.0 + 1));
            let part = store.objects(from, MANY).await.map_err(|fault| fault.text().to_owned())?;
            if part.is_empty() {
                return Ok(all);
            }
            all.extend(part);
        }
    })
}

/// All clients have left: checks the targets, and whether each object belongs to a file.
pub(crate) async fn check_all(cluster: &Cluster) -> Result<(), Broken> {
    if cluster.targets.count() == 0 {
        return Ok(());
    }
    let patience = cluster.env.now() + PATIENCE;
    while !cluster.has_none_doomed() {
        if cluster.env.now() > patience {
            let text = "targets have not destroyed the objects of files that are gone";
            return Err((Invariant::Ends, text.to_owned()));
        }
        cluster.env.sleep(LOOK).await;
    }
    let targets: Vec<PagId> = cluster.target_zones().collect();
    let mut known = Objects::new();
    for shard in cluster.all_shards() {
        let its = known_objects(&cluster.meta_of(shard), shard, &targets);
        known.extend(its.map_err(|error| (Invariant::Whole, error.to_string()))?);
    }
    for (nth, zone) in targets.into_iter().enumerate() {
        let checked = check_image(cluster.targets.disk(nth).fork(), 1);
        let objects = checked.map_err(|text| (Invariant::Target, format!("ost{nth}: {text}")))?;
        let before = cluster.targets.objects.get();
        cluster.targets.objects.set(before + objects.len() as u64);
        let strays = objects.iter().filter(|object| {
            let known = **object == FILLER || known.contains(&(zone, **object));
            !known && !cluster.targets.may_be_stray(**object)
        });
        let strays: Vec<String> = strays.map(ToString::to_string).collect();
        if !strays.is_empty() {
            let text = format!("ost{nth} has objects that no file has: {}", strays.join(", "));
            return Err((Invariant::Target, text));
        }
    }
    Ok(())
}

impl Cluster {
    /// Do the servers of all shards run, and have targets nothing to destroy?
    pub(crate) fn has_none_doomed(&self) -> bool {
        let doomed = |shard| self.inspect_at(shard, |txn| txn.space().doomed_count(1));
        self.all_shards().all(|shard| doomed(shard) == Some(0))
    }
}

/// Objects of all files of a shard with and without names, and of those that are gone and whose
/// objects are still to be destroyed.
fn known_objects(meta: &SimDisk, shard: ShardId, targets: &[PagId]) -> Result<Objects, StoreError> {
    open_copy(meta, 1, async |_, mfs| read_known(&mfs, shard, targets).await)?
}

async fn read_known(mfs: &Mfs, shard: ShardId, targets: &[PagId]) -> Result<Objects, StoreError> {
    let mut all = Objects::new();
    mfs.load_homes().await?;
    for &target in targets {
        let doomed = mfs.run(Cost::READ, |txn| txn.space().doomed(target, MANY)).await?.0;
        all.extend(doomed.into_iter().map(|object| (target, object)));
    }
    let mut files = mfs.run(Cost::READ, |txn| txn.names().orphans(Ino::NONE, MANY)).await?.0;
    let mut dirs: VecDeque<Ino> = [Ino::ROOT].into_iter().filter(|_| shard == ShardId(0)).collect();
    // Those with names in directories of other shards.
    let guests = mfs.run(Cost::READ, |txn| {
        let guests = txn.names().guests(Ino::NONE, MANY)?.into_iter().map(|(ino, _)| ino);
        guests.map(|ino| Ok((ino, txn.names().attr(ino)?))).collect::<Result<Vec<_>, _>>()
    });
    for (ino, attr) in guests.await?.0 {
        match attr.map(|attr| attr.kind) {
            Some(FileKind::Directory) => dirs.push_back(ino),
            Some(FileKind::Regular) => files.push(ino),
            _ => {}
        }
    }
    while let Some(dir) = dirs.pop_front() {
        let mut after = 0;
        loop {
            let read = mfs.run(Cost::READ, |txn| txn.names().readdir(dir, after, MANY)).await?.0;
            let Some(last) = read.last() else { break };
            after = last.cookie;
            for entry in read.iter().filter(|entry| mfs.home(entry.ino) == shard) {
                match entry.kind {
                    FileKind::Directory => dirs.push_back(entry.ino),
                    FileKind::Regular => files.push(entry.ino),
                    _ => {}
                }
            }
        }
    }
    for ino in files {
        let object = mfs.run(Cost::READ, |txn| {
            let attr = txn.names().attr(ino)?;
            let is_file = attr.is_some_and(|attr| attr.kind == FileKind::Regular);
            if is_file { txn.layouts().object(ino) } else { Ok(None) }
        });
        if let Some(record) = object.await?.0 {
            all.extend(record.targets.iter().map(|target| (*target, record.object)));
        }
    }
    Ok(all)
}
