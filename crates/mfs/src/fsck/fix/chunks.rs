//! The directory table, and content blocks.

use types::{Attr, DirNo, Fault, FileKind, Ino, Lsn, MetaBlock};

use super::slots::{free_name, lost_and_found, private_directory, put_slot, rescue};
use super::{Blocks, Change, Done, Evidence, Fixer};
use crate::format::chunk::{ContentRun, DESCRIPTOR, Descriptor, chunk_key, decode_key};
use crate::format::number::{
    SlotPlace, home_of, is_orphan_dir, is_root_dir, is_system, reuse_of, system_chunk,
};
use crate::format::slot::{RETIRED, SLOTS_PER_BLOCK, Slot};
use crate::fsck::lost::Loss;
use crate::fsck::plan::{Fix, SlotAt};
use crate::fsck::stranded::{BlockEvidence, ShortDirectory, block_evidence};
use crate::mkfs::first_attr;
use crate::names::Chunk;
use crate::trees::CHUNKS;
use crate::txn::Txn;
use engine::cost::Cost;
use engine::error::{Stop, StoreError};
use engine::format::block::BlockType;

/// Chunks of a name map that are removed at once; the check finds that the others have no owner.
const MAP_CHUNKS_MAX: u32 = 16;

impl Fixer {
    pub(super) async fn fix_chunk(&mut self, fix: &Fix) -> Done {
        self.mfs.forget_indexes();
        match fix {
            Fix::EmptyBlock(home, number, index) => {
                let dir =
                    self.check.tree.chunks.get(number).map(|(chunk, _)| chunk.descriptor.owner);
                self.change_with_report(|txn| {
                    empty_block(txn, *home, txn.content_of(*number))?;
                    let line =
                        format!("block {index} of chunk {number} is empty, its slots are lost");
                    let (chunk, first) = (*number, index * SLOTS_PER_BLOCK);
                    // The loss of the system's chunk is reported where it is rebuilt.
                    let dir = dir.filter(|_| !is_system(chunk));
                    let count = txn.slots().per_block();
                    let lost = dir.map(|dir| Loss::Slots { dir, chunk, first, count });
                    Ok(Change::with_losses(line, lost))
                })
                .await
            }
            Fix::DropBlock(number, index) => {
                let done = self.change(|txn| drop_block(txn, *number, *index)).await?;
                Ok(done.then(|| format!("block {index} of chunk {number} was another's").into()))
            }
            Fix::DropChunkKey(key) => {
                let done = self.change(|txn| CHUNKS.remove(txn, key).map(drop)).await?;
                Ok(done.then(|| "a senseless item of the directory table was removed".into()))
            }
            Fix::SetChunk(number, chunk) => {
                let done = self.change(|txn| write_chunk(txn, *number, Some(chunk))).await?;
                Ok(done.then(|| format!("chunk {number} is in order").into()))
            }
            Fix::FillChunk(number, chunk) => {
                let found = self.blocks_of(*number).await?.unwrap_or_default();
                let mut chunk = chunk.clone();
                fill(&mut chunk, &found);
                let done = self.change(|txn| write_chunk(txn, *number, Some(&chunk))).await?;
                Ok(done.then(|| self.found(format!("chunk {number} is in order"))))
            }
            Fix::DropChunk(number) => {
                let done = self.change(|txn| write_chunk(txn, *number, None)).await?;
                Ok(done.then(|| format!("what was left of chunk {number} was taken apart").into()))
            }
            Fix::FindChunk(number, owner, index) => self.find(*number, *owner, *index).await,
            Fix::FindOthers => self.find_others().await,
            Fix::CutChain(dir, last) => {
                self.change_with_report(|txn| cut_chain(txn, *dir, *last)).await
            }
            Fix::DropMap(dir) => self.change_with_report(|txn| drop_map(txn, *dir)).await,
            Fix::AdoptChunk(number) => {
                let chunks = &self.check.tree.chunks;
                let lost = |chunk: DirNo| chunks.get(&chunk).is_some_and(|(_, reached)| !reached);
                self.change_with_report(|txn| adopt(txn, *number, &lost)).await
            }
            Fix::BreakCircle(_) if self.circle_broken => Ok(None),
            Fix::BreakCircle(number) => {
                let done = self.change_with_report(|txn| adopt(txn, *number, &|_| false)).await?;
                self.circle_broken = done.is_some();
                Ok(done)
            }
            Fix::SystemSlot(ino) => {
                let body = self.first_chunk(*ino);
                self.change_with_report(|txn| system_slot(txn, *ino, body)).await
            }
            Fix::RaiseReuse(ino) => self.change_with_report(|txn| raise_reuse(txn, *ino)).await,
            _ => Ok(None),
        }
    }

