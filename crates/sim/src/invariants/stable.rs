//! STABLE, at the moment at which it could break: metadata never point at data that are not
//! yet stable.
//!
//! When a commit is executed, each block that it makes a written part of a file
//! - was written by the committing client since it came to its pool;
//! - and a flush that began after such a write has succeeded. A newer write of the same block may
//!   be under way: then the block holds old or new bytes of the file, in any case.
//!
//! Not checked: whether the write was meant for this file, if the client moved a written block of
//! its pool to another file; replayed commits, since the server that first executed them checked
//! them or died before; blocks written while no server counted their owner (it was down, or its
//! clients had not reclaimed), as to whether that was in an earlier life of the block.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use mds::CommittedBlocks;
use mfs::BlockOwner;
use types::limits::BLOCK_U64;
use types::{Ino, PagId, SegmentState};

use super::{ClientPlace, NodeRun, WriteId, runs_at};
use crate::events::Events;
use crate::invariant::Invariant;
use crate::zones::Place;

/// The writes of a block.
#[derive(Default)]
struct Written {
    node: NodeRun,
    /// The first write by that node since the block came to its pool. `stable`: it or a later one
    /// is stable.
    first: u64,
    stable: bool,
    /// The file block that it became since.
    mapped: Option<(Ino, u64)>,
    /// It became that without content, by the last commit that pointed at it.
    unwritten: bool,
    /// The first write after that while no server counted the block's owner, and whether it or a
    /// later one is stable. The file may have freed the block by then, and the client may have it
    /// again.
    unattributed: Option<(u64, bool)>,
    /// The file block that it became by a commit lost with its server, or whose request failed
    /// before it mapped the block as written; and whether it was stable then. The client may send
    /// that commit again after further writes.
    lost: Option<((Ino, u64), bool)>,
}

/// Nothing was written since its commit was lost.
const NOT_SINCE: u64 = u64::MAX;

/// The state of the checker.
pub(crate) struct Stable {
    events: Events,
    /// Writes that are not stable.
    writes: BTreeMap<WriteId, (NodeRun, Range<u64>)>,
    blocks: BTreeMap<Place, Written>,
}

/// The blocks of a range of bytes.
pub(crate) fn blocks_of(offset: u64, len: u64) -> Range<u64> {
    offset / BLOCK_U64..(offset + len).div_ceil(BLOCK_U64)
}

impl Stable {
    pub(crate) fn new(events: &Events) -> Stable {
        Stable { events: events.clone(), writes: BTreeMap::new(), blocks: BTreeMap::new() }
    }

    /// The data devices were replaced: their content is stable, and the writers are gone.
    pub(crate) fn data_replaced(&mut self) {
        *self = Stable::new(&self.events);
    }

    /// A write was submitted.
    pub(crate) fn submitted(&mut self, id: WriteId, (node, run): (&str, u32), blocks: Range<u64>) {
        self.writes.insert(id, ((node.to_owned(), run), blocks));
    }

    /// The writer and the blocks of a write that is not yet stable.
    pub(crate) fn write(&self, id: WriteId) -> Option<(NodeRun, Range<u64>)> {
        self.writes.get(&id).cloned()
    }

    /// Unstable writes of this zone by this node, in this run of it if known.
    pub(crate) fn unflushed_of(&self, place: &ClientPlace, zone: PagId) -> BTreeSet<u64> {
        let of_it = self.writes.iter().filter(|(_, (by, _))| runs_at(by, place));
        of_it.filter(|((of, _), _)| *of == zone).map(|(&(_, id), _)| id).collect()
    }

    /// A server starts. Blocks that are part of no file in its metadata lost their commits with the
    /// previous server.
    pub(crate) fn unmapped(&mut self, is_mapped: impl Fn(Place) -> bool) {
        for (&block, known) in &mut self.blocks {
            if known.mapped.is_some() && !is_mapped(block) {
                known.lost = known.mapped.take().map(|at| (at, known.stable));
                (known.first, known.stable) =
                    known.unattributed.take().unwrap_or((NOT_SINCE, false));
            }
        }
    }

    /// A write has reached the device; `owners` of its blocks at that moment, where known.
    pub(crate) fn completed(&mut self, id: WriteId, owners: &[Option<BlockOwner>]) {
        let Some((node, blocks)) = self.writes.get(&id) else { return };
        for (block, owner) in blocks.clone().zip(owners) {
            let known = self.blocks.entry((id.0, block)).or_default();
            let anew =
                known.mapped.is_some() && owner.is_some_and(|owner| owner != BlockOwner::Mapped);
            if anew || known.node != *node {
                let failed = known.unwritten && known.node == *node;
                let lost = known.mapped.filter(|_| failed).map(|at| (at, known.stable));
                *known = Written { node: node.clone(), first: id.1, lost, ..Written::default() };
            }
            if known.first == NOT_SINCE {
                known.first = id.1;
            }
            if owner.is_none() && known.mapped.is_some() && known.unattributed.is_none() {
                known.unattributed = Some((id.1, false));
            }
        }
    }

