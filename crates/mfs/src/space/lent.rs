//! Space that a shard lends to another one, out of its free blocks. It stays there until the lender
//! takes it back ([`super::returned`]).
//!
//! Invariants:
//! - what is lent is in no other tree of the lender, and it is in a tree of the borrower from its
//!   entry on: there it is free, in a pool, mapped or freed as blocks of the borrower's own zones;
//! - the loans between two shards are numbered from 1 on, and no number comes twice: each side
//!   keeps the last one as a setting before it forgets blocks of a loan. The lender has one loan
//!   more than the borrower, or as many: a loan that the borrower asks for again is the same one;
//! - a lender keeps an eighth of each zone, and lends nothing that it has borrowed.

use std::collections::BTreeMap;

use types::limits::{BLOCK_U64, PAGS_MAX};
use types::{Fault, PagBlock, PagId, ShardId};

use super::pags::PagState;
use super::view::Space;
use crate::format::space::{
    LentRun, PagFormat, PagRecord, PagUse, RUN_KEY, ZoneKind, decode_run_key, pag_key, run_key,
};
use crate::handle::Mfs;
use crate::trees::{LENT, PAGS, insert_zero_entry_of_loans};
use engine::cost::Cost;
use engine::error::{Stop, StoreError};
use engine::format::features::Feature;

/// Runs of one loan at most.
pub const LOAN_RUNS: usize = 8;
/// Blocks of a loan, if the lender has plenty.
const LOAN_BLOCKS: u64 = (64 << 20) / BLOCK_U64;
/// A lender keeps one part in so many of a zone.
const KEPT: u64 = 8;
/// The setting with the last loan to a shard is this and its number, 4 bytes, little-endian.
const LAST_MADE: u32 = 3 << 29;
/// The same with the last loan that this shard has had from another one.
const LAST_HAD: u32 = LAST_MADE + (1 << 8);
/// A loan is at most one part in so many of what is free there.
const SHARE: u64 = 4;

/// Free space that one shard has lent to another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loan {
    /// The zone, as the lender has it.
    pub zone: PagFormat,
    /// First block and length of each run, in order.
    pub runs: Vec<(PagBlock, u64)>,
}

/// The setting with the last loan to (own zones) or from (borrowed ones) a shard.
fn last_key(with: ShardId, kind: ZoneKind) -> u32 {
    let first = if kind == ZoneKind::Borrowed { LAST_HAD } else { LAST_MADE };
    first + u32::from(with.0)
}

/// Blocks of a zone that can be lent now.
fn lendable(pag: &PagState) -> u64 {
    match (pag.kind, pag.state.grants()) {
        (ZoneKind::Blocks, true) => pag.free.saturating_sub(pag.total.div_ceil(KEPT)),
        _ => 0,
    }
}

impl Space<'_, '_> {
    /// Lends about `blocks` free blocks of one zone to the shard `to`: more if there is plenty,
    /// fewer if there is little. With the sequence of the last loan that is the same one again, if
    /// its zone still grants blocks.
    ///
    /// # Errors
    /// `NoSpace`: nothing can be lent. `Invalid`: it is neither the last loan nor the next one, or
    /// the file system does not have the feature `lent-space`.
    pub fn lend(&mut self, to: ShardId, sequence: u32, blocks: u64) -> Result<Loan, Stop> {
        let pags = self.pags()?;
        let last = self.last_loan(&pags, to, ZoneKind::Blocks)?;
        if !self.txn.has_feature(Feature::LENT_SPACE) || sequence == 0 || to == self.txn.shard() {
            return Err(Fault::Invalid.into());
        }
        if sequence == last {
            let (loan, grants) = self.loan_again(&pags, to, sequence)?;
            if grants {
                return Ok(loan);
            }
            // The borrower has not entered it, as it asks again, and could grant nothing of it.
            for &(start, len) in &loan.runs {
                LENT.remove(self.txn, &run_key(loan.zone.id, start.0))?;
                self.add_free(loan.zone.id, start.0, len)?;
            }
        } else if last.checked_add(1) != Some(sequence) {
            return Err(Fault::Invalid.into());
        }
        let pag = pags.iter().max_by_key(|pag| (lendable(pag), std::cmp::Reverse(pag.id)));
        let pag = pag.filter(|pag| lendable(pag) > 0).ok_or(Stop::Fault(Fault::NoSpace))?;
        let most = (pag.free / SHARE).max(1).min(lendable(pag));
        let mut left = blocks.max(LOAN_BLOCKS).min(most);
        let mut loan = Loan { zone: pag.zone(), runs: Vec::new() };
        for run in self.largest_runs(pag.id)? {
            // The end of the run: grants go on at its beginning.
            let len = run.1.min(left);
            let start = run.0 + run.1 - len;
            if len > 0 {
                self.take_free(pag.id, run, start, len)?;
                let lent = LentRun { len, shard: to, sequence };
                LENT.insert(self.txn, &run_key(pag.id, start), &lent.encode())?;
                loan.runs.push((PagBlock(start), len));
                left -= len;
            }
        }
        loan.runs.sort_unstable();
        if loan.runs.is_empty() { Err(Fault::NoSpace.into()) } else { Ok(loan) }
    }

