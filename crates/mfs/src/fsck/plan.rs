//! The fixes that repair will apply for the findings of one check.
//!
//! Invariants:
//! - a fix is one transaction, or a series of which each leaves the store no worse: after a power
//!   cut the next check finds what remains;
//! - fixes of one [`Stage`] depend only on what earlier stages have made sound. A round applies the
//!   earliest stage that has fixes, and then the check runs again;
//! - a plan is bounded ([`FIXES_MAX`]); the next check finds again what does not fit.

use std::collections::{BTreeMap, BTreeSet};

use types::{ClientId, DirNo, FileKind, Ino, MetaBlock, PagId};

use super::space::{Owner, Piece};
use crate::format::chunk::CHUNK_KEY;
use crate::format::intent::INTENT_KEY;
use crate::format::namespace::NamespaceEntry;
use crate::format::number::SlotPlace;
use crate::format::segment::SEGMENT_KEY;
use crate::format::slot::Slot;
use crate::format::space::{FROZEN_KEY, RUN_KEY, TARGET_KEY};
use crate::mkfs::PagFormat;
use crate::names::{Chunk, ChunkNumbers};
use crate::trees;
use crate::txn::Txn;
use engine::btree::RootLocation;
use engine::error::Stop;
use engine::format::blob::{BlobKind, BlobOwner};
use engine::format::features::Feature;
use engine::format::reply::REPLY_KEY;

/// Fixes of one stage that one round does at most.
pub(super) const FIXES_MAX: usize = 100_000;

/// The order of repair.
///
/// | stage | sound before it | what it makes sound |
/// |---|---|---|
/// | `Space` | nothing | no block in use can be allocated, no number in use issued |
/// | `Blocks` | allocation | damaged blocks that the log still has |
/// | `Shares` | blocks | a metadata block has one owner |
/// | `Trees` | owners | every tree can be read; damaged content blocks are empty, and layout blocks gone |
/// | `System` | trees | root and orphan directory exist |
/// | `Chunks` | the root | renamed inodes are found; the chunks of a directory that is reached form one chain, and its name map has its names |
/// | `Lost` | chains | chunks that nothing has reached, whose directory is reached or gone |
/// | `Circle` | all chunks that can be | directories that are below themselves |
/// | `Slots` | chunks | every slot, every name, every place of an inode |
/// | `Inodes` | slots | links, lost+found, sizes, attributes |
/// | `Index` | inodes | the namespace index has exactly the directories |
/// | `Zones` | inodes | the table of data zones has each in which something lies, and says how large it is |
/// | `Data` | the data zones | layouts, pools and free space do not overlap; records of clients |
/// | `Counts` | all of it | free metadata space, and sums |
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Stage {
    Space,
    Blocks,
    Shares,
    Trees,
    System,
    Chunks,
    Lost,
    Circle,
    Slots,
    Inodes,
    Index,
    Zones,
    Data,
    Counts,
}

/// A tree of the store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum TreeName {
    Chunks,
    Moved,
    Orphans,
    Segments,
    Pags,
    Free,
    Pools,
    Freed,
    Quarantines,
    Frozen,
    Clients,
    Replies,
    Settings,
    Namespace,
    Doomed,
    OwedFences,
    Intents,
    Outside,
    Lent,
    Homes,
}

impl TreeName {
    const ALL: [(RootLocation, TreeName); 20] = [
        (trees::CHUNKS.location(), TreeName::Chunks),
        (trees::MOVED.location(), TreeName::Moved),
        (trees::ORPHANS.location(), TreeName::Orphans),
        (trees::SEGMENTS.location(), TreeName::Segments),
        (trees::PAGS.location(), TreeName::Pags),
        (trees::FREE.location(), TreeName::Free),
        (trees::POOLS.location(), TreeName::Pools),
        (trees::FREED.location(), TreeName::Freed),
        (trees::QUARANTINES.location(), TreeName::Quarantines),
        (trees::FROZEN.location(), TreeName::Frozen),
        (trees::CLIENTS.location(), TreeName::Clients),
        (trees::REPLIES.location(), TreeName::Replies),
        (trees::SETTINGS.location(), TreeName::Settings),
        (trees::NAMESPACE.location(), TreeName::Namespace),
        (trees::DOOMED.location(), TreeName::Doomed),
        (trees::OWED_FENCES.location(), TreeName::OwedFences),
        (trees::INTENTS.location(), TreeName::Intents),
        (trees::OUTSIDE.location(), TreeName::Outside),
        (trees::LENT.location(), TreeName::Lent),
        (trees::HOMES.location(), TreeName::Homes),
    ];