    /// A flush has made these writes of a zone stable.
    pub(crate) fn stable(&mut self, zone: PagId, ids: &[u64]) {
        for id in ids {
            let Some((node, blocks)) = self.writes.remove(&(zone, *id)) else { continue };
            for block in blocks {
                let known = self.blocks.get_mut(&(zone, block));
                let Some(known) = known.filter(|known| known.node == node) else { continue };
                known.stable |= *id >= known.first;
                if let Some((first, stable)) = &mut known.unattributed {
                    *stable |= id >= first;
                }
            }
        }
    }

    /// A commit makes the metadata point at blocks; it is from the client at `place`, if known.
    pub(crate) fn pointed(&mut self, pointed: &CommittedBlocks<'_>, place: Option<&ClientPlace>) {
        for segment in pointed.segments {
            for nth in 0..segment.len {
                let (block, at) = (segment.addr.0 + nth, (pointed.ino, segment.file.0 + nth));
                let known = self.blocks.entry((segment.pag, block)).or_default();
                if segment.state == SegmentState::Unwritten {
                    if known.mapped.is_some_and(|mapped| mapped != at) {
                        *known = Written::default();
                    }
                    (known.mapped, known.unwritten) = (Some(at), true);
                    continue;
                }
                let mine = place.is_none_or(|place| runs_at(&known.node, place));
                known.stable |= known.lost == Some((at, true));
                let again = known.mapped.is_some_and(|mapped| mapped != at);
                let why = match (mine, known.stable, again) {
                    (false, ..) => "has not been written by it",
                    (_, false, _) => "is not yet stable",
                    (.., true) => "was written before it became another file's",
                    _ => "",
                };
                (known.mapped, known.unwritten, known.unattributed) = (Some(at), false, None);
                if !why.is_empty() && !pointed.replay {
                    let (client, ino, at) = (pointed.client, at.0, at.1);
                    let zone = segment.pag;
                    let text = format!(
                        "client {client} commits block {at} of inode {ino}; block {block} of zone {zone} {why}"
                    );
                    self.events.broken(Invariant::Stable, &text);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use types::{ClientId, FileBlock, PagBlock, PagId, Segment};

    use super::*;

    const ZONE: PagId = PagId(3);

    fn found(work: impl FnOnce(&mut Stable)) -> Option<String> {
        let events = Events::default();
        work(&mut Stable::new(&events));
        events.first_violation().map(|(invariant, text)| {
            assert_eq!(invariant, Invariant::Stable);
            text
        })
    }

    fn write(stable: &mut Stable, id: u64, node: &str, owner: BlockOwner) {
        stable.submitted((ZONE, id), (node, 1), 7..8);
        stable.completed((ZONE, id), &[Some(owner)]);
    }

    fn commit(stable: &mut Stable, ino: u64, replay: bool) {
        point_by(stable, ino, SegmentState::Written, replay);
    }

    fn point(stable: &mut Stable, ino: u64, state: SegmentState) {
        point_by(stable, ino, state, false);
    }

    fn point_by(stable: &mut Stable, ino: u64, state: SegmentState, replay: bool) {
        let (file, pag, addr) = (FileBlock(3), ZONE, PagBlock(7));
        let segments = [Segment { file, len: 1, pag, addr, state }];
        let client = ClientId(4);
        let place = ("c0".to_owned(), Some(1));
        stable.pointed(
            &CommittedBlocks { client, ino: Ino(ino), segments: &segments, replay },
            Some(&place),
        );
    }

    const POOL: BlockOwner = BlockOwner::Pool(ClientId(4));

    #[test]
    fn stable_block_may_be_committed_during_another_write() {
        let sound = found(|stable| {
            write(stable, 1, "c0", POOL);
            stable.stable(ZONE, &[1]);
            write(stable, 2, "c0", POOL);
            commit(stable, 20, false);
            write(stable, 3, "c0", BlockOwner::Mapped);
            commit(stable, 20, false);
        });
        assert_eq!(sound, None);
    }

    #[test]
    fn commit_whose_request_failed_may_be_resent_after_another_write() {
        let mapped = |state| {
            move |stable: &mut Stable| {
                write(stable, 1, "c0", POOL);
                stable.stable(ZONE, &[1]);
                point(stable, 20, state);
                // The request has failed: the block is still in the client's pool.
                write(stable, 2, "c0", POOL);
                commit(stable, 20, false);
            }
        };
        assert_eq!(found(mapped(SegmentState::Unwritten)), None);
        // A block that was part of a file with content, and is in the pool again, is a new one.
        assert!(found(mapped(SegmentState::Written)).is_some());
    }

    #[test]
    fn lost_commit_may_be_resent_after_another_write() {
        let sound = found(|stable| {
            write(stable, 1, "c0", POOL);
            stable.stable(ZONE, &[1]);
            commit(stable, 20, false);
            // The server dies. The client has not reclaimed from the next one yet; then it has.
            stable.unmapped(|block| block != (ZONE, 7));
            stable.submitted((ZONE, 2), ("c0", 1), 7..8);
            stable.completed((ZONE, 2), &[None]);
            write(stable, 3, "c0", POOL);
            commit(stable, 20, false);
            // The next server dies too.
            stable.unmapped(|_| false);
            commit(stable, 20, false);
        });
        assert_eq!(sound, None);
        let other = found(|stable| {
            write(stable, 1, "c0", POOL);
            stable.stable(ZONE, &[1]);
            commit(stable, 20, false);
            stable.unmapped(|_| false);
            write(stable, 3, "c0", POOL);
            commit(stable, 21, false);
        });
        assert!(other.is_some_and(|text| text.contains("not yet stable")), "for another file");
    }

    #[test]
    fn write_without_a_server_may_be_of_a_later_life_of_the_block() {
        let commits = |flushed: bool| {
            found(|stable| {
                write(stable, 1, "c0", POOL);
                stable.stable(ZONE, &[1]);
                commit(stable, 20, false);
                // The file freed the block, and the client got it again; then the server dies.
                stable.submitted((ZONE, 2), ("c0", 1), 7..8);
                stable.completed((ZONE, 2), &[None]);
                if flushed {
                    stable.stable(ZONE, &[2]);
                }
                stable.unmapped(|_| false);
                commit(stable, 21, false);
            })
        };
        assert_eq!(commits(true), None);
        assert!(commits(false).is_some_and(|text| text.contains("not yet stable")));
    }

    #[test]
    fn write_of_an_earlier_run_does_not_count_for_a_commit() {
        let text = found(|stable| {
            stable.submitted((ZONE, 1), ("c0", 0), 7..8);
            stable.completed((ZONE, 1), &[Some(POOL)]);
            stable.stable(ZONE, &[1]);
            write(stable, 2, "c0", POOL);
            commit(stable, 20, false);
        });
        assert!(text.is_some_and(|text| text.contains("not yet stable")));
    }

    #[test]
    fn commit_of_a_block_that_is_not_stable_is_a_violation() {
        let says = |text: &str, found: Option<String>| {
            assert!(found.as_ref().is_some_and(|found| found.contains(text)), "{found:?}");
        };
        says("not been written", found(|stable| commit(stable, 20, false)));
        says(
            "not yet stable",
            found(|stable| {
                write(stable, 1, "c0", POOL);
                commit(stable, 20, false);
            }),
        );
        says(
            "not been written",
            found(|stable| {
                write(stable, 1, "c1", POOL);
                stable.stable(ZONE, &[1]);
                commit(stable, 20, false);
            }),
        );
        says(
            "another file's",
            found(|stable| {
                write(stable, 1, "c0", POOL);
                stable.stable(ZONE, &[1]);
                commit(stable, 20, false);
                commit(stable, 21, false);
            }),
        );
        says(
            "not yet stable",
            found(|stable| {
                write(stable, 1, "c0", POOL);
                stable.stable(ZONE, &[1]);
                commit(stable, 20, false);
                write(stable, 2, "c0", POOL);
                commit(stable, 21, false);
            }),
        );
        says(
            "not yet stable",
            found(|stable| {
                write(stable, 1, "c0", POOL);
                stable.stable(ZONE, &[1]);
                commit(stable, 20, false);
                // Written in place and not flushed, before the block is back in the pool and
                // written for another file.
                write(stable, 2, "c0", BlockOwner::Mapped);
                write(stable, 3, "c0", POOL);
                stable.stable(ZONE, &[2]);
                commit(stable, 21, false);
            }),
        );
        assert_eq!(found(|stable| commit(stable, 20, true)), None, "a replayed commit");
    }
}
