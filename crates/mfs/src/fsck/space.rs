//! Layouts and data space: every data block has exactly one owner.

use std::collections::{BTreeMap, BTreeSet};

use types::{ClientId, FileKind, Ino, PagBlock, PagId, Segment, ShardId};

use super::plan::{Fix, TreeName};
use super::{Check, ProblemKind, Subject};
use crate::format::segment::{behind_block_0, decode_item};
use crate::format::space::{
    FreedRun, PagRecord, PagUse, ZoneKind, decode_pool_key, decode_run_key, run_key,
};
use crate::trees::{FREE, FREED, PAGS, POOLS, SEGMENTS};
use engine::error::StoreError;

/// Who owns a run of data blocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Owner {
    Free,
    Pool(ClientId),
    File(Ino),
    Freed(Ino),
    /// This shard has lent it to that one; of a zone of another shard: that one has not lent it.
    Lent(ShardId),
}

/// A run of data blocks with its owner, in 24 bytes: there is one for each segment.
///
/// Invariant: its blocks lie below 2^48, so that zone and first block are one word that sorts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Piece {
    /// Zone in the high 16 bits, first block in the others.
    at: u64,
    /// Kind of the owner in the high 8 bits, length in the others.
    len: u64,
    /// Number of the owner.
    who: u64,
}

/// The table of data zones.
pub(super) type Zones = BTreeMap<PagId, PagRecord>;

const START_BITS: u32 = 48;
const LEN_BITS: u32 = 56;
const START_END: u64 = 1 << START_BITS;

impl Piece {
    /// `None` if it cannot be in any zone.
    pub(super) fn new(pag: PagId, start: u64, len: u64, owner: Owner) -> Option<Piece> {
        let (kind, who) = match owner {
            Owner::Free => (0, 0),
            Owner::Pool(client) => (1, client.0),
            Owner::File(ino) => (2, ino.0),
            Owner::Freed(ino) => (3, ino.0),
            Owner::Lent(shard) => (4, u64::from(shard.0)),
        };
        let fits = start < START_END && len < START_END;
        fits.then_some(Piece {
            at: u64::from(pag.0) << START_BITS | start,
            len: kind << LEN_BITS | len,
            who,
        })
    }

    pub(super) fn of(segment: &Segment, owner: Owner) -> Result<Piece, (PagId, Owner)> {
        let piece = Piece::new(segment.pag, segment.addr.0, segment.len, owner);
        piece.ok_or((segment.pag, owner))
    }

    pub(super) fn pag(&self) -> PagId {
        PagId((self.at >> START_BITS) as u16)
    }

    pub(super) fn start(&self) -> u64 {
        self.at & (START_END - 1)
    }

    pub(super) fn len(&self) -> u64 {
        self.len & ((1 << LEN_BITS) - 1)
    }

    pub(super) fn end(&self) -> u64 {
        self.start() + self.len()
    }

    pub(super) fn owner(&self) -> Owner {
        match self.len >> LEN_BITS {
            0 => Owner::Free,
            1 => Owner::Pool(ClientId(self.who)),
            2 => Owner::File(Ino(self.who)),
            3 => Owner::Freed(Ino(self.who)),
            _ => Owner::Lent(ShardId(self.who as u8)),
        }
    }

    pub(super) fn subject(&self) -> Subject {
        Subject::Data(self.pag(), PagBlock(self.start()))
    }
}

impl std::fmt::Debug for Piece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (pag, start, len, owner) = (self.pag(), self.start(), self.len(), self.owner());
        write!(f, "{owner:?} {pag}:{start}+{len}")
    }
}

impl Check {
    pub(super) async fn space(&mut self) -> Result<(), StoreError> {
        self.segments().await?;
        let wrong = self.compare_files();
        self.spaces().await?;
        // Only when the other owners of a file's blocks have been decided.
        wrong.into_iter().for_each(|ino| self.plan.add(Fix::Recount(ino)));
        Ok(())
    }

