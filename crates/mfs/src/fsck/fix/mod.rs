//! The fixes of a plan, each of them a transaction.
//!
//! Invariants:
//! - a fix relies on nothing that an earlier fix may have changed: it reads again what it changes;
//! - `None` means that nothing changed;
//! - a fix returns what it lost of the users' data ([`Change`]).

mod bitmap;
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
use crate::handle::Mfs;
use crate::trees::{ANNEXES, BITMAP_LOST, INODES, NEXT_CHUNK, NEXT_CLIENT, UNFINISHED};
use crate::txn::Txn;
use engine::cost::Cost;
use engine::error::{Stop, StoreError};
use engine::format::block::{Block, HEADER, lsn_of};
use engine::format::features::Feature;

/// Metadata blocks that one step frees.
const FREE_STEP: u64 = 8192;

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

/// Blocks as the log has them.
type Versions = BTreeMap<MetaBlock, Box<Block>>;

/// Versions of damaged blocks from the log. Repair searches the log before its own writes overwrite
/// what that still holds. So it keeps what it found from round to round, until it is restored.
#[derive(Default)]
pub(super) struct Salvaged {
    searched: BTreeSet<MetaBlock>,
    found: Versions,
    /// The blocks of which the log has any change; only listed if a part of the bitmap is lost.
    changed: Option<BTreeSet<MetaBlock>>,
}

impl Salvaged {
    /// Searches the log in one pass for those of the blocks that were not searched before.
    ///
    /// # Errors
    /// `Io`.
    pub(super) async fn seek(
        &mut self,
        mfs: &Mfs,
        blocks: impl Iterator<Item = MetaBlock>,
    ) -> Result<(), StoreError> {
        let wanted: BTreeSet<_> = blocks.filter(|block| !self.searched.contains(block)).collect();
        if !wanted.is_empty() {
            self.found.extend(mfs.salvage(&wanted).await?);
            self.searched.extend(wanted);
        }
        Ok(())
    }

    /// Was a version of this block found in the log?
    pub(super) fn has(&self, block: MetaBlock) -> bool {
        self.found.contains_key(&block)
    }

    /// Lists the blocks of which the log has changes, unless that was done before.
    ///
    /// # Errors
    /// `Io`.
    pub(super) async fn list(&mut self, mfs: &Mfs) -> Result<(), StoreError> {
        if self.changed.is_none() {
            self.changed = Some(mfs.changed().await?);
        }
        Ok(())
    }
}

/// State that the rounds of a repair hand on.
pub(super) struct RepairState {
    pub(super) salvaged: Salvaged,
    /// A part of the bitmap was lost, now or before an interrupted repair: free blocks there look
    /// like allocated ones without an owner.
    pub(super) bitmap_lost: bool,
    /// Where the log ended before the repair wrote anything.
    began: Lsn,
    /// Blocks restored from the log, with the LSN of their last change.
    returned: BTreeMap<MetaBlock, Lsn>,
    /// Where segments were lost; later rounds count how many each file lost.
    gaps: Gaps,
}

impl RepairState {
    pub(super) async fn new(mfs: &Mfs) -> Result<RepairState, StoreError> {
        let began = mfs.log_end();
        let bitmap_lost = match mfs.run(Cost::READ, |txn| txn.root(UNFINISHED)).await {
            Ok((word, _)) => word & BITMAP_LOST != 0,
            Err(StoreError::Corrupt { .. }) => false,
            Err(error) => return Err(error),
        };
        Ok(RepairState {
            salvaged: Salvaged::default(),
            returned: BTreeMap::new(),
            gaps: Gaps::default(),
            bitmap_lost,
            began,
        })
    }

    /// Everything is sound: the next repair starts without this one's marks.
    pub(super) async fn finish(mfs: &Mfs) -> Result<(), StoreError> {
        mfs.run(Cost::DELETE, |txn| match txn.root(UNFINISHED)? {
            0 => Ok(()),
            _ => txn.set_root(UNFINISHED, 0),
        })
        .await?;
        Ok(())
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
            Fix::LostBitmap(index) => self.lost_bitmap(*index).await,
            Fix::MarkUsed(first, len) => self.mark_used(*first, *len).await,
            Fix::FromLog(block) => self.restore_from_log(*block).await,
            Fix::FreeMeta(first, len) => self.free_meta(*first, *len).await,
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
            _ => self.fix_record(fix).await,
        }
    }

    /// Runs a transaction; returns whether it changed anything.
    async fn change(
        &self,
        mut body: impl FnMut(&mut Txn<'_>) -> Result<(), Stop>,
    ) -> Result<bool, StoreError> {
        Ok(self.mfs.run(Cost::DELETE, |txn| body(txn)).await?.1 != Transno::ZERO)
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

    async fn raise(&self, root: engine::format::roots::RootId, next: u64, what: &str) -> Done {
        let body = |txn: &mut Txn<'_>| {
            if txn.root(root)? < next { txn.set_root(root, next) } else { Ok(()) }
        };
        let done = self.change(body).await?;
        Ok(done.then(|| format!("the number of the next {what} was raised to {next}").into()))
    }

    async fn mark_used(&self, first: MetaBlock, len: u64) -> Done {
        self.change_with_report(|txn| {
            txn.mark_used(first, len)?;
            Ok(format!("{len} metadata blocks from {first} on are marked as allocated"))
        })
        .await
    }

    async fn free_meta(&self, first: MetaBlock, len: u64) -> Done {
        let (mut at, end) = (first.0, first.0 + len);
        while at < end {
            let n = (end - at).min(FREE_STEP);
            self.change(|txn| txn.free_meta(MetaBlock(at), n as u32)).await?;
            at += n;
        }
        Ok(Some(format!("{len} metadata blocks from {first} on became free").into()))
    }

    async fn restore_from_log(&mut self, block: MetaBlock) -> Done {
        let Some(data) = self.state.salvaged.found.remove(&block) else { return Ok(None) };
        let same = self.mfs.run(Cost::READ, |txn| Ok(txn.read(block)?[HEADER..] == data[HEADER..]));
        if let Ok((true, _)) = same.await {
            return Ok(None);
        }
        let Some(kind) = engine::format::block::type_of(&data) else { return Ok(None) };
        let done = self
            .change(|txn| {
                txn.init(block, kind)?[HEADER..].copy_from_slice(&data[HEADER..]);
                Ok(())
            })
            .await?;
        self.state.returned.insert(block, lsn_of(&data));
        let line = || format!("metadata block {block} ({}) came back from the log", kind.text());
        Ok(done.then(|| line().into()))
    }
}
