//! Layouts and data space: every data block has exactly one owner.

use std::collections::BTreeMap;

use types::{ClientId, Extent, FileKind, Ino, PagBlock, PagId};

use super::{Check, ProblemKind, Subject};
use crate::error::StoreError;
use crate::format::extent::decode_extent;
use crate::format::space::{Freed, PagRecord, decode_pool_key, decode_run_key};
use crate::trees::{EXTENTS, FREE, FREED, PAGS, POOLS};

/// Who owns a run of data blocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Owner {
    Free,
    Pool(ClientId),
    File(Ino),
    Freed(Ino),
}

/// A run of data blocks with its owner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Piece {
    pag: PagId,
    start: u64,
    len: u64,
    owner: Owner,
}

impl Piece {
    pub(super) fn of(extent: &Extent, owner: Owner) -> Piece {
        Piece { pag: extent.pag, start: extent.addr.0, len: extent.len, owner }
    }

    fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    fn subject(&self) -> Subject {
        Subject::Data(self.pag, PagBlock(self.start))
    }
}

impl Check {
    pub(super) async fn space(&mut self) -> Result<(), StoreError> {
        self.extents().await?;
        self.compare_files();
        self.owners().await?;
        let mut pags = BTreeMap::new();
        self.walk(PAGS, "data zones", |_, key, value| {
            pags.insert(PagId(u16::from_be_bytes(*key)), PagRecord::decode(value));
        })
        .await?;
        let mut pieces = std::mem::take(&mut self.pieces);
        pieces.sort_unstable();
        self.count_pieces(&pieces);
        let mut by_pag: BTreeMap<PagId, Vec<Piece>> = BTreeMap::new();
        for piece in pieces {
            by_pag.entry(piece.pag).or_default().push(piece);
        }
        for (&pag, record) in &pags {
            let pieces = by_pag.remove(&pag).unwrap_or_default();
            self.pag(pag, record, &pieces);
        }
        for pieces in by_pag.into_values() {
            let detail = "there is no such data zone";
            self.found(ProblemKind::OutsideDataBlock, pieces[0].subject(), detail);
        }
        Ok(())
    }

    async fn extents(&mut self) -> Result<(), StoreError> {
        let mut stray = None;
        self.walk(EXTENTS, "extent tree", |check, key, value| {
            if key.iter().all(|&byte| byte == 0) {
                return;
            }
            let Some((ino, extent)) = decode_extent(key, value) else {
                check.found(ProblemKind::BadLayout, Subject::Whole, "a segment makes no sense");
                return;
            };
            let seen = check.tree.inodes.get_mut(&ino);
            let Some(seen) = seen.filter(|seen| seen.kind == FileKind::Regular) else {
                if stray.replace(ino) != Some(ino) {
                    check.found(ProblemKind::BadLayout, Subject::Inode(ino), "segments of no file");
                }
                return;
            };
            seen.found += 1;
            seen.mapped += extent.len;
            let ordered = extent.file.0 >= seen.end;
            seen.end = extent.end();
            if !ordered {
                check.found(ProblemKind::BadLayout, Subject::Inode(ino), "segments overlap");
            }
            check.report.counts.segments += 1;
            check.pieces.push(Piece::of(&extent, Owner::File(ino)));
        })
        .await
    }

    fn compare_files(&mut self) {
        let mut wrong: Vec<(Ino, ProblemKind, String)> = Vec::new();
        for (&ino, seen) in &self.tree.inodes {
            if seen.kind != FileKind::Regular {
                continue;
            }
            if seen.counted != seen.found {
                let detail = format!("{} segments counted, {} found", seen.counted, seen.found);
                wrong.push((ino, ProblemKind::BadLayout, detail));
            }
            if seen.blocks != seen.mapped {
                let detail = format!("{} blocks counted, {} mapped", seen.blocks, seen.mapped);
                wrong.push((ino, ProblemKind::WrongBlockCount, detail));
            }
        }
        wrong.sort_unstable();
        for (ino, kind, detail) in wrong {
            self.found(kind, Subject::Inode(ino), detail);
        }
    }