    async fn spaces(&mut self) -> Result<(), StoreError> {
        self.owners().await?;
        let mut pags = Zones::new();
        self.walk((PAGS, "data zones"), |_, key, value| {
            pags.insert(PagId(u16::from_be_bytes(*key)), PagRecord::decode(value));
        })
        .await?;
        if self.plan.rebuilds(TreeName::Pags) {
            // Its nodes have owners, at least.
            return self.doomed(&pags).await;
        }
        self.lent(&pags).await?;
        let mut pieces = std::mem::take(&mut self.pieces);
        pieces.sort_unstable();
        self.count_pieces(&pieces);
        let mut rest = &pieces[..];
        for (&pag, record) in &pags {
            rest = self.unknown_zone(&pags, rest, |piece| piece.pag() < pag);
            let len = rest.partition_point(|piece| piece.pag() == pag);
            let (mine, after) = rest.split_at(len);
            match record.kind {
                ZoneKind::Blocks => {
                    self.compare_zone(pag, record, mine);
                    self.pag(pag, record, mine);
                }
                ZoneKind::Borrowed => self.pag(pag, record, mine),
                ZoneKind::Target => self.target_zone(pag, record, mine),
            }
            rest = after;
        }
        self.unknown_zone(&pags, rest, |_| true);
        self.missing_targets(&pags);
        self.doomed(&pags).await
    }

