//! Fixes for what the engine's half of the check finds, and its reads of blocks and trees for this
//! half.

use types::MetaBlock;

use super::plan::{Fix, TreeName};
use super::{Check, Problem, ProblemKind, Subject};
use crate::txn::Txn;
use engine::alloc::metaspace::bitmap_blocks;
use engine::btree::Tree;
use engine::check::{self, Checker, Claims, Finding, Mismatch, readable};
use engine::cost::Cost;
use engine::error::{Stop, StoreError};
use engine::format::blob::BlobOwner;
use engine::store::Store;

impl Checker for Check {
    fn store(&self) -> &Store {
        &self.mfs
    }

    fn claims(&mut self) -> &mut Claims {
        &mut self.blocks
    }

    fn note(&mut self, finding: Finding) {
        if let Some(Problem { kind, subject, detail }) = Problem::of(&finding) {
            self.found(kind, subject, detail);
        }
        self.plan_for(finding);
    }
}

impl Check {
    /// Plans the fix for what the engine has found.
    fn plan_for(&mut self, finding: Finding) {
        match finding {
            Finding::Damaged(block, _) | Finding::WrongBlob(_, block, _) => {
                self.plan.add(Fix::FromLog(block));
            }
            Finding::Shared(taken, _) => self.shared.extend(taken),
            Finding::BrokenTree(tree) => self.rebuild(TreeName::at(tree)),
            Finding::LostNode { tree, low, high } => {
                let name = TreeName::at(tree);
                if name == Some(TreeName::Segments) {
                    self.gaps.node(low.as_deref(), high.as_deref());
                }
                self.rebuild(name);
            }
            Finding::LostBitmap(index) => self.plan.add(Fix::LostBitmap(index)),
            Finding::UnissuedClient(client) => {
                self.plan.add(Fix::NextClient(client.count() + 1));
            }
            Finding::LostDescription(client) => {
                self.note_missing_blob(BlobOwner::client(client), None, Fix::DropInfo(client));
            }
            Finding::StrayReply(key) | Finding::LostReply(key) => {
                self.plan.add(Fix::DropReply(key));
            }
            Finding::LostReplies(block) => self.plan.add(Fix::EmptyReplies(block)),
            Finding::BadSetting(key) => self.plan.add(Fix::DropSetting(key.to_be_bytes())),
            // Repair writes label and journal anew; it can do nothing about the others, or another
            // finding has the fix.
            Finding::DamagedLabel(_)
            | Finding::DamagedJournal(_)
            | Finding::Unreadable
            | Finding::Outside(..)
            | Finding::ForeignClient(..)
            | Finding::BadDescription(_)
            | Finding::BadReplies(_) => {}
        }
    }

    fn rebuild(&mut self, name: Option<TreeName>) {
        if let Some(name) = name {
            self.plan.add(Fix::Rebuild(name));
        }
    }

    /// As [`check::read`], with a body of the file system.
    pub(super) async fn read<T>(
        &mut self,
        body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>,
    ) -> Result<Option<T>, StoreError> {
        let result = self.mfs.run(Cost::READ, body).await;
        readable(self, result)
    }

    /// As [`check::claim`].
    pub(super) fn claim(&mut self, first: MetaBlock, len: u64, what: &str) -> bool {
        check::claim(self, first, len, what)
    }

    /// As [`check::walk`].
    pub(super) async fn walk<const K: usize, const V: usize>(
        &mut self,
        (tree, what): (Tree<K, V>, &str),
        each: impl FnMut(&mut Check, &[u8; K], &[u8; V]),
    ) -> Result<(), StoreError> {
        check::walk(self, tree, what, each).await
    }

    /// Compares the bitmap with what is in use.
    pub(super) async fn bitmap(&mut self) -> Result<(), StoreError> {
        for index in 0..bitmap_blocks(self.blocks.blocks) {
            for mismatch in check::mismatches(self, index).await? {
                match mismatch {
                    Mismatch::Lost(first, end) => self.lost_blocks(first, end).await?,
                    Mismatch::MarkedFree(first, end) => self.used_run(first, end - first),
                }
            }
        }
        self.report.counts.meta_blocks = self.blocks.count();
        Ok(())
    }

    /// Blocks `from..to` are allocated without an owner: plans to free them, unless they are
    /// stranded.
    async fn lost_blocks(&mut self, first: u64, to: u64) -> Result<(), StoreError> {
        let mut from = first;
        for block in first..to {
            if self.strands(MetaBlock(block)).await? {
                self.lost_run(from, block - from);
                from = block + 1;
            }
        }
        self.lost_run(from, to - from);
        Ok(())
    }

    fn lost_run(&mut self, first: u64, len: u64) {
        if len > 0 {
            let first = MetaBlock(first);
            let detail = format!("{len} blocks");
            self.found(ProblemKind::LostMetaBlock, Subject::Block(first), detail);
            self.plan.add(Fix::FreeMeta(first, len));
        }
    }

    /// `len` blocks from `first` on are in use and marked free.
    fn used_run(&mut self, first: u64, len: u64) {
        let first = MetaBlock(first);
        self.found(ProblemKind::FreeMetaBlock, Subject::Block(first), format!("{len} blocks"));
        self.plan.add(Fix::MarkUsed(first, len));
    }
}
