//! Ranges of files: which client holds which blocks under `DATA_P`.
//!
//! Invariants:
//! - ranges are granted, recalled and given up under the sequence of the client's lease on the
//!   inode, as all rights are;
//! - of one client and inode, one range is being recalled at a time: a further recall asks for the
//!   smallest range that contains both.

use types::limits::RANGES_MAX;
use types::{BlockRange, ClientId, HeldRange, Ino, Rights};

use super::{LeaseTable, Recall};
use crate::ranges::HeldRanges;

/// The ranges that a client holds of an inode.
#[derive(Clone, Debug)]
pub(super) struct RangeHolding {
    client: ClientId,
    ranges: HeldRanges,
    /// The range being recalled; `DATA_P` is then among the rights being recalled.
    pub(super) recalled: Option<BlockRange>,
}

impl RangeHolding {
    /// Gives up `range`, or everything. Returns whether a range is left, and whether a recall is
    /// still pending.
    pub(super) fn give(&mut self, range: Option<BlockRange>) -> (bool, bool) {
        let range = range.unwrap_or(BlockRange::ALL);
        self.ranges.remove(range);
        if self.recalled.is_some_and(|recalled| range.contains(recalled)) {
            self.recalled = None;
        }
        (!self.ranges.is_empty(), self.recalled.is_some())
    }
}

/// The holding of `client` among `holdings`.
pub(super) fn of(
    holdings: Option<&mut [RangeHolding]>,
    client: ClientId,
) -> Option<&mut RangeHolding> {
    holdings?.iter_mut().find(|holding| holding.client == client)
}

impl LeaseTable {
    fn holding(&self, client: ClientId, ino: Ino) -> Option<&RangeHolding> {
        self.ranges.get(&ino)?.iter().find(|holding| holding.client == client)
    }

    fn others_ranges(&self, client: ClientId, ino: Ino) -> impl Iterator<Item = &RangeHolding> {
        let holdings = self.ranges.get(&ino).into_iter().flatten();
        holdings.filter(move |holding| holding.client != client)
    }

    /// Ranges in the table.
    pub fn ranges_len(&self) -> usize {
        self.ranges.values().flatten().map(|holding| holding.ranges.len()).sum()
    }

    /// Does `client` hold every block of `wanted`, even if its recall is pending?
    pub fn holds_range(&self, client: ClientId, ino: Ino, wanted: HeldRange) -> bool {
        self.holding(client, ino).is_some_and(|holding| holding.ranges.covers(wanted))
    }

    /// As [`LeaseTable::holds_range`], and no recall of ranges of the file is pending.
    pub fn keeps_range(&self, client: ClientId, ino: Ino, wanted: HeldRange) -> bool {
        let holding = self.holding(client, ino).filter(|holding| holding.recalled.is_none());
        holding.is_some_and(|holding| holding.ranges.covers(wanted))
    }

    /// Clients other than `client` that hold blocks in conflict with `wanted`.
    pub fn range_conflicts(&self, client: ClientId, ino: Ino, wanted: HeldRange) -> Vec<ClientId> {
        let others = self.others_ranges(client, ino);
        others.filter(|holding| holding.ranges.conflicts(wanted)).map(|h| h.client).collect()
    }

    /// The clients that hold ranges.
    pub fn range_holders(&self, ino: Ino) -> Vec<ClientId> {
        self.ranges.get(&ino).into_iter().flatten().map(|holding| holding.client).collect()
    }

    /// Can `client` get `wanted` without a recall?
    pub fn is_range_grantable(&self, client: ClientId, ino: Ino, wanted: HeldRange) -> bool {
        let held = self.holding(client, ino).map_or(0, |holding| holding.ranges.len());
        held < RANGES_MAX && self.is_range_free(client, ino, wanted)
    }

    fn is_range_free(&self, client: ClientId, ino: Ino, wanted: HeldRange) -> bool {
        !self.rights(client, ino).intersects(Rights::WHOLE)
            && self.grantable(client, ino, Rights::DATA_P).contains(Rights::DATA_P)
            && self.range_conflicts(client, ino, wanted).is_empty()
    }

    /// Extends `range` within `limit` as far as no other client holds a block.
    pub fn room_around(
        &self,
        client: ClientId,
        ino: Ino,
        range: BlockRange,
        limit: BlockRange,
    ) -> BlockRange {
        let others = self.others_ranges(client, ino);
        others.fold(limit.hull(range), |room, holding| {
            if holding.ranges.within(range).next().is_some() {
                return range;
            }
            holding.ranges.gap_around(range, room)
        })
    }