    /// A change by content that was found; where a part of the bitmap is lost, removed names may
    /// come back.
    fn found(&self, line: String) -> Change {
        Change::with_losses(line, self.state.engine.bitmap_lost.then_some(Loss::Past))
    }

    /// The first chunk whose descriptor has `ino` as its owner.
    fn first_chunk(&self, ino: Ino) -> DirNo {
        let mut chunks = self.check.tree.chunks.iter();
        let first = chunks.find(|(_, (chunk, _))| {
            let Descriptor { owner, index, .. } = chunk.descriptor;
            (owner, index) == (ino, 0)
        });
        first.map_or(DirNo(0), |(&number, _)| number)
    }

    /// The blocks that belong to this chunk, as their inodes say.
    async fn blocks_of(&mut self, number: DirNo) -> Result<Option<Blocks>, StoreError> {
        if self.evidence.is_none() {
            self.evidence = Some(self.gather().await?);
        }
        Ok(self.evidence.as_ref().and_then(|evidence| evidence.get(&number)).cloned())
    }

    /// Rebuilds a missing chunk from the blocks whose inodes say that they belong to it.
    async fn find(&mut self, number: DirNo, owner: Ino, index: u32) -> Done {
        let Some(blocks) = self.blocks_of(number).await? else {
            if is_system(number) {
                let done = self.change(|txn| new_system_chunk(txn).map(drop)).await?;
                return Ok(done.then(|| "the system's chunk was made anew".into()));
            }
            return self.change_with_report(|txn| cut_missing(txn, owner, number)).await;
        };
        let descriptor = Descriptor { owner, next: DirNo(0), index, used: 0 };
        let mut chunk = Chunk { descriptor, runs: Vec::new() };
        fill(&mut chunk, &blocks);
        let done = self.change(|txn| write_chunk(txn, number, Some(&chunk))).await?;
        let len = blocks.len();
        let line = || format!("chunk {number} of directory {owner} was found: {len} blocks");
        Ok(done.then(|| self.found(line())))
    }

    /// Reads the content blocks that no chunk has.
    async fn gather(&mut self) -> Result<Evidence, StoreError> {
        let mut out = Evidence::new();
        for block in self.unowned_blocks().await? {
            let read = self.mfs.run(Cost::READ, |txn| block_evidence(txn, block)).await;
            if let Ok((said, _)) = read {
                note(&mut out, block, &said);
            }
        }
        Ok(out)
    }

    /// Finds places for stranded blocks. Only the first of these steps that finds blocks is done;
    /// then the check runs again, as less is missing:
    /// 1. blocks that a chunk is missing go there; each block whose inodes contradict each other
    ///    gets a chunk of its own, with a new number. There may be directories in it;
    /// 2. chunks that are missing in the table;
    /// 3. blocks whose place is taken, and those of further names only, get chunks of their own,
    ///    too.
    async fn find_others(&mut self) -> Done {
        let (mut named, mut nowhere) = (Evidence::new(), Vec::new());
        for (block, said) in &self.check.stranded {
            match said.place() {
                Some(_) => note(&mut named, *block, said),
                None if said.is_links() => {}
                None => nowhere.push((said.lsn, *block)),
            }
        }
        let (mut there, mut missing) = (Evidence::new(), Vec::new());
        for (number, blocks) in named {
            match self.check.tree.chunks.get(&number) {
                Some((chunk, _)) if fits(chunk, &blocks) => drop(there.insert(number, blocks)),
                Some(_) => {}
                None => missing.push((number, blocks)),
            }
        }
        let filled = self.fill_all(&there).await?;
        let chunks = if filled > 0 || !nowhere.is_empty() {
            self.make_separate_chunks(nowhere).await?
        } else if !missing.is_empty() {
            missing
        } else {
            let rest = self.check.stranded.iter().map(|(block, said)| (said.lsn, *block)).collect();
            self.make_separate_chunks(rest).await?
        };
        let found = filled + chunks.len();
        self.make_chunks(chunks).await?;
        let line = || format!("{found} chunks were found by the inodes in their blocks");
        Ok((found > 0).then(|| self.found(line())))
    }