    /// The tree with this root.
    pub(super) fn at(root: RootLocation) -> Option<TreeName> {
        TreeName::ALL.into_iter().find(|(at, _)| *at == root).map(|(_, name)| name)
    }
}

/// A slot, by its block's address: places cannot be trusted while slots are repaired.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct SlotAt {
    pub(super) home: MetaBlock,
    pub(super) place: SlotPlace,
}

/// The slot's bytes, unchecked.
pub(super) fn slot_at(txn: &Txn<'_>, at: SlotAt) -> Result<Slot, Stop> {
    Ok(Slot::load(txn.read_slots(at.home)?, at.place.index()))
}

/// One thing to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Fix {
    /// Enter a feature that is in use into the superblock.
    AddFeature(Feature),
    /// Raise the numbers of the next chunk and the next annex to at least these.
    ChunkNumbers(ChunkNumbers),
    /// Raise the number of the next client to at least this.
    NextClient(u64),
    /// Raise the number of the next object to at least this.
    NextObject(u64),
    /// The bitmap block of this index is unreadable: until the end of the repair, every block that
    /// may hold something counts as allocated.
    LostBitmap(u64),
    /// Blocks in use are marked free.
    MarkUsed(MetaBlock, u64),
    /// Put back what the log has of this block.
    FromLog(MetaBlock),
    /// Block `1` of chunk `0` is not this chunk's.
    DropBlock(DirNo, u32),
    /// Copy the inode's blob to blocks of its own.
    CopyBlob(SlotAt, BlobKind),
    /// The blob that begins here is the missing one of the inode in the slot, or of a client.
    TakeBlob(Option<SlotAt>, BlobOwner, MetaBlock),
    /// Copy the slot's layout block to a block of the file's own.
    CopyLayout(SlotAt, MetaBlock),
    /// The slot's file loses this layout block.
    DropLayout(SlotAt, MetaBlock),
    /// Build the tree from what is left of it.
    Rebuild(TreeName),
    /// An unreadable content block becomes an empty one: ⟨address, chunk, index⟩.
    EmptyBlock(MetaBlock, DirNo, u32),
    /// Remove an item of the directory table.
    DropChunkKey([u8; CHUNK_KEY]),
    /// Set the chunk to this.
    SetChunk(DirNo, Chunk),
    /// Set the chunk to this, and add the blocks of it that can be found.
    FillChunk(DirNo, Chunk),
    /// Remove all items of the chunk; its blocks have no owner then.
    DropChunk(DirNo),
    /// A chunk is missing: chunk, owner, its position in the owner.
    FindChunk(DirNo, Ino, u32),
    /// Find places for stranded blocks: those of missing chunks that nothing leads to.
    FindOthers,
    /// The directory's chunks end behind this one; `None`: it has none.
    CutChain(Ino, Option<DirNo>),
    /// Remove the name map of the directory.
    DropMap(Ino),
    /// Give a chunk that no directory reaches back to its directory, unless that lies in such a
    /// chunk itself.
    AdoptChunk(DirNo),
    /// The same without that exception, for one chunk: breaks a circle.
    BreakCircle(DirNo),
    /// Make the root or the orphan directory.
    SystemSlot(Ino),
    /// Clear flags of the slot that cannot be.
    Flags(SlotAt),
    /// Empty a slot and never use it again.
    ClearSlot(SlotAt),
    /// Mark the number of the slot's inode as issued.
    IssueNumber(SlotAt),
    /// Give the slot another name; an empty one: none.
    Rename(SlotAt, Vec<u8>),
    /// Remove a further name.
    DropLink(SlotAt),
    /// Set the type that a further name says.
    LinkKind(SlotAt, FileKind),
    /// A second slot with the inode's number.
    Duplicate(SlotAt),
    /// Set the inode's entry in the `moved` tree; `None`: remove it. Where an inode is depends on
    /// its chunk's number alone.
    Moved(Ino, Option<SlotPlace>),
    /// Slots of freed content blocks issue numbers behind this inode's.
    RaiseReuse(Ino),
    /// Set the number of links.
    Links(Ino, u32),
    /// Give the inode a name in lost+found.
    Unreachable(Ino),
    /// Add the inode to the list of orphans, or remove it.
    Orphan(Ino, bool),
    /// Set size and blocks of a directory.
    DirectorySize(Ino, u64),
    /// Remove all attributes of the slot's inode.
    DropXattrs(SlotAt),
    /// Set the size of the symlink; `None`: it has no target.
    Target(SlotAt, Option<u64>),
    /// Cut the content of the slot's file to what it may have, or remove all of it.
    Content(SlotAt, bool),
    /// Set this entry of the namespace index, with where the directory begins; `None`: remove it.
    IndexEntry(NamespaceEntry, Option<Option<MetaBlock>>),
    /// Add this data zone, in which something lies, to the table.
    AddZone(PagId),
    /// Set a data zone's line in the table to its label; or why the size of the zone is unknown.
    SetZone(Result<PagFormat, String>),
    /// Remove a segment of the tree of segments.
    DropSegment([u8; SEGMENT_KEY]),
    /// Recount segments and blocks of a file.
    Recount(Ino),
    /// Two owners of the same data blocks.
    Overlap(Piece, Piece),
    /// Blocks of the piece from the first given up to the second lie outside.
    Outside(Piece, u64, u64),
    /// Blocks of this owner lie beyond any zone.
    Beyond(Owner),
    /// Data blocks without an owner.
    AddFree(PagId, u64, u64),
    /// The run of free space that begins here and the next one are one.
    JoinFree([u8; RUN_KEY]),
    /// Counts of a data zone: free, freed.
    PagCount(PagId, u64, u64),
    /// The state of a zone is none: no blocks are granted from it.
    PagUse(PagId),
    /// Enter a client that owns something.
    AddClient(ClientId),
    /// Remove the description of a client.
    DropInfo(ClientId),
    /// Remove a kept reply's item.
    DropReply([u8; REPLY_KEY]),
    /// Empty a block of replies.
    EmptyReplies(MetaBlock),
    /// Remove a setting.
    DropSetting([u8; 4]),
    /// Remove an item of the doomed objects.
    DropDoomed([u8; TARGET_KEY]),
    /// Remove an item of an operation of several shards.
    DropIntent([u8; INTENT_KEY]),
    /// Remove what is kept of an inode's names on other shards.
    DropOutside(Ino),
    /// Remove what is kept of where a moved directory is; if it is here, say so.
    DropHome(Ino),
    /// Remove an item about a frozen file.
    DropFrozen([u8; FROZEN_KEY]),
    /// Complete the items about a frozen file.
    Freeze(ClientId, Ino),
    /// Set the fragments of a directory.
    Fragments(Ino, u32),
    /// Set the number of inodes.
    Inodes(u64),
    /// Metadata blocks without an owner.
    FreeMeta(MetaBlock, u64),
}

