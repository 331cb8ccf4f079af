//! Parts of files: who holds which blocks under `DATA_P`.
//!
//! Invariants:
//! - parts are granted, asked back and given up under the sequence of the client's lease on the
//!   inode, as all rights are;
//! - of one client and inode one range is asked back at a time: a further recall asks for the
//!   smallest range that contains both.

use types::limits::PARTS_MAX;
use types::{BlockRange, ClientId, Ino, Part, Rights};

use super::{LeaseTable, Recall};
use crate::parts::Parts;

/// What a client holds of an inode.
#[derive(Clone, Debug)]
pub(super) struct Holding {
    client: ClientId,
    parts: Parts,
    /// What is asked back of it; `DATA_P` is among the rights asked back then.
    pub(super) asked: Option<BlockRange>,
}

impl Holding {
    /// Gives up `range`, or everything. Is a part left, and one still asked back?
    pub(super) fn give(&mut self, range: Option<BlockRange>) -> (bool, bool) {
        let range = range.unwrap_or(BlockRange::ALL);
        self.parts.remove(range);
        if self.asked.is_some_and(|asked| range.contains(asked)) {
            self.asked = None;
        }
        (!self.parts.is_empty(), self.asked.is_some())
    }
}

/// What `client` holds among `holdings`.
pub(super) fn of(holdings: Option<&mut [Holding]>, client: ClientId) -> Option<&mut Holding> {
    holdings?.iter_mut().find(|holding| holding.client == client)
}

impl LeaseTable {
    fn holding(&self, client: ClientId, ino: Ino) -> Option<&Holding> {
        self.parts.get(&ino)?.iter().find(|holding| holding.client == client)
    }

    fn others_parts(&self, client: ClientId, ino: Ino) -> impl Iterator<Item = &Holding> {
        let holdings = self.parts.get(&ino).into_iter().flatten();
        holdings.filter(move |holding| holding.client != client)
    }

    /// Parts in the table.
    pub fn parts_len(&self) -> usize {
        self.parts.values().flatten().map(|holding| holding.parts.len()).sum()
    }

    /// Does `client` hold every block of `part`, also if it is asked back?
    pub fn holds_part(&self, client: ClientId, ino: Ino, part: Part) -> bool {
        self.holding(client, ino).is_some_and(|holding| holding.parts.covers(part))
    }

    /// As [`LeaseTable::holds_part`], and nothing of the file is asked back.
    pub fn keeps_part(&self, client: ClientId, ino: Ino, part: Part) -> bool {
        let holding = self.holding(client, ino).filter(|holding| holding.asked.is_none());
        holding.is_some_and(|holding| holding.parts.covers(part))
    }

    /// Clients other than `client` that hold what excludes `part`.
    pub fn part_conflicts(&self, client: ClientId, ino: Ino, part: Part) -> Vec<ClientId> {
        let others = self.others_parts(client, ino);
        others.filter(|holding| holding.parts.conflicts(part)).map(|h| h.client).collect()
    }

    /// Who holds parts.
    pub fn part_holders(&self, ino: Ino) -> Vec<ClientId> {
        self.parts.get(&ino).into_iter().flatten().map(|holding| holding.client).collect()
    }

    /// Can `client` be given `part` without a recall?
    pub fn is_part_grantable(&self, client: ClientId, ino: Ino, part: Part) -> bool {
        let held = self.holding(client, ino).map_or(0, |holding| holding.parts.len());
        held < PARTS_MAX && self.is_part_free(client, ino, part)
    }

    fn is_part_free(&self, client: ClientId, ino: Ino, part: Part) -> bool {
        !self.rights(client, ino).intersects(Rights::WHOLE)
            && self.grantable(client, ino, Rights::DATA_P).contains(Rights::DATA_P)
            && self.part_conflicts(client, ino, part).is_empty()
    }

    /// `range` grown within `limit` as far as no other client has anything.
    pub fn room_around(
        &self,
        client: ClientId,
        ino: Ino,
        range: BlockRange,
        limit: BlockRange,
    ) -> BlockRange {
        let others = self.others_parts(client, ino);
        others.fold(limit.hull(range), |room, holding| {
            if holding.parts.within(range).next().is_some() {
                return range;
            }
            holding.parts.gap_around(range, room)
        })
    }

