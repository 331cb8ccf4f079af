//! Online scrub: reads the whole metadata device and checks it while it is in use.
//!
//! Invariants:
//! - operations wait for a scrub only at the disk and for the executor. The scrub reads directory
//!   content and nodes at a bounded rate and past the cache, and other blocks that a decision needs
//!   through it;
//! - every finding was true at one moment: one transaction that reads everything it depends on
//!   decides a suspicion. A block counts as damaged only if nothing touched it while it was read,
//!   and if it is still in use;
//! - a damaged block of which cache or log have the newest version is rewritten through the log,
//!   with exactly that version.
//!
//! Checked: the checksum, address and type of every block in use, at home and not only in the
//! cache; the shape of every tree; chunks against their directories, neighbours and the bitmap;
//! slots, attributes, targets and content of inodes; where each inode is and what leads to it;
//! further names against their inodes; layouts against the data zones.
//! Not checked, because no single moment decides it: link counts, blocks with two owners or none,
//! counts, fragmentation counts, duplicate names in a directory, name maps against names. `redbud
//! fsck` does that, offline ([`mod@crate::fsck`]).

mod blocks;
mod inodes;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use types::limits::BLOCK_U64;
use types::{ClientId, DirNo, Duration, Fault, FileKind, Ino, MetaBlock, PagId};

use crate::format::chunk::decode_key;
use crate::format::namespace;
use crate::format::number::{SlotPlace, is_system};
use crate::format::segment::decode_item;
use crate::format::slot::{SLOTS_PER_BLOCK, Slot};
use crate::format::space::PagRecord;
use crate::fsck::{Problem, ProblemKind, Subject};
use crate::handle::Mfs;
use crate::trees::{
    CHUNKS, CLIENTS, FREE, FREED, FROZEN, MOVED, NAMESPACE, ORPHANS, PAGS, POOLS, QUARANTINES,
    REPLIES, SEGMENTS, SETTINGS,
};
use crate::txn::Txn;
use engine::alloc::metaspace::bitmap_blocks;
use engine::btree::Tree;
use engine::cost::Cost;
use engine::device::Device;
use engine::device::label;
use engine::error::{Stop, StoreError};
use engine::format::blob::BlobOwner;
use engine::format::block::BlockType;
use engine::format::reply::{decode_setting, is_sound};
use engine::format::roots::ROOTS_BLOCK;
use engine::format::superblock::{SuperError, Superblock};
use engine::store::home::Rewrite;

/// Findings that are kept; further ones are only counted.
pub const PROBLEMS_MAX: usize = 1000;
/// Content blocks read together.
const BATCH: u32 = 64;
/// Transactions after which the scrub yields to other tasks, even if none of them had to read.
const YIELD_AFTER: u32 = 32;
/// How often the scrub reads something again that changes during the read.
const TRIES: usize = 8;

/// How to scrub.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScrubOptions {
    /// Bytes read per second at most; 0: as many as the device gives.
    pub rate: u64,
    /// Rewrite blocks that the device cannot read, too. If it cannot write them either, that ends
    /// the store.
    pub unreadable: bool,
}

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
    pub async fn scrub(
        &self,
        options: ScrubOptions,
        report: &RefCell<Scrubbed>,
    ) -> Result<(), StoreError> {
        *report.borrow_mut() = Scrubbed::default();
        // A store in memory has nothing that could be damaged.
        let Some(device) = self.device() else { return Ok(()) };
        let scrub = Scrub {
            mfs: self,
            device,
            options,
            report,
            pags: BTreeMap::new(),
            unrepairable: RefCell::default(),
            transactions: Cell::new(0),
        };
        scrub.run().await
    }
}

/// A running scrub.
struct Scrub<'a> {
    mfs: &'a Mfs,
    device: Device,
    options: ScrubOptions,
    report: &'a RefCell<Scrubbed>,
    /// Sizes of the data zones in blocks, which never change; empty if they cannot be read.
    pags: BTreeMap<PagId, u64>,
    /// Damaged blocks of which neither cache nor log has the newest version.
    unrepairable: RefCell<BTreeSet<MetaBlock>>,
    /// Transactions so far.
    transactions: Cell<u32>,
}