impl Fix {
    /// The stage that applies it.
    pub(super) fn stage(&self) -> Stage {
        match self {
            Fix::AddFeature(_)
            | Fix::ChunkNumbers(_)
            | Fix::NextClient(_)
            | Fix::NextObject(_)
            | Fix::LostBitmap(_)
            | Fix::MarkUsed(..) => Stage::Space,
            Fix::FromLog(_) => Stage::Blocks,
            Fix::DropBlock(..)
            | Fix::CopyBlob(..)
            | Fix::CopyLayout(..) => Stage::Shares,
            // Zones are compared with the labels and with all trees, so these come after the trees.
            Fix::Rebuild(TreeName::Pags) | Fix::AddZone(_) | Fix::SetZone(_) => Stage::Zones,
            Fix::Rebuild(_) | Fix::EmptyBlock(..) | Fix::DropLayout(..) => Stage::Trees,
            Fix::DropChunkKey(_)
            | Fix::SetChunk(..)
            | Fix::FillChunk(..)
            | Fix::DropChunk(_)
            | Fix::FindChunk(..)
            | Fix::FindOthers
            | Fix::CutChain(..)
            | Fix::DropMap(_)
            // A directory must be found before its chain can be repaired.
            | Fix::Moved(_, Some(_)) => Stage::Chunks,
            Fix::SystemSlot(_) => Stage::System,
            Fix::AdoptChunk(_) => Stage::Lost,
            Fix::BreakCircle(_) => Stage::Circle,
            Fix::Flags(_)
            | Fix::ClearSlot(_)
            | Fix::IssueNumber(_)
            | Fix::Rename(..)
            | Fix::DropLink(_)
            | Fix::LinkKind(..)
            | Fix::Duplicate(_)
            | Fix::Moved(_, None)
            | Fix::RaiseReuse(_) => Stage::Slots,
            Fix::Links(..)
            | Fix::Unreachable(_)
            | Fix::Orphan(..)
            | Fix::DropOutside(_)
            | Fix::DropHome(_)
            | Fix::DirectorySize(..)
            | Fix::DropXattrs(_)
            | Fix::TakeBlob(Some(_), ..)
            | Fix::Content(..)
            | Fix::Target(..) => Stage::Inodes,
            Fix::IndexEntry(..) => Stage::Index,
            Fix::Inodes(_) | Fix::FreeMeta(..)
            | Fix::PagCount(..)
            | Fix::PagUse(_)
            | Fix::Fragments(..) => {
                Stage::Counts
            }
            _ => Stage::Data,
        }
    }
}

