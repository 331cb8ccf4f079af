//! The fixes of a plan, each of them a transaction.
//!
//! Invariants:
//! - a fix relies on nothing that an earlier fix may have changed: it reads again what it changes;
//! - `None` means that nothing changed;
//! - a fix returns what it lost of the users' data ([`Change`]).

mod blobs;
mod chunks;
mod data;
pub(super) mod maps;
mod records;
mod slots;
mod trees;
mod zones;

use std::collections::{BTreeMap, BTreeSet};

use types::{DirNo, Ino, Lsn, MetaBlock, Transno};

use super::Check;
use super::gaps::Gaps;
use super::lost::Loss;
use super::plan::Fix;
use crate::format::slot::{SLOTS_PER_BLOCK, Slot, SlotState};
use crate::handle::Mfs;
use crate::trees::{ANNEXES, INODES, NEXT_CHUNK, NEXT_CLIENT, NEXT_OBJECT};
use crate::txn::Txn;
use engine::cost::Cost;
use engine::error::{Stop, StoreError};
use engine::format::block::{self, Block, BlockType};
use engine::format::features::Feature;
use engine::format::roots::RootId;
use engine::repair;

/// What a fix did.
#[derive(Debug)]
pub(super) struct Change {
    /// In words.
    pub(super) line: String,
    /// Permanent losses.
    pub(super) lost: Vec<Loss>,
}

impl From<String> for Change {
    fn from(line: String) -> Change {
        Change { line, lost: Vec::new() }
    }
}

impl From<&str> for Change {
    fn from(line: &str) -> Change {
        Change::from(line.to_owned())
    }
}

impl Change {
    /// The change with these losses.
    fn with_losses(line: impl Into<Change>, lost: impl IntoIterator<Item = Loss>) -> Change {
        let mut change = line.into();
        change.lost.extend(lost);
        change
    }
}

/// The change, if there was one.
type Done = Result<Option<Change>, StoreError>;

/// Content blocks that no chunk of the table has, by the inodes in them.
type Evidence = BTreeMap<DirNo, Blocks>;

/// State that the rounds of a repair hand on.
pub(super) struct RepairState {
    /// That of the engine's half.
    pub(super) engine: repair::RepairState,
    /// Where segments were lost; later rounds count how many each file lost.
    gaps: Gaps,
}

impl RepairState {
    pub(super) async fn new(mfs: &Mfs) -> Result<RepairState, StoreError> {
        let engine = repair::RepairState::new(mfs).await?;
        Ok(RepairState { engine, gaps: Gaps::default() })
    }
}

/// Content blocks by their index in a chunk.
type Blocks = BTreeMap<u32, (Lsn, MetaBlock)>;

/// Does the fixes of one round.
pub(super) struct Fixer {
    mfs: Mfs,
    check: Check,
    pub(super) state: RepairState,
    evidence: Option<Evidence>,
    circle_broken: bool,
    /// Files of which a segment was cut to their block count.
    trimmed: BTreeSet<Ino>,
    /// Labels of data zones that are needed and cannot be read, and why.
    pub(super) wanted: Vec<String>,
}

impl Fixer {
    pub(super) fn new(mfs: &Mfs, check: Check, state: RepairState) -> Fixer {
        Fixer {
            mfs: mfs.clone(),
            check,
            state,
            evidence: None,
            circle_broken: false,
            trimmed: BTreeSet::new(),
            wanted: Vec::new(),
        }
    }

    /// State for later rounds; with `forgotten`, damaged nodes and layout blocks have been removed,
    /// so their gaps are kept.
    pub(super) fn into_state(mut self, forgotten: bool) -> RepairState {
        if forgotten {
            self.state.gaps.append(self.check.gaps);
        }
        self.state
    }