    /// Puts blocks into the chunks that miss them; returns how many chunks.
    async fn fill_all(&mut self, there: &Evidence) -> Result<usize, StoreError> {
        for (&number, blocks) in there {
            self.change(|txn| {
                if !txn.names().ensure_chunk(number)? {
                    return Err(Stop::Fault(Fault::Stale));
                }
                let mut chunk = txn.names().chunk(number)?.clone();
                fill(&mut chunk, blocks);
                write_chunk(txn, number, Some(&chunk))
            })
            .await?;
        }
        Ok(there.len())
    }

    /// Makes each block a chunk of its own, with a number that nothing names.
    async fn make_separate_chunks(
        &mut self,
        blocks: Vec<(Lsn, MetaBlock)>,
    ) -> Result<Vec<(DirNo, Blocks)>, StoreError> {
        let Some(mut numbers) = self.check.read(|txn| txn.names().chunk_numbers()).await? else {
            return Ok(Vec::new());
        };
        let shard = self.check.shard;
        let known = self.check.tree.chunks.keys().copied();
        let named = self.check.stranded.iter().flat_map(|(_, said)| said.chunks());
        let here = known.chain(named).filter(|chunk| chunk.shard() == shard);
        here.for_each(|chunk| numbers.note(chunk.number()));
        let number = |block| Some((DirNo::of(shard, numbers.ordinary().ok()?), block));
        let numbered = blocks.into_iter().map_while(number);
        Ok(numbered.map(|(number, block)| (number, Blocks::from([(0, block)]))).collect())
    }

    /// Makes chunks that are missing in the table and that nothing leads to. If exactly one
    /// directory misses as many blocks as all of them have, it gets them, in the order of their
    /// numbers. Else their owner is unknown.
    async fn make_chunks(&mut self, chunks: Vec<(DirNo, Blocks)>) -> Result<(), StoreError> {
        let all: usize = chunks.iter().map(|(_, blocks)| blocks.len()).sum();
        let mut short = match self.check.short_directories[..] {
            [only] if all as u64 <= only.missing => Some(only),
            _ => None,
        };
        for (number, blocks) in chunks {
            let len = blocks.len() as u64;
            let (owner, index) = short.map_or((Ino::NONE, 0), |short| (short.dir, short.index));
            let descriptor = Descriptor { owner, next: DirNo(0), index, used: 0 };
            let mut chunk = Chunk { descriptor, runs: Vec::new() };
            fill(&mut chunk, &blocks);
            self.change(|txn| {
                write_chunk(txn, number, Some(&chunk))?;
                let mut numbers = txn.names().chunk_numbers()?;
                numbers.note(number.number());
                txn.names().set_chunk_numbers(numbers)?;
                short.map_or(Ok(()), |short| link_behind(txn, short.last, number))
            })
            .await?;
            if let Some(before) = short {
                let (index, missing) = (before.index + 1, before.missing - len);
                short = Some(ShortDirectory { dir: before.dir, last: number, index, missing });
            }
        }
        Ok(())
    }
}

/// Has the chunk none of these blocks?
fn fits(chunk: &Chunk, blocks: &Blocks) -> bool {
    !blocks.keys().any(|&at| chunk.run_of(at).is_some_and(ContentRun::is_present))
}

/// Adds a block to the evidence for a chunk. Of two blocks for one place, the newer counts.
fn note(evidence: &mut Evidence, block: MetaBlock, said: &BlockEvidence) {
    if let Some((chunk, index)) = said.place() {
        let place = evidence.entry(chunk).or_default().entry(index).or_insert((said.lsn, block));
        *place = (*place).max((said.lsn, block));
    }
}