    /// Can any block be lent?
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn can_lend(&mut self) -> Result<bool, Stop> {
        Ok(self.pags()?.iter().any(|pag| lendable(pag) > 0))
    }

    /// The loan of this number, which was made, and whether its zone grants blocks.
    fn loan_again(
        &mut self,
        pags: &[PagState],
        to: ShardId,
        sequence: u32,
    ) -> Result<(Loan, bool), Stop> {
        let (mut id, mut runs) = (None, Vec::new());
        for (pag, start, lent) in self.lent()? {
            let is_own = pags.iter().any(|it| it.id == pag && it.kind == ZoneKind::Blocks);
            if is_own && (lent.shard, lent.sequence) == (to, sequence) {
                id = Some(pag);
                runs.push((start, lent.len));
            }
        }
        let pag = pags.iter().find(|pag| Some(pag.id) == id).ok_or(Stop::Fault(Fault::Invalid))?;
        Ok((Loan { zone: pag.zone(), runs }, pag.state.grants()))
    }

    /// Enters what the shard `from` has lent: the runs become free here. A zone that drains here is
    /// in service again, as it is there. Does nothing if the loan is entered already, or was given
    /// back unacknowledged.
    ///
    /// # Errors
    /// `Invalid`: it is not the next loan, or cannot be; the number is another zone's; or the file
    /// system does not have the feature `lent-space`. `TooBig`: the table of zones is full.
    pub fn borrow(&mut self, from: ShardId, sequence: u32, loan: &Loan) -> Result<(), Stop> {
        let invalid = Err(Stop::Fault(Fault::Invalid));
        let (pags, zone) = (self.pags()?, &loan.zone);
        let last = self.last_loan(&pags, from, ZoneKind::Borrowed)?;
        if (1..=last).contains(&sequence) {
            return Ok(());
        }
        let is_next = last.checked_add(1) == Some(sequence);
        if !is_next
            || loan.runs.is_empty()
            || loan.runs.len() > LOAN_RUNS
            || from == self.txn.shard()
        {
            return invalid;
        }
        self.enter_zone(&pags, zone)?;
        if self.pag_use(zone.id)?.is_leaving() {
            self.set_pag_use(zone.id, PagUse::InService)?;
        }
        for &(start, len) in &loan.runs {
            let end = start.0.checked_add(len).filter(|&end| end <= zone.blocks);
            let Some(end) = end.filter(|_| start.0 > 0 && len > 0) else { return invalid };
            if self.is_lent(zone.id, start.0, end)? {
                return invalid;
            }
            let lent = LentRun { len, shard: from, sequence };
            LENT.insert(self.txn, &run_key(zone.id, start.0), &lent.encode())?;
            self.add_free(zone.id, start.0, len)?;
        }
        Ok(())
    }

