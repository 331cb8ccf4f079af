//! The walk of the namespace: from the root through every slot, then everything unreached.
//!
//! Invariants:
//! - an *ordinary* inode is at home, has one link, one name and no segments in the tree of
//!   segments, and is no directory. No other shard names it. It is decided when the walk meets it,
//!   and costs two bytes for each slot of its chunk. All others leave a [`SeenInode`] until the
//!   end. So ten million files need little memory.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use types::limits::{BLOCK_U64, CONTENT_MAX, SYMLINK_MAX};
use types::{DirNo, FileKind, HashMap, Ino, Name};

use super::digest::{Deferred, Digest, Unit, position};
use super::layouts::Fragments;
use super::namespace::MetDirectory;
use super::plan::{Fix, SlotAt, slot_at};
use super::stranded::ShortDirectory;
use super::{Check, ProblemKind, Subject};
use crate::format::lmap::{self, hash_of};
use crate::format::namespace::NamespaceEntry;
use crate::format::number::{
    CHUNK_SLOTS, SlotPlace, home_of, ino_of, is_orphan_dir, orphan_dir, reuse_of, root_dir,
    system_chunk,
};
use crate::format::outside::Outside;
use crate::format::segment::{ino_of_key, segment_key};
use crate::format::slot::{SLOTS_PER_BLOCK, Slot, SlotSize, SlotState};
use crate::format::slot_size::SlotFeatures;
use crate::format::xattr::decode_xattrs;
use crate::names::{Chunk, Position};
use crate::trees::{INODES, SEGMENTS};
use crate::txn::Txn;
use engine::check::prefetch;
use engine::error::{Stop, StoreError};
use engine::format::blob::BlobKind;
use engine::format::block::{BlockType, type_of};
use engine::format::features::Feature;

/// What the walk has gathered of the namespace.
#[derive(Default)]
pub(super) struct NamespaceScan {
    pub(super) chunks: BTreeMap<DirNo, (Chunk, bool)>,
    pub(super) moved: BTreeMap<Ino, SlotPlace>,
    pub(super) orphans: BTreeSet<Ino>,
    /// Inodes with names on other shards.
    pub(super) outside: BTreeMap<Ino, Option<Outside>>,
    pub(super) inodes: HashMap<Ino, SeenInode>,
    pub(super) ordinary: Ordinary,
    pub(super) links: Vec<Link>,
    queue: VecDeque<Directory>,
    /// Fragmentation counts of directories: as found in their files, and as the directories say.
    pub(super) fragments: BTreeMap<Ino, Fragments>,
    /// Directories that the namespace index should have.
    pub(super) directories: Vec<MetDirectory>,
    /// Content blocks whose slot size is not the superblock's, by block type.
    pub(super) other_slots: BTreeMap<BlockType, u64>,
    /// Files whose inline data counts, though the tree of segments has a segment of their block 0.
    pub(super) shadowed: BTreeSet<Ino>,
    /// Home chunks of inodes that are, or should be, elsewhere, or have names on other shards.
    with_moved_inodes: BTreeSet<DirNo>,
}

impl NamespaceScan {
    /// Notes that an inode is, or should be, away from its home slot, or has names on other shards.
    pub(super) fn note_moved(&mut self, ino: Ino) {
        self.with_moved_inodes.insert(home_of(ino).chunk);
    }
}

/// The ordinary inodes, two bytes for each slot of a chunk that has any: reuse number + 1 in the
/// low 9 bits, kind above.
#[derive(Default)]
pub(super) struct Ordinary(BTreeMap<DirNo, Vec<u16>>);

impl Ordinary {
    /// The two bytes of an inode.
    pub(super) fn word(ino: Ino, kind: FileKind) -> u16 {
        (u16::from(reuse_of(ino)) + 1) | (u16::from(kind as u8) << 9)
    }

