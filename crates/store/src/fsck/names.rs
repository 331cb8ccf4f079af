//! The namespace: from the root through every slot, then everything that was not reached.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use types::limits::BLOCK_U64;
use types::{DirNo, FileKind, HashMap, Ino, MetaBlock, Name};

use super::space::{Owner, Piece};
use super::{Check, ProblemKind, Subject};
use crate::block::BlockType;
use crate::error::StoreError;
use crate::format::blob::decode_xattrs;
use crate::format::chunk::{DESCRIPTOR, Descriptor, Run, decode_key};
use crate::format::number::{ATTIC, Place, SYSTEM_CHUNK, home_of, reuse_of};
use crate::format::slot::{SLOTS_PER_BLOCK, Slot, SlotState};
use crate::names::index::Chunk;
use crate::trees::{CHUNKS, INODES, MOVED, NEXT_CHUNK, ORPHANS};

/// Content blocks read together.
const BATCH: u32 = 64;

/// What is known of the namespace.
#[derive(Default)]
pub(super) struct Tree {
    chunks: BTreeMap<DirNo, (Chunk, bool)>,
    moved: BTreeMap<Ino, Place>,
    orphans: BTreeSet<Ino>,
    pub(super) inodes: HashMap<Ino, Seen>,
    links: Vec<(Ino, Ino, FileKind)>,
    queue: VecDeque<(Ino, Slot)>,
}

/// What was seen of one inode.
pub(super) struct Seen {
    pub(super) kind: FileKind,
    nlink: u32,
    names: u32,
    subdirectories: u32,
    pub(super) blocks: u64,
    pub(super) mapped: u64,
    /// Segments that the slot says are in the extent tree, and those found there.
    pub(super) counted: u64,
    pub(super) found: u64,
    /// End of the last segment.
    pub(super) end: u64,
}

impl Check {
    pub(super) async fn names(&mut self) -> Result<(), StoreError> {
        self.load_chunks().await?;
        self.load_lists().await?;
        let system = self.tree.chunks.get_mut(&SYSTEM_CHUNK).map(|(chunk, reached)| {
            *reached = true;
            chunk.clone()
        });
        match system {
            Some(chunk) => {
                self.content(Ino::NONE, SYSTEM_CHUNK, &chunk, &mut BTreeSet::new()).await?;
            }
            None => self.found(ProblemKind::BadChunk, Subject::Chunk(SYSTEM_CHUNK), "missing"),
        }
        while let Some((dir, slot)) = self.tree.queue.pop_front() {
            self.directory(dir, &slot).await?;
        }
        self.compare_links();
        self.compare_lists().await
    }

    async fn load_chunks(&mut self) -> Result<(), StoreError> {
        let next = self.read(|txn| txn.root(NEXT_CHUNK)).await?.unwrap_or(u64::MAX);
        let mut runs: Vec<Run> = Vec::new();
        let mut claims = Vec::new();
        self.walk(CHUNKS, "directory table", |check, key, value| {
            let Some((number, index)) = decode_key(key) else {
                check.found(ProblemKind::BadChunk, Subject::Whole, "a key makes no sense");
                return;
            };
            let subject = Subject::Chunk(number);
            if index != DESCRIPTOR {
                match Run::decode(index, value) {
                    Some(run) => runs.push(run),
                    None => check.found(ProblemKind::BadChunk, subject, "a run makes no sense"),
                }
                return;
            }
            let runs = std::mem::take(&mut runs);
            let mut end = 0;
            for run in &runs {
                if run.first != end {
                    check.found(ProblemKind::BadChunk, subject, "runs with a gap or overlap");
                }
                end = run.first + run.len;
                if run.start.0 != 0 {
                    claims.push(*run);
                }
            }
            if number.0 >= next {
                check.found(ProblemKind::BadCounter, subject, "number not issued");
            }
            match Descriptor::decode(value).filter(|descriptor| descriptor.used <= end) {
                Some(descriptor) => {
                    let given_back = runs.iter().filter(|run| !run.is_present()).map(Run::end);
                    if given_back.max().is_some_and(|end| end > descriptor.used) {
                        let detail = "blocks given back that were never used";
                        check.found(ProblemKind::BadChunk, subject, detail);
                    }
                    check.tree.chunks.insert(number, (Chunk { descriptor, runs }, false));
                }
                None => check.found(ProblemKind::BadChunk, subject, "bad descriptor"),
            }
        })
        .await?;
        if !runs.is_empty() {
            self.found(ProblemKind::BadChunk, Subject::Whole, "runs without a descriptor");
        }
        for run in claims {
            self.claim(run.start, u64::from(run.len), "directory content");
        }
        Ok(())
    }

