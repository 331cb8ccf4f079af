//! Requests for blocks of the data zones.

use mfs::{Cost, GRANT_PIECES};
use proto::mds::{Op, OpReply, UnplacedPiece};
use types::limits::{BLOCK_U64, FILE_SIZE_MAX, GRANT_BLOCKS, PAGS_MAX, PLACE_PIECES_MAX};
use types::{Bug, Fault, Ino, PagId, planted};

use super::{Execution, run_op};
use crate::joint;
use crate::ops::{READ, space};
use crate::space::Asked;

/// How often a request tries to make room before it fails with `NoSpace`.
const SPACE_ROUNDS: usize = 3;
/// How often the server chooses places anew before it grants any blocks.
const PLACE_TRIES: usize = 3;

const _: () = assert!(PLACE_PIECES_MAX == GRANT_PIECES, "a transaction takes so many runs");

impl Execution {
    /// Grants blocks that the client chooses places among.
    pub(super) async fn space(&mut self, index: usize, op: &Op) -> Result<OpReply, Fault> {
        let Op::Space { hint, blocks, unreachable } = op else { return Err(Fault::Protocol) };
        let unreachable = self.without(unreachable);
        let wanted = space::Wanted { hint: *hint, blocks: *blocks, unreachable: &unreachable };
        self.with_room((index, op), (&unreachable, wanted.blocks), async |this, most| {
            this.grant(index, &wanted, most).await
        })
        .await
    }

    /// Chooses places for pieces of a file, and grants the client these blocks.
    pub(super) async fn place(&mut self, index: usize, op: &Op) -> Result<OpReply, Fault> {
        let Op::Place { ino, pieces, writer, policy, hint, unreachable } = op else {
            return Err(Fault::Protocol);
        };
        let unreachable = self.without(unreachable);
        let (client, hint) = (self.client(), *hint);
        let asked = Asked { client, ino: *ino, pieces, writer: *writer, policy: *policy };
        check_pieces(pieces, &unreachable)?;
        let wanted = space::Wanted { hint, blocks: asked.blocks(), unreachable: &unreachable };
        self.with_room((index, op), (&unreachable, wanted.blocks), async |this, most| {
            this.place_once(index, &asked, &wanted, most).await
        })
        .await
    }

    /// Grants blocks by `grant`, which gets the most runs that it may; makes room and tries again
    /// while there is none.
    async fn with_room(
        &mut self,
        (index, op): (usize, &Op),
        (unreachable, blocks): (&[PagId], u64),
        grant: impl AsyncFn(&mut Execution, usize) -> Result<OpReply, Fault>,
    ) -> Result<OpReply, Fault> {
        let (mut round, mut most) = (0, GRANT_PIECES);
        loop {
            round += 1;
            let granted = if self.kept_outcome(index).is_some() {
                self.attempt(Cost::SMALL, index, |cx, txn| run_op(cx, txn, index, op)).await
            } else {
                grant(self, most).await
            };
            match granted {
                // There may be no block for the reply to a grant of several runs.
                Err(Fault::NoSpace) if most > 1 && self.server.space.metadata_is_short() => {
                    (round, most) = (round - 1, 1);
                }
                Err(Fault::NoSpace) if round < SPACE_ROUNDS => {
                    self.make_room(unreachable, blocks).await;
                }
                other => {
                    self.dependency = self.dependency.max(self.transno);
                    return other;
                }
            }
        }
    }