    /// Takes pieces in data zones without a record from the front of `pieces`; returns the others.
    /// The check assumes that the record is lost, unless the zone never existed.
    fn unknown_zone<'a>(
        &mut self,
        table: &Zones,
        pieces: &'a [Piece],
        unknown: impl Fn(&Piece) -> bool,
    ) -> &'a [Piece] {
        let (found, rest) = pieces.split_at(pieces.partition_point(unknown));
        for zone in found.chunk_by(|a, b| a.pag() == b.pag()) {
            let (pag, subject) = (zone[0].pag(), zone[0].subject());
            if self.never_existed(pag, table, zone) {
                let detail = "there never was such a zone";
                self.found(ProblemKind::OutsideDataBlock, subject, detail);
                for piece in zone {
                    self.plan.add(Fix::Outside(*piece, piece.start(), piece.end()));
                }
            } else {
                let detail = "the table of data zones has no such zone";
                self.found(ProblemKind::OutsideDataBlock, subject, detail);
                self.plan.add(Fix::AddZone(pag));
            }
        }
        rest
    }

    /// The data zones in which something lies, where the table of them is damaged.
    pub(super) fn zones_met(&self) -> BTreeSet<PagId> {
        self.pieces.iter().map(Piece::pag).collect()
    }

    /// Notes who owns a run of blocks.
    pub(super) fn piece(&mut self, piece: Result<Piece, (PagId, Owner)>) {
        match piece {
            Ok(piece) => self.pieces.push(piece),
            Err((pag, owner)) => {
                let subject = Subject::Data(pag, PagBlock(0));
                let detail = format!("blocks of {owner:?} beyond any zone");
                self.found(ProblemKind::OutsideDataBlock, subject, detail);
                self.plan.add(Fix::Beyond(owner));
            }
        }
    }

    async fn segments(&mut self) -> Result<(), StoreError> {
        let mut stray = None;
        self.walk((SEGMENTS, "tree of segments"), |check, key, value| {
            if key.iter().all(|&byte| byte == 0) {
                return;
            }
            let Some((ino, segment)) = decode_item(key, value) else {
                check.found(ProblemKind::BadLayout, Subject::Whole, "a segment makes no sense");
                check.plan.add(Fix::DropSegment(*key));
                return;
            };
            let first = stray.replace(ino) != Some(ino);
            // Block 0 is inline data: that is a finding already, and the block here has no owner.
            let shadowed = segment.file.0 == 0 && check.tree.shadowed.contains(&ino);
            let owned = if shadowed { behind_block_0(&segment) } else { Some(segment) };
            if let Some(FileKind::Regular) = check.tree.ordinary.kind(ino) {
                if first {
                    let detail = "0 segments counted, others found";
                    check.found(ProblemKind::BadLayout, Subject::Inode(ino), detail);
                    check.plan.add(Fix::Recount(ino));
                }
                if let Some(segment) = owned {
                    check.piece(Piece::of(&segment, Owner::File(ino)));
                }
                return;
            }
            let seen = check.tree.inodes.get_mut(&ino);
            let Some(seen) = seen.filter(|seen| seen.kind == FileKind::Regular) else {
                if first {
                    check.found(ProblemKind::BadLayout, Subject::Inode(ino), "segments of no file");
                }
                check.plan.add(Fix::DropSegment(*key));
                return;
            };
            seen.found += 1;
            seen.mapped = seen.mapped.saturating_add(segment.len);
            let ordered = segment.file.0 >= seen.end;
            seen.end = segment.end();
            if !ordered {
                check.found(ProblemKind::BadLayout, Subject::Inode(ino), "segments overlap");
                check.plan.add(Fix::DropSegment(*key));
            }
            check.report.counts.segments += 1;
            if let Some(segment) = owned {
                check.piece(Piece::of(&segment, Owner::File(ino)));
            }
        })
        .await
    }

    /// Files whose segments are not what their slots count.
    fn compare_files(&mut self) -> BTreeSet<Ino> {
        let mut wrong: Vec<(Ino, ProblemKind, String)> = Vec::new();
        for (&ino, seen) in &self.tree.inodes {
            if seen.kind != FileKind::Regular {
                continue;
            }
            if seen.counted != seen.found {
                let detail = format!("{} segments counted, {} found", seen.counted, seen.found);
                wrong.push((ino, ProblemKind::BadLayout, detail));
            }
            if seen.blocks < seen.mapped {
                self.overmapped.insert(ino, seen.mapped - seen.blocks);
            }
            if seen.blocks != seen.mapped {
                let detail = format!("{} blocks counted, {} mapped", seen.blocks, seen.mapped);
                wrong.push((ino, ProblemKind::WrongBlockCount, detail));
            }
        }
        wrong.sort_unstable();
        for (ino, kind, detail) in &wrong {
            self.found(*kind, Subject::Inode(*ino), detail);
        }
        wrong.into_iter().map(|(ino, ..)| ino).collect()
    }

    async fn owners(&mut self) -> Result<(), StoreError> {
        let mut last: Option<(PagId, u64, u64)> = None;
        self.walk((FREE, "free space"), |check, key, value| {
            let (pag, start) = decode_run_key(key);
            let len = u64::from_le_bytes(*value);
            if let Some((_, before, _)) = last.filter(|&(of, _, end)| (of, end) == (pag, start.0)) {
                check.found(ProblemKind::UnjoinedRuns, Subject::Data(pag, start), "");
                check.plan.add(Fix::JoinFree(run_key(pag, before)));
            }
            last = Some((pag, start.0, start.0.saturating_add(len)));
            let piece = Piece::new(pag, start.0, len, Owner::Free);
            check.piece(piece.ok_or((pag, Owner::Free)));
        })
        .await?;
        self.walk((POOLS, "pools"), |check, key, value| {
            let (client, pag, start) = decode_pool_key(key);
            if client.0 == 0 {
                return;
            }
            check.require_client(client, "pool");
            let owner = Owner::Pool(client);
            let piece = Piece::new(pag, start.0, u64::from_le_bytes(*value), owner);
            check.piece(piece.ok_or((pag, owner)));
        })
        .await?;
        self.walk((FREED, "freed space"), |check, key, value| {
            let (pag, start) = decode_run_key(key);
            let freed = FreedRun::decode(value);
            if start.0 != 0 || freed.len != 0 {
                let owner = Owner::Freed(freed.ino);
                check.piece(Piece::new(pag, start.0, freed.len, owner).ok_or((pag, owner)));
            }
        })
        .await
    }

    fn count_pieces(&mut self, pieces: &[Piece]) {
        let counts = &mut self.report.counts;
        for piece in pieces {
            let sum = match piece.owner() {
                Owner::Free => &mut counts.free,
                Owner::Pool(_) => &mut counts.pooled,
                Owner::File(_) => &mut counts.mapped,
                Owner::Freed(_) => &mut counts.freed,
                Owner::Lent(_) => continue,
            };
            *sum = sum.saturating_add(piece.len());
        }
    }

    /// Checks the pieces of one data zone in the order of their addresses.
    fn pag(&mut self, pag: PagId, record: &PagRecord, pieces: &[Piece]) {
        let (mut at, mut last) = (1, None);
        let (mut free, mut freed) = (0u64, 0u64);
        for piece in pieces {
            match piece.owner() {
                Owner::Free => free += piece.len(),
                Owner::Freed(_) => freed += piece.len(),
                _ => {}
            }
            if piece.start() == 0 || piece.len() == 0 || piece.end() > record.blocks {
                let detail = format!("{} blocks of {:?}", piece.len(), piece.owner());
                self.found(ProblemKind::OutsideDataBlock, piece.subject(), detail);
                self.outside(piece, record.blocks);
                continue;
            }
            if piece.start() > at {
                self.lost_data(pag, at, piece.start());
            }
            if piece.start() < at {
                self.overlap(piece, last);
            }
            if piece.end() > at {
                (at, last) = (piece.end(), Some(*piece));
            }
        }
        if at < record.blocks {
            self.lost_data(pag, at, record.blocks);
        }
        self.zone_state(pag, record);
        self.zone_counts(pag, record, (free, freed));
    }

    pub(super) fn zone_state(&mut self, pag: PagId, record: &PagRecord) {
        if let PagUse::Unknown(number) = record.state {
            let subject = Subject::Data(pag, PagBlock(0));
            self.found(ProblemKind::BadZoneState, subject, format!("state {number}"));
            self.plan.add(Fix::PagUse(pag));
        }
    }

    pub(super) fn zone_counts(&mut self, pag: PagId, record: &PagRecord, counts: (u64, u64)) {
        let (free, freed) = counts;
        if (record.free, record.freed) != counts {
            let detail = format!(
                "free {free}, counted {}; freed {freed}, counted {}",
                record.free, record.freed
            );
            self.found(ProblemKind::WrongCount, Subject::Data(pag, PagBlock(0)), detail);
            self.plan.add(Fix::PagCount(pag, free, freed));
        }
    }

    fn outside(&mut self, piece: &Piece, blocks: u64) {
        if piece.len() == 0 {
            self.plan.add(Fix::Outside(*piece, piece.start(), piece.start()));
        }
        if piece.start() == 0 && piece.len() > 0 {
            self.plan.add(Fix::Outside(*piece, 0, 1));
        } else if piece.end() > blocks {
            self.plan.add(Fix::Outside(*piece, blocks.max(piece.start()), piece.end()));
        }
    }

    fn lost_data(&mut self, pag: PagId, from: u64, to: u64) {
        let detail = format!("{} blocks", to - from);
        self.found(ProblemKind::LostDataBlock, Subject::Data(pag, PagBlock(from)), detail);
        // What is kept of loans may be lost: the blocks may hold files of another shard.
        if !self.may_have_lent {
            self.plan.add(Fix::AddFree(pag, from, to - from));
        }
    }

    fn overlap(&mut self, piece: &Piece, other: Option<Piece>) {
        let Some(other) = other else { return };
        let files = matches!((piece.owner(), other.owner()), (Owner::File(_), Owner::File(_)));
        let kind = if files { ProblemKind::SharedDataBlock } else { ProblemKind::DoubleDataBlock };
        let detail = format!("{:?} and {:?}", piece.owner(), other.owner());
        self.found(kind, piece.subject(), detail);
        // Whose a block is that a file has, and another shard, too, this shard cannot tell.
        let certain = |owner| matches!(owner, Owner::Lent(_) | Owner::File(_));
        let is_lent = |owner| matches!(owner, Owner::Lent(_));
        let (one, two) = (piece.owner(), other.owner());
        if !((is_lent(one) || is_lent(two)) && certain(one) && certain(two)) {
            self.plan.add(Fix::Overlap(other, *piece));
        }
    }
}