    async fn load_lists(&mut self) -> Result<(), StoreError> {
        self.walk(MOVED, "moved inodes", |check, key, value| {
            let ino = Ino(u64::from_be_bytes(*key));
            if ino != Ino::NONE {
                check.tree.moved.insert(ino, Place::unpack(u64::from_le_bytes(*value)));
            }
        })
        .await?;
        self.walk(ORPHANS, "orphans", |check, key, _| {
            let ino = Ino(u64::from_be_bytes(*key));
            if ino != Ino::NONE {
                check.tree.orphans.insert(ino);
            }
        })
        .await
    }

    async fn directory(&mut self, dir: Ino, slot: &Slot) -> Result<(), StoreError> {
        let mut number = DirNo(slot.body());
        let (mut index, mut blocks) = (None, 0);
        let mut names = BTreeSet::new();
        while number.0 != 0 {
            let subject = Subject::Chunk(number);
            let Some((chunk, reached)) = self.tree.chunks.get_mut(&number) else {
                self.found(ProblemKind::BadChunk, subject, format!("missing, of directory {dir}"));
                return Ok(());
            };
            let descriptor = chunk.descriptor;
            // A directory that is being freed has lost its first chunks.
            let expected = index.unwrap_or(if slot.nlink() == 0 { descriptor.index } else { 0 });
            if descriptor.owner != dir || descriptor.index != expected || *reached {
                self.found(ProblemKind::BadChunk, subject, format!("not of directory {dir}"));
                return Ok(());
            }
            *reached = true;
            let chunk = chunk.clone();
            blocks += self.content(dir, number, &chunk, &mut names).await?;
            index = Some(expected + 1);
            number = descriptor.next;
        }
        let attr = slot.attr();
        if slot.nlink() > 0 && (attr.blocks != blocks || attr.size != blocks * BLOCK_U64) {
            let detail = format!("{} blocks, {} counted, size {}", blocks, attr.blocks, attr.size);
            self.found(ProblemKind::WrongSize, Subject::Inode(dir), detail);
        }
        Ok(())
    }

    /// Checks every slot of a chunk; gives its content blocks.
    async fn content(
        &mut self,
        dir: Ino,
        number: DirNo,
        chunk: &Chunk,
        names: &mut BTreeSet<Vec<u8>>,
    ) -> Result<u64, StoreError> {
        let mut blocks = 0;
        for run in &chunk.runs {
            let used = run.len.min(chunk.descriptor.used.saturating_sub(run.first));
            if run.start.0 == 0 {
                continue;
            }
            blocks += u64::from(used);
            for at in (0..used).step_by(BATCH as usize) {
                let count = BATCH.min(used - at);
                let start = MetaBlock(run.start.0 + u64::from(at));
                self.batch(dir, number, run.first + at, start, count, names).await?;
            }
        }
        Ok(blocks)
    }

    async fn batch(
        &mut self,
        dir: Ino,
        number: DirNo,
        first: u32,
        start: MetaBlock,
        count: u32,
        names: &mut BTreeSet<Vec<u8>>,
    ) -> Result<(), StoreError> {
        self.prefetch(start, count).await?;
        for n in 0..count {
            let home = MetaBlock(start.0 + u64::from(n));
            let slots = self
                .read(|txn| {
                    let block = txn.read_as(home, BlockType::Directory)?;
                    Ok((0..SLOTS_PER_BLOCK).map(|i| Slot::load(block, i)).collect::<Vec<_>>())
                })
                .await?;
            for (i, slot) in (0..).zip(slots.unwrap_or_default()) {
                let slot_index = (first + n) * SLOTS_PER_BLOCK + i;
                let place = Place { chunk: number, slot: slot_index };
                self.slot(dir, home, place, slot, names).await?;
            }
        }
        Ok(())
    }

