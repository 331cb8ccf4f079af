//! The directory table, and the owner of a block that several chunks claim.

use std::collections::BTreeMap;
use std::fmt;

use types::{DirNo, MetaBlock};

use super::finding::foreign;
use super::plan::Fix;
use super::{Check, ProblemKind, Subject};
use crate::format::chunk::{CHUNK_VALUE, ContentRun, DESCRIPTOR, Descriptor, decode_key};
use crate::format::number::home_of;
use crate::format::slot::{RETIRED, SLOTS_PER_BLOCK, Slot, SlotState};
use crate::names::{Chunk, ChunkNumbers};
use crate::trees::{CHUNKS, MOVED, ORPHANS};
use engine::error::StoreError;
use engine::format::block::{self, BlockType};

use crate::format::number::SlotPlace;
use types::{Ino, ShardId};

/// Items of one chunk, as they are in the table.
#[derive(Default)]
struct Raw {
    number: DirNo,
    runs: Vec<ContentRun>,
    bad: bool,
}

impl Check {
    pub(super) async fn load_chunks(&mut self) -> Result<(), StoreError> {
        let all = ChunkNumbers { next: u64::MAX, annexes: u64::MAX };
        let issued = self.read(|txn| txn.names().chunk_numbers()).await?.unwrap_or(all);
        let mut raw = Raw::default();
        let mut met = issued;
        self.walk((CHUNKS, "directory table"), |check, key, value| {
            let Some((number, index)) = decode_key(key) else {
                check.found(ProblemKind::BadChunk, Subject::Whole, "a key makes no sense");
                check.plan.add(Fix::DropChunkKey(*key));
                return;
            };
            if number != raw.number {
                check.without_descriptor(&mut raw);
                raw.number = number;
            }
            if index != DESCRIPTOR {
                match ContentRun::decode(index, value) {
                    Some(run) => raw.runs.push(run),
                    None => {
                        let subject = Subject::Chunk(number);
                        check.found(ProblemKind::BadChunk, subject, "a run makes no sense");
                        raw.bad = true;
                    }
                }
                return;
            }
            if number.shard() != check.shard {
                check.foreign(Subject::Chunk(number), number.shard(), "in the directory table");
            } else if !issued.has(number.number()) {
                met.note(number.number());
                check.found(ProblemKind::BadCounter, Subject::Chunk(number), "number not issued");
            }
            check.whole(&mut raw, value);
        })
        .await?;
        self.without_descriptor(&mut raw);
        if met != issued {
            self.plan.add(Fix::ChunkNumbers(met));
        }
        let runs: Vec<ContentRun> =
            self.tree.chunks.values().flat_map(|(chunk, _)| chunk.runs.clone()).collect();
        for run in runs.iter().filter(|run| run.is_present()) {
            self.claim(run.start, u64::from(run.len), "directory content");
        }
        Ok(())
    }

    /// Reports a number that another shard issued.
    pub(super) fn foreign(&mut self, subject: Subject, shard: ShardId, place: impl fmt::Display) {
        self.found(ProblemKind::ForeignNumber, subject, foreign(shard, place, self.shard));
    }

    /// May this shard have an inode of the number? Reports it if not.
    pub(super) fn own_number(&mut self, ino: Ino, place: impl fmt::Display) -> bool {
        let own = self.may_be_here(ino);
        if !own {
            self.foreign(Subject::Inode(ino), ino.shard(), place);
        }
        own
    }

    /// Runs whose descriptor is not there.
    fn without_descriptor(&mut self, raw: &mut Raw) {
        let Raw { number, runs, bad } = std::mem::take(raw);
        if !runs.is_empty() || bad {
            self.found(ProblemKind::BadChunk, Subject::Chunk(number), "runs without a descriptor");
            self.plan.add(Fix::DropChunk(number));
        }
    }