    fn add(&mut self, ino: Ino, kind: FileKind) {
        let home = home_of(ino);
        self.add_all(home.chunk, &[(home.slot as u16, Ordinary::word(ino, kind))]);
    }

    /// Adds inodes whose home is one chunk, by their slots.
    fn add_all(&mut self, chunk: DirNo, inodes: &[(u16, u16)]) {
        let Some(last) = inodes.iter().map(|(slot, _)| usize::from(*slot)).max() else { return };
        let slots = self.0.entry(chunk).or_default();
        if slots.len() <= last {
            slots.resize((last + 1).next_multiple_of(64).min(CHUNK_SLOTS as usize), 0);
        }
        for &(slot, word) in inodes {
            slots[usize::from(slot)] = word;
        }
    }

    /// The number of the inode with home slot `slot` of a chunk, from its two bytes.
    fn ino(chunk: DirNo, (slot, word): (u16, u16)) -> Ino {
        let reuse = ((word & 0x1ff) - 1) as u8;
        ino_of(SlotPlace { chunk, slot: u32::from(slot) }, reuse)
    }

    /// The kind of an ordinary inode.
    pub(super) fn kind(&self, ino: Ino) -> Option<FileKind> {
        let home = home_of(ino);
        let &word = self.0.get(&home.chunk)?.get(home.slot as usize)?;
        let same = word & 0x1ff == u16::from(reuse_of(ino)) + 1;
        if same { FileKind::from_u8((word >> 9) as u8) } else { None }
    }
}

/// A further name.
pub(super) struct Link {
    pub(super) dir: Ino,
    pub(super) ino: Ino,
    pub(super) kind: FileKind,
    pub(super) at: SlotAt,
}

/// A directory whose content the check will walk.
pub(super) struct Directory {
    pub(super) ino: Ino,
    /// First chunk of its name map, and the names there.
    pub(super) map: DirNo,
    pub(super) mapped: u32,
    body: DirNo,
    pub(super) nlink: u32,
    size: u64,
    pub(super) blocks: u64,
}

/// What the walk has seen of one inode.
pub(super) struct SeenInode {
    pub(super) kind: FileKind,
    pub(super) nlink: u32,
    pub(super) names: u32,
    pub(super) subdirectories: u32,
    pub(super) blocks: u64,
    pub(super) mapped: u64,
    /// Segments that the slot says are in the tree of segments, and those found there.
    pub(super) counted: u64,
    pub(super) found: u64,
    /// End of the last segment.
    pub(super) end: u64,
}

/// The names of one directory: hashes with where they are, 16 bytes each.
#[derive(Default)]
pub(super) struct Names {
    pub(super) list: Vec<lmap::NameMapEntry>,
    /// The chunks that were read, by their index in the directory.
    chunks: BTreeMap<usize, DirNo>,
    /// First chunk of the directory.
    first: DirNo,
    /// Index of the chunk that is being read.
    index: u32,
}

impl Names {
    fn begin(&mut self, number: DirNo, chunk: &Chunk) {
        self.index = position(chunk);
        self.chunks.insert(self.index as usize, number);
    }

    fn add(&mut self, name: &[u8], slot: u32) {
        let at = Position::new(self.index, slot).0;
        self.list.push(lmap::NameMapEntry { hash: hash_of(name), at });
    }
}