    /// Enters a zone of another shard, if it is not in the table, which has `pags`.
    pub(super) fn enter_zone(&mut self, pags: &[PagState], zone: &PagFormat) -> Result<(), Stop> {
        let invalid = Err(Stop::Fault(Fault::Invalid));
        if !self.txn.has_feature(Feature::LENT_SPACE) || !zone.is_possible() {
            return invalid;
        }
        match pags.iter().find(|pag| pag.id == zone.id || pag.uuid == zone.uuid) {
            Some(pag) if pag.kind == ZoneKind::Borrowed && pag.zone() == *zone => Ok(()),
            Some(_) => invalid,
            None if pags.len() >= PAGS_MAX => Err(Fault::TooBig.into()),
            None if self.has_space(zone.id)? => invalid,
            None => {
                let record = PagRecord { kind: ZoneKind::Borrowed, ..PagRecord::new(zone, 0, 0) };
                PAGS.insert(self.txn, &pag_key(zone.id), &record.encode())?;
                Ok(())
            }
        }
    }

    /// The number of the next loan from this shard.
    ///
    /// # Errors
    /// `NoNumbers`: all were used. `Stop` of the blocks read.
    pub fn next_loan(&mut self, from: ShardId) -> Result<u32, Stop> {
        let pags = self.pags()?;
        let last = self.last_loan(&pags, from, ZoneKind::Borrowed)?;
        last.checked_add(1).ok_or(Stop::Fault(Fault::NoNumbers))
    }