    /// A chunk with its descriptor.
    fn whole(&mut self, raw: &mut Raw, value: &[u8; CHUNK_VALUE]) {
        let Raw { number, runs, mut bad } = std::mem::take(raw);
        let subject = Subject::Chunk(number);
        let Some(descriptor) = Descriptor::decode(value) else {
            self.found(ProblemKind::BadChunk, subject, "bad descriptor");
            self.plan.add(Fix::DropChunk(number));
            return;
        };
        let mut end = 0;
        for run in &runs {
            if run.first != end {
                self.found(ProblemKind::BadChunk, subject, "runs with a gap or overlap");
                bad = true;
            }
            end = run.end();
        }
        if descriptor.used > end {
            self.found(ProblemKind::BadChunk, subject, "it uses blocks that it does not have");
            bad = true;
        }
        let gone = runs.iter().filter(|run| !run.is_present()).map(ContentRun::end).max();
        if gone.is_some_and(|end| end > descriptor.used) {
            let detail = "blocks given back that were never used";
            self.found(ProblemKind::BadChunk, subject, detail);
            bad = true;
        }
        let blocks = self.blocks.blocks;
        for run in runs.iter().filter(|run| !run.is_within(blocks)) {
            let detail = "directory content";
            self.found(ProblemKind::OutsideMetaBlock, Subject::Block(run.start), detail);
            bad = true;
        }
        let chunk = Chunk { descriptor, runs };
        let sound = if bad { sound(&chunk, blocks) } else { chunk };
        if bad {
            self.plan.add(Fix::FillChunk(number, sound.clone()));
        }
        self.tree.chunks.insert(number, (sound, false));
    }

    pub(super) async fn load_lists(&mut self) -> Result<(), StoreError> {
        self.walk((ORPHANS, "orphans"), |check, key, _| {
            let ino = Ino(u64::from_be_bytes(*key));
            if ino != Ino::NONE {
                check.tree.orphans.insert(ino);
                check.own_number(ino, "in the list of orphans");
            }
        })
        .await?;
        self.walk((MOVED, "moved inodes"), |check, key, value| {
            let ino = Ino(u64::from_be_bytes(*key));
            if ino != Ino::NONE {
                check.own_number(ino, "in the list of moved inodes");
                check.tree.note_moved(ino);
                check.tree.moved.insert(ino, SlotPlace::unpack(u64::from_le_bytes(*value)));
            }
        })
        .await
    }

    /// Decides which chunks lose metadata blocks with two claims: a block of another type leaves
    /// all of them, a content block stays where most of its inodes have their home.
    pub(super) async fn shares(&mut self) -> Result<(), StoreError> {
        let shared = std::mem::take(&mut self.shared);
        if shared.is_empty() {
            return Ok(());
        }
        let mut claims: BTreeMap<MetaBlock, Vec<(DirNo, u32)>> = BTreeMap::new();
        for (&number, (chunk, _)) in &self.tree.chunks {
            for run in chunk.runs.iter().filter(|run| run.is_present()) {
                let end = MetaBlock(run.start.0 + u64::from(run.len));
                for &block in shared.range(run.start..end) {
                    let index = run.first + (block.0 - run.start.0) as u32;
                    claims.entry(block).or_default().push((number, index));
                }
            }
        }
        for (block, of) in claims {
            let keeper = self.keeper(block, &of).await?;
            for &(number, index) in of.iter().filter(|&&claim| Some(claim) != keeper) {
                self.plan.add(Fix::DropBlock(number, index));
            }
        }
        Ok(())
    }

    async fn keeper(
        &mut self,
        block: MetaBlock,
        of: &[(DirNo, u32)],
    ) -> Result<Option<(DirNo, u32)>, StoreError> {
        let votes = self
            .read(|txn| {
                let data = txn.read(block)?;
                if !block::type_of(data).is_some_and(BlockType::is_content) {
                    return Ok(None);
                }
                let count = |&(number, index): &(DirNo, u32)| {
                    let slots = (0..SLOTS_PER_BLOCK).map(|at| Slot::load(data, at));
                    let born = |slot: &Slot| {
                        let home = home_of(slot.ino());
                        slot.state() == SlotState::Inode
                            && (home.chunk, home.block()) == (number, index)
                    };
                    slots.filter(born).count()
                };
                Ok(Some(of.iter().map(count).collect::<Vec<_>>()))
            })
            .await?;
        let Some(votes) = votes.flatten() else { return Ok(None) };
        let best = (0..of.len()).max_by_key(|&at| (votes[at], of.len() - at));
        Ok(best.map(|at| of[at]))
    }
}

/// The chunk with its runs in order and in the device, and gaps closed by retired slots.
fn sound(chunk: &Chunk, blocks: u64) -> Chunk {
    let mut out = Chunk { descriptor: chunk.descriptor, runs: Vec::new() };
    let mut at = 0;
    for run in &chunk.runs {
        let Some(part) = run.part(at, u32::MAX) else { continue };
        if part.first > at {
            out.put(ContentRun::hole(at, part.first - at, RETIRED));
        }
        out.put(if part.is_within(blocks) {
            part
        } else {
            ContentRun::hole(part.first, part.len, RETIRED)
        });
        at = part.end();
    }
    out.descriptor.used = out.descriptor.used.min(at);
    let used = out.descriptor.used;
    if out.runs.iter().any(|run| !run.is_present() && run.end() > used) {
        out.cut(used);
    }
    out
}