    /// Grants `client` `wanted` of `ino`, which must be grantable. Did it hold less before?
    pub fn grant_range(&mut self, client: ClientId, ino: Ino, wanted: HeldRange) -> bool {
        assert!(self.is_range_free(client, ino, wanted), "a grant of a range conflicts");
        if wanted.range.is_empty() {
            return false;
        }
        let had = self.rights(client, ino).contains(Rights::DATA_P);
        self.grant(client, ino, Rights::DATA_P);
        let holdings = self.ranges.entry(ino).or_default();
        if of(Some(holdings.as_mut_slice()), client).is_none() {
            holdings.push(RangeHolding { client, ranges: HeldRanges::default(), recalled: None });
        }
        let holding = of(Some(holdings.as_mut_slice()), client).expect("just made");
        let grew = holding.ranges.insert(wanted);
        if grew && had {
            let seq = self.last_seq + 1;
            if let Some(holder) = self.inodes.get_mut(&ino).and_then(|h| h.get_mut(client)) {
                holder.seq = seq;
                self.last_seq = seq;
            }
        }
        grew
    }

    /// Recalls from every client but `except` the blocks of `wanted` in conflict with it. Returns
    /// the recalls to push: none for blocks whose recall is already pending.
    pub fn recall_range(&mut self, except: ClientId, ino: Ino, wanted: HeldRange) -> Vec<Recall> {
        let (Some(holders), Some(holdings)) =
            (self.inodes.get_mut(&ino), self.ranges.get_mut(&ino))
        else {
            return Vec::new();
        };
        let mut out = Vec::new();
        let others = holdings.iter_mut().filter(|holding| holding.client != except);
        for holding in others.filter(|holding| holding.ranges.conflicts(wanted)) {
            let recalled = holding.recalled.unwrap_or_default();
            if holding.recalled.is_some() && recalled.contains(wanted.range) {
                continue;
            }
            let Some(holder) = holders.get_mut(holding.client) else { continue };
            holding.recalled = Some(recalled.hull(wanted.range));
            self.last_seq += 1;
            holder.seq = self.last_seq;
            holder.recalled |= Rights::DATA_P;
            let (client, seq, take) = (holder.client, holder.seq, holder.recalled);
            out.push(Recall { client, ino, seq, take, range: holding.recalled });
        }
        out
    }

    /// The range of `client` that is being recalled; `None`: all, or none.
    pub(super) fn recalled_range(&self, client: ClientId, ino: Ino) -> Option<BlockRange> {
        let recalled = self.holding(client, ino)?.recalled;
        recalled.filter(|&recalled| recalled != BlockRange::ALL)
    }

    /// Restores ranges that `client` held before the server's restart. Returns those in conflict
    /// with an earlier claim of another client.
    pub fn reclaim_ranges(
        &mut self,
        client: ClientId,
        ino: Ino,
        ranges: &[HeldRange],
    ) -> Vec<HeldRange> {
        let mut refused = Vec::new();
        for &wanted in ranges {
            // Recalls of pieces may have split them into more ranges than a grant allows.
            if self.is_range_free(client, ino, wanted) {
                self.grant_range(client, ino, wanted);
            } else {
                refused.push(wanted);
            }
        }
        if let Some(holder) = self.inodes.get_mut(&ino).and_then(|h| h.get_mut(client)) {
            holder.seq = self.first_seq;
        }
        refused
    }

    pub(super) fn drop_ranges(&mut self, client: ClientId, ino: Ino) {
        if self.ranges.is_empty() {
            return;
        }
        if let Some(holdings) = self.ranges.get_mut(&ino) {
            holdings.retain(|holding| holding.client != client);
            if holdings.is_empty() {
                self.ranges.remove(&ino);
            }
        }
    }

    pub(super) fn validate_ranges(&self) {
        for (&ino, holdings) in &self.ranges {
            assert!(!holdings.is_empty());
            for (index, holding) in holdings.iter().enumerate() {
                holding.ranges.validate();
                assert!(!holding.ranges.is_empty(), "the table keeps an empty holding");
                let holder = self.holder(holding.client, ino).expect("ranges without a lease");
                assert!(holder.rights.contains(Rights::DATA_P));
                assert_eq!(holding.recalled.is_some(), holder.recalled.contains(Rights::DATA_P));
                for other in &holdings[index + 1..] {
                    assert_ne!(holding.client, other.client);
                    for wanted in other.ranges.iter() {
                        assert!(!holding.ranges.conflicts(wanted), "{holding:?} {other:?}");
                    }
                }
            }
        }
        let with = self.inodes.iter().flat_map(|(ino, holders)| {
            holders.iter().filter(|h| h.rights.contains(Rights::DATA_P)).map(move |h| (h, ino))
        });
        for (holder, &ino) in with {
            assert!(self.holding(holder.client, ino).is_some(), "DATA_P without a range");
        }
    }
}
