//! Online scrub: reads the whole metadata device and checks it while it is in use.
//!
//! Invariants: those of the engine's half ([`engine::scrub`]), which checks what knows no file.
//!
//! Checked: the checksum, address and type of every block in use, at home and not only in the
//! cache; the shape of every tree; chunks against their directories, neighbours and the bitmap;
//! slots, attributes, targets and content of inodes; where each inode is and what leads to it;
//! further names against their inodes; layouts against the data zones.
//! Not checked, because no single moment decides it: link counts, blocks with two owners or none,
//! counts, fragmentation counts, duplicate names in a directory, name maps against names. `redbud
//! fsck` does that, offline ([`mod@crate::fsck`]).

mod inodes;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Deref;

use env::LocalFuture;
use types::{DirNo, FileKind, Ino, MetaBlock, PagBlock, PagId, Segment};

use crate::format::chunk::decode_key;
use crate::format::namespace;
use crate::format::number::{SlotPlace, is_system};
use crate::format::outside::Outside;
use crate::format::segment::decode_item;
use crate::format::slot::{SLOTS_PER_BLOCK, Slot};
use crate::format::space::{PagRecord, PagUse};
use crate::format::xattr::BLOB_MAX;
use crate::fsck::{Problem, ProblemKind, Subject};
use crate::handle::Mfs;
use crate::trees::{
    CHUNKS, FREE, FREED, FROZEN, HOMES, INTENTS, LENT, MOVED, NAMESPACE, ORPHANS, OUTSIDE, PAGS,
    POOLS, QUARANTINES, SEGMENTS,
};
use crate::txn::Txn;
use engine::error::{Stop, StoreError};
use engine::format::block::BlockType;
pub use engine::scrub::ScrubOptions;
use engine::scrub::{Finding, Progress};

/// Findings that are kept; further ones are only counted.
pub const PROBLEMS_MAX: usize = 1000;
/// Content blocks read together.
const BATCH: u32 = 64;

/// Progress and findings of a scrub.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Scrubbed {
    /// Blocks read from the device and found sound.
    pub blocks: u64,
    /// Blocks skipped because the cache has a newer version, which the next checkpoint writes home.
    pub newer: u64,
    /// Inodes checked.
    pub inodes: u64,
    /// Damaged blocks that were rewritten from cache or log.
    pub rewritten: Vec<MetaBlock>,
    /// Findings that were not repaired; `redbud fsck --repair` does that.
    pub problems: Vec<Problem>,
    /// Findings beyond [`PROBLEMS_MAX`].
    pub omitted: u64,
}

impl Scrubbed {
    fn add(&mut self, problem: Problem) {
        if self.problems.contains(&problem) {
            return;
        }
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        } else {
            self.omitted += 1;
        }
    }
}

impl Mfs {
    /// Reads and checks the whole device while others use the store. `report` has the progress at
    /// any moment, and in the end the findings. Drop the future to stop the scrub.
    ///
    /// # Errors
    /// `Poisoned`; `ReadOnly` where something is to be rewritten. A device that cannot be
    /// read is a finding.
    pub fn scrub<'a>(
        &'a self,
        options: ScrubOptions,
        report: &'a RefCell<Scrubbed>,
    ) -> LocalFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            *report.borrow_mut() = Scrubbed::default();
            let engine = engine::scrub::Scrub::new(self, options, BLOB_MAX, Reporter(report));
            let Some(engine) = engine else { return Ok(()) };
            let (pags, strays) = (BTreeMap::new(), RefCell::default());
            Scrub { engine, report, pags, strays }.run().await
        })
    }
}

/// Takes what the engine's half of the scrub reports.
struct Reporter<'a>(&'a RefCell<Scrubbed>);

impl Progress for Reporter<'_> {
    fn sound(&self) {
        self.0.borrow_mut().blocks += 1;
    }

    fn newer(&self) {
        self.0.borrow_mut().newer += 1;
    }

    fn rewritten(&self, block: MetaBlock) {
        self.0.borrow_mut().rewritten.push(block);
    }

    fn found(&self, finding: Finding) {
        if let Some(problem) = Problem::of(&finding) {
            self.0.borrow_mut().add(problem);
        }
    }
}