impl Check {
    pub(super) async fn names(&mut self) -> Result<(), StoreError> {
        self.load_homes().await?;
        self.load_chunks().await?;
        self.load_lists().await?;
        self.load_outside().await?;
        self.total = self.read(|txn| txn.root(INODES)).await?.unwrap_or(0);
        let (shard, number) = (self.shard, system_chunk(self.shard));
        let system = self.tree.chunks.get_mut(&number).map(|(chunk, reached)| {
            *reached = true;
            chunk.clone()
        });
        match system {
            Some(chunk) => {
                let mut names = Names::default();
                self.content(Ino::NONE, number, &chunk, &mut names).await?;
                for ino in [root_dir(shard), orphan_dir(shard)] {
                    let seen = self.tree.inodes.get(&ino);
                    if seen.is_none_or(|seen| seen.kind != FileKind::Directory) {
                        self.found(ProblemKind::MissingSystem, Subject::Inode(ino), "");
                        self.plan.add(Fix::SystemSlot(ino));
                    }
                }
            }
            None => {
                self.found(ProblemKind::BadChunk, Subject::Chunk(number), "missing");
                self.plan.add(Fix::FindChunk(number, Ino::NONE, 0));
            }
        }
        while let Some(directory) = self.next_directory() {
            self.directory(directory).await?;
        }
        self.ahead.forget();
        self.report_other_slots();
        self.compare_links().await?;
        self.compare_lists().await?;
        self.namespace().await
    }

    fn next_directory(&mut self) -> Option<Directory> {
        if self.ahead.directories == 0 {
            // Units that are still known belong to directories whose chain broke off.
            self.ahead.forget();
        }
        self.look_ahead();
        self.ahead.directories = self.ahead.directories.saturating_sub(1);
        self.tree.queue.pop_front()
    }

    /// Starts reading content whose turn will come, as far as there is room.
    fn look_ahead(&mut self) {
        loop {
            while self.ahead.wants_units()
                && let Some(directory) = self.tree.queue.get(self.ahead.directories)
            {
                let units = self.units(directory);
                self.ahead.foresee(units);
                self.ahead.directories += 1;
            }
            if !self.ahead.launch(&self.mfs) {
                return;
            }
        }
    }

    /// The content of a directory, as far as its chunks fit together.
    fn units(&self, directory: &Directory) -> Vec<Unit> {
        let (mut out, mut number, mut before) = (Vec::new(), directory.body, None);
        while let Some((chunk, _)) = self.tree.chunks.get(&number).filter(|_| number.0 != 0) {
            let descriptor = &chunk.descriptor;
            let follows = before.is_none_or(|before: u32| descriptor.index == before + 1);
            if descriptor.owner != directory.ino || !follows || descriptor.index == u32::MAX {
                break;
            }
            out.extend(Unit::all(directory.ino, number, chunk));
            before = Some(descriptor.index);
            number = descriptor.next;
        }
        out
    }

    /// Content with slots of another size is sound and read as it is: repair leaves it.
    fn report_other_slots(&mut self) {
        let said = self.features.slots().share();
        for (kind, blocks) in std::mem::take(&mut self.tree.other_slots) {
            let size = SlotSize::ALL.into_iter().find(|size| size.kind() == kind);
            let share = size.unwrap_or_default().share();
            let detail = format!("{blocks} blocks have slots of {share} bytes, it says {said}");
            self.found(ProblemKind::OtherSlots, Subject::Whole, detail);
        }
    }