/// Links chunk `number` behind `last`.
fn link_behind(txn: &mut Txn<'_>, last: DirNo, number: DirNo) -> Result<(), Stop> {
    if !txn.names().ensure_chunk(last)? {
        return Err(Stop::Fault(Fault::Stale));
    }
    let mut chunk = txn.names().chunk(last)?.clone();
    chunk.descriptor.next = number;
    write_chunk(txn, last, Some(&chunk))
}

/// The place of an inode, if it has one; wrong entries of the `moved` tree do not count.
fn place_of(txn: &mut Txn<'_>, ino: Ino) -> Result<Option<SlotPlace>, Stop> {
    if ino == Ino::NONE {
        return Ok(None);
    }
    match txn.names().locate(ino) {
        Ok(spot) => Ok(spot.map(|spot| spot.place)),
        Err(Stop::Corrupt(..)) => Ok(None),
        Err(stop) => Err(stop),
    }
}

/// Adds found blocks where the chunk has none; gaps get retired slots.
fn fill(chunk: &mut Chunk, blocks: &Blocks) {
    for (&at, &(_, home)) in blocks {
        if chunk.run_of(at).is_some_and(ContentRun::is_present) {
            continue;
        }
        if at > chunk.allocated() {
            chunk.put(ContentRun::hole(chunk.allocated(), at - chunk.allocated(), RETIRED));
        }
        chunk.put(ContentRun::present(at, home, 1));
        chunk.descriptor.used = chunk.descriptor.used.max(at + 1);
    }
}

fn empty_block(txn: &mut Txn<'_>, home: MetaBlock, kind: BlockType) -> Result<(), Stop> {
    let data = txn.init(home, kind)?;
    let mut empty = Slot::default();
    empty.set_next_reuse(RETIRED);
    (0..SLOTS_PER_BLOCK).for_each(|at| empty.store(data, at));
    Ok(())
}

/// Sets the table's items of a chunk to those of `chunk`; `None` removes them.
fn write_chunk(txn: &mut Txn<'_>, number: DirNo, chunk: Option<&Chunk>) -> Result<(), Stop> {
    let mut wanted = std::collections::BTreeMap::new();
    if let Some(chunk) = chunk {
        let runs = chunk.runs.iter().map(|run| (chunk_key(number, run.first), run.encode()));
        wanted.extend(runs);
        wanted.insert(chunk_key(number, DESCRIPTOR), chunk.descriptor.encode());
    }
    let mut there = Vec::new();
    CHUNKS.for_each(txn, &chunk_key(number, 0), |key, _| {
        let mine = decode_key(key).is_some_and(|(of, _)| of == number);
        if mine {
            there.push(*key);
        }
        mine
    })?;
    for key in there.iter().filter(|key| !wanted.contains_key(*key)) {
        CHUNKS.remove(txn, key)?;
    }
    for (key, value) in &wanted {
        CHUNKS.insert(txn, key, value)?;
    }
    Ok(())
}

/// Drops a block that belongs to something else: the chunk's slots there are retired.
fn drop_block(txn: &mut Txn<'_>, number: DirNo, index: u32) -> Result<(), Stop> {
    if !txn.names().ensure_chunk(number)? {
        return Ok(());
    }
    let mut chunk = txn.names().chunk(number)?.clone();
    if index < chunk.descriptor.used {
        chunk.put(ContentRun::hole(index, 1, RETIRED));
    } else {
        chunk.cut(index);
    }
    write_chunk(txn, number, Some(&chunk))
}

/// Removes the map; the directory is searched without one from now on.
fn drop_map(txn: &mut Txn<'_>, dir: Ino) -> Result<String, Stop> {
    let (spot, mut slot) = txn.names().locate_live(dir)?;
    let mut number = DirNo(slot.map());
    slot.set_map(0);
    slot.set_names(0);
    txn.names().store(&spot, &slot)?;
    for _ in 0..MAP_CHUNKS_MAX {
        if number.0 == 0 || !txn.names().ensure_chunk(number)? {
            break;
        }
        let descriptor = txn.names().chunk(number)?.descriptor;
        if descriptor.owner != dir || !descriptor.is_map() {
            break;
        }
        write_chunk(txn, number, None)?;
        number = descriptor.next;
    }
    Ok(format!("the name map of directory {dir} was removed"))
}