/// A running scrub: that of the engine, with what only the file system knows.
struct Scrub<'a> {
    engine: engine::scrub::Scrub<'a, Mfs, Reporter<'a>>,
    report: &'a RefCell<Scrubbed>,
    /// Sizes in blocks of the data zones that the table had when the scrub began; they never
    /// change. Empty if they cannot be read.
    pags: BTreeMap<PagId, u64>,
    /// Segments in other zones: such a zone may have been added since.
    strays: RefCell<Vec<(Ino, Segment)>>,
}

impl<'a> Deref for Scrub<'a> {
    type Target = engine::scrub::Scrub<'a, Mfs, Reporter<'a>>;

    fn deref(&self) -> &engine::scrub::Scrub<'a, Mfs, Reporter<'a>> {
        &self.engine
    }
}

impl Scrub<'_> {
    async fn run(mut self) -> Result<(), StoreError> {
        self.fixed_blocks().await?;
        self.zones().await?;
        self.tree(FREE, |_, _| {}).await?;
        self.tree(POOLS, |_, _| {}).await?;
        self.tree(FREED, |_, _| {}).await?;
        self.tree(QUARANTINES, |_, _| {}).await?;
        self.tree(FROZEN, |_, _| {}).await?;
        self.tree(INTENTS, |_, _| {}).await?;
        self.tree(LENT, |_, _| {}).await?;
        self.tree(HOMES, |_, _| {}).await?;
        self.clients().await?;
        self.segments().await?;
        self.lists().await?;
        self.outside().await?;
        self.namespace().await?;
        self.chunks().await?;
        self.zones().await?;
        let strays = self.strays.take();
        strays.iter().for_each(|(ino, segment)| self.check_place(*ino, segment));
        Ok(())
    }

    /// Reads the table of data zones, which only grows.
    async fn zones(&mut self) -> Result<(), StoreError> {
        let mut pags = Vec::new();
        self.tree(PAGS, |key, value| pags.push((*key, *value))).await?;
        for (key, value) in pags {
            let (id, record) = (PagId(u16::from_be_bytes(key)), PagRecord::decode(&value));
            if let PagUse::Unknown(number) = record.state {
                let subject = Subject::Data(id, PagBlock(0));
                self.found(ProblemKind::BadZoneState, subject, format!("state {number}"));
            }
            self.pags.insert(id, record.blocks);
        }
        Ok(())
    }

    fn found(&self, kind: ProblemKind, subject: Subject, detail: impl Into<String>) {
        self.report.borrow_mut().add(Problem { kind, subject, detail: detail.into() });
    }

    /// Checks segments that do not lie in slots.
    async fn segments(&self) -> Result<(), StoreError> {
        self.tree(SEGMENTS, |key, value| {
            if *key == [0; _] {
                return;
            }
            match decode_item(key, value) {
                Some((ino, segment)) => self.segment(ino, &segment),
                None => {
                    let detail = "a segment makes no sense";
                    self.found(ProblemKind::BadLayout, Subject::Whole, detail);
                }
            }
        })
        .await
    }

    /// Checks that a segment lies in a data zone; at the end, if the zone is not known yet.
    fn segment(&self, ino: Ino, segment: &Segment) {
        if self.pags.contains_key(&segment.pag) || self.pags.is_empty() {
            return self.check_place(ino, segment);
        }
        let mut strays = self.strays.borrow_mut();
        if strays.len() < PROBLEMS_MAX {
            strays.push((ino, *segment));
        }
    }

    fn check_place(&self, ino: Ino, segment: &Segment) {
        let end = segment.addr.0.saturating_add(segment.len);
        if self.pags.is_empty() {
            return;
        }
        if self.pags.get(&segment.pag).is_none_or(|&blocks| end > blocks) {
            let subject = Subject::Data(segment.pag, segment.addr);
            let detail = format!("{} blocks of inode {ino}", segment.len);
            self.found(ProblemKind::OutsideDataBlock, subject, detail);
        }
    }

    /// Checks inodes away from their home slot, and orphans.
    async fn lists(&self) -> Result<(), StoreError> {
        let mut moved = Vec::new();
        self.tree(MOVED, |key, _| moved.push(*key)).await?;
        for key in moved.into_iter().filter(|key| *key != [0; 8]) {
            let ino = Ino(u64::from_be_bytes(key));
            let sound = self
                .query(|txn| {
                    let Some(value) = MOVED.get(txn, &key)? else { return Ok(true) };
                    let place = SlotPlace::unpack(u64::from_le_bytes(value));
                    let Some(spot) = txn.names().spot(place)? else { return Ok(false) };
                    Ok(Slot::holds_at(txn.read_slots(spot.block)?, place.index(), ino))
                })
                .await?;
            if sound == Some(false) {
                self.found(ProblemKind::StaleMove, Subject::Inode(ino), "it is not there");
            }
        }
        let mut orphans = Vec::new();
        self.tree(ORPHANS, |key, _| orphans.push(*key)).await?;
        for key in orphans.into_iter().filter(|key| *key != [0; 8]) {
            let ino = Ino(u64::from_be_bytes(key));
            let sound = self
                .query(|txn| {
                    if ORPHANS.get(txn, &key)?.is_none() {
                        return Ok(true);
                    }
                    let Some(spot) = txn.names().locate(ino)? else { return Ok(false) };
                    Ok(txn.names().load(&spot)?.nlink() == 0)
                })
                .await?;
            if sound == Some(false) {
                self.found(
                    ProblemKind::WrongOrphan,
                    Subject::Inode(ino),
                    "it has links, or is gone",
                );
            }
        }
        Ok(())
    }

    /// Checks that everything that other shards name is there.
    async fn outside(&self) -> Result<(), StoreError> {
        let mut keys = Vec::new();
        self.tree(OUTSIDE, |key, _| keys.push(*key)).await?;
        for key in keys.into_iter().filter(|key| *key != [0; 8]) {
            let ino = Ino(u64::from_be_bytes(key));
            let sound = self
                .query(|txn| {
                    let Some(value) = OUTSIDE.get(txn, &key)? else { return Ok(true) };
                    let Some(spot) = txn.names().locate(ino)? else { return Ok(false) };
                    let directory = txn.names().load(&spot)?.kind() == FileKind::Directory;
                    Ok(match Outside::decode(&value) {
                        Some(Outside::Parent(_)) => directory,
                        Some(Outside::Names(_)) => !directory,
                        None => false,
                    })
                })
                .await?;
            if sound == Some(false) {
                let detail = "it is gone, or the entry is not of its type";
                self.found(ProblemKind::WrongOutside, Subject::Inode(ino), detail);
            }
        }
        Ok(())
    }

    /// Checks that every entry of the namespace index has its directory.
    async fn namespace(&self) -> Result<(), StoreError> {
        let mut keys = Vec::new();
        self.tree(NAMESPACE, |key, _| keys.push(*key)).await?;
        for key in keys.into_iter().filter(|key| *key != [0; _]) {
            let dir = namespace::NamespaceEntry::of(&key).dir;
            let sound = self
                .query(|txn| {
                    if NAMESPACE.get(txn, &key)?.is_none() {
                        return Ok(true);
                    }
                    let Some(spot) = txn.names().locate(dir)? else { return Ok(false) };
                    Ok(txn.names().load(&spot)?.kind() == FileKind::Directory)
                })
                .await?;
            if sound == Some(false) {
                self.found(ProblemKind::StaleIndexEntry, Subject::Inode(dir), "");
            }
        }
        Ok(())
    }

    /// Checks the directory table, and with each of its leaves the content that it leads to.
    async fn chunks(&self) -> Result<(), StoreError> {
        let mut key = [0; _];
        let mut before = Vec::new();
        let mut last = None;
        while let Some(descent) = self.descend(CHUNKS, key, &before).await? {
            before = descent.nodes;
            for (at, _) in descent.entries.iter().filter(|(at, _)| *at >= key) {
                match decode_key(at) {
                    Some((number, _)) if last != Some(number) => {
                        last = Some(number);
                        self.chunk(number).await?;
                    }
                    Some(_) => {}
                    None => {
                        self.found(ProblemKind::BadChunk, Subject::Whole, "a key makes no sense");
                    }
                }
            }
            match descent.next {
                Some(next) => key = next,
                None => break,
            }
        }
        Ok(())
    }

    /// Checks one chunk against its directory and its neighbours, then its content.
    async fn chunk(&self, number: DirNo) -> Result<(), StoreError> {
        let looked = self.query(|txn| look_at(txn, number)).await?;
        let Some(Some((chunk, wrong))) = looked else { return Ok(()) };
        for (kind, what) in wrong {
            self.found(kind, Subject::Chunk(number), what);
        }
        let used = chunk.descriptor.used;
        let map = chunk.descriptor.is_map();
        let still = |txn: &mut Txn<'_>, block: MetaBlock| {
            let Some(chunk) = txn.names().read_chunk(number)? else { return Ok(false) };
            let used = chunk.descriptor.used;
            Ok(chunk.runs.iter().filter(|run| run.is_present()).any(|run| {
                let len = run.len.min(used.saturating_sub(run.first));
                (run.start.0..run.start.0 + u64::from(len)).contains(&block.0)
            }))
        };
        let kind = if map {
            BlockType::NameMap
        } else {
            let kind = self.query(|txn| Ok(txn.content_of(number))).await?;
            kind.unwrap_or(BlockType::Directory)
        };
        for run in chunk.runs.iter().filter(|run| run.is_present()) {
            let len = run.len.min(used.saturating_sub(run.first));
            for at in (0..len).step_by(BATCH as usize) {
                let count = BATCH.min(len - at);
                let start = MetaBlock(run.start.0 + u64::from(at));
                let images = self.read(start, count as usize, kind, &still).await?;
                if map {
                    continue;
                }
                for (n, image) in (0..).zip(images) {
                    let index = run.first + at + n;
                    for slot in 0..SLOTS_PER_BLOCK {
                        let place =
                            SlotPlace { chunk: number, slot: index * SLOTS_PER_BLOCK + slot };
                        let plain = image
                            .as_ref()
                            .is_some_and(|image| self.is_plain(place, &Slot::load(image, slot)));
                        if !plain {
                            self.inode(place).await?;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// A chunk, and what of it does not fit.
type Looked = (crate::names::Chunk, Vec<(ProblemKind, String)>);

/// Compares a chunk with its directory, its neighbours and the bitmap; `None`: it was removed.
fn look_at(txn: &mut Txn<'_>, number: DirNo) -> Result<Option<Looked>, Stop> {
    let Some(chunk) = txn.names().read_chunk(number)? else { return Ok(None) };
    let descriptor = chunk.descriptor;
    let mut wrong = Vec::new();
    if !is_system(number) {
        let owner = match txn.names().locate(descriptor.owner)? {
            Some(spot) => Some(txn.names().load(&spot)?.kind()),
            None => None,
        };
        if owner != Some(FileKind::Directory) {
            let detail = format!("of inode {}, which is no directory", descriptor.owner);
            wrong.push((ProblemKind::LostChunk, detail));
        }
    }
    if descriptor.next.0 != 0 {
        let next = txn.names().read_chunk(descriptor.next)?.map(|next| next.descriptor);
        let fits = |next: crate::format::chunk::Descriptor| {
            next.owner == descriptor.owner && next.index == descriptor.index + 1
        };
        if !next.is_some_and(fits) {
            wrong.push((ProblemKind::BadChunk, format!("its next is {}", descriptor.next)));
        }
    }
    for run in chunk.runs.iter().filter(|run| run.is_present()) {
        for block in run.start.0..run.start.0 + u64::from(run.len) {
            if !txn.meta_allocated(MetaBlock(block))? {
                wrong.push((ProblemKind::FreeMetaBlock, format!("metadata block {block}")));
            }
        }
    }
    Ok(Some((chunk, wrong)))
}