    /// Every run that this shard has lent, or that was lent to it, by address.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn lent(&self) -> Result<Vec<(PagId, PagBlock, LentRun)>, Stop> {
        let mut out = Vec::new();
        LENT.for_each(self.txn, &[0; RUN_KEY], |key, value| {
            let (pag, start) = decode_run_key(key);
            if start.0 > 0 {
                out.push((pag, start, LentRun::decode(value)));
            }
            true
        })?;
        Ok(out)
    }

    /// For each zone of which blocks were lent, by whichever side: the other shards, each with how
    /// many blocks that are.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn lent_by_zone(&self) -> Result<BTreeMap<PagId, BTreeMap<ShardId, u64>>, Stop> {
        let mut out = BTreeMap::<PagId, BTreeMap<ShardId, u64>>::new();
        for (pag, _, lent) in self.lent()? {
            *out.entry(pag).or_default().entry(lent.shard).or_default() += lent.len;
        }
        Ok(out)
    }

    /// The last loan of the shard `from` that this one has had; 0: it has had none.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn last_had(&mut self, from: ShardId) -> Result<u32, Stop> {
        let pags = self.pags()?;
        self.last_loan(&pags, from, ZoneKind::Borrowed)
    }

    /// The last loan of the shard `from` of which this one has kept the number, 0 if none.
    pub(crate) fn kept_of(&mut self, from: ShardId) -> Result<u32, Stop> {
        self.kept_loan(from, ZoneKind::Borrowed)
    }

    /// The last loan of this shard to another one; 0: it has made none.
    pub(super) fn last_made(&mut self, to: ShardId) -> Result<u32, Stop> {
        let pags = self.pags()?;
        self.last_loan(&pags, to, ZoneKind::Blocks)
    }

    /// The last of the loans with this shard in zones of this kind; 0: there was none.
    fn last_loan(&mut self, pags: &[PagState], with: ShardId, kind: ZoneKind) -> Result<u32, Stop> {
        let of_kind = |id: PagId| pags.iter().any(|pag| pag.id == id && pag.kind == kind);
        let lent = self.lent()?.into_iter();
        let meant = lent.filter(|(pag, _, lent)| lent.shard == with && of_kind(*pag));
        let last = meant.map(|(_, _, lent)| lent.sequence).max().unwrap_or(0);
        Ok(last.max(self.kept_loan(with, kind)?))
    }

    fn kept_loan(&mut self, with: ShardId, kind: ZoneKind) -> Result<u32, Stop> {
        let kept = self.txn.setting(last_key(with, kind))?;
        let bytes = kept.and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
        Ok(bytes.map_or(0, u32::from_le_bytes))
    }

    /// Keeps the number of the last loan, whatever becomes of its blocks.
    pub(super) fn keep_last_loan(
        &mut self,
        with: ShardId,
        kind: ZoneKind,
        last: u32,
    ) -> Result<(), Stop> {
        match self.kept_loan(with, kind)? < last {
            true => self.txn.set_setting(last_key(with, kind), &last.to_le_bytes()),
            false => Ok(()),
        }
    }

    /// The run that is lent to or by this shard and has all blocks of `[start, end)`.
    pub(super) fn lent_around(
        &self,
        with: ShardId,
        pag: PagId,
        (start, end): (u64, u64),
    ) -> Result<Option<(u64, LentRun)>, Stop> {
        let found = LENT.prev(self.txn, &run_key(pag, start))?;
        let run = found.map(|(key, value)| (decode_run_key(&key), LentRun::decode(&value)));
        Ok(run.and_then(|((of, from), run)| {
            let is_it = (of, run.shard) == (pag, with);
            (is_it && from.0 > 0 && from.0 + run.len >= end).then_some((from.0, run))
        }))
    }

    /// Blocks of a run that is lent are so no more; what is before and behind them stays so.
    ///
    /// # Errors
    /// `Invalid`: no run has them all.
    pub(super) fn forget_lent(
        &mut self,
        with: ShardId,
        pag: PagId,
        (start, len): (u64, u64),
    ) -> Result<(), Stop> {
        let end = start.checked_add(len).filter(|_| len > 0).ok_or(Stop::Fault(Fault::Invalid))?;
        let found = self.lent_around(with, pag, (start, end))?;
        let (from, run) = found.ok_or(Stop::Fault(Fault::Invalid))?;
        LENT.remove(self.txn, &run_key(pag, from))?;
        self.set_lent(pag, (from, start), run)?;
        self.set_lent(pag, (end, from + run.len), run)
    }

    /// Enters a run like `run`, if it has blocks.
    pub(super) fn set_lent(
        &mut self,
        pag: PagId,
        (from, to): (u64, u64),
        run: LentRun,
    ) -> Result<(), Stop> {
        if from < to {
            let run = LentRun { len: to - from, ..run };
            LENT.insert(self.txn, &run_key(pag, from), &run.encode())?;
        }
        Ok(())
    }

    /// The shard to which this one has lent a block of its own zone, or where it went with a file.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn lent_to(&mut self, pag: PagId, at: PagBlock) -> Result<Option<ShardId>, Stop> {
        if self.pag(pag)?.is_none_or(|record| record.kind != ZoneKind::Blocks) {
            return Ok(None);
        }
        let found = LENT.prev(self.txn, &run_key(pag, at.0))?;
        let run = found.map(|(key, value)| (decode_run_key(&key), LentRun::decode(&value)));
        let has = |&((of, start), run): &((PagId, PagBlock), LentRun)| {
            of == pag && start.0 > 0 && start.0 + run.len > at.0
        };
        Ok(run.filter(has).map(|(_, run)| run.shard))
    }

    /// Is a block of `[start, end)` lent?
    pub(super) fn is_lent(&self, pag: PagId, start: u64, end: u64) -> Result<bool, Stop> {
        let Some((key, value)) = LENT.prev(self.txn, &run_key(pag, end - 1))? else {
            return Ok(false);
        };
        let (of, from) = decode_run_key(&key);
        Ok(of == pag && from.0 + LentRun::decode(&value).len > start)
    }
}

impl Mfs {
    /// Gives the file system the feature `lent-space`, if it does not have it. The superblocks say
    /// so before any space is lent.
    ///
    /// # Errors
    /// As [`Mfs::run`].
    pub async fn add_lent_space(&self) -> Result<(), StoreError> {
        let features = self.superblock().features;
        let is_new = !features.has(Feature::LENT_SPACE);
        self.set_features(features.with(Feature::LENT_SPACE));
        if is_new {
            // A crash may have left the entry without the feature. What changes nothing would have
            // no superblock written.
            self.run(Cost::SMALL, |txn| LENT.remove(txn, &[0; RUN_KEY]).map(drop)).await?;
            self.run(Cost::SMALL, insert_zero_entry_of_loans).await?;
        }
        // The entry of zeros is none.
        let first = run_key(PagId(0), 1);
        let has_loans = self.run(Cost::READ, |txn| Ok(LENT.next(txn, &first)?.is_some()));
        // Before the first loan each call waits, also if another one has begun that.
        if !has_loans.await?.0 {
            self.settle().await?;
        }
        Ok(())
    }
}