    /// Gives `client` `part` of `ino`, which must be grantable. Did it hold less before?
    pub fn grant_part(&mut self, client: ClientId, ino: Ino, part: Part) -> bool {
        assert!(self.is_part_free(client, ino, part), "a grant of a part conflicts");
        if part.range.is_empty() {
            return false;
        }
        let had = self.rights(client, ino).contains(Rights::DATA_P);
        self.grant(client, ino, Rights::DATA_P);
        let holdings = self.parts.entry(ino).or_default();
        if of(Some(holdings.as_mut_slice()), client).is_none() {
            holdings.push(Holding { client, parts: Parts::default(), asked: None });
        }
        let holding = of(Some(holdings.as_mut_slice()), client).expect("just made");
        let grew = holding.parts.insert(part);
        if grew && had {
            let seq = self.last_seq + 1;
            if let Some(holder) = self.inodes.get_mut(&ino).and_then(|h| h.get_mut(client)) {
                holder.seq = seq;
                self.last_seq = seq;
            }
        }
        grew
    }

    /// Asks every client but `except` for the blocks of `part` that exclude it. Yields the recalls
    /// to push: none for what is asked back already.
    pub fn recall_part(&mut self, except: ClientId, ino: Ino, part: Part) -> Vec<Recall> {
        let (Some(holders), Some(holdings)) = (self.inodes.get_mut(&ino), self.parts.get_mut(&ino))
        else {
            return Vec::new();
        };
        let mut out = Vec::new();
        let others = holdings.iter_mut().filter(|holding| holding.client != except);
        for holding in others.filter(|holding| holding.parts.conflicts(part)) {
            let asked = holding.asked.unwrap_or_default();
            if holding.asked.is_some() && asked.contains(part.range) {
                continue;
            }
            let Some(holder) = holders.get_mut(holding.client) else { continue };
            holding.asked = Some(asked.hull(part.range));
            self.last_seq += 1;
            holder.seq = self.last_seq;
            holder.asked |= Rights::DATA_P;
            let (client, seq, take) = (holder.client, holder.seq, holder.asked);
            out.push(Recall { client, ino, seq, take, part: holding.asked });
        }
        out
    }

    /// What of the parts of `client` is asked back; `None`: all, or none.
    pub(super) fn asked_part(&self, client: ClientId, ino: Ino) -> Option<BlockRange> {
        let asked = self.holding(client, ino)?.asked;
        asked.filter(|&asked| asked != BlockRange::ALL)
    }

    /// Puts parts back that `client` held before the server's restart. Yields those that another
    /// client has claimed first.
    pub fn reclaim_parts(&mut self, client: ClientId, ino: Ino, parts: &[Part]) -> Vec<Part> {
        let mut refused = Vec::new();
        for &part in parts {
            // Recalls of pieces may have made more of them than are granted.
            if self.is_part_free(client, ino, part) {
                self.grant_part(client, ino, part);
            } else {
                refused.push(part);
            }
        }
        if let Some(holder) = self.inodes.get_mut(&ino).and_then(|h| h.get_mut(client)) {
            holder.seq = self.first_seq;
        }
        refused
    }

    pub(super) fn drop_parts(&mut self, client: ClientId, ino: Ino) {
        if self.parts.is_empty() {
            return;
        }
        if let Some(holdings) = self.parts.get_mut(&ino) {
            holdings.retain(|holding| holding.client != client);
            if holdings.is_empty() {
                self.parts.remove(&ino);
            }
        }
    }

    pub(super) fn validate_parts(&self) {
        for (&ino, holdings) in &self.parts {
            assert!(!holdings.is_empty());
            for (index, holding) in holdings.iter().enumerate() {
                holding.parts.validate();
                assert!(!holding.parts.is_empty(), "an empty holding is kept");
                let holder = self.holder(holding.client, ino).expect("parts without a lease");
                assert!(holder.rights.contains(Rights::DATA_P));
                assert_eq!(holding.asked.is_some(), holder.asked.contains(Rights::DATA_P));
                for other in &holdings[index + 1..] {
                    assert_ne!(holding.client, other.client);
                    for part in other.parts.iter() {
                        assert!(!holding.parts.conflicts(part), "{holding:?} {other:?}");
                    }
                }
            }
        }
        let with = self.inodes.iter().flat_map(|(ino, holders)| {
            holders.iter().filter(|h| h.rights.contains(Rights::DATA_P)).map(move |h| (h, ino))
        });
        for (holder, &ino) in with {
            assert!(self.holding(holder.client, ino).is_some(), "DATA_P without a part");
        }
    }
}