fn cut_chain(txn: &mut Txn<'_>, dir: Ino, last: Option<DirNo>) -> Result<String, Stop> {
    match last {
        None => {
            let (spot, mut slot) = txn.names().locate_live(dir)?;
            slot.set_body(0);
            txn.names().store(&spot, &slot)?;
        }
        Some(last) => {
            txn.names().ensure_chunk(last)?;
            let mut chunk = txn.names().chunk(last)?.clone();
            chunk.descriptor.next = DirNo(0);
            write_chunk(txn, last, Some(&chunk))?;
        }
    }
    Ok(format!("directory {dir} ends before a chunk that is not its own"))
}

/// Ends the chain of `dir` before `number`.
fn cut_missing(txn: &mut Txn<'_>, dir: Ino, number: DirNo) -> Result<String, Stop> {
    let (_, slot) = txn.names().locate_live(dir)?;
    let (mut at, mut last) = (DirNo(slot.body()), None);
    while at != number && at.0 != 0 {
        if !txn.names().ensure_chunk(at)? {
            break;
        }
        last = Some(at);
        at = txn.names().chunk(at)?.descriptor.next;
    }
    cut_chain(txn, dir, last)
}

/// Gives a chunk that no directory reaches to its directory, unless that lies in a `lost` chunk.
fn adopt(txn: &mut Txn<'_>, number: DirNo, lost: &impl Fn(DirNo) -> bool) -> Result<Change, Stop> {
    if !txn.names().ensure_chunk(number)? {
        return Err(Stop::Fault(Fault::Stale));
    }
    let mut chunk = txn.names().chunk(number)?.clone();
    let owner = chunk.descriptor.owner;
    if place_of(txn, owner)?.is_some_and(|place| lost(place.chunk)) {
        return Ok(Change::from(""));
    }
    if chunk.descriptor.is_map() {
        write_chunk(txn, number, None)?;
        return Ok(
            format!("chunk {number}, of a name map that no directory has, was removed").into()
        );
    }
    if chunk.runs.is_empty() {
        write_chunk(txn, number, None)?;
        return Ok(format!("chunk {number}, which was empty, was removed").into());
    }
    let there = match place_of(txn, owner)? {
        Some(_) => Some(txn.names().locate_live(owner)?.1),
        None => None,
    };
    let gone = (there.is_none() && !is_orphan_dir(owner) && owner != Ino::NONE).then_some(owner);
    let made = match &there {
        Some(slot) if slot.kind() == FileKind::Directory && slot.body() != 0 => {
            return append(txn, owner, DirNo(slot.body()), number, chunk);
        }
        Some(slot) if slot.kind() == FileKind::Directory => owner,
        None if gone.is_some() => recovered_directory(txn, owner)?,
        _ => recovered_directory(txn, Ino::NONE)?,
    };
    let own = there.is_some() && made == owner;
    let lost = (!own).then_some(gone.map_or(Loss::Unknown(made), Loss::Directory));
    let (spot, mut slot) = txn.names().locate_live(made)?;
    slot.set_body(number.0);
    txn.names().store(&spot, &slot)?;
    chunk.descriptor.owner = made;
    chunk.descriptor.index = 0;
    chunk.descriptor.next = DirNo(0);
    write_chunk(txn, number, Some(&chunk))?;
    let line = format!("chunk {number} is the content of directory {made}");
    Ok(Change::with_losses(line, lost))
}