    async fn owners(&mut self) -> Result<(), StoreError> {
        let mut last: Option<Piece> = None;
        self.walk(FREE, "free space", |check, key, value| {
            let (pag, start) = decode_run_key(key);
            let len = u64::from_le_bytes(*value);
            let piece = Piece { pag, start: start.0, len, owner: Owner::Free };
            if last.is_some_and(|last| last.pag == pag && last.end() == start.0) {
                check.found(ProblemKind::UnjoinedRuns, piece.subject(), "");
            }
            last = Some(piece);
            check.pieces.push(piece);
        })
        .await?;
        self.walk(POOLS, "pools", |check, key, value| {
            let (client, pag, start) = decode_pool_key(key);
            if client.0 == 0 {
                return;
            }
            check.known(client, "pool");
            let len = u64::from_le_bytes(*value);
            let owner = Owner::Pool(client);
            check.pieces.push(Piece { pag, start: start.0, len, owner });
        })
        .await?;
        self.walk(FREED, "freed space", |check, key, value| {
            let (pag, start) = decode_run_key(key);
            let freed = Freed::decode(value);
            if start.0 != 0 || freed.len != 0 {
                let owner = Owner::Freed(freed.ino);
                check.pieces.push(Piece { pag, start: start.0, len: freed.len, owner });
            }
        })
        .await
    }

    fn count_pieces(&mut self, pieces: &[Piece]) {
        let counts = &mut self.report.counts;
        for piece in pieces {
            let sum = match piece.owner {
                Owner::Free => &mut counts.free,
                Owner::Pool(_) => &mut counts.pooled,
                Owner::File(_) => &mut counts.mapped,
                Owner::Freed(_) => &mut counts.freed,
            };
            *sum = sum.saturating_add(piece.len);
        }
    }

    /// Goes through the pieces of one data zone by address.
    fn pag(&mut self, pag: PagId, record: &PagRecord, pieces: &[Piece]) {
        let (mut at, mut last) = (1, None);
        let (mut free, mut freed) = (0u64, 0u64);
        for piece in pieces {
            match piece.owner {
                Owner::Free => free = free.saturating_add(piece.len),
                Owner::Freed(_) => freed = freed.saturating_add(piece.len),
                _ => {}
            }
            if piece.start == 0 || piece.len == 0 || piece.end() > record.blocks {
                let detail = format!("{} blocks of {:?}", piece.len, piece.owner);
                self.found(ProblemKind::OutsideDataBlock, piece.subject(), detail);
                continue;
            }
            if piece.start > at {
                let detail = format!("{} blocks", piece.start - at);
                let subject = Subject::Data(pag, PagBlock(at));
                self.found(ProblemKind::LostDataBlock, subject, detail);
            }
            if piece.start < at {
                self.shared(piece, last);
            }
            if piece.end() > at {
                (at, last) = (piece.end(), Some(piece.owner));
            }
        }
        if at < record.blocks {
            let detail = format!("{} blocks", record.blocks - at);
            self.found(ProblemKind::LostDataBlock, Subject::Data(pag, PagBlock(at)), detail);
        }
        if (record.free, record.freed) != (free, freed) {
            let detail = format!(
                "free {free}, counted {}; freed {freed}, counted {}",
                record.free, record.freed
            );
            self.found(ProblemKind::WrongCount, Subject::Data(pag, PagBlock(0)), detail);
        }
    }

    fn shared(&mut self, piece: &Piece, other: Option<Owner>) {
        let files = matches!((piece.owner, other), (Owner::File(_), Some(Owner::File(_))));
        let kind = if files { ProblemKind::SharedDataBlock } else { ProblemKind::DoubleDataBlock };
        let detail = match other {
            Some(other) => format!("{:?} and {other:?}", piece.owner),
            None => format!("{:?}", piece.owner),
        };
        self.found(kind, piece.subject(), detail);
    }
}
