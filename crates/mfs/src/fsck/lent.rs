//! Data space that shards have lent to each other.
//!
//! Invariants:
//! - what this shard has lent counts as another owner of its blocks. In a zone of another shard all
//!   blocks that it has *not* lent count so: what is left must have exactly one owner here;
//! - where the tree of lent space has an entry that makes no sense, its blocks count as lent;
//! - repair makes no block free of which it does not know whether another shard has it.

use std::collections::BTreeMap;

use types::{PagBlock, PagId, ShardId};

use super::across::Loans;
use super::plan::Fix;
use super::space::{Owner, Piece, Zones};
use super::{Check, ProblemKind, Subject};
use crate::format::space::{LENT_VALUE, LentRun, ZoneKind, decode_run_key};
use crate::trees::LENT;
use engine::error::StoreError;
use engine::format::features::Feature;

impl Check {
    /// Reads which blocks were lent, by this shard or to it, and notes which are not this shard's.
    pub(super) async fn lent(&mut self, pags: &Zones) -> Result<(), StoreError> {
        let (mut runs, mut is_whole) = (Vec::new(), false);
        self.walk((LENT, "lent space"), |check, key, value| {
            let (pag, start) = decode_run_key(key);
            if start.0 > 0 || *value != [0; LENT_VALUE] {
                check.require_lent_space();
                runs.push((pag, start, LentRun::decode(value)));
            } else {
                is_whole = true;
            }
        })
        .await?;
        if self.features.has(Feature::LENT_SPACE) {
            let own = self.shard;
            for other in (0..=u8::MAX).map(ShardId).filter(|other| *other != own) {
                let last = self.read(|txn| txn.space().kept_of(other)).await?;
                if let Some(last) = last.filter(|last| *last > 0) {
                    self.report.shard.loans.last_had.insert(other, last);
                }
            }
        }
        // A tree that has lost something may have lost its entry of zeros, too.
        let is_unused = is_whole && runs.is_empty();
        let mut borrowed = BTreeMap::<PagId, Vec<(u64, u64)>>::new();
        let mut lenders = BTreeMap::<PagId, ShardId>::new();
        for (pag, start, lent) in runs {
            let kind = pags.get(&pag).map(|record| record.kind);
            if let Some(what) = self.why_no_loan(&lent, kind) {
                self.found(ProblemKind::BadLoan, Subject::Data(pag, start), what);
            }
            let loans = &mut self.report.shard.loans;
            if kind != Some(ZoneKind::Borrowed) {
                self.lent_by(pag, start, &lent);
                let piece = Piece::new(pag, start.0, lent.len, Owner::Lent(lent.shard));
                self.piece(piece.ok_or((pag, Owner::Lent(lent.shard))));
                continue;
            }
            loans.had.insert((lent.shard, pag, start), (lent.len, lent.sequence));
            borrowed.entry(pag).or_default().push((start.0, lent.len));
            if *lenders.entry(pag).or_insert(lent.shard) != lent.shard {
                let detail = format!("shards {} and {} have lent it", lenders[&pag], lent.shard);
                self.found(ProblemKind::BadLoan, Subject::Data(pag, start), detail);
            }
        }
        for (&pag, record) in pags.iter().filter(|(_, it)| it.kind == ZoneKind::Borrowed) {
            self.require_lent_space();
            let runs = borrowed.remove(&pag).unwrap_or_default();
            let lender = lenders.get(&pag).copied().unwrap_or(self.shard);
            self.not_borrowed((pag, record.blocks), lender, &runs);
        }
        self.may_have_lent = self.features.has(Feature::LENT_SPACE) && !is_unused;
        Ok(())
    }

    fn lent_by(&mut self, pag: PagId, start: PagBlock, lent: &LentRun) {
        let had = (lent.len, lent.sequence);
        self.report.shard.loans.given.insert((lent.shard, pag, start), had);
    }

    /// Why an entry cannot be.
    fn why_no_loan(&self, lent: &LentRun, kind: Option<ZoneKind>) -> Option<&'static str> {
        match kind {
            None => Some("its data zone is not in the table"),
            Some(ZoneKind::Target) => Some("its data zone is a target"),
            Some(_) if lent.shard == self.shard => Some("the other shard is this one"),
            Some(_) => None,
        }
    }

    /// Notes which blocks of a zone of another shard that one has not lent.
    fn not_borrowed(&mut self, (pag, blocks): (PagId, u64), lender: ShardId, runs: &[(u64, u64)]) {
        let mut at = 1;
        for &(start, len) in runs {
            let Some(end) =
                start.checked_add(len).filter(|&end| start >= at && len > 0 && end <= blocks)
            else {
                let detail = format!("{len} blocks overlap others, or lie outside");
                self.found(ProblemKind::BadLoan, Subject::Data(pag, PagBlock(start)), detail);
                continue;
            };
            self.not_lent(pag, (at, start), lender);
            at = end;
        }
        self.not_lent(pag, (at, blocks), lender);
    }

    fn not_lent(&mut self, pag: PagId, (from, to): (u64, u64), lender: ShardId) {
        if from < to {
            let owner = Owner::Lent(lender);
            self.piece(Piece::new(pag, from, to - from, owner).ok_or((pag, owner)));
        }
    }

    /// The feature `lent-space` is in use.
    fn require_lent_space(&mut self) {
        if !self.features.has(Feature::LENT_SPACE) {
            self.features = self.features.with(Feature::LENT_SPACE);
            self.found(ProblemKind::MissingFeature, Subject::Whole, "lent-space");
            self.plan.add(Fix::AddFeature(Feature::LENT_SPACE));
        }
    }
}

impl Loans {
    /// Has the shard neither lent nor borrowed anything?
    pub fn is_empty(&self) -> bool {
        self.given.is_empty() && self.had.is_empty()
    }
}