/// Appends a chunk to the chain of `dir`. If the chain has the chunk already, the directory is in a
/// circle, or below something unreachable: it goes to lost+found.
fn append(
    txn: &mut Txn<'_>,
    dir: Ino,
    first: DirNo,
    number: DirNo,
    mut chunk: Chunk,
) -> Result<Change, Stop> {
    let (mut at, mut index) = (first, 0);
    loop {
        if at == number {
            rescue(txn, dir)?;
            let line = format!("directory {dir} is in lost+found");
            return Ok(Change::with_losses(line, [Loss::AllNames { ino: dir, counted: 1 }]));
        }
        if !txn.names().ensure_chunk(at)? {
            return Err(Stop::Fault(Fault::Stale));
        }
        index += 1;
        let next = txn.names().chunk(at)?.descriptor.next;
        if next.0 == 0 || index > 1 << 16 {
            break;
        }
        at = next;
    }
    link_behind(txn, at, number)?;
    chunk.descriptor.index = index;
    chunk.descriptor.next = DirNo(0);
    write_chunk(txn, number, Some(&chunk))?;
    Ok(format!("chunk {number} is part of directory {dir} again").into())
}

/// A directory in lost+found for content whose directory is lost: with the same number, if that is
/// known.
fn recovered_directory(txn: &mut Txn<'_>, owner: Ino) -> Result<Ino, Stop> {
    let found = lost_and_found(txn)?;
    let name = match owner {
        Ino::NONE => free_name(txn, found, Ino(txn.root(crate::trees::INODES)?))?,
        owner => free_name(txn, found, owner)?,
    };
    let ino = txn.names().create(found, &name, &private_directory(), None)?;
    let attr = txn.names().attr(found)?.ok_or(Stop::Fault(Fault::Stale))?;
    txn.names().set_attr(&Attr { nlink: attr.nlink + 1, ..attr })?;
    if owner == Ino::NONE {
        return Ok(ino);
    }
    renumber(txn, ino, owner)
}

/// Gives the new directory `ino` the number `owner`, which was issued before and lost.
fn renumber(txn: &mut Txn<'_>, ino: Ino, owner: Ino) -> Result<Ino, Stop> {
    let (spot, slot) = txn.names().locate_live(ino)?;
    let at = SlotAt { home: spot.block, place: spot.place };
    let mut taken = slot.clone();
    taken.set_attr(&Attr { ino: owner, ..slot.attr() });
    put_slot(txn, at, &taken)?;
    txn.names().update_moved(&spot, owner)?;
    Ok(owner)
}

fn system_slot(txn: &mut Txn<'_>, ino: Ino, body: DirNo) -> Result<Change, Stop> {
    let place = home_of(ino);
    let home = match txn.names().spot(place)? {
        Some(spot) => spot.block,
        // The chunk lost its block to another owner.
        None => new_system_chunk(txn)?,
    };
    let mut slot = Slot::default();
    slot.set_next_reuse(1);
    slot.set_inode(b"", &first_attr(ino));
    slot.set_body(body.0);
    put_slot(txn, SlotAt { home, place }, &slot)?;
    let lost = is_root_dir(ino).then_some(Loss::Root { root: ino, content: body.0 == 0 });
    Ok(Change::with_losses(format!("inode {ino} was made anew"), lost))
}

/// Gives the system's chunk a new block, without any inode.
fn new_system_chunk(txn: &mut Txn<'_>) -> Result<MetaBlock, Stop> {
    let home = txn.alloc_meta(1, None)?;
    empty_block(txn, home, BlockType::Directory)?;
    let descriptor = Descriptor { owner: Ino::NONE, next: DirNo(0), index: 0, used: 1 };
    let chunk = Chunk { descriptor, runs: vec![ContentRun::present(0, home, 1)] };
    write_chunk(txn, system_chunk(txn.shard()), Some(&chunk))?;
    Ok(home)
}

fn raise_reuse(txn: &mut Txn<'_>, ino: Ino) -> Result<String, Stop> {
    let home = home_of(ino);
    if txn.names().ensure_chunk(home.chunk)? {
        let mut chunk = txn.names().chunk(home.chunk)?.clone();
        let reuse = u16::from(reuse_of(ino)) + 1;
        let gone = chunk.run_of(home.block()).copied();
        if gone.is_some_and(|run| !run.is_present() && run.reuse < reuse) {
            chunk.put(ContentRun::hole(home.block(), 1, reuse));
            write_chunk(txn, home.chunk, Some(&chunk))?;
        }
    }
    Ok(format!("the number of inode {ino} is not issued again"))
}