    async fn directory(&mut self, of: Directory) -> Result<(), StoreError> {
        let dir = of.ino;
        let (mut number, mut last) = (of.body, None);
        let (mut index, mut blocks) = (None, 0);
        let map = self.map_chunks(&of);
        let mut names = Names { first: of.body, ..Names::default() };
        while number.0 != 0 {
            let subject = Subject::Chunk(number);
            let Some((chunk, reached)) = self.tree.chunks.get_mut(&number) else {
                self.found(ProblemKind::BadChunk, subject, format!("missing, of directory {dir}"));
                self.plan.add(Fix::FindChunk(number, dir, index.unwrap_or(0)));
                return self.duplicates(names).await;
            };
            let descriptor = chunk.descriptor;
            // A directory that is being freed has lost its first chunks.
            let expected = index.unwrap_or(if of.nlink == 0 { descriptor.index } else { 0 });
            if descriptor.owner != dir || descriptor.index != expected || *reached {
                let (mut sound, taken) = (chunk.clone(), *reached);
                self.found(ProblemKind::BadChunk, subject, format!("not of directory {dir}"));
                if descriptor.owner == dir && !taken {
                    sound.descriptor.index = expected;
                    self.plan.add(Fix::SetChunk(number, sound));
                } else {
                    self.plan.add(Fix::CutChain(dir, last));
                }
                return self.duplicates(names).await;
            }
            *reached = true;
            let chunk = chunk.clone();
            blocks += self.content(dir, number, &chunk, &mut names).await?;
            index = Some(expected.saturating_add(1));
            last = Some(number);
            number = descriptor.next;
        }
        // Content with names was not the orphan directory's, and content without names says where
        // it was.
        let lacks = of.nlink > 0 && of.blocks > blocks && !is_orphan_dir(dir);
        if let Some(last) = last.filter(|_| lacks) {
            let (index, missing) = (index.unwrap_or(0), of.blocks - blocks);
            self.short_directories.push(ShortDirectory { dir, last, index, missing });
        }
        if of.nlink > 0 && (of.blocks != blocks || of.size != blocks * BLOCK_U64) {
            let detail = format!("{} blocks, {} counted, size {}", blocks, of.blocks, of.size);
            self.found(ProblemKind::WrongSize, Subject::Inode(dir), detail);
            self.plan.add(Fix::DirectorySize(dir, blocks));
        }
        self.name_map(&of, &map, &mut names).await?;
        self.duplicates(names).await
    }

    /// Checks every slot of a chunk; returns the number of its content blocks.
    async fn content(
        &mut self,
        dir: Ino,
        number: DirNo,
        chunk: &Chunk,
        names: &mut Names,
    ) -> Result<u64, StoreError> {
        let mut blocks = 0;
        names.begin(number, chunk);
        for unit in Unit::all(dir, number, chunk) {
            blocks += u64::from(unit.len);
            self.look_ahead();
            let digest = self.ahead.take(&self.mfs, &unit).await;
            if let Some(progress) = self.progress {
                progress(self.report.counts.inodes, self.total);
            }
            if self.is_simple(&unit, &digest).await? {
                self.absorb(&unit, digest, names).await?;
            } else {
                prefetch(&self.mfs, unit.home, unit.len).await?;
                for n in 0..unit.len {
                    self.content_block(&unit, n, names).await?;
                }
            }
        }
        Ok(blocks)
    }

    /// Were none of the inodes in the plain slots of a unit met before, and has the tree of
    /// segments no segments of those with inline data? Then the order of these slots does not
    /// matter.
    async fn is_simple(&mut self, unit: &Unit, digest: &Digest) -> Result<bool, StoreError> {
        if digest.tangled || is_one_by_one() {
            return Ok(false);
        }
        if self.tree.with_moved_inodes.contains(&unit.chunk) {
            let inodes = digest.ordinary.iter().map(|&kept| Ordinary::ino(unit.chunk, kept));
            let NamespaceScan { moved, inodes: met, outside, .. } = &self.tree;
            let homes = &self.report.shard.homes;
            let known = |ino: Ino| {
                moved.contains_key(&ino)
                    || met.contains_key(&ino)
                    || outside.contains_key(&ino)
                    || homes.contains_key(&ino)
            };
            if inodes.into_iter().any(known) {
                return Ok(false);
            }
        }
        if digest.contents.is_empty() {
            return Ok(true);
        }
        let mapped = self.read(|txn| any_mapped(txn, &digest.contents)).await?;
        Ok(mapped == Some(false))
    }

    /// Adds the digest of a simple unit.
    async fn absorb(
        &mut self,
        unit: &Unit,
        mut digest: Digest,
        names: &mut Names,
    ) -> Result<(), StoreError> {
        let counts = &mut self.report.counts;
        counts.inodes += digest.ordinary.len() as u64;
        counts.names += digest.names.len() as u64;
        counts.segments += digest.segments;
        self.tree.ordinary.add_all(unit.chunk, &digest.ordinary);
        names.list.append(&mut digest.names);
        self.pieces.append(&mut digest.pieces);
        self.add_fragments(unit.dir, digest.fragments);
        let mut prefetched = false;
        for Deferred { block, slot } in digest.deferred {
            match slot {
                Some((at, slot)) => self.slot(unit.dir, at, slot, names).await?,
                None => {
                    if !std::mem::replace(&mut prefetched, true) {
                        prefetch(&self.mfs, unit.home, unit.len).await?;
                    }
                    self.content_block(unit, block, names).await?;
                }
            }
        }
        Ok(())
    }