/// Fixes by their stage; each stage has some.
pub(super) type Stages = BTreeMap<Stage, Vec<Fix>>;

/// Position of a fix in a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PlanPosition(Stage, usize);

/// The fixes of one check.
#[derive(Default, Debug)]
pub(super) struct Plan {
    stages: Stages,
    damaged: BTreeSet<MetaBlock>,
    /// Damaged blocks that nothing leads to: repair restores those that the log has, and leaves the
    /// others.
    doubtful: Vec<MetaBlock>,
    inodes_missing: bool,
}

impl Plan {
    /// Adds a fix, if its stage has room.
    pub(super) fn add(&mut self, fix: Fix) {
        if let Fix::FromLog(block) = fix
            && !self.damaged.insert(block)
        {
            return;
        }
        if let Fix::Rebuild(name) = fix
            && self.rebuilds(name)
        {
            return;
        }
        self.put(fix);
    }

    /// Adds a fix that may be replaced later; returns its position, if its stage has room.
    pub(super) fn put(&mut self, fix: Fix) -> Option<PlanPosition> {
        let stage = fix.stage();
        let fixes = self.stages.entry(stage).or_default();
        if fixes.len() >= FIXES_MAX {
            return None;
        }
        fixes.push(fix);
        Some(PlanPosition(stage, fixes.len() - 1))
    }

    /// Replaces a planned fix by `fix`.
    pub(super) fn replace(&mut self, PlanPosition(stage, at): PlanPosition, fix: Fix) {
        assert_eq!(fix.stage(), stage, "a fix of another stage");
        if let Some(planned) = self.stages.get_mut(&stage).and_then(|fixes| fixes.get_mut(at)) {
            *planned = fix;
        }
    }

    /// Is any tree damaged?
    pub(super) fn rebuilds_any(&self) -> bool {
        let all = [Stage::Trees, Stage::Zones].into_iter().filter_map(|at| self.stages.get(&at));
        all.flatten().any(|fix| matches!(fix, Fix::Rebuild(_)))
    }

    /// Notes a damaged block that nothing leads to: it may be missing content or a missing leaf.
    pub(super) fn add_doubtful(&mut self, block: MetaBlock) {
        if self.doubtful.len() < FIXES_MAX {
            self.doubtful.push(block);
        }
    }

    /// Takes the doubtful blocks.
    pub(super) fn take_doubtful(&mut self) -> Vec<MetaBlock> {
        std::mem::take(&mut self.doubtful)
    }

    /// Is this tree damaged?
    pub(super) fn rebuilds(&self, name: TreeName) -> bool {
        let fix = Fix::Rebuild(name);
        self.stages.get(&fix.stage()).is_some_and(|fixes| fixes.contains(&fix))
    }

    /// Keeps the count of inodes: it shows that inodes are missing which are still on the device.
    pub(super) fn leave_count(&mut self) {
        self.inodes_missing = true;
    }

    /// Can no planned fix find further chunks of directories?
    pub(super) fn are_chunks_found(&self) -> bool {
        let leading = [Stage::Trees, Stage::System, Stage::Chunks, Stage::Lost, Stage::Circle];
        leading.iter().all(|stage| !self.stages.contains_key(stage))
    }

    /// Is there nothing to do before `stage`?
    pub(super) fn is_sound_before(&self, stage: Stage) -> bool {
        self.stages.range(..stage).next().is_none()
    }

    /// Its fixes, stage by stage.
    pub(super) fn into_stages(mut self) -> Stages {
        // While the size of a data zone is missing or wrong in the table, neither data nor sums are
        // touched.
        if self.stages.contains_key(&Stage::Zones) {
            self.stages.retain(|stage, _| *stage <= Stage::Zones);
        }
        if self.inodes_missing {
            self.stages.values_mut().for_each(|fixes| {
                fixes.retain(|fix| !matches!(fix, Fix::Inodes(_)));
            });
            self.stages.retain(|_, fixes| !fixes.is_empty());
        }
        // The log is read once for many blocks that follow each other.
        if let Some(fixes) = self.stages.get_mut(&Stage::Blocks) {
            fixes.sort_by_key(|fix| match fix {
                Fix::FromLog(block) => *block,
                _ => MetaBlock(0),
            });
        }
        self.stages
    }
}