    async fn slot(
        &mut self,
        dir: Ino,
        home: MetaBlock,
        place: Place,
        slot: Slot,
        names: &mut BTreeSet<Vec<u8>>,
    ) -> Result<(), StoreError> {
        let subject = Subject::Block(home);
        if let Err(what) = slot.check() {
            self.found(ProblemKind::BadSlot, subject, format!("slot {}: {what}", place.index()));
            return Ok(());
        }
        if slot.state() == SlotState::Empty {
            return Ok(());
        }
        let hidden = dir == ATTIC || dir == Ino::NONE;
        let legal = if hidden { slot.name().is_empty() } else { Name::new(slot.name()).is_ok() };
        if !legal {
            self.found(ProblemKind::BadName, subject, format!("{:?}", slot.name()));
        }
        if !slot.name().is_empty() {
            self.report.counts.names += 1;
            if !names.insert(slot.name().to_vec()) {
                let detail = format!("{:?}", String::from_utf8_lossy(slot.name()));
                self.found(ProblemKind::DuplicateName, Subject::Inode(dir), detail);
            }
        }
        if slot.state() == SlotState::Link {
            self.tree.links.push((dir, slot.ino(), slot.kind()));
            return Ok(());
        }
        self.inode(dir, place, slot).await
    }

    async fn inode(&mut self, dir: Ino, place: Place, slot: Slot) -> Result<(), StoreError> {
        let ino = slot.ino();
        let subject = Subject::Inode(ino);
        if self.tree.inodes.contains_key(&ino) {
            self.found(ProblemKind::DuplicateInode, subject, format!("again in directory {dir}"));
            return Ok(());
        }
        self.place(place, &slot);
        let attr = slot.attr();
        let mut seen = Seen {
            kind: attr.kind,
            nlink: attr.nlink,
            names: u32::from(!slot.name().is_empty()),
            subdirectories: 0,
            blocks: attr.blocks,
            mapped: 0,
            counted: 0,
            found: 0,
            end: 0,
        };
        self.report.counts.inodes += 1;
        self.xattrs(&slot).await?;
        match attr.kind {
            FileKind::Regular => {
                seen.counted = slot.body();
                for extent in slot.segments() {
                    seen.mapped += extent.len;
                    seen.end = extent.end();
                    self.pieces.push(Piece::of(&extent, Owner::File(ino)));
                }
                self.report.counts.segments += slot.segments().len() as u64;
            }
            FileKind::Symlink => self.target(&slot).await?,
            FileKind::Directory => {
                self.report.counts.directories += u64::from(ino != ATTIC);
                if let Some(parent) = self.tree.inodes.get_mut(&dir).filter(|_| dir != ATTIC) {
                    parent.subdirectories += 1;
                }
                self.tree.queue.push_back((ino, slot));
            }
            _ => {}
        }
        self.tree.inodes.insert(ino, seen);
        Ok(())
    }

    /// Is the inode where its number or the `moved` tree leads?
    fn place(&mut self, place: Place, slot: &Slot) {
        let ino = slot.ino();
        let moved = self.tree.moved.remove(&ino);
        let subject = Subject::Inode(ino);
        if home_of(ino) == place {
            if u16::from(reuse_of(ino)) >= slot.next_reuse() {
                self.found(ProblemKind::BadSlot, subject, "its number was not issued");
            }
            if moved.is_some() {
                self.found(ProblemKind::StaleMove, subject, "it is at home");
            }
        } else if moved != Some(place) {
            let detail = format!("chunk {}, slot {}", place.chunk, place.slot);
            self.found(ProblemKind::MisplacedInode, subject, detail);
        }
        let home = home_of(ino);
        let chunk = self.tree.chunks.get(&home.chunk).map(|(chunk, _)| chunk);
        let run =
            chunk.and_then(|chunk| chunk.run_of(home.block())).filter(|run| !run.is_present());
        if run.is_some_and(|run| u16::from(reuse_of(ino)) >= run.reuse) {
            let detail = "its home gave its blocks back and would issue its number again";
            self.found(ProblemKind::BadChunk, subject, detail);
        }
    }