    /// Checks every slot of the `n`-th block of a unit, which it reads through the store.
    async fn content_block(
        &mut self,
        unit: &Unit,
        n: u32,
        names: &mut Names,
    ) -> Result<(), StoreError> {
        let (dir, number) = (unit.dir, unit.chunk);
        let (index, home) = (unit.first + n, unit.block(n));
        let slots = self
            .read(|txn| {
                let block = txn.read_slots(home)?;
                let other = type_of(block).filter(|&kind| kind != txn.content_of(number));
                let slots = (0..SLOTS_PER_BLOCK).map(|i| Slot::load(block, i));
                Ok((slots.collect::<Vec<_>>(), other))
            })
            .await?;
        let Some((slots, other)) = slots else {
            self.plan.add(Fix::EmptyBlock(home, number, index));
            return Ok(());
        };
        if let Some(kind) = other {
            *self.tree.other_slots.entry(kind).or_default() += 1;
        }
        for (i, slot) in (0..).zip(slots) {
            let place = SlotPlace { chunk: number, slot: index * SLOTS_PER_BLOCK + i };
            self.slot(dir, SlotAt { home, place }, slot, names).await?;
        }
        Ok(())
    }

    async fn slot(
        &mut self,
        dir: Ino,
        at: SlotAt,
        mut slot: Slot,
        names: &mut Names,
    ) -> Result<(), StoreError> {
        let subject = Subject::Block(at.home);
        // One bit does not outweigh the rest of the slot.
        if slot.clear_unknown_flags() {
            let detail = format!("slot {}: unknown flags", at.place.index());
            self.found(ProblemKind::BadSlot, subject, detail);
            self.plan.add(Fix::Flags(at));
        }
        if slot.repair_layout_blocks() {
            self.found(ProblemKind::BadLayoutBlock, Subject::Inode(slot.ino()), "impossible words");
            self.plan.add(Fix::Flags(at));
        }
        if let Some(what) = slot.repair_object() {
            self.found(ProblemKind::BadObject, Subject::Inode(slot.ino()), what);
            self.plan.add(Fix::Flags(at));
        }
        if let Some(what) = slot.repair_content(self.features.has(Feature::INLINE_DATA)) {
            self.found(ProblemKind::BadContent, Subject::Inode(slot.ino()), what);
            self.plan.add(Fix::Flags(at));
        }
        if let Err(what) = slot.check() {
            let detail = format!("slot {}: {what}", at.place.index());
            self.found(ProblemKind::BadSlot, subject, detail);
            self.plan.add(Fix::ClearSlot(at));
            return Ok(());
        }
        if slot.state() == SlotState::Empty {
            return Ok(());
        }
        let hidden = is_orphan_dir(dir) || dir == Ino::NONE;
        let legal = if hidden { slot.name().is_empty() } else { Name::new(slot.name()).is_ok() };
        if !legal {
            self.found(ProblemKind::BadName, subject, format!("{:?}", slot.name()));
            let name = format!("#{}", slot.ino());
            self.plan.add(match slot.state() {
                SlotState::Link if hidden => Fix::DropLink(at),
                _ if hidden => Fix::Rename(at, Vec::new()),
                _ => Fix::Rename(at, name.into_bytes()),
            });
        }
        if !slot.name().is_empty() {
            self.report.counts.names += 1;
            names.add(slot.name(), at.place.slot);
        }
        let link = slot.state() == SlotState::Link;
        if link && self.home(slot.ino()) != self.shard && self.features.has(Feature::SHARDS) {
            if !hidden {
                self.foreign_name(dir, &slot);
            }
            return Ok(());
        }
        let own = self.own_number(slot.ino(), format_args!("in a slot of directory {dir}"));
        if link {
            if own {
                self.tree.links.push(Link { dir, ino: slot.ino(), kind: slot.kind(), at });
            }
            return Ok(());
        }
        if slot.is_spread() {
            self.require_shards();
        }
        self.inode((dir, names.first), at, slot).await
    }