    /// As [`Execution::place`], without making room. When requests of other kinds take the chosen
    /// blocks again and again, the client gets any.
    async fn place_once(
        &mut self,
        index: usize,
        asked: &Asked<'_>,
        wanted: &space::Wanted<'_>,
        most: usize,
    ) -> Result<OpReply, Fault> {
        let server = self.server.clone();
        let placing = &server.space.placing;
        let _turn = placing.turn().await;
        for _ in 0..PLACE_TRIES {
            let zones = (wanted.hint, wanted.unreachable);
            let chosen = self.store(server.space.choose_places(asked, zones, most).await)?;
            if chosen.runs.is_empty() {
                placing.reset(chosen.zone);
                continue;
            }
            let taken = self
                .attempt(Cost::SMALL, index, |cx, txn| {
                    space::grant_exactly(cx, txn, &chosen.runs, chosen.end)
                })
                .await;
            match taken {
                Ok(Some(reply)) => return Ok(reply),
                Ok(None) => placing.reset(chosen.zone),
                Err(fault) => {
                    placing.give_back(chosen);
                    return Err(fault);
                }
            }
        }
        self.grant(index, wanted, most).await
    }

    /// The client does not extend the file any more, or not through `handle`.
    pub(super) fn end_placing(&self, ino: Ino, handle: Option<u64>) -> Result<OpReply, Fault> {
        self.server.space.placing.close(self.client(), ino, handle);
        Ok(OpReply::Done {})
    }

    /// Grants blocks, and tells the placers.
    async fn grant(
        &mut self,
        index: usize,
        wanted: &space::Wanted<'_>,
        most: usize,
    ) -> Result<OpReply, Fault> {
        let granted =
            self.attempt(Cost::SMALL, index, |cx, txn| space::grant(cx, txn, wanted, most)).await?;
        if let OpReply::Space { runs, .. } = &granted {
            self.server.space.placing.granted(runs);
        }
        Ok(granted)
    }

    /// The zones of which the client gets no blocks: those that it cannot reach, and those of which
    /// it does not know.
    fn without(&self, unreachable: &[PagId]) -> Vec<PagId> {
        self.session.set_unreachable(unreachable);
        let mut without = unreachable.to_vec();
        without.extend(self.server.space.unknown_to(&self.session));
        without
    }

    /// Waits until blocks that are being freed, or that others do not need, can be granted: about
    /// `blocks` from another server, if this one has none at all.
    async fn make_room(&self, unreachable: &[PagId], blocks: u64) {
        let (runtime, space) = (&self.server.runtime, &self.server.space);
        self.wait_for_reaper().await;
        let synced = runtime.mfs.sync().await;
        runtime.checked(synced, "waiting for the log");
        if space.release_freed().await > 0 {
            return;
        }
        self.worker.away(space.reclaim_pools(self.client())).await;
        if !self.is_full(unreachable).await {
            return;
        }
        if self.server.joint.has_peers() && self.is_full(&[]).await {
            self.worker.away(joint::borrow(&self.server, blocks)).await;
            if !self.is_full(unreachable).await {
                return;
            }
        }
        if !planted(Bug::HoarderKept) {
            self.worker.away(self.server.evictions.evict_hoarders()).await;
        }
    }

    /// Is no block free but in these zones?
    async fn is_full(&self, without: &[PagId]) -> bool {
        let full = self.server.runtime.mfs.run(READ, |txn| space::is_full(txn, without)).await;
        full.is_ok_and(|(full, _)| full)
    }
}

/// Can places be chosen for these?
fn check_pieces(pieces: &[UnplacedPiece], unreachable: &[PagId]) -> Result<(), Fault> {
    if pieces.len() > PLACE_PIECES_MAX || unreachable.len() > PAGS_MAX {
        return Err(Fault::TooBig);
    }
    let in_file = |piece: &UnplacedPiece| {
        let end = piece.block.0.checked_add(piece.len).filter(|_| piece.len > 0);
        end.is_some_and(|end| end <= FILE_SIZE_MAX.div_ceil(BLOCK_U64))
    };
    if pieces.is_empty() || !pieces.iter().all(in_file) {
        return Err(Fault::Invalid);
    }
    let blocks = pieces.iter().try_fold(0_u64, |sum, piece| sum.checked_add(piece.len));
    if blocks.is_none_or(|blocks| blocks > 4 * GRANT_BLOCKS) { Err(Fault::TooBig) } else { Ok(()) }
}