    async fn xattrs(&mut self, slot: &Slot) -> Result<(), StoreError> {
        let bytes = match slot.xattr_blob() {
            Some(block) => self.blob(block, "extended attributes").await?,
            None => Some(slot.xattrs().to_vec()),
        };
        if bytes.is_none_or(|bytes| decode_xattrs(&bytes).is_none()) {
            self.found(ProblemKind::BadXattrs, Subject::Inode(slot.ino()), "");
        }
        Ok(())
    }

    async fn target(&mut self, slot: &Slot) -> Result<(), StoreError> {
        let bytes = match slot.target_blob() {
            Some(block) => self.blob(block, "target of a symlink").await?,
            None => Some(slot.rest().to_vec()),
        };
        let size = slot.attr().size;
        if bytes.is_none_or(|bytes| bytes.is_empty() || bytes.len() as u64 != size) {
            self.found(ProblemKind::BadTarget, Subject::Inode(slot.ino()), format!("size {size}"));
        }
        Ok(())
    }

    fn compare_links(&mut self) {
        for (dir, ino, kind) in std::mem::take(&mut self.tree.links) {
            match self.tree.inodes.get_mut(&ino) {
                None => {
                    let detail = format!("named in directory {dir}");
                    self.found(ProblemKind::DanglingName, Subject::Inode(ino), detail);
                }
                Some(seen) => {
                    seen.names += 1;
                    if seen.kind != kind || kind == FileKind::Directory {
                        let detail = format!("{kind:?} in directory {dir}, {:?} itself", seen.kind);
                        self.found(ProblemKind::WrongKind, Subject::Inode(ino), detail);
                    }
                }
            }
        }
        let mut inodes: Vec<Ino> = self.tree.inodes.keys().copied().collect();
        inodes.sort_unstable();
        for ino in inodes {
            self.compare_inode(ino);
        }
    }

    fn compare_inode(&mut self, ino: Ino) {
        let Some(seen) = self.tree.inodes.get(&ino) else { return };
        let system = ino == Ino::ROOT || ino == ATTIC;
        let nlink = seen.nlink;
        let expected = match seen.kind {
            FileKind::Directory if system || seen.names > 0 => 2 + seen.subdirectories,
            _ => seen.names,
        };
        if nlink != expected {
            let detail = format!("{nlink}, but should be {expected}");
            self.found(ProblemKind::WrongLinkCount, Subject::Inode(ino), detail);
        }
        let listed = self.tree.orphans.remove(&ino);
        if listed != (nlink == 0) {
            let detail = if listed { "it has links" } else { "it is missing" };
            self.found(ProblemKind::WrongOrphan, Subject::Inode(ino), detail);
        }
        self.report.counts.orphans += u64::from(nlink == 0);
    }

    /// What the lists and tables name and the walk has not met.
    async fn compare_lists(&mut self) -> Result<(), StoreError> {
        for ino in std::mem::take(&mut self.tree.moved).into_keys() {
            self.found(ProblemKind::StaleMove, Subject::Inode(ino), "there is no such inode");
        }
        for ino in std::mem::take(&mut self.tree.orphans) {
            self.found(ProblemKind::WrongOrphan, Subject::Inode(ino), "there is no such inode");
        }
        for (number, (chunk, reached)) in std::mem::take(&mut self.tree.chunks) {
            if !reached {
                let detail = format!("of directory {}", chunk.descriptor.owner);
                self.found(ProblemKind::LostChunk, Subject::Chunk(number), detail);
            }
        }
        let counted = self.read(|txn| txn.root(INODES)).await?;
        let inodes = self.report.counts.inodes;
        if counted.is_some_and(|counted| counted != inodes) {
            let detail = format!("{inodes} inodes, {} counted", counted.unwrap_or(0));
            self.found(ProblemKind::WrongCount, Subject::Whole, detail);
        }
        Ok(())
    }
}