    /// Checks an inode in a directory, whose first chunk is given.
    async fn inode(
        &mut self,
        (dir, first): (Ino, DirNo),
        at: SlotAt,
        slot: Slot,
    ) -> Result<(), StoreError> {
        let ino = slot.ino();
        if self.kind_of(ino).is_some() {
            let detail = format!("again in directory {dir}");
            self.found(ProblemKind::DuplicateInode, Subject::Inode(ino), detail);
            self.plan.add(Fix::Duplicate(at));
            return Ok(());
        }
        let is_usual = self.place(at, &slot) && !self.has_to_do_with_others(ino);
        let attr = slot.attr();
        let mut seen = SeenInode {
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
        self.xattrs(at, &slot).await?;
        match attr.kind {
            FileKind::Regular => {
                seen.counted = slot.body();
                let content = self.file_content(at, &slot).await?;
                for segment in slot.segments() {
                    self.segment(ino, &segment, content, &mut seen);
                }
                self.layout_blocks(at, &slot, content, &mut seen).await?;
                self.file_fragments(dir, &slot);
            }
            FileKind::Symlink => self.target(at, &slot).await?,
            FileKind::Directory => {
                self.report.counts.directories += u64::from(!is_orphan_dir(ino));
                let hidden = is_orphan_dir(dir) || dir == Ino::NONE;
                if let Some(parent) = self.tree.inodes.get_mut(&dir).filter(|_| !hidden) {
                    parent.subdirectories += 1;
                }
                let (nlink, size, blocks) = (attr.nlink, attr.size, attr.blocks);
                self.directory_fragments(&slot);
                let (body, map, mapped) = (DirNo(slot.body()), DirNo(slot.map()), slot.names());
                if !hidden {
                    let entry = NamespaceEntry { parent: first, stream: slot.stream(), dir: ino };
                    let chunk = self.tree.chunks.get(&body).map(|(chunk, _)| chunk);
                    let run = chunk.and_then(|chunk| chunk.runs.first());
                    let start = run.filter(|run| run.is_present()).map(|run| run.start);
                    self.tree.directories.push((entry, start));
                }
                let directory = Directory { ino, map, mapped, body, nlink, size, blocks };
                self.tree.queue.push_back(directory);
            }
            _ => {}
        }
        self.keep(ino, seen, is_usual);
        Ok(())
    }

    /// Keeps what was seen of an inode; of an ordinary one that is little.
    fn keep(&mut self, ino: Ino, seen: SeenInode, is_usual: bool) {
        let ordinary = is_usual
            && seen.kind != FileKind::Directory
            && (seen.nlink, seen.names, seen.counted, seen.found) == (1, 1, 0, 0)
            && (seen.kind != FileKind::Regular || seen.blocks == seen.mapped);
        if !is_usual {
            self.tree.note_moved(ino);
        }
        if ordinary {
            self.tree.ordinary.add(ino, seen.kind);
        } else {
            self.tree.inodes.insert(ino, seen);
        }
    }

    /// Do other shards have names of the inode, or was it on another one?
    fn has_to_do_with_others(&self, ino: Ino) -> bool {
        self.tree.outside.contains_key(&ino) || self.report.shard.homes.contains_key(&ino)
    }

    /// The kind of an inode that was met.
    pub(super) fn kind_of(&self, ino: Ino) -> Option<FileKind> {
        self.tree.ordinary.kind(ino).or_else(|| self.tree.inodes.get(&ino).map(|seen| seen.kind))
    }

    /// Checks that the inode is where its number or the `moved` tree leads; returns whether it is
    /// at home.
    fn place(&mut self, at: SlotAt, slot: &Slot) -> bool {
        let (ino, place) = (slot.ino(), at.place);
        let moved = self.tree.moved.remove(&ino);
        let subject = Subject::Inode(ino);
        let home = home_of(ino);
        if home == place {
            if u16::from(reuse_of(ino)) >= slot.next_reuse() {
                self.found(ProblemKind::BadSlot, subject, "its number was not issued");
                self.plan.add(Fix::IssueNumber(at));
            }
            if moved.is_some() {
                self.found(ProblemKind::StaleMove, subject, "it is at home");
                self.plan.add(Fix::Moved(ino, None));
            }
        } else if moved != Some(place) {
            let detail = format!("chunk {}, slot {}", place.chunk, place.slot);
            self.found(ProblemKind::MisplacedInode, subject, detail);
            self.plan.add(Fix::Moved(ino, Some(place)));
        }
        let chunk = self.tree.chunks.get(&home.chunk).map(|(chunk, _)| chunk);
        let run =
            chunk.and_then(|chunk| chunk.run_of(home.block())).filter(|run| !run.is_present());
        if run.is_some_and(|run| u16::from(reuse_of(ino)) >= run.reuse) {
            let detail = "its home gave its blocks back and would issue its number again";
            self.found(ProblemKind::BadChunk, subject, detail);
            self.plan.add(Fix::RaiseReuse(ino));
        }
        home == place
    }

    async fn xattrs(&mut self, at: SlotAt, slot: &Slot) -> Result<(), StoreError> {
        let (subject, drop) = (Subject::Inode(slot.ino()), Fix::DropXattrs(at));
        let bytes = match slot.xattr_blob() {
            Some(first) => {
                let (whose, kind) = (slot.blob_owner(BlobKind::Xattrs), ProblemKind::BadXattrs);
                let read = self.inode_blob((at, first), whose, (kind, ""), drop.clone()).await?;
                let Some(bytes) = read else { return Ok(()) };
                bytes
            }
            None => slot.xattrs().to_vec(),
        };
        if !bytes.is_empty() && decode_xattrs(&bytes).is_none() {
            self.found(ProblemKind::BadXattrs, subject, "");
            self.plan.add(drop);
        }
        Ok(())
    }

    async fn target(&mut self, at: SlotAt, slot: &Slot) -> Result<(), StoreError> {
        let (size, kind) = (slot.attr().size, ProblemKind::BadTarget);
        let detail = format!("size {size}");
        let len = match slot.target_blob() {
            Some(first) => {
                let (whose, lost) = (slot.blob_owner(BlobKind::Target), Fix::Target(at, None));
                let read = self.inode_blob((at, first), whose, (kind, &detail), lost).await?;
                let Some(bytes) = read else { return Ok(()) };
                bytes.len()
            }
            None => slot.payload().len(),
        };
        let len = Some(len as u64).filter(|len| (1..=SYMLINK_MAX as u64).contains(len));
        if len != Some(size) {
            self.found(kind, Subject::Inode(slot.ino()), detail);
            self.plan.add(Fix::Target(at, len));
        }
        Ok(())
    }

    /// Checks inline data; returns whether some stays, which outweighs a segment of the same block.
    async fn file_content(&mut self, at: SlotAt, slot: &Slot) -> Result<bool, StoreError> {
        let (ino, size) = (slot.ino(), slot.attr().size);
        let subject = Subject::Inode(ino);
        let len = match (slot.content_blob(), slot.content()) {
            (None, None) => return Ok(false),
            (Some(first), _) => {
                let (whose, lost) = (slot.blob_owner(BlobKind::Content), Fix::Content(at, false));
                let kind = (ProblemKind::BadContent, "none can be read");
                let read = self.inode_blob((at, first), whose, kind, lost).await?;
                let Some(bytes) = read else { return Ok(false) };
                bytes.len()
            }
            (_, Some(bytes)) => bytes.len(),
        };
        if len == 0 || size == 0 {
            let unread = "none can be read".to_owned();
            let what = if len == 0 { unread } else { format!("{len} bytes of an empty file") };
            self.found(ProblemKind::BadContent, subject, what);
            self.plan.add(Fix::Content(at, false));
            return Ok(false);
        }
        if len as u64 > size || len > CONTENT_MAX {
            let what = format!("{len} bytes, size {size}, at most {CONTENT_MAX}");
            self.found(ProblemKind::BadContent, subject, what);
            self.plan.add(Fix::Content(at, true));
        }
        // A tree that cannot be read is found where trees are checked.
        let first = segment_key(ino, 0);
        let in_tree = self.read(|txn| Ok(SEGMENTS.get(txn, &first)?.is_some())).await?;
        let in_slot = slot.segments().first().is_some_and(|segment| segment.file.0 == 0);
        if in_tree == Some(true) {
            self.tree.shadowed.insert(ino);
        }
        if in_slot || in_tree == Some(true) {
            self.found(ProblemKind::BadContent, subject, "its block is mapped, too");
            self.plan.add(Fix::Recount(ino));
        }
        Ok(true)
    }

    /// Where a slot of a chunk is.
    fn slot_of(&self, chunk: DirNo, slot: u32) -> Option<SlotAt> {
        let place = SlotPlace { chunk, slot };
        let run = self.tree.chunks.get(&chunk)?.0.run_of(place.block())?;
        Some(SlotAt { home: run.home(place.block()), place })
    }

    /// Finds names that a directory has twice.
    async fn duplicates(&mut self, names: Names) -> Result<(), StoreError> {
        let Names { mut list, chunks, .. } = names;
        // The list consists of sorted runs, which makes this sort fast.
        list.sort();
        let mut first = 0;
        for at in 1..list.len() {
            if list[at].hash != list[first].hash {
                first = at;
                continue;
            }
            let found = |at: Position| self.slot_of(*chunks.get(&at.chunk())?, at.slot());
            let both = (found(Position(list[first].at)), found(Position(list[at].at)));
            let (Some(a), Some(b)) = both else { continue };
            let read = self.read(|txn| Ok((slot_at(txn, a)?, slot_at(txn, b)?))).await?;
            if let Some((a, second)) = read.filter(|(a, b)| a.name() == b.name()) {
                let detail = format!("{:?}", String::from_utf8_lossy(a.name()));
                self.found(ProblemKind::DuplicateName, Subject::Chunk(b.place.chunk), detail);
                self.plan.add(Fix::Rename(b, beside(second.name(), second.ino())));
            }
        }
        Ok(())
    }
}

/// Do tests make the check itself look at every slot, as a reference for the digests?
fn is_one_by_one() -> bool {
    #[cfg(test)]
    return super::jobs_tests::ONE_BY_ONE.get();
    #[cfg(not(test))]
    false
}

/// Has the tree of segments a segment of any of these sorted inodes?
fn any_mapped(txn: &Txn<'_>, inodes: &[Ino]) -> Result<bool, Stop> {
    let mut at = 0;
    while let Some(&ino) = inodes.get(at) {
        let Some((key, _)) = SEGMENTS.next(txn, &segment_key(ino, 0))? else { break };
        let found = ino_of_key(&key);
        if found == ino {
            return Ok(true);
        }
        at += inodes[at..].partition_point(|&ino| ino < found);
    }
    Ok(false)
}

/// A name like `name`, for an inode whose own name is taken.
fn beside(name: &[u8], ino: Ino) -> Vec<u8> {
    let end = format!("~{ino}");
    let keep = name.len().min(types::limits::NAME_MAX - end.len());
    [&name[..keep], end.as_bytes()].concat()
}