    /// Does one fix.
    ///
    /// # Errors
    /// As `Mfs::run`.
    pub(super) async fn apply(&mut self, fix: &Fix) -> Done {
        match fix {
            Fix::AddFeature(feature) => Ok(self.add_feature(*feature).map(Change::from)),
            Fix::ChunkNumbers(numbers) => {
                let done = self.raise(NEXT_CHUNK, numbers.next, "chunk").await?;
                Ok(self.raise(ANNEXES, numbers.annexes, "annex").await?.or(done))
            }
            Fix::NextClient(next) => self.raise(NEXT_CLIENT, *next, "client").await,
            Fix::NextObject(next) => self.raise(NEXT_OBJECT, *next, "object").await,
            Fix::LostBitmap(_) | Fix::MarkUsed(..) | Fix::FromLog(_) | Fix::FreeMeta(..) => {
                self.fix_block(fix).await
            }
            Fix::Inodes(count) => {
                self.change_with_report(|txn| {
                    let counted = txn.root(INODES)?;
                    txn.set_root(INODES, *count)?;
                    let lost = (counted > *count).then_some(Loss::Inodes { counted, left: *count });
                    Ok(Change::with_losses(format!("{count} inodes counted"), lost))
                })
                .await
            }
            Fix::Rebuild(name) => self.rebuild(*name).await,
            Fix::AddZone(id) => self.add_zone(*id).await,
            Fix::SetZone(said) => self.set_zone(said).await,
            Fix::EmptyBlock(..)
            | Fix::DropBlock(..)
            | Fix::DropChunkKey(_)
            | Fix::SetChunk(..)
            | Fix::FillChunk(..)
            | Fix::DropChunk(_)
            | Fix::FindChunk(..)
            | Fix::FindOthers
            | Fix::CutChain(..)
            | Fix::DropMap(_)
            | Fix::AdoptChunk(_)
            | Fix::BreakCircle(_)
            | Fix::RaiseReuse(_)
            | Fix::SystemSlot(_) => self.fix_chunk(fix).await,
            Fix::CopyBlob(..) | Fix::TakeBlob(..) => self.fix_blob(fix).await,
            Fix::CopyLayout(..)
            | Fix::DropLayout(..)
            | Fix::Fragments(..)
            | Fix::Flags(_)
            | Fix::ClearSlot(_)
            | Fix::IssueNumber(_)
            | Fix::Rename(..)
            | Fix::DropLink(_)
            | Fix::LinkKind(..)
            | Fix::Duplicate(_)
            | Fix::Moved(..)
            | Fix::Links(..)
            | Fix::Unreachable(_)
            | Fix::Orphan(..)
            | Fix::DirectorySize(..)
            | Fix::DropXattrs(_)
            | Fix::Content(..)
            | Fix::Target(..) => self.fix_slot(fix).await,
            Fix::DropSegment(_)
            | Fix::Recount(_)
            | Fix::Overlap(..)
            | Fix::Outside(..)
            | Fix::Beyond(_)
            | Fix::AddFree(..)
            | Fix::JoinFree(_)
            | Fix::PagCount(..) => self.fix_data(fix).await,
            Fix::PagUse(pag) => self.drain_zone(*pag).await,
            _ => self.fix_record(fix).await,
        }
    }

    /// Runs a transaction; returns whether it changed anything.
    async fn change(
        &self,
        body: impl FnMut(&mut Txn<'_>) -> Result<(), Stop>,
    ) -> Result<bool, StoreError> {
        repair::change(&self.mfs, body).await
    }

    /// As [`Fixer::change`]; the body returns its report.
    async fn change_with_report<T: Into<Change>>(
        &self,
        mut body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>,
    ) -> Done {
        let (change, number) = self.mfs.run(Cost::DELETE, |txn| body(txn)).await?;
        Ok((number != Transno::ZERO).then(|| change.into()))
    }

    /// The superblock is written when the repair ends.
    fn add_feature(&self, feature: Feature) -> Option<String> {
        let features = self.mfs.superblock().features;
        let name = feature.name().filter(|_| !features.has(feature))?;
        self.mfs.set_features(features.with(feature));
        Some(format!("the superblock names the feature {name}"))
    }

    async fn raise(&self, root: RootId, next: u64, what: &str) -> Done {
        let done = repair::raise(&self.mfs, root, next).await?;
        Ok(done.then(|| format!("the number of the next {what} was raised to {next}").into()))
    }

    /// Metadata blocks as such, whatever they hold.
    async fn fix_block(&mut self, fix: &Fix) -> Done {
        let (mfs, state) = (&self.mfs, &mut self.state.engine);
        let line = match *fix {
            Fix::LostBitmap(index) => {
                state.lost_bitmap(&mut self.check, mfs, index, is_empty_content).await?
            }
            Fix::FromLog(block) => state.restore_from_log(mfs, block).await?,
            Fix::MarkUsed(first, len) => {
                let line =
                    || format!("{len} metadata blocks from {first} on are marked as allocated");
                repair::mark_used(mfs, first, len).await?.then(line)
            }
            Fix::FreeMeta(first, len) => {
                repair::free(mfs, first, len).await?;
                Some(format!("{len} metadata blocks from {first} on became free"))
            }
            _ => None,
        };
        Ok(line.map(Change::from))
    }
}

/// Is this a block of directory content without any inode or name?
fn is_empty_content(data: &Block) -> bool {
    let empty = |slot: Slot| slot.check().is_ok() && slot.state() == SlotState::Empty;
    block::type_of(data).is_some_and(BlockType::is_content)
        && (0..SLOTS_PER_BLOCK).all(|n| empty(Slot::load(data, n)))
}