impl Scrub<'_> {
    async fn run(mut self) -> Result<(), StoreError> {
        self.fixed_blocks().await?;
        let mut pags = Vec::new();
        self.tree(PAGS, |key, value| pags.push((*key, *value))).await?;
        self.pags = pags
            .into_iter()
            .map(|(key, value)| (PagId(u16::from_be_bytes(key)), PagRecord::decode(&value).blocks))
            .collect();
        self.tree(FREE, |_, _| {}).await?;
        self.tree(POOLS, |_, _| {}).await?;
        self.tree(FREED, |_, _| {}).await?;
        self.tree(QUARANTINES, |_, _| {}).await?;
        self.tree(FROZEN, |_, _| {}).await?;
        self.clients().await?;
        self.segments().await?;
        self.lists().await?;
        self.namespace().await?;
        self.chunks().await
    }

    fn found(&self, kind: ProblemKind, subject: Subject, detail: impl Into<String>) {
        self.report.borrow_mut().add(Problem { kind, subject, detail: detail.into() });
    }

    /// Sleeps for as long as `blocks` blocks take at the requested rate.
    async fn throttle(&self, blocks: u64) {
        if let Some(nanos) = (blocks * BLOCK_U64 * 1_000_000_000).checked_div(self.options.rate) {
            self.device.env.sleep(Duration::from_nanos(nanos)).await;
        }
    }

    /// Runs a body that only reads. A damaged block that it meets is rewritten, or becomes a
    /// finding and `None`.
    async fn query<T>(
        &self,
        mut body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>,
    ) -> Result<Option<T>, StoreError> {
        self.transactions.set(self.transactions.get().wrapping_add(1));
        if self.transactions.get().is_multiple_of(YIELD_AFTER) {
            self.device.env.yield_now().await;
        }
        for _ in 0..TRIES {
            match self.mfs.run(Cost::READ, &mut body).await {
                Ok((value, _)) => return Ok(Some(value)),
                Err(StoreError::Corrupt { block, what }) => {
                    // If it is cached, the cached version is the newest, and nothing better is
                    // known.
                    let rewritten = self.is_uncached(block)
                        && self.rewrite(block).await? != Rewrite::Impossible;
                    if !rewritten {
                        self.found(ProblemKind::DamagedBlock, Subject::Block(block), what);
                        return Ok(None);
                    }
                }
                Err(StoreError::Io { .. }) => {
                    if !self.rewrite_unreadable(&mut body).await? {
                        return Ok(None);
                    }
                }
                Err(StoreError::Fault(Fault::Corrupt)) => {
                    self.found(ProblemKind::DamagedBlock, Subject::Whole, "unreadable");
                    return Ok(None);
                }
                Err(StoreError::Fault(_)) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Checks the blocks with fixed addresses.
    async fn fixed_blocks(&self) -> Result<(), StoreError> {
        let checked = label::check(&self.device.env, &self.device.disk).await;
        if let Some(what) = checked.ok().and_then(|(_, label)| label.damage()) {
            self.found(ProblemKind::DamagedLabel, Subject::Block(MetaBlock(0)), what);
        }
        let superblock = self.mfs.superblock();
        for copy in 0..2 {
            self.copy_of(&superblock, copy).await?;
        }
        self.journal().await;
        let always = |_: &mut Txn<'_>, _| Ok(true);
        self.read(ROOTS_BLOCK, 1, BlockType::Roots, &always).await?;
        let (first, count) = (superblock.bitmap_first.0, bitmap_blocks(superblock.blocks));
        for at in (0..count).step_by(BATCH as usize) {
            let len = (count - at).min(BATCH.into()) as usize;
            self.read(MetaBlock(first + at), len, BlockType::Bitmap, &always).await?;
        }
        Ok(())
    }

    /// Checks header and label of a journal; the header may be written at any time.
    async fn journal(&self) {
        let Some(log) = self.mfs.log_device() else { return };
        let mut header = None;
        for _ in 0..TRIES {
            self.throttle(1).await;
            header = log.header_damage().await;
            if header.is_none() {
                break;
            }
        }
        let header = header.map(|what| format!("a copy of its header: {what}"));
        let label = log.label_damage().await;
        if let Some(what) = header.or(label) {
            self.found(ProblemKind::DamagedJournal, Subject::Log(types::Lsn(0)), what);
        }
    }

    /// Checks a copy of the superblock; it may be rewritten at any time, even during the read.
    async fn copy_of(&self, superblock: &Superblock, copy: usize) -> Result<(), StoreError> {
        let place = Superblock::place(copy, superblock.blocks);
        let mut last = String::new();
        for _ in 0..TRIES {
            self.throttle(1).await;
            match self.device.read(place, 1).await {
                Ok(bytes) => match Superblock::decode(&bytes, copy, superblock.blocks) {
                    Ok(_) => {
                        self.report.borrow_mut().blocks += 1;
                        return Ok(());
                    }
                    Err(SuperError::Damaged(what)) => last = what.to_owned(),
                    Err(_) => last = "not the superblock of this release".to_owned(),
                },
                Err(error) => last = error.to_string(),
            }
        }
        self.found(ProblemKind::DamagedBlock, Subject::Block(place), last);
        Ok(())
    }

    /// Visits every node and every entry of a tree, leaf by leaf: each leaf and the path to it as
    /// of one moment.
    async fn tree<const K: usize, const V: usize>(
        &self,
        tree: Tree<K, V>,
        mut each: impl FnMut(&[u8; K], &[u8; V]),
    ) -> Result<(), StoreError> {
        let mut key = [0; K];
        let mut before = Vec::new();
        while let Some(Some(descent)) = self.query(|txn| tree.descend(txn, &key)).await? {
            let still = |txn: &mut Txn<'_>, block| {
                let descent = tree.descend(txn, &key)?;
                Ok(descent.is_some_and(|descent| descent.nodes.contains(&block)))
            };
            for &node in descent.nodes.iter().filter(|node| !before.contains(*node)) {
                self.read(node, 1, BlockType::Tree, &still).await?;
            }
            descent.entries.iter().filter(|(at, _)| *at >= key).for_each(|(at, v)| each(at, v));
            before = descent.nodes;
            match descent.next {
                Some(next) => key = next,
                None => break,
            }
        }
        Ok(())
    }

    /// Checks clients, their kept replies, and settings.
    async fn clients(&self) -> Result<(), StoreError> {
        let mut blobs = Vec::new();
        self.tree(CLIENTS, |key, value| {
            let blob = u64::from_le_bytes(*value);
            blobs.extend((blob != 0).then_some((*key, MetaBlock(blob))));
        })
        .await?;
        for (key, first) in blobs {
            let named = |txn: &mut Txn<'_>| {
                Ok(CLIENTS.get(txn, &key)?.is_some_and(|v| u64::from_le_bytes(v) == first.0))
            };
            let client = ClientId(u64::from_be_bytes(key));
            let blob = (first, BlobOwner::client(client));
            self.blob(blob, Subject::Client(client), &named).await?;
        }
        let mut replies = Vec::new();
        self.tree(REPLIES, |key, value| {
            replies.push((*key, MetaBlock(u64::from_le_bytes(*value))));
        })
        .await?;
        for (key, block) in replies {
            let named = |txn: &mut Txn<'_>, block: MetaBlock| {
                Ok(REPLIES.get(txn, &key)?.is_some_and(|v| u64::from_le_bytes(v) == block.0))
            };
            self.read(block, 1, BlockType::Reply, &named).await?;
            let sound = self
                .query(|txn| {
                    if !named(txn, block)? {
                        return Ok(true);
                    }
                    Ok(is_sound(&key, txn.read_as(block, BlockType::Reply)?))
                })
                .await?;
            if sound == Some(false) {
                self.found(ProblemKind::BadRecord, Subject::Block(block), "kept reply");
            }
        }
        self.tree(SETTINGS, |key, value| {
            if decode_setting(value).is_none() {
                let subject = Subject::Setting(u32::from_be_bytes(*key));
                self.found(ProblemKind::BadRecord, subject, "");
            }
        })
        .await
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

    /// Checks that a segment lies in a data zone.
    fn segment(&self, ino: Ino, segment: &types::Segment) {
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
        while let Some(Some(descent)) = self.query(|txn| CHUNKS.descend(txn, &key)).await? {
            let still = |txn: &mut Txn<'_>, block| {
                let descent = CHUNKS.descend(txn, &key)?;
                Ok(descent.is_some_and(|descent| descent.nodes.contains(&block)))
            };
            for &node in descent.nodes.iter().filter(|node| !before.contains(*node)) {
                self.read(node, 1, BlockType::Tree, &still).await?;
            }
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
